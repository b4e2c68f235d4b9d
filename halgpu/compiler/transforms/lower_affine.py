"""``affine.apply``, ``affine.min`` and ``affine.max`` as instructions: sums, products and divisions of indices.

Facts: mlir/include/mlir/Dialect/Affine/IR/AffineOps.td; division and modulo round down, the divisor is positive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects import affine
from xdsl.ir import SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineSymExpr,
)

from halgpu.compiler.dialects.extra import AffineMaxOp
from halgpu.compiler.transforms.lower_arith import rounded_quotient
from halgpu.compiler.transforms.lowering import Lowering, Unsupported, lowers


@lowers(affine.ApplyOp, affine.MinOp, AffineMaxOp)
def apply(to: Lowering, op: Any, operands: Sequence[SSAValue]) -> SSAValue:
    found = op.map.data
    dims, symbols = operands[: found.num_dims], operands[found.num_dims :]
    values = [_value(to, result, dims, symbols) for result in found.results]
    least = values[0]
    for value in values[1:]:
        least = to.emit("max.i64.s" if isinstance(op, AffineMaxOp) else "min.i64.s", least, value)
    return least


def _value(to: Lowering, expr: AffineExpr, dims: Sequence[SSAValue], symbols: Sequence[SSAValue]) -> SSAValue:
    match expr:
        case AffineConstantExpr():
            return to.i64(expr.value)
        case AffineDimExpr():
            return dims[expr.position]
        case AffineSymExpr():
            return symbols[expr.position]
        case AffineBinaryOpExpr():
            left, right = (_value(to, side, dims, symbols) for side in (expr.lhs, expr.rhs))
            return _binary(to, expr.kind, left, right)
    raise Unsupported(f"expected an affine expression, found {expr}")


def _binary(to: Lowering, kind: AffineBinaryOpKind, left: SSAValue, right: SSAValue) -> SSAValue:
    match kind:
        case AffineBinaryOpKind.Add:
            return to.emit("add.i64", left, right)
        case AffineBinaryOpKind.Mul:
            return to.emit("mul.i64", left, right)
        case AffineBinaryOpKind.FloorDiv:
            return rounded_quotient(to, left, right, floor=True)
        case AffineBinaryOpKind.CeilDiv:
            return rounded_quotient(to, left, right, floor=False)
        case AffineBinaryOpKind.Mod:
            whole = to.emit("mul.i64", rounded_quotient(to, left, right, floor=True), right)
            return to.emit("sub.i64", left, whole)
