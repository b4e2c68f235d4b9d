"""Real models: halgpu on an OpenCL device beside ONNX Runtime on the CPU and stock IREE's llvm-cpu, in one run.

    python benchmarks/models.py [--json FILE] [--device URI] [--only NAME]… [--rounds N]

Needs halgpu[test] and the packages onnxruntime and magika. Each runtime has a process of its own. Their calls
alternate: a round is one call of each, so that what else the machine does meets all of them; times are the median of
the rounds, and `cpu` the processor time of a call, of all threads, which says more on a machine that others use.
`memory` is the peak of the process. First and second start are halgpu's with an empty cache of kernels (PoCL's) and
with a full one: from the start of the process to the first result. `outside` is the part of a call beyond its kernels,
by the device's clock, with where it falls.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

ROUNDS = 5
FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)


def package_folder(name: str) -> Path:
    """Where a package is installed, without importing it."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"the package {name} is not installed: pip install {name}")
    return Path(spec.submodule_search_locations[0])


def light(name: str) -> Path:
    """One of the networks in the package onnx; their weights are all the same number."""
    return package_folder("onnx") / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"


def image() -> np.ndarray:
    """What onnx.backend.test.runner feeds to them."""
    return (np.arange(3 * 224 * 224) / (3 * 224 * 224)).astype(np.float32).reshape(1, 3, 224, 224)


def document() -> np.ndarray:
    """Magika's input: the first and last 1024 bytes of a file, 256 where there is none."""
    tokens = np.full((1, 2048), 256, np.int32)
    text = Path(__file__).read_bytes()
    tokens[0, :1024] = np.frombuffer(text[:1024], np.uint8)
    tokens[0, 1024:] = np.frombuffer(text[-1024:], np.uint8)
    return tokens


def magika() -> Path:
    """The model of the package magika."""
    [path] = package_folder("magika").glob("models/standard*/model.onnx")
    return path


MODELS: dict[str, tuple[Callable[[], Path], Callable[[], np.ndarray]]] = {
    "magika": (magika, document),
    "shufflenet": (lambda: light("shufflenet"), image),
    "resnet50": (lambda: light("resnet50"), image),
}


# --- processes ------------------------------------------------------------------------------------------


def peak_memory() -> int:
    """Peak resident bytes of this process (Linux); getrusage counts those of the process it was forked from too."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def start_halgpu(program: str, device: str) -> tuple[Callable[[np.ndarray], np.ndarray], Any]:
    """A function that calls the program's only function, and its module."""
    import halgpu

    module = halgpu.load(program, device=device)
    [function] = module.functions.values()
    return lambda given: np.asarray(function(given)), module


def start_onnxruntime(model: str, _: str) -> tuple[Callable[[np.ndarray], np.ndarray], Any]:
    """The same of ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    [name] = [given.name for given in session.get_inputs()]
    return lambda given: session.run(None, {name: given})[0], None


def start_iree(program: str, _: str) -> tuple[Callable[[np.ndarray], np.ndarray], Any]:
    """The same of stock IREE, with all threads."""
    import iree.runtime as rt

    config = rt.Config("local-task")
    module = rt.load_vm_module(rt.VmModule.mmap(config.vm_instance, program), config)
    names = [
        name for name in module.vm_module.function_names if not name.startswith("__") and "$" not in name
    ]
    function = getattr(module, names[0])
    return lambda given: function(given).to_host(), None


STARTS = {"halgpu": start_halgpu, "onnxruntime": start_onnxruntime, "iree llvm-cpu": start_iree}


def serve(pipe: Connection, runtime: str, program: str, device: str, given: np.ndarray) -> None:
    """Answer "call" with (wall seconds, processor seconds), "profile" with shares, "memory" with the peak."""
    call, module = STARTS[runtime](program, device)
    result = call(given)
    pipe.send(result)
    while (asked := pipe.recv()) != "end":
        if asked == "call":
            wall, cpu = time.perf_counter(), time.process_time()
            call(given)
            pipe.send((time.perf_counter() - wall, time.process_time() - cpu))
        elif asked == "profile":
            pipe.send(profile(call, module, given))
        else:
            pipe.send(peak_memory())


class Process:
    """A runtime with a model in a process of its own."""

    def __init__(self, runtime: str, program: Path, device: str, given: np.ndarray) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        started = time.perf_counter()
        self.process = context.Process(
            target=serve, args=(theirs, runtime, str(program), device, given), daemon=True
        )
        self.process.start()
        theirs.close()
        self.result: np.ndarray = self.pipe.recv()
        self.first = time.perf_counter() - started
        self.times: list[tuple[float, float]] = []

    def ask(self, what: str) -> Any:
        self.pipe.send(what)
        return self.pipe.recv()

    def end(self) -> None:
        self.pipe.send("end")
        self.process.join(30)

    def figures(self) -> dict[str, Any]:
        walls, cpus = zip(*self.times, strict=True)
        return {
            "seconds": statistics.median(walls),
            "least_seconds": min(walls),
            "cpu_seconds": statistics.median(cpus),
            "memory_bytes": self.ask("memory"),
        }


# --- what the time goes to ------------------------------------------------------------------------------


def profile(call: Callable[[np.ndarray], np.ndarray], module: Any, given: np.ndarray) -> dict[str, Any]:
    """The share of a call outside kernels, and what the host did in it; the median of three calls by that share."""
    found = sorted((profile_call(call, module, given) for _ in range(3)), key=lambda each: each["outside"])
    return found[1]


def profile_call(call: Callable[[np.ndarray], np.ndarray], module: Any, given: np.ndarray) -> dict[str, Any]:
    """Parts of one call: kernels, the gaps between them on the device, and before the first and after the last."""
    with module.device.profile() as recording:
        start = time.perf_counter_ns()
        call(given)
        end = time.perf_counter_ns()
    kernels = sorted((c for c in recording.commands if c.kind == "kernel"), key=lambda c: c.start)
    busy, last = 0, 0
    for command in kernels:
        busy += max(0, command.end - max(command.start, last))
        last = max(last, command.end)
    whole = end - start
    spent: dict[str, float] = defaultdict(float)
    for command in recording.commands:
        if command.kind != "kernel":
            spent[f"{command.kind} on the device"] += (command.end - command.start) / whole
    spent["before the first kernel"] = (kernels[0].start - start) / whole
    spent["between kernels"] = (last - kernels[0].start - busy) / whole
    spent["after the last kernel"] = (end - last) / whole
    return {
        "outside": 1 - busy / whole,
        "of_the_call": dict(spent),
        "launches": len(kernels),
        "seconds": whole / 1e9,
    }


# --- models ---------------------------------------------------------------------------------------------


def compile_stock(model: Path, folder: Path) -> Path:
    """The model for the CPU with the full HAL, by stock iree-compile, and as halgpu imports ONNX."""
    from halgpu.compiler.import_onnx import import_model

    source, target = folder / "model.mlirbc", folder / "model.cpu.vmfb"
    source.write_bytes(import_model(str(model), {}))
    tool = package_folder("iree") / "compiler" / "_mlir_libs" / "iree-compile"
    subprocess.run([str(tool), *FLAGS, str(source), "-o", str(target)], check=True)
    return target


def measure(name: str, device: str, rounds: int, folder: Path) -> dict[str, Any]:
    """All figures of a model."""
    import halgpu

    find, make = MODELS[name]
    model, given = find(), make()
    shapes = {"bytes": given.shape} if name == "magika" else None
    program = folder / "model.vmfb"
    started = time.perf_counter()
    program.write_bytes(halgpu.compile(model, device=device, shapes=shapes))
    compiling = time.perf_counter() - started
    programs = {"halgpu": program, "onnxruntime": model, "iree llvm-cpu": stock_or_none(model, folder)}
    os.environ["POCL_CACHE_DIR"] = str(folder / "kernels")
    (folder / "kernels").mkdir()
    fresh = Process("halgpu", program, device, given)
    fresh.end()
    running = {runtime: Process(runtime, path, device, given) for runtime, path in programs.items() if path}
    for _ in range(rounds):
        for process in running.values():
            process.times.append(process.ask("call"))
    figures: dict[str, Any] = {runtime: process.figures() for runtime, process in running.items()}
    ours, theirs = running["halgpu"].result, running["onnxruntime"].result
    report = {
        "runtimes": figures,
        "cpu_ratio": {r: figures["halgpu"]["cpu_seconds"] / f["cpu_seconds"] for r, f in figures.items()},
        "compile_seconds": compiling,
        "first_start_seconds": fresh.first,
        "second_start_seconds": running["halgpu"].first,
        "profile": running["halgpu"].ask("profile"),
        "greatest_difference_from_onnxruntime": float(np.abs(ours - theirs).max()),
    }
    for process in running.values():
        process.end()
    return report


def stock_or_none(model: Path, folder: Path) -> Path | None:
    """The stock program, or None for a model that stock iree-compile does not take."""
    try:
        return compile_stock(model, folder)
    except subprocess.CalledProcessError as error:
        print(f"stock iree-compile: exit status {error.returncode}", file=sys.stderr)
        return None


def show(name: str, report: dict[str, Any]) -> None:
    for runtime, figures in report["runtimes"].items():
        print(
            f"{name:11} {runtime:14} {figures['seconds'] * 1e3:9.2f} ms a call, "
            f"{figures['cpu_seconds'] * 1e3:9.2f} ms of CPU, peak {figures['memory_bytes'] / 2**20:6.0f} MiB"
        )
    profiled = report["profile"]
    spent = ", ".join(f"{what} {share:.2%}" for what, share in profiled["of_the_call"].items())
    print(
        f"{name:11} compile {report['compile_seconds']:.1f} s, first start {report['first_start_seconds']:.1f} s, "
        f"second {report['second_start_seconds']:.1f} s; outside kernels {profiled['outside']:.2%} ({spent})",
        flush=True,
    )


def main() -> None:
    """Measure all and print a table; with --json, write it too."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", default="opencl")
    parser.add_argument("--only", action="append", choices=tuple(MODELS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    models: dict[str, Any] = {}
    for name in options.only or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            models[name] = measure(name, options.device, options.rounds, Path(folder))
        show(name, models[name])
        if options.json:
            options.json.write_text(json.dumps(summary(models), indent=2) + "\n")


def summary(models: dict[str, Any]) -> dict[str, Any]:
    """The report: what was measured, and where."""
    packages = ("halgpu", "onnxruntime", "iree-base-runtime", "pyopencl", "numpy")
    return {
        "cpus": os.cpu_count(),
        "load_average": os.getloadavg(),
        "versions": {package: version(package) for package in packages},
        "models": models,
    }


if __name__ == "__main__":
    main()
