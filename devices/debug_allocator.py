"""The debug allocator: finds writes outside of a buffer, use of undefined and of freed bytes, and leaks.

    one allocation:   [ guard 0xFB … | bytes, 0xCD when new, 0xDD when freed | guard 0xFB … ]

Switched on by ``opencl?debug=1`` (any device), or HALGPU_DEBUG_ALLOCATOR=1. Guards are checked when a buffer
ends, by ``device.allocator.check()``, ``device.wait_idle()`` and ``device.close()``. What is found is raised
as DataLoss by the first of those, or the next allocation or release, with the place where the buffer was
made. ``device.allocator.leaks()`` lists what is alive; ``close`` warns of each.

Nothing is pooled meanwhile, device and host wait for each other at each buffer's end, and statistics count
the guards as allocated bytes.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from halgpu.devices.buffer import DEFAULT_TYPE, DEFAULT_USAGE, Allocator, Buffer, Root, rights_of
from halgpu.devices.memory import BufferUsage, MemoryAccess, MemoryType
from halgpu.errors import DataLoss

if TYPE_CHECKING:
    from halgpu.devices.base import Device
    from halgpu.devices.memory import Memory
    from halgpu.devices.residency import Counters

GUARD, FRESH, FREED = 0xFB, 0xCD, 0xDD
GUARD_BYTES = 256
"""At least this many on each side; in front, a multiple of the alignment."""

MAX_QUARANTINE = 64
"""Freed allocations whose bytes are still watched for writes through views that outlived them."""

MAX_QUARANTINE_BYTES = 64 << 20
FRAMES = 12
_HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass(frozen=True, slots=True)
class Allocation:
    """A buffer as the debug allocator knows it: its size and the calls that led to it, innermost first."""

    serial: int
    byte_length: int
    frames: tuple[str, ...]

    @property
    def place(self) -> str:
        """Where it was allocated: ``file:line in function``, outside of the device layer."""
        return self.frames[0] if self.frames else "an unknown place"

    def __str__(self) -> str:
        return f"buffer {self.serial} of {self.byte_length} bytes, allocated at {self.place}"


class DebugRoot(Root):
    """An allocation with guards around ``byte_length`` bytes from ``front``."""

    __slots__ = ("__weakref__", "allocation", "front")

    def __init__(self, allocator: Allocator, memory: Memory, byte_length: int) -> None:
        super().__init__(allocator, memory, byte_length)
        self.front = 0
        self.allocation: Allocation | None = None
        """None for bytes that were left to open windows: another root has the guards now."""

    def guard(self, front: int, allocation: Allocation) -> None:
        """Fill the guards and, as a mark of undefined bytes, what is between."""
        self.front, self.allocation = front, allocation
        view = self.host(write=True, discard=True)
        _fill(view, GUARD)
        _fill(view[front : front + allocation.byte_length], FRESH)

    def damage(self) -> str | None:
        """What was written over the guards, in words; waits for device work."""
        if self.allocation is None:
            return None
        view, front, end = self.host(), self.front, self.front + self.allocation.byte_length
        return _damage(view[:front], GUARD, -front, self.allocation, "in front of") or _damage(
            view[end:], GUARD, self.allocation.byte_length, self.allocation, "behind"
        )

    def __del__(self) -> None:
        # Comes back to life in the ledger until it was checked, which a finalizer may not wait for.
        self.counters.known.clear()
        self.allocator.device.ledger.end(self)  # type: ignore[union-attr]


class Ledger:
    """What a device's debug allocator knows; the device owns it, so it holds the device only for a moment."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.live: dict[int, tuple[Allocation, weakref.ref[DebugRoot]]] = {}
        self._ended: deque[DebugRoot] = deque()
        self._quarantine: deque[tuple[Allocation, memoryview]] = deque()
        self._quarantined = 0
        self._problems: list[str] = []

    def __del__(self) -> None:
        for problem in self._problems:
            sys.stderr.write(f"halgpu debug allocator: {problem}\n")

    def allocator(self, device: Device) -> DebugAllocator:
        """A new allocator that writes to this ledger."""
        return DebugAllocator(device)

    def begin(self, root: DebugRoot) -> None:
        """Note a new allocation."""
        assert root.allocation is not None
        assert root.memory.serial not in self.live
        self.live[root.allocation.serial] = root.allocation, weakref.ref(root)

    def forget(self, allocation: Allocation) -> None:
        """Note that an allocation ended."""
        found = self.live.pop(allocation.serial, None)
        assert found is not None, f"{allocation} was freed twice"

    def end(self, root: DebugRoot) -> None:
        """Take an allocation whose last holder is gone; may run inside a garbage collection."""
        self._ended.append(root)
        self.settle(wait=False)

    def settle(self, *, wait: bool = True) -> None:
        """Check and free what has ended; what is found is kept for :meth:`complain`.

        Left for the next time when this interrupts the thread in the middle of device work, and, unless it
        may ``wait``, while another thread is at such.
        """
        lock: Any = self._counters.lock
        if self._counters.forked or lock._is_owned() or not lock.acquire(blocking=wait):
            return
        try:
            while self._ended:
                root = self._ended.popleft()
                if root.allocation is not None:
                    self.forget(root.allocation)
                    self._note(root.damage())
                self._retire(root)
        finally:
            lock.release()

    def _retire(self, root: DebugRoot) -> None:
        allocation = root.allocation
        if allocation is not None:
            view = root.host(write=True)[root.front : root.front + allocation.byte_length]
            _fill(view, FREED)
            self._quarantine.append((allocation, view))
            self._quarantined += allocation.byte_length
        root.device_reads()
        root.view = None
        root.allocator.reclaim(root.memory, root.byte_length)
        while len(self._quarantine) > MAX_QUARANTINE or self._quarantined > MAX_QUARANTINE_BYTES:
            old, view = self._quarantine.popleft()
            self._quarantined -= old.byte_length
            self._note(_damage(view, FREED, 0, old, "to the freed bytes of"))

    def _note(self, problem: str | None) -> None:
        if problem is not None:
            self._problems.append(problem)

    def check(self) -> None:
        """Check every buffer, live or lately freed, and raise DataLoss for what is found."""
        self.settle()
        self._look()
        self.complain()

    def _look(self) -> None:
        # Apart from check, whose frame an exception would keep, and with it the last root.
        for _, reference in list(self.live.values()):
            root = reference()
            if root is not None:
                self._note(root.damage())
        for allocation, view in self._quarantine:
            self._note(_damage(view, FREED, 0, allocation, "to the freed bytes of"))

    def complain(self) -> None:
        """Raise DataLoss for what was found and not raised yet."""
        if self._problems:
            problems, self._problems = self._problems, []
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise DataLoss(problems[0].split("\n")[0] + more, details="\n".join(problems))

    def leaks(self) -> tuple[Allocation, ...]:
        """The buffers alive, oldest first."""
        self.settle()
        return tuple(allocation for allocation, _ in self.live.values())

    def warn_of_leaks(self) -> None:
        """Warn (ResourceWarning) of each buffer alive."""
        for allocation in self.leaks():
            warnings.warn(f"{allocation}, was never released", ResourceWarning, stacklevel=3)


class DebugAllocator(Allocator):
    """Makes buffers with guards. Obtained from :attr:`Device.allocator` of a device opened for debugging."""

    __slots__ = ()

    def allocate(
        self,
        byte_length: int,
        *,
        alignment: int = 64,
        usage: BufferUsage = DEFAULT_USAGE,
        memory_type: MemoryType = DEFAULT_TYPE,
        access: MemoryAccess = MemoryAccess.ALL,
    ) -> Buffer:
        """As :meth:`Allocator.allocate`; all bytes are 0xCD. Raises DataLoss for damage found meanwhile."""
        byte_length = self.checked(byte_length, alignment)
        self.after_release()
        front = max(GUARD_BYTES, alignment)
        root = self.root(front + byte_length + GUARD_BYTES, DebugRoot)
        root.guard(front, Allocation(root.memory.serial, byte_length, _frames()))
        self._ledger.begin(root)
        rights = rights_of(access, usage, memory_type)
        return Buffer(root, front, byte_length, access, usage, memory_type, rights)

    @property
    def _ledger(self) -> Ledger:
        ledger = self.device.ledger
        assert ledger is not None
        return ledger

    def check(self) -> None:
        """Check the guards of every buffer, and freed bytes. Raises DataLoss, with the place of allocation."""
        self._ledger.check()

    def leaks(self) -> tuple[Allocation, ...]:
        """Return the buffers alive, oldest first, each with the place where it was allocated."""
        return self._ledger.leaks()

    def after_release(self) -> None:
        """Raise DataLoss for damage found since it was last raised."""
        self._ledger.settle()
        self._ledger.complain()


def _fill(view: memoryview, value: int) -> None:
    if len(view):
        np.frombuffer(view, np.uint8)[:] = value


def _damage(view: memoryview, expected: int, start: int, allocation: Allocation, where: str) -> str | None:
    if not len(view):
        return None
    wrong = np.flatnonzero(np.frombuffer(view, np.uint8) != expected)
    if not len(wrong):
        return None
    first, last = start + int(wrong[0]), start + int(wrong[-1])
    frames = "".join(f"\n    {frame}" for frame in allocation.frames)
    return (
        f"{len(wrong)} bytes {where} {allocation}, were written: first at byte {first}, last at {last}, "
        f"found {bytes(view[wrong[0] : wrong[0] + 8]).hex(' ')}{frames}"
    )


def _frames() -> tuple[str, ...]:
    """The calls that led here, innermost first, but those of this package."""
    frame: Any = sys._getframe(1)
    while frame is not None and os.path.dirname(os.path.abspath(frame.f_code.co_filename)) == _HERE:
        frame = frame.f_back
    stack = traceback.StackSummary.extract(traceback.walk_stack(frame), limit=FRAMES, lookup_lines=False)
    # walk_stack goes outwards, and so does this.
    return tuple(f"{entry.filename}:{entry.lineno} in {entry.name}" for entry in stack)
