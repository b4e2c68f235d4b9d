"""Checks programs without running them: one line each, exit status 1 if any is refused."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from halgpu import errors
from halgpu.cli import programs
from halgpu.cli.flags import Parser

if TYPE_CHECKING:
    from halgpu.vm.definition import ModuleDef


def configure(parser: Parser) -> None:
    """Add the flags."""
    parser.add_argument("module", nargs="+", metavar="FILE", help="a .vmfb, or - for stdin")


def main(options: argparse.Namespace) -> int:
    """Print what was found about each; returns 0, or 1 when a program is refused."""
    from halgpu.vm import definition

    status = 0
    for path in options.module:
        try:
            found = _counts(definition.read(programs.read(path)))
        except errors.Error as error:
            found = f"error: {error.message}"
            status = 1
        print(f"{path}: {found}")
    return status


def _counts(module: ModuleDef) -> str:
    from halgpu.vm import verifier

    functions = verifier.verify(module)
    blocks = sum(len(function.blocks) for function in functions)
    instructions = sum(len(block.ops) for function in functions for block in function.blocks)
    size = sum(map(len, module.rodata))
    return (
        f"ok: @{module.name}, {len(functions)} functions, {blocks} blocks, {instructions} instructions, "
        f"{len(module.imports)} imports, {len(module.exports)} exports, {size} bytes of rodata"
    )
