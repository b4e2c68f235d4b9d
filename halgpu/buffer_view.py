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

from halgpu import dlpack, elements, errors, foreign
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

    ``numpy.asarray(view)`` copies the elements to a new array, which is yours. ``numpy.array(view, copy=False)``,
    ``numpy.from_dlpack(view)`` and :meth:`memoryview` copy nothing that is on the host: they are read-only and
    keep their elements whatever happens to the buffer. All wait for device work on the elements.

    Raises OutOfRange for a view larger than its buffer, InvalidArgument for a negative dimension.
    """

    __slots__ = (
        "__weakref__", "_buffer", "_lease", "byte_length", "dispatch_token", "element_type", "encoding", "shape",
    )  # fmt: skip

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
        self._lease: Any = None
        self.encoding = encoding
        self.dispatch_token = 0
        """As :attr:`halgpu.devices.Buffer.dispatch_token`."""

    @classmethod
    def from_array(
        cls, array: Any, device: Device | str | None = None, *, copy: bool | None = None
    ) -> BufferView:
        """A view of an array's elements on a device.

        ``array``: numpy, of any strides, byte order and writability; a BufferView; a ``pyopencl`` array or
        buffer; anything with ``__dlpack__`` (torch, jax, cupy), or that ``numpy.asarray`` takes. The element
        type follows the dtype (``int32`` is ``si32``). ``device``: a Device, a URI or None for the default.

        ``copy`` None copies all but BufferViews of the device and pyopencl objects of its context; True
        copies always; False never: host arrays too are used in place, read-only, and must not change while
        the device may read them. Raises ValueError where False is impossible, with the reason (a device with
        memory of its own, an array that is not C-contiguous, in native byte order and at a multiple of 64
        bytes), InvalidArgument for a dtype that no program takes.
        """
        from halgpu.default_device import open_device

        return _from_array(array, open_device(device), copy)

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

    def to_numpy(self, *, copy: bool = True) -> NDArray:
        """The elements as a numpy array, waiting for device work on them.

        With ``copy`` the array is new, writable and yours. Without, it is read-only and over the buffer's
        bytes on the host, where a device with memory of its own brings them once; it keeps its elements when
        the buffer is written to or ends, since a buffer that is about to change leaves its bytes to such
        arrays and goes on with a copy.

        Raises FailedPrecondition after release, Unimplemented where numpy has no such dtype or shape.
        Without ``copy`` also FailedPrecondition while a writable mapping's bytes are in use, and ValueError
        where the buffer's offset does not suit the dtype.
        """
        return self._copied() if copy else self._window()

    def _copied(self) -> NDArray:
        dtype = self.element_type.dtype
        data = self.buffer.read()
        if not self.byte_length:
            return elements.shaped(np.empty(0, dtype), self.shape)
        # The copy also aligns what lies at an odd offset.
        return elements.shaped(np.frombuffer(data, np.uint8, self.byte_length).copy().view(dtype), self.shape)

    def _window(self) -> NDArray:
        from halgpu.devices.windows import open_window

        dtype, buffer = self.element_type.dtype, self.buffer
        if buffer.offset % (dtype.alignment or 1):
            raise ValueError(
                f"a view of {self.type_text} at byte {buffer.offset} of its allocation has no array without a "
                f"copy: {dtype} wants a multiple of {dtype.alignment}"
            )
        array = open_window(buffer)[: self.byte_length].view(dtype)
        return elements.shaped(array, self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray:
        if copy is not False:
            array = self._copied()
            return array if dtype is None else array.astype(dtype, copy=False)
        if dtype is not None and np.dtype(dtype) != self.dtype:
            raise ValueError(f"an array of {np.dtype(dtype)} of a view of {self.type_text} needs a copy")
        return self._window()

    def memoryview(self) -> memoryview:
        """The elements as a read-only ``memoryview`` of the view's shape, not copied; see :meth:`to_numpy`.

        Element types that Python's buffer protocol has not (bf16, f8, opaque) are unsigned integers and, if
        there is none of their width, bytes.
        """
        # No __buffer__ (PEP 688): numpy prefers it to __array__, so that from Python 3.12 numpy.asarray would
        # give read-only arrays, of integers for bf16.
        array = self._window()
        if array.dtype.kind == "V":
            size = array.dtype.itemsize
            array = array.view(f"u{size}") if size in (1, 2, 4, 8) else array[..., None].view(np.uint8)
        return array.data

    # -- to other libraries ----------------------------------------------------------------------------

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The elements on a CUDA device's GPU, for ``cupy.asarray``, ``torch.as_tensor`` and numba, not copied.

        Version 3 of the interface (numba's documentation), ready for the legacy default stream. While the view lives,
        a program that writes its buffer leaves these bytes alone. They must not be written by others either.
        Only views on CUDA devices have it, and only of element types that numpy has itself.
        """
        device = None if self._buffer is None else foreign.cuda_device(self._buffer.device)
        if device is None or self.element_type.is_packed or self.dtype.kind not in "biufc":
            raise AttributeError("only views on CUDA devices, of numpy's element types, have this")
        # Who takes it waits for the stream that is named, and may go on with any other.
        address, self._lease = foreign.lend(self.buffer, foreign.ANY_STREAM)
        return {
            "shape": self.shape, "typestr": self.dtype.str, "data": (address, False), "strides": None,
            "stream": device.stream, "version": 3,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        """(2, number) on a CUDA device's GPU; on others (1, 0), host memory, since only the host's bytes are given."""
        device = foreign.cuda_device(self.buffer.device)
        return dlpack.CPU if device is None else (dlpack.CUDA, device.index)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule over the elements; for ``from_dlpack`` of numpy, torch, jax, cupy.

        On a CUDA device's GPU, unless ``dl_device`` is the host: ready for work on ``stream`` (None: the legacy
        default stream), not copied unless ``copy`` is true. While the tensor lives, a program that writes the
        buffer leaves these bytes alone; they must not be written by others either.

        On the host: with ``max_version`` of at least (1, 0) the elements are not copied but marked read-only, unless
        ``copy`` is true. Older consumers cannot be told so, and get a copy of their own. ``stream`` must be
        None and ``dl_device`` the host. Raises BufferError for anything else, for element types that DLPack
        has not (opaque ones, i4), and where ``copy`` is false and only a copy would do.
        """
        wanted = self.__dlpack_device__() if dl_device is None else tuple(map(int, dl_device))
        if wanted[0] == dlpack.CUDA and wanted == self.__dlpack_device__():
            return self._for_cuda(stream, max_version, copy)
        if stream is not None:
            raise BufferError(f"DLPack tensors in host memory have no stream; found {stream!r}")
        if wanted != dlpack.CPU:
            raise BufferError(
                f"halgpu exports {self.__dlpack_device__()} and host memory, {dlpack.CPU}; asked for {dl_device}"
            )
        wants_copy = bool(copy) or dlpack.wants_own_copy(max_version)
        if wants_copy and copy is False:
            raise BufferError("only DLPack 1.0 can mark elements as read-only; before that, they are copied")
        return dlpack.export(self._for_dlpack(copy, wants_copy), self.element_type, max_version)

    def _for_cuda(self, stream: Any, max_version: tuple[int, int] | None, copy: bool | None) -> Any:
        if self.element_type.is_packed:
            raise BufferError(f"halgpu exports no {self.element_type} elements, which share bytes")
        source = transfer(self, self.device) if copy else self
        array = foreign.lent_array(source.buffer, self.shape, self.dtype, stream)
        return dlpack.export(array, self.element_type, max_version, self.__dlpack_device__())

    def _for_dlpack(self, copy: bool | None, wants_copy: bool) -> NDArray:
        if self.element_type.is_packed:
            raise BufferError(f"halgpu exports no {self.element_type} elements, which share bytes")
        if wants_copy:
            return self._copied()
        try:
            return self._window()
        except (ValueError, errors.FailedPrecondition) as error:
            if copy is None and self._buffer is not None:
                return self._copied()
            raise BufferError(str(error)) from error

    # -- life ------------------------------------------------------------------------------------------

    def share(self) -> BufferView:
        """Another view of the same buffer, with a life of its own. Nothing is copied."""
        buffer = self._buffer
        if buffer is None:
            buffer = self.buffer  # raises
        view: BufferView = object.__new__(BufferView)
        view._buffer = buffer
        view._lease = None
        view.dispatch_token = 0
        view.shape, view.element_type, view.byte_length = self.shape, self.element_type, self.byte_length
        view.encoding = self.encoding
        return view

    def release(self) -> None:
        """Let go of the buffer; a second call does nothing. The buffer ends when nothing else holds it."""
        self._buffer = None
        self.dispatch_token = 0

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


def _from_array(array: Any, device: Device, copy: bool | None) -> BufferView:
    if isinstance(array, BufferView):
        return _from_view(array, device, copy)
    native = None if copy else foreign.on_device(array, device)
    if native is not None:
        return BufferView(*native)
    try:
        values = foreign.to_array(array)
    except errors.Error:
        raise
    except Exception as error:  # whatever a foreign object raises
        raise errors.InvalidArgument(f"a {type(array).__name__} is no array: {error}") from error
    element = elements.of_dtype(values.dtype)
    buffer = _in_place(values, device) if copy is False else upload(device, values, element)
    return BufferView(buffer, values.shape, element)


def _from_view(view: BufferView, device: Device, copy: bool | None) -> BufferView:
    if view.device is device and not copy:
        return view.share()
    if copy is False:
        raise ValueError(f"{view!r} cannot be on {device.uri} without a copy")
    return transfer(view, device)


def transfer(view: BufferView, device: Device) -> BufferView:
    """A copy of a view on ``device``, which may be its own: with the same bytes, whatever their type."""
    buffer = device.allocator.allocate(view.byte_length)
    buffer.copy_from(view.buffer, 0, 0, view.byte_length)
    return BufferView(buffer, view.shape, view.element_type.code, view.encoding)


def _in_place(array: NDArray, device: Device) -> Buffer:
    from halgpu.devices.imported import import_host

    if not (array.flags.c_contiguous and array.dtype.isnative):
        raise ValueError("unable to avoid a copy: the array is not C-contiguous and in native byte order")
    try:
        return (
            import_host(device, array.reshape(-1).view(np.uint8))
            if array.size
            else device.allocator.allocate(0)
        )
    except errors.Incompatible as error:
        raise ValueError(f"unable to avoid a copy: {error}") from error


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
