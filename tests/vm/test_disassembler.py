"""The disassembler prints what iree-dump-module prints, and iree-as-module takes it back."""

from __future__ import annotations

import re
import string
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halgpu import errors
from halgpu.vm import definition, disassembler, isa, vmasm

Compile = Callable[..., bytes]
Tool = Callable[..., subprocess.CompletedProcess[str]]
PROGRAMS = Path(__file__).parent / "programs"


def text_of(data: bytes, *arguments: Any, **options: Any) -> str:
    return disassembler.disassemble(definition.read(data), *arguments, **options)


def test_same_text_as_iree(stock: bytes, dump: Callable[..., str]) -> None:
    assert text_of(stock) == dump(stock, "--output=disassembly")
    assert text_of(stock, offsets=True) == dump(stock, "--output=disassembly", "--bytecode_offsets")


@pytest.mark.parametrize("function", ["add", "__init", "0", "1"])
def test_one_function(function: str, stock_module: Callable[[str], bytes], dump: Callable[..., str]) -> None:
    data = stock_module("counter-vulkan")
    expected = dump(data, "--output=disassembly", f"--function={function}")
    assert text_of(data, function) == expected
    assert expected.count("vm.func") == 1
    if function.isdigit():
        assert text_of(data, int(function)) == expected


def test_no_such_function(stock_module: Callable[[str], bytes]) -> None:
    with pytest.raises(errors.NotFound, match=r"no function 'none' in @counter; there are add, __init"):
        text_of(stock_module("counter-vulkan"), "none")


def test_iree_assembles_the_lossless_text_to_the_same_code(
    stock: bytes, iree_tool: Tool, tmp_path: Path
) -> None:
    module = definition.read(stock)
    text = disassembler.disassemble(module, lossless=True)
    (tmp_path / "m.vmasm").write_text(text)
    iree_tool("iree-as-module", f"--output={tmp_path}/m.vmfb", str(tmp_path / "m.vmasm"))
    again = definition.read((tmp_path / "m.vmfb").read_bytes())
    if "//! string" in text:
        # A message with quotes in it: IREE's tools have no way to write that, they see a question mark.
        assert [f.length for f in again.functions] == [f.length for f in module.functions]
    else:
        assert [f.code for f in again.functions] == [f.code for f in module.functions]
    assert list(again.rodata) == list(module.rodata)
    assert again.types == module.types
    assert [(e.local_name, e.ordinal) for e in again.exports] == [
        (e.local_name, e.ordinal) for e in module.exports
    ]


def test_names_that_tell_functions_apart(stock_module: Callable[[str], bytes]) -> None:
    # The stock text names function 0 after the last one; ours does so only when the same text is asked for.
    data = stock_module("calls")
    exact, lossless = text_of(data), text_of(data, lossless=True)
    assert exact.count("vm.func @run(") == 2
    assert re.findall(r"vm\.func @(\w+)", lossless) == ["fn0", "fn1", "run"]
    assert re.findall(r"vm\.call @([\w.:]+)", exact) == ["calls.run", "calls.run", "calls:1"]
    assert re.findall(r"vm\.call @([\w.:]+)", lossless) == ["calls.fn0", "calls.fn0", "calls.fn1"]


def test_what_iree_cannot_print(compile_mlir: Compile, iree_tool: Tool, tmp_path: Path) -> None:
    text = text_of(
        compile_mlir((PROGRAMS / "remaining_ops.mlir").read_text(), "vulkan", "--compile-mode=vm"),
        "switch_ref",
    )
    assert text.endswith("""vm.export @switch_ref
vm.func @switch_ref(%i0: i32, %r0: !vm.ref<?>, %r1: !vm.ref<?>) -> (!vm.ref<?>) {
^bb0:
  vm.trace "an event"(%i0, %r0)
  vm.print "hello, world"(%i0)
  %r1 = vm.switch.ref %i0[%r0, %r1] else %r0 : !vm.buffer
  vm.return %R1
}
""")
    iree_tool("iree-as-module", f"--output={tmp_path}/m.vmfb", str(PROGRAMS / "all_ops.vmasm"))
    source = (PROGRAMS / "all_ops.vmasm").read_text()
    lines = text_of((tmp_path / "m.vmfb").read_bytes()).splitlines()
    assert [line for line in source.splitlines() if line not in lines] == [
        "vm.func @calls_inside() -> () {",
        "  %i2 = vm.call @straight(%i0)",
    ]


def test_numbers(write_module: Callable[..., bytes], function: Any, iree_tool: Tool, tmp_path: Path) -> None:
    def code(opcode: bytes, layout: str, value: float) -> bytes:
        return opcode + struct.pack("<" + layout, value) + b"\0\0"

    nan = float("nan")
    f32 = [0.0, -0.0, 1.5, -1e20, 1e-45, 3.4028234663852886e38, 0.1, 16777217.0, float("-inf"), nan, -nan]
    f64 = [*f32, 5e-324, 1.7976931348623157e308, 123456789.123456789, 0.30000000000000004]
    body = b"".join(code(b"\xe0\x05", "f", value) for value in f32)
    body += b"".join(code(b"\xe1\x05", "d", value) for value in f64)
    body += b"".join(code(b"\x0d", "i", value) for value in (-(2**31), 2**31 - 1, -1))
    body += b"".join(code(b"\x0f", "q", value) for value in (-(2**63), 2**63 - 1, -1))
    data = write_module([function(body + bytes(-len(body) % 2) + b"\x5a\0\0", requirements=3)])
    (tmp_path / "m.vmfb").write_bytes(data)
    expected = iree_tool("iree-dump-module", "--output=disassembly", f"{tmp_path}/m.vmfb").stdout
    assert expected.count("vm.const.f") == len(f32) + len(f64)
    assert text_of(data) == expected


def test_the_smallest_module(write_module: Callable[..., bytes], iree_tool: Tool, tmp_path: Path) -> None:
    (tmp_path / "m.vmfb").write_bytes(write_module())
    expected = iree_tool("iree-dump-module", "--output=disassembly", f"{tmp_path}/m.vmfb").stdout
    assert text_of(write_module()) == expected == "vm.module @m version 0\n"


def test_every_field_of_every_encoding_has_its_place() -> None:
    for instruction in isa.INSTRUCTIONS:
        if instruction.mnemonic is None:
            assert instruction.encoding not in vmasm.FORMS
            continue
        form = vmasm.FORMS[instruction.encoding]
        places = sorted(name for _, name, _, _ in string.Formatter().parse(form) if name)
        # The number of cases shows in the cases.
        fields = [spec.name for spec in instruction.fields if spec.name != "table_size"]
        assert places == sorted([*fields, "op"]), instruction.symbol


def test_registers() -> None:
    assert vmasm.register(isa.Reg("i32", 4)) == "%i4"
    assert vmasm.register(isa.Reg("i32", 4), "f64") == "%i4:5"
    assert vmasm.register(isa.Reg("ref", 4), "ref") == "%r4"
    assert vmasm.register(isa.Reg("ref", 4, move=True), "ref") == "%R4"
    assert vmasm.number(struct.unpack("<f", b"\x00\x00\xc0\xff")[0], "f32") == "-nan"
