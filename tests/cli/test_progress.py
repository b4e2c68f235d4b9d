"""Progress of run, bench and trace: shown on a terminal, gone at the end, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import halgpu
from halgpu.devices import open_device

PROGRAM = """func.func @double(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
CLEAR = "\r\x1b[K"
LOAD = f"{CLEAR}[1/2] loading the program …{CLEAR}[2/2] building 1 kernel …{CLEAR}"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("progress") / "double.vmfb"
    path.write_bytes(halgpu.compile(PROGRAM, target="vulkan"))
    return path


def on_a_terminal(command: str, program: Path, *more: str) -> str:
    terminal, other = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "halgpu.cli", command, f"--module={program}", "--function=double",
         "--input=4xf32=1", "--device=null", *more],
        stdout=subprocess.DEVNULL, stderr=other, timeout=120,
    )  # fmt: skip
    os.write(other, b"end")  # reading waits for something
    os.close(other)
    shown = os.read(terminal, 10000).decode()
    os.close(terminal)
    assert done.returncode == 0, shown
    return shown.removesuffix("end")


def test_run_shows_its_steps_and_clears_them(program: Path) -> None:
    assert on_a_terminal("run", program) == f"{LOAD}{CLEAR}[1/1] running double …{CLEAR}"


def test_bench_shows_the_load(program: Path) -> None:
    assert on_a_terminal("bench", program, "--benchmark_min_time=1x", "--profile_calls=0") == LOAD


def test_quiet_shows_nothing(program: Path) -> None:
    assert on_a_terminal("run", program, "--quiet") == ""


def test_nothing_where_stderr_is_no_terminal(program: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "halgpu.cli", "run", f"--module={program}", "--function=double",
         "--input=4xf32=1", "--device=null"],
        capture_output=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


def test_load_tells_python_of_its_steps(program: Path) -> None:
    told: list[tuple[str, int, int]] = []
    halgpu.load(program, open_device("null"), progress=lambda *step: told.append(step))
    assert told == [("loading the program", 1, 2), ("building 1 kernel", 2, 2)]
