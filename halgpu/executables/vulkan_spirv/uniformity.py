"""Which blocks all invocations of a workgroup execute together, the same number of times.

Where subgroup instructions are emulated they contain barriers, which is only right in such blocks. A value is
*divergent* if it may differ between the invocations of a workgroup; a block is, if something divergent decides
whether it is executed. Both are found together, starting from what differs by definition, until nothing is added.
Everything not known to be uniform counts as divergent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from . import structure
from .module import Function, Instruction, Module
from .opcodes import Op
from .spirv_table import BuiltIn, Decoration, Storage
from .usage import Usage

_UNIFORM_BUILTINS: Final = frozenset(
    {
        BuiltIn.NUM_WORKGROUPS,
        BuiltIn.WORKGROUP_SIZE,
        BuiltIn.WORKGROUP_ID,
        BuiltIn.SUBGROUP_SIZE,
        BuiltIn.NUM_SUBGROUPS,
    }
)
_CHAINS: Final = frozenset({Op.AccessChain, Op.InBoundsAccessChain})
_GROUP: Final = frozenset(op for op in Op if op.name.startswith("GroupNonUniform"))
_GROUP_SAME_FOR_ALL: Final = frozenset(
    op
    for op in _GROUP
    if op.name.endswith(("Add", "Mul", "Min", "Max", "And", "Or", "Xor", "All", "Any", "First"))
)
_NEVER_UNIFORM: Final = frozenset(
    op
    for op in Op
    if op.name.startswith(("Atomic", "CooperativeMatrix"))
    or op in (Op.FunctionCall, *(_GROUP - _GROUP_SAME_FOR_ALL))
)


class Uniformity:
    """Tells the divergent blocks of a kernel's own function.

    ``one_subgroup`` says that a workgroup is no more than one subgroup, so that what is the same in a subgroup is
    the same in the workgroup.
    """

    def __init__(
        self,
        module: Module,
        function: Function,
        tree: structure.Structure,
        usage: Usage,
        *,
        one_subgroup: bool,
    ) -> None:
        self._module = module
        self._function = function
        self._usage = usage
        self._one_subgroup = one_subgroup
        self._blocks: dict[int, set[int]] = defaultdict(set)
        """Block -> ids of the conditions that decide whether it is executed."""
        self._merges: dict[int, set[int]] = defaultdict(set)
        """Block -> ids of the conditions that decide which of its phis' values is taken."""
        self._left: set[int] = set()
        self._chains = {
            i.result: i.operands for block in function.blocks.values() for i in block.body if i.op in _CHAINS
        }
        """Pointer -> the pointer that it was made of, and indices."""
        self._walk(tree.nodes, set())
        self._divergent: set[int] = set()
        self._spread()

    def is_uniform(self, block: int) -> bool:
        """Whether all invocations of a workgroup execute ``block`` together."""
        return not self._blocks[block] & self._divergent

    def conditions(self, block: int) -> set[int]:
        """Ids of the conditions that decide whether ``block`` is executed."""
        return self._blocks[block]

    def deciders(self, block: int) -> set[int]:
        """Ids of the conditions that decide which values the phis of ``block`` take."""
        return self._merges[block]

    def differs(self, value: int) -> bool:
        """Whether ``value`` may differ between the invocations of a workgroup that compute it."""
        return value in self._divergent

    # --- conditions -------------------------------------------------------------------------------------

    def _walk(self, nodes: list[structure.Node], conditions: set[int]) -> None:
        here = set(conditions)
        for node in nodes:
            if isinstance(node, structure.Straight):
                self._blocks[node.block.label] = here | self._left
            elif isinstance(node, structure.Loop):
                self._loop(node, here)
            elif isinstance(node, (structure.If, structure.Switch)):
                condition, branches = branches_of(node)
                for branch in branches:
                    self._walk(branch, here | {condition})
                    for edge in _edges(branch):
                        self._merges[edge.target].add(condition)
                if any(map(leaves, branches)):
                    # Some invocations may be gone from here on.
                    here.add(condition)
                if any(map(_ends, branches)):
                    self._left.add(condition)

    def _loop(self, node: structure.Loop, conditions: set[int]) -> None:
        exits = set(_exit_conditions([*node.body, *node.tail]))
        self._walk([*node.body, *node.tail], conditions | exits)
        for edge in _edges([*node.body, *node.tail]):
            self._merges[edge.target] |= exits
        self._merges[node.header] |= exits

    # --- values -----------------------------------------------------------------------------------------

    def _spread(self) -> None:
        before = -1
        while before != len(self._divergent):
            before = len(self._divergent)
            for block in self._function.blocks.values():
                decided = self._merges[block.label] & self._divergent
                for phi in block.phis:
                    if decided or not self._divergent.isdisjoint(phi.operands[::2]):
                        self._divergent.add(phi.result)
                for instruction in block.body:
                    if instruction.result and self._differs(instruction):
                        self._divergent.add(instruction.result)

    def _differs(self, instruction: Instruction) -> bool:
        op = instruction.op
        if op in _NEVER_UNIFORM:
            return True
        if op in _GROUP_SAME_FOR_ALL:
            return not self._one_subgroup
        if op == Op.Load:
            return self._load_differs(instruction.operands[0])
        if op in _CHAINS:
            return not self._divergent.isdisjoint(instruction.operands)
        return not self._divergent.isdisjoint(instruction.operands)

    def _load_differs(self, pointer: int) -> bool:
        if pointer in self._divergent:
            return True
        root = self.root(pointer)
        variable = self._module.variables.get(root)
        if variable is None:
            return True
        if variable.storage == Storage.INPUT:
            return (self._module.decoration(root, Decoration.BUILT_IN) or (0,))[0] not in _UNIFORM_BUILTINS
        if variable.storage in (Storage.PUSH_CONSTANT, Storage.UNIFORM):
            return False
        # What no invocation writes is the same for all that read the same place; other bindings may be the same memory.
        return variable.storage != Storage.STORAGE_BUFFER or self._writes_buffers()

    def _writes_buffers(self) -> bool:
        variables = self._module.variables
        return any(
            id_ in variables and variables[id_].storage == Storage.STORAGE_BUFFER
            for id_ in self._usage.writes
        )

    def root(self, pointer: int) -> int:
        """The variable that ``pointer`` leads into."""
        while pointer in self._chains:
            pointer = self._chains[pointer][0]
        return pointer

    def indices(self, pointer: int) -> tuple[int, ...]:
        """Ids of the indices that lead from its variable to ``pointer``."""
        if pointer not in self._chains:
            return ()
        base, *last = self._chains[pointer]
        return (*self.indices(base), *last)


def branches_of(node: structure.If | structure.Switch) -> tuple[int, list[list[structure.Node]]]:
    """What a selection decides by, and its branches."""
    if isinstance(node, structure.If):
        return node.condition, [node.then, node.otherwise]
    return node.selector, [case.body for case in node.cases]


def inner(node: structure.Node) -> list[structure.Node]:
    """The nodes inside of a construct."""
    if isinstance(node, structure.Loop):
        return [*node.body, *node.tail]
    if isinstance(node, (structure.If, structure.Switch)):
        return [inner for branch in branches_of(node)[1] for inner in branch]
    return []


def _ends(nodes: list[structure.Node]) -> bool:
    """Whether the function may end inside."""
    return any(isinstance(node, structure.Exit) or _ends(inner(node)) for node in nodes)


def leaves(nodes: list[structure.Node], breakable: bool = False, continuable: bool = False) -> bool:
    """Whether control may jump from inside of nodes to elsewhere than behind them.

    What is inside of a loop or a switch may leave that: it is ``breakable``, ``continuable``.
    """
    for node in nodes:
        if isinstance(node, structure.Exit):
            return True
        if isinstance(node, structure.Leave):
            stays = {"break": breakable, "continue": continuable}.get(node.kind, False)
            if not stays:
                return True
        loop = isinstance(node, structure.Loop)
        switch = isinstance(node, structure.Switch)
        if leaves(inner(node), breakable or loop or switch, continuable or loop):
            return True
    return False


def _edges(nodes: list[structure.Node]) -> Iterator[structure.Edge]:
    for node in nodes:
        if isinstance(node, structure.Edge):
            yield node
        yield from _edges(inner(node))


def _exit_conditions(
    nodes: list[structure.Node], breakable: bool = False, continuable: bool = False
) -> Iterator[int]:
    """The conditions on which control jumps away from inside of nodes (see :func:`leaves`)."""
    for node in nodes:
        loop = isinstance(node, structure.Loop)
        switch = isinstance(node, structure.Switch)
        if isinstance(node, (structure.If, structure.Switch)):
            condition, branches = branches_of(node)
            if any(leaves(branch, breakable or switch, continuable) for branch in branches):
                yield condition
        yield from _exit_conditions(inner(node), breakable or loop or switch, continuable or loop)
