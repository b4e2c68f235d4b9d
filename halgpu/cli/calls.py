"""What ``run``, ``bench`` and ``trace`` share: the flags that say what to call, and the call's arguments."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from halgpu import api, arguments, errors
from halgpu.buffer_view import BufferView, upload
from halgpu.cli import values
from halgpu.cli.flags import Parser
from halgpu.cli.progress import Progress
from halgpu.default_device import open_device

if TYPE_CHECKING:
    from halgpu.devices import Device
    from halgpu.signature import Value

INPUTS = """\
An --input, one for each parameter:
  3.14                       a scalar
  2x2xi32=1 2 3 4            a tensor; brackets and commas are decoration, one value fills it, none is zero
  2x2xi32=@f.bin  =+f.bin    raw bytes of a file, from its start or where the last value ended
  @f.npy  +f.npy  *f.npy     one array of a .npy file, the next one, all that remain
  &2x2xi32=...               only the buffer, without its shape
  (null)                     nothing
"""


def configure(parser: Parser) -> None:
    """Add the flags, which are named as those of IREE's tools."""
    several: dict[str, Any] = {"action": "append", "default": []}
    parser.add_argument(
        "--module",
        **several,
        metavar="FILE",
        help="a .vmfb, or - for stdin; repeated: later ones import from earlier, the last runs",
    )
    parser.add_argument(
        "--device",
        metavar="URI",
        help="such as opencl:1; 'halgpu devices' lists them (default: $HALGPU_DEVICE, opencl)",
    )
    parser.add_argument("--input", **several, metavar="VALUE", help="see above")
    parser.add_argument("--quiet", action="store_true", help="no progress on the terminal")


def configure_function(parser: Parser) -> None:
    """Add the flag for one function."""
    parser.add_argument("--function", default="", metavar="NAME", help="may be left out when there is one")


def load(options: argparse.Namespace) -> api.Module:
    """Load the programs of --module on the device of --device."""
    if not options.module:
        raise errors.InvalidArgument("no program given: use --module=file.vmfb")
    *dependencies, source = [sys.stdin.buffer.read() if path == "-" else path for path in options.module]
    device = open_device(options.device)
    with Progress(options.quiet) as progress:
        return api.load(source, device, dependencies=dependencies, progress=progress)


def choose(module: api.Module, name: str) -> api.Function:
    """The function of that name, or the only one there is."""
    if name:
        return module[name]
    if len(module) != 1:
        there = f"it has: {', '.join(module)}" if len(module) else "it has none"
        raise errors.InvalidArgument(f"module '{module.name}' needs --function=: {there}")
    return module[next(iter(module))]


def inputs(function: api.Function, specs: list[str], device: Device) -> list[Any]:
    """What the VM passes for the values of --input; tensors are uploaded."""
    parameters = function.signature.parameters
    parsed = values.parse(specs, parameters)
    if len(parsed) != len(parameters):
        raise api.wrong_count(function, len(parsed))
    return [_argument(value, parameter, device) for value, parameter in zip(parsed, parameters, strict=True)]


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
