"""What each value instruction of the VM gives, by an independent oracle: numpy and the C library."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

libm = ctypes.CDLL(ctypes.util.find_library("m"))

LETTERS = {"i32": "i", "i64": "I", "f32": "f", "f64": "F", "ref": "r"}
DTYPES = {"i32": np.int32, "i64": np.int64, "f32": np.float32, "f64": np.float64}

_I32 = [0, 1, -1, 2, 3, -7, 7, 31, 32, 33, 255, 0x1234_5678, -0x8000_0000, 0x7FFF_FFFF, 0x80, 0xFFFF, -0x8000]
_I64 = [*_I32[:10], 63, 64, 1 << 32, (1 << 32) + 5, -(1 << 32), -(1 << 63), (1 << 63) - 1, 1 << 62]
_F64 = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 0.1, -0.3, 7.25, 1e-3, 100.0, -1e10, 1e300, -1e300,
    5e-324, 2.0**52 + 1, 2.0**63, -(2.0**63), 2.0**64, 16777217.0, 2147483647.0, 4294967295.0,
    math.inf, -math.inf, math.nan,
]  # fmt: skip
_F32 = [float(np.float32(x)) for x in _F64 if abs(x) != 1e300] + [
    3.4028234663852886e38, -3.4028234663852886e38, 1.401298464324817e-45, 16777216.0, 8388609.0, 88.0, 3e9,
]  # fmt: skip
VALUES: dict[str, list[Any]] = {"i32": _I32, "i64": _I64, "f32": _F32, "f64": _F64}


def unsigned(value: int, bits: int) -> int:
    return value % (1 << bits)


def signed(value: int, bits: int) -> int:
    value %= 1 << bits
    return value - (1 << bits) if value >> (bits - 1) else value


def libm_function(name: str, *kinds: type, result: type) -> Callable[..., Any]:
    """A function of the C library."""
    function = getattr(libm, name)
    function.argtypes = kinds
    function.restype = result
    return function  # type: ignore[no-any-return]


Oracle = Callable[..., Any]


def integer_oracles(bits: int) -> dict[str, Oracle]:
    n = f"I{bits}"
    dtype = DTYPES[n.lower()]
    udtype = {32: np.uint32, 64: np.uint64}[bits]

    def np2(function: Callable[..., Any], kind: Any = dtype) -> Oracle:
        def oracle(*values: int) -> int:
            arrays = [np.array([signed(v, bits)], dtype).view(kind) for v in values]
            return int(function(*arrays).astype(kind).view(dtype)[0])

        return oracle

    def truncated(left: int, right: int) -> int:
        return signed(int(math.copysign(1, left) * math.copysign(1, right)) * (abs(left) // abs(right)), bits)

    def remainder(left: int, right: int) -> int:
        return int(math.copysign(1, left)) * (abs(left) % abs(right))

    return {
        f"Add{n}": np2(np.add),
        f"Sub{n}": np2(np.subtract),
        f"Mul{n}": np2(np.multiply),
        f"FMA{n}": np2(lambda a, b, c: a * b + c),
        f"Abs{n}": np2(np.abs),
        f"Not{n}": np2(np.invert),
        f"And{n}": np2(np.bitwise_and),
        f"Or{n}": np2(np.bitwise_or),
        f"Xor{n}": np2(np.bitwise_xor),
        f"Min{n}S": np2(np.minimum),
        f"Max{n}S": np2(np.maximum),
        f"Min{n}U": np2(np.minimum, udtype),
        f"Max{n}U": np2(np.maximum, udtype),
        f"Ctlz{n}": lambda x: f"{unsigned(x, bits):0{bits}b}1".index("1"),
        f"Div{n}S": truncated,
        f"Rem{n}S": remainder,
        f"Div{n}U": lambda a, b: signed(unsigned(a, bits) // unsigned(b, bits), bits),
        f"Rem{n}U": lambda a, b: signed(unsigned(a, bits) % unsigned(b, bits), bits),
        f"Shl{n}": lambda x, by: signed(x << by % bits, bits),
        f"Shr{n}S": lambda x, by: x >> by % bits,
        f"Shr{n}U": lambda x, by: signed(unsigned(x, bits) >> by % bits, bits),
        f"CmpEQ{n}": lambda a, b: int(a == b),
        f"CmpNE{n}": lambda a, b: int(a != b),
        f"CmpLT{n}S": lambda a, b: int(a < b),
        f"CmpLT{n}U": lambda a, b: int(unsigned(a, bits) < unsigned(b, bits)),
        f"CmpNZ{n}": lambda a: int(a != 0),
        f"Select{n}": lambda condition, a, b: a if condition else b,
    }


def float_oracles(bits: int) -> dict[str, Oracle]:
    n = f"F{bits}"
    dtype = DTYPES[n.lower()]
    suffix = "f" if bits == 32 else ""
    ctype = ctypes.c_float if bits == 32 else ctypes.c_double

    def np_(function: Callable[..., Any]) -> Oracle:
        def oracle(*values: float) -> float:
            with np.errstate(all="ignore"):
                return float(function(*(np.array([v], dtype) for v in values))[0])

        return oracle

    def c1(name: str) -> Oracle:
        return libm_function(name + suffix, ctype, result=ctype)

    def c2(name: str) -> Oracle:
        return libm_function(name + suffix, ctype, ctype, result=ctype)

    def unordered(a: float, b: float) -> bool:
        return math.isnan(a) or math.isnan(b)

    return {
        f"Add{n}": np_(np.add),
        f"Sub{n}": np_(np.subtract),
        f"Mul{n}": np_(np.multiply),
        f"Div{n}": np_(np.divide),
        f"Rem{n}": c2("remainder"),
        f"Abs{n}": np_(np.abs),
        f"Neg{n}": np_(np.negative),
        f"Ceil{n}": np_(np.ceil),
        f"Floor{n}": np_(np.floor),
        f"Round{n}": c1("round"),
        f"Round{n}Even": np_(np.rint),
        f"Sqrt{n}": np_(np.sqrt),
        f"Rsqrt{n}": np_(lambda x: dtype(1) / np.sqrt(x)),
        f"Min{n}": lambda a, b: b if b < a else a,
        f"Max{n}": lambda a, b: b if a < b else a,
        f"Atan{n}": c1("atan"),
        f"Atan2{n}": c2("atan2"),
        f"Cos{n}": c1("cos"),
        f"Sin{n}": c1("sin"),
        f"Exp{n}": c1("exp"),
        f"Exp2{n}": c1("exp2"),
        f"ExpM1{n}": c1("expm1"),
        f"Log{n}": c1("log"),
        f"Log10{n}": c1("log10"),
        f"Log1p{n}": c1("log1p"),
        f"Log2{n}": c1("log2"),
        f"Pow{n}": c2("pow"),
        f"Tanh{n}": c1("tanh"),
        f"Erf{n}": c1("erf"),
        f"CmpEQ{n}O": lambda a, b: int(not unordered(a, b) and a == b),
        f"CmpEQ{n}U": lambda a, b: int(unordered(a, b) or a == b),
        # IREE's ops.h: C's != for both, which holds for NaN.
        f"CmpNE{n}O": lambda a, b: int(unordered(a, b) or a != b),
        f"CmpNE{n}U": lambda a, b: int(unordered(a, b) or a != b),
        f"CmpLT{n}O": lambda a, b: int(not unordered(a, b) and a < b),
        f"CmpLT{n}U": lambda a, b: int(unordered(a, b) or a < b),
        f"CmpLTE{n}O": lambda a, b: int(not unordered(a, b) and a <= b),
        f"CmpLTE{n}U": lambda a, b: int(unordered(a, b) or a <= b),
        f"CmpNaN{n}": lambda a: int(math.isnan(a)),
        f"Select{n}": lambda condition, a, b: a if condition else b,
    }


def as_f32(value: int) -> float:
    """numpy converts an integer array with one rounding."""
    return float(np.array([value], np.int64 if value < 1 << 63 else np.uint64).astype(np.float32)[0])


_lroundf = libm_function("lroundf", ctypes.c_float, result=ctypes.c_long)
_lround = libm_function("lround", ctypes.c_double, result=ctypes.c_long)

CONVERSIONS: dict[str, Oracle] = {
    "TruncI32I8": lambda x: int(np.array([x]).astype(np.uint8)[0]),
    "TruncI32I16": lambda x: int(np.array([x]).astype(np.uint16)[0]),
    "ExtI8I32S": lambda x: int(np.array([x]).astype(np.int8)[0]),
    "ExtI8I32U": lambda x: int(np.array([x]).astype(np.uint8)[0]),
    "ExtI16I32S": lambda x: int(np.array([x]).astype(np.int16)[0]),
    "ExtI16I32U": lambda x: int(np.array([x]).astype(np.uint16)[0]),
    "TruncI64I32": lambda x: int(np.array([x], np.int64).astype(np.int32)[0]),
    "ExtI32I64S": lambda x: x,
    "ExtI32I64U": lambda x: int(np.array([x], np.int32).view(np.uint32)[0]),
    "CastSI32F32": as_f32,
    "CastUI32F32": lambda x: as_f32(unsigned(x, 32)),
    "CastSI64F32": as_f32,
    "CastUI64F32": lambda x: as_f32(unsigned(x, 64)),
    "CastSI32F64": float,
    "CastUI32F64": lambda x: float(unsigned(x, 32)),
    "CastSI64F64": float,
    "CastUI64F64": lambda x: float(unsigned(x, 64)),
    "CastF32SI32": lambda x: signed(_lroundf(x), 32),
    "CastF32UI32": lambda x: signed(_lroundf(x), 32),
    "CastF32SI64": _lroundf,
    "CastF32UI64": lambda x: int(x) - (1 << 64) if 2.0**63 <= x < 2.0**64 else _lroundf(x),
    "CastF64SI32": lambda x: signed(_lround(x), 32),
    "CastF64UI32": lambda x: signed(_lround(x), 32),
    "CastF64SI64": _lround,
    "CastF64UI64": lambda x: int(x) - (1 << 64) if 2.0**63 <= x < 2.0**64 else _lround(x),
    "TruncF64F32": lambda x: ctypes.c_float(x).value,
    "ExtF32F64": lambda x: x,
    "BitcastI32F32": lambda x: struct.unpack("<f", struct.pack("<i", x))[0],
    "BitcastF32I32": lambda x: struct.unpack("<i", struct.pack("<f", x))[0],
    "BitcastI64F64": lambda x: struct.unpack("<d", struct.pack("<q", x))[0],
    "BitcastF64I64": lambda x: struct.unpack("<q", struct.pack("<d", x))[0],
}

ORACLES = {
    **integer_oracles(32),
    **integer_oracles(64),
    **float_oracles(32),
    **float_oracles(64),
    **CONVERSIONS,
}

# The C library's f32 functions may be off by one in the last place; ours round the f64 result.
INEXACT = {f"{name}F{bits}" for bits in (32, 64) for name in (
    "Atan", "Atan2", "Cos", "Sin", "Exp", "Exp2", "ExpM1", "Log", "Log10", "Log1p", "Log2", "Pow", "Tanh", "Erf",
)}  # fmt: skip
