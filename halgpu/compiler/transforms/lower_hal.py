"""``hal``, ``hal_inline`` and ``hal_loader`` as calls of the runtime's modules.

Facts: compiler/src/iree/compiler/Modules/HAL/Inline/Conversion/HALInlineToVM and
Modules/HAL/Loader/Conversion/HALLoaderToVM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from xdsl.ir import Attribute, Operation, SSAValue

from halgpu import elements, errors
from halgpu.compiler.dialects import hal, hal_inline, hal_loader, vm_types
from halgpu.compiler.transforms.lower_arith import literal
from halgpu.compiler.transforms.lower_util import span
from halgpu.compiler.transforms.lowering import I32, I64, Lowering, Unsupported, convert_type, lowers

DENSE_ROW_MAJOR: Final = 1


@lowers(hal.ElementTypeOp)
def element_type(to: Lowering, op: hal.ElementTypeOp, operands: Sequence[SSAValue]) -> SSAValue:
    return to.i32(element_code(op.type))


def element_code(type_: Attribute) -> int:
    """The HAL's number of an element type. Raises Unsupported."""
    try:
        return int(elements.of_name(str(type_)).code)
    except errors.Error:
        raise Unsupported(f"the HAL has no number for element type {type_}") from None


@lowers(hal.EncodingTypeOp)
def encoding_type(to: Lowering, op: hal.EncodingTypeOp, operands: Sequence[SSAValue]) -> SSAValue:
    if op.encoding is not None:
        raise Unsupported(f"the HAL has no number for encoding {op.encoding}")
    return to.i32(DENSE_ROW_MAJOR)


_CALLS: Final[dict[type[Operation], str]] = {
    hal_inline.BufferAllocateOp: "hal_inline.buffer.allocate",
    hal_inline.BufferSubspanOp: "hal_inline.buffer.subspan",
    hal_inline.BufferLengthOp: "hal_inline.buffer.length",
    hal_inline.BufferStorageOp: "hal_inline.buffer.storage",
    hal_inline.BufferViewBufferOp: "hal_inline.buffer_view.buffer",
    hal_inline.BufferViewElementTypeOp: "hal_inline.buffer_view.element_type",
    hal_inline.BufferViewEncodingTypeOp: "hal_inline.buffer_view.encoding_type",
    hal_inline.BufferViewRankOp: "hal_inline.buffer_view.rank",
}


@lowers(*_CALLS)
def call(to: Lowering, op: Operation, operands: Sequence[SSAValue]) -> Sequence[SSAValue]:
    found = to.call_import(_CALLS[type(op)], *operands)
    types = [convert_type(result.type) for result in op.results]
    return [to.cast_integer(value, type_) for value, type_ in zip(found, types, strict=True)]


@lowers(hal_inline.BufferAllocateInitializedOp)
def allocate_initialized(
    to: Lowering, op: hal_inline.BufferAllocateInitializedOp, operands: Sequence[SSAValue]
) -> Sequence[SSAValue]:
    source, offset = span(to, op.source, operands[1], operands[2])
    return to.call_import("hal_inline.buffer.allocate.initialized", operands[0], source, offset, operands[3])


@lowers(hal_inline.BufferWrapOp)
def wrap(to: Lowering, op: hal_inline.BufferWrapOp, operands: Sequence[SSAValue]) -> Sequence[SSAValue]:
    source, offset = span(to, op.source, operands[0], operands[1])
    return to.call_import("hal_inline.buffer.wrap", source, offset, operands[2])


@lowers(hal_inline.BufferViewCreateOp)
def view_create(
    to: Lowering, op: hal_inline.BufferViewCreateOp, operands: Sequence[SSAValue]
) -> Sequence[SSAValue]:
    return to.call_import("hal_inline.buffer_view.create", *operands[:5], operands[5:])


@lowers(hal_inline.BufferViewAssertOp)
def view_assert(to: Lowering, op: hal_inline.BufferViewAssertOp, operands: Sequence[SSAValue]) -> None:
    message = to.text(op.message.data)
    to.call_import(
        "hal_inline.buffer_view.assert", operands[0], message, operands[1], operands[2], operands[3:]
    )


@lowers(hal_inline.BufferViewDimOp)
def view_dim(
    to: Lowering, op: hal_inline.BufferViewDimOp, operands: Sequence[SSAValue]
) -> Sequence[SSAValue]:
    return to.call_import("hal_inline.buffer_view.dim", operands[0], to.i32(op.index.value.data))


@lowers(hal_inline.BufferViewTraceOp)
def view_trace(to: Lowering, op: hal_inline.BufferViewTraceOp, operands: Sequence[SSAValue]) -> None:
    to.call_import("hal_inline.buffer_view.trace", to.text(op.key.data), operands)


@lowers(hal_inline.DeviceQueryOp)
def device_query(
    to: Lowering, op: hal_inline.DeviceQueryOp, operands: Sequence[SSAValue]
) -> Sequence[SSAValue]:
    type_ = op.value.type
    target = convert_type(type_)
    if target not in (I32, I64):
        raise Unsupported(f"a device is asked for integers only, found {type_}")
    category, key = to.text(op.category.data), to.text(op.key.data)
    ok, value = to.call_import("hal_inline.device.query.i64", category, key)
    found = to.narrow(to.cast_integer(value, target), type_)
    if op.default_value is not None:
        name = "i64" if target == I64 else "i32"
        found = to.emit(f"select.{name}", ok, found, literal(to, op.default_value, type_))
    return ok, found


@lowers(hal_loader.ExecutableQuerySupportOp)
def query_support(
    to: Lowering, op: hal_loader.ExecutableQuerySupportOp, operands: Sequence[SSAValue]
) -> Sequence[SSAValue]:
    return to.call_import("hal_loader.executable.query_support", to.text(op.executable_format.data))


@lowers(hal_loader.ExecutableLoadOp)
def load(to: Lowering, op: hal_loader.ExecutableLoadOp, operands: Sequence[SSAValue]) -> Sequence[SSAValue]:
    if op.data in to.spans:
        raise Unsupported("expected a whole buffer of data, found a part of one")
    format_ = to.text(op.format.data)
    constants = _packed(to, operands[1:])
    return to.call_import("hal_loader.executable.load", format_, operands[0], constants)


def _packed(to: Lowering, values: Sequence[SSAValue]) -> SSAValue:
    """A buffer of 32-bit numbers, or null for none."""
    if not values:
        return to.null(vm_types.BufferType())
    buffer = to.emit("buffer.alloc", to.i64(4 * len(values)), to.i32(4))
    for number, value in enumerate(values):
        to.emit("buffer.store.i32", buffer, to.i64(number), value)
    return buffer


@lowers(hal_loader.ExecutableLookupFunctionOp)
def lookup_function(
    to: Lowering, op: hal_loader.ExecutableLookupFunctionOp, operands: Sequence[SSAValue]
) -> Sequence[SSAValue]:
    nested = op.entry_point.nested_references.data
    name = nested[-1].data if nested else op.entry_point.root_reference.data
    return to.call_import("hal_loader.executable.lookup.function", operands[0], to.text(name))


@lowers(hal_loader.ExecutableDispatchOp)
def dispatch(to: Lowering, op: hal_loader.ExecutableDispatchOp, operands: Sequence[SSAValue]) -> None:
    values = dict(zip(op.operands, operands, strict=True))
    bindings: list[SSAValue] = []
    for buffer, offset, length in zip(
        op.binding_buffers, op.binding_offsets, op.binding_lengths, strict=True
    ):
        whole, start = span(to, buffer, values[buffer], values[offset])
        bindings += (whole, start, values[length])
    constants = [values[constant] for constant in op.constants]
    to.call_import("hal_loader.executable.dispatch", *operands[:5], constants, bindings)


@lowers(hal_loader.ExecutableLookupOp)
def lookup(to: Lowering, op: Any, operands: Sequence[SSAValue]) -> None:
    raise Unsupported("expected the pass materialize-executables to have replaced it")


@lowers(hal_loader.ExecutableExportOrdinalOp)
def export_ordinal(to: Lowering, op: Any, operands: Sequence[SSAValue]) -> None:
    raise Unsupported("expected a kernel by its name, hal_loader.executable.lookup.function")
