"""The storage wrapper: a VM buffer over the bytes of a HAL buffer.

A program sees device memory as host bytes. The VM buffer is initialized in place over this wrapper, which is
both its bytes (``HostBytes``: residency decides when anything moves) and its allocator: on ``free``, which
comes once, also for empty buffers, the wrapper drops its HAL buffer and forgets it. It keeps the HAL buffer
alive by a share of its own, so that the other holders may release theirs in any order.

The role is that of ``iree_hal_inline_storage_buffer_t`` (IREE modules/hal/inline/module.c).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from halgpu import errors
from halgpu.devices.buffer import HOST_READ, HOST_WRITE
from halgpu.vm.allocator import Allocator
from halgpu.vm.buffer import Buffer, BufferAccess, HostBytes

if TYPE_CHECKING:
    from halgpu import devices

_READ_ONLY = BufferAccess.ORIGIN_HOST
_READ_WRITE = BufferAccess.ORIGIN_HOST | BufferAccess.MUTABLE


class Storage(Allocator):
    """Bytes and allocator of one VM buffer. Made by :func:`wrap`.

    ``hal_buffer`` is the HAL buffer, for device work; None once the VM buffer has ended. Nothing else that a VM
    buffer can be initialized over has an attribute of that name (hal_loader.py).
    """

    __slots__ = ("byte_length", "hal_buffer")

    def __init__(self, buffer: devices.Buffer) -> None:
        self.hal_buffer: devices.Buffer | None = buffer.share()
        self.byte_length = buffer.byte_length

    def live(self) -> devices.Buffer:
        """The HAL buffer. Raises FailedPrecondition once the VM buffer has ended."""
        if self.hal_buffer is None:
            raise errors.FailedPrecondition(f"a storage wrapper of {self.byte_length} bytes was freed")
        return self.hal_buffer

    # -- bytes: HostBytes ------------------------------------------------------------------------------

    def read(self) -> memoryview:
        """The bytes for reading, brought to the host where they are not; valid until the next device work."""
        return self.live().read()

    def write(self) -> memoryview:
        """The bytes for writing; the device's become stale."""
        return self.live().write()

    def current(self, write: bool) -> object:
        """The allocation's host view, while views of it are valid; see :class:`~halgpu.vm.buffer.HostBytes`."""
        buffer = self.hal_buffer
        root = None if buffer is None else buffer.root
        return None if root is None or (write and not root.dirty) else root.view

    def fill(self, offset: int, length: int, pattern: bytes) -> bool:
        """Fill where the newest bytes are. False for what a device cannot: odd patterns and alignments."""
        size = len(pattern)
        if size not in (1, 2, 4, 8) or offset % size or length % size:
            return False
        self.live().fill(offset, length, pattern)
        return True

    def copy_from(self, source: HostBytes, source_offset: int, offset: int, length: int) -> bool:
        """Copy where the newest bytes are. False unless ``source`` is a storage wrapper too."""
        if type(source) is not Storage:
            return False
        self.live().copy_from(source.live(), source_offset, offset, length)
        return True

    # -- allocator: only the end of this wrapper -------------------------------------------------------

    def free(self, handle: Any) -> None:
        """Drop the HAL buffer. Raises FailedPrecondition for a second call or another's handle."""
        if handle is not self:
            raise errors.FailedPrecondition("a storage wrapper frees nothing but itself")
        buffer = self.live()
        self.hal_buffer = None
        buffer.release()

    def allocate_aligned(self, byte_length: int, alignment: int) -> NoReturn:
        """Raises FailedPrecondition."""
        raise self._misused("allocate")

    def free_aligned(self, handle: Any) -> NoReturn:
        """Raises FailedPrecondition."""
        raise self._misused("free aligned memory")

    def _misused(self, what: str) -> errors.FailedPrecondition:
        return errors.FailedPrecondition(
            f"a storage wrapper cannot {what}: as an allocator it only ends its own buffer"
        )


def wrap(buffer: devices.Buffer) -> Buffer:
    """Return a VM buffer over the bytes of a HAL buffer; it is mutable where the host may write those.

    Nothing moves before the VM looks at bytes. Raises PermissionDenied for a HAL buffer that the host may not
    read, FailedPrecondition for a released one; nothing is kept then.
    """
    buffer.require(HOST_READ)
    storage = Storage(buffer)
    access = _READ_WRITE if buffer.rights & HOST_WRITE else _READ_ONLY
    try:
        return Buffer.initialize(access, storage, storage)
    except BaseException:
        storage.free(storage)
        raise


def unwrap(buffer: Buffer) -> devices.Buffer | None:
    """The HAL buffer under a VM buffer made by :func:`wrap`; None for any other. Nothing is retained."""
    source = buffer.source
    return source.hal_buffer if type(source) is Storage else None
