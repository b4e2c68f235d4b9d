"""Kernels that are VM code (inline-static): halgpu's machine code beside IREE's C interpreter, in one run, as ratios.

    python benchmarks/jit.py [--json FILE]

Needs the `test` extra. Both run the same .vmfb; times are CPU time of whole calls, buffers for results included, the
least of rounds that take turns. Measured too: the same calls as translated Python (HALGPU_JIT=0), the kernels alone,
a program's first call, which compiles them, and that of the next load, which finds them on disk.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import halgpu
from halgpu.vm import jit

TOOLS = Path(sys.executable).parent
FLAGS = (
    "--iree-execution-model=inline-static",
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=vmvx-inline",
)
ELEMENTWISE = """
func.func @main(%x: tensor<100000xf32>, %y: tensor<100000xf32>) -> tensor<100000xf32> {
  %0 = arith.mulf %x, %y : tensor<100000xf32>
  %1 = arith.addf %0, %x : tensor<100000xf32>
  %2 = math.absf %1 : tensor<100000xf32>
  return %2 : tensor<100000xf32>
}
"""
EXPONENTIAL = """
func.func @main(%x: tensor<100000xf32>) -> tensor<100000xf32> {
  %0 = math.exp %x : tensor<100000xf32>
  return %0 : tensor<100000xf32>
}
"""
MATMUL = """
func.func @main(%a: tensor<96x128xf32>, %b: tensor<128x64xf32>) -> tensor<96x64xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<96x64xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<96x64xf32>) -> tensor<96x64xf32>
  %0 = linalg.matmul ins(%a, %b : tensor<96x128xf32>, tensor<128x64xf32>)
    outs(%start : tensor<96x64xf32>) -> tensor<96x64xf32>
  return %0 : tensor<96x64xf32>
}
"""
CONVOLUTION = """
func.func @main(%x: tensor<1x8x20x20xf32>, %w: tensor<16x8x3x3xf32>) -> tensor<1x16x18x18xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<1x16x18x18xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<1x16x18x18xf32>) -> tensor<1x16x18x18xf32>
  %0 = linalg.conv_2d_nchw_fchw ins(%x, %w : tensor<1x8x20x20xf32>, tensor<16x8x3x3xf32>)
    outs(%start : tensor<1x16x18x18xf32>) -> tensor<1x16x18x18xf32>
  return %0 : tensor<1x16x18x18xf32>
}
"""
PROGRAMS: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    "elementwise": (ELEMENTWISE, [(100_000,), (100_000,)]),
    "exponential": (EXPONENTIAL, [(100_000,)]),
    "matmul": (MATMUL, [(96, 128), (128, 64)]),
    "convolution": (CONVOLUTION, [(1, 8, 20, 20), (16, 8, 3, 3)]),
}
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def tool(name: str, *arguments: str) -> str:
    """Run a stock tool and return its stdout."""
    return subprocess.run([str(TOOLS / name), *arguments], check=True, capture_output=True, text=True).stdout


def interpreter(path: Path, shapes: list[tuple[int, ...]]) -> float:
    """CPU seconds of a call in IREE's interpreter, by iree-benchmark-module."""
    inputs = [f"--input={'x'.join(map(str, shape))}xf32=0.5" for shape in shapes]
    printed = tool(
        "iree-benchmark-module", f"--module={path}", "--function=main", *inputs,
        "--benchmark_format=json", "--benchmark_repetitions=3", "--benchmark_min_time=0.1s",
    )  # fmt: skip
    runs = json.loads(printed[printed.index("{") :])["benchmarks"]
    return min(run["cpu_time"] * UNITS[run["time_unit"]] for run in runs if run["run_type"] == "iteration")


def rounds(call: Callable[[], Any], least: float = 0.1) -> float:
    """CPU seconds of the quickest call among as many as take ``least`` seconds."""
    quickest, until = float("inf"), time.perf_counter() + least
    while time.perf_counter() < until:
        started = time.process_time()
        call()
        quickest = min(quickest, time.process_time() - started)
    return quickest


class Kernels:
    """Time inside of native loops."""

    def __init__(self) -> None:
        self.seconds = 0.0
        plain = jit.NativeLoop.__call__

        def timed(loop: jit.NativeLoop, *values: Any) -> Any:
            started = time.perf_counter()
            try:
                return plain(loop, *values)
            finally:
                self.seconds += time.perf_counter() - started

        jit.NativeLoop.__call__ = timed  # type: ignore[method-assign]

    def of(self, call: Callable[[], Any]) -> float:
        """Seconds of a call's kernels, the least of ten."""
        times = []
        for _ in range(10):
            self.seconds = 0.0
            call()
            times.append(self.seconds)
        return min(times)


def first_call(path: Path, inputs: list[Any]) -> float:
    """CPU seconds of the first call of a fresh load."""
    with halgpu.load(path, "host") as module:
        started = time.process_time()
        module.main(*inputs)
        return time.process_time() - started


def measure(folder: Path, name: str, kernels: Kernels) -> dict[str, float]:
    """All figures of one program, in microseconds and ratios."""
    source, shapes = PROGRAMS[name]
    (folder / f"{name}.mlir").write_text(source)
    path = folder / f"{name}.vmfb"
    tool("iree-compile", *FLAGS, str(folder / f"{name}.mlir"), "-o", str(path))
    inputs = [np.full(shape, 0.5, np.float32) for shape in shapes]
    with halgpu.load(path, "host") as module:
        inputs = [halgpu.BufferView.from_array(value, module.device) for value in inputs]
        os.environ["HALGPU_JIT"] = "0"
        with halgpu.load(path, module.device) as plain:
            python = rounds(lambda: plain.main(*inputs))
        os.environ["HALGPU_JIT"] = "1"
        compiled = first_call(path, inputs)
        kept = first_call(path, inputs)
        module.main(*inputs)
        ours, theirs = [], []
        for _ in range(3):
            ours.append(rounds(lambda: module.main(*inputs)))
            theirs.append(interpreter(path, shapes))
        alone = kernels.of(lambda: module.main(*inputs))
    return {
        "halgpu_us": min(ours) * 1e6,
        "iree_us": min(theirs) * 1e6,
        "times_faster": min(theirs) / min(ours),
        "kernels_us": alone * 1e6,
        "without_llvmlite_us": python * 1e6,
        "times_slower_without": python / min(theirs),
        "first_call_ms": compiled * 1e3,
        "first_call_from_disk_ms": kept * 1e3,
    }


def main() -> None:
    """Measure all and print a table; with --json, write it too."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not jit.enabled():
        raise SystemExit(
            "benchmarks/jit.py measures machine code: install llvmlite, and leave HALGPU_JIT alone"
        )
    kernels = Kernels()
    with tempfile.TemporaryDirectory() as name:
        os.environ["HALGPU_CACHE_DIR"] = f"{name}/cache"
        report = {program: measure(Path(name), program, kernels) for program in PROGRAMS}
    for program, figures in report.items():
        print(f"{program:12} " + "  ".join(f"{key} {value:.4g}" for key, value in figures.items()))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
