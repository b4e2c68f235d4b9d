"""Arrays of other libraries: to a numpy array over the same bytes or, on a device of theirs, to a view.

a pyopencl.array.Array, pyopencl.Buffer   of the device's context: in place; of another: by the host
cupy, torch, … on a CUDA device's GPU     in place where it is C-contiguous; else by the host
anything with __dlpack__                  torch, jax, cupy, …: over its bytes on the host
anything else                             what numpy.asarray makes of it
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from halgpu import elements, errors

if TYPE_CHECKING:
    from halgpu.devices import Buffer, Device
    from halgpu.elements import ElementType

NDArray = np.ndarray[Any, Any]
Native = tuple["Buffer", tuple[int, ...], "ElementType"]


def on_device(value: Any, device: Device) -> Native | None:
    """Buffer, shape and element type of a value that already lies on ``device``; None for any other.

    A ``pyopencl.Buffer`` has no shape and type of its own: it counts as flat opaque bytes (``*8``).
    """
    if cuda_device(device) is not None:
        return _on_cuda(value, device)
    if "pyopencl" not in sys.modules:
        return None
    from halgpu.devices import imported

    if imported.is_opencl_buffer(value):
        if imported.in_context(device, value):
            return imported.import_opencl(device, value), (value.size,), elements.of_name("*8")
    elif imported.is_opencl_array(value):
        element = elements.of_dtype(value.dtype)
        buffer = imported.import_opencl_array(device, value)
        if buffer is not None:
            return buffer, value.shape, element
    return None


# CUDA -------------------------------------------------------------------------------------------------

LEGACY_STREAM = 1
"""The legacy default stream, as DLPack and the CUDA array interface number it."""
ANY_STREAM = -1
"""DLPack's for who looks after the order himself."""


def cuda_device(device: Device) -> Any:
    """The device itself if it is a CUDA device, else None. Imports nothing."""
    module = sys.modules.get("halgpu.devices.cuda")
    return device if module is not None and isinstance(device, module.CudaDevice) else None


def lend(buffer: Buffer, stream: int = LEGACY_STREAM) -> tuple[int, Any]:
    """The address of a buffer's bytes on its GPU, and what is held while they are used on ``stream``."""
    from halgpu.devices import cuda_sharing

    return cuda_sharing.lend(buffer, stream)


def lent_array(buffer: Buffer, shape: tuple[int, ...], dtype: np.dtype[Any], stream: Any) -> NDArray:
    """An array whose address is that of a buffer's elements on its GPU, where numpy must not look.

    ``stream`` is DLPack's: None, -1, 1, 2 or an address. Raises BufferError for others and for a buffer in use.
    """
    if stream is not None and (type(stream) is not int or stream < -1 or stream == 0):
        raise BufferError(f"a stream of CUDA is None, -1, 1, 2 or an address; found {stream!r}")
    try:
        address, lease = lend(buffer, LEGACY_STREAM if stream is None else stream)
    except errors.FailedPrecondition as error:
        raise BufferError(str(error)) from error
    size = elements.element_count(shape) * dtype.itemsize
    described = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}
    return np.asarray(_Described(lease, described)).view(dtype).reshape(shape)


def _on_cuda(value: Any, device: Any) -> Native | None:
    from halgpu.devices import cuda_sharing

    array = _cuda_array(value, device)
    if array is None or not array.flags.c_contiguous or not array.nbytes:
        return None
    address = array.__array_interface__["data"][0]
    element = elements.of_dtype(array.dtype)
    return cuda_sharing.borrow(device, address, array.nbytes, array), array.shape, element


def _cuda_array(value: Any, device: Any) -> NDArray | None:
    """An array whose address is that of a value on the device's GPU, ready for its stream; None for any other."""
    from halgpu import dlpack
    from halgpu.devices import cuda_sharing

    if hasattr(value, "__dlpack_device__"):
        if tuple(map(int, value.__dlpack_device__())) != (dlpack.CUDA, device.index):
            return None
        return dlpack.import_cuda(value, device.stream)
    described = getattr(value, "__cuda_array_interface__", None)
    if described is None or not cuda_sharing.is_on(device, described["data"][0]):
        return None
    stream = described.get("stream")
    if stream not in (None, cuda_sharing.LEGACY):
        cuda_sharing.follow(device, stream)
    return np.asarray(_Described(value, described))


class _Described:
    """Of numpy's array interface what an object with CUDA's has, and that object."""

    def __init__(self, owner: Any, described: dict[str, Any]) -> None:
        self.owner = owner
        self.__array_interface__ = {**described, "version": 3}
        self.__array_interface__.pop("stream", None)
        self.__array_interface__.pop("mask", None)


def to_array(value: Any) -> NDArray:
    """A numpy array of ``value``'s elements, over its own bytes where they are on the host.

    Whatever a foreign object raises comes out.
    """
    if isinstance(value, np.ndarray):
        return value
    if "pyopencl" in sys.modules:
        from halgpu.devices import imported

        if imported.is_opencl_array(value) or imported.is_opencl_buffer(value):
            return imported.opencl_to_host(value)
    if hasattr(value, "__dlpack__"):
        return _by_dlpack(value)
    return np.asarray(value)


def _by_dlpack(value: Any) -> NDArray:
    from halgpu import dlpack

    try:
        return dlpack.import_array(value)
    except Exception:
        # Among others: types that DLPack lacks, tensors that record gradients, numpy before 2.
        if not hasattr(value, "__array__"):
            raise
        return np.asarray(value)
