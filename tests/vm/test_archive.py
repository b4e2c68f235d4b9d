"""The .vmfb container, on modules that iree-compile wrote."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from halgpu import errors
from halgpu.vm import archive

Compile = Callable[..., bytes]
Tool = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def module(compile_mlir: Compile, examples: Path) -> bytes:
    return compile_mlir((examples / "abs.mlir").read_text())


def same_parts(data: object, expected: archive.Archive) -> None:
    found = archive.parse(data)
    assert found.flatbuffer == expected.flatbuffer
    assert found.rodata_offset == expected.rodata_offset
    assert found.contents == expected.contents


def test_flatbuffer_has_the_size_that_iree_finds(module: bytes, iree_tool: Tool, tmp_path: Path) -> None:
    (tmp_path / "m.vmfb").write_bytes(module)
    printed = iree_tool("iree-dump-module", str(tmp_path / "m.vmfb")).stdout
    parts = archive.parse(module)
    assert f"FlatBuffer: {len(parts.flatbuffer)} bytes" in printed
    assert parts.flatbuffer[4:8] == b"IREE"
    assert parts.rodata_offset % 64 == 0


def test_rodata_lies_where_zip_tools_find_it(module: bytes) -> None:
    parts = archive.parse(module)
    names = zipfile.ZipFile(BytesIO(module)).namelist()
    assert names[0] == "module.fb"
    # The compiler's first external segment starts at 128 from the rodata offset; its ZIP entry says where.
    info = zipfile.ZipFile(BytesIO(module)).infolist()[1]
    header = info.header_offset
    name, extra = struct.unpack_from("<HH", module, header + 26)
    assert (header + 30 + name + extra) == parts.rodata_offset + 128


def test_every_kind_of_buffer(module: bytes, tmp_path: Path) -> None:
    expected = archive.parse(module)
    same_parts(bytearray(module), expected)
    same_parts(memoryview(module), expected)
    same_parts(memoryview(b"x" + module)[1:], expected)
    same_parts(np.frombuffer(module, np.uint8), expected)
    same_parts(
        np.frombuffer(module + b"\0" * (-len(module) % 8), np.uint64),
        archive.parse(module + b"\0" * (-len(module) % 8)),
    )
    (tmp_path / "m.vmfb").write_bytes(module)
    with open(tmp_path / "m.vmfb", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    same_parts(mapped, expected)


def test_nothing_is_copied(module: bytes) -> None:
    data = bytearray(module)
    parts = archive.parse(data)
    data[-1] ^= 0xFF
    assert parts.contents[-1] == data[-1]
    assert parts.contents.readonly
    assert parts.flatbuffer.readonly


def test_without_zip_and_with_bytes_behind(module: bytes) -> None:
    parts = archive.parse(module)
    start = module.index(bytes(parts.flatbuffer)) - 4
    bare = module[start : start + 4 + len(parts.flatbuffer)]
    assert archive.parse(bare).flatbuffer == parts.flatbuffer
    assert archive.parse(bare).rodata_offset == -(-len(bare) // 64) * 64
    assert archive.parse(bare + b"anything").flatbuffer == parts.flatbuffer


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"\x01", "only 1 bytes; the file is cut short"),
        (b"\x7fELF" + bytes(60), "found an ELF binary"),
        (b"MZ" + bytes(60), "a Windows binary"),
        (b"ML\xefR" + bytes(60), "MLIR bytecode; compile it with 'halgpu compile'"),
        (b"\x03\x02\x23\x07" + bytes(60), "a SPIR-V binary"),
        (b"\x1f\x8b\x08" + bytes(60), "gzip data"),
        (b"\x93NUMPY\x01\x00" + bytes(60), "a .npy array"),
        (b"IRPA" + bytes(60), "parameter archive"),
        (b"func.func @f() {\n  return\n}\n", "MLIR text; compile it with 'halgpu compile'"),
        ("// größer\nmodule @m {}\n".encode(), "MLIR text"),
        (b"hello, this is a text", "text starting with b'hello"),
        (bytes(range(1, 250)) + bytes(10), "259 bytes starting with 01 02 03"),
        (b"\x08\0\0\0IREE" + bytes(60), "without its length prefix"),
        (b"\xff\xff\xff\xff\x08\0\0\0IREE" + bytes(60), "cut short: its FlatBuffer has 4294967295 bytes"),
    ],
)
def test_what_is_no_module(data: bytes, message: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=message):
        archive.parse(data)


def test_zip_of_something_else() -> None:
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("readme.txt", "hello " * 20)
    with pytest.raises(errors.InvalidArgument, match="ZIP archive whose first entry is no module"):
        archive.parse(file.getvalue())


def test_cuts(module: bytes) -> None:
    end = archive.parse(module).rodata_offset
    for length in range(0, end - 64, 7):
        with pytest.raises(errors.InvalidArgument, match=r"cut short|empty|text starting|bytes starting"):
            archive.parse(module[:length])


@pytest.mark.parametrize("data", [None, 7, "text", object(), memoryview(b"0123456789")[::2]])
def test_what_is_no_buffer(data: object) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"expected (the path|a contiguous buffer)"):
        archive.parse(data)


def test_a_pipe_is_read(module: bytes, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["sh", "-c", "cat > pipe"], cwd=tmp_path, stdin=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        writer.stdin.write(module)
        writer.stdin.close()
        assert archive.map_file(tmp_path / "pipe") == module


def test_what_is_no_file(tmp_path: Path) -> None:
    for path, reason in (("/dev/null", "Not a regular file"), (tmp_path, "Is a directory")):
        with pytest.raises(errors.InvalidArgument, match=f"cannot read {path}: {reason}"):
            archive.map_file(path)


def test_a_released_buffer() -> None:
    view = memoryview(b"123")
    view.release()
    with pytest.raises(errors.InvalidArgument, match="cannot be read"):
        archive.parse(view)
