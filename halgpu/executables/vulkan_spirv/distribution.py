"""How an index depends on the invocation: what tells whether two accesses share the work out in the same way.

An index is taken as a sum of terms, each a factor times something that differs between the invocations of a
workgroup; what is the same for all of them does not count, nor does which turn of a loop it is. So the index
``local_y * 8 + local_x * 2 + i`` has the terms ``local_y: 8, local_x: 2``.
"""

from __future__ import annotations

from typing import Final

from .module import Function, Instruction, Module
from .opcodes import Op
from .spirv_table import Storage
from .spirv_types import Int
from .uniformity import Uniformity

Atom = tuple[object, ...]
Terms = tuple[tuple[Atom, int], ...]
"""What differs, and its factor; sorted, so that equal sums are equal."""

_CASTS: Final = frozenset({Op.UConvert, Op.SConvert, Op.Bitcast, Op.CopyObject})
_DEPTH: Final = 24
"""How deep expressions are looked into; what lies deeper is known by its id only."""


class Distribution:
    """Tells the terms of indices in a kernel's own function."""

    def __init__(self, module: Module, function: Function, uniformity: Uniformity) -> None:
        self._module = module
        self._uniformity = uniformity
        self._definitions: dict[int, Instruction] = {}
        self._phis: dict[int, Instruction] = {}
        for block in function.blocks.values():
            self._definitions |= {i.result: i for i in block.body if i.result}
            self._phis |= {phi.result: phi for phi in block.phis}
        self._known: dict[int, dict[Atom, int]] = {}

    def terms(self, indices: tuple[int, ...]) -> tuple[Terms, ...]:
        """The terms of each index of an access."""
        return tuple(tuple(sorted(self._sum(index, 0).items(), key=repr)) for index in indices)

    def _sum(self, id_: int, depth: int) -> dict[Atom, int]:
        if not self._uniformity.differs(id_):
            return {}
        if id_ not in self._known:
            # A loop's variable is met again in its own next value.
            self._known[id_] = {(id_,): 1}
            self._known[id_] = {atom: n for atom, n in self._parts(id_, depth + 1).items() if n}
        return self._known[id_]

    def _parts(self, id_: int, depth: int) -> dict[Atom, int]:
        if id_ in self._phis:
            return self._loop_variable(self._phis[id_], depth)
        instruction = self._definitions.get(id_)
        if instruction is None or depth > _DEPTH:
            return {(id_,): 1}
        operands = instruction.operands
        if instruction.op in _CASTS:
            return self._sum(operands[0], depth)
        if instruction.op in (Op.IAdd, Op.ISub):
            return self._added(operands, 1 if instruction.op == Op.IAdd else -1, depth)
        if (factor := self._factor(instruction)) is not None:
            value, number = factor
            return {atom: n * number for atom, n in self._sum(value, depth).items()}
        return {self._atom(id_, depth): 1}

    def _added(self, operands: tuple[int, ...], sign: int, depth: int) -> dict[Atom, int]:
        found = dict(self._sum(operands[0], depth))
        for atom, n in self._sum(operands[1], depth).items():
            found[atom] = found.get(atom, 0) + sign * n
        return found

    def _factor(self, instruction: Instruction) -> tuple[int, int] | None:
        """What an instruction multiplies, and by which constant."""
        if instruction.op == Op.IMul:
            for value, other in (instruction.operands, instruction.operands[::-1]):
                if (number := self._constant(other)) is not None:
                    return value, number
        if instruction.op == Op.ShiftLeftLogical:
            number = self._constant(instruction.operands[1])
            if number is not None and number < 64:
                return instruction.operands[0], 1 << number
        return None

    def _loop_variable(self, phi: Instruction, depth: int) -> dict[Atom, int]:
        """Where a loop's variable starts, if it goes on by steps that are the same for all invocations."""
        values = phi.operands[::2]
        starts = [value for value in values if not self._is_step(value, phi.result)]
        if len(starts) == 1 and len(values) == 2:
            return self._sum(starts[0], depth)
        return {(phi.result,): 1}

    def _is_step(self, value: int, variable: int) -> bool:
        step = self._definitions.get(value)
        if step is None or step.op != Op.IAdd or variable not in step.operands:
            return False
        return not any(map(self._uniformity.differs, set(step.operands) - {variable}))

    def _atom(self, id_: int, depth: int) -> Atom:
        """What an instruction computes from what; two that compute the same are equal."""
        instruction = self._definitions.get(id_)
        if instruction is None or depth > _DEPTH:
            return (id_,)
        if instruction.op == Op.CompositeExtract:
            value, *literals = instruction.operands
            return (instruction.op, self._atom(value, depth + 1), *literals)
        if instruction.op == Op.Load:
            pointer = instruction.operands[0]
            root = self._uniformity.root(pointer)
            variable = self._module.variables.get(root)
            if variable is None or variable.storage != Storage.INPUT:
                return (id_,)
            return (instruction.op, root, *self._uniformity.indices(pointer))
        if instruction.op in _PURE:
            return (instruction.op, *(self._atom(operand, depth + 1) for operand in instruction.operands))
        return (id_,)

    def _constant(self, id_: int) -> int | None:
        constant = self._module.constants.get(id_)
        if constant is None or not isinstance(constant.type, Int) or isinstance(constant.value, tuple):
            return None
        return int(constant.value or 0)


_PURE: Final = frozenset(
    {
        Op.IAdd, Op.ISub, Op.IMul, Op.UDiv, Op.SDiv, Op.UMod, Op.SRem, Op.SMod, Op.ShiftLeftLogical,
        Op.ShiftRightLogical, Op.ShiftRightArithmetic, Op.BitwiseAnd, Op.BitwiseOr, Op.BitwiseXor, Op.UConvert,
        Op.SConvert, Op.Bitcast, Op.Select,
    }
)  # fmt: skip
