"""`halgpu verify`: a line a program."""

from __future__ import annotations

import re

import pytest

from halgpu.cli import main
from halgpu.executables import registry

FORMATS = ", ".join(registry.formats())


@pytest.fixture
def program(compile_mlir, examples) -> bytes:
    return compile_mlir((examples / "counter.mlir").read_text(), name="counter.mlir")


def test_a_sound_program(program, iree_tool, tmp_path, capsys):
    path = tmp_path / "counter.vmfb"
    path.write_bytes(program)
    assert main(["verify", str(path)]) == 0
    text = iree_tool("iree-dump-module", "--output=disassembly", str(path)).stdout
    body = [line for line in text.splitlines() if line.startswith("  ")]
    blocks = re.findall(r"^\^", text, re.MULTILINE)
    size = sum(len(digits) // 2 for digits in re.findall(r"^vm.rodata\[\d+\] = (.*)$", text, re.MULTILINE))
    assert capsys.readouterr().out == (
        f"{path}: ok: @counter, 2 functions, {len(blocks)} blocks, {len(body)} instructions, 9 imports, 2 exports, "
        f"{size} bytes of rodata\n"
    )


def test_each_program_has_a_line(program, tmp_path, capsys):
    (tmp_path / "good").write_bytes(program)
    (tmp_path / "cut").write_bytes(program[:1000])
    # Another opcode where the first instruction of the first function is.
    at = program.index(b"\x79\x0d")
    (tmp_path / "bad").write_bytes(program[: at + 1] + b"\xff" + program[at + 2 :])
    assert main(["verify", *(str(tmp_path / name) for name in ("good", "cut", "bad", "none"))]) == 1
    good, cut, bad, none = capsys.readouterr().out.splitlines()
    assert good.startswith(f"{tmp_path}/good: ok: @counter, 2 functions")
    assert cut.startswith(f"{tmp_path}/cut: error: the .vmfb is cut short")
    assert bad.startswith(f"{tmp_path}/bad: error: @counter.add at bytecode offset 0x1: unknown opcode FF")
    assert none == f"{tmp_path}/none: error: no such file: {tmp_path}/none"


def test_no_program(capsys):
    assert main(["verify"]) == 1
    assert "the following arguments are required: FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "model", "note"),
    [
        ("vulkan", "inline-dynamic", ""),
        ("vmvx-inline", "inline-static", ""),
        ("vulkan", "async-external", " (imports hal.*: not an inline HAL program)"),
        ("llvm-cpu", "inline-dynamic", ""),
        ("vmvx", "inline-dynamic", ""),
    ],
)
def test_sound_programs_that_halgpu_cannot_run_say_so(
    target, model, note, compile_mlir, examples, tmp_path, capsys
):
    (tmp_path / "a").write_bytes(compile_mlir((examples / "abs.mlir").read_text(), target, model=model))
    assert main(["verify", str(tmp_path / "a")]) == 0
    line = capsys.readouterr().out.rstrip("\n")
    assert re.fullmatch(rf".*: ok: @module, .* bytes of rodata{re.escape(note)}", line)


def test_one_is_singular(tmp_path, capsys):
    (tmp_path / "a.vmasm").write_text("vm.module @one\nvm.export @f\nvm.func @f() -> () {\n  vm.return\n}\n")
    assert main(["asm", str(tmp_path / "a.vmasm"), "-o", str(tmp_path / "a.vmfb")]) == 0
    assert main(["verify", str(tmp_path / "a.vmfb")]) == 0
    assert (
        "ok: @one, 1 function, 1 block, 1 instruction, 0 imports, 1 export, 0 bytes"
        in capsys.readouterr().out
    )


def test_kernels_of_another_machine_are_named(compile_mlir, examples, tmp_path, capsys):
    program = bytearray(compile_mlir((examples / "abs.mlir").read_text(), "llvm-cpu"))
    at = program.index(b"\x7fELF") + 18
    program[at : at + 2] = (243).to_bytes(2, "little")  # e_machine: RISC-V
    (tmp_path / "a").write_bytes(program)
    assert main(["verify", str(tmp_path / "a")]) == 0
    note = f" (has kernels of embedded-elf-machine_243, but halgpu runs {FORMATS})"
    assert capsys.readouterr().out.rstrip("\n").endswith(note)
