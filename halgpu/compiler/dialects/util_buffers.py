"""Byte buffers of ``util``. Facts: compiler/src/iree/compiler/Dialect/Util/IR/UtilOps.td, OpGroupBufferOps."""

from __future__ import annotations

from xdsl.dialects.builtin import I1, AnyFloatConstr, IndexType, IntegerAttr, IntegerType, StringAttr, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AnyOf,
    BaseAttr,
    IRDLOperation,
    eq,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import MemoryAllocEffect, MemoryReadEffect, MemoryWriteEffect, Pure

from halgpu.compiler.dialects import formats
from halgpu.compiler.dialects.folds import FoldsBuffers
from halgpu.compiler.dialects.util_attrs import BufferType

INDEX = eq(IndexType())
BUFFER = eq(BufferType())
PRIMITIVE = AnyOf((BaseAttr(IntegerType), BaseAttr(IndexType), AnyFloatConstr))
SIZED = (formats.SizeAwareType,)
SIZED_ALIGNED = (formats.SizeAwareType, formats.Alignment)


@irdl_op_definition
class BufferConstantOp(IRDLOperation):
    """Bytes that the program holds."""

    name = "util.buffer.constant"
    buffer_name = opt_prop_def(StringAttr, prop_name="name")
    value = prop_def(Attribute)
    alignment = opt_prop_def(IntegerAttr.constr(IndexType()))
    mime_type = opt_prop_def(StringAttr)
    result = result_def(BUFFER)
    assembly_format = "($name^)? custom<Data>($alignment, $mime_type) attr-dict `:` type($result) `=` $value"
    custom_directives = (formats.Data,)
    traits = traits_def(Pure())

    def __init__(self, name: str | None, value: Attribute, alignment: int | None = None) -> None:
        super().__init__(
            result_types=[BufferType()],
            properties={
                "name": StringAttr(name) if name is not None else None,
                "value": value,
                "alignment": IntegerAttr.from_index_int_value(alignment) if alignment else None,
            },
        )


@irdl_op_definition
class BufferAllocOp(IRDLOperation):
    """A new buffer of undefined contents."""

    name = "util.buffer.alloc"
    storage_size = operand_def(INDEX)
    alignment = opt_prop_def(IntegerAttr.constr(IndexType()))
    result = result_def(BUFFER)
    assembly_format = (
        "`uninitialized` custom<Alignment>($alignment) attr-dict `:` "
        "custom<SizeAwareType>(type($result), $storage_size)"
    )
    custom_directives = SIZED_ALIGNED
    traits = traits_def(MemoryAllocEffect())


@irdl_op_definition
class BufferDeallocOp(IRDLOperation):
    """Says that a buffer's contents are not needed any more."""

    name = "util.buffer.dealloc"
    operand = operand_def(BUFFER)
    operand_size = operand_def(INDEX)
    assembly_format = "$operand `:` type($operand) `{` $operand_size `}` attr-dict-with-keyword"


@irdl_op_definition
class BufferSliceOp(IRDLOperation):
    """A copy of a part of a buffer."""

    name = "util.buffer.slice"
    source = operand_def(BUFFER)
    source_size = operand_def(INDEX)
    source_offset = operand_def(INDEX)
    result_size = operand_def(INDEX)
    alignment = opt_prop_def(IntegerAttr.constr(IndexType()))
    result = result_def(BUFFER)
    assembly_format = (
        "$source `[` $source_offset `]` custom<Alignment>($alignment) attr-dict `:` "
        "custom<SizeAwareType>(type($source), $source_size) `->` "
        "custom<SizeAwareType>(type($result), $result_size)"
    )
    custom_directives = SIZED_ALIGNED
    traits = traits_def(MemoryAllocEffect(), MemoryReadEffect())


@irdl_op_definition
class BufferSubspanOp(IRDLOperation):
    """A part of a buffer, which shares its bytes."""

    name = "util.buffer.subspan"
    source = operand_def(BUFFER)
    source_size = operand_def(INDEX)
    source_offset = operand_def(INDEX)
    result_size = operand_def(INDEX)
    result = result_def(BUFFER)
    assembly_format = (
        "$source `[` $source_offset `]` `:` custom<SizeAwareType>(type($source), $source_size) `->` "
        "custom<SizeAwareType>(type($result), $result_size) attr-dict-with-keyword"
    )
    custom_directives = SIZED
    traits = traits_def(Pure())


@irdl_op_definition
class BufferSizeOp(IRDLOperation):
    """The length of a buffer in bytes."""

    name = "util.buffer.size"
    operand = operand_def(BUFFER)
    result = result_def(INDEX)
    assembly_format = "$operand `:` type($operand) attr-dict-with-keyword"
    traits = traits_def(Pure(), FoldsBuffers())

    def __init__(self, operand: SSAValue) -> None:
        super().__init__(operands=[operand], result_types=[IndexType()])


@irdl_op_definition
class BufferCopyOp(IRDLOperation):
    """Copies bytes from a buffer to another."""

    name = "util.buffer.copy"
    source = operand_def(BUFFER)
    source_size = operand_def(INDEX)
    source_offset = operand_def(INDEX)
    target = operand_def(BUFFER)
    target_size = operand_def(INDEX)
    target_offset = operand_def(INDEX)
    length = operand_def(INDEX)
    assembly_format = (
        "$source `[` $source_offset `]` `,` $target `[` $target_offset `]` `,` $length `:` "
        "custom<SizeAwareType>(type($source), $source_size) `->` "
        "custom<SizeAwareType>(type($target), $target_size) attr-dict-with-keyword"
    )
    custom_directives = SIZED
    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())


@irdl_op_definition
class BufferCompareOp(IRDLOperation):
    """Whether parts of two buffers hold the same bytes."""

    name = "util.buffer.compare"
    lhs = operand_def(BUFFER)
    lhs_size = operand_def(INDEX)
    lhs_offset = operand_def(INDEX)
    rhs = operand_def(BUFFER)
    rhs_size = operand_def(INDEX)
    rhs_offset = operand_def(INDEX)
    length = operand_def(INDEX)
    result = result_def(I1)
    assembly_format = (
        "$lhs `[` $lhs_offset `]` `,` $rhs `[` $rhs_offset `]` `,` $length `:` "
        "custom<SizeAwareType>(type($lhs), $lhs_size) `,` "
        "custom<SizeAwareType>(type($rhs), $rhs_size) attr-dict-with-keyword"
    )
    custom_directives = SIZED
    traits = traits_def(MemoryReadEffect())


@irdl_op_definition
class BufferFillOp(IRDLOperation):
    """Fills bytes of a buffer with a value."""

    name = "util.buffer.fill"
    pattern = operand_def(PRIMITIVE)
    target = operand_def(BUFFER)
    target_size = operand_def(INDEX)
    target_offset = operand_def(INDEX)
    length = operand_def(INDEX)
    assembly_format = (
        "$pattern `,` $target `[` $target_offset `for` $length `]` `:` type($pattern) `->` "
        "custom<SizeAwareType>(type($target), $target_size) attr-dict-with-keyword"
    )
    custom_directives = SIZED
    traits = traits_def(MemoryWriteEffect())


@irdl_op_definition
class BufferLoadOp(IRDLOperation):
    """A value at a byte offset."""

    name = "util.buffer.load"
    source = operand_def(BUFFER)
    source_size = operand_def(INDEX)
    source_offset = operand_def(INDEX)
    length = operand_def(INDEX)
    result = result_def(PRIMITIVE)
    assembly_format = (
        "$source `[` $source_offset `for` $length `]` `:` custom<SizeAwareType>(type($source), $source_size) "
        "`->` type($result) attr-dict-with-keyword"
    )
    custom_directives = SIZED
    traits = traits_def(MemoryReadEffect())


@irdl_op_definition
class BufferStoreOp(IRDLOperation):
    """Stores a value at a byte offset."""

    name = "util.buffer.store"
    source = operand_def(PRIMITIVE)
    target = operand_def(BUFFER)
    target_size = operand_def(INDEX)
    target_offset = operand_def(INDEX)
    length = operand_def(INDEX)
    assembly_format = (
        "$source `,` $target `[` $target_offset `for` $length `]` `:` type($source) `->` "
        "custom<SizeAwareType>(type($target), $target_size) attr-dict-with-keyword"
    )
    custom_directives = SIZED
    traits = traits_def(MemoryWriteEffect())


@irdl_op_definition
class BufferHashOp(IRDLOperation):
    """A hash of bytes of a buffer."""

    name = "util.buffer.hash"
    source = operand_def(BUFFER)
    source_size = operand_def(INDEX)
    source_offset = operand_def(INDEX)
    length = operand_def(INDEX)
    result = result_def(eq(i64))
    assembly_format = (
        "$source `[` $source_offset `for` $length `]` `:` custom<SizeAwareType>(type($source), $source_size) "
        "`->` type($result) attr-dict-with-keyword"
    )
    custom_directives = SIZED
    traits = traits_def(MemoryReadEffect())
