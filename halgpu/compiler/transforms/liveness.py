"""Which values of a ``vm`` function are needed later, block by block."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import Block, Operation, SSAValue

from halgpu.compiler.dialects import vm_control, vm_structure, vm_types
from halgpu.compiler.dialects.vm_instructions import MOVABLE
from halgpu.compiler.transforms.dominance import reached

Wanted = Callable[[SSAValue], bool]


def is_ref(value: SSAValue) -> bool:
    """Whether a value is a reference."""
    return vm_types.is_ref(value.type)


def ordered(function: vm_structure.FuncOp) -> list[Block]:
    """The blocks that are reached, each after those that dominate it."""
    return reached(function.body)


class Liveness:
    """Values that are live where blocks begin and end, of those that are ``wanted``."""

    def __init__(self, blocks: Sequence[Block], wanted: Wanted = lambda value: True) -> None:
        self.wanted = wanted
        self.live_in: dict[Block, frozenset[SSAValue]] = {block: frozenset() for block in blocks}
        self.live_out: dict[Block, frozenset[SSAValue]] = {block: frozenset() for block in blocks}
        uses = {block: self._uses(block) for block in blocks}
        made = {block: self._made(block) for block in blocks}
        changed = True
        while changed:
            changed = False
            for block in reversed(blocks):
                out = frozenset().union(*(self.live_in[after] for after, _ in _after(block)))
                needed = uses[block] | (out - made[block])
                if out != self.live_out[block] or needed != self.live_in[block]:
                    self.live_out[block], self.live_in[block] = out, needed
                    changed = True

    def _uses(self, block: Block) -> frozenset[SSAValue]:
        """Values from outside that the block uses."""
        made = self._made(block)
        return frozenset(
            value for op in block.ops for value in op.operands if self.wanted(value) and value not in made
        )

    def _made(self, block: Block) -> frozenset[SSAValue]:
        return frozenset([*block.args, *(result for op in block.ops for result in op.results)])

    def last_uses(self, block: Block) -> dict[Operation, set[SSAValue]]:
        """By operation, the operands that nothing in the block after it uses, and no later block."""
        live = set(self.live_out[block])
        ends: dict[Operation, set[SSAValue]] = {}
        for op in reversed(list(block.ops)):
            live.difference_update(op.results)
            ends[op] = {value for value in op.operands if self.wanted(value) and value not in live}
            live |= ends[op]
        return ends


def _after(block: Block) -> list[tuple[Block, Sequence[SSAValue]]]:
    return vm_control.successors(block.last_op) if block.last_op is not None else []


def moves(op: Operation) -> bool:
    """Whether references may end their life as an operand of ``op``, the register being null from then on."""
    if isinstance(op, (vm_control.CallOp, vm_control.CallVariadicOp, vm_control.ReturnOp)):
        return True
    instruction = getattr(op, "INSTRUCTION", None)
    return instruction is not None and instruction.encoding in MOVABLE


def predecessors(blocks: Sequence[Block]) -> dict[Block, list[Block]]:
    """The blocks that go to each block, one entry an edge."""
    found: dict[Block, list[Block]] = {block: [] for block in blocks}
    for block in blocks:
        for after, _ in _after(block):
            found[after].append(block)
    return found
