"""Where opt and compile read from: files, stdin, pipes, bytecode; and what they say where there is nothing."""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halgpu import errors
from halgpu.cli import main
from halgpu.compiler import bytecode, finish, toolchain
from halgpu.vm import definition

HAL = "util.func public @f(%a: i32) -> i32 {\n  util.return %a : i32\n}\n"
MODEL = "func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {\n  return %a : tensor<4xf32>\n}\n"


@pytest.fixture
def give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bytes], str]:
    """What to name on the command line so that some bytes are read in a way."""

    def give(way: str, data: bytes) -> str:
        if way == "-":
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
            return way
        path = tmp_path / f"{way}.mlir"
        if way == "file":
            path.write_bytes(data)
            return str(path)
        os.mkfifo(path)
        threading.Thread(target=path.write_bytes, args=(data,), daemon=True).start()
        return str(path)

    return give


@pytest.mark.parametrize("way", ["-", "fifo", "file"])
def test_opt_reads(way: str, give: Callable[[str, bytes], str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", give(way, HAL.encode())]) == 0
    assert "util.func public @f" in capfd.readouterr().out


@pytest.mark.parametrize("way", ["-", "fifo", "file"])
@pytest.mark.parametrize("level", ["hal", "model"])
def test_compile_reads(way: str, level: str, give: Callable[[str, bytes], str], tmp_path: Path) -> None:
    source = give(way, (HAL if level == "hal" else MODEL).encode())
    program = tmp_path / "p.vmfb"
    words = ["--from=hal"] if level == "hal" else ["--target=vulkan"]
    assert main(["compile", source, *words, "-o", str(program), "--quiet"]) == 0
    assert "f" in [export.local_name for export in definition.read(program.read_bytes()).exports]


@pytest.mark.parametrize("words", [["opt", "/dev/stdin"], ["compile", "--from=hal", "/dev/stdin", "-o", "-"]])
def test_what_comes_through_a_shells_pipe(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "halgpu.cli", *words], input=HAL.encode(), capture_output=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert b"f" in done.stdout


@pytest.mark.parametrize("level", ["hal", "model"])
def test_a_missing_file_is_told_before_a_missing_compiler(
    level: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def missing() -> None:
        raise errors.Unavailable("not installed")

    monkeypatch.setattr(finish, "check", missing)
    monkeypatch.setattr(toolchain, "check", missing)
    for words in (
        ["compile", "missing.mlir", f"--from={level}", "-o", str(tmp_path / "x")],
        ["opt", "missing.mlir"],
    ):
        assert main(words) == 1
        assert "missing.mlir: expected" in (said := capsys.readouterr().err)
        assert "found nothing there" in said
    (tmp_path / "there.mlir").write_text(HAL)
    assert main(["compile", str(tmp_path / "there.mlir"), f"--from={level}", "-o", str(tmp_path / "x")]) == 1
    assert capsys.readouterr().err == "halgpu: error: not installed\n"


def test_folders_and_kernels_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "k.cl").mkdir()
    (tmp_path / "p.mlir").write_text(HAL)
    for words, said in (
        (["opt", str(tmp_path)], "expected MLIR, found a folder"),
        (["opt", "a\0b"], "found nothing there"),
        (
            ["opt", str(tmp_path / "p.mlir"), f"--kernels={tmp_path / 'k.cl'}"],
            "a file of kernels, found a folder",
        ),
    ):
        assert main(words) == 1
        assert said in capsys.readouterr().err


PROGRAM = "util.func public @f(%a: !hal.buffer_view) -> !hal.buffer_view {\n  util.return %a : !hal.buffer_view\n}\n"


@pytest.mark.parametrize(
    "words",
    [
        ["verify"], ["dis"], ["dump"], ["run", "--function=f", "--input=3xi32=1 2 3", "--module="],
        ["bench", "--function=f", "--input=3xi32", "--benchmark_min_time=1x", "--module="],
        ["trace", "--function=f", "--input=3xi32", "-o", "-", "--module="],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_other_commands_read_programs_from_pipes(
    words: list[str], give: Callable[[str, bytes], str], capfd: pytest.CaptureFixture[str]
) -> None:
    path = give("fifo", finish.finish(PROGRAM, "p.mlir").data)
    last = words[-1] + path if words[-1].endswith("=") else path
    first = words[:-1] if words[-1].endswith("=") else words
    assert main([*first, last]) == 0
    assert capfd.readouterr().out


def test_texts_kernels_and_arrays_come_through_pipes(
    give: Callable[[str, bytes], str], tmp_path: Path, examples: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "p.vmfb"
    program.write_bytes(finish.finish(PROGRAM, "p.mlir").data)
    assert main(["dis", str(program)]) == 0
    assert (
        main(["asm", give("fifo", capfd.readouterr().out.encode()), "-o", str(tmp_path / "again.vmfb")]) == 0
    )
    array = io.BytesIO()
    np.save(array, np.arange(3, dtype=np.int32))
    for sign in "@+*":
        (tmp_path / "fifo.mlir").unlink(missing_ok=True)
        array_path = give("fifo", array.getvalue())
        assert main(["run", f"--module={program}", "--function=f", f"--input={sign}{array_path}"]) == 0
        assert capfd.readouterr().out.splitlines()[-1] == "3xsi32=0 1 2"
    (tmp_path / "fifo.mlir").unlink()
    assert main(["run", f"--module={program}", "--function=f", f"--input=@{give('fifo', b'x')}"]) == 1
    assert "is no .npy file: it does not begin with" in capfd.readouterr().err
    kernels = tmp_path / "k.cl"
    os.mkfifo(kernels)
    threading.Thread(
        target=kernels.write_text, args=((examples / "saxpy.cl").read_text(),), daemon=True
    ).start()
    words = ["compile", str(examples / "saxpy.mlir"), f"--kernels={kernels}", "-o", str(program), "--quiet"]
    assert main(words) == 0


# Bytecode.


@pytest.fixture(scope="module")
def level(tmp_path_factory: pytest.TempPathFactory, examples: Path, iree_tool: Callable[..., Any]) -> Path:
    """An example at HAL level, as bytecode."""
    path = tmp_path_factory.mktemp("bytecode") / "counter.mlirbc"
    iree_tool(
        "iree-compile", str(examples / "counter.mlir"), "--iree-execution-model=inline-static",
        "--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx-inline",
        "--compile-to=hal", "--emit-mlir-bytecode", "-o", str(path),
    )  # fmt: skip
    assert path.read_bytes().startswith(b"ML\xefR")
    return path


def test_bytecode_is_read_with_its_locations(
    level: Path, tmp_path: Path, iree_tool: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "p.vmfb"
    assert main(["compile", "--from=hal", str(level), "-o", str(program)]) == 0
    run = iree_tool("iree-run-module", f"--module={program}", "--function=add", "--input=4xf32=1 2 3 4")
    assert run.stdout.splitlines()[-1] == "4xf32=1 2 3 4"
    assert main(["opt", "--locations", str(level)]) == 0
    assert 'counter.mlir":5:10' in capfd.readouterr().out


def test_locations_that_stand_at_the_end(level: Path, tmp_path: Path, iree_tool: Callable[..., Any]) -> None:
    text = iree_tool("iree-opt", "--mlir-print-debuginfo", str(level)).stdout
    assert text.rstrip().splitlines()[-1].startswith("#loc")
    (tmp_path / "p.mlir").write_text(text)
    assert main(["compile", "--from=hal", str(tmp_path / "p.mlir"), "-o", str(tmp_path / "p.vmfb")]) == 0
    for wrong in ("#loc1 = loc(#loc2)\n#loc2 = loc(#loc1)\n", "#loc1 = loc(\n", '#loc1 = loc("a":1:2) x\n'):
        with pytest.raises(errors.InvalidArgument, match=r"w.mlir:\d+:\d+: error: "):
            finish.finish(HAL + wrong, "w.mlir")


def test_bytecode_that_is_none_and_bytecode_without_the_compiler(
    level: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.mlirbc"
    for data in (bytecode.MAGIC + b"xxxx", level.read_bytes()[:200]):
        bad.write_bytes(data)
        assert main(["opt", str(bad)]) == 1
        assert capsys.readouterr().err.startswith(f"halgpu: error: {bad}: error: ")
    toolchain.check.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, find=importlib.util.find_spec: (
        None if name == "iree.compiler" else find(name)
    ))  # fmt: skip
    try:
        assert main(["opt", str(level)]) == 1
    finally:
        toolchain.check.cache_clear()
    said = capsys.readouterr().err
    assert f"{level}: expected MLIR as text, found bytecode, which the IREE compiler reads: " in said
    assert "pip install 'halgpu[compiler]'" in said
