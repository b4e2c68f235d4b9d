"""The .npy reader and writer against numpy's."""

from __future__ import annotations

import io

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halgpu import errors
from halgpu.cli import npy

DTYPES = ["?", "i1", "<i2", ">i4", "u8", "<f2", "f4", ">f8", "c8", ">c16"]
NATIVE = ["?", "i1", "<i2", "<f2", "f4", "c8"]


def arrays(dtypes):
    """Arrays of any rank, zero sizes included, with random bytes as elements."""

    def make(dtype, shape, seed):
        length = int(np.prod(shape)) * np.dtype(dtype).itemsize
        data = np.random.default_rng(seed).integers(0, 2 if dtype == "?" else 256, length, np.uint8)
        return data.view(dtype).reshape(shape)

    shapes = st.lists(st.integers(0, 3), max_size=4)
    return st.builds(make, st.sampled_from(dtypes), shapes, st.integers(0, 1 << 30))


@given(arrays(DTYPES), st.booleans())
def test_what_numpy_writes_is_read(array, fortran):
    array = np.asfortranarray(array) if fortran and array.ndim else array
    file = io.BytesIO()
    np.save(file, array)
    file.seek(0)
    found = npy.read(file)
    assert (found.shape, found.dtype) == (array.shape, array.dtype)
    assert found.tobytes() == array.tobytes()


@given(arrays(NATIVE))
def test_what_is_written_numpy_reads(array):
    file = io.BytesIO()
    npy.write(file, array)
    file.seek(0)
    found = np.load(file)
    assert (found.shape, found.dtype) == (array.shape, array.dtype)
    assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
def test_types_that_numpy_does_not_know_are_raw_bytes(dtype):
    file = io.BytesIO()
    npy.write(file, np.array([1, 2], dtype))
    file.seek(0)
    assert np.load(file).dtype.kind == "V"
    file.seek(0)
    assert npy.read(file).view(dtype).tolist() == [1, 2]


def saved(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


GOOD = saved(np.arange(4, dtype=np.float32))


@pytest.mark.parametrize("data", [GOOD[:cut] for cut in (1, 5, 7, 9, 11, 60, 127, 129, len(GOOD) - 1)])
def test_cut_files(data):
    with pytest.raises((errors.DataLoss, errors.InvalidArgument)):
        npy.read(io.BytesIO(data))


def test_the_end_of_a_file():
    file = io.BytesIO(GOOD)
    npy.read(file)
    with pytest.raises(errors.OutOfRange):
        npy.read(file)


@pytest.mark.parametrize(
    "data",
    [b"not an npy file", GOOD.replace(b"NUMPY", b"NUMPX"), b"\x93NUMPY\x09" + GOOD[7:], GOOD.replace(b"'<f4'", b"'|O'"),
     GOOD.replace(b"(4,)", b"(-4)"), GOOD.replace(b"(4,)", b"4   "), GOOD.replace(b"shape", b"shope"),
     GOOD.replace(b"'<f4'", b"'<U4'"), GOOD.replace(b"{", b"("), GOOD.replace(b"(4,)", b"(4.)"), saved(np.array(["text"])),
     saved(np.zeros(2, [("a", "f4")])), GOOD.replace(b"'<f4'", b"{1:2}"), GOOD[:10] + b"\xff" * 118],
)  # fmt: skip
def test_what_is_no_array_of_numbers(data):
    with pytest.raises((errors.InvalidArgument, errors.Unimplemented, errors.DataLoss)):
        npy.read(io.BytesIO(data))


@pytest.mark.parametrize("shape", ["(" + "1," * 70 + ")", f"(0, {1 << 62})", f"({10**30}, 0)"])
def test_shapes_that_numpy_has_not(shape):
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(4)
    with pytest.raises((errors.Unimplemented, errors.OutOfRange), match="shape"):
        npy.read(io.BytesIO(data))


def test_a_header_may_promise_anything_and_nothing_is_allocated():
    header = GOOD.replace(b"(4,), }" + b" " * 20, b"(99999999999,), }" + b" " * 10)
    with pytest.raises(errors.DataLoss, match="promises 399999999996 bytes"):
        npy.read(io.BytesIO(header))
