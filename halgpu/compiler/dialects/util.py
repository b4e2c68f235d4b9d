"""What inline programs use of IREE's ``util`` dialect: globals, initializers, functions, byte buffers.

Facts: compiler/src/iree/compiler/Dialect/Util/IR/{UtilTypes,UtilAttrs,UtilOps}.td.
"""

from __future__ import annotations

from halgpu.compiler.dialects.util_attrs import (
    BufferType,
    BytePatternAttr,
    CompositeAttr,
    InliningNeverAttr,
    UninitializedAttr,
)
from halgpu.compiler.dialects.util_buffers import (
    BufferAllocOp,
    BufferCompareOp,
    BufferConstantOp,
    BufferCopyOp,
    BufferDeallocOp,
    BufferFillOp,
    BufferHashOp,
    BufferLoadOp,
    BufferSizeOp,
    BufferSliceOp,
    BufferStoreOp,
    BufferSubspanOp,
)
from halgpu.compiler.dialects.util_structure import (
    CallOp,
    FuncOp,
    GlobalLoadOp,
    GlobalOp,
    GlobalStoreOp,
    InitializerOp,
    ReturnOp,
    UnreachableOp,
)
from halgpu.compiler.dialects.util_values import (
    AlignOp,
    CastOp,
    CmpEQOp,
    CmpNEOp,
    NullOp,
    OptimizationBarrierOp,
    RangeMaxOp,
    RangeMinOp,
    SizeOfOp,
    StatusCheckOkOp,
    SwitchOp,
    UnfoldableConstantOp,
)
from xdsl.ir import Dialect

Util = Dialect(
    "util",
    [
        AlignOp,
        BufferAllocOp,
        BufferCompareOp,
        BufferConstantOp,
        BufferCopyOp,
        BufferDeallocOp,
        BufferFillOp,
        BufferHashOp,
        BufferLoadOp,
        BufferSizeOp,
        BufferSliceOp,
        BufferStoreOp,
        BufferSubspanOp,
        CallOp,
        CastOp,
        CmpEQOp,
        CmpNEOp,
        FuncOp,
        GlobalLoadOp,
        GlobalOp,
        GlobalStoreOp,
        InitializerOp,
        NullOp,
        OptimizationBarrierOp,
        RangeMaxOp,
        RangeMinOp,
        ReturnOp,
        SizeOfOp,
        StatusCheckOkOp,
        SwitchOp,
        UnfoldableConstantOp,
        UnreachableOp,
    ],
    [BufferType, BytePatternAttr, CompositeAttr, InliningNeverAttr, UninitializedAttr],
)
