"""A checked ELF file in memory: segments copied, relocations applied, pages protected.

No page is ever writable and executable: all are writable until the relocations are applied, and then get what their
segment has, as in IREE's loader (runtime/src/iree/hal/local/elf/elf_module.c). What lies between segments cannot be
touched.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from typing import Any, Final

from halgpu import errors
from halgpu.executables.native.elf import Elf, Segment

PAGE: Final = mmap.PAGESIZE
_NONE, _READ, _WRITE, _EXECUTE = 0, 1, 2, 4
"""Of mprotect(2), on Linux."""
_LONGEST_TEXT: Final = 1 << 16


class Extent:
    """Where the segments of a file lie in memory; pointers that its code returns are checked against it."""

    def __init__(self, base: int, segments: tuple[Segment, ...]) -> None:
        self.base = base
        self._segments = segments

    def require(self, address: int, size: int, what: str, *, executable: bool = False) -> int:
        """Return an address at which the file has ``size`` bytes, code if ``executable``; InvalidArgument otherwise."""
        start = address - self.base
        for item in self._segments:
            if item.holds(start, size) and (item.executable or not executable):
                return address
        kind = "code" if executable else f"{size} bytes"
        raise errors.InvalidArgument(
            f"damaged executable library: {what} at {start:#x} is no {kind} of its own"
        )

    def text(self, address: int, what: str) -> str:
        """The zero-terminated text at an address."""
        self.require(address, 1, what)
        start = address - self.base
        rest = next(item.end - start for item in self._segments if item.holds(start, 1))
        data = ctypes.string_at(address, min(rest, _LONGEST_TEXT))
        end = data.find(b"\0")
        if end < 0:
            raise errors.InvalidArgument(f"damaged executable library: {what} at {start:#x} does not end")
        return data[:end].decode("utf-8", "backslashreplace")


class Image(Extent):
    """The file in memory of its own, which lives as long as this.

    ``resolve`` gives the address of what the host has under a name, for files that import something.
    """

    def __init__(self, elf: Elf, resolve: Callable[[str], int] | None = None) -> None:
        first = elf.segments[0].address // PAGE * PAGE
        size = -(-(elf.segments[-1].end - first) // PAGE) * PAGE
        self._memory = private_pages(size)
        address = address_of(self._memory)
        super().__init__(address - first, elf.segments)
        for item in elf.segments:
            start = item.address - first
            self._memory[start : start + item.file_size] = elf.data[
                item.offset : item.offset + item.file_size
            ]
        values = [(place, self.base + value) for place, value in elf.relocations]
        if resolve is not None:
            values += [(place, resolve(name) + addend) for place, name, addend in elf.imports]
        for place, value in values:
            start = place - first
            self._memory[start : start + 8] = (value & (1 << 64) - 1).to_bytes(8, "little")
        protect(address, size, _NONE)
        for item in elf.segments:
            self._protect(item)
        for start, length in elf.relro:
            # As glibc does: the page that it ends in may hold what stays writable.
            begin, end = start // PAGE * PAGE, (start + length) // PAGE * PAGE
            if begin < end <= first + size:
                protect(self.base + begin, end - begin, _READ)

    def _protect(self, item: Segment) -> None:
        begin, end = item.address // PAGE * PAGE, -(-item.end // PAGE) * PAGE
        rights = _READ | (_WRITE if item.writable else 0) | (_EXECUTE if item.executable else 0)
        protect(self.base + begin, end - begin, rights)
        if item.executable:
            clear_instruction_cache(self.base + begin, end - begin)


def private_pages(size: int) -> mmap.mmap:
    """New zeroed pages, readable and writable. Raises ResourceExhausted."""
    try:
        return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE)
    except OSError as error:
        raise errors.ResourceExhausted(
            f"the host has no {size} bytes for a program's code: {error}"
        ) from error


def address_of(memory: Any) -> int:
    """The address of the first byte of a writable buffer."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def executable_pages(code: bytes) -> tuple[mmap.mmap, int]:
    """Pages that hold ``code``, executable and not writable any more, and their address."""
    size = -(-len(code) // PAGE) * PAGE
    memory = private_pages(size)
    memory[: len(code)] = code
    address = address_of(memory)
    protect(address, size, _READ | _EXECUTE)
    clear_instruction_cache(address, len(code))
    return memory, address


def protect(address: int, size: int, rights: int) -> None:
    """mprotect(2). Raises PermissionDenied where the system does not allow it."""
    if _libc().mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), rights):
        number = ctypes.get_errno()
        raise errors.PermissionDenied(
            f"the system does not let this process protect pages for a program's code: {os.strerror(number)}"
        )


_found: list[Any] = []


def _libc() -> Any:
    if not _found:
        _found.append(ctypes.CDLL(None, use_errno=True))
    return _found[0]


def clear_instruction_cache(address: int, size: int) -> None:
    """Let the processor see new code. x86_64 does by itself; Linux does on arm64 when pages become executable, too."""
    clear = getattr(_libc(), "__clear_cache", None)
    if clear is not None:
        clear(ctypes.c_void_p(address), ctypes.c_void_p(address + size))
