"""Reads lines of VMASM: what the text of one line says, without knowing what its names stand for.

:func:`read_instruction` reads by the forms of :mod:`halgpu.vm.vmasm`, so what the disassembler prints and what
the assembler reads is written once. Names of labels, callees, types and globals come out as :class:`Name` for the
assembler to resolve. Facts: runtime/src/iree/vm/bytecode/assembler/{source,parser,bytecode}.c.
"""

from __future__ import annotations

import functools
import math
import re
import string
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal, NamedTuple, NoReturn

from halgpu.vm import isa, vmasm
from halgpu.vm.isa import Field, Instruction, Reg

SYMBOL = re.compile(r"@([A-Za-z0-9_$.]+)")
STRING = re.compile(r'"([^"]*)"')


class Mistake(Exception):
    """Something on a line is not what it has to be. Never leaves the assembler."""

    def __init__(self, column: int, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.column = column


class Name(NamedTuple):
    """A name in the text that stands for an ordinal or an offset."""

    kind: Literal["label", "callee", "type", "global", "global_ref"]
    text: str
    column: int


class Scanner:
    """A position in a line; ``code`` ends where its comment starts."""

    __slots__ = ("at", "code")

    def __init__(self, code: str, at: int = 0) -> None:
        self.code = code
        self.at = at
        self.skip()

    def skip(self) -> None:
        """Go over white space."""
        code = self.code
        while self.at < len(code) and code[self.at].isspace():
            self.at += 1

    @property
    def column(self) -> int:
        """Column of the next token, the first being 1."""
        return self.at + 1

    @property
    def rest(self) -> str:
        """The text from here on."""
        return self.code[self.at :].rstrip()

    def done(self) -> bool:
        """Whether nothing is left."""
        return self.at >= len(self.code)

    def finish(self) -> None:
        """Nothing may be left."""
        if not self.done():
            self.fail("the end of the line")

    def fail(self, expected: str) -> NoReturn:
        """The next token is not what was expected."""
        raise Mistake(self.column, expected, self.found())

    def found(self) -> str:
        """The next token, for messages."""
        if self.done():
            return "the end of the line"
        token = re.compile(r"[\w$.%@^!]+|.", re.ASCII).match(self.code, self.at)
        assert token is not None
        return repr(token[0] if len(token[0]) <= 60 else token[0][:60] + "…")

    def accept(self, token: str) -> bool:
        """Go over ``token`` if it is next. A word has to end where the token ends."""
        if not self.code.startswith(token, self.at):
            return False
        end = self.at + len(token)
        if token[-1].isalnum() and end < len(self.code) and re.match(r"[\w$.]", self.code[end]):
            return False
        self.at = end
        self.skip()
        return True

    def expect(self, token: str) -> None:
        """Go over ``token``, which has to be next."""
        if not self.accept(token):
            self.fail(repr(token))

    def match(self, pattern: re.Pattern[str], expected: str) -> re.Match[str]:
        """Go over what matches; something has to."""
        found = pattern.match(self.code, self.at)
        if found is None:
            self.fail(expected)
        self.at = found.end()
        self.skip()
        return found

    def looking_at(self, token: str) -> bool:
        """Whether ``token`` is next."""
        return self.code.startswith(token, self.at)


# Numbers.

_INTEGER = re.compile(r"[-+]?(?:0[xX][0-9A-Fa-f]+|[0-9]+)\b")
_FLOAT = re.compile(r"[-+]?[\w.]+(?:[-+]\w+)?(?:\([\w]*\))?", re.ASCII)
_RANGES: Final = {
    "u16": (0, (1 << 16) - 1), "u32": (0, (1 << 32) - 1), "i32": (-(1 << 31), (1 << 31) - 1),
    "i64": (-(1 << 63), (1 << 63) - 1),
}  # fmt: skip


def integer(scan: Scanner, kind: str = "u32", what: str = "") -> int:
    """A decimal or hexadecimal number of that type. Leading zeros are refused: to IREE they mean octal."""
    expected = what or f"a number ({kind})"
    column = scan.column
    text = scan.match(_INTEGER, expected)[0]
    # Longer numbers fit nothing; they would take long to read, and Python refuses some.
    value = None if len(text) > 40 or re.match(r"[-+]?0[0-9]", text) else int(text, 0)
    low, high = _RANGES[kind]
    if value is None or not low <= value <= high:
        raise Mistake(column, f"{expected} from {low} to {high}", text[:60])
    return value


def floating(scan: Scanner, kind: str) -> float:
    """A number as C's strtod reads it: also hexadecimal, ``inf``, ``nan``; rounded to nearest, ties to even."""
    column = scan.column
    text = scan.match(_FLOAT, f"a number ({kind})")[0]
    value = _parse_float(text)
    if value is None:
        raise Mistake(column, f"a number ({kind})", repr(text[:60]))
    if kind == "f32" and math.isfinite(value):
        value = _to_single(value, text)
    if math.isinf(value) and "inf" not in text.lower():
        raise Mistake(column, f"a number that {kind} can hold", text[:60])
    return value


def _parse_float(text: str) -> float | None:
    if len(text) > 400:
        return None
    nan = re.fullmatch(r"([-+]?)nan(\([\w]*\))?", text, re.IGNORECASE)
    if nan is not None:
        return math.copysign(math.nan, -1 if nan[1] == "-" else 1)
    try:
        return float.fromhex(text) if re.match(r"[-+]?0[xX]", text) else float(text.replace("_", "?"))
    except OverflowError:
        return math.inf
    except ValueError:
        return None


def _to_single(value: float, text: str) -> float:
    """The f32 nearest to the number in ``text``, of which ``value`` is the nearest f64."""
    try:
        single: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.inf
    if single == value or re.match(r"[-+]?0[xX]", text):
        return single
    # Rounded twice, a number close to the middle of two f32 may end up at the wrong one of them.
    exact, low = Fraction(text), Fraction(value)
    bits = struct.unpack("<i", struct.pack("<f", single))[0]
    other: float = struct.unpack("<f", struct.pack("<i", bits + (1 if abs(single) < abs(value) else -1)))[0]
    if not math.isfinite(other) or abs(low - Fraction(single)) != abs(low - Fraction(other)) or exact == low:
        return single
    return min(single, other, key=lambda candidate: abs(exact - Fraction(candidate)))


# Registers.

_REGISTER = re.compile(r"%(i|r|R)([0-9]+)(?::([0-9]+))?\b")


class Register(NamedTuple):
    """A register as the text has it. ``wide`` says that both halves of a pair are named."""

    reg: Reg
    wide: bool
    column: int
    text: str


def register(scan: Scanner, expected: str = "a register") -> Register:
    """Read ``%i4``, ``%i4:5``, ``%r1`` or ``%R1``."""
    column = scan.column
    found = scan.match(_REGISTER, expected)
    bank: isa.Bank = "i32" if found[1] == "i" else "ref"
    ordinal = int(found[2]) if len(found[2]) < 10 else 1 << 30
    highest = isa.I32_MASK if bank == "i32" else isa.REF_MASK
    if ordinal > highest:
        raise Mistake(column, f"a register of at most {highest}", found[0][:60])
    if found[3] is not None and (bank == "ref" or found[3] != str(ordinal + 1)):
        pair = f"%i{ordinal}:{ordinal + 1}" if bank == "i32" else f"%{found[1]}{ordinal}"
        raise Mistake(column, f"'{pair}'", repr(found[0][:60]))
    return Register(Reg(bank, ordinal, found[1] == "R"), found[3] is not None, column, found[0])


def _expected_register(field: Field) -> str:
    if field.type == "ref":
        return "a ref register such as %r0"
    if field.type in ("i64", "f64"):
        return f"a register pair ({field.type}) such as %i0:1"
    return f"a register ({field.type}) such as %i0" if field.type != "any" else "a register"


def _checked(found: Register, field: Field, in_list: bool) -> Register:
    """The register, if the field takes it. Lists may name 64-bit values by their lower half."""
    wanted = _expected_register(field)
    reg = found.reg
    if field.type != "any":
        if (reg.bank == "ref") != (field.type == "ref"):
            raise Mistake(found.column, wanted, repr(found.text))
        wide = field.type in ("i64", "f64")
        if found.wide != wide and (found.wide or not in_list):
            raise Mistake(found.column, wanted, repr(found.text))
    if reg.move and not field.move:
        raise Mistake(found.column, f"'%r{reg.ordinal}', as this operand cannot be moved", repr(found.text))
    return found


# Forms.


class _Storage(NamedTuple):
    """``.rwdata[field]`` or ``.refs[field]``; also the name of a global, or a register alone."""

    opening: str
    field: Field


class _Remap(NamedTuple):
    """``(field)`` behind a label; may be left out when empty."""

    field: Field


class _Type(NamedTuple):
    """A type, up to ``stop`` or the end of the line."""

    field: Field
    stop: str


_Step = str | Field | _Storage | _Remap | _Type


class _Form(NamedTuple):
    result: Field | None
    steps: tuple[_Step, ...]


_TOKEN = re.compile(r"->|!vm\.list<|!vm\.ref<\?>|\.rwdata\[|\.refs\[|[a-z]+:?|\S")


@functools.cache
def _compile(form: str, instruction: Instruction) -> _Form:
    head, _, tail = form.partition("{op}")
    fields = {field.name: field for field in instruction.fields}
    result = fields[head.partition("}")[0][1:]] if head else None
    return _Form(result, tuple(_group(list(_items(tail, fields)))))


def _items(tail: str, fields: Mapping[str, Field]) -> Iterator[str | Field]:
    for literal, name, _, _ in string.Formatter().parse(tail):
        # Quotes and the @ of functions are read with what they belong to.
        yield from (token for token in _TOKEN.findall(literal) if token not in '"@')
        if name is not None:
            yield fields[name]


def _group(items: list[str | Field]) -> Iterator[_Step]:
    """Put together what is read together."""
    at = 0
    while at < len(items):
        item, after, closing = (*items[at : at + 3], "", "")[:3]
        if isinstance(item, str) and isinstance(after, Field) and item in (".rwdata[", ".refs["):
            yield _Storage(item, after)
            at += 3
        elif item == "(" and isinstance(after, Field) and after.kind == "remap" and closing == ")":
            yield _Remap(after)
            at += 3
        elif isinstance(item, Field) and item.kind == "type":
            yield _Type(item, after if isinstance(after, str) else "")
            at += 1
        else:
            yield item
            at += 1


@dataclass(slots=True)
class ParsedInstruction:
    """An instruction: ``operands`` as :class:`halgpu.vm.encoder.Encoder` takes them, but for names.

    Registers are :class:`Register`, so that it is known which were given as pairs.
    """

    instruction: Instruction
    column: int
    operands: tuple[Any, ...]


_MNEMONIC = re.compile(r"(?:vm\.)?([A-Za-z_][\w.]*)", re.ASCII)


def read_instruction(scan: Scanner) -> ParsedInstruction:
    """Read an instruction with its operands. Raises :class:`Mistake`."""
    results: list[Register] = []
    if scan.looking_at("%"):
        results = _register_list(scan)
        scan.expect("=")
    column = scan.column
    mnemonic = scan.match(_MNEMONIC, "an instruction such as vm.return")[1]
    instruction = isa.BY_MNEMONIC.get(mnemonic)
    if instruction is None:
        raise Mistake(column, f"an instruction{_nearest(mnemonic)}", repr(f"vm.{mnemonic[:60]}"))
    operands = _read_form(scan, instruction, results, column)
    return ParsedInstruction(instruction, column, operands)


def _nearest(mnemonic: str) -> str:
    import difflib

    close = difflib.get_close_matches(mnemonic[:60], isa.BY_MNEMONIC, 1)
    return f" such as vm.{close[0]}" if close else ""


def _read_form(
    scan: Scanner, instruction: Instruction, results: list[Register], column: int
) -> tuple[Any, ...]:
    """Read by the form of the encoding, or else by the other one if there is one."""
    start = scan.at
    try:
        return _read_fields(scan, instruction, vmasm.FORMS[instruction.encoding], results, column)
    except Mistake as mistake:
        other = vmasm.ALSO.get(instruction.encoding)
        if other is None:
            raise
        scan.at = start
        try:
            return _read_fields(scan, instruction, other, results, column)
        except Mistake:
            raise mistake from None


def _read_fields(
    scan: Scanner, instruction: Instruction, text: str, results: list[Register], column: int
) -> tuple[Any, ...]:
    form = _compile(text, instruction)
    values: dict[str, Any] = {}
    if form.result is not None:
        values[form.result.name] = _results(form.result, results, column)
    elif results:
        raise Mistake(
            results[0].column, f"vm.{instruction.mnemonic}, which has no result", repr(results[0].text)
        )
    for step in form.steps:
        _read_step(scan, step, form.steps, values)
    scan.finish()
    if "cases" in values:
        values["table_size"] = len(values["cases"])
    return tuple(values[field.name] for field in instruction.fields)


def _results(field: Field, results: list[Register], column: int) -> Register | tuple[Register, ...]:
    if field.kind == "registers":
        return tuple(_checked(found, field, True) for found in results)
    if not results:
        raise Mistake(column, f"{_expected_register(field)} and '=' before the instruction", "no result")
    if len(results) > 1:
        raise Mistake(results[1].column, "'=': this instruction has one result", repr(results[1].text))
    return _checked(results[0], field, False)


def _read_step(scan: Scanner, step: _Step, steps: tuple[_Step, ...], values: dict[str, Any]) -> None:
    match step:
        case "!vm.ref<?>":
            scan.match(re.compile(r"\S+"), "a type")
        case str():
            scan.expect(step)
        case Field(kind="string") if step is steps[-1]:
            # What iree-dump-module prints has quotes in quotes.
            values[step.name] = scan.match(_LAST_STRING, _TEXT)[1].encode()
        case _Storage(opening, field):
            values[field.name] = _storage(scan, opening, field)
        case _Remap(field):
            values[field.name] = _bracketed_remap(scan, field)
        case _Type(field, stop):
            values[field.name] = _type(scan, stop)
        case Field():
            values[step.name] = _READERS[step.kind](scan, step)


def _storage(scan: Scanner, opening: str, field: Field) -> Any:
    if scan.looking_at("@") and field.kind in ("global", "global_ref"):
        column = scan.column
        kind: Any = field.kind
        return Name(kind, scan.match(SYMBOL, "the name of a global")[1], column)
    if not scan.accept(opening):
        scan.fail(f"'{opening}N]' or the name of a global")
    value = _READERS[field.kind](scan, field)
    scan.expect("]")
    return value


def _bracketed_remap(scan: Scanner, field: Field) -> tuple[tuple[Register, Register], ...]:
    if not scan.accept("("):
        return ()
    pairs: list[tuple[Register, Register]] = []
    while scan.looking_at("%"):
        source = register(scan)
        scan.expect("->")
        pairs.append((source, register(scan)))
        if not scan.accept(","):
            break
    scan.expect(")")
    return tuple(pairs)


def _type(scan: Scanner, stop: str) -> Name:
    """A type's name may hold anything; the ``>`` of a list is the last one of the line."""
    column = scan.column
    end = len(scan.code)
    if stop:
        end = scan.code.rfind(stop, scan.at) if stop == ">" else scan.code.find(stop, scan.at)
    name = scan.code[scan.at : end].strip() if end >= 0 else ""
    if not name:
        scan.fail("a type" if end >= 0 else f"a type and '{stop}'")
    scan.at = end
    scan.skip()
    return Name("type", name, column)


# Fields, by kind.

_CALLEE = re.compile(r"@([A-Za-z0-9_$.]+(?::[0-9]+|\[[0-9]+\])?)")
_LAST_STRING = re.compile(r'"(.*)"')
_TEXT = 'a text in "quotes"'
_LABEL = re.compile(r"\^([A-Za-z0-9_$.]+)")


def _register_list(scan: Scanner) -> list[Register]:
    found: list[Register] = []
    while scan.looking_at("%"):
        found.append(register(scan))
        if not scan.accept(","):
            return found
    if found:
        scan.fail("a register")
    return found


def _registers(scan: Scanner, field: Field) -> tuple[Register, ...]:
    return tuple(_checked(found, field, True) for found in _register_list(scan))


def _immediate(scan: Scanner, field: Field) -> int | float:
    kind = str(field.type)
    what = f"a number ({kind})"
    return floating(scan, kind) if kind in ("f32", "f64") else integer(scan, kind, what)


def _label(scan: Scanner, field: Field) -> Name:
    column = scan.column
    return Name("label", scan.match(_LABEL, "the label of a block such as ^bb1")[1], column)


def _callee(scan: Scanner, field: Field) -> Name:
    column = scan.column
    return Name("callee", scan.match(_CALLEE, "the name of a function such as @main")[1], column)


def _counts(scan: Scanner, field: Field) -> tuple[int, ...]:
    counts: list[int] = []
    while not scan.looking_at("]"):
        counts.append(integer(scan, "u16", "the size of a segment"))
        if not scan.accept(","):
            break
    return tuple(counts)


def _cases(scan: Scanner, field: Field) -> tuple[Any, ...]:
    cases: list[Any] = []
    while scan.accept(","):
        scan.expect(str(len(cases)))
        scan.expect(":")
        cases.append((_label(scan, field), _bracketed_remap(scan, field)))
    return tuple(cases)


_READERS: Final[Mapping[str, Callable[[Scanner, Field], Any]]] = {
    "register": lambda scan, field: _checked(register(scan, _expected_register(field)), field, False),
    "registers": _registers,
    "immediate": _immediate,
    "global": lambda scan, field: integer(scan, what="the byte offset of a global"),
    "global_ref": lambda scan, field: integer(scan, what="the ordinal of a global"),
    "rodata": lambda scan, field: integer(scan, what="the ordinal of a rodata segment"),
    "function": _callee,
    "string": lambda scan, field: scan.match(STRING, _TEXT)[1].encode(),
    "counts": _counts,
    "target": _label,
    "cases": _cases,
}
