"""Files that commands read and write: programs, text, or ``-`` for what comes in and goes out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from halgpu import errors

if TYPE_CHECKING:
    from halgpu.cli.flags import Parser


def add_module(parser: Parser) -> None:
    """The argument that names a program."""
    parser.add_argument("module", metavar="FILE", help="a .vmfb, or - for stdin")


def read(path: str) -> Any:
    """The bytes of a file, mapped, or those of stdin."""
    from halgpu.vm import archive

    return sys.stdin.buffer.read() if path == "-" else archive.map_file(path)


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
