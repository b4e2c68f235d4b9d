"""HAL buffers: ranges of a device allocation, how they are made, mapped, filled and copied.

    Allocator.allocate ──> Buffer (root range) ──subspan──> Buffer ──subspan──> …
                             └───────────── all hold one Root: allocation + residency ─────────────┘

The allocation is freed, once, when the last buffer or mapping that holds its root is released or dropped.
"""

from __future__ import annotations

import operator
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from halgpu.devices.forks import keep_forever
from halgpu.devices.memory import BufferUsage, MemoryAccess, MemoryType
from halgpu.devices.residency import Residency, State
from halgpu.errors import (
    FailedPrecondition,
    InvalidArgument,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
)

if TYPE_CHECKING:
    from halgpu.devices.base import Device
    from halgpu.devices.memory import Memory

MAX_ALIGNMENT = 4096
"""Bytes: the largest alignment that an allocation promises to its host bytes (hostmemory.py)."""
_ALIGNMENTS = frozenset(1 << bit for bit in range(MAX_ALIGNMENT.bit_length()))

DEFAULT_USAGE = BufferUsage.TRANSFER | BufferUsage.DISPATCH_STORAGE | BufferUsage.MAPPING
DEFAULT_TYPE = MemoryType.HOST_LOCAL | MemoryType.DEVICE_VISIBLE

R = TypeVar("R", bound="Root")

# What a buffer may be used for, worked out once from its access, usage and memory type.
HOST_READ, HOST_WRITE, KERNEL_READ, KERNEL_WRITE, SOURCE, TARGET = (1 << bit for bit in range(6))

ALL_RIGHTS = (1 << 6) - 1

_RIGHTS = (
    # right, access, any of these usages, memory type, what to say
    (HOST_READ, MemoryAccess.READ, BufferUsage.MAPPING, MemoryType.HOST_VISIBLE, "be read by the host"),
    (HOST_WRITE, MemoryAccess.WRITE, BufferUsage.MAPPING, MemoryType.HOST_VISIBLE, "be written by the host"),
    (KERNEL_READ, MemoryAccess.READ, BufferUsage.DISPATCH_STORAGE_READ, MemoryType.DEVICE_VISIBLE,
     "be read by a kernel"),
    (KERNEL_WRITE, MemoryAccess.WRITE, BufferUsage.DISPATCH_STORAGE_WRITE, MemoryType.DEVICE_VISIBLE,
     "be written by a kernel"),
    (SOURCE, MemoryAccess.READ, BufferUsage.TRANSFER_SOURCE, MemoryType.NONE, "be copied from"),
    (TARGET, MemoryAccess.WRITE, BufferUsage.TRANSFER_TARGET, MemoryType.NONE, "be filled or copied to"),
)  # fmt: skip


# Operators of enum flags take about a microsecond each; what every allocation and mapping needs is worked
# out once, or with plain ints.
_READ, _WRITE, _DISCARD = int(MemoryAccess.READ), int(MemoryAccess.WRITE), int(MemoryAccess.DISCARD)


@lru_cache
def rights_of(access: MemoryAccess, usage: BufferUsage, memory_type: MemoryType) -> int:
    """Return the bits of HOST_READ … TARGET that a buffer with these flags has."""
    rights = 0
    for right, needs_access, any_usage, needs_type, _ in _RIGHTS:
        if access & needs_access and usage & any_usage and memory_type & needs_type == needs_type:
            rights |= right
    return rights


class Root(Residency):
    """One allocation with its residency: what all ranges of it share and whose end frees it."""

    __slots__ = ("allocator", "byte_length", "device", "maps")

    def __init__(self, allocator: Allocator, memory: Memory, byte_length: int) -> None:
        self.device = device = allocator.device
        Residency.__init__(self, memory, device.counters)
        self.allocator = allocator
        self.byte_length = byte_length
        self.maps = 0
        """Live mappings, nested ones counted."""

    def __del__(self) -> None:
        # The one place where an allocation ends: called once by Python (PEP 442), in whatever order things
        # die. Nothing global is used, since this may run while the interpreter shuts down.
        self.view = None  # so that only views held by others keep the memory from being used again
        self.counters.known.clear()  # which holds the memory
        self.allocator.reclaim(self.memory, self.byte_length)


class Buffer:
    """A range of bytes of a device allocation.

    ``device``, ``byte_length`` (bytes), ``offset`` (bytes from the start of the allocation), ``access``,
    ``usage`` and ``memory_type`` are fixed at birth. Also a context manager that releases it. Using a
    released buffer raises FailedPrecondition.
    """

    __slots__ = (
        "__weakref__", "access", "byte_length", "device", "dispatch_token", "kept", "memory_type", "offset",
        "rights", "root", "usage",
    )  # fmt: skip

    def __init__(
        self, root: Root, offset: int, byte_length: int, access: MemoryAccess, usage: BufferUsage,
        memory_type: MemoryType, rights: int,
    ) -> None:  # fmt: skip
        """Use :meth:`Allocator.allocate` and :meth:`subspan`."""
        self.root: Root | None = root
        self.device = root.device
        self.offset = offset
        self.byte_length = byte_length
        self.access = access
        self.usage = usage
        self.memory_type = memory_type
        self.rights = rights
        self.dispatch_token = 0
        """Stands for this buffer in what dispatches remember (dispatch.py); 0 until one does."""
        self.kept: Any = None
        """What a program made of this buffer and will want again; dropped when the buffer is released."""

    def __repr__(self) -> str:
        state = "released" if self.root is None else self.root.state.value
        return f"<Buffer {self.byte_length} bytes at {self.offset} on {self.device.uri}, {state}>"

    # -- life ------------------------------------------------------------------------------------------

    @property
    def released(self) -> bool:
        """Whether :meth:`release` was called."""
        return self.root is None

    def release(self) -> None:
        """End this buffer's life now; a second call does nothing.

        The allocation is freed unless subspans, mappings or views of the same allocation still hold it.
        """
        root, self.root = self.root, None
        self.kept = None
        if root is not None:
            allocator = root.allocator
            root.counters.known.clear()
            del root
            allocator.after_release()

    def __enter__(self) -> Buffer:
        self.live()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def live(self) -> Root:
        """The allocation. Raises FailedPrecondition once the buffer was released."""
        root = self.root
        if root is None:
            raise FailedPrecondition(
                f"a buffer of {self.byte_length} bytes on {self.device.uri} was released"
            )
        return root

    @property
    def state(self) -> State:
        """Where the valid bytes of the whole allocation are."""
        return self.live().state

    def subspan(self, offset: int, length: int | None = None) -> Buffer:
        """Return the buffer of ``length`` bytes at ``offset`` in this one; it shares bytes and residency.

        ``length`` None means to the end. Raises OutOfRange where it does not fit.
        """
        root = self.live()
        offset, length = self._range(offset, length, "subspan")
        return Buffer(
            root, self.offset + offset, length, self.access, self.usage, self.memory_type, self.rights
        )

    def share(self) -> Buffer:
        """Return another buffer of the same bytes, with a life of its own."""
        return Buffer(
            self.live(), self.offset, self.byte_length, self.access, self.usage, self.memory_type, self.rights
        )

    def _range(self, offset: int, length: int | None, what: str) -> tuple[int, int]:
        if length is None:
            length = self.byte_length - offset
        if offset < 0 or length < 0 or offset + length > self.byte_length:
            raise OutOfRange(
                f"{what} of {length} bytes at offset {offset} does not fit "
                f"a buffer of {self.byte_length} bytes"
            )
        return offset, length

    def require(self, rights: int) -> None:
        """Raise PermissionDenied, saying why, unless the buffer has all of HOST_READ … TARGET asked for."""
        missing = rights & ~self.rights
        if missing:
            raise denied(self, missing)

    # -- host access -----------------------------------------------------------------------------------

    def read(self) -> memoryview:
        """Return the bytes as a read-only flat ``B`` memoryview, valid until the next device work.

        Waits for device work on them and brings them to the host only when its bytes are stale; no copy is
        made otherwise. A view held longer keeps its memory, but shows old bytes.
        """
        root = self.root
        if root is None:
            root = self.live()
        if not self.rights & HOST_READ:
            raise denied(self, HOST_READ)
        view = root.view
        if view is None:
            view = root.host()
        offset = self.offset
        return view[offset : offset + self.byte_length].toreadonly()

    def write(self, *, discard: bool = False) -> memoryview:
        """Return the bytes as a writable flat ``B`` memoryview, valid until the next device work.

        As :meth:`read`, and the device's bytes become stale. ``discard``: the caller overwrites all of them,
        so that nothing has to be brought.
        """
        root = self.root
        if root is None:
            root = self.live()
        if not self.rights & HOST_WRITE:
            raise denied(self, HOST_WRITE)
        view = root.host(write=True, discard=discard and self.byte_length == root.byte_length)
        offset = self.offset
        return view[offset : offset + self.byte_length]

    def map(self, access: MemoryAccess, offset: int = 0, length: int | None = None) -> Mapping:
        """Map ``length`` bytes at ``offset`` (None: to the end) for the host; end it by ``unmap`` or ``with``.

        ``access``: READ, WRITE, both, or WRITE with DISCARD (all bytes of the range will be overwritten).
        Mappings may nest and overlap. Raises OutOfRange, PermissionDenied, or InvalidArgument for an access
        without READ and WRITE.
        """
        root = self.live()
        bits = int(access)
        if not bits & (_READ | _WRITE):
            raise InvalidArgument(f"a mapping needs READ or WRITE access, found {access!r}")
        self.require((HOST_READ if bits & _READ else 0) | (HOST_WRITE if bits & _WRITE else 0))
        offset, length = self._range(offset, length, "mapping")
        return Mapping(root, access, self.offset + offset, length)

    def update(self, data: Any, offset: int = 0) -> None:
        """Copy ``data`` (any C-contiguous bytes-like object) to byte ``offset``. Raises OutOfRange."""
        root = self.live()
        self.require(TARGET)
        source = flat(data)
        offset, length = self._range(offset, source.nbytes, "update")
        start = self.offset + offset
        view = root.host(write=True, discard=length == root.byte_length)
        view[start : start + length] = source

    # -- device work -----------------------------------------------------------------------------------

    def fill(self, offset: int, length: int | None, pattern: bytes) -> None:
        """Fill with a pattern of 1, 2, 4 or 8 bytes.

        ``offset`` and ``length`` (None: to the end) are bytes, and multiples of the pattern's size.
        Runs where the newest bytes are; on the device it is enqueued and not waited for.
        """
        root = self.live()
        self.require(TARGET)
        offset, length = self._range(offset, length, "fill")
        size = len(pattern)
        if size not in (1, 2, 4, 8):
            raise InvalidArgument(f"a fill pattern has 1, 2, 4 or 8 bytes, found {size}")
        if offset % size or length % size:
            raise InvalidArgument(
                f"fill offset {offset} and length {length} must be multiples of the pattern's {size} bytes"
            )
        if length:
            root.fill(self.offset + offset, length, bytes(pattern))

    def copy_from(self, source: Buffer, source_offset: int, offset: int, length: int) -> None:
        """Copy ``length`` bytes of ``source`` at ``source_offset`` to ``offset``; ranges may overlap.

        Runs where the newest bytes are; on the device it is enqueued and not waited for. A source on another
        device is read through the host.
        """
        root, other = self.live(), source.live()
        self.require(TARGET)
        source.require(SOURCE)
        self._range(offset, length, "copy target")
        source._range(source_offset, length, "copy source")
        if not length:
            return
        if other.device is root.device:
            root.copy_from(other, source.offset + source_offset, self.offset + offset, length)
        else:
            start = source.offset + source_offset
            self.update(other.host()[start : start + length], offset)


class Mapping:
    """A range of a buffer that the host may access, until :meth:`unmap` or the end of its ``with`` block.

    It holds the allocation, not the buffer: releasing the buffer first is fine.
    """

    __slots__ = ("__weakref__", "_handed_out", "_root", "_write", "access", "byte_length", "offset")

    def __init__(self, root: Root, access: MemoryAccess, offset: int, byte_length: int) -> None:
        """Use :meth:`Buffer.map`."""
        self._root: Root | None = None
        self._handed_out = False
        self.access = access
        self.offset = offset
        self.byte_length = byte_length
        bits = int(access)
        self._write = bool(bits & _WRITE)
        root.host(write=self._write, discard=bool(bits & _DISCARD) and byte_length == root.byte_length)
        root.maps += 1
        self._root = root

    def _live(self) -> Root:
        if self._root is None:
            raise FailedPrecondition(f"a mapping of {self.byte_length} bytes was unmapped")
        return self._root

    @property
    def contents(self) -> memoryview:
        """The range as a flat ``B`` memoryview, writable with WRITE access.

        Ask again after device work: a view from before keeps its memory, but may show old bytes.
        """
        root = self._live()
        view = root.host(write=self._write)[self.offset : self.offset + self.byte_length]
        if not self._write:
            return view.toreadonly()
        if not self._handed_out:
            self._handed_out = True
            root.writers += 1
        return view

    def flush(self) -> None:
        """Bring what the host wrote to the device now; device work does so anyway."""
        root = self._live()
        root.require_same_process()
        with root.counters.lock:
            root.device_reads()

    def invalidate(self) -> None:
        """Bring what the device wrote to the host now; :attr:`contents` does so anyway."""
        self._live().host()

    def unmap(self) -> None:
        """End the mapping; a second call does nothing. Bytes written are seen by later device work."""
        root, self._root = self._root, None
        if root is not None:
            root.maps -= 1
            root.writers -= self._handed_out

    def __enter__(self) -> Mapping:
        self._live()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.unmap()

    def __del__(self) -> None:
        self.unmap()


class Allocator:
    """Makes a device's buffers. Obtained from :attr:`Device.allocator`."""

    __slots__ = ("__weakref__", "device")

    def __init__(self, device: Device) -> None:
        self.device = device

    def allocate(
        self,
        byte_length: int,
        *,
        alignment: int = 64,
        usage: BufferUsage = DEFAULT_USAGE,
        memory_type: MemoryType = DEFAULT_TYPE,
        access: MemoryAccess = MemoryAccess.ALL,
    ) -> Buffer:
        """Return a new buffer of ``byte_length`` bytes, 0 included; its contents are undefined.

        ``alignment`` is in bytes, a power of two up to 4096. Raises InvalidArgument for a negative size or a
        bad alignment, ResourceExhausted, with size and limit, for more than the device gives.
        """
        device = self.device
        if not (
            type(byte_length) is int
            and 0 <= byte_length <= device.capabilities.max_allocation
            and alignment in _ALIGNMENTS
            and device.unusable is None
        ):
            byte_length = self.checked(byte_length, alignment)
        root = self.root(byte_length, Root)
        if access is MemoryAccess.ALL and usage is DEFAULT_USAGE and memory_type is DEFAULT_TYPE:
            rights = ALL_RIGHTS
        else:
            rights = rights_of(access, usage, memory_type)
        return Buffer(root, 0, byte_length, access, usage, memory_type, rights)

    def root(self, byte_length: int, kind: type[R]) -> R:
        """Return a new allocation, counted."""
        root = kind(self, self.obtain(byte_length), byte_length)
        counters = root.counters
        with counters.lock:
            counters.allocated(byte_length)
        return root

    def checked(self, byte_length: int, alignment: int) -> int:
        """Return the size as an int, or raise for one that cannot be."""
        byte_length = operator.index(byte_length)
        self.device.require_usable()
        limit = self.device.capabilities.max_allocation
        if byte_length < 0:
            raise InvalidArgument(f"a buffer has 0 or more bytes, found {byte_length}")
        if byte_length > limit:
            raise ResourceExhausted(
                f"a buffer of {byte_length} bytes is more than {self.device.uri} gives at once: limit {limit}"
            )
        if not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise InvalidArgument(
                f"buffer alignment must be a power of two up to {MAX_ALIGNMENT}, found {alignment}"
            )
        return byte_length

    def obtain(self, byte_length: int) -> Memory:
        """Return memory for ``byte_length`` bytes, used before if the pool has some."""
        # OpenCL 1.2 5.2.1 refuses buffers of size 0; no backend ever sees one.
        byte_length = byte_length or 1
        device, pool = self.device, self.device.pool
        if not pool.minimum <= byte_length <= pool.limit:
            return device.allocate_memory(byte_length)
        capacity = min(pool.capacity(byte_length), device.capabilities.max_allocation)
        block = pool.take(capacity)
        if block is None and pool.crowded(capacity):
            device.wait_idle()
            block = pool.take(capacity)
        try:
            return device.pooled_memory(byte_length, capacity, block)
        except ResourceExhausted:
            if not pool.trim():
                raise
            device.wait_idle()
            return device.pooled_memory(byte_length, capacity, None)

    def reclaim(self, memory: Memory, byte_length: int) -> None:
        """Take back memory whose last holder is gone; may run inside a garbage collection, in any thread."""
        device = self.device
        device.counters.freed(byte_length)
        if device.counters.forked:
            keep_forever(memory)
            return
        pool = device.pool
        if not pool.minimum <= memory.capacity <= pool.limit or device.unusable is not None:
            memory.free()
            return
        block = memory.recycle()
        if block is not None:
            pool.give(memory.capacity, block)

    def after_release(self) -> None:
        """Called after the release of each buffer; the debug allocator raises what it found."""

    def trim(self, keep: int = 0) -> int:
        """Give pooled memory back to the device until ``keep`` bytes are left; returns how many bytes went."""
        return self.device.pool.trim(keep)

    @property
    def pool_limit(self) -> int:
        """Most bytes of freed memory that are kept for later buffers; 0 keeps none. May be set."""
        return self.device.pool.limit

    @pool_limit.setter
    def pool_limit(self, limit: int) -> None:
        if limit < 0:
            raise InvalidArgument(f"a pool keeps 0 or more bytes, found {limit}")
        self.device.pool.limit = limit


def flat(data: Any) -> memoryview:
    """Return a bytes-like object's bytes as a flat ``B`` memoryview, not copied; InvalidArgument for others."""
    try:
        view = memoryview(data)
        # A view with a 0 in its shape cannot be cast.
        return view.cast("B") if view.nbytes else memoryview(b"")
    except (TypeError, ValueError, BufferError) as error:
        raise InvalidArgument(
            f"expected a C-contiguous bytes-like object, found {type(data).__name__}: {error}"
        ) from error


def denied(buffer: Buffer, missing: int) -> PermissionDenied:
    """Return the error for the first right of ``missing`` that ``buffer`` lacks."""
    for right, access, usage, memory_type, verb in _RIGHTS:
        if missing & right:
            return PermissionDenied(
                f"a buffer of {buffer.byte_length} bytes on {buffer.device.uri} may not {verb}: that needs "
                f"access {access!r}, usage {usage!r} and memory type {memory_type!r}; "
                f"it has {buffer.access!r}, {buffer.usage!r}, {buffer.memory_type!r}"
            )
    raise AssertionError(f"no such right: {missing:#x}")
