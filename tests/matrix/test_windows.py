"""Windows, which are host arrays without a copy, under kernels: they never change, and only a write pays."""

from __future__ import annotations

import gc
import random
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halgpu.devices import Buffer, Device, Kernel, MemoryAccess
from halgpu.devices.imported import import_host
from halgpu.devices.windows import open_window
from halgpu.errors import FailedPrecondition, PermissionDenied

Kernels = dict[str, Kernel]


def upload(device: Device, values: np.ndarray) -> Buffer:
    buffer = device.allocator.allocate(values.nbytes)
    buffer.update(values)
    return buffer


def scale(kernels: Kernels, buffer: Buffer, factor: int = 2, count: int = 16) -> None:
    kernels["scale"].dispatch(count // 4, [count, factor], [(buffer, 0, 4 * count)])


@pytest.mark.plain
@pytest.mark.computes
def test_a_kernel_that_writes_leaves_the_window_alone(device: Device, kernels: Kernels) -> None:
    buffer = upload(device, np.arange(16, dtype=np.int32))
    scale(kernels, buffer)
    window = open_window(buffer).view(np.int32)
    before = device.statistics
    scale(kernels, buffer)
    assert device.statistics.bytes_allocated == before.bytes_allocated + 64
    scale(kernels, buffer)
    assert device.statistics.bytes_allocated == before.bytes_allocated + 64
    # The copy was made on the device.
    assert (device.statistics.bytes_up, device.statistics.bytes_down) == (before.bytes_up, before.bytes_down)
    assert window.tolist() == list(range(0, 32, 2))
    assert np.frombuffer(buffer.read(), np.int32).tolist() == list(range(0, 128, 8))
    del window
    assert device.statistics.bytes_allocated == before.bytes_allocated


@pytest.mark.plain
@pytest.mark.computes
def test_a_kernel_that_reads_costs_nothing(device: Device, kernels: Kernels) -> None:
    a, b = upload(device, np.arange(16, dtype=np.float32)), upload(device, np.ones(16, np.float32))
    c = device.allocator.allocate(64)
    kernels["add"].dispatch(1, [16], [(a, 0, 64), (b, 0, 64), (c, 0, 64)])
    windows = [open_window(buffer) for buffer in (a, b)]
    before = device.statistics
    for _ in range(3):
        kernels["add"].dispatch(1, [16], [(a, 0, 64), (b, 0, 64), (c, 0, 64)])
    device.wait_idle()
    after = device.statistics
    assert (after.bytes_allocated, after.bytes_up, after.bytes_down, after.maps) == (
        before.bytes_allocated, before.bytes_up, before.bytes_down, before.maps,
    )  # fmt: skip
    assert np.frombuffer(c.read(), np.float32).tolist() == list(range(1, 17))
    assert windows[0].view(np.float32).tolist() == list(range(16))


@pytest.mark.computes
def test_the_same_allocation_read_and_written_by_one_kernel(device: Device, kernels: Kernels) -> None:
    buffer = upload(device, np.arange(32, dtype=np.float32))
    window = open_window(buffer).view(np.float32)
    kernels["add"].dispatch(1, [16], [(buffer, 0, 64), (buffer, 0, 64), (buffer, 64, 64)])
    assert window.tolist() == list(range(32))
    assert np.frombuffer(buffer.read(), np.float32).tolist() == [*range(16), *range(0, 32, 2)]


@pytest.mark.computes
def test_mappings_made_before_and_after(device: Device, kernels: Kernels) -> None:
    buffer = upload(device, np.arange(16, dtype=np.int32))
    early = buffer.map(MemoryAccess.READ | MemoryAccess.WRITE)  # whose bytes nobody asked for yet
    window = open_window(buffer).view(np.int32)
    early.contents[:4] = b"\1\0\0\0"
    with pytest.raises(FailedPrecondition, match="writable mapping in use"):
        open_window(buffer)
    scale(kernels, buffer)
    assert window.tolist() == list(range(16))
    assert np.frombuffer(early.contents, np.int32).tolist() == [2, *range(2, 32, 2)]
    early.unmap()


def test_empty_buffers_and_rights(device: Device) -> None:
    assert open_window(device.allocator.allocate(0)).nbytes == 0
    secret = device.allocator.allocate(4, access=MemoryAccess.WRITE)
    with pytest.raises(PermissionDenied):
        open_window(secret)
    secret.release()
    with pytest.raises(FailedPrecondition):
        open_window(secret)


@pytest.mark.computes
def test_windows_keep_their_bytes_when_memory_is_used_again(device: Device, kernels: Kernels) -> None:
    windows = []
    for index in range(50):
        buffer = upload(device, np.full(16, index, np.int32))
        scale(kernels, buffer)
        windows.append(open_window(buffer).view(np.int32))
        if index % 2:
            scale(kernels, buffer)
    assert [window.tolist() for window in windows] == [[2 * index] * 16 for index in range(50)]


@pytest.mark.computes
def test_no_memory_for_the_copy_changes_nothing(
    device: Device, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    from halgpu.devices.buffer import Allocator
    from halgpu.errors import ResourceExhausted

    buffer = upload(device, np.arange(16, dtype=np.int32))
    window = open_window(buffer).view(np.int32)

    def full(self: Allocator, byte_length: int) -> None:
        raise ResourceExhausted("full")

    with monkeypatch.context() as patch:
        patch.setattr(Allocator, "obtain", full)
        with pytest.raises(ResourceExhausted):
            scale(kernels, buffer)
        with pytest.raises(ResourceExhausted):
            buffer.write()
    assert window.tolist() == np.frombuffer(buffer.read(), np.int32).tolist() == list(range(16))
    scale(kernels, buffer)
    assert np.frombuffer(buffer.read(), np.int32).tolist() == list(range(0, 32, 2))
    assert window.tolist() == list(range(16))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    actions=st.lists(
        st.sampled_from(["open", "close", "write", "kernel", "fill", "copy", "read"]), max_size=25
    )
)
def test_any_sequence(device: Device, kernels: Kernels, actions: list[str]) -> None:
    gc.collect()
    before = device.statistics.live_handles
    model = np.arange(16, dtype=np.int32)
    buffer, windows = upload(device, model), []
    for step, action in enumerate(actions):
        if action == "open":
            windows.append((open_window(buffer).view(np.int32), model.copy()))
        elif action == "close" and windows:
            windows.pop(step % len(windows))
        elif action == "write":
            np.frombuffer(buffer.write(), np.int32)[step % 16] = step
            model[step % 16] = step
        elif action == "kernel":
            scale(kernels, buffer, 3)
            model *= 1 if device.capabilities.kind == "null" else 3
        elif action == "fill":
            buffer.fill(0, 32, b"\5\0\0\0")
            model[:8] = 5
        elif action == "copy":
            buffer.copy_from(buffer, 0, 32, 32)
            model[8:] = model[:8]
        elif action == "read":
            assert np.frombuffer(buffer.read(), np.int32).tolist() == model.tolist()
        assert all(window.tolist() == expected.tolist() for window, expected in windows)
    assert np.frombuffer(buffer.read(), np.int32).tolist() == model.tolist()
    buffer.release()
    windows.clear()
    device.wait_idle()
    assert device.statistics.live_handles == before


def test_threads(device: Device, kernels: Kernels) -> None:
    buffer = upload(device, np.ones(16, np.int32))
    stop, wrong = threading.Event(), []

    def look() -> None:
        while not stop.is_set():
            window = open_window(buffer).view(np.int32)
            first = window.tolist()
            if len({*first}) != 1 or window.tolist() != first:
                wrong.append(first)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        scale(kernels, buffer, random.Random(0).choice([3, 5]))
        gc.collect(0)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


# Imported memory --------------------------------------------------------------------------------------


@pytest.mark.computes
def test_host_bytes_in_place_under_kernels(device: Device, kernels: Kernels) -> None:
    if not device.capabilities.unified_memory:
        return
    storage = np.zeros(64 + 64, np.uint8)
    values = storage[-storage.ctypes.data % 64 :][:64].view(np.float32)
    values[:] = np.arange(16)
    before = device.statistics.bytes_allocated
    a = import_host(device, values)
    assert device.statistics.bytes_allocated == before
    c = device.allocator.allocate(64)
    kernels["add"].dispatch(1, [16], [(a, 0, 64), (a, 0, 64), (c, 0, 64)])
    with pytest.raises(PermissionDenied, match="written by a kernel"):
        kernels["add"].dispatch(1, [16], [(c, 0, 64), (c, 0, 64), (a, 0, 64)])
    assert np.frombuffer(c.read(), np.float32).tolist() == list(range(0, 32, 2))
    assert values.tolist() == list(range(16))
    assert open_window(a).view(np.float32).tolist() == list(range(16))
    del values, storage
    assert np.frombuffer(a.read(), np.float32).tolist() == list(range(16))
