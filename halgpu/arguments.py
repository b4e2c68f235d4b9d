"""Python values to what the VM passes, and back: checked against the function's signature.

Arrays keep their element type: nothing is converted but byte order and strides. Integers of one width are
interchangeable: ``int32`` and ``uint32`` both pass for ``i32``, and keep their sign should the program hand
them back; what is signless reads as signed. ``bool`` passes as ``i1``. Python numbers and nested lists have
no element type of their own and take the parameter's, exactly: a number that does not fit is an
OverflowError, one that is not whole is refused for an integer. Views of the device, and pyopencl arrays of
its context, are passed without a copy.

Each parameter gets one converter when the function is looked up, so that a call does little but copy.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from halgpu import elements, errors, foreign
from halgpu.buffer_view import BufferView, NDArray, transfer, upload
from halgpu.elements import ElementType
from halgpu.signature import Value

if TYPE_CHECKING:
    from halgpu.devices import Device

Converter = Callable[[Any], Any]


class WrongType(errors.InvalidArgument, TypeError):
    """An argument of a type that the parameter can never take, such as text for a number."""


class DoesNotFit(errors.InvalidArgument, OverflowError):
    """A number outside of the range of the parameter's element type."""


def converter(parameter: Value, device: Device) -> Converter:
    """Return the function that turns a Python argument into what the VM passes for ``parameter``."""
    if parameter.is_scalar:
        return _scalar_converter(parameter)
    return _tensor_converter(parameter, device)


def result_converter(result: Value) -> Converter | None:
    """Return what turns the VM's value of ``result`` into the user's; None where they are the same."""
    element = result.element
    if not result.is_scalar or element is None:
        return _share
    if element.code == elements.of_name({"i": "i32", "I": "i64", "f": "f32", "F": "f64"}[result.cconv]).code:
        return None
    return lambda value: _decode(value, element)


def _share(value: Any) -> Any:
    # The VM may hold the same view in a global: what the user does to his must not end it.
    return value.share() if type(value) is BufferView else value


# Tensors ----------------------------------------------------------------------------------------------


def _tensor_converter(parameter: Value, device: Device) -> Converter:
    element, shape = parameter.element, parameter.shape
    taken: dict[np.dtype[Any], ElementType] = {}
    # Of the view that was taken last: views of one type have the very same objects for these (buffer_view.py).
    taken_shape: tuple[int, ...] | None = None
    taken_element: ElementType | None = None

    def convert(value: Any) -> Any:
        nonlocal taken_shape, taken_element
        if isinstance(value, BufferView):
            if value.shape is not taken_shape or value.element_type is not taken_element:
                check_tensor(parameter, value.shape, value.element_type)
                taken_shape, taken_element = value.shape, value.element_type
            return value.share() if value.buffer.device is device else transfer(value, device)
        if isinstance(value, np.ndarray):
            array = value
        elif value is None or _is_ref(value):
            return value
        else:
            native = foreign.on_device(value, device)
            if native is not None:
                return _native_view(parameter, native)
            array = _to_array(parameter, value)
        found = taken.get(array.dtype)
        if found is None:
            found = taken[array.dtype] = _check_dtype(parameter, array)
        if array.shape != shape and not parameter.accepts_shape(array.shape):
            raise _mismatch(parameter, array)
        try:
            buffer = upload(device, array, found)
        except errors.ResourceExhausted as error:
            raise errors.ResourceExhausted(f"{parameter.name}: {error.message}") from error
        return BufferView(buffer, array.shape, found.code)

    if element is not None and not element.is_packed:
        taken[element.dtype] = element
    return convert


def _is_ref(value: Any) -> bool:
    from halgpu.devices import Buffer
    from halgpu.vm import Buffer as HostBuffer
    from halgpu.vm import List

    return isinstance(value, (Buffer, HostBuffer, List))


def _check_dtype(parameter: Value, array: NDArray) -> ElementType:
    try:
        found = elements.of_dtype(array.dtype)
    except errors.InvalidArgument:
        raise WrongType(f"{_expected(parameter)}, found an array of dtype {array.dtype}") from None
    expected = parameter.element
    if expected is None:
        return found
    if not elements.compatible(found, expected) or found.bits != expected.bits:
        raise _mismatch(parameter, array)
    # As from the command line and .npy files, integers keep their sign: a program may hand them back.
    return found if found.is_integer and found.dtype != expected.dtype else expected


def check_tensor(parameter: Value, shape: tuple[int, ...], element: ElementType) -> None:
    """Raise InvalidArgument unless a view of ``shape`` and ``element`` may be passed for ``parameter``."""
    expected = parameter.element
    if expected is None:
        return
    if not elements.compatible(element, expected) or not parameter.accepts_shape(shape):
        raise errors.InvalidArgument(f"{_expected(parameter)}, found {elements.format_type(shape, element)}")


def _native_view(parameter: Value, native: foreign.Native) -> BufferView:
    """A view of what lies on the device already; raw bytes take a static parameter's shape."""
    buffer, shape, element = native
    expected = parameter.element
    if element.name == "*8" and parameter.shape is not None and expected is not None:
        if min(parameter.shape, default=0) < 0:
            raise errors.InvalidArgument(
                f"{_expected(parameter)}, found a buffer without a shape: pass a BufferView of it"
            )
        shape, element = parameter.shape, expected
    check_tensor(parameter, shape, element)
    return BufferView(buffer, shape, element.code if expected is None else expected.code)


def _mismatch(parameter: Value, array: NDArray) -> errors.InvalidArgument:
    found = elements.format_type(array.shape, elements.of_dtype(array.dtype))
    hint = ""
    if parameter.element is not None and parameter.accepts_shape(array.shape):
        hint = f" (arrays are never converted silently: use .astype({_dtype_name(parameter.element)}))"
    return errors.InvalidArgument(f"{_expected(parameter)}, found {found}{hint}")


def _dtype_name(element: ElementType) -> str:
    name = "its type" if element.is_packed else element.dtype.name
    return f"numpy.{name}" if hasattr(np, name) else f"ml_dtypes.{name}"


def _expected(parameter: Value) -> str:
    return f"{parameter.name}: expected {parameter.text}"


def _to_array(parameter: Value, value: Any) -> NDArray:
    """An array from what is none: numbers and lists take the parameter's dtype, others keep theirs."""
    try:
        array = foreign.to_array(value)
    except errors.Error:
        raise
    except Exception as error:  # whatever a foreign __array__ raises
        raise WrongType(f"{_expected(parameter)}, found a {type(value).__name__}: {error}") from error
    if array.dtype.kind not in "biufcV":
        raise WrongType(f"{_expected(parameter)}, found a {type(value).__name__}")
    if isinstance(value, (bool, int, float, complex, list, tuple)) and parameter.element is not None:
        return _exactly(parameter, array, parameter.element)
    return array


def _exactly(parameter: Value, array: NDArray, element: ElementType) -> NDArray:
    """``array``, made from Python numbers, in ``element``'s dtype, refusing what does not fit."""
    if not array.size:
        return np.empty(array.shape, element.dtype)
    if element.is_integer:
        return _exact_integers(parameter, array, element)
    if array.dtype.kind == "c" and element.numerical != elements.COMPLEX:
        raise WrongType(f"{_expected(parameter)}, found complex numbers")
    with np.errstate(all="ignore"):
        return array.astype(element.dtype)


def _exact_integers(parameter: Value, array: NDArray, element: ElementType) -> NDArray:
    if array.dtype.kind not in "biu":
        raise WrongType(f"{_expected(parameter)}, found numbers that are no integers")
    low, high = _range(element)
    for value in (int(array.min()), int(array.max())):
        if not low <= value <= high:
            raise DoesNotFit(f"{_expected(parameter)}, found {value}, which does not fit {low} to {high}")
    return array.astype(element.dtype)


def _range(element: ElementType) -> tuple[int, int]:
    if element.numerical == elements.BOOLEAN:
        return 0, 1
    low = 0 if element.numerical == elements.UNSIGNED else -(1 << element.bits - 1)
    high = (1 << element.bits - (element.numerical == elements.SIGNED)) - 1
    return low, high


# Scalars ----------------------------------------------------------------------------------------------


def _scalar_converter(parameter: Value) -> Converter:
    element = parameter.element
    assert element is not None
    if element.is_integer:
        return _integer_converter(parameter, element)
    if parameter.cconv in "fF":
        single = parameter.cconv == "f"
        return lambda value: _to_float(parameter, value, single)
    # f16 and bf16 travel as bits in an i32 register.
    return lambda value: _float_bits(_to_float(parameter, value, False), element)


def register(parameter: Value, number: float) -> int | float:
    """``number`` as the VM passes it in ``parameter``'s register, whatever narrower type is declared."""
    return _round_to_single(number) if parameter.cconv == "f" else number


def _integer_converter(parameter: Value, element: ElementType) -> Converter:
    low, high = _range(element)
    wrap, top = 1 << element.bits, (1 << element.bits - 1) - 1 if element.bits > 1 else 1

    def convert(value: Any) -> int:
        number = value if type(value) is int else _to_integer(parameter, value)
        if not low <= number <= high:
            raise DoesNotFit(f"{_expected(parameter)}, found {number}, which does not fit {low} to {high}")
        return number if number <= top else number - wrap

    return convert


def _python_number(parameter: Value, value: Any) -> Any:
    """``value`` itself or, of an array of rank 0, its element."""
    if isinstance(value, BufferView):
        value = value.to_numpy()
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, (str, bytes, bytearray, complex, np.ndarray)) or not (
        hasattr(value, "__index__") or hasattr(value, "__float__")
    ):
        raise WrongType(f"{_expected(parameter)}, found {type(value).__name__} {str(value)[:40]!r}")
    return value


def _to_integer(parameter: Value, value: Any) -> int:
    value = _python_number(parameter, value)
    if hasattr(value, "__index__"):
        return operator.index(value)
    number = float(value)
    if not number.is_integer():
        raise errors.InvalidArgument(f"{_expected(parameter)}, found {number}, which is no whole number")
    return int(number)


def _to_float(parameter: Value, value: Any, single: bool) -> float:
    if type(value) is not float:
        value = _python_number(parameter, value)
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError) as error:
        raise DoesNotFit(f"{_expected(parameter)}, found {str(value)[:40]}: {error}") from None
    return _round_to_single(number) if single else number


def _round_to_single(number: float) -> float:
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def _float_bits(number: float, element: ElementType) -> int:
    with np.errstate(all="ignore"):
        return int(np.array(number, np.float32).astype(element.dtype).view(f"uint{element.bits}"))


def _decode(value: Any, element: ElementType) -> Any:
    """The Python number of a register's ``value`` of a narrower declared type."""
    bits = value & ((1 << element.bits) - 1)
    if element.numerical == elements.BOOLEAN:
        return bool(bits & 1)
    if element.is_float:
        return float(np.array(bits, f"uint{element.bits}").view(element.dtype))
    if element.numerical != elements.UNSIGNED and bits >> element.bits - 1:
        return bits - (1 << element.bits)
    return bits
