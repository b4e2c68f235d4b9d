"""Arithmetic that ops.h leaves to the C library, against the C library and exact fractions."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halgpu import errors
from halgpu.vm import numerics

libm = ctypes.CDLL(ctypes.util.find_library("m"))
F32 = st.floats(width=32)
F64 = st.floats()


def c(name: str, kind: type, count: int) -> ctypes._CFuncPtr:  # type: ignore[name-defined]
    function = getattr(libm, name)
    function.restype, function.argtypes = kind, [kind] * count
    return function


def same(left: float, right: float) -> bool:
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    return left == right and math.copysign(1, left) == math.copysign(1, right)


@given(st.integers(-(1 << 70), 1 << 70))
def test_wrapping(value: int) -> None:
    assert numerics.wrap32(value) == ctypes.c_int32(value & numerics.MASK32).value
    assert numerics.wrap64(value) == ctypes.c_int64(value & numerics.MASK64).value


@given(F64)
def test_round_f32_and_the_cell_agree_with_c(value: float) -> None:
    cell = numerics.f32_cell()
    cell[0] = value
    with np.errstate(all="ignore"):
        expected = float(np.float32(value))
    assert same(numerics.round_f32(value), expected)
    assert same(cell[0], expected)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
def test_division_truncates(left: int, right: int) -> None:
    if right == 0:
        for function in (numerics.div_s, numerics.rem_s, numerics.div_u, numerics.rem_u):
            with pytest.raises(errors.InvalidArgument, match="by zero"):
                function(left, right)
        return
    exact = math.trunc(Fraction(left, right))
    assert numerics.div_s(left, right) == exact
    assert numerics.rem_s(left, right) == left - exact * right


@given(F64, F64)
def test_binary_functions(left: float, right: float) -> None:
    with np.errstate(all="ignore"):
        assert same(numerics.div_f(left, right), float(np.float64(left) / np.float64(right)))
    assert same(numerics.rem_f(left, right), c("remainder", ctypes.c_double, 2)(left, right))
    assert same(numerics.pow_f(left, right), c("pow", ctypes.c_double, 2)(left, right))


UNARY = {
    "ceil": numerics.ceil_f, "floor": numerics.floor_f, "round": numerics.round_away, "rint": numerics.round_even,
    "sqrt": numerics.sqrt_f, "exp": numerics.exp_f, "exp2": numerics.exp2_f, "expm1": numerics.expm1_f,
    "log": numerics.log_f, "log2": numerics.log2_f, "log10": numerics.log10_f, "log1p": numerics.log1p_f,
    "sin": numerics.sin_f, "cos": numerics.cos_f,
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary_functions(name: str) -> None:
    reference = c(name, ctypes.c_double, 1)

    @given(F64)
    def check(value: float) -> None:
        found, expected = UNARY[name](value), reference(value)
        if name in ("ceil", "floor", "round", "rint", "sqrt") or not math.isfinite(expected):
            assert same(found, expected), (value, found, expected)
        else:
            assert abs(found - expected) <= 2 * math.ulp(expected)

    check()


@given(st.integers(-(1 << 63), (1 << 64) - 1))
def test_integers_to_f32_round_once(value: int) -> None:
    found = numerics.int_to_f32(value)
    below = np.nextafter(np.float32(found), np.float32(-np.inf))
    above = np.nextafter(np.float32(found), np.float32(np.inf))
    error = abs(Fraction(found) - value)
    assert error <= abs(Fraction(float(below)) - value)
    assert error <= abs(Fraction(float(above)) - value)


def test_a_double_rounding_is_avoided() -> None:
    value = (1 << 60) + (1 << 36) + 1  # through f64 the 1 is lost, and the tie goes to even
    assert numerics.int_to_f32(value) == float((1 << 60) + (1 << 37))
    assert numerics.int_to_f32(-value) == -float((1 << 60) + (1 << 37))


@given(F64, F64, F64)
def test_fused_f64(first: float, second: float, third: float) -> None:
    assert same(numerics.fused_f64(first, second, third), c("fma", ctypes.c_double, 3)(first, second, third))


@given(F32, F32, F32)
def test_fused_f32(first: float, second: float, third: float) -> None:
    found = numerics.round_f32(numerics.fused_f32(first, second, third))
    assert same(found, c("fmaf", ctypes.c_float, 3)(first, second, third))


def test_fused_keeps_what_two_roundings_lose() -> None:
    one = 1 + 2.0**-23
    assert numerics.fused_f32(one, one, -(1 + 2.0**-22)) == 2.0**-46
    one = 1 + 2.0**-52
    assert numerics.fused_f64(one, one, -(1 + 2.0**-51)) == 2.0**-104


@pytest.mark.parametrize(
    ("value", "s32", "s64", "u64"),
    [
        (2.5, 3, 3, 3),
        (-2.5, -3, -3, -3),
        (0.49999999999999994, 0, 0, 0),
        (3e9, 3_000_000_000 - (1 << 32), 3_000_000_000, 3_000_000_000),
        (-1.0, -1, -1, -1),
        (2.0**63, 0, -(1 << 63), -(1 << 63)),
        (1.5 * 2.0**63, 0, -(1 << 63), int(1.5 * 2.0**63) - (1 << 64)),
        (2.0**64, 0, -(1 << 63), -(1 << 63)),
        (-(2.0**63), 0, -(1 << 63), -(1 << 63)),
        (math.nan, 0, -(1 << 63), -(1 << 63)),
        (math.inf, 0, -(1 << 63), -(1 << 63)),
        (-math.inf, 0, -(1 << 63), -(1 << 63)),
    ],
)
def test_floats_to_integers(value: float, s32: int, s64: int, u64: int) -> None:
    """What iree-run-module of the stock x86-64 build prints for cast.f32.*; 64-bit values at 2^63 and up are right."""
    assert (numerics.to_s32(value), numerics.to_s64(value), numerics.to_u64(value)) == (s32, s64, u64)


@given(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
def test_bits(word: int, wide: int) -> None:
    if not math.isnan(numerics.from_bits32(word)):
        assert numerics.bits_f32(numerics.from_bits32(word)) == word
    assert numerics.bits_f64(numerics.from_bits64(wide)) == wide
    assert same(numerics.from_bits32(word), float(np.array([word], np.int32).view(np.float32)[0]))
