"""What the tables of instructions on numbers share: kinds of types, signed views, masks, 16-bit floats."""

from __future__ import annotations

from collections.abc import Callable

from . import ctypes
from . import spirv_types as ty
from .emitter import Emitter
from .expressions import ATOM, UNARY, Expr, combine
from .module import Instruction
from .op_memory import member


def is_int(type_: ty.Type) -> bool:
    """Whether ``type_`` is an integer or a vector of them."""
    return isinstance(ty.element_of(type_), ty.Int)


def is_float(type_: ty.Type) -> bool:
    """Whether ``type_`` is a float or a vector of them."""
    return isinstance(ty.element_of(type_), ty.Float)


def is_bool(type_: ty.Type) -> bool:
    """Whether ``type_`` is a boolean or a vector of them."""
    return isinstance(ty.element_of(type_), ty.Bool)


def width_of(type_: ty.Type) -> int:
    """Bits of an integer's or float's element."""
    element = ty.element_of(type_)
    assert isinstance(element, (ty.Int, ty.Float))
    return element.width


def same_operands(
    e: Emitter, instruction: Instruction, type_: ty.Type, kind: Callable[[ty.Type], bool], what: str
) -> list[Expr]:
    """The operands, all of ``type_``, which must be of a kind."""
    operands = e.operands(instruction)
    e.check(
        instruction, kind(type_) and all(operand.type is type_ for operand in operands), f"{what} of {type_}"
    )
    return operands


def narrow(e: Emitter, type_: ty.Type) -> bool:
    """Whether C promotes values of ``type_`` to int: scalars of 8 and 16 bits, not vectors."""
    return isinstance(type_, ty.Int) and type_.width < 32


def wrapped(e: Emitter, type_: ty.Type, text: str, level: int, parts: list[Expr]) -> Expr:
    """The result of integer arithmetic, cast back where C promoted it."""
    if narrow(e, type_):
        return combine(type_, f"({e.source.type(type_)})({text})", UNARY, parts)
    return combine(type_, text, level, parts)


def signed(expr: Expr) -> Expr:
    """An integer seen as signed."""
    if expr.bits is not None and isinstance(expr.type, ty.Int):
        text = ctypes.signed_literal(expr.bits, expr.type.width)
        return Expr(expr.type, text, UNARY if text[0] == "-" else ATOM, constant=expr.constant)
    if expr.signed is not None:
        return expr.signed
    name = ctypes.signed_name(expr.type)
    if isinstance(expr.type, ty.Vector):
        return expr.retyped(expr.type, f"as_{name}({expr.text})")
    return expr.retyped(expr.type, f"({name}){expr.operand}", UNARY)


def unsigned(e: Emitter, expr: Expr) -> Expr:
    """A signed C expression back as the unsigned value of its type."""
    name = e.source.type(expr.type)
    if isinstance(expr.type, ty.Vector):
        result = expr.retyped(expr.type, f"as_{name}({expr.text})")
    else:
        result = expr.retyped(expr.type, f"({name}){expr.operand}", UNARY)
    if not narrow(e, expr.type):
        result.signed = expr
    return result


def mask_as(e: Emitter, expr: Expr, type_: ty.Type) -> str:
    """A vector of booleans as the mask that `select` takes for values of ``type_``."""
    width = width_of(type_) if not is_bool(type_) else 32
    if width == 32:
        return expr.text
    return f"convert_{ctypes.SIGNED[width]}{ty.count_of(type_)}({expr.text})"


def truth(
    e: Emitter, type_: ty.Type, operand_type: ty.Type, text: str, level: int, parts: list[Expr]
) -> Expr:
    """The result of a C comparison: of vectors as ints whatever was compared."""
    if isinstance(type_, ty.Vector) and width_of(operand_type) != 32:
        return combine(type_, f"convert_int{type_.count}({text})", ATOM, parts)
    return combine(type_, text, level, parts)


def components(e: Emitter, expr: Expr) -> list[Expr]:
    """The components of a vector, which is named first."""
    assert isinstance(expr.type, ty.Vector)
    source = expr if expr.parts is not None else e.named(expr)
    return [member(e, source, i, expr.type.element) for i in range(expr.type.count)]


# --- floats of 16 bits on devices that do not compute with them --------------------------------------------


def emulated(e: Emitter, type_: ty.Type) -> bool:
    """Whether ``type_`` is of 16-bit floats that are carried as bits."""
    return ty.element_of(type_) is ty.FLOATS[16] and not e.source.half


def widen(e: Emitter, expr: Expr) -> Expr:
    """A 16-bit float carried as bits, as a 32-bit float; anything else as it is."""
    if not emulated(e, expr.type):
        return expr
    return half_to_float(e, expr)


def half_to_float(e: Emitter, bits: Expr) -> Expr:
    """The 32-bit floats of the bits of 16-bit ones."""
    count = ty.count_of(bits.type)
    n = str(count) if count > 1 else ""
    if count == 16:
        return bits.retyped(ty.like(bits.type, ty.FLOATS[32]), _in_halves(e, bits, "float", half_to_float))
    given = "(ushort4)(bits, 0)" if count == 3 else "bits"
    name = e.source.helper(
        f"float{n}_of_half",
        f"static float{n} NAME(ushort{n} bits)\n{{\n    {_bytes(count)} bytes = as_{_bytes(count)}({given});\n"
        f"    return vload_half{n}(0, (const half *)&bytes);\n}}",
    )
    return bits.retyped(ty.like(bits.type, ty.FLOATS[32]), f"{name}({bits.text})")


def shorten(e: Emitter, expr: Expr, type_: ty.Type) -> Expr:
    """A 32- or 64-bit float rounded to the bits of a 16-bit one, where ``type_`` is carried so."""
    if not emulated(e, type_) or emulated(e, expr.type):
        return expr
    return float_to_half(e, expr, type_)


def float_to_half(e: Emitter, value: Expr, type_: ty.Type) -> Expr:
    """Floats rounded to the bits of 16-bit ones, as a ``type_``."""
    count = ty.count_of(value.type)
    n = str(count) if count > 1 else ""
    if count == 16:
        return value.retyped(type_, _in_halves(e, value, "ushort", lambda e, x: float_to_half(e, x, x.type)))
    wide = e.source.type(value.type)
    result = "as_ushort4(bytes).xyz" if count == 3 else f"as_ushort{n}(bytes)"
    name = e.source.helper(
        f"{wide}_to_half",
        f"static ushort{n} NAME({wide} value)\n{{\n    {_bytes(count)} bytes;\n"
        f"    vstore_half{n}_rte(value, 0, (half *)&bytes);\n    return {result};\n}}",
    )
    return value.retyped(type_, f"{name}({value.text})")


def _in_halves(e: Emitter, value: Expr, name: str, convert: Callable[[Emitter, Expr], Expr]) -> str:
    """A conversion of sixteen numbers, done for eight and eight."""
    element = ty.element_of(value.type)
    assert ty.is_scalar(element)
    given = e.named(value)
    lower, upper = (
        convert(e, given.retyped(ty.VECTORS[element, 8], f"{given.text}.{part}")).text
        for part in ("lo", "hi")
    )
    return f"({name}16)({lower}, {upper})"


def _bytes(count: int) -> str:
    """Bytes to hold 16-bit floats. A ushort cannot: compilers take it that a half is stored somewhere else."""
    return {1: "uchar2", 2: "uchar4", 3: "uchar8", 4: "uchar8", 8: "uchar16"}[count]


def converted(e: Emitter, expr: Expr, type_: ty.Type) -> Expr:
    """An unsigned integer of another width: cut off, or filled with zeros."""
    name = e.source.type(type_)
    if expr.type is type_:
        return expr
    if isinstance(type_, ty.Vector):
        return expr.retyped(type_, f"convert_{name}({expr.text})")
    return expr.retyped(type_, f"({name}){expr.operand}", UNARY)
