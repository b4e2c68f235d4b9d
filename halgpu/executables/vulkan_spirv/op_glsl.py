"""The extended instructions of `GLSL.std.450`.

Most are OpenCL C built-ins of at least the precision that Vulkan asks for. Minimum and maximum are not: where
the operands are zeros of different signs the smaller is -0 and the larger +0, as IREE's CPU code has it, and
of a NaN and a number they give the number (for FMin, FMax and FClamp either would do).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from . import ctypes, library
from . import spirv_types as ty
from .emitter import Emitter, Handler
from .expressions import ADD, ATOM, MULTIPLY, Expr, combine
from .module import Instruction
from .numbers import (
    emulated,
    float_to_half,
    half_to_float,
    is_float,
    is_int,
    narrow,
    shorten,
    signed,
    unsigned,
    widen,
    width_of,
)
from .op_memory import reinterpret, write
from .opcodes import Op
from .spirv_table import GLSL

Extended = Callable[[Emitter, Instruction, ty.Type, Sequence[int]], Expr | None]


def extended(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr | None:
    """OpExtInst."""
    set_, number, *operands = instruction.operands
    name = e.module.imports.get(set_)
    if name is None:
        e.fail(instruction, f"%{set_} is no imported instruction set")
    if name != "GLSL.std.450":
        return None  # Only NonSemantic.* sets pass the parser: they say nothing about values.
    what = GLSL.get(number, str(number))
    handler = _TABLE.get(what)
    if handler is None:
        e.refuse(f"extended instruction GLSL.std.450 {what}")
    return handler(e, instruction, type_, operands)


def _values(
    e: Emitter, instruction: Instruction, operands: Sequence[int], count: int, type_: ty.Type, right: bool
) -> list[Expr]:
    """``count`` operands, all of ``type_``."""
    if len(operands) != count:
        e.fail(instruction, f"{len(operands)} operands, expected {count}")
    values = [e.value(id_) for id_ in operands]
    e.check(instruction, right and all(v.type is type_ for v in values), f"{count} operands of type {type_}")
    return values


def _floats(
    e: Emitter, instruction: Instruction, operands: Sequence[int], count: int, type_: ty.Type
) -> list[Expr]:
    values = _values(e, instruction, operands, count, type_, is_float(type_))
    return [widen(e, value) for value in values]


def _builtin(name: str, count: int = 1) -> Extended:
    """An OpenCL C function of floats."""

    def call(e: Emitter, instruction: Instruction, type_: ty.Type, operands: Sequence[int]) -> Expr:
        values = _floats(e, instruction, operands, count, type_)
        called = library.function(e.source, name, values[0].type)
        text = f"{called}({', '.join(value.text for value in values)})"
        return shorten(e, combine(values[0].type, text, ATOM, values), type_)

    return call


def _helped(name: str, count: int, scalar: str, vector: str = "") -> Extended:
    """A helper function of floats: the expression that it returns, of T (type), U (its bits), a, b and c."""

    def call(e: Emitter, instruction: Instruction, type_: ty.Type, operands: Sequence[int]) -> Expr:
        values = _floats(e, instruction, operands, count, type_)
        helper = _define(e, name, values[0].type, count, scalar, vector)
        text = f"{helper}({', '.join(value.text for value in values)})"
        return shorten(e, combine(values[0].type, text, ATOM, values), type_)

    return call


def _define(e: Emitter, name: str, type_: ty.Type, count: int, scalar: str, vector: str = "") -> str:
    t = e.source.type(type_)
    u = e.source.type(ty.like(type_, ty.INTS[width_of(type_)]))
    body = (vector if vector and isinstance(type_, ty.Vector) else scalar).replace("{T}", t).replace("{U}", u)
    body = body.replace("{MIN}", library.lesser(e.source, "a", "b"))
    body = body.replace("{MAX}", library.lesser(e.source, "a", "b", greater=True))
    parameters = ", ".join(f"{t} {letter}" for letter in "abc"[:count])
    return e.source.helper(name, f"static {t} NAME({parameters})\n{{\n    return {body};\n}}", t)


_MIN: Final = (
    "a == b ? as_{T}(({U})(as_{U}(a) | as_{U}(b))) : {MIN}",
    "a == b ? as_{T}(as_{U}(a) | as_{U}(b)) : {MIN}",
)
_MAX: Final = (
    "a == b ? as_{T}(({U})(as_{U}(a) & as_{U}(b))) : {MAX}",
    "a == b ? as_{T}(as_{U}(a) & as_{U}(b)) : {MAX}",
)


def define_min(e: Emitter, type_: ty.Type) -> str:
    """The name of the function that gives the smaller of two floats."""
    return _define(e, "min", type_, 2, *_MIN)


def define_max(e: Emitter, type_: ty.Type) -> str:
    """The name of the function that gives the larger of two floats."""
    return _define(e, "max", type_, 2, *_MAX)


def clamp(e: Emitter, instruction: Instruction, type_: ty.Type, operands: Sequence[int]) -> Expr:
    """FClamp, NClamp."""
    values = _floats(e, instruction, operands, 3, type_)
    x, low, high = (value.text for value in values)
    at = values[0].type
    larger, smaller = define_max(e, at), define_min(e, at)
    return shorten(e, combine(at, f"{smaller}({larger}({x}, {low}), {high})", ATOM, values), type_)


def mix(e: Emitter, instruction: Instruction, type_: ty.Type, operands: Sequence[int]) -> Expr:
    """FMix: x * (1 - a) + y * a, each step rounded."""
    x, y, a = _floats(e, instruction, operands, 3, type_)
    a = e.named(a)
    one = {16: "(half)1", 32: "1.0f", 64: "1.0"}[width_of(a.type)]
    text = f"{x.at(MULTIPLY)} * ({one} - {a.text}) + {y.at(MULTIPLY)} * {a.text}"
    return shorten(e, combine(x.type, text, ADD, [x, y, a]), type_)


def fract(e: Emitter, instruction: Instruction, type_: ty.Type, operands: Sequence[int]) -> Expr:
    """Fract: x - floor(x)."""
    (x,) = (e.named(value) for value in _floats(e, instruction, operands, 1, type_))
    return shorten(e, combine(x.type, f"{x.text} - floor({x.text})", ADD, [x]), type_)


def fma(e: Emitter, instruction: Instruction, type_: ty.Type, operands: Sequence[int]) -> Expr:
    """Fma, rounded once. Of 16-bit floats the sum is exact enough in 64 bits, not in 32."""
    values = _values(e, instruction, operands, 3, type_, is_float(type_))
    wide = [widen(e, value) for value in values]
    at = wide[0].type
    if emulated(e, type_):
        if not e.source.double:
            e.refuse(
                "a fused multiply-add of 16-bit floats, on a device without cl_khr_fp16 and cl_khr_fp64,"
            )
        at = ty.like(type_, ty.FLOATS[64])
        name = e.source.type(at)
        cast = f"convert_{name}" if isinstance(type_, ty.Vector) else f"({name})"
        wide = [value.retyped(at, f"{cast}({value.text})") for value in wide]
    text = f"{library.function(e.source, 'fma', at)}({', '.join(value.text for value in wide)})"
    return shorten(e, combine(at, text, ATOM, wide), type_)


def ldexp(e: Emitter, instruction: Instruction, type_: ty.Type, operands: Sequence[int]) -> Expr:
    """Ldexp."""
    if len(operands) != 2:
        e.fail(instruction, f"{len(operands)} operands, expected 2")
    x, power = (e.value(id_) for id_ in operands)
    integers = (
        is_int(power.type) and width_of(power.type) == 32 and ty.count_of(power.type) == ty.count_of(type_)
    )
    e.check(instruction, x.type is type_ and is_float(type_) and integers, "a float and a 32-bit exponent")
    wide = widen(e, x)
    return shorten(
        e, combine(wide.type, f"ldexp({wide.text}, {signed(power).text})", ATOM, [wide, power]), type_
    )


def _split(name: str, function: str, kind: str) -> tuple[Extended, Extended]:
    """Modf and Frexp: a float and a second result; as a structure, or through a pointer."""

    def parts(e: Emitter, x: Expr, second: ty.Type) -> tuple[Expr, Expr]:
        t = e.source.type(x.type)
        s = ctypes.signed_name(second) if kind == "int" else t
        first_name = e.source.helper(
            f"{name}_first",
            f"static {t} NAME({t} x)\n{{\n    {s} other;\n    return {function}(x, &other);\n}}",
            t,
        )
        second_name = e.source.helper(
            f"{name}_second",
            f"static {s} NAME({t} x)\n{{\n    {s} other = 0;\n    {function}(x, &other);\n    return other;\n}}", t,
        )  # fmt: skip
        first = combine(x.type, f"{first_name}({x.text})", ATOM, [x])
        other = combine(second, f"{second_name}({x.text})", ATOM, [x])
        return first, unsigned(e, other) if kind == "int" else other

    def check(e: Emitter, instruction: Instruction, type_: ty.Type, second: ty.Type) -> None:
        right = second is type_ if kind == "float" else is_int(second) and width_of(second) == 32
        right = right and is_float(type_) and ty.count_of(second) == ty.count_of(type_)
        e.check(instruction, right and not emulated(e, type_), "a float and its parts")

    def structure(e: Emitter, instruction: Instruction, type_: ty.Type, operands: Sequence[int]) -> None:
        if not isinstance(type_, ty.Struct) or len(type_.members) != 2 or len(operands) != 1:
            e.fail(instruction, "it gives a structure of two")
        x = e.name(operands[0])
        check(e, instruction, x.type, type_.members[1])
        e.check(instruction, type_.members[0] is x.type, "a float")
        e.define_parts(instruction, type_, parts(e, x, type_.members[1]))

    def through_pointer(
        e: Emitter, instruction: Instruction, type_: ty.Type, operands: Sequence[int]
    ) -> Expr:
        if len(operands) != 2:
            e.fail(instruction, "it takes a float and a pointer")
        x, pointer = e.name(operands[0]), e.pointer(operands[1])
        e.check(instruction, x.type is type_, f"a {type_}")
        check(e, instruction, type_, pointer.type)
        first, second = parts(e, x, pointer.type)
        write(e, instruction, pointer.place, second)
        return first

    return structure, through_pointer


# --- integers -----------------------------------------------------------------------------------------------


def _argument(e: Emitter, value: Expr, *, is_signed: bool) -> str:
    """An integer as an argument of an overloaded function, whose literals need their exact type."""
    if not is_signed:
        return value.text
    text = signed(value).text
    if value.bits is not None and (narrow(e, value.type) or width_of(value.type) == 64):
        return f"({ctypes.signed_name(value.type)})({text})"
    return text


def _integers(template: str, count: int, *, is_signed: bool = False, back: bool = False) -> Extended:
    """OpenCL C integer functions; ``back`` says that the C expression is signed."""

    def call(e: Emitter, instruction: Instruction, type_: ty.Type, operands: Sequence[int]) -> Expr:
        values = _values(e, instruction, operands, count, type_, is_int(type_))
        arguments = [_argument(e, value, is_signed=is_signed) for value in values]
        c_type = ctypes.signed_name(type_) if is_signed else e.source.type(type_)
        text = template.format(*arguments, **_choices(e, template, c_type))
        expr = combine(type_, text, ATOM, values)
        return unsigned(e, expr) if back else expr

    return call


def _choices(e: Emitter, template: str, c_type: str) -> dict[str, str]:
    """What `min` and `max` are called, for a template that names them."""
    return {
        name: library.integer_choice(e.source, name, c_type)
        for name in ("min", "max")
        if f"{{{name}}}" in template
    }


def sign(e: Emitter, instruction: Instruction, type_: ty.Type, operands: Sequence[int]) -> Expr:
    """SSign."""
    (x,) = (e.named(value) for value in _values(e, instruction, operands, 1, type_, is_int(type_)))
    view, zero = signed(x).operand, "0"
    if isinstance(type_, ty.Vector):
        zero = f"({ctypes.signed_name(type_)})0"
        return unsigned(e, combine(type_, f"({view} < {zero}) - ({view} > {zero})", ADD, [x]))
    return unsigned(e, combine(type_, f"({view} > 0) - ({view} < 0)", ADD, [x]))


def _find(kind: str) -> Extended:
    """FindILsb, FindSMsb, FindUMsb: the number of a bit, or -1 where there is none.

    The specification asks for 32 bits; stock iree-compile emits FindILsb for every width.
    """

    def call(e: Emitter, instruction: Instruction, type_: ty.Type, operands: Sequence[int]) -> Expr:
        (x,) = _values(e, instruction, operands, 1, type_, is_int(type_))
        name, width = e.source.type(type_), width_of(type_)
        vector, signed_name = isinstance(type_, ty.Vector), ctypes.signed_name(type_)
        # Vectors of narrow integers take no operand of type int.
        one, last = f"({name})(1)", f"({name})({width - 1})"
        shift = f"({signed_name})({width - 1})" if vector else str(width - 1)
        cast = "" if vector else f"({name})"
        reinterpret = cast if width < 32 and not vector else f"as_{name}"
        # A shift of the sign gives -1 or 0, and turns a negative number into its complement.
        complement = f"x ^ {reinterpret}(as_{signed_name}(x) >> {shift})"
        text = {
            "lowest": f"popcount({cast}((x & -x) - {one}))",
            "highest": f"{cast}({last} - clz(x))",
            "highest_signed": f"{cast}({last} - clz({cast}({complement})))",
        }[kind]
        if kind == "lowest" and vector:
            text = f"select({text}, ({name})(-1), x == ({name})(0))"
        elif kind == "lowest":
            text = f"x ? {text} : ({name})-1"
        helper = e.source.helper(
            f"{kind}_bit", f"static {name} NAME({name} x)\n{{\n    return {text};\n}}", name
        )
        return combine(type_, f"{helper}({x.text})", ATOM, [x])

    return call


# --- packing ------------------------------------------------------------------------------------------------


def pack_half(e: Emitter, instruction: Instruction, type_: ty.Type, operands: Sequence[int]) -> Expr:
    """PackHalf2x16: two 32-bit floats rounded to 16 bits, the first in the low half."""
    (v,) = _values(e, instruction, operands, 1, ty.VECTORS[ty.FLOATS[32], 2], type_ is ty.INTS[32])
    bits = float_to_half(e, v, ty.VECTORS[ty.INTS[16], 2])
    return bits.retyped(type_, f"as_uint({bits.text})")


def unpack_half(e: Emitter, instruction: Instruction, type_: ty.Type, operands: Sequence[int]) -> Expr:
    """UnpackHalf2x16."""
    (v,) = _values(e, instruction, operands, 1, ty.INTS[32], type_ is ty.VECTORS[ty.FLOATS[32], 2])
    bits = v.retyped(ty.VECTORS[ty.INTS[16], 2], f"as_ushort2({v.text})")
    return half_to_float(e, bits)


def pack_double(e: Emitter, instruction: Instruction, type_: ty.Type, operands: Sequence[int]) -> Expr:
    """PackDouble2x32."""
    (v,) = _values(e, instruction, operands, 1, ty.VECTORS[ty.INTS[32], 2], type_ is ty.FLOATS[64])
    return reinterpret(e, v, type_)


def unpack_double(e: Emitter, instruction: Instruction, type_: ty.Type, operands: Sequence[int]) -> Expr:
    """UnpackDouble2x32."""
    (v,) = _values(e, instruction, operands, 1, ty.FLOATS[64], type_ is ty.VECTORS[ty.INTS[32], 2])
    return reinterpret(e, v, type_)


def _geometric(name: str, count: int) -> Extended:
    """Functions of vectors whose result is a scalar."""

    def call(e: Emitter, instruction: Instruction, type_: ty.Type, operands: Sequence[int]) -> Expr:
        values = [e.value(id_) for id_ in operands]
        fits = len(values) == count and all(v.type is values[0].type for v in values) and is_float(type_)
        e.check(instruction, fits and ty.element_of(values[0].type) is type_, f"{count} vectors of {type_}")
        wide = [widen(e, value) for value in values]
        text = f"{name}({', '.join(value.text for value in wide)})"
        return shorten(e, combine(ty.element_of(wide[0].type), text, ATOM, wide), type_)

    return call


_MODF_STRUCT, _MODF = _split("modf", "modf", "float")
_FREXP_STRUCT, _FREXP = _split("frexp", "frexp", "int")

_TABLE: Final[dict[str, Extended]] = {
    "Round": _builtin("round"), "RoundEven": _builtin("rint"), "Trunc": _builtin("trunc"),
    "FAbs": _builtin("fabs"), "FSign": _builtin("sign"), "Floor": _builtin("floor"), "Ceil": _builtin("ceil"),
    "Fract": fract, "Radians": _builtin("radians"), "Degrees": _builtin("degrees"), "Sin": _builtin("sin"),
    "Cos": _builtin("cos"), "Tan": _builtin("tan"), "Asin": _builtin("asin"), "Acos": _builtin("acos"),
    "Atan": _builtin("atan"), "Sinh": _builtin("sinh"), "Cosh": _builtin("cosh"), "Tanh": _builtin("tanh"),
    "Asinh": _builtin("asinh"), "Acosh": _builtin("acosh"), "Atanh": _builtin("atanh"),
    "Atan2": _builtin("atan2", 2), "Pow": _builtin("pow", 2), "Exp": _builtin("exp"), "Log": _builtin("log"),
    "Exp2": _builtin("exp2"), "Log2": _builtin("log2"), "Sqrt": _builtin("sqrt"), "InverseSqrt": _builtin("rsqrt"),
    "FMin": _helped("min", 2, *_MIN), "NMin": _helped("min", 2, *_MIN),
    "FMax": _helped("max", 2, *_MAX), "NMax": _helped("max", 2, *_MAX), "FClamp": clamp, "NClamp": clamp,
    "FMix": mix, "Step": _builtin("step", 2), "SmoothStep": _builtin("smoothstep", 3), "Fma": fma, "Ldexp": ldexp,
    "ModfStruct": _MODF_STRUCT, "Modf": _MODF, "FrexpStruct": _FREXP_STRUCT, "Frexp": _FREXP,
    "SAbs": _integers("abs({0})", 1, is_signed=True), "SSign": sign,
    "UMin": _integers("{min}({0}, {1})", 2), "UMax": _integers("{max}({0}, {1})", 2),
    "SMin": _integers("{min}({0}, {1})", 2, is_signed=True, back=True),
    "SMax": _integers("{max}({0}, {1})", 2, is_signed=True, back=True),
    "UClamp": _integers("{min}({max}({0}, {1}), {2})", 3),
    "SClamp": _integers("{min}({max}({0}, {1}), {2})", 3, is_signed=True, back=True),
    "FindILsb": _find("lowest"),
    "FindSMsb": _find("highest_signed"),
    "FindUMsb": _find("highest"),
    "PackHalf2x16": pack_half, "UnpackHalf2x16": unpack_half, "PackDouble2x32": pack_double,
    "UnpackDouble2x32": unpack_double, "Length": _geometric("length", 1), "Distance": _geometric("distance", 2),
    "Normalize": _builtin("normalize"), "Cross": _builtin("cross", 2),
}  # fmt: skip

TABLE: Final[dict[int, Handler]] = {Op.ExtInst: extended}
