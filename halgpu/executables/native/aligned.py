"""Bindings that do not begin where code expects them to: through a copy, and back where the code may have written.

Code of iree-compile loads and stores vectors that it takes to be aligned, and ends the process where they are not.
Memory of devices is aligned; a program's own bytes need not be, nor where a caller's buffer view begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from halgpu import errors
from halgpu.devices.hostmemory import aligned_bytes

ALIGNMENT: Final = 64
"""Bytes: what the compiler assumes of each binding (``memref.assume_alignment`` in the code it generates)."""


@dataclass(slots=True)
class Copy:
    """Aligned bytes that stand for a view during a call."""

    view: memoryview
    bytes: memoryview

    def back(self) -> None:
        """Copy what the code may have written."""
        if not self.view.readonly:
            self.view[:] = self.bytes


def copies(kernel: str, views: Sequence[Any], addresses: Sequence[int]) -> list[Copy | None]:
    """Aligned copies of the views that need one.

    Views that begin at the same byte share the longest one's. Raises InvalidArgument for what a copy would not keep
    right: views that overlap without beginning together, of which one may be written.
    """
    made: dict[int, Copy] = {}
    for index in sorted(range(len(views)), key=lambda index: -views[index].nbytes):
        start = addresses[index]
        if start % ALIGNMENT and start not in made:
            _check_overlaps(kernel, index, views, addresses)
            same = [view for view, other in zip(views, addresses, strict=True) if other == start]
            writable = [view for view in same if not view.readonly and view.nbytes == views[index].nbytes]
            source = writable[0] if writable else views[index]
            made[start] = Copy(source, aligned_bytes(source.nbytes, ALIGNMENT))
            made[start].bytes[:] = source
    return [made.get(start) for start in addresses]


def _check_overlaps(kernel: str, index: int, views: Sequence[Any], addresses: Sequence[int]) -> None:
    start, end = addresses[index], addresses[index] + views[index].nbytes
    for other, view in enumerate(views):
        begins = addresses[other]
        if begins != start and begins < end and start < begins + view.nbytes:
            first, second = sorted((index, other))
            if not (view.readonly and views[index].readonly):
                raise errors.InvalidArgument(
                    f"kernel {kernel!r}: bindings {first} and {second} overlap, one may be written, and one does not "
                    f"begin at a multiple of {ALIGNMENT} bytes; to overlap, both must, or begin at the same byte"
                )
