"""Removes globals that nothing reads, and puts constants in place of those that never change.

Facts: compiler/src/iree/compiler/Dialect/Util/Transforms/FoldGlobals.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, FloatAttr, IndexType, IntegerAttr, IntegerType, ModuleOp, UnitAttr
from xdsl.ir import Attribute, Operation
from xdsl.passes import ModulePass

from halgpu.compiler.dialects import util
from halgpu.compiler.mlir import erase
from halgpu.compiler.transforms.symbols import Call, is_public, own_references, table


@dataclass
class _Uses:
    loads: list[util.GlobalLoadOp] = field(default_factory=list)
    stores: list[util.GlobalStoreOp] = field(default_factory=list)
    others: bool = False


@dataclass(frozen=True)
class FoldGlobalsPass(ModulePass):
    """Fold and remove globals."""

    name = "fold-globals"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        uses = _collect(op)
        calls = any(isinstance(found, Call) for i in _initializers(op) for found in i.walk())
        for name, found in table(op).items():
            if isinstance(found, util.GlobalOp) and not is_public(found) and not uses[name].others:
                _fold(found, uses[name], calls)


def _initializers(module: ModuleOp) -> list[util.InitializerOp]:
    return [op for op in module.body.block.ops if isinstance(op, util.InitializerOp)]


def _collect(module: ModuleOp) -> dict[str, _Uses]:
    uses = {name: _Uses() for name in table(module)}
    for op in module.walk():
        if isinstance(op, util.GlobalLoadOp):
            uses[op.symbol].loads.append(op)
        elif isinstance(op, util.GlobalStoreOp):
            uses[op.symbol].stores.append(op)
        else:
            for name in own_references(op):
                if name in uses:
                    uses[name].others = True
    return uses


def _fold(op: util.GlobalOp, uses: _Uses, calls: bool) -> None:
    if not uses.loads:
        _erase([*uses.stores, op])
        return
    constant = _constant(op, uses, calls)
    if constant is not None:
        for load in uses.loads:
            _replace(load, constant)
        _erase([*uses.stores, op])
        return
    if all(isinstance(store.parent_op(), util.InitializerOp) for store in uses.stores):
        _make_immutable(op, uses.loads)


def _constant(op: util.GlobalOp, uses: _Uses, calls: bool) -> Attribute | None:
    """The value that a global has whenever it is read."""
    initial = op.initial_value
    if initial is None and not uses.stores:
        return _zero(op.type)
    if initial is not None and not isinstance(initial, IntegerAttr | FloatAttr):
        return None
    values = [_stored(store) for store in uses.stores] + ([initial] if initial is not None else [])
    if None in values or len(set(values)) != 1:
        return None
    if initial is None and not _set_before_read(uses, calls):
        return None
    return values[0]


def _set_before_read(uses: _Uses, calls: bool) -> bool:
    """Whether one initializer sets it for sure, and only functions read it."""
    (*_, store) = uses.stores
    initializer = store.parent_op()
    certain = isinstance(initializer, util.InitializerOp) and store.parent is initializer.body.blocks[0]
    return (
        certain
        and not calls
        and not any(isinstance(load.parent_op(), util.InitializerOp) for load in uses.loads)
    )


def _stored(store: util.GlobalStoreOp) -> Attribute | None:
    owner = store.value.owner
    return owner.value if isinstance(owner, arith.ConstantOp) else None


def _zero(type_: Attribute) -> Attribute | None:
    if isinstance(type_, IntegerType | IndexType):
        return IntegerAttr(0, type_)
    return FloatAttr(0.0, type_) if isinstance(type_, AnyFloat) else None


def _replace(load: util.GlobalLoadOp, value: Attribute) -> None:
    made = arith.ConstantOp(value)  # type: ignore[arg-type]
    made.location = load.location
    assert load.parent is not None
    load.parent.insert_op_before(made, load)
    load.result.replace_all_uses_with(made.result)
    _erase([load])


def _erase(ops: Sequence[Operation]) -> None:
    for op in ops:
        erase(op)


def _make_immutable(op: util.GlobalOp, loads: Sequence[util.GlobalLoadOp]) -> None:
    op.properties.pop("is_mutable", None)
    for load in loads:
        if not isinstance(load.parent_op(), util.InitializerOp):
            load.properties["is_immutable"] = UnitAttr()
