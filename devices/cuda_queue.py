"""The order of a CUDA device's work, and the end of what it uses. Part of the ``cuda`` backend.

What is freed while enqueued work may still use it is *buried*: it is given back to CUDA once the stream was waited
for. So nothing that ends inside a garbage collection calls CUDA, whose functions that free wait for the device.

Device memory is a number that its holder buries, and no object that buries itself: the collector calls ``__del__`` of
all objects of a cycle, also of memory that the pool then keeps.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from halgpu import errors

# Freed memory that enqueued work may still use is kept until the stream was waited for; past either of these the
# next allocation waits.
MAX_BURIED_BYTES: Final = 64 << 20
MAX_BURIED: Final = 256

_OUT_OF_MEMORY: Final = 2
_LOST: Final = frozenset({700, 702, 710, 713, 714, 715, 716, 717, 718, 719})
"""Errors after which a context takes no more work (CUDA Driver API, ``CUresult``: "the context cannot be used")."""
_KINDS: Final[dict[int, type[errors.Error]]] = {
    _OUT_OF_MEMORY: errors.ResourceExhausted,
    701: errors.ResourceExhausted,  # launch out of resources
    35: errors.Unavailable,  # the driver is older than the runtime
    46: errors.Unavailable,  # all devices busy or unavailable
    100: errors.Unavailable,  # no device
    101: errors.Unavailable,  # invalid device
}


@dataclass(frozen=True, slots=True)
class Cuda:
    """The part of CuPy that is used: ``cupy.cuda.runtime``, ``.driver``, what returns ``.nvrtc``, the version."""

    runtime: Any
    driver: Any
    nvrtc: Callable[[], Any]
    version: str

    @property
    def errors(self) -> tuple[type[Any], type[Any]]:
        """What runtime and driver raise; both have ``status``, and the same numbers for what both know."""
        return self.runtime.CUDARuntimeError, self.driver.CUDADriverError


def mapped(uri: str, doing: str, error: Any) -> errors.Error:
    """Return halgpu's error for one of CuPy's; raise it ``from`` that."""
    status = error.status
    advice = ""
    if status in _LOST:
        advice = "; a kernel went wrong, and CUDA lets nothing more be done with this GPU in this process"
    return _KINDS.get(status, errors.Internal)(f"{uri} could not {doing}: CUDA says {error}{advice}")


class Current:
    """Makes a context the current one of this thread for a ``with`` block, and puts back what was."""

    __slots__ = ("_context", "_get", "_previous", "_set")

    def __init__(self, get: Callable[[], int], set: Callable[[int], None], context: int) -> None:
        self._get, self._set, self._context = get, set, context
        self._previous = context

    def __enter__(self) -> None:
        self._previous = self._get()
        if self._previous != self._context:
            self._set(self._context)

    def __exit__(self, *_: object) -> None:
        if self._previous != self._context:
            self._set(self._previous)


Thing = tuple[Callable[[int], None], int]
"""What gives a thing of CUDA back, and its address."""


class Queue:
    """A device's stream, how much of its work is known to be done, and what waits for that to be given back."""

    __slots__ = (
        "_buried", "_buried_bytes", "_dying", "_events", "_owned", "context", "cuda", "done", "enqueued",
        "get_current", "kept", "set_current", "stream", "timed", "uri",
    )  # fmt: skip

    def __init__(self, cuda: Cuda, uri: str, context: int, stream: int) -> None:
        self.cuda = cuda
        self.uri = uri
        self.context = context
        self.stream = stream
        self.get_current: Callable[[], int] = cuda.driver.ctxGetCurrent
        self.set_current: Callable[[int], None] = cuda.driver.ctxSetCurrent
        self.enqueued = 0
        """Number of launches, fills, copies and transfers so far."""
        self.done = 0
        """How many of them are known to have run."""
        self.timed = False
        """Whether commands are to lie between two events that tell the time (cuda_timer.py)."""
        self.kept: dict[Any, Any] = {}
        """What enqueued work reads from the host, by any key; until it was waited for."""
        self._owned: set[Thing] = set()
        """What is to be given back in the end."""
        self._dying: deque[tuple[int, Thing]] = deque()
        self._buried: list[Thing] = []
        self._buried_bytes = 0
        self._events: list[int] = []

    def current(self) -> Current:
        """A ``with`` block in which the device's context is the thread's current one."""
        return Current(self.get_current, self.set_current, self.context)

    # -- waiting ---------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Wait for all that was enqueued, then give back what is buried."""
        with self.current():
            self.synchronize("finish its work")

    def synchronize(self, doing: str) -> None:
        """As :meth:`finish`, with the context current."""
        self._settle()
        try:
            self.cuda.runtime.streamSynchronize(self.stream)
        except self.cuda.errors as error:
            raise mapped(self.uri, doing, error) from error
        self.done = self.enqueued
        self.kept.clear()
        self._give_back()

    def limit_buried(self) -> None:
        """Give back what is buried if the stream is idle; wait for it if that is too much."""
        self._settle()
        if self._buried and (
            self.done == self.enqueued
            or self._buried_bytes > MAX_BURIED_BYTES
            or len(self._buried) > MAX_BURIED
        ):
            self.finish()

    def allocate(self, byte_length: int) -> int:
        """New device memory, to be buried. Raises what CuPy raises. With the context current."""
        address: int = self.cuda.runtime.malloc(byte_length)
        self.own(self.cuda.runtime.free, address)
        return address

    def bury_memory(self, byte_length: int, address: int) -> None:
        """Free device memory once enqueued work is done; may run inside a garbage collection."""
        self.bury(byte_length, self.cuda.runtime.free, address)

    def own(self, release: Callable[[int], None], address: int) -> None:
        """Have ``release(address)`` called with the queue's end, if it is not buried before."""
        self._owned.add((release, address))

    def bury(self, byte_length: int, release: Callable[[int], None], address: int) -> None:
        """Call ``release(address)`` once enqueued work is done; may run inside a garbage collection."""
        self._dying.append((byte_length, (release, address)))

    def _settle(self) -> None:
        # What is buried while a call waits may be used by work that it does not wait for.
        while self._dying:
            byte_length, thing = self._dying.popleft()
            self._buried.append(thing)
            self._buried_bytes += byte_length

    def _give_back(self) -> None:
        while self._buried:
            thing = self._buried.pop()
            self._owned.discard(thing)
            release, address = thing
            with suppress(*self.cuda.errors):  # the device is lost, and so is what lay there
                release(address)
        self._buried_bytes = 0

    # -- events ----------------------------------------------------------------------------------------

    def mark(self, stream: int | None = None) -> Mark:
        """A point in the stream, or in another one, that can be waited for. With the context current."""
        event = self._events.pop() if self._events else self._new_event()
        self.cuda.runtime.eventRecord(event, self.stream if stream is None else stream)
        return Mark(self, event)

    def _new_event(self) -> int:
        event: int = self.cuda.runtime.eventCreateWithFlags(self.cuda.runtime.eventDisableTiming)
        return event

    def start(self) -> int | None:
        """Where commands are timed, an event before one; else None. With the context current."""
        return self._tick() if self.timed else None

    def stop(self, start: int) -> tuple[int, int]:
        """What the timer can tell the time of a command from, enqueued since ``start``."""
        return start, self._tick()

    def _tick(self) -> int:
        event: int = self.cuda.runtime.eventCreateWithFlags(self.cuda.runtime.eventDefault)
        self.cuda.runtime.eventRecord(event, self.stream)
        return event

    # -- the end ---------------------------------------------------------------------------------------

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # All that is on the device holds its queue; what is left is the pool's, or of a cycle that ends as a whole.
        # When the interpreter ends, CUDA may have ended before; the process's end gives everything back.
        if _is_finalizing() or not hasattr(self, "_events"):
            return
        runtime = self.cuda.runtime
        with suppress(errors.Error, *self.cuda.errors), self.current():
            self.synchronize("finish its work")
            self._buried = [*self._owned]
            self._give_back()
            for event in self._events:
                runtime.eventDestroy(event)
            runtime.streamDestroy(self.stream)


class Mark:
    """A point in a stream."""

    __slots__ = ("_events", "_wait", "event")

    def __init__(self, queue: Queue, event: int) -> None:
        self._wait = queue.cuda.runtime.eventSynchronize
        self._events = queue._events
        self.event = event

    def wait(self) -> None:
        """Wait for all work enqueued before it. With the context current."""
        self._wait(self.event)

    def __del__(self) -> None:
        # Recorded again, an event stands for the new point; who waits on a device waits for the old.
        self._events.append(self.event)


class PinnedBytes:
    """Host memory that the device reaches by itself (page-locked), as the base of a numpy array; its end buries it."""

    __slots__ = ("__array_interface__", "_address", "_queue", "byte_length")

    def __init__(self, queue: Queue, byte_length: int) -> None:
        """Raises what CuPy raises. With the context current."""
        self._address = 0
        self._queue = queue
        self.byte_length = byte_length
        self._address = queue.cuda.runtime.hostAlloc(byte_length, queue.cuda.runtime.hostAllocDefault)
        queue.own(queue.cuda.runtime.freeHost, self._address)
        self.__array_interface__ = {
            "data": (self._address, False), "shape": (byte_length,), "typestr": "|u1", "version": 3,
        }  # fmt: skip

    def __del__(self) -> None:
        if self._address:
            self._queue.bury(self.byte_length, self._queue.cuda.runtime.freeHost, self._address)
