"""Lists of ``util`` as instructions.

Facts: compiler/src/iree/compiler/Dialect/VM/Conversion/UtilToVM/ConvertListOps.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import SSAValue

from halgpu.compiler.dialects import util
from halgpu.compiler.transforms.lowering import I32, Lowering, convert_type, lowers, suffix


@lowers(util.ListCreateOp)
def create(to: Lowering, op: util.ListCreateOp, operands: Sequence[SSAValue]) -> SSAValue:
    capacity = to.cast_integer(operands[0], I32) if operands else to.i32(0)
    return to.emit("list.alloc", capacity, result=convert_type(op.result.type))


@lowers(util.ListConstructOp)
def construct(to: Lowering, op: util.ListConstructOp, operands: Sequence[SSAValue]) -> SSAValue:
    count = to.i32(len(operands))
    made = to.emit("list.alloc", count, result=convert_type(op.result.type))
    if operands:
        to.emit("list.resize", made, count)
    for number, value in enumerate(operands):
        to.emit(f"list.set.{suffix(value.type)}", made, to.i32(number), value)
    return made


@lowers(util.ListSizeOp)
def size(to: Lowering, op: util.ListSizeOp, operands: Sequence[SSAValue]) -> SSAValue:
    return to.emit("ext.i32.i64.s", to.emit("list.size", *operands))


@lowers(util.ListResizeOp)
def resize(to: Lowering, op: util.ListResizeOp, operands: Sequence[SSAValue]) -> None:
    to.emit("list.resize", operands[0], to.cast_integer(operands[1], I32))


@lowers(util.ListGetOp)
def get(to: Lowering, op: util.ListGetOp, operands: Sequence[SSAValue]) -> SSAValue:
    type_ = convert_type(op.result.type)
    found = to.emit(f"list.get.{suffix(type_)}", operands[0], to.cast_integer(operands[1], I32), result=type_)
    return to.narrow(found, op.result.type) if type_ == I32 else found


@lowers(util.ListSetOp)
def set_(to: Lowering, op: util.ListSetOp, operands: Sequence[SSAValue]) -> None:
    found, index, value = operands
    to.emit(f"list.set.{suffix(value.type)}", found, to.cast_integer(index, I32), value)
