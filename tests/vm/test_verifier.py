"""The verifier: accepts what the stock tools make, refuses everything else, and never fails in another way."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halgpu import errors
from halgpu.vm import definition, verifier

Compile = Callable[..., bytes]
Tool = Callable[..., subprocess.CompletedProcess[str]]
Write = Callable[..., bytes]
PROGRAMS = Path(__file__).parent / "programs"


def h(text: str) -> bytes:
    return bytes.fromhex(text)


def check(data: bytes) -> tuple[verifier.VerifiedFunction, ...]:
    return verifier.verify(definition.read(data))


# What must be accepted.


@pytest.mark.parametrize("program", ["abs", "counter", "network"])
@pytest.mark.parametrize("target", ["vulkan", "llvm-cpu", "vmvx"])
def test_stock_modules(program: str, target: str, compile_mlir: Compile, examples: Path) -> None:
    module = definition.read(compile_mlir((examples / f"{program}.mlir").read_text(), target))
    functions = verifier.verify(module)
    assert [f.definition for f in functions] == list(module.functions)
    assert [f.cconv for f in functions] == [s.cconv for s in module.signatures]
    for function in functions:
        starts = [block.offset for block in function.blocks]
        assert starts[0] == 0
        assert starts == sorted(starts)
        assert len(starts) == function.definition.block_count
        for block in function.blocks:
            assert [op.instruction.terminator for op in block.ops] == [False] * (len(block.ops) - 1) + [True]
            assert set(block.successors) <= set(starts)


def test_scalar_code(iree_tool: Tool, examples: Path, tmp_path: Path) -> None:
    flags = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx-inline")
    iree_tool(
        "iree-compile",
        "--iree-execution-model=inline-static",
        *flags,
        str(examples / "network.mlir"),
        f"-o={tmp_path}/m.vmfb",
    )
    functions = check((tmp_path / "m.vmfb").read_bytes())
    assert max(len(f.blocks) for f in functions) > 20


def test_every_instruction(compile_mlir: Compile, iree_tool: Tool, tmp_path: Path) -> None:
    iree_tool("iree-as-module", f"--output={tmp_path}/a.vmfb", str(PROGRAMS / "all_ops.vmasm"))
    text = (PROGRAMS / "all_ops.vmasm").read_text()
    functions = check((tmp_path / "a.vmfb").read_bytes())
    assert [len(f.blocks) for f in functions] == [
        part.count("\n^bb") for part in re.split(r"\nvm\.func ", text)[1:]
    ]
    check(compile_mlir((PROGRAMS / "remaining_ops.mlir").read_text(), "vulkan", "--compile-mode=vm"))


def test_blocks_and_successors(write_module: Write, function: Any) -> None:
    code = h("57 0000 18000000 0000 10000000 0000")  # cond_br at 1, up to 16
    code += h("79 56 00000000 0000")  # a block at 16 with br, up to 24
    with pytest.raises(errors.InvalidArgument, match=r"offset 0x18: expected a block marker"):
        check(write_module([function(code + h("00 79 5A 0000"), blocks=3)]))
    blocks = check(write_module([function(code + h("79 5A 0000"), blocks=3)]))[0].blocks
    assert [(block.offset, block.successors) for block in blocks] == [(0, (24, 16)), (16, (0,)), (24, ())]


def test_one_byte_behind_the_last_block_is_not_looked_at(write_module: Write, function: Any) -> None:
    assert check(write_module([function(h("5A 0000 FF"))]))[0].blocks[0].ops[-1].end == 4


# What must be refused. A function starts with its block marker at 0, so code is given from offset 1 on.


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    # name: code, module fields, message
    "i32 register": ("0C 0800", {}, r"register 8 is out of range: there are 8"),
    "i32 register far away": ("0C FF7F", {}, r"register 32767 is out of range: there are 8"),
    "i64 register": ("0E 0800", {}, r"64-bit register 8 is out of range: there are 8"),
    "odd i64 register": ("0E 0100", {}, r"64-bit register 1 is not even"),
    "ref where i32": ("0C 0080", {}, r"expected a 32-bit register, found ref register 0"),
    "ref where i64": ("0E 0080", {}, r"expected a 64-bit register, found ref register 0"),
    "i32 where ref": ("10 0100", {}, r"expected a ref register, found i32 register 1"),
    "ref register": ("10 0480", {}, r"register 4 is out of range: there are 4"),
    "move where it cannot be": ("14 00C0 0000", {}, r"ref register 0 is moved"),
    "global": (
        "00 05000000 0000",
        {"global_bytes": 8},
        r"a global of 4 bytes at 0x5 is out of range: the module has 8",
    ),
    "global without any": (
        "00 00000000 0000",
        {},
        r"a global of 4 bytes at 0x0 is out of range: the module has 0",
    ),
    "global at the last address": (
        "00 FCFFFFFF 0000",
        {"global_bytes": 8},
        r"4 bytes at 0xfffffffc is out of range: the module has 8",
    ),
    "i64 in the last 4 bytes": (
        "04 04000000 0000",
        {"global_bytes": 8},
        r"a global of 8 bytes at 0x4 is out of range: the module has 8",
    ),
    "f64 in the last 4 bytes": (
        "E1 00 04000000 0000",
        {"global_bytes": 8, "requirements": 2},
        r"8 bytes at 0x4",
    ),
    "f64 store at the end": (
        "E1 01 FCFFFFFF 0000",
        {"global_bytes": 8, "requirements": 2},
        r"0xfffffffc is out of range: the module has 8",
    ),
    "ref global": (
        "08 02000000 00000000 0080",
        {"global_refs": 2, "types": ["!x.y"]},
        r"global ref 2 is out of range: there are 2",
    ),
    "type": (
        "08 01000000 01000000 0080",
        {"global_refs": 2, "types": ["!x.y"]},
        r"type 1 is out of range: there are 1",
    ),
    "type of all ones": (
        "12 FFFFFFFF 0000 0080",
        {"types": ["i32"]},
        r"type 4294967295 is out of range: there are 1",
    ),
    "rodata": ("11 01000000 0080", {"rodata": [b"x"]}, r"rodata segment 1 is out of range: there are 1"),
    "opcode": ("89", {}, r"unknown opcode 89"),
    "f32 opcode": ("E0 3F", {"requirements": 1}, r"unknown opcode E0 3F"),
    "f32 not declared": ("E0 04 0000", {"requirements": 2}, r"const.f32.zero needs EXT_F32"),
    "f64 not declared": ("E1 04 0000", {"requirements": 1}, r"const.f64.zero needs EXT_F64"),
    "block inside of a block": ("79 5A 0000", {}, r"a block starts inside of another one"),
    "discarded number": ("85 0100 0100", {}, r"expected a ref register, found i32 register 1"),
    "list register": ("5A 0100 0080", {}, r"has 0 results \(none\), found 1 registers"),
    "switch values": ("1F 0000 0100 0100 0900 0200", {}, r"register 9 is out of range: there are 8"),
    "branch target": ("56 01000000 0000", {"tail": b""}, r"branches to 0x1, where no block starts"),
    "branch target outside": ("56 FFFFFFFF 0000", {"tail": b""}, r"branches to 0xffffffff"),
    "branch operand": ("56 00000000 0100 0000 0800", {}, r"register 8 is out of range: there are 8"),
    "branch operand ref": ("56 00000000 0100 0480 0080", {}, r"register 4 is out of range: there are 4"),
    "branch operand across banks": ("56 00000000 0100 0080 0000", {}, r"a branch operand goes from"),
    "branch table target": ("83 0000 00000000 0000 0100 40000000 0000", {"tail": b""}, r"branches to 0x40"),
    "branch table operand": (
        "83 0000 00000000 0000 0100 00000000 0100 0000 0900",
        {},
        r"register 9 is out of range: there are 8",
    ),
    "function ordinal": ("58 07000000 0000 0000", {}, r"function 7 is out of range: there are 1"),
    "import ordinal": ("58 02000080 0000 0000", {}, r"import 2 is out of range: there are 2"),
    "import ordinal of all ones": (
        "58 FFFFFFFF 0000 0000",
        {},
        r"import 2147483647 is out of range: there are 2",
    ),
    "too few arguments": (
        "58 00000080 0100 0000 0100 0200",
        {},
        r"@p.plain has 2 arguments \(iI\), found 1",
    ),
    "too many arguments": (
        "58 00000080 0300 0000 0200 0000 0100 0200",
        {},
        r"has 2 arguments \(iI\), found 3",
    ),
    "argument type": ("58 00000080 0200 0080 0200 0100 0080", {}, r"expected a 32-bit register"),
    "argument pair": ("58 00000080 0200 0000 0300 0100 0080", {}, r"64-bit register 3 is not even"),
    "no results": ("58 00000080 0200 0000 0200 0000", {}, r"@p.plain has 1 results \(r\), found 0"),
    "result type": ("58 00000080 0200 0000 0200 0100 0100", {}, r"expected a ref register"),
    "call of a variadic import": ("58 01000080 0000 0000", {}, r"@p.many has variadic arguments"),
    "variadic call of a function": (
        "59 00000000 0000 0000 0000",
        {},
        r"a variadic call of internal function 0",
    ),
    "segment sizes": (
        "59 01000080 0100 FFFF 0000 0000",
        {},
        r"@p.many has 2 arguments, found 1 segment sizes",
    ),
    "segments": (
        "59 01000080 0200 FFFF 0200 0300 0000 0000 0200 0000",
        {},
        r"@p.many is called with segments of 5 values, found 3",
    ),
    "huge segments": (
        "59 01000080 0200 FFFF FFFF 0000 0000",
        {},
        r"@p.many is called with segments of 131071 values, found 0",
    ),
    "segment type": (
        "59 01000080 0200 FFFF 0100 0300 0000 0000 0000 0000",
        {},
        r"expected a ref register, found i32 register 0",
    ),
    "import.resolved of a function": ("5C 00000000 0000", {}, r"ordinal 0 is not that of an import"),
    "import.resolved of no import": ("5C 02000080 0000", {}, r"import 2 is out of range: there are 2"),
    "more results than declared": ("5A 0100 0000", {}, r"the function itself has 0 results"),
    "yieldable call": ("87 00000080 0200 0000 0200 90000000 0100 0080", {"tail": b""}, r"branches to 0x90"),
    "cut in an instruction": ("0D 0000", {"tail": b""}, r"bytecode ends inside the instruction at 0x1"),
    "cut in a list": ("5A FFFF 0000", {"tail": b""}, r"bytecode ends inside the instruction at 0x1"),
    "no terminator": ("0C 0000", {"tail": b""}, r"the function ends inside a block; expected a terminator"),
    "no block": ("5A 0000 0C 0000 5A", {"tail": b""}, r"expected a block marker"),
    "fewer blocks": ("5A 0000", {"tail": b"", "blocks": 2}, r"declares 2 blocks and has 1"),
    "more blocks": ("5A 0000 79 5A 00 0000", {"tail": b""}, r"declares 1 blocks and has 2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, write_module: Write, function: Any) -> None:
    text, fields, message = REFUSED[name]
    code = h(text)
    # Code that runs on ends with a sound return, so that nothing else is wrong.
    at = 1 + len(code)
    tail = fields.get("tail", b"\x5a\0\0" if at % 2 else b"\x5a\0\0\0")
    parts = {"requirements", "blocks", "tail"}
    made = function(code + tail, blocks=fields.get("blocks", 1), requirements=fields.get("requirements", 0))
    module = write_module(
        [made],
        imports=[("p.plain", "0iI_r"), ("p.many", "0iCIrD_v")],
        **{key: value for key, value in fields.items() if key not in parts},
    )
    with pytest.raises((errors.InvalidArgument, errors.OutOfRange), match=rf"^@m\.f0\b.*: .*(?:{message})"):
        check(module)


def test_the_same_code_with_sound_operands_is_accepted(write_module: Write, function: Any) -> None:
    sound = {
        "0C 0700": {},
        "0E 0600": {},
        "00 04000000 0000": {"global_bytes": 8},
        "04 00000000 0000": {"global_bytes": 8},
        "08 01000000 00000000 0080": {"global_refs": 2, "types": ["!x.y"]},
        "11 00000000 0380": {"rodata": [b"x"]},
        "58 00000080 0200 0000 0200 0100 0380": {},
        "59 01000080 0200 FFFF 0200 0500 0000 0000 0080 0200 01C0 0000": {},
        "59 01000080 0200 FFFF 0000 0100 0000 0000": {},
        "5C 01000080 0000": {},
        "85 0100 03C0": {},
    }
    for text, fields in sound.items():
        code = h(text)
        tail = b"\x5a\0\0" if len(code) % 2 == 0 else b"\x5a\0\0\0"
        data = write_module(
            [function(code + tail)], imports=[("p.plain", "0iI_r"), ("p.many", "0iCIrD_v")], **fields
        )
        assert len(check(data)[0].blocks[0].ops) == 2, text


@pytest.mark.parametrize(
    ("cconv", "message"),
    [
        ("1v_v", "calling convention '1v_v' has an unknown version"),
        ("0x_v", "has the unknown type 'x'"),
        ("0i_x", "has the unknown type 'x'"),
        ("0CiD_v", "internal functions take no variadic arguments"),
        ("0v_CiD", "unknown type|variadic results"),
        ("0CCiDD_v", "a span without its end or start"),
        ("0Ci_v", "a span without its end or start"),
        ("0iD_v", "has the unknown type 'D'"),
        (
            "0iiiiiiiii_v",
            "arguments of '0iiiiiiiii_v' need 9 i32 and 0 ref registers, the function has 8 and 4",
        ),
        ("0iIIIf_v", "need 9 i32"),
        ("0rrrrr_v", "need 0 i32 and 5 ref"),
        ("0v_i", r"the function itself has 1 results \(i\), found 0"),
    ],
)
def test_calling_conventions(cconv: str, message: str, write_module: Write, function: Any) -> None:
    data = write_module([function(b"\x5a\0\0", cconv=cconv)])
    with pytest.raises(errors.InvalidArgument, match=rf"^@m\.f0\b.*{message}"):
        check(data)


def test_calling_conventions_of_imports(write_module: Write) -> None:
    with pytest.raises(errors.InvalidArgument, match=r"import p.q: calling convention '0z_v'"):
        check(write_module(imports=[("p.q", "0z_v")]))
    assert check(write_module(imports=[("p.q", ""), ("p.r", "0CiDCrIID_v")])) == ()


def test_arguments_and_results(write_module: Write, function: Any) -> None:
    # 64-bit arguments start at even registers: i, I, f, F need 0, 2:3, 4 and 6:7.
    data = write_module([function(h("5A 0100 0600"), cconv="0iIfFr_F", i32=8, refs=1)])
    assert check(data)[0].cconv == "0iIfFr_F"
    with pytest.raises(errors.InvalidArgument, match="need 8 i32"):
        check(write_module([function(h("5A 0100 0600"), cconv="0iIfFr_F", i32=6, refs=1)]))


def test_message_names_the_source(compile_mlir: Compile, examples: Path) -> None:
    data = bytearray(compile_mlir((examples / "abs.mlir").read_text(), name="abs.mlir"))
    module = definition.read(data)
    init = next(f for f in module.functions if f.name == "__init")
    op = verifier.verify(module)[init.ordinal].blocks[0].ops[3]
    assert module.debug is not None
    where = module.debug.location(init.ordinal, op.offset)
    assert where is not None
    assert "abs.mlir:" in where
    at = bytes(data).index(bytes(init.code)) + op.offset
    data[at] = 0xDF
    with pytest.raises(errors.InvalidArgument) as caught:
        check(bytes(data))
    text = str(caught.value)
    assert text.startswith(f"@module.__init at bytecode offset {op.offset:#x} ({where}): unknown opcode DF")


def test_result_does_not_change_with_the_buffer(compile_mlir: Compile, examples: Path) -> None:
    data = bytearray(compile_mlir((examples / "abs.mlir").read_text()))
    functions = check(data)  # type: ignore[arg-type]
    before = [(op.instruction.symbol, op.operands) for f in functions for b in f.blocks for op in b.ops]
    data[:] = bytes(len(data))
    after = [(op.instruction.symbol, op.operands) for f in functions for b in f.blocks for op in b.ops]
    assert after == before


def test_functions_that_share_code_do_not_multiply_work(
    write_module: Write, function: Any, structs: Any
) -> None:
    code = h("79") + h("0C 0000") * 20_000 + h("5A 00 0000")
    count = 2000
    data = write_module(
        slot8=[{} for _ in range(count)],
        slot12=structs("iiIhhhh", [(0, len(code), 0, 0, 1, 1, 0)] * count),
        slot14=code,
    )
    start = time.process_time()
    with pytest.raises(errors.InvalidArgument, match="functions do not share code to that extent"):
        check(data)
    assert time.process_time() - start < 2


# Mutations of real modules.
