"""Python values as arguments: what is taken, what is refused, and what the refusal says."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from halgpu import arguments, errors
from halgpu.buffer_view import BufferView
from halgpu.devices import open_device
from halgpu.signature import DECLARATION, of_function


@pytest.fixture(scope="module")
def device():
    return open_device("host")


def parameter(text: str, cconv: str = "r"):
    return of_function(f"0{cconv}_v", {DECLARATION: f"sync func @f(%input0: {text}) -> ()"}).parameters[0]


def convert(device, text: str, value, cconv: str = "r"):
    return arguments.converter(parameter(text, cconv), device)(value)


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("tensor<2xf32>", np.array([1, 2], np.float32), "2xf32"),
        ("tensor<2xf32>", np.array([1, 2], ">f4"), "2xf32"),
        ("tensor<2xf32>", [1, 2.5], "2xf32"),
        ("tensor<?x2xf32>", np.zeros((5, 2), np.float32), "5x2xf32"),
        ("tensor<f32>", 2, "f32"),
        ("tensor<f32>", np.float32(2), "f32"),
        ("tensor<2xi32>", np.array([1, 2], np.int32), "2xi32"),
        ("tensor<2xi32>", np.array([1, 2], np.uint32), "2xui32"),
        ("tensor<2xi32>", (1, -2), "2xi32"),
        ("tensor<2xui8>", np.array([1, 2], np.int8), "2xsi8"),
        ("tensor<2xui8>", [1, 255], "2xui8"),
        ("tensor<2xsi8>", np.array([1, 2], np.int8), "2xsi8"),
        ("tensor<2xi1>", np.array([True, False]), "2xi1"),
        ("tensor<2xi1>", [True, False], "2xi1"),
        ("tensor<2xbf16>", np.array([1, 2], ml_dtypes.bfloat16), "2xbf16"),
        ("tensor<2xbf16>", np.array([b"\0\0", b"\0\0"], "V2"), "2xbf16"),
        ("tensor<0xf32>", [], "0xf32"),
        ("tensor<3x0x4xf32>", np.zeros((3, 0, 4), np.float32), "3x0x4xf32"),
        ("tensor<2xcomplex<f32>>", [1j, 2], "2xcf64"),
        ("!hal.buffer_view", np.array([1], np.int16), "1xsi16"),
    ],
)
def test_arrays_that_fit(device, text, value, expected):
    view = convert(device, text, value)
    assert view.type_text == expected
    array = np.asarray(view)
    source = value if isinstance(value, np.ndarray) else np.array(value, array.dtype)
    assert array.tobytes() == source.astype(source.dtype.newbyteorder("=")).tobytes()


@pytest.mark.parametrize(
    ("text", "value", "message"),
    [
        ("tensor<2xf32>", np.zeros(3, np.float64), "input0: expected tensor<2xf32>, found 3xf64"),
        ("tensor<2xf32>", np.zeros(2, np.float64), r"found 2xf64 .*\.astype\(numpy.float32\)"),
        ("tensor<2xf32>", np.zeros((2, 1), np.float32), "found 2x1xf32"),
        ("tensor<f32>", np.zeros(1, np.float32), "found 1xf32"),
        ("tensor<2xf32>", np.zeros(2, np.int32), "found 2xsi32"),
        ("tensor<2xi64>", np.zeros(2, np.int32), r"found 2xsi32 .*numpy.int64"),
        ("tensor<2xbf16>", np.zeros(2, np.float16), r"found 2xf16 .*ml_dtypes.bfloat16"),
        ("tensor<2xf32>", np.zeros(2, "V2"), r"found 2x\*16"),
        ("tensor<2xf32>", [1, 2, 3], "found 3xf32"),
        ("tensor<2xf32>", np.array(["a", "b"]), "an array of dtype <U1"),
        ("tensor<2xf32>", "ab", "found a str"),
        ("tensor<2xf32>", [[1], [2, 3]], "found a list"),
        ("tensor<2xf32>", object(), "found a object"),
        ("tensor<2xi32>", [1.5, 2], "no integers"),
        ("tensor<2xi8>", [1, 256], "256, which does not fit -128 to 255"),
        ("tensor<2xui8>", [-1, 1], "-1, which does not fit 0 to 255"),
        ("tensor<1xi64>", [2**64], "expected tensor<1xi64>"),
        ("tensor<2xf32>", [1j, 2], "complex"),
    ],
)
def test_arrays_that_do_not_fit(device, text, value, message):
    with pytest.raises(errors.InvalidArgument, match=message):
        convert(device, text, value)


def test_foreign_arrays_are_taken_by_the_array_protocol(device):
    class Foreign:
        def __array__(self, dtype=None, copy=None):
            return np.array([1, 2], np.float32)

    class Broken:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("out of order")

    assert convert(device, "tensor<2xf32>", Foreign()).to_numpy().tolist() == [1, 2]
    with pytest.raises(errors.InvalidArgument, match=r"found a Broken: out of order"):
        convert(device, "tensor<2xf32>", Broken())


def test_views_are_passed_without_a_copy_and_checked(device):
    view = BufferView.from_array(np.zeros(2, np.float32), device)
    before = device.statistics.live_handles
    passed = convert(device, "tensor<2xf32>", view)
    assert passed.buffer is view.buffer
    assert device.statistics.live_handles == before
    view.release()
    assert passed.to_numpy().tolist() == [0, 0]
    with pytest.raises(errors.InvalidArgument, match=r"expected tensor<3xf32>, found 2xf32"):
        convert(device, "tensor<3xf32>", passed)
    with pytest.raises(errors.FailedPrecondition, match="released"):
        convert(device, "tensor<2xf32>", view)


def test_views_are_checked_after_one_was_taken_too(device):
    take = arguments.converter(parameter("tensor<?xf32>"), device)
    good = BufferView.from_array(np.zeros(2, np.float32), device)
    longer = BufferView.from_array(np.zeros(3, np.float32), device)
    wrong_type = BufferView.from_array(np.zeros(2, np.int32), device)
    wrong_shape = BufferView.from_array(np.zeros((1, 2), np.float32), device)
    for _ in range(2):
        assert take(good).shape == (2,)
        for bad in (wrong_type, wrong_shape):
            with pytest.raises(errors.InvalidArgument):
                take(bad)
        assert take(longer).shape == (3,)
    good.release()
    with pytest.raises(errors.FailedPrecondition):
        take(good)


def test_views_of_another_device_are_copied(device):
    view = BufferView.from_array(np.array([1, 2], np.float32), open_device("null"))
    passed = convert(device, "tensor<2xf32>", view)
    assert passed.device is device
    assert passed.shape == (2,)


def test_null_and_raw_buffers_pass_as_refs(device):
    buffer = device.allocator.allocate(4)
    assert convert(device, "tensor<1xf32>", None) is None
    assert convert(device, "!hal.buffer", buffer) is buffer


@pytest.mark.parametrize(
    ("text", "cconv", "value", "expected"),
    [
        ("f32", "f", 2, 2.0), ("f32", "f", 2.0, 2.0), ("f32", "f", np.float32(2), 2.0), ("f32", "f", True, 1.0),
        ("f32", "f", np.array(2.5), 2.5), ("f32", "f", 0.1, float(np.float32(0.1))), ("f64", "F", 0.1, 0.1),
        ("f32", "f", 1e300, float("inf")), ("i32", "i", 2, 2), ("i32", "i", 2.0, 2), ("i32", "i", np.float32(2), 2),
        ("i32", "i", np.uint8(200), 200), ("i32", "i", 2**32 - 1, -1), ("i32", "i", -(2**31), -(2**31)),
        ("i64", "I", 2**63, -(2**63)), ("index", "I", 7, 7), ("i1", "i", True, 1), ("i1", "i", 0, 0),
        ("i8", "i", 255, -1), ("i8", "i", -128, -128), ("ui8", "i", 255, -1), ("f16", "i", 1.5, 0x3E00),
        ("bf16", "i", -2.0, 0xC000),
    ],
)  # fmt: skip
def test_scalars_that_fit(device, text, cconv, value, expected):
    passed = convert(device, text, value, cconv)
    assert passed == expected
    assert type(passed) is (float if cconv in "fF" else int)


@pytest.mark.parametrize(
    ("text", "cconv", "value", "kind"),
    [
        ("i32", "i", "2", TypeError), ("f32", "f", "2", TypeError), ("f32", "f", None, TypeError),
        ("f32", "f", [1], TypeError), ("f32", "f", np.array([1.0]), TypeError), ("f32", "f", 1j, TypeError),
        ("i32", "i", 2**40, OverflowError), ("i32", "i", -(2**31) - 1, OverflowError), ("i8", "i", 256, OverflowError),
        ("ui8", "i", -1, OverflowError), ("i1", "i", 2, OverflowError), ("f64", "F", 10**400, OverflowError),
        ("i32", "i", 2.5, ValueError), ("i32", "i", float("nan"), ValueError), ("i32", "i", float("inf"), ValueError),
    ],
)  # fmt: skip
def test_scalars_that_do_not_fit(device, text, cconv, value, kind):
    with pytest.raises(errors.InvalidArgument, match=f"input0: expected {text}") as caught:
        convert(device, text, value, cconv)
    assert isinstance(caught.value, kind)


@pytest.mark.parametrize(
    ("text", "cconv", "value", "expected"),
    [("i8", "i", 255, -1), ("ui8", "i", -1, 255), ("i1", "i", 1, True), ("i16", "i", 5, 5), ("f16", "i", 0x3E00, 1.5),
     ("bf16", "i", 0xC000, -2.0)],
)  # fmt: skip
def test_narrow_results_are_decoded(text, cconv, value, expected):
    [result] = of_function(f"0v_{cconv}", {DECLARATION: f"sync func @f() -> (%output0: {text})"}).results
    decoded = arguments.result_converter(result)(value)
    assert decoded == expected
    assert type(decoded) is type(expected)


@pytest.mark.parametrize(
    ("text", "cconv"), [("i32", "i"), ("i64", "I"), ("index", "I"), ("f32", "f"), ("f64", "F")]
)
def test_results_as_wide_as_their_register_need_no_decoding(text, cconv):
    [result] = of_function(f"0v_{cconv}", {DECLARATION: f"sync func @f() -> (%output0: {text})"}).results
    assert arguments.result_converter(result) is None
