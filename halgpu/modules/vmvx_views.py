"""Strided views of VM buffers as numpy arrays, for the functions of ``vmvx``.

Offsets, strides and sizes count elements. The limits and the order in which they are checked are those of
``MAP_BUFFER_2D_IMPL`` (IREE's runtime/src/iree/modules/vmvx/module.c), but for what would leave the buffer there:
a stride of -1, which passes its test, and empty views, whose end wraps around. Here every stride is positive or
zero, and an empty view has no end.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halgpu import errors
from halgpu.vm.buffer import Buffer
from halgpu.vm.support import NullReference

Array = NDArray[Any]
LIMIT: Final = 1 << 32
"""What sizes, and strides plus one, stay below."""
_SMALL: Final = 28
"""Bits of numbers whose products fit 64 bits."""
_WORK: Final[Any] = 1000
"""How far to look for a shared element before it is taken for granted."""


class View(NamedTuple):
    """Where a 2-D view lies in a buffer."""

    buffer: Any
    offset: int
    stride0: int
    stride1: int
    size0: int
    size1: int


def check(view: View, what: str, dtype: np.dtype[Any], write: bool = False) -> None:
    """Raise unless the view lies in its buffer and may be used so.

    InvalidArgument for sizes and strides beyond :data:`LIMIT` and for what is no buffer, PermissionDenied for writing
    a read-only one, OutOfRange for a view that leaves it. ``what`` names the operand.
    """
    buffer, offset, stride0, stride1, size0, size1 = view
    if not (
        0 <= size0 < LIMIT and 0 <= size1 < LIMIT and 0 <= stride0 < LIMIT - 1 and 0 <= stride1 < LIMIT - 1
    ):
        raise errors.InvalidArgument(
            f"{what}: expected sizes from 0 and strides from 0 that are below 2**32, "
            f"found sizes {size0}, {size1} and strides {stride0}, {stride1}"
        )
    if size0 * size1 * dtype.itemsize >= 1 << 63:  # numpy has no such arrays, also where strides are 0
        raise errors.InvalidArgument(f"{what}: {size0} x {size1} elements are too many")
    if type(buffer) is not Buffer:
        raise _no_buffer(buffer, what)
    if write:
        buffer.typed(write)["B"]  # raises what forbids it
    end = offset + ((size0 - 1) * stride0 + (size1 - 1) * stride1 + 1 if size0 and size1 else 0)
    if offset < 0 or end * dtype.itemsize > buffer.byte_length:
        raise errors.OutOfRange(
            f"{what}: elements {offset} to {end} of {dtype.itemsize} bytes (sizes {size0}, {size1}, strides {stride0}, "
            f"{stride1}) do not lie in a buffer of {buffer.byte_length} bytes"
        )


def _no_buffer(found: Any, what: str) -> errors.InvalidArgument:
    if found is None:
        return NullReference(f"{what}: expected a ref to !vm.buffer, found null")
    return errors.InvalidArgument(f"{what}: expected a ref to !vm.buffer, found a {type(found).__name__}")


def array(view: View, what: str, dtype: np.dtype[Any], write: bool = False) -> Array:
    """The view as an array over the buffer's bytes; raises as :func:`check` does.

    Arrays for writing are to be made first: asking for writable bytes may move them.
    """
    buffer, offset, stride0, stride1, size0, size1 = view
    size = dtype.itemsize
    # Of small numbers, none negative, numpy itself checks the extent; what it refuses is looked at below.
    if not (offset | stride0 | stride1 | size0 | size1) >> _SMALL:
        try:
            memory = buffer.typed(write)["B"]
            return np.ndarray((size0, size1), dtype, memory, offset * size, (stride0 * size, stride1 * size))
        except (AttributeError, TypeError, ValueError):
            pass
    check(view, what, dtype, write)
    memory = buffer.typed(write)["B"]
    return np.ndarray((size0, size1), dtype, memory, offset * size, (stride0 * size, stride1 * size))


def disjoint(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether no two elements share memory, for sure: each stride is past all that smaller ones reach."""
    if len(shape) == 2 and strides[0] > strides[1] * (shape[1] - 1) >= shape[1] - 1:
        return True  # rows one after the other, as nearly always
    reach = 0
    for stride, size in sorted(
        (stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1
    ):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def clobbers(out: Array, source: Array) -> bool:
    """Whether writing an element of ``out`` may change another element of ``source``, which is read later."""
    if _same_layout(out, source):
        return False
    try:
        return bool(np.shares_memory(out, source, _WORK))
    except np.exceptions.TooHardError:
        return True


def _same_layout(left: Array, right: Array) -> bool:
    if left.__array_interface__["data"][0] != right.__array_interface__["data"][0]:
        return False
    strides = zip(left.strides, right.strides, left.shape, strict=True)
    return all(one == other or size <= 1 for one, other, size in strides)
