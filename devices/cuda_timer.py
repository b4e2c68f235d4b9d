"""When CUDA commands ran. Part of the ``cuda`` backend.

While somebody records, each command lies between two events of its stream. CUDA tells the time between two events
only, in milliseconds as an f32, with a resolution of about half a microsecond (CUDA Runtime API,
``cudaEventElapsedTime``). So times count from an event that is moved along before they get too coarse.
"""

from __future__ import annotations

from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Any, Final

from halgpu.devices.profile import Sample, Timer

if TYPE_CHECKING:
    from halgpu.devices.cuda import CudaDevice

_NOT_READY: Final = 600
_FAR: Final = 500.0
"""Milliseconds: up to here an f32 resolves 31 ns."""


class CudaTimer(Timer):
    """Has the device's queue put events around commands, until :meth:`close`."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self._queue = queue = device.queue
        self._runtime = queue.cuda.runtime
        try:
            with queue.current():
                self._scratch = queue.allocate(4)
                self._anchor = queue._tick()
                self._runtime.streamSynchronize(queue.stream)
        except queue.cuda.errors as error:
            raise device.error("tell the time", error) from error
        self._at = 0
        """Nanoseconds at the anchor."""
        queue.timed = True

    def times(self, event: Any) -> tuple[int, int] | None:
        start, end = event
        queue = self._queue
        try:
            with queue.current():
                if self._runtime.eventQuery(end) == _NOT_READY:
                    return None
                times = self._time(start), self._time(end)
                self._runtime.eventDestroy(start)
                self._move(end, times[1])
                return times
        except queue.cuda.errors as error:
            raise self._device.error("tell when a command ran", error) from error

    def _time(self, event: int) -> int:
        milliseconds: float = self._runtime.eventElapsedTime(self._anchor, event)
        return self._at + round(milliseconds * 1e6)

    def _move(self, event: int, time: int) -> None:
        if time - self._at > _FAR * 1e6:
            self._anchor, self._at, event = event, time, self._anchor
        self._runtime.eventDestroy(event)

    def sample(self) -> Sample:
        queue, runtime = self._queue, self._runtime
        try:
            with queue.current():
                before = now()
                start = queue._tick()
                runtime.memsetAsync(self._scratch, 0, 4, queue.stream)
                end = queue._tick()
                runtime.streamSynchronize(queue.stream)
                after = now()
                sample = Sample(before, self._time(start), self._time(end), after)
                for event in (start, end):
                    runtime.eventDestroy(event)
                return sample
        except queue.cuda.errors as error:
            raise self._device.error("compare its clock with the host's", error) from error

    def close(self) -> None:
        self._queue.timed = False
        self._queue.bury(0, self._runtime.eventDestroy, self._anchor)
        self._queue.bury_memory(4, self._scratch)
