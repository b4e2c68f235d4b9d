"""How ``bench`` and ``trace`` write times and what they were spent on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

UNITS: Final = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}
"""Units of time by name: how many make a second."""


def duration(seconds: float, unit: str | None = None) -> str:
    """Four digits and a unit, by default the largest that leaves something before the point."""
    if unit is None:
        unit = next((name for name in ("s", "ms", "us") if seconds * UNITS[name] >= 1), "ns")
    value = seconds * UNITS[unit]
    return f"{value:.4g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def size(byte_length: float) -> str:
    """Bytes, in units of 1,024."""
    value, units = float(byte_length), ["B", "KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.4g} {units[0]}"


@dataclass(frozen=True, slots=True)
class Row:
    """What is spent on a kernel or a kind of transfer: ``seconds`` for ``count`` of them, ``bytes`` in all."""

    kind: str
    name: str
    seconds: float
    longest: float
    count: float
    bytes: float


def table(rows: Sequence[Row], unit: str | None = None) -> Iterator[str]:
    """A line for each row, with its part of all their time."""
    everything = sum(row.seconds for row in rows) or 1.0
    for row in rows:
        name = f"kernel {row.name}" if row.kind == "kernel" else row.name
        yield (
            f"{duration(row.seconds, unit):>10} {row.seconds / everything:>6.1%} {row.count:>6g} x {name}, "
            f"{size(row.bytes / row.count)} each"
        )
