"""Assembles modules from text (VMASM): what the disassembler, iree-dump-module and people write.

The text is read in two passes: :mod:`halgpu.vm.vmasm_source` reads declarations, then functions are encoded here,
when every name is known. What comes out has passed the verifier. Facts:
runtime/src/iree/vm/bytecode/assembler; where iree-as-module and the text leave a choice, it is taken as there.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any, Final

from halgpu import errors
from halgpu.vm import debug, definition, isa, verifier
from halgpu.vm.definition import (
    Dependency,
    ExportDef,
    Feature,
    FunctionDef,
    ImportDef,
    ModuleDef,
    SignatureDef,
)
from halgpu.vm.encoder import Encoder
from halgpu.vm.vmasm_reader import (
    Mistake,
    Name,
    ParsedInstruction,
    Register,
    Scanner,
    integer,
    read_instruction,
)
from halgpu.vm.vmasm_source import DebugDraft, FunctionDraft, Line, ModuleDraft, quoted_bytes, read_source

MAX_REPORTED = 20
"""Mistakes that one error message lists."""
MAX_COLLECTED = 100
"""Mistakes after which nothing more is read: that text is something else."""
FUNCTION_ALIGNMENT = 8
"""Functions start at multiples of this, as in IREE's modules, unless the text says where."""
MAX_GAP = 4096
"""Bytes that may lie between functions, so that no line of text makes a program of gigabytes."""


def assemble(text: str, filename: str = "<text>", *, lines: bool = False) -> ModuleDef:
    """Assemble a module and verify it; ``filename`` stands in messages.

    The text may be what ``halgpu dis`` (best with ``--lossless``) or ``iree-dump-module --output=disassembly``
    print, or a .vmasm file. With ``lines`` the debug database says which line of ``filename`` each instruction
    comes from; without, it has what the text says, or else the names of functions that nothing else keeps.

    Raises InvalidArgument: a line ``file:line:column: expected …, found …`` for each mistake.
    """
    mistakes = _Mistakes(filename)
    _check_characters(text, mistakes)
    draft = read_source(text, mistakes.report)
    return _Assembler(draft, mistakes, lines).assemble()


class _Mistakes:
    """Collects mistakes, so that one run shows many."""

    def __init__(self, filename: str) -> None:
        self.filename = filename
        self.found: list[tuple[int, int, str]] = []

    def report(self, line: int, mistake: Mistake) -> None:
        self.found.append((line, mistake.column, str(mistake)))
        if len(self.found) >= MAX_COLLECTED:
            self.check()

    def place(self, line: int, column: int) -> str:
        return f"{self.filename}:{line}:{column}"

    def located(self, message: str) -> str:
        """A message of the verifier, which may know no line."""
        return message if message.startswith(f"{self.filename}:") else f"{self.filename}: {message}"

    def check(self) -> None:
        """Raise if there are any."""
        if not self.found:
            return
        self.found.sort()
        texts = [f"{self.place(line, column)}: {text}" for line, column, text in self.found[:MAX_REPORTED]]
        if len(self.found) > MAX_REPORTED:
            least = "at least " if len(self.found) >= MAX_COLLECTED else ""
            texts.append(f"{self.filename}: {least}{len(self.found) - MAX_REPORTED} more mistakes")
        raise errors.InvalidArgument(texts[0], details="\n".join(texts[1:]))


def _check_characters(text: str, mistakes: _Mistakes) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        line = text.count("\n", 0, problem.start) + 1
        column = problem.start - text.rfind("\n", 0, problem.start)
        mistakes.report(line, Mistake(column, "text", "half of a UTF-16 surrogate pair"))
        mistakes.check()


class _Globals:
    """Globals with names, laid out as iree-as-module does: refs by themselves, then sizes in ascending order."""

    def __init__(self, draft: ModuleDraft) -> None:
        refs = [item for item in draft.globals if item.size == 0]
        self.kinds = {item.name: item.size for item in draft.globals}
        self.ordinals = {item.name: ordinal for ordinal, item in enumerate(refs)}
        self.refs = len(refs)
        self.bytes = 0
        for size in (4, 8):
            for item in draft.globals:
                if item.size == size:
                    offset = -(-self.bytes // size) * size
                    self.ordinals[item.name] = offset
                    self.bytes = offset + size

    def use(self, size: int, ordinal: int) -> None:
        """Make room for a global that an instruction names by its offset or ordinal."""
        if size:
            self.bytes = max(self.bytes, ordinal + size)
        else:
            self.refs = max(self.refs, ordinal + 1)


class _Assembler:
    """Turns the draft of a module into the module."""

    def __init__(self, draft: ModuleDraft, mistakes: _Mistakes, lines: bool) -> None:
        self.draft = draft
        self.mistakes = mistakes
        self.lines = lines
        self.types = list(draft.types)
        self.type_ordinals = {name: ordinal for ordinal, name in reversed(list(enumerate(draft.types)))}
        self.globals = _Globals(draft)
        self.imports = {item.full_name: n for n, item in reversed(list(enumerate(draft.imports)))}
        self.doubles: dict[str, int] = {}
        self.functions = self._function_names()

    def assemble(self) -> ModuleDef:
        self._check_imports()
        encoded = [_FunctionAssembler(self, function).encode() for function in self.draft.functions]
        exports = self._exports()
        self.mistakes.check()
        bytecode, descriptors = self._layout(encoded)
        self.mistakes.check()
        database = self._debug_database(encoded, exports)
        self.mistakes.check()
        try:
            module = self._module(exports, bytecode, descriptors, database)
            verifier.verify(module, self._locator(encoded))
        except errors.Error as problem:
            raise errors.InvalidArgument(self.mistakes.located(problem.message)) from problem
        return module

    # Names.

    def _function_names(self) -> dict[str, int]:
        """Ordinals of functions by name.

        iree-dump-module may call function 0 by the name of another, the double, which is exported under that name
        and stands below its export; callees of that name are then function 0. Other names are there only once.
        """
        exported = {export.name: export.line for export in self.draft.exports}
        names: dict[str, int] = {}
        for ordinal, function in enumerate(self.draft.functions):
            first = names.setdefault(function.name, ordinal)
            dumped = first == 0 and exported.get(function.name, -1) > self.draft.functions[0].line
            if first == ordinal:
                continue
            if dumped and function.name not in self.doubles:
                self.doubles[function.name] = ordinal
            else:
                mistake = Mistake(function.column, "a name that no other function has", f"@{function.name}")
                self.mistakes.report(function.line, mistake)
        return names

    def _check_imports(self) -> None:
        for imported in self.draft.imports:
            try:
                verifier.check_convention(imported.cconv)
            except errors.InvalidArgument as problem:
                mistake = Mistake(1, "a calling convention such as 0iI_r", problem.message)
                self.mistakes.report(imported.line, mistake)

    def _exports(self) -> tuple[ExportDef, ...]:
        return tuple(
            ExportDef(export.name, self._exported(export.function, export.line, export.column))
            for export in self.draft.exports
        )

    def _exported(self, name: str, line: int, column: int) -> int:
        ordinal = self.functions.get(name)
        if ordinal is None:
            self.mistakes.report(line, Mistake(column, "the name of a function", f"@{name}"))
            return 0
        # Of two functions of one name it is the one below the export.
        other = self.doubles.get(name)
        return ordinal if other is None or self.draft.functions[ordinal].line > line else other

    def resolve_type(self, name: Name) -> int:
        """Ordinal of a type, which is added to the table if it is not in it."""
        by_ordinal = re.fullmatch(r"type\[([0-9]{1,9})\]", name.text)
        if by_ordinal is not None:
            return int(by_ordinal[1])
        ordinal = self.type_ordinals.get(name.text, self.type_ordinals.get("!" + name.text, -1))
        if ordinal < 0:
            ordinal = self.type_ordinals[name.text] = len(self.types)
            self.types.append(name.text)
        return ordinal

    def resolve_callee(self, name: Name) -> int:
        """Ordinal of a function or import, by name, by module and name, or by module and ordinal."""
        module = self.draft.name or ""
        by_ordinal = re.fullmatch(r"(?:(import)|func)\[([0-9]{1,9})\]", name.text)
        if by_ordinal is not None:
            return int(by_ordinal[2]) | (isa.IMPORT_BIT if by_ordinal[1] else 0)
        prefix, colon, ordinal = name.text.partition(":")
        if colon:
            if prefix != module or len(ordinal) > 9:
                raise Mistake(name.column, f"@{module}:N, a function of this module", f"@{name.text}")
            return int(ordinal)
        if name.text in self.imports:
            return self.imports[name.text] | isa.IMPORT_BIT
        return self._resolve_function(name, module)

    def _resolve_function(self, name: Name, module: str) -> int:
        local = name.text.removeprefix(module + ".")
        ordinal = self.functions.get(local)
        if ordinal is None:
            raise Mistake(name.column, "the name of a function or import", f"@{name.text}")
        if ordinal and local in ("__init", "__deinit"):
            raise Mistake(
                name.column,
                "a function that may be called; iree-dump-module calls function 0 so (try halgpu dis --lossless)",
                f"@{name.text}",
            )
        return ordinal

    def resolve_global(self, name: Name, size: int) -> int:
        """Byte offset of a global of ``size`` bytes, or the ordinal of a ref for size 0."""
        found = self.globals.kinds.get(name.text)
        if found is None:
            raise Mistake(name.column, "the name of a global", f"@{name.text}")
        if found != size:
            raise Mistake(name.column, _global_kind(size), f"@{name.text}, {_global_kind(found)}")
        return self.globals.ordinals[name.text]

    def result_types(self, callee: int) -> str:
        """Letters of the calling convention for what a callee gives, as far as it is known."""
        if callee & isa.IMPORT_BIT:
            ordinal = callee ^ isa.IMPORT_BIT
            imports = self.draft.imports
            return imports[ordinal].cconv.partition("_")[2] if ordinal < len(imports) else ""
        return self.draft.functions[callee].results if callee < len(self.draft.functions) else ""

    # The parts of the module.

    def _layout(self, encoded: list[_FunctionAssembler]) -> tuple[bytes, list[tuple[int, ...]]]:
        """All bytecode, and the descriptors of functions."""
        bytecode = bytearray()
        descriptors: list[tuple[int, ...]] = []
        end = 0
        for item in encoded:
            offset, length = item.draft.at or (_aligned(end), len(item.code))
            if not len(item.code) <= length or offset + length > len(bytecode) + len(item.code) + MAX_GAP:
                wanted = f"at least {len(item.code)} bytes, near the other functions"
                self.mistakes.report(item.draft.line, Mistake(1, wanted, f"{length} at {offset}"))
                continue
            end = offset + length
            bytecode += bytes(max(0, end - len(bytecode)))
            bytecode[offset : offset + len(item.code)] = item.code
            descriptors.append(item.descriptor(offset, length))
        total = self.draft.bytecode_length
        if total is None:
            total = _aligned(len(bytecode))
        if not len(bytecode) <= total <= len(bytecode) + MAX_GAP:
            wanted = f"bytecode of {len(bytecode)} bytes or slightly more"
            self.mistakes.report(self.draft.line, Mistake(1, wanted, str(total)))
            return b"", []
        return bytes(bytecode.ljust(total, b"\0")), descriptors

    def _debug_database(
        self, encoded: list[_FunctionAssembler], exports: tuple[ExportDef, ...]
    ) -> debug.DebugDatabase | None:
        contents = self._debug_contents(encoded, exports)
        if contents is None:
            return None
        ordinals = {export.local_name: export.ordinal for export in exports}
        return debug.DebugDatabase(contents, len(encoded), ordinals)

    def _debug_contents(
        self, encoded: list[_FunctionAssembler], exports: tuple[ExportDef, ...]
    ) -> debug.DebugContents | None:
        draft = self.draft
        if self.lines:
            return self._line_database(encoded)
        if draft.locations or draft.debug:
            maps = (self._source_map(entry, encoded) for entry in draft.debug)
            return debug.DebugContents(tuple(draft.locations), tuple(maps))
        names = self._source_names()
        exported = {export.ordinal for export in exports}
        if draft.complete or not any(name for n, name in enumerate(names) if n not in exported):
            return None
        return debug.DebugContents((), tuple((name, ()) for name in names))

    def _source_map(
        self, entry: DebugDraft, encoded: list[_FunctionAssembler]
    ) -> tuple[str, debug.SourceMap]:
        ordinal = entry.function
        if ordinal is None:
            return entry.name, entry.source_map
        if ordinal < len(encoded):
            return entry.name, encoded[ordinal].locations()
        wanted = f"an ordinal below {len(encoded)}, the number of functions"
        self.mistakes.report(entry.line, Mistake(1, wanted, str(ordinal)))
        return entry.name, ()

    def _source_names(self) -> list[str]:
        """Names of functions, empty for those that iree-dump-module makes up."""
        return ["" if f.name == f"fn{ordinal}" else f.name for ordinal, f in enumerate(self.draft.functions)]

    def _line_database(self, encoded: list[_FunctionAssembler]) -> debug.DebugContents:
        counter = itertools.count()
        rows = [[(offset, next(counter)) for offset, _, _ in item.places] for item in encoded]
        locations = tuple(
            debug.FileLocation(self.mistakes.filename, line, column)
            for item in encoded
            for _, line, column in item.places
        )
        maps = zip(self._source_names(), map(tuple, rows), strict=True)
        return debug.DebugContents(locations, tuple(maps))

    def _module(
        self,
        exports: tuple[ExportDef, ...],
        bytecode: bytes,
        descriptors: list[tuple[int, ...]],
        database: debug.DebugDatabase | None,
    ) -> ModuleDef:
        draft = self.draft
        code = memoryview(bytecode)
        functions = definition.make_functions(tuple(descriptors), code, exports, database)
        requirements = Feature(0)
        for function in functions:
            requirements |= function.requirements
        global_bytes, global_refs = draft.state or (self.globals.bytes, self.globals.refs)
        return ModuleDef(
            name=draft.name or "",
            version=draft.version,
            requirements=requirements if draft.requires is None else draft.requires,
            attrs=draft.attrs,
            types=tuple(self.types),
            dependencies=self._dependencies(),
            imports=tuple(ImportDef(i.full_name, i.cconv, i.attrs, i.optional) for i in draft.imports),
            exports=exports,
            signatures=tuple(SignatureDef(_cconv(f), f.attrs) for f in draft.functions),
            rodata=tuple(memoryview(segment.data) for segment in draft.rodata),
            rodata_external=tuple(segment.external for segment in draft.rodata),
            rwdata=draft.rwdata,
            global_bytes=global_bytes,
            global_refs=global_refs,
            functions=functions,
            bytecode=code,
            bytecode_version=isa.VERSION,
            debug=database,
        )

    def _dependencies(self) -> tuple[Dependency, ...]:
        """Dependencies of the text, or else the modules of all imports; iree-run-module looks for those only."""
        if self.draft.dependencies or self.draft.complete:
            return tuple(self.draft.dependencies)
        optional: dict[str, bool] = {}
        for imported in self.draft.imports:
            name, dot, _ = imported.full_name.partition(".")
            if dot:
                optional[name] = optional.get(name, True) and imported.optional
        return tuple(Dependency(name, 0, is_optional) for name, is_optional in optional.items())

    def _locator(self, encoded: list[_FunctionAssembler]) -> verifier.Locate:
        def locate(function: FunctionDef, offset: int | None) -> str:
            item = encoded[function.ordinal]
            places = [place for place in item.places if offset is not None and place[0] <= offset]
            _, line, column = places[-1] if places else (0, item.draft.line, item.draft.column)
            return self.mistakes.place(line, column)

        return locate


def _aligned(offset: int) -> int:
    return -(-offset // FUNCTION_ALIGNMENT) * FUNCTION_ALIGNMENT


def _cconv(function: FunctionDraft) -> str:
    if function.cconv is not None:
        return function.cconv
    return f"0{function.arguments or 'v'}_{function.results or 'v'}"


def _global_kind(size: int) -> str:
    return f"a global of {size} bytes" if size else "a ref global"


# Functions.

_LABEL_LINE: Final = re.compile(r"\^([A-Za-z0-9_$.]+)\s*:$")


class _FunctionAssembler:
    """Encodes one function."""

    def __init__(self, module: _Assembler, draft: FunctionDraft) -> None:
        self.module = module
        self.draft = draft
        self.code = b""
        self.places: list[tuple[int, int, int]] = []
        """(offset, line, column) of each instruction."""
        self._encoder = Encoder()
        self._locations: list[tuple[int, int]] = []
        self._first_uses: dict[str, tuple[int, int]] = {}

    def encode(self) -> _FunctionAssembler:
        """Encode all lines; mistakes are reported, line by line."""
        for line in self.draft.body:
            try:
                self._line(line)
            except Mistake as mistake:
                self._report(line.number, mistake)
            except errors.OutOfRange as problem:
                self._report(line.number, Mistake(1, "an instruction that can be encoded", problem.message))
        if not self.draft.body:
            self._report(
                self.draft.line, Mistake(self.draft.column, "an instruction", "none in the function")
            )
        unknown = self._encoder.unresolved()
        for label in dict.fromkeys(unknown):
            number, column = self._first_uses[label]
            self._report(number, Mistake(column, "the label of a block of this function", f"^{label}"))
        if not unknown:
            self.code = self._encoder.finish()
        return self

    def descriptor(self, offset: int, length: int) -> tuple[int, ...]:
        """Fields of :data:`halgpu.vm.definition.DESCRIPTOR`."""
        encoder, draft = self._encoder, self.draft
        i32, refs = verifier.register_counts(draft.arguments)
        counts = (max(encoder.i32_registers, i32), max(encoder.ref_registers, refs))
        requires = encoder.requirements if draft.requires is None else draft.requires
        return offset, length, int(requires), 0, encoder.block_count, *(draft.registers or counts)

    def locations(self) -> debug.SourceMap:
        """What the ``loc`` notes of the lines say."""
        return tuple(self._locations)

    def _report(self, number: int, mistake: Mistake) -> None:
        self.module.mistakes.report(number, mistake)

    def _line(self, line: Line) -> None:
        scan = Scanner(line.code)
        if scan.looking_at("^"):
            self._label(scan)
            return
        if not self._encoder.block_count:
            self._encoder.block(None)
        offset = len(self._encoder.code)
        self.places.append((offset, line.number, scan.column))
        parsed = read_instruction(scan)
        notes = _read_notes(line.note) if line.note is not None else {}
        if "loc" in notes:
            self._locations.append((offset, notes["loc"]))
        self._encoder.op(parsed.instruction, self._operands(parsed, line, notes))
        self._count_results(parsed)

    def _label(self, scan: Scanner) -> None:
        found = _LABEL_LINE.match(scan.rest)
        if found is None:
            scan.fail("the label of a block and ':' alone on a line, such as ^bb1:")
        if found[1] in self._encoder.labels:
            scan.fail("a label that no other block of the function has")
        self._encoder.block(found[1])

    def _operands(self, parsed: ParsedInstruction, line: Line, notes: dict[str, Any]) -> list[Any]:
        return [
            self._operand(parsed.instruction, field, value, line, notes)
            for field, value in zip(parsed.instruction.fields, parsed.operands, strict=True)
        ]

    def _operand(
        self, instruction: isa.Instruction, field: isa.Field, value: Any, line: Line, notes: dict[str, Any]
    ) -> Any:
        """The operand as the encoder takes it."""
        if field.kind in ("register", "registers", "remap"):
            return self._registers(value)
        if field.kind == "target":
            return self._target(value, line)
        if field.kind == "cases":
            return [(self._target(label, line), self._registers(remap)) for label, remap in value]
        if field.kind == "type":
            return self.module.resolve_type(value)
        if field.kind == "function":
            return self.module.resolve_callee(value)
        if field.kind in ("global", "global_ref"):
            return self._global(instruction, field, value)
        if field.kind == "string":
            return notes.get("string", value)
        return notes.get("bits", value) if field.type in ("f32", "f64") else value

    def _registers(self, value: Any) -> Any:
        if isinstance(value, Register):
            if value.wide:
                self._encoder.use(value.reg, "i64")
            return value.reg
        return tuple(map(self._registers, value))

    def _target(self, name: Name, line: Line) -> str:
        self._first_uses.setdefault(name.text, (line.number, name.column))
        return name.text

    def _global(self, instruction: isa.Instruction, field: isa.Field, value: int | Name) -> int:
        size = 0
        if field.kind == "global":
            size = 8 if any(other.type in ("i64", "f64") for other in instruction.fields) else 4
        if isinstance(value, Name):
            return self.module.resolve_global(value, size)
        self.module.globals.use(size, value)
        return value

    def _count_results(self, parsed: ParsedInstruction) -> None:
        """Count pairs for 64-bit results of calls, which the text names by their lower half."""
        index = parsed.instruction.index
        if "results" not in index:
            return
        callee = self.module.resolve_callee(parsed.operands[index["callee_ordinal"]])
        letters = self.module.result_types(callee)
        results: Iterable[Register] = parsed.operands[index["results"]]
        for letter, result in zip(letters, results, strict=False):
            self._encoder.use(result.reg, "i64" if letter in "IF" else None)


def _read_notes(scan: Scanner) -> dict[str, Any]:
    """What stands behind ``//!`` at the end of an instruction."""
    notes: dict[str, Any] = {}
    while not scan.done():
        if scan.accept("loc"):
            notes["loc"] = integer(scan, "i32", "the index of a location")
        elif scan.accept("string"):
            notes["string"] = quoted_bytes(scan, "a text in quotes")
        elif scan.accept("bits"):
            notes["bits"] = bytes.fromhex(scan.match(_BITS, "4 or 8 bytes in hexadecimal")[0])[::-1]
        else:
            scan.fail("loc, string or bits")
    return notes


_BITS: Final = re.compile(r"(?:[0-9A-Fa-f]{16}|[0-9A-Fa-f]{8})\b")
