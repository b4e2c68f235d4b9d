"""Runs a function of a compiled program and writes what host and device did meanwhile as a timeline.

The file is for Perfetto and chrome://tracing. It begins with loading the program and building its kernels.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from halgpu import api, errors
from halgpu.cli import calls, timings
from halgpu.cli.flags import Parser
from halgpu.text import counted
from halgpu.tracing import trace

if TYPE_CHECKING:
    from halgpu.devices.profile import Recording


def configure(parser: Parser) -> None:
    """Add the flags."""
    parser.description = f"{__doc__}\n{calls.INPUTS}"
    calls.configure(parser)
    calls.configure_function(parser)
    parser.add_argument(
        "-o", "--output", default="trace.json", metavar="FILE", help="or - for stdout (default: trace.json)"
    )
    parser.add_argument(
        "--calls", type=int, default=1, metavar="N", help="how often to call the function (default: 1)"
    )


def main(options: argparse.Namespace) -> int:
    """Run and write the file; returns 0."""
    if options.calls < 1:
        raise errors.InvalidArgument(f"--calls must be at least 1, found {options.calls}")
    to_stdout = options.output == "-"
    with trace(sys.stdout if to_stdout else options.output) as recording:
        _run(options, recording)
    summary = sys.stderr if to_stdout else sys.stdout
    for line in _summary(options, recording):
        print(line, file=summary)
    return 0


def _run(options: argparse.Namespace, recording: Recording) -> None:
    with recording.span("load", "halgpu"):
        module = calls.load(options)
    with module:
        function = calls.choose(module, options.function)
        with recording.span("upload inputs", "halgpu"):
            inputs = calls.inputs(function, options.input, module.device)
        for number in range(1, options.calls + 1):
            with recording.span(f"call {number}", "halgpu"):
                api.invoke(function, inputs)
                module.device.wait_idle()


def _summary(options: argparse.Namespace, recording: Recording) -> Iterator[str]:
    yield (
        f"{options.output}: {counted(len(recording.spans), 'span')} of the host, "
        f"{counted(len(recording.commands), 'command')} of the device in {timings.duration(recording.seconds)}"
    )
    rows = [
        timings.Row(total.kind, total.name, total.seconds, total.longest, total.count, total.bytes)
        for total in (*recording.kernels, *recording.transfers)
    ]
    if rows:
        yield f"on the device, {timings.duration(recording.device_seconds)} in all:"
    yield from timings.table(rows)
