"""Bytecode to Python source: the only engine that runs programs.

Each function of a module becomes a Python function, compiled when it is first needed and shared by all contexts
of the module. Registers become locals (:mod:`halgpu.vm.dataflow`), blocks become control flow
(:mod:`halgpu.vm.control_flow`), instructions become what :mod:`halgpu.vm.semantics` says. The source is known to
:mod:`linecache`, so tracebacks and pdb show it; each line ends with its instruction's offset and name.
"""

from __future__ import annotations

import functools
import itertools
import math
import struct
import weakref
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

from halgpu.vm import abi, jit, semantics, sources
from halgpu.vm.control_flow import Structurer
from halgpu.vm.dataflow import (
    CALLS,
    LETTERS,
    CallTypes,
    RawRegisters,
    Registers,
    TypeConflict,
    TypedFunction,
    analyze,
    arguments,
    branches,
)
from halgpu.vm.definition import ModuleDef
from halgpu.vm.isa import IMPORT_BIT, Op, Reg, Remap
from halgpu.vm.loops import Region, RegionFinder
from halgpu.vm.sources import Source
from halgpu.vm.verifier import Block, VerifiedFunction

_numbers = itertools.count(1)
_VIEWS = {"I32": ("i", 4), "I64": ("q", 8), "F32": ("f", 4), "F64": ("d", 8)}


class Translation:
    """The functions of a module as Python code, each made when it is first asked for."""

    def __init__(self, module: ModuleDef, functions: tuple[VerifiedFunction, ...]) -> None:
        self.module = module
        self.functions = functions
        self.conventions = [abi.CallingConvention.parse(function.cconv) for function in functions]
        self.callees: dict[int, abi.CallingConvention] = dict(enumerate(self.conventions))
        for ordinal, imported in enumerate(module.imports):
            self.callees[ordinal | IMPORT_BIT] = abi.CallingConvention.parse(imported.cconv)
        self._prefix = f"<halgpu {next(_numbers)}"
        self._sources: dict[int, Source] = {}
        weakref.finalize(self, sources.forget, self._prefix).atexit = False

    def source(self, ordinal: int) -> Source:
        """The source of a function, translated and compiled on first use."""
        made = self._sources.get(ordinal)
        if made is None:
            made = self._sources[ordinal] = self._translate(ordinal)
            sources.register(made)
        return made

    def again(self, ordinal: int, op: Op, names: tuple[str, ...]) -> CodeType:
        """One instruction of a function as the code of a function with these arguments."""
        name = self.name(ordinal)
        filename = f"{self._prefix} {ordinal}:{name}:{op.offset:#06x}>"
        made = sources.source_of(filename)
        if made is None:
            writer = FunctionTranslator(self, ordinal)
            lines, offsets = writer.translate_again(op, names)
            made = Source(self.module, name, filename, ordinal, lines, offsets, continues=True)
            sources.register(made)
        return next(part for part in made.code.co_consts if isinstance(part, CodeType))

    def name(self, ordinal: int) -> str:
        """The function's name for people, with the module's in front."""
        name = f"{self.module.name}.{self.functions[ordinal].definition.name or f'fn{ordinal}'}"
        # Names are whatever the file says; they become part of file names and of lines that people read.
        return "".join(letter if letter.isprintable() else "\ufffd" for letter in name)

    def _translate(self, ordinal: int) -> Source:
        name = self.name(ordinal)
        writer = FunctionTranslator(self, ordinal)
        lines, offsets = writer.translate()
        made = Source(self.module, name, f"{self._prefix} {ordinal}:{name}>", ordinal, lines, offsets)
        made.callees = frozenset(writer.callees)
        made.loops = jit.NativeLoops(writer.function, writer.typed, writer.calls, writer.regions)
        return made


class FunctionTranslator:
    """Writes one function."""

    def __init__(self, translation: Translation, ordinal: int) -> None:
        self.translation = translation
        self.ordinal = ordinal
        self.function = translation.functions[ordinal]
        self.calls = CallTypes(translation.callees, translation.conventions[ordinal])
        self.lines: list[str] = []
        self.offsets: list[int] = []
        self.callees: set[int] = set()
        self._level = 0
        self._offset = 0
        self._note: str | None = None
        self.registers: Registers
        self.regions: tuple[Region, ...] = ()
        self.typed = TypedFunction()
        try:
            self.typed = analyze(self.function, self.calls)
            self.registers = Registers()
            if jit.enabled():
                self.regions = RegionFinder(self.function, self.typed, self.calls).find()
        except TypeConflict:
            self.registers = RawRegisters()
        self._headers = {region.loop.header: region for region in self.regions}
        exits = {target for region in self.regions for target, _ in region.exits}
        self._flow = Structurer(self.function, self.line, self._indent, exits)

    def translate(self) -> tuple[list[str], list[int]]:
        """Return the lines and, for each, the offset of the instruction it belongs to."""
        self._write_head()
        self._flow.write(self._emit_unit)
        return self.lines, self.offsets

    def translate_again(self, op: Op, names: tuple[str, ...]) -> tuple[list[str], list[int]]:
        """The same for one instruction alone, as a function with these arguments."""
        self.line(f"def fn{self.ordinal}({', '.join(names)}):")
        self._indent(1)
        self._begin(op)
        self._emit(op)
        return self.lines, self.offsets

    # Lines

    def line(self, text: str) -> None:
        """Append a line; the first of an instruction says which one it is."""
        note, self._note = self._note, None
        self.lines.append("    " * self._level + text + (f"  # {note}" if note else ""))
        self.offsets.append(self._offset)

    def _indent(self, by: int) -> None:
        self._level += by

    def _write_head(self) -> None:
        incoming = list(arguments(self.calls.own))
        names = [f"{LETTERS[value_type]}{ordinal}" for value_type, ordinal in incoming]
        self.line(f"def fn{self.ordinal}({', '.join(names)}):")
        self._indent(1)
        definition = self.function.definition
        refs = [f"r{n}" for n in range(definition.ref_registers) if ("ref", n) not in incoming]
        self._chain(refs, "None")
        if self.registers.raw:
            self._chain([f"w{n}" for n in range(definition.i32_registers + 1)], "0")
            for value_type, ordinal in incoming:
                if value_type != "ref":
                    self.line(f"v{ordinal} = {LETTERS[value_type]}{ordinal}")
                    self._settle(value_type, ordinal)
            return
        zeroed = sorted(self.typed.zeroed - set(incoming))
        for zero, kinds in (("0", ("i32", "i64")), ("0.0", ("f32", "f64"))):
            self._chain([f"{LETTERS[kind]}{ordinal}" for kind, ordinal in zeroed if kind in kinds], zero)

    def _chain(self, names: list[str], value: str) -> None:
        for start in range(0, len(names), 64):
            self.line(" = ".join([*names[start : start + 64], value]))

    def _settle(self, value_type: str, ordinal: int) -> None:
        statement = self.registers.settle(value_type, ordinal)
        if statement:
            self.line(statement)

    # Blocks

    def _emit_unit(self, block: Block) -> bool:
        """Write the tree of a unit's head; where that is a native loop's header, first the way into that loop."""
        region = self._headers.get(block.offset)
        if region is not None:
            self._call_native(region, block)
        return self._emit_tree(block)

    def _call_native(self, region: Region, header: Block) -> None:
        number, nest = region.number, region.nest
        function = self.ordinal
        self._offset, self._note = header.ops[0].offset, "native loop"
        self.line(f"hot{function}[{nest}] += 1")
        self.line(f"if hot{function}[{nest}] > when{function}[{number}]:")
        self._indent(1)
        passed = [
            *(self.registers.read(*local) for local in region.incoming),
            *(f"r{ref}" for ref in region.reads),
        ]
        self.line(f"x = loop{function}_{number}({', '.join(passed)})")
        self.line("if x:")
        self._indent(1)
        left = ["x", *(self.registers.target(*local) for local in region.outgoing)]
        self.line(f"{', '.join(left)}, = x")
        for position, (target, copies) in enumerate(region.exits):
            if len(region.exits) > 1:
                self.line(f"if x == {position}:")
                self._indent(1)
            for source, made, moves in copies:
                self._copy_ref(Reg("ref", source, moves), Reg("ref", made))
            self._flow.leave(target)
            if len(region.exits) > 1:
                self._indent(-1)
        self._indent(-2)

    def _emit_tree(self, block: Block) -> bool:
        """Write a block and those written into it; say whether control never leaves its end."""
        following: Block | None = block
        while following is not None:
            current = following
            for op in current.ops[:-1]:
                self._begin(op)
                self._emit(op)
            terminator = current.ops[-1]
            self._begin(terminator)
            following = None
            if self._is_jump(terminator):
                self._before_jump(terminator)
                ((target, remap),) = branches(terminator)
                self._remap(terminator, 0, remap)
                following = self._flow.inline(target)
                if following is None:
                    return self._flow.go(target)
                continue
            method: Callable[[Op], bool] = getattr(
                self, "emit_" + semantics.METHODS[terminator.instruction.symbol]
            )
            return method(terminator)
        raise AssertionError("unreachable")

    def _begin(self, op: Op) -> None:
        self._offset = op.offset
        self._note = f"{op.offset:#06x} {op.instruction.mnemonic}"

    @staticmethod
    def _is_jump(op: Op) -> bool:
        return semantics.METHODS[op.instruction.symbol] in ("branch", "yieldable_call")

    def _before_jump(self, op: Op) -> None:
        if op.instruction.symbol in CALLS:
            self.emit_call(op)

    def _arm(self, op: Op, number: int, target: int, remap: Remap) -> bool:
        """Write one side of a conditional branch, indented."""
        self._note = None
        self._indent(1)
        before = len(self.lines)
        self._remap(op, number, remap)
        block = self._flow.inline(target)
        ends = self._emit_tree(block) if block is not None else self._flow.go(target)
        if len(self.lines) == before:
            self.line("pass")
        self._indent(-1)
        return ends

    def _remap(self, op: Op, number: int, remap: Remap) -> None:
        """Write a branch's copies. They are made one after the other, as the compiler ordered them."""
        self._offset = op.offset
        if self.registers.raw:
            for source, target in remap:
                if source.bank == "i32":
                    self.line(f"w{target.ordinal} = w{source.ordinal}")
        else:
            for held, made in self.typed.copies[op.offset, number]:
                value = "0" if held is None else self.registers.read(*held)
                self.line(f"{self.registers.target(*made)} = {value}")
        for source, target in remap:
            if source.bank == "ref":
                self._copy_ref(source, target)

    def _copy_ref(self, source: Reg, target: Reg) -> None:
        if source.ordinal == target.ordinal:
            return
        self.line(f"r{target.ordinal} = r{source.ordinal}")
        if source.move:
            self.line(f"r{source.ordinal} = None")

    # Instructions

    def _emit(self, op: Op) -> None:
        symbol = op.instruction.symbol
        template = semantics.SEMANTICS.get(symbol)
        if template is None:
            getattr(self, "emit_" + semantics.METHODS[symbol])(op)
            return
        names: dict[str, str] = {}
        written: list[tuple[str, int]] = []
        moved: list[int] = []
        for spec, value in zip(op.instruction.fields, op.operands, strict=True):
            if spec.kind != "register":
                names[spec.name] = f"E{value}" if spec.kind == "type" else _literal(value)
                continue
            assert spec.type is not None
            if spec.access == "write":
                written.append((spec.type, value.ordinal))
                names[spec.name] = self.registers.target(spec.type, value.ordinal)
                continue
            names[spec.name] = self.registers.read(spec.type, value.ordinal)
            if value.move:
                moved.append(value.ordinal)
        for text in _formatted(template, tuple(names.items())):
            self.line(text)
        for value_type, ordinal in written:
            self._settle(value_type, ordinal)
        self._null(moved, [ordinal for value_type, ordinal in written if value_type == "ref"])

    def _null(self, moved: Iterable[int], written: Iterable[int] = ()) -> None:
        """Null the ref registers that were moved from, so that what they held is dropped now."""
        gone = sorted(set(moved) - set(written))
        if gone:
            self._chain([f"r{ordinal}" for ordinal in gone], "None")

    def _read(self, op: Op, name: str) -> str:
        spec = op.instruction.fields[op.instruction.index[name]]
        assert spec.type is not None
        return self.registers.read(spec.type, op[name].ordinal)

    def _assign(self, op: Op, name: str, expression: str) -> None:
        spec = op.instruction.fields[op.instruction.index[name]]
        assert spec.type is not None
        self.line(f"{self.registers.target(spec.type, op[name].ordinal)} = {expression}")
        self._settle(spec.type, op[name].ordinal)

    def _check_type(self, value: str, type_ordinal: int) -> None:
        expected = f"T{type_ordinal}"
        self.line(
            f"if {value} is not None and not isinstance({value}, {expected}): mismatch({value}, {expected})"
        )

    def emit_discard_refs(self, op: Op) -> None:
        self._null(reg.ordinal for reg in op["refs"])

    def emit_assign_ref(self, op: Op) -> None:
        self._copy_ref(op["source"], op["result"])

    def emit_const_ref_rodata(self, op: Op) -> None:
        ordinal = op["rodata"]
        self._assign(op, "value", f"ro[{ordinal}] or rodata({ordinal})")

    def emit_import_resolved(self, op: Op) -> None:
        ordinal = op.operands[0] & ~IMPORT_BIT
        name = next(spec.name for spec in op.instruction.fields if spec.access == "write")
        self._assign(op, name, f"has{ordinal}")

    def emit_debug_event(self, op: Op) -> None:
        """Trace and print do nothing but drop the refs that move into them (as dispatch.c)."""
        self._null(reg.ordinal for reg in op["operands"] if reg.move)

    # Globals

    def emit_global_load(self, op: Op) -> None:
        code, size = _VIEWS[op.instruction.symbol[-3:]]
        offset = op["byte_offset"]
        direct = f"G{code}[{offset // size}]" if offset % size == 0 else f"global_load(G, {code!r}, {offset})"
        self._assign(op, "result", direct)

    def emit_global_store(self, op: Op) -> None:
        code, size = _VIEWS[op.instruction.symbol[-3:]]
        offset, value = op["byte_offset"], self._read(op, "value")
        if offset % size:
            self.line(f"global_store(G, {code!r}, {offset}, {value})")
        else:
            self.line(f"G{code}[{offset // size}] = {value}")

    def emit_global_load_ref(self, op: Op) -> None:
        self._load_ref(op, str(op["global"]))

    def emit_global_store_ref(self, op: Op) -> None:
        self._store_ref(op, str(op["global"]))

    def emit_global_load_indirect_ref(self, op: Op) -> None:
        self.line(f"x = global_ref_index(G, {self._read(op, 'global')})")
        self._load_ref(op, "x")

    def emit_global_store_indirect_ref(self, op: Op) -> None:
        self.line(f"x = global_ref_index(G, {self._read(op, 'global')})")
        self._store_ref(op, "x")

    def _load_ref(self, op: Op, index: str) -> None:
        # The register changes only when the type is right, as in iree_vm_ref_retain_or_move_checked.
        target = f"r{op['value'].ordinal}"
        self.line(f"y = refs[{index}]")
        self._check_type("y", op["type_def"])
        self.line(f"{target} = y; y = None")
        if op["value"].move:
            self.line(f"refs[{index}] = None")

    def _store_ref(self, op: Op, index: str) -> None:
        source = f"r{op['value'].ordinal}"
        self._check_type(source, op["type_def"])
        self.line(f"refs[{index}] = {source}")
        if op["value"].move:
            self.line(f"{source} = None")

    # Refs

    def emit_list_get_ref(self, op: Op) -> None:
        moves = ", True" if op["result"].move else ""
        index = self._read(op, "index")
        self._assign(op, "result", f"list_get_ref(r{op['list'].ordinal}, {index}, T{op['type_def']}{moves})")

    def emit_cast_any_ref(self, op: Op) -> None:
        self._check_type(f"r{op['operand'].ordinal}", op["result_type"])
        self._copy_ref(op["operand"], op["result"])

    def emit_select_ref(self, op: Op) -> None:
        chosen, other = f"r{op['true_value'].ordinal}", f"r{op['false_value'].ordinal}"
        self.line(f"y = {chosen} if {self._read(op, 'condition')} else {other}")
        self._check_type("y", op["true_value_type_def"])
        self.line(f"r{op['result'].ordinal} = y; y = None")
        moved = [op[name].ordinal for name in ("true_value", "false_value") if op[name].move]
        self._null(moved, [op["result"].ordinal])

    def emit_switch(self, op: Op) -> None:
        value_type = op.instruction.fields[op.instruction.index["result"]].type
        assert value_type is not None
        values = ", ".join(self.registers.read(value_type, reg.ordinal) for reg in op["values"])
        index, default = self._read(op, "index"), self._read(op, "default_value")
        count = len(op["values"])
        chosen = f"({values},)[{index}] if 0 <= {index} < {count} else {default}" if count else default
        self._assign(op, "result", chosen)

    def emit_switch_ref(self, op: Op) -> None:
        """Only the chosen register moves (dispatch.c, SwitchRef)."""
        index = self._read(op, "index")
        self.line(f"x = {index}")
        # x is where a moved register is told apart; -1 for the default.
        values: tuple[Reg, ...] = op["values"]
        self.line(f"if not 0 <= x < {len(values)}: x = -1")
        names = [f"r{reg.ordinal}" for reg in (*values, op["default_value"])]
        self.line(f"y = ({', '.join(names)},)[x]")
        self._check_type("y", op["type_def"])
        for position, reg in [*enumerate(values), (-1, op["default_value"])]:
            if reg.move:
                self.line(f"if x == {position}: r{reg.ordinal} = None")
        self.line(f"r{op['result'].ordinal} = y; y = None")

    # Calls

    def emit_call(self, op: Op) -> None:
        callee = op["callee_ordinal"]
        convention = self.translation.callees[callee]
        imported = bool(callee & IMPORT_BIT)
        if not imported:
            self.callees.add(callee)
        values = iter(self.calls.operands(op))
        sizes = op["segment_sizes"] if "segment_sizes" in op.instruction.index else ()
        passed: list[str] = []
        for position, item in enumerate(convention.arguments):
            if isinstance(item, str):
                passed.append(self._passed(next(values), hand_over=not imported))
            else:
                passed.append(self._span(item, sizes[position], values))
        target = f"m{callee & ~IMPORT_BIT}" if imported else f"fn{callee}"
        results = self.calls.results(op)
        self._receive(f"{target}({', '.join(passed)})", results, imported)
        written = [reg.ordinal for reg, value_type in results if value_type == "ref"]
        if imported:
            self._null(
                (reg.ordinal for reg, kind in self.calls.operands(op) if kind == "ref" and reg.move), written
            )

    def _passed(self, value: tuple[Reg, str], hand_over: bool) -> str:
        reg, value_type = value
        name = self.registers.read(value_type, reg.ordinal)
        if value_type == "ref" and reg.move and hand_over:
            # The callee may drop it early, so nothing of the caller may hold it during the call.
            return f"({name}, {name} := None)[0]"
        return name

    def _span(self, span: abi.Span, count: int, values: Any) -> str:
        tuples: list[str] = []
        for _ in range(count):
            entry = [self._passed(next(values), hand_over=False) for _ in span.kinds]
            tuples.append(entry[0] if len(entry) == 1 else f"({', '.join(entry)})")
        return f"({', '.join(tuples)}{',' if len(tuples) == 1 else ''})"

    def _receive(self, call: str, results: list[tuple[Reg, str]], imported: bool) -> None:
        if not results:
            self.line(call)
            return
        targets = [self.registers.target(value_type, reg.ordinal) for reg, value_type in results]
        if imported and len(results) == 1:
            call = _checked(call, results[0][1])
        self.line(f"{', '.join(targets)} = {call}")
        for target, (reg, value_type) in zip(targets, results, strict=True):
            if imported and len(results) > 1 and value_type != "ref":
                self.line(f"{target} = {_checked(target, value_type)}")
            self._settle(value_type, reg.ordinal)

    # Terminators

    def emit_return_(self, op: Op) -> bool:
        values = [self.registers.read(kind, reg.ordinal) for reg, kind in self.calls.operands(op)]
        self.line(f"return {', '.join(values)}".rstrip())
        return True

    def emit_fail(self, op: Op) -> bool:
        self.line(f"fail({self._read(op, 'status')}, {op['message']!r})")
        self.line("return")
        return True

    def emit_cond_branch(self, op: Op) -> bool:
        (true_target, true_remap), (false_target, false_remap) = branches(op)
        self.line(f"if {self._read(op, 'condition')}:")
        true_ends = self._arm(op, 0, true_target, true_remap)
        return self._else(op, 1, false_target, false_remap) and true_ends

    def _else(self, op: Op, number: int, target: int, remap: Remap) -> bool:
        self._note = None
        self._offset = op.offset
        self.line("else:")
        return self._arm(op, number, target, remap)

    def emit_branch_table(self, op: Op) -> bool:
        default, *cases = branches(op)
        index = self._read(op, "index")
        if not cases:
            self.line("if True:")
            return self._arm(op, 0, *default)
        self.line(f"if 0 <= {index} < {len(cases)}:")
        self._indent(1)
        ends = self._cases(op, index, cases, 0)
        self._indent(-1)
        return self._else(op, 0, *default) and ends

    def _cases(self, op: Op, index: str, cases: list[tuple[int, Remap]], first: int) -> bool:
        """Choose by halving."""
        if len(cases) == 1:
            self.line("if True:")
            return self._arm(op, first + 1, *cases[0])
        middle = len(cases) // 2
        self._offset = op.offset
        self.line(f"if {index} < {first + middle}:")
        self._indent(1)
        ends = self._cases(op, index, cases[:middle], first)
        self._indent(-1)
        self._note = None
        self.line("else:")
        self._indent(1)
        ends = self._cases(op, index, cases[middle:], first + middle) and ends
        self._indent(-1)
        return ends


@functools.lru_cache(maxsize=4096)
def _formatted(template: str, names: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    return tuple(template.format(**dict(names)).split("\n"))


def _checked(value: str, value_type: str) -> str:
    """A native function's result, checked where it is a number."""
    if value_type == "ref":
        return value
    return f"as_{'int' if value_type[0] == 'i' else 'float'}({value}, {value_type[1:]})"


def _literal(value: int | float) -> str:
    if isinstance(value, float) and math.isnan(value):
        return f"from_bits64({struct.unpack('<Q', struct.pack('<d', value))[0]:#x})"
    # Parentheses, so that a template may put an operator in front of a negative number.
    return f"({value!r})" if value < 0 else repr(value)
