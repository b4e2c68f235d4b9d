"""The FlatBuffer reader, on buffers laid out by hand after https://flatbuffers.dev/internals/."""

from __future__ import annotations

import enum
import struct

import pytest

from halgpu import errors
from halgpu.vm import flatbuffer

IDENTIFIER = b"TEST"


class Slot(enum.IntEnum):
    """Fields of the table that `document` writes."""

    NUMBER = 0
    TEXT = 1
    CHILD = 2
    BYTES = 3
    CHILDREN = 4
    ABSENT = 5
    WIDE = 6
    PAIRS = 7
    NAMES = 8
    FRACTION = 9


# Where things lie in `document`.
VTABLE, TABLE, TEXT, BYTES, CHILDREN, PAIRS, NAMES, FIRST, SECOND = (
    8, 32, 80, 108, 116, 128, 148, 160, 168,
)  # fmt: skip
SIZE = 176
CHILD_FIELDS = struct.pack("<iIHHH", -8, 42, 6, 8, 4)
"""A table that holds 42 in slot 0, with its vtable behind it."""


def document() -> bytearray:
    """A root table with one field of each kind. The child comes last: offsets point forward."""
    out = bytearray(SIZE)

    def put(at: int, layout: str, *values: float | bytes) -> None:
        struct.pack_into("<" + layout, out, at, *values)

    put(0, "I4s", TABLE, IDENTIFIER)
    # The vtable: its own size, the table's size, then the offset of each field; slot 5 is absent.
    put(VTABLE, "HH10H", 24, 48, 4, 8, 12, 16, 20, 0, 24, 32, 36, 40)
    child = len(out)
    targets = [TEXT, child, BYTES, CHILDREN]
    put(TABLE, "ii", TABLE - VTABLE, -7)
    put(TABLE + 8, "4I", *(target - (TABLE + 8 + 4 * i) for i, target in enumerate(targets)))
    put(TABLE + 24, "Q", 1 << 40)
    put(TABLE + 32, "II", PAIRS - (TABLE + 32), NAMES - (TABLE + 36))
    put(TABLE + 40, "d", 0.5)
    put(TEXT, "I7s", 6, "größ".encode() + b"\0")
    put(BYTES, "I3s", 3, b"\1\2\3")
    put(CHILDREN, "III", 2, child - (CHILDREN + 4), 0)
    put(PAIRS, "I4i", 2, 1, -1, 2, -2)
    put(NAMES, "III", 2, FIRST - (NAMES + 4), SECOND - (NAMES + 8))
    put(FIRST, "I3s", 2, b"ab\0")
    put(SECOND, "I4s", 3, b"xyz\0")
    return out + CHILD_FIELDS


def read(data: bytes | bytearray | memoryview, prefix: int = 0) -> flatbuffer.Table:
    return flatbuffer.root(memoryview(data), IDENTIFIER, "the document", prefix=prefix)


def test_fields_of_every_kind() -> None:
    table = read(document())
    assert table.i32(Slot.NUMBER) == -7
    assert table.u32(Slot.NUMBER) == 0xFFFFFFF9
    assert table.string(Slot.TEXT) == "größ"
    assert table.u64(Slot.WIDE) == table.i64(Slot.WIDE) == 1 << 40
    assert table.f64(Slot.FRACTION) == 0.5
    assert bytes(table.vector(Slot.BYTES, "u1")) == b"\1\2\3"
    assert table.vector_of_structs(Slot.PAIRS, struct.Struct("<ii")) == ((1, -1), (2, -2))
    assert table.vector_of_strings(Slot.NAMES) == ("ab", "xyz")
    child = table.table(Slot.CHILD)
    assert child is not None
    assert child.u32(0) == 42


def test_an_absent_field_is_its_default() -> None:
    table = read(document())
    for slot in (Slot.ABSENT, 10, 1000):
        assert not table.has(slot)
        assert table.u8(slot) == table.i8(slot) == table.u16(slot) == table.i16(slot) == 0
        assert table.u32(slot, 9) == table.i32(slot, 9) == table.u64(slot, 9) == table.i64(slot, 9) == 9
        assert table.f32(slot, 1.5) == table.f64(slot, 1.5) == 1.5
        assert table.bool(slot, True) is True
        assert table.string(slot) == ""
        assert table.table(slot) is None
        assert table.struct(slot, struct.Struct("<ii")) is None
        assert len(table.vector(slot, "u8")) == len(table.vector_of_tables(slot)) == 0
        assert table.vector_of_strings(slot) == table.vector_of_structs(slot, struct.Struct("<i")) == ()
    assert table.has(Slot.NUMBER)


def test_vector_of_tables() -> None:
    children = read(document()).vector_of_tables(Slot.CHILDREN)
    assert len(children) == 2
    assert children[0].u32(0) == 42
    assert children.get(1) is None  # a null offset
    with pytest.raises(errors.InvalidArgument, match=r"Slot.children: element 1 is null"):
        children[1]
    with pytest.raises(errors.InvalidArgument, match="null"):
        list(children)
    with pytest.raises(errors.OutOfRange):
        children[2]


def test_nothing_is_copied_and_views_are_read_only() -> None:
    data = document()
    view = read(data).vector(Slot.BYTES, "u1")
    data[BYTES + 4] = 99
    assert view[0] == 99
    assert view.readonly


def test_alignment_counts_a_prefix() -> None:
    data = document()
    with pytest.raises(errors.InvalidArgument, match=r"Slot.wide: position 0x38 is no multiple of 8"):
        read(data, prefix=4).u64(Slot.WIDE)
    # The position in memory means nothing: a view at an odd offset of another buffer reads the same.
    assert read(memoryview(b"x" + data)[1:]).u64(Slot.WIDE) == 1 << 40


@pytest.mark.parametrize(
    ("at", "layout", "value", "use", "message"),
    [
        (4, "4s", b"NOPE", "number", "file identifier b'NOPE' found where b'TEST' was expected"),
        (0, "I", 0, "number", "offset at 0x0 leads to 0x0"),
        (0, "I", 0xFFFFFFFF, "number", "leads to"),
        (0, "I", TABLE + 2, "number", "no multiple of 4"),
        (TABLE, "i", TABLE + 8, "number", "vtable at -0x8"),
        (TABLE, "i", -(1 << 31), "number", "vtable at"),
        (TABLE, "i", TABLE - VTABLE - 1, "number", "vtable at 0x9"),
        (VTABLE, "H", 3, "number", "3 bytes for itself"),
        (VTABLE, "H", 2, "number", "2 bytes for itself"),
        (VTABLE, "H", 0xFFFE, "number", "65534 bytes for itself"),
        (VTABLE + 2, "H", 2, "number", "2 for its table"),
        (VTABLE + 2, "H", 0xFFFF, "number", "has 65535 bytes and runs past"),
        (VTABLE + 4, "H", 46, "number", r"Slot.number: 4 bytes at 46 lie outside of its table of 48"),
        (VTABLE + 4, "H", 2, "number", "4 bytes at 2 lie outside"),
        (VTABLE + 4, "H", 5, "number", "no multiple of 4"),
        (TABLE + 8, "I", 0, "text", r"Slot.text: the offset at 0x28 leads to 0x28"),
        (TABLE + 8, "I", 1 << 31, "text", "leads to"),
        (TABLE + 8, "I", 2 + TEXT - TABLE - 8, "text", "no multiple of 4"),
        (TEXT, "I", 0xFFFFFFFF, "text", "4294967295 elements of 1 bytes"),
        (TEXT, "I", 4, "text", "no zero byte behind it"),
        (TEXT + 4, "B", 0xFF, "text", "not UTF-8: invalid start byte at byte 0"),
        (BYTES, "I", 1 << 30, "bytes", r"Slot.bytes: 1073741824 elements"),
        (CHILDREN, "I", 1 << 30, "children", "1073741824 elements of 4 bytes"),
        (PAIRS, "I", 1 << 29, "pairs", "536870912 elements of 8 bytes"),
        (NAMES, "I", 0x40000000, "names", "elements"),
        (NAMES + 4, "I", 0, "names", "leads to"),
    ],
)
def test_damage_is_refused(at: int, layout: str, value: int | bytes, use: str, message: str) -> None:
    data = document()
    struct.pack_into("<" + layout, data, at, value)
    uses = {
        "number": lambda table: table.i32(Slot.NUMBER),
        "text": lambda table: table.string(Slot.TEXT),
        "bytes": lambda table: table.vector(Slot.BYTES, "u1"),
        "children": lambda table: table.vector_of_tables(Slot.CHILDREN)[0],
        "pairs": lambda table: table.vector_of_structs(Slot.PAIRS, struct.Struct("<ii")),
        "names": lambda table: table.vector_of_strings(Slot.NAMES),
    }
    with pytest.raises(errors.InvalidArgument, match=message) as caught:
        uses[use](read(data))
    assert "the document is damaged" in str(caught.value)


@pytest.mark.parametrize("length", range(8))
def test_too_short(length: int) -> None:
    with pytest.raises(errors.InvalidArgument, match=f"{length} bytes are too few"):
        read(document()[:length])


def test_every_cut_is_refused_or_read() -> None:
    whole = document()
    for length in range(8, len(whole)):
        try:
            table = read(whole[:length])
            table.string(Slot.TEXT)
            table.vector_of_strings(Slot.NAMES)
            table.table(Slot.CHILD)
        except errors.InvalidArgument:
            continue
        pytest.fail(f"{length} of {len(whole)} bytes were taken for the whole")


def test_many_references_to_one_place_do_not_multiply_work() -> None:
    # A vector whose elements all point to the same child, read over and over.
    count = 1000
    data = document()
    data += bytes(-len(data) % 4)
    vector = len(data)
    data += struct.pack("<I", count) + bytes(4 * count)
    child = len(data)
    data += CHILD_FIELDS
    for index in range(count):
        at = vector + 4 + 4 * index
        struct.pack_into("<I", data, at, child - at)
    struct.pack_into("<I", data, TABLE + 20, vector - (TABLE + 20))
    table = read(data)
    children = table.vector_of_tables(Slot.CHILDREN)
    with pytest.raises(errors.InvalidArgument, match="refer to each other more often"):
        [list(children) for _ in range(count)]


def test_overlap_is_found() -> None:
    table = read(document())
    table.string(Slot.TEXT)
    table.vector(Slot.BYTES, "u1")
    flatbuffer.check_disjoint(table)
    data = document()
    struct.pack_into("<I", data, TABLE + 16, TEXT + 4 - (TABLE + 16))  # bytes inside of the text
    struct.pack_into("<I", data, TEXT + 4, 1)
    table = read(data)
    table.vector(Slot.BYTES, "u1")
    table.string(Slot.TEXT)
    with pytest.raises(errors.InvalidArgument, match="overlaps"):
        flatbuffer.check_disjoint(table)
