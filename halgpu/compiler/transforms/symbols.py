"""What a module's symbols are, who uses them, and removal of those that nobody does."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, ModuleOp, StringAttr, SymbolRefAttr
from xdsl.ir import Attribute, Operation
from xdsl.passes import ModulePass
from xdsl.traits import SymbolTable

from halgpu.compiler.dialects import hal, util
from halgpu.compiler.mlir import Diagnostics, erase

Function: TypeAlias = util.FuncOp | func.FuncOp
Call: TypeAlias = util.CallOp | func.CallOp
Access: TypeAlias = util.GlobalLoadOp | util.GlobalStoreOp


def symbol(op: Operation) -> str | None:
    """The name that an operation defines."""
    found = op.properties.get("sym_name")
    return found.data if isinstance(found, StringAttr) else None


def table(module: ModuleOp) -> dict[str, Operation]:
    """The module's operations by the names that they define."""
    return {name: op for op in module.body.block.ops if (name := symbol(op)) is not None}


def is_public(op: Operation) -> bool:
    """Whether others than the module may use what an operation defines."""
    found = op.properties.get("sym_visibility")
    return not isinstance(found, StringAttr) or found.data == "public"


def references(op: Operation) -> Iterator[str]:
    """Names that an operation and those in it refer to."""
    for inner in op.walk():
        yield from own_references(inner)


def own_references(op: Operation) -> Iterator[str]:
    """Names that an operation itself refers to."""
    for value in (*op.properties.values(), *op.attributes.values()):
        yield from _references(value)


def _references(value: Attribute) -> Iterator[str]:
    if isinstance(value, SymbolRefAttr):
        yield value.root_reference.data
    elif isinstance(value, ArrayAttr):
        for part in value.data:
            yield from _references(part)
    elif isinstance(value, DictionaryAttr):
        for part in value.data.values():
            yield from _references(part)


def check_symbols(module: ModuleOp, diagnostics: Diagnostics, lost: Collection[str] = ()) -> None:
    """Check that calls and accesses name what is there and is of their type, and that no name is there twice.

    Nothing is said of names that are ``lost``.
    """
    seen: dict[str, Operation] = {}
    tables = [op for op in module.walk() if op.has_trait(SymbolTable, value_if_unregistered=False)]
    for scope in tables:
        own: dict[str, Operation] = {}
        for op in scope.regions[0].block.ops:
            name = symbol(op)
            if name is not None and own.setdefault(name, op) is not op:
                diagnostics.error(op, f"@{name} is there already")
        seen = seen or own
    for op in module.walk():
        if lost and not set(own_references(op)).isdisjoint(lost):
            continue
        _check(op, seen, diagnostics)


def _check(op: Operation, symbols: dict[str, Operation], diagnostics: Diagnostics) -> None:
    if isinstance(op, Access):
        found = symbols.get(op.symbol)
        value = op.result if isinstance(op, util.GlobalLoadOp) else op.value
        if not isinstance(found, util.GlobalOp):
            diagnostics.error(op, f"there is no global @{op.symbol}")
        elif found.type != value.type:
            diagnostics.error(op, f"@{op.symbol} is of type {found.type}, not {value.type}")
    elif isinstance(op, Call):
        name = op.callee.string_value()
        function = symbols.get(name)
        if not isinstance(function, Function):
            diagnostics.error(op, f"there is no function @{name}")
            return
        expected = function.function_type.inputs.data, function.function_type.outputs.data
        if (tuple(op.operand_types), tuple(op.result_types)) != expected:
            diagnostics.error(op, f"@{name} takes and gives other types: {function.function_type}")


@dataclass(frozen=True)
class SymbolDcePass(ModulePass):
    """Remove private functions, globals and executables that nothing refers to."""

    name = "symbol-dce"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        symbols = table(op)
        roots = [found for found in op.body.block.ops if not _may_go(found)]
        alive = set(roots)
        while roots:
            for name in references(roots.pop()):
                found = symbols.get(name)
                if found is not None and found not in alive:
                    alive.add(found)
                    roots.append(found)
        for found in list(op.body.block.ops):
            if found not in alive:
                erase(found, used=True)


def _may_go(op: Operation) -> bool:
    return isinstance(op, (util.FuncOp, func.FuncOp, util.GlobalOp, hal.ExecutableOp)) and not is_public(op)
