"""Kernels that are host functions, on every device: they see and change the newest bytes of its buffers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from halgpu.devices import Buffer, Device, Kernel, KernelLayout, MemoryAccess, open_device
from halgpu.devices.host_kernels import HostFunctionKernel
from halgpu.devices.residency import State
from halgpu.devices.windows import open_window
from halgpu.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    OutOfRange,
    PermissionDenied,
)

Kernels = dict[str, Kernel]


def filled(device: Device, array: np.ndarray[Any, Any], **flags: Any) -> Buffer:
    buffer = device.allocator.allocate(array.nbytes, **flags)
    if flags:
        # What may not be written has to come from the host's side of the allocation.
        start = buffer.offset
        buffer.root.host(write=True)[start : start + array.nbytes] = array.tobytes()
    else:
        buffer.update(array.tobytes())
    return buffer


def i32(buffer: Buffer) -> list[int]:
    return np.frombuffer(buffer.read(), np.int32).tolist()


def double(workgroups: tuple[int, ...], constants: tuple[int, ...], views: list[memoryview]) -> None:
    data = np.frombuffer(views[0], np.int32)
    data *= 2


def copy(workgroups: tuple[int, ...], constants: tuple[int, ...], views: list[memoryview]) -> None:
    views[1][:] = views[0]


def kernel_of(
    device: Device, function: Callable[..., None], *bindings: str, **more: Any
) -> HostFunctionKernel:
    constants = more.pop("constants", 0)
    return HostFunctionKernel(device, KernelLayout("k", constants, bindings), function, **more)


@pytest.mark.computes
def test_host_and_device_kernels_take_turns_on_the_same_bytes(device: Device, kernels: Kernels) -> None:
    data = filled(device, np.arange(64, dtype=np.int32))
    host = kernel_of(device, double, "readwrite")
    before = device.statistics.dispatches
    for factor in (3, -1, 5):
        kernels["scale"].dispatch((16, 1, 1), (64, factor), [(data, 0, 256)])
        host.dispatch(1, (), [data])
    assert i32(data) == (np.arange(64) * -15 * 8).tolist()
    assert device.statistics.dispatches == before + 6


def test_only_the_bound_range_is_seen_and_changed(device: Device) -> None:
    data = filled(device, np.arange(16, dtype=np.int32))
    part = data.subspan(16)
    kernel_of(device, double, "readwrite").dispatch(1, (), [(part, 4, 8)])
    assert i32(data) == [0, 1, 2, 3, 4, 10, 12, *range(7, 16)]


def test_the_function_gets_grid_constants_and_views(device: Device) -> None:
    calls: list[Any] = []

    def note(workgroups: Any, constants: Any, views: list[memoryview]) -> None:
        calls.append((workgroups, constants, [(view.readonly, view.format, view.nbytes) for view in views]))

    buffer = device.allocator.allocate(12)
    kernel = kernel_of(device, note, "read", "write", "readwrite", constants=2)
    kernel.dispatch((2, 3), (7, -1), [buffer, (buffer, 4, 8), (buffer, 12, 0)])
    assert calls == [((2, 3, 1), (7, 0xFFFFFFFF), [(True, "B", 12), (False, "B", 8), (False, "B", 0)])]
    kernel.dispatch((2, 0, 1), (7, 1), [buffer, buffer, buffer])
    assert len(calls) == 1


def test_typed_constants_arrive_as_their_types(device: Device) -> None:
    calls: list[Any] = []
    layout = KernelLayout("k", ("f32", "i64"), ())
    HostFunctionKernel(device, layout, lambda *given: calls.append(given[1])).dispatch(1, (1.5, -(2**40)))
    assert [list(values) for values in calls] == [[1.5, -(2**40)]]


def test_bindings_may_overlap_or_be_the_same(device: Device) -> None:
    data = filled(device, np.arange(4, dtype=np.int32))

    def shift(workgroups: Any, constants: Any, views: list[memoryview]) -> None:
        whole, part = (np.frombuffer(view, np.int32) for view in views)
        part += 10
        assert whole.tolist() == [0, 1, 12, 13]

    kernel_of(device, shift, "read", "readwrite").dispatch(1, (), [data, (data, 8, 8)])
    assert i32(data) == [0, 1, 12, 13]


def test_reading_leaves_the_devices_bytes_valid_and_writing_does_not(device: Device) -> None:
    source = filled(device, np.arange(4, dtype=np.int32))
    target = device.allocator.allocate(16)
    source.fill(0, 16, b"\1\0\0\0")
    kernel_of(device, copy, "read", "write").dispatch(1, (), [source, target])
    assert source.state in (State.BOTH, State.HOST)
    assert target.state is State.HOST
    target.fill(0, 4, b"\7\0\0\0")  # on the device or the host, whichever has the bytes
    assert i32(target) == [7, 1, 1, 1]


def test_a_write_leaves_open_windows_their_bytes(device: Device) -> None:
    data = filled(device, np.arange(4, dtype=np.int32))
    window = open_window(data)
    kernel_of(device, double, "readwrite").dispatch(1, (), [data])
    assert i32(data) == [0, 2, 4, 6]
    assert window.view(np.int32).tolist() == [0, 1, 2, 3]


def test_all_bindings_of_a_buffer_that_moves_see_where_it_moved_to(device: Device) -> None:
    data = filled(device, np.arange(4, dtype=np.int32))
    window = open_window(data)

    def write_then_read(workgroups: Any, constants: Any, views: list[memoryview]) -> None:
        views[1][:4] = b"\x63\0\0\0"
        assert bytes(views[0][8:12]) == b"\x63\0\0\0"

    kernel_of(device, write_then_read, "read", "readwrite").dispatch(1, (), [data, (data, 8, 8)])
    assert i32(data) == [0, 1, 99, 3]
    assert window.view(np.int32).tolist() == [0, 1, 2, 3]


def test_bytes_of_the_host_are_bound_in_place(device: Device) -> None:
    target = bytearray(8)
    kernel_of(device, copy, "read", "write").dispatch(
        1, (), [(memoryview(b"..abcdefgh"), 2, 4), (memoryview(target), 4, 4)]
    )
    assert target == b"\0\0\0\0abcd"


def test_host_bytes_that_do_not_fit_are_refused(device: Device) -> None:
    kernel = kernel_of(device, double, "readwrite")
    with pytest.raises(OutOfRange, match="binding 0: 8 bytes at offset 4 do not fit 8 host bytes"):
        kernel.dispatch(1, (), [(memoryview(bytearray(8)), 4, 8)])
    with pytest.raises(PermissionDenied, match="binding 0 is read-only"):
        kernel.dispatch(1, (), [(memoryview(bytes(8)), 0, 8)])


def test_where_nothing_tells_of_writes_read_only_bytes_are_taken_as_such(device: Device) -> None:
    seen: list[bool] = []

    def look(workgroups: Any, constants: Any, views: list[memoryview]) -> None:
        seen.extend(view.readonly for view in views)

    locked = filled(device, np.arange(2, dtype=np.int32), access=MemoryAccess.READ)
    open_ = device.allocator.allocate(8)
    bindings = [locked, open_, (memoryview(bytes(8)), 0, 8)]
    layout = ["readwrite"] * 3
    kernel_of(device, look, *layout, knows_writes=False).dispatch(1, (), bindings)
    assert seen == [True, False, True]
    assert i32(locked) == [0, 1]
    with pytest.raises(PermissionDenied, match=r"binding 0: .* may not be written by a kernel"):
        kernel_of(device, look, *layout).dispatch(1, (), bindings)


def test_refusals_are_those_of_every_kernel_and_change_nothing(device: Device) -> None:
    data = filled(device, np.arange(4, dtype=np.int32))
    kernel = kernel_of(device, double, "readwrite", "readwrite")
    gone = device.allocator.allocate(4)
    gone.release()
    other = open_device("null?debug=0" if device.capabilities.kind == "host" else "host?debug=0")
    for bad, kind, message in (
        ((data, 0, 17), OutOfRange, "17 bytes at offset 0 do not fit a buffer of 16 bytes"),
        (gone, FailedPrecondition, "is a released buffer"),
        (None, InvalidArgument, "is null"),
        (other.allocator.allocate(4), InvalidArgument, "the kernel runs on"),
    ):
        with pytest.raises(kind, match=f"kernel 'k': binding 1.* ?{message}"):
            kernel.dispatch(1, (), [data, bad])
    with pytest.raises(InvalidArgument, match="takes 2 bindings, found 1"):
        kernel.dispatch(1, (), [data])
    with pytest.raises(InvalidArgument, match="takes 0 constants, found 1"):
        kernel.dispatch(1, (1,), [data, data])
    assert i32(data) == [0, 1, 2, 3]


def test_workgroup_limits_are_the_kernels_own(device: Device) -> None:
    kernel = kernel_of(device, double, workgroup_limits=(10, 10, 5))
    with pytest.raises(OutOfRange, match=r"workgroup count z is 6, .* allows 5"):
        kernel.dispatch((1, 1, 6))


def test_what_the_function_raises_comes_out_and_the_device_goes_on(device: Device) -> None:
    def fail(*given: Any) -> None:
        raise DataLoss("on purpose")

    data = filled(device, np.arange(4, dtype=np.int32))
    with pytest.raises(DataLoss, match="on purpose"):
        kernel_of(device, fail, "readwrite").dispatch(1, (), [data])
    kernel_of(device, double, "readwrite").dispatch(1, (), [data])
    assert i32(data) == [0, 2, 4, 6]


def test_a_profile_has_the_time_of_the_function(device: Device) -> None:
    data = device.allocator.allocate(4)
    kernel = kernel_of(device, lambda *given: time.sleep(0.01), "readwrite")
    with device.profile() as recording:
        kernel.dispatch(3, (), [data])
    (total,) = recording.kernels
    assert (total.name, total.count, total.bytes) == ("k", 1, 4)
    assert 0.01 <= total.seconds <= recording.seconds
