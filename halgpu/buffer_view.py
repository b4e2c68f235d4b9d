"""Buffer views: a shape and an element type over a HAL buffer; what programs take and return.

``iree_hal_buffer_view_t`` of IREE's runtime/src/iree/hal/buffer_view.h, with numpy's array protocol.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Sequence
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from halgpu import elements, errors
from halgpu.elements import ElementType

if TYPE_CHECKING:
    from halgpu.devices import Buffer, Device

NDArray = np.ndarray[Any, Any]


class Encoding(enum.IntEnum):
    """How elements lie in the buffer; values of ``iree_hal_encoding_types_t``."""

    OPAQUE = 0
    DENSE_ROW_MAJOR = 1


class BufferView:
    """A ``shape`` of elements of ``element_type`` at the start of ``buffer``.

    ``element_type`` is an :class:`~halgpu.elements.ElementType`, its name (``"f32"``) or HAL code;
    ``encoding`` an :class:`Encoding`. Bytes stay where they are; nothing is copied until the host asks.
    Several views may share a buffer. Also a context manager that releases it.

    ``numpy.asarray(view)`` copies the elements to a new array, waiting for the device.

    Raises OutOfRange for a view larger than its buffer, InvalidArgument for a negative dimension.
    """

    __slots__ = ("__weakref__", "_buffer", "byte_length", "element_type", "encoding", "shape")

    def __init__(
        self,
        buffer: Buffer,
        shape: Sequence[int],
        element_type: ElementType | str | int,
        encoding: int = Encoding.DENSE_ROW_MAJOR,
    ) -> None:
        code = element_type if type(element_type) is int else _element(element_type).code
        self.shape, self.element_type, self.byte_length = _layout(tuple(shape), code)
        if self.byte_length > buffer.byte_length:
            raise errors.OutOfRange(
                f"a view of {self.type_text} needs {self.byte_length} bytes, "
                f"its buffer has {buffer.byte_length}"
            )
        self._buffer: Buffer | None = buffer
        self.encoding = encoding

    @classmethod
    def from_array(cls, array: Any, device: Device | str | None = None) -> BufferView:
        """Copy an array (or what ``numpy.asarray`` takes) to a device.

        Any strides, byte order and writability; the element type follows the dtype (``int32`` is ``si32``).
        ``device`` is a Device, a URI or None for the default one. Raises InvalidArgument for a dtype that no
        program takes.
        """
        from halgpu.default_device import open_device

        values = np.asarray(array)
        element = elements.of_dtype(values.dtype)
        return cls(upload(open_device(device), values, element), values.shape, element)

    # -- what it is ------------------------------------------------------------------------------------

    @property
    def buffer(self) -> Buffer:
        """The HAL buffer; it may be larger than the view. Raises FailedPrecondition after release."""
        if self._buffer is None:
            raise errors.FailedPrecondition(f"this view of {self.type_text} was released")
        return self._buffer

    @property
    def type_text(self) -> str:
        """Shape and element type as IREE writes them: ``"2x3xf32"``."""
        return elements.format_type(self.shape, self.element_type)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype of the elements. Raises Unimplemented for elements narrower than a byte."""
        return self.element_type.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the elements; :attr:`byte_length` is the same."""
        return self.byte_length

    @property
    def ndim(self) -> int:
        """The rank: number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return elements.element_count(self.shape)

    @property
    def device(self) -> Device:
        """The device that the buffer lies on."""
        return self.buffer.device

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a view of rank 0 has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        if self._buffer is None:
            return f"<BufferView {self.type_text}, released>"
        return f"<BufferView {self.type_text} on {self._buffer.device.uri}>"

    # -- to the host -----------------------------------------------------------------------------------

    def to_numpy(self) -> NDArray:
        """Copy the elements to a new numpy array, waiting for device work on them.

        Raises FailedPrecondition after release, Unimplemented where numpy has no such dtype or shape.
        """
        dtype = self.element_type.dtype
        data = self.buffer.read()
        if not self.byte_length:
            return elements.shaped(np.empty(0, dtype), self.shape)
        # The copy also aligns what lies at an odd offset.
        return elements.shaped(np.frombuffer(data, np.uint8, self.byte_length).copy().view(dtype), self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray:
        if copy is False:
            raise ValueError("the elements are on a device: an array of them is always a copy")
        array = self.to_numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    # -- life ------------------------------------------------------------------------------------------

    def share(self) -> BufferView:
        """Another view of the same buffer, with a life of its own. Nothing is copied."""
        view: BufferView = object.__new__(BufferView)
        view._buffer = self.buffer
        view.shape, view.element_type, view.byte_length = self.shape, self.element_type, self.byte_length
        view.encoding = self.encoding
        return view

    def release(self) -> None:
        """Let go of the buffer; a second call does nothing. The buffer ends when nothing else holds it."""
        self._buffer = None

    def __enter__(self) -> BufferView:
        self.buffer  # noqa: B018 - raises after release
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def upload(device: Device, array: NDArray, element: ElementType) -> Buffer:
    """Copy an array of any strides and byte order to a new buffer of ``device``, as elements of ``element``.

    The array's dtype is ``element.dtype`` but for byte order, or of the same width.
    """
    buffer = device.allocator.allocate(array.nbytes)
    if array.nbytes:
        dtype = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
        target = np.frombuffer(buffer.write(discard=True), dtype).reshape(array.shape)
        target[...] = array
    return buffer


def _element(element_type: ElementType | str | int) -> ElementType:
    if isinstance(element_type, ElementType):
        return element_type
    if isinstance(element_type, str):
        return elements.of_name(element_type)
    return elements.of_code(operator.index(element_type))


@lru_cache(maxsize=1024)
def _layout(shape: tuple[int, ...], code: int) -> tuple[tuple[int, ...], ElementType, int]:
    shape = tuple(map(operator.index, shape))
    element = elements.of_code(code)
    if any(size < 0 for size in shape):
        raise errors.InvalidArgument(f"shape {shape} has a negative dimension")
    return shape, element, element.byte_length(elements.element_count(shape))
