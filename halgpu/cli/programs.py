"""Files that commands read and write: programs, text, or ``-`` for what comes in and goes out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from halgpu import errors

if TYPE_CHECKING:
    from halgpu.cli.flags import Parser
    from halgpu.vm.definition import ModuleDef


def add_module(parser: Parser) -> None:
    """The argument that names a program."""
    parser.add_argument("module", metavar="FILE", help="a .vmfb, or - for stdin")


def read(path: str) -> Any:
    """The bytes of a file, mapped, or those of stdin."""
    from halgpu.vm import archive

    return sys.stdin.buffer.read() if path == "-" else archive.map_file(path)


class Kernels(NamedTuple):
    """An executable in a program: the rodata segment, the format of its kernels, and what it is."""

    ordinal: int
    format: str
    kind: str
    data: memoryview


# How executables start (identifiers of runtime/src/iree/schemas) -> format, and what to call it.
_KINDS: Final = {
    b"VKE1": ("vulkan-spirv-fb", "vulkan-spirv-fb"),
    b"CDA1": ("cuda-nvptx-fb", "cuda-nvptx-fb"),
    b"PK\x03\x04": ("vmvx-bytecode-fb", "a bytecode module (vmvx-bytecode-fb)"),
}


def kernels(module: ModuleDef) -> Iterator[Kernels]:
    """The executables in a program's rodata."""
    for ordinal, segment in enumerate(module.rodata):
        found = _KINDS.get(bytes(segment[:4])) or _elf(segment) or _handwritten(segment)
        if found is not None:
            yield Kernels(ordinal, *found, segment)


def _elf(segment: memoryview) -> tuple[str, str] | None:
    if bytes(segment[:4]) != b"\x7fELF":
        return None
    machine = int.from_bytes(segment[18:20], "little")  # e_machine of the ELF header
    name = {0x3E: "x86_64", 0xB7: "arm_64"}.get(machine, f"machine_{machine}")
    return f"embedded-elf-{name}", f"an ELF binary (embedded-elf-{name} or system-elf-{name})"


def _handwritten(segment: memoryview) -> tuple[str, str] | None:
    if bytes(segment[:1]) != b"{":
        return None
    from halgpu.executables import handwritten

    try:
        language = handwritten.read(segment, "").language
    except errors.Error:  # text of the program's own
        return None
    return language, f"{language}, hand-written"


def read_text(path: str) -> str:
    """The text of a file or of stdin. Raises InvalidArgument, saying where it is not UTF-8."""
    data = bytes(read(path))
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        line = data.count(b"\n", 0, problem.start) + 1
        column = problem.start - data.rfind(b"\n", 0, problem.start)
        raise errors.InvalidArgument(
            f"{path}:{line}:{column}: expected text in UTF-8, found the byte 0x{data[problem.start]:02X}"
        ) from problem
