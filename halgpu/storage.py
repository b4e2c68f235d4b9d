"""The storage wrapper: a VM buffer over the bytes of a HAL buffer.

A program sees device memory as host bytes. The VM buffer is initialized in place over this wrapper, which is
both its bytes (``HostBytes``: residency decides when anything moves) and its allocator: on ``free``, which
comes once, also for empty buffers, the wrapper releases itself. It is a share of the HAL buffer, so that the
other holders may release theirs in any order.

The role is that of ``iree_hal_inline_storage_buffer_t`` (IREE modules/hal/inline/module.c).
"""

from __future__ import annotations

from typing import Any, NoReturn

from halgpu import errors
from halgpu.devices.buffer import HOST_READ, HOST_WRITE
from halgpu.devices.buffer import Buffer as HalBuffer
from halgpu.vm.allocator import Allocator
from halgpu.vm.buffer import Buffer, BufferAccess, HostBytes

# Plain ints: an operator of enum takes as long as all the rest of a wrapper.
_READ_ONLY = int(BufferAccess.ORIGIN_HOST)
_READ_WRITE = int(BufferAccess.ORIGIN_HOST | BufferAccess.MUTABLE)


class Storage(HalBuffer, Allocator):
    """A share of a HAL buffer that is the bytes and the allocator of one VM buffer. Made by :func:`wrap`.

    It is released when the VM buffer has ended. ``hal_buffer`` is itself until then, and None afterwards: nothing else
    that a VM buffer can be initialized over has an attribute of that name, which is the quickest test (hal_loader.py).
    """

    __slots__ = ("hal_buffer",)

    def __init__(self, buffer: HalBuffer) -> None:
        HalBuffer.__init__(
            self, buffer.root or buffer.live(), buffer.offset, buffer.byte_length, buffer.access, buffer.usage,
            buffer.memory_type, buffer.rights,
        )  # fmt: skip
        self.hal_buffer: HalBuffer | None = self

    # -- bytes: HostBytes, with what a HAL buffer has already ------------------------------------------

    def current(self, write: bool) -> object:
        """The allocation's host view, while views of it are valid; see :class:`~halgpu.vm.buffer.HostBytes`."""
        root = self.root
        return None if root is None or (write and not root.dirty) else root.view

    def try_fill(self, offset: int, length: int, pattern: bytes) -> bool:
        """Fill where the newest bytes are. False for what a device cannot: odd patterns and alignments."""
        size = len(pattern)
        if size not in (1, 2, 4, 8) or offset % size or length % size:
            return False
        self.fill(offset, length, pattern)
        return True

    def try_copy_from(self, source: HostBytes, source_offset: int, offset: int, length: int) -> bool:
        """Copy where the newest bytes are. False unless ``source`` is a storage wrapper too."""
        if type(source) is not Storage:
            return False
        self.copy_from(source, source_offset, offset, length)
        return True

    # -- allocator: only the end of this wrapper -------------------------------------------------------

    def free(self, handle: Any) -> None:
        """Release this. Raises FailedPrecondition for a second call or another's handle."""
        if handle is not self:
            raise errors.FailedPrecondition("a storage wrapper frees nothing but itself")
        if self.root is None:
            raise errors.FailedPrecondition(f"a storage wrapper of {self.byte_length} bytes was freed")
        self.hal_buffer = None
        self.release()

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


def wrap(buffer: HalBuffer) -> Buffer:
    """Return a VM buffer over the bytes of a HAL buffer; it is mutable where the host may write those.

    Nothing moves before the VM looks at bytes. Raises PermissionDenied for a HAL buffer that the host may not
    read, FailedPrecondition for a released one; nothing is kept then.
    """
    rights = buffer.rights
    if not rights & HOST_READ:
        buffer.require(HOST_READ)
    storage = Storage(buffer)
    access = _READ_WRITE if rights & HOST_WRITE else _READ_ONLY
    try:
        return Buffer.over(access, storage, storage, storage)
    except BaseException:
        storage.free(storage)
        raise


def unwrap(buffer: Buffer) -> HalBuffer | None:
    """The HAL buffer under a VM buffer made by :func:`wrap`; None for any other. Nothing is retained."""
    source = buffer.source
    return source if type(source) is Storage else None
