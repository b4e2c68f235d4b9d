"""The instruction set of IREE VM bytecode 17.0: the table, and the decoder that reads by it.

:data:`INSTRUCTIONS` has one entry an opcode of the core, f32 and f64 sets, 265 in all. :func:`decode` reads
one instruction; :mod:`halgpu.vm.verifier` reads whole functions with it and decides what is acceptable.
Encoding rules are those of runtime/src/iree/vm/bytecode/utils/isa_decoder.inl: little-endian, unaligned,
except that register and remap lists start at a multiple of 2 counted from the start of the function.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from halgpu import errors
from halgpu.vm import isa_table

VERSION = (17, 0)
"""Bytecode version (major, minor) that this table describes."""

IMPORT_BIT = 0x8000_0000
"""Set in a ``@function`` operand that names an import; the other bits are the import's ordinal."""
VARIADIC_NONE = 0xFFFF
"""The segment size that stands for an argument that is not a variadic span."""

REF_BIT = 0x8000
MOVE_BIT = 0x4000
I32_MASK = 0x7FFF
REF_MASK = 0x3FFF

Bank = Literal["i32", "ref"]
OpcodeSet = Literal["core", "ext_f32", "ext_f64"]
Kind = Literal[
    "register", "registers", "immediate", "global", "global_ref", "rodata", "function", "type", "string",
    "counts", "target", "remap", "cases",
]  # fmt: skip
ValueType = Literal["i32", "i64", "f32", "f64", "ref", "any", "u16"]

Code = bytes | memoryview
Remap = tuple[tuple["Reg", "Reg"], ...]


@dataclass(frozen=True, slots=True)
class Reg:
    """A register operand: an ordinal in one of the two banks.

    64-bit values take two ``i32`` registers, ``ordinal`` (even) and the next. ``move`` says that this use
    ends the ref register's life: the value moves out and the register becomes null.
    """

    bank: Bank
    ordinal: int
    move: bool = False

    @property
    def raw(self) -> int:
        """The u16 that bytecode holds."""
        if self.bank == "i32":
            return self.ordinal
        return REF_BIT | (MOVE_BIT if self.move else 0) | self.ordinal


@dataclass(frozen=True, slots=True)
class Field:
    """One operand of an instruction, in encoding order.

    ========== ========================================== =================================================
    ``kind``   what it is                                 decoded operand
    ========== ========================================== =================================================
    register   one register                               :class:`Reg`
    registers  a list of registers                        tuple of :class:`Reg`
    immediate  a constant of type ``type``                int (signed; u16 unsigned) or float
    global     byte offset of a primitive global          int
    global_ref ordinal of a ref global                    int
    rodata     ordinal of a rodata segment                int
    function   ordinal; :data:`IMPORT_BIT` marks imports  int
    type       ordinal in the module's type table         int
    string     UTF-8 text                                 str
    counts     segment sizes of a variadic call           tuple of int, :data:`VARIADIC_NONE` for none
    target     a block's offset in the function           int
    remap      branch operands, copied in order           tuple of (source :class:`Reg`, target :class:`Reg`)
    cases      a branch table                             tuple of (target, remap)
    ========== ========================================== =================================================

    ``type`` is the value type of registers (``"any"`` where each register decides) and immediates, else None.
    """

    name: str
    kind: Kind
    type: ValueType | None = None
    access: Literal["read", "write"] | None = None
    move: bool = False
    """The register may carry the move bit. A register of type ``any`` may always."""


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One opcode. ``mnemonic`` is None for the block marker and the two prefixes, which have no text form."""

    opcode_set: OpcodeSet
    opcode: int
    symbol: str
    mnemonic: str | None
    terminator: bool
    """Ends a block."""
    encoding: str
    """The shape of the operands: a key of :data:`halgpu.vm.isa_table.ENCODINGS`."""
    fields: tuple[Field, ...]
    index: dict[str, int] = field(repr=False)
    """Position of each field by its name."""
    readers: tuple[_Reader, ...] = field(repr=False)


@dataclass(slots=True, eq=False)
class Op:
    """A decoded instruction at ``offset`` (its opcode or prefix byte) up to ``end``; not to be changed."""

    offset: int
    end: int
    instruction: Instruction
    operands: tuple[Any, ...]
    """One for each of ``instruction.fields``; see :class:`Field` for their types."""

    def __getitem__(self, name: str) -> Any:
        """The operand of the field of that name."""
        return self.operands[self.instruction.index[name]]

    def targets(self) -> tuple[int, ...]:
        """Offsets of the blocks this instruction may continue at, in encoding order."""
        found: list[int] = []
        for spec, value in zip(self.instruction.fields, self.operands, strict=True):
            if spec.kind == "target":
                found.append(value)
            elif spec.kind == "cases":
                found.extend(target for target, _ in value)
        return tuple(found)


def decode(code: Code, offset: int) -> Op:
    """Read the instruction at ``offset`` of a function's bytecode.

    ``code`` starts where the function starts: lists are aligned relative to it. Only what is needed to read
    on is checked; :func:`halgpu.vm.verifier.verify` checks the operands' values.

    Raises InvalidArgument for an unknown opcode, OutOfRange when the instruction runs past the end.
    """
    try:
        instruction = CORE[code[offset]]
        at = offset + 1
        if instruction is not None and instruction.encoding == "prefix":
            instruction = EXTENSIONS[instruction.symbol][code[at]]
            at += 1
        if instruction is None:
            raise errors.InvalidArgument(_unknown_opcode(code, offset, at))
        operands: list[Any] = []
        for read in instruction.readers:
            at = read(code, at, operands)
    except (IndexError, struct.error):
        raise errors.OutOfRange(
            f"bytecode ends inside the instruction at {offset:#x}: the function has {len(code)} bytes"
        ) from None
    return Op(offset, at, instruction, tuple(operands))


def _unknown_opcode(code: Code, offset: int, at: int) -> str:
    opcode = " ".join(f"{byte:02X}" for byte in code[offset:at])
    return f"unknown opcode {opcode}: bytecode {VERSION[0]}.{VERSION[1]} has no such instruction"


# Readers: each takes (code, position, operands), appends what it read and returns the position behind it.

_Reader = Callable[[Code, int, list[Any]], int]


class _Registers(dict[int, Reg]):
    """Register operands by their u16; each is made once."""

    def __missing__(self, raw: int) -> Reg:
        is_ref = raw & REF_BIT
        made = Reg("ref", raw & REF_MASK, bool(raw & MOVE_BIT)) if is_ref else Reg("i32", raw)
        self[raw] = made
        return made


_register = _Registers().__getitem__
_u16 = struct.Struct("<H")
_u32 = struct.Struct("<I")


def _read_values(layout: str) -> _Reader:
    packed = struct.Struct("<" + layout)

    def read(code: Code, at: int, operands: list[Any]) -> int:
        operands += packed.unpack_from(code, at)
        return at + packed.size

    return read


def _read_registers(count: int) -> _Reader:
    packed = struct.Struct(f"<{count}H")

    def read(code: Code, at: int, operands: list[Any]) -> int:
        operands += map(_register, packed.unpack_from(code, at))
        return at + packed.size

    return read


def _read_string(code: Code, at: int, operands: list[Any]) -> int:
    start = at + 2
    end: int = start + _u16.unpack_from(code, at)[0]
    if end > len(code):
        raise IndexError
    # Text is only ever shown, so bytes that are not UTF-8 need not keep a program from loading.
    operands.append(bytes(code[start:end]).decode("utf-8", "backslashreplace"))
    return end


def _counted(code: Code, at: int, multiple: int = 1) -> tuple[tuple[int, ...], int]:
    at += at & 1
    count: int = _u16.unpack_from(code, at)[0] * multiple
    return struct.unpack_from(f"<{count}H", code, at + 2), at + 2 + 2 * count


def _read_register_list(code: Code, at: int, operands: list[Any]) -> int:
    raw, end = _counted(code, at)
    operands.append(tuple(map(_register, raw)))
    return end


def _read_counts(code: Code, at: int, operands: list[Any]) -> int:
    raw, end = _counted(code, at)
    operands.append(raw)
    return end


def _read_remap(code: Code, at: int, operands: list[Any]) -> int:
    raw, end = _counted(code, at, 2)
    registers = list(map(_register, raw))
    operands.append(tuple(zip(registers[::2], registers[1::2], strict=True)))
    return end


def _read_cases(code: Code, at: int, operands: list[Any]) -> int:
    cases: list[tuple[int, Remap]] = []
    for _ in range(operands[-1]):
        target = _u32.unpack_from(code, at)[0]
        remap: list[Any] = []
        at = _read_remap(code, at + 4, remap)
        cases.append((target, remap[0]))
    operands.append(tuple(cases))
    return at


_LISTS: dict[Kind, _Reader] = {
    "registers": _read_register_list,
    "string": _read_string,
    "counts": _read_counts,
    "remap": _read_remap,
    "cases": _read_cases,
}
_IMMEDIATES: dict[str | None, str] = {"u16": "H", "i32": "i", "i64": "q", "f32": "f", "f64": "d"}


def _readers(fields: tuple[Field, ...]) -> tuple[_Reader, ...]:
    """Readers for ``fields``, with runs of registers and of plain values each read at once."""
    readers: list[_Reader] = []
    run = ""
    for position, spec in enumerate((*fields, None)):
        code = "" if spec is None or spec.kind in _LISTS else _layout(spec)
        if run and (not code or (run[-1] == "R") != (code == "R")):
            readers.append(_read_registers(len(run)) if run[-1] == "R" else _read_values(run))
            run = ""
        run += code
        if spec is not None and not code:
            readers.append(_LISTS[fields[position].kind])
    return tuple(readers)


def _layout(spec: Field) -> str:
    if spec.kind == "register":
        return "R"
    return _IMMEDIATES[spec.type] if spec.kind == "immediate" else "I"


# The table.


def _parse_field(text: str, types: dict[str, str]) -> Field:
    name, kind = text.split(":")
    special: dict[str, Kind] = {
        "@bytes": "global", "@ref": "global_ref", "@rodata": "rodata", "@function": "function",
        "@type": "type", "string": "string", "counts": "counts", "target": "target", "remap": "remap",
        "cases": "cases",
    }  # fmt: skip
    if kind in special:
        return Field(name, special[kind])
    base = kind.strip("#=*~")
    value_type: Any = types.get(base, base)
    if kind.startswith("#"):
        return Field(name, "immediate", value_type)
    return Field(
        name,
        "registers" if kind.endswith("*") else "register",
        value_type,
        "write" if kind.startswith("=") else "read",
        "~" in kind or value_type == "any",
    )


def _parse_instruction(opcode_set: OpcodeSet, line: str) -> Instruction:
    opcode, symbol, mnemonic, encoding = line.split()
    return Instruction(
        opcode_set,
        int(opcode, 16),
        symbol,
        None if mnemonic == "-" else mnemonic,
        symbol in isa_table.TERMINATORS,
        *_parse_encoding(encoding),
    )


@functools.cache
def _parse_encoding(
    encoding: str,
) -> tuple[str, tuple[Field, ...], dict[str, int], tuple[_Reader, ...]]:
    name, _, arguments = encoding.rstrip(")").partition("(")
    types = dict(zip("TU", arguments.split(","), strict=False)) if arguments else {}
    fields = tuple(_parse_field(text, types) for text in isa_table.ENCODINGS[name].split())
    return name, fields, {spec.name: position for position, spec in enumerate(fields)}, _readers(fields)


def _parse_set(opcode_set: OpcodeSet, text: str) -> tuple[Instruction, ...]:
    return tuple(_parse_instruction(opcode_set, line) for line in text.strip().splitlines())


def _by_opcode(opcode_set: OpcodeSet) -> tuple[Instruction | None, ...]:
    table: list[Instruction | None] = [None] * 256
    for instruction in INSTRUCTIONS:
        if instruction.opcode_set == opcode_set:
            table[instruction.opcode] = instruction
    return tuple(table)


INSTRUCTIONS: tuple[Instruction, ...] = (
    *_parse_set("core", isa_table.CORE),
    *_parse_set("ext_f32", isa_table.EXT_F32),
    *_parse_set("ext_f64", isa_table.EXT_F64),
)
BY_SYMBOL: dict[str, Instruction] = {instruction.symbol: instruction for instruction in INSTRUCTIONS}
BY_MNEMONIC: dict[str, Instruction] = {i.mnemonic: i for i in INSTRUCTIONS if i.mnemonic}
CORE = _by_opcode("core")
EXTENSIONS = {"PrefixExtF32": _by_opcode("ext_f32"), "PrefixExtF64": _by_opcode("ext_f64")}
BLOCK = BY_SYMBOL["Block"]
