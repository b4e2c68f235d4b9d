"""The subgroups of a kernel: how large they are, and the workgroup memory that stands for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from halgpu import errors

from . import spirv_types as ty
from .module import Instruction
from .opcodes import Op
from .spans import matrix_lanes
from .spirv_table import BuiltIn, Decoration
from .structure import build
from .uniformity import Uniformity

if TYPE_CHECKING:
    from .kernel import Kernel

_SIZES: Final = frozenset({4, 8, 16, 32, 64, 128})
_DIVIDE: Final = frozenset({Op.UDiv, Op.SDiv})
_SPLIT: Final = _DIVIDE | {Op.UMod, Op.SRem, Op.SMod}
_OTHER_SPLIT: Final = frozenset({Op.ShiftRightLogical, Op.ShiftRightArithmetic, Op.BitwiseAnd})


class Subgroups:
    """Made when a kernel's first subgroup instruction is translated."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        x, y, z = kernel.workgroup_size
        self.total = x * y * z
        self.size = kernel.pipeline_subgroup_size or matrix_lanes(kernel) or self._guess()
        self._arrays: dict[tuple[ty.Type, int], str] = {}
        self._last = (0, "")
        self.uniformity = Uniformity(
            kernel.module,
            kernel.function,
            build(kernel.module, kernel.function),
            kernel.usage,
            one_subgroup=self.total <= self.size,
        )

    @property
    def index(self) -> str:
        """The name of the invocation's index in the workgroup."""
        return self._kernel.builtin(BuiltIn.LOCAL_INVOCATION_INDEX, 0).text

    def exchange(self, block: int, type_: ty.Type) -> tuple[str, bool]:
        """An array in workgroup memory for the next exchange, in ``block``, of values of a type.

        Also says whether a barrier has to come first. It need not where the exchange before, in the same block,
        went through another array: the barrier in it was behind all that read this one.
        """
        follows = self._last[0] == block
        name = self._lanes(type_, 0)
        if follows and self._last[1] == name:
            name = self._lanes(type_, 1)
        self._last = block, name
        return name, not follows

    def _lanes(self, type_: ty.Type, number: int) -> str:
        name = self._arrays.get((type_, number))
        if name is None:
            element = self._kernel.source.type(type_)
            name = self._arrays[type_, number] = self._kernel.names.unique(f"lanes_{element}")
            self._kernel.declare_local(name, ty.Array(type_, self.total, None, self.total, 1))
        return name

    def _guess(self) -> int:
        """The size that the compiler counted on, which stock executables do not say.

        A kernel of several subgroups divides its local index by the size, to know which one it is in; one that
        does not has a single subgroup. It may divide it by other numbers to find its data: then the size is the
        one by which it also tells the first invocation of each subgroup, the one that hands on the result.
        """
        kernel = self._kernel
        splits = set(self._splits())
        if len(splits) > 1 and len(elected := self._elected()) == 1:
            splits = elected
        size = self.total if not splits else splits.pop()
        if splits or size not in _SIZES:
            raise errors.Unimplemented(
                f"{kernel.what}: subgroup instructions where the size of subgroups cannot be told "
                f"(workgroup of {self.total}) are not supported"
            )
        return size

    def _splits(self) -> Iterator[int]:
        """Numbers that the kernel divides its local index by; 0 for ways of splitting that are not understood."""
        locals_ = set(self._local_ids())
        constants = self._kernel.module.constants
        for instruction in self._instructions():
            if instruction.op in _SPLIT and instruction.operands[0] in locals_:
                divisor = constants.get(instruction.operands[1])
                yield divisor.value if divisor is not None and isinstance(divisor.value, int) else 0
            elif instruction.op in _OTHER_SPLIT and locals_ & set(instruction.operands):
                yield 0

    def _elected(self) -> set[int]:
        """Numbers that divide the local index, and its remainder by which is compared with zero."""
        locals_, constants = set(self._local_ids()), self._kernel.module.constants
        divisors, remainders, elected = set(), {}, set()
        for instruction in self._instructions():
            values = [c.value if (c := constants.get(id_)) else None for id_ in instruction.operands[:2]]
            if instruction.op in _SPLIT and instruction.operands[0] in locals_ and isinstance(values[1], int):
                if instruction.op in _DIVIDE:
                    divisors.add(values[1])
                else:
                    remainders[instruction.result] = values[1]
            elif instruction.op == Op.IEqual and values[1] == 0 and instruction.operands[0] in remainders:
                elected.add(remainders[instruction.operands[0]])
        return elected & divisors

    def _local_ids(self) -> Iterator[int]:
        """Ids of local indices."""
        module = self._kernel.module
        vectors = set()
        for instruction in self._instructions():
            if instruction.op == Op.Load:
                builtin = module.decoration(instruction.operands[0], Decoration.BUILT_IN)
                if builtin == (BuiltIn.LOCAL_INVOCATION_ID,):
                    vectors.add(instruction.result)
                elif builtin == (BuiltIn.LOCAL_INVOCATION_INDEX,):
                    yield instruction.result
            elif instruction.op == Op.CompositeExtract and instruction.operands[0] in vectors:
                yield instruction.result

    def _instructions(self) -> Iterator[Instruction]:
        for block in self._kernel.function.blocks.values():
            yield from block.body
