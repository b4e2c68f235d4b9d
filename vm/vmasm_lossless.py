"""Prints modules as text (VMASM) from which the assembler makes the same module again.

What the text of IREE's tools has no words for stands in comments, as the directives of
:mod:`halgpu.vm.vmasm_source`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from halgpu.vm import debug, isa, vmasm
from halgpu.vm.definition import Feature, ModuleDef
from halgpu.vm.encoder import Encoder
from halgpu.vm.isa import Op
from halgpu.vm.verifier import VerifiedFunction, register_counts
from halgpu.vm.vmasm_printer import ModulePrinter, letters


class LosslessPrinter(ModulePrinter):
    """Prints all there is, and names nothing twice."""

    def __init__(self, module: ModuleDef, functions: Sequence[VerifiedFunction]) -> None:
        super().__init__(module, functions)
        self._types = Counter(module.types)
        self._imports = Counter(imported.full_name for imported in module.imports)
        self._exports = Counter(export.local_name for export in module.exports)
        self._inline = _InlineLocations(module, functions)
        self._end = 0

    def function_names(self) -> list[str]:
        """The name of an export, or that of the debug database, or ``fn3``, if no other function has it."""
        names: dict[str, None] = {}
        reserved = {*self.exported.values(), *(f"fn{i}" for i in range(len(self.module.functions)))}
        for function in self.module.functions:
            ordinal = function.ordinal
            name = self.exported.get(ordinal, "")
            if not name and function.name not in reserved:
                name = function.name or ""
            if not vmasm.is_symbol(name) or name in names:
                name = f"fn{ordinal}" if f"fn{ordinal}" not in self.exported.values() else f"fn{ordinal}$"
            names[name] = None
        return list(names)

    def header(self) -> Iterator[str]:
        lines = super().header()
        yield next(lines)
        yield from self._below_module()
        yield from lines
        for export in self.module.exports:
            name, function = export.local_name, self.names[export.ordinal]
            declared = self.symbol(name) if self._exports[name] == 1 else vmasm.quoted(name)
            yield f"vm.export @{declared}" + ("" if name == function else f" = @{function}")

    def _below_module(self) -> Iterator[str]:
        module = self.module
        yield "//! complete"
        requirements = Feature(0)
        for function in module.functions:
            requirements |= function.requirements
        if module.requirements != requirements:
            yield f"//! requires {_features(module.requirements)}"
        yield from _attributes(module.attrs)
        for dependency in module.dependencies:
            optional = " optional" if dependency.optional else ""
            yield f"//! depends {vmasm.quoted(dependency.name)} {dependency.minimum_version}{optional}"
        if module.global_bytes or module.global_refs:
            yield f"//! state {module.global_bytes} {module.global_refs}"
        if module.rwdata:
            yield f"//! rwdata {' '.join(map(str, module.rwdata))}"
        end = max((function.offset + function.length for function in module.functions), default=0)
        if len(module.bytecode) != _aligned(end):
            yield f"//! bytecode {len(module.bytecode)}"

    def above_function(self, ordinal: int) -> Iterator[str]:
        return iter(())

    def below_import(self, ordinal: int) -> Iterator[str]:
        return _attributes(self.module.imports[ordinal].attrs)

    def below_rodata(self, ordinal: int) -> Iterator[str]:
        if self.module.rodata_external[ordinal]:
            yield "//! external"

    def below_function(self, function: VerifiedFunction) -> Iterator[str]:
        """What the assembler would not find out by itself."""
        definition = function.definition
        yield from _attributes(self.module.signatures[definition.ordinal].attrs)
        arguments, results = letters(function.cconv)
        if function.cconv != f"0{arguments or 'v'}_{results or 'v'}":
            yield f"//! cconv {vmasm.quoted(function.cconv)}"
        encoder = self._encode(function)
        i32, refs = register_counts(arguments)
        counts = max(encoder.i32_registers, i32), max(encoder.ref_registers, refs)
        if (definition.i32_registers, definition.ref_registers) != counts:
            yield f"//! registers {definition.i32_registers} {definition.ref_registers}"
        if definition.requirements != encoder.requirements:
            yield f"//! requires {_features(definition.requirements)}"
        if (definition.offset, definition.length) != (_aligned(self._end), len(encoder.code)):
            yield f"//! at 0x{definition.offset:X} {definition.length}"
        self._end = definition.offset + definition.length

    def _encode(self, function: VerifiedFunction) -> Encoder:
        encoder = Encoder()
        for block in function.blocks:
            encoder.block(block.offset)
            for op in block.ops:
                encoder.op(op.instruction, [_raw(function, op, n) for n in range(len(op.operands))])
                if "results" in op.instruction.index:
                    results = zip(self._result_types(op["callee_ordinal"]), op["results"], strict=False)
                    for letter, register in results:
                        encoder.use(register, "i64" if letter in "IF" else None)
        return encoder

    def _result_types(self, callee: int) -> str:
        imported = callee & isa.IMPORT_BIT
        signature = (
            self.module.imports[callee ^ isa.IMPORT_BIT] if imported else self.module.signatures[callee]
        )
        return letters(signature.cconv)[1]

    def note(self, function: VerifiedFunction, op: Op) -> str:
        notes = "".join(
            _odd_operand(field, op.operands[n], _raw(function, op, n))
            for n, field in enumerate(op.instruction.fields)
            if field.kind == "string" or (field.type in ("f32", "f64") and field.kind == "immediate")
        )
        location = self._inline.location(function.definition.ordinal, op.offset)
        if location is not None:
            notes += f" loc {location}"
        return f"  //!{notes}" if notes else ""

    def footer(self) -> Iterator[str]:
        return self._inline.footer()

    def callee(self, ordinal: int) -> str:
        if ordinal & isa.IMPORT_BIT:
            ordinal ^= isa.IMPORT_BIT
            name = self.module.imports[ordinal].full_name
            return name if vmasm.is_symbol(name) and self._imports[name] == 1 else f"import[{ordinal}]"
        module, name = self.module.name, self.names[ordinal]
        if not vmasm.is_symbol(module):
            return f"func[{ordinal}]"
        # iree-as-module takes what comes before the first dot for the module.
        if "." in module or self._imports[f"{module}.{name}"] or name in ("__init", "__deinit"):
            return f"{module}:{ordinal}"
        return f"{module}.{name}"

    def text(self, text: str) -> str:
        return "".join(character if _is_plain(character) else "?" for character in text)

    def symbol(self, name: str) -> str:
        return name if vmasm.is_symbol(name) else vmasm.quoted(name)

    def type_declaration(self, ordinal: int) -> str:
        name = self.module.types[ordinal]
        return name if self._is_plain_type(name) else vmasm.quoted(name)

    def type_reference(self, ordinal: int) -> str:
        name = self.module.types[ordinal]
        return name if self._is_plain_type(name) else f"type[{ordinal}]"

    def _is_plain_type(self, name: str) -> bool:
        return vmasm.is_type(name) and self._types[name] == 1

    def import_declaration(self, ordinal: int) -> str:
        name = self.module.imports[ordinal].full_name
        return self.symbol(name) if self._imports[name] == 1 else vmasm.quoted(name)


def _aligned(offset: int) -> int:
    return -(-offset // 8) * 8


def _features(features: Feature) -> str:
    return " ".join(str(feature.name) for feature in Feature if feature & features) or "none"


def _attributes(attrs: Mapping[str, str]) -> Iterator[str]:
    for key, value in attrs.items():
        yield f"//! attr {vmasm.quoted(key)} {vmasm.quoted(value)}"


def _is_plain(character: str) -> bool:
    return character.isprintable() and character != '"'


_WIDTHS = {"f32": 4, "f64": 8}


def _raw(function: VerifiedFunction, op: Op, index: int) -> Any:
    """An operand as the encoder takes it: texts and floats as the bytes that are there."""
    field = op.instruction.fields[index]
    start = op.offset + (1 if op.instruction.opcode_set == "core" else 2)
    code = function.definition.code
    if field.kind == "immediate" and field.type in _WIDTHS:
        return bytes(code[start : start + _WIDTHS[field.type]])
    if field.kind == "string":
        start += 2 * index  # registers, if anything, come before a text
        return bytes(code[start + 2 : start + 2 + int.from_bytes(code[start : start + 2], "little")])
    return op.operands[index]


def _odd_operand(field: isa.Field, value: Any, raw: bytes) -> str:
    """The note that says what an operand is, where its text does not."""
    if field.kind == "string":
        text = raw.decode("utf-8", "surrogateescape")
        return "" if all(map(_is_plain, text)) else f" string {vmasm.quoted(text)}"
    quiet = {4: (b"\0\0\xc0\x7f", b"\0\0\xc0\xff"), 8: (b"\0\0\0\0\0\0\xf8\x7f", b"\0\0\0\0\0\0\xf8\xff")}
    return f" bits {raw[::-1].hex().upper()}" if value != value and raw not in quiet[len(raw)] else ""


class _InlineLocations:
    """The debug database as text: locations of functions beside their instructions where that says it all."""

    def __init__(self, module: ModuleDef, functions: Sequence[VerifiedFunction]) -> None:
        self.module = module
        self._functions: dict[int, dict[int, int]] = {}
        self._entries: dict[int, int] = {}
        if module.debug is not None:
            for function in functions:
                self._add(function, module.debug)

    def _add(self, function: VerifiedFunction, database: debug.DebugDatabase) -> None:
        ordinal = function.definition.ordinal
        entry = database.entry(ordinal)
        if entry is None:
            return
        rows = database.contents.source_map(entry)
        known = dict(rows)
        offsets = [op.offset for block in function.blocks for op in block.ops if op.offset in known]
        if [(offset, known[offset]) for offset in offsets] == list(rows):
            self._functions[ordinal] = known
            self._entries[entry] = ordinal

    def location(self, ordinal: int, offset: int) -> int | None:
        return self._functions.get(ordinal, {}).get(offset)

    def footer(self) -> Iterator[str]:
        if self.module.debug is None:
            return
        contents = self.module.debug.contents
        yield ""
        for index in range(contents.location_count):
            yield f"//! location {_location(contents.location(index))}"
        for entry in range(contents.function_count):
            ordinal = self._entries.get(entry)
            rows = "".join(f" {offset}:{location}" for offset, location in contents.source_map(entry))
            end = rows if ordinal is None else f" of {ordinal}"
            yield f"//! debug {vmasm.quoted(contents.local_name(entry))}{end}"


def _location(location: debug.Location | None) -> str:
    match location:
        case debug.FileLocation(filename, line, column):
            return f"file {vmasm.quoted(filename)} {line} {column}"
        case debug.CallLocation(callee, caller):
            return f"call {callee} {caller}"
        case debug.FusedLocation(metadata, locations):
            return " ".join(["fused", vmasm.quoted(metadata), *map(str, locations)])
        case debug.NamedLocation(name, child):
            return f"name {vmasm.quoted(name)}" + ("" if child is None else f" {child}")
    return "none"
