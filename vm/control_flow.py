"""Blocks and branches as Python control flow.

A block that only one branch leads to is written where that branch is. What remains are *units*: the entry and the
blocks that several branches lead to, each with the tree of blocks written into it. A unit that branches to
itself is a ``while True``. Units that only go to themselves or the next one follow each other; otherwise an
outer loop picks the next unit by number, by halving. Straight-line functions have no loop at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from halgpu.vm.verifier import Block, VerifiedFunction

MAXIMUM_NESTING = 24
"""How deep blocks are written into each other; Python's tokenizer stops at 100 levels of indentation."""


@dataclass(slots=True)
class Unit:
    """A block that is branched to from several places, or the entry, with its number."""

    number: int
    head: Block
    loops: bool = False
    goes_to: frozenset[int] = frozenset()
    """Numbers of the units that its tree of blocks branches to, itself left out."""


class Units:
    """The units of a function, in order of their offsets."""

    def __init__(self, function: VerifiedFunction, heads: Iterable[int] = ()) -> None:
        """``heads`` are blocks that come to be branched to from elsewhere too."""
        self.blocks = {block.offset: block for block in function.blocks}
        self._entry = function.blocks[0].offset
        self._more = frozenset(heads)
        found = self._heads()
        self.by_head = {
            offset: Unit(number, self.blocks[offset]) for number, offset in enumerate(sorted(found))
        }
        for unit in self.by_head.values():
            self._find_exits(unit)

    def _heads(self) -> set[int]:
        incoming: dict[int, int] = {self._entry: 2}
        order = [self._entry]
        for offset in order:
            for target in self.blocks[offset].successors:
                if target not in incoming:
                    order.append(target)
                incoming[target] = incoming.get(target, 1 if target in self._more else 0) + 1
        heads = {offset for offset in order if incoming[offset] > 1}
        # Breadth first, so that a block's depth is known before those that are written into it.
        depth: dict[int, int] = {}
        for offset in order:
            level = depth.get(offset, 0)
            successors = self.blocks[offset].successors
            for target in successors:
                if incoming[target] > 1:
                    continue
                depth[target] = level + (len(successors) > 1) + (len(successors) - 1).bit_length()
                if depth[target] > MAXIMUM_NESTING:
                    depth[target] = 0
                    heads.add(target)
        return heads

    def _find_exits(self, unit: Unit) -> None:
        found: set[int] = set()
        pending = [unit.head]
        while pending:
            for target in pending.pop().successors:
                if target in self.by_head:
                    found.add(self.by_head[target].number)
                else:
                    pending.append(self.blocks[target])
        unit.loops = unit.number in found
        unit.goes_to = frozenset(found - {unit.number})

    @property
    def in_order(self) -> list[Unit]:
        """The units by number."""
        return list(self.by_head.values())

    @property
    def sequential(self) -> bool:
        """Whether every unit only goes to itself or the one behind it."""
        return all(unit.goes_to <= {unit.number + 1} for unit in self.in_order)


class Structurer:
    """Writes a function's units. ``heads`` are blocks that :meth:`leave` may go to."""

    def __init__(
        self,
        function: VerifiedFunction,
        line: Callable[[str], None],
        indent: Callable[[int], None],
        heads: Iterable[int] = (),
    ) -> None:
        self.units = Units(function, heads)
        self.line = line
        self.indent = indent
        self._sequential = self.units.sequential
        self._unit = self.units.in_order[0]

    def write(self, emit_tree: Callable[[Block], bool]) -> None:
        """Write all units; ``emit_tree`` writes the tree of a block and says whether control never leaves its end."""
        units = self.units.in_order
        if self._sequential:
            for unit in units:
                self._write_unit(unit, emit_tree)
            return
        self.line("at = 0")
        self.line("while True:")
        self.indent(1)
        self._write_choice(units, emit_tree)
        self.indent(-1)

    def _write_choice(self, units: list[Unit], emit_tree: Callable[[Block], bool]) -> None:
        if len(units) == 1:
            self._write_unit(units[0], emit_tree)
            return
        middle = len(units) // 2
        self.line(f"if at < {units[middle].number}:")
        self.indent(1)
        self._write_choice(units[:middle], emit_tree)
        self.indent(-1)
        self.line("else:")
        self.indent(1)
        self._write_choice(units[middle:], emit_tree)
        self.indent(-1)

    def _write_unit(self, unit: Unit, emit_tree: Callable[[Block], bool]) -> None:
        self._unit = unit
        if unit.loops:
            self.line("while True:")
            self.indent(1)
        emit_tree(unit.head)
        if unit.loops:
            self.indent(-1)

    def leave(self, target: int) -> None:
        """Write a jump from the start of a loop's header to a unit behind the loop."""
        if not self._sequential:
            self.line(f"at = {self.units.by_head[target].number}")
        # A header that does not branch to itself is come back to by the loop that picks units.
        self.line("break" if self._unit.loops else "continue")

    def inline(self, target: int) -> Block | None:
        """The block at ``target`` when it is written where the branch is."""
        return None if target in self.units.by_head else self.units.blocks[target]

    def go(self, target: int) -> bool:
        """Write a jump to a unit from the end of a block; say whether control never leaves its end."""
        unit = self.units.by_head[target]
        if unit is self._unit:
            self.line("continue")
            return True
        if not self._sequential:
            self.line(f"at = {unit.number}")
        if self._unit.loops:
            self.line("break")
            return True
        return False
