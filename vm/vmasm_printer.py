"""Prints modules as text (VMASM), the way ``iree-dump-module --output=disassembly`` does, by the forms of
:mod:`halgpu.vm.vmasm`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from halgpu.vm import isa, vmasm
from halgpu.vm.definition import ModuleDef
from halgpu.vm.isa import Op
from halgpu.vm.verifier import VerifiedFunction


class ModulePrinter:
    """Prints what IREE's tool prints; methods are what a more telling text overrides."""

    def __init__(self, module: ModuleDef, functions: Sequence[VerifiedFunction]) -> None:
        self.functions = functions
        self.module = module
        self.exported = {export.ordinal: export.local_name for export in reversed(module.exports)}
        self.aliases = module.aliases()
        self.names = self.function_names()

    def function_names(self) -> list[str]:
        entry_name = self.module.debug.entry_name if self.module.debug else lambda _: None
        return [self.exported.get(i) or entry_name(i) or f"fn{i}" for i in range(len(self.module.functions))]

    def header(self) -> Iterator[str]:
        module = self.module
        yield f"vm.module @{self.symbol(module.name)} version {module.version}"
        for ordinal in range(len(module.types)):
            yield f"vm.type {self.type_declaration(ordinal)}"
        for ordinal, imported in enumerate(module.imports):
            optional = "optional " if imported.optional else ""
            yield f'vm.import {optional}@{self.import_declaration(ordinal)} cconv "{imported.cconv}"'
            yield from self.below_import(ordinal)
        for ordinal, data in enumerate(module.rodata):
            yield f"vm.rodata[{ordinal}] = {data.hex().upper()}"
            yield from self.below_rodata(ordinal)

    def function(self, function: VerifiedFunction, offsets: bool) -> Iterator[str]:
        ordinal = function.definition.ordinal
        yield from self.above_function(ordinal)
        yield f"vm.func @{self.names[ordinal]}{_signature(function.cconv)} {{"
        yield from self.below_function(function)
        printer = _Printer(self, function)
        for block in function.blocks:
            yield _prefix(block.offset, offsets) + printer.block(block.offset) + ":"
            for op in block.ops:
                yield f"{_prefix(op.offset, offsets)}  {printer.line(op)}{self.note(function, op)}"
        yield "}"

    def above_function(self, ordinal: int) -> Iterator[str]:
        name = self.names[ordinal]
        for exported in self.aliases.get(ordinal, ()):
            yield f"vm.export @{exported}" + ("" if exported == name else f" = @{name}")

    def callee(self, ordinal: int) -> str:
        module = self.module
        if ordinal & isa.IMPORT_BIT:
            return module.imports[ordinal ^ isa.IMPORT_BIT].full_name
        name = module.debug.entry_name(ordinal) if module.debug else None
        return f"{module.name}.{name}" if name else f"{module.name}:{ordinal}"

    def text(self, text: str) -> str:
        return text

    def symbol(self, name: str) -> str:
        return name

    def type_declaration(self, ordinal: int) -> str:
        return self.module.types[ordinal]

    def type_reference(self, ordinal: int) -> str:
        return self.module.types[ordinal]

    def import_declaration(self, ordinal: int) -> str:
        return self.module.imports[ordinal].full_name

    # What only the lossless text has.

    def below_import(self, ordinal: int) -> Iterator[str]:
        return iter(())

    def below_rodata(self, ordinal: int) -> Iterator[str]:
        return iter(())

    def below_function(self, function: VerifiedFunction) -> Iterator[str]:
        return iter(())

    def note(self, function: VerifiedFunction, op: Op) -> str:
        return ""

    def footer(self) -> Iterator[str]:
        return iter(())


def _prefix(offset: int, offsets: bool) -> str:
    return f"[{offset:08X}]" if offsets else ""


def letters(cconv: str) -> tuple[str, str]:
    arguments, _, results = cconv[1:].replace("v", "").partition("_")
    return arguments, results


def _signature(cconv: str) -> str:
    """Argument registers are counted as IREE's tool does: without the gap that aligns 64-bit ones."""
    arguments, results = letters(cconv)
    i32 = refs = 0
    texts: list[str] = []
    for letter in arguments:
        bank: isa.Bank = "ref" if letter == "r" else "i32"
        wide: isa.ValueType = "i64" if letter in "IF" else "any"
        ordinal = refs if bank == "ref" else i32
        texts.append(f"{vmasm.register(isa.Reg(bank, ordinal), wide)}: {vmasm.TYPE_NAMES[letter]}")
        refs += bank == "ref"
        i32 += (bank == "i32") + (wide == "i64")
    return f"({', '.join(texts)}) -> ({', '.join(vmasm.TYPE_NAMES[letter] for letter in results)})"


# Instructions.


class _Printer:
    """Prints the instructions of one function."""

    def __init__(self, module: ModulePrinter, function: VerifiedFunction) -> None:
        self.module = module
        self.blocks = {block.offset: f"^bb{i}" for i, block in enumerate(function.blocks)}

    def line(self, op: Op) -> str:
        instruction = op.instruction
        fields = {
            spec.name: _PRINT[spec.kind](self, spec, value)
            for spec, value in zip(instruction.fields, op.operands, strict=True)
        }
        form = vmasm.FORMS[instruction.encoding]
        if form.startswith("{results} = ") and not fields["results"]:
            form = form.removeprefix("{results} = ")
        text = form.format(op=f"vm.{instruction.mnemonic}", **fields)
        return (text.rstrip() if instruction.symbol == "Return" else text) + self.comment(op)

    def comment(self, op: Op) -> str:
        if op.instruction.symbol == "ConstI32":
            return f"  // 0x{op['value'] & 0xFFFF_FFFF:08X}"
        if op.instruction.symbol == "ConstI64":
            return f"  // 0x{op['value'] & 0xFFFF_FFFF_FFFF_FFFF:016X}"
        if op.instruction.symbol == "ConstRefRodata":
            return f"  // {len(self.module.module.rodata[op['rodata']])}b"
        return ""

    def block(self, offset: int) -> str:
        return self.blocks[offset]


def _remap(pairs: isa.Remap) -> str:
    return ", ".join(f"{vmasm.register(source)}->{vmasm.register(target)}" for source, target in pairs)


def _cases(printer: _Printer, cases: Any) -> str:
    return "".join(
        f", {i}: {printer.block(target)}({_remap(remap)})" for i, (target, remap) in enumerate(cases)
    )


def _plain(printer: _Printer, spec: isa.Field, value: Any) -> str:
    return str(value)


_PRINT: dict[isa.Kind, Callable[[_Printer, isa.Field, Any], str]] = {
    "register": lambda printer, spec, value: vmasm.register(value, spec.type),
    "registers": lambda printer, spec, value: ", ".join(map(vmasm.register, value)),
    "immediate": lambda printer, spec, value: vmasm.number(value, spec.type),
    "global": _plain,
    "global_ref": _plain,
    "rodata": _plain,
    "function": lambda printer, spec, value: printer.module.callee(value),
    "type": lambda printer, spec, value: printer.module.type_reference(value),
    "string": lambda printer, spec, value: printer.module.text(value),
    "counts": lambda printer, spec, value: ", ".join(map(str, value)),
    "target": lambda printer, spec, value: printer.block(value),
    "remap": lambda printer, spec, value: _remap(value),
    "cases": lambda printer, spec, value: _cases(printer, value),
}
