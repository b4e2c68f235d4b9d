"""What ``halgpu run`` does with results: print, write to files, compare. Texts are those of iree-run-module.

Where that tool (3.13) calls equal scalars different, this one compares them, floats within the tolerance of
their type; and integers of one width match each other, so that .npy files serve for signless results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, TextIO

import numpy as np

from halgpu import elements, errors
from halgpu.buffer_view import BufferView, Encoding, NDArray
from halgpu.cli import npy
from halgpu.cli.values import Ignored, Parsed, Tensor
from halgpu.devices.buffer import Buffer as HalBuffer
from halgpu.elements import ElementType
from halgpu.signature import Value
from halgpu.text import counted
from halgpu.vm.buffer import Buffer as VmBuffer
from halgpu.vm.lists import List

# A calling convention's letter -> type name, numpy dtype, printf form of a printed result.
PRIMITIVES = {"i": ("i32", "d"), "I": ("i64", "d"), "f": ("f32", "g"), "F": ("f64", "g")}
_REF_NAMES: dict[type, str] = {
    BufferView: "hal.buffer_view", HalBuffer: "hal.buffer", VmBuffer: "vm.buffer", List: "vm.list",
}  # fmt: skip
COMPARED = 1024
"""Elements that a mismatch shows."""


# Text -------------------------------------------------------------------------------------------------


def format_result(value: Any, result: Value, limit: int) -> str:
    """A result as iree-run-module prints it, without a line's end."""
    if result.is_scalar:
        name, form = PRIMITIVES[result.cconv]
        return f"{name}={_format_number(value, form)}"
    if value is None:
        return "(null)"
    if isinstance(value, BufferView):
        return f"hal.buffer_view\n{format_view(_on_host(value), limit)}"
    return f"{_ref_name(value)}\n(no printer)"


def format_view(tensor: Tensor, limit: int) -> str:
    """``2x2xf32=[1 2][3 4]``."""
    if tensor.element.is_packed:
        raise errors.Unimplemented(
            f"{tensor.element} elements are packed and have no text: use --output=@file.bin"
        )
    return f"{tensor.type_text}={elements.format_elements(tensor.array, tensor.element, limit)}"


def _format_number(value: Any, form: str) -> str:
    return str(value) if form == "d" else elements.format_float(value, form)


def _ref_name(value: Any) -> str:
    for kind, name in _REF_NAMES.items():
        if isinstance(value, kind):
            return name
    return "empty" if value is None else f"vm.ref<{type(value).__name__}>"


def _on_host(view: BufferView) -> Tensor:
    if view.element_type.is_packed:
        data = np.frombuffer(bytes(view.buffer.read()[: view.byte_length]), np.uint8)
        return Tensor(data, view.element_type, view.shape)
    return Tensor(view.to_numpy(), view.element_type, view.shape)


def print_all(values: Sequence[Any], results: Sequence[Value], limit: int, stream: TextIO) -> None:
    """Print all results under their numbers."""
    for index, (value, result) in enumerate(zip(values, results, strict=True)):
        stream.write(f"result[{index}]: {format_result(value, result, limit)}\n")


# Files ------------------------------------------------------------------------------------------------


def check_outputs(specs: Sequence[str], results: Sequence[Value]) -> None:
    """Refuse ``--output`` values that cannot be followed, before anything runs."""
    if len(specs) != len(results):
        raise errors.OutOfRange(
            f"expected {counted(len(results), 'output')}, one for each result, found {len(specs)}"
        )
    for spec in specs:
        if spec not in ("", "-") and (spec[0] not in "@+" or len(spec) < 2):
            raise errors.InvalidArgument(
                f"output '{spec}' is unknown: expected nothing, -, @file or +file (.npy, or anything for raw bytes)"
            )


def write_all(
    specs: Sequence[str], values: Sequence[Any], results: Sequence[Value], limit: int, stream: TextIO
) -> None:
    """Follow ``--output``, one value a result."""
    for spec, value, result in zip(specs, values, results, strict=True):
        if spec == "-":
            stream.write(format_result(value, result, limit) + "\n")
        elif spec:
            _write_file(spec, _as_array(value, result))


def _write_file(spec: str, array: NDArray) -> None:
    try:
        with open(spec[1:], "wb" if spec[0] == "@" else "ab") as file:
            _write(file, array, spec.endswith(".npy"))
    except (OSError, ValueError) as error:
        raise errors.PermissionDenied(
            f"cannot write '{spec[1:]}': {getattr(error, 'strerror', error)}"
        ) from error


def _write(file: BinaryIO, array: NDArray, as_npy: bool) -> None:
    if as_npy:
        npy.write(file, array)
    else:
        file.write(np.ascontiguousarray(array).tobytes())


def _as_array(value: Any, result: Value) -> NDArray:
    """The array of a result: scalars have rank 0, buffers are bytes (i8), null is empty."""
    if result.is_scalar:
        return np.array(value, elements.of_name(PRIMITIVES[result.cconv][0]).dtype)
    if value is None:
        return np.empty(0, np.int8)
    if isinstance(value, BufferView):
        return _on_host(value).array
    if isinstance(value, HalBuffer):
        return np.frombuffer(bytes(value.read()), np.int8)
    if isinstance(value, VmBuffer):
        return np.frombuffer(bytes(value), np.int8)
    raise errors.InvalidArgument(f"a {_ref_name(value)} cannot be written to a file")


# Comparison -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Equality:
    """How near is near enough: absolute tolerances by element type, and a relative one.

    ``exact`` compares bytes instead.
    """

    f16: float = 1e-3
    f32: float = 1e-4
    f64: float = 1e-4
    bf16: float = 1e-2
    relative: float = 1e-5
    exact: bool = False

    def absolute(self, element: ElementType) -> float | None:
        """The absolute tolerance for elements of a type; None where they have to be equal."""
        if self.exact:
            return None
        return {"f16": self.f16, "f32": self.f32, "f64": self.f64, "bf16": self.bf16}.get(element.name)


def compare_all(
    expected: Sequence[Parsed], values: Sequence[Any], results: Sequence[Value], equality: Equality,
    stream: TextIO,
) -> bool:  # fmt: skip
    """Compare all results with what is expected, print what differs, and return whether nothing does."""
    if len(expected) != len(values):
        stream.write(f"[FAILED] expected {len(expected)} list elements but {len(values)} provided\n")
        return False
    matched = True
    for index, (want, value, result) in enumerate(zip(expected, values, results, strict=True)):
        text = _difference(want, value, result, equality)
        if text:
            matched = False
            stream.write(f"[FAILED] result[{index}]: {text}\n")
    if matched:
        stream.write("[SUCCESS] all function outputs matched their expected values.\n")
    return matched


def _difference(want: Parsed, value: Any, result: Value, equality: Equality) -> str:
    """What differs, or nothing."""
    if isinstance(want, Ignored):
        return ""
    if result.is_scalar and isinstance(want, (int, float)):
        return _scalar_difference(want, value, result, equality)
    if isinstance(want, Tensor) and not want.storage and isinstance(value, BufferView):
        return _view_difference(_as_actual(want, value.element_type), value, equality)
    return f"variant types mismatch; expected {_parsed_name(want, result)} but got {_name(value, result)}"


def _name(value: Any, result: Value) -> str:
    return PRIMITIVES[result.cconv][0] if result.is_scalar else _ref_name(value)


def _parsed_name(want: Parsed, result: Value) -> str:
    if isinstance(want, Tensor):
        return "hal.buffer" if want.storage else "hal.buffer_view"
    return PRIMITIVES[result.cconv][0] if result.is_scalar else "i64"


def _scalar_difference(want: float, value: Any, result: Value, equality: Equality) -> str:
    name, form = PRIMITIVES[result.cconv]
    element = elements.of_name(name)
    pair = np.array([want, value], element.dtype)
    if _matching(pair[:1], pair[1:], element, equality).all():
        return ""
    form = "d" if form == "d" else "G"
    shown = [_format_number(number, form) for number in pair.tolist()]
    return f"{name} values differ\n  expected: {shown[0]}\n  actual: {shown[1]}"


def _as_actual(want: Tensor, actual: ElementType) -> Tensor:
    """``want`` with the result's element type where the two are interchangeable."""
    if want.element.bits != actual.bits or not elements.compatible(want.element, actual) or actual.is_packed:
        return want
    array = want.array if want.array.dtype.isnative else want.array.astype(want.array.dtype.newbyteorder("="))
    return Tensor(np.ascontiguousarray(array).reshape(want.shape).view(actual.dtype), actual, want.shape)


def _view_difference(want: Tensor, view: BufferView, equality: Equality) -> str:
    if view.encoding != Encoding.DENSE_ROW_MAJOR:
        raise errors.Unimplemented("only dense results can be compared")
    actual = _on_host(view)
    reason = _reason(want, actual, equality)
    if not reason:
        return ""
    return (
        f"{reason}; expected that the view is equal to contents of a view of {want.type_text}"
        f"\n  expected:\n{format_view(want, COMPARED)}\n  actual:\n{format_view(actual, COMPARED)}"
    )


def _reason(want: Tensor, actual: Tensor, equality: Equality) -> str:
    if want.shape != actual.shape or want.element.code != actual.element.code:
        return f"metadata is {actual.type_text}; expected that the view matches {want.type_text}"
    expected, found = want.array.reshape(-1), actual.array.reshape(-1)
    differing = ~_matching(expected, found, actual.element, equality)
    if not differing.any():
        return ""
    at = int(differing.argmax())
    texts = [elements.format_array(array[at : at + 1], actual.element)[0] for array in (found, expected)]
    return f"element at index {at} ({texts[0]}) does not match the expected ({texts[1]})"


def _matching(expected: NDArray, found: NDArray, element: ElementType, equality: Equality) -> NDArray:
    """Elementwise: equal, both NaN, or within absolute + relative * |expected| of a finite value."""
    tolerance = equality.absolute(element)
    if tolerance is None:
        size = expected.dtype.itemsize
        pair = [np.ascontiguousarray(array).view(np.uint8).reshape(-1, size) for array in (expected, found)]
        equal: NDArray = (pair[0] == pair[1]).all(axis=1)
        return equal
    want, have = expected.astype(np.float64), found.astype(np.float64)
    with np.errstate(all="ignore"):
        near = np.abs(have - want) <= tolerance + equality.relative * np.abs(want)
    matching: NDArray = (have == want) | (np.isnan(have) & np.isnan(want)) | (np.isfinite(want) & near)
    return matching


def rounded_to_single(value: float) -> float:
    """A tolerance as the tool keeps it: those of f16, f32 and bf16 are C floats."""
    return float(np.float32(value)) if math.isfinite(value) else value
