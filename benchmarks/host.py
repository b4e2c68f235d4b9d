"""Kernels that run on the host: halgpu beside stock IREE, in one run.

    python benchmarks/host.py [--json FILE] [--rounds N]

Needs halgpu[test]. Programs of llvm-cpu (compiled for this machine's processor) are called through halgpu and through
``iree-benchmark-module``, which runs inline programs on one thread, on the same random numbers:

    one thread    halgpu with one thread, inputs on the device already, results left there, as IREE's tool does it
    all threads   the same with all threads
    numpy         with one thread, from numpy arrays to a numpy array: copies of all inputs and of the result besides
    iree          iree-benchmark-module

Rounds alternate, so that what else the machine does meets all of them, and each is a process of its own, since where a
process's memory happens to lie makes several per cent. Figures are microseconds of a call, each the mean of a fifth of
a round: `time`, the median of these by the clock, and `cpu`, the least of these in processor time of all threads, which
says more on a machine that others use. `calls` is the program whose kernel does nothing worth mentioning: what a call
costs by itself, as long as it is called again and again. After a kernel that has filled the caches with its data it is
more, for all that Python touches has to come from memory.
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

ROUNDS = 7
SECONDS = 0.3
"""Of each way in a round."""
PARTS = 5
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


Figures = list[tuple[float, float]]
"""Microseconds of a call, by the clock and of processor time, of each fifth of a round."""


WAYS: dict[str, dict[str, Any]] = {
    "one thread": {"threads": 1, "numpy": False},
    "all threads": {"threads": os.cpu_count() or 1, "numpy": False},
    "numpy": {"threads": 1, "numpy": True},
}


def through_halgpu(path: Path, inputs: list[Path], threads: int, numpy: bool) -> Callable[[], Figures]:
    """What runs a round, in a process of its own."""
    given = [*map(str, (path, *inputs)), *(["--numpy"] if numpy else [])]
    environment = {**os.environ, "HALGPU_THREADS": str(threads)}

    def round_() -> Figures:
        command = [sys.executable, __file__, "--worker", *given]
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        return [(wall, cpu) for wall, cpu in json.loads(done.stdout)]

    return round_


def work(path: str, files: list[str], numpy: bool) -> Figures:
    """A round, in this process."""
    module = halgpu.load(path, "host")
    arrays = [np.load(file) for file in files]
    inputs = arrays if numpy else [halgpu.BufferView.from_array(array, module.device) for array in arrays]
    function = module["main"]

    def call() -> Any:
        return np.asarray(function(*inputs)) if numpy else function(*inputs)

    def part() -> tuple[float, float]:
        calls, start, cpu = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() < start + SECONDS / PARTS:
            call()
            calls += 1
        return (time.perf_counter() - start) * 1e6 / calls, (time.process_time() - cpu) * 1e6 / calls

    call()
    return [part() for _ in range(PARTS)]


def through_iree(path: Path, inputs: list[Path]) -> Callable[[], Figures]:
    """The same of iree-benchmark-module."""
    command = [
        tool("iree-benchmark-module"), f"--module={path}", "--function=main", "--device=local-sync",
        f"--benchmark_min_time={SECONDS / PARTS}s", f"--benchmark_repetitions={PARTS}", "--benchmark_format=json",
        *(f"--input=@{file}" for file in inputs),
    ]  # fmt: skip
    units = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}

    def round_() -> Figures:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        entries = [item for item in json.loads(done.stdout)["benchmarks"] if item["run_type"] == "iteration"]
        return [
            (item["real_time"] * units[item["time_unit"]], item["cpu_time"] * units[item["time_unit"]])
            for item in entries
        ]

    return round_


def saved(shapes: tuple[tuple[int, ...], ...], folder: Path) -> list[Path]:
    """Files of random numbers."""
    generator = np.random.default_rng(0)
    paths = [folder / f"{index}.npy" for index in range(len(shapes))]
    for path, shape in zip(paths, shapes, strict=True):
        np.save(path, generator.normal(size=shape).astype(np.float32))
    return paths


def measure(path: Path, inputs: list[Path], rounds: int) -> dict[str, dict[str, float]]:
    """The figures of each way; those of halgpu with their ratios to IREE's."""
    ways = {name: through_halgpu(path, inputs, **way) for name, way in WAYS.items()}
    ways["iree"] = through_iree(path, inputs)
    parts: dict[str, Figures] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            parts[name] += way()
    found = {
        name: {"time": statistics.median(wall for wall, _ in values), "cpu": min(cpu for _, cpu in values)}
        for name, values in parts.items()
    }
    for name in WAYS:
        for what in ("time", "cpu"):
            found[name][f"{what} / iree"] = found[name][what] / found["iree"][what]
    return found


def llvm_cpu(rounds: int) -> dict[str, Any]:
    """Figures of all programs."""
    results = {}
    with tempfile.TemporaryDirectory() as name:
        for program, (source, shapes) in PROGRAMS.items():
            path = compiled(source, Path(name), program)
            found = results[program] = measure(path, saved(shapes, Path(name)), rounds)
            for way, figures in found.items():
                shown = "  ".join(f"{what} {value:9.2f}" for what, value in figures.items())
                print(f"{program:12} {way:12} {shown}")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there too")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--numpy", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(work(options.worker[0], options.worker[1:], options.numpy)))
        return
    results = {"processors": os.cpu_count(), "llvm-cpu": llvm_cpu(options.rounds)}
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
