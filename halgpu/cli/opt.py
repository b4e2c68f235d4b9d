"""Runs passes over MLIR at HAL level and prints what comes out.

A pipeline is a list of passes: --pass-pipeline=inline,combine-initializers. 'halgpu opt --list' lists them.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from halgpu import errors
from halgpu.cli import compile as compiling
from halgpu.cli.flags import Parser

_UNDESCRIBED: Final = {"cse": "Compute once what is computed twice, in functions of one block."}
"""What passes of xDSL do that do not say so themselves."""


def configure(parser: Parser) -> None:
    """Add the flags."""
    parser.add_argument("source", nargs="?", metavar="FILE", help="a .mlir or .mlirbc, or - for stdin")
    parser.add_argument(
        "-o", "--output", default="-", metavar="FILE", help="where to print (default: stdout)"
    )
    parser.add_argument(
        "--pass-pipeline",
        default="",
        metavar="PASSES",
        help="the passes, separated by commas (default: none)",
    )
    parser.add_argument(
        "--kernels", action="append", default=[], metavar="[NAME=]FILE", help="see halgpu compile"
    )
    parser.add_argument("--generic", action="store_true", help="print operations in their generic form")
    parser.add_argument("--locations", action="store_true", help="print where operations come from")
    parser.add_argument("--list", action="store_true", help="list the passes")


def main(options: argparse.Namespace) -> int:
    """Run the passes and print; returns 0."""
    from halgpu.compiler import finish, sources

    if options.source not in (None, "-"):
        sources.require_file(options.source, "MLIR")
    finish.check()
    from halgpu.compiler import mlir
    from halgpu.compiler.kernels import embed
    from halgpu.compiler.transforms import pipeline

    if options.list:
        for name, found in sorted(pipeline.PASSES.items()):
            said = (found.__doc__ or _UNDESCRIBED.get(name, "")).strip().replace("``", "`")
            print(f"{name:<24} {said.splitlines()[0]}")
        return 0
    if options.source is None:
        raise errors.InvalidArgument("expected a file of MLIR, or - for stdin; 'halgpu opt --help' explains")
    compiling.check_output(options.output)
    text, name = read_source(options.source)
    ctx = mlir.context()
    module = mlir.parse(text, name, ctx)
    if options.kernels:
        embed(module, options.kernels)
    for remark in pipeline.run(module, ctx, options.pass_pipeline):
        print(remark, file=sys.stderr)
    made = mlir.print_module(module, generic=options.generic, locations=options.locations)
    compiling.write(options.output, made.encode())
    return 0


def read_source(source: str) -> tuple[str, str]:
    """The text of a file, a pipe, or stdin for ``-``, and what to call it; that of bytecode, converted.

    Raises NotFound, PermissionDenied, InvalidArgument; Unavailable for bytecode without the IREE compiler.
    """
    from halgpu.compiler import bytecode, sources

    if source == "-":
        data, name = sys.stdin.buffer.read(), "<stdin>"
    else:
        data, name = sources.read_file(source, "MLIR"), source
    if data.startswith(bytecode.MAGIC):
        return bytecode.as_text(data, name), name
    try:
        return data.decode(), name
    except UnicodeDecodeError as problem:
        raise errors.InvalidArgument(f"{name}: expected MLIR as text (UTF-8): {problem}") from None
