"""Profiling: what a device did and when, and what the host's threads did meanwhile.

    Recording   all that was recorded: spans of host threads, commands of devices, on one clock
    Recorder    one device's part in it: ``device.counters.recorder``, None while nobody records
    Timer       what a backend adds: when a command ran, on the device's clock

While nobody records, a dispatch or a transfer pays for one test of ``counters.recorder``. While somebody does,
the shared code calls ``launch``, ``acquire_host``, … of the recorder instead of those of the kernel or memory,
and a backend that has a timer hands over each command's event: ``Kernel.launch`` returns it, the methods of
``Memory`` give it to :meth:`Recorder.note`.

All times are nanoseconds of :func:`time.perf_counter_ns`.
"""

from __future__ import annotations

import itertools
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns as now
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from halgpu.errors import Error, FailedPrecondition

if TYPE_CHECKING:
    from halgpu.devices.base import Device, Kernel
    from halgpu.devices.memory import Memory

SETTLE_AT: Final = 512
"""Events waiting for their times before those that are done are asked, so that a long recording keeps few."""
SAMPLES: Final = 8
"""Tiny commands that are timed to set a device's clock beside the host's."""


NO_DETAILS: Final[Mapping[str, Any]] = {}


class Span(NamedTuple):
    """What a host thread did from ``start`` to ``end``. Spans of one thread nest."""

    name: str
    category: str
    thread: int
    start: int
    end: int
    details: Mapping[str, Any] = NO_DETAILS


@dataclass(slots=True)
class Command:
    """What a device did: ``kind`` is kernel, fill, copy, upload, download, map or unmap; ``bytes`` it touched.

    The host enqueued it at ``enqueued``; the device ran it from ``start`` to ``end``, which are 0 until the
    recording has ended and where the driver knows no times (``timed`` is false then).
    """

    device: str
    kind: str
    name: str
    bytes: int
    thread: int
    enqueued: int
    details: Mapping[str, Any]
    start: int = 0
    end: int = 0
    timed: bool = False


@dataclass(frozen=True, slots=True)
class Total:
    """Commands of one kind and name: how many, their seconds on the device in all and the longest, their bytes."""

    kind: str
    name: str
    count: int
    seconds: float
    longest: float
    bytes: int


class Recording:
    """All that was recorded from ``start`` to ``end`` (None while it goes on).

    ``spans`` are in order of their ends, ``commands`` in the order in which they were enqueued.
    ``thread_names`` has the names of the threads that spans and commands name by number.
    ``clock_errors`` says by how many nanoseconds a device's times may be off beside the host's, by URI.
    """

    def __init__(self) -> None:
        self.start = now()
        self.end: int | None = None
        self.spans: list[Span] = []
        self.commands: list[Command] = []
        self.clock_errors: dict[str, int] = {}
        self.thread_names: dict[int, str] = {}
        self._threads = itertools.count(1)
        self._this = threading.local()  # the system uses a thread's number again when it has ended

    @contextmanager
    def span(self, name: str, category: str = "user", **details: Any) -> Iterator[None]:
        """Record what this thread does inside the block."""
        start = now()
        try:
            yield
        finally:
            self.add(name, category, start, details)

    def add(self, name: str, category: str, start: int, details: Mapping[str, Any] = NO_DETAILS) -> None:
        """Record a span of this thread that ends now."""
        end = now()
        self.spans.append(Span(name, category, self.this_thread(), start, end, details))

    def this_thread(self) -> int:
        """The calling thread's number; notes its name."""
        try:
            number: int = self._this.number
        except AttributeError:
            number = self._this.number = next(self._threads)
            self.thread_names[number] = threading.current_thread().name
        return number

    @property
    def seconds(self) -> float:
        """How long it was recorded."""
        return ((now() if self.end is None else self.end) - self.start) / 1e9

    @property
    def device_seconds(self) -> float:
        """Time of all commands on their devices."""
        return sum(total.seconds for total in self._totals(self.commands))

    @property
    def kernels(self) -> tuple[Total, ...]:
        """The kernels that ran, by their time in all, longest first."""
        return self._totals(command for command in self.commands if command.kind == "kernel")

    @property
    def transfers(self) -> tuple[Total, ...]:
        """Everything else that devices did, by kind, longest first."""
        return self._totals(command for command in self.commands if command.kind != "kernel")

    @staticmethod
    def _totals(commands: Iterable[Command]) -> tuple[Total, ...]:
        groups: dict[tuple[str, str], list[Command]] = {}
        for command in commands:
            groups.setdefault((command.kind, command.name), []).append(command)
        totals = [
            Total(
                kind, name, len(group),
                seconds=sum(command.end - command.start for command in group) / 1e9,
                longest=max(command.end - command.start for command in group) / 1e9,
                bytes=sum(command.bytes for command in group),
            )
            for (kind, name), group in groups.items()
        ]  # fmt: skip
        return tuple(sorted(totals, key=lambda total: -total.seconds))


# -- the device's clock --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """A tiny command beside the clocks: the device enqueued and ended it between two looks at the host's clock."""

    before: int
    enqueued: int
    ended: int
    after: int


class Timer(ABC):
    """Tells when commands ran, on the device's clock, in nanoseconds. Made by ``Device.timer`` when a recording
    begins, with nothing left to do on the queue; called under the device's lock."""

    @abstractmethod
    def times(self, event: Any) -> tuple[int, int] | None:
        """Start and end of a command; None while it has not ended. An Error where the driver does not know."""

    @abstractmethod
    def sample(self) -> Sample:
        """Run a tiny command and wait for it."""

    @abstractmethod
    def close(self) -> None:
        """Stop timing. Nothing is left to do on the queue."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Where the device's clock stood beside the host's: host = device + ``offset`` at ``device``, give or take
    ``error``."""

    device: int
    offset: int
    error: int

    @classmethod
    def read(cls, timer: Timer) -> Clock:
        """Compare the clocks by what must come first: each sample bounds the offset from both sides."""
        samples = [timer.sample() for _ in range(SAMPLES)]
        lowest = max(sample.before - sample.enqueued for sample in samples)
        highest = min(sample.after - sample.ended for sample in samples)
        return cls(samples[-1].ended, (lowest + highest) // 2, abs(highest - lowest) // 2 + 1)


def on_host_clock(time: int, first: Clock, last: Clock) -> int:
    """A time of the device's clock on the host's, which may run at another rate."""
    passed = last.device - first.device
    drift = (last.offset - first.offset) * (time - first.device) // passed if passed > 0 else 0
    return time + first.offset + drift


# -- recording -----------------------------------------------------------------------------------------


class Recorder:
    """One device's part in a recording: does what kernels and memory do, and notes it.

    All methods but :meth:`build` are called under the device's lock.
    """

    def __init__(self, device: Device, recording: Recording) -> None:
        self.recording = recording
        self._uri = device.uri
        self._timer = device.timer()
        self._clock = self._first_clock()
        self._begun = 0
        self._pending: deque[tuple[Command, Any]] = deque()
        self._timed: list[Command] = []

    def _first_clock(self) -> Clock | None:
        if self._timer is None:
            return None
        try:
            return Clock.read(self._timer)
        except BaseException:
            self._timer.close()
            raise

    def launch(
        self, kernel: Kernel, workgroups: tuple[int, int, int], constants: tuple[int, ...],
        memories: list[Memory], offsets: list[int], lengths: list[int],
    ) -> None:  # fmt: skip
        """``kernel.launch``, recorded."""
        layout = kernel.layout
        start = now()
        event = kernel.launch(workgroups, constants, memories, offsets, lengths)
        end = now()
        details = {"workgroups": workgroups, "workgroup_size": layout.workgroup_size}
        command = self._command("kernel", layout.name, sum(lengths), start, details)
        if event is not None:
            self._wait_for(command, event)
        else:
            command.start, command.end, command.timed = start, end, True
        self.recording.add(f"launch {layout.name}", "device", start)

    def acquire_host(self, memory: Memory, *, read: bool, write: bool) -> tuple[memoryview, int]:
        """``memory.acquire_host``, recorded."""
        self._begun = start = now()
        view, moved = memory.acquire_host(read=read, write=write)
        self.recording.add("download" if moved else "map", "device", start, {"bytes": moved or len(view)})
        return view, moved

    def release_host(self, memory: Memory, *, dirty: bool) -> int:
        """``memory.release_host``, recorded."""
        self._begun = start = now()
        moved = memory.release_host(dirty=dirty)
        details = {"bytes": moved or memory.byte_length}
        self.recording.add("upload" if moved else "unmap", "device", start, details)
        return moved

    def fill(self, memory: Memory, offset: int, length: int, pattern: bytes) -> None:
        """``memory.fill``, recorded."""
        self._begun = start = now()
        memory.fill(offset, length, pattern)
        self.recording.add("fill", "device", start, {"bytes": length})

    def copy_from(self, memory: Memory, source: Memory, source_offset: int, offset: int, length: int) -> None:
        """``memory.copy_from``, recorded."""
        self._begun = start = now()
        memory.copy_from(source, source_offset, offset, length)
        self.recording.add("copy", "device", start, {"bytes": length})

    def note(self, kind: str, byte_length: int, event: Any) -> None:
        """Record a command of the device by its event. For what a backend's memory enqueues."""
        self._wait_for(self._command(kind, kind, byte_length, self._begun, NO_DETAILS), event)

    def _command(
        self, kind: str, name: str, byte_length: int, enqueued: int, details: Mapping[str, Any]
    ) -> Command:
        thread = self.recording.this_thread()
        command = Command(self._uri, kind, name, byte_length, thread, enqueued, details)
        self.recording.commands.append(command)
        return command

    def _wait_for(self, command: Command, event: Any) -> None:
        self._pending.append((command, event))
        if len(self._pending) >= SETTLE_AT and not len(self._pending) % SETTLE_AT:
            self._settle()

    def _settle(self) -> None:
        """Ask for the times of commands that are done; the queue is in order."""
        assert self._timer is not None
        while self._pending:
            command, event = self._pending[0]
            try:
                times = self._timer.times(event)
            except Error:
                self._pending.popleft()
                continue
            if times is None:
                return
            self._pending.popleft()
            command.start, command.end = times
            self._timed.append(command)

    def finish(self) -> None:
        """Ask for all times and put them on the host's clock. Nothing is left to do on the queue."""
        timer, first = self._timer, self._clock
        if timer is None or first is None:
            return
        self._settle()
        last = Clock.read(timer)
        timer.close()
        self.recording.clock_errors[self._uri] = max(first.error, last.error)
        for command in self._timed:
            command.start = on_host_clock(command.start, first, last)
            command.end = on_host_clock(command.end, first, last)
            command.timed = True


class Profiling:
    """``with device.profile() as recording:``; the recording is complete when the block has ended."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._recording: Recording | None = None

    def __enter__(self) -> Recording:
        if self._recording is not None:
            raise FailedPrecondition("a profile is for one with block; call profile() again")
        self._recording = Recording()
        attach(self._device, self._recording)
        self._recording.start = now()
        return self._recording

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._recording is not None
        detach(self._device, self._recording)


def attach(device: Device, recording: Recording) -> None:
    """Begin to record what a device does. FailedPrecondition while another recording does; waits for all work."""
    device.require_usable()
    with device.lock:
        if device.counters.recorder is not None:
            raise FailedPrecondition(f"device {device.uri} is being profiled or traced already")
        device.finish()
        device.counters.recorder = Recorder(device, recording)
        device.counters.known.clear()  # whose dispatches would go by the recorder


def detach(device: Device, recording: Recording) -> None:
    """Wait for all work and end the recording of a device; sets the recording's end. Nothing for another one's."""
    with device.lock:
        recorder = device.counters.recorder
        if recorder is None or recorder.recording is not recording:
            return
        try:
            start = now()
            device.finish()
            recording.add("wait", "device", start)
            recording.end = now()
            recorder.finish()
        finally:
            device.counters.recorder = None


# -- all devices ---------------------------------------------------------------------------------------

everywhere: Recording | None = None
"""What records all devices, those included that are opened while it does."""


def opened(device: Device) -> None:
    """Record a device that was just opened, if all are recorded."""
    if everywhere is not None:
        attach(device, everywhere)
