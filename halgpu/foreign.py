"""Arrays of other libraries: to a numpy array over the same bytes or, on a device of theirs, to a view.

a pyopencl.array.Array, pyopencl.Buffer   of the device's context: in place; of another: by the host
anything with __dlpack__                  torch, jax, cupy, …: over its bytes on the host
anything else                             what numpy.asarray makes of it
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from halgpu import elements

if TYPE_CHECKING:
    from halgpu.devices import Buffer, Device
    from halgpu.elements import ElementType

NDArray = np.ndarray[Any, Any]
Native = tuple["Buffer", tuple[int, ...], "ElementType"]


def on_device(value: Any, device: Device) -> Native | None:
    """Buffer, shape and element type of a value that already lies on ``device``; None for any other.

    A ``pyopencl.Buffer`` has no shape and type of its own: it counts as flat opaque bytes (``*8``).
    """
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
