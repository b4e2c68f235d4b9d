# Debian: mesa-vulkan-drivers
"""ci/conformance linalg: the corpus of tests/executables/mlir_corpus on an OpenCL device, for several Vulkan targets.

    sh ci/conformance linalg [--target=NAME]… [--jobs=N] [--only=GLOB]… [--device=URI] [--report=FILE.json]

Each program is compiled by stock iree-compile for the target and for the CPU; halgpu runs the one, stock
iree-run-module the other. Integers must be equal, floats within a few units of rounding. Where they differ, stock
iree-run-module runs the same kernels on lavapipe (Vulkan on the CPU): if it gets what halgpu gets, the compiler is at
fault; if it gets what the CPU gets, the translator is. Where it gets neither, the compiler is at fault if the kernel
reads outside of its bindings (HALGPU_CHECKED), so that its result depends on what lies there.

The report has one entry a case: a program on a target, or an operation of it where the whole is refused or differs.
`status` is one of

    equal
    compile-refused   stock iree-compile refuses the program for the target
    no-oracle         stock iree-compile refuses it for the CPU, or iree-run-module fails on it
    load-refused      halgpu refuses the module
    differs           with `verdict`: "compiler", "translator" or "unclear", and what lavapipe did
    broken            a crash, a hang, or an exception that is not halgpu's

Exit status 1 if a case is broken, differs other than by the compiler's fault, or is refused by halgpu for no known
fault of the compiler (known_bugs.py names the compiler in its message).
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(Path(__file__).resolve().parent), str(ROOT / "tests" / "executables")]

import toolchain  # noqa: E402
from mlir_corpus import PROGRAMS, Program, find, function_name, joined  # noqa: E402
from mlir_corpus.compare import compare  # noqa: E402
from toolchain import ToolFailed, compile_module, stock_results  # noqa: E402
from worker import Broken, Refused, Worker  # noqa: E402

TARGETS = ("default", "ampere", "rdna3", "valhall4", "adreno")
# The compiler narrows f64 to f32 for every Vulkan target unless told not to; these two have it.
WITH_F64 = ("ampere", "rdna3")
BATCH = 10
BY_COMPILER = "iree-compile"
BAD = ("broken", "differs", "load-refused")


class NoOracleError(ToolFailed):
    """Stock iree-compile has no CPU code for the program."""


@dataclass
class Entry:
    """The report's line on one case."""

    name: str
    target: str
    status: str
    message: str = ""
    error: float = 0.0
    verdict: str = ""
    lavapipe: str = ""
    same_kernels: bool | None = None
    operations: tuple[str, ...] = ()

    @property
    def unexpected(self) -> bool:
        by_compiler = self.verdict == "compiler" or (
            self.status == "load-refused" and BY_COMPILER in self.message
        )
        return self.status in BAD and not by_compiler


class Suite:
    """Runs batches of programs for one target with one worker."""

    def __init__(self, target: str, worker: Worker) -> None:
        self.target = target
        self.worker = worker
        self.flags = [toolchain.VULKAN]
        if target != "default":
            self.flags.append(f"--iree-vulkan-target={target}")

    def settle(self, batch: Mapping[str, Program]) -> list[Entry]:
        """Entries for all programs, compiled and loaded together as far as they are not refused."""
        found = []
        for entry in self._together(batch):
            program = batch[entry.name]
            if entry.status in ("equal", "load-refused") or not program.parts:
                found.append(entry)
            else:
                found += self._in_parts(entry, program)
        return found

    def _in_parts(self, entry: Entry, program: Program) -> list[Entry]:
        """Entries for the operations of a program, which tell more than the whole; for both where these are equal."""
        entries = self.settle({f"{entry.name}.{label}": part for label, part in program.parts.items()})
        if all(part.status == "equal" for part in entries):
            entries += self._together({entry.name: replace(program, parts={})})
        return entries

    def _together(self, batch: Mapping[str, Program]) -> list[Entry]:
        try:
            module = compile_module(joined(batch), *self._flags(batch))
            self.worker.load(module)
            oracle = self._oracle(batch)
        except (ToolFailed, Refused, Broken) as problem:
            return self._apart(batch, problem)
        return [self._run(name, program, module, oracle) for name, program in batch.items()]

    def _apart(self, batch: Mapping[str, Program], problem: Exception) -> list[Entry]:
        """Entries for a batch that is refused: those at fault if they are known, else one by one."""
        if len(batch) == 1:
            (name,) = batch
            return [self._failed(name, problem)]
        culprits = self._blamed(batch, problem)
        entries = [self._entry(name, self._status(problem), message) for name, message in culprits.items()]
        rest = {name: program for name, program in batch.items() if name not in culprits}
        groups = [rest] if culprits else [{name: program} for name, program in rest.items()]
        return entries + [entry for group in groups if group for entry in self._together(group)]

    def _blamed(self, batch: Mapping[str, Program], problem: Exception) -> dict[str, str]:
        """The programs at fault, with the reason; none where that cannot be told."""
        if isinstance(problem, ToolFailed):
            return named_by_compiler(batch, problem)
        if isinstance(problem, Broken):
            return {}
        messages = self.worker.refusals(compile_module(joined(batch), *self._flags(batch)))
        return {
            name: message
            for message in messages
            for name in batch
            if f"{function_name(name)}_dispatch_" in message
        }

    def _oracle(self, batch: Mapping[str, Program]) -> Path:
        for flags in toolchain.CPU_WAYS:
            try:
                return compile_module(joined(batch), *toolchain.CPU, *flags, *self._narrowing(batch))
            except ToolFailed as problem:
                failed = problem
        raise NoOracleError(str(failed), failed.output) from failed

    def _flags(self, batch: Mapping[str, Program]) -> list[str]:
        kept = self.target in WITH_F64 and any(p.uses_f64 for p in batch.values())
        return [*self.flags, "--iree-input-demote-f64-to-f32=false"] if kept else self.flags

    def _narrowing(self, batch: Mapping[str, Program]) -> list[str]:
        return ["--iree-input-demote-f64-to-f32=false"] if len(self._flags(batch)) > len(self.flags) else []

    def _as_compiled(self, program: Program) -> Program:
        return program if self.target in WITH_F64 else program.of_type("f64", "f32")

    def _entry(self, name: str, status: str, message: str = "", **more: Any) -> Entry:
        return Entry(name, self.target, status, message, **more)

    def _failed(self, name: str, problem: Exception) -> Entry:
        return self._entry(name, self._status(problem), str(problem))

    def _status(self, problem: Exception) -> str:
        kinds = {
            NoOracleError: "no-oracle",
            ToolFailed: "compile-refused",
            Refused: "load-refused",
            Broken: "broken",
        }
        return kinds[type(problem)]

    def _run(self, name: str, program: Program, module: Path, oracle: Path) -> Entry:
        program = self._as_compiled(program)
        function, inputs = function_name(name), program.inputs()
        try:
            wanted = stock_results(oracle, function, program, inputs)
        except ToolFailed as problem:
            return self._entry(name, "no-oracle", str(problem))
        try:
            found = self.worker.call(function, inputs)
        except (Refused, Broken) as problem:
            self._recover(module)
            return self._entry(name, "broken", str(problem))
        wanted = shaped_as(found, wanted)
        compared = compare(program, found, wanted)
        if compared.same:
            return self._entry(name, "equal", error=compared.error, operations=tuple(program.parts))
        entry = self._entry(name, "differs", compared.problem, error=compared.error)
        if not program.parts:
            self._judge(entry, name, program, found, wanted)
        return entry

    def _recover(self, module: Path) -> None:
        try:
            self.worker.load(module)
        except (Refused, Broken):
            return

    def _judge(self, entry: Entry, name: str, program: Program, found: list[Any], wanted: list[Any]) -> None:
        """Run the same kernels with stock iree-run-module on lavapipe: whose fault is the difference?"""
        alone = {name: find(name)}  # as written, before f64 became f32
        source, flags = joined(alone), self._flags(alone)
        try:
            module, kernels = toolchain.compile_with_kernels(source, *flags, model=toolchain.FULL)
            entry.same_kernels = (
                kernels == toolchain.compile_with_kernels(source, *flags, model=toolchain.INLINE)[1]
            )
            theirs = stock_results(module, function_name(name), program, program.inputs(), "vulkan")
        except ToolFailed as problem:
            entry.verdict, entry.lavapipe = "unclear", f"does not run: {problem}"
            return
        theirs = shaped_as(found, theirs)
        as_cpu, as_halgpu = compare(program, theirs, wanted), compare(program, theirs, found)
        entry.lavapipe = (
            f"from the CPU: {as_cpu.problem or 'equal'}; from halgpu: {as_halgpu.problem or 'equal'}"
        )
        if entry.same_kernels and as_halgpu.same and not as_cpu.same:
            entry.verdict = "compiler"
        elif as_cpu.same:
            entry.verdict = "translator"
        else:
            entry.verdict = self._judge_accesses(entry, name, program)

    def _judge_accesses(self, entry: Entry, name: str, program: Program) -> str:
        """What lies outside of a binding differs from run to run: kernels that read it are wrong everywhere."""
        alone = {name: find(name)}
        module = toolchain.compile_with_kernels(joined(alone), *self._flags(alone), model=toolchain.INLINE)[0]
        worker = Worker(self.worker.device, checked=True)
        try:
            worker.load(module)
            worker.call(function_name(name), program.inputs())
        except (Refused, Broken) as problem:
            entry.lavapipe += f"; with checked accesses: {problem}"
            return "compiler" if "is outside of binding" in str(problem) else "unclear"
        finally:
            worker.close()
        return "unclear"


def shaped_as(found: list[Any], stock: list[Any]) -> list[Any]:
    """What stock computed; where it was written as bare bytes (bf16 of dynamic sizes) in the shape that was found."""
    both = zip(stock, found, strict=False)
    return [s.reshape(f.shape) if s.ndim == 1 and s.size == f.size else s for s, f in both]


def named_by_compiler(batch: Mapping[str, Program], problem: ToolFailed) -> dict[str, str]:
    """The programs of a batch in which the compiler reports errors, by the lines it names, with the first error."""
    found: dict[str, str] = {}
    ends, last = {}, 0
    for name, program in batch.items():
        last += program.named(name).count("\n") + 1
        ends[name] = last
    for line, message in re.findall(r"module\.mlir:(\d+):\d+: error: (.*)", problem.output):
        name = next((name for name, end in ends.items() if int(line) <= end), None)
        # What does not link is the whole module, though one function is named.
        if name and "failed to link" not in message:
            found.setdefault(name, message[:500])
    return found


def batches(programs: Mapping[str, Program]) -> Iterator[dict[str, Program]]:
    """Some programs at a time, those of the same element types and dialects together: they are refused together.

    In a module with StableHLO in it, iree-compile refuses operations of other dialects, such as tensor.bitcast.
    """
    apart = ("hlo.", "f64", "bf16", "f16", "i64")
    kinds = {name: [k for k in apart if k in program.source] for name, program in programs.items()}
    names = sorted(programs, key=lambda name: kinds[name])
    start = 0
    for end in range(1, len(names) + 1):
        full = end - start == BATCH
        if full or end == len(names) or kinds[names[end]] != kinds[names[start]]:
            yield {name: programs[name] for name in names[start:end]}
            start = end


@dataclass
class Outcome:
    """A target's entries so far."""

    entries: list[Entry]
    seconds: float = 0.0


def run(target: str, programs: Mapping[str, Program], jobs: int, device: str) -> Iterator[Outcome]:
    """Settle all programs; yields what is known whenever more is."""
    workers: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for _ in range(jobs):
        workers.put(Worker(device))

    def settle(batch: dict[str, Program]) -> list[Entry]:
        worker = workers.get()
        try:
            return Suite(target, worker).settle(batch)
        finally:
            workers.put(worker)

    began, outcome = time.monotonic(), Outcome([])
    with ThreadPoolExecutor(jobs) as pool:
        pending = [pool.submit(settle, batch) for batch in batches(programs)]
        try:
            for future in as_completed(pending):
                outcome.entries += future.result()
                outcome.seconds = time.monotonic() - began
                show(future.result())
                yield outcome
        finally:
            for future in pending:
                future.cancel()
    while not workers.empty():
        workers.get().close()
    print(f"== {target}: {summary(outcome.entries)}, {outcome.seconds:.0f} s", flush=True)


def show(entries: list[Entry]) -> None:
    for entry in entries:
        if entry.status != "equal":
            judged = f" ({entry.verdict})" if entry.verdict else ""
            print(f"{entry.target} {entry.name}: {entry.status}{judged}: {entry.message[:300]}", flush=True)


def summary(entries: list[Entry]) -> str:
    counts = Counter(f"{e.status} by {e.verdict}" if e.verdict else e.status for e in entries)
    return f"{len(entries)} cases, " + ", ".join(
        f"{count} {status}" for status, count in sorted(counts.items())
    )


def write_report(path: Path, device: str, done: Mapping[str, Outcome]) -> None:
    targets = {
        target: {"seconds": round(outcome.seconds, 1), **Counter(e.status for e in outcome.entries)}
        for target, outcome in done.items()
    }
    cases = [asdict(entry) for outcome in done.values() for entry in outcome.entries]
    content = {
        "suite": "linalg",
        "compiler": version("iree-base-compiler"),
        "device": device,
        "targets": targets,
    }
    unfinished = path.with_name(f".{path.name}.part")
    unfinished.write_text(json.dumps({**content, "cases": cases}, indent=1))
    unfinished.replace(path)


def chosen(patterns: list[str]) -> dict[str, Program]:
    """The programs whose names match; "GROUP.OPERATION" is one operation of a program."""
    if not patterns:
        return PROGRAMS
    named = dict(PROGRAMS)
    for name, program in PROGRAMS.items():
        named |= {f"{name}.{label}": part for label, part in program.parts.items()}
    found = {n: p for n, p in named.items() if any(fnmatch(n, pattern) for pattern in patterns)}
    return {n: p for n, p in found.items() if n.partition(".")[0] not in found or "." not in n}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="ci/conformance linalg", description="Linalg programs for Vulkan targets."
    )
    parser.add_argument("--target", action="append", choices=TARGETS, help="default: all of them")
    parser.add_argument("--only", action="append", metavar="GLOB", help="programs by name; may be repeated")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that run programs")
    parser.add_argument("--device", default="opencl", help="the device that halgpu runs them on")
    parser.add_argument("--report", type=Path, metavar="FILE.json", help="where to write one entry a case")
    options = parser.parse_args(arguments)
    programs = chosen(options.only or [])
    if not programs:
        parser.error(f"no program is named so; there are: {' '.join(PROGRAMS)}")
    done: dict[str, Outcome] = {}
    for target in options.target or TARGETS:
        for outcome in run(target, programs, options.jobs, options.device):
            done[target] = outcome
            if options.report:
                write_report(options.report, options.device, done)
    unexpected = [entry for found in done.values() for entry in found.entries if entry.unexpected]
    print(f"{len(unexpected)} unexpected")
    return bool(unexpected)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
