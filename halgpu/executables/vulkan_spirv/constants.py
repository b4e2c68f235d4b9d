"""Evaluates OpSpecConstantOp: integer arithmetic on constants that are known once a program is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from halgpu import errors

from . import spirv_types as ty
from .opcodes import Op, op_name


def evaluate(
    what: str, opcode: int, type_: ty.Type, words: Sequence[int], constants: Mapping[int, ty.Constant]
) -> int | bool | tuple[ty.Constant, ...] | None:
    """Compute one OpSpecConstantOp: ``opcode`` applied to ``words`` (ids, then literals) giving a ``type_``.

    Raises Unimplemented for what is not integer or boolean arithmetic on scalars.
    """
    if opcode == Op.CompositeExtract:
        return _extract(what, words, constants)
    function = _SCALAR.get(opcode)
    if function is None:
        raise errors.Unimplemented(f"{what}: {op_name(opcode)} on specialization constants is not supported")
    operands = [constants.get(word) for word in words]
    values = [None if operand is None else _bits(operand) for operand in operands]
    known = [value for value in values if value is not None]
    if len(known) != len(values) or len(known) != function.__code__.co_argcount - 1:
        raise errors.InvalidArgument(
            f"{what}: malformed SPIR-V: {op_name(opcode)} on specialization constants needs scalar constants"
        )
    first = operands[0]
    width = first.type.width if first is not None and isinstance(first.type, ty.Int) else 1
    result = function(width, *known)
    if isinstance(type_, ty.Bool):
        return bool(result)
    if not isinstance(type_, ty.Int):
        raise errors.InvalidArgument(f"{what}: malformed SPIR-V: {op_name(opcode)} gives no {type_}")
    return int(result) & ((1 << type_.width) - 1)


def _bits(constant: ty.Constant) -> int | None:
    """The value of an integer or boolean constant."""
    if not isinstance(constant.type, (ty.Int, ty.Bool)) or isinstance(constant.value, tuple):
        return None
    return int(constant.value or 0)


def _extract(
    what: str, words: Sequence[int], constants: Mapping[int, ty.Constant]
) -> int | bool | tuple[ty.Constant, ...] | None:
    found = constants.get(words[0]) if words else None
    for index in words[1:]:
        if found is None or not isinstance(found.value, tuple) or index >= len(found.value):
            found = None
            break
        found = found.value[index]
    if found is None:
        raise errors.InvalidArgument(f"{what}: malformed SPIR-V: OpCompositeExtract of no such constant part")
    return found.value


def signed(width: int, value: int) -> int:
    """The two's complement value of ``width`` bits."""
    return value - (1 << width) if value >> (width - 1) & 1 else value


def _divide(a: int, b: int) -> int:
    """Quotient towards zero; 0 for a division by zero, as in translated kernels."""
    if not b:
        return 0
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int:
    return a - b * _divide(a, b) if b else 0


_SCALAR: Final[dict[int, Callable[..., int]]] = {
    Op.IAdd: lambda w, a, b: a + b,
    Op.ISub: lambda w, a, b: a - b,
    Op.IMul: lambda w, a, b: a * b,
    Op.UDiv: lambda w, a, b: _divide(a, b),
    Op.SDiv: lambda w, a, b: _divide(signed(w, a), signed(w, b)),
    Op.UMod: lambda w, a, b: _remainder(a, b),
    Op.SRem: lambda w, a, b: _remainder(signed(w, a), signed(w, b)),
    Op.SMod: lambda w, a, b: signed(w, a) % signed(w, b) if b else 0,
    Op.SNegate: lambda w, a: -a,
    Op.Not: lambda w, a: ~a,
    Op.ShiftLeftLogical: lambda w, a, b: a << b if b < w else 0,
    Op.ShiftRightLogical: lambda w, a, b: a >> b,
    Op.ShiftRightArithmetic: lambda w, a, b: signed(w, a) >> min(b, w),
    Op.BitwiseAnd: lambda w, a, b: a & b,
    Op.BitwiseOr: lambda w, a, b: a | b,
    Op.BitwiseXor: lambda w, a, b: a ^ b,
    Op.LogicalAnd: lambda w, a, b: a & b,
    Op.LogicalOr: lambda w, a, b: a | b,
    Op.LogicalNot: lambda w, a: not a,
    Op.LogicalEqual: lambda w, a, b: a == b,
    Op.LogicalNotEqual: lambda w, a, b: a != b,
    Op.Select: lambda w, c, a, b: a if c else b,
    Op.IEqual: lambda w, a, b: a == b,
    Op.INotEqual: lambda w, a, b: a != b,
    Op.ULessThan: lambda w, a, b: a < b,
    Op.ULessThanEqual: lambda w, a, b: a <= b,
    Op.UGreaterThan: lambda w, a, b: a > b,
    Op.UGreaterThanEqual: lambda w, a, b: a >= b,
    Op.SLessThan: lambda w, a, b: signed(w, a) < signed(w, b),
    Op.SLessThanEqual: lambda w, a, b: signed(w, a) <= signed(w, b),
    Op.SGreaterThan: lambda w, a, b: signed(w, a) > signed(w, b),
    Op.SGreaterThanEqual: lambda w, a, b: signed(w, a) >= signed(w, b),
    Op.UConvert: lambda w, a: a,
    Op.SConvert: lambda w, a: signed(w, a),
}
