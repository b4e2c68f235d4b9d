"""How near two runs of a program come: integers equal, floats within a few units of rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from .program import Program


@dataclass(frozen=True)
class Comparison:
    """`error` is the largest difference: in units of rounding for floats, as it is for integers."""

    error: float
    problem: str = ""

    @property
    def same(self) -> bool:
        return not self.problem


def compare(program: Program, found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> Comparison:
    """Compare all results; NaNs equal each other, and zeros and infinities have the same signs."""
    if len(found) != len(wanted):
        return Comparison(np.inf, f"{len(found)} results instead of {len(wanted)}")
    worst = Comparison(0.0)
    for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
        compared = _one(program, one, other)
        if compared.problem:
            return Comparison(compared.error, f"result {number}: {compared.problem}")
        worst = max(worst, compared, key=lambda c: c.error)
    return worst


def check_same(program: Program, found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    """Raise AssertionError unless the results are the same."""
    compared = compare(program, found, wanted)
    assert compared.same, compared.problem


def _one(program: Program, found: np.ndarray, wanted: np.ndarray) -> Comparison:
    if (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        kinds = f"{found.dtype}{list(found.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
        return Comparison(np.inf, kinds)
    if found.size == 0:
        return Comparison(0.0)
    if found.dtype.kind in "iub":
        return _integers(found, wanted)
    return _floats(program, found, wanted)


def _integers(found: np.ndarray, wanted: np.ndarray) -> Comparison:
    wrong = found != wanted
    errors = [abs(int(a) - int(b)) for a, b in zip(found[wrong], wanted[wrong], strict=True)]
    return _verdict(wrong, found, wanted, float(max(errors, default=0)))


def _floats(program: Program, found: np.ndarray, wanted: np.ndarray) -> Comparison:
    info = ml_dtypes.finfo(found.dtype)
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    nan, finite = np.isnan(a) & np.isnan(b), np.isfinite(a) & np.isfinite(b)
    size = np.maximum(np.abs(np.where(finite, b, 0)), max(program.floor, float(info.tiny)))
    if program.relative_to_largest:
        size = np.maximum(size, size.max())
    with np.errstate(over="ignore"):
        distance = np.abs(np.where(finite, a, 0) - np.where(finite, b, 0)) / size / float(info.eps)
    if found.dtype == np.float16:
        # llvm-cpu's generic code makes zeros of them.
        subnormal = (np.abs(a) < float(info.tiny)) & (np.abs(b) < float(info.tiny))
        distance = np.where(subnormal, 0, distance)
    wrong = np.where(finite, distance > program.ulps, ~(nan | (a == b)))
    zeros = (a == 0) & (b == 0) & (program.signed_zeros and not program.relative_to_largest)
    wrong |= zeros & (np.signbit(a) != np.signbit(b))
    error = float(np.max(np.where(finite, distance, np.where(wrong, np.inf, 0))))
    return _verdict(wrong, found, wanted, error)


def _verdict(wrong: np.ndarray, found: np.ndarray, wanted: np.ndarray, error: float) -> Comparison:
    if not wrong.any():
        return Comparison(error)
    places = np.argwhere(wrong)
    shown = ", ".join(
        f"{list(map(int, at))}: {found[tuple(at)]!s} instead of {wanted[tuple(at)]!s}" for at in places[:4]
    )
    return Comparison(error, f"{len(places)} of {wrong.size} elements differ, {shown}")
