"""Makes a program of text: what 'halgpu dis' or iree-dump-module prints, or a .vmasm file.

The text of iree-dump-module has no attributes or source locations; that of 'halgpu dis --lossless'
has them. The program is verified before it is written.
"""

from __future__ import annotations

import argparse
import sys

from halgpu.cli import programs
from halgpu.cli.flags import Parser


def configure(parser: Parser) -> None:
    """Add the flags."""
    parser.add_argument("source", metavar="FILE", help="a .vmasm, or - for stdin")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the .vmfb to write, or -")
    parser.add_argument(
        "--lines", action="store_true", help="let errors of the running program name the lines of FILE"
    )


def main(options: argparse.Namespace) -> int:
    """Assemble and write; returns 0."""
    from halgpu.vm import assembler, writer

    name = "<stdin>" if options.source == "-" else options.source
    data = writer.write(assembler.assemble(programs.read_text(options.source), name, lines=options.lines))
    if options.output == "-":
        sys.stdout.buffer.write(data)
    else:
        with open(options.output, "wb") as file:
            file.write(data)
    return 0
