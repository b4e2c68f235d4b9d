"""The operations of ``vmvx`` on 2-D views, an element at a time, and the order in which elements are written.

The results are those of IREE's runtime/src/iree/modules/vmvx/elementwise.c. Where C leaves a case undefined, they are
what halgpu's VM gives (halgpu/vm/numerics.py): shift amounts count modulo 32, INT_MIN / -1 wraps, and a zero divisor
raises InvalidArgument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from halgpu import errors
from halgpu.modules.vmvx_views import Array, clobbers, disjoint

Operation = Callable[..., Any]
"""Called with input arrays, then the array for the results."""

F32: Final = np.dtype(np.float32)
I32: Final = np.dtype(np.int32)
U32: Final = np.dtype(np.uint32)
_BITS: Final = 31


def apply(operation: Operation, inputs: Sequence[Array], out: Array) -> None:
    """Write the results of an operation in row-major order, each before the inputs of the next are read.

    That order shows where ``out`` shares elements with an input elsewhere, or with itself (a stride of 0): there, it
    is done an element at a time.
    """
    if not out.size:
        return
    sharing = [source for source in inputs if np.may_share_memory(out, source)]
    alone = disjoint(out.shape, out.strides)
    if not alone and not sharing:
        inputs, out = _last_written(inputs, out)
        alone = disjoint(out.shape, out.strides)
    if not alone or any(clobbers(out, source) for source in sharing):
        _in_order(operation, inputs, out)
        return
    with np.errstate(all="ignore"):
        operation(*inputs, out)


def _last_written(inputs: Sequence[Array], out: Array) -> tuple[Sequence[Array], Array]:
    """What is left of elementwise work when only the last of many results in one place matters."""
    last = tuple(slice(-1, None) if stride == 0 else slice(None) for stride in out.strides)
    return [source[last] for source in inputs], out[last]


def _in_order(operation: Operation, inputs: Sequence[Array], out: Array) -> None:
    with np.errstate(all="ignore"):
        for row, column in np.ndindex(*out.shape):
            one = slice(row, row + 1), slice(column, column + 1)
            operation(*(source[one] for source in inputs), out[one])


def divide_signed(left: Array, right: Array, out: Array) -> None:
    """Quotient rounded toward zero."""
    _require_divisors(right)
    # Exact: an f64 quotient of 32-bit integers rounds to no integer that it is not.
    out[...] = np.trunc(np.divide(left, right, dtype=np.float64)).astype(np.int64)


def divide_unsigned(left: Array, right: Array, out: Array) -> None:
    """Quotient rounded down."""
    _require_divisors(right)
    np.floor_divide(left, right, out)


def _require_divisors(right: Array) -> None:
    if not right.all():
        raise errors.InvalidArgument("integer division by zero")


def shift_left(left: Array, right: Array, out: Array) -> None:
    """Shift up."""
    np.left_shift(left, right & _BITS, out)


def shift_right(left: Array, right: Array, out: Array) -> None:
    """Shift down; with the sign for signed elements."""
    np.right_shift(left, right & _BITS, out)


def count_leading_zeros(source: Array, out: Array) -> None:
    """Zero bits above the highest one; 32 for 0."""
    _, bits = np.frexp(source.astype(np.float64))
    np.subtract(32, bits, out, casting="unsafe")


def exponential(source: Array, out: Array) -> None:
    """e to the power; computed in f64, whose rounding is nearly always that of an exact result."""
    out[...] = np.exp(source, dtype=np.float64)


def logarithm(source: Array, out: Array) -> None:
    """Natural logarithm; in f64 as :func:`exponential`."""
    out[...] = np.log(source, dtype=np.float64)


def reciprocal_root(source: Array, out: Array) -> None:
    """1 / sqrt, both rounded to f32."""
    np.divide(np.float32(1), np.sqrt(source), out)


def copy(source: Array, out: Array) -> None:
    """The elements themselves."""
    out[...] = source
