"""`halgpu dump`: the listing, the kernels, the Python."""

from __future__ import annotations

import ast
import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from halgpu.cli import main
from halgpu.executables import registry
from halgpu.vm import definition


@pytest.fixture
def network(compile_mlir, examples, tmp_path) -> str:
    (tmp_path / "n.vmfb").write_bytes(
        compile_mlir((examples / "network.mlir").read_text(), name="network.mlir")
    )
    return str(tmp_path / "n.vmfb")


def test_the_listing_is_that_of_iree(network, iree_tool, capsys):
    assert main(["dump", network]) == 0
    assert capsys.readouterr().out == iree_tool("iree-dump-module", "--output=metadata", network).stdout


def test_kernels(network, iree_tool, capsys):
    assert main(["dump", "--kernels", network]) == 0
    text = capsys.readouterr().out
    listing = iree_tool("iree-dump-module", "--output=metadata", network).stdout
    for ordinal in range(3):
        assert f".rodata[{ordinal:3}] external" in listing
        assert f"// rodata[{ordinal}]: vulkan-spirv-fb, " in text
    assert text.count("__kernel") == 3


def test_kernels_for_a_device_build_there(network, capsys):
    import pyopencl

    assert main(["dump", "--kernels", "--device=opencl", network]) == 0
    text = capsys.readouterr().out
    context = pyopencl.create_some_context(interactive=False)
    for source in text.split("// rodata[")[1:]:
        program = pyopencl.Program(context, "//" + source).build()
        assert len(program.all_kernels()) == source.count("__kernel ") > 0


def test_kernels_in_bytecode_are_disassembled(compile_mlir, examples, tmp_path, capsys, iree_tool):
    data = compile_mlir((examples / "abs.mlir").read_text(), "vmvx")
    (tmp_path / "a.vmfb").write_bytes(data)
    assert main(["dump", "--kernels", str(tmp_path / "a.vmfb")]) == 0
    head, _, text = capsys.readouterr().out.partition("\n")
    assert head.startswith("// rodata[0]: a bytecode module (vmvx-bytecode-fb), ")
    (tmp_path / "k.vmfb").write_bytes(definition.read(data).rodata[0])
    assert text == iree_tool("iree-dump-module", "--output=disassembly", str(tmp_path / "k.vmfb")).stdout


def test_machine_code_is_named(compile_mlir, examples, tmp_path, capsys):
    (tmp_path / "a.vmfb").write_bytes(compile_mlir((examples / "abs.mlir").read_text(), "llvm-cpu"))
    assert main(["dump", "--kernels", str(tmp_path / "a.vmfb")]) == 0
    head, tail = capsys.readouterr().out.splitlines()
    name = {"x86_64": "x86_64", "aarch64": "arm_64"}[platform.machine()]
    assert head.startswith(f"// rodata[0]: an ELF binary (embedded-elf-{name} or system-elf-{name}), ")
    assert tail == "// machine code, which runs as it is"


def test_kernels_that_are_not_translated(compile_mlir, examples, tmp_path, capsys):
    source = (examples / "abs.mlir").read_text()
    (tmp_path / "a.vmfb").write_bytes(compile_mlir(source, "cuda"))
    assert main(["dump", "--kernels", str(tmp_path / "a.vmfb")]) == 0
    head, tail = capsys.readouterr().out.splitlines()
    assert head.startswith("// rodata[0]: cuda-nvptx-fb, ")
    assert tail == (
        f"// not translated: halgpu runs {', '.join(registry.formats())}; "
        "compile with 'halgpu compile --target=vulkan'"
    )


def test_hand_written_kernels_are_shown_as_they_are(compile_mlir, examples, tmp_path, capsys):
    (tmp_path / "k.vmfb").write_bytes(compile_mlir((examples / "custom_kernel.mlir").read_text()))
    assert main(["dump", "--kernels", str(tmp_path / "k.vmfb")]) == 0
    shown = capsys.readouterr().out.split("// rodata[")[1:]
    for language, kernel in (("opencl-c", "__kernel void"), ("cuda-c", 'extern "C" __global__ void')):
        [text] = [text for text in shown if f"]: {language}, hand-written, " in text]
        assert f'\n// {{"halgpu-kernels": 1, "language": "{language}", ' in text
        assert f"\n{kernel} saxpy(" in text


def test_a_program_without_kernels(tmp_path, capsys):
    (tmp_path / "a.vmasm").write_text("vm.module @none\nvm.export @f\nvm.func @f() -> () {\n  vm.return\n}\n")
    assert main(["asm", str(tmp_path / "a.vmasm"), "-o", str(tmp_path / "a.vmfb")]) == 0
    assert main(["dump", "--kernels", str(tmp_path / "a.vmfb")]) == 0
    assert capsys.readouterr().out == "// @none has no kernels\n"


def test_python(network, capsys):
    assert main(["dump", "--python", network]) == 0
    text = capsys.readouterr().out
    assert "# module.network\n" in text
    assert "# module.__init\n" in text
    functions = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    assert len(functions) == 2
    assert "executable.dispatch" in text or len(text) > 500


def test_a_file_that_is_none(tmp_path, capsys):
    for flags in ([], ["--kernels"], ["--python"]):
        (tmp_path / "a").write_bytes(b"\x7fELF")
        assert main(["dump", *flags, str(tmp_path / "a")]) == 1
        assert (
            "expected a .vmfb module (a FlatBuffer with identifier IREE), found an ELF binary"
            in capsys.readouterr().err
        )


def test_a_device_is_for_kernels_only(network, capsys):
    for flags in ([], ["--python"]):
        assert main(["dump", *flags, "--device=opencl", network]) == 1
        printed = capsys.readouterr()
        assert printed.out == ""
        assert "--device=opencl says what to translate kernels for: use it with --kernels" in printed.err


def test_llvm(
    compile_mlir: Callable[..., bytes],
    examples: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    network: str,
) -> None:
    """A program's loops as LLVM takes them, none in one whose kernels are the device's; an error where there is no LLVM."""
    from llvmlite import binding

    source = (examples / "network.mlir").read_text()
    (tmp_path / "a.vmfb").write_bytes(compile_mlir(source, "vmvx-inline", model="inline-static"))
    assert main(["dump", "--llvm", str(tmp_path / "a.vmfb")]) == 0
    first, *others = capsys.readouterr().out.split("; module.network, loop at ")[1:]
    assert len(others) >= 5
    binding.parse_assembly(first.partition("\n")[2]).verify()
    assert main(["dump", "--llvm", network]) == 0
    assert "has no loops" in capsys.readouterr().out
    monkeypatch.setenv("HALGPU_JIT", "0")
    assert main(["dump", "--llvm", network]) == 1
    assert "halgpu[jit]" in capsys.readouterr().err
