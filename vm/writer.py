"""Writes modules: a :class:`~halgpu.vm.definition.ModuleDef` to the bytes of a .vmfb.

The FlatBuffer is made with the Builder of the ``flatbuffers`` package, the container as iree-compile makes it:
an uncompressed ZIP archive whose first member is the FlatBuffer behind its length, followed by a member for
each external rodata segment, so that a program is also something that archive tools look into. Facts:
runtime/src/iree/schemas/bytecode_module_def.fbs, runtime/src/iree/vm/bytecode/archive.c and
compiler/src/iree/compiler/Dialect/VM/Target/Bytecode/ArchiveWriter.cpp.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

from halgpu import errors
from halgpu.vm import debug, definition
from halgpu.vm.archive import IDENTIFIER, PREFIX, RODATA_ALIGNMENT
from halgpu.vm.definition import (
    AttrDef,
    BytecodeModuleDef,
    Dependency,
    ExportDef,
    ExportFunctionDef,
    FunctionSignatureDef,
    ImportDef,
    ImportFunctionDef,
    ModuleDef,
    ModuleDependencyDef,
    ModuleStateDef,
    RodataSegmentDef,
    RwdataSegmentDef,
    TypeDef,
)

EMBEDDED_ALIGNMENT = 16
"""Rodata in the FlatBuffer is aligned to this, as the compiler does by default."""
LIMIT: Final = 1 << 31
"""FlatBuffers are smaller than this: offsets in tables are signed 32-bit numbers."""

_MODULE_MEMBER = "module.fb"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_ZIP64_EXTRA = 20
"""Bytes that ``zipfile`` puts into a member's header for its 64-bit sizes."""
_PADDING_ID = 0xFECA
"""Of the extra field that moves a member's contents to where they have to be; of the range for private use."""


def write(module: ModuleDef, *, zip: bool = True) -> bytes:
    """The .vmfb of ``module``; :func:`halgpu.vm.definition.read` gives the same module back.

    ``zip=False`` leaves out all that makes it a ZIP archive, as iree-as-module does.

    Raises OutOfRange when it does not fit: numbers beyond their fields, 2 GiB of embedded data.
    """
    out = io.BytesIO()
    write_to(module, out, zip=zip)
    return out.getvalue()


def write_to(module: ModuleDef, file: IO[bytes], *, zip: bool = True) -> None:
    """Write the .vmfb of ``module`` to a seekable binary file. External rodata is not copied on its way."""
    members = _place(module, zip)
    flatbuffer = _flatbuffer(module, {member.ordinal: member.offset for member in members})
    if zip:
        _write_zip(flatbuffer, members, file)
    else:
        _write_flat(flatbuffer, members, file)


# The container.


@dataclass(frozen=True, slots=True)
class _Member:
    """An external rodata segment; ``offset`` is where it starts, counted from the end of the FlatBuffer."""

    ordinal: int
    offset: int
    data: memoryview

    @property
    def name(self) -> str:
        return f"rodata_{self.ordinal}.bin"


def _place(module: ModuleDef, zip: bool) -> list[_Member]:
    members: list[_Member] = []
    at = 0
    for ordinal, data in enumerate(module.rodata):
        if not module.rodata_external[ordinal]:
            continue
        if zip:
            at += _header_length(_Member(ordinal, 0, data).name)
        at = _aligned(at)
        members.append(_Member(ordinal, at, data))
        at += len(data)
    return members


def _aligned(at: int) -> int:
    return -(-at // RODATA_ALIGNMENT) * RODATA_ALIGNMENT


def _header_length(name: str, padding: int = 0) -> int:
    """Of a member's header, which ends where its contents start; with an extra field to pad it."""
    return 30 + len(name) + _ZIP64_EXTRA + 4 + padding


def _write_flat(flatbuffer: bytes, members: Sequence[_Member], file: IO[bytes]) -> None:
    file.write(flatbuffer)
    at = len(flatbuffer)
    base = _aligned(at)
    for member in members:
        file.write(bytes(base + member.offset - at))
        file.write(member.data)
        at = base + member.offset + len(member.data)


def _write_zip(flatbuffer: bytes, members: Sequence[_Member], file: IO[bytes]) -> None:
    # Ends at a multiple of the alignment, so that external rodata is counted from there on.
    length = _aligned(len(flatbuffer)) - PREFIX.size
    padded = PREFIX.pack(length) + flatbuffer[PREFIX.size :].ljust(length, b"\0")
    with zipfile.ZipFile(file, "w") as archive:
        base = _aligned(_header_length(_MODULE_MEMBER))
        _write_member(archive, _MODULE_MEMBER, padded, base)
        base += len(padded)
        for member in members:
            _write_member(archive, member.name, member.data, base + member.offset)


def _write_member(archive: zipfile.ZipFile, name: str, data: bytes | memoryview, at: int) -> None:
    """Append a member whose contents start at ``at``."""
    info = zipfile.ZipInfo(name, _EPOCH)
    info.create_system = 3  # the same bytes on every platform
    padding = at - archive.start_dir - _header_length(name)
    info.extra = struct.pack("<HH", _PADDING_ID, padding) + bytes(padding)
    info.file_size = len(data)
    with archive.open(info, "w", force_zip64=True) as member:
        member.write(data)


# The FlatBuffer.


class _Inline:
    """A number in a table: a method of the Builder and its value; absent where it is the default."""

    __slots__ = ("default", "put", "value")

    def __init__(self, kind: str, value: int, default: int = 0) -> None:
        self.put = f"Prepend{kind}Slot"
        self.value = value
        self.default = default


_Fields = Mapping[int, "_Inline | int"]
"""A table's fields by slot: a number, or the offset of what was written before; offset 0 stands for absent."""


class _Writer:
    """Tables, strings and vectors on top of a Builder, which writes from the end to the start."""

    def __init__(self) -> None:
        from flatbuffers import Builder

        self.builder: Any = Builder(4096)

    def string(self, text: str) -> int:
        return int(self.builder.CreateSharedString(text)) if text else 0

    def table(self, fields: _Fields) -> int:
        builder = self.builder
        builder.StartObject(max(fields, default=-1) + 1)
        for slot, value in fields.items():
            if isinstance(value, _Inline):
                getattr(builder, value.put)(slot, value.value, value.default)
            else:
                builder.PrependUOffsetTRelativeSlot(slot, value, 0)
        return int(builder.EndObject())

    def tables(self, offsets: Iterable[int]) -> int:
        """A vector of tables; offset 0 stands for null. An empty one is left out."""
        offsets = tuple(offsets)
        if not offsets:
            return 0
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            if offset:
                self.builder.PrependUOffsetTRelative(offset)
            else:
                self.builder.PrependUint32(0)
        return int(self.builder.EndVector())

    def vector(self, data: bytes | memoryview, size: int = 1, alignment: int = 4) -> int:
        """A vector of elements of ``size`` bytes, copied in one go, at a multiple of ``alignment``."""
        builder = self.builder
        builder.StartVector(size, len(data) // size, alignment)
        start = builder.head - len(data)
        builder.Bytes[start : builder.head] = data
        builder.head = start
        return int(builder.EndVector())


def _flatbuffer(module: ModuleDef, external: Mapping[int, int]) -> bytes:
    """The FlatBuffer behind its length. ``external`` are offsets of rodata segments by ordinal."""
    embedded = sum(
        len(data) for data, apart in zip(module.rodata, module.rodata_external, strict=True) if not apart
    )
    if embedded + len(module.bytecode) >= LIMIT - (1 << 20):
        raise errors.OutOfRange(
            f"{embedded + len(module.bytecode)} bytes of embedded rodata and bytecode do not fit into the 2 GiB "
            "of a FlatBuffer; make large segments external"
        )
    writer = _Writer()
    try:
        # Written first is what ends up last: bulk data behind what is looked at when a module is loaded.
        bulk = _bulk(writer, module, external)
        writer.builder.FinishSizePrefixed(writer.table(_root(writer, module) | bulk), IDENTIFIER)
    except (TypeError, struct.error) as problem:
        raise errors.OutOfRange(f"the module has a number that its field cannot hold: {problem}") from problem
    return bytes(writer.builder.Output())


def _bulk(writer: _Writer, module: ModuleDef, external: Mapping[int, int]) -> dict[int, int]:
    database = 0 if module.debug is None else _debug(writer, module.debug.contents)
    bytecode = writer.vector(module.bytecode)
    descriptors = b"".join(
        definition.DESCRIPTOR.pack(
            function.offset, function.length, function.requirements, 0, function.block_count,
            function.i32_registers, function.ref_registers,
        )
        for function in module.functions
    )  # fmt: skip
    table = writer.vector(descriptors, definition.DESCRIPTOR.size) if descriptors else 0
    segments = [_rodata(writer, module, ordinal, external) for ordinal in reversed(range(len(module.rodata)))]
    return {
        BytecodeModuleDef.DEBUG_DATABASE: database,
        BytecodeModuleDef.BYTECODE_DATA: bytecode,
        BytecodeModuleDef.FUNCTION_DESCRIPTORS: table,
        BytecodeModuleDef.RODATA_SEGMENTS: writer.tables(reversed(segments)),
    }


def _rodata(writer: _Writer, module: ModuleDef, ordinal: int, external: Mapping[int, int]) -> int:
    data = module.rodata[ordinal]
    if ordinal not in external:
        return writer.table(
            {RodataSegmentDef.EMBEDDED_DATA: writer.vector(data, alignment=EMBEDDED_ALIGNMENT)}
        )
    return writer.table(
        {
            RodataSegmentDef.EXTERNAL_DATA_OFFSET: _Inline("Uint64", external[ordinal]),
            RodataSegmentDef.EXTERNAL_DATA_LENGTH: _Inline("Uint64", len(data)),
        }
    )


def _root(writer: _Writer, module: ModuleDef) -> dict[int, _Inline | int]:
    major, minor = module.bytecode_version
    return {
        BytecodeModuleDef.RWDATA_SEGMENTS: writer.tables(_rwdata(writer, size) for size in module.rwdata),
        BytecodeModuleDef.FUNCTION_SIGNATURES: writer.tables(
            _signature(writer, signature.cconv, signature.attrs) for signature in module.signatures
        ),
        BytecodeModuleDef.EXPORTED_FUNCTIONS: writer.tables(_export(writer, e) for e in module.exports),
        BytecodeModuleDef.IMPORTED_FUNCTIONS: writer.tables(_import(writer, i) for i in module.imports),
        BytecodeModuleDef.DEPENDENCIES: writer.tables(_dependency(writer, d) for d in module.dependencies),
        BytecodeModuleDef.TYPES: writer.tables(
            writer.table({TypeDef.FULL_NAME: writer.string(name)}) for name in module.types
        ),
        BytecodeModuleDef.ATTRS: _attrs(writer, module.attrs),
        BytecodeModuleDef.MODULE_STATE: _state(writer, module),
        BytecodeModuleDef.NAME: writer.string(module.name),
        BytecodeModuleDef.VERSION: _Inline("Uint32", module.version),
        BytecodeModuleDef.REQUIREMENTS: _Inline("Uint32", int(module.requirements)),
        BytecodeModuleDef.BYTECODE_VERSION: _Inline("Uint32", major << 16 | minor),
    }


def _rwdata(writer: _Writer, size: int) -> int:
    return writer.table({RwdataSegmentDef.BYTE_SIZE: _Inline("Int32", size)})


def _attrs(writer: _Writer, attrs: Mapping[str, str]) -> int:
    return writer.tables(
        writer.table({AttrDef.KEY: writer.string(key), AttrDef.VALUE: writer.string(value)})
        for key, value in attrs.items()
    )


def _signature(writer: _Writer, cconv: str, attrs: Mapping[str, str]) -> int:
    return writer.table(
        {
            FunctionSignatureDef.CALLING_CONVENTION: writer.string(cconv),
            FunctionSignatureDef.ATTRS: _attrs(writer, attrs),
        }
    )


def _export(writer: _Writer, export: ExportDef) -> int:
    return writer.table(
        {
            ExportFunctionDef.LOCAL_NAME: writer.string(export.local_name),
            ExportFunctionDef.INTERNAL_ORDINAL: _Inline("Int32", export.ordinal),
        }
    )


def _import(writer: _Writer, imported: ImportDef) -> int:
    return writer.table(
        {
            ImportFunctionDef.FULL_NAME: writer.string(imported.full_name),
            ImportFunctionDef.SIGNATURE: _signature(writer, imported.cconv, imported.attrs),
            ImportFunctionDef.FLAGS: _flags(imported.optional),
        }
    )


def _dependency(writer: _Writer, dependency: Dependency) -> int:
    return writer.table(
        {
            ModuleDependencyDef.NAME: writer.string(dependency.name),
            ModuleDependencyDef.MINIMUM_VERSION: _Inline("Uint32", dependency.minimum_version),
            ModuleDependencyDef.FLAGS: _flags(dependency.optional),
        }
    )


def _flags(optional: bool) -> _Inline:
    return _Inline("Uint32", definition.FLAG_OPTIONAL if optional else 1, default=1)


def _state(writer: _Writer, module: ModuleDef) -> int:
    if not module.global_bytes and not module.global_refs:
        return 0
    return writer.table(
        {
            ModuleStateDef.GLOBAL_BYTES_CAPACITY: _Inline("Int32", module.global_bytes),
            ModuleStateDef.GLOBAL_REF_COUNT: _Inline("Int32", module.global_refs),
        }
    )


# The debug database.


def _debug(writer: _Writer, contents: debug.Contents) -> int:
    types = bytearray()
    values: list[int] = []
    for index in range(contents.location_count):
        kind, value = _location(writer, contents.location(index))
        types.append(kind)
        values.append(value)
    functions = [_source_map(writer, contents, index) for index in range(contents.function_count)]
    return writer.table(
        {
            debug.DebugDatabaseDef.LOCATION_TYPES: writer.vector(bytes(types)) if types else 0,
            debug.DebugDatabaseDef.LOCATION_TABLE: writer.tables(values),
            debug.DebugDatabaseDef.FUNCTIONS: writer.tables(functions),
        }
    )


def _source_map(writer: _Writer, contents: debug.Contents, index: int) -> int:
    rows = b"".join(debug.LOCATION.pack(*row) for row in contents.source_map(index))
    return writer.table(
        {
            debug.FunctionSourceMapDef.LOCAL_NAME: writer.string(contents.local_name(index)),
            debug.FunctionSourceMapDef.LOCATIONS: writer.vector(rows, debug.LOCATION.size) if rows else 0,
        }
    )


def _location(writer: _Writer, location: debug.Location | None) -> tuple[int, int]:
    """Kind and offset of a location."""
    match location:
        case debug.FileLocation(filename, line, column):
            return debug.LocationType.FILE_LINE_COL, writer.table(
                {
                    debug.FileLineColLocDef.FILENAME: writer.string(filename),
                    debug.FileLineColLocDef.LINE: _Inline("Int32", line),
                    debug.FileLineColLocDef.COLUMN: _Inline("Int32", column),
                }
            )
        case debug.CallLocation(callee, caller):
            return debug.LocationType.CALL_SITE, writer.table(
                {
                    debug.CallSiteLocDef.CALLEE: _Inline("Int32", callee),
                    debug.CallSiteLocDef.CALLER: _Inline("Int32", caller),
                }
            )
        case debug.FusedLocation(metadata, locations):
            rows = struct.pack(f"<{len(locations)}i", *locations)
            return debug.LocationType.FUSED, writer.table(
                {
                    debug.FusedLocDef.METADATA: writer.string(metadata),
                    debug.FusedLocDef.LOCATIONS: writer.vector(rows, 4) if rows else 0,
                }
            )
        case debug.NamedLocation(name, child):
            return debug.LocationType.NAME, writer.table(
                {
                    debug.NameLocDef.NAME: writer.string(name),
                    debug.NameLocDef.CHILD_LOCATION: _child(child),
                }
            )
    return 0, 0


def _child(child: int | None) -> _Inline:
    # A child is there or not whatever its number, so no number may be left out for being the default.
    return _Inline("Int32", 0) if child is None else _Inline("Int32", child, default=child ^ 1)
