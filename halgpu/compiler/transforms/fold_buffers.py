"""Folds of buffers and buffer views: what is known where they are made needs no question to the runtime.

Facts: compiler/src/iree/compiler/Modules/HAL/{Inline,Loader}/IR, hasFolder and hasCanonicalizer.
"""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import SSAValue
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from halgpu.compiler.dialects import hal_inline, hal_loader, util_buffers

ALLOCATIONS = (hal_inline.BufferAllocateOp, hal_inline.BufferAllocateInitializedOp)


def _length(buffer: SSAValue) -> SSAValue | None:
    """The length of a ``!hal.buffer`` that is made here."""
    match buffer.owner:
        case hal_inline.BufferAllocateOp() as op:
            return op.allocation_size
        case (
            hal_inline.BufferAllocateInitializedOp()
            | hal_inline.BufferSubspanOp()
            | hal_inline.BufferWrapOp()
        ) as op:
            return op.length
    return None


class FoldLength(RewritePattern):
    """The length of a buffer of known length."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: hal_inline.BufferLengthOp, rewriter: PatternRewriter) -> None:
        found = _length(op.buffer)
        if found is not None:
            rewriter.replace(op, [], [found])


class FoldStorage(RewritePattern):
    """The bytes of a buffer that is allocated here came with it."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: hal_inline.BufferStorageOp, rewriter: PatternRewriter) -> None:
        if isinstance(op.buffer.owner, ALLOCATIONS):
            rewriter.replace(op, [], [op.buffer.owner.storage])


class FoldViewBuffer(RewritePattern):
    """The buffer of a view that is made here: the one it was made of, or a part of that."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: hal_inline.BufferViewBufferOp, rewriter: PatternRewriter) -> None:
        view = op.buffer_view.owner
        if not isinstance(view, hal_inline.BufferViewCreateOp):
            return
        source = view.source_buffer
        if _is_zero(view.source_offset) and _same(view.source_length, _length(source)):
            rewriter.replace(op, [], [source])
            return
        part = hal_inline.BufferSubspanOp.build(
            operands=[source, view.source_offset, view.source_length], result_types=[source.type]
        )
        part.location = op.location
        rewriter.replace(op, part)


class FoldViewOfPart(RewritePattern):
    """A view of a part of a buffer is a view of the buffer, further on."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: hal_inline.BufferViewCreateOp, rewriter: PatternRewriter) -> None:
        part = op.source_buffer.owner
        if not isinstance(part, hal_inline.BufferSubspanOp):
            return
        offset = arith.AddiOp(part.source_offset, op.source_offset)
        offset.location = op.location
        new = hal_inline.BufferViewCreateOp.build(
            operands=[
                part.source_buffer, offset.result, op.source_length, op.element_type, op.encoding_type,
                list(op.shape),
            ],
            result_types=[op.result.type],
        )  # fmt: skip
        new.location = op.location
        rewriter.replace(op, [offset, new])


class FoldDispatchOfPart(RewritePattern):
    """A binding of a part of a buffer is a binding of the buffer, further on."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: hal_loader.ExecutableDispatchOp, rewriter: PatternRewriter) -> None:
        buffers, offsets = list(op.binding_buffers), list(op.binding_offsets)
        changed = False
        for number, buffer in enumerate(buffers):
            part = buffer.owner
            if isinstance(part, util_buffers.BufferSubspanOp):
                offset = arith.AddiOp(part.source_offset, offsets[number])
                offset.location = op.location
                rewriter.insert(offset)
                buffers[number], offsets[number], changed = part.source, offset.result, True
        if not changed:
            return
        new = hal_loader.ExecutableDispatchOp.build(
            operands=[
                op.executable, op.entry_point, op.workgroup_x, op.workgroup_y, op.workgroup_z,
                list(op.constants), buffers, offsets, list(op.binding_lengths),
            ]
        )  # fmt: skip
        new.location = op.location
        rewriter.replace(op, new)


class FoldSize(RewritePattern):
    """The size of a ``!util.buffer`` of known size."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: util_buffers.BufferSizeOp, rewriter: PatternRewriter) -> None:
        found: SSAValue | None = None
        match op.operand.owner:
            case util_buffers.BufferAllocOp() as made:
                found = made.storage_size
            case util_buffers.BufferSliceOp() | util_buffers.BufferSubspanOp() as made:
                found = made.result_size
            case hal_inline.BufferAllocateOp() as made:
                found = made.allocation_size
            case hal_inline.BufferAllocateInitializedOp() as made:
                found = made.length
        if found is not None:
            rewriter.replace(op, [], [found])


def _is_zero(value: SSAValue) -> bool:
    return _number(value) == 0


def _same(left: SSAValue, right: SSAValue | None) -> bool:
    return left is right or (
        right is not None and _number(left) is not None and _number(left) == _number(right)
    )


def _number(value: SSAValue) -> int | None:
    owner = value.owner
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
        return int(owner.value.value.data)
    return None


PATTERNS: tuple[RewritePattern, ...] = (
    FoldLength(), FoldStorage(), FoldViewBuffer(), FoldViewOfPart(), FoldDispatchOfPart(), FoldSize(),
)  # fmt: skip
