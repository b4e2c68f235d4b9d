"""Numpy's .npy files, several arrays one after another in a file, read and written as IREE's tools do.

Format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import ast
from typing import Any, BinaryIO

import numpy as np

from halgpu import elements, errors
from halgpu.buffer_view import NDArray

MAGIC = b"\x93NUMPY"
MAXIMUM_HEADER = 1 << 16


def read(stream: BinaryIO) -> NDArray:
    """Read the next array of a file. Any byte order and Fortran order work.

    Raises OutOfRange at the end of the file, DataLoss for a cut file, InvalidArgument for what is no .npy or
    holds no numbers.
    """
    dtype, fortran, shape = _read_header(stream)
    count = elements.element_count(shape)
    length = count * dtype.itemsize
    if length > left(stream):
        raise errors.DataLoss(f"the .npy header promises {length} bytes of elements, {left(stream)} follow")
    array = np.frombuffer(stream.read(length), dtype, count)
    return elements.shaped(array, shape, "F" if fortran else "C")


def _read_header(stream: BinaryIO) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    start = stream.read(8)
    if not start:
        raise errors.OutOfRange("there is no further array in the .npy file")
    if start[:6] != MAGIC or len(start) < 8:
        raise errors.InvalidArgument("this is no .npy file: it does not begin with \\x93NUMPY and a version")
    if start[6] not in (1, 2, 3):
        raise errors.Unimplemented(f".npy version {start[6]}.{start[7]} is not known: expected 1, 2 or 3")
    size = 2 if start[6] == 1 else 4
    length = int.from_bytes(stream.read(size), "little")
    text = stream.read(min(length, MAXIMUM_HEADER))
    if len(text) < length:
        raise errors.DataLoss(f"the .npy header is cut or too long: {length} bytes")
    return _parse_header(text)


def _parse_header(text: bytes) -> tuple[np.dtype[Any], bool, tuple[int, ...]]:
    try:
        header = ast.literal_eval(text.decode("utf-8").strip())
        shape = tuple(header["shape"])
        dtype = np.dtype(header["descr"])
        fortran = bool(header["fortran_order"])
        good = all(type(size) is int and size >= 0 for size in shape)
    except Exception as error:  # literal_eval and numpy.dtype raise whatever they like
        raise errors.InvalidArgument(f"malformed .npy header: {text[:80]!r}") from error
    if not good:
        raise errors.InvalidArgument(f"the .npy header's shape is no shape: {shape}")
    elements.of_dtype(dtype)
    return dtype, fortran, shape


def write(stream: BinaryIO, array: NDArray) -> None:
    """Append an array; what numpy has no letter for (bf16, f8) is written as raw bytes, ``V<n>``.

    The bytes are those that iree-run-module writes.
    """
    shape = f"({array.shape[0]},)" if array.ndim == 1 else f"({', '.join(map(str, array.shape))})"
    text = f"{{'descr': '{_descr(array.dtype)}', 'fortran_order': False, 'shape': {shape}, }}"
    # Magic, version, length, text and the newline fill multiples of 64 bytes.
    padding = -(len(MAGIC) + 2 + 2 + len(text) + 1) % 64
    header = text.encode() + b" " * padding + b"\n"
    stream.write(MAGIC + b"\x01\x00" + len(header).to_bytes(2, "little") + header)
    stream.write(np.ascontiguousarray(array).tobytes())


def _descr(dtype: np.dtype[Any]) -> str:
    kind = dtype.kind if dtype.kind in "biufc" and dtype.type.__module__ == "numpy" else "V"
    return f"{'|' if dtype.itemsize == 1 else '<'}{kind}{dtype.itemsize}"


def left(stream: BinaryIO) -> int:
    """Bytes between a file's position and its end."""
    here = stream.tell()
    end = stream.seek(0, 2)
    stream.seek(here)
    return end - here
