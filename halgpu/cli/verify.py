"""Checks programs without running them: one line each, exit status 1 if any is refused.

A sound program is ok also where halgpu cannot run it; then the line ends with the reason.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from halgpu import errors
from halgpu.cli import programs
from halgpu.cli.flags import Parser
from halgpu.text import counted

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
    counts = [
        counted(len(functions), "function"),
        counted(blocks, "block"),
        counted(instructions, "instruction"),
        counted(len(module.imports), "import"),
        counted(len(module.exports), "export"),
        f"{counted(size, 'byte')} of rodata",
    ]
    note = _why_not_run(module)
    return f"ok: @{module.name}, {', '.join(counts)}" + (f" ({note})" if note else "")


def _why_not_run(module: ModuleDef) -> str:
    """Why halgpu cannot run the program on any device, as far as can be told without one; else nothing."""
    from halgpu.executables import registry

    if any(item.full_name.startswith("hal.") and not item.optional for item in module.imports):
        return "imports hal.*: not an inline HAL program"
    offered = list(dict.fromkeys(found.format for found in programs.kernels(module)))
    if not offered or set(offered) & set(registry.formats()):
        return ""
    return f"has kernels of {', '.join(offered)}, but halgpu runs {', '.join(registry.formats())}"
