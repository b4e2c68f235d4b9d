"""Constants of hand-written kernels: their C layout against ctypes and the languages' rules, words, conversions."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halgpu.devices.constants import (
    SCALARS,
    ConstantType,
    Passed,
    Scalar,
    Struct,
    constant_type,
    misfit,
    offsets,
    quick_converter,
    size,
    to_words,
    words,
)
from halgpu.errors import Incompatible, InvalidArgument, OutOfRange

CTYPES = {
    "i8": ctypes.c_int8, "u8": ctypes.c_uint8, "i16": ctypes.c_int16, "u16": ctypes.c_uint16, "i32": ctypes.c_int32,
    "u32": ctypes.c_uint32, "i64": ctypes.c_int64, "u64": ctypes.c_uint64, "f32": ctypes.c_float,
    "f64": ctypes.c_double,
}  # fmt: skip
WHAT = "kernel 'k': constant 0"


def converted(kind: ConstantType, value: Any, language: str = "opencl-c") -> list[int]:
    return np.frombuffer(to_words(kind, value, WHAT, language), np.uint32).tolist()


@given(st.lists(st.sampled_from(sorted(CTYPES)), min_size=1, max_size=9))
@pytest.mark.parametrize("language", ["opencl-c", "cuda-c"])
def test_structures_of_scalars_have_ctypes_layout(language: str, names: list[str]) -> None:
    fields = [(f"f{index}", CTYPES[name]) for index, name in enumerate(names)]
    expected = type("expected", (ctypes.Structure,), {"_fields_": fields})
    found = Struct({f"f{index}": name for index, name in enumerate(names)})
    assert size(found, language) == ctypes.sizeof(expected)
    assert list(offsets(found, language)) == [getattr(expected, name).offset for name, _ in fields]


@pytest.mark.parametrize(
    ("fields", "language", "at", "total"),
    [
        ({"a": "i32", "b": "i8"}, "opencl-c", [0, 4], 8),
        ({"a": "i8", "b": "f64", "c": "i8"}, "opencl-c", [0, 8, 16], 24),
        # OpenCL C 1.2 6.1.5: a vector of 3 is aligned, and sized, as one of 4.
        ({"a": "i32", "b": "f32x3"}, "opencl-c", [0, 16, 20, 24], 32),
        # CUDA C++ Programming Guide, table "Alignment Requirements": float3 4, double4 16, char4 4.
        ({"a": "i32", "b": "f32x3"}, "cuda-c", [0, 4, 8, 12], 16),
        ({"a": "i8", "b": "f64x4"}, "cuda-c", [0, 16, 24, 32, 40], 48),
        ({"a": "i8", "b": "f64x4"}, "opencl-c", [0, 32, 40, 48, 56], 64),
        ({"a": "i8", "b": "i8x4"}, "cuda-c", [0, 4, 5, 6, 7], 8),
        ({"a": "i8", "b": Struct(c="i16", d="i8"), "e": "i8"}, "opencl-c", [0, 2, 4, 6], 8),
    ],
)
def test_layouts_by_the_languages_rules(
    fields: dict[str, Any], language: str, at: list[int], total: int
) -> None:
    found = Struct(fields)
    assert (list(offsets(found, language)), size(found, language)) == (at, total)
    dtype = found.dtype(language)
    assert dtype.itemsize == total


def test_cuda_has_no_vectors_of_8() -> None:
    from halgpu.devices.constants import check_language

    check_language(constant_type("f32x8"), "opencl-c")
    with pytest.raises(Incompatible, match="CUDA has no vectors of 8"):
        check_language(Struct(a="f32x8"), "cuda-c")


@pytest.mark.parametrize("wrong", ["u31", "int", "f32x5", "f32x", "bf16", "", "u32 ", 4, None, b"u32"])
def test_a_wrong_type_is_answered_with_those_there_are(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"constant"):
        constant_type(wrong)
    with pytest.raises(InvalidArgument):
        Struct(a=wrong)


def test_a_structure_needs_a_field() -> None:
    with pytest.raises(InvalidArgument, match="needs a field"):
        Struct()


# -- words ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("u8", 255, [255]),
        ("i8", -1, [255]),
        ("i16", -2, [0xFFFE]),
        ("i32", -1, [0xFFFFFFFF]),
        ("u64", 2**40 + 7, [7, 256]),
        ("i64", -1, [0xFFFFFFFF, 0xFFFFFFFF]),
        ("f16", 1.0, [0x3C00]),
        ("f32", 2, [0x40000000]),
        ("f64", -2.0, [0, 0xC0000000]),
        ("f32", float("inf"), [0x7F800000]),
        ("u32", True, [1]),
        ("u32", np.bool_(True), [1]),
        ("u32", np.int8(3), [3]),
        ("f32", np.float64(0.5), [0x3F000000]),
        ("u32", np.array(5), [5]),
        ("f32x3", (1, 2.0, np.float32(0)), [0x3F800000, 0x40000000, 0]),
        ("i8x2", np.array([-1, 2], np.int8), [255, 2]),
    ],
)
def test_values_become_words(kind: str, value: Any, expected: list[int]) -> None:
    known = constant_type(kind)
    assert converted(known, value) == expected
    assert words(known) == len(expected)
    quick = quick_converter([known])
    if quick is not None and not isinstance(value, np.bool_):
        assert list(quick((value,))) == expected


STRUCT = Struct(a="i8", b="f64", c=Struct(d="u16", e="f32x2"))
STRUCT_WORDS = [0xFB, 0, 0x40080000, 9, 0x3F800000, 0x40000000]


@pytest.mark.parametrize(
    "value",
    [
        (-5, 3.0, (9, (1, 2))),
        {"b": 3.0, "a": -5, "c": {"d": 9, "e": [1, 2]}},
        np.array((-5, 3.0, (9, (1, 2))), STRUCT.dtype()),
        np.array([(-5, 3.0, (9, (1, 2)))], STRUCT.dtype())[0],
    ],
    ids=["sequence", "mapping", "array", "scalar"],
)
def test_structures_become_words(value: Any) -> None:
    assert converted(STRUCT, value) == STRUCT_WORDS
    assert words(STRUCT) == len(STRUCT_WORDS)


def test_words_become_the_bytes_of_the_c_structure() -> None:
    value = np.array((-5, 3.0, (9, (1, 2))), STRUCT.dtype())
    padding = np.zeros((), STRUCT.dtype())
    for name in ("a", "b"):
        padding[name] = value[name]
    padding["c"]["d"], padding["c"]["e"] = 9, (1, 2)
    passed = Passed([constant_type("u8"), STRUCT], "opencl-c")
    assert passed.pieces((7, *STRUCT_WORDS)) == [b"\x07", padding.tobytes()]
    assert passed.values((7, *STRUCT_WORDS)) == (7, (-5, 3.0, (9, (1.0, 2.0))))


def test_float3_has_the_layout_of_each_language() -> None:
    kind = Struct(a="i32", v="f32x3")
    given = (1, *np.array([1, 2, 3], np.float32).view(np.uint32).tolist())
    v = np.array([1, 2, 3], np.float32).tobytes()
    assert Passed([kind], "opencl-c").pieces(given) == [b"\1" + bytes(15) + v + bytes(4)]
    assert Passed([kind], "cuda-c").pieces(given) == [b"\1\0\0\0" + v]


def test_a_signalling_nan_passes_unchanged() -> None:
    assert Passed([SCALARS["f32"], SCALARS["f16"]], "opencl-c").pieces((0x7F800001, 0x7C01)) == [
        b"\x01\x00\x80\x7f", b"\x01\x7c",
    ]  # fmt: skip


@given(st.data())
def test_quick_and_careful_conversion_agree(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(list(SCALARS.values())), max_size=6))
    values = tuple(data.draw(a_value(kind)) for kind in kinds)
    quick = quick_converter(kinds)
    assert quick is not None
    careful = b"".join(
        to_words(kind, value, WHAT, "opencl-c") for kind, value in zip(kinds, values, strict=True)
    )
    assert np.array(quick(values), np.uint32).tobytes() == careful
    back = Passed(kinds, "opencl-c").values(quick(values))
    np.testing.assert_array_equal(np.array(back, object), np.array(values, object))


def a_value(kind: Scalar) -> st.SearchStrategy[Any]:
    bits = 8 * kind.size
    if kind.is_float:
        return st.floats(width=bits, allow_nan=False)
    low = -(1 << bits - 1) if kind.name[0] == "i" else 0
    return st.integers(low, low + (1 << bits) - 1)


@pytest.mark.parametrize(
    ("kind", "word", "fits"),
    [
        ("u8", 255, True), ("u8", 256, False), ("u8", 0xFFFFFFFF, False), ("i8", 0xFFFFFF80, True),
        ("i8", 0xFFFFFF7F, False), ("i8", 0x80, True), ("i8", 0x180, False), ("i16", 0xFFFF8000, True),
        ("u16", 0x10000, False), ("f16", 0x3C00, True), ("f16", 0x13C00, False), ("i32", 0xFFFFFFFF, True),
    ],
)  # fmt: skip
def test_words_of_narrow_integers_are_extended_numbers(kind: str, word: int, fits: bool) -> None:
    said = misfit([SCALARS["u64"], SCALARS[kind]], (0, 0, word))
    assert said == (None if fits else f"constant 1 does not fit {kind}: its word is {word:#x}")


# -- refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "value", "error", "said"),
    [
        ("u8", 300, OutOfRange, "kernel 'k': constant 0 does not fit u8: 300"),
        ("u8", -1, OutOfRange, "constant 0 does not fit u8: -1"),
        ("u64", 2**64, OutOfRange, "constant 0 does not fit u64"),
        ("i32", 2.0, InvalidArgument, "constant 0 must be an int (i32), found 2.0"),
        ("i32", np.float32(2), InvalidArgument, "must be an int (i32)"),
        ("i32", "2", InvalidArgument, "must be an int (i32), found '2'"),
        ("i32", None, InvalidArgument, "must be an int"),
        ("f32", "2", InvalidArgument, "must be a number (f32), found '2'"),
        ("f32", 1j, InvalidArgument, "must be a number"),
        ("f32", 1e39, OutOfRange, "does not fit f32: 1e+39"),
        ("f16", 70000.0, OutOfRange, "does not fit f16"),
        ("f32x3", (1, 2), InvalidArgument, "constant 0 is f32x3, 3 numbers; found 2: (1, 2)"),
        ("f32x3", 1.0, InvalidArgument, "constant 0 is f32x3, 3 numbers; found 1.0"),
        ("f32x2", "12", InvalidArgument, "constant 0 is f32x2"),
        ("i32x2", (1, 2.5), InvalidArgument, "must be an int (i32), found 2.5"),
        (STRUCT, (1, 2), InvalidArgument, "3 fields; found 2"),
        (STRUCT, {"a": 1}, InvalidArgument, "has fields a, b, c; found a"),
        (STRUCT, (300, 3.0, (9, (1, 2))), OutOfRange, "constant 0, field 'a' does not fit i8: 300"),
        (STRUCT, (3, 3.0, (9.0, (1, 2))), InvalidArgument, "constant 0, field 'c', field 'd' must be an int (u16)"),
        (STRUCT, 7, InvalidArgument, "3 fields; found 7"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused(kind: Any, value: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error) as caught:
        converted(constant_type(kind), value)
    assert said in str(caught.value)
    quick = quick_converter([constant_type(kind)])
    if quick is not None:
        with pytest.raises(Exception):  # noqa: B017, PT011  # whatever it is, the careful way says it in words
            quick((value,))


@pytest.mark.parametrize(
    "kind",
    [Struct(a="i32", b="i8"), Struct(a="i8", b="f64", c="i8"), Struct(a="i32", v="f32x3")],
    ids=str,
)
def test_a_packed_dtype_for_a_padded_structure_is_refused(kind: Struct) -> None:
    aligned = kind.dtype()
    packed = np.dtype([(name, aligned[name]) for name in aligned.names or ()])
    assert packed.itemsize < aligned.itemsize
    with pytest.raises(InvalidArgument) as caught:
        converted(kind, np.zeros((), packed))
    assert f"in C of {aligned.itemsize} bytes" in str(caught.value)
    assert f"found a dtype of {packed.itemsize} bytes" in str(caught.value)
    assert converted(kind, np.zeros((), aligned)) == [0] * words(kind)


def test_other_dtypes_and_shapes_are_refused() -> None:
    kind = Struct(a="i32", b="i8")
    names = np.dtype([("b", "i4"), ("a", "i1")], align=True)
    unsigned = np.dtype([("a", "u4"), ("b", "i1")], align=True)
    for value in (np.zeros((), names), np.zeros((), unsigned), np.zeros(2, kind.dtype())):
        with pytest.raises(InvalidArgument, match="constant 0"):
            converted(kind, value)
    assert converted(kind, np.ones((), np.dtype([("a", "i4"), ("b", "i1")], align=True))) == [1, 1]
