"""Buffer views against numpy: shapes, strides, byte orders, lifetimes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from halgpu import errors
from halgpu.buffer_view import BufferView, Encoding, upload
from halgpu.devices import open_device
from halgpu.elements import of_name


@pytest.fixture(params=["host", "opencl", "opencl?unified=0"])
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
    with pytest.raises(ValueError, match="copy"):
        np.array(view, copy=False)
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
