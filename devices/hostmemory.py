"""Host bytes that a device can use in place."""

from __future__ import annotations

import os
from ctypes import addressof, c_char

import numpy as np

PAGE = 4096
LINE = 64
SMALL = 1 << 14


def pages(byte_length: int) -> memoryview:
    """Return zeroed writable bytes that start on a page; the memory behind them is a multiple of 64 bytes.

    Start and size are what Intel's "Getting the most from OpenCL 1.2: How to increase performance by
    minimizing buffer copies" asks for so that its driver works in place; they suit every other one. Raises
    MemoryError.
    """
    storage = np.zeros(padded(byte_length) + PAGE, np.uint8).data
    start = -addressof(c_char.from_buffer(storage)) % PAGE  # a quarter of the time of ndarray.ctypes.data
    return storage[start : start + byte_length]


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
