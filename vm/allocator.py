"""The allocator contract of VM buffers, and the host allocator that counts what it gives out.

A buffer's bytes are released in one of two ways (see :mod:`halgpu.vm.buffer`): memory that the allocator made
aligned, together with its handle, goes back through :meth:`Allocator.free_aligned`; everything else is announced
through :meth:`Allocator.free`. The split is that of ``iree_allocator_free`` and ``iree_allocator_free_aligned``
(runtime/src/iree/base/allocator.h).
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from halgpu import errors

DEFAULT_ALIGNMENT = 16
"""Alignment in bytes where none is asked for: ``iree_max_align_t`` on the platforms that matter."""


class Allocation(Protocol):
    """A live allocation: its bytes, writable."""

    @property
    def memory(self) -> memoryview:
        """The bytes, format ``B``, one dimension."""


class Allocator(ABC):
    """Makes memory for VM buffers and takes it back, or only hears of its end.

    Methods may be called from any thread, and from a garbage collection.
    """

    __slots__ = ()

    @abstractmethod
    def allocate_aligned(self, byte_length: int, alignment: int) -> Allocation:
        """Return zeroed memory of ``byte_length`` bytes whose address is a multiple of ``alignment``.

        Raises ResourceExhausted when there is no such memory. Give it back with :meth:`free_aligned`.
        """

    @abstractmethod
    def free_aligned(self, handle: Any) -> None:
        """Take back what :meth:`allocate_aligned` returned."""

    @abstractmethod
    def free(self, handle: Any) -> None:
        """Take back, or take notice of the end of, memory that was not made by :meth:`allocate_aligned`."""


@dataclass(frozen=True, slots=True)
class AllocatorStatistics:
    """Counters at one moment. ``bytes`` counts what was asked for, without alignment padding."""

    live_handles: int
    live_bytes: int
    peak_bytes: int
    allocations: int
    frees: int


class HostAllocation:
    """Memory of a :class:`HostAllocator`. The bytes outlive the allocation while a view of them is held."""

    __slots__ = ("_aligned", "_live", "byte_length", "memory")

    def __init__(self, memory: memoryview, aligned: bool) -> None:
        self.memory = memory
        self.byte_length = len(memory)
        self._aligned = aligned
        self._live = True


class HostAllocator(Allocator):
    """Allocates host memory and counts it, so that "nothing leaked" can be asserted.

    An allocation that is freed twice, in the wrong way, or by an allocator that did not make it, is refused.
    """

    def __init__(self) -> None:
        self.unlock()
        _allocators.add(self)
        self._live_handles = 0
        self._live_bytes = 0
        self._peak_bytes = 0
        self._allocations = 0
        self._frees = 0

    def unlock(self) -> None:
        """Start with a new lock: in a forked child, where the thread that may hold the old one is not."""
        # Re-entrant: a garbage collection inside a counter update may free another buffer of this allocator.
        self._lock = threading.RLock()

    @property
    def statistics(self) -> AllocatorStatistics:
        """A snapshot of the counters."""
        with self._lock:
            return AllocatorStatistics(
                self._live_handles, self._live_bytes, self._peak_bytes, self._allocations, self._frees
            )

    def allocate(self, byte_length: int) -> HostAllocation:
        """Return zeroed memory that goes back through :meth:`free`."""
        return self._allocate(byte_length, DEFAULT_ALIGNMENT, aligned=False)

    def allocate_aligned(self, byte_length: int, alignment: int) -> HostAllocation:
        """Return zeroed, aligned memory that goes back through :meth:`free_aligned`."""
        return self._allocate(byte_length, alignment, aligned=True)

    def free(self, handle: HostAllocation) -> None:
        """Take back memory of :meth:`allocate`."""
        self._free(handle, aligned=False)

    def free_aligned(self, handle: HostAllocation) -> None:
        """Take back memory of :meth:`allocate_aligned`."""
        self._free(handle, aligned=True)

    def _allocate(self, byte_length: int, alignment: int, aligned: bool) -> HostAllocation:
        alignment = checked_alignment(alignment)
        made = HostAllocation(_aligned_zeros(byte_length, alignment), aligned)
        with self._lock:
            self._live_handles += 1
            self._live_bytes += byte_length
            self._allocations += 1
            self._peak_bytes = max(self._peak_bytes, self._live_bytes)
        return made

    def _free(self, handle: HostAllocation, aligned: bool) -> None:
        if not isinstance(handle, HostAllocation):
            raise errors.InvalidArgument(
                f"expected an allocation of this HostAllocator, found {type(handle).__name__}"
            )
        with self._lock:
            if not handle._live:
                raise errors.FailedPrecondition(f"allocation of {handle.byte_length} bytes freed twice")
            if handle._aligned != aligned:
                right = "free_aligned" if handle._aligned else "free"
                raise errors.FailedPrecondition(f"this allocation goes back through {right}()")
            handle._live = False
            self._live_handles -= 1
            self._live_bytes -= handle.byte_length
            self._frees += 1


class NullAllocator(Allocator):
    """The allocator of memory that nobody releases: it makes none and ignores its end."""

    def allocate_aligned(self, byte_length: int, alignment: int) -> Allocation:
        """Always raises FailedPrecondition."""
        raise errors.FailedPrecondition("the null allocator makes no memory; pass a HostAllocator")

    def free_aligned(self, handle: Any) -> None:
        """Do nothing."""

    def free(self, handle: Any) -> None:
        """Do nothing."""


def checked_alignment(alignment: int) -> int:
    """Return ``alignment``, or the default for 0; InvalidArgument unless it is a power of two."""
    if alignment == 0:
        return DEFAULT_ALIGNMENT
    if alignment < 0 or alignment & (alignment - 1):
        raise errors.InvalidArgument(f"alignment must be a power of two, found {alignment}")
    return alignment


def _aligned_zeros(byte_length: int, alignment: int) -> memoryview:
    if byte_length < 0:
        raise errors.InvalidArgument(f"byte length must not be negative, found {byte_length}")
    try:
        return _small(byte_length, alignment) if byte_length < _LARGE else _large(byte_length, alignment)
    except (MemoryError, ValueError, OverflowError) as error:
        raise errors.ResourceExhausted(f"no host memory for {byte_length} bytes") from error


def _small(byte_length: int, alignment: int) -> memoryview:
    # Three times faster than an array of numpy, and programs allocate in every call.
    raw = bytearray(byte_length + alignment)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(raw)) % alignment
    return memoryview(raw)[start : start + byte_length]


def _large(byte_length: int, alignment: int) -> memoryview:
    # calloc underneath: pages cost nothing before they are touched.
    raw = np.zeros(byte_length + alignment, np.uint8)
    start = -raw.__array_interface__["data"][0] % alignment
    view: memoryview = raw.data
    return view[start : start + byte_length]


def _unlock_in_child() -> None:
    for allocator in list(_allocators):
        allocator.unlock()


_allocators: weakref.WeakSet[HostAllocator] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_in_child)

_LARGE = 1 << 15
NULL_ALLOCATOR = NullAllocator()
DEFAULT_ALLOCATOR = HostAllocator()
"""What buffers and contexts use when no allocator is given."""
