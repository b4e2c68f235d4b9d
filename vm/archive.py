"""The .vmfb container: where the FlatBuffer lies in the file and where its external rodata starts.

A .vmfb is a FlatBuffer behind its length (u32, little-endian), followed by rodata at the next multiple of 64.
iree-compile puts a ZIP local file header in front and a ZIP directory behind, so that archive tools can look
inside; neither is needed, and bytes behind the rodata mean nothing. Facts:
runtime/src/iree/vm/bytecode/archive.c.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import stat
import struct
from dataclasses import dataclass, field

from halgpu import errors

IDENTIFIER = b"IREE"
RODATA_ALIGNMENT = 64
"""External rodata starts at the next multiple of this, counted from the start of the file."""

_ZIP_HEADER = struct.Struct("<4s22xHH")
"""A ZIP local file header: signature, …, length of the name, length of the extra field."""
PREFIX = struct.Struct("<I")
"""The length in front of the FlatBuffer."""


@dataclass(frozen=True, slots=True, eq=False)
class Archive:
    """Parts of a .vmfb, as read-only views of its buffer."""

    contents: memoryview = field(repr=False)
    """The whole file."""
    flatbuffer: memoryview = field(repr=False)
    """The FlatBuffer without its length prefix."""
    rodata_offset: int
    """Where in ``contents`` external rodata is counted from; may lie behind the end when there is none."""


def as_bytes_view(data: object) -> memoryview:
    """A flat read-only view of any contiguous buffer's bytes. Nothing is copied.

    Raises InvalidArgument when ``data`` is no buffer or not contiguous.
    """
    try:
        view = memoryview(data).toreadonly()  # type: ignore[arg-type]
    except TypeError:
        raise errors.InvalidArgument(
            f"expected the path of a .vmfb, or its contents (bytes, memoryview, mmap or another buffer), "
            f"found {_kind(data)}"
        ) from None
    except ValueError as problem:  # a released memoryview, a closed mmap
        raise errors.InvalidArgument(f"the buffer cannot be read: {problem}") from problem
    if not view.c_contiguous:
        raise errors.InvalidArgument("expected a contiguous buffer, found one with gaps; pass a copy of it")
    # memoryview.cast refuses views without elements.
    return view.cast("B") if view.nbytes else memoryview(b"")


def _kind(data: object) -> str:
    name = type(data).__name__
    if not hasattr(data, "read"):
        return name
    remedy = "pass its path" if isinstance(data, io.TextIOBase) else "pass its path or its read()"
    return f"an open file ({name}); {remedy}"


def map_file(path: str | os.PathLike[str]) -> mmap.mmap | bytes:
    """The bytes of a file, mapped rather than read.

    Raises NotFound for a file that does not exist, PermissionDenied, and InvalidArgument for what is no file.
    """
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISFIFO(status.st_mode):
                return file.read()  # a shell's <(command): it has no size and cannot be mapped
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "Not a regular file")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if status.st_size else b""
    except FileNotFoundError:
        raise errors.NotFound(f"no such file: {os.fspath(path)}") from None
    except PermissionError as error:
        raise errors.PermissionDenied(f"cannot read {os.fspath(path)}: {error.strerror}") from None
    except OSError as error:
        raise errors.InvalidArgument(f"cannot read {os.fspath(path)}: {error.strerror}") from None
    except ValueError as error:  # a name with a zero byte
        raise errors.InvalidArgument(f"cannot read {os.fspath(path)!r}: {error}") from None


def parse(data: object) -> Archive:
    """Find the parts of a .vmfb in a buffer. Nothing is copied; the FlatBuffer's contents are not looked at.

    Raises InvalidArgument for anything that is not a .vmfb, saying what it looks like, and for a cut file.
    """
    contents = as_bytes_view(data)
    if not contents:
        raise errors.InvalidArgument("expected a .vmfb module, found no bytes at all: the file is empty")
    start = _skip_zip_header(contents)
    if contents[start + 8 : start + 12] != IDENTIFIER:
        raise errors.InvalidArgument(_not_a_module(contents, start))
    length = PREFIX.unpack_from(contents, start)[0]
    start += PREFIX.size
    if length > len(contents) - start:
        raise errors.InvalidArgument(
            f"the .vmfb is cut short: its FlatBuffer has {length} bytes, "
            f"of which {len(contents) - start} are there"
        )
    end = start + length
    return Archive(contents, contents[start:end], -(-end // RODATA_ALIGNMENT) * RODATA_ALIGNMENT)


def _skip_zip_header(contents: memoryview) -> int:
    """Offset of the FlatBuffer's length prefix: 0, or behind a ZIP local file header."""
    if len(contents) < _ZIP_HEADER.size:
        return 0
    signature, name_length, extra_length = _ZIP_HEADER.unpack_from(contents)
    if signature != b"PK\x03\x04":
        return 0
    return int(_ZIP_HEADER.size + name_length + extra_length)


_SIGNATURES = (
    (b"\x7fELF", "an ELF binary"),
    (b"PK", "a ZIP archive that is cut short or holds no module"),
    (b"MZ", "a Windows binary"),
    (b"ML\xefR", "MLIR bytecode; compile it with 'halgpu compile'"),
    (b"BC\xc0\xde", "LLVM bitcode"),
    (b"\x03\x02\x23\x07", "a SPIR-V binary"),
    (b"\x1f\x8b", "gzip data; decompress it first"),
    (b"\x28\xb5\x2f\xfd", "zstd data; decompress it first"),
    (b"\x93NUMPY", "a .npy array"),
    (b"IRPA", "an IREE parameter archive (.irpa), which holds no program"),
    (b"\x89HDF", "an HDF5 file"),
    (b"version https://git-lfs", "a Git LFS pointer; fetch the file itself with `git lfs pull`"),
)


def _not_a_module(contents: memoryview, start: int) -> str:
    return f"expected a .vmfb module (a FlatBuffer with identifier IREE), found {_describe(contents, start)}"


def _describe(contents: memoryview, start: int) -> str:
    head = bytes(contents[:4096])
    if start and contents[start : start + 12].nbytes < 12:
        return f"a file of {len(contents)} bytes that ends before its FlatBuffer; it is cut short"
    if start:
        return "a ZIP archive whose first entry is no module; unpack it, or pass the .vmfb itself"
    for signature, name in _SIGNATURES:
        if head.startswith(signature):
            return name
    if head[4:8] == IDENTIFIER:
        return "the module's FlatBuffer without its length prefix; put its size in front as 4 bytes"
    if len(contents) < 12:
        return f"only {len(contents)} bytes; the file is cut short"
    if b"\x00" not in head and _is_text(head):
        mlir = any(
            word in head for word in (b"func.func", b"module {", b"module @", b"util.func", b"vm.module")
        )
        return "MLIR text; compile it with 'halgpu compile'" if mlir else f"text starting with {head[:40]!r}"
    return f"{len(contents)} bytes starting with {head[:8].hex(' ')}"


def _is_text(head: bytes) -> bool:
    try:
        # A multi-byte character may be cut at the end of what is looked at.
        head.decode("utf-8")
    except UnicodeDecodeError as problem:
        return problem.start >= len(head) - 3
    return True
