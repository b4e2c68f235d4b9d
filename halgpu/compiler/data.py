"""The bytes of attributes: what ``util.buffer.constant`` and ``vm.rodata`` hold.

Facts: IREE's SerializableAttrInterface (compiler/src/iree/compiler/Dialect/Util/IR/UtilAttrs.cpp). Numbers are
little-endian, one of fewer than 8 bits takes a byte.
"""

from __future__ import annotations

import halgpu.compiler.needs_xdsl  # noqa: F401 - the first of all imports

# isort: split
from xdsl.dialects.builtin import (
    AnyFloat,
    DenseIntOrFPElementsAttr,
    DenseResourceAttr,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    ShapedType,
    StringAttr,
)
from xdsl.ir import Attribute

from halgpu.compiler.dialects.util import BytePatternAttr, CompositeAttr

RESOURCE_HEADER = 4
"""Bytes before a resource's data: its alignment (mlir/docs/LangRef.md, dense resource)."""


class NoBytes(Exception):
    """An attribute that does not say which bytes it stands for."""


def to_bytes(value: Attribute, resources: dict[str, bytes]) -> bytes:
    """The bytes of an attribute; ``resources`` are a module's blobs by key. Raises NoBytes."""
    if isinstance(value, StringAttr):
        return value.data.encode("utf-8", "surrogateescape")
    if isinstance(value, DenseIntOrFPElementsAttr):
        return _dense(value)
    if isinstance(value, CompositeAttr):
        return _composite(value, resources)
    if isinstance(value, DenseResourceAttr):
        return _resource(value, resources)
    if isinstance(value, BytePatternAttr):
        return bytes([value.pattern.data & 0xFF]) * _size(value.type)
    if isinstance(value, IntegerAttr | FloatAttr):
        packed: bytes = value.type.pack([value.value.data])
        return packed
    raise NoBytes(f"expected bytes, such as a string or a dense attribute, found {str(value)[:60]}")


def _dense(value: DenseIntOrFPElementsAttr) -> bytes:
    count = 1
    for size in value.get_shape():
        count *= size
    data = value.data.data
    width = value.get_element_type().compile_time_size
    if len(data) == width and count != 1:
        data *= count
    return data


def _composite(value: CompositeAttr, resources: dict[str, bytes]) -> bytes:
    data = b"".join(to_bytes(part, resources) for part in value.values)
    if len(data) != value.length.data:
        raise NoBytes(f"expected {value.length.data} bytes, found parts of {len(data)} bytes")
    return data


def _resource(value: DenseResourceAttr, resources: dict[str, bytes]) -> bytes:
    key = value.resource_handle.data
    if key not in resources:
        raise NoBytes(f"expected the contents of resource {key}, which is not in the file")
    return resources[key][RESOURCE_HEADER:]


def _size(type_: Attribute) -> int:
    """Bytes of a shaped type."""
    element = getattr(type_, "element_type", None)
    if not isinstance(type_, ShapedType) or not isinstance(element, IntegerType | AnyFloat):
        raise NoBytes(f"expected a tensor of numbers, found {type_}")
    size = -(-int(element.bitwidth) // 8)
    for dimension in type_.get_shape():
        size *= dimension
    return size
