"""The state machine of residency on memory that has to be copied: each step's new state and bytes moved."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from halgpu.devices import Buffer, open_device
from halgpu.devices.residency import Residency, State

FRESH, HOST, DEVICE, BOTH = State.FRESH, State.HOST, State.DEVICE, State.BOTH
SIZE = 1000

TO: dict[State, Callable[[Residency], object]] = {
    FRESH: lambda root: None,
    HOST: lambda root: root.host(write=True),
    DEVICE: lambda root: root.device_writes(),
    BOTH: lambda root: (root.device_writes(), root.host()),
}


@pytest.mark.parametrize(
    ("before", "step", "after", "up", "down"),
    [
        (FRESH, "host reads", BOTH, 0, 0),
        (FRESH, "host writes", HOST, 0, 0),
        (FRESH, "host overwrites", HOST, 0, 0),
        (FRESH, "device reads", DEVICE, 0, 0),
        (FRESH, "device writes", DEVICE, 0, 0),
        (HOST, "host reads", HOST, 0, 0),
        (HOST, "host writes", HOST, 0, 0),
        (HOST, "host overwrites", HOST, 0, 0),
        (HOST, "device reads", BOTH, SIZE, 0),
        (HOST, "device writes", DEVICE, SIZE, 0),
        (HOST, "device overwrites", DEVICE, 0, 0),
        (DEVICE, "host reads", BOTH, 0, SIZE),
        (DEVICE, "host writes", HOST, 0, SIZE),
        (DEVICE, "host overwrites", HOST, 0, 0),
        (DEVICE, "device reads", DEVICE, 0, 0),
        (DEVICE, "device writes", DEVICE, 0, 0),
        (BOTH, "host reads", BOTH, 0, 0),
        (BOTH, "host writes", HOST, 0, 0),
        (BOTH, "host overwrites", HOST, 0, 0),
        (BOTH, "device reads", BOTH, 0, 0),
        (BOTH, "device writes", DEVICE, 0, 0),
    ],
)
def test_steps(before: State, step: str, after: State, up: int, down: int) -> None:
    device = open_device("opencl?unified=0")
    with device.allocator.allocate(SIZE) as buffer:
        root = buffer.root
        assert root is not None
        TO[before](root)
        assert root.state is before
        counted = device.statistics
        {
            "host reads": lambda: root.host(),
            "host writes": lambda: root.host(write=True),
            "host overwrites": lambda: root.host(write=True, discard=True),
            "device reads": lambda: root.device_reads(),
            "device writes": lambda: root.device_writes(),
            "device overwrites": lambda: root.device_writes(discard=True),
        }[step]()
        assert root.state is after
        now = device.statistics
        assert (now.bytes_up - counted.bytes_up, now.bytes_down - counted.bytes_down) == (up, down)


@pytest.mark.parametrize("uri", ["opencl", "opencl?unified=0", "host"])
def test_fills_and_copies_stay_where_the_bytes_are(uri: str) -> None:
    device = open_device(uri)
    buffers: list[Buffer] = [device.allocator.allocate(SIZE) for _ in range(2)]
    before = device.statistics
    buffers[0].fill(0, None, b"\1\2")
    buffers[1].copy_from(buffers[0], 0, 0, SIZE)
    assert {buffer.state for buffer in buffers} == {DEVICE}
    for buffer in buffers:
        buffer.write()
    buffers[0].fill(0, None, b"\3\4")
    buffers[1].copy_from(buffers[0], 0, 0, SIZE)
    assert {buffer.state for buffer in buffers} == {HOST}
    after = device.statistics
    moved = 0 if device.capabilities.unified_memory else 2 * SIZE
    assert (after.bytes_up - before.bytes_up, after.bytes_down - before.bytes_down) == (0, moved)
    assert bytes(buffers[1].read()) == b"\3\4" * (SIZE // 2)


def test_large_mirrors_are_pinned_and_small_ones_are_not() -> None:
    device = open_device("opencl?unified=0")
    for size in (1000, 1_000_000):
        with device.allocator.allocate(size) as buffer:
            buffer.fill(0, None, b"\7")
            assert bytes(buffer.read()) == b"\7" * size
            buffer.write()[:] = bytes(size)
            buffer.fill(0, 8, b"\1")
            buffer.root.device_reads()  # type: ignore[union-attr]
            assert buffer.read()[7:9] == b"\1\0"


def test_host_writes_wait_for_the_upload_of_older_ones() -> None:
    size = 4 << 20
    device = open_device("opencl?unified=0")
    source, target = device.allocator.allocate(size), device.allocator.allocate(size)
    for value in range(5):
        source.write()[:] = bytes([value]) * size
        target.fill(0, None, b"\xee")
        target.copy_from(source, 0, 0, size)
        source.write()[:] = b"\xff" * size
        assert bytes(target.read()) == bytes([value]) * size
