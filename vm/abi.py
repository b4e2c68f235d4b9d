"""Calling conventions: parsed, laid out, packed, unpacked, checked.

A calling convention is text such as ``0rIiiiCiDCrIID_v`` (runtime/src/iree/vm/module.h): the version ``0``, the
arguments, ``_``, the results. ``i I f F`` are i32, i64, f32 and f64, ``r`` is a ref, ``v`` is nothing, ``C…D`` a
variadic span of tuples.

Packed, each value stands at the next multiple of its own alignment: i32 and f32 of 4; i64, f64 and refs of 8. A ref
takes 16 bytes. Nothing follows the last value: ``rIiii`` ends at byte 36, though a C struct of these fields is 40
bytes long. A span is a 4-byte count and then, if the count is not zero, its tuples from the next multiple of the
tuple's largest alignment (``iree_vm_bytecode_populate_import_cconv_arguments``, vm/bytecode/dispatch.c).

Refs cannot be bytes. A packed ref is a *handle*: a little-endian u64 that is 0 for null and otherwise one more than
an index into a list of objects passed beside the bytes, and 8 reserved bytes that are zero.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from halgpu import errors

NAMES = {"i": "i32", "I": "i64", "f": "f32", "F": "f64", "r": "ref"}
SIZES = {"i": 4, "I": 8, "f": 4, "F": 8, "r": 16}
ALIGNMENTS = {"i": 4, "I": 8, "f": 4, "F": 8, "r": 8}
_FORMATS = {"i": "i", "I": "q", "f": "f", "F": "d", "r": "QQ"}
_RANGES = {"i": 31, "I": 63}
_COUNT = struct.Struct("<i")


@dataclass(frozen=True, slots=True)
class Span:
    """A variadic span: any number of tuples of ``kinds``, each one of ``iIfFr``."""

    kinds: str

    @property
    def alignment(self) -> int:
        """The largest alignment in a tuple."""
        return max(ALIGNMENTS[kind] for kind in self.kinds)

    def __str__(self) -> str:
        return f"C{self.kinds}D"


Item = str | Span
"""One argument or result: a kind of ``iIfFr``, or a span."""


@dataclass(frozen=True)
class CallingConvention:
    """A parsed calling convention; ``arguments`` and ``results`` are tuples of kinds and :class:`Span`."""

    arguments: tuple[Item, ...]
    results: tuple[Item, ...]

    @classmethod
    def parse(cls, text: str) -> CallingConvention:
        """Parse; ``""`` is ``0v_v``. Raises InvalidArgument, or Unimplemented for another version than 0."""
        return _parse(text)

    @property
    def is_variadic(self) -> bool:
        """Whether an argument is a span."""
        return any(isinstance(item, Span) for item in self.arguments)

    @cached_property
    def argument_layout(self) -> CallLayout:
        """How the arguments are packed."""
        return CallLayout(self.arguments)

    @cached_property
    def result_layout(self) -> CallLayout:
        """How the results are packed."""
        return CallLayout(self.results)

    def __str__(self) -> str:
        return f"0{_text(self.arguments)}_{_text(self.results)}"


def describe(items: Sequence[Item]) -> str:
    """Arguments or results for people, such as ``(ref, i64, i32…)``."""
    return f"({', '.join(_describe(item) for item in items)})"


def _describe(item: Item) -> str:
    if isinstance(item, str):
        return NAMES[item]
    inner = ", ".join(NAMES[kind] for kind in item.kinds)
    return f"{inner}…" if len(item.kinds) == 1 else f"({inner})…"


def _text(items: Sequence[Item]) -> str:
    return "".join(map(str, items)) or "v"


@lru_cache(maxsize=1024)
def _parse(text: str) -> CallingConvention:
    if not text:
        return CallingConvention((), ())
    if text[0] != "0":
        raise errors.Unimplemented(f"calling convention {text!r}: expected version 0, found {text[0]!r}")
    arguments, _, results = text[1:].partition("_")
    parsed = CallingConvention(_parse_items(arguments, text), _parse_items(results, text))
    if any(isinstance(item, Span) for item in parsed.results):
        raise errors.InvalidArgument(f"calling convention {text!r}: results cannot be variadic")
    return parsed


def _parse_items(part: str, text: str) -> tuple[Item, ...]:
    items: list[Item] = []
    at = 0
    while at < len(part):
        if part[at] == "C":
            end = part.find("D", at)
            kinds = part[at + 1 : end].replace("v", "") if end > 0 else ""
            if not kinds or any(kind not in NAMES for kind in kinds):
                raise errors.InvalidArgument(
                    f"calling convention {text!r}: a span needs C, kinds of iIfFr, and D"
                )
            items.append(Span(kinds))
            at = end + 1
            continue
        if part[at] in NAMES:
            items.append(part[at])
        elif part[at] != "v":
            raise errors.InvalidArgument(
                f"calling convention {text!r}: expected one of vifIFrCD, found {part[at]!r}"
            )
        at += 1
    return tuple(items)


class CallLayout:
    """Where arguments (or results) lie when they are packed, and the packing itself.

    Values are as native methods see them: ints, floats, objects or None; a span is a tuple, of plain values when
    its tuples have one element and of tuples otherwise.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = tuple(items)
        self.offsets, self.prefix_end = _static_offsets(self.items)

    offsets: tuple[int | None, ...]
    """Byte offset of each item; of its count for a span; None behind the first span, where it depends on counts."""
    prefix_end: int
    """Where the fixed part ends: behind the last item, or where the first span's count starts."""

    def size(self, counts: Sequence[int] = ()) -> int:
        """Packed bytes when the spans have ``counts`` tuples, in order."""
        end = 0
        spans = iter(counts)
        for item in self.items:
            end = _end(end, item, next(spans) if isinstance(item, Span) else 0)
        return end

    def pack(self, values: Sequence[Any], refs: list[Any] | None = None) -> bytes:
        """Pack; refs are appended to ``refs`` and packed as handles.

        Raises InvalidArgument for a wrong count, type or range, naming the argument.
        """
        self.check(values)
        flat, counts = self._flatten(values, refs)
        return self._struct(counts).pack(*flat)

    def unpack(self, data: bytes | memoryview, refs: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Unpack; handles index ``refs``.

        Raises InvalidArgument when ``data`` is not as long as its own counts say, naming expected and found sizes.
        """
        counts = self._counts(data)
        flat = iter(self._struct(counts).unpack(data))
        return tuple(self._unflatten(flat, refs))

    def check(self, values: Sequence[Any]) -> None:
        """Raise InvalidArgument unless ``values`` can be passed: their count, types and ranges."""
        if len(values) != len(self.items):
            raise errors.InvalidArgument(
                f"expected {len(self.items)} values {describe(self.items)}, found {len(values)}"
            )
        for position, (item, value) in enumerate(zip(self.items, values, strict=True)):
            if isinstance(item, str):
                check_value(item, value, position)
            else:
                self._check_span(item, value, position)

    def _check_span(self, span: Span, tuples: Any, position: int) -> None:
        if not isinstance(tuples, tuple | list):
            raise errors.InvalidArgument(
                f"value {position}: expected a tuple for {_describe(span)}, found {type(tuples).__name__}"
            )
        count = len(span.kinds)
        for entry in tuples:
            entry = (entry,) if count == 1 else entry
            found = len(entry) if isinstance(entry, tuple | list) else type(entry).__name__
            if found != count:
                raise errors.InvalidArgument(
                    f"value {position}: expected tuples of {count}, found one of {found}"
                )
            for kind, value in zip(span.kinds, entry, strict=True):
                check_value(kind, value, position)

    def _flatten(self, values: Sequence[Any], refs: list[Any] | None) -> tuple[list[Any], tuple[int, ...]]:
        flat: list[Any] = []
        counts: list[int] = []
        for item, value in zip(self.items, values, strict=True):
            if isinstance(item, str):
                _flatten_value(flat, item, value, refs)
                continue
            flat.append(len(value))
            counts.append(len(value))
            for entry in value:
                entry = (entry,) if len(item.kinds) == 1 else entry
                for kind, element in zip(item.kinds, entry, strict=True):
                    _flatten_value(flat, kind, element, refs)
        return flat, tuple(counts)

    def _unflatten(self, flat: Iterator[Any], refs: Sequence[Any]) -> Iterator[Any]:
        for item in self.items:
            if isinstance(item, str):
                yield _take(item, flat, refs)
                continue
            count = next(flat)
            if len(item.kinds) == 1:
                yield tuple(_take(item.kinds, flat, refs) for _ in range(count))
            else:
                yield tuple(tuple(_take(kind, flat, refs) for kind in item.kinds) for _ in range(count))

    def _counts(self, data: bytes | memoryview) -> tuple[int, ...]:
        """Read the spans' counts, checking that everything they promise is there."""
        counts: list[int] = []
        end = 0
        for item in self.items:
            count = 0
            if isinstance(item, Span):
                if end + 4 > len(data):
                    raise self._size_error(end + 4, len(data), "at least ")
                count = _COUNT.unpack_from(data, end)[0]
                counts.append(count)
                smallest = end + 4 + count * sum(SIZES[kind] for kind in item.kinds)
                if count < 0 or smallest > len(data):
                    raise self._size_error(smallest, len(data), f"with a count of {count} at byte {end} ")
            end = _end(end, item, count)
        if end != len(data):
            raise self._size_error(end, len(data))
        return tuple(counts)

    def _size_error(self, expected: int, found: int, note: str = "") -> errors.InvalidArgument:
        padding = (
            ""
            if found != -(-expected // 8) * 8 and not note
            else "; values are packed without trailing padding"
        )
        return errors.InvalidArgument(
            f"packed {describe(self.items)}: expected {note}{expected} bytes, found {found}"
            f" (the fixed part ends at byte {self.prefix_end}{padding})"
        )

    def _struct(self, counts: tuple[int, ...]) -> struct.Struct:
        # Long spans are not worth keeping a struct for.
        make = _compiled if sum(counts) <= 256 else _compiled.__wrapped__
        return make(self.items, counts)


def check_value(kind: str, value: Any, position: int) -> None:
    """Raise InvalidArgument unless ``value`` can be passed as ``kind``."""
    bits = _RANGES.get(kind)
    if bits is not None:
        if type(value) is not int:
            raise _type_error(kind, value, position)
        if not -(1 << bits) <= value < 1 << bits:
            raise errors.InvalidArgument(
                f"value {position}: {value} does not fit in {NAMES[kind]}, expected -2^{bits} to 2^{bits} - 1"
            )
    elif kind == "r":
        if isinstance(value, _NO_REFS):
            raise _type_error(kind, value, position)
    elif type(value) not in (float, int):
        raise _type_error(kind, value, position)
    elif kind == "f" and math.isfinite(value) and abs(value) >= _F32_LIMIT:
        raise errors.InvalidArgument(f"value {position}: {value} does not fit in f32")


_NO_REFS = (int, float, str, bytes)
_F32_LIMIT = 2.0**128 - 2.0**103  # from here on a value rounds to infinity


def _type_error(kind: str, value: Any, position: int) -> errors.InvalidArgument:
    wanted = {"r": "a VM object or None", "f": "a float", "F": "a float"}.get(kind, "an int")
    return errors.InvalidArgument(
        f"value {position}: expected {wanted} for {NAMES[kind]}, found {type(value).__name__}"
    )


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _end(start: int, item: Item, count: int) -> int:
    """Where ``item`` ends when what is before it ends at ``start``."""
    if isinstance(item, str):
        return _align(start, ALIGNMENTS[item]) + SIZES[item]
    end = _align(start, 4) + 4
    if not count:
        return end
    end = _align(end, item.alignment)
    # Tuples follow each other with natural alignment only, so a tuple may start at 4 modulo 8.
    first = _tuple_end(0, item.kinds)
    if first % item.alignment == 0:
        return end + first * count
    later = _tuple_end(4, item.kinds) - 4
    if later % 8 == 0:
        return end + first + later * (count - 1)
    return end + (first + later) * (count // 2) + first * (count % 2)


def _tuple_end(start: int, kinds: str) -> int:
    for kind in kinds:
        start = _align(start, ALIGNMENTS[kind]) + SIZES[kind]
    return start


def _static_offsets(items: tuple[Item, ...]) -> tuple[tuple[int | None, ...], int]:
    offsets: list[int | None] = []
    end = 0
    for position, item in enumerate(items):
        if isinstance(item, Span):
            offsets.append(end)
            offsets += [None] * (len(items) - position - 1)
            break
        offsets.append(_align(end, ALIGNMENTS[item]))
        end = _align(end, ALIGNMENTS[item]) + SIZES[item]
    return tuple(offsets), end


@lru_cache(maxsize=1024)
def _compiled(items: tuple[Item, ...], counts: tuple[int, ...]) -> struct.Struct:
    """The struct of a layout whose spans have ``counts`` tuples."""
    spans = iter(counts)
    parts = ["<"]
    end = 0

    def put(kind: str, alignment: int) -> None:
        nonlocal end
        start = _align(end, alignment)
        parts.append("x" * (start - end) + _FORMATS[kind])
        end = start + SIZES[kind]

    for item in items:
        if isinstance(item, str):
            put(item, ALIGNMENTS[item])
            continue
        put("i", 4)
        for number in range(next(spans)):
            for place, kind in enumerate(item.kinds):
                first = number == 0 and place == 0
                put(kind, item.alignment if first else ALIGNMENTS[kind])
    return struct.Struct("".join(parts))


def _flatten_value(flat: list[Any], kind: str, value: Any, refs: list[Any] | None) -> None:
    if kind != "r":
        flat.append(value)
        return
    handle = 0
    if value is not None:
        if refs is None:
            raise errors.InvalidArgument("packing a ref needs a list of refs to put it in")
        refs.append(value)
        handle = len(refs)
    flat += (handle, 0)


def _take(kind: str, flat: Iterator[Any], refs: Sequence[Any]) -> Any:
    value = next(flat)
    if kind != "r":
        return value
    reserved = next(flat)
    if reserved:
        raise errors.InvalidArgument(
            f"the reserved half of ref handle {value} must be zero, found {reserved:#x}"
        )
    if value > len(refs):
        raise errors.InvalidArgument(f"ref handle {value} out of range: the table has {len(refs)} refs")
    return refs[value - 1] if value else None
