"""IREE's ``hal_inline`` dialect: buffers and buffer views of the device that a program runs on.

Facts: compiler/src/iree/compiler/Modules/HAL/Inline/IR/HALInlineOps.{td,cpp}. The first operation's names are those
of the arguments of the imports in Modules/HAL/Inline/hal_inline.imports.mlir.
"""

from __future__ import annotations

from xdsl.dialects.builtin import I1, IndexType, IntegerAttr, StringAttr, i32
from xdsl.ir import Attribute, Dialect
from xdsl.irdl import (
    IRDLOperation,
    eq,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.traits import MemoryAllocEffect, Pure
from xdsl.utils.exceptions import VerifyException

from halgpu.compiler.dialects import formats, hal, util_attrs
from halgpu.compiler.dialects.folds import FoldsBuffers
from halgpu.compiler.dialects.inlining import AllOpsInline

INDEX = eq(IndexType())
I32 = eq(i32)
BUFFER = eq(hal.BufferType())
VIEW = eq(hal.BufferViewType())
STORAGE = eq(util_attrs.BufferType())


@irdl_op_definition
class BufferAllocateOp(IRDLOperation):
    """A new buffer, and its bytes."""

    name = "hal_inline.buffer.allocate"
    minimum_alignment = operand_def(INDEX)
    allocation_size = operand_def(INDEX)
    result = result_def(BUFFER)
    storage = result_def(STORAGE)
    assembly_format = (
        "`alignment` `(` $minimum_alignment `)` `:` custom<SizeAwareType>(type($result), $allocation_size) `in` "
        "type($storage) attr-dict-with-keyword"
    )
    custom_directives = (formats.SizeAwareType,)
    # Two allocations are never one: removed when unused, not merged.
    traits = traits_def(MemoryAllocEffect())


@irdl_op_definition
class BufferAllocateInitializedOp(IRDLOperation):
    """A new buffer that starts as a copy of bytes, and its own bytes."""

    name = "hal_inline.buffer.allocate.initialized"
    minimum_alignment = operand_def(INDEX)
    source = operand_def(STORAGE)
    offset = operand_def(INDEX)
    length = operand_def(INDEX)
    result = result_def(BUFFER)
    storage = result_def(STORAGE)
    assembly_format = (
        "`source` `(` $source `:` type($source) `)` `` `[` $offset `,` $length `]` "
        "`alignment` `(` $minimum_alignment `)` `:` custom<RefSizedType>(type($result), ref($length)) `in` "
        "type($storage) attr-dict-with-keyword"
    )
    custom_directives = (formats.RefSizedType,)
    traits = traits_def(MemoryAllocEffect())


@irdl_op_definition
class BufferWrapOp(IRDLOperation):
    """A buffer over bytes that are there."""

    name = "hal_inline.buffer.wrap"
    source = operand_def(STORAGE)
    offset = operand_def(INDEX)
    length = operand_def(INDEX)
    result = result_def(BUFFER)
    assembly_format = (
        "`source` `(` $source `:` type($source) `)` `` `[` $offset `,` $length `]` `:` type($result) "
        "attr-dict-with-keyword"
    )


@irdl_op_definition
class BufferSubspanOp(IRDLOperation):
    """A part of a buffer, which shares its bytes."""

    name = "hal_inline.buffer.subspan"
    source_buffer = operand_def(BUFFER)
    source_offset = operand_def(INDEX)
    length = operand_def(INDEX)
    result = result_def(BUFFER)
    assembly_format = (
        "`<` $source_buffer `:` type($source_buffer) `>` `` `[` $source_offset `,` $length `]` "
        "`:` type($result) attr-dict-with-keyword"
    )
    traits = traits_def(Pure())


@irdl_op_definition
class BufferLengthOp(IRDLOperation):
    """The length of a buffer in bytes."""

    name = "hal_inline.buffer.length"
    buffer = operand_def(BUFFER)
    result = result_def(INDEX)
    assembly_format = "`<` $buffer `:` type($buffer) `>` `:` type($result) attr-dict-with-keyword"
    traits = traits_def(Pure(), FoldsBuffers())


@irdl_op_definition
class BufferStorageOp(IRDLOperation):
    """The bytes of a buffer."""

    name = "hal_inline.buffer.storage"
    buffer = operand_def(BUFFER)
    storage = result_def(STORAGE)
    assembly_format = "`<` $buffer `:` type($buffer) `>` `:` type($storage) attr-dict-with-keyword"
    traits = traits_def(Pure(), FoldsBuffers())


@irdl_op_definition
class BufferViewCreateOp(IRDLOperation):
    """A view of a part of a buffer."""

    name = "hal_inline.buffer_view.create"
    source_buffer = operand_def(BUFFER)
    source_offset = operand_def(INDEX)
    source_length = operand_def(INDEX)
    element_type = operand_def(I32)
    encoding_type = operand_def(I32)
    shape = var_operand_def(INDEX)
    result = result_def(VIEW)
    assembly_format = (
        "`buffer` `(` $source_buffer `:` type($source_buffer) `)` `` `[` $source_offset `,` $source_length `]` "
        "`shape` `(` `[` $shape `]` `)` `type` `(` $element_type `)` `encoding` `(` $encoding_type `)` "
        "`:` type($result) attr-dict-with-keyword"
    )
    traits = traits_def(Pure(), FoldsBuffers())


@irdl_op_definition
class BufferViewAssertOp(IRDLOperation):
    """Fails if a view has not that element type, encoding and shape."""

    name = "hal_inline.buffer_view.assert"
    buffer_view = operand_def(VIEW)
    message = prop_def(StringAttr)
    element_type = operand_def(I32)
    encoding_type = operand_def(I32)
    shape = var_operand_def(INDEX)
    assembly_format = (
        "`<` $buffer_view `:` type($buffer_view) `>` `message` `(` $message `)` `shape` `(` `[` $shape `]` `)` "
        "`type` `(` $element_type `)` `encoding` `(` $encoding_type `)` attr-dict-with-keyword"
    )


@irdl_op_definition
class BufferViewBufferOp(IRDLOperation):
    """The buffer behind a view."""

    name = "hal_inline.buffer_view.buffer"
    buffer_view = operand_def(VIEW)
    result = result_def(BUFFER)
    assembly_format = "`<` $buffer_view `:` type($buffer_view) `>` `:` type($result) attr-dict-with-keyword"
    traits = traits_def(Pure(), FoldsBuffers())


@irdl_op_definition
class BufferViewElementTypeOp(IRDLOperation):
    """The HAL's number of a view's element type."""

    name = "hal_inline.buffer_view.element_type"
    buffer_view = operand_def(VIEW)
    result = result_def(I32)
    assembly_format = "`<` $buffer_view `:` type($buffer_view) `>` `:` type($result) attr-dict-with-keyword"
    traits = traits_def(Pure())


@irdl_op_definition
class BufferViewEncodingTypeOp(IRDLOperation):
    """The HAL's number of a view's encoding."""

    name = "hal_inline.buffer_view.encoding_type"
    buffer_view = operand_def(VIEW)
    result = result_def(I32)
    assembly_format = "`<` $buffer_view `:` type($buffer_view) `>` `:` type($result) attr-dict-with-keyword"
    traits = traits_def(Pure())


@irdl_op_definition
class BufferViewRankOp(IRDLOperation):
    """The number of a view's dimensions."""

    name = "hal_inline.buffer_view.rank"
    buffer_view = operand_def(VIEW)
    result = result_def(INDEX)
    assembly_format = "`<` $buffer_view `:` type($buffer_view) `>` `:` type($result) attr-dict-with-keyword"
    traits = traits_def(Pure())


@irdl_op_definition
class BufferViewDimOp(IRDLOperation):
    """The size of one of a view's dimensions."""

    name = "hal_inline.buffer_view.dim"
    buffer_view = operand_def(VIEW)
    index = prop_def(IntegerAttr.constr(IndexType()))
    result = result_def(INDEX)
    assembly_format = (
        "`<` $buffer_view `:` type($buffer_view) `>` `` `[` $index `]` `:` type($result) "
        "attr-dict-with-keyword"
    )
    traits = traits_def(Pure())


@irdl_op_definition
class BufferViewTraceOp(IRDLOperation):
    """Prints views when a program runs."""

    name = "hal_inline.buffer_view.trace"
    key = prop_def(StringAttr)
    buffer_views = var_operand_def(VIEW)
    assembly_format = "$key `=` $buffer_views `:` type($buffer_views) attr-dict-with-keyword"


@irdl_op_definition
class DeviceQueryOp(IRDLOperation):
    """A number that the device has for a key, and whether it has any."""

    name = "hal_inline.device.query"
    category = prop_def(StringAttr)
    key = prop_def(StringAttr)
    default_value = opt_prop_def(Attribute)
    ok = result_def(I1)
    value = result_def()
    assembly_format = (
        "`key` `(` $category `:` `` `:` $key `)` `:` type($ok) `,` type($value) (`=` $default_value^)? "
        "attr-dict-with-keyword"
    )
    traits = traits_def(Pure())

    def verify_(self) -> None:
        if self.default_value is None:
            return
        found = formats.attribute_type(self.default_value)
        if found is not None and found != self.value.type:
            raise VerifyException(f"the default value is {found}, the result {self.value.type}")


HALInline = Dialect(
    "hal_inline",
    [
        BufferAllocateOp,
        BufferAllocateInitializedOp,
        BufferWrapOp,
        BufferSubspanOp,
        BufferLengthOp,
        BufferStorageOp,
        BufferViewCreateOp,
        BufferViewAssertOp,
        BufferViewBufferOp,
        BufferViewElementTypeOp,
        BufferViewEncodingTypeOp,
        BufferViewRankOp,
        BufferViewDimOp,
        BufferViewTraceOp,
        DeviceQueryOp,
    ],
    [],
    [AllOpsInline()],
)
