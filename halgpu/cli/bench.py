"""Measures how long functions of a compiled program take, and what the time is spent on.

Each function is called until it is warm, then timed call by call; a last pass, which is not timed, asks the
device how long each kernel ran. Inputs are on the device before; a call ends when the device is done.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from typing import Any, Final, TextIO

from halgpu import api, errors
from halgpu.cli import calls, timings
from halgpu.cli.flags import Parser
from halgpu.cli.measure import Budget, Measurement, measure, peak_rss

DEFAULT_UNIT: Final = "ms"
PERCENTILES: Final = (90, 99)


def configure(parser: Parser) -> None:
    """Add the flags; those named ``benchmark_…`` and ``time_unit`` are iree-benchmark-module's."""
    parser.description = f"{__doc__}\n{calls.INPUTS}"
    calls.configure(parser)
    parser.add_argument(
        "--function",
        action="append",
        default=[],
        metavar="NAME",
        help="repeated: all get the same inputs; default: every function without parameters",
    )
    parser.add_argument(
        "--benchmark_min_time",
        type=_budget,
        default=Budget(seconds=0.5),
        metavar="TIME",
        help="how long to time: 2s, or 100x for 100 calls (default: 0.5s)",
    )
    parser.add_argument(
        "--benchmark_min_warmup_time",
        type=_seconds,
        default=0.1,
        metavar="SECONDS",
        help="how long to call before; once at least (default: 0.1)",
    )
    parser.add_argument(
        "--profile_calls",
        type=_count,
        default=10,
        metavar="N",
        help="calls whose kernels are timed; 0: none (default: 10)",
    )
    parser.add_argument(
        "--items", type=_positive, default=1, metavar="N", help="items that a call processes (default: 1)"
    )
    parser.add_argument(
        "--time_unit", choices=tuple(timings.UNITS), help="default: what fits; with --json, ms"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--benchmark_out", metavar="FILE", help="write JSON to a file too")


def _budget(text: str) -> Budget:
    if re.fullmatch(r"0*[1-9][0-9]{0,8}x", text):
        return Budget(calls=int(text[:-1]))
    return Budget(seconds=_seconds(text.removesuffix("s")))


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1e6:
        raise argparse.ArgumentTypeError(f"expected seconds, found {text!r}")
    return value


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"expected a number, found {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if not _count(text):
        raise argparse.ArgumentTypeError(f"expected at least 1, found {text!r}")
    return int(text)


def main(options: argparse.Namespace) -> int:
    """Measure and report; returns 0."""
    if not options.benchmark_out:
        return _main(options, None)
    with open(options.benchmark_out, "w", encoding="utf-8") as file:
        return _main(options, file)


def _main(options: argparse.Namespace, file: TextIO | None) -> int:
    with calls.load(options) as module:
        context = _context(module)
        if not options.json:
            print(_heading(context), flush=True)
        measured = []
        for function in _functions(module, options):
            found = _measure(module, function, options)
            measured.append(found)
            if not options.json:
                print("\n".join(_report(found, options)), flush=True)
    context["peak_rss_bytes"] = peak_rss()
    unit = options.time_unit or DEFAULT_UNIT
    report = {"context": context, "benchmarks": [_entry(found, options.items, unit) for found in measured]}
    if not options.json and context["peak_rss_bytes"]:
        print(f"peak memory of the process: {timings.size(context['peak_rss_bytes'])}")
    for stream in (sys.stdout if options.json else None, file):
        if stream is not None:
            json.dump(report, stream, indent=2)
            stream.write("\n")
    return 0


def _functions(module: api.Module, options: argparse.Namespace) -> list[api.Function]:
    if options.function or options.input:
        names = options.function or [""]
        return [calls.choose(module, name) for name in names]
    functions = list(module.functions.values())
    ready = [function for function in functions if not function.signature.parameters]
    others = ", ".join(function.name for function in functions if function.signature.parameters)
    if not ready:
        what = f"all it has take inputs: {others}" if others else "it has none"
        raise errors.InvalidArgument(
            f"module '{module.name}' has no function without parameters; {what}. Use --function= and --input="
        )
    if others:
        print(f"halgpu: not measured without --function= and --input=: {others}", file=sys.stderr)
    return ready


def _measure(module: api.Module, function: api.Function, options: argparse.Namespace) -> Measurement:
    inputs = calls.inputs(function, options.input, module.device)
    return measure(
        module,
        function,
        inputs,
        warm_up=Budget(options.benchmark_min_warmup_time, fewest=0),
        timed=options.benchmark_min_time,
        profiled_calls=options.profile_calls,
    )


# Text -------------------------------------------------------------------------------------------------


def _heading(context: dict[str, Any]) -> str:
    return f"{context['module']} on {context['device']}: {context['device_name']}, {context['driver']}"


def _report(found: Measurement, options: argparse.Namespace) -> Iterator[str]:
    unit = options.time_unit

    def text(seconds: float) -> str:
        return timings.duration(seconds, unit)

    percentiles = ", ".join(f"p{percent} {text(found.percentile(percent))}" for percent in PERCENTILES)
    yield f"{found.function}"
    yield (
        f"  median {text(found.median)}, mean {text(found.mean)}, std {text(found.deviation)}, "
        f"min {text(min(found.times))}, {percentiles}, max {text(max(found.times))}"
    )
    yield (
        f"  {options.items / found.mean:,.5g} items/s; {len(found.times)} calls timed after {found.warm_ups}, "
        f"the first took {text(found.first)}; {text(found.cpu)} of CPU a call"
    )
    yield f"  peak device memory {timings.size(found.device_bytes_peak)}"
    profiled = found.profiled
    if profiled is not None and found.outside is not None:
        yield (
            f"  in kernels {text(profiled.seconds)}, outside {found.outside:.1%} of the median; "
            f"per call, by {profiled.calls} more calls:"
        )
        yield from ("  " + line for line in timings.table(profiled.rows, unit))


# JSON -------------------------------------------------------------------------------------------------


def _context(module: api.Module) -> dict[str, Any]:
    device = module.device
    return {
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "host_name": socket.gethostname(),
        "executable": "halgpu bench",
        "num_cpus": os.cpu_count(),
        "load_avg": list(os.getloadavg()) if hasattr(os, "getloadavg") else [],
        "module": module.name,
        "device": device.uri,
        "device_name": device.capabilities.name,
        "driver": device.capabilities.driver,
    }


def _entry(found: Measurement, items: int, unit: str) -> dict[str, Any]:
    """The keys of Google Benchmark's JSON, and more; times are in ``unit``."""
    scale = timings.UNITS[unit]
    name = f"BM_{found.function}/process_time/real_time"  # as iree-benchmark-module calls it
    entry: dict[str, Any] = {
        "name": name,
        "run_name": name,
        "run_type": "iteration",
        "repetitions": 1,
        "repetition_index": 0,
        "threads": 1,
        "iterations": len(found.times),
        "real_time": found.mean * scale,
        "cpu_time": found.cpu * scale,
        "time_unit": unit,
        "items_per_second": items / found.mean,
        "function": found.function,
        "first_time": found.first * scale,
        "warm_ups": found.warm_ups,
        "median_time": found.median * scale,
        "stddev_time": found.deviation * scale,
        "min_time": min(found.times) * scale,
        "max_time": max(found.times) * scale,
        **{f"p{percent}_time": found.percentile(percent) * scale for percent in PERCENTILES},
        "device_bytes_peak": found.device_bytes_peak,
    }
    profiled = found.profiled
    if profiled is not None:
        entry["kernel_time"] = profiled.seconds * scale
        entry["outside_kernels"] = found.outside
        entry["kernels"] = [_row(row, scale) for row in profiled.rows if row.kind == "kernel"]
        entry["transfers"] = [_row(row, scale) for row in profiled.rows if row.kind != "kernel"]
    return entry


def _row(row: timings.Row, scale: float) -> dict[str, Any]:
    """What a call spends on a kernel or kind of transfer."""
    return {
        "name": row.name,
        "count": row.count,
        "time": row.seconds * scale,
        "max_time": row.longest * scale,
        "bytes": row.bytes,
    }
