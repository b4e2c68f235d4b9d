"""Memory shared with cupy, torch and others on the same GPU, without a copy and in the order of streams.

A device's stream is *blocking*: CUDA itself orders it with the legacy default stream, on which other libraries work
unless they are told otherwise. So to them, memory that comes or goes is ready, and what they read is not overwritten
before they are done. Streams that the default stream does not wait for are named by who uses them (``stream`` of
``__dlpack__`` and ``__cuda_array_interface__``), and wait by an event.

What others are given is never written by halgpu again, as with windows (windows.py): a buffer about to be written
moves to other memory first, while the old is in use. Others must not write it either.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

from halgpu.devices import imported
from halgpu.devices.cuda import CudaDevice
from halgpu.devices.cuda_memory import CudaMemory, keep
from halgpu.devices.memory import Memory
from halgpu.devices.windows import Lease, lease_of
from halgpu.errors import FailedPrecondition

if TYPE_CHECKING:
    from halgpu.devices.buffer import Buffer

LEGACY: Final = 1
"""The legacy default stream, as DLPack and the CUDA array interface number it."""
UNKNOWN: Final = -1
"""DLPack's "do not wait"."""


def lend(buffer: Buffer, stream: int = LEGACY) -> tuple[int, Lease]:
    """Return the address of a buffer's bytes on its GPU, for work on ``stream``, and what is held while they are used.

    Does not wait: the stream does. Raises FailedPrecondition for a released buffer and while a writable mapping's
    bytes are in use.
    """
    root = buffer.live()
    device = root.device
    assert isinstance(device, CudaDevice)
    device.require_usable()
    with device.lock:
        if root.writers:
            raise FailedPrecondition(
                f"{buffer!r} has a writable mapping in use, which may change the bytes at any time: "
                "unmap it, or take a copy"
            )
        root.device_reads()
        lease = lease_of(root)
        memory = root.memory
        assert isinstance(memory, CudaMemory)
        if stream not in (0, LEGACY):
            memory.foreign = weakref.ref(lease)
            if stream != UNKNOWN:
                _follow(device, stream)
        return memory.address + buffer.offset, lease


def _follow(device: CudaDevice, stream: int) -> None:
    """Have another stream wait for all that was enqueued on the device's."""
    queue = device.queue
    try:
        with queue.current():
            queue.cuda.runtime.streamWaitEvent(stream, queue.mark().event)
    except queue.cuda.errors as error:
        raise device.error("hand memory to another stream", error) from error


def follow(device: CudaDevice, stream: int) -> None:
    """Have the device's stream wait for all that was enqueued on another one."""
    queue = device.queue
    try:
        with device.lock, queue.current():
            queue.cuda.runtime.streamWaitEvent(queue.stream, queue.mark(stream).event)
    except queue.cuda.errors as error:
        raise device.error("take memory from another stream", error) from error


def is_on(device: CudaDevice, address: int) -> bool:
    """Whether an address is of memory of that GPU."""
    try:
        with device.queue.current():
            found = device.cuda.runtime.pointerGetAttributes(address)
    except device.cuda.errors:
        return False
    return bool(found.device == device.index and found.type == device.cuda.runtime.memoryTypeDevice)


class ImportedCudaMemory(CudaMemory):
    """Somebody's memory on the device's GPU; what the host reads of it is a copy."""

    __slots__ = ("_owner",)

    def __init__(self, device: CudaDevice, address: int, byte_length: int, owner: Any) -> None:
        Memory.__init__(self, byte_length)
        self.device, self.queue = device, device.queue
        self.address = address
        self.foreign = self._mirror = self._upload = self._view = None
        self.used = 0
        self._owner = owner

    def free(self) -> None:
        self._view = self._mirror = self._upload = None
        if self.used > self.queue.done:
            keep(self.queue, 0, self._owner)
        self._owner = None


def borrow(device: CudaDevice, address: int, byte_length: int, owner: Any) -> Buffer:
    """Return a read-only buffer over somebody's memory on the device's GPU, which is not copied.

    ``owner`` is kept alive until work enqueued with the buffer is done. Work that wrote the memory must be ordered
    before the device's stream.
    """
    return imported._buffer(device, ImportedCudaMemory(device, address, byte_length, owner))
