"""Arrays of PyOpenCL and of anything that numpy can look at, as arguments and as views."""

from __future__ import annotations

import array
import gc
import sys

import numpy as np
import pyopencl
import pyopencl.array
import pytest

from halgpu import arguments, errors
from halgpu.buffer_view import BufferView
from halgpu.devices import open_device
from halgpu.signature import DECLARATION, of_function


@pytest.fixture(params=["opencl", "opencl?unified=0"])
def device(request):
    return open_device(request.param)


@pytest.fixture(params=["host", "null", "opencl", "opencl?unified=0"])
def any_device(request):
    return open_device(request.param)


def convert(device, text, value):
    function = of_function("0r_v", {DECLARATION: f"sync func @f(%input0: {text}) -> ()"})
    return arguments.converter(function.parameters[0], device)(value)


X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Interface:
    """Only numpy's array interface."""

    def __init__(self, values):
        self.values = values
        self.__array_interface__ = values.__array_interface__


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Interface(X.T), "3x2xf32"),
        (memoryview(X), "2x3xf32"),
        (memoryview(X)[1:], "1x3xf32"),
        (bytearray(b"abc"), "3xui8"),
        (array.array("h", [1, 2]), "2xsi16"),
        (memoryview(b"abc"), "3xui8"),
        (np.float32(2), "f32"),
        ([[1, 2]], "1x2xsi64"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_numpy_can_look_at(any_device, value, expected):
    view = BufferView.from_array(value, any_device)
    assert view.type_text == expected
    source = value.values if isinstance(value, Interface) else value
    assert view.to_numpy().tolist() == np.asarray(source).tolist()


def test_bytes_are_text_to_numpy_and_refused(any_device):
    with pytest.raises(errors.InvalidArgument, match="S2"):
        BufferView.from_array(b"ab", any_device)


# PyOpenCL: of the device's context --------------------------------------------------------------------


@pytest.fixture(params=["the device's queue", "another queue"])
def queue(request, device):
    return (
        device.queue.native
        if request.param == "the device's queue"
        else pyopencl.CommandQueue(device.context)
    )


def unchanged(before, after):
    return (before.bytes_allocated, before.bytes_up, before.bytes_down, before.maps) == (
        after.bytes_allocated, after.bytes_up, after.bytes_down, after.maps,
    )  # fmt: skip


def test_an_array_of_the_context_is_not_copied(device, queue):
    there = pyopencl.array.to_device(queue, X)
    before = device.statistics
    for copy in (None, False):
        view = BufferView.from_array(there, device, copy=copy)
        assert (view.type_text, view.device) == ("2x3xf32", device)
    passed = convert(device, "tensor<?x3xf32>", there)
    assert unchanged(before, device.statistics)
    assert device.statistics.live_handles == before.live_handles + 2
    assert passed.to_numpy().tolist() == view.to_numpy().tolist() == X.tolist()
    copied = BufferView.from_array(there, device, copy=True)
    assert device.statistics.bytes_allocated == before.bytes_allocated + X.nbytes
    there += 1
    queue.finish()
    assert BufferView.from_array(there, device).to_numpy().tolist() == (X + 1).tolist()
    assert copied.to_numpy().tolist() == X.tolist()
    with pytest.raises(errors.PermissionDenied):
        view.buffer.write()
    with pytest.raises(errors.PermissionDenied):
        view.buffer.fill(0, None, b"abcd")
    native = there.base_data
    holders = sys.getrefcount(native)
    del view, passed, there
    device.wait_idle()
    gc.collect()
    assert sys.getrefcount(native) == holders - 3
    del copied
    assert device.statistics.live_handles == before.live_handles


def test_an_arrays_own_work_is_waited_for(device):
    queue = pyopencl.CommandQueue(device.context)
    there = pyopencl.array.zeros(queue, 1 << 20, np.int32)
    for _ in range(20):
        there += 1
    assert BufferView.from_array(there, device).to_numpy().min() == 20


def test_ranges_and_strides_of_arrays(device, queue):
    there = pyopencl.array.to_device(queue, np.arange(64, dtype=np.int32))
    before = device.statistics
    view = convert(device, "tensor<?xi32>", there[32:])
    assert unchanged(before, device.statistics)
    assert (view.type_text, view.to_numpy().tolist()) == ("32xi32", list(range(32, 64)))
    strided = there.reshape(8, 8).T
    assert (
        BufferView.from_array(strided, device).to_numpy().tolist() == np.arange(64).reshape(8, 8).T.tolist()
    )
    empty = pyopencl.array.to_device(queue, np.zeros((3, 1), np.float32))[:0]
    assert BufferView.from_array(empty, device).type_text == "0x1xf32"


def test_a_buffer_of_the_context(device, queue):
    flags = pyopencl.mem_flags
    native = pyopencl.Buffer(device.context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=X)
    before = device.statistics
    view = convert(device, "tensor<2x3xf32>", native)
    raw = BufferView.from_array(native, device)
    opaque = convert(device, "!hal.buffer_view", native)
    assert unchanged(before, device.statistics)
    assert (view.type_text, raw.type_text, opaque.type_text) == ("2x3xf32", "24x*8", "24x*8")
    assert view.to_numpy().tolist() == X.tolist()
    assert BufferView(raw.buffer, (3, 2), "f32").to_numpy()[2].tolist() == [4, 5]
    with pytest.raises(errors.OutOfRange, match="2x4xf32 needs 32 bytes, its buffer has 24"):
        convert(device, "tensor<2x4xf32>", native)
    with pytest.raises(
        errors.InvalidArgument, match=r"input0: expected tensor<\?xf32>, found a buffer without"
    ):
        convert(device, "tensor<?xf32>", native)


def test_wrong_types_of_arrays_are_named(device, queue):
    there = pyopencl.array.to_device(queue, X.astype(np.float64))
    with pytest.raises(errors.InvalidArgument, match="input0: expected tensor<2x3xf32>, found 2x3xf64"):
        convert(device, "tensor<2x3xf32>", there)
    with pytest.raises(errors.InvalidArgument, match="input0: expected tensor<2x4xf64>, found 2x3xf64"):
        convert(device, "tensor<2x4xf64>", there)


def test_views_of_another_context_come_through_the_host(any_device):
    context = pyopencl.Context([pyopencl.get_platforms()[0].get_devices()[0]])
    queue = pyopencl.CommandQueue(context)
    there = pyopencl.array.to_device(queue, X)
    assert convert(any_device, "tensor<2x3xf32>", there).to_numpy().tolist() == X.tolist()
    assert BufferView.from_array(there.T, any_device).to_numpy().tolist() == X.T.tolist()
    assert BufferView.from_array(there.base_data, any_device).to_numpy().tobytes() == X.tobytes()
    assert BufferView.from_array(there.with_queue(None), any_device).to_numpy().tolist() == X.tolist()


def test_what_cannot_be_imported(device):
    from halgpu.devices.imported import import_opencl

    context = pyopencl.Context([pyopencl.get_platforms()[0].get_devices()[0]])
    native = pyopencl.Buffer(context, pyopencl.mem_flags.READ_WRITE, 4)
    with pytest.raises(errors.Incompatible, match="of another context"):
        import_opencl(device, native)
    with pytest.raises(errors.InvalidArgument, match=r"expected a pyopencl\.Buffer, found bytes"):
        import_opencl(device, b"abcd")
