"""Views and arrays of other libraries on the same GPU: no copies, and in the order of streams; on the fake of CuPy."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from halgpu import dlpack
from halgpu.buffer_view import BufferView
from halgpu.devices import BindingLayout, KernelLayout, MemoryAccess, Program, cuda, open_device
from halgpu.errors import FailedPrecondition

FOLDER = Path(__file__).with_name("fake_cuda")
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))

import fake_cupy  # noqa: E402
import halgpu_fake_cuda  # noqa: E402

SOURCE = """
.version 7.0
.target sm_60
.visible .entry increase(.param .u64 a, .param .u32 b) { ret; }
"""
X = np.arange(12, dtype=np.float32).reshape(3, 4)


def increase(workgroups: Any, constants: Any, bindings: Any) -> None:
    np.frombuffer(bindings[0], np.float32, 12)[:] += constants[0]


@pytest.fixture
def gpus() -> fake_cupy.Gpus:
    return fake_cupy.Gpus()


def open_gpu(gpus: fake_cupy.Gpus, index: int = 0) -> cuda.CudaDevice:
    return halgpu_fake_cuda.FakeCudaDevice(f"cuda:{index}", halgpu_fake_cuda.fake_cuda(gpus), index)


@pytest.fixture
def device(gpus: fake_cupy.Gpus) -> cuda.CudaDevice:
    return open_gpu(gpus)


def work_on(device: cuda.CudaDevice, view: BufferView, by: int = 1) -> None:
    layout = KernelLayout("increase", 1, (BindingLayout(),), addresses=True)
    (kernel,) = device.build(Program("ptx", SOURCE, (layout,), callables=(increase,)))
    kernel.dispatch(1, [by], [(view.buffer, 0, 48)])


def made_by_the_device(device: cuda.CudaDevice) -> BufferView:
    """A view whose elements, X + 1, are still being computed."""
    view = BufferView.from_array(X, device)
    work_on(device, view)
    return view


class Stream:
    """Another library's stream: what it reads, it reads when it gets there."""

    def __init__(self, gpus: fake_cupy.Gpus, *, default: bool) -> None:
        gpus.runtime.setDevice(0)
        self.gpus = gpus
        runtime = gpus.runtime
        self.handle = (
            fake_cupy.LEGACY if default else runtime.streamCreateWithFlags(runtime.streamNonBlocking)
        )

    def read(self, address: int, size: int = 48) -> np.ndarray:
        found = np.zeros(size, np.uint8)
        runtime = self.gpus.runtime
        runtime.memcpyAsync(found.ctypes.data, address, size, runtime.memcpyDeviceToHost, self.handle)
        return found.view(np.float32).reshape(3, 4)

    def wait(self) -> None:
        self.gpus.runtime.streamSynchronize(self.handle)


def tensor_of(capsule: Any) -> Any:
    return dlpack._tensor(capsule)


# -- to others -----------------------------------------------------------------------------------------


def test_the_cuda_array_interface(gpus: fake_cupy.Gpus, device: cuda.CudaDevice) -> None:
    view = made_by_the_device(device)
    described = view.__cuda_array_interface__
    assert view.buffer.root is not None
    assert described["data"] == (view.buffer.root.memory.handle, False)
    assert (described["shape"], described["typestr"], described["strides"]) == ((3, 4), "<f4", None)
    assert (described["version"], described["stream"]) == (3, device.stream)
    stream = Stream(gpus, default=True)
    found = stream.read(described["data"][0])
    stream.wait()
    np.testing.assert_array_equal(found, X + 1)
    assert device.statistics.bytes_down == 0


def test_only_views_on_gpus_of_types_that_it_has_have_it(device: cuda.CudaDevice) -> None:
    assert not hasattr(BufferView.from_array(X, "host"), "__cuda_array_interface__")
    assert not hasattr(
        BufferView.from_array(X.astype(ml_dtypes.bfloat16), device), "__cuda_array_interface__"
    )
    view = BufferView.from_array(X, device)
    view.release()
    assert not hasattr(view, "__cuda_array_interface__")


@pytest.mark.parametrize("stream", [None, 1])
def test_dlpack_on_the_default_stream(
    gpus: fake_cupy.Gpus, device: cuda.CudaDevice, stream: int | None
) -> None:
    view = made_by_the_device(device)
    assert view.__dlpack_device__() == (2, 0)
    tensor = tensor_of(capsule := view.__dlpack__(stream=stream))
    assert (tensor.device_type, tensor.device_id, tensor.ndim) == (2, 0, 2)
    assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (2, 32, 1)
    assert list((ctypes.c_int64 * 2).from_address(tensor.shape)) == [3, 4]
    other = Stream(gpus, default=True)
    found = other.read(tensor.data)
    other.wait()
    del capsule
    np.testing.assert_array_equal(found, X + 1)


@pytest.mark.parametrize("told", [True, False])
def test_dlpack_on_a_stream_of_its_own(gpus: fake_cupy.Gpus, device: cuda.CudaDevice, told: bool) -> None:
    """Which reads too early unless it is told to wait: with -1, its owner says that he looks after it."""
    view = made_by_the_device(device)
    other = Stream(gpus, default=False)
    capsule = view.__dlpack__(stream=other.handle if told else -1, max_version=(1, 0))
    found = other.read(tensor_of(capsule).data)
    other.wait()
    assert np.array_equal(found, X + 1) == told


def test_memory_is_not_used_again_before_another_stream_is_done(
    gpus: fake_cupy.Gpus, device: cuda.CudaDevice
) -> None:
    view = made_by_the_device(device)
    other = Stream(gpus, default=False)
    capsule = view.__dlpack__(stream=other.handle, max_version=(1, 0))
    address = tensor_of(capsule).data
    found = other.read(address)
    device.wait_idle()
    del capsule, view  # and the pool gives the memory to the next who asks
    buffers = [device.allocator.allocate(48) for _ in range(3)]
    assert address in [buffer.root.memory.handle for buffer in buffers if buffer.root is not None]
    for buffer in buffers:
        buffer.fill(0, None, b"\xee")
    device.wait_idle()
    other.wait()
    np.testing.assert_array_equal(found, X + 1)


@pytest.mark.parametrize("by", ["dlpack", "interface"])
def test_what_others_hold_is_not_written(gpus: fake_cupy.Gpus, device: cuda.CudaDevice, by: str) -> None:
    view = made_by_the_device(device)
    if by == "dlpack":
        held: Any = view.__dlpack__()
        address = tensor_of(held).data
    else:
        held = view.share()
        address = held.__cuda_array_interface__["data"][0]
    work_on(device, view, 10)
    view.buffer.fill(0, 4, b"\0")
    device.wait_idle()
    assert gpus.bytes_at(0, address, 48).view(np.float32).tolist() == (X + 1).ravel().tolist()
    expected = (X + 11).copy()
    expected[0, 0] = 0
    np.testing.assert_array_equal(view.to_numpy(), expected)
    with view.buffer.map(MemoryAccess.READ | MemoryAccess.WRITE) as mapping:
        mapping.contents[:4] = b"\1\1\1\1"
    assert gpus.bytes_at(0, address, 48).view(np.float32).tolist() == (X + 1).ravel().tolist()
    del held
    gc.collect()
    device.wait_idle()
    assert device.statistics.live_handles == 1


def test_memory_lent_is_written_in_place_again_once_it_is_given_back(device: cuda.CudaDevice) -> None:
    view = made_by_the_device(device)
    assert view.buffer.root is not None
    before = view.buffer.root.memory
    capsule = view.__dlpack__()
    del capsule
    work_on(device, view)
    assert view.buffer.root.memory is before
    np.testing.assert_array_equal(view.to_numpy(), X + 2)


def test_windows_and_memory_lent_go_together(device: cuda.CudaDevice) -> None:
    view = made_by_the_device(device)
    capsule = view.__dlpack__()
    window = view.to_numpy(copy=False)
    work_on(device, view)
    np.testing.assert_array_equal(window, X + 1)
    np.testing.assert_array_equal(view.to_numpy(), X + 2)
    del capsule


def test_dlpack_on_the_host(device: cuda.CudaDevice) -> None:
    view = made_by_the_device(device)
    np.testing.assert_array_equal(np.asarray(view), X + 1)
    capsule = view.__dlpack__(dl_device=(1, 0), max_version=(1, 0))
    assert tensor_of(capsule).device_type == 1
    for wanted in ((2, 1), (4, 0)):
        with pytest.raises(BufferError, match=r"halgpu exports \(2, 0\) and host memory"):
            view.__dlpack__(dl_device=wanted)
    with pytest.raises(BufferError, match="no stream; found 5"):
        view.__dlpack__(dl_device=(1, 0), stream=5)


@pytest.mark.parametrize("stream", [0, -2, "1"])
def test_streams_that_are_none(device: cuda.CudaDevice, stream: Any) -> None:
    with pytest.raises(BufferError, match="a stream of CUDA is None, -1, 1, 2 or an address; found"):
        BufferView.from_array(X, device).__dlpack__(stream=stream)


def test_copies_and_types(device: cuda.CudaDevice) -> None:
    view = BufferView.from_array(X.astype(ml_dtypes.bfloat16), device)
    tensor = tensor_of(capsule := view.__dlpack__())
    assert (tensor.dtype.code, tensor.dtype.bits) == (4, 16)
    copy = tensor_of(own := view.__dlpack__(copy=True))
    assert copy.data != tensor.data
    del capsule, own
    packed = BufferView(device.allocator.allocate(4), (8,), "i4")
    with pytest.raises(BufferError, match="exports no i4"):
        packed.__dlpack__()


def test_a_mapping_in_use_is_not_lent(device: cuda.CudaDevice) -> None:
    view = BufferView.from_array(X, device)
    with view.buffer.map(MemoryAccess.READ | MemoryAccess.WRITE) as mapping:
        mapping.contents[0] = 1
        with pytest.raises(FailedPrecondition, match="has a writable mapping in use"):
            view.__cuda_array_interface__  # noqa: B018
        with pytest.raises(BufferError, match="has a writable mapping in use"):
            view.__dlpack__()


# -- from others ---------------------------------------------------------------------------------------


class Array:
    """An array of another library on GPU 0, described by the CUDA array interface only."""

    def __init__(
        self, gpus: fake_cupy.Gpus, values: np.ndarray, stream: int | None = fake_cupy.LEGACY
    ) -> None:
        gpus.runtime.setDevice(0)
        self.gpus, self.stream = gpus, stream
        self.address = gpus.runtime.malloc(values.nbytes)
        self.values = np.ascontiguousarray(values)
        self.write()
        self.__cuda_array_interface__ = {
            "shape": values.shape, "typestr": values.dtype.str, "data": (self.address, False), "version": 3,
            "strides": None, "stream": stream,
        }  # fmt: skip

    def write(self) -> None:
        runtime = self.gpus.runtime
        runtime.memcpyAsync(
            self.address,
            self.values.ctypes.data,
            self.values.nbytes,
            runtime.memcpyHostToDevice,
            self.stream or 1,
        )


class Tensor:
    """The same with DLPack only; notes which stream it was asked to be ready for."""

    def __init__(self, view: BufferView, old: bool = False) -> None:
        self.view, self.old = view, old
        self.asked: list[Any] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.view.__dlpack_device__()

    def __dlpack__(self, *, stream: Any = None, **more: Any) -> Any:
        if self.old and more:
            raise TypeError("from before version 1.0")
        self.asked.append(stream)
        return self.view.__dlpack__(stream=stream, **more)


@pytest.mark.parametrize("default", [True, False])
def test_an_array_that_is_still_being_written(
    gpus: fake_cupy.Gpus, device: cuda.CudaDevice, default: bool
) -> None:
    stream = Stream(gpus, default=default)
    array = Array(gpus, X, stream.handle)
    view = BufferView.from_array(array, device)
    assert view.buffer.root is not None
    assert view.buffer.root.memory.handle == array.address
    assert (view.shape, view.type_text) == ((3, 4), "3x4xf32")
    target = device.allocator.allocate(48)
    target.copy_from(view.buffer, 0, 0, 48)
    assert bytes(target.read()) == X.tobytes()
    assert device.statistics.bytes_up == 0


@pytest.mark.parametrize("old", [False, True])
def test_tensors_of_dlpack(gpus: fake_cupy.Gpus, device: cuda.CudaDevice, old: bool) -> None:
    library = open_gpu(gpus)  # with a stream of its own
    tensor = Tensor(made_by_the_device(library), old)
    view = BufferView.from_array(tensor, device)
    assert tensor.asked == [device.stream]
    np.testing.assert_array_equal(view.to_numpy(), X + 1)
    assert tensor.view.buffer.root is not None
    gone = weakref.ref(tensor.view.buffer.root.memory)
    del tensor
    gc.collect()
    np.testing.assert_array_equal(view.to_numpy(), X + 1)
    assert gone() is not None
    del view
    gc.collect()
    device.wait_idle()
    assert gone() is None


def test_bfloat16_comes_by_dlpack(gpus: fake_cupy.Gpus, device: cuda.CudaDevice) -> None:
    values = X.astype(ml_dtypes.bfloat16)
    view = BufferView.from_array(Tensor(BufferView.from_array(values, open_gpu(gpus))), device)
    assert view.type_text == "3x4xbf16"
    np.testing.assert_array_equal(view.to_numpy(), values)


def test_what_comes_is_not_written_and_is_kept_while_it_is_used(
    gpus: fake_cupy.Gpus, device: cuda.CudaDevice
) -> None:
    array = Array(gpus, X)
    view = BufferView.from_array(array, device)
    with pytest.raises(Exception, match="may not be written by a kernel"):
        work_on(device, view)
    target = device.allocator.allocate(48)
    target.copy_from(view.buffer, 0, 0, 48)
    gone = weakref.ref(array)
    del view, array
    gc.collect()
    assert gone() is not None, "the copy is still to be made"
    device.wait_idle()
    gc.collect()
    assert gone() is None
    assert device.statistics.live_handles == 1


def test_work_after_ours_on_the_default_stream_waits_for_it(
    gpus: fake_cupy.Gpus, device: cuda.CudaDevice
) -> None:
    array = Array(gpus, X)
    view = BufferView.from_array(array, device)
    target = device.allocator.allocate(48)
    target.copy_from(view.buffer, 0, 0, 48)
    array.values = X * 100
    array.write()  # in place, as torch does with add_
    gpus.runtime.streamSynchronize(fake_cupy.LEGACY)
    assert bytes(target.read()) == X.tobytes()


@pytest.mark.parametrize("why", ["another GPU", "strides", "host memory", "nothing"])
def test_what_cannot_be_used_in_place(gpus: fake_cupy.Gpus, device: cuda.CudaDevice, why: str) -> None:
    from halgpu import foreign

    array = Array(gpus, X)
    if why == "another GPU":
        device = open_gpu(gpus, 1)
    elif why == "strides":
        array.__cuda_array_interface__["shape"] = (2, 4)
        array.__cuda_array_interface__["strides"] = (32, 4)
    elif why == "host memory":
        array.__cuda_array_interface__["data"] = (X.ctypes.data, False)
    else:
        array.__cuda_array_interface__["shape"] = (0, 4)
    assert foreign.on_device(array, device) is None


def test_opencl_is_not_meant(gpus: fake_cupy.Gpus) -> None:
    from halgpu import foreign

    assert foreign.on_device(Array(gpus, X), open_device("null")) is None
