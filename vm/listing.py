"""Lists what a module has: what ``iree-dump-module --output=metadata`` prints.

Facts: tools/iree-dump-module-main.c of IREE. Some sections depend on whether a field is in the file at all, so this
looks at the FlatBuffer, not only at the :class:`~halgpu.vm.definition.ModuleDef` read from it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping

from halgpu import errors
from halgpu.vm import archive, definition, flatbuffer
from halgpu.vm.definition import BytecodeModuleDef, Feature, ModuleDef, RodataSegmentDef

_RULE = f"//==={'-' * 110}===//"
_REF_SIZE = 16
"""Bytes of a ref in IREE's module state (``iree_vm_ref_t``)."""
_SHOWN = 32
"""Characters of a text in rodata that are shown."""
_COLUMNS = "  # | Offset   |   Length | Blocks | i32 # | ref # | Requirements | Aliases"
_TYPES = {"i": "i32", "I": "i64", "f": "f32", "F": "f64", "r": "!vm.ref<?>", "v": ""}


def listing(data: object) -> str:
    """The listing of a .vmfb in any contiguous buffer. Raises what :func:`halgpu.vm.definition.read` raises."""
    parts = archive.parse(data)
    module = definition.read(data)
    root = flatbuffer.root(parts.flatbuffer, archive.IDENTIFIER, "the module", prefix=archive.PREFIX.size)
    lines = [
        *_section(f"@{module.name} : version {_signed(module.version)}"),
        *_interface(module, root),
        *_section("Sections"),
        *_storage(module, root, len(parts.flatbuffer)),
        *_section(f"Bytecode : version {_signed(module.version)}"),
        *(_functions(module) if root.has(BytecodeModuleDef.FUNCTION_DESCRIPTORS) else ()),
        "",
        *_debug(module),
    ]
    return "\n".join(lines) + "\n"


def _section(title: str) -> Iterator[str]:
    yield from (_RULE, f"// {title}", _RULE, "")


def _signed(value: int) -> int:
    """A u32 as IREE's tool prints it, as if it were signed."""
    return int(struct.unpack("<i", struct.pack("<I", value))[0])


def _paragraph(title: str, lines: Iterable[str]) -> Iterator[str]:
    yield title
    yield from lines
    yield ""


def _numbered(ordinal: int, text: str) -> str:
    return f"  [{ordinal:3}] {text}"


# What others see of the module.


def _interface(module: ModuleDef, root: flatbuffer.Table) -> Iterator[str]:
    slots = BytecodeModuleDef
    if root.has(slots.REQUIREMENTS):
        yield from _paragraph(f"Requirements: {_features(module.requirements)}", ())
    if root.has(slots.ATTRS):
        yield from _paragraph("Attributes:", _attrs(module.attrs, 2))
    if root.has(slots.TYPES):
        types = (_numbered(ordinal, name) for ordinal, name in enumerate(module.types))
        yield from _paragraph("Required Types:", types)
    if root.has(slots.DEPENDENCIES):
        yield from _paragraph("Module Dependencies:", _dependencies(module))
    if root.has(slots.IMPORTED_FUNCTIONS):
        yield from _paragraph("Imported Functions:", _imports(module))
    if root.has(slots.EXPORTED_FUNCTIONS):
        yield from _paragraph("Exported Functions:", _exports(module))


def _features(features: Feature) -> str:
    """Names of the features that IREE's tool knows by name, and the others in hexadecimal."""
    known = (Feature.EXT_F32, Feature.EXT_F64)
    names = [str(feature.name) for feature in known if features & feature]
    rest = int(features) & ~sum(known)
    return " | ".join([*names, f"{rest:08X}"] if rest else names)


def _attrs(attrs: Mapping[str, str], indent: int) -> Iterator[str]:
    return (f"{'':{indent}}{key}: {value}" for key, value in attrs.items())


def _dependencies(module: ModuleDef) -> Iterator[str]:
    for dependency in module.dependencies:
        need = "optional" if dependency.optional else "required"
        yield f"  {dependency.name}, version >= {_signed(dependency.minimum_version)}, {need}"


def _imports(module: ModuleDef) -> Iterator[str]:
    for ordinal, imported in enumerate(module.imports):
        optional = "?" if imported.optional else ""
        yield _numbered(ordinal, f"{optional}{imported.full_name}{_signature(imported.cconv)}")
        yield from _attrs(imported.attrs, 8)


def _exports(module: ModuleDef) -> Iterator[str]:
    for ordinal, export in enumerate(module.exports):
        signature = module.signatures[export.ordinal]
        yield _numbered(ordinal, f"{export.local_name}{_signature(signature.cconv)}")
        yield from _attrs(signature.attrs, 8)


def _signature(cconv: str) -> str:
    if not cconv:
        return ""
    if cconv[0] != "0":
        raise errors.InvalidArgument(f"calling convention {cconv!r} has an unknown version; expected 0")
    arguments, _, results = cconv[1:].partition("_")
    return f"({_values(arguments, cconv)}) -> ({_values(results, cconv)})"


def _values(letters: str, cconv: str) -> str:
    texts: list[str] = []
    at = 0
    while at < len(letters):
        end = at
        if letters[at] == "C":
            end = letters.find("D", at)
            texts.append(f"tuple<{_values(letters[at + 1 : end], cconv)}>..." if end > 0 else "?")
        else:
            texts.append(_TYPES.get(letters[at], "?"))
        if texts[-1] == "?":
            raise errors.InvalidArgument(f"calling convention {cconv!r} is malformed at {letters[at:]!r}")
        at = end + 1
    return ", ".join(texts)


# What is in the file.


def _storage(module: ModuleDef, root: flatbuffer.Table, size: int) -> Iterator[str]:
    slots = BytecodeModuleDef
    if root.has(slots.MODULE_STATE):
        total = module.global_bytes + _REF_SIZE * module.global_refs
        state = f"  {module.global_bytes} bytes, {module.global_refs} refs, ~{total} bytes total"
        yield from _paragraph("Module State:", (state,))
    yield f"FlatBuffer: {size} bytes"
    if root.has(slots.BYTECODE_DATA):
        yield f"  Bytecode: {len(module.bytecode)} bytes"
    for ordinal, segment in enumerate(root.vector_of_tables(slots.RODATA_SEGMENTS)):
        yield f"  .rodata[{ordinal:3}] {_rodata(segment, module.rodata[ordinal])}"
    for ordinal, length in enumerate(module.rwdata):
        yield f"  .rwdata[{ordinal:3}] {length} bytes"
    yield ""
    pairs = zip(module.rodata, module.rodata_external, strict=True)
    external = sum(len(data) for data, is_external in pairs if is_external)
    if external:
        yield from _paragraph(f"External .rodata: ~{external} bytes", ())


def _rodata(segment: flatbuffer.Table, data: memoryview) -> str:
    stored = "uncompressed " if segment.u8(RodataSegmentDef.COMPRESSION_TYPE) else ""
    if segment.has(RodataSegmentDef.EMBEDDED_DATA):
        return f"{stored}embedded {len(data):8} bytes{_text(data)}"
    start = segment.u64(RodataSegmentDef.EXTERNAL_DATA_OFFSET)
    end = start + len(data)
    return f"{stored}external {len(data):8} bytes (offset {start} / {start:X}h to {end:X}h)"


def _text(data: memoryview) -> str:
    """What is in a segment, up to a zero byte, if that is text."""
    head = bytes(data).partition(b"\0")[0]
    if any(not 32 <= byte < 127 for byte in head):
        return ""
    return f" `{head[:_SHOWN].decode()}`" + ("..." if len(head) >= _SHOWN else "")


def _functions(module: ModuleDef) -> Iterator[str]:
    yield _COLUMNS
    yield "-+-".join("-" * len(column) for column in _COLUMNS.split(" | ")[:-1]) + f"-+-{'-' * 52}"
    exported = module.aliases()
    for function in module.functions:
        yield (
            f"{function.ordinal:3} | {function.offset:08X} | {function.length:8} | {function.block_count:6} | "
            f"{function.i32_registers:5} | {function.ref_registers:5} | {_features(function.requirements):12} | "
            f"{', '.join(exported.get(function.ordinal, ()))}"
        )


def _debug(module: ModuleDef) -> Iterator[str]:
    if module.debug is None:
        return
    *title, _ = _section("Debug Information")
    yield from title
    yield "// NOTE: debug databases are large and should be stripped in deployed artifacts."
    yield ""
    yield f"Locations: {module.debug.location_count}"
    yield ""
