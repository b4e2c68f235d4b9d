"""Calling conventions against an oracle that packs value by value, and against the numbers of IREE's structs."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halgpu import errors
from halgpu.vm import CallingConvention, CallLayout
from halgpu.vm.abi import Item, Span, describe

DISPATCH = "0rIiiiCiDCrIID_v"  # hal_loader.executable.dispatch

# The oracle: writes one value after the other, padding to each one's alignment.

_ONE = {"i": ("<i", 4), "I": ("<q", 8), "f": ("<f", 4), "F": ("<d", 8), "r": ("<QQ", 8)}


class Oracle:
    def __init__(self) -> None:
        self.data = b""
        self.refs: list[Any] = []

    def align(self, alignment: int) -> None:
        while len(self.data) % alignment:
            self.data += b"\0"

    def put(self, kind: str, value: Any) -> None:
        layout, alignment = _ONE[kind]
        self.align(alignment)
        if kind != "r":
            self.data += struct.pack(layout, value)
            return
        handle = 0
        if value is not None:
            self.refs.append(value)
            handle = len(self.refs)
        self.data += struct.pack(layout, handle, 0)

    def pack(self, items: Sequence[Item], values: Sequence[Any]) -> bytes:
        for item, value in zip(items, values, strict=True):
            if isinstance(item, str):
                self.put(item, value)
                continue
            self.put("i", len(value))
            if value:
                self.align(max(_ONE[kind][1] for kind in item.kinds))
            for entry in value:
                for kind, element in zip(
                    item.kinds, (entry,) if len(item.kinds) == 1 else entry, strict=True
                ):
                    self.put(kind, element)
        return self.data


KINDS = st.sampled_from("iIfFr")
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": st.integers(-(2**31), 2**31 - 1),
    "I": st.integers(-(2**63), 2**63 - 1),
    "f": st.floats(width=32, allow_nan=False),
    "F": st.floats(allow_nan=False),
    "r": st.one_of(st.none(), st.builds(lambda: object())),
}
ITEMS: st.SearchStrategy[Item] = st.one_of(KINDS, st.builds(Span, st.text("iIfFr", min_size=1, max_size=4)))


@st.composite
def conventions(draw: st.DrawFn) -> tuple[tuple[Item, ...], list[Any]]:
    items = tuple(draw(st.lists(ITEMS, max_size=6)))
    values: list[Any] = []
    for item in items:
        if isinstance(item, str):
            values.append(draw(VALUES[item]))
            continue
        entry = st.tuples(*(VALUES[kind] for kind in item.kinds))
        entries = draw(st.lists(entry, max_size=4))
        values.append(tuple(e[0] for e in entries) if len(item.kinds) == 1 else tuple(entries))
    return items, values


@given(conventions())
def test_pack_and_unpack_against_the_oracle(case: tuple[tuple[Item, ...], list[Any]]) -> None:
    items, values = case
    layout = CallLayout(items)
    oracle, refs = Oracle(), []
    data = layout.pack(values, refs)
    assert data == oracle.pack(items, values)
    assert refs == oracle.refs
    assert layout.unpack(data, refs) == tuple(values)
    counts = [len(value) for item, value in zip(items, values, strict=True) if isinstance(item, Span)]
    assert layout.size(counts) == len(data)
    text = CallingConvention(items, ())
    assert CallingConvention.parse(str(text)) == text


@given(conventions(), st.integers(1, 8), st.booleans())
def test_other_sizes_are_refused(case: tuple[tuple[Item, ...], list[Any]], by: int, longer: bool) -> None:
    items, values = case
    layout = CallLayout(items)
    refs: list[Any] = []
    data = layout.pack(values, refs)
    if not longer and by > len(data):
        return
    wrong = data + bytes(by) if longer else data[:-by]
    with pytest.raises(errors.InvalidArgument, match=rf"bytes, found {len(wrong)}"):
        layout.unpack(wrong, refs)


@given(st.binary(max_size=80), ITEMS, ITEMS)
def test_any_bytes_unpack_or_are_refused(data: bytes, first: Item, second: Item) -> None:
    layout = CallLayout((first, second))
    try:
        values = layout.unpack(data, [None] * 3)
    except errors.InvalidArgument:
        return
    counts = [len(v) for item, v in zip(layout.items, values, strict=True) if isinstance(item, Span)]
    assert layout.size(counts) == len(data)


def test_the_fixed_part_of_dispatch_ends_at_36() -> None:
    layout = CallingConvention.parse(DISPATCH).argument_layout
    assert layout.offsets == (0, 16, 24, 28, 32, 36, None)
    assert layout.prefix_end == 36

    class Prefix(ctypes.Structure):  # iree_vm_abi_rIiii_t, not packed
        _fields_ = [
            ("r0", ctypes.c_uint64 * 2), ("i1", ctypes.c_int64), ("i2", ctypes.c_int32), ("i3", ctypes.c_int32),
            ("i4", ctypes.c_int32),
        ]  # fmt: skip

    assert ctypes.sizeof(Prefix) == 40, "which is why an offset must not come from a struct's size"


@pytest.mark.parametrize("counts", [(0, 0), (1, 0), (2, 1), (0, 2), (3, 3)])
def test_a_caller_that_pads_the_prefix_to_40_is_refused(counts: tuple[int, int]) -> None:
    layout = CallingConvention.parse(DISPATCH).argument_layout
    refs: list[Any] = []
    values = ["executable", 7, 1, 2, 3, (5,) * counts[0], (("buffer", 0, 64),) * counts[1]]
    values[0] = object()
    values[6] = tuple((object(), 0, 64) for _ in range(counts[1]))
    data = layout.pack(values, refs)
    assert layout.unpack(data, refs) == tuple(values)
    padded = data[:36] + bytes(4) + data[36:]
    with pytest.raises(
        errors.InvalidArgument, match=rf"expected .*\d+ bytes, found {len(padded)}.*ends at byte 36"
    ):
        layout.unpack(padded, refs)


def test_a_padded_plain_call_names_both_sizes() -> None:
    layout = CallingConvention.parse("0rIiii_v").argument_layout
    data = layout.pack([None, 1, 2, 3, 4])
    assert len(data) == 36
    with pytest.raises(
        errors.InvalidArgument, match=r"expected 36 bytes, found 40.*without trailing padding"
    ):
        layout.unpack(data + bytes(4))


def test_bytes_of_a_dispatch() -> None:
    """Written out by hand: constants at 40, the bindings' count behind them, bindings at the next multiple of 8."""
    layout = CallingConvention.parse(DISPATCH).argument_layout
    executable, buffer = object(), object()
    refs: list[Any] = []
    data = layout.pack([executable, 2, 4, 5, 6, (7, 8), ((buffer, 16, 32), (None, 0, 0))], refs)
    assert data == (
        struct.pack("<QQqiii", 1, 0, 2, 4, 5, 6)
        + struct.pack("<i2i", 2, 7, 8)
        + struct.pack("<i4x", 2)
        + struct.pack("<QQqq", 2, 0, 16, 32)
        + struct.pack("<QQqq", 0, 0, 0, 0)
    )
    assert refs == [executable, buffer]
    # Without constants their count is at 36 and the bindings' at 40.
    empty = layout.pack([executable, 2, 4, 5, 6, (), ()], [])
    assert len(empty) == 44


def test_parse() -> None:
    parsed = CallingConvention.parse(DISPATCH)
    assert parsed.arguments == ("r", "I", "i", "i", "i", Span("i"), Span("rII"))
    assert (parsed.results, parsed.is_variadic) == ((), True)
    assert CallingConvention.parse("") == CallingConvention.parse("0v_v") == CallingConvention.parse("0")
    assert CallingConvention.parse("0iI_rr").results == ("r", "r")
    assert not CallingConvention.parse("0iI_rr").is_variadic
    assert str(CallingConvention.parse("0")) == "0v_v"
    assert describe(parsed.arguments) == "(ref, i64, i32, i32, i32, i32…, (ref, i64, i64)…)"


@pytest.mark.parametrize(
    "text", ["0x", "0i_y", "0Ci", "0CD_v", "0CiCiDD_v", "0iD_v", "0_CiD", "0i_i_i", "0CxD"]
)
def test_malformed(text: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="calling convention"):
        CallingConvention.parse(text)


def test_another_version() -> None:
    with pytest.raises(errors.Unimplemented, match="expected version 0, found '1'"):
        CallingConvention.parse("1i_v")


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("i", 2**31, "does not fit in i32"),
        ("i", -(2**31) - 1, "does not fit in i32"),
        ("I", 2**63, "does not fit in i64"),
        ("i", 1.0, "an int for i32, found float"),
        ("i", True, "found bool"),
        ("I", "1", "found str"),
        ("I", None, "found NoneType"),
        ("f", "1", "a float for f32, found str"),
        ("f", 1e300, "does not fit in f32"),
        ("F", None, "found NoneType"),
        ("F", np.float64, "a float for f64"),
        ("r", 1, "a VM object or None for ref, found int"),
        ("r", "x", "found str"),
    ],
)
def test_wrong_values_are_named(kind: str, value: Any, message: str) -> None:
    layout = CallLayout(("i", kind, Span(f"i{kind}")))
    with pytest.raises(errors.InvalidArgument, match=f"value 1: .*{message}"):
        layout.pack([0, value, ()])
    good = {"i": 0, "I": 0, "f": 0.0, "F": 0.0, "r": None}[kind]
    with pytest.raises(errors.InvalidArgument, match=f"value 2: .*{message}"):
        layout.check([0, good, ((1, good), (1, value))])


def test_wrong_counts() -> None:
    layout = CallLayout(("i", Span("ii")))
    with pytest.raises(errors.InvalidArgument, match=r"expected 2 values .*, found 1"):
        layout.pack([1])
    with pytest.raises(errors.InvalidArgument, match="tuples of 2, found one of 3"):
        layout.pack([1, ((1, 2, 3),)])
    for bad in (5, None, (5,)):
        with pytest.raises(errors.InvalidArgument, match="value 1"):
            layout.pack([1, bad])


def test_float_limits() -> None:
    layout = CallLayout(("f",))
    for value in (math.inf, -math.inf, 3.4028234663852886e38, 3.40282356e38):
        assert layout.unpack(layout.pack([value])) == (float(np.float32(value)),)
    assert math.isnan(layout.unpack(layout.pack([math.nan]))[0])


def test_ref_handles() -> None:
    layout = CallLayout(("r", "r"))
    thing = object()
    refs = ["kept"]
    data = layout.pack([thing, None], refs)
    assert refs == ["kept", thing]
    assert layout.unpack(data, refs) == (thing, None)
    with pytest.raises(errors.InvalidArgument, match="ref handle 2 out of range: the table has 1"):
        layout.unpack(data, refs[:1])
    with pytest.raises(errors.InvalidArgument, match="needs a list of refs"):
        layout.pack([thing, None])
    with pytest.raises(errors.InvalidArgument, match="reserved"):
        layout.unpack(struct.pack("<QQQQ", 1, 5, 0, 0), refs)


@pytest.mark.parametrize("count", [-1, 2**31 - 1, 2**20])
def test_a_lying_count_costs_nothing(count: int) -> None:
    layout = CallLayout((Span("rII"),))
    with pytest.raises(errors.InvalidArgument, match=f"with a count of {count} at byte 0"):
        layout.unpack(struct.pack("<i", count) + bytes(100))
