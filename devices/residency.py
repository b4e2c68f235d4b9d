"""Who holds the valid bytes of an allocation: the host, the device or both.

    state    host bytes   device bytes   how it comes about
    FRESH    undefined    undefined      just allocated: nothing is worth moving
    HOST     valid        stale          the host may have written
    DEVICE   stale        valid          the device wrote (or the mapping was given back to it)
    BOTH     valid        valid          brought to the other side and not written since

Before the host looks at bytes: :meth:`Residency.host`. Before the device works on them:
:meth:`Residency.device_reads`, :meth:`Residency.device_writes`. Nothing else moves bytes. State is kept for
a whole allocation: subspans share it.

On memory that host and device share, "valid on the host" means mapped, by the rules of OpenCL 1.2 section
5.4.2 (clEnqueueMapBuffer): a region mapped for writing may not be used by a kernel at all, one mapped for
reading may be read by it but not written.
"""

from __future__ import annotations

import enum
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

from halgpu.devices.forks import FORKED
from halgpu.devices.hostmemory import fill
from halgpu.errors import FailedPrecondition

if TYPE_CHECKING:
    from halgpu.devices.dispatch import Known
    from halgpu.devices.memory import Memory
    from halgpu.devices.profile import Recorder


class State(enum.Enum):
    """Where the valid bytes are."""

    FRESH = "fresh"
    HOST = "host"
    DEVICE = "device"
    BOTH = "both"


class Counters:
    """A device's running totals. Everything but :meth:`freed` runs under ``lock``."""

    __slots__ = (
        "_freed", "bytes_allocated", "bytes_down", "bytes_peak", "bytes_up", "dispatches", "forked",
        "known", "live_handles", "lock", "maps", "programs_cached", "programs_compiled", "recorder",
    )  # fmt: skip

    REPORTED: ClassVar = (
        "bytes_allocated", "bytes_peak", "live_handles", "bytes_up", "bytes_down", "maps", "dispatches",
        "programs_compiled", "programs_cached",
    )  # fmt: skip

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.forked = False
        self.bytes_allocated = self.bytes_peak = self.live_handles = 0
        self.bytes_up = self.bytes_down = self.maps = self.dispatches = 0
        self.programs_compiled = self.programs_cached = 0
        self._freed: deque[int] = deque()
        self.recorder: Recorder | None = None
        """Who records what the device does (profile.py); mostly nobody."""
        self.known: dict[tuple[int, ...], Known] = {}
        """Bindings of dispatches that were checked (dispatch.py); emptied by whatever might make one wrong."""

    def allocated(self, byte_length: int) -> None:
        """Count a new allocation."""
        if self._freed:
            self.settle()
        self.live_handles += 1
        self.bytes_allocated += byte_length
        if self.bytes_allocated > self.bytes_peak:
            self.bytes_peak = self.bytes_allocated

    def freed(self, byte_length: int) -> None:
        """Count a freed allocation; safe inside a garbage collection, where a lock may be held half way."""
        self._freed.append(byte_length)

    def settle(self) -> None:
        """Take what :meth:`freed` noted into the totals."""
        while self._freed:
            self.live_handles -= 1
            self.bytes_allocated -= self._freed.popleft()


class Residency:
    """The state of one allocation, and the transfers that each use of it demands."""

    __slots__ = ("_writable", "counters", "dirty", "fresh", "lease", "memory", "settled", "view", "writers")

    def __init__(self, memory: Memory, counters: Counters) -> None:
        self.memory = memory
        self.counters = counters
        self.fresh = True
        self.view: memoryview | None = None
        """The host's bytes; None when they are stale."""
        self.dirty = False
        """The host may have written since the device last saw the bytes."""
        self.writers = 0
        """Live mappings whose writable bytes somebody holds: they may write again after the device looked."""
        self.lease: weakref.ref[Any] | None = None
        """Of open windows and shared memory, if any: while it lives, the host has nothing newer (windows.py)."""
        self.settled = False
        """The device may use ``memory`` as it is: neither fresh nor in the host's hands nor leased."""
        self._writable = False

    @property
    def state(self) -> State:
        """Where the valid bytes are now."""
        if self.view is not None:
            return State.HOST if self.dirty else State.BOTH
        return State.FRESH if self.fresh else State.DEVICE

    def host(self, *, write: bool = False, discard: bool = False) -> memoryview:
        """Make the host's bytes valid and return all of them.

        ``write``: the caller may change them. ``discard``: it will overwrite all of them, so that nothing
        needs to be brought.
        """
        view = self.view
        if view is None or (write and not self.dirty):
            view = self._acquire(write, discard)
        return view

    def _acquire(self, write: bool, discard: bool) -> memoryview:
        self.require_same_process()
        with self.counters.lock:
            self.unsettle()
            if write and self.lease is not None:
                self._leave(keep=not discard, on_host=True)
            view = self.view
            if view is None or (write and not self._writable):
                read = view is None and not (self.fresh or discard)
                recorder = self.counters.recorder
                if recorder is None:
                    view, moved = self.memory.acquire_host(read=read, write=write)
                else:
                    view, moved = recorder.acquire_host(self.memory, read=read, write=write)
                self.counters.bytes_down += moved
                self.counters.maps += 1
                self.view, self._writable, self.fresh = view, write, False
            if write:
                self.dirty = True
            return view

    def require_same_process(self) -> None:
        """Raise FailedPrecondition in a process that was forked from the one that allocated."""
        if self.counters.forked:
            raise FailedPrecondition(f"a buffer cannot be used: its device was opened {FORKED}")

    def unsettle(self) -> None:
        """Note that the device may no longer use the memory as it is. Under the device's lock."""
        if self.settled:
            self.settled = False
            self.counters.known.clear()

    def device_reads(self) -> None:
        """Make the device's bytes valid. Under the device's lock."""
        if self.dirty:
            self._release(keep=self.memory.mirrored)
        self.fresh = False

    def device_writes(self, *, discard: bool = False) -> None:
        """Make the device's bytes valid and the host's stale. Under the device's lock.

        ``discard``: the device will overwrite all of them, so that nothing needs to be brought.
        """
        if self.lease is not None:
            self._leave(keep=not discard, on_host=False)
        if self.view is not None:
            if discard:
                self.dirty = False
            self._release(keep=False)
        self.fresh = False

    def _leave(self, *, keep: bool, on_host: bool) -> None:
        from halgpu.devices.windows import leave  # which imports this

        leave(self, keep=keep, on_host=on_host)

    def _release(self, keep: bool) -> None:
        recorder = self.counters.recorder
        if recorder is None:
            self.counters.bytes_up += self.memory.release_host(dirty=self.dirty)
        else:
            self.counters.bytes_up += recorder.release_host(self.memory, dirty=self.dirty)
        self.dirty = keep and self.writers > 0
        # Writing again asks the memory again: what was handed over may still be on its way.
        self._writable = False
        if not keep:
            self.view = None
        elif self.dirty:
            self.memory.acquire_host(read=False, write=True)

    def fill(self, offset: int, length: int, pattern: bytes) -> None:
        """Fill bytes on the side that has the newest ones."""
        self.require_same_process()
        with self.counters.lock:
            if self.dirty or offset % len(pattern):
                # Also where the device could not: OpenCL 1.2 5.2.2 wants the offset aligned to the pattern.
                fill(self.host(write=True)[offset : offset + length], pattern)
                return
            self.device_writes(discard=length == self.memory.byte_length)
            recorder = self.counters.recorder
            if recorder is None:
                self.memory.fill(offset, length, pattern)
            else:
                recorder.fill(self.memory, offset, length, pattern)

    def copy_from(self, source: Residency, source_offset: int, offset: int, length: int) -> None:
        """Copy bytes from an allocation of the same device on the side that has the newest ones."""
        self.require_same_process()
        with self.counters.lock:
            if source.dirty and self.view is not None:
                data = source.host()[source_offset : source_offset + length]
                self.host(write=True)[offset : offset + length] = data
                return
            source.device_reads()
            self.device_writes(discard=length == self.memory.byte_length and source is not self)
            self.enqueue_copy(source.memory, source_offset, offset, length)

    def enqueue_copy(self, source: Memory, source_offset: int, offset: int, length: int) -> None:
        """Copy bytes on the device, whatever the states. Under the device's lock."""
        recorder = self.counters.recorder
        if recorder is None:
            self.memory.copy_from(source, source_offset, offset, length)
        else:
            recorder.copy_from(self.memory, source, source_offset, offset, length)
