"""ci/conformance finish: programs that halgpu finishes from iree-compile --compile-to=hal, against the stock compiler.

    sh ci/conformance finish [--only=GLOB]… [--cases=N] [--jobs=N] [--report=FILE.json] [--target=cpu|vulkan]…

A program is taken from iree-compile at HAL level, its kernels compiled, and finished twice: by iree-compile and by
halgpu. The two are right if they give the same bytes: under stock iree-run-module with the kernels of llvm-cpu, under
halgpu on an OpenCL device with those of the Vulkan target. iree-dump-module has to read every file. Programs are the
examples and the sample of ONNX node tests of tests/compiler, each a program of its own. The report has an entry a
program, with the number of instructions and registers beside stock's. Exit status 1 if any is not right.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path += [str(ROOT / "tests" / "compiler"), str(ROOT / "tests" / "executables")]

import numpy as np  # noqa: E402
import onnx_nodes  # noqa: E402
from onnx_nodes import Case, difference  # noqa: E402
from onnx_stock import stock_results  # noqa: E402
from test_onnx_sample import SAMPLE  # noqa: E402
from toolchain import CPU, VULKAN, ToolFailed, cache_folder, run_tool  # noqa: E402

import halgpu  # noqa: E402
from halgpu import errors  # noqa: E402
from halgpu.compiler.finish import finish  # noqa: E402
from halgpu.vm import definition, verifier  # noqa: E402

FLAGS = ("--iree-execution-model=inline-dynamic", "--iree-torch-emit-async-entry-points=false")
TARGETS = {"cpu": (*CPU, "--iree-input-demote-f64-to-f32=false"), "vulkan": (VULKAN,)}


@dataclass
class Counts:
    """Of all functions of a program."""

    instructions: int = 0
    i32_registers: int = 0
    ref_registers: int = 0


@dataclass
class Entry:
    """The report's line on one program and target."""

    name: str
    target: str
    status: str = "right"
    """right; stock-refused: the stock tools cannot compile or run it; stock-wrong: only halgpu's program gives the
    results that ONNX expects; else what is wrong."""
    message: str = ""
    stock: Counts = field(default_factory=Counts)
    ours: Counts = field(default_factory=Counts)
    seconds: float = 0.0


def count(data: bytes) -> Counts:
    """Instructions and registers of a program."""
    module = definition.read(data)
    found = Counts()
    for function in verifier.verify(module):
        found.instructions += sum(len(block.ops) for block in function.blocks)
        found.i32_registers += function.definition.i32_registers
        found.ref_registers += function.definition.ref_registers
    return found


@dataclass(frozen=True)
class Program:
    """A program to compile, and a call of it."""

    case: Case
    source: bytes
    suffix: str


def examples() -> list[Program]:
    """The examples that iree-compile compiles, each with a call."""
    random = np.random.default_rng(1)

    def array(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    calls = {
        "abs": ([array(2)], [(2,)]),
        "counter": ([array(4)], [(4,)]),
        "network": ([array(5, 37), array(37, 53), array(53), array(53, 11)], [(5, 11)]),
    }
    functions = {"counter": "add"}
    return [
        Program(
            Case(
                functions.get(name, name),
                (),
                b"",
                tuple(inputs),
                tuple(np.zeros(s, np.float32) for s in shapes),
                0,
                0,
            ),
            (ROOT / "examples" / f"{name}.mlir").read_bytes(),
            ".mlir",
        )
        for name, (inputs, shapes) in calls.items()
    ]


def sample(limit: int) -> list[Program]:
    """Programs of the ONNX sample."""
    names: dict[str, list[str]] = {}
    for module, found in SAMPLE.items():
        for name in found:
            if sum(map(len, names.values())) < limit:
                names.setdefault(module, []).append(name)
    cases, modules = onnx_nodes.separate(names)
    return [Program(cases[name], module, ".mlirbc") for name, module in modules.items()]


def check(program: Program, target: str) -> Entry:
    """Finish a program twice and compare."""
    entry = Entry(program.case.name, target)
    work = cache_folder() / f"finish-{os.getpid()}-{entry.name}-{target}"
    work.mkdir(exist_ok=True)
    try:
        _check(program, target, entry, work)
    except ToolFailed as problem:
        entry.status, entry.message = "stock-refused", str(problem)
    except errors.Error as problem:
        entry.status, entry.message = "refused", str(problem)
    except Exception as problem:
        entry.status, entry.message = "broken", f"{type(problem).__name__}: {problem}"
    finally:
        for path in work.iterdir():
            path.unlink()
        work.rmdir()
    return entry


def _check(program: Program, target: str, entry: Entry, work: Path) -> None:
    source, level, stock, ours = (work / n for n in (f"p{program.suffix}", "hal.mlir", "s.vmfb", "o.vmfb"))
    source.write_bytes(program.source)
    run_tool("iree-compile", *FLAGS, *TARGETS[target], "--compile-to=hal", str(source), "-o", str(level))
    run_tool("iree-compile", *FLAGS, *TARGETS[target], "--compile-from=hal", str(level), "-o", str(stock))
    started = time.perf_counter()
    ours.write_bytes(finish(level.read_text(), "hal.mlir").data)
    entry.seconds = round(time.perf_counter() - started, 3)
    entry.stock, entry.ours = count(stock.read_bytes()), count(ours.read_bytes())
    try:
        run_tool("iree-dump-module", str(ours))
    except ToolFailed as problem:
        entry.status, entry.message = "unreadable", str(problem)
        return
    run = RUNS[target]
    try:
        expected = run(stock, program.case)
    except (ToolFailed, errors.Error) as problem:
        entry.status, entry.message = "stock-refused", str(problem)
        return
    try:
        found = run(ours, program.case)
    except (ToolFailed, errors.Error) as problem:
        entry.status, entry.message = "does not run", str(problem)
        return
    if _same(found, expected):
        return
    case = program.case
    if case.model and difference(case, expected) and not difference(case, found):
        entry.status, entry.message = "stock-wrong", difference(case, expected)
    else:
        entry.status, entry.message = "wrong", f"{found} instead of {expected}"[:300]


def _run_halgpu(path: Path, case: Case) -> list[np.ndarray]:
    with halgpu.load(path, device=halgpu.open_device("opencl")) as module:
        found = module[case.name](*case.inputs)
        return [np.array(result) for result in (found if isinstance(found, tuple) else (found,))]


RUNS: dict[str, Callable[[Path, Case], list[np.ndarray]]] = {"cpu": stock_results, "vulkan": _run_halgpu}


def _same(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> bool:
    return len(found) == len(expected) and all(
        one.shape == other.shape and one.tobytes() == other.tobytes()
        for one, other in zip(found, expected, strict=True)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="GLOB")
    parser.add_argument("--cases", type=int, default=150, help="of the ONNX sample")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    programs = [
        p
        for p in [*examples(), *sample(options.cases)]
        if not options.only or any(fnmatch(p.case.name, glob) for glob in options.only)
    ]
    jobs = [(program, target) for target in options.target or TARGETS for program in programs]
    entries: list[Entry] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for entry in pool.map(lambda job: check(*job), jobs):
            entries.append(entry)
            if entry.status != "right":
                print(f"{entry.name} ({entry.target}): {entry.status}: {entry.message}", flush=True)
    if options.report:
        options.report.write_text(json.dumps([asdict(entry) for entry in entries], indent=1))
    return summarize(entries)


def summarize(entries: Sequence[Entry]) -> int:
    """Print totals; the exit status."""
    judged = [entry for entry in entries if entry.status != "stock-refused"]
    right = [entry for entry in judged if entry.status in ("right", "stock-wrong")]
    ahead = sum(entry.status == "stock-wrong" for entry in right)
    for name in ("instructions", "i32_registers", "ref_registers"):
        ours, stock = (sum(getattr(getattr(e, side), name) for e in judged) for side in ("ours", "stock"))
        print(f"{name}: {ours}, stock {stock} ({ours / max(stock, 1):.2f} times)")
    print(
        f"{len(right)} of {len(judged)} right, {ahead} of them where stock's is wrong; "
        f"{len(entries) - len(judged)} that the stock tools refuse"
    )
    return int(len(right) < len(judged) or not judged)


if __name__ == "__main__":
    sys.exit(main())
