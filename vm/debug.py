"""The debug database of a module: names of functions and where instructions come from.

It is read when asked, one function at a time, because it may be larger than the program. Locations are those
of MLIR: a place in a file, a named place, a call and its caller, or several fused into one. A damaged
location costs that location and nothing else.
"""

from __future__ import annotations

import bisect
import enum
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from halgpu import errors
from halgpu.vm.flatbuffer import Table

NODES = 64
"""A location shows at most this many others; they may form cycles or grow without bounds when shared."""
DEPTH = 32
UNKNOWN = "[unknown]"


class DebugDatabaseDef(enum.IntEnum):
    """Slots of the database. A vector of unions is a vector of types and one of values."""

    LOCATION_TYPES = 0
    LOCATION_TABLE = 1
    FUNCTIONS = 2


class FunctionSourceMapDef(enum.IntEnum):
    """Slots of the data of one function."""

    LOCAL_NAME = 0
    LOCATIONS = 1


class LocationType(enum.IntEnum):
    """The union ``LocationTypeDef``; 0 is none."""

    CALL_SITE = 1
    FILE_LINE_COL = 2
    FUSED = 3
    NAME = 4


class CallSiteLocDef(enum.IntEnum):
    """Slots of a call location."""

    CALLEE = 0
    CALLER = 1


class FileLineColLocDef(enum.IntEnum):
    """Slots of a place in a file."""

    FILENAME = 0
    LINE = 1
    COLUMN = 2


class FusedLocDef(enum.IntEnum):
    """Slots of several locations fused."""

    METADATA = 0
    LOCATIONS = 1


class NameLocDef(enum.IntEnum):
    """Slots of a named location."""

    NAME = 0
    CHILD_LOCATION = 1


LOCATION = struct.Struct("<ii")
"""``BytecodeLocationDef``: offset in the function, index in the location table."""


# What a database says, as plain objects. Locations refer to each other by their index in the table.


@dataclass(frozen=True, slots=True)
class FileLocation:
    """A place in a source file."""

    filename: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class CallLocation:
    """Code inlined from ``callee`` into ``caller``."""

    callee: int
    caller: int


@dataclass(frozen=True, slots=True)
class FusedLocation:
    """Several places whose code became one."""

    metadata: str
    locations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NamedLocation:
    """A place with a name of its own; ``child`` is None where the name is all there is."""

    name: str
    child: int | None


Location = FileLocation | CallLocation | FusedLocation | NamedLocation
SourceMap = tuple[tuple[int, int], ...]
"""(offset in the function, index of the location) pairs, in the order in which the module has them."""


class Contents(Protocol):
    """What a debug database holds, wherever it is kept."""

    @property
    def location_count(self) -> int: ...
    @property
    def function_count(self) -> int: ...
    def location(self, index: int) -> Location | None:
        """The location at an index in range; None where there is none. Raises InvalidArgument if damaged."""

    def local_name(self, index: int) -> str: ...
    def source_map(self, index: int) -> SourceMap: ...


@dataclass(frozen=True, slots=True)
class DebugContents:
    """A debug database in memory: locations, and a (name, source map) pair for each function."""

    locations: tuple[Location | None, ...]
    functions: tuple[tuple[str, SourceMap], ...]

    @property
    def location_count(self) -> int:
        return len(self.locations)

    @property
    def function_count(self) -> int:
        return len(self.functions)

    def location(self, index: int) -> Location | None:
        return self.locations[index]

    def local_name(self, index: int) -> str:
        return self.functions[index][0]

    def source_map(self, index: int) -> SourceMap:
        return self.functions[index][1]


class TableContents:
    """A debug database in a FlatBuffer; each part is read when asked for."""

    __slots__ = ("_functions", "_known", "_types", "_values")

    def __init__(self, table: Table) -> None:
        self._known: dict[int, Location | None] = {}
        self._types = table.vector(DebugDatabaseDef.LOCATION_TYPES, "u1")
        self._values = table.vector_of_tables(DebugDatabaseDef.LOCATION_TABLE)
        self._functions = table.vector_of_tables(DebugDatabaseDef.FUNCTIONS)

    @property
    def location_count(self) -> int:
        return min(len(self._types), len(self._values))

    @property
    def function_count(self) -> int:
        return len(self._functions)

    def location(self, index: int) -> Location | None:
        if index not in self._known:
            read = _READERS.get(self._types[index])
            table = self._values.get(index)
            self._known[index] = None if read is None or table is None else read(table)
        return self._known[index]

    def local_name(self, index: int) -> str:
        return self._functions[index].string(FunctionSourceMapDef.LOCAL_NAME)

    def source_map(self, index: int) -> SourceMap:
        rows = self._functions[index].vector_of_structs(FunctionSourceMapDef.LOCATIONS, LOCATION)
        return tuple((offset, location) for offset, location in rows)


def _read_file_line_col(table: Table) -> FileLocation:
    return FileLocation(
        table.string(FileLineColLocDef.FILENAME),
        table.i32(FileLineColLocDef.LINE),
        table.i32(FileLineColLocDef.COLUMN),
    )


def _read_call_site(table: Table) -> CallLocation:
    return CallLocation(table.i32(CallSiteLocDef.CALLEE), table.i32(CallSiteLocDef.CALLER))


def _read_fused(table: Table) -> FusedLocation:
    locations = table.vector_of_integers(FusedLocDef.LOCATIONS, "i4")
    return FusedLocation(table.string(FusedLocDef.METADATA), locations)


def _read_name(table: Table) -> NamedLocation:
    child = table.i32(NameLocDef.CHILD_LOCATION) if table.has(NameLocDef.CHILD_LOCATION) else None
    return NamedLocation(table.string(NameLocDef.NAME), child)


_READERS: dict[int, Callable[[Table], Location]] = {
    LocationType.CALL_SITE: _read_call_site,
    LocationType.FILE_LINE_COL: _read_file_line_col,
    LocationType.FUSED: _read_fused,
    LocationType.NAME: _read_name,
}


class DebugDatabase:
    """Function names and source locations of a module's internal functions.

    The schema says one entry a function in order of ordinals. What iree-compile 3.13.0 writes is one entry,
    that of the function encoded last (``DebugDatabaseBuilder`` files all of them under ordinal 0). So unless
    there are as many entries as functions, an entry belongs to the function that is exported under its name.
    """

    __slots__ = ("_entries", "_maps", "_texts", "contents")

    def __init__(self, contents: Contents, function_count: int, exports: Mapping[str, int]) -> None:
        """Look through ``contents``; ``exports`` are ordinals of functions by exported name."""
        self.contents = contents
        self._entries = self._assign(function_count, exports)
        self._maps: dict[int, SourceMap] = {}
        self._texts: dict[int, str] = {}

    contents: Contents
    """What the database says, entry by entry."""

    @property
    def location_count(self) -> int:
        """Number of locations in the table."""
        return self.contents.location_count

    def entry(self, function_ordinal: int) -> int | None:
        """Index of the entry that belongs to an internal function; None if it has none."""
        return self._entries.get(function_ordinal)

    def function_name(self, function_ordinal: int) -> str | None:
        """Name of an internal function in the source; None if not known."""
        entry = self._entries.get(function_ordinal)
        return None if entry is None else self.contents.local_name(entry) or None

    def entry_name(self, index: int) -> str | None:
        """Name in the entry at ``index``, whichever function it belongs to; IREE's tools take it for that one's."""
        return self.contents.local_name(index) or None if 0 <= index < self.contents.function_count else None

    def location(self, function_ordinal: int, bytecode_offset: int) -> str | None:
        """Source of the instruction at an offset of a function, as ``"file.mlir:12:5"``; None if not known.

        An offset inside an instruction gives the instruction's location. A call reads ``"callee at caller"``,
        fused locations ``"[one, other]"`` and a named one ``"name"(file.mlir:12:5)``.
        """
        try:
            entries = self._source_map(function_ordinal)
            at = bisect.bisect_right(entries, bytecode_offset, key=lambda entry: entry[0])
            text = self._text(entries[at - 1][1]) if at else UNKNOWN
        except errors.InvalidArgument:
            return None
        return None if text == UNKNOWN else text

    def _assign(self, function_count: int, exports: Mapping[str, int]) -> dict[int, int]:
        """Index of the entry of each function ordinal that has one."""
        count = self.contents.function_count
        if count == function_count:
            return {ordinal: ordinal for ordinal in range(count)}
        names = (self.contents.local_name(index) for index in range(min(count, function_count)))
        return {exports[name]: index for index, name in enumerate(names) if name in exports}

    def _source_map(self, ordinal: int) -> SourceMap:
        """The (offset, location) pairs of a function in order of offsets."""
        known = self._maps.get(ordinal)
        if known is None:
            entry = self._entries.get(ordinal)
            known = () if entry is None else tuple(sorted(self.contents.source_map(entry)))
            self._maps[ordinal] = known
        return known

    def _text(self, index: int) -> str:
        known = self._texts.get(index)
        if known is None:
            known = self._texts[index] = _Formatter(self.contents).format(index, 0)
        return known


class _Formatter:
    """Writes one location out, within bounds."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._nodes = 0

    def format(self, index: int, depth: int) -> str:
        self._nodes += 1
        if self._nodes > NODES or depth > DEPTH:
            return "…"
        if not 0 <= index < self._contents.location_count:
            return UNKNOWN
        match self._contents.location(index):
            case FileLocation(filename, line, column):
                return f"{filename}:{line}:{column}"
            case CallLocation(callee, caller):
                return f"{self.format(callee, depth + 1)} at {self.format(caller, depth + 1)}"
            case NamedLocation(name, None):
                return f'"{name}"'
            case NamedLocation(name, int(child)):
                return f'"{name}"({self.format(child, depth + 1)})'
            case FusedLocation(_, locations):
                return self._fused(locations, depth + 1)
        return UNKNOWN

    def _fused(self, locations: tuple[int, ...], depth: int) -> str:
        # One source line often has several instructions fused: each place is named once.
        places: dict[str, None] = {}
        for index in locations:
            places[self.format(index, depth)] = None
            if self._nodes > NODES:
                break
        return next(iter(places)) if len(places) == 1 else f"[{', '.join(places)}]"
