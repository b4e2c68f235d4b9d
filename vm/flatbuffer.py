"""A FlatBuffer reader that checks every offset before it follows it and copies nothing but text.

The ``flatbuffers`` package of PyPI does not verify: a damaged file makes it read wherever an offset points,
or fail with ``struct.error``. Files come from anywhere, so this reader is our own. It follows the binary
format published at https://flatbuffers.dev/internals/ and checks alignment, ranges, vtable and table sizes,
vector lengths, string terminators and UTF-8.

Fields are named by their *slot*, the index of the field in its ``.fbs`` table (a union takes two: type, then
value). An :class:`enum.IntEnum` member as slot puts its name into messages::

    class Kernel(enum.IntEnum):
        NAME = 0
        BINDINGS = 1

    table = flatbuffer.root(data, b"KRNL", "kernel file")
    table.string(Kernel.NAME)

Everything wrong raises :class:`halgpu.errors.InvalidArgument` naming the file, the field and the byte. Work
is bounded by the size of the data also where a damaged file makes many offsets point at one place.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, Final, NoReturn, overload

from halgpu import errors

_U32 = Struct("<I")
_I32 = Struct("<i")

_SCALARS: Final = {
    name: Struct("<" + code)
    for name, code in {
        "bool": "?", "u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "u64": "Q",
        "i64": "q", "f32": "f", "f64": "d",
    }.items()
}  # fmt: skip
_VECTORS: Final[dict[str, Any]] = {
    "u1": "B", "i1": "b", "u2": "H", "i2": "h", "u4": "I", "i4": "i", "u8": "Q", "i8": "q",
    "f4": "f", "f8": "d",
}  # fmt: skip


def root(data: memoryview, identifier: bytes, what: str, *, prefix: int = 0) -> Table:
    """Return the root table of the FlatBuffer that ``data``, a flat view of bytes, starts with.

    ``identifier`` is the four-byte file identifier that must be there; ``what`` says in error messages what
    is being read. ``prefix`` is the length of what lies before ``data`` and takes part in alignment: 4 for a
    FlatBuffer behind its length. ``data`` is kept and never copied.
    """
    return _Reader(data, what, prefix).root(identifier)


class Table:
    """A table of a FlatBuffer. A field that is absent reads as its default, ``""``, None or empty."""

    __slots__ = ("_reader", "_size", "_vtable", "position")

    def __init__(self, reader: _Reader, position: int, size: int, vtable: tuple[int, ...]) -> None:
        self._reader = reader
        self._size = size
        self._vtable = vtable
        self.position = position
        """Byte offset in the FlatBuffer; two tables at one position are the same table."""

    def has(self, slot: int) -> bool:
        """Whether the field is present."""
        return slot < len(self._vtable) and self._vtable[slot] != 0

    def bool(self, slot: int, default: bool = False) -> bool:
        """A ``bool`` field."""
        return bool(self._scalar(slot, "bool", default))

    def u8(self, slot: int, default: int = 0) -> int:
        """A ``uint8`` or ``ubyte`` field, also a union's type."""
        return int(self._scalar(slot, "u8", default))

    def i8(self, slot: int, default: int = 0) -> int:
        """An ``int8`` or ``byte`` field."""
        return int(self._scalar(slot, "i8", default))

    def u16(self, slot: int, default: int = 0) -> int:
        """A ``uint16`` or ``ushort`` field."""
        return int(self._scalar(slot, "u16", default))

    def i16(self, slot: int, default: int = 0) -> int:
        """An ``int16`` or ``short`` field."""
        return int(self._scalar(slot, "i16", default))

    def u32(self, slot: int, default: int = 0) -> int:
        """A ``uint32`` or ``uint`` field."""
        return int(self._scalar(slot, "u32", default))

    def i32(self, slot: int, default: int = 0) -> int:
        """An ``int32`` or ``int`` field."""
        return int(self._scalar(slot, "i32", default))

    def u64(self, slot: int, default: int = 0) -> int:
        """A ``uint64`` or ``ulong`` field."""
        return int(self._scalar(slot, "u64", default))

    def i64(self, slot: int, default: int = 0) -> int:
        """An ``int64`` or ``long`` field."""
        return int(self._scalar(slot, "i64", default))

    def f32(self, slot: int, default: float = 0.0) -> float:
        """A ``float32`` or ``float`` field."""
        return float(self._scalar(slot, "f32", default))

    def f64(self, slot: int, default: float = 0.0) -> float:
        """A ``float64`` or ``double`` field."""
        return float(self._scalar(slot, "f64", default))

    def struct(self, slot: int, layout: Struct) -> tuple[int | float, ...] | None:
        """A struct held inline, unpacked by ``layout`` (with explicit padding, ``<``); None when absent."""
        at = self._field(slot, layout.size, 1)
        return None if at is None else layout.unpack_from(self._reader.data, at)

    def string(self, slot: int, default: str = "") -> str:
        """A ``string`` field."""
        target = self._target(slot)
        return default if target is None else self._reader.string(target, slot)

    def table(self, slot: int) -> Table | None:
        """A table field, or the value of a union whose type says that it is a table."""
        target = self._target(slot)
        return None if target is None else self._reader.table(target, slot)

    def vector(self, slot: int, element: str) -> memoryview:
        """A vector of scalars as a read-only view; ``element`` is kind and size of one: ``"u1"``, ``"f8"``.

        Nothing is copied. The view's items are right on little-endian hosts, the only ones supported.
        """
        size = int(element[1:])
        start, count = self._vector(slot, size)
        view: memoryview = self._reader.data[start : start + count * size]
        return view.cast(_VECTORS[element]) if count else view

    def vector_of_integers(self, slot: int, element: str) -> tuple[int, ...]:
        """A vector of integers, copied; ``element`` as for :meth:`vector`."""
        view = self.vector(slot, element)
        self._reader.spend(len(view))
        return tuple(view)

    def vector_of_tables(self, slot: int) -> TableVector:
        """A vector of tables; each is checked when it is taken out."""
        return TableVector(self._reader, slot, *self._vector(slot, 4))

    def vector_of_strings(self, slot: int) -> tuple[str, ...]:
        """A vector of strings."""
        start, count = self._vector(slot, 4)
        reader = self._reader
        reader.spend(count)
        return tuple(reader.string(reader.follow(start + 4 * i, slot), slot) for i in range(count))

    def vector_of_structs(self, slot: int, layout: Struct) -> tuple[tuple[int, ...], ...]:
        """A vector of structs, each unpacked by ``layout`` (with explicit padding, ``<``)."""
        start, count = self._vector(slot, layout.size, 4)
        self._reader.spend(count)
        return tuple(layout.iter_unpack(self._reader.data[start : start + count * layout.size]))

    def _scalar(self, slot: int, kind: str, default: float) -> float:
        layout = _SCALARS[kind]
        at = self._field(slot, layout.size, layout.size)
        if at is None:
            return default
        value: float = layout.unpack_from(self._reader.data, at)[0]
        return value

    def _field(self, slot: int, size: int, alignment: int) -> int | None:
        """Position of an inline field of ``size`` bytes, or None when absent."""
        if slot >= len(self._vtable) or not (offset := self._vtable[slot]):
            return None
        if offset < 4 or offset + size > self._size:
            self._reader.fail(
                slot, f"{size} bytes at {offset} lie outside of its table of {self._size} bytes"
            )
        at = self.position + offset
        if not self._reader.aligned(at, alignment):
            self._reader.fail(slot, f"position {at:#x} is no multiple of {alignment}")
        return at

    def _target(self, slot: int) -> int | None:
        at = self._field(slot, 4, 4)
        return None if at is None else self._reader.follow(at, slot)

    def _vector(self, slot: int, size: int, alignment: int = 0) -> tuple[int, int]:
        target = self._target(slot)
        return (0, 0) if target is None else self._reader.vector(target, size, alignment or size, slot)


class TableVector(Sequence[Table]):
    """A vector of tables. At a null offset (a union of type NONE) :meth:`get` gives None, indexing raises."""

    __slots__ = ("_count", "_reader", "_slot", "_start")

    def __init__(self, reader: _Reader, slot: int, start: int, count: int) -> None:
        self._reader = reader
        self._slot = slot
        self._start = start
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Table: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Table]: ...
    def __getitem__(self, index: int | slice) -> Table | Sequence[Table]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        found = self.get(index)
        if found is None:
            self._reader.fail(self._slot, f"element {index} is null")
        return found

    def __iter__(self) -> Iterator[Table]:
        self._reader.spend(self._count)
        return (self[index] for index in range(self._count))

    def get(self, index: int) -> Table | None:
        """The table at ``index``, None where the offset is null. Raises OutOfRange beyond the end."""
        if not -self._count <= index < self._count:
            raise errors.OutOfRange(f"index {index} of a vector of {self._count} tables")
        at = self._start + 4 * (index % self._count)
        if not _U32.unpack_from(self._reader.data, at)[0]:
            return None
        return self._reader.table(self._reader.follow(at, self._slot), self._slot)


class _Reader:
    """What all tables of one FlatBuffer share: the bytes, the checks, and how much has been read."""

    __slots__ = ("_budget", "_strings", "_tables", "_vtables", "claims", "data", "prefix", "what")

    def __init__(self, data: memoryview, what: str, prefix: int) -> None:
        self.data = data.toreadonly()
        self.what = what
        self.prefix = prefix
        self.claims: dict[int, int] = {}
        self._budget = len(data)
        self._strings: dict[int, str] = {}
        self._tables: dict[int, Table] = {}
        self._vtables: dict[int, tuple[int, tuple[int, ...]]] = {}

    def root(self, identifier: bytes) -> Table:
        if len(self.data) < 8:
            self.fail(None, f"{len(self.data)} bytes are too few for a FlatBuffer")
        found = bytes(self.data[4:8])
        if found != identifier:
            self.fail(None, f"file identifier {found!r} found where {identifier!r} was expected")
        return self.table(self.follow(0, None), None)

    def fail(self, slot: int | None, problem: str) -> NoReturn:
        where = "" if slot is None else f"{_slot_name(slot)}: "
        raise errors.InvalidArgument(f"{self.what} is damaged: {where}{problem}; make or copy the file again")

    def spend(self, elements: int) -> None:
        """Count vector elements about to be read. Each takes at least 4 bytes, so no sound file gets near."""
        self._budget -= elements
        if self._budget < 0:
            self.fail(None, f"its tables refer to each other more often than {len(self.data)} bytes can mean")

    def aligned(self, at: int, alignment: int) -> bool:
        return (at + self.prefix) % alignment == 0

    def follow(self, at: int, slot: int | None) -> int:
        """Position that the u32 offset at ``at`` points to; there is room for at least 4 bytes there."""
        target: int = at + _U32.unpack_from(self.data, at)[0]
        if target > len(self.data) - 4 or target <= at:
            self.fail(slot, f"the offset at {at:#x} leads to {target:#x} of {len(self.data):#x} bytes")
        if target % 4:
            self.fail(slot, f"the offset at {at:#x} leads to {target:#x}, which is no multiple of 4")
        return target

    def table(self, position: int, slot: int | None) -> Table:
        known = self._tables.get(position)
        if known is None:
            known = self._tables[position] = self._open(position, slot)
        return known

    def _open(self, position: int, slot: int | None) -> Table:
        vtable = position - _I32.unpack_from(self.data, position)[0]
        if vtable < 0 or vtable > len(self.data) - 4 or vtable % 2:
            self.fail(
                slot, f"the table at {position:#x} has its vtable at {vtable:#x} of {len(self.data):#x} bytes"
            )
        size, fields = self._vtable(vtable, slot)
        if position + size > len(self.data):
            self.fail(slot, f"the table at {position:#x} has {size} bytes and runs past {len(self.data):#x}")
        self.claim(position, position + size, slot)
        return Table(self, position, size, fields)

    def _vtable(self, at: int, slot: int | None) -> tuple[int, tuple[int, ...]]:
        known = self._vtables.get(at)
        if known is not None:
            return known
        length, size = struct.unpack_from("<HH", self.data, at)
        if length < 4 or length % 2 or at + length > len(self.data) or size < 4:
            self.fail(slot, f"the vtable at {at:#x} says {length} bytes for itself and {size} for its table")
        fields = struct.unpack_from(f"<{length // 2 - 2}H", self.data, at + 4)
        self.claim(at, at + length, slot)
        self._vtables[at] = size, fields
        return size, fields

    def vector(self, target: int, size: int, alignment: int, slot: int) -> tuple[int, int]:
        """Position of the first element and count of elements of the vector at ``target``."""
        count: int = _U32.unpack_from(self.data, target)[0]
        start = target + 4
        if count * size > len(self.data) - start:
            self.fail(
                slot, f"{count} elements of {size} bytes at {target:#x} run past the end, {len(self.data):#x}"
            )
        # An empty vector's elements have no position that could be wrong.
        if count and not self.aligned(start, alignment):
            self.fail(slot, f"elements at {start:#x} are not aligned to {alignment} bytes")
        self.claim(target, start + count * size, slot)
        return start, count

    def string(self, target: int, slot: int) -> str:
        known = self._strings.get(target)
        if known is not None:
            return known
        start, length = self.vector(target, 1, 1, slot)
        end = start + length
        if end >= len(self.data) or self.data[end]:
            self.fail(slot, f"the string at {target:#x} of {length} bytes has no zero byte behind it")
        try:
            text = str(self.data[start:end], "utf-8")
        except UnicodeDecodeError as problem:
            self.fail(
                slot, f"the string at {target:#x} is not UTF-8: {problem.reason} at byte {problem.start}"
            )
        self._strings[target] = text
        return text

    def claim(self, start: int, end: int, slot: int | None) -> None:
        """Note a range in use; :func:`check_disjoint` looks at all of them."""
        if self.claims.setdefault(start, end) != end:
            self.fail(slot, f"two things of different sizes lie at {start:#x}")


def check_disjoint(table: Table) -> None:
    """Check that nothing read of the FlatBuffer of ``table`` overlaps; sharing whole parts is fine."""
    reader = table._reader
    reached = 0
    for start in sorted(reader.claims):
        if start < reached:
            reader.fail(None, f"what lies at {start:#x} overlaps with what ends at {reached:#x}")
        reached = reader.claims[start]


def _slot_name(slot: int) -> str:
    if isinstance(slot, enum.Enum):
        return f"{type(slot).__name__}.{slot.name.lower()}"
    return f"field {slot}"
