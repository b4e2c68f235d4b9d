"""IREE's ``hal_loader`` dialect: kernels that a program carries, loads and dispatches.

Facts: compiler/src/iree/compiler/Modules/HAL/Loader/IR/HALLoaderOps.{td,cpp}.
"""

from __future__ import annotations

from xdsl.dialects.builtin import (
    I1,
    FlatSymbolRefAttrConstr,
    IndexType,
    StringAttr,
    SymbolRefAttr,
    i1,
    i32,
    i64,
)
from xdsl.ir import Dialect, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    eq,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, Pure
from xdsl.utils.exceptions import VerifyException

from halgpu.compiler.dialects import formats, hal, util_attrs
from halgpu.compiler.dialects.folds import FoldsBuffers
from halgpu.compiler.dialects.inlining import AllOpsInline

INDEX = eq(IndexType())
I32 = eq(i32)
EXECUTABLE = eq(hal.ExecutableType())
STORAGE = eq(util_attrs.BufferType())


@irdl_op_definition
class ExecutableQuerySupportOp(IRDLOperation):
    """Whether the runtime can load a format of kernels."""

    name = "hal_loader.executable.query_support"
    executable_format = prop_def(StringAttr)
    supported = result_def(I1)
    assembly_format = "`format` `(` $executable_format `)` `:` type($supported) attr-dict-with-keyword"
    traits = traits_def(Pure())

    def __init__(self, format: str) -> None:
        super().__init__(result_types=[i1], properties={"executable_format": StringAttr(format)})


@irdl_op_definition
class ExecutableLoadOp(IRDLOperation):
    """Loads kernels."""

    name = "hal_loader.executable.load"
    format = prop_def(StringAttr)
    data = operand_def(STORAGE)
    constants = var_operand_def(I32)
    result = result_def(EXECUTABLE)
    assembly_format = (
        "`format` `(` $format `)` `data` `(` $data `)` (`constants` `(` `[` $constants^ `]` `)`)? "
        "`:` type($result) attr-dict-with-keyword"
    )
    # Read: one that is not used goes away, one that may fail does not move.
    traits = traits_def(MemoryReadEffect())

    def __init__(self, format: str, data: SSAValue) -> None:
        super().__init__(
            operands=[data, []],
            result_types=[hal.ExecutableType()],
            properties={"format": StringAttr(format)},
        )


@irdl_op_definition
class ExecutableLookupOp(IRDLOperation):
    """The kernels that a ``hal.executable`` of the module becomes."""

    name = "hal_loader.executable.lookup"
    executable = prop_def(FlatSymbolRefAttrConstr)
    result = result_def(EXECUTABLE)
    assembly_format = "`executable` `(` $executable `)` `:` type($result) attr-dict-with-keyword"
    traits = traits_def(Pure())


@irdl_op_definition
class ExecutableExportOrdinalOp(IRDLOperation):
    """The ordinal of a kernel, once it has one."""

    name = "hal_loader.executable.export.ordinal"
    entry_point = prop_def(SymbolRefAttr)
    result = result_def(INDEX)
    assembly_format = "`target` `(` $entry_point `)` `:` type($result) attr-dict-with-keyword"
    traits = traits_def(Pure())


@irdl_op_definition
class ExecutableLookupFunctionOp(IRDLOperation):
    """A kernel by its name; what comes before the last part of the symbol says where the compiler had it."""

    name = "hal_loader.executable.lookup.function"
    executable = operand_def(EXECUTABLE)
    entry_point = prop_def(SymbolRefAttr)
    result = result_def(eq(i64))
    assembly_format = (
        "`target` `(` $executable `:` type($executable) `)` `function` `(` $entry_point `)` "
        "`:` type($result) attr-dict-with-keyword"
    )
    traits = traits_def(Pure())


@irdl_op_definition
class ExecutableDispatchOp(IRDLOperation):
    """Runs a kernel over a grid of workgroups."""

    name = "hal_loader.executable.dispatch"
    executable = operand_def(EXECUTABLE)
    entry_point = operand_def(eq(i64))
    workgroup_x = operand_def(INDEX)
    workgroup_y = operand_def(INDEX)
    workgroup_z = operand_def(INDEX)
    constants = var_operand_def(I32)
    binding_buffers = var_operand_def(STORAGE)
    binding_offsets = var_operand_def(INDEX)
    binding_lengths = var_operand_def(INDEX)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "`executable` `(` $executable `:` type($executable) `)` `` `[` $entry_point `]` "
        "`workgroups` `(` `[` $workgroup_x `,` $workgroup_y `,` $workgroup_z `]` `)` "
        "(`constants` `(` `[` $constants^ `]` `)`)? "
        "`bindings` `(` `[` custom<DispatchBindings>($binding_buffers, type($binding_buffers), $binding_offsets, "
        "$binding_lengths) `]` `)` attr-dict-with-keyword"
    )
    custom_directives = (formats.DispatchBindings,)
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect(), FoldsBuffers())

    def verify_(self) -> None:
        sizes = {len(self.binding_buffers), len(self.binding_offsets), len(self.binding_lengths)}
        if len(sizes) > 1:
            raise VerifyException("there have to be as many offsets and lengths of bindings as buffers")


HALLoader = Dialect(
    "hal_loader",
    [
        ExecutableQuerySupportOp,
        ExecutableLoadOp,
        ExecutableLookupOp,
        ExecutableExportOrdinalOp,
        ExecutableLookupFunctionOp,
        ExecutableDispatchOp,
    ],
    [],
    [AllOpsInline()],
)
