"""Encodes instructions: the inverse of :func:`halgpu.vm.isa.decode`, by the same table."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from halgpu import errors
from halgpu.vm import isa
from halgpu.vm.definition import Feature
from halgpu.vm.isa import Field, Instruction, Reg

MAX_COUNT = 0xFFFF
"""Of the elements of a list, and of the bytes of a string."""

_PREFIXES: Final = {
    "ext_f32": (isa.BY_SYMBOL["PrefixExtF32"].opcode, Feature.EXT_F32),
    "ext_f64": (isa.BY_SYMBOL["PrefixExtF64"].opcode, Feature.EXT_F64),
}
_IMMEDIATES: Final = {"u16": "<H", "i32": "<i", "i64": "<q", "f32": "<f", "f64": "<d"}


class Encoder:
    """Encodes one function.

    Operands are those of :class:`halgpu.vm.isa.Op`, except that strings are bytes, immediates may be the bytes
    that hold them, and branch targets are labels, any hashable, resolved by :meth:`finish`. Values have to fit
    their fields; whether they make sense is for the verifier to say.
    """

    def __init__(self) -> None:
        self.code = bytearray()
        self.requirements = Feature(0)
        """Features of the instructions so far."""
        self.i32_registers = 0
        """Number of i32 registers named so far; a 64-bit value's pair counts where its type is known."""
        self.ref_registers = 0
        self.block_count = 0
        self.labels: dict[Any, int] = {}
        """Offsets of blocks."""
        self._fixups: list[tuple[int, Any]] = []

    def block(self, label: Any) -> None:
        """Start a block."""
        self.labels[label] = len(self.code)
        self.block_count += 1
        self.code.append(isa.BLOCK.opcode)

    def op(self, instruction: Instruction, operands: Sequence[Any]) -> None:
        """Append an instruction with an operand for each of its fields.

        Raises OutOfRange for a list or string that is too long, or a number that does not fit.
        """
        prefix = _PREFIXES.get(instruction.opcode_set)
        if prefix is not None:
            self.code.append(prefix[0])
            self.requirements |= prefix[1]
        self.code.append(instruction.opcode)
        try:
            for field, value in zip(instruction.fields, operands, strict=True):
                _WRITERS[field.kind](self, field, value)
        except struct.error as problem:
            raise errors.OutOfRange(f"an operand of {instruction.mnemonic} does not fit: {problem}") from None

    def use(self, register: Reg, value_type: str | None) -> None:
        """Count a register that holds a value of that type."""
        if register.bank == "ref":
            self.ref_registers = max(self.ref_registers, register.ordinal + 1)
        else:
            wide = value_type in ("i64", "f64")
            self.i32_registers = max(self.i32_registers, register.ordinal + 1 + wide)

    def unresolved(self) -> list[Any]:
        """Labels that branches name and no block has."""
        return [label for _, label in self._fixups if label not in self.labels]

    def finish(self) -> bytes:
        """The function's bytecode. All labels have to be there."""
        for at, label in self._fixups:
            struct.pack_into("<I", self.code, at, self.labels[label])
        return bytes(self.code)

    def _put(self, layout: str, *values: Any) -> None:
        self.code += struct.pack(layout, *values)

    def _counted(self, count: int, what: str) -> None:
        if count > MAX_COUNT:
            raise errors.OutOfRange(f"{count} {what} are too many for one instruction; at most {MAX_COUNT}")
        self.code += b"\0" * (len(self.code) & 1)
        self._put("<H", count)

    def _register(self, field: Field, register: Reg) -> None:
        self.use(register, field.type)
        self._put("<H", register.raw)

    def _registers(self, field: Field, registers: Sequence[Reg]) -> None:
        self._counted(len(registers), "registers")
        for register in registers:
            self._register(field, register)

    def _immediate(self, field: Field, value: int | float | bytes) -> None:
        if isinstance(value, bytes):
            self.code += value
        else:
            self._put(_IMMEDIATES[str(field.type)], value)

    def _ordinal(self, field: Field, value: int) -> None:
        self._put("<I", value)

    def _string(self, field: Field, value: bytes) -> None:
        if len(value) > MAX_COUNT:
            raise errors.OutOfRange(f"a text of {len(value)} bytes is too long; at most {MAX_COUNT} fit")
        self._put("<H", len(value))
        self.code += value

    def _counts(self, field: Field, values: Sequence[int]) -> None:
        self._counted(len(values), "segments")
        self._put(f"<{len(values)}H", *values)

    def _target(self, field: Field, label: Any) -> None:
        self._fixups.append((len(self.code), label))
        self._put("<I", 0)

    def _remap(self, field: Field, pairs: Sequence[tuple[Reg, Reg]]) -> None:
        self._counted(len(pairs), "branch operands")
        for pair in pairs:
            for register in pair:
                self._register(field, register)

    def _cases(self, field: Field, cases: Iterable[tuple[Any, Sequence[tuple[Reg, Reg]]]]) -> None:
        for label, pairs in cases:
            self._target(field, label)
            self._remap(field, pairs)


_WRITERS: Mapping[isa.Kind, Callable[[Encoder, Field, Any], None]] = {
    "register": Encoder._register,
    "registers": Encoder._registers,
    "immediate": Encoder._immediate,
    "global": Encoder._ordinal,
    "global_ref": Encoder._ordinal,
    "rodata": Encoder._ordinal,
    "function": Encoder._ordinal,
    "type": Encoder._ordinal,
    "string": Encoder._string,
    "counts": Encoder._counts,
    "target": Encoder._target,
    "remap": Encoder._remap,
    "cases": Encoder._cases,
}
