"""C types and literals for SPIR-V types and constants."""

from __future__ import annotations

import math
import struct
from typing import Final

from . import spirv_types as ty

UNSIGNED: Final = {8: "uchar", 16: "ushort", 32: "uint", 64: "ulong"}
SIGNED: Final = {8: "char", 16: "short", 32: "int", 64: "long"}
FLOATING: Final = {16: "half", 32: "float", 64: "double"}
COMPONENTS: Final = "xyzw"
_PACK: Final = {16: "<e", 32: "<f", 64: "<d"}
_UNPACK: Final = {16: "<H", 32: "<I", 64: "<Q"}


def component(index: int, count: int) -> str:
    """The name of a component of a vector."""
    return COMPONENTS[index] if count <= 4 else f"s{index:x}"


def scalar_name(type_: ty.Type, *, half: bool) -> str:
    """The C type of a scalar; without ``half``, 16-bit floats are carried as the bits in a ushort."""
    if isinstance(type_, ty.Int):
        return UNSIGNED[type_.width]
    if isinstance(type_, ty.Float):
        return "ushort" if type_.width == 16 and not half else FLOATING[type_.width]
    return "bool"


def value_name(type_: ty.Type, *, half: bool) -> str:
    """The C type of a scalar or vector value; vectors of booleans are ints of -1 and 0."""
    if not isinstance(type_, ty.Vector):
        return scalar_name(type_, half=half)
    element = "int" if isinstance(type_.element, ty.Bool) else scalar_name(type_.element, half=half)
    return f"{element}{type_.count}"


def signed_name(type_: ty.Type) -> str:
    """The signed C type of an integer scalar or vector."""
    element = ty.element_of(type_)
    assert isinstance(element, ty.Int)
    return SIGNED[element.width] + (str(type_.count) if isinstance(type_, ty.Vector) else "")


def unsigned_literal(value: int, width: int) -> str:
    """An unsigned literal of 32 or 64 bits; narrower ones need a cast in front, see :func:`needs_cast`."""
    if width == 64:
        return f"{value}ul" if value < 1 << 32 else f"{value:#x}ul"
    if width == 32:
        return f"{value}u" if value < 1 << 28 else f"{value:#x}u"
    return f"({UNSIGNED[width]}){value}"


def signed_literal(value: int, width: int) -> str:
    """A signed literal of the two's complement ``value``; the smallest one cannot be written as a literal."""
    if value >> (width - 1) & 1:
        value -= 1 << width
    if value == -(1 << (width - 1)) and width >= 32:
        return {32: "INT_MIN", 64: "LONG_MIN"}[width]
    return f"{value}l" if width == 64 else str(value)


def float_literal(bits: int, width: int, *, half: bool) -> str:
    """A literal of exactly these bits: decimal where that is short and exact, else hexadecimal."""
    if width == 16 and not half:
        return f"(ushort){bits:#x}"
    value: float = struct.unpack(_PACK[width], struct.pack(_UNPACK[width], bits))[0]
    suffix = {16: "h", 32: "f", 64: ""}[width]
    if math.isfinite(value):
        return _decimal(value, suffix) or _hexadecimal(value, width, suffix)
    if width == 32 and math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    unsigned = unsigned_literal(bits, width)
    return f"as_{FLOATING[width]}({unsigned})"


def _decimal(value: float, suffix: str) -> str | None:
    """A decimal literal if one of few digits is exactly the value."""
    if value == 0 or (1e-3 <= abs(value) < 1e7 and value * 4096 == int(value * 4096)):
        text = repr(value)
        return text + suffix if len(text) <= 11 else None
    return None


def _hexadecimal(value: float, width: int, suffix: str) -> str:
    if width == 16:
        # Not every compiler takes hexadecimal floats with the suffix h.
        bits = struct.unpack("<H", struct.pack("<e", value))[0]
        return f"as_half((ushort){bits:#x})"
    mantissa, exponent = value.hex().split("p")
    mantissa = mantissa.rstrip("0") if "." in mantissa else mantissa
    return f"{mantissa.rstrip('.')}p{exponent}{suffix}"
