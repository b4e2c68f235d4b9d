"""Loops of a function that only compute and touch buffers: what :mod:`halgpu.vm.jit` turns into machine code.

A loop here is a natural one: a strongly connected set of blocks that is entered at one block, its header. Its
inner loops are those that remain when branches back to the header are left out. A loop can be native when all of
its instructions are in :data:`halgpu.vm.llvm_table.NATIVE` and no ref register changes in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from halgpu.vm import semantics
from halgpu.vm.dataflow import CallTypes, Local, TypedFunction, branches, reads, writes
from halgpu.vm.isa import Op, Remap
from halgpu.vm.llvm_table import FAULTS, NATIVE
from halgpu.vm.verifier import Block, VerifiedFunction

MAXIMUM_DEPTH = 12
"""Loops nested deeper are not looked for; their blocks count as blocks of the loop around them."""
MAXIMUM_OPS = 8_000
"""Instructions of a loop that is still compiled; LLVM's time grows faster than their number."""


@dataclass(eq=False, slots=True)
class Loop:
    """A natural loop. ``depth`` is 0 for an outermost one; ``own`` are its blocks that no inner loop has."""

    header: int
    blocks: frozenset[int]
    depth: int
    inner: tuple[Loop, ...]

    @property
    def own(self) -> list[int]:
        """Offsets of the blocks that lie in no inner loop."""
        return sorted(self.blocks - {offset for loop in self.inner for offset in loop.blocks})

    def nest(self) -> Iterator[Loop]:
        """The loop and all inside of it."""
        yield self
        for loop in self.inner:
            yield from loop.nest()


Refs = tuple[tuple[int, int, bool], ...]
"""Copies of ref registers that a branch makes: source, target, and whether it moves."""


@dataclass(eq=False, slots=True)
class Region:
    """A loop that can be native, and how it joins the translated function around it."""

    number: int
    """Among the function's regions."""
    nest: int
    """Number of the outermost native loop around it, or of itself; loops of a nest are counted together."""
    loop: Loop
    depth: int
    """How many native loops are around it."""
    incoming: tuple[Local, ...]
    """Locals that hold a value when control arrives at the header and that the loop may look at."""
    outgoing: tuple[Local, ...]
    """Locals that the loop changes and that are looked at behind it."""
    exits: tuple[tuple[int, Refs], ...]
    """Where it may go on: the block, and the copies of refs on the way. Other copies are the loop's."""
    reads: tuple[int, ...]
    """Ref registers that it looks at, in order."""
    stores: frozenset[int]
    """Those of them that it may write bytes of."""
    faults: tuple[Op, ...] = field(default=())
    """Instructions that can fail."""


def reachable(function: VerifiedFunction) -> dict[int, Block]:
    """The blocks that control can come to."""
    blocks = {block.offset: block for block in function.blocks}
    found = {0: blocks[0]}
    pending = [0]
    while pending:
        for target in found[pending.pop()].successors:
            if target not in found:
                found[target] = blocks[target]
                pending.append(target)
    return found


def find_loops(blocks: dict[int, Block]) -> tuple[Loop, ...]:
    """The outermost natural loops, each with those inside of it."""
    edges = {offset: block.successors for offset, block in blocks.items()}
    return _natural(edges, {0}, 0)


def _natural(edges: dict[int, tuple[int, ...]], entries: set[int], depth: int) -> tuple[Loop, ...]:
    found = []
    for component in components(edges):
        entered = {
            target
            for offset, targets in edges.items()
            if offset not in component
            for target in targets
            if target in component
        } | (entries & component)
        if len(entered) != 1:
            continue
        header = entered.pop()
        inside = {
            offset: tuple(target for target in edges[offset] if target in component and target != header)
            for offset in component
        }
        inner = _natural(inside, {header}, depth + 1) if depth + 1 < MAXIMUM_DEPTH else ()
        found.append(Loop(header, frozenset(component), depth, inner))
    return tuple(sorted(found, key=lambda loop: loop.header))


def components(edges: dict[int, tuple[int, ...]]) -> list[set[int]]:
    """Strongly connected components that hold a cycle (Tarjan's algorithm, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    stacked: set[int] = set()
    found: list[set[int]] = []
    for root in edges:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        stacked.add(root)
        work = [(root, iter(edges[root]))]
        while work:
            node, targets = work[-1]
            advanced = False
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    stacked.add(target)
                    work.append((target, iter(edges[target])))
                    advanced = True
                    break
                if target in stacked:
                    low[node] = min(low[node], index[target])
            if advanced:
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[node])
            if low[node] == index[node]:
                component = set()
                while True:
                    member = stack.pop()
                    stacked.discard(member)
                    component.add(member)
                    if member == node:
                        break
                if len(component) > 1 or node in edges[node]:
                    found.append(component)
    return found


class Liveness:
    """For each block the locals that are looked at before they are written, on some way from its start.

    Sets of locals are the bits of integers: there may be thousands of blocks with thousands of locals each.
    """

    def __init__(self, blocks: dict[int, Block], typed: TypedFunction, calls: CallTypes) -> None:
        self._bits: dict[Local, int] = {}
        self._live = dict.fromkeys(blocks, 0)
        before: dict[int, set[int]] = {offset: set() for offset in blocks}
        effects = {offset: self._effects(block, typed, calls) for offset, block in blocks.items()}
        for offset, block in blocks.items():
            for target in block.successors:
                before[target].add(offset)
        pending = sorted(blocks)
        waiting = set(pending)
        while pending:
            offset = pending.pop()
            waiting.discard(offset)
            read, written, edges = effects[offset]
            alive = 0
            for target, copies in edges:
                edge = self._live[target]
                for made, source in copies:
                    edge = edge & ~made | source
                alive |= edge
            now = alive & ~written | read
            if now != self._live[offset]:
                self._live[offset] = now
                pending += before[offset] - waiting
                waiting |= before[offset]

    def at(self, block: int, among: set[Local]) -> set[Local]:
        """Those of ``among`` that are live at the start of a block."""
        live = self._live[block]
        return {local for local in among if live & self._bits.get(local, 0)}

    def _bit(self, local: Local) -> int:
        return self._bits.setdefault(local, 1 << len(self._bits))

    def _effects(
        self, block: Block, typed: TypedFunction, calls: CallTypes
    ) -> tuple[int, int, list[tuple[int, list[tuple[int, int]]]]]:
        """What a block reads before it writes it, what it writes, and its branches' copies, the last one first."""
        read = written = 0
        for op in block.ops:
            for local in reads(op, calls):
                read |= self._bit(local) & ~written
            for local in writes(op, calls):
                written |= self._bit(local)
        edges = []
        for number, (target, _) in enumerate(branches(block.ops[-1])):
            copies = [
                (self._bit(made), 0 if source is None else self._bit(source))
                for source, made in reversed(typed.copies[block.ops[-1].offset, number])
            ]
            edges.append((target, copies))
        return read, written, edges


def ref_copies(remap: Remap) -> Refs:
    """The copies of ref registers in a branch's operands, those onto themselves left out."""
    return tuple(
        (source.ordinal, target.ordinal, source.move)
        for source, target in remap
        if source.bank == "ref" and source.ordinal != target.ordinal
    )


class RegionFinder:
    """Finds the regions of a typed function."""

    def __init__(self, function: VerifiedFunction, typed: TypedFunction, calls: CallTypes) -> None:
        self.typed = typed
        self.calls = calls
        self.blocks = reachable(function)

    def find(self) -> tuple[Region, ...]:
        """The loops that can be native, outer ones before those inside of them."""
        if not any(target <= offset for offset, block in self.blocks.items() for target in block.successors):
            # Quick way out for straight code: a cycle needs a branch backward.
            return ()
        chosen = [
            (nest, loop, depth) for nest, root in enumerate(self._roots()) for loop, depth in _nested(root)
        ]
        if not chosen:
            return ()
        live = Liveness(self.blocks, self.typed, self.calls)
        return tuple(
            self._region(number, nest, loop, depth, live) for number, (nest, loop, depth) in enumerate(chosen)
        )

    def _roots(self) -> Iterable[Loop]:
        pending = list(reversed(find_loops(self.blocks)))
        while pending:
            loop = pending.pop()
            if self._native(loop):
                yield loop
            else:
                pending += reversed(loop.inner)

    def _native(self, loop: Loop) -> bool:
        count = 0
        for offset in loop.blocks:
            block = self.blocks[offset]
            count += len(block.ops)
            if not all(op.instruction.symbol in NATIVE for op in block.ops):
                return False
            for target, remap in branches(block.ops[-1]):
                if target in loop.blocks and ref_copies(remap):
                    return False
        return count <= MAXIMUM_OPS

    def _region(self, number: int, nest: int, loop: Loop, depth: int, live: Liveness) -> Region:
        touched: set[Local] = set()
        written: set[Local] = set()
        refs: set[int] = set()
        stores: set[int] = set()
        faults: list[Op] = []
        exits: dict[tuple[int, Refs], None] = {}
        for offset in sorted(loop.blocks):
            block = self.blocks[offset]
            for op in block.ops:
                touched.update(reads(op, self.calls))
                written.update(writes(op, self.calls))
                _note_refs(op, refs, stores)
                if op.instruction.symbol in FAULTS:
                    faults.append(op)
            for branch, (target, remap) in enumerate(branches(block.ops[-1])):
                for source, made in self.typed.copies[block.ops[-1].offset, branch]:
                    written.add(made)
                    if source is not None:
                        touched.add(source)
                if target not in loop.blocks:
                    exits[target, ref_copies(remap)] = None
        behind = {local for target, _ in exits for local in live.at(target, written)}
        return Region(
            number,
            nest,
            loop,
            depth,
            tuple(sorted(live.at(loop.header, touched | written))),
            tuple(sorted(behind)),
            tuple(exits),
            tuple(sorted(refs)),
            frozenset(stores),
            tuple(faults),
        )


def _nested(root: Loop) -> Iterator[tuple[Loop, int]]:
    return ((loop, loop.depth - root.depth) for loop in root.nest())


def _note_refs(op: Op, refs: set[int], stores: set[int]) -> None:
    for spec, value in zip(op.instruction.fields, op.operands, strict=True):
        if spec.type != "ref" or spec.kind != "register":
            continue
        refs.add(value.ordinal)
        if spec.name == "target_buffer":
            stores.add(value.ordinal)


def is_jump(op: Op) -> bool:
    """Whether a terminator goes to one block and does nothing else."""
    return semantics.METHODS.get(op.instruction.symbol) == "branch"
