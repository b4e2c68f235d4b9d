"""halgpu compile: files, flags, progress, and what is left when it fails."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import halgpu
from halgpu import errors
from halgpu.cli import compile as command
from halgpu.compiler import sources

ADD = """func.func @main(%x: tensor<4xf64>) -> tensor<4xf64> {
  %0 = arith.addf %x, %x : tensor<4xf64>
  return %0 : tensor<4xf64>
}
"""


def run(folder: Path, *words: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "halgpu.cli", "compile", *words],
        capture_output=True, timeout=120, cwd=folder, **options,  # type: ignore[call-overload]
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "add.mlir").write_text(ADD)
    return tmp_path


def test_a_file_becomes_a_program_silently(folder: Path) -> None:
    done = run(folder, "add.mlir", "-o", "add.vmfb", "--device=opencl")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert sorted(path.name for path in folder.iterdir()) == ["add.mlir", "add.vmfb"]
    x = np.array([0.1, 1, 2, 3])
    np.testing.assert_array_equal(np.asarray(halgpu.load(folder / "add.vmfb", "opencl").main(x)), x + x)


def test_from_stdin_to_stdout_with_flags_for_the_compiler(folder: Path) -> None:
    done = run(
        folder,
        "-",
        "--output",
        "-",
        "--target=vulkan",
        "--",
        "--iree-input-demote-f64-to-f32",
        input=ADD.encode(),
    )
    assert done.returncode == 0
    assert b"changed public function signatures" in done.stderr
    assert np.asarray(halgpu.load(done.stdout, "opencl").main(np.ones(4, np.float32))).tolist() == [2] * 4
    quiet = run(
        folder, "add.mlir", "-o", "-", "--target=vulkan", "--quiet", "--", "--iree-input-demote-f64-to-f32"
    )
    assert (quiet.returncode, quiet.stderr) == (0, b"")


def test_a_mistake_leaves_nothing_and_the_old_file_alone(folder: Path) -> None:
    (folder / "add.mlir").write_text(ADD.replace("return %0", "return %1"))
    (folder / "old.vmfb").write_bytes(b"old")
    done = run(folder, "add.mlir", "-o", "old.vmfb", "--target=vulkan")
    first, *rest = done.stderr.decode().splitlines()
    assert (done.returncode, done.stdout) == (1, b"")
    assert first == "halgpu: error: add.mlir:3:10: error: use of undeclared SSA value name"
    assert rest == ["  return %1 : tensor<4xf64>", "         ^"]  # the first line is not said twice
    assert (folder / "old.vmfb").read_bytes() == b"old"
    assert sorted(path.name for path in folder.iterdir()) == ["add.mlir", "old.vmfb"]


def test_outputs_that_cannot_be_written_are_refused_first(folder: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match="found a folder"):
        command.check_output(str(folder))
    with pytest.raises(errors.NotFound, match="there is no folder"):
        command.check_output(str(folder / "no" / "x.vmfb"))


def test_a_file_is_replaced_whole(folder: Path) -> None:
    target = folder / "x.vmfb"
    link = folder / "link.vmfb"
    link.symlink_to(target)
    command.write(str(link), b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    command.write(os.devnull, b"new")
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("images=1x3x320x320", ("images", [1, 3, 320, 320])),
        ("a=b=4", ("a=b", [4])),
        ("scalar=", ("scalar", [])),
    ],
)
def test_shapes(text: str, wanted: tuple[str, list[int]]) -> None:
    assert sources.parse_shape(text) == wanted


@pytest.mark.parametrize("text", ["x", "=1", "x=1,2", "x=-1", "x=1x", "x=?x3"])
def test_no_shapes(text: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="expected --shape=NAME=1x3x320x320"):
        sources.parse_shape(text)


def test_progress_on_a_terminal_is_gone_at_the_end(folder: Path) -> None:
    terminal, other = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "halgpu.cli", "compile", "add.mlir", "-o", "add.vmfb", "--target=llvm-cpu"],
        stdout=subprocess.DEVNULL, stderr=other, timeout=120, cwd=folder,
    )  # fmt: skip
    os.close(other)
    shown = os.read(terminal, 10000).decode()
    os.close(terminal)
    assert done.returncode == 0
    assert shown.startswith("\r\x1b[K[1/3] lowering the program …\r\x1b[K[2/3] generating kernels …")
    assert shown.endswith("\r\x1b[K")
