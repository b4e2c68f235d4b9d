"""``halgpu.trace``: what programs and devices do, as a timeline for Perfetto and chrome://tracing.

>>> with halgpu.trace("trace.json"):
...     module.main(x)

The file is JSON in the Trace Event Format: complete events ("X") with microseconds, a track for each host thread
and each device's queue, and arrows ("s", "f") from the launch of a kernel to its run.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Final, TextIO

from halgpu.devices import base, profile
from halgpu.devices.profile import Command, Recording, Span
from halgpu.errors import FailedPrecondition
from halgpu.vm import context

HOST: Final = 1
"""Process of the host's threads; devices come after it. Perfetto shows processes as groups of tracks."""
FIRST_QUEUE: Final = 1000
"""Thread numbers of the devices' queues start here, since some viewers want those unique in the whole file."""

Event = dict[str, Any]
_lock = threading.Lock()


class trace:  # noqa: N801  # used as a function
    """Record all programs and devices of this process inside a ``with`` block, then write it to ``file``.

    ``file`` is a path, opened at once, or a text file, which is not closed. The block gets the
    :class:`~halgpu.devices.profile.Recording`, whose ``span("name")`` adds spans of one's own; it is complete
    when the block has ended, which waits for the devices. What the block raises is written too.

    Raises FailedPrecondition inside another trace and while a device is profiled. Programs run slower while
    they are traced: each call that they make takes a microsecond or two more. All is kept in memory until the end.
    """

    def __init__(self, file: str | os.PathLike[str] | TextIO) -> None:
        self._file = file
        self._cleanup = ExitStack()

    def __enter__(self) -> Recording:
        with ExitStack() as stack:
            if not _lock.acquire(blocking=False):
                raise FailedPrecondition("a trace is being recorded already; it has all programs and devices")
            stack.callback(_lock.release)
            file = self._file
            if isinstance(file, str | os.PathLike):
                file = stack.enter_context(open(file, "w", encoding="utf-8"))
            recording = Recording()
            stack.callback(_write, file, recording)
            stack.callback(_stop, recording)
            _start(recording)
            self._cleanup = stack.pop_all()
        return recording

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cleanup.close()


def _start(recording: Recording) -> None:
    profile.everywhere = recording
    for device in base.opened_devices():
        profile.attach(device, recording)
    recording.start = perf_counter_ns()
    context.instrument(_recorded_by(recording))


def _stop(recording: Recording) -> None:
    context.instrument(None)
    profile.everywhere = None
    with ExitStack() as stack:  # all devices, also when one of them fails
        for device in base.opened_devices():
            stack.callback(profile.detach, device, recording)
    recording.end = perf_counter_ns()


def _recorded_by(recording: Recording) -> context.Wrapper:
    def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        module = name.partition(".")[0]

        def recorded(*arguments: Any) -> Any:
            start = perf_counter_ns()
            try:
                return function(*arguments)
            finally:
                recording.add(name, module, start)

        return recorded

    return wrap


# The file ----------------------------------------------------------------------------------------------


def _write(file: TextIO, recording: Recording) -> None:
    content = {
        "traceEvents": list(events(recording)),
        "displayTimeUnit": "ms",
        "otherData": {
            "command": " ".join(sys.argv),
            "clock_error_us": {uri: error / 1000 for uri, error in recording.clock_errors.items()},
        },
    }
    json.dump(content, file, separators=(",", ":"), default=str)
    file.write("\n")


def events(recording: Recording) -> Iterator[Event]:
    """The events of a trace file: names of the tracks first, then spans, then devices' commands."""
    devices = list(dict.fromkeys(command.device for command in recording.commands))
    yield from _track(HOST, "host")
    for thread, name in recording.thread_names.items():
        yield from _track(HOST, name, thread)
    for process, uri in enumerate(devices, HOST + 1):
        yield from _track(process, uri)
        yield from _track(process, "queue", FIRST_QUEUE + process)
    # Of slices that start together, viewers take the first in the file for the outer one.
    for span in sorted(recording.spans, key=lambda span: (span.start, -span.end)):
        yield _span(span, recording.start)
    for number, command in enumerate(recording.commands, 1):
        if command.timed:
            process = HOST + 1 + devices.index(command.device)
            yield _command(command, recording.start, process)
            if command.kind == "kernel":
                yield from _arrow(number, command, recording.start, process)


def _track(process: int, name: str, thread: int | None = None) -> Iterator[Event]:
    what, number = ("process", process) if thread is None else ("thread", thread)
    place = {"pid": process, "tid": 0 if thread is None else thread, "ph": "M"}
    yield {**place, "name": f"{what}_name", "args": {"name": name}}
    yield {**place, "name": f"{what}_sort_index", "args": {"sort_index": number}}


def _span(span: Span, origin: int) -> Event:
    place = {"pid": HOST, "tid": span.thread, "ph": "X", "ts": _us(span.start - origin)}
    made = {**place, "dur": _us(span.end - span.start), "name": span.name, "cat": span.category}
    return {**made, "args": dict(span.details)} if span.details else made


def _command(command: Command, origin: int, process: int) -> Event:
    details = {
        **command.details,
        "bytes": command.bytes,
        "waited_us": _us(max(command.start - command.enqueued, 0)),
    }
    return {
        "pid": process, "tid": FIRST_QUEUE + process, "ph": "X", "ts": _us(command.start - origin),
        "dur": _us(command.end - command.start), "name": command.name, "cat": command.kind, "args": details,
    }  # fmt: skip


def _arrow(number: int, command: Command, origin: int, process: int) -> Iterator[Event]:
    arrow = {"id": number, "name": "launch", "cat": "launch"}
    yield {**arrow, "ph": "s", "pid": HOST, "tid": command.thread, "ts": _us(command.enqueued - origin)}
    queue = FIRST_QUEUE + process
    yield {**arrow, "ph": "f", "bp": "e", "pid": process, "tid": queue, "ts": _us(command.start - origin)}


def _us(nanoseconds: int) -> float:
    # Perfetto takes times the thousand and cuts off what is left (trace_processor/importers/json, CoerceToTs).
    # A nanosecond less at an end would leave a slice in one that it does not fit.
    time = nanoseconds / 1000
    return time if int(time * 1000) == nanoseconds else math.nextafter(time, math.inf)
