"""Passes by their text: each file of ``passes/`` says what comes out of it, in the words of filecheck.

The first line is ``// RUN: [not] [FILE] FLAG …``, the rest of a command ``halgpu opt`` for the file itself, or for
another one; ``not`` expects exit status 1 and nothing on stdout. CHECK lines are about stdout, STDERR lines about stderr.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser

from halgpu.cli import main

FOLDER = Path(__file__).parent / "passes"
FILES = sorted(FOLDER.glob("*.mlir"))


def matches(file: Path, prefix: str, text: str) -> bool:
    options = Options(match_filename=str(file), check_prefixes=[prefix])
    return Matcher(options, FInput(f"<{prefix}>", text), Parser.from_opts(options)).run() == 0


def run_line(file: Path) -> tuple[bool, list[str]]:
    words = shlex.split(file.read_text().partition("\n")[0].removeprefix("// RUN: "))
    fails = words[0] == "not"
    words = words[fails:]
    source = file.name if words[0].startswith("--") else words.pop(0)
    return fails, ["opt", source, *words]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_pass(file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(FOLDER)
    fails, command = run_line(file)
    status = main(command)
    out, err = capfd.readouterr()
    assert status == int(fails), err
    text = file.read_text()
    assert ("CHECK" in text) != fails
    assert (out == "") == fails
    if "CHECK" in text:
        assert matches(file, "CHECK", out), out
    if "STDERR" in text:
        assert matches(file, "STDERR", err), err
    else:
        assert err == ""


def test_every_pass_has_a_file() -> None:
    from halgpu.compiler.transforms.pipeline import PASSES

    others = {"cse", "convert-scf-to-cf"}  # xDSL's own
    used = ",".join(" ".join(run_line(file)[1]) for file in FILES)
    assert {name for name in PASSES if name not in used} <= others


def test_a_check_can_fail(tmp_path: Path) -> None:
    file = tmp_path / "f.mlir"
    file.write_text("// CHECK: one\n// CHECK-NEXT: two\n")
    assert matches(file, "CHECK", "one\ntwo\n")
    assert not matches(file, "CHECK", "one\nthree\ntwo\n")
