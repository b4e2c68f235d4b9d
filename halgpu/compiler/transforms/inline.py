"""Puts functions' code in place of their calls, where the dialects of all its operations allow it.

See :mod:`halgpu.compiler.dialects.inlining` for who decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import cf, func
from xdsl.dialects.builtin import CallSiteLoc, ModuleOp, UnknownLoc
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from halgpu.compiler.dialects import inlining, util
from halgpu.compiler.mlir import Diagnostics, erase, op_name, place
from halgpu.compiler.transforms.symbols import Call, Function, table

RETURNS = (util.ReturnOp, func.ReturnOp)


@dataclass(frozen=True)
class InlinePass(ModulePass):
    """Inline all calls that may be. Calls that may not stay calls; a remark says why, naming the operation."""

    name = "inline"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        diagnostics = Diagnostics()
        inliner = Inliner(op, ctx)
        for function in list(op.body.block.ops):
            if isinstance(function, (util.FuncOp, func.FuncOp, util.InitializerOp)):
                inliner.inline_calls(function, diagnostics)
        REMARKS.get().extend(diagnostics.remarks)


REMARKS: ContextVar[list[str]] = ContextVar("REMARKS")
"""Takes what passes have to tell beside errors; whoever runs passes sets it."""


class Inliner:
    """Inlines calls, those of callees first."""

    def __init__(self, module: ModuleOp, ctx: Context) -> None:
        self.symbols = table(module)
        self.ctx = ctx
        self._active: list[Operation] = []
        self._done: set[Operation] = set()

    def inline_calls(self, function: Operation, diagnostics: Diagnostics) -> None:
        """Inline the calls in a function or initializer."""
        if function in self._done:
            return
        self._active.append(function)
        for call in [found for found in function.walk() if isinstance(found, Call)]:
            callee = self.symbols.get(call.callee.string_value())
            if not isinstance(callee, Function) or not callee.body.blocks or callee in self._active:
                continue
            self.inline_calls(callee, diagnostics)
            reason = self._reason(call, callee)
            if reason is None:
                inline_call(call, callee.body)
            elif reason:
                diagnostics.remark(call, reason)
        self._active.pop()
        self._done.add(function)

    def _reason(self, call: Call, callee: Function) -> str | None:
        """Why a call stays one; empty where that was asked for."""
        if isinstance(callee, util.FuncOp) and isinstance(callee.inlining_policy, util.InliningNeverAttr):
            return ""
        if len(callee.body.blocks) > 1 and not _in_cfg(call):
            return (
                f"@{callee.sym_name.data} has several blocks, which do not fit into {op_name_of_parent(call)}"
            )
        return why_not(callee.body, f"@{callee.sym_name.data} is not inlined", self.ctx)


def why_not(region: Region, what: str, ctx: Context) -> str | None:
    """The first reason why the operations of a region may not be inlined."""
    for op in region.walk():
        found = inlining.obstacle(op, ctx)
        if found is not None:
            return f"{what}: it holds '{op_name(op)}' ({place(op)}), and {found}"
    return None


def op_name_of_parent(op: Operation) -> str:
    """Name of the operation around another one."""
    parent = op.parent_op()
    return parent.name if parent is not None else "nothing"


def _in_cfg(op: Operation) -> bool:
    return isinstance(op.parent_op(), (util.FuncOp, func.FuncOp, util.InitializerOp))


def inline_call(call: Operation, body: Region) -> None:
    """Replace a call by a copy of the callee's code."""
    copy = Region()
    body.clone_into(copy)
    for op in copy.walk():
        if not isinstance(call.location, UnknownLoc) and not isinstance(op.location, UnknownLoc):
            op.location = CallSiteLoc(op.location, call.location)
    results = splice(copy, call, list(call.operands))
    for old, new in zip(call.results, results, strict=True):
        old.replace_all_uses_with(new)
    erase(call)


def splice(region: Region, before: Operation, arguments: Sequence[SSAValue]) -> list[SSAValue]:
    """Move the blocks of a region to before an operation; returns the values that the region returned there."""
    entry = region.blocks[0]
    for argument, value in zip(list(entry.args), arguments, strict=True):
        argument.replace_all_uses_with(value)
    if len(region.blocks) == 1:
        return _splice_block(entry, before)
    return _splice_blocks(region, before)


def _splice_block(block: Block, before: Operation) -> list[SSAValue]:
    target = before.parent
    assert target is not None
    results: list[SSAValue] = []
    for op in list(block.ops):
        op.detach()
        if isinstance(op, RETURNS):
            results = list(op.operands)
            op.erase()
        else:
            target.insert_op_before(op, before)
    return results


def _splice_blocks(region: Region, before: Operation) -> list[SSAValue]:
    start = before.parent
    assert start is not None
    assert start.parent is not None
    returns = [op for block in region.blocks for op in block.ops if isinstance(op, RETURNS)]
    types = [value.type for value in returns[0].operands] if returns else []
    rest = start.split_before(before, arg_types=types)
    blocks = list(region.blocks)
    for block in blocks:
        region.detach_block(block)
    start.parent.insert_block_after(blocks, start)
    for op in returns:
        assert op.parent is not None
        branch = cf.BranchOp(rest, *op.operands)
        branch.location = op.location
        op.parent.insert_op_before(branch, op)
        erase(op)
    # Nothing branches to an entry block: its code goes on where the call was.
    entry = blocks[0]
    for moved in list(entry.ops):
        entry.detach_op(moved)
        start.add_op(moved)
    start.parent.detach_block(entry)
    return list(rest.args)
