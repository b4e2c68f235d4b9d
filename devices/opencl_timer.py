"""When OpenCL commands ran. Part of the ``opencl`` backend.

A queue that can say so is slower with some drivers, so that one takes the place of the device's own only while
somebody records. OpenCL 1.2 5.12: times are nanoseconds of the device's clock. clGetDeviceAndHostTimer, which
would set it beside the host's, came with OpenCL 2.1, and PyOpenCL does not have it; hence :meth:`sample`.
"""

from __future__ import annotations

from time import perf_counter_ns as now
from typing import TYPE_CHECKING, Any

from halgpu.devices.profile import Sample, Timer

if TYPE_CHECKING:
    from halgpu.devices.opencl import OpenCLDevice

_WORD = bytes(4)


class OpenCLTimer(Timer):
    """Replaces the device's queue, which is idle, by one that keeps times, until :meth:`close`."""

    def __init__(self, device: OpenCLDevice) -> None:
        cl = device.cl
        self._device = device
        self._plain = device.queue.native
        self._info = cl.profiling_info
        self._complete = cl.command_execution_status.COMPLETE
        try:
            self._scratch = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, len(_WORD))
            device.queue.native = cl.CommandQueue(
                device.context, device.native, cl.command_queue_properties.PROFILING_ENABLE
            )
        except cl.Error as error:
            raise device.error("make a queue that keeps times", error) from error

    def times(self, event: Any) -> tuple[int, int] | None:
        try:
            if event.command_execution_status > self._complete:
                return None
            return self._time(event, self._info.START), self._time(event, self._info.END)
        except self._device.cl.Error as error:
            raise self._device.error("tell when a command ran", error) from error

    def sample(self) -> Sample:
        device = self._device
        try:
            before = now()
            event = device.cl.enqueue_fill_buffer(device.queue.native, self._scratch, _WORD, 0, len(_WORD))
            event.wait()
            after = now()
            return Sample(
                before, self._time(event, self._info.QUEUED), self._time(event, self._info.END), after
            )
        except device.cl.Error as error:
            raise device.error("compare its clock with the host's", error) from error

    def _time(self, event: Any, what: Any) -> int:
        time: int = event.get_profiling_info(what)
        return time

    def close(self) -> None:
        self._device.queue.native = self._plain
