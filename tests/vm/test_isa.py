"""The instruction table and the decoder, against IREE's own table and what IREE's tools print and assemble."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from halgpu import errors
from halgpu.vm import definition, isa
from halgpu.vm.isa import Reg

Compile = Callable[..., bytes]
Tool = Callable[..., subprocess.CompletedProcess[str]]

PROGRAMS = Path(__file__).parent / "programs"
ISA_JSON = Path("/work/shared/reference/iree_vm_isa.json")
"""IREE's runtime/src/iree/vm/bytecode/isa/isa.json of 3.13.0, where it is at hand."""
FACTS_DIGEST = "f2dc5bfa9fd0d51238f25271b7366d557c9be90724a5421aac16de221ec67350"
"""SHA-256 of `facts_of_json`, taken from that file, so that the table is held to it where it is not."""

Facts = list[list[object]]

JSON_KINDS = {
    "register": "register",
    "immediate": "attribute",
    "global": "global_attr",
    "global_ref": "global_attr",
    "rodata": "rodata_attr",
    "function": "func_attr",
    "type": "type_of",
    "string": "string_attr",
    "counts": "variadic_operands",
    "target": "branch_target",
    "remap": "branch_operands",
    "cases": "branch_table_cases",
}
"""What isa.json calls our kinds of fields; register lists are named by their direction."""


def facts_of_json(path: Path) -> Facts:
    """[set, opcode, symbol, mnemonic, fields] of each instruction, classes and parameters resolved."""
    document = json.loads(path.read_text())

    def fields(encoding: str | None) -> list[list[object]]:
        if encoding is None:
            return []
        entry = document["encodings"][encoding]
        values = entry.get("parameters", {})
        found = (
            document["operation_classes"][entry["class"]]["fields"] if "class" in entry else entry["fields"]
        )
        types = [str(spec.get("bank", spec.get("type", ""))) for spec in found]
        resolved = [values[name[1:]] if name.startswith("$") else name for name in types]
        return [
            [spec["name"], spec["kind"], value_type, spec.get("access", ""), spec.get("move", "")]
            for spec, value_type in zip(found, resolved, strict=True)
        ]

    return [
        [i["opcode_set"], i["opcode"], i["symbol"], i.get("mnemonic"), fields(i.get("encoding"))]
        for i in document["instructions"]
    ]


def facts_of_table() -> Facts:
    """The same of our table, in isa.json's words."""

    def field(spec: isa.Field) -> list[object]:
        kind, value_type, access = JSON_KINDS.get(spec.kind, ""), spec.type or "", spec.access or ""
        move = "allow" if spec.move and spec.type != "any" else ""
        if spec.kind == "registers":
            kind, access = "variadic_results" if access == "write" else "variadic_operands", ""
        if spec.kind == "counts":
            value_type = "i32"
        if spec.type == "u16":
            kind, value_type = "const_i16", ""
        if spec.name == "refs":  # discard.refs, where isa.json has any register and IREE takes all for refs
            value_type, move = "any", ""
        return [spec.name, kind, value_type, access, move]

    return [
        [i.opcode_set, i.opcode, i.symbol, i.mnemonic, [field(spec) for spec in i.fields]]
        for i in isa.INSTRUCTIONS
        if not i.symbol.startswith("FPowI")
    ]


def digest(facts: Facts) -> str:
    return hashlib.sha256(json.dumps(sorted(facts, key=repr)).encode()).hexdigest()


def test_table_has_the_facts_of_isa_json() -> None:
    assert digest(facts_of_table()) == FACTS_DIGEST


@pytest.mark.parametrize("path", [ISA_JSON] if ISA_JSON.exists() else [])
def test_table_against_the_file_itself(path: Path) -> None:
    theirs = facts_of_json(path)
    assert digest(theirs) == FACTS_DIGEST
    ours = {(entry[0], entry[1]): entry for entry in facts_of_table()}
    assert [ours.get((entry[0], entry[1])) for entry in theirs] == theirs


def test_counts() -> None:
    assert Counter(i.opcode_set for i in isa.INSTRUCTIONS) == {"core": 139, "ext_f32": 63, "ext_f64": 65}
    assert len(isa.BY_SYMBOL) == len({(i.opcode_set, i.opcode) for i in isa.INSTRUCTIONS}) == 267
    assert len(isa.BY_MNEMONIC) == 264
    assert {i.symbol for i in isa.INSTRUCTIONS if i.mnemonic is None} == {
        "Block",
        "PrefixExtF32",
        "PrefixExtF64",
    }
    assert sum(i.terminator for i in isa.INSTRUCTIONS) == 10


# Decoding, byte by byte as in BytecodeEncoder.cpp. Offsets matter: lists are aligned.

EXAMPLES: list[tuple[str, str, tuple[object, ...]]] = [
    ("22 0100 0200 0300", "add.i32", (Reg("i32", 1), Reg("i32", 2), Reg("i32", 3))),
    ("0D FEFFFFFF 0400", "const.i32", (-2, Reg("i32", 4))),
    ("0F FFFFFFFFFFFFFF7F 0400", "const.i64", (2**63 - 1, Reg("i32", 4))),
    ("E0 05 0000C03F 0100", "const.f32", (1.5, Reg("i32", 1))),
    ("E1 05 000000000000F8BF 0200", "const.f64", (-1.5, Reg("i32", 2))),
    ("08 01000000 02000000 0380", "global.load.ref", (1, 2, Reg("ref", 3))),
    ("09 01000000 02000000 03C0", "global.store.ref", (1, 2, Reg("ref", 3, move=True))),
    ("5A 00 0100 01C0", "return", ((Reg("ref", 1, move=True),),)),
    ("5B 0100 0300 616263", "fail", (Reg("i32", 1), "abc")),
    ("5B 0100 0200 C3B6", "fail", (Reg("i32", 1), "ö")),
    ("5B 0100 0100 FF", "fail", (Reg("i32", 1), "\\xff")),
    ("5C 02000080 0100", "import.resolved", (0x80000002, Reg("i32", 1))),
    ("56 10000000 00 0100 0100 0200", "br", (16, ((Reg("i32", 1), Reg("i32", 2)),))),
    ("5E 0100 78 0000 00", "trace", ("x", ())),
    ("85 00 0200 0180 02C0", "discard.refs", ((Reg("ref", 1), Reg("ref", 2, move=True)),)),
]


@pytest.mark.parametrize(("code", "mnemonic", "operands"), EXAMPLES)
def test_decode(code: str, mnemonic: str, operands: tuple[object, ...]) -> None:
    op = isa.decode(bytes.fromhex(code), 0)
    assert op.instruction.mnemonic == mnemonic
    assert op.operands == operands
    for spec, operand in zip(op.instruction.fields, operands, strict=True):
        assert op[spec.name] == operand


def test_lists_are_aligned_from_the_start_of_the_function() -> None:
    # `discard.refs` at 0 and at 1: the byte before the count is there or not.
    at_even = isa.decode(bytes.fromhex("85 FF 0100 0180"), 0)
    at_odd = isa.decode(bytes.fromhex("79 85 0100 0180"), 1)
    assert at_even.operands == at_odd.operands == ((Reg("ref", 1),),)
    assert (at_even.end, at_odd.end) == (6, 6)
    # Nothing else depends on where the view's bytes happen to lie in memory.
    view = memoryview(bytes.fromhex("00 85 FF 0100 0180"))[1:]
    assert isa.decode(view, 0).operands == at_even.operands


def test_branch_table() -> None:
    code = bytes.fromhex("83 0000 20000000 00 0000 0200 30000000 0100 0300 0400 40000000 0000")
    op = isa.decode(code, 0)
    assert op["index"] == Reg("i32", 0)
    assert op["default_dest_pc"] == 0x20
    assert op["cases"] == ((0x30, ((Reg("i32", 3), Reg("i32", 4)),)), (0x40, ()))
    assert op.targets() == (0x20, 0x30, 0x40)
    assert op.end == len(code)


def test_registers_keep_their_bits() -> None:
    for raw in (0, 1, 0x7FFF, 0x8000, 0xBFFF, 0xC000, 0xFFFF):
        register = isa.decode(b"\x0c" + struct.pack("<H", raw), 0)["result"]
        assert register.raw == raw


@pytest.mark.parametrize("code", ["89", "FF", "E0 3F", "E0 FF", "E1 41"])
def test_unknown_opcodes(code: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=f"unknown opcode {code}: bytecode 17.0"):
        isa.decode(bytes.fromhex(code), 0)


def test_every_cut_instruction_is_out_of_range() -> None:
    for code in [bytes.fromhex(text) for text, _, _ in EXAMPLES]:
        end = isa.decode(code, 0).end
        for length in range(end):
            with pytest.raises(errors.OutOfRange, match="ends inside the instruction at 0x0"):
                isa.decode(code[:length], 0)


# Against the tools.


def decoded(module: definition.ModuleDef) -> Iterator[str]:
    """Mnemonics of all functions in order."""
    for function in module.functions:
        at = 0
        while at < function.length - 1:
            op = isa.decode(function.code, at)
            at = op.end
            if op.instruction.mnemonic:
                yield op.instruction.mnemonic


def printed(text: str) -> list[str]:
    """Mnemonics in text of the form that `iree-dump-module --output=disassembly` prints."""
    return re.findall(r"^  (?:[^\"\n]*? = )?vm\.([\w.]+)", text, re.MULTILINE)


def test_every_instruction_that_iree_assembles(iree_tool: Tool, tmp_path: Path) -> None:
    source = PROGRAMS / "all_ops.vmasm"
    iree_tool("iree-as-module", f"--output={tmp_path}/m.vmfb", str(source))
    module = definition.read((tmp_path / "m.vmfb").read_bytes())
    expected = printed(source.read_text())
    assert list(decoded(module)) == expected
    missing = set(isa.BY_MNEMONIC) - set(expected)
    # iree-as-module takes one register for the exponent of fpowi.f32, iree-dump-module prints the compiler's two.
    assert missing == {"trace", "print", "switch.ref", "fpowi.f32"} | {
        m for m in isa.BY_MNEMONIC if ".indirect." in m
    }


def test_the_others_that_iree_compiles(compile_mlir: Compile) -> None:
    source = (PROGRAMS / "remaining_ops.mlir").read_text()
    module = definition.read(compile_mlir(source, "vulkan", "--compile-mode=vm"))
    expected = re.findall(r"^    (?:%\w+ = )?vm\.([\w.]+)", source, re.MULTILINE)
    # iree-compile 3.13.0 writes the f64 opcode for the f32 load (VMOps.td), and discards an unused ref.
    expected = ["global.load.indirect.f64" if m == "global.load.indirect.f32" else m for m in expected]
    assert [m for m in decoded(module) if m != "discard.refs"] == expected
    assert {"trace", "print", "switch.ref", "global.store.indirect.ref"} <= set(expected)


@pytest.mark.parametrize(("program", "target"), [("network", "vulkan"), ("counter", "llvm-cpu")])
def test_real_modules(
    program: str, target: str, compile_mlir: Compile, iree_tool: Tool, examples: Path, tmp_path: Path
) -> None:
    data = compile_mlir((examples / f"{program}.mlir").read_text(), target)
    (tmp_path / "m.vmfb").write_bytes(data)
    assert_same_as_dump(tmp_path / "m.vmfb", iree_tool)


def test_scalar_code(iree_tool: Tool, examples: Path, tmp_path: Path) -> None:
    iree_tool(
        "iree-compile",
        "--iree-execution-model=inline-static",
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=vmvx-inline",
        str(examples / "network.mlir"),
        f"-o={tmp_path}/m.vmfb",
    )
    assert_same_as_dump(tmp_path / "m.vmfb", iree_tool)


def assert_same_as_dump(path: Path, iree_tool: Tool) -> None:
    expected = printed(iree_tool("iree-dump-module", "--output=disassembly", str(path)).stdout)
    assert len(expected) > 20
    assert list(decoded(definition.read(path.read_bytes()))) == expected
