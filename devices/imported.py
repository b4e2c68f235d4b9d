"""Memory that somebody else allocated, used as a device's buffer without a copy.

Three kinds: host bytes, on devices that share the host's memory (:func:`import_host`), PyOpenCL buffers of
the device's own context (:func:`import_opencl`), and memory of a CUDA device's GPU (cuda_sharing.py). Such
buffers are read-only, since the bytes are another's. They
count as live handles of no bytes, are never pooled, and keep the owner alive.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from halgpu.devices.buffer import DEFAULT_TYPE, DEFAULT_USAGE, Allocator, Buffer, Root, flat, rights_of
from halgpu.devices.forks import keep_forever
from halgpu.devices.host import HostDevice, HostMemory
from halgpu.devices.hostmemory import Pages
from halgpu.devices.memory import Memory, MemoryAccess
from halgpu.devices.null import NullDevice
from halgpu.devices.opencl import MirroredMemory, OpenCLDevice, OpenCLMemory, UnifiedMemory
from halgpu.errors import Incompatible, InvalidArgument

if TYPE_CHECKING:
    from halgpu.devices.base import Device

ALIGNMENT = 64
"""Bytes: what an allocation promises to kernels, which load vectors by it; imported bytes must keep it."""


class Imports(Allocator):
    """Owns roots over imported memory, whose end gives nothing back to the device."""

    __slots__ = ()

    def reclaim(self, memory: Memory, byte_length: int) -> None:
        """Drop the memory, which was counted as 0 bytes."""
        self.device.counters.freed(0)
        if self.device.counters.forked:
            keep_forever(memory)
        else:
            memory.free()


_imports: weakref.WeakKeyDictionary[Device, weakref.ref[Imports]] = weakref.WeakKeyDictionary()


def _allocator(device: Device) -> Imports:
    # As with Device.allocator, the device must not own what owns it.
    known = _imports.get(device)
    found = None if known is None else known()
    if found is None:
        found = Imports(device)
        _imports[device] = weakref.ref(found)
    return found


def _buffer(device: Device, memory: Memory) -> Buffer:
    device.require_usable()
    root = Root(_allocator(device), memory, memory.byte_length)
    root.fresh = False
    with device.lock:
        device.counters.allocated(0)
    return Buffer(
        root, 0, memory.byte_length, MemoryAccess.READ, DEFAULT_USAGE, DEFAULT_TYPE,
        rights_of(MemoryAccess.READ, DEFAULT_USAGE, DEFAULT_TYPE),
    )  # fmt: skip


# Host bytes -------------------------------------------------------------------------------------------


class ImportedHostMemory(HostMemory):
    """Somebody's bytes, for a device that works in the host's memory."""

    __slots__ = ()

    def __init__(self, data: memoryview) -> None:
        Memory.__init__(self, data.nbytes)
        self.bytes = data


class ImportedPages(UnifiedMemory):
    """Somebody's host bytes, for an OpenCL device that works on them in place."""

    __slots__ = ()

    access = "READ_ONLY"  # PyOpenCL takes read-only bytes for nothing else
    making = "use {} bytes of the host in place"

    def __init__(self, device: OpenCLDevice, data: memoryview) -> None:
        OpenCLMemory.__init__(self, device, data.nbytes)
        self._pages = Pages(np.frombuffer(data, np.uint8))
        self._view = data
        self._map = None


def import_host(device: Device, data: Any) -> Buffer:
    """Return a read-only buffer over the bytes of ``data``, which is not copied.

    ``data`` is any C-contiguous bytes-like object; it is kept alive, and must not change while the device may
    read it. Kernels and the host may only read the buffer. Raises Incompatible, with the reason, where the
    device cannot use the bytes in place.
    """
    view = flat(data).toreadonly()
    obstacle = _host_obstacle(device, view)
    if obstacle:
        raise Incompatible(f"{view.nbytes} bytes of host memory cannot be used in place: {obstacle}")
    if isinstance(device, OpenCLDevice):
        return _buffer(device, ImportedPages(device, view))
    return _buffer(device, ImportedHostMemory(view))


def _host_obstacle(device: Device, data: memoryview) -> str | None:
    if not (
        device.capabilities.unified_memory and isinstance(device, (HostDevice, NullDevice, OpenCLDevice))
    ):
        return f"{device.uri} has memory of its own"
    if not data.nbytes:
        return "there are none"
    address = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    if address % ALIGNMENT:
        return f"their address {address:#x} is no multiple of {ALIGNMENT}"
    return None


# PyOpenCL ---------------------------------------------------------------------------------------------


class ImportedBuffer(MirroredMemory):
    """Somebody's ``pyopencl.Buffer`` of the device's context; what the host reads of it is a copy."""

    __slots__ = ()

    def __init__(self, device: OpenCLDevice, native: Any) -> None:
        OpenCLMemory.__init__(self, device, native.size)
        self._native = native
        self._mirror = self._upload = self._view = None


def import_opencl(device: Device, native: Any) -> Buffer:
    """Return a read-only buffer over a ``pyopencl.Buffer`` of the device's context, which is not copied.

    It is kept alive. Work on other queues that writes it must be done before (``queue.finish()``), and none
    may write it while the device may read it. Raises InvalidArgument for anything else, Incompatible for a
    buffer of another context.
    """
    cl = sys.modules.get("pyopencl")
    if cl is None or not isinstance(native, cl.Buffer):
        raise InvalidArgument(f"expected a pyopencl.Buffer, found {type(native).__name__}")
    if not in_context(device, native):
        raise Incompatible(
            f"a pyopencl.Buffer of another context cannot be used in place by {device.uri}: "
            "make it with device.context, or pass a numpy array"
        )
    assert isinstance(device, OpenCLDevice)
    return _buffer(device, ImportedBuffer(device, native))


def in_context(device: Device, native: Any) -> bool:
    """Whether a pyopencl object belongs to the context of ``device``."""
    return isinstance(device, OpenCLDevice) and native.context == device.context


def is_opencl_array(value: Any) -> bool:
    """Whether ``value`` is a ``pyopencl.array.Array``."""
    module = sys.modules.get("pyopencl.array")
    return module is not None and isinstance(value, module.Array)


def is_opencl_buffer(value: Any) -> bool:
    """Whether ``value`` is a ``pyopencl.Buffer``."""
    module = sys.modules.get("pyopencl")
    return module is not None and isinstance(value, module.Buffer)


def import_opencl_array(device: Device, array: Any) -> Buffer | None:
    """A read-only buffer over the elements of a C-contiguous ``pyopencl.array.Array``; None for any other.

    It must be of the device's context. Waits for the array's queue, unless that is the device's own.
    """
    if not (array.flags.c_contiguous and array.nbytes and in_context(device, array)):
        return None
    assert isinstance(device, OpenCLDevice)
    if array.queue is None:
        for event in array.events:
            event.wait()
    elif array.queue != device.queue.native:
        array.queue.finish()
    return import_opencl(device, array.base_data).subspan(array.offset, array.nbytes)


def opencl_to_host(value: Any) -> np.ndarray[Any, Any]:
    """Copy a ``pyopencl.array.Array`` to the host; a ``pyopencl.Buffer`` as ``uint8``."""
    cl = sys.modules["pyopencl"]
    queue = cl.CommandQueue(value.context)
    if not is_opencl_buffer(value):
        if value.queue is not None:
            value.queue.finish()
        return np.asarray(value.get(queue=queue) if value.flags.forc else value.copy(queue=queue).get())
    data = np.empty(value.size, np.uint8)
    cl.enqueue_copy(queue, data, value)
    return data
