"""Clocks set side by side, and what becomes of a recording when a driver is slow or knows no times."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halgpu.devices import Device, KernelLayout, Program, registry
from halgpu.devices.profile import SETTLE_AT, Clock, Sample, Timer, on_host_clock
from halgpu.errors import FailedPrecondition, Internal


def fresh(text: str) -> Device:
    """A device of its own, which nobody shares."""
    uri = registry.parse_uri(text)
    device = registry._backend(uri.scheme).open_device(str(uri), uri.index, uri.options)
    device.configure(uri.options)
    return device


class World:
    """A device's clock that is `offset` behind the host's at time 0 and `drift` parts in a million slow."""

    def __init__(self, offset: int, drift: int) -> None:
        self.offset, self.drift = offset, drift

    def device(self, host: int) -> int:
        return host - self.offset - host * self.drift // 10**6


class WorldTimer(Timer):
    """Samples of a world's clock: commands that take some time to be enqueued and done."""

    def __init__(self, world: World, at: int, waits: list[int]) -> None:
        self.world, self.now, self.waits = world, at, waits

    def times(self, event: Any) -> tuple[int, int] | None:
        raise AssertionError

    def close(self) -> None:
        raise AssertionError

    def sample(self) -> Sample:
        before = self.now
        enqueued = before + self.waits[0]
        ended = enqueued + self.waits[1]
        after = self.now = ended + self.waits[2]
        self.waits = self.waits[1:] + self.waits[:1]
        return Sample(before, self.world.device(enqueued), self.world.device(ended), after)


WAITS = st.lists(st.integers(0, 100_000), min_size=3, max_size=7)


@given(
    offset=st.integers(-(10**15), 10**15),
    drift=st.integers(-500, 500),
    begin=st.integers(0, 10**12),
    length=st.integers(10**7, 10**11),
    waits=WAITS,
    part=st.floats(0, 1),
)
def test_a_time_on_the_hosts_clock_is_off_by_the_error_at_most(
    offset: int, drift: int, begin: int, length: int, waits: list[int], part: float
) -> None:
    world = World(offset, drift)
    first = Clock.read(WorldTimer(world, begin, waits))
    last = Clock.read(WorldTimer(world, begin + length, waits))
    true = begin + int(part * length)
    # While samples are taken, the clocks drift apart by parts in a million of at most 8 * 300 us.
    drifted = 2 * 500 * 3 * 10**6 // 10**6
    found = on_host_clock(world.device(true), first, last)
    assert abs(found - true) <= max(first.error, last.error) + drifted + 2


def test_order_is_kept_on_the_hosts_clock() -> None:
    first, last = Clock(1000, 500, 3), Clock(2000, 480, 3)
    times = [on_host_clock(time, first, last) for time in range(900, 2100)]
    assert times == sorted(times)
    assert (times[100], times[1100]) == (1500, 2480)
    assert on_host_clock(7, first, first) == 507


def nothing(device: Device) -> Any:
    layout = KernelLayout("nothing", 0, (), (1, 1, 1))
    [kernel] = device.build(Program("opencl-c", "__kernel void nothing(void) {}\n", (layout,)))
    return kernel


def test_a_long_recording_keeps_few_events() -> None:
    device = fresh("opencl")
    kernel = nothing(device)
    with device.profile() as recording:
        recorder = device.counters.recorder
        assert recorder is not None
        for round in range(4):
            for _ in range(SETTLE_AT):
                kernel.dispatch(1)
            assert len(recorder._pending) <= (round + 1) * SETTLE_AT
            device.wait_idle()
        kernel.dispatch(1)
        for _ in range(SETTLE_AT):
            kernel.dispatch(1)
        assert len(recorder._pending) < 3 * SETTLE_AT
    assert len(recording.commands) == 5 * SETTLE_AT + 1
    assert all(command.timed and command.end >= command.start for command in recording.commands)


def test_the_queue_that_keeps_times_is_there_only_while_somebody_records() -> None:
    device: Any = fresh("opencl")
    plain = device.queue.native
    keeps = device.cl.command_queue_properties.PROFILING_ENABLE
    with device.profile():
        assert device.queue.native is not plain
        assert device.queue.native.properties & keeps
    assert device.queue.native is plain
    assert not plain.properties & keeps


def test_commands_without_times_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    device = fresh("opencl")
    kernel = nothing(device)
    with device.profile() as recording:
        recorder = device.counters.recorder
        assert recorder is not None
        assert recorder._timer is not None
        times, asked = recorder._timer.times, iter(range(10))

        def sometimes(event: Any) -> tuple[int, int] | None:
            if next(asked) == 1:
                raise Internal("the driver does not know")
            return times(event)

        monkeypatch.setattr(recorder._timer, "times", sometimes)
        for _ in range(3):
            kernel.dispatch(1)
    assert [command.timed for command in recording.commands] == [True, False, True]
    assert (recording.commands[1].start, recording.commands[1].end) == (0, 0)
    assert recording.kernels[0].seconds > 0


def test_a_device_whose_clock_cannot_be_read_is_not_profiled_and_stays_usable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device: Any = fresh("opencl")
    plain = device.queue.native

    def fails(timer: Timer) -> Clock:
        raise Internal("no clock")

    with monkeypatch.context() as patch:
        patch.setattr(Clock, "read", fails)
        with pytest.raises(Internal, match="no clock"):
            device.profile().__enter__()
    assert device.queue.native is plain
    assert device.counters.recorder is None
    with device.profile() as recording:
        nothing(device).dispatch(1)
    assert recording.commands[0].timed


def test_a_closed_device_is_not_profiled() -> None:
    device = fresh("null")
    device.close()
    with pytest.raises(FailedPrecondition, match="it was closed"):
        device.profile().__enter__()


def test_a_device_closed_while_it_is_profiled() -> None:
    device = fresh("opencl")
    kernel = nothing(device)
    with device.profile() as recording:
        kernel.dispatch(1)
        device.close()
    assert recording.commands[0].timed
    assert device.counters.recorder is None


def test_host_devices_are_timed_by_the_wall_clock() -> None:
    device = fresh("null")
    layout = KernelLayout("nothing", 0, (), (1, 1, 1))
    [kernel] = device.build(Program("opencl-c", "", (layout,)))
    with device.profile() as recording:
        kernel.dispatch(3)
    [command] = recording.commands
    assert recording.start <= command.enqueued == command.start <= command.end <= (recording.end or 0)
    assert command.details["workgroups"] == (3, 1, 1)
    assert recording.clock_errors == {}
