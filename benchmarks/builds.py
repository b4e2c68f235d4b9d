"""Time until a program with 30 kernels is ready and has run, when nothing is built yet and at the second start.

    python benchmarks/builds.py [--json FILE]

Needs the `compiler` extra; runs on the first OpenCL device, meant for PoCL. Every figure is of a process of its own:
the first start with empty kernel caches, then the best of several second starts. The peer, in the same run, builds
each of the program's executables by itself, as a straightforward runtime does. Seconds:

    load        halgpu.load(): the kernels are built, so that a call needs no compiler's front end
    load cpu    the processor time of that, which says more on a busy machine
    first call  the first call to its end; PoCL makes a kernel's machine code at its first launch

A start also imports halgpu and opens the device, which does not depend on the program.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

KERNELS = 30
ROWS = 16
WIDTHS = [32 + 4 * (index * 7 % 23) for index in range(KERNELS // 3 + 1)]
FUNCTIONS = {"tanh": np.tanh, "sin": np.sin, "absf": np.abs, "cos": np.cos}
SECOND_STARTS = 5


def layers() -> list[tuple[int, int, str]]:
    """Columns in, columns out and function of each layer, which becomes three kernels."""
    names = list(FUNCTIONS)
    return [(a, b, names[index % len(names)]) for index, (a, b) in enumerate(pairwise(WIDTHS))]


def program() -> str:
    """MLIR of the layers: y = x W, x' = softmax(f(y)) + y."""
    lines = [
        f"func.func @main(%x0: tensor<{ROWS}x{WIDTHS[0]}xf32>) -> tensor<{ROWS}x{WIDTHS[-1]}xf32> {{",
        "  %zero = arith.constant 0.0 : f32",
    ]
    for i, (a, b, function) in enumerate(layers()):
        x, y, w = (f"tensor<{size}xf32>" for size in (f"{ROWS}x{a}", f"{ROWS}x{b}", f"{a}x{b}"))
        lines += [
            f"  %w{i} = arith.constant dense<{weight(i)}> : {w}",
            f"  %e{i} = tensor.empty() : {y}",
            f"  %f{i} = linalg.fill ins(%zero : f32) outs(%e{i} : {y}) -> {y}",
            f"  %m{i} = linalg.matmul ins(%x{i}, %w{i} : {x}, {w}) outs(%f{i} : {y}) -> {y}",
            f"  %t{i} = math.{function} %m{i} : {y}",
            f"  %s{i} = linalg.softmax dimension(1) ins(%t{i} : {y}) outs(%e{i} : {y}) -> {y}",
            f"  %x{i + 1} = arith.addf %s{i}, %m{i} : {y}",
        ]
    last = len(WIDTHS) - 1
    return "\n".join([*lines, f"  return %x{last} : tensor<{ROWS}x{WIDTHS[-1]}xf32>", "}"])


def weight(layer: int) -> float:
    """The value of all of a layer's weights."""
    return 0.01 + 0.001 * layer


def reference(x: np.ndarray) -> np.ndarray:
    """The program in numpy."""
    for i, (a, b, function) in enumerate(layers()):
        y = x @ np.full((a, b), weight(i), np.float32)
        e = np.exp(FUNCTIONS[function](y))
        x = e / e.sum(1, keepdims=True) + y
    return x


def start(path: Path, alone: bool) -> None:
    """Load and call the program in this process; prints the figures as JSON."""
    began = time.perf_counter()
    import halgpu
    from halgpu.devices import opencl_builds

    if alone:
        opencl_builds._groups = lambda programs: []
    imported = time.perf_counter()
    device = halgpu.open_device("opencl")
    opened, before = time.perf_counter(), time.process_time()
    module = halgpu.load(path, device)
    loaded, after = time.perf_counter(), time.process_time()
    x = np.linspace(-1, 1, ROWS * WIDTHS[0], dtype=np.float32).reshape(ROWS, -1)
    found = np.asarray(module.main(x))
    called = time.perf_counter()
    np.testing.assert_allclose(found, reference(x), rtol=1e-4)
    assert device.statistics.dispatches == KERNELS, device.statistics
    print(json.dumps({
        "device": device.capabilities.driver, "import": imported - began, "open": opened - imported,
        "load": loaded - opened, "load_cpu": after - before, "first_call": called - loaded,
        "programs": device.statistics.programs_compiled + device.statistics.programs_cached,
    }))  # fmt: skip


def started(path: Path, caches: Path, alone: bool) -> dict[str, float]:
    """The figures of a new process that keeps kernels, and Python's own bytecode, in ``caches``."""
    environment = {
        **os.environ, "POCL_CACHE_DIR": str(caches / "pocl"), "HALGPU_CACHE_DIR": str(caches / "halgpu"),
        "CUDA_CACHE_PATH": str(caches / "cuda"), "PYTHONPYCACHEPREFIX": str(caches.parent / "pyc"),
    }  # fmt: skip
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, __file__, "--start", str(path), *(["--alone"] if alone else [])]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    figures: dict[str, float] = json.loads(output)
    return figures


def measure(folder: Path) -> dict[str, dict[str, float]]:
    """Both ways, the first start and then second starts in turn."""
    path = folder / "program.vmfb"
    (folder / "program.mlir").write_text(program())
    subprocess.run(
        [Path(sys.executable).with_name("iree-compile"), "--iree-execution-model=inline-dynamic",
         "--iree-hal-target-device=vulkan", folder / "program.mlir", "-o", path],
        check=True,
    )  # fmt: skip
    started(path, folder / "warm-up", False)
    ways = {"together": False, "one by one": True}
    report = {f"{way}, first start": started(path, folder / way, alone) for way, alone in ways.items()}
    again = [
        {way: started(path, folder / way, alone) for way, alone in ways.items()} for _ in range(SECOND_STARTS)
    ]
    for way in ways:
        report[f"{way}, second start"] = min((turn[way] for turn in again), key=lambda each: each["load"])
    return report


def show(report: dict[str, dict[str, float]]) -> None:
    """Print a table of what was measured."""
    for what, figures in report.items():
        numbers = "  ".join(f"{key} {value:.3f}" for key, value in figures.items() if key != "device")
        print(f"{what:26} {numbers}")


def main() -> None:
    """Measure all and print a table; with --json, write it too."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--start", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.start:
        start(options.start, options.alone)
        return
    with tempfile.TemporaryDirectory() as name:
        report = measure(Path(name))
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
