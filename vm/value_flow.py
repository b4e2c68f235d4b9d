"""Which instruction made the value that a local holds: reaching values of a function's or a loop's blocks.

A value is named by where it comes from: ``("in", local)`` for what a local held when control arrived,
``("op", offset)`` for an instruction's result, ``("phi", block, local)`` where several values meet at the start
of a block, and ``("zero",)`` for a copy from a register that nothing was written to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from halgpu.vm.dataflow import CallTypes, Local, TypedFunction, branches, reads, writes
from halgpu.vm.isa import Op
from halgpu.vm.verifier import Block

Value = tuple[Any, ...]
State = dict[Local, Value]
"""What locals hold; one that is absent holds ``("in", local)``."""

ZERO: Value = ("zero",)


class Flow:
    """Values in ``blocks``, which control enters at ``entry`` and, for a loop, comes back to."""

    def __init__(
        self,
        blocks: Mapping[int, Block],
        inside: Iterable[int],
        entry: int,
        typed: TypedFunction,
        calls: CallTypes,
    ) -> None:
        self.blocks = blocks
        self.entry = entry
        self.inside = frozenset(inside)
        self.ops: dict[int, tuple[Op, int]] = {}
        """Instructions by offset, each with its block."""
        self.operands: dict[tuple[int, Local], Value] = {}
        """What an instruction, by its offset, reads from a local."""
        self.starts: dict[int, State] = {entry: {}}
        self.edges: dict[int, dict[tuple[int, int], State]] = {offset: {} for offset in self.inside}
        """For each block the states on its incoming branches, by (block, number of the branch)."""
        self._typed = typed
        self._calls = calls
        self._phis: set[tuple[int, Local]] = set()
        self._solve()
        for offset in self.starts:
            self._note(offset)

    def meeting(self, block: int, local: Local) -> dict[tuple[int, int], Value]:
        """The values that meet in a phi, by incoming branch; what arrives from outside is left out."""
        return {branch: state.get(local, ("in", local)) for branch, state in self.edges[block].items()}

    def _solve(self) -> None:
        pending = [self.entry]
        while pending:
            offset = pending.pop()
            block = self.blocks[offset]
            state = dict(self.starts[offset])
            for op in block.ops:
                for local in writes(op, self._calls):
                    state[local] = ("op", op.offset)
            for number, (target, _) in enumerate(branches(block.ops[-1])):
                if target not in self.inside:
                    continue
                after = dict(state)
                for source, made in self._typed.copies[block.ops[-1].offset, number]:
                    after[made] = ZERO if source is None else after.get(source, ("in", source))
                self.edges[target][offset, number] = after
                if self._arrive(target) and target not in pending:
                    pending.append(target)

    def _arrive(self, target: int) -> bool:
        """Meet the states of all incoming branches known so far; whether that changed anything."""
        states = list(self.edges[target].values())
        if target == self.entry:
            states.append({})
        met: State = {}
        for local in {local for state in states for local in state}:
            values = {state.get(local, ("in", local)) for state in states}
            if len(values) > 1 or (target, local) in self._phis:
                # A phi stays one, so that this ends.
                self._phis.add((target, local))
                met[local] = ("phi", target, local)
            else:
                met[local] = values.pop()
        if self.starts.get(target) == met:
            return False
        self.starts[target] = met
        return True

    def _note(self, offset: int) -> None:
        state = dict(self.starts[offset])
        for op in self.blocks[offset].ops:
            self.ops[op.offset] = op, offset
            for local in reads(op, self._calls):
                self.operands[op.offset, local] = state.get(local, ("in", local))
            for local in writes(op, self._calls):
                state[local] = ("op", op.offset)


def constant(flow: Flow, value: Value) -> int | float | None:
    """The number that a value is, where an instruction says so."""
    if value == ZERO:
        return 0
    if value[0] != "op":
        return None
    op = flow.ops[value[1]][0]
    if op.instruction.encoding == "zero_constant":
        return 0
    if op.instruction.encoding == "constant":
        number: int | float = op["value"]
        return number
    return None
