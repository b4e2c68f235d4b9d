"""The cooperative matrices of a kernel: which elements an invocation has, and how invocations see those of others.

Elements are dealt out in row-major order, as many in a row to each invocation as there are for each, so that those of
one are neighbours and can be computed with as a vector. A matrix of 16x16 shared by 32 invocations has its first half
row with the first of them.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from halgpu import errors

from . import spirv_types as ty
from .expressions import ADD, MULTIPLY, Expr
from .module import Function, Module
from .opcodes import Op
from .spirv_table import BuiltIn
from .usage import Usage, pointer_roots

if TYPE_CHECKING:
    from .kernel import Kernel

_UINT: Final = ty.INTS[32]


class Matrices:
    """Made for each kernel of a module with cooperative matrices."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.lanes = kernel.subgroups.size if kernel.usage.cooperates else 1
        x, y, z = kernel.workgroup_size
        self.groups, rest = divmod(x * y * z, self.lanes)
        if rest:
            raise errors.Unimplemented(
                f"{kernel.what}: cooperative matrices in a workgroup of {x * y * z}, which is no multiple of the "
                f"subgroup's {self.lanes}, are not supported"
            )
        self._arrays: dict[tuple[str, ty.Type, int], str] = {}
        self.held: dict[str, tuple[object, int]] = {}
        """Exchange array -> the value that is in it, and the block where it was put there."""

    @property
    def lane(self) -> str:
        """The invocation's number among those that share its matrices."""
        if self.lanes == 1:
            return "0u"
        return self._kernel.builtin(BuiltIn.SUBGROUP_LOCAL_INVOCATION_ID, 0).text

    def share(self, type_: ty.CooperativeMatrix) -> int:
        """How many elements each invocation has."""
        return ty.count_of(self._kernel.source.share(type_))

    def in_a_row(self, type_: ty.CooperativeMatrix) -> bool:
        """Whether all elements of an invocation are in one row."""
        return type_.columns % self.share(type_) == 0

    def is_uneven(self, type_: ty.CooperativeMatrix) -> bool:
        """Whether some invocations have fewer elements than others."""
        return self.share(type_) * self.lanes != type_.rows * type_.columns

    def number(self, type_: ty.CooperativeMatrix, index: int = 0) -> Expr:
        """The number of an invocation's element in row-major order."""
        text = f"{self.lane} * {self.share(type_)}u"
        return Expr(_UINT, f"{text} + {index}u", ADD) if index else Expr(_UINT, text, MULTIPLY)

    def existing(self, type_: ty.CooperativeMatrix, index: int = 0) -> Expr:
        """Like :meth:`number`; beyond the end of the matrix it is the last, so that there is something to read."""
        number = self.number(type_, index)
        if not self.is_uneven(type_):
            return number
        last = type_.rows * type_.columns - (self.share(type_) if self.in_a_row(type_) else 1)
        return Expr(_UINT, f"min({number.text}, {last}u)")

    def array(self, use: str, type_: ty.Scalar, matrix: ty.CooperativeMatrix) -> str:
        """The array in workgroup memory through which matrices are exchanged."""
        length = self.share(matrix) * self.lanes * self.groups
        key = use, type_, length
        if key not in self._arrays:
            name = self._kernel.names.unique(f"matrix_{use}")
            self._kernel.declare_local(name, ty.Array(type_, length, None, length, 1))
            self._arrays[key] = name
        return self._arrays[key]

    def start(self, array: str, matrix: ty.CooperativeMatrix) -> str:
        """Where the matrix of the own subgroup begins in an exchange array."""
        if self.groups == 1:
            return array
        subgroup = self._kernel.builtin(BuiltIn.SUBGROUP_ID, 0).text
        return f"{array} + {subgroup} * {self.share(matrix) * self.lanes}u"


def component_types(module: Module, usage: Usage) -> defaultdict[int, set[ty.Scalar]]:
    """Variables -> the element types of the matrices that are loaded from them and stored to them.

    A matrix may be in an array of another type: four halves in a vector of two floats.
    """
    found: defaultdict[int, set[ty.Scalar]] = defaultdict(set)
    if module.cooperates:
        for function in usage.functions:
            _collect(module, function, found)
    return found


def _collect(module: Module, function: Function, found: defaultdict[int, set[ty.Scalar]]) -> None:
    roots = pointer_roots(function)
    types = {
        i.result: i.type for block in function.blocks.values() for i in (*block.phis, *block.body) if i.result
    }
    constants = module.constants
    for block in function.blocks.values():
        for instruction in block.body:
            operands = instruction.operands
            if instruction.op == Op.CooperativeMatrixLoadKHR:
                type_ = module.types.get(instruction.type)
            elif instruction.op == Op.CooperativeMatrixStoreKHR:
                constant = constants.get(operands[1])
                type_ = constant.type if constant else module.types.get(types.get(operands[1], 0))
            else:
                continue
            if isinstance(type_, ty.CooperativeMatrix):
                found[roots.get(operands[0], operands[0])].add(type_.element)
