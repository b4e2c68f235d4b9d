"""Prints the code of a program, as iree-dump-module --output=disassembly does.

With --lossless the text has all that the program has, in comments where IREE's tools have no words for it, and
each function by its own name: 'halgpu asm' makes the same program of it again.
"""

from __future__ import annotations

import argparse
import sys

from halgpu.cli import programs
from halgpu.cli.flags import Parser


def configure(parser: Parser) -> None:
    """Add the flags, which are named as iree-dump-module's."""
    programs.add_module(parser)
    parser.add_argument("--function", metavar="NAME", help="one function only, by name or ordinal")
    parser.add_argument(
        "--bytecode_offsets", action="store_true", help="start each line with its bytecode offset"
    )
    parser.add_argument("--lossless", action="store_true", help="see above")


def main(options: argparse.Namespace) -> int:
    """Print the text; returns 0."""
    from halgpu.vm import definition, disassembler

    module = definition.read(programs.read(options.module))
    text = disassembler.disassemble(
        module, options.function, offsets=options.bytecode_offsets, lossless=options.lossless
    )
    sys.stdout.write(text)
    return 0
