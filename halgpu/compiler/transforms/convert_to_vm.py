"""Converts a module to the ``vm`` dialect: functions, globals, data, the imports that are used, one ``__init``.

Facts: compiler/src/iree/compiler/Dialect/VM/{Conversion,Transforms}.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.context import Context
from xdsl.dialects import cf, func
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FunctionType,
    IntegerType,
    ModuleOp,
    StringAttr,
    SymbolRefAttr,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from halgpu.compiler.dialects import hal, hal_inline, hal_loader, util, vm_control, vm_structure, vm_types
from halgpu.compiler.mlir import Diagnostics, erase
from halgpu.compiler.transforms import lower_affine, lower_hal, lower_lists, lower_strings
from halgpu.compiler.transforms.dominance import reached
from halgpu.compiler.transforms.imports import IMPORTS
from halgpu.compiler.transforms.lowering import (
    LOWERINGS,
    Lowering,
    Module,
    Unsupported,
    convert_type,
    known,
    lowers,
)

INIT = "__init"
REFLECTION = "iree.reflection"
STATUS_UNAVAILABLE = 14
"""Status of a call that comes to a place which was said to be out of reach; as iree-compile takes it."""

TABLES = (lower_affine, lower_hal, lower_lists, lower_strings)
"""Modules that enter lowerings when they are imported."""

Function: TypeAlias = util.FuncOp | func.FuncOp


@dataclass(frozen=True)
class ConvertToVmPass(ModulePass):
    """From ``util``, ``hal_inline``, ``hal_loader``, ``arith``, ``cf`` … to ``vm``."""

    name = "convert-to-vm"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        diagnostics = Diagnostics()
        converted = _Conversion(op, diagnostics).convert()
        diagnostics.check()
        for old in list(op.body.block.ops):
            erase(old, used=True)
        op.body.block.add_op(converted)


class _Conversion:
    """Converts one module."""

    def __init__(self, module: ModuleOp, diagnostics: Diagnostics) -> None:
        self.source = module
        self.diagnostics = diagnostics
        self.module = Module(diagnostics)
        self.functions: list[Operation] = []
        self.exports: list[vm_structure.ExportOp] = []
        self.globals: list[Operation] = []
        self.externals: list[Operation] = []

    def convert(self) -> vm_structure.ModuleOp:
        ops = list(self.source.body.block.ops)
        for op in ops:
            symbol = op.properties.get("sym_name")
            if isinstance(symbol, StringAttr):
                self.module.symbols.add(symbol.data)
        initializers = [op for op in ops if isinstance(op, util.InitializerOp)]
        for op in initializers[1:]:
            self.diagnostics.error(
                op, "expected one initializer: the pass combine-initializers makes one of several"
            )
        for op in ops:
            self._convert(op)
        for op in initializers[:1]:
            self._function(op, INIT, op.body, ((), ()))
            self.exports.append(vm_structure.ExportOp(INIT))
        return self._assemble()

    def _convert(self, op: Operation) -> None:
        if isinstance(op, util.GlobalOp):
            self._global(op)
        elif isinstance(op, Function):
            self._named_function(op)
        elif not isinstance(op, util.InitializerOp):
            self.diagnostics.error(op, "expected a global, an initializer or a function")

    def _assemble(self) -> vm_structure.ModuleOp:
        name = self.source.sym_name
        made = vm_structure.ModuleOp(name.data if name is not None else "module")
        found = self.source.attributes.get(REFLECTION)
        if found is not None:
            made.attributes[REFLECTION] = found
        rodata = [
            vm_structure.RodataOp(symbol, value, alignment)
            for (value, alignment), symbol in self.module.rodata.items()
        ]
        imports = [IMPORTS[name].declare() for name in IMPORTS if name in self.module.imports]
        functions = [*self.functions, *self.module.helpers.values()]
        order = [*self.globals, *rodata, *imports, *self.externals, *self.exports, *functions]
        made.body.block.insert_ops_before(order, made.body.block.last_op)  # type: ignore[arg-type]
        return made

    # Declarations.

    def _global(self, op: util.GlobalOp) -> None:
        if isinstance(op.type, hal.DeviceType):
            if any(symbol == op.sym_name.data for symbol in _used_symbols(self.source)):
                self.diagnostics.error(op, "inline programs have no devices: there is one, which runs them")
            return
        if op.initial_value is not None and not isinstance(op.initial_value, util.UninitializedAttr):
            self.diagnostics.error(
                op, "expected no initial value: the pass combine-initializers makes it a store"
            )
        try:
            type_ = convert_type(op.type)
        except Unsupported as problem:
            self.diagnostics.error(op, str(problem))
            return
        made = vm_structure.GLOBALS[vm_types.letter(type_)](op.sym_name.data, type_, mutable=True)
        made.location = op.location
        self.globals.append(made)

    def _named_function(self, op: Function) -> None:
        name = op.sym_name.data
        inputs, outputs = op.function_type.inputs.data, op.function_type.outputs.data
        public = op.sym_visibility is None or op.sym_visibility.data == "public"
        if not op.body.blocks:
            self._external(op, name)
            return
        made = self._function(op, name, op.body, (inputs, outputs), normalize=public)
        if made is None:
            return
        if (found := op.attributes.get(REFLECTION)) is not None:
            made.attributes[REFLECTION] = found
        if public:
            export = vm_structure.ExportOp(name)
            export.location = op.location
            self.exports.append(export)

    def _external(self, op: Function, name: str) -> None:
        if "." not in name:
            self.diagnostics.error(
                op, "expected the name of another module's function, such as @module.function"
            )
            return
        types = self._types(op, (op.function_type.inputs.data, op.function_type.outputs.data))
        if types is None:
            return
        self.externals.append(
            vm_structure.ImportOp.build(
                properties={
                    "sym_visibility": StringAttr("private"),
                    "sym_name": StringAttr(name),
                    "function_type": FunctionType.from_lists(*types),
                    "arg_attrs": ArrayAttr([DictionaryAttr({}) for _ in types[0]]),
                },
                regions=[Region()],
            )
        )

    def _types(
        self, op: Operation, types: tuple[Sequence[Attribute], Sequence[Attribute]]
    ) -> tuple[list[Attribute], list[Attribute]] | None:
        try:
            return [convert_type(t) for t in types[0]], [convert_type(t) for t in types[1]]
        except Unsupported as problem:
            self.diagnostics.error(op, str(problem))
            return None

    # Functions.

    def _function(
        self,
        op: Operation,
        name: str,
        body: Region,
        types: tuple[Sequence[Attribute], Sequence[Attribute]],
        normalize: bool = False,
    ) -> vm_structure.FuncOp | None:
        converted = self._types(op, types)
        if converted is None:
            return None
        region = Region(Block(arg_types=converted[0]))
        made = vm_structure.FuncOp(name, *converted, region)
        made.location = op.location
        lowering = Lowering(self.module, region.blocks[0])
        _Body(self, lowering, body, region).lower(normalize)
        self.functions.append(made)
        return made


def _used_symbols(module: ModuleOp) -> Iterator[str]:
    for op in module.walk():
        for value in op.properties.values():
            if isinstance(value, SymbolRefAttr):
                yield value.root_reference.data


class _Body:
    """Lowers the blocks of a function, those that are reached, each after the blocks that dominate it."""

    def __init__(self, conversion: _Conversion, to: Lowering, source: Region, target: Region) -> None:
        self.conversion = conversion
        self.to = to
        self.source = source
        self.target = target

    def lower(self, normalize: bool) -> None:
        entry = self.source.blocks[0]
        order = reached(self.source)
        self._make_blocks(order)
        if normalize:
            self._normalize(entry)
        for block in order:
            if block is not entry:
                self.to.block = self.to.blocks[block]
            for op in block.ops:
                self._operation(op)

    def _make_blocks(self, order: Sequence[Block]) -> None:
        entry, *others = order
        self._map(entry, self.target.blocks[0])
        for block in others:
            try:
                made = Block(arg_types=[convert_type(type_) for type_ in block.arg_types])
            except Unsupported as problem:
                self.conversion.diagnostics.error(block.first_op or self.source.parent, str(problem))  # type: ignore[arg-type]
                made = Block(arg_types=block.arg_types)
            self.target.add_block(made)
            self._map(block, made)

    def _map(self, block: Block, made: Block) -> None:
        self.to.blocks[block] = made
        self.to.values.update(zip(block.args, made.args, strict=True))
        for old, new in zip(block.args, made.args, strict=True):
            new.name_hint = old.name_hint

    def _normalize(self, entry: Block) -> None:
        """Narrow integers that a caller passes may have anything in their high bits."""
        for argument in entry.args:
            if isinstance(argument.type, IntegerType):
                self.to.values[argument] = self.to.narrow(self.to.values[argument], argument.type)

    def _operation(self, op: Operation) -> None:
        to = self.to
        to.location = op.location
        lower = LOWERINGS.get(type(op))
        if lower is None:
            self.conversion.diagnostics.error(op, "there is no conversion to the virtual machine")
            self._give_up(op)
            return
        self._check_parts(op)
        try:
            found = lower(to, op, [to.values[operand] for operand in op.operands])
        except Unsupported as problem:
            self.conversion.diagnostics.error(op, str(problem))
            self._give_up(op)
            return
        results = [found] if isinstance(found, SSAValue) else list(found or ())
        for old, new in zip(op.results, results, strict=True):
            to.values[old] = new
            if new.name_hint is None:
                new.name_hint = old.name_hint

    def _give_up(self, op: Operation) -> None:
        """Stand-ins for results, so that the rest can be looked at."""
        for result in op.results:
            try:
                type_ = convert_type(result.type)
            except Unsupported:
                type_ = result.type
            self.to.values[result] = Block(arg_types=[type_]).args[0]

    def _check_parts(self, op: Operation) -> None:
        if isinstance(op, _TAKES_PARTS):
            return
        for operand in op.operands:
            if operand in self.to.spans:
                self.conversion.diagnostics.error(
                    op, "a part of a buffer (util.buffer.subspan) cannot leave the function that makes it"
                )


_TAKES_PARTS = (
    util.BufferSubspanOp, util.BufferSliceOp, util.BufferSizeOp, util.BufferCopyOp, util.BufferCompareOp,
    util.BufferHashOp, util.BufferFillOp, util.BufferLoadOp, util.BufferStoreOp, util.BufferDeallocOp,
    hal_inline.BufferAllocateInitializedOp, hal_inline.BufferWrapOp,
    hal_loader.ExecutableDispatchOp, hal_loader.ExecutableLoadOp,
)  # fmt: skip
"""Operations whose lowering knows of parts of buffers."""


# Calls and control flow.


@lowers(util.CallOp, func.CallOp)
def call(to: Lowering, op: util.CallOp | func.CallOp, operands: Sequence[SSAValue]) -> Sequence[SSAValue]:
    types = [convert_type(type_) for type_ in op.result_types]
    made = vm_control.CallOp(op.callee.string_value(), operands, types)
    to.insert(made)
    return made.results


@lowers(util.ReturnOp, func.ReturnOp)
def return_(to: Lowering, op: Operation, operands: Sequence[SSAValue]) -> None:
    to.insert(vm_control.ReturnOp(operands))


@lowers(cf.BranchOp)
def branch(to: Lowering, op: cf.BranchOp, operands: Sequence[SSAValue]) -> None:
    to.insert(vm_control.BranchOp(to.blocks[op.successor], operands))


@lowers(cf.ConditionalBranchOp)
def conditional_branch(to: Lowering, op: cf.ConditionalBranchOp, operands: Sequence[SSAValue]) -> None:
    condition, *values = operands
    count = len(op.then_arguments)
    to.insert(
        vm_control.CondBranchOp(
            condition, to.blocks[op.then_block], values[:count], to.blocks[op.else_block], values[count:]
        )
    )


@lowers(cf.SwitchOp)
def switch(to: Lowering, op: cf.SwitchOp, operands: Sequence[SSAValue]) -> None:
    """A table where the cases lie close together, else a comparison and a branch for each."""
    values = dict(zip(op.operands, operands, strict=True))
    numbers = [int(number) for number in op.case_values.get_values()] if op.case_values is not None else []
    targets = [
        (to.blocks[dest], [values[value] for value in given])
        for dest, given in zip(op.case_blocks, op.case_operand, strict=True)
    ]
    default = to.blocks[op.default_block], [values[value] for value in op.default_operands]
    cases: dict[int, vm_control.Target] = {}
    for number, target in zip(numbers, targets, strict=True):
        cases.setdefault(number, target)
    if len(cases) >= FEWEST_OF_A_TABLE and max(cases) - min(cases) < MOST_HOLES * len(cases):
        _table(to, operands[0], cases, default)
    else:
        _comparisons(to, operands[0], cases, default)


FEWEST_OF_A_TABLE, MOST_HOLES = 3, 3
"""Cases from which on a table is made, if it has at most so many entries a case."""


def _table(
    to: Lowering, flag: SSAValue, cases: dict[int, vm_control.Target], default: vm_control.Target
) -> None:
    """Numbers are counted from the least case on; others are out of the table, without sign, where they wrap too."""
    first, count = min(cases), max(cases) - min(cases) + 1
    name = str(flag.type)
    index = to.emit(f"sub.{name}", flag, to.constant(flag.type, first)) if first else flag
    if name == "i64":
        index = to.emit("trunc.i64.i32", to.emit("min.i64.u", index, to.i64(count)))
    entries = [cases.get(first + number, default) for number in range(count)]
    to.insert(vm_control.BranchTableOp(index, default, entries))


def _comparisons(
    to: Lowering, flag: SSAValue, cases: dict[int, vm_control.Target], default: vm_control.Target
) -> None:
    name = str(flag.type)
    for number, (dest, given) in cases.items():
        here = to.emit(f"cmp.eq.{name}", flag, to.constant(flag.type, number))
        other = _new_block(to)
        to.insert(vm_control.CondBranchOp(here, dest, given, other, []))
        to.block = other
    to.insert(vm_control.BranchOp(*default))


def _new_block(to: Lowering) -> Block:
    made = Block()
    region = to.block.parent
    assert region is not None
    region.insert_block_after(made, to.block)
    return made


@lowers(util.StatusCheckOkOp)
def check_ok(to: Lowering, op: util.StatusCheckOkOp, operands: Sequence[SSAValue]) -> None:
    (status,) = operands
    message = op.message.data if op.message is not None else ""
    _fail_if(to, status, status, message)


@lowers(cf.AssertOp)
def assert_(to: Lowering, op: cf.AssertOp, operands: Sequence[SSAValue]) -> None:
    _fail_if(to, to.not_(operands[0]), to.i32(STATUS_FAILED_PRECONDITION), op.msg.data)


STATUS_FAILED_PRECONDITION = 9


def _fail_if(to: Lowering, condition: SSAValue, status: SSAValue, message: str) -> None:
    constant = known(condition)
    if constant == 0:
        return
    if constant is not None:
        to.insert(vm_control.FailOp(status, message))
        to.block = Block()  # what follows is not reached
        return
    further = _new_block(to)
    failing = _new_block(to)
    to.insert(vm_control.CondBranchOp(condition, failing, [], further, []))
    to.block = failing
    to.insert(vm_control.FailOp(status, message))
    to.block = further


@lowers(util.UnreachableOp)
def unreachable(to: Lowering, op: util.UnreachableOp, operands: Sequence[SSAValue]) -> None:
    message = op.message.data if op.message is not None else "unreachable location reached"
    to.insert(vm_control.FailOp(to.i32(STATUS_UNAVAILABLE), message))
