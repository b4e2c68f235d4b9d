"""Arithmetic of integers and floats.

Integers are unsigned in C, where they wrap as SPIR-V says; signed instructions cast. 8- and 16-bit scalars are
computed as int by C's promotions and cast back. Divisions by zero, and of the smallest integer by -1, are
undefined in SPIR-V and a trap on CPUs: unless the divisor is a constant that rules them out, a helper gives 0
and wraps.
"""

from __future__ import annotations

from typing import Final

from . import ctypes
from . import spirv_types as ty
from .emitter import Emitter, Handler
from .expressions import ADD, ATOM, BITS, CHOICE, MULTIPLY, UNARY, Expr, combine
from .module import Instruction
from .numbers import (
    components,
    emulated,
    is_float,
    is_int,
    same_operands,
    shorten,
    signed,
    unsigned,
    widen,
    width_of,
    wrapped,
)
from .opcodes import Op

# --- integers -----------------------------------------------------------------------------------------------


def add(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpIAdd; adding a negative constant is written as a subtraction."""
    a, b = same_operands(e, instruction, type_, is_int, "two integers")
    bits = b.bits
    if bits is not None and isinstance(type_, ty.Int) and bits >> (type_.width - 1) and type_.width >= 32:
        less = ctypes.unsigned_literal((1 << type_.width) - bits, type_.width)
        return combine(type_, f"{a.at(ADD)} - {less}", ADD, [a])
    return wrapped(e, type_, f"{a.at(ADD)} + {b.at(ADD + 1)}", ADD, [a, b])


def subtract(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpISub."""
    a, b = same_operands(e, instruction, type_, is_int, "two integers")
    return wrapped(e, type_, f"{a.at(ADD)} - {b.at(ADD + 1)}", ADD, [a, b])


def multiply(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpIMul. 16-bit factors are promoted to int, which their product can overflow."""
    a, b = same_operands(e, instruction, type_, is_int, "two integers")
    first = f"(uint){a.operand}" if type_ is ty.INTS[16] else a.at(MULTIPLY)
    return wrapped(e, type_, f"{first} * {b.at(MULTIPLY + 1)}", MULTIPLY, [a, b])


def negate(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpSNegate."""
    (a,) = same_operands(e, instruction, type_, is_int, "an integer")
    return wrapped(e, type_, f"-{a.operand}", UNARY, [a])


def _division(operator: str, *, is_signed: bool, floored: bool = False) -> Handler:
    def divide(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
        a, b = same_operands(e, instruction, type_, is_int, "two integers")
        bits = b.bits
        safe = bits is not None and bits not in (0, (1 << width_of(type_)) - 1) and not floored
        if safe and not is_signed:
            return wrapped(e, type_, f"{a.at(MULTIPLY)} {operator} {b.text}", MULTIPLY, [a])
        if safe:
            text = f"{signed(a).at(MULTIPLY)} {operator} {signed(b).text}"
            return unsigned(e, combine(type_, text, MULTIPLY, [a]))
        name = _division_helper(e, operator, type_, is_signed, floored)
        return combine(type_, f"{name}({a.text}, {b.text})", ATOM, [a, b])

    return divide


def _division_helper(e: Emitter, operator: str, type_: ty.Type, is_signed: bool, floored: bool) -> str:
    """Define a division that cannot trap."""
    name = e.source.type(type_)
    if isinstance(type_, ty.Vector):
        scalar = _division_helper(e, operator, type_.element, is_signed, floored)
        names = [ctypes.component(i, type_.count) for i in range(type_.count)]
        parts = ", ".join(f"{scalar}(a.{c}, b.{c})" for c in names)
        body = f"    return ({name})({parts});"
    elif not is_signed:
        body = f"    return b ? a {operator} b : 0;"
    else:
        body = _signed_division(operator, name, ctypes.signed_name(type_), floored)
    kind = ("mod" if floored else "rem") if operator == "%" else "div"
    prefix = "s" if is_signed else "u"
    return e.source.helper(f"{prefix}{kind}", f"static {name} NAME({name} a, {name} b)\n{{\n{body}\n}}", name)


def _signed_division(operator: str, name: str, signed_name: str, floored: bool) -> str:
    """Division by -1 is negation, which wraps."""
    by_minus_one = "0" if operator == "%" else "-a"
    lines = [
        f"    if (b == 0 || b == ({name})-1)",
        f"        return b ? ({name})({by_minus_one}) : 0;",
        f"    {signed_name} r = ({signed_name})a {operator} ({signed_name})b;",
    ]
    if floored:
        lines.append(
            f"    return ({name})(r && (r < 0) != (({signed_name})b < 0) ? r + ({signed_name})b : r);"
        )
    else:
        lines.append(f"    return ({name})r;")
    return "\n".join(lines)


def _extended(low: str, high: str, *, is_signed: bool = False) -> Handler:
    """Instructions whose result is a structure of two integers; ``a`` and ``b`` are the operands."""

    def extended(e: Emitter, instruction: Instruction, type_: ty.Type) -> None:
        operands = [e.name(id_) for id_ in instruction.operands]
        part = operands[0].type
        shaped = isinstance(type_, ty.Struct) and type_.members == (part, part)
        e.check(
            instruction, shaped and is_int(part) and operands[1].type is part, "two integers and their pair"
        )
        a, b = (operand.text for operand in operands)
        name = e.source.type(part)
        first = wrapped(e, part, low.format(a=a, b=b), MULTIPLY, operands)
        second = high.format(a=a, b=b, name=name, low=f"({name})({low.format(a=a, b=b)})")
        if is_signed:
            second = f"mul_hi({signed(operands[0]).text}, {signed(operands[1]).text})"
            last = unsigned(e, combine(part, second, ATOM, operands))
        elif isinstance(part, ty.Vector) and "?" in second:
            test = second.split("?")[0].strip()
            last = combine(part, f"as_{name}(({test}) & 1)", ATOM, operands)
        else:
            last = combine(part, second, CHOICE, operands)
        e.define_parts(instruction, type_, (first, last))

    return extended


# --- floats -------------------------------------------------------------------------------------------------


def _float_operator(operator: str, level: int) -> Handler:
    def compute(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
        operands = same_operands(e, instruction, type_, is_float, "two floats")
        a, b = (widen(e, operand) for operand in operands)
        return shorten(
            e, combine(a.type, f"{a.at(level)} {operator} {b.at(level + 1)}", level, [a, b]), type_
        )

    return compute


def float_negate(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpFNegate turns the sign of anything, NaN too."""
    (a,) = same_operands(e, instruction, type_, is_float, "a float")
    if emulated(e, type_):
        return wrapped_half(e, type_, f"{a.operand} ^ 0x8000", a)
    return combine(type_, f"-{a.operand}", UNARY, [a])


def wrapped_half(e: Emitter, type_: ty.Type, text: str, operand: Expr) -> Expr:
    """Bits of a 16-bit float computed as an integer."""
    if isinstance(type_, ty.Vector):
        text = text.replace("0x", "(ushort)0x")
        return operand.retyped(type_, text, BITS)
    return operand.retyped(type_, f"(ushort)({text})", UNARY)


def remainder(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpFRem: the sign of the dividend."""
    operands = same_operands(e, instruction, type_, is_float, "two floats")
    a, b = (widen(e, operand) for operand in operands)
    return shorten(e, combine(a.type, f"fmod({a.text}, {b.text})", ATOM, [a, b]), type_)


def modulo(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpFMod: the sign of the divisor."""
    operands = same_operands(e, instruction, type_, is_float, "two floats")
    a, b = (widen(e, operand) for operand in operands)
    name = e.source.type(a.type)
    signs = "select(r, r + b, (r != 0) & (signbit(r) != signbit(b)))"
    choice = signs if isinstance(type_, ty.Vector) else "r != 0 && signbit(r) != signbit(b) ? r + b : r"
    helper = e.source.helper(
        "fmod_floored",
        f"static {name} NAME({name} a, {name} b)\n{{\n    {name} r = fmod(a, b);\n    return {choice};\n}}",
        name,
    )
    return shorten(e, combine(a.type, f"{helper}({a.text}, {b.text})", ATOM, [a, b]), type_)


def vector_times_scalar(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpVectorTimesScalar."""
    a, b = e.operands(instruction)
    e.check(
        instruction,
        a.type is type_ and is_float(type_) and b.type is ty.element_of(type_),
        "a vector and a scalar",
    )
    a, b = widen(e, a), widen(e, b)
    text = f"{a.at(MULTIPLY)} * {b.at(MULTIPLY + 1)}"
    return shorten(e, combine(a.type, text, MULTIPLY, [a, b]), type_)


def dot(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpDot: products and sums from the first component on, each rounded."""
    a, b = e.operands(instruction)
    e.check(
        instruction, isinstance(a.type, ty.Vector) and a.type is b.type and ty.element_of(a.type) is type_
        and is_float(type_), "two vectors of floats",
    )  # fmt: skip
    first, second = components(e, widen(e, a)), components(e, widen(e, b))
    products = [f"{x.at(MULTIPLY)} * {y.at(MULTIPLY)}" for x, y in zip(first, second, strict=True)]
    return shorten(e, combine(first[0].type, " + ".join(products), ADD, [*first, *second]), type_)


TABLE: Final[dict[int, Handler]] = {
    Op.IAdd: add,
    Op.ISub: subtract,
    Op.IMul: multiply,
    Op.SNegate: negate,
    Op.UDiv: _division("/", is_signed=False),
    Op.SDiv: _division("/", is_signed=True),
    Op.UMod: _division("%", is_signed=False),
    Op.SRem: _division("%", is_signed=True),
    Op.SMod: _division("%", is_signed=True, floored=True),
    Op.IAddCarry: _extended("{a} + {b}", "{low} < {a} ? 1 : 0"),
    Op.ISubBorrow: _extended("{a} - {b}", "{a} < {b} ? 1 : 0"),
    Op.UMulExtended: _extended("{a} * {b}", "mul_hi({a}, {b})"),
    Op.SMulExtended: _extended("{a} * {b}", "", is_signed=True),
    Op.FAdd: _float_operator("+", ADD),
    Op.FSub: _float_operator("-", ADD),
    Op.FMul: _float_operator("*", MULTIPLY),
    Op.FDiv: _float_operator("/", MULTIPLY),
    Op.FNegate: float_negate,
    Op.FRem: remainder,
    Op.FMod: modulo,
    Op.VectorTimesScalar: vector_times_scalar,
    Op.Dot: dot,
}
