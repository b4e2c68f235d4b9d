"""Buffer views against numpy: shapes, strides, byte orders, lifetimes."""

from __future__ import annotations

import gc
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest

from halgpu import errors
from halgpu.buffer_view import BufferView, Encoding, upload
from halgpu.devices import open_device
from halgpu.elements import of_name


@pytest.fixture(params=["host", "null", "opencl", "opencl?unified=0"])
def device(request):
    return open_device(request.param)


ARRAYS = {
    "contiguous": np.arange(6, dtype=np.float32).reshape(2, 3),
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "stepped": np.arange(10, dtype=np.int16)[::3],
    "reversed": np.arange(10, dtype=np.uint8)[::-1],
    "broadcast": np.broadcast_to(np.float64(2.5), (3, 2)),
    "field": np.zeros(4, [("a", "i1"), ("b", "<f4")])["b"],
    "big-endian": np.arange(5, dtype=">i8"),
    "rank 0": np.array(7, np.int32),
    "empty": np.zeros((3, 0, 4), np.float32),
    "bool": np.array([True, False]),
    "complex": np.array([1 + 2j], np.complex64),
    "f16": np.array([1, np.inf, np.nan, 6e-8], np.float16),
    "bf16": np.array([1, np.inf, np.nan, 1e-40], ml_dtypes.bfloat16),
    "f8": np.array([1, 448], ml_dtypes.float8_e4m3fn),
    "raw": np.array([b"ab", b"cd"], "V2"),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS.keys())
def test_arrays_come_back_as_they_went_in(device, array):
    view = BufferView.from_array(array, device)
    back = np.asarray(view)
    assert back.shape == view.shape == array.shape
    assert back.dtype == view.dtype == array.dtype.newbyteorder("=")
    assert back.tobytes() == array.astype(array.dtype.newbyteorder("=")).tobytes()
    assert view.nbytes == view.byte_length == back.nbytes
    assert (view.ndim, view.size) == (array.ndim, array.size)
    assert back.flags.writeable
    assert back.flags.aligned


def test_a_read_only_array_works_and_is_not_changed(device):
    array = np.arange(4, dtype=np.float32)
    array.flags.writeable = False
    view = BufferView.from_array(array, device)
    view.buffer.write()[:] = bytes(16)
    assert array.tolist() == [0, 1, 2, 3]
    assert view.to_numpy().tolist() == [0, 0, 0, 0]


def test_what_a_view_says_of_itself(device):
    view = BufferView.from_array([[1.0, 2.0]], device)
    assert repr(view) == f"<BufferView 1x2xf64 on {device.uri}>"
    assert (view.type_text, str(view.element_type), view.encoding) == (
        "1x2xf64",
        "f64",
        Encoding.DENSE_ROW_MAJOR,
    )
    assert len(view) == 1
    with pytest.raises(TypeError):
        len(BufferView.from_array(1.0, device))


@pytest.mark.parametrize("element_type", ["f32", of_name("f32"), 0x21000020])
def test_element_types_by_name_and_code(device, element_type):
    view = BufferView(device.allocator.allocate(8), (2,), element_type)
    assert view.type_text == "2xf32"


def test_a_view_may_be_smaller_than_its_buffer_and_not_larger(device):
    buffer = upload(device, np.arange(4, dtype=np.float32), of_name("f32"))
    assert BufferView(buffer, [3], "f32").to_numpy().tolist() == [0, 1, 2]
    with pytest.raises(errors.OutOfRange, match="5xf32 needs 20 bytes, its buffer has 16"):
        BufferView(buffer, [5], "f32")


def test_a_view_of_a_range_at_an_odd_offset(device):
    buffer = upload(device, np.arange(16, dtype=np.uint8), of_name("ui8"))
    view = BufferView(buffer.subspan(3, 8), [2], "ui32")
    assert view.to_numpy().tolist() == [0x06050403, 0x0A090807]


@pytest.mark.parametrize("shape", [(1 << 40, 1 << 40), (1 << 62, 4)])
def test_shapes_that_overflow(device, shape):
    with pytest.raises(errors.OutOfRange, match="overflows"):
        BufferView(device.allocator.allocate(8), shape, "i8")


@pytest.mark.parametrize("shape", [(0, 1 << 62), (1,) * 70])
def test_shapes_that_numpy_has_not(device, shape):
    view = BufferView(device.allocator.allocate(8), shape, "f32")
    assert view.shape == shape
    with pytest.raises(errors.Unimplemented, match="numpy has no arrays of that shape"):
        view.to_numpy()


def test_negative_sizes_are_refused(device):
    with pytest.raises(errors.InvalidArgument, match="negative"):
        BufferView(device.allocator.allocate(8), (-1,), "i8")


@pytest.mark.parametrize("value", ["text", object(), [object()], np.array(["a"]), np.datetime64("2020")])
def test_what_is_no_number_is_refused(device, value):
    with pytest.raises(errors.InvalidArgument):
        BufferView.from_array(value, device)


def test_numpy_protocol(device):
    view = BufferView.from_array(np.array([1.5, 2.5], np.float32), device)
    assert np.asarray(view, np.float64).dtype == np.float64
    assert np.array(view, copy=True).tolist() == [1.5, 2.5]
    assert np.array(view, np.float32, copy=False).tolist() == [1.5, 2.5]
    with pytest.raises(ValueError, match="float64 of a view of 2xf32 needs a copy"):
        np.array(view, np.float64, copy=False)
    np.testing.assert_allclose(view, [1.5, 2.5])
    first, second = np.asarray(view), np.asarray(view)
    first[0] = 9
    assert second[0] == 1.5


def test_a_released_view_raises_and_its_arrays_stay(device):
    view = BufferView.from_array(np.arange(3), device)
    array, shared = np.asarray(view), view.share()
    before = device.statistics.live_handles
    view.release()
    view.release()
    assert "released" in repr(view)
    assert array.tolist() == shared.to_numpy().tolist() == [0, 1, 2]
    for use in (
        view.to_numpy,
        view.share,
        lambda: np.asarray(view),
        lambda: view.buffer,
        lambda: view.device,
    ):
        with pytest.raises(errors.FailedPrecondition, match="released"):
            use()
    assert device.statistics.live_handles == before
    shared.release()
    assert device.statistics.live_handles == before - 1


def test_with_ends_a_view(device):
    with BufferView.from_array(np.arange(3), device) as view:
        assert len(view) == 3
    with pytest.raises(errors.FailedPrecondition), view:
        pass


def test_elements_narrower_than_a_byte_have_no_array(device):
    view = BufferView(device.allocator.allocate(2), (3,), "i4")
    assert view.byte_length == 2
    with pytest.raises(errors.Unimplemented, match="i4"):
        view.to_numpy()


# Without a copy ---------------------------------------------------------------------------------------

READERS = {
    "numpy": lambda view: np.array(view, copy=False),
    "to_numpy": lambda view: view.to_numpy(copy=False),
    "dlpack": np.from_dlpack,
    "memoryview": lambda view: np.asarray(view.memoryview()),
}
WRITES = {
    "written": lambda buffer: buffer.write().__setitem__(slice(None), bytes(24)),
    "overwritten": lambda buffer: buffer.write(discard=True).__setitem__(slice(None), bytes(24)),
    "updated": lambda buffer: buffer.update(bytes(4), 4),
    "filled": lambda buffer: buffer.fill(0, None, b"abcd"),
    "filled in part": lambda buffer: buffer.fill(4, 8, b"abcd"),
    "copied to": lambda buffer: buffer.copy_from(buffer, 0, 8, 16),
    "released": lambda buffer: buffer.release(),
}


@pytest.fixture
def view(device):
    return BufferView.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), device)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
def test_reading_without_a_copy_takes_no_memory_and_moves_each_byte_once(view, read):
    device = view.device
    view.buffer.fill(0, 4, b"\0\0\x80\x3f")
    device.wait_idle()
    with view.buffer.map(2):
        pass  # the host wrote: the device has none of it
    before = device.statistics
    first = read(view)
    brought = device.statistics.bytes_up + device.statistics.bytes_down - before.bytes_up - before.bytes_down
    second = read(view)
    after = device.statistics
    assert first.tolist() == second.tolist() == [[1, 1, 2], [3, 4, 5]]
    assert not first.flags.writeable
    assert np.shares_memory(first, second)
    assert after.bytes_allocated == before.bytes_allocated
    assert brought == (0 if device.capabilities.unified_memory else view.nbytes)
    assert after.bytes_up + after.bytes_down == before.bytes_up + before.bytes_down + brought
    assert after.maps - before.maps <= 2


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
@pytest.mark.parametrize("change", WRITES.values(), ids=WRITES.keys())
def test_what_was_read_never_changes(view, read, change):
    array, buffer = read(view), view.buffer
    expected = bytearray(array.tobytes())
    plain = BufferView.from_array(view, view.device, copy=True)
    change(buffer)
    change(plain.buffer)
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert array.tobytes() == expected
    if not buffer.released:
        assert bytes(buffer.read()) == bytes(plain.buffer.read())
        assert bytes(buffer.read()) != expected
        assert read(view).tobytes() == buffer.read()
    view.release()
    del buffer, view
    gc.collect()
    assert array.tobytes() == expected


def test_only_a_write_under_an_open_window_takes_memory(view):
    device, buffer = view.device, view.buffer
    del_me = np.array(view, copy=False)
    one = device.statistics.live_handles
    buffer.fill(0, 8, b"abcd")
    assert device.statistics.live_handles == one + 1
    buffer.fill(0, 8, b"efgh")  # it has moved: nobody looks at these bytes
    assert device.statistics.live_handles == one + 1
    del del_me
    assert device.statistics.live_handles == one
    np.array(view, copy=False)
    peak = device.statistics.bytes_allocated
    buffer.fill(0, 8, b"abcd")
    assert (device.statistics.live_handles, device.statistics.bytes_allocated) == (one, peak)


def test_windows_of_ranges_share_one_allocation(device):
    buffer = upload(device, np.arange(8, dtype=np.float32), of_name("f32"))
    low, high = BufferView(buffer.subspan(0, 16), [4], "f32"), BufferView(buffer.subspan(16), [2, 2], "f32")
    first, second = np.array(low, copy=False), np.array(high, copy=False)
    before = device.statistics.live_handles
    buffer.fill(0, 4, bytes(4))
    buffer.fill(16, 4, bytes(4))
    assert device.statistics.live_handles == before + 1
    assert (first.tolist(), second.tolist()) == ([0, 1, 2, 3], [[4, 5], [6, 7]])
    assert (low.to_numpy().tolist(), high.to_numpy().tolist()) == ([0, 1, 2, 3], [[0, 5], [6, 7]])


def test_a_writable_mapping_in_use_forbids_windows(view):
    with view.buffer.map(3) as mapping:
        contents = mapping.contents
        with pytest.raises(errors.FailedPrecondition, match="writable mapping in use"):
            np.array(view, copy=False)
        with pytest.raises(BufferError, match="writable mapping"):
            np.from_dlpack(view, copy=False)
        assert np.from_dlpack(view).flags.owndata is False
        contents[:4] = bytes(4)
        assert np.asarray(view)[0, 0] == 0
    array = np.array(view, copy=False)
    with view.buffer.map(3) as mapping:
        mapping.contents[:] = bytes(24)
    assert array[1].tolist() == [3, 4, 5]


def test_windows_at_odd_offsets(device):
    buffer = upload(device, np.arange(16, dtype=np.uint8), of_name("ui8"))
    view = BufferView(buffer.subspan(3, 8), [2], "ui32")
    with pytest.raises(ValueError, match="at byte 3 of its allocation has no array without a copy"):
        np.array(view, copy=False)
    assert np.from_dlpack(view).tolist() == [0x06050403, 0x0A090807]
    assert BufferView(buffer.subspan(3, 8), [8], "ui8").memoryview().tobytes() == bytes(range(3, 11))


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS.keys())
def test_every_array_is_read_without_a_copy(device, array):
    view = BufferView.from_array(array, device)
    read, flat = view.to_numpy(copy=False), view.memoryview()
    native = array.astype(array.dtype.newbyteorder("="))
    assert (read.shape, read.dtype, read.tobytes()) == (array.shape, native.dtype, native.tobytes())
    assert (flat.shape, flat.tobytes(), flat.readonly) == (array.shape, native.tobytes(), True)


def test_windows_close_with_their_arrays(view):
    device = view.device
    window = weakref.ref(np.array(view, copy=False))
    assert window() is None
    array = np.array(view, copy=False)[1:, ::2]
    view.release()
    alive = device.statistics.live_handles
    assert array.tolist() == [[3, 5]]
    cycle = [array]
    cycle.append(cycle)
    del array, cycle
    gc.collect()
    assert device.statistics.live_handles == alive - 1


# To a device without a copy ---------------------------------------------------------------------------


def aligned(array):
    """A copy of an array at a multiple of 64 bytes."""
    storage = np.zeros(array.nbytes + 64, np.uint8)
    start = -storage.ctypes.data % 64
    result = storage[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result


def test_a_host_array_in_place(device):
    array = aligned(np.arange(32, dtype=np.float32).reshape(4, 8))
    before = device.statistics
    if not device.capabilities.unified_memory:
        with pytest.raises(ValueError, match=r"unable to avoid a copy: .* has memory of its own"):
            BufferView.from_array(array, device, copy=False)
        assert device.statistics == before
        return
    view = BufferView.from_array(array, device, copy=False)
    after = device.statistics
    assert after.live_handles == before.live_handles + 1
    assert (after.bytes_allocated, after.bytes_up) == (before.bytes_allocated, before.bytes_up)
    assert np.shares_memory(view.to_numpy(copy=False), array)
    gone = weakref.ref(array.base)
    del array
    copied = BufferView.from_array(view, device, copy=True)
    assert copied.to_numpy().tolist() == np.arange(32).reshape(4, 8).tolist()
    with pytest.raises(errors.PermissionDenied, match="written by the host"):
        view.buffer.write()
    with pytest.raises(errors.PermissionDenied, match="filled"):
        view.buffer.fill(0, 4, b"abcd")
    with pytest.raises(errors.PermissionDenied, match="written by the host"):
        view.buffer.map(2)
    device.wait_idle()
    view.release()
    del view
    gc.collect()
    assert gone() is None
    assert device.statistics.live_handles == before.live_handles + 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: np.arange(32, dtype=">f4"), "native byte order"),
        (lambda: np.zeros((4, 8), np.float32).T, "not C-contiguous"),
        (lambda: aligned(np.zeros(32, np.float32))[1:], "no multiple of 64"),
    ],
)
def test_host_arrays_that_cannot_be_used_in_place(make, message):
    with pytest.raises(ValueError, match=f"unable to avoid a copy: .*{message}"):
        BufferView.from_array(make(), "host", copy=False)


def test_a_mapped_npy_file_in_place(tmp_path, device):
    if not device.capabilities.unified_memory:
        return
    np.save(tmp_path / "weights.npy", np.arange(1000, dtype=np.float32))
    view = BufferView.from_array(np.load(tmp_path / "weights.npy", mmap_mode="r"), device, copy=False)
    assert view.to_numpy().tolist() == list(range(1000))


def test_copies_of_views(device, view):
    assert BufferView.from_array(view, device).buffer is view.buffer
    assert BufferView.from_array(view, device, copy=False).buffer is view.buffer
    copied = BufferView.from_array(view, device, copy=True)
    view.buffer.write()[:] = bytes(24)
    assert copied.to_numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    other = open_device("null" if device.uri.startswith("host") else "host")
    assert BufferView.from_array(copied, other).to_numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ValueError, match="without a copy"):
        BufferView.from_array(view, other, copy=False)
    packed = BufferView(device.allocator.allocate(2), (3,), "i4")
    assert BufferView.from_array(packed, other).type_text == "3xi4"


# Python's buffer protocol ------------------------------------------------------------------------------


class Exporting(BufferView):
    """A view that has the buffer protocol as PEP 688 lets Python code have it."""

    __slots__ = ()

    def __buffer__(self, flags):
        return self.memoryview()


def test_a_view_is_no_buffer_and_has_a_memoryview(device):
    view = BufferView.from_array(np.arange(6, dtype=np.float16).reshape(2, 3), device)
    with pytest.raises(TypeError, match="bytes-like"):
        memoryview(view)
    exported = view.memoryview()
    assert (exported.format, exported.shape, exported.readonly) == ("e", (2, 3), True)
    assert np.asarray(view).flags.writeable


@pytest.mark.skipif(sys.version_info < (3, 12), reason="PEP 688 came with Python 3.12; see the test above")
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.bool_, np.complex64, ml_dtypes.bfloat16])
def test_why_a_view_is_no_buffer(dtype):
    """docs/arrays.md: numpy would take the buffer before __array__. Should it stop doing so, views can be buffers."""
    plain = BufferView.from_array(np.ones(3, dtype), "host")
    exporting = Exporting(plain.buffer, plain.shape, plain.element_type)
    assert memoryview(exporting).readonly
    assert np.asarray(plain).flags.writeable
    assert not np.asarray(exporting).flags.writeable
    assert (np.asarray(exporting).dtype == dtype) == (dtype is not ml_dtypes.bfloat16)
