"""Barriers that the stock compiler leaves out of kernels.

Where iree-compile 3.13.0 distributes the operations of a kernel among invocations in different ways, it may forget
that they hand results on to one another, and makes kernels without any barrier:

* the kernel of an argmax fills its whole result with zeros in every invocation, then every invocation updates its
  own element of it: one may fill what another one has updated already;
* in the kernel of a softmax over the axis before the last, every invocation sums up a column in workgroup memory,
  then reads the sums of all columns;
* the kernel of a small depthwise convolution fills its result with the invocations along one axis, then adds to it
  with the invocations along another.

Invocations in lockstep get it right by luck, and only a whole subgroup of them is. Here a barrier goes between such
accesses, wherever all invocations come by together; there it changes nothing for a kernel that needs none.

*Common* stores are those that all invocations make together, of the same value to the same place; other accesses
are an invocation's *own*. Memory is *exchanged* if one invocation may reach what another one stored: workgroup memory
that is reached by different indices, and a buffer that is reached by indices that depend on the invocation in
different ways (see ``distribution``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from . import structure
from .distribution import Distribution
from .module import Function, Instruction, Module
from .opcodes import Op
from .spirv_table import Storage
from .uniformity import Uniformity, branches_of, inner, leaves
from .usage import Usage

COMMON, OWN = "common", "own"


class Exchange(NamedTuple):
    """An access to exchanged memory: its indices are there as far as they tell accesses apart."""

    variable: int
    indices: tuple[object, ...]
    stores: bool
    buffer: bool

    def hands_over(self, later: Exchange) -> bool:
        """Whether one invocation may reach here what another one reaches later, and one of them stores.

        Kernels read parts of a buffer and store others, which need no barrier: a store has to come first there.
        """
        if self.variable != later.variable or self.indices == later.indices:
            return False
        return self.stores or (later.stores and not self.buffer)


Kinds = frozenset[str | Exchange]
_SHARED = frozenset({Storage.STORAGE_BUFFER, Storage.WORKGROUP})


def barriers(
    module: Module, function: Function, tree: structure.Structure, usage: Usage, *, in_turn: bool
) -> set[int]:
    """``id`` of the nodes and instructions of ``tree`` that a barrier has to come before.

    ``in_turn`` says that invocations run one after the other, each to its end, as long as there are no barriers.
    Then workgroup memory that every invocation fills for itself is safe.
    """
    if usage.synchronizes or Op.FunctionCall in usage.opcodes:
        return set()
    planner = _Planner(module, function, tree, usage)
    if not planner.exchanged and not planner.has_lost_barriers(
        frozenset({Storage.STORAGE_BUFFER}) if in_turn else _SHARED
    ):
        return set()
    planner.sequence(tree.nodes, frozenset(), uniform=True)
    return set() if planner.impossible else planner.found


class _Planner:
    def __init__(self, module: Module, function: Function, tree: structure.Structure, usage: Usage) -> None:
        self.uniformity = Uniformity(module, function, tree, usage, one_subgroup=False)
        self.module = module
        self.function = function
        self.found: set[int] = set()
        self.impossible = False
        self.distribution = Distribution(module, function, self.uniformity)
        self.exchanged = self.find_exchanged()

    # --- what accesses are ------------------------------------------------------------------------------

    def accesses(self) -> Iterator[tuple[Instruction, int]]:
        for block in self.function.blocks.values():
            for instruction in block.body:
                if self.storage(instruction) in _SHARED:
                    yield instruction, block.label

    def find_exchanged(self) -> frozenset[int]:
        indices: dict[int, set[tuple[object, ...]]] = defaultdict(set)
        stored = {
            self.uniformity.root(instruction.operands[0])
            for instruction, block in self.accesses()
            if instruction.op == Op.Store and not self.is_common_store(instruction, block)
        }
        for instruction, block in self.accesses():
            variable = self.uniformity.root(instruction.operands[0])
            if variable in stored and not self.is_common_store(instruction, block):
                indices[variable].add(self.indices(instruction))
        return frozenset(variable for variable in stored if len(indices[variable]) > 1)

    def indices(self, access: Instruction) -> tuple[object, ...]:
        """The indices of an access, as far as they tell it apart from others."""
        indices = self.uniformity.indices(access.operands[0])
        return indices if self.storage(access) == Storage.WORKGROUP else self.distribution.terms(indices)

    def has_lost_barriers(self, storages: frozenset[Storage]) -> bool:
        return any(
            self.storage(i) in storages and self.is_common_store(i, block) for i, block in self.accesses()
        )

    def is_common_store(self, instruction: Instruction, block: int) -> bool:
        return (
            instruction.op == Op.Store
            and self.uniformity.is_uniform(block)
            and not any(map(self.uniformity.differs, instruction.operands[:2]))
        )

    def storage(self, instruction: Instruction) -> int | None:
        """Where an access goes; None for other instructions."""
        if instruction.op not in (Op.Store, Op.Load):
            return None
        variable = self.module.variables.get(self.uniformity.root(instruction.operands[0]))
        return None if variable is None else variable.storage

    def kind(self, instruction: Instruction, block: int) -> Kinds:
        if self.storage(instruction) not in _SHARED:
            return frozenset()
        if self.is_common_store(instruction, block):
            return frozenset({COMMON})
        pointer, stores = instruction.operands[0], instruction.op == Op.Store
        variable = self.uniformity.root(pointer)
        exchange: Kinds = frozenset()
        if variable in self.exchanged:
            buffer = self.storage(instruction) == Storage.STORAGE_BUFFER
            exchange = frozenset({Exchange(variable, self.indices(instruction), stores, buffer)})
        if not stores and self.uniformity.is_uniform(block) and not self.uniformity.differs(pointer):
            # What all read alike is what each of them has stored, or nobody stores it.
            return exchange
        return exchange | {OWN}

    def kinds(self, node: structure.Node) -> Kinds:
        found: set[str | Exchange] = set()
        for straight in _straights(node):
            for instruction in straight.block.body:
                found |= self.kind(instruction, straight.block.label)
        return frozenset(found)

    # --- where barriers go ------------------------------------------------------------------------------

    def sequence(self, nodes: list[structure.Node], pending: Kinds, *, uniform: bool) -> Kinds:
        """Plan for ``nodes``; ``pending`` are the kinds of accesses since the last barrier, before and after."""
        for node in [*nodes]:
            if isinstance(node, structure.Straight):
                uniform = self.uniformity.is_uniform(node.block.label)
                for instruction in node.block.body:
                    kinds = self.kind(instruction, node.block.label)
                    pending = self.reach(instruction, kinds, pending, uniform=uniform)
            elif kinds := self.kinds(node):
                pending = self.construct(nodes, node, kinds, pending, uniform=uniform)
        return pending

    def construct(
        self,
        nodes: list[structure.Node],
        node: structure.Node,
        kinds: Kinds,
        pending: Kinds,
        *,
        uniform: bool,
    ) -> Kinds:
        """Plan for a construct among ``nodes``."""
        if not self.is_split(node, kinds):
            parts = self.parts(node) if uniform and isinstance(node, structure.If) else [node]
            at = next(number for number, other in enumerate(nodes) if other is node)
            nodes[at : at + 1] = parts
            for part in parts:
                pending = self.reach(part, self.kinds(part), pending, uniform=uniform)
            return pending
        if isinstance(node, (structure.If, structure.Switch)):
            ends = [self.sequence(branch, pending, uniform=uniform) for branch in branches_of(node)[1]]
            return frozenset().union(*ends)
        assert isinstance(node, structure.Loop)
        pending = self.sequence(node.body, pending | kinds, uniform=uniform)
        return self.sequence(node.tail, pending, uniform=uniform) | kinds

    def parts(self, node: structure.If) -> list[structure.Node]:
        """A selection that only some invocations take, cut where barriers belong, each part on its condition."""
        if leaves(node.then) or any(map(self.kinds, node.otherwise)):
            return [node]
        cut: list[list[structure.Node]] = [[]]
        pending: Kinds = frozenset()
        for child in node.then:
            kinds = self.kinds(child)
            if _clash(pending, kinds):
                cut.append([])
                pending = frozenset()
            pending |= kinds
            cut[-1].append(child)
        last = len(cut) - 1
        return [
            structure.If(node.condition, part, node.otherwise if number == last else [])
            for number, part in enumerate(cut)
        ]

    def is_split(self, node: structure.Node, kinds: Kinds) -> bool:
        """Whether barriers go inside of a construct, which all invocations take together, instead of before it."""
        if isinstance(node, (structure.If, structure.Switch)) and self.uniformity.differs(
            branches_of(node)[0]
        ):
            return False
        # Of a loop's exit only the branch that stays becomes C.
        return _clash(kinds, kinds) or any(isinstance(part, structure.Leave) for part in inner(node))

    def reach(self, place: object, kinds: Kinds, pending: Kinds, *, uniform: bool) -> Kinds:
        if not _clash(pending, kinds):
            return pending | kinds
        self.impossible |= not uniform
        self.found.add(id(place))
        return kinds


def _clash(before: Kinds, after: Kinds) -> bool:
    if (COMMON in before and OWN in after) or (OWN in before and COMMON in after):
        return True
    first, second = ([k for k in kinds if isinstance(k, Exchange)] for kinds in (before, after))
    return any(a.hands_over(b) for a in first for b in second)


def _straights(node: structure.Node) -> Iterator[structure.Straight]:
    if isinstance(node, structure.Straight):
        yield node
    for part in inner(node):
        yield from _straights(part)
