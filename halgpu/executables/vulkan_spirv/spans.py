"""How many neighbouring invocations agree on the operands of cooperative matrices.

Stock executables do not say how large subgroups are. They need not: all operands of these instructions are the same
throughout a subgroup (SPV_KHR_cooperative_matrix asks for it), and any invocations that agree on them can share a
matrix, whether the compiler meant them to be one subgroup, a part of one, or several that do the same work.

The *span* of a value is a number of consecutive local indices, from any multiple of it on, over which it is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import TYPE_CHECKING, Final

from . import spirv_types as ty
from . import structure
from .module import Instruction
from .opcodes import INSTRUCTIONS, Op
from .spirv_table import BuiltIn, Decoration
from .uniformity import Uniformity
from .usage import COOPERATIVE

if TYPE_CHECKING:
    from .kernel import Kernel

LEAST: Final = 16
"""Invocations that share a matrix; fewer would need more workgroup memory than it is worth."""

_BY_SUBGROUP: Final = frozenset(
    {
        BuiltIn.SUBGROUP_SIZE,
        BuiltIn.NUM_SUBGROUPS,
        BuiltIn.SUBGROUP_ID,
        BuiltIn.SUBGROUP_LOCAL_INVOCATION_ID,
    }
)
_LOCAL: Final = frozenset(
    {BuiltIn.LOCAL_INVOCATION_ID, BuiltIn.LOCAL_INVOCATION_INDEX, BuiltIn.GLOBAL_INVOCATION_ID}
)
_PARTS: Final = frozenset({Op.AccessChain, Op.InBoundsAccessChain, Op.CompositeExtract})
_DIVISIONS: Final = frozenset({Op.UDiv, Op.SDiv, Op.ShiftRightLogical})
_MATRICES: Final = frozenset({Op.CooperativeMatrixLoadKHR, Op.CooperativeMatrixStoreKHR})

Span = tuple[int, int]
"""A span; and how often a value steps by one, at the end of each, before it begins again. 0 if it does not do that."""


def matrix_lanes(kernel: Kernel) -> int | None:
    """How many invocations share each matrix of a kernel; None where that is for the size of subgroups to say."""
    usage = kernel.usage
    if not usage.cooperates or not kernel.builtins_used().isdisjoint(_BY_SUBGROUP):
        return None
    if any(Op(op).name.startswith("GroupNonUniform") for op in usage.opcodes) or len(usage.functions) > 1:
        return None
    spans = _Spans(kernel)
    found = spans.common()
    return found if found >= min(LEAST, spans.total) else None


class _Spans:
    def __init__(self, kernel: Kernel) -> None:
        self.module = kernel.module
        self.function = kernel.function
        x, y, z = kernel.workgroup_size
        self.total = x * y * z
        self.axes: list[Span] = [(1, x), (x, y), (x * y, z)]
        self.found: dict[int, Span] = {}
        self.builtins: dict[int, int] = {}
        """Ids of built-in variables, and of their values, that tell invocations apart."""
        self._find_builtins()
        tree = structure.build(kernel.module, kernel.function)
        self.flow = Uniformity(kernel.module, kernel.function, tree, kernel.usage, one_subgroup=False)
        before: dict[int, Span] | None = None
        while before != self.found:
            before = dict(self.found)
            self._spread()

    def common(self) -> int:
        """The span of all that has to be the same throughout a subgroup."""
        result = self.total
        for block in self.function.blocks.values():
            for instruction in block.body:
                if instruction.op in COOPERATIVE or self._makes_matrix(instruction):
                    ids = (*_ids(instruction), *self.flow.conditions(block.label))
                    result = gcd(result, *map(self._span, ids))
        return result

    def _find_builtins(self) -> None:
        for id_ in self.module.variables:
            number = self.module.decoration(id_, Decoration.BUILT_IN)
            if number and number[0] in _LOCAL:
                self.builtins[id_] = number[0]

    def _makes_matrix(self, instruction: Instruction) -> bool:
        return isinstance(self.module.types.get(instruction.type), ty.CooperativeMatrix)

    def _span(self, id_: int) -> int:
        return self.found.get(id_, (self.total, 0))[0]

    def _spread(self) -> None:
        """Go over all values once; spans only ever shrink, from that of what never differs."""
        for block in self.function.blocks.values():
            for phi in block.phis:
                ids = (*phi.operands[::2], *self.flow.deciders(block.label))
                self.found[phi.result] = gcd(self.total, *map(self._span, ids)), 0
            for instruction in block.body:
                if instruction.result:
                    self.found[instruction.result] = self._of(instruction)

    def _of(self, instruction: Instruction) -> Span:
        op, operands = instruction.op, instruction.operands
        if self._makes_matrix(instruction):
            return self.total, 0
        if op in _PARTS and operands[0] in self.builtins:
            return self._component(instruction)
        if op == Op.Load and operands[0] in self.builtins:
            return self._builtin(instruction)
        if op == Op.Load and self.found.get(operands[0], (0, 0))[1]:
            return self.found[operands[0]]
        if op in _DIVISIONS:
            return self._quotient(operands, shift=op == Op.ShiftRightLogical)
        if Op(op).name.startswith("Atomic"):
            return 1, 0
        return gcd(self.total, *map(self._span, _ids(instruction))), 0

    def _builtin(self, instruction: Instruction) -> Span:
        """A load of a whole built-in variable."""
        builtin = self.builtins[instruction.operands[0]]
        if builtin == BuiltIn.LOCAL_INVOCATION_INDEX:
            return 1, self.total
        self.builtins[instruction.result] = builtin
        return 1, 0

    def _component(self, instruction: Instruction) -> Span:
        """A component of a built-in vector, or a pointer to it."""
        source, *indices = instruction.operands
        index = indices[0] if indices else 0
        if instruction.op != Op.CompositeExtract:
            constant = self.module.constants.get(index)
            value = constant.value if constant is not None else None
            index = value if isinstance(value, int) else 3
        if len(indices) != 1 or index > 2:
            return 1, 0
        span, steps = self.axes[index]
        return span, steps if self.builtins[source] == BuiltIn.LOCAL_INVOCATION_ID else 0

    def _quotient(self, operands: tuple[int, ...], *, shift: bool) -> Span:
        span, steps = self.found.get(operands[0], (self.total, 0))
        constant = self.module.constants.get(operands[1])
        value = constant.value if constant is not None else None
        if not steps or not isinstance(value, int) or not value or (shift and value > 31):
            return gcd(span, self._span(operands[1])), 0
        divisor = 1 << value if shift else value
        whole = gcd(divisor, steps)
        return span * whole, steps // whole if whole == divisor else 0


def _ids(instruction: Instruction) -> Iterator[int]:
    """The operands that are ids, and the stride of a matrix in memory."""
    info, operands = INSTRUCTIONS[instruction.op], instruction.operands
    yield from info.ids_of(operands)
    if instruction.op in _MATRICES:
        yield from operands[info.minimum : info.minimum + 1]
