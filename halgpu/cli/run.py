"""Runs a function of a compiled program and prints, writes or checks its results.

An --output, one for each result:
  nothing: drop it; -: print it; @f.npy: write, +f.npy: append; any other name: raw bytes
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from halgpu import api, errors
from halgpu.cli import calls, results, values
from halgpu.cli.flags import Parser
from halgpu.cli.progress import Progress
from halgpu.text import counted

if TYPE_CHECKING:
    from halgpu.devices import Device


def configure(parser: Parser) -> None:
    """Add the flags, which are named as iree-run-module's."""
    parser.description = f"{__doc__}\n{calls.INPUTS}"
    calls.configure(parser)
    calls.configure_function(parser)
    several: dict[str, Any] = {"action": "append", "default": []}
    parser.add_argument("--output", **several, metavar="WHERE", help="see above (default: print all)")
    parser.add_argument(
        "--expected_output",
        **several,
        metavar="VALUE",
        help="as --input, or (ignored); exit status 1 when a result differs",
    )
    parser.add_argument(
        "--output_max_element_count",
        type=int,
        default=1024,
        metavar="N",
        help="elements of a tensor to print (default: 1024)",
    )
    for name, default in (("f16", 1e-3), ("f32", 1e-4), ("f64", 1e-4), ("bf16", 1e-2)):
        parser.add_argument(
            f"--expected_{name}_threshold",
            type=float,
            default=default,
            metavar="X",
            help=f"absolute tolerance of {name} (default: {default:g})",
        )
    parser.add_argument(
        "--expected_rtol",
        type=float,
        default=1e-5,
        metavar="X",
        help="relative tolerance of floats (default: 1e-05)",
    )
    parser.add_argument(
        "--equality_mode",
        choices=("approximate", "exact"),
        default="approximate",
        help="exact compares bytes",
    )
    parser.add_argument(
        "--print_statistics", action="store_true", help="print the device's counters to stderr"
    )


def main(options: argparse.Namespace) -> int:
    """Run; returns 0, or 1 when results differ from what is expected."""
    with calls.load(options) as module:
        status = _run(module, options)
        device = module.device
    if options.print_statistics:
        _print_statistics(device)
    return status


def _run(module: api.Module, options: argparse.Namespace) -> int:
    function = calls.choose(module, options.function)
    outputs = function.signature.results
    if options.output and not options.expected_output:
        results.check_outputs(options.output, outputs)
    inputs = calls.inputs(function, options.input, module.device)
    sys.stdout.write(f"EXEC @{function.name}\n")
    sys.stdout.flush()
    with Progress(options.quiet) as progress:
        # Some drivers finish compiling kernels when they are first launched.
        progress(f"running {function.name}", 1, 1)
        found = api.invoke(function, inputs)
        module.device.wait_idle()
    del inputs
    if options.expected_output:
        expected = _expected(function, options.expected_output)
        return 0 if results.compare_all(expected, found, outputs, _equality(options), sys.stdout) else 1
    limit = options.output_max_element_count
    if options.output:
        results.write_all(options.output, found, outputs, limit, sys.stdout)
    else:
        results.print_all(found, outputs, limit, sys.stdout)
    return 0


def _expected(function: api.Function, specs: list[str]) -> list[values.Parsed]:
    results = function.signature.results
    parsed = values.parse(specs, results, "expected output")
    if len(parsed) > len(results):
        raise errors.InvalidArgument(
            f"function '{function.name}': expected {counted(len(results), 'result')}, "
            f"found {len(parsed)} expected outputs"
        )
    return parsed


def _equality(options: argparse.Namespace) -> results.Equality:
    single = results.rounded_to_single
    return results.Equality(
        f16=single(options.expected_f16_threshold),
        f32=single(options.expected_f32_threshold),
        f64=options.expected_f64_threshold,
        bf16=single(options.expected_bf16_threshold),
        relative=options.expected_rtol,
        exact=options.equality_mode == "exact",
    )


def _print_statistics(device: Device) -> None:
    statistics = device.statistics
    for name in statistics.__slots__:
        print(f"{name}: {getattr(statistics, name)}", file=sys.stderr)
