"""Conversions between numbers and reinterpretation of bits."""

from __future__ import annotations

from typing import Final

from . import ctypes
from . import spirv_types as ty
from .emitter import Emitter, Handler
from .expressions import UNARY, Expr
from .module import Instruction
from .numbers import (
    converted,
    emulated,
    float_to_half,
    half_to_float,
    is_float,
    is_int,
    shorten,
    signed,
    unsigned,
    widen,
    width_of,
)
from .op_memory import reinterpret
from .opcodes import Op


def _operand(e: Emitter, instruction: Instruction, type_: ty.Type, right: bool, what: str) -> Expr:
    """The operand, which must have as many components as the result and pass a test of its kind."""
    (a,) = e.operands(instruction)
    e.check(instruction, right and ty.count_of(a.type) == ty.count_of(type_), what)
    return a


def _cast(e: Emitter, expr: Expr, type_: ty.Type) -> Expr:
    """C's conversion, which rounds to the nearest."""
    name = e.source.type(type_)
    if isinstance(type_, ty.Vector):
        return expr.retyped(type_, f"convert_{name}({expr.text})")
    return expr.retyped(type_, f"({name}){expr.operand}", UNARY)


def float_to_int(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpConvertFToS, OpConvertFToU; values out of range, undefined in SPIR-V, saturate and NaN gives 0.

    OpConvertFToS to 8 and 16 bits saturates at 32 bits and keeps the low ones, as iree-compile's code for CPUs does:
    iree-compile 3.13.0 makes conversions to the unsigned types of ONNX and PyTorch with it, where 153.0 is to be 153.
    """
    a = _operand(e, instruction, type_, is_int(type_), "a float and an integer result")
    e.check(instruction, is_float(a.type), "a float")
    a = widen(e, a)
    is_signed = instruction.op == Op.ConvertFToS
    if is_signed and width_of(type_) < 32:
        wide = ty.like(type_, ty.INTS[32])
        helper = _saturating(e, a.type, ctypes.signed_name(wide))
        return converted(e, unsigned(e, a.retyped(wide, f"{helper}({a.text})")), type_)
    helper = _saturating(e, a.type, ctypes.signed_name(type_) if is_signed else e.source.type(type_))
    expr = a.retyped(type_, f"{helper}({a.text})")
    return unsigned(e, expr) if is_signed else expr


def _saturating(e: Emitter, source: ty.Type, target: str) -> str:
    """Define a conversion to integers. What convert_…_sat makes of NaN differs between drivers."""
    name = e.source.type(source)
    if isinstance(source, ty.Vector):
        number = f"select(({name})0, x, x == x)"
        return e.source.helper(
            f"to_{target}",
            f"static {target} NAME({name} x)\n{{\n    return convert_{target}_sat({number});\n}}",
            name,
        )
    text = f"static {target} NAME({name} x)\n{{\n    return x == x ? convert_{target}_sat(x) : 0;\n}}"
    return e.source.helper(f"to_{target}", text, name)


def int_to_float(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpConvertSToF, OpConvertUToF."""
    a = _operand(e, instruction, type_, is_float(type_), "an integer and a float result")
    e.check(instruction, is_int(a.type), "an integer")
    if instruction.op == Op.ConvertSToF:
        a = signed(a)
    target = ty.like(type_, ty.FLOATS[32]) if emulated(e, type_) else type_
    return shorten(e, _cast(e, a, target), type_)


def unsigned_width(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpUConvert."""
    a = _operand(e, instruction, type_, is_int(type_), "two integer types")
    e.check(instruction, is_int(a.type), "an integer")
    return converted(e, a, type_)


def signed_width(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpSConvert fills with the sign."""
    a = _operand(e, instruction, type_, is_int(type_), "two integer types")
    e.check(instruction, is_int(a.type), "an integer")
    view = signed(a)
    if isinstance(type_, ty.Vector):
        return unsigned(e, a.retyped(type_, f"convert_{ctypes.signed_name(type_)}({view.text})"))
    return view.retyped(type_, f"({e.source.type(type_)}){view.operand}", UNARY)


def float_width(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpFConvert."""
    a = _operand(e, instruction, type_, is_float(type_), "two float types")
    e.check(instruction, is_float(a.type), "a float")
    if a.type is type_:
        return a
    a = widen(e, a)
    if emulated(e, type_):
        return shorten(e, a, type_)
    return a.retyped(type_, a.text, a.level) if a.type is type_ else _cast(e, a, type_)


def quantize(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpQuantizeToF16: rounded to what 16 bits can hold."""
    a = _operand(e, instruction, type_, ty.element_of(type_) is ty.FLOATS[32], "a 32-bit float")
    e.check(instruction, a.type is type_, "a 32-bit float")
    bits = float_to_half(e, a, ty.like(type_, ty.INTS[16]))
    return half_to_float(e, bits)


def bitcast(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpBitcast between scalars and vectors of the same number of bits."""
    (a,) = e.operands(instruction)
    numbers = all(is_int(t) or is_float(t) for t in (a.type, type_))
    e.check(instruction, numbers and _bits(a.type) == _bits(type_), f"as many bits as {type_} has")
    return reinterpret(e, a, type_)


def _bits(type_: ty.Type) -> int:
    return ty.byte_size(ty.element_of(type_)) * ty.count_of(type_)


TABLE: Final[dict[int, Handler]] = {
    Op.ConvertFToS: float_to_int,
    Op.ConvertFToU: float_to_int,
    Op.ConvertSToF: int_to_float,
    Op.ConvertUToF: int_to_float,
    Op.UConvert: unsigned_width,
    Op.SConvert: signed_width,
    Op.FConvert: float_width,
    Op.QuantizeToF16: quantize,
    Op.Bitcast: bitcast,
}
