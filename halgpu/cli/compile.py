"""Compiles a model (MLIR, StableHLO, ONNX) to a program that 'halgpu run' runs, with the stock IREE compiler.

Flags for the compiler itself follow after --: halgpu compile model.onnx -o model.vmfb -- --iree-opt-level=O2
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
from pathlib import Path

from halgpu import errors
from halgpu.cli.flags import Parser
from halgpu.cli.progress import Progress


def configure(parser: Parser) -> None:
    """Add the flags."""
    parser.takes_rest = True
    parser.add_argument("source", metavar="FILE", help="a .mlir, .mlirbc or .onnx, or - for MLIR on stdin")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the .vmfb to write, or -")
    parser.add_argument(
        "--device", metavar="URI", help="the device to compile for (default: $HALGPU_DEVICE, opencl)"
    )
    parser.add_argument(
        "--target",
        metavar="NAME",
        help="instead of a device: vulkan, a GPU such as ampere, sm_80 for CUDA, or llvm-cpu, vmvx, vmvx-inline",
    )
    parser.add_argument("--execution-model", metavar="NAME", help="inline-dynamic (default) or inline-static")
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1x3x320x320",
        help="give an input of an ONNX model a fixed shape; repeated",
    )
    parser.add_argument(
        "--input-type", metavar="NAME", help="onnx, or what --iree-input-type takes (default: found out)"
    )
    parser.add_argument(
        "--from",
        dest="level",
        choices=("model", "hal"),
        help="hal: the program is at HAL level, as iree-compile --compile-to=hal prints it; no IREE compiler is "
        "used (default: model, or hal with --kernels)",
    )
    parser.add_argument(
        "--kernels",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="embed hand-written kernels (.cl, .cu) as @NAME, @kernels without one; repeated: a file a language",
    )
    parser.add_argument("--quiet", action="store_true", help="neither progress nor the compiler's warnings")


def main(options: argparse.Namespace) -> int:
    """Compile and write; returns 0."""
    from halgpu.compiler import driver, sources

    shapes = dict(map(sources.parse_shape, options.shape))
    if len(shapes) < len(options.shape):
        raise errors.InvalidArgument("--shape: one for each input")
    check_output(options.output)
    if options.level == "hal" or (options.level is None and options.kernels):
        return _finish(options)
    if options.kernels:
        raise errors.InvalidArgument("--kernels goes with a program at HAL level (--from=hal)")
    with Progress(options.quiet) as progress:
        done = driver.build(
            sys.stdin.buffer.read() if options.source == "-" else Path(options.source),
            device=options.device,
            target=options.target,
            execution_model=options.execution_model,
            shapes=shapes,
            input_type=options.input_type,
            flags=options.rest,
            progress=progress,
        )
    if done.warnings and not options.quiet:
        print(done.warnings, file=sys.stderr)
    write(options.output, done.data)
    return 0


def _finish(options: argparse.Namespace) -> int:
    """Compile a program at HAL level and write; returns 0."""
    from halgpu.cli.opt import read_source
    from halgpu.compiler import finish, sources

    unused = {"--device": options.device, "--target": options.target, "--shape": options.shape}
    unused |= {"--execution-model": options.execution_model, "--input-type": options.input_type}
    for name, value in (unused | {"--": options.rest}).items():
        if value:
            raise errors.InvalidArgument(
                f"{name} does not go with a program at HAL level, whose kernels are compiled"
            )
    if options.source != "-":
        sources.require_file(options.source, "MLIR")
    finish.check()
    text, name = read_source(options.source)
    with Progress(options.quiet) as progress:
        done = finish.finish(text, name, options.kernels, progress)
    if done.remarks and not options.quiet:
        print("\n".join(done.remarks), file=sys.stderr)
    write(options.output, done.data)
    return 0


def check_output(path: str) -> None:
    """Raise what writing ``path`` would raise for a folder, or one that is not there, before the work is done."""
    if path == "-":
        return
    target = Path(path)
    if target.is_dir():
        raise errors.InvalidArgument(f"{path}: expected a file to write, found a folder")
    if not target.absolute().parent.is_dir():
        raise errors.NotFound(f"{path}: there is no folder {target.parent} to write it to")


def write(path: str, data: bytes) -> None:
    """Write ``data`` to a file, which is there whole or not at all, or to stdout (``-``), or a pipe or device."""
    if path == "-":
        sys.stdout.buffer.write(data)
        return
    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        Path(path).write_bytes(data)
        return
    target = Path(os.path.realpath(path))
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(data)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
