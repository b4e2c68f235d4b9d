"""Reads the text of a module (VMASM) into drafts: declarations in full, functions as the lines of their bodies.

The directives are those of iree-as-module (runtime/src/iree/vm/bytecode/assembler/parser.c). What they cannot
say stands in comments that start with ``//!``, which other tools skip. Such a line describes the declaration
above it:

=================  =============================================================================================
below vm.module    ``attr "key" "value"``, ``requires EXT_F32 UNWIND`` (or ``none``), ``depends "name" VERSION``
                   with ``optional`` behind it, ``state GLOBAL_BYTES GLOBAL_REFS``, ``rwdata SIZE …``,
                   ``bytecode LENGTH``, ``complete``: nothing is to be added that is not in the text
below vm.import    ``attr``
below vm.rodata    ``external``: kept behind the FlatBuffer
below vm.func      ``attr``, ``requires``, ``cconv "0i_i"``, ``registers I32 REFS``, ``at OFFSET LENGTH``
anywhere           ``location file "name" LINE COLUMN``, ``location call CALLEE CALLER``, ``location name "name"``
                   with the index of a location behind it, ``location fused "metadata" INDEX …``,
                   ``location none``: the debug database's locations, in order;
                   ``debug "name" of ORDINAL``, ``debug "name" OFFSET:INDEX …``: the functions it knows
after instruction  ``loc INDEX`` of a location, ``bits HEX`` of a number, ``string "text"`` that has odd characters
=================  =============================================================================================

Where a value follows from the text (requirements, registers, offsets), its directive may be left out. Texts and
names with odd characters are quoted as in JSON, with no ``\\"`` inside; ``type[3]``, ``@import[3]`` and
``@func[3]`` refer to what has no plain name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from halgpu.vm import debug, vmasm
from halgpu.vm.definition import Dependency, Feature
from halgpu.vm.isa import Bank, Reg
from halgpu.vm.vmasm_reader import STRING, SYMBOL, Mistake, Register, Scanner, integer, register


@dataclass(slots=True)
class Draft:
    """A declaration: where it is, and what the ``//!`` lines below it say."""

    line: int
    attrs: dict[str, str] = field(default_factory=dict)
    requires: Feature | None = None


@dataclass(slots=True)
class ImportDraft(Draft):
    full_name: str = ""
    cconv: str = ""
    optional: bool = False


@dataclass(slots=True)
class RodataDraft(Draft):
    data: bytes = b""
    external: bool = False


@dataclass(slots=True)
class Line:
    """A line inside a function: its code, and the ``//!`` comment behind it as a scanner at its words."""

    number: int
    code: str
    note: Scanner | None


@dataclass(slots=True)
class FunctionDraft(Draft):
    name: str = ""
    column: int = 1
    arguments: str = ""
    """Letters of a calling convention."""
    results: str = ""
    cconv: str | None = None
    registers: tuple[int, int] | None = None
    at: tuple[int, int] | None = None
    body: list[Line] = field(default_factory=list)
    closed: bool = False


@dataclass(slots=True)
class ExportDraft(Draft):
    name: str = ""
    function: str = ""
    column: int = 1


@dataclass(slots=True)
class GlobalDraft(Draft):
    """A global by name; its size is 0 for refs."""

    name: str = ""
    size: int = 0


@dataclass(slots=True)
class DebugDraft:
    """An entry of the debug database: of the function of that ordinal, or with its source map."""

    name: str
    function: int | None
    source_map: debug.SourceMap
    line: int


@dataclass(slots=True)
class ModuleDraft(Draft):
    """A module as its text has it."""

    name: str | None = None
    version: int = 0
    complete: bool = False
    dependencies: list[Dependency] = field(default_factory=list)
    state: tuple[int, int] | None = None
    rwdata: tuple[int, ...] = ()
    bytecode_length: int | None = None
    types: list[str] = field(default_factory=list)
    imports: list[ImportDraft] = field(default_factory=list)
    rodata: list[RodataDraft] = field(default_factory=list)
    globals: list[GlobalDraft] = field(default_factory=list)
    exports: list[ExportDraft] = field(default_factory=list)
    functions: list[FunctionDraft] = field(default_factory=list)
    locations: list[debug.Location | None] = field(default_factory=list)
    debug: list[DebugDraft] = field(default_factory=list)


Report = Callable[[int, Mistake], None]
"""Takes note of a mistake on a line."""


def read_source(text: str, report: Report) -> ModuleDraft:
    """Read a module's text. Each line with a mistake is reported, and left out."""
    reader = _Reader()
    for number, line in enumerate(text.split("\n"), 1):
        try:
            reader.read(number, line)
        except Mistake as mistake:
            report(number, mistake)
    function = reader.function
    if function is not None and not function.closed:
        report(
            function.line, Mistake(function.column, "'}' after the last instruction", "the end of the text")
        )
    if reader.module.name is None:
        report(1, Mistake(1, "a line 'vm.module @name'", "none in the text"))
    return reader.module


# Lines.


def split_comment(line: str) -> tuple[str, Scanner | None]:
    """The code of a line, and what is behind ``//!`` in its comment, which starts with ``//`` or ``#``."""
    at = _comment(line)
    if at is None:
        return line, None
    note = line.find("//!", at)
    return line[:at], Scanner(line, note + 3) if note >= 0 else None


_COMMENT = re.compile(r'(?:[^"#/]|"[^"]*"|/(?!/))*')
"""What comes before a comment: no ``//`` and no ``#`` outside of quotes."""


def _comment(line: str) -> int | None:
    if "#" not in line and "//" not in line:
        return None
    if '"' in line:
        found = _COMMENT.match(line)
        end = found.end() if found is not None else 0
        return end if line.startswith(("//", "#"), end) else None
    return min(at for at in (line.find("#"), line.find("//")) if at >= 0)


def quoted_bytes(scan: Scanner, expected: str) -> bytes:
    """A text in quotes with JSON's escapes, as UTF-8; ``\\udc80`` to ``\\udcff`` stand for other bytes."""
    column = scan.column
    body = scan.match(STRING, expected)[1]
    try:
        text: str = json.loads(f'"{body}"')
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Mistake(column, expected, "half of a UTF-16 surrogate pair") from None
    except ValueError:
        raise Mistake(column, expected, "an escape or a character that JSON does not have") from None


def _quoted(scan: Scanner, expected: str) -> str:
    column = scan.column
    try:
        return quoted_bytes(scan, expected).decode()
    except UnicodeDecodeError:
        raise Mistake(column, expected, "half of a UTF-16 surrogate pair") from None


def _name(scan: Scanner, expected: str) -> str:
    column = scan.column
    text = _quoted(scan, expected)
    if not text:
        raise Mistake(column, expected, "no text")
    return text


def symbol(scan: Scanner, expected: str) -> tuple[str, bool]:
    """``@name`` or ``@"odd name"``, and whether it is quoted."""
    if scan.looking_at('@"'):
        scan.expect("@")
        return _name(scan, expected), True
    return scan.match(SYMBOL, expected)[1], False


_WORD = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)
_LINE_PREFIX = re.compile(r"\s*\[[0-9A-Fa-f]*\]")
"""The bytecode offset that ``iree-dump-module --bytecode_offsets`` puts in front."""
_RODATA = re.compile(r"\s*vm\.rodata\[")
_HEX = re.compile(r"[0-9A-Fa-f]*")
_SIZES: Final = {"i32": 4, "f32": 4, "i64": 8, "f64": 8, "ref": 0}
_LETTERS: Final = {"i32": "i", "i64": "I", "f32": "f", "f64": "F"}


class _Reader:
    """Reads line by line."""

    def __init__(self) -> None:
        self.module = ModuleDraft(0)
        self.function: FunctionDraft | None = None
        self._above: Draft = self.module
        """What ``//!`` lines are about."""
        self._number = 0
        self._complained = False
        self._seen: dict[str, set[str]] = {"type": set(), "import": set(), "global": set(), "export": set()}

    def read(self, number: int, line: str) -> None:
        self._number = number
        code, note = split_comment(line)
        prefix = _LINE_PREFIX.match(code)
        start = 0 if prefix is None else prefix.end()
        scan = Scanner(code, start)
        if scan.done():
            if note is not None:
                self._directive(note)
        elif self.function is not None and not self.function.closed:
            self._body(self.function, scan, note)
        else:
            self._declaration(scan)

    def _body(self, function: FunctionDraft, scan: Scanner, note: Scanner | None) -> None:
        if scan.rest == "}":
            function.closed = True
        elif scan.looking_at("vm.func ") or scan.looking_at("vm.module "):
            function.closed = True
            scan.fail(f"'}}' to end @{function.name} first")
        else:
            code = " " * scan.at + scan.code[scan.at :]
            function.body.append(Line(self._number, code, note))

    def _declaration(self, scan: Scanner) -> None:
        column = scan.column
        word = scan.match(_WORD, "a declaration such as vm.func")[0]
        read = _DECLARATIONS.get(word)
        if read is None:
            known = ", ".join(_DECLARATIONS)
            raise Mistake(column, f"one of {known}", repr(word))
        if self.module.name is None and word != "vm.module" and not self._complained:
            self._complained = True
            raise Mistake(column, "'vm.module @name' before anything else", repr(word))
        read(self, scan)
        scan.finish()

    # Declarations.

    def _module(self, scan: Scanner) -> None:
        column = scan.column
        name, _ = symbol(scan, "the module's name such as @module")
        if self.module.name is not None:
            raise Mistake(column, f"one module only, after @{self.module.name}", f"@{name}")
        self.module.name = name
        self.module.line = self._number
        if scan.accept("version"):
            self.module.version = integer(scan, what="the module's version")
        self._above = self.module

    def _type(self, scan: Scanner) -> None:
        column = scan.column
        is_quoted = scan.looking_at('"')
        name = _name(scan, "a type") if is_quoted else scan.rest
        if not name:
            scan.fail("a type such as i32 or !vm.buffer")
        self._once("type", name, column, is_quoted)
        self.module.types.append(name)
        scan.at = len(scan.code)

    def _import(self, scan: Scanner) -> None:
        optional = scan.accept("optional")
        column = scan.column
        name, is_quoted = symbol(scan, "the name of an import such as @module.function")
        self._once("import", name, column, is_quoted)
        scan.expect("cconv")
        cconv = scan.match(STRING, 'a calling convention such as "0i_i"')[1]
        imported = ImportDraft(self._number, full_name=name, cconv=cconv, optional=optional)
        self.module.imports.append(imported)
        self._above = imported

    def _rodata(self, scan: Scanner) -> None:
        scan.expect("[")
        column = scan.column
        ordinal = integer(scan, what="the ordinal of a rodata segment")
        if ordinal != len(self.module.rodata):
            raise Mistake(column, f"segment {len(self.module.rodata)}, as they are in order", str(ordinal))
        scan.expect("]")
        scan.expect("=")
        column = scan.column
        digits = scan.match(_HEX, "hexadecimal digits")[0]
        scan.finish()
        if len(digits) % 2:
            raise Mistake(column + len(digits), "an even number of hexadecimal digits", str(len(digits)))
        segment = RodataDraft(self._number, data=bytes.fromhex(digits))
        self.module.rodata.append(segment)
        self._above = segment

    def _global(self, scan: Scanner, kind: str) -> None:
        scan.accept("private")
        scan.accept("mutable")
        column = scan.column
        name, is_quoted = symbol(scan, "the name of a global such as @counter")
        self._once("global", name, column, is_quoted)
        if scan.accept("="):
            column = scan.column
            if integer(scan, "i64", "0") != 0:
                raise Mistake(column, "0, as programs set other values in @__init", "another value")
            scan.expect(":")
            scan.expect(kind)
        self.module.globals.append(GlobalDraft(self._number, name=name, size=_SIZES[kind]))

    def _export(self, scan: Scanner) -> None:
        column = scan.column
        name, is_quoted = symbol(scan, "the name of an export such as @main")
        function = symbol(scan, "the name of a function")[0] if scan.accept("=") else name
        self._once("export", name, column, is_quoted)
        self.module.exports.append(ExportDraft(self._number, name=name, function=function, column=column))

    def _func(self, scan: Scanner) -> None:
        function = FunctionDraft(self._number, column=scan.column)
        function.name, _ = symbol(scan, "the name of a function such as @main")
        scan.expect("(")
        function.arguments = self._arguments(scan)
        scan.expect(")")
        scan.expect("->")
        scan.expect("(")
        function.results = self._results(scan)
        scan.expect(")")
        scan.expect("{")
        scan.finish()
        self.module.functions.append(function)
        self.function = self._above = function

    def _arguments(self, scan: Scanner) -> str:
        letters = ""
        places = _Places()
        while scan.looking_at("%"):
            found = register(scan)
            scan.expect(":")
            letter = self._value_type(scan)
            places.check(letter, found)
            letters += letter
            if not scan.accept(","):
                break
        return letters

    def _results(self, scan: Scanner) -> str:
        letters = ""
        while not scan.done() and not scan.looking_at(")"):
            if scan.looking_at("%"):
                register(scan)
                scan.expect(":")
            letters += self._value_type(scan)
            if not scan.accept(","):
                break
        return letters

    def _value_type(self, scan: Scanner) -> str:
        column = scan.column
        name = scan.match(_VALUE_TYPE, "a type such as i32 or !vm.ref<?>")[0].strip()
        if name[0] == "!":
            return "r"
        if name not in _LETTERS:
            raise Mistake(column, "i32, i64, f32, f64 or a type with '!'", repr(name))
        return _LETTERS[name]

    def _once(self, kind: str, name: str, column: int, repeatable: bool) -> None:
        if name in self._seen[kind] and not repeatable:
            raise Mistake(column, f"a name that no other {kind} has", repr(name))
        self._seen[kind].add(name)

    # Directives in comments.

    def _directive(self, scan: Scanner) -> None:
        column = scan.column
        word = scan.match(_WORD, "a word that says something about the declaration above")[0]
        known = _DIRECTIVES[type(self._above)] | _ANYWHERE
        read = known.get(word)
        if read is None:
            raise Mistake(column, f"one of {', '.join(known)}", repr(word))
        read(self, scan)
        scan.finish()

    def _attr(self, scan: Scanner) -> None:
        key = _quoted(scan, "the attribute's name in quotes")
        self._above.attrs[key] = _quoted(scan, "the attribute's value in quotes")

    def _requires(self, scan: Scanner) -> None:
        features = Feature(0)
        while not scan.done() and not scan.accept("none"):
            column = scan.column
            name = scan.match(_WORD, "the name of a feature")[0]
            if name not in Feature.__members__:
                raise Mistake(column, f"one of {', '.join(Feature.__members__)}, none", repr(name))
            features |= Feature[name]
        self._above.requires = features

    def _depends(self, scan: Scanner) -> None:
        name = _name(scan, "the name of a module in quotes")
        version = integer(scan, what="the lowest version that will do")
        self.module.dependencies.append(Dependency(name, version, scan.accept("optional")))

    def _state(self, scan: Scanner) -> None:
        size = integer(scan, what="the size of globals in bytes")
        self.module.state = size, integer(scan, what="the number of ref globals")

    def _rwdata(self, scan: Scanner) -> None:
        sizes: list[int] = []
        while not scan.done():
            sizes.append(integer(scan, what="the size of a segment in bytes"))
        self.module.rwdata = tuple(sizes)

    def _bytecode(self, scan: Scanner) -> None:
        self.module.bytecode_length = integer(scan, what="the length of all bytecode")

    def _complete(self, scan: Scanner) -> None:
        self.module.complete = True

    def _external(self, scan: Scanner) -> None:
        assert isinstance(self._above, RodataDraft)
        self._above.external = True

    def _cconv(self, scan: Scanner) -> None:
        assert isinstance(self._above, FunctionDraft)
        self._above.cconv = _quoted(scan, "a calling convention in quotes")

    def _registers(self, scan: Scanner) -> None:
        assert isinstance(self._above, FunctionDraft)
        i32 = integer(scan, "u16", "the number of i32 registers")
        self._above.registers = i32, integer(scan, "u16", "the number of ref registers")

    def _at(self, scan: Scanner) -> None:
        assert isinstance(self._above, FunctionDraft)
        offset = integer(scan, what="the function's offset in all bytecode")
        self._above.at = offset, integer(scan, what="the function's length")

    def _location(self, scan: Scanner) -> None:
        column = scan.column
        kind = scan.match(_WORD, "the kind of a location")[0]
        read = _LOCATIONS.get(kind)
        if read is None:
            raise Mistake(column, f"one of {', '.join(_LOCATIONS)}", repr(kind))
        self.module.locations.append(read(scan))

    def _debug(self, scan: Scanner) -> None:
        name = _quoted(scan, "a name in quotes")
        function = integer(scan, what="the ordinal of a function") if scan.accept("of") else None
        rows: list[tuple[int, int]] = []
        while function is None and not scan.done():
            offset = integer(scan, "i32", "a bytecode offset")
            scan.expect(":")
            rows.append((offset, integer(scan, "i32", "the index of a location")))
        self.module.debug.append(DebugDraft(name, function, tuple(rows), self._number))


_VALUE_TYPE = re.compile(r"[^,()]+")


class _Places:
    """Where arguments lie: in the first registers. IREE's tools count them without the gaps that align pairs."""

    def __init__(self) -> None:
        self._counted = {"i32": 0, "ref": 0}
        self._aligned = 0

    def check(self, letter: str, found: Register) -> None:
        """Take the next argument."""
        bank: Bank = "ref" if letter == "r" else "i32"
        wide = letter in "IF"
        counted = self._counted[bank]
        self._aligned += self._aligned & 1 if wide else 0
        places = (counted,) if bank == "ref" else (counted, self._aligned)
        expected = [Reg(bank, ordinal) for ordinal in places]
        if found.reg not in expected or found.wide != wide:
            text = vmasm.register(expected[0], "i64" if wide else "any")
            raise Mistake(
                found.column, f"'{text}', as arguments are in the first registers", repr(found.text)
            )
        self._counted[bank] += 1 + wide
        if bank == "i32":
            self._aligned += 1 + wide


def _location_file(scan: Scanner) -> debug.Location:
    name = _quoted(scan, "a file name in quotes")
    line = integer(scan, "i32", "a line number")
    return debug.FileLocation(name, line, integer(scan, "i32", "a column number"))


def _location_call(scan: Scanner) -> debug.Location:
    callee = integer(scan, "i32", "the index of a location")
    return debug.CallLocation(callee, integer(scan, "i32", "the index of a location"))


def _location_fused(scan: Scanner) -> debug.Location:
    metadata = _quoted(scan, "metadata in quotes")
    indices: list[int] = []
    while not scan.done():
        indices.append(integer(scan, "i32", "the index of a location"))
    return debug.FusedLocation(metadata, tuple(indices))


def _location_name(scan: Scanner) -> debug.Location:
    name = _quoted(scan, "a name in quotes")
    child = None if scan.done() else integer(scan, "i32", "the index of a location")
    return debug.NamedLocation(name, child)


_LOCATIONS: Final[dict[str, Callable[[Scanner], debug.Location | None]]] = {
    "file": _location_file,
    "call": _location_call,
    "fused": _location_fused,
    "name": _location_name,
    "none": lambda scan: None,
}
_Read = Callable[[_Reader, Scanner], None]


def _global_of(kind: str) -> _Read:
    return lambda reader, scan: reader._global(scan, kind)


_DECLARATIONS: Final[dict[str, _Read]] = {
    "vm.module": _Reader._module,
    "vm.type": _Reader._type,
    "vm.import": _Reader._import,
    "vm.rodata": _Reader._rodata,
    "vm.export": _Reader._export,
    "vm.func": _Reader._func,
    **{f"vm.global.{kind}": _global_of(kind) for kind in _SIZES},
}
_DIRECTIVES: Final[dict[type[Draft], dict[str, _Read]]] = {
    ModuleDraft: {
        "attr": _Reader._attr,
        "requires": _Reader._requires,
        "depends": _Reader._depends,
        "state": _Reader._state,
        "rwdata": _Reader._rwdata,
        "bytecode": _Reader._bytecode,
        "complete": _Reader._complete,
    },
    ImportDraft: {"attr": _Reader._attr},
    RodataDraft: {"external": _Reader._external},
    FunctionDraft: {
        "attr": _Reader._attr,
        "requires": _Reader._requires,
        "cconv": _Reader._cconv,
        "registers": _Reader._registers,
        "at": _Reader._at,
    },
}
_ANYWHERE: Final[dict[str, _Read]] = {"location": _Reader._location, "debug": _Reader._debug}
