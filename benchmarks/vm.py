"""Time of VM code: halgpu's translated Python beside IREE's C interpreter, in one run, as ratios.

    python benchmarks/vm.py [--json FILE]

Needs the `test` extra. Measured: an instruction of a scalar loop and of straight-line code; an instruction of the
host code around a real program's dispatches, with native functions that do nothing; loading, per KiB of bytecode;
and the peak of memory while a module with 10 MB of rodata loads.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from halgpu import vm
from halgpu.vm import verifier

TOOLS = Path(sys.executable).parent
NETWORK = Path(__file__).resolve().parent.parent / "examples" / "network.mlir"
TYPES = "vm.module @bench version 0\nvm.type i32\n"
LOOP = """
vm.export @loop
vm.func @loop(%i0: i32) -> (i32) {
^bb0:
  %i1 = vm.const.i32.zero
  %i2 = vm.const.i32.zero
  %i3 = vm.const.i32 1
  vm.br ^bb1()
^bb1:
  %i4 = vm.mul.i32 %i2, %i1
  %i4 = vm.add.i32 %i4, %i3
  %i2 = vm.xor.i32 %i2, %i4
  %i1 = vm.add.i32 %i1, %i3
  %i5 = vm.cmp.lt.i32.s %i1, %i0
  vm.cond_br %i5, ^bb1(), ^bb2()
^bb2:
  vm.return %i2
}
"""
STEPS = (
    "%i1 = vm.add.i32 %i1, %i0",
    "%i2 = vm.xor.i32 %i1, %i2",
    "%i1 = vm.mul.i32 %i2, %i1",
    "%i2 = vm.sub.i32 %i2, %i0",
)
STRAIGHT = (
    "\nvm.export @straight\nvm.func @straight(%i0: i32) -> (i32) {\n^bb0:\n"
    + "  %i1 = vm.const.i32 3\n  %i2 = vm.const.i32 5\n"
    + "".join(f"  {STEPS[index % len(STEPS)]}\n" for index in range(4000))
    + "  vm.return %i2\n}\n"
)


def tool(name: str, *arguments: str) -> str:
    """Run a stock tool and return its stdout."""
    return subprocess.run([str(TOOLS / name), *arguments], check=True, capture_output=True, text=True).stdout


def assemble(folder: Path, text: str) -> Path:
    """Assemble VMASM with the stock assembler."""
    (folder / "bench.vmasm").write_text(text)
    path = folder / f"bench{len(list(folder.iterdir()))}.vmfb"
    tool("iree-as-module", f"--output={path}", str(folder / "bench.vmasm"))
    return path


def best(call: Callable[[], Any], repeat: int = 7, least: float = 0.05) -> float:
    """Seconds of one call: the best of several rounds of at least ``least`` seconds."""
    call()
    count = 1
    while True:
        started = time.perf_counter()
        for _ in range(count):
            call()
        spent = time.perf_counter() - started
        if spent >= least:
            break
        count *= 2
    times = [spent / count]
    for _ in range(repeat - 1):
        started = time.perf_counter()
        for _ in range(count):
            call()
        times.append((time.perf_counter() - started) / count)
    return min(times)


def interpreter(path: Path, function: str, argument: int) -> float:
    """Seconds of one call in IREE's interpreter, by iree-benchmark-module: the best of 7 repetitions."""
    printed = tool(
        "iree-benchmark-module", f"--module={path}", f"--function={function}", f"--input={argument}",
        "--benchmark_format=json", "--benchmark_repetitions=7", "--benchmark_min_time=0.05s",
    )  # fmt: skip
    runs = [
        run
        for run in json.loads(printed[printed.index("{") :])["benchmarks"]
        if run["run_type"] == "iteration"
    ]
    unit = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
    return min(run["cpu_time"] * unit[run["time_unit"]] for run in runs)


def scalar(folder: Path, text: str, function: str, argument: int, instructions: int) -> dict[str, float]:
    """Nanoseconds an instruction of a scalar function, here and in the interpreter."""
    path = assemble(folder, TYPES + text)
    with vm.Context([vm.BytecodeModule.load(path)]) as context:
        call = context.lookup(f"bench.{function}")
        ours = best(lambda: call(argument)) / instructions
    theirs = interpreter(path, function, argument) / instructions
    return {"halgpu_ns": ours * 1e9, "iree_ns": theirs * 1e9, "ratio": ours / theirs}


def hollow(definition: Any) -> list[vm.NativeModule]:
    """Native modules with the functions that a program imports; each returns the same objects and does nothing."""
    results = {"i": 1, "I": 1, "r": object()}
    modules: dict[str, dict[str, Any]] = {}
    for item in definition.imports:
        module, _, name = item.full_name.partition(".")
        convention = vm.CallingConvention.parse(item.cconv)
        values = tuple(results[kind] for kind in item.cconv.partition("_")[2].replace("v", ""))
        value = None if not values else values[0] if len(values) == 1 else values
        parameters = ", ".join(f"a{index}" for index in range(len(convention.arguments)))
        scope: dict[str, Any] = {"value": value}
        exec(f"def method(self, {parameters}):\n    return value", scope)
        modules.setdefault(module, {})[name.replace(".", "_")] = vm.export(name, item.cconv)(scope["method"])
    return [
        type(name, (vm.NativeModule,), {"name": name, "version": 99, **methods})()
        for name, methods in modules.items()
    ]


def host_code(folder: Path) -> dict[str, float]:
    """Nanoseconds an instruction of the network example's host code, native functions that do nothing included."""
    path = folder / "network.vmfb"
    tool(
        "iree-compile",
        "--iree-execution-model=inline-dynamic",
        "--iree-hal-target-device=vulkan",
        str(NETWORK),
        "-o",
        str(path),
    )
    module = vm.BytecodeModule.load(path)
    [count] = [
        sum(len(block.ops) for block in function.blocks)
        for function in verifier.verify(module.definition)
        if function.definition.name == "network"
    ]
    with vm.Context([*hollow(module.definition), module]) as context:
        call = context.lookup("network")
        view = object()
        seconds = best(lambda: call(view, view, view, view))
    return {"halgpu_ns": seconds / count * 1e9, "instructions": count}


def loading(folder: Path) -> dict[str, float]:
    """Microseconds a KiB of a module with 400 functions, to a context that can call them."""
    functions = "".join(
        STRAIGHT.replace("@straight", f"@f{index}")[:4000].rpartition("\n")[0] + "\n  vm.return %i2\n}\n"
        for index in range(400)
    )
    path = assemble(folder, TYPES + functions)
    size = path.stat().st_size / 1024
    data = path.read_bytes()

    def load() -> None:
        with vm.Context([vm.BytecodeModule.load(data)]):
            pass

    ours = best(load, repeat=3)
    # The stock tools time calls, not loads: what iree-run-module takes for this module more than for a small one.
    small = assemble(folder, TYPES + LOOP)
    run = partial(tool, "iree-run-module", "--input=1")
    whole = best(lambda: run(f"--module={path}", "--function=f0"), repeat=10)
    theirs = max(whole - best(lambda: run(f"--module={small}", "--function=loop"), repeat=10), 1e-9)
    return {
        "halgpu_us_per_kib": ours / size * 1e6,
        "iree_us_per_kib": theirs / size * 1e6,
        "ratio": ours / theirs,
        "kib": size,
    }


def rodata(folder: Path) -> dict[str, float]:
    """Peak bytes allocated by Python while a module with 10 MB of rodata loads."""
    text = TYPES + "vm.type !vm.buffer\nvm.rodata[0] = " + "A5" * (1 << 20) * 10 + LOOP
    path = assemble(folder, text)
    tracemalloc.start()
    module = vm.BytecodeModule.load(path)
    with vm.Context([module]):
        peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {"module_bytes": path.stat().st_size, "peak_bytes": peak}


def main() -> None:
    """Measure all and print a table; with --json, write it too."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report = {
            "scalar loop": scalar(folder, LOOP, "loop", 20_000, 6 * 20_000),
            "straight line": scalar(folder, STRAIGHT, "straight", 7, 4003),
            "host code of network.mlir": host_code(folder),
            "load": loading(folder),
            "10 MB of rodata": rodata(folder),
        }
    for what, figures in report.items():
        print(f"{what:26} " + "  ".join(f"{key} {value:.4g}" for key, value in figures.items()))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
