"""Element types against IREE's header, numpy, and the text of the stock iree-run-module."""

from __future__ import annotations

import math
import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halgpu import elements, errors

# IREE runtime/src/iree/hal/buffer_view.h, written out.
CODES = {
    "i1": 0x13000008, "i4": 0x10000004, "i8": 0x10000008, "i16": 0x10000010, "i32": 0x10000020,
    "i64": 0x10000040, "si8": 0x11000008, "si32": 0x11000020, "ui8": 0x12000008, "ui64": 0x12000040,
    "f16": 0x21000010, "f32": 0x21000020, "f64": 0x21000040, "bf16": 0x22000010, "cf64": 0x23000040,
    "cf128": 0x23000080, "f8E5M2": 0x24000008, "f8E4M3FN": 0x25000008, "f8E5M2FNUZ": 0x26000008,
    "f8E4M3FNUZ": 0x27000008, "f8E8M0FNU": 0x28000008, "*8": 8, "*64": 64,
}  # fmt: skip
DTYPES = {
    "i1": np.bool_, "i8": np.int8, "ui8": np.uint8, "si16": np.int16, "i64": np.int64, "f16": np.float16,
    "f64": np.float64, "bf16": ml_dtypes.bfloat16, "cf64": np.complex64, "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz, "f8E8M0FNU": ml_dtypes.float8_e8m0fnu, "*16": "V2",
}  # fmt: skip
IDENTITY = "func.func @f(%a: tensor<?xf32>) -> tensor<?xf32> { return %a : tensor<?xf32> }"


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_names_and_codes_are_those_of_the_header(name, code):
    assert elements.of_name(name).code == code
    assert elements.of_code(code).name == name
    assert elements.of_code(code - (1 << 32) if code >> 31 else code).code == code
    assert elements.of_name(name).bits == code & 0xFF


@pytest.mark.parametrize(("name", "dtype"), DTYPES.items())
def test_dtypes(name, dtype):
    assert elements.of_name(name).dtype == np.dtype(dtype)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(np.int32, "si32"), (np.uint16, "ui16"), (">f8", "f64"), (">i2", "si16"), (bool, "i1"), ("V4", "*32"),
     (ml_dtypes.bfloat16, "bf16"), (ml_dtypes.float8_e5m2, "f8E5M2"), (np.complex128, "cf128")],
)  # fmt: skip
def test_dtypes_name_element_types_in_any_byte_order(dtype, name):
    assert elements.of_dtype(np.dtype(dtype)).name == name


@pytest.mark.parametrize("dtype", ["O", "U3", "M8[s]", [("a", "f4")], "V64"])
def test_dtypes_without_element_type_are_refused(dtype):
    with pytest.raises(errors.InvalidArgument, match="element type"):
        elements.of_dtype(np.dtype(dtype))


def test_mlir_spells_complex_differently():
    assert elements.of_name("complex<f32>") is elements.of_name("cf64")
    for shape, text in (((), "complex<f32>"), ((2,), "2xcomplex<f32>"), ((2, 3), " 2x3x complex<f32> ")):
        assert elements.parse_type(text) == (shape, elements.of_name("cf64"))
    for text in ("2complex<f32>", "2xcomplex<f32", "2xcomplex<f32>x", "complex<f32>xf32", "complex<"):
        with pytest.raises(errors.InvalidArgument):
            elements.parse_type(text)


@pytest.mark.parametrize("name", ["", "f", "q4", "i0", "i256", "f32x", "i-1", "complex<f16>", "F32"])
def test_unknown_names_are_refused(name):
    with pytest.raises(errors.InvalidArgument, match="unknown element type"):
        elements.of_name(name)


def test_packed_elements_have_a_length_and_no_dtype():
    i4 = elements.of_name("i4")
    assert [i4.byte_length(n) for n in (0, 1, 2, 3)] == [0, 1, 1, 2]
    with pytest.raises(errors.Unimplemented, match="i4"):
        _ = i4.dtype


@pytest.mark.parametrize(
    ("found", "expected", "compatible"),
    [("i32", "si32", True), ("ui8", "i1", True), ("i32", "i64", False), ("f32", "f32", True), ("f32", "i32", False),
     ("f16", "bf16", False), ("*8", "f32", True), ("f32", "*32", False)],
)  # fmt: skip
def test_compatibility_is_that_of_buffer_view_assert(found, expected, compatible):
    assert elements.compatible(elements.of_name(found), elements.of_name(expected)) is compatible


@pytest.mark.parametrize("text", ["2x3xf32", "f32", "0xi8", "3x0x4xbf16", "1x1x*16"])
def test_shapes_and_types_are_read_as_they_are_written(text):
    assert elements.format_type(*elements.parse_type(text)) == text


@pytest.mark.parametrize("text", ["2xx3xf32", "-2xf32", "x3xf32", "2xf32x", "1.5xf32", "", "2x", "٣xf32"])
def test_malformed_shapes_are_refused(text):
    with pytest.raises(errors.InvalidArgument):
        elements.parse_type(text)


@pytest.mark.parametrize("text", ["4294967296x4294967296xi8", "9" * 30 + "xi8", "9" * 5000 + "xi8"])
def test_overflowing_shapes_are_refused(text):
    with pytest.raises(errors.OutOfRange, match="overflows"):
        elements.parse_type(text)


# Text of elements: the stock tool reads raw bytes and prints them.


def stock_text(iree_tool, tmp_path, compile_mlir, type_text: str, data: bytes, *flags: str) -> str:
    (tmp_path / "m.vmfb").write_bytes(compile_mlir(IDENTITY, "llvm-cpu"))
    (tmp_path / "data.bin").write_bytes(data)
    done = iree_tool(
        "iree-run-module", f"--module={tmp_path}/m.vmfb", f"--input={type_text}=@{tmp_path}/data.bin", *flags
    )
    return done.stdout.splitlines()[2].partition("=")[2]


def values_of(element: elements.ElementType) -> np.ndarray:
    """All bit patterns of 8-bit types; edges, specials and random ones of wider types."""
    size = element.dtype.itemsize
    if size == 1:
        return np.arange(256, dtype=np.uint8)
    random = np.random.default_rng(7).integers(0, 256, 40 * size, np.uint8)
    if not element.is_float or element.name == "bf16":
        edges = np.array([0, 1, -1, 127, 128, -(2**15)], np.int64).view(np.uint8).reshape(-1, 8)[:, :size]
    else:
        edges = np.array(
            [0, -0.0, 1, 6e4, 12345.67, 1234.567, 1e-5, 1e-4, math.nan, -math.nan, math.inf, -math.inf, 6e-8]
        )
        edges = edges.astype(f"f{size}").view(np.uint8)
    return np.concatenate([edges.reshape(-1), random])


@pytest.mark.parametrize(
    "name",
    ["i8", "si8", "ui8", "i1", "i16", "ui16", "i32", "ui32", "i64", "ui64", "f16", "bf16", "f32", "f64", "cf64",
     "*16", "f8E5M2", "f8E4M3FN", "f8E5M2FNUZ", "f8E4M3FNUZ", "f8E8M0FNU"],
)  # fmt: skip
def test_elements_print_as_the_stock_tool_prints_them(name, iree_tool, tmp_path, compile_mlir):
    element = elements.of_name(name)
    data = values_of(element)
    array = data.view(element.dtype)
    expected = stock_text(iree_tool, tmp_path, compile_mlir, f"{array.size}x{name}", data.tobytes())
    assert elements.format_elements(array, element) == expected


@pytest.mark.parametrize("limit", [0, 5, 24])
@pytest.mark.parametrize("shape", [(24,), (4, 6), (2, 3, 4), (1, 24, 1), (0, 3), (3, 0), (2, 0, 3), ()])
def test_rows_print_and_stop_as_the_stock_tool_does(shape, limit, iree_tool, tmp_path, compile_mlir):
    element = elements.of_name("f32")
    array = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    expected = stock_text(
        iree_tool, tmp_path, compile_mlir, elements.format_type(shape, element), array.tobytes(),
        f"--output_max_element_count={limit}",
    )  # fmt: skip
    assert elements.format_elements(array, element, limit) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [("f32", "1 -2.5 1e10 0x1.8p3 nan -nan inf -INFINITY .5 +3"), ("f16", "1 1e-7 70000 -inf nan 0.1"),
     ("bf16", "1.00390625 3.3 nan -inf"), ("f64", "1e-300 1e300 0.1"), ("i8", "200 255 -1 0x7f 017 +5"),
     ("i32", "4294967295 -2147483648 0x10"), ("i64", "-5 9223372036854775807"), ("ui8", "200 255"), ("i1", "00 01"),
     ("f8E4M3FN", "1 448 500 nan -0.3"), ("f8E8M0FNU", "1 3.3 0 -1 inf"), ("cf64", "0000803f00000000 0000803F00000040"),
     ("f32", "[1 2][3,4],,[ 5]")],
)  # fmt: skip
def test_elements_are_read_as_the_stock_tool_reads_them(name, text, iree_tool, tmp_path, compile_mlir):
    count = len(re.sub(r"[\[\],]", " ", text).split())
    (tmp_path / "m.vmfb").write_bytes(compile_mlir(IDENTITY, "llvm-cpu"))
    iree_tool(
        "iree-run-module",
        f"--module={tmp_path}/m.vmfb",
        f"--input={count}x{name}={text}",
        f"--output=@{tmp_path}/o.bin",
    )
    parsed = elements.parse_elements(text, elements.of_name(name), count)
    nan = np.isnan(parsed.astype(np.float64)) if elements.of_name(name).is_float else np.zeros(count, bool)
    stock = np.frombuffer((tmp_path / "o.bin").read_bytes(), parsed.dtype)
    assert parsed[~nan].tobytes() == stock[~nan].tobytes()
    assert not elements.of_name(name).is_float or np.isnan(stock.astype(np.float64))[nan].all()


def test_truth_values_in_words_and_digits():
    parsed = elements.parse_elements("[0 1 true false 00 01]", elements.of_name("i1"), 6)
    assert parsed.tolist() == [False, True, True, False, False, True]


def test_one_value_stands_for_all_and_none_for_zeros():
    f32 = elements.of_name("f32")
    assert elements.parse_elements("3", f32, 5).tolist() == [3.0]
    assert elements.parse_elements("", f32, 5).size == 0


@pytest.mark.parametrize(("text", "count"), [("1 2", 3), ("1 2 3", 2), ("1", 0)])
def test_wrong_number_of_elements(text, count):
    with pytest.raises(errors.OutOfRange, match=f"expected {count} elements"):
        elements.parse_elements(text, elements.of_name("f32"), count)


@pytest.mark.parametrize(
    ("name", "text"),
    [("f32", "1x"), ("f32", "1_0"), ("f32", "abc"), ("f32", "1,2e"), ("i8", "256"), ("i8", "-129"), ("i8", "1.5"),
     ("si8", "128"), ("si8", "-129"), ("ui8", "-1"), ("i32", "4294967296"), ("i32", "08"), ("i32", "0x"), ("i64", "1" * 70),
     ("i1", "2"), ("i1", "yes"), ("cf64", "1"), ("*16", "12g4"), ("f32", "１")],
)  # fmt: skip
def test_words_that_are_no_elements(name, text):
    with pytest.raises(errors.InvalidArgument):
        elements.parse_elements(text, elements.of_name(name), 2)


@given(st.sampled_from(["i8", "si16", "ui32", "i64", "ui64"]), st.data())
def test_integers_survive_being_written_and_read(name, data):
    element = elements.of_name(name)
    info = np.iinfo(element.dtype)
    array = np.array(data.draw(st.lists(st.integers(info.min, info.max), min_size=2)), element.dtype)
    text = elements.format_elements(array, element)
    assert elements.parse_elements(text, element, array.size).tolist() == array.tolist()
