"""The kernel suite of tests/executables on Oclgrind, with its memory and data-race checks: it may report nothing.

    sh ci/conformance kernels [--graphs=N] [--only=GLOB]… [--report=FILE.json]

Oclgrind (https://github.com/jrprice/Oclgrind) interprets OpenCL kernels, tests every access against the buffer it
is to, and notes which work-items touch the same bytes without a barrier or atomics between. Here buffers have the
very size that a test asks for (device memory of its own, no pool), so that one byte too far is seen.

Passes: `plain`; `uninitialized`, which also follows values that were never written; `checked`, with HALGPU_CHECKED=1.
In front of them stand planted faults, a race, an overrun and an unset value, each of which must be reported: a run
whose checks see nothing fails. What Oclgrind itself gets wrong or lacks is in LIMITS, each test with its reason; such
a test must fail in that way, so that the entry goes when the reason does.

A pass is a process of its own, as an OpenCL loader reads the list of drivers once. This file is also the pytest
plugin of those processes.
"""
# Debian: oclgrind

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests" / "executables"
FILES = (
    "test_values.py", "test_numbers.py", "test_functions.py", "test_control_flow.py", "test_random_graphs.py",
    "test_memory.py", "test_workgroups.py", "test_subgroups.py", "test_identifiers.py", "test_checked.py",
)  # fmt: skip
LIBRARIES = (
    Path("/usr/lib/oclgrind/liboclgrind-rt-icd.so"),
    Path("/usr/local/lib/oclgrind/liboclgrind-rt-icd.so"),
)
PASSES: dict[str, dict[str, str]] = {
    "plain": {},
    "uninitialized": {"OCLGRIND_UNINITIALIZED": "1"},
    "checked": {"HALGPU_CHECKED": "1"},
}
_SIGN = ("FSign of", "sign(+0.0) gives -0.0, where OpenCL 1.2 (6.12.4) says +0.0")
_NORMAL = ("IsNormal of i32", "isnormal() of a subnormal float is 1: it looks at the value as a double")
_COMPARISONS = "test_numbers.py::test_float_comparisons"
_ROUND_ONCE = "test_functions.py::test_float_functions_that_round_once"
LIMITS: dict[tuple[str, str], tuple[str, str]] = {
    **{(name, _COMPARISONS): _NORMAL for name in PASSES},
    ("plain", _ROUND_ONCE): _SIGN,
    ("checked", _ROUND_ONCE): _SIGN,
    ("uninitialized", _ROUND_ONCE): (
        "Work item needed to access private memory", "following frexp ends in an error of Oclgrind's own",
    ),
    ("uninitialized", "test_functions.py::test_conversions"): (
        "double_to_half", "the plugin does not see that vstore_half_rte of a double sets its bytes",
    ),
    ("uninitialized", "test_memory.py::test_atomics[32]"): (
        "atomic_xchg", "the plugin takes what an exchange stores for as unset as what was there before",
    ),
    ("uninitialized", "test_checked.py::test_a_stock_program"): (
        "atomic_or", "elements of 8 bits go into words of a new buffer: the word's other bytes are unset by then",
    ),
}  # fmt: skip
"""Pass and test -> what its failure or Oclgrind's report must say, and the reason, in Oclgrind 21.10."""
SEVERE = ("data race", "Invalid read", "Invalid write")
NOT_RUN = {
    "test_large_buffers.py": "Oclgrind's buffers are at most 128 MiB",
    "test_programs.py": "programs of the stock compiler: one of them, softmax over dimension 0, has a race of its own",
}


# --- the pytest plugin of a pass ----------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Give buffers memory of the device's own, of the size asked for."""
    from halgpu.devices import list_devices, opencl

    opencl.is_unified = lambda cl, native: False
    found = [info for info in list_devices() if info.uri.startswith("opencl") and info.available]
    assert found, "no OpenCL device"
    assert found[0].name.startswith("Oclgrind"), f"the first device is not Oclgrind: {found}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Write a line a test: outcome, and what Oclgrind logged meanwhile."""
    log = Path(os.environ["OCLGRIND_LOG"])
    before = log.stat().st_size if log.exists() else 0
    item.user_properties.clear()
    start = time.monotonic()
    result = yield
    text = log.read_bytes()[before:].decode(errors="replace") if log.exists() else ""
    entry = {
        "test": item.nodeid.removeprefix("tests/executables/"),
        "seconds": round(time.monotonic() - start, 2),
        "failure": dict(item.user_properties).get("failure", ""),
        "report": text.strip(),
    }
    with open(os.environ["HALGPU_KERNELS_RESULTS"], "a") as file:
        file.write(json.dumps(entry) + "\n")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """Remember why a test failed."""
    report = yield
    if report.failed:
        item.user_properties.append(("failure", str(call.excinfo.value if call.excinfo else report.longrepr)))
    return report


# --- passes -------------------------------------------------------------------------------------------------


def environment(folder: Path, library: Path, more: dict[str, str]) -> dict[str, str]:
    """The variables of a process that sees Oclgrind only. Its log is ``folder/log``."""
    (folder / "drivers").mkdir(exist_ok=True)
    (folder / "drivers" / "oclgrind.icd").write_text(f"{library}\n")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HALGPU_", "OCLGRIND_", "OCL_ICD_"))}
    path = os.pathsep.join(
        filter(None, (str(Path(__file__).parent), str(TESTS), os.environ.get("PYTHONPATH", "")))
    )
    return kept | {
        "OCL_ICD_VENDORS": str(folder / "drivers"), "OCLGRIND_LOG": str(folder / "log"), "OCLGRIND_DATA_RACES": "1",
        "OCLGRIND_CHECK_API": "1", "OCLGRIND_MAX_ERRORS": "2000", "HALGPU_CACHE": "0", "HALGPU_POOL": "0",
        "HALGPU_KERNELS_RESULTS": str(folder / "results"), "PYTHONPATH": path, **more,
    }  # fmt: skip


def run_pass(name: str, library: Path, graphs: int, only: list[str]) -> list[dict[str, Any]]:
    """Run the suite in one process; returns an entry a test."""
    files = [str(TESTS / file) for file in FILES if not only or any(fnmatch.fnmatch(file, g) for g in only)]
    if not files:  # pytest would run everything
        raise SystemExit(f"--only={' --only='.join(only)} names none of {', '.join(FILES)}")
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        variables = environment(
            folder, library, PASSES[name] | {"HALGPU_GRAPHS": str(graphs), "HALGPU_ROUNDS": "12"}
        )
        command = [sys.executable, "-m", "pytest", "-q", "-p", "kernels", "-p", "no:cacheprovider", *files]
        done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=3600)
        results = folder / "results"
        if done.returncode not in (0, 1) or not results.exists():
            raise SystemExit(f"pass {name}: pytest exited {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return [json.loads(line) for line in results.read_text().splitlines()]


def judge(name: str, entry: dict[str, Any]) -> str:
    """The verdict on an entry of a pass: passed, limit, or what is wrong."""
    limit, report = LIMITS.get((name, entry["test"])), entry["report"]
    if limit is not None and not any(text in report for text in SEVERE):
        return "limit" if limit[0] in report + entry["failure"] else "its limit is gone: remove it"
    if report:
        return "reported"
    return "failed" if entry["failure"] else "passed"


# --- planted faults -----------------------------------------------------------------------------------------


def plant(fault: str) -> None:
    """Run a kernel with one fault, here, on Oclgrind."""
    import numpy as np
    from spirv_assembler import FUNCTION, Op, Spirv

    from halgpu.devices import opencl

    opencl.is_unified = lambda cl, native: False
    s = Spirv("i32", "i32", size=8)
    if fault == "race":
        s.do(Op.Store, s.element(1, s.constant("i32", 0)), s.index)
    elif fault == "overrun":
        s.store(s.op(Op.Load, "i32", s.element(0, s.op(Op.IAdd, "i32", s.index, s.constant("i32", 1)))))
    elif fault == "unset":
        s.store(s.op(Op.Load, "i32", s.variable(FUNCTION, s.type("i32"))))
    else:
        s.store(s.load(0))
    s.run_all([np.arange(8, dtype="i4"), np.zeros(8, "i4")])


PLANTED = {
    "nothing": "", "race": "data race", "overrun": "Invalid read of size 4", "unset": "ninitialized",
}  # fmt: skip
"""Fault -> what Oclgrind must say of it."""


def check_planted(library: Path) -> Iterator[dict[str, Any]]:
    """Run each planted fault in a process; yields whether it was seen, and what was said."""
    for fault, wanted in PLANTED.items():
        with tempfile.TemporaryDirectory() as work:
            variables = environment(Path(work), library, PASSES["uninitialized"])
            command = [sys.executable, __file__, f"--plant={fault}"]
            done = subprocess.run(
                command, env=variables, cwd=ROOT, capture_output=True, text=True, timeout=300
            )
            log = Path(work) / "log"
            said = log.read_text().strip() if log.exists() else ""
            seen = wanted in said if wanted else not said
            yield {
                "fault": fault,
                "as it should": seen and done.returncode == 0,
                "said": said[:300] or done.stderr[-300:],
            }


# --- the whole ----------------------------------------------------------------------------------------------


def find_library() -> Path:
    """Oclgrind as a driver: $OCLGRIND_ICD, or where packages put it."""
    given = os.environ.get("OCLGRIND_ICD")
    for path in (Path(given),) if given else LIBRARIES:
        if path.exists():
            return path
    raise SystemExit(
        "Oclgrind is not installed: apt-get install oclgrind, or set OCLGRIND_ICD to liboclgrind-rt-icd.so"
    )


def main() -> int:
    """Run everything, print a summary, write the report; 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--graphs", type=int, default=300, metavar="N", help="random control-flow graphs; default 300"
    )
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="test files by name")
    parser.add_argument("--pass", dest="passes", action="append", choices=PASSES, help="default: all of them")
    parser.add_argument("--report", type=Path, metavar="FILE.json", help="where to write one entry a test")
    parser.add_argument("--plant", choices=PLANTED, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plant:
        plant(options.plant)
        return 0
    library = find_library()
    planted = list(check_planted(library))
    for entry in planted:
        print(
            f"planted {entry['fault']}: {'as it should' if entry['as it should'] else 'WRONG: ' + entry['said']}"
        )
    wrong = sum(not entry["as it should"] for entry in planted)
    passes = {}
    for name in options.passes or PASSES:
        passes[name] = entries = run_pass(name, library, options.graphs, options.only)
        counts: dict[str, int] = {}
        for entry in entries:
            verdict = entry["verdict"] = judge(name, entry)
            counts[verdict] = counts.get(verdict, 0) + 1
            if verdict not in ("passed", "limit"):
                wrong += 1
                print(f"{name}: {entry['test']}: {verdict}\n{(entry['report'] or entry['failure'])[:1500]}")
        print(f"{name}: {', '.join(f'{n} {verdict}' for verdict, n in sorted(counts.items()))}")
    for (name, test), (_, reason) in LIMITS.items():
        if name in passes:
            print(f"limit: {name}: {test}: {reason}")
    for test, reason in NOT_RUN.items():
        print(f"not run: {test}: {reason}")
    if options.report:
        content = {
            "suite": "kernels", "library": str(library), "graphs": options.graphs, "wrong": wrong, "planted": planted,
            "limits": [[*where, reason] for where, (_, reason) in LIMITS.items()], "not run": NOT_RUN, "passes": passes,
        }  # fmt: skip
        options.report.write_text(json.dumps(content, indent=1) + "\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
