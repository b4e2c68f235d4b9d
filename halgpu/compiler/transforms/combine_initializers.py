"""Makes one initializer of all of them, and of globals' initial values, in the order of the module.

A program's ``__init`` then is one piece of code that later passes see as a whole. Globals that an initializer touches,
also through functions that it calls, move ahead of it. Facts:
compiler/src/iree/compiler/Dialect/Util/Transforms/{CombineInitializers,VerifyInitializationOrder}.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ArrayAttr, FloatAttr, FusedLoc, IntegerAttr, ModuleOp, NoneAttr, UnknownLoc
from xdsl.ir import Block, Operation, Region
from xdsl.passes import ModulePass

from halgpu.compiler.dialects import util
from halgpu.compiler.mlir import Diagnostics, erase, place
from halgpu.compiler.transforms.inline import Inliner, splice, why_not
from halgpu.compiler.transforms.symbols import Call, Function, table

Point = util.InitializerOp | util.GlobalOp


@dataclass(frozen=True)
class CombineInitializersPass(ModulePass):
    """Combine all initializers into one."""

    name = "combine-initializers"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        points = [found for found in op.body.block.ops if _initializes(found)]
        if not points:
            return
        diagnostics = Diagnostics()
        _check_order(op, points, diagnostics)
        _inline_calls(op, points, ctx, diagnostics)
        for point in points:
            if isinstance(point, util.InitializerOp):
                reason = why_not(point.body, "it cannot become part of one initializer", ctx)
                if reason is not None:
                    diagnostics.error(point, reason)
            elif not isinstance(point.initial_value, IntegerAttr | FloatAttr):
                diagnostics.error(
                    point, f"there is no constant for its initial value {str(point.initial_value)[:60]}"
                )
        diagnostics.check()
        _combine(op, points)


def _initializes(op: Operation) -> bool:
    if isinstance(op, util.GlobalOp):
        value = op.initial_value
        # Device globals name what a program was compiled for; they do nothing at run time.
        kept = (IntegerAttr, FloatAttr, util.BytePatternAttr)
        return (
            value is not None
            and not isinstance(value, util.UninitializedAttr)
            and (isinstance(value, kept) or not str(op.type).startswith("!hal.device"))
        )
    return isinstance(op, util.InitializerOp)


# What initializers touch.


def _accesses(
    op: Operation, symbols: dict[str, Operation]
) -> Iterator[util.GlobalLoadOp | util.GlobalStoreOp]:
    """Accesses to globals in an operation, and in the functions that it calls."""
    seen: set[Operation] = set()
    waiting = [op]
    while waiting:
        for inner in waiting.pop().walk():
            if isinstance(inner, util.GlobalLoadOp | util.GlobalStoreOp):
                yield inner
            elif isinstance(inner, Call):
                callee = symbols.get(inner.callee.string_value())
                if isinstance(callee, Function) and callee not in seen:
                    seen.add(callee)
                    waiting.append(callee)


def _check_order(module: ModuleOp, points: Sequence[Operation], diagnostics: Diagnostics) -> None:
    """An initializer may only read what is set before it."""
    symbols = table(module)
    loads: dict[Operation, list[util.GlobalLoadOp]] = {}
    first: dict[str, int] = {}
    for number, point in enumerate(points):
        if isinstance(point, util.GlobalOp):
            first.setdefault(point.sym_name.data, number)
            continue
        accesses = list(_accesses(point, symbols))
        loads[point] = [op for op in accesses if isinstance(op, util.GlobalLoadOp)]
        for op in accesses:
            if isinstance(op, util.GlobalStoreOp):
                first.setdefault(op.symbol, number)
    for number, point in enumerate(points):
        for load in loads.get(point, ()):
            setter = first.get(load.symbol, number)
            found = symbols.get(load.symbol)
            if setter > number and not (isinstance(found, util.GlobalOp) and found.is_mutable is not None):
                diagnostics.error(load, _too_early(load, points[setter], loads, first, number))


def _too_early(
    load: util.GlobalLoadOp,
    setter: Operation,
    loads: dict[Operation, list[util.GlobalLoadOp]],
    first: dict[str, int],
    reader: int,
) -> str:
    where = f"the initializer at {place(setter)}" if isinstance(setter, util.InitializerOp) else place(setter)
    text = f"@{load.symbol} is read before {where} sets it"
    back = next((op for op in loads.get(setter, ()) if first.get(op.symbol) == reader), None)
    if back is not None:
        text += f", which in turn reads @{back.symbol}: the initializers form a cycle"
    return text


def _inline_calls(
    module: ModuleOp, points: Sequence[Operation], ctx: Context, diagnostics: Diagnostics
) -> None:
    """Calls in initializers become code; where operations may not be inlined, that is an error here."""
    inliner = Inliner(module, ctx)
    refused = Diagnostics()
    for point in points:
        if isinstance(point, util.InitializerOp):
            inliner.inline_calls(point, refused)
    diagnostics.found += [text.replace(": remark: ", ": error: ", 1) for text in refused.remarks]


# Combining.


def _combine(module: ModuleOp, points: Sequence[Operation]) -> None:
    block = module.body.block
    symbols = table(module)
    touched = {op.symbol for point in points for op in _accesses(point, symbols)}
    own = {point.sym_name.data for point in points if isinstance(point, util.GlobalOp)}
    order = [op for op in block.ops if isinstance(op, util.GlobalOp) and op.sym_name.data in touched | own]
    anchor = next(op for op in block.ops if op in points or op in order)
    combined = util.InitializerOp(Region(Block([util.ReturnOp()])))
    combined.location = _fused(points)
    block.insert_op_before(combined, anchor)
    for op in order:
        block.detach_op(op)
        block.insert_op_before(op, combined)
    for point in points:
        _append(combined, point)
        if isinstance(point, util.InitializerOp):
            erase(point, used=True)


def _append(combined: util.InitializerOp, point: Operation) -> None:
    """Add what a point does to the end of the combined initializer."""
    end = combined.body.blocks[-1].last_op
    assert end is not None
    if isinstance(point, util.InitializerOp):
        splice(point.body, end, ())
        return
    assert isinstance(point, util.GlobalOp)
    assert isinstance(point.initial_value, IntegerAttr | FloatAttr)
    constant = arith.ConstantOp(point.initial_value)
    store = util.GlobalStoreOp(constant.result, point.sym_name.data)
    for op in (constant, store):
        op.location = point.location
        assert end.parent is not None
        end.parent.insert_op_before(op, end)
    del point.properties["initial_value"]


def _fused(points: Sequence[Operation]) -> Any:
    known = [point.location for point in points if not isinstance(point.location, UnknownLoc)]
    return known[0] if len(known) == 1 else FusedLoc(ArrayAttr(known), NoneAttr()) if known else UnknownLoc()
