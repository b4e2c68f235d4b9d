"""Comparisons, booleans and selection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from . import spirv_types as ty
from .emitter import Emitter, Handler
from .expressions import AND, ATOM, BITS, CHOICE, EQUALITY, OR, RELATION, UNARY, Expr, combine
from .module import Instruction
from .numbers import emulated, is_bool, is_float, is_int, mask_as, same_operands, signed, truth, widen
from .opcodes import Op


def _compare(operator: str, kind: str, level: int) -> Handler:
    """Comparisons of integers (``"u"`` or ``"s"``) and ordered ones of floats (``"f"``)."""

    def compare(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
        a, b = e.operands(instruction)
        wanted = is_float if kind == "f" else is_int
        _check_compared(e, instruction, type_, a, b, wanted)
        if kind == "s":
            a, b = signed(a), signed(b)
        a, b = widen(e, a), widen(e, b)
        text = f"{a.at(level + 1)} {operator} {b.at(level + 1)}"
        return truth(e, type_, a.type, text, level, [a, b])

    return compare


def _check_compared(
    e: Emitter, instruction: Instruction, type_: ty.Type, a: Expr, b: Expr, kind: Callable[[ty.Type], bool]
) -> None:
    shaped = (
        a.type is b.type and kind(a.type) and is_bool(type_) and ty.count_of(type_) == ty.count_of(a.type)
    )
    e.check(instruction, shaped, "two numbers of one type and a boolean result")


def _unordered(opposite: str) -> Handler:
    """Unordered comparisons are true when the opposite ordered one is false, NaN or not."""

    def compare(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
        a, b = e.operands(instruction)
        _check_compared(e, instruction, type_, a, b, is_float)
        a, b = widen(e, a), widen(e, b)
        text = f"{a.at(RELATION + 1)} {opposite} {b.at(RELATION + 1)}"
        if isinstance(type_, ty.Vector):
            return truth(e, type_, a.type, f"~({text})", UNARY, [a, b])
        return combine(type_, f"!({text})", UNARY, [a, b])

    return compare


def ordered_not_equal(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpFOrdNotEqual: less or greater."""
    return _by_names(e, instruction, type_, "{a} < {b}", "{a} > {b}", OR)


def unordered_equal(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpFUnordEqual: neither less nor greater."""
    return _by_names(e, instruction, type_, "{a} >= {b}", "{a} <= {b}", OR, turned=True)


def ordered(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpOrdered: neither is NaN."""
    return _by_names(e, instruction, type_, "{a} == {a}", "{b} == {b}", AND)


def unordered(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpUnordered: one is NaN."""
    return _by_names(e, instruction, type_, "{a} != {a}", "{b} != {b}", OR)


def _by_names(
    e: Emitter,
    instruction: Instruction,
    type_: ty.Type,
    left: str,
    right: str,
    level: int,
    *,
    turned: bool = False,
) -> Expr:
    """Two comparisons of the same operands, joined; ``turned`` means equal or NaN."""
    a, b = (e.named(widen(e, e.value(id_))) for id_ in instruction.operands)
    _check_compared(e, instruction, type_, a, b, is_float)
    if turned:
        left, right, level = "!({a} < {b})", "!({a} > {b})", AND
        if isinstance(type_, ty.Vector):
            left, right = "~({a} < {b})", "~({a} > {b})"
    first, second = left.format(a=a.operand, b=b.operand), right.format(a=a.operand, b=b.operand)
    if isinstance(type_, ty.Vector):
        text = f"({first}) {'|' if level == OR else '&'} ({second})"
        return truth(e, type_, a.type, text, BITS, [a, b])
    return combine(type_, f"{first} {'||' if level == OR else '&&'} {second}", level, [a, b])


def is_nan(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpIsNan: only NaN differs from itself. `isnan` of vectors is a call on some CPUs (see library.py)."""
    a = e.value(instruction.operands[0])
    if isinstance(a.type, ty.Vector) and is_float(a.type) and e.source.cpu and is_bool(type_):
        a = e.named(widen(e, a))
        return truth(e, type_, a.type, f"{a.text} != {a.text}", EQUALITY, [a])
    return _classify(e, instruction, type_, "isnan({a})")


def is_inf(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpIsInf."""
    return _classify(e, instruction, type_, "isinf({a})")


def is_finite(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpIsFinite: neither infinite nor NaN."""
    return _classify(e, instruction, type_, "isfinite({a})")


def is_normal(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpIsNormal: neither zero, subnormal, infinite nor NaN."""
    (a,) = e.operands(instruction)
    if emulated(e, a.type):
        # The least normal number is 0x1p-14 in 16 bits and 0x1p-126 in 32.
        return _classify(e, instruction, type_, "isnormal(({a}) * 0x1p-112f)")
    return _classify(e, instruction, type_, "isnormal({a})")


def sign_bit_set(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpSignBitSet: of zeros and NaNs too."""
    return _classify(e, instruction, type_, "signbit({a})")


def _classify(e: Emitter, instruction: Instruction, type_: ty.Type, text: str) -> Expr:
    (a,) = e.operands(instruction)
    e.check(
        instruction,
        is_float(a.type) and is_bool(type_) and ty.count_of(a.type) == ty.count_of(type_),
        "a float",
    )
    a = widen(e, a)
    return truth(e, type_, a.type, text.format(a=a.text), ATOM, [a])


def _logical(scalar: str, vector: str, level: int) -> Handler:
    def join(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
        a, b = same_operands(e, instruction, type_, is_bool, "two booleans")
        if isinstance(type_, ty.Vector):
            return combine(
                type_, vector.format(a=a.operand, b=b.operand), UNARY if vector[0] == "~" else BITS, [a, b]
            )
        # && and || of one another would read wrongly without parentheses.
        left, right = a.at(RELATION - 1), b.at(RELATION - 1)
        if level == EQUALITY:
            left, right = a.at(RELATION), b.at(RELATION)
        return combine(type_, f"{left} {scalar} {right}", level, [a, b])

    return join


def logical_not(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpLogicalNot."""
    (a,) = same_operands(e, instruction, type_, is_bool, "a boolean")
    sign = "~" if isinstance(type_, ty.Vector) else "!"
    return combine(type_, f"{sign}{a.operand}", UNARY, [a])


def any_all(name: str) -> Handler:
    """OpAny, OpAll of a vector of booleans."""

    def reduce(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
        (a,) = e.operands(instruction)
        e.check(
            instruction, is_bool(a.type) and isinstance(a.type, ty.Vector) and type_ is ty.BOOL, "booleans"
        )
        return combine(type_, f"{name}({a.text}) != 0", EQUALITY, [a])

    return reduce


def select(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpSelect: the condition is one boolean, or one for each component."""
    c, a, b = e.operands(instruction)
    e.check(instruction, is_bool(c.type) and a.type is type_ and b.type is type_, "a boolean and two values")
    if isinstance(c.type, ty.Vector):
        e.check(instruction, ty.count_of(c.type) == ty.count_of(type_), "a boolean for each component")
        # OpenCL C's ?: picks each component by the highest bit of the condition's (OpenCL 1.2, section 6.3.i).
        mask = c.retyped(c.type, mask_as(e, c, type_), c.level).at(OR)
        return combine(type_, f"{mask} ? {a.at(CHOICE + 1)} : {b.at(CHOICE + 1)}", CHOICE, [c, a, b])
    return combine(type_, f"{c.at(OR)} ? {a.at(CHOICE + 1)} : {b.at(CHOICE + 1)}", CHOICE, [c, a, b])


TABLE: Final[dict[int, Handler]] = {
    Op.IEqual: _compare("==", "u", EQUALITY),
    Op.INotEqual: _compare("!=", "u", EQUALITY),
    Op.UGreaterThan: _compare(">", "u", RELATION),
    Op.SGreaterThan: _compare(">", "s", RELATION),
    Op.UGreaterThanEqual: _compare(">=", "u", RELATION),
    Op.SGreaterThanEqual: _compare(">=", "s", RELATION),
    Op.ULessThan: _compare("<", "u", RELATION),
    Op.SLessThan: _compare("<", "s", RELATION),
    Op.ULessThanEqual: _compare("<=", "u", RELATION),
    Op.SLessThanEqual: _compare("<=", "s", RELATION),
    Op.FOrdEqual: _compare("==", "f", EQUALITY),
    Op.FUnordNotEqual: _compare("!=", "f", EQUALITY),
    Op.FOrdLessThan: _compare("<", "f", RELATION),
    Op.FOrdGreaterThan: _compare(">", "f", RELATION),
    Op.FOrdLessThanEqual: _compare("<=", "f", RELATION),
    Op.FOrdGreaterThanEqual: _compare(">=", "f", RELATION),
    Op.FUnordLessThan: _unordered(">="),
    Op.FUnordGreaterThan: _unordered("<="),
    Op.FUnordLessThanEqual: _unordered(">"),
    Op.FUnordGreaterThanEqual: _unordered("<"),
    Op.FOrdNotEqual: ordered_not_equal,
    Op.FUnordEqual: unordered_equal,
    Op.Ordered: ordered,
    Op.Unordered: unordered,
    Op.IsNan: is_nan,
    Op.IsInf: is_inf,
    Op.IsFinite: is_finite,
    Op.IsNormal: is_normal,
    Op.SignBitSet: sign_bit_set,
    Op.LogicalOr: _logical("||", "{a} | {b}", OR),
    Op.LogicalAnd: _logical("&&", "{a} & {b}", AND),
    Op.LogicalEqual: _logical("==", "~({a} ^ {b})", EQUALITY),
    Op.LogicalNotEqual: _logical("!=", "{a} ^ {b}", EQUALITY),
    Op.LogicalNot: logical_not,
    Op.Any: any_all("any"),
    Op.All: any_all("all"),
    Op.Select: select,
}
