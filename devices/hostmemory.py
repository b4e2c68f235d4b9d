"""Host bytes that a device can use in place."""

from __future__ import annotations

import os
import weakref
from ctypes import addressof, c_char
from typing import Any

import numpy as np

PAGE = 4096
LINE = 64
POOLED = 1 << 15
"""Bytes: smaller host memory is as quickly made anew as used again."""
SMALL = 1 << 14


class Pages:
    """Host memory that knows whether a view of it is still held anywhere, so that it may be used again.

    Every view goes through an array made for it alone, which dies with the last of what was made from the
    view. ``storage`` itself is for drivers, which hold it as long as they need it.
    """

    __slots__ = ("_viewed", "storage")

    def __init__(self, storage: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self.storage = storage
        self._viewed: weakref.ref[Any] | None = None

    def view(self, byte_length: int) -> memoryview:
        """Return the first bytes, writable and flat; at most one view, and what is made of it, at a time."""
        array = self.storage[:byte_length]
        self._viewed = weakref.ref(array)
        return array.data

    @property
    def viewed(self) -> bool:
        """Whether anybody still holds the view, a slice of it or an array over it."""
        return self._viewed is not None and self._viewed() is not None


def pages(byte_length: int) -> Pages:
    """Return zeroed memory that starts on a page; what is behind it goes on to a multiple of 64 bytes.

    Start and size are what Intel's "Getting the most from OpenCL 1.2: How to increase performance by
    minimizing buffer copies" asks for so that its driver works in place; they suit every other one. Raises
    MemoryError.
    """
    storage = np.zeros(padded(byte_length) + PAGE, np.uint8)
    start = (
        -addressof(c_char.from_buffer(storage.data)) % PAGE
    )  # a quarter of the time of ndarray.ctypes.data
    return Pages(storage[start : start + byte_length])


def aligned_bytes(byte_length: int, alignment: int) -> memoryview:
    """Return new writable bytes, undefined, that begin at a multiple of ``alignment``."""
    storage = np.empty(byte_length + alignment, np.uint8)
    start = -storage.__array_interface__["data"][0] % alignment
    return storage[start : start + byte_length].data


def fill(target: memoryview, pattern: bytes) -> None:
    """Fill writable bytes with repetitions of a pattern of 1, 2, 4 or 8 bytes; their length is a multiple of it."""
    if len(target) <= SMALL:
        target[:] = pattern * (len(target) // len(pattern))
    else:
        # The pattern repeated to gigabytes would take as much memory again.
        np.frombuffer(target, f"u{len(pattern)}")[:] = np.frombuffer(pattern, f"u{len(pattern)}")


def padded(byte_length: int) -> int:
    """Return the size rounded up to whole cache lines."""
    return -(-byte_length // LINE) * LINE


def total() -> int:
    """Return the machine's memory in bytes, or a very large number where it cannot be asked."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**62
