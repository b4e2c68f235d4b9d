"""Releases references where they are not needed any more.

A reference that an instruction takes over (a call's argument, what is stored to a global, what is returned) needs
nothing; after another last use, ``vm.discard.refs`` releases it. One that is needed on one way out of a block only is
released where the other way begins. Facts: compiler/src/iree/compiler/Dialect/VM/Transforms/MaterializeRefDiscards.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from halgpu.compiler.dialects import vm_control, vm_structure
from halgpu.compiler.mlir import erase
from halgpu.compiler.transforms.liveness import Liveness, is_ref, moves, ordered, predecessors


@dataclass(frozen=True)
class DiscardRefsPass(ModulePass):
    """Insert ``vm.discard.refs``."""

    name = "discard-refs"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.walk():
            if isinstance(function, vm_structure.FuncOp) and function.body.blocks:
                _discard(function)


def _discard(function: vm_structure.FuncOp) -> None:
    blocks = ordered(function)
    liveness = Liveness(blocks, is_ref)
    before = predecessors(blocks)
    for block in blocks:
        ends = liveness.last_uses(block)
        _inside(block, liveness, ends)
    for block in blocks:
        _edges(block, liveness, before)


def _inside(block: Block, liveness: Liveness, ends: dict[Operation, set[SSAValue]]) -> None:
    used: set[SSAValue] = set(liveness.live_out[block])
    for op in block.ops:
        used.update(op.operands)
    unused = [argument for argument in block.args if is_ref(argument) and argument not in used]
    for op in list(block.ops):
        dying = [] if moves(op) else _in_order(op.operands, ends[op])
        dying += [result for result in op.results if is_ref(result) and result not in used]
        following = op.next_op
        if dying and following is not None:
            _insert(dying, following)
    if unused and block.first_op is not None:
        _insert(unused, block.first_op)


def _in_order(operands: Sequence[SSAValue], wanted: Iterable[SSAValue]) -> list[SSAValue]:
    chosen = set(wanted)
    return list(dict.fromkeys(operand for operand in operands if operand in chosen))


def _insert(values: Sequence[SSAValue], before: Operation) -> None:
    block = before.parent
    assert block is not None
    op = vm_control.DiscardRefsOp(values)
    op.location = before.location
    block.insert_op_before(op, before)


def _edges(block: Block, liveness: Liveness, before: dict[Block, list[Block]]) -> None:
    terminator = block.last_op
    if not isinstance(terminator, vm_control.CondBranchOp | vm_control.BranchTableOp):
        return
    edges = vm_control.successors(terminator)
    live = set(liveness.live_out[block])
    for _, values in edges:
        live.update(value for value in values if is_ref(value))
    order = sorted(live, key=_position)
    for number, (after, values) in enumerate(edges):
        dying = [v for v in order if v not in liveness.live_in[after] and v not in values]
        if not dying:
            continue
        if len(before[after]) == 1 and after.first_op is not None:
            _insert(dying, after.first_op)
        else:
            terminator = _split(terminator, number, dying)


def _position(value: SSAValue) -> tuple[int, int, int]:
    """Where a value is made, so that the order is the same each time."""
    owner = value.owner
    block = owner if isinstance(owner, Block) else owner.parent
    assert isinstance(block, Block)
    assert block.parent is not None
    at = -1 if isinstance(owner, Block) else block.get_operation_index(owner)
    return block.parent.get_block_index(block), at, value.index  # type: ignore[attr-defined]


def _split(terminator: Operation, number: int, dying: Sequence[SSAValue]) -> Operation:
    """Put a block that releases references onto one of a branch's ways; returns the branch that is there then."""
    after, values = vm_control.successors(terminator)[number]
    made = Block()
    region = after.parent
    assert region is not None
    assert terminator.parent is not None
    region.insert_block_after(made, terminator.parent)
    branch = vm_control.BranchOp(after, values)
    branch.location = terminator.location
    made.add_op(branch)
    _insert(dying, branch)
    ways = [(dest, list(given)) for dest, given in vm_control.successors(terminator)]
    ways[number] = (made, [])
    new = vm_control.with_successors(terminator, ways)
    new.location = terminator.location
    block = terminator.parent
    block.insert_op_before(new, terminator)
    erase(terminator)
    return new
