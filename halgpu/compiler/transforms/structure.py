"""What every pass takes for granted of blocks: they end in a terminator, and values are there before they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.traits import NoTerminator

from halgpu.compiler.transforms.dominance import immediate_dominators, reached

if TYPE_CHECKING:
    from halgpu.compiler.mlir import Diagnostics


def check_blocks(module: ModuleOp, diagnostics: Diagnostics) -> None:
    """Check that no block is empty. That the last operation of others is a terminator, xDSL verifies."""
    for op in module.walk():
        # Of an operation that no dialect here defines nothing is known.
        if not op.has_trait(NoTerminator, value_if_unregistered=True) and any(
            block.last_op is None for region in op.regions for block in region.blocks
        ):
            diagnostics.error(op, "expected each block to end in a terminator, found an empty one")


def check_values(around: Operation, diagnostics: Diagnostics) -> None:
    """Check that what operations use was computed on every way to them (MLIR's language reference, "SSA dominance").

    In an operation whose blocks are sound.
    """
    order = _Order()
    for op in around.walk():
        for operand in op.operands:
            if not order.before(operand, op):
                diagnostics.error(op, "uses a value that is not computed on every way to it")


class _Order:
    """What comes before what; worked out for a region when it is first asked for."""

    def __init__(self) -> None:
        self._numbers: dict[Block, dict[Operation, int]] = {}
        self._dominators: dict[Region, dict[Block, Block]] = {}

    def before(self, value: SSAValue, user: Operation) -> bool:
        """Whether a value is there when an operation uses it."""
        block = value.owner if isinstance(value.owner, Block) else value.owner.parent
        region = None if block is None else block.parent
        if block is None or region is None:
            return False
        around: Operation | None = user
        while around is not None and (around.parent is None or around.parent.parent is not region):
            around = around.parent_op()
        if around is None or around.parent is None:
            return False
        if around.parent is not block:
            return self._dominates(block, around.parent, region)
        if isinstance(value.owner, Block):
            return True
        numbers = self._numbers_in(block)
        return numbers[value.owner] < numbers[around]

    def _numbers_in(self, block: Block) -> dict[Operation, int]:
        found = self._numbers.get(block)
        if found is None:
            found = self._numbers[block] = {op: number for number, op in enumerate(block.ops)}
        return found

    def _dominates(self, block: Block, other: Block, region: Region) -> bool:
        found = self._dominators.get(region)
        if found is None:
            found = self._dominators[region] = immediate_dominators(reached(region))
        if other is not region.blocks[0] and other not in found:
            return True  # no way leads there
        at: Block | None = other
        while at is not None and at is not block:
            at = found.get(at)
        return at is block
