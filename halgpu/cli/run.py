"""Runs a function of a compiled program and prints, writes or checks its results.

An --input, one for each parameter:
  3.14                       a scalar
  2x2xi32=1 2 3 4            a tensor; brackets and commas are decoration, one value fills it, none is zero
  2x2xi32=@f.bin  =+f.bin    raw bytes of a file, from its start or where the last value ended
  @f.npy  +f.npy  *f.npy     one array of a .npy file, the next one, all that remain
  &2x2xi32=...               only the buffer, without its shape
  (null)                     nothing
An --output, one for each result:
  nothing: drop it; -: print it; @f.npy: write, +f.npy: append; any other name: raw bytes
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from halgpu import api, arguments, errors
from halgpu.buffer_view import BufferView, upload
from halgpu.cli import results, values
from halgpu.cli.flags import Parser
from halgpu.default_device import open_device
from halgpu.text import counted

if TYPE_CHECKING:
    from halgpu.devices import Device
    from halgpu.signature import Value


def configure(parser: Parser) -> None:
    """Add the flags, which are named as iree-run-module's."""
    several: dict[str, Any] = {"action": "append", "default": []}
    parser.add_argument(
        "--module",
        **several,
        metavar="FILE",
        help="a .vmfb, or - for stdin; repeated: later ones import from earlier, the last runs",
    )
    parser.add_argument("--function", default="", metavar="NAME", help="may be left out when there is one")
    parser.add_argument(
        "--device",
        metavar="URI",
        help="such as opencl:1; 'halgpu devices' lists them (default: $HALGPU_DEVICE, opencl)",
    )
    parser.add_argument("--input", **several, metavar="VALUE", help="see above")
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
    if not options.module:
        raise errors.InvalidArgument("no program given: use --module=file.vmfb")
    *dependencies, source = [sys.stdin.buffer.read() if path == "-" else path for path in options.module]
    device = open_device(options.device)
    with api.load(source, device, dependencies=dependencies) as module:
        status = _run(module, options)
    if options.print_statistics:
        _print_statistics(device)
    return status


def _run(module: api.Module, options: argparse.Namespace) -> int:
    function = _choose(module, options.function)
    outputs = function.signature.results
    if options.output and not options.expected_output:
        results.check_outputs(options.output, outputs)
    inputs = _inputs(function, options.input, module.device)
    sys.stdout.write(f"EXEC @{function.name}\n")
    sys.stdout.flush()
    found = api.invoke(function, inputs)
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


def _choose(module: api.Module, name: str) -> api.Function:
    if name:
        return module[name]
    if len(module) != 1:
        there = f"it has: {', '.join(module)}" if len(module) else "it has none"
        raise errors.InvalidArgument(f"module '{module.name}' needs --function=: {there}")
    return module[next(iter(module))]


def _inputs(function: api.Function, specs: list[str], device: Device) -> list[Any]:
    parameters = function.signature.parameters
    parsed = values.parse(specs, parameters)
    if len(parsed) != len(parameters):
        raise api.wrong_count(function, len(parsed))
    return [_argument(value, parameter, device) for value, parameter in zip(parsed, parameters, strict=True)]


def _expected(function: api.Function, specs: list[str]) -> list[values.Parsed]:
    results = function.signature.results
    parsed = values.parse(specs, results, "expected output")
    if len(parsed) > len(results):
        raise errors.InvalidArgument(
            f"function '{function.name}': expected {counted(len(results), 'result')}, "
            f"found {len(parsed)} expected outputs"
        )
    return parsed


def _argument(value: values.Parsed, parameter: Value, device: Device) -> Any:
    """What the VM passes for a parsed value."""
    if isinstance(value, values.Ignored):
        return None if not parameter.is_scalar else 0.0 if parameter.cconv in "fF" else 0
    if not isinstance(value, values.Tensor):
        return arguments.register(parameter, value)
    if parameter.is_scalar:
        raise errors.InvalidArgument(f"{parameter.name}: expected {parameter.text}, found {value.type_text}")
    if not value.storage:
        arguments.check_tensor(parameter, value.shape, value.element)
    try:
        buffer = upload(device, value.array, value.element)
    except errors.ResourceExhausted as error:
        raise errors.ResourceExhausted(f"{parameter.name}: {value.type_text}: {error.message}") from error
    return buffer if value.storage else BufferView(buffer, value.shape, value.element.code)


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
