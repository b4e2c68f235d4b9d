"""The module definition: what the FlatBuffer of a .vmfb says, as frozen Python objects.

The format is runtime/src/iree/schemas/bytecode_module_def.fbs, the checks are those of
``iree_vm_bytecode_module_flatbuffer_verify`` in runtime/src/iree/vm/bytecode/verifier.c. Byte ranges stay
views of the file's buffer. Bytecode is looked at by :mod:`halgpu.vm.verifier`.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from halgpu import errors
from halgpu.vm import archive, flatbuffer, isa
from halgpu.vm.debug import DebugDatabase, TableContents

COMPILER = "iree-base-compiler 3.13.0"
"""The compiler on PyPI whose modules have :data:`halgpu.vm.isa.VERSION`."""


class Feature(enum.IntFlag):
    """What a module or function needs of the machine that runs it (``FeatureBits`` of the schema)."""

    EXT_F32 = 1 << 0
    EXT_F64 = 1 << 1
    YIELD = 1 << 2
    UNWIND = 1 << 3


_KNOWN_FEATURES = sum(Feature)


@dataclass(frozen=True, slots=True, eq=False)
class Dependency:
    """A module that this one needs. An optional one may be missing; then so may its imports."""

    name: str
    minimum_version: int
    optional: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ImportDef:
    """A function of another module; ``full_name`` starts with that module's name."""

    full_name: str
    cconv: str
    attrs: Mapping[str, str] = field(default_factory=dict)
    optional: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ExportDef:
    """A function that others may call; ``ordinal`` is its index in ``ModuleDef.functions``."""

    local_name: str
    ordinal: int


@dataclass(frozen=True, slots=True, eq=False)
class SignatureDef:
    """Calling convention (``""``: no arguments, no results) and attributes of an internal function."""

    cconv: str
    attrs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class FunctionDef:
    """An internal function: ``code`` is the range ``offset``, ``length`` of ``ModuleDef.bytecode``."""

    ordinal: int
    name: str | None
    """Name in the debug database, else of the first export that is this function, else None."""
    offset: int
    length: int
    requirements: Feature
    block_count: int
    i32_registers: int
    ref_registers: int
    code: memoryview = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class ModuleDef:
    """A bytecode module. Tuples are indexed by the ordinals that bytecode uses."""

    name: str
    version: int
    requirements: Feature
    attrs: Mapping[str, str]
    types: tuple[str, ...]
    dependencies: tuple[Dependency, ...]
    imports: tuple[ImportDef, ...]
    exports: tuple[ExportDef, ...]
    signatures: tuple[SignatureDef, ...]
    """By internal function ordinal, as many as ``functions``."""
    rodata: tuple[memoryview, ...] = field(repr=False)
    """Read-only views of the file's buffer, never copied."""
    rodata_external: tuple[bool, ...]
    """For each rodata segment whether its bytes lie behind the FlatBuffer rather than in it."""
    rwdata: tuple[int, ...]
    """Byte sizes of the read-write segments."""
    global_bytes: int
    global_refs: int
    functions: tuple[FunctionDef, ...]
    bytecode: memoryview = field(repr=False)
    bytecode_version: tuple[int, int]
    debug: DebugDatabase | None = field(repr=False)

    def aliases(self) -> dict[int, list[str]]:
        """Names under which each exported function is exported, by its ordinal."""
        found: dict[int, list[str]] = {}
        for export in self.exports:
            found.setdefault(export.ordinal, []).append(export.local_name)
        return found


def read(data: object) -> ModuleDef:
    """Read a .vmfb from any contiguous buffer: bytes, bytearray, memoryview at any offset, mmap.

    The buffer is kept, as views; only text and numbers are copied. Writing to it later is not allowed for.

    Raises InvalidArgument for what is not a .vmfb or is damaged, and Incompatible for bytecode of another
    version than 17.0.
    """
    parts = archive.parse(data)
    root = flatbuffer.root(parts.flatbuffer, archive.IDENTIFIER, "the module", prefix=archive.PREFIX.size)
    version = _bytecode_version(root)
    exports = tuple(_export(table) for table in root.vector_of_tables(BytecodeModuleDef.EXPORTED_FUNCTIONS))
    descriptors = root.vector_of_structs(BytecodeModuleDef.FUNCTION_DESCRIPTORS, DESCRIPTOR)
    bytecode = root.vector(BytecodeModuleDef.BYTECODE_DATA, "u1")
    debug = _debug(root, len(descriptors), exports)
    segments = [
        _rodata(table, ordinal, parts)
        for ordinal, table in enumerate(root.vector_of_tables(BytecodeModuleDef.RODATA_SEGMENTS))
    ]
    global_bytes, global_refs = _module_state(root)
    module = ModuleDef(
        name=_name(root, BytecodeModuleDef.NAME, "the module"),
        version=root.u32(BytecodeModuleDef.VERSION),
        requirements=_features(root.u32(BytecodeModuleDef.REQUIREMENTS), "the module"),
        attrs=_attrs(root.vector_of_tables(BytecodeModuleDef.ATTRS)),
        types=_types(root),
        dependencies=_dependencies(root),
        imports=_imports(root),
        exports=exports,
        signatures=tuple(map(_signature, root.vector_of_tables(BytecodeModuleDef.FUNCTION_SIGNATURES))),
        rodata=tuple(view for view, _ in segments),
        rodata_external=tuple(external for _, external in segments),
        rwdata=_rwdata(root),
        global_bytes=global_bytes,
        global_refs=global_refs,
        functions=make_functions(descriptors, bytecode, exports, debug),
        bytecode=bytecode,
        bytecode_version=version,
        debug=debug,
    )
    _check_ordinals(module)
    flatbuffer.check_disjoint(root)
    return module


class BytecodeModuleDef(enum.IntEnum):
    """Slots of the root table."""

    NAME = 0
    VERSION = 1
    REQUIREMENTS = 2
    ATTRS = 3
    TYPES = 4
    DEPENDENCIES = 5
    IMPORTED_FUNCTIONS = 6
    EXPORTED_FUNCTIONS = 7
    FUNCTION_SIGNATURES = 8
    RODATA_SEGMENTS = 9
    RWDATA_SEGMENTS = 10
    MODULE_STATE = 11
    FUNCTION_DESCRIPTORS = 12
    BYTECODE_VERSION = 13
    BYTECODE_DATA = 14
    DEBUG_DATABASE = 15


class AttrDef(enum.IntEnum):
    """Slots of an attribute."""

    KEY = 0
    VALUE = 1


class TypeDef(enum.IntEnum):
    """Slots of an entry of the type table."""

    FULL_NAME = 0


class FunctionSignatureDef(enum.IntEnum):
    """Slots of a signature."""

    CALLING_CONVENTION = 0
    ATTRS = 1


class ModuleDependencyDef(enum.IntEnum):
    """Slots of a dependency."""

    NAME = 0
    MINIMUM_VERSION = 1
    FLAGS = 2


class ImportFunctionDef(enum.IntEnum):
    """Slots of an import."""

    FULL_NAME = 0
    SIGNATURE = 1
    FLAGS = 2


class ExportFunctionDef(enum.IntEnum):
    """Slots of an export."""

    LOCAL_NAME = 0
    INTERNAL_ORDINAL = 1


class RodataSegmentDef(enum.IntEnum):
    """Slots of a read-only segment."""

    COMPRESSION_TYPE = 0
    COMPRESSION = 1
    EMBEDDED_DATA = 2
    EXTERNAL_DATA_OFFSET = 3
    EXTERNAL_DATA_LENGTH = 4


class RwdataSegmentDef(enum.IntEnum):
    """Slots of a read-write segment."""

    BYTE_SIZE = 0


class ModuleStateDef(enum.IntEnum):
    """Slots of the module state."""

    GLOBAL_BYTES_CAPACITY = 0
    GLOBAL_REF_COUNT = 1


FLAG_OPTIONAL = 1 << 1
"""Bit of the flags of dependencies and imports; the other one, 1 << 0, says required."""
COMPRESSION_NONE = (0, 1)
"""Union types NONE and UncompressedDataDef; the schema has no others."""
DESCRIPTOR = struct.Struct("<iiIhhhh")
"""``FunctionDescriptor``: offset, length, requirements, reserved, blocks, i32 registers, ref registers."""


def _fail(problem: str) -> errors.InvalidArgument:
    return errors.InvalidArgument(f"the module is malformed: {problem}")


def _bytecode_version(root: flatbuffer.Table) -> tuple[int, int]:
    """The module's bytecode version, checked first: other versions may mean anything by the other fields."""
    packed = root.u32(BytecodeModuleDef.BYTECODE_VERSION)
    version = packed >> 16, packed & 0xFFFF
    if version[0] != isa.VERSION[0] or version[1] > isa.VERSION[1]:
        raise errors.Incompatible(
            f"expected bytecode version {isa.VERSION[0]}.{isa.VERSION[1]}, found {version[0]}.{version[1]}; "
            f"compile the module with {COMPILER}"
        )
    return version


def _features(bits: int, what: str) -> Feature:
    unknown = bits & ~_KNOWN_FEATURES
    if unknown:
        raise _fail(f"{what} requires features {bits:#x}, of which {unknown:#x} are not known")
    return Feature(bits)


def _name(table: flatbuffer.Table, slot: int, what: str) -> str:
    name = table.string(slot)
    if not name:
        raise _fail(f"{what} has no name")
    return name


def _attrs(tables: Iterable[flatbuffer.Table]) -> Mapping[str, str]:
    attrs: dict[str, str] = {}
    for table in tables:
        # IREE takes the first of several attributes of one name.
        attrs.setdefault(table.string(AttrDef.KEY), table.string(AttrDef.VALUE))
    return attrs


def _types(root: flatbuffer.Table) -> tuple[str, ...]:
    tables = root.vector_of_tables(BytecodeModuleDef.TYPES)
    return tuple(_name(table, TypeDef.FULL_NAME, f"type {i}") for i, table in enumerate(tables))


def _dependencies(root: flatbuffer.Table) -> tuple[Dependency, ...]:
    return tuple(
        Dependency(
            _name(table, ModuleDependencyDef.NAME, f"dependency {i}"),
            table.u32(ModuleDependencyDef.MINIMUM_VERSION),
            bool(table.u32(ModuleDependencyDef.FLAGS, 1) & FLAG_OPTIONAL),
        )
        for i, table in enumerate(root.vector_of_tables(BytecodeModuleDef.DEPENDENCIES))
    )


def _signature(table: flatbuffer.Table | None) -> SignatureDef:
    if table is None:
        return SignatureDef("")
    return SignatureDef(
        table.string(FunctionSignatureDef.CALLING_CONVENTION),
        _attrs(table.vector_of_tables(FunctionSignatureDef.ATTRS)),
    )


def _import(table: flatbuffer.Table, ordinal: int) -> ImportDef:
    signature = _signature(table.table(ImportFunctionDef.SIGNATURE))
    return ImportDef(
        _name(table, ImportFunctionDef.FULL_NAME, f"import {ordinal}"),
        signature.cconv,
        signature.attrs,
        bool(table.u32(ImportFunctionDef.FLAGS, 1) & FLAG_OPTIONAL),
    )


def _imports(root: flatbuffer.Table) -> tuple[ImportDef, ...]:
    tables = root.vector_of_tables(BytecodeModuleDef.IMPORTED_FUNCTIONS)
    return tuple(_import(table, ordinal) for ordinal, table in enumerate(tables))


def _export(table: flatbuffer.Table) -> ExportDef:
    return ExportDef(
        _name(table, ExportFunctionDef.LOCAL_NAME, "an export"),
        table.i32(ExportFunctionDef.INTERNAL_ORDINAL),
    )


def _rodata(table: flatbuffer.Table, ordinal: int, parts: archive.Archive) -> tuple[memoryview, bool]:
    """The bytes of a segment and whether they lie behind the FlatBuffer."""
    if table.u8(RodataSegmentDef.COMPRESSION_TYPE) not in COMPRESSION_NONE:
        raise _fail(f"rodata segment {ordinal} has an unknown compression")
    if table.has(RodataSegmentDef.EMBEDDED_DATA):
        return table.vector(RodataSegmentDef.EMBEDDED_DATA, "u1"), False
    offset = table.u64(RodataSegmentDef.EXTERNAL_DATA_OFFSET)
    length = table.u64(RodataSegmentDef.EXTERNAL_DATA_LENGTH)
    start = parts.rodata_offset + offset
    if start + length > len(parts.contents):
        raise _fail(
            f"rodata segment {ordinal} has {length} bytes at {start}, but the file ends at "
            f"{len(parts.contents)}; the file may be cut short"
        )
    return parts.contents[start : start + length], True


def _rwdata(root: flatbuffer.Table) -> tuple[int, ...]:
    tables = root.vector_of_tables(BytecodeModuleDef.RWDATA_SEGMENTS)
    return tuple(_size(table.i32(RwdataSegmentDef.BYTE_SIZE), "an rwdata segment") for table in tables)


def _module_state(root: flatbuffer.Table) -> tuple[int, int]:
    state = root.table(BytecodeModuleDef.MODULE_STATE)
    if state is None:
        return 0, 0
    return (
        _size(state.i32(ModuleStateDef.GLOBAL_BYTES_CAPACITY), "the global storage"),
        _size(state.i32(ModuleStateDef.GLOBAL_REF_COUNT), "the table of global refs"),
    )


def _size(value: int, what: str) -> int:
    if value < 0:
        raise _fail(f"{what} has the size {value}")
    return value


def _debug(
    root: flatbuffer.Table, function_count: int, exports: tuple[ExportDef, ...]
) -> DebugDatabase | None:
    table = root.table(BytecodeModuleDef.DEBUG_DATABASE)
    if table is None:
        return None
    return DebugDatabase(
        TableContents(table), function_count, {export.local_name: export.ordinal for export in exports}
    )


def make_functions(
    descriptors: tuple[tuple[int, ...], ...],
    bytecode: memoryview,
    exports: tuple[ExportDef, ...],
    debug: DebugDatabase | None,
) -> tuple[FunctionDef, ...]:
    """Functions from their descriptors (fields of :data:`DESCRIPTOR`), in order of ordinals.

    Raises InvalidArgument for a descriptor that cannot be.
    """
    names = {export.ordinal: export.local_name for export in reversed(exports)}
    return tuple(
        _function(ordinal, (debug and debug.function_name(ordinal)) or names.get(ordinal), values, bytecode)
        for ordinal, values in enumerate(descriptors)
    )


def _function(ordinal: int, name: str | None, values: tuple[int, ...], bytecode: memoryview) -> FunctionDef:
    offset, length, requirements, _, blocks, i32_registers, ref_registers = values
    what = f"function {ordinal}" if name is None else f"function {ordinal} (@{name})"
    if offset < 0 or length <= 0 or offset + length > len(bytecode):
        raise _fail(f"{what} has {length} bytes at {offset} of {len(bytecode)} bytes of bytecode")
    if blocks <= 0:
        raise _fail(f"{what} has {blocks} blocks; it needs at least one")
    if not (0 <= i32_registers <= isa.I32_MASK and 0 <= ref_registers <= isa.REF_MASK):
        raise _fail(
            f"{what} has {i32_registers} i32 and {ref_registers} ref registers; "
            f"at most {isa.I32_MASK} and {isa.REF_MASK} are possible"
        )
    return FunctionDef(
        ordinal, name, offset, length, _features(requirements, what), blocks, i32_registers, ref_registers,
        bytecode[offset : offset + length],
    )  # fmt: skip


def _check_ordinals(module: ModuleDef) -> None:
    if len(module.signatures) != len(module.functions):
        raise _fail(f"it has {len(module.functions)} functions and {len(module.signatures)} signatures")
    for export in module.exports:
        if not 0 <= export.ordinal < len(module.functions):
            raise _fail(
                f"export {export.local_name!r} is function {export.ordinal}, "
                f"but there are {len(module.functions)} functions"
            )
