"""Kernels that run on the host: halgpu beside stock IREE, in one run.

    python benchmarks/host.py [--json FILE] [--rounds N]

Needs halgpu[test]. Programs of llvm-cpu (compiled for this machine's processor) are called with buffers that are on the
device already, through halgpu on one thread, halgpu on all threads, and ``iree-benchmark-module``, which runs inline
programs on one thread. Rounds alternate, so that what else the machine does meets all of them; times are microseconds,
the median of the rounds' medians. `calls` is the program whose kernel does nothing worth mentioning: what a call
costs by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import halgpu

ROUNDS = 5
SECONDS = 0.3
"""Of each way in a round."""
FLAGS = (
    "--iree-execution-model=inline-dynamic",
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)

MATMUL = """
func.func @main(%a: tensor<512x512xf32>, %b: tensor<512x512xf32>) -> tensor<512x512xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<512x512xf32>
  %filled = linalg.fill ins(%zero : f32) outs(%empty : tensor<512x512xf32>) -> tensor<512x512xf32>
  %r = linalg.matmul ins(%a, %b : tensor<512x512xf32>, tensor<512x512xf32>)
      outs(%filled : tensor<512x512xf32>) -> tensor<512x512xf32>
  return %r : tensor<512x512xf32>
}
"""
SOFTMAX = """
func.func @main(%x: tensor<512x1024xf32>) -> tensor<512x1024xf32> {
  %empty = tensor.empty() : tensor<512x1024xf32>
  %r = linalg.softmax dimension(1) ins(%x : tensor<512x1024xf32>)
      outs(%empty : tensor<512x1024xf32>) -> tensor<512x1024xf32>
  return %r : tensor<512x1024xf32>
}
"""
ELEMENTWISE = """
func.func @main(%a: tensor<1048576xf32>, %b: tensor<1048576xf32>) -> tensor<1048576xf32> {
  %p = arith.mulf %a, %b : tensor<1048576xf32>
  %r = arith.addf %p, %a : tensor<1048576xf32>
  return %r : tensor<1048576xf32>
}
"""
CALLS = """
func.func @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
  %r = arith.addf %a, %b : tensor<4xf32>
  return %r : tensor<4xf32>
}
"""
PROGRAMS: dict[str, tuple[str, tuple[tuple[int, ...], ...]]] = {
    "matmul": (MATMUL, ((512, 512), (512, 512))),
    "softmax": (SOFTMAX, ((512, 1024),)),
    "elementwise": (ELEMENTWISE, ((1 << 20,), (1 << 20,))),
    "calls": (CALLS, ((4,), (4,))),
}


def tool(name: str) -> str:
    """An IREE tool, installed beside this Python."""
    return str(Path(sys.executable).with_name(name))


def compiled(source: str, folder: Path, name: str) -> Path:
    """The program compiled for this machine's processor."""
    (folder / f"{name}.mlir").write_text(source)
    path = folder / f"{name}.vmfb"
    subprocess.run([tool("iree-compile"), *FLAGS, str(folder / f"{name}.mlir"), "-o", str(path)], check=True)
    return path


def through_halgpu(
    path: Path, shapes: tuple[tuple[int, ...], ...], threads: int | None
) -> Callable[[], float]:
    """What times a round: microseconds of a call."""
    before = os.environ.pop("HALGPU_THREADS", None)
    if threads is not None:
        os.environ["HALGPU_THREADS"] = str(threads)
    try:
        module = halgpu.load(path, "host")
    finally:
        os.environ.pop("HALGPU_THREADS", None)
        if before is not None:
            os.environ["HALGPU_THREADS"] = before
    generator = np.random.default_rng(0)
    arrays = [generator.normal(size=shape).astype(np.float32) for shape in shapes]
    inputs = [halgpu.BufferView.from_array(array, module.device) for array in arrays]
    function = module["main"]

    def round_() -> float:
        times = []
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            start = time.perf_counter_ns()
            function(*inputs)
            times.append(time.perf_counter_ns() - start)
        return statistics.median(times) / 1000

    return round_


def through_iree(path: Path, shapes: tuple[tuple[int, ...], ...]) -> Callable[[], float]:
    """The same of iree-benchmark-module."""
    command = [
        tool("iree-benchmark-module"), f"--module={path}", "--function=main", "--device=local-sync",
        f"--benchmark_min_time={SECONDS / 5}s", "--benchmark_repetitions=5", "--benchmark_format=json",
        *(f"--input={'x'.join(map(str, shape))}xf32=1.5" for shape in shapes),
    ]  # fmt: skip

    def round_() -> float:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        [median] = [
            entry
            for entry in json.loads(done.stdout)["benchmarks"]
            if entry.get("aggregate_name") == "median"
        ]
        return float(median["real_time"]) * {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}[median["time_unit"]]

    return round_


def measure(path: Path, shapes: tuple[tuple[int, ...], ...], rounds: int) -> dict[str, float]:
    """Microseconds of a call by each way, and ratios to IREE's."""
    ways = {
        "one thread": through_halgpu(path, shapes, 1),
        "all threads": through_halgpu(path, shapes, None),
        "iree": through_iree(path, shapes),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            times[name].append(way())
    found = {name: statistics.median(values) for name, values in times.items()}
    for name in ("one thread", "all threads"):
        ratios = [ours / theirs for ours, theirs in zip(times[name], times["iree"], strict=True)]
        found[f"{name} / iree"] = statistics.median(ratios)
    return found


def llvm_cpu(rounds: int) -> dict[str, Any]:
    """Figures of all programs."""
    results = {}
    with tempfile.TemporaryDirectory() as name:
        for program, (source, shapes) in PROGRAMS.items():
            path = compiled(source, Path(name), program)
            found = results[program] = measure(path, shapes, rounds)
            print(f"{program:12}", *(f"{what} {value:9.2f}" for what, value in found.items()), sep="  ")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there too")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    results = {"processors": os.cpu_count(), "llvm-cpu": llvm_cpu(options.rounds)}
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
