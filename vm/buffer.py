"""VM buffers: byte ranges that a program loads from, stores to and passes around.

A buffer ends in one of three ways, fixed when it is made:

* *co-allocated* by :meth:`Buffer.create` or :meth:`Buffer.clone`: handle and bytes are one aligned allocation, the
  access flags hold ``COALLOCATED``, and it ends with ``allocator.free_aligned(handle)``;
* *initialized in place* by :meth:`Buffer.initialize` over bytes that somebody else owns: never flagged, ends with
  ``allocator.free(handle)``, also when it is empty, which is how the owner learns that the VM is done;
* *module-owned* by :meth:`Buffer.module_storage`: rodata; keeps its module alive and frees nothing.

The end comes once: with the last reference, or early by :meth:`Buffer.release` or ``with``. Rules and messages
follow runtime/src/iree/vm/buffer.h and buffer.c.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NoReturn, Protocol, Self

from halgpu import errors
from halgpu.vm.allocator import DEFAULT_ALIGNMENT, DEFAULT_ALLOCATOR, Allocator, checked_alignment
from halgpu.vm.siphash import siphash24


class BufferAccess(enum.IntFlag):
    """Where a buffer's bytes come from and whether programs may write them; reading is always allowed."""

    MUTABLE = 1
    ORIGIN_MODULE = 2
    ORIGIN_GUEST = 4
    ORIGIN_HOST = 8
    COALLOCATED = 1 << 16
    """Handle and bytes are one allocation. Set by ``create`` and ``clone`` only."""


class HostBytes(Protocol):
    """Bytes seen through host memory whose place may be elsewhere, such as on a device.

    One that also has ``current(write: bool) -> object`` is asked for its bytes less often: it returns what stays the
    same object as long as what ``read`` or ``write`` returned is valid, and None when it has to be asked.
    """

    @property
    def byte_length(self) -> int:
        """Number of bytes; does not change."""
        ...

    def read(self) -> memoryview:
        """The bytes for reading, valid until the next device work."""

    def write(self) -> memoryview:
        """The bytes for reading and writing, valid until the next device work."""

    def try_fill(self, offset: int, length: int, pattern: bytes) -> bool:
        """Fill in place; False when the caller has to do it on host bytes."""

    def try_copy_from(self, source: HostBytes, source_offset: int, offset: int, length: int) -> bool:
        """Copy from ``source`` in place; False when the caller has to do it on host bytes."""


_GUEST = BufferAccess.MUTABLE | BufferAccess.ORIGIN_GUEST
# Flag operations of enum take a microsecond each; buffers are made in every call of a program.
_MUTABLE = int(BufferAccess.MUTABLE)
_COALLOCATED = int(BufferAccess.COALLOCATED)
_CHUNK = 1 << 18  # fills and compares go through host memory in pieces of this many bytes
_TYPED = {"b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "q": 8, "f": 4, "d": 8}


class Buffer:
    """A fixed-length range of bytes; made by the class methods, see the module's text."""

    __slots__ = (
        "__weakref__", "_access", "_end", "_handle", "_memory", "_owner", "byte_length", "reads", "source",
        "writes",
    )  # fmt: skip

    _access: int
    _memory: memoryview | None
    source: HostBytes | None
    """The :class:`HostBytes` this buffer was initialized over, None for plain host memory. Only read."""
    _owner: object
    _end: Callable[[Any], None] | None
    _handle: Any

    byte_length: int
    """Number of bytes."""
    reads: _Views
    """Typed views for element loads, by format character. Not there before :meth:`typed` or :meth:`look` made them:
    most buffers over a :class:`HostBytes` are only passed on."""
    writes: _Views
    """Typed views for element stores; refuse where the buffer is read-only. Made together with ``reads``."""

    def __init__(self) -> None:
        raise TypeError("use Buffer.create, Buffer.clone, Buffer.initialize or Buffer.module_storage")

    @classmethod
    def create(
        cls,
        byte_length: int,
        access: BufferAccess = _GUEST,
        alignment: int = DEFAULT_ALIGNMENT,
        allocator: Allocator | None = None,
    ) -> Self:
        """Allocate a zeroed buffer of ``byte_length`` bytes at a multiple of ``alignment`` (0 for the default).

        Raises InvalidArgument for a bad alignment or for COALLOCATED in ``access``, ResourceExhausted without memory.
        """
        flags = _outside(access) | _COALLOCATED
        if allocator is None:
            allocator = DEFAULT_ALLOCATOR
        handle = allocator.allocate_aligned(byte_length, checked_alignment(alignment))
        return cls._make(flags, handle.memory, None, allocator.free_aligned, handle)

    @classmethod
    def clone(
        cls,
        source: Buffer,
        offset: int,
        length: int,
        access: BufferAccess = _GUEST,
        alignment: int = DEFAULT_ALIGNMENT,
        allocator: Allocator | None = None,
    ) -> Self:
        """Allocate a buffer and copy ``length`` bytes of ``source`` from ``offset`` into it.

        Raises as :meth:`create` does, and OutOfRange when the range does not lie in ``source``.
        """
        source.check_range(offset, length)
        made = cls.create(length, access, alignment, allocator)
        if length:
            assert made._memory is not None
            made._memory[:] = source._readable()[offset : offset + length]
        return made

    @classmethod
    def initialize(
        cls,
        access: int,
        data: memoryview | HostBytes | Any,
        allocator: Allocator,
        handle: Any = None,
    ) -> Self:
        """Make a buffer over bytes that exist: a contiguous buffer or a :class:`HostBytes`; nothing is copied.

        ``allocator.free(handle)`` is called once when the buffer ends; ``handle`` defaults to ``data``.
        Raises InvalidArgument for COALLOCATED in ``access`` or for MUTABLE over read-only memory.
        """
        flags = _outside(access)
        handle = data if handle is None else handle
        kind: object = type(data)
        if _has_host_bytes(kind):
            source: Any = data
            return cls.over(flags, source, allocator, handle)
        return cls._make(flags, _flat(data, writable=bool(flags & _MUTABLE)), None, allocator.free, handle)

    @classmethod
    def over(cls, access: int, source: HostBytes, allocator: Allocator, handle: Any) -> Self:
        """What :meth:`initialize` does, for callers who know that the arguments are right: nothing is checked."""
        return cls._make(access, None, source, allocator.free, handle)

    @classmethod
    def module_storage(cls, data: memoryview, module: object) -> Self:
        """Make a read-only buffer over ``data`` that keeps ``module``, the owner of the bytes, alive."""
        made = cls._make(int(BufferAccess.ORIGIN_MODULE), _flat(data, writable=False), None)
        made._owner = module
        return made

    @classmethod
    def _make(
        cls, access: int, memory: memoryview | None, source: HostBytes | None,
        end: Callable[[Any], None] | None = None, handle: Any = None,
    ) -> Self:  # fmt: skip
        made = object.__new__(cls)
        made._end = end
        made._handle = handle
        made._owner = None
        made._access = access
        made._memory = memory
        made.source = source
        if source is not None:
            made.byte_length = source.byte_length
        else:
            assert memory is not None
            made.byte_length = len(memory)
        return made

    def look(self) -> bool:
        """Make ``reads`` and ``writes``; false where they are there already."""
        if hasattr(self, "reads"):
            return False
        writable: _Views
        if self.source is not None:
            self.reads, writable = _SourceViews(self.source, False), _SourceViews(self.source, True)
        else:
            self.reads = writable = _MemoryViews(self._readable())
        self.writes = writable if self._access & _MUTABLE else _READ_ONLY
        return True

    def typed(self, write: bool) -> _Views:
        """``writes`` or ``reads``, made if they are not there yet."""
        if not hasattr(self, "reads"):
            self.look()
        return self.writes if write else self.reads

    @property
    def access(self) -> BufferAccess:
        """The access flags."""
        return BufferAccess(self._access)

    @property
    def released(self) -> bool:
        """Whether :meth:`release` was called."""
        return self._memory is None and self.source is None

    def read_view(self) -> memoryview:
        """The bytes as a read-only view of format ``B``, not copied.

        Over a :class:`HostBytes` it is valid until the next device work. Raises FailedPrecondition after release.
        """
        return self._readable().toreadonly()

    def write_view(self) -> memoryview:
        """The bytes as a writable view of format ``B``, not copied; as valid as :meth:`read_view`.

        Raises PermissionDenied when the buffer is not MUTABLE, FailedPrecondition after release.
        """
        return self._writable()

    def __bytes__(self) -> bytes:
        return bytes(self._readable())

    def check_range(self, offset: int, length: int) -> None:
        """Raise OutOfRange unless bytes ``offset`` to ``offset + length`` lie in the buffer."""
        if offset < 0 or length < 0 or offset + length > self.byte_length:
            raise out_of_range(offset, length, self.byte_length)

    def fill(self, offset: int, length: int, pattern: bytes) -> None:
        """Fill ``length`` bytes from ``offset`` with repetitions of ``pattern``, on the device where it can.

        Raises PermissionDenied, OutOfRange, or InvalidArgument when ``length`` is no multiple of the pattern's.
        """
        self._check_mutable()
        self.check_range(offset, length)
        if not pattern or length % len(pattern):
            raise errors.InvalidArgument(
                f"fill length {length} must be a multiple of the pattern's length {len(pattern)}"
            )
        if length == 0 or (self.source is not None and self.source.try_fill(offset, length, pattern)):
            return
        view = self._writable()
        block = pattern * max(1, min(length, _CHUNK) // len(pattern))
        end = offset + length
        for at in range(offset, end - len(block) + 1, len(block)):
            view[at : at + len(block)] = block
        rest = length % len(block)
        if rest:
            view[end - rest : end] = block[:rest]

    def copy_from(self, source: Buffer, source_offset: int, offset: int, length: int) -> None:
        """Copy ``length`` bytes of ``source`` to ``offset``, on the device where it can; ranges may overlap.

        Raises OutOfRange or PermissionDenied.
        """
        source.check_range(source_offset, length)
        self._check_mutable()
        self.check_range(offset, length)
        if length == 0:
            return
        mine, other = self.source, source.source
        if (
            mine is not None
            and other is not None
            and mine.try_copy_from(other, source_offset, offset, length)
        ):
            return
        data = source._readable()[source_offset : source_offset + length]
        self._writable()[offset : offset + length] = data

    def equals(self, offset: int, other: Buffer, other_offset: int, length: int) -> bool:
        """Whether ``length`` bytes from ``offset`` are those of ``other`` from ``other_offset``."""
        self.check_range(offset, length)
        other.check_range(other_offset, length)
        mine = self._readable()[offset : offset + length]
        theirs = other._readable()[other_offset : other_offset + length]
        # bytes compare with memcmp; memoryviews compare element by element.
        return all(
            mine[at : at + _CHUNK].tobytes() == theirs[at : at + _CHUNK].tobytes()
            for at in range(0, length, _CHUNK)
        )

    def hash(self, offset: int, length: int) -> int:
        """SipHash-2-4 of a range, as a signed 64-bit integer."""
        self.check_range(offset, length)
        value = siphash24(self._readable()[offset : offset + length])
        return value - (1 << 64) if value >> 63 else value

    def release(self) -> None:
        """End the buffer now instead of with its last reference; later use raises FailedPrecondition."""
        if self.released:
            return
        self.reads = self.writes = _RELEASED
        self._memory = self.source = self._owner = None
        end, self._end = self._end, None
        handle, self._handle = self._handle, None
        if end is not None:
            end(handle)

    def __enter__(self) -> Self:
        if self.released:
            _raise_released()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        # No halgpu global is needed here: at interpreter exit they may be gone.
        end = getattr(self, "_end", None)
        if end is None:
            return
        self._end = None
        self.reads = self.writes = None  # type: ignore[assignment]  # views keep memory from being used again
        try:
            end(self._handle)
        except Exception:
            if not sys.is_finalizing():
                raise

    def __repr__(self) -> str:
        state = "released" if self.released else self.access.name
        return f"<vm.Buffer {self.byte_length} bytes, {state}>"

    def _check_mutable(self) -> None:
        if self.released:
            _raise_released()
        if not self._access & _MUTABLE:
            _raise_read_only()

    def _readable(self) -> memoryview:
        if self._memory is not None:
            return self._memory
        if self.source is None:
            _raise_released()
        return self.source.read()

    def _writable(self) -> memoryview:
        self._check_mutable()
        if self._memory is not None:
            return self._memory
        assert self.source is not None
        return self.source.write()


# Typed views. Translated code loads with ``buffer.reads["i"][index]``; what may not be touched is a view that raises.


class _Views(Protocol):
    """Typed views of a buffer by :mod:`struct` format character; indexes count elements, not bytes."""

    def __getitem__(self, code: str, /) -> memoryview: ...


class _MemoryViews(dict[str, memoryview]):
    """Views of host memory, each made once. A dict, because element loads look here."""

    __slots__ = ("_memory",)

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    def __missing__(self, code: str) -> memoryview:
        made = self[code] = _typed(self._memory, code)
        return made


class _SourceViews:
    """Views of bytes that may move with device work: asked for again when they did."""

    __slots__ = ("_ask", "_current", "_fetch", "_views", "_write")

    def __init__(self, source: HostBytes, write: bool) -> None:
        self._fetch = source.write if write else source.read
        self._ask: Callable[[bool], object] = getattr(source, "current", _unknown)
        self._write = write
        self._current: object = None
        self._views: dict[str, memoryview] = {}

    def __getitem__(self, code: str) -> memoryview:
        current = self._ask(self._write)
        if current is not None and current is self._current and code in self._views:
            return self._views[code]
        view = _typed(self._fetch(), code)
        current = self._ask(self._write)
        if current is not self._current:
            self._current, self._views = current, {}
        self._views[code] = view
        return view


def _unknown(write: bool) -> object:
    return None


class _ReadOnlyViews:
    __slots__ = ()

    def __getitem__(self, code: str) -> memoryview:
        _raise_read_only()


class _ReleasedViews:
    __slots__ = ()

    def __getitem__(self, code: str) -> memoryview:
        _raise_released()


_READ_ONLY = _ReadOnlyViews()
_RELEASED = _ReleasedViews()


def _typed(memory: memoryview, code: str) -> memoryview:
    size = _TYPED[code]
    extra = len(memory) % size
    whole: Any = memory[:-extra] if extra else memory
    view: memoryview = whole.cast(code)
    return view


@lru_cache
def _has_host_bytes(kind: object) -> bool:
    """Whether objects of a class are :class:`HostBytes`."""
    # isinstance with a protocol takes microseconds, and every buffer that a program allocates comes by here.
    return hasattr(kind, "try_copy_from") and hasattr(kind, "try_fill")


def _outside(access: int) -> int:
    """Check access flags that come from outside."""
    flags = int(access)
    if flags & _COALLOCATED:
        raise errors.InvalidArgument("COALLOCATED cannot be asked for: Buffer.create and Buffer.clone set it")
    return flags


def _flat(data: Any, writable: bool) -> memoryview:
    try:
        view = memoryview(data)
        view = view if view.format == "B" and view.ndim == 1 else view.cast("B")
    except (TypeError, BufferError) as error:
        raise errors.InvalidArgument(
            f"expected contiguous bytes or a HostBytes, found {type(data).__name__}: {error}"
        ) from error
    if writable and view.readonly:
        raise errors.InvalidArgument("MUTABLE needs writable memory, found read-only bytes")
    return view


def out_of_range(offset: int, length: int, byte_length: int) -> errors.OutOfRange:
    """The error of an access outside of a buffer; all numbers are bytes."""
    return errors.OutOfRange(
        f"out-of-bounds access (offset={offset}, length={length}, buffer length={byte_length})"
    )


def _raise_read_only() -> NoReturn:
    raise errors.PermissionDenied("buffer is read-only and cannot be written")


def _raise_released() -> NoReturn:
    raise errors.FailedPrecondition("buffer was released")
