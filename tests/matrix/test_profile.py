"""What a profile says is true: beside the test's own clock, numpy and the device's counters."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from halgpu.devices import Device, Kernel
from halgpu.devices.profile import Recording
from halgpu.devices.windows import open_window
from halgpu.errors import FailedPrecondition, InvalidArgument

BYTES = 1 << 20


def slack(recording: Recording, device: Device) -> int:
    return recording.clock_errors.get(device.uri, 0)


def run_copies(device: Device, kernel: Kernel, times: int = 1) -> bytes:
    """Copy bytes one by one, which takes a while."""
    data = np.random.default_rng(1).integers(0, 256, BYTES, np.uint8).tobytes()
    with device.allocator.allocate(BYTES) as source, device.allocator.allocate(BYTES) as target:
        source.write(discard=True)[:] = data
        for _ in range(times):
            kernel.dispatch((1, 1, 1), (BYTES,), [(source, 0, BYTES), (target, 0, BYTES)])
        assert bytes(target.read()) == data
    return data


@pytest.mark.computes
def test_a_kernel_runs_when_and_as_long_as_the_wall_clock_says(
    device: Device, kernels: dict[str, Kernel]
) -> None:
    run_copies(device, kernels["copy_bytes"])  # PoCL compiles on first use
    with device.profile() as recording:
        device.wait_idle()
        before = time.perf_counter_ns()
        run_copies(device, kernels["copy_bytes"])
        after = time.perf_counter_ns()
    [command] = [command for command in recording.commands if command.kind == "kernel"]
    assert command.timed
    assert (command.name, command.device, command.bytes) == ("copy_bytes", device.uri, 2 * BYTES)
    assert command.details == {"workgroups": (1, 1, 1), "workgroup_size": (1, 1, 1)}
    assert before <= command.enqueued
    assert (
        before - slack(recording, device) <= command.start < command.end <= after + slack(recording, device)
    )
    if device.capabilities.kind == "cpu":  # a loop over bytes takes some time whatever the machine
        assert command.end - command.start > BYTES / 100


@pytest.mark.computes
def test_commands_of_a_queue_do_not_overlap_and_fit_the_recording(
    device: Device, kernels: dict[str, Kernel]
) -> None:
    with device.profile() as recording:
        run_copies(device, kernels["copy_bytes"], times=5)
        for _ in range(20):
            kernels["nothing"].dispatch(1)
    assert recording.end is not None
    commands = sorted(recording.commands, key=lambda command: command.start)
    assert [c for c in commands if c.kind == "kernel"] == [
        c for c in recording.commands if c.kind == "kernel"
    ]
    assert all(first.end <= second.start for first, second in itertools.pairwise(commands))
    assert commands[0].start >= recording.start - slack(recording, device)
    assert commands[-1].end <= recording.end + slack(recording, device)
    assert sum(c.end - c.start for c in commands) <= recording.end - recording.start
    assert recording.device_seconds == pytest.approx(sum(c.end - c.start for c in commands) / 1e9)
    counted = {total.name: total.count for total in recording.kernels}
    assert counted == {"copy_bytes": 5, "nothing": 20}
    assert recording.kernels[0].seconds >= recording.kernels[1].seconds


@pytest.mark.plain
@pytest.mark.computes
def test_what_moves_is_what_the_counters_say(device: Device, kernels: dict[str, Kernel]) -> None:
    before = device.statistics
    with device.profile() as recording:
        run_copies(device, kernels["copy_bytes"])
    after = device.statistics
    moved = {total.kind: total.bytes for total in recording.transfers}
    assert moved.get("upload", 0) == after.bytes_up - before.bytes_up
    assert moved.get("download", 0) == after.bytes_down - before.bytes_down
    seen = [s for s in recording.spans if s.name in ("map", "download")]
    assert len(seen) == after.maps - before.maps
    if not device.capabilities.unified_memory:
        assert (moved["upload"], moved["download"]) == (BYTES, BYTES)


@pytest.mark.plain
def test_fills_and_copies_are_recorded(device: Device, kernels: dict[str, Kernel]) -> None:
    with device.allocator.allocate(4096) as a, device.allocator.allocate(4096) as b:
        with device.profile() as recording:
            a.fill(0, 4096, b"\x01\x02\x03\x04")
            b.copy_from(a, 0, 0, 4096)
        assert bytes(b.read()) == b"\x01\x02\x03\x04" * 1024
    spans = [(span.name, span.details["bytes"]) for span in recording.spans if span.name in ("fill", "copy")]
    assert spans == [("fill", 4096), ("copy", 4096)]
    if device.capabilities.kind == "cpu":
        assert [(c.kind, c.bytes, c.timed) for c in recording.commands] == [
            ("fill", 4096, True), ("copy", 4096, True),
        ]  # fmt: skip


@pytest.mark.plain
def test_a_copy_for_an_open_window_is_recorded(device: Device, kernels: dict[str, Kernel]) -> None:
    with device.allocator.allocate(BYTES) as buffer:
        buffer.fill(0, BYTES, b"\x07")
        window = open_window(buffer)
        with device.profile() as recording:
            kernels["scale"].dispatch(1, (4, 3), [(buffer, 0, BYTES)])
        assert (window == 7).all()
        del window
    copies = [span.details["bytes"] for span in recording.spans if span.name == "copy"]
    assert copies == [BYTES]


@pytest.mark.computes
def test_spans_of_a_thread_nest(device: Device, kernels: dict[str, Kernel]) -> None:
    with device.profile() as recording:
        with recording.span("outer", answer=42):
            run_copies(device, kernels["copy_bytes"])
        device.wait_idle()
    [outer] = [span for span in recording.spans if span.name == "outer"]
    assert outer.details == {"answer": 42}
    [launch] = [span for span in recording.spans if span.name == "launch copy_bytes"]
    assert outer.start <= launch.start <= launch.end <= outer.end
    assert {span.thread for span in recording.spans} == set(recording.thread_names)
    for one, other in itertools.combinations(recording.spans, 2):
        apart = one.end <= other.start or other.end <= one.start
        inside = one.start <= other.start <= other.end <= one.end
        around = other.start <= one.start <= one.end <= other.end
        assert apart or inside or around


def test_nothing_is_recorded_afterwards(device: Device, kernels: dict[str, Kernel]) -> None:
    with device.profile() as recording:
        kernels["nothing"].dispatch(1)
    found = len(recording.commands), len(recording.spans)
    kernels["nothing"].dispatch(1)
    device.wait_idle()
    assert (len(recording.commands), len(recording.spans)) == found
    assert device.counters.recorder is None


def test_a_program_that_is_built_is_recorded(device: Device, kernels: dict[str, Kernel]) -> None:
    from halgpu.devices import KernelLayout, Program

    language = min(device.capabilities.languages, default="any")  # null takes them all
    layout = KernelLayout("built_here", 0, (), (1, 1, 1))
    source = "__kernel void built_here(void) {}\n"
    if language == "cuda-c":
        source = 'extern "C" __global__ void built_here() {}\n'
    with device.profile() as recording:
        device.build(Program(language, source, (layout,), callables=(lambda *_: None,)))
    assert [span.name for span in recording.spans if span.name.startswith("build")] == ["build built_here"]


def test_one_profile_at_a_time(device: Device) -> None:
    with device.profile() as recording:
        with pytest.raises(FailedPrecondition, match="profiled or traced already"):
            device.profile().__enter__()
        assert device.counters.recorder is not None
        assert device.counters.recorder.recording is recording
    again = device.profile()
    with again:
        pass
    with pytest.raises(FailedPrecondition, match="call profile"):
        again.__enter__()


def test_an_error_ends_a_profile(device: Device, kernels: dict[str, Kernel]) -> None:
    def fails() -> None:
        with device.profile() as found:
            recordings.append(found)
            kernels["nothing"].dispatch(1)
            kernels["nothing"].dispatch(1, (1, 2, 3))

    recordings: list[Recording] = []
    with pytest.raises(InvalidArgument):
        fails()
    [recording] = recordings
    assert device.counters.recorder is None
    assert [command.timed for command in recording.commands] == [True]
    with device.profile() as recording:
        kernels["nothing"].dispatch(1)
    assert len(recording.commands) == 1


def test_the_peak_can_start_over(device: Device) -> None:
    device.allocator.allocate(BYTES).release()
    assert device.statistics.bytes_peak >= BYTES
    device.reset_peak()
    assert device.statistics.bytes_peak == device.statistics.bytes_allocated < BYTES
    with device.allocator.allocate(100):
        assert device.statistics.bytes_peak == device.statistics.bytes_allocated
