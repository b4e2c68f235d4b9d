"""The assembler takes back what the disassembler and IREE's tool print, and does what iree-as-module does."""

from __future__ import annotations

import struct
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halgpu import errors, vm
from halgpu.vm import definition, disassembler, isa, verifier, writer
from halgpu.vm.assembler import assemble

Compile = Callable[..., bytes]
Tool = Callable[..., subprocess.CompletedProcess[str]]
PROGRAMS = Path(__file__).parent / "programs"
Write = Callable[..., bytes]


# Inverse of the disassembler.


def test_the_lossless_text_has_everything(any_stock: bytes, everything: Callable[[bytes], Any]) -> None:
    text = disassembler.disassemble(definition.read(any_stock), lossless=True)
    again = writer.write(assemble(text))
    assert everything(again) == everything(any_stock)
    assert disassembler.disassemble(definition.read(again), lossless=True) == text


def test_the_text_of_iree_has_the_program(
    stock: bytes, dump: Callable[..., str], everything: Callable[[bytes], Any]
) -> None:
    text = dump(stock, "--output=disassembly")
    again = writer.write(assemble(text))
    assert dump(again, "--output=disassembly") == text
    assert (
        assemble(dump(stock, "--output=disassembly", "--bytecode_offsets")).bytecode
        == definition.read(stock).bytecode
    )
    found, expected = everything(again), everything(stock)
    for part in ("name", "version", "types", "exported_functions", "module_state", "bytecode_data"):
        assert found.get(part) == expected.get(part), part
    assert found.get("imported_functions") == expected.get("imported_functions")
    for one, other in zip(found["function_descriptors"], expected["function_descriptors"], strict=True):
        # The text does not say what a function requires; iree-as-module counts half of a pair that a call writes.
        assert one.pop("i32_register_count", 0) - other.pop("i32_register_count", 0) in (0, 1)
        one.pop("requirements", None), other.pop("requirements", None)
        assert one == other
    assert list(definition.read(again).rodata) == list(definition.read(stock).rodata)


def test_iree_runs_it(stock_module: Callable[[str], bytes], iree_tool: Tool, tmp_path: Path) -> None:
    for name, function, inputs in (
        ("abs-llvm-cpu", "abs", ["--input=2xf32=1 -2"]),
        ("counter-llvm-cpu", "add", ["--input=4xf32=1 -2.5 3 4e30"]),
        ("calls", "run", ["--input=7"]),
    ):
        data = stock_module(name)
        module = definition.read(data)
        texts = [disassembler.disassemble(module, lossless=lossless) for lossless in (True, False)]
        printed = []
        for content in (data, *(writer.write(assemble(text)) for text in texts)):
            (tmp_path / "m.vmfb").write_bytes(content)
            options = (
                "--device=local-sync",
                f"--module={tmp_path}/m.vmfb",
                f"--function={function}",
                *inputs,
            )
            done = iree_tool("iree-run-module", *options, check=False)
            printed.append((done.returncode, done.stdout))
        assert printed[1:] == printed[:1] * 2
        assert printed[0][0] == 0, done.stderr


# Against iree-as-module.


def both(text: str, iree_tool: Tool, tmp_path: Path) -> tuple[definition.ModuleDef, definition.ModuleDef]:
    (tmp_path / "m.vmasm").write_text(text)
    iree_tool("iree-as-module", f"--output={tmp_path}/m.vmfb", str(tmp_path / "m.vmasm"))
    return assemble(text, "m.vmasm"), definition.read((tmp_path / "m.vmfb").read_bytes())


@pytest.mark.parametrize("program", ["all_ops", "dialect"])
def test_same_module_as_iree(
    program: str, iree_tool: Tool, tmp_path: Path, everything: Callable[[bytes], Any]
) -> None:
    ours, _ = both((PROGRAMS / f"{program}.vmasm").read_text(), iree_tool, tmp_path)
    found, expected = everything(writer.write(ours)), everything((tmp_path / "m.vmfb").read_bytes())
    # Names of functions that are not exported are kept; IREE loses them.
    found.pop("debug_database", None)
    # iree-run-module needs to know which modules to load; IREE's assembler does not say.
    assert {entry["name"] for entry in found.pop("dependencies")} == {"other"}
    for function, other in zip(found["function_descriptors"], expected["function_descriptors"], strict=True):
        # A pair that only a call writes counts whole.
        assert function.pop("i32_register_count", 0) - other.pop("i32_register_count", 0) in (0, 1)
    assert found == expected


FLOATS = [
    "0", "-0", "1", "+1", ".5", "1.", "1e3", "1E-3", "0x10", "-0x1.8p-3", "inf", "-inf", "infinity", "nan", "-nan",
    "3.4028235e38", "1.17549435e-38", "0.1", "16777217", "16777217.0000000000000001", "16777216.9999999999999999",
    "1.00000005960464477539062500000001", "1.000000059604644775390625", "-1.00000005960464477539062499999",
    "1.7976931348623157e308", "123456789012345678901234567890",
]  # fmt: skip


def test_numbers_are_read_as_iree_reads_them(iree_tool: Tool, tmp_path: Path) -> None:
    singles = [text for text in FLOATS if "e308" not in text]
    lines = [f"  %i0 = vm.const.f32 {text}" for text in singles]
    lines += [f"  %i0:1 = vm.const.f64 {text}" for text in FLOATS]
    lines += [
        f"  %i0 = vm.const.i32 {text}" for text in ("0", "-1", "0x1F", "-0x1", "2147483647", "-2147483648")
    ]
    lines += [f"  %i0:1 = vm.const.i64 {text}" for text in ("0x7FFFFFFFFFFFFFFF", "-9223372036854775808")]
    body = "\n".join(lines)
    ours, theirs = both(
        f"vm.module @m\nvm.func @f() -> () {{\n{body}\n  vm.return\n}}\n", iree_tool, tmp_path
    )
    assert bytes(ours.bytecode) == bytes(theirs.bytecode)


@given(value=st.floats(width=32), double=st.floats())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_number_survives(value: float, double: float, write_module: Write, function: Any) -> None:
    bits = struct.pack("<f", value), struct.pack("<d", double)
    code = b"\xe0\x05" + bits[0] + b"\0\0\xe1\x05" + bits[1] + b"\0\0\x5a\0\0"
    module = definition.read(write_module([function(code, requirements=3)]))
    again = assemble(disassembler.disassemble(module, lossless=True))
    assert bytes(again.functions[0].code) == b"\x79" + code


# Any program.

CALLEES = {"Call": 0, "CallVariadic": 1, "CallYieldable": 0, "CallVariadicYieldable": 1}
"""Imports of `random_programs`: plain(i32, i64, ref) -> (f64, ref), spread(span of i32)."""
I32 = st.integers(0, 29)
REF = st.integers(0, 6)


def register(spec: isa.Field) -> st.SearchStrategy[int]:
    """The u16 of a register that a field takes."""
    if spec.type == "ref":
        bits = st.sampled_from([isa.REF_BIT, isa.REF_BIT | isa.MOVE_BIT] if spec.move else [isa.REF_BIT])
        return st.builds(lambda bit, n: bit | n, bits, REF)
    return I32.map(lambda n: n & ~1) if spec.type in ("i64", "f64") else I32


def immediate(spec: isa.Field) -> st.SearchStrategy[Any]:
    if spec.type in ("f32", "f64"):
        return st.floats(width=32 if spec.type == "f32" else 64, allow_nan=False)
    size = 31 if spec.type == "i32" else 63
    return st.integers(-(2**size), 2**size - 1)


def operand(spec: isa.Field, labels: list[Any]) -> st.SearchStrategy[Any]:
    any_register = st.one_of(I32, REF.map(lambda n: isa.REF_BIT | n), REF.map(lambda n: 0xC000 | n))
    remap = st.lists(
        st.one_of(
            st.tuples(I32, I32), st.tuples(REF.map(lambda n: 0xC000 | n), REF.map(lambda n: isa.REF_BIT | n))
        ),
        max_size=3,
    )
    strategies: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
        "register": lambda: register(spec),
        "registers": lambda: st.lists(any_register if spec.type == "any" else register(spec), max_size=4),
        "immediate": lambda: immediate(spec),
        "global": lambda: st.integers(0, 7).map(lambda n: 8 * n),
        "global_ref": lambda: st.integers(0, 3),
        "rodata": lambda: st.integers(0, 1),
        "type": lambda: st.integers(0, 8),
        "string": lambda: st.text(max_size=12),
        "target": lambda: st.sampled_from(labels),
        "remap": lambda: remap,
        "cases": lambda: st.lists(st.tuples(st.sampled_from(labels), remap), max_size=3),
    }
    return strategies[spec.kind]()


@st.composite
def instructions(draw: Any, terminators: bool, imports: list[int], labels: list[Any]) -> tuple[Any, ...]:
    known = [i for i in isa.INSTRUCTIONS if i.mnemonic and i.terminator == terminators]
    chosen = draw(st.sampled_from(known))
    values: dict[str, Any] = {}
    if chosen.symbol in CALLEES:
        values = {
            "callee_ordinal": imports[CALLEES[chosen.symbol]],
            "operands": [3, 4, 0x8001],
            "results": [6, 0x8002],
        }
        if CALLEES[chosen.symbol]:
            count = draw(st.integers(0, 3))
            values.update(segment_sizes=[count], operands=list(range(count)), results=[])
    elif chosen.symbol == "ImportResolved":
        values = {"import_ordinal": imports[0]}
    elif chosen.symbol == "Return":
        values = {"operands": [4]}
    for spec in chosen.fields:
        if spec.name not in values and spec.name != "table_size":
            values[spec.name] = draw(operand(spec, labels))
    if "cases" in values:
        values["table_size"] = len(values["cases"])
    return (chosen.symbol, *(values[spec.name] for spec in chosen.fields))


def decoded(module: definition.ModuleDef) -> list[Any]:
    return [
        [
            (block.offset, [(op.offset, op.instruction.symbol, op.operands) for op in block.ops])
            for block in f.blocks
        ]
        for f in verifier.verify(module)
    ]


@given(data=st.data())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_program_survives(data: st.DataObject, new_program: Callable[[], Any]) -> None:
    program = new_program()
    program.rodata = [b"", b"\x01\x02"]
    imports = [program.imported("a.plain", "0iIr_Fr"), program.imported("b.spread", "0CiD_v", optional=True)]
    labels = [program.label(f"b{n}") for n in range(data.draw(st.integers(1, 3)))]
    body: list[Any] = []
    for label in labels:
        body.append(label)
        body += data.draw(st.lists(instructions(False, imports, labels), max_size=8))
        body.append(data.draw(instructions(True, imports, labels)))
    program.function("0iIr_I", body, name=data.draw(st.text(min_size=1, max_size=5)))
    module = program.module().definition
    text = disassembler.disassemble(module, lossless=True)
    again = definition.read(writer.write(assemble(text)))
    assert bytes(again.functions[0].code) == bytes(module.functions[0].code)
    assert decoded(again) == decoded(module)
    assert (again.types, again.functions[0].requirements) == (module.types, module.functions[0].requirements)
    assert again.functions[0].i32_registers == module.functions[0].i32_registers
    assert disassembler.disassemble(again, lossless=True) == text


def test_names_and_texts_with_odd_characters(write_module: Write, function: Any, scalar: Any) -> None:
    def text(value: bytes) -> bytes:
        return struct.pack("<H", len(value)) + value

    call = b"\x58\x01\0\0\x80\0\0\0\0"  # of import 1
    body = call + b"\x5b\0\0" + text(b'a "quoted"\n\ttext # \xff\\') + b"\x79\x5a\0\0"
    assert len(body) % 2 == 1, "the operands of the return lie at an even offset"
    names = ['q"uote', '"', "sp ace", "//", "#", "n\nl", "ü", "\\", "plain"]
    data = write_module(
        [function(body, blocks=2) for _ in names],
        types=["i32", *names, "i32", "type[0]", " padded "],
        imports=[("m.f", "0v_v"), ("m.f", "0v_v"), *((f"m.{name}", "0v_v") for name in names)],
        rodata=[b"x"],
        slot0='mod"ule #1',
        slot3=[{0: name, 1: name} for name in names],
        slot5=[{0: name, 1: scalar("I", 3)} for name in names],
        slot7=[{0: name, 1: scalar("i", n)} for n, name in [*enumerate(names), (3, names[0])]],
    )
    module = definition.read(data)
    lines = disassembler.disassemble(module, lossless=True)
    again = assemble(lines)
    assert [bytes(f.code) for f in again.functions] == [bytes(f.code) for f in module.functions]
    assert (again.name, again.types, dict(again.attrs)) == (module.name, module.types, dict(module.attrs))
    assert [e.local_name for e in again.exports] == [e.local_name for e in module.exports]
    assert [e.ordinal for e in again.exports] == [e.ordinal for e in module.exports]
    assert [i.full_name for i in again.imports] == [i.full_name for i in module.imports]
    assert [d.name for d in again.dependencies] == [d.name for d in module.dependencies]
    assert [f.offset for f in again.functions] == [f.offset for f in module.functions]
    assert len(again.bytecode) == len(module.bytecode)


# What else the text may say.


def test_names_of_functions_are_kept() -> None:
    text = "vm.module @m\nvm.export @main\nvm.func @main() -> () {\n  vm.return\n}\nvm.func @%s() -> () {\n  vm.return\n}\n"
    module = assemble(text % "helper")
    assert module.debug is not None
    assert [f.name for f in module.functions] == ["main", "helper"]
    assert assemble(text % "fn1").debug is None


def test_errors_of_the_program_name_lines() -> None:
    text = textwrap.dedent(
        """
        vm.module @m
        vm.export @main
        vm.func @main(%i0: i32) -> () {
          vm.fail %i0, "on line 5"
        }
        """
    )
    module = vm.BytecodeModule.load(writer.write(assemble(text, "prog.vmasm", lines=True)))
    with vm.Context([module]) as context, pytest.raises(errors.InvalidArgument, match="on line 5") as caught:
        context.lookup("main")(3)
    assert caught.value.frames == ("m.main (prog.vmasm:5:3)",)


def test_a_program_runs() -> None:
    module = vm.BytecodeModule.load(writer.write(assemble((PROGRAMS / "sum.vmasm").read_text())))
    with vm.Context([module]) as context:
        assert context.lookup("sum")(10) == 45


def test_what_iree_names_wrongly(stock_module: Callable[[str], bytes]) -> None:
    # In the text of a 3.13.0 module, a call of function 0 can bear the name of the module's initializer.
    text = "vm.module @m\nvm.export @f\nvm.func @f() -> () {\n  vm.return\n}\nvm.export @__init\n"
    text += "vm.func @__init() -> () {\n  vm.call @m.__init()\n  vm.return\n}\n"
    with pytest.raises(
        errors.InvalidArgument, match=r"8:11: expected a function that may be called; .*--lossless"
    ):
        assemble(text)
    twice = "vm.module @m\nvm.func @f() -> () {\n  vm.return\n}\nvm.func @f() -> () {\n  vm.return\n}\n"
    with pytest.raises(
        errors.InvalidArgument, match=r"5:9: expected a name that no other function has, found @f"
    ):
        assemble(twice)
