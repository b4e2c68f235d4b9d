"""Measuring the calls of a function: first without, then with the device's profile, so that neither disturbs."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, Final

from halgpu import api
from halgpu.cli.timings import Row

if TYPE_CHECKING:
    from halgpu.devices.profile import Command

FEWEST: Final = 3
"""Calls that are timed however long they take: fewer say nothing about the spread."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How long to repeat: for ``seconds``, but ``fewest`` times at least, or exactly ``calls`` times."""

    seconds: float = 0.0
    calls: int | None = None
    fewest: int = FEWEST

    def left(self, done: int, started: float) -> bool:
        """Whether another call is due."""
        if self.calls is not None:
            return done < self.calls
        return done < self.fewest or perf_counter() - started < self.seconds


@dataclass(frozen=True, slots=True)
class Profiled:
    """What the device did in ``calls`` calls of a second pass.

    Times are medians over the calls: ``seconds`` of all kernels of a call; in ``rows``, longest first, of each
    kernel and kind of transfer. Counts and bytes are means.
    """

    calls: int
    seconds: float
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """Times of one function, in seconds. A call ends when the device has done its work.

    ``first`` is the first call's; ``times`` are those of the calls after the warm-up; ``cpu`` is processor time
    of all threads a call. ``device_bytes_peak`` is the most that was allocated on the device meanwhile.
    """

    function: str
    first: float
    warm_ups: int
    times: Sequence[float]
    cpu: float
    device_bytes_peak: int
    profiled: Profiled | None

    @property
    def mean(self) -> float:
        """Mean time of a call."""
        return statistics.fmean(self.times)

    @property
    def median(self) -> float:
        """Median time of a call."""
        return statistics.median(self.times)

    @property
    def deviation(self) -> float:
        """Standard deviation of the times; 0 for one call."""
        return statistics.stdev(self.times) if len(self.times) > 1 else 0.0

    def percentile(self, percent: int) -> float:
        """The time that ``percent`` of the calls do not exceed, by linear interpolation."""
        ordered = sorted(self.times)
        rank = (len(ordered) - 1) * percent / 100
        low = int(rank)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)

    @property
    def outside(self) -> float | None:
        """The part of a call's time that is spent outside kernels; None where that is not known."""
        if self.profiled is None:
            return None
        return max(0.0, 1 - self.profiled.seconds / self.median)


def measure(
    module: api.Module, function: api.Function, inputs: Sequence[Any], *,
    warm_up: Budget, timed: Budget, profiled_calls: int,
) -> Measurement:  # fmt: skip
    """Call a function again and again with the same inputs, which lie on the device."""
    device = module.device

    def call() -> float:
        start = perf_counter()
        api.invoke(function, inputs)
        device.wait_idle()
        return perf_counter() - start

    device.wait_idle()
    device.reset_peak()
    first = call()
    warm_ups = len(_repeat(call, warm_up))
    cpu = process_time()
    times = _repeat(call, timed)
    cpu = (process_time() - cpu) / len(times)
    return Measurement(
        function=function.name,
        first=first,
        warm_ups=1 + warm_ups,
        times=times,
        cpu=cpu,
        device_bytes_peak=device.statistics.bytes_peak,
        profiled=_profiled(module, call, profiled_calls) if profiled_calls else None,
    )


def _repeat(call: Callable[[], float], budget: Budget) -> list[float]:
    times: list[float] = []
    started = perf_counter()
    while budget.left(len(times), started):
        times.append(call())
    return times


def _profiled(module: api.Module, call: Callable[[], float], calls: int) -> Profiled:
    ends = [0]
    with module.device.profile() as recording:
        for _ in range(calls):
            call()
            ends.append(len(recording.commands))
    made = [recording.commands[start:end] for start, end in itertools.pairwise(ends)]
    kinds = dict.fromkeys((command.kind, command.name) for command in recording.commands)
    rows = [_row(kind, name, made) for kind, name in kinds]
    in_kernels = [_seconds(command for command in commands if command.kind == "kernel") for commands in made]
    return Profiled(
        calls, statistics.median(in_kernels), tuple(sorted(rows, key=lambda row: row.seconds, reverse=True))
    )


def _row(kind: str, name: str, calls: Sequence[Sequence[Command]]) -> Row:
    groups = [[each for each in commands if (each.kind, each.name) == (kind, name)] for commands in calls]
    flat = list(itertools.chain.from_iterable(groups))
    return Row(
        kind=kind,
        name=name,
        seconds=statistics.median(map(_seconds, groups)),
        longest=max(command.end - command.start for command in flat) / 1e9,
        count=len(flat) / len(calls),
        bytes=sum(command.bytes for command in flat) / len(calls),
    )


def _seconds(commands: Iterable[Command]) -> float:
    return sum(command.end - command.start for command in commands) / 1e9


def peak_rss() -> int | None:
    """The most memory that this process had, in bytes; None where the system does not say."""
    with contextlib.suppress(ImportError):
        import resource

        # getrusage(2): kilobytes on Linux, bytes on macOS.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return None
