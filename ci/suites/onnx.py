"""ci/conformance onnx: the node tests of the package onnx, compiled by halgpu.compile, on an OpenCL device.

    sh ci/conformance onnx [--only=GLOB]… [--jobs=N] [--device=URI] [--target=NAME] [--report=FILE.json]
                           [--misses-of=FILE.json]

A case is a model of one operator or few with inputs, expected results and a tolerance. It is right if halgpu gets the
results within the tolerance, and integers exactly. Beside each verdict stands what the stock tools do: `accepted`, if
iree-compile takes the model, as iree-import-onnx makes it, in inline-dynamic for the Vulkan target; and `cpu`, if it
does and the program for llvm-cpu gets the expected results under iree-run-module. They are kept for the next run.
--target=vmvx, vmvx-inline or llvm-cpu compiles for the host instead of the device, whose storage the kernels then work
on (--device=host, if left out); both verdicts are then of that target.
--stock=misses asks the stock tools of misses only, --misses-of runs those of a report again, --resume goes on with an
unfinished report.

The report has one entry a case. `status` is one of

    right, wrong
    unfit             its values are not tensors of numbers
    compile-refused   halgpu.compile refuses it
    compile-crashed   the compiler crashes or hangs, of which halgpu.compile makes an errors.Internal
    load-refused      halgpu refuses the program, or a call of it
    broken            a crash, a hang, or an exception that is not halgpu's

Exit status 1 if a case is not right that iree-compile accepts and llvm-cpu gets right, or is broken.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = str(Path(__file__).resolve().parent)
# This file is named as the package is whose tests it runs, which has to be found first.
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
sys.path += [HERE, str(ROOT / "tests" / "compiler"), str(ROOT / "tests" / "executables")]

import argparse  # noqa: E402
import hashlib  # noqa: E402
import json  # noqa: E402
import queue  # noqa: E402
import re  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import Iterator, Sequence  # noqa: E402
from concurrent.futures import ThreadPoolExecutor, as_completed  # noqa: E402
from dataclasses import asdict, dataclass  # noqa: E402
from fnmatch import fnmatch  # noqa: E402
from importlib.metadata import version  # noqa: E402

import toolchain  # noqa: E402
from onnx_compiler import Compiler, Modules  # noqa: E402
from onnx_nodes import Case, all_cases, difference  # noqa: E402
from onnx_stock import run_stock  # noqa: E402
from worker import Broken, Refused, Worker  # noqa: E402

import halgpu  # noqa: E402
from halgpu.compiler import targets  # noqa: E402

BATCH = 24
SYNCHRONOUS = "--iree-torch-emit-async-entry-points=false"
VULKAN = ["--iree-execution-model=inline-dynamic", toolchain.VULKAN, SYNCHRONOUS]
# 64-bit floats stay, and the CPU is the host's: as much as possible is right.
CPU = [
    *toolchain.CPU[:2],
    "--iree-llvmcpu-target-cpu=host",
    "--iree-input-demote-f64-to-f32=false",
    SYNCHRONOUS,
]


def stock_flags(target: str | None) -> dict[str, list[str]]:
    """What the stock compiler is given for each verdict."""
    if target is None:
        return {"accepted": VULKAN, "cpu": CPU}
    return dict.fromkeys(("accepted", "cpu"), targets.for_name(target, None))


@dataclass
class Entry:
    """The report's line on one case."""

    name: str
    operators: list[str]
    status: str = ""
    message: str = ""
    accepted: bool = False
    accept_message: str = ""
    cpu: bool = False
    cpu_message: str = ""

    @property
    def owed(self) -> bool:
        return self.accepted and self.cpu and self.status != "right"


class Lane:
    """Settles batches of cases with processes of its own."""

    def __init__(self, device: str, target: str | None, folder: Path) -> None:
        self._worker = Worker(device)
        opened = halgpu.open_device(device)
        named = None if target is None else targets.for_name(target, None)
        ours = named or targets.for_device(opened.capabilities, None)
        self._ours = Compiler([*ours], folder, repaired=True, modern=True)
        self._flags = stock_flags(target)
        self._accepts = Compiler(self._flags["accepted"], folder, repaired=False, modern=False)
        self._cpu = Compiler(self._flags["cpu"], folder, repaired=False, modern=False)
        self._modern_cpu = Compiler(self._flags["cpu"], folder, repaired=False, modern=True)

    def close(self) -> None:
        for part in (self._worker, self._ours, self._accepts, self._cpu, self._modern_cpu):
            part.close()

    def settle(self, cases: Sequence[Case], stock: str) -> list[Entry]:
        """Entries for ``cases``; ``stock`` says of which the stock tools' verdicts are wanted: all, misses, none."""
        entries = {case.name: Entry(case.name, sorted(set(case.operators))) for case in cases}
        fit = []
        for case in cases:
            if case.unfit:
                entries[case.name].status, entries[case.name].message = "unfit", case.unfit
            else:
                fit.append(case)
        self._run_ours(fit, entries)
        judged = [case for case in fit if stock == "all" or entries[case.name].status != "right"]
        if stock != "none":
            self._accept(judged, entries)
            self._run_cpu([case for case in judged if entries[case.name].accepted], entries)
        return list(entries.values())

    def _run_ours(self, cases: Sequence[Case], entries: dict[str, Entry]) -> None:
        made = self._ours.compile({case.name: case.model for case in cases})
        for name, entry in entries.items():
            if name in made.refused:
                entry.status, entry.message = "compile-refused", made.refused[name]
            if name in made.broken:
                entry.status, entry.message = "compile-crashed", made.broken[name]
        for path in set(made.paths.values()):
            self._load(path, [case for case in cases if made.paths.get(case.name) == path], entries)

    def _load(self, path: Path, cases: list[Case], entries: dict[str, Entry]) -> None:
        try:
            self._worker.load(path)
        except (Refused, Broken) as problem:
            self._load_apart(cases, entries, problem)
            return
        finally:
            path.unlink(missing_ok=True)
        for number, case in enumerate(cases):
            entry = entries[case.name]
            try:
                entry.message = difference(case, self._worker.call(case.name, case.inputs))
                entry.status = "wrong" if entry.message else "right"
            except Refused as problem:
                entry.status, entry.message = "load-refused", f"call: {problem}"
            except Broken as problem:
                entry.status, entry.message = "broken", f"call: {problem}"
                # The module may be gone with the process.
                self._run_ours(cases[number + 1 :], entries)
                return

    def _load_apart(self, cases: list[Case], entries: dict[str, Entry], problem: Exception) -> None:
        if len(cases) > 1:
            for half in (cases[: len(cases) // 2], cases[len(cases) // 2 :]):
                self._run_ours(half, entries)
            return
        entry = entries[cases[0].name]
        entry.status = "load-refused" if isinstance(problem, Refused) else "broken"
        entry.message = f"load: {problem}"

    def _accept(self, cases: Sequence[Case], entries: dict[str, Entry]) -> None:
        flags = self._flags["accepted"]
        unknown = [case for case in cases if not recall(entries[case.name], case, "accepted", flags)]
        made = self._accepts.compile({case.name: case.model for case in unknown})
        for case in unknown:
            entry = entries[case.name]
            entry.accepted = case.name in made.paths
            entry.accept_message = _why_not(made, case.name)
            remember(entry, case, "accepted", flags)
        _forget(made)

    def _run_cpu(self, cases: Sequence[Case], entries: dict[str, Entry]) -> None:
        flags = self._flags["cpu"]
        unknown = [case for case in cases if not recall(entries[case.name], case, "cpu", flags)]
        for compiler in (self._cpu, self._modern_cpu):
            left = [case for case in unknown if not entries[case.name].cpu]
            made = compiler.compile({case.name: case.model for case in left})
            for case in left:
                problem = _why_not(made, case.name) or run_stock(made.paths[case.name], case)
                entries[case.name].cpu = not problem
                entries[case.name].cpu_message = problem
            _forget(made)
        for case in unknown:
            remember(entries[case.name], case, "cpu", flags)


def _why_not(made: Modules, name: str) -> str:
    return made.refused.get(name, "") or made.broken.get(name, "")


def _forget(made: Modules) -> None:
    for path in set(made.paths.values()):
        path.unlink(missing_ok=True)


def _kept(case: Case, verdict: str, flags: Sequence[str]) -> Path:
    inputs = [(array.tobytes(), array.shape) for array in (*case.inputs, *case.expected)]
    content = (
        case.model,
        inputs,
        flags,
        version("iree-base-compiler"),
        version("iree-base-runtime"),
        verdict,
    )
    return toolchain.cache_folder() / f"onnx-{hashlib.sha256(repr(content).encode()).hexdigest()[:32]}.json"


def recall(entry: Entry, case: Case, verdict: str, flags: Sequence[str]) -> bool:
    """Take a verdict of the stock tools from an earlier run, if there is one."""
    path = _kept(case, verdict, flags)
    if not path.exists():
        return False
    for name, value in json.loads(path.read_text()).items():
        setattr(entry, name, value)
    return True


def remember(entry: Entry, case: Case, verdict: str, flags: Sequence[str]) -> None:
    message = "accept_message" if verdict == "accepted" else "cpu_message"
    path = _kept(case, verdict, flags)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps({verdict: getattr(entry, verdict), message: getattr(entry, message)}))
    unfinished.replace(path)


def run(cases: Sequence[Case], options: argparse.Namespace) -> Iterator[list[Entry]]:
    """Settle all cases; yields what is new whenever something is."""
    lanes: queue.SimpleQueue[Lane] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.jobs):
            lanes.put(Lane(options.device, options.target, Path(folder)))

        def settle(batch: Sequence[Case]) -> list[Entry]:
            lane = lanes.get()
            try:
                return lane.settle(batch, options.stock)
            finally:
                lanes.put(lane)

        with ThreadPoolExecutor(options.jobs) as pool:
            batches = [cases[at : at + BATCH] for at in range(0, len(cases), BATCH)]
            pending = [pool.submit(settle, batch) for batch in batches]
            try:
                for future in as_completed(pending):
                    yield future.result()
            finally:
                for future in pending:
                    future.cancel()
        while not lanes.empty():
            lanes.get().close()


def reason(message: str) -> str:
    """A message without what differs from case to case, to count it by."""
    message = re.sub(r"^loc\(.*?\)+: (?=\S)", "", message)
    named = re.search(r'name = "(onnx\.\w+)"', message)
    if named:
        return f"the compiler has no {named[1]} of these types and shapes"
    short = re.split(r": %| marked illegal|; |, such as|: \w+\.?\w* ", message)[0]
    return re.sub(r"\d+", "N", short)[:160]


def summary(entries: Sequence[Entry]) -> dict[str, object]:
    """The counts that the report starts with."""
    accepted = [entry for entry in entries if entry.accepted]
    return {
        "cases": len(entries),
        **Counter(entry.status for entry in entries),
        "accepted": len(accepted),
        "accepted and right": sum(entry.status == "right" for entry in accepted),
        "accepted and right on cpu": sum(entry.cpu for entry in accepted),
        "accepted and right on cpu and right": sum(e.cpu and e.status == "right" for e in accepted),
        "owed": sorted(entry.name for entry in entries if entry.owed),
    }


def write_report(path: Path, options: argparse.Namespace, entries: Sequence[Entry], seconds: float) -> None:
    misses = [entry for entry in entries if entry.status != "right"]
    content = {
        "suite": "onnx",
        "compiler": version("iree-base-compiler"),
        "onnx": version("onnx"),
        "device": options.device,
        "target": options.target,
        "stock": options.stock,
        "seconds": round(seconds, 1),
        **summary(entries),
        "reasons": dict(Counter(f"{e.status}: {reason(e.message)}" for e in misses).most_common()),
        "entries": [asdict(entry) for entry in sorted(entries, key=lambda entry: entry.name)],
    }
    unfinished = path.with_name(f".{path.name}.part")
    unfinished.write_text(json.dumps(content, indent=1))
    unfinished.replace(path)


def chosen(options: argparse.Namespace) -> list[Case]:
    # Small ones first.
    cases = sorted(all_cases(), key=lambda case: len(case.operators) // 8)
    if options.only:
        cases = [case for case in cases if any(fnmatch(case.name, pattern) for pattern in options.only)]
    if options.misses_of:
        entries = json.loads(options.misses_of.read_text())["entries"]
        missed = {entry["name"] for entry in entries if entry["status"] != "right"}
        cases = [case for case in cases if case.name in missed]
    return cases[:: options.every]


def earlier(options: argparse.Namespace) -> list[Entry]:
    if not options.resume or not options.report or not options.report.exists():
        return []
    return [Entry(**entry) for entry in json.loads(options.report.read_text())["entries"]]


def show(entries: Sequence[Entry]) -> None:
    for entry in entries:
        if entry.status != "right":
            flags = f"{'accepted' if entry.accepted else ''} {'cpu' if entry.cpu else ''}".strip()
            print(f"{entry.name}: {entry.status} ({flags}): {entry.message[:300]}", flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="ci/conformance onnx", description="The node tests of onnx.")
    parser.add_argument("--only", action="append", metavar="GLOB", help="cases by name; may be repeated")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each Nth case")
    parser.add_argument(
        "--misses-of", type=Path, metavar="FILE.json", help="cases that were not right in a report"
    )
    parser.add_argument(
        "--stock",
        choices=("all", "misses", "none"),
        default="all",
        help="of which cases to ask the stock tools",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="batches at a time")
    parser.add_argument("--device", help="the device that halgpu runs them on (default: opencl)")
    parser.add_argument(
        "--target", choices=[*targets.HOST], help="compile for the host instead of the device"
    )
    parser.add_argument("--report", type=Path, metavar="FILE.json", help="where to write one entry a case")
    parser.add_argument("--resume", action="store_true", help="keep what the report has from an earlier run")
    options = parser.parse_args(arguments)
    options.device = options.device or ("host" if options.target else "opencl")
    cases = chosen(options)
    if not cases:
        parser.error("no case is named so")
    began, entries = time.monotonic(), earlier(options)
    settled = {entry.name for entry in entries}
    cases = [case for case in cases if case.name not in settled]
    for new in run(cases, options):
        entries += new
        show(new)
        print(
            f"-- {len(entries)} of {len(settled) + len(cases)}, {time.monotonic() - began:.0f} s", flush=True
        )
        if options.report:
            write_report(options.report, options, entries, time.monotonic() - began)
    print(json.dumps(summary(entries), indent=1))
    return any(entry.owed or entry.status == "broken" for entry in entries)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
