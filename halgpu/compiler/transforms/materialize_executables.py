"""Turns ``hal.executable`` into a global, and an initializer that loads the first binary which the runtime supports.

Facts: compiler/src/iree/compiler/Modules/HAL/Loader/Transforms/MaterializeExecutables.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from xdsl.builder import Builder
from xdsl.context import Context
from xdsl.dialects import arith, cf
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, StringAttr
from xdsl.ir import Block, Operation, Region
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint

from halgpu.compiler.dialects import hal, hal_loader, util
from halgpu.compiler.mlir import Diagnostics, erase
from halgpu.compiler.transforms.symbols import table

UNAVAILABLE: Final = 14
MESSAGE: Final = "none of the executable binaries in the module are supported by the runtime"
ALIGNMENT: Final = 64
"""Of kernels' bytes, as iree-compile aligns them."""


@dataclass(frozen=True)
class MaterializeExecutablesPass(ModulePass):
    """Load executables when the program is loaded."""

    name = "materialize-executables"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        diagnostics = Diagnostics()
        symbols = table(op)
        for lookup in [found for found in op.walk() if isinstance(found, hal_loader.ExecutableLookupOp)]:
            name = lookup.executable.string_value()
            if not isinstance(symbols.get(name), hal.ExecutableOp):
                diagnostics.error(
                    lookup,
                    f"there is no executable @{name}: --kernels {name}=FILE makes one of hand-written kernels",
                )
                continue
            _replace_lookup(lookup, name)
        for executable in [found for found in op.body.block.ops if isinstance(found, hal.ExecutableOp)]:
            for inner in executable.body.block.ops:
                if not isinstance(inner, hal.ExecutableBinaryOp | hal.ExecutableEndOp):
                    diagnostics.error(inner, "expected compiled kernels, hal.executable.binary")
            _materialize(executable)
        diagnostics.check()


def _replace_lookup(lookup: hal_loader.ExecutableLookupOp, name: str) -> None:
    load = util.GlobalLoadOp(name, hal.ExecutableType())
    load.location = lookup.location
    assert lookup.parent is not None
    lookup.parent.insert_op_before(load, lookup)
    lookup.result.replace_all_uses_with(load.result)
    erase(lookup)


def _materialize(executable: hal.ExecutableOp) -> None:
    name = executable.sym_name.data
    variable = util.GlobalOp(name, hal.ExecutableType())
    initializer = util.InitializerOp(_loader(executable, name))
    block = executable.parent
    assert block is not None
    block.insert_ops_before([variable, initializer], executable)
    for op in (variable, initializer, *initializer.walk()):
        op.location = executable.location
    erase(executable)


def _loader(executable: hal.ExecutableOp, name: str) -> Region:
    """A block that asks for each format, one that loads it, one that stores what was loaded, one that fails."""
    done = Block(arg_types=[hal.ExecutableType()])
    done.add_ops([util.GlobalStoreOp(done.args[0], name), util.ReturnOp()])
    failed = Block()
    status = arith.ConstantOp(IntegerAttr(UNAVAILABLE, 32))
    check = util.StatusCheckOkOp.build(operands=[status.result], properties={"message": StringAttr(MESSAGE)})
    failed.add_ops([status, check, util.ReturnOp()])
    asks = [Block() for _ in executable.binaries] + [failed]
    blocks: list[Block] = []
    for number, binary in enumerate(executable.binaries):
        load = Block()
        _fill_load(load, binary, done)
        build = Builder(InsertPoint.at_end(asks[number]))
        supported = build.insert(hal_loader.ExecutableQuerySupportOp(binary.format.data)).supported
        build.insert(cf.ConditionalBranchOp(supported, load, [], asks[number + 1], []))
        blocks += [asks[number], load]
    return Region([*blocks, failed, done])


def _fill_load(block: Block, binary: hal.ExecutableBinaryOp, done: Block) -> None:
    build = Builder(InsertPoint.at_end(block))
    data = build.insert(util.BufferConstantOp(binary.sym_name.data, binary.data, ALIGNMENT))
    loaded = build.insert(hal_loader.ExecutableLoadOp(binary.format.data, data.result))
    end: Operation = cf.BranchOp(done, loaded.result)
    build.insert(end)
