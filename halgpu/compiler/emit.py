"""Turns a ``vm.module`` into a :class:`~halgpu.vm.definition.ModuleDef`: registers, bytecode, tables, locations.

Facts: compiler/src/iree/compiler/Dialect/VM/Target/Bytecode/BytecodeModuleTarget.cpp.
"""

from __future__ import annotations

import halgpu.compiler.needs_xdsl  # noqa: F401 - the first of all imports

# isort: split
from collections.abc import Iterator, Sequence
from typing import Any, Final

from xdsl.dialects.builtin import (
    CallSiteLoc,
    DictionaryAttr,
    FileLineColLoc,
    FusedLoc,
    IntegerAttr,
    ModuleOp,
    NameLoc,
    StringAttr,
    SymbolRefAttr,
    TupleType,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from halgpu import errors
from halgpu.compiler import data
from halgpu.compiler.dialects import vm_control, vm_types
from halgpu.compiler.dialects import vm_structure as vm
from halgpu.compiler.dialects.vm_instructions import MAY_FAIL
from halgpu.compiler.mlir import Diagnostics
from halgpu.compiler.transforms.convert_to_vm import REFLECTION
from halgpu.compiler.transforms.registers import Registers, is_wide
from halgpu.vm import debug, definition, isa, verifier, writer
from halgpu.vm.definition import Dependency, ExportDef, Feature, ImportDef, ModuleDef, SignatureDef
from halgpu.vm.encoder import Encoder

FUNCTION_ALIGNMENT: Final = 8
EXTERNAL: Final = 1024
"""Data of at least so many bytes, or more strictly aligned than that in it, lies behind the FlatBuffer."""


def emit(module: ModuleOp, resources: dict[str, bytes] | None = None) -> ModuleDef:
    """The program of a module that holds one ``vm.module`` and nothing else; it has passed the verifier.

    Raises InvalidArgument with all that is wrong.
    """
    ops = list(module.body.block.ops)
    diagnostics = Diagnostics()
    if len(ops) != 1 or not isinstance(ops[0], vm.ModuleOp):
        diagnostics.error(module, "expected one vm.module: the pass convert-to-vm makes it")
        diagnostics.check()
    assert isinstance(ops[0], vm.ModuleOp)
    made = _Emitter(ops[0], diagnostics, resources or {}).emit()
    diagnostics.check()
    assert made is not None
    verifier.verify(made)
    return made


class _Emitter:
    """Emits one module."""

    def __init__(self, module: vm.ModuleOp, diagnostics: Diagnostics, resources: dict[str, bytes]) -> None:
        self.module = module
        self.diagnostics = diagnostics
        self.resources = resources
        ops = list(module.body.block.ops)
        self.functions = [op for op in ops if isinstance(op, vm.FuncOp)]
        self.imports = [op for op in ops if isinstance(op, vm.ImportOp)]
        self.exports = [op for op in ops if isinstance(op, vm.ExportOp)]
        self.rodata = [op for op in ops if isinstance(op, vm.RodataOp)]
        self.callees = {op.sym_name.data: n for n, op in enumerate(self.functions)}
        self.callees |= {op.sym_name.data: n | isa.IMPORT_BIT for n, op in enumerate(self.imports)}
        self.segments = {op.sym_name.data: n for n, op in enumerate(self.rodata)}
        self.global_bytes = 0
        self.global_refs = 0
        self.globals = self._lay_out([op for op in ops if isinstance(op, tuple(vm.GLOBALS.values()))])
        self.types = _type_table(module)
        self.locations = _Locations()

    def _lay_out(self, ops: Sequence[Any]) -> dict[str, int]:
        """Ordinals of references, and byte offsets: 64-bit numbers first, so that there are no gaps."""
        places: dict[str, int] = {}
        for op in ops:
            if isinstance(op, vm.GlobalRefOp):
                places[op.sym_name.data] = self.global_refs
                self.global_refs += 1
        for size in (8, 4):
            for op in ops:
                if not isinstance(op, vm.GlobalRefOp) and size == (8 if is_wide(op.type) else 4):
                    places[op.sym_name.data] = self.global_bytes
                    self.global_bytes += size
        return places

    def emit(self) -> ModuleDef | None:
        encoded = [_FunctionEmitter(self, op) for op in self.functions]
        rodata = [self._data(op) for op in self.rodata]
        exports = tuple(self._exports())
        if self.diagnostics.found:
            return None
        unwinds = _unwinding(self.functions)
        bytecode = bytearray()
        descriptors: list[tuple[int, ...]] = []
        requirements = Feature(0)
        for op, function in zip(self.functions, encoded, strict=True):
            wanted = function.encoder.requirements | (Feature.UNWIND if op in unwinds else Feature(0))
            requirements |= wanted
            descriptors.append(function.descriptor(len(bytecode), wanted))
            bytecode += function.code
            bytecode += bytes(-len(bytecode) % FUNCTION_ALIGNMENT)
        contents = debug.DebugContents(
            tuple(self.locations.table),
            tuple((op.sym_name.data, tuple(f.places)) for op, f in zip(self.functions, encoded, strict=True)),
        )
        database = debug.DebugDatabase(
            contents, len(encoded), {export.local_name: export.ordinal for export in exports}
        )
        code = memoryview(bytes(bytecode))
        return ModuleDef(
            name=self.module.sym_name.data,
            version=0,
            requirements=requirements,
            attrs=_reflection(self.module),
            types=tuple(self.types),
            dependencies=tuple(self._dependencies()),
            imports=tuple(map(_import, self.imports)),
            exports=exports,
            signatures=tuple(SignatureDef(_cconv(op), _reflection(op)) for op in self.functions),
            rodata=tuple(map(memoryview, rodata)),
            rodata_external=tuple(map(_is_external, self.rodata, rodata)),
            rwdata=(),
            global_bytes=self.global_bytes,
            global_refs=self.global_refs,
            functions=definition.make_functions(tuple(descriptors), code, exports, database),
            bytecode=code,
            bytecode_version=isa.VERSION,
            debug=database,
        )

    def _data(self, op: vm.RodataOp) -> bytes:
        try:
            return data.to_bytes(op.value, self.resources)
        except data.NoBytes as problem:
            self.diagnostics.error(op, str(problem))
            return b""

    def _exports(self) -> Iterator[ExportDef]:
        for op in self.exports:
            found = self.callees.get(op.function_ref.string_value())
            if found is None or found & isa.IMPORT_BIT:
                self.diagnostics.error(op, f"there is no function @{op.function_ref.string_value()}")
            else:
                yield ExportDef(op.export_name.data, found)

    def _dependencies(self) -> Iterator[Dependency]:
        """The modules of imports; optional where all imports from one are."""
        found: dict[str, tuple[int, bool]] = {}
        for op in self.imports:
            name = op.sym_name.data.partition(".")[0]
            version = op.minimum_version.value.data if op.minimum_version is not None else 0
            known, optional = found.get(name, (0, True))
            found[name] = max(known, int(version)), optional and op.is_optional is not None
        for name, (version, optional) in found.items():
            yield Dependency(name, version, optional)

    def symbol(self, op: Operation, table: dict[str, int], kind: str, name: str) -> int:
        """What a symbol stands for."""
        if name not in table:
            self.diagnostics.error(op, f"there is no {kind} @{name}{errors.nearest(name, table)}")
            return 0
        return table[name]


class _FunctionEmitter:
    """Encodes one function."""

    def __init__(self, module: _Emitter, function: vm.FuncOp) -> None:
        self.module = module
        self.function = function
        self.encoder = Encoder()
        self.registers = Registers(function, module.diagnostics)
        self.places: list[tuple[int, int]] = []
        for block in self.registers.blocks:
            self.encoder.block(block)
            for op in block.ops:
                self._op(op, block)
        self.code = self.encoder.finish()

    def descriptor(self, offset: int, requirements: Feature) -> tuple[int, ...]:
        """Fields of :data:`halgpu.vm.definition.DESCRIPTOR`."""
        i32, refs = verifier.register_counts(map(vm_types.letter, self.function.function_type.inputs))
        counts = max(self.registers.count("i32"), i32), max(self.registers.count("ref"), refs)
        return offset, len(self.code), int(requirements), 0, self.encoder.block_count, *counts

    def _op(self, op: Operation, block: Block) -> None:
        location = self.module.locations.index(op.location)
        if location is not None:
            self.places.append((len(self.encoder.code), location))
        instruction = getattr(op, "INSTRUCTION", None)
        if instruction is not None:
            self._put(op, instruction, [self._field(op, field) for field in instruction.fields])
            return
        emit = _SPECIAL.get(type(op))
        if emit is None:
            self.module.diagnostics.error(op, "there is no instruction for it")
            return
        name, operands = emit(self, op, block)
        self._put(op, isa.BY_MNEMONIC[name], operands)

    def _put(self, op: Operation, instruction: isa.Instruction, operands: Sequence[Any]) -> None:
        try:
            self.encoder.op(instruction, operands)
        except errors.OutOfRange as problem:
            self.module.diagnostics.error(op, problem.message)

    def _field(self, op: Operation, field: isa.Field) -> Any:
        module = self.module
        match field.kind:
            case "register" if field.access == "read":
                names = [n for n, _ in type(op).get_irdl_definition().operands]  # type: ignore[attr-defined]
                return self.registers.operand(op, names.index(field.name))
            case "register":
                return self.registers.result(op.results[0])
            case "immediate":
                return op.properties["value"].value.data  # type: ignore[attr-defined]
            case "global" | "global_ref":
                return module.symbol(op, module.globals, "global", _symbol(op, "global"))
            case "rodata":
                return module.symbol(op, module.segments, "data", _symbol(op, "rodata"))
        assert field.kind == "type"
        return module.types[vm_types.type_name(_type_in(op))]

    def reads(self, op: Operation) -> list[isa.Reg]:
        """Registers of all operands."""
        return [self.registers.operand(op, index) for index in range(len(op.operands))]

    def writes(self, op: Operation) -> list[isa.Reg]:
        """Registers of all results."""
        return [self.registers.result(result) for result in op.results]


def _symbol(op: Operation, name: str) -> str:
    found = op.properties[name]
    assert isinstance(found, SymbolRefAttr)
    return found.root_reference.data


def _type_in(op: Operation) -> Attribute:
    """The type that an instruction with one holds: of its value, or of the elements of a new list."""
    values: Sequence[SSAValue] = op.results or op.operands[-1:]
    type_ = values[0].type
    return type_.element_type if isinstance(type_, vm_types.ListType) and op.name == _NEW_LIST else type_


_NEW_LIST: Final = "vm.list.alloc"


def _call(to: _FunctionEmitter, op: vm_control.CallOp, block: Block) -> tuple[str, list[Any]]:
    callee = to.module.symbol(op, to.module.callees, "function", op.callee.string_value())
    return "call", [callee, to.reads(op), to.writes(op)]


def _call_variadic(
    to: _FunctionEmitter, op: vm_control.CallVariadicOp, block: Block
) -> tuple[str, list[Any]]:
    callee = to.module.symbol(op, to.module.callees, "function", op.callee.string_value())
    sizes = [isa.VARIADIC_NONE if size == vm_control.NOT_VARIADIC else size for size in op.sizes]
    return "call.variadic", [callee, sizes, to.reads(op), to.writes(op)]


def _branch(to: _FunctionEmitter, op: vm_control.BranchOp, block: Block) -> tuple[str, list[Any]]:
    return "br", [op.dest, to.registers.remap(block, 0)]


def _cond_branch(to: _FunctionEmitter, op: vm_control.CondBranchOp, block: Block) -> tuple[str, list[Any]]:
    condition = to.registers.operand(op, 0)
    ways = [op.true_dest, to.registers.remap(block, 0), op.false_dest, to.registers.remap(block, 1)]
    return "cond_br", [condition, *ways]


def _branch_table(to: _FunctionEmitter, op: vm_control.BranchTableOp, block: Block) -> tuple[str, list[Any]]:
    cases = [(dest, to.registers.remap(block, 1 + n)) for n, dest in enumerate(op.case_dests)]
    default = [op.default_dest, to.registers.remap(block, 0)]
    return "br_table", [to.registers.operand(op, 0), *default, len(cases), cases]


def _fail(to: _FunctionEmitter, op: vm_control.FailOp, block: Block) -> tuple[str, list[Any]]:
    message = op.message.data if op.message is not None else ""
    return "fail", [to.registers.operand(op, 0), message.encode()]


_SPECIAL: Final[dict[type[Operation], Any]] = {
    vm_control.CallOp: _call,
    vm_control.CallVariadicOp: _call_variadic,
    vm_control.BranchOp: _branch,
    vm_control.CondBranchOp: _cond_branch,
    vm_control.BranchTableOp: _branch_table,
    vm_control.ReturnOp: lambda to, op, block: ("return", [to.reads(op)]),
    vm_control.FailOp: _fail,
    vm_control.DiscardRefsOp: lambda to, op, block: ("discard.refs", [to.reads(op)]),
}


# Tables.


def _is_external(op: vm.RodataOp, found: bytes) -> bool:
    alignment = op.alignment.value.data if op.alignment is not None else 0
    return len(found) >= EXTERNAL or int(alignment) > writer.EMBEDDED_ALIGNMENT


def _type_table(module: vm.ModuleOp) -> dict[str, int]:
    """Ordinals of types by name, of all values in the module."""
    names: set[str] = set()
    for op in module.walk():
        values = [*op.results, *(a for region in op.regions for block in region.blocks for a in block.args)]
        names.update(vm_types.type_name(value.type) for value in values)
        if isinstance(op, vm.GlobalRefOp):
            names.add(vm_types.type_name(op.type))
        elif op.name == _NEW_LIST:
            names.add(vm_types.type_name(_type_in(op)))
    return {name: ordinal for ordinal, name in enumerate(sorted(names, key=lambda n: (n.startswith("!"), n)))}


def _letters(types: Sequence[Attribute], variadic: Sequence[bool]) -> str:
    found = ""
    for type_, many in zip(types, variadic, strict=True):
        fields = type_.types.data if isinstance(type_, TupleType) else (type_,)
        letters = "".join(map(vm_types.letter, fields))
        found += f"C{letters}D" if many else letters
    return found or "v"


def _cconv(op: vm.FuncOp | vm.ImportOp) -> str:
    """The calling convention of a function: ``0`` (its version), arguments, ``_``, results."""
    inputs, outputs = op.function_type.inputs.data, op.function_type.outputs.data
    variadic = [isinstance(op, vm.ImportOp) and op.is_variadic(n) for n in range(len(inputs))]
    return f"0{_letters(inputs, variadic)}_{_letters(outputs, [False] * len(outputs))}"


def _import(op: vm.ImportOp) -> ImportDef:
    return ImportDef(op.sym_name.data, _cconv(op), {}, op.is_optional is not None)


def _reflection(op: Operation) -> dict[str, str]:
    """What a function says about itself: texts and integers."""
    found = op.attributes.get(REFLECTION)
    entries = found.data if isinstance(found, DictionaryAttr) else {}
    attrs: dict[str, str] = {}
    for key, value in entries.items():
        if isinstance(value, StringAttr):
            attrs[key] = value.data
        elif isinstance(value, IntegerAttr):
            attrs[key] = str(value.value.data)
        elif isinstance(value, SymbolRefAttr):
            attrs[key] = value.string_value()
    return attrs


def _unwinding(functions: Sequence[vm.FuncOp]) -> set[vm.FuncOp]:
    """Functions that hold references when they, or what they call, may fail (IREE's AnnotateFunctions.cpp)."""
    by_name = {op.sym_name.data: op for op in functions}
    found = {op for op in functions if _holds_refs(op) and _may_fail(op)}
    changed = True
    while changed:
        changed = False
        for op in functions:
            calls = (c for c in op.walk() if isinstance(c, vm_control.CallOp | vm_control.CallVariadicOp))
            if op not in found and any(by_name.get(c.callee.string_value()) in found for c in calls):
                found.add(op)
                changed = True
    return found


def _holds_refs(function: vm.FuncOp) -> bool:
    types = [*function.function_type.inputs, *function.function_type.outputs]
    return any(map(vm_types.is_ref, types)) or any(
        vm_types.is_ref(result.type) for op in function.walk() for result in op.results
    )


def _may_fail(function: vm.FuncOp) -> bool:
    return any(
        isinstance(op, vm_control.CallOp | vm_control.CallVariadicOp | vm_control.FailOp)
        or getattr(getattr(op, "INSTRUCTION", None), "encoding", "") in MAY_FAIL
        or op.name.startswith(("vm.div.", "vm.rem."))
        for op in function.walk()
    )


class _Locations:
    """The debug database's table of locations; each is there once."""

    def __init__(self) -> None:
        self.table: list[debug.Location] = []
        self._known: dict[Attribute, int] = {}

    def index(self, location: Attribute) -> int | None:
        """The index of a location in the table; None for an unknown one."""
        if location in self._known:
            return self._known[location]
        made = self._make(location)
        if made is None:
            return None
        self.table.append(made)
        self._known[location] = len(self.table) - 1
        return self._known[location]

    def _make(self, location: Attribute) -> debug.Location | None:
        if isinstance(location, FileLineColLoc):
            return debug.FileLocation(location.filename.data, location.line.data, location.column.data)
        if isinstance(location, CallSiteLoc):
            callee, caller = self.index(location.callee), self.index(location.caller)
            return debug.CallLocation(callee, caller) if callee is not None and caller is not None else None
        if isinstance(location, NameLoc):
            return debug.NamedLocation(location.desc.data, self.index(location.location))
        if isinstance(location, FusedLoc):
            parts = [self.index(part) for part in location.locations.data]  # type: ignore[attr-defined]
            known = tuple(part for part in parts if part is not None)
            return debug.FusedLocation("", known) if known else None
        return None
