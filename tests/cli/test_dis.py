"""`halgpu dis` and `halgpu asm`: text of programs, and programs of text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from halgpu.cli import main

SOURCE = """vm.module @doubler version 0

vm.export @double
vm.func @double(%i0: i32) -> (i32) {
^bb0:
  %i0 = vm.add.i32 %i0, %i0
  vm.return %i0
}
"""


@pytest.fixture
def counter(compile_mlir, examples, tmp_path) -> str:
    source = (examples / "counter.mlir").read_text()
    (tmp_path / "counter.vmfb").write_bytes(compile_mlir(source, "llvm-cpu", name="counter.mlir"))
    return str(tmp_path / "counter.vmfb")


@pytest.mark.parametrize("flags", [[], ["--bytecode_offsets"], ["--function=add"], ["--function", "1"]])
def test_dis_prints_what_iree_prints(flags, counter, iree_tool, capsys):
    assert main(["dis", *flags, counter]) == 0
    # IREE's tools take flag and value as one word.
    joined = ["=".join(flags)] if len(flags) == 2 else flags
    assert (
        capsys.readouterr().out
        == iree_tool("iree-dump-module", "--output=disassembly", *joined, counter).stdout
    )


@pytest.mark.parametrize("flags", [[], ["--lossless"]])
def test_asm_takes_it_back(flags, counter, iree_tool, tmp_path, capsys):
    assert main(["dis", *flags, counter]) == 0
    text = capsys.readouterr().out
    (tmp_path / "c.vmasm").write_text(text)
    assert main(["asm", str(tmp_path / "c.vmasm"), "-o", str(tmp_path / "c.vmfb")]) == 0
    assert main(["dis", *flags, str(tmp_path / "c.vmfb")]) == 0
    assert capsys.readouterr().out == text
    options = ("--device=local-sync", "--function=add", "--input=4xf32=1 2 3 4")
    ours = iree_tool("iree-run-module", f"--module={tmp_path}/c.vmfb", *options).stdout
    assert ours == iree_tool("iree-run-module", f"--module={counter}", *options).stdout
    assert "4xf32=1 2 3 4" in ours


def test_through_pipes(tmp_path):
    (tmp_path / "a.vmasm").write_text(SOURCE)
    command = [sys.executable, "-m", "halgpu.cli"]
    made = subprocess.run(
        [*command, "asm", "-", "--output=-"], input=SOURCE.encode(), capture_output=True, timeout=60
    )
    assert (made.returncode, made.stderr) == (0, b"")
    shown = subprocess.run([*command, "dis", "-"], input=made.stdout, capture_output=True, timeout=60)
    assert (shown.returncode, shown.stdout.decode(), shown.stderr) == (0, SOURCE, b"")


def test_a_program_of_text_runs(tmp_path, capsys):
    (tmp_path / "a.vmasm").write_text(SOURCE)
    assert main(["asm", str(tmp_path / "a.vmasm"), "-o", str(tmp_path / "a.vmfb")]) == 0
    assert (
        main(["run", f"--module={tmp_path}/a.vmfb", "--device=null", "--function=double", "--input=21"]) == 0
    )
    assert "i32=42" in capsys.readouterr().out


def test_lines_of_a_text_in_errors(tmp_path, capsys):
    (tmp_path / "a.vmasm").write_text(
        SOURCE.replace("  %i0 = vm.add.i32 %i0, %i0\n  vm.return %i0", '  vm.fail %i0, "no"')
    )
    assert main(["asm", "--lines", str(tmp_path / "a.vmasm"), "-o", str(tmp_path / "a.vmfb")]) == 0
    assert (
        main(["run", f"--module={tmp_path}/a.vmfb", "--device=null", "--function=double", "--input=3"]) == 1
    )
    assert f"no, in doubler.double ({tmp_path}/a.vmasm:6:3)\n" in capsys.readouterr().err


def test_mistakes_have_their_places_and_nothing_is_written(tmp_path, capsys):
    source = tmp_path / "a.vmasm"
    source.write_text(SOURCE.replace("vm.add.i32", "vm.add.i23").replace("vm.return", "vm.rtn"))
    assert main(["asm", str(source), "-o", str(tmp_path / "a.vmfb")]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        f"halgpu: error: {source}:6:9: expected an instruction such as vm.add.i32, found 'vm.add.i23'",
        f"{source}:7:3: expected an instruction such as vm.return, found 'vm.rtn'",
    ]
    assert not (tmp_path / "a.vmfb").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dis"], "the following arguments are required: FILE"),
        (["dis", "{tmp}/none"], "no such file: {tmp}/none"),
        (["dis", "{tmp}"], "cannot read {tmp}: Is a directory"),
        (["dis", "{tmp}/text"], "expected a .vmfb module"),
        (["dis", "{tmp}/empty"], "found no bytes at all"),
        (["asm", "{tmp}/text"], "the following arguments are required: -o/--output"),
        (["asm", "{tmp}/empty", "-o", "{tmp}/x"], "{tmp}/empty:1:1: expected a line 'vm.module @name'"),
        (
            ["asm", "{tmp}/latin", "-o", "{tmp}/x"],
            "{tmp}/latin:2:3: expected text in UTF-8, found the byte 0xE9",
        ),
        (
            ["asm", "{tmp}/good", "-o", "{tmp}/no/such/folder"],
            "{tmp}/no/such/folder: No such file or directory",
        ),
    ],
)
def test_wrong_words_and_files(words, message, tmp_path: Path, capsys):
    (tmp_path / "text").write_text("vm.module\n")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "latin").write_bytes(b"vm.module @m\n# \xe9t\xe9\n")
    (tmp_path / "good").write_text(SOURCE)
    assert main([word.format(tmp=tmp_path) for word in words]) == 1
    assert message.format(tmp=tmp_path) in capsys.readouterr().err


def test_no_such_function(counter, capsys):
    assert main(["dis", "--function=none", counter]) == 1
    assert "no function 'none' in @counter; there are add, __init" in capsys.readouterr().err
