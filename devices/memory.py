"""One allocation of a device, and the flags that say where it lies and who may touch it.

``Memory`` is what a backend implements; ``Residency`` (residency.py) decides when it is called.
"""

from __future__ import annotations

import enum
import itertools
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol


class MemoryAccess(enum.IntFlag):
    """How a mapping or a program may touch bytes; values of ``iree_hal_memory_access_bits_t``."""

    NONE = 0
    READ = 1 << 0
    WRITE = 1 << 1
    DISCARD = 1 << 2
    DISCARD_WRITE = WRITE | DISCARD
    ALL = READ | WRITE | DISCARD


class MemoryType(enum.IntFlag):
    """Where a buffer's bytes live; values of ``iree_hal_memory_type_bits_t``."""

    NONE = 0
    OPTIMAL = 1 << 0
    HOST_VISIBLE = 1 << 1
    HOST_COHERENT = 1 << 2
    HOST_CACHED = 1 << 3
    DEVICE_VISIBLE = 1 << 4
    HOST_LOCAL = HOST_VISIBLE | HOST_COHERENT | (1 << 6)
    DEVICE_LOCAL = DEVICE_VISIBLE | (1 << 5)
    OPTIMAL_FOR_HOST = OPTIMAL | HOST_LOCAL
    OPTIMAL_FOR_DEVICE = OPTIMAL | DEVICE_LOCAL


class BufferUsage(enum.IntFlag):
    """What a buffer may be used for; values of ``iree_hal_buffer_usage_bits_t``."""

    NONE = 0
    TRANSFER_SOURCE = 1 << 0
    TRANSFER_TARGET = 1 << 1
    TRANSFER = TRANSFER_SOURCE | TRANSFER_TARGET
    DISPATCH_STORAGE_READ = 1 << 10
    DISPATCH_STORAGE_WRITE = 1 << 11
    DISPATCH_STORAGE = DISPATCH_STORAGE_READ | DISPATCH_STORAGE_WRITE
    MAPPING_SCOPED = 1 << 24
    MAPPING_PERSISTENT = 1 << 25
    MAPPING = MAPPING_SCOPED | MAPPING_PERSISTENT


_serials = itertools.count(1)


class Memory(ABC):
    """One allocation of a backend, from its birth to :meth:`free`.

    Residency decides *when* these are called; a backend only says *how*. Calls come one at a time, under the
    device's lock, but :meth:`free`, which may come from any thread and from inside a garbage collection, so
    it takes no lock and waits for nothing. Each transfer returns the number of bytes it moved: 0 where host
    and device share the memory. A backend with a timer gives each command's event to who records (profile.py).
    """

    __slots__ = ("__weakref__", "byte_length", "capacity", "serial")

    mirrored: ClassVar[bool] = False
    """The host's bytes are a copy, which stays valid while the device only reads its own."""

    def __init__(self, byte_length: int) -> None:
        self.byte_length = byte_length
        self.capacity = byte_length
        """Bytes that the memory behind it has; more than ``byte_length`` where a pool rounds up."""
        self.serial = next(_serials)
        """Never used for other memory, unlike an address or an id: two equal serials have the same handle."""

    @property
    @abstractmethod
    def handle(self) -> Any:
        """The native object that a kernel takes for this allocation."""

    @abstractmethod
    def acquire_host(self, *, read: bool, write: bool) -> tuple[memoryview, int]:
        """Make all bytes addressable by the host and wait for device work on them.

        Returns a writable flat ``B`` memoryview of ``byte_length`` bytes and the number of bytes brought
        down. With ``read`` false, the device has nothing that the host lacks. With ``write`` false, the host
        will not write. Called again without a release between, it turns reading into writing. The memory
        behind the view stays as long as anybody holds the view, whatever happens to the allocation.
        """

    @abstractmethod
    def release_host(self, *, dirty: bool) -> int:
        """Give the bytes back to the device; when ``dirty``, with what the host wrote. Returns bytes up."""

    @abstractmethod
    def fill(self, offset: int, length: int, pattern: bytes) -> None:
        """Enqueue a fill of device bytes; offset and length are multiples of the pattern's 1, 2, 4 or 8."""

    @abstractmethod
    def copy_from(self, source: Memory, source_offset: int, offset: int, length: int) -> None:
        """Enqueue a copy of device bytes from an allocation of the same device; ranges may overlap."""

    @abstractmethod
    def free(self) -> None:
        """Return the memory to where it came from. Called once. Work already enqueued may still use it."""

    def recycle(self) -> Block | None:
        """End as :meth:`free` does, but return what a later allocation of this capacity can be made from.

        None where nothing can, such as memory that somebody still sees through a view. Called instead of
        :meth:`free`, under the same rules.
        """
        self.free()
        return None


class Block(Protocol):
    """Memory between two allocations, kept by a pool. Holds no device."""

    def ready(self) -> bool:
        """Whether the device is done with it, so that a new allocation can have it without waiting."""

    def drop(self) -> None:
        """Give the memory back to where it came from. Called once; waits for nothing."""
