"""``util`` as instructions.

Facts: compiler/src/iree/compiler/Dialect/VM/Conversion/UtilToVM. Buffers are read and written at a byte offset here, at
the index of an element there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdsl.dialects.builtin import AnyFloat, IndexType, IntegerAttr, IntegerType, SymbolRefAttr
from xdsl.ir import Attribute, SSAValue

from halgpu.compiler.dialects import util, vm_types
from halgpu.compiler.transforms.lower_arith import literal
from halgpu.compiler.transforms.lowering import (
    F32,
    F64,
    Lowering,
    Unsupported,
    bits,
    convert_type,
    known,
    lowers,
    suffix,
)

DATA_ALIGNMENT = 16
"""Of data that says none."""


# Values.


@lowers(util.NullOp)
def null(to: Lowering, op: util.NullOp, operands: Sequence[SSAValue]) -> SSAValue:
    type_ = convert_type(op.result.type)
    return to.null(type_) if vm_types.is_ref(type_) else to.constant(type_, 0)


@lowers(util.CastOp)
def cast(to: Lowering, op: util.CastOp, operands: Sequence[SSAValue]) -> SSAValue:
    target = convert_type(op.result.type)
    if operands[0].type != target:
        raise Unsupported(f"there is no cast from {op.operand.type} to {op.result.type}")
    return operands[0]


@lowers(util.CmpEQOp, util.CmpNEOp)
def compare(to: Lowering, op: Any, operands: Sequence[SSAValue]) -> SSAValue:
    verb = "eq" if isinstance(op, util.CmpEQOp) else "ne"
    name = suffix(operands[0].type)
    return to.emit(f"cmp.{verb}.{name}{'.o' if name in ('f32', 'f64') else ''}", *operands)


@lowers(util.RangeMinOp, util.RangeMaxOp)
def extreme(to: Lowering, op: Any, operands: Sequence[SSAValue]) -> SSAValue:
    """Without sign: ranges are of sizes and offsets. Of narrow integers too, sign-extended, which keeps any order."""
    verb = "min" if isinstance(op, util.RangeMinOp) else "max"
    if not operands:
        raise Unsupported("expected values")
    found = operands[0]
    for value in operands[1:]:
        found = to.emit(f"{verb}.{suffix(found.type)}.u", found, value)
    return found


@lowers(util.RangeExtentsOp)
def extents(to: Lowering, op: util.RangeExtentsOp, operands: Sequence[SSAValue]) -> Sequence[SSAValue]:
    if not op.offsets:
        raise Unsupported("expected ranges")
    type_ = op.first.type
    name = suffix(operands[0].type)
    one = to.constant(operands[0].type, 1)
    offsets, lengths = operands[: len(op.offsets)], operands[len(op.offsets) :]
    first, last = offsets[0], None
    for offset, length in zip(offsets, lengths, strict=True):
        end = to.narrow(to.emit(f"sub.{name}", to.emit(f"add.{name}", offset, length), one), type_)
        first = first if offset is offsets[0] else to.emit(f"min.{name}.u", first, offset)
        last = end if last is None else to.emit(f"max.{name}.u", last, end)
    assert last is not None
    return first, last


@lowers(util.AlignOp)
def align(to: Lowering, op: util.AlignOp, operands: Sequence[SSAValue]) -> SSAValue:
    """``(value + (alignment - 1)) & ~(alignment - 1)``."""
    value, alignment = operands
    name = suffix(value.type)
    mask = to.emit(f"sub.{name}", alignment, to.constant(value.type, 1))
    rounded = to.emit(f"and.{name}", to.emit(f"add.{name}", value, mask), to.emit(f"not.{name}", mask))
    return to.narrow(rounded, op.result.type)


@lowers(util.SizeOfOp)
def size_of(to: Lowering, op: util.SizeOfOp, operands: Sequence[SSAValue]) -> SSAValue:
    return to.i64(byte_width(op.sized_type))


@lowers(util.SwitchOp)
def switch(to: Lowering, op: util.SwitchOp, operands: Sequence[SSAValue]) -> SSAValue:
    index, found, *values = operands
    type_ = found.type
    for number, value in enumerate(values):
        here = to.emit("cmp.eq.i64", index, to.i64(number))
        found = to.emit(f"select.{suffix(type_)}", here, value, found, result=type_)
    return found


@lowers(util.OptimizationBarrierOp)
def barrier(to: Lowering, op: util.OptimizationBarrierOp, operands: Sequence[SSAValue]) -> Sequence[SSAValue]:
    return operands


@lowers(util.UnfoldableConstantOp)
def unfoldable(to: Lowering, op: util.UnfoldableConstantOp, operands: Sequence[SSAValue]) -> SSAValue:
    return literal(to, op.value, op.result.type)


# Globals.


@lowers(util.GlobalLoadOp)
def global_load(to: Lowering, op: util.GlobalLoadOp, operands: Sequence[SSAValue]) -> SSAValue:
    type_ = convert_type(op.result.type)
    symbol = SymbolRefAttr(op.symbol)
    return to.emit(f"global.load.{suffix(type_)}", result=type_, **{"global": symbol})


@lowers(util.GlobalStoreOp)
def global_store(to: Lowering, op: util.GlobalStoreOp, operands: Sequence[SSAValue]) -> None:
    (value,) = operands
    to.emit(f"global.store.{suffix(value.type)}", value, **{"global": SymbolRefAttr(op.symbol)})


# Buffers.


@lowers(util.BufferConstantOp)
def buffer_constant(to: Lowering, op: util.BufferConstantOp, operands: Sequence[SSAValue]) -> SSAValue:
    alignment = op.alignment.value.data if isinstance(op.alignment, IntegerAttr) else DATA_ALIGNMENT
    hint = op.buffer_name.data if op.buffer_name is not None else "_const"
    return to.data(op.value, hint, int(alignment))


@lowers(util.BufferAllocOp)
def buffer_alloc(to: Lowering, op: util.BufferAllocOp, operands: Sequence[SSAValue]) -> SSAValue:
    return to.emit("buffer.alloc", operands[0], _alignment(to, op.alignment))


@lowers(util.BufferDeallocOp)
def buffer_dealloc(to: Lowering, op: util.BufferDeallocOp, operands: Sequence[SSAValue]) -> None:
    """Nothing: the reference's end frees it."""


@lowers(util.BufferSliceOp)
def buffer_slice(to: Lowering, op: util.BufferSliceOp, operands: Sequence[SSAValue]) -> SSAValue:
    source, offset = span(to, op.source, operands[0], operands[2])
    return to.emit("buffer.clone", source, offset, operands[3], _alignment(to, op.alignment))


@lowers(util.BufferSubspanOp)
def buffer_subspan(to: Lowering, op: util.BufferSubspanOp, operands: Sequence[SSAValue]) -> SSAValue:
    """No instruction: who reads or writes a part does so in the whole, further on."""
    source, offset = span(to, op.source, operands[0], operands[2])
    to.spans[op.result] = source, offset
    return source


def span(to: Lowering, buffer: SSAValue, converted: SSAValue, offset: SSAValue) -> tuple[SSAValue, SSAValue]:
    """A buffer that may be a part of another, and an offset in it, as the whole and the offset in that."""
    if buffer not in to.spans:
        return converted, offset
    whole, start = to.spans[buffer]
    return whole, add(to, start, offset)


def add(to: Lowering, left: SSAValue, right: SSAValue) -> SSAValue:
    """The sum of two i64."""
    values = [known(value) for value in (left, right)]
    if values[0] == 0:
        return right
    if values[1] == 0:
        return left
    if values[0] is not None and values[1] is not None:
        return to.i64(values[0] + values[1])
    return to.emit("add.i64", left, right)


@lowers(util.BufferSizeOp)
def buffer_size(to: Lowering, op: util.BufferSizeOp, operands: Sequence[SSAValue]) -> SSAValue:
    subspan = op.operand.owner
    if isinstance(subspan, util.BufferSubspanOp):
        return to.values[subspan.result_size]
    if op.operand in to.spans:
        raise Unsupported("the size of this part of a buffer is not known here")
    return to.emit("buffer.length", operands[0])


@lowers(util.BufferCopyOp)
def buffer_copy(to: Lowering, op: util.BufferCopyOp, operands: Sequence[SSAValue]) -> None:
    source, source_offset = span(to, op.source, operands[0], operands[2])
    target, target_offset = span(to, op.target, operands[3], operands[5])
    to.emit("buffer.copy", source, source_offset, target, target_offset, operands[6])


@lowers(util.BufferCompareOp)
def buffer_compare(to: Lowering, op: util.BufferCompareOp, operands: Sequence[SSAValue]) -> SSAValue:
    left, left_offset = span(to, op.lhs, operands[0], operands[2])
    right, right_offset = span(to, op.rhs, operands[3], operands[5])
    return to.emit("buffer.compare", left, left_offset, right, right_offset, operands[6])


@lowers(util.BufferHashOp)
def buffer_hash(to: Lowering, op: util.BufferHashOp, operands: Sequence[SSAValue]) -> SSAValue:
    source, offset = span(to, op.source, operands[0], operands[2])
    return to.emit("buffer.hash", source, offset, operands[3])


@lowers(util.BufferFillOp)
def buffer_fill(to: Lowering, op: util.BufferFillOp, operands: Sequence[SSAValue]) -> None:
    name, size = access(op.pattern.type)
    target, offset = span(to, op.target, operands[1], operands[3])
    to.emit(
        f"buffer.fill.{name}", target, element(to, offset, size), element(to, operands[4], size), operands[0]
    )


@lowers(util.BufferLoadOp)
def buffer_load(to: Lowering, op: util.BufferLoadOp, operands: Sequence[SSAValue]) -> SSAValue:
    type_ = op.result.type
    name, size = access(type_)
    source, offset = span(to, op.source, operands[0], operands[2])
    if name in ("i8", "i16"):
        name += ".s" if isinstance(type_, IntegerType) and bits(type_) > 1 else ".u"
    found = to.emit(f"buffer.load.{name}", source, element(to, offset, size))
    return to.narrow(found, type_) if isinstance(type_, IntegerType) and bits(type_) not in (8, 16) else found


@lowers(util.BufferStoreOp)
def buffer_store(to: Lowering, op: util.BufferStoreOp, operands: Sequence[SSAValue]) -> None:
    name, size = access(op.source.type)
    target, offset = span(to, op.target, operands[1], operands[3])
    to.emit(f"buffer.store.{name}", target, element(to, offset, size), operands[0])


def access(type_: Attribute) -> tuple[str, int]:
    """How instructions that access a buffer name a type, and its size in bytes."""
    size = byte_width(type_)
    if type_ in (F32, F64):
        return str(type_), size
    return f"i{8 * size}", size


def byte_width(type_: Attribute) -> int:
    """The bytes that a number takes in a buffer. Raises Unsupported for one that has no place of its own there."""
    if isinstance(type_, IndexType):
        return 8
    if isinstance(type_, (IntegerType, AnyFloat)):
        size = -(-bits(type_) // 8)
        if size in (1, 2, 4, 8):
            return size
    raise Unsupported(f"values of type {type_} are not kept in buffers")


def element(to: Lowering, offset: SSAValue, size: int) -> SSAValue:
    """A byte offset as the index of an element."""
    value = known(offset)
    if value is not None:
        return to.i64(value // size)
    return offset if size == 1 else to.emit("shr.i64.u", offset, to.i32(size.bit_length() - 1))


def _alignment(to: Lowering, attribute: Attribute | None) -> SSAValue:
    return to.i32(int(attribute.value.data) if isinstance(attribute, IntegerAttr) else 0)
