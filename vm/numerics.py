"""Arithmetic with the VM's semantics, for what is no single Python expression.

Integers are signed Python ints of the register's range. f32 values are Python floats that an f32 can hold.
Facts come from runtime/src/iree/vm/ops.h; where C leaves a case undefined, this module gives the value that the
stock x86-64 build gives, except that integer division never traps: a zero divisor raises InvalidArgument and
INT_MIN / -1 wraps.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import platform
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from halgpu import errors

NAN = math.nan
INF = math.inf
MASK32 = 0xFFFF_FFFF
MASK64 = 0xFFFF_FFFF_FFFF_FFFF

FUSED_MULTIPLY_ADD = platform.machine() in ("aarch64", "arm64")
"""Whether ``fma.f32`` and ``fma.f64`` round once. ops.h fuses where C says it is fast (``FP_FAST_FMA``): on ARM."""


def f32_cell() -> memoryview[float]:
    """A cell that rounds: what is stored at index 0 reads back as the nearest f32."""
    return memoryview(bytearray(4)).cast("f")


def round_f32(value: float) -> float:
    """Round to the nearest f32, ties to even, overflow to infinity."""
    return ctypes.c_float(value).value


def wrap32(value: int) -> int:
    """The signed 32-bit integer with the low bits of ``value``."""
    return (value + 0x8000_0000 & MASK32) - 0x8000_0000


def wrap64(value: int) -> int:
    """The signed 64-bit integer with the low bits of ``value``."""
    return (value + 0x8000_0000_0000_0000 & MASK64) - 0x8000_0000_0000_0000


# Integers


def div_s(left: int, right: int) -> int:
    """Signed division, rounded toward zero; not wrapped."""
    if not right:
        raise errors.InvalidArgument("integer division by zero")
    quotient = left // right
    return quotient + 1 if quotient < 0 and quotient * right != left else quotient


def rem_s(left: int, right: int) -> int:
    """Signed remainder with the sign of ``left``."""
    if not right:
        raise errors.InvalidArgument("integer remainder by zero")
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def div_u(left: int, right: int) -> int:
    """Division of two unsigned integers; not wrapped."""
    if not right:
        raise errors.InvalidArgument("integer division by zero")
    return left // right


def rem_u(left: int, right: int) -> int:
    """Remainder of two unsigned integers; not wrapped."""
    if not right:
        raise errors.InvalidArgument("integer remainder by zero")
    return left % right


# Floats: Python raises where C returns NaN or an infinity.


def div_f(left: float, right: float) -> float:
    """IEEE division."""
    if right:
        return left / right
    if left != left or left == 0:
        return NAN
    return math.copysign(INF, left) * math.copysign(1.0, right)


def rem_f(left: float, right: float) -> float:
    """IEEE remainder, the quotient rounded to nearest even: ops.h calls ``remainder``, not ``fmod``."""
    try:
        return math.remainder(left, right)
    except ValueError:
        return NAN


def ceil_f(value: float) -> float:
    """Round up; keeps the sign of zero."""
    return math.copysign(math.ceil(value), value) if -_INTEGRAL < value < _INTEGRAL else value


def floor_f(value: float) -> float:
    """Round down; keeps the sign of zero."""
    return math.copysign(math.floor(value), value) if -_INTEGRAL < value < _INTEGRAL else value


def round_away(value: float) -> float:
    """Round to nearest, ties away from zero; keeps the sign of zero."""
    if not -_INTEGRAL < value < _INTEGRAL:
        return value
    whole = math.trunc(value)
    if abs(value - whole) >= 0.5:
        whole += 1 if value > 0 else -1
    return math.copysign(whole, value)


def round_even(value: float) -> float:
    """Round to nearest, ties to even; keeps the sign of zero, as C's ``roundeven``."""
    return math.copysign(round(value), value) if -_INTEGRAL < value < _INTEGRAL else value


_INTEGRAL = 2.0**52  # from here on every f64 is an integer; NaN compares false too


def sqrt_f(value: float) -> float:
    """Square root; NaN below zero."""
    return math.sqrt(value) if value >= 0 else NAN


def rsqrt_f64(value: float) -> float:
    """``1 / sqrt(value)``, each step rounded to f64."""
    return div_f(1.0, sqrt_f(value))


def rsqrt_f32(value: float) -> float:
    """``1 / sqrt(value)``, each step rounded to f32; the last rounding is the caller's."""
    return div_f(1.0, round_f32(sqrt_f(value)))


def exp_f(value: float) -> float:
    """e to the power."""
    try:
        return math.exp(value)
    except OverflowError:
        return INF


def exp2_f(value: float) -> float:
    """2 to the power."""
    try:
        return math.exp2(value)
    except OverflowError:
        return INF


def expm1_f(value: float) -> float:
    """e to the power, less one."""
    try:
        return math.expm1(value)
    except OverflowError:
        return INF


def _logarithm(function: Callable[[float], float]) -> Callable[[float], float]:
    def log(value: float) -> float:
        if value > 0:
            return function(value)
        return -INF if value == 0 else NAN

    return log


log_f = _logarithm(math.log)
log2_f = _logarithm(math.log2)
log10_f = _logarithm(math.log10)


def log1p_f(value: float) -> float:
    """Natural logarithm of one more."""
    if value > -1:
        return math.log1p(value)
    return -INF if value == -1 else NAN


def _periodic(function: Callable[[float], float]) -> Callable[[float], float]:
    def periodic(value: float) -> float:
        return function(value) if -INF < value < INF else NAN

    return periodic


sin_f = _periodic(math.sin)
cos_f = _periodic(math.cos)


def pow_f(base: float, exponent: float) -> float:
    """C's ``pow``."""
    try:
        return math.pow(base, exponent)
    except OverflowError:
        odd = exponent == math.trunc(exponent) and math.fmod(exponent, 2.0) != 0
        return math.copysign(INF, base) if odd else INF
    except ValueError:
        if base == 0:  # a pole: the exponent is negative and finite
            odd = math.fmod(exponent, 2.0) in (1.0, -1.0)
            return math.copysign(INF, base) if odd else INF
        return NAN


def fpowi_f64(base: float, exponent: int) -> float:
    """``base`` to the power of the low 32 bits of ``exponent``, by squaring as GCC's ``__powidf2`` multiplies."""
    return _power(base, exponent, float)


def fpowi_f32(base: float, exponent: int) -> float:
    """As :func:`fpowi_f64` with every product rounded to f32 (``__powisf2``)."""
    return _power(base, exponent, round_f32)


def _power(base: float, exponent: int, rounded: Callable[[float], float]) -> float:
    exponent = wrap32(exponent)
    left = abs(exponent)
    result = base if left & 1 else 1.0
    while left := left >> 1:
        base = rounded(base * base)
        if left & 1:
            result = rounded(result * base)
    return rounded(div_f(1.0, result)) if exponent < 0 else result


# ops.h computes f32 functions with the C library's f32 functions (expf, …), which differ in the last bit from the f64
# functions rounded: in one of four values for tanh with glibc 2.36. The same library gives the same values here.


def _c_library() -> ctypes.PyDLL | None:
    # None is the process itself, which has the library that Python's math module uses.
    for name in (None, "libm.so.6", "ucrtbase"):
        with contextlib.suppress(OSError, TypeError, AttributeError):
            library = ctypes.PyDLL(name)
            if library.expf and library.exp:
                return library
    return None


C_LIBRARY = _c_library()
"""The C library's mathematical functions; None where they are not found."""


def c_function(name: str, count: int) -> Any:
    """A function of the C library with ``count`` arguments; f32 where its name ends so. None where there is none."""
    function = getattr(C_LIBRARY, name, None)
    if function is not None:
        kind = ctypes.c_float if name.endswith("f") and name != "erf" else ctypes.c_double
        function.restype, function.argtypes = kind, [kind] * count
    return function


def _f32(name: str, wide: Callable[..., float], count: int = 1) -> Callable[..., float]:
    function: Callable[..., float] | None = c_function(name, count)
    return function or (lambda *values: round_f32(wide(*values)))


F32_FUNCTIONS: dict[str, Callable[..., float]] = {
    "exp_f32": _f32("expf", exp_f), "exp2_f32": _f32("exp2f", exp2_f), "expm1_f32": _f32("expm1f", expm1_f),
    "log_f32": _f32("logf", log_f), "log2_f32": _f32("log2f", log2_f), "log10_f32": _f32("log10f", log10_f),
    "log1p_f32": _f32("log1pf", log1p_f), "sin_f32": _f32("sinf", sin_f), "cos_f32": _f32("cosf", cos_f),
    "atan_f32": _f32("atanf", math.atan), "tanh_f32": _f32("tanhf", math.tanh), "erf_f32": _f32("erff", math.erf),
    "pow_f32": _f32("powf", pow_f, 2), "atan2_f32": _f32("atan2f", math.atan2, 2),
}  # fmt: skip
"""Functions of f32 values whose results are f32 values, by the names that translated code calls them by."""


def fma_f64(first: float, second: float, third: float) -> float:
    """``first * second + third``, rounded once or twice; see FUSED_MULTIPLY_ADD."""
    return fused_f64(first, second, third) if FUSED_MULTIPLY_ADD else first * second + third


def fma_f32(first: float, second: float, third: float) -> float:
    """As :func:`fma_f64` for f32; the last rounding is the caller's."""
    if FUSED_MULTIPLY_ADD:
        return fused_f32(first, second, third)
    return round_f32(first * second) + third


def fused_f64(first: float, second: float, third: float) -> float:
    """``first * second + third`` rounded once."""
    plain = first * second + third
    if not (math.isfinite(first) and math.isfinite(second) and math.isfinite(third)):
        return plain
    exact = Fraction(first) * Fraction(second) + Fraction(third)
    if not exact:  # the sign of an exact zero is that of the plain sum
        return plain if plain == 0 else 0.0
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return math.copysign(INF, 1 if exact > 0 else -1)


def fused_f32(first: float, second: float, third: float) -> float:
    """``first * second + third`` of f32 values, so that rounding it to f32 is the only rounding."""
    product = first * second  # exact: two 24-bit significands fit in 53 bits
    total = product + third
    if not math.isfinite(total):
        return total
    # Where the sum was rounded, make its last bit odd ("round to odd"): a later rounding then sees the truth.
    error = Fraction(product) + Fraction(third) - Fraction(total)
    if error and not _bits64(total) & 1:
        total = math.nextafter(total, INF if error > 0 else -INF)
    return total


# Conversions


def int_to_f32(value: int) -> float:
    """The f32 nearest to an integer of up to 64 bits, rounded once."""
    if -(1 << 53) <= value <= 1 << 53:
        return round_f32(value)
    # An f64 in between would round too: keep the high bits, the lowest of them sticky for the rest.
    size = abs(value)
    kept = float(size >> 11 | bool(size & 0x7FF))
    return math.copysign(round_f32(kept * 2048.0), value)


def to_s32(value: float) -> int:
    """``(int32_t)lround(value)``: ties away from zero, through 64 bits, then the low 32."""
    return wrap32(to_s64(value))


def to_s64(value: float) -> int:
    """``llround(value)``; out of range and NaN give -2^63, as x86-64 does."""
    if -_TWO63 <= value < _TWO63:
        rounded = int(round_away(value))
        if rounded < 1 << 63:
            return rounded
    return -(1 << 63)


def to_u64(value: float) -> int:
    """``(uint64_t)round(value)`` as a signed integer; below zero wraps, out of range and NaN give -2^63."""
    if _TWO63 <= value < 2 * _TWO63:
        return int(value) - (1 << 64)
    return to_s64(value)


_TWO63 = 2.0**63

_pack_i32, _pack_u32 = struct.Struct("<i"), struct.Struct("<I")
_pack_i64, _pack_u64 = struct.Struct("<q"), struct.Struct("<Q")
_pack_f32, _pack_f64 = struct.Struct("<f"), struct.Struct("<d")


def bits_f32(value: float) -> int:
    """The bits of an f32 as an i32."""
    result: int = _pack_i32.unpack(_pack_f32.pack(value))[0]
    return result


def bits_f64(value: float) -> int:
    """The bits of an f64 as an i64."""
    result: int = _pack_i64.unpack(_pack_f64.pack(value))[0]
    return result


def from_bits32(value: int) -> float:
    """The f32 with the low 32 bits of ``value``."""
    result: float = _pack_f32.unpack(_pack_u32.pack(value & MASK32))[0]
    return result


def from_bits64(value: int) -> float:
    """The f64 with the low 64 bits of ``value``."""
    result: float = _pack_f64.unpack(_pack_u64.pack(value & MASK64))[0]
    return result


def _bits64(value: float) -> int:
    result: int = _pack_u64.unpack(_pack_f64.pack(value))[0]
    return result
