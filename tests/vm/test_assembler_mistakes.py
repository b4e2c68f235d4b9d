"""What is wrong in a text is said with its place, what was expected and what was found; nothing else is raised."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halgpu import errors
from halgpu.vm import definition, disassembler, verifier, writer
from halgpu.vm.assembler import assemble
from halgpu.vm.isa import Reg

PROGRAMS = Path(__file__).parent / "programs"
HEAD = "vm.module @m version 1\nvm.type i32\n"
BODY = HEAD + "vm.func @f(%i0: i32) -> (i32) {{\n  {}\n  vm.return %i0\n}}\n"


@pytest.mark.parametrize(
    ("line", "column", "message"),
    [
        ("vm.add.i32 %i0, %i1", 3, "expected a register (i32) such as %i0 and '=' before the instruction, found no result"),
        ("%i0 = vm.add.i32 %i0 %i1", 24, "expected ',', found '%i1'"),
        ("%i0 = vm.adx.i32 %i0, %i1", 9, "expected an instruction such as vm.and.i32, found 'vm.adx.i32'"),
        ("%i0 = 7", 9, "expected an instruction such as vm.return, found '7'"),
        ("%i0:1 = vm.add.i32 %i0, %i1", 3, "expected a register (i32) such as %i0, found '%i0:1'"),
        ("%i0 = vm.add.i64 %i0:1, %i2:3", 3, "expected a register pair (i64) such as %i0:1, found '%i0'"),
        ("%i0 = vm.add.i32 %r0, %i1", 20, "expected a register (i32) such as %i0, found '%r0'"),
        ("%i0:1 = vm.buffer.length %R0", 28, "expected '%r0', as this operand cannot be moved, found '%R0'"),
        ("%i0, %i1 = vm.add.i32 %i0, %i1", 8, "expected '=': this instruction has one result, found '%i1'"),
        ("%i0 = vm.br ^bb0", 3, "expected vm.br, which has no result, found '%i0'"),
        ("%i0 = vm.const.i32 2147483648", 22, "expected a number (i32) from -2147483648 to 2147483647, found 2147483648"),
        ("%i0 = vm.const.i32 010", 22, "expected a number (i32) from -2147483648 to 2147483647, found 010"),
        ("%i0 = vm.const.i32 " + "9" * 5000, 22, "expected a number (i32) from -2147483648 to 2147483647, found 9999"),
        ("%i0 = vm.const.f32 1e39", 22, "expected a number that f32 can hold, found 1e39"),
        ("%i0:1 = vm.const.f64 1e309", 24, "expected a number that f64 can hold, found 1e309"),
        ("%i0 = vm.const.f32 one", 22, "expected a number (f32), found 'one'"),
        ("%i0 = vm.const.f32 1_000", 22, "expected a number (f32), found '1_000'"),
        ("vm.br ^nowhere", 9, "expected the label of a block of this function, found ^nowhere"),
        ("vm.br ^f(%i0)", 15, "expected '->', found ')'"),
        ("vm.br ^f(%i0->%i1", 20, "expected ')', found the end of the line"),
        ("^bb0: vm.return %i0", 3, "expected the label of a block and ':' alone on a line, such as ^bb1:, found '^bb0'"),
        ("vm.fail %i0, oops", 16, 'expected a text in "quotes", found \'oops\''),
        ('vm.fail %i0, "oops', 16, 'expected a text in "quotes", found \'"\''),
        ("%r0 = vm.list.alloc %i0 : i32", 29, "expected '!vm.list<', found 'i32'"),
        ("%i0 = vm.select.i32 %i0 ? %i1", 32, "expected ':', found the end of the line"),
        ("%i0 = vm.global.load.i32 @none", 28, "expected the name of a global, found @none"),
        ("%i0 = vm.global.load.i32 none", 28, "expected '.rwdata[N]' or the name of a global, found 'none'"),
        ("%i0 = vm.call @none(%i0)", 17, "expected the name of a function or import, found @none"),
        ("%i0 = vm.call @other:0(%i0)", 17, "expected @m:N, a function of this module, found @other:0"),
        ("vm.br_table %i0 { default: ^a, 1: ^b }", 34, "expected '0', found '1'"),
        ("vm.call.variadic @f segments[x](%i0)", 32, "expected the size of a segment, found 'x'"),
        ("%i0 = vm.add.i32 %i0, %i1 extra", 29, "expected the end of the line, found 'extra'"),
        ("%i40000 = vm.const.i32.zero", 3, "expected a register of at most 32767, found %i40000"),
        ("%i0:2 = vm.const.i64.zero", 3, "expected '%i0:1', found '%i0:2'"),
        ("vm.func @g() -> () {", 3, "expected '}' to end @f first, found 'vm.func'"),
        ("%i0 = vm.const.i32.zero  //! lock 3", 32, "expected loc, string or bits, found 'lock'"),
        # The verifier's words.
        ("%i1 = vm.call @f(%r0)", 3, "expected a 32-bit register, found ref register 0"),
        ("vm.return", 3, "the function itself has 1 results (i), found 0 registers"),
        ("%r0 = vm.const.ref.rodata 3", 3, "rodata segment 3 is out of range: there are 0 rodata segments"),
        ("%i1:2 = vm.const.i64.zero", 3, "64-bit register 1 is not even"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_instruction(line: str, column: int, message: str) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        assemble(BODY.format(line), "a.vmasm")
    lines = str(caught.value).splitlines()
    assert any(line.startswith(f"a.vmasm:4:{column}: {message}") for line in lines), lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1:1: expected a line 'vm.module @name', found none in the text"),
        ("vm.type i32", "1:1: expected 'vm.module @name' before anything else, found 'vm.type'"),
        ("vm.module m", "1:11: expected the module's name such as @module, found 'm'"),
        ("vm.module @a\nvm.module @b", "2:11: expected one module only, after @a, found @b"),
        ("vm.module @a version -1", "1:22: expected the module's version from 0 to 4294967295, found -1"),
        ("vm.module @a\nfunc", "2:1: expected one of vm.module, vm.type,"),
        ("vm.module @a\nvm.type", "2:8: expected a type such as i32 or !vm.buffer, found the end of the line"),
        ("vm.module @a\nvm.type i32\nvm.type i32", "3:9: expected a name that no other type has, found 'i32'"),
        ("vm.module @a\nvm.import @b.c", "2:15: expected 'cconv', found the end of the line"),
        ('vm.module @a\nvm.import @b.c cconv "0x_v"', "2:1: expected a calling convention such as 0iI_r, found calling convention '0x_v' has the unknown type"),
        ("vm.module @a\nvm.rodata[1] = 00", "2:11: expected segment 0, as they are in order, found 1"),
        ("vm.module @a\nvm.rodata[0] = 0", "2:17: expected an even number of hexadecimal digits, found 1"),
        ("vm.module @a\nvm.rodata[0] = 0g", "2:17: expected the end of the line, found 'g'"),
        ("vm.module @a\nvm.global.i32 @g = 1 : i32", "2:20: expected 0, as programs set other values in @__init"),
        ("vm.module @a\nvm.global.i32 @g = 0 : i64", "2:24: expected 'i32', found 'i64'"),
        ("vm.module @a\nvm.export @f", "2:11: expected the name of a function, found @f"),
        ("vm.module @a\nvm.func @f() -> () {", "2:9: expected '}' after the last instruction, found the end of the text"),
        ("vm.module @a\nvm.func @f() -> () {\n}", "2:9: expected an instruction, found none in the function"),
        ("vm.module @a\nvm.func @f(%i1: i32) -> () {\n  vm.return\n}", "2:12: expected '%i0', as arguments are in the first"),
        ("vm.module @a\nvm.func @f(%i0: f16) -> () {\n  vm.return\n}", "2:17: expected i32, i64, f32, f64 or a type with '!'"),
        ("vm.module @a\nvm.func @f() {\n  vm.return\n}", "2:14: expected '->', found '{'"),
        ("vm.module @a\nvm.func @f() -> () {\n^a:\n^a:\n  vm.return\n}", "4:1: expected a label that no other block"),
        ("vm.module @a\nvm.func @f() -> () {\n^a:\n  vm.br ^b\n^b:\n%i0 = vm.const.i32.zero\n}", "6:1: "),
        ("vm.module @a\n//! attribute", '2:5: expected one of attr, requires, depends, state, rwdata, bytecode, complete'),
        ('vm.module @a\n//! attr "x" "\\q"', "2:14: expected the attribute's value in quotes, found an escape"),
        ('vm.module @a\n//! attr "x" "\\ud800"', "2:14: expected the attribute's value in quotes, found half of a"),
        ("vm.module @a\n//! requires MAGIC", "2:14: expected one of EXT_F32, EXT_F64, YIELD, UNWIND, none, found 'MAGIC'"),
        ("vm.module @a\n//! bytecode 99999999", "1:1: expected bytecode of 0 bytes or slightly more, found 99999999"),
        ("vm.module @a\nvm.func @f() -> () {\n//! at 0x7FFFFFFF 4\nvm.return\n}", "2:1: expected at least 4 bytes, near"),
        ("vm.module @a\nvm.func @f() -> () {\n//! at 0 1\nvm.return\n}", "2:1: expected at least 4 bytes, near"),
        ("vm.module @a\n//! location line 3", "2:14: expected one of file, call, fused, name, none, found 'line'"),
        ('vm.module @a\n//! debug "x" of 7', "2:1: expected an ordinal below 0, the number of functions, found 7"),
        ("vm.module @a\nvm.type \ud800", "2:9: expected text, found half of a UTF-16 surrogate pair"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_module(text: str, message: str) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        assemble(text, "a.vmasm")
    assert any(message in line for line in str(caught.value).splitlines()), caught.value.message


def test_many_mistakes_at_once() -> None:
    body = "\n".join(f"  vm.nonsense{n}" for n in range(50))
    with pytest.raises(errors.InvalidArgument) as caught:
        assemble(f"vm.module @m\nvm.func @f() -> () {{\n{body}\n  vm.return\n}}\nvm.oops\n", "a.vmasm")
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines[:20]] == [f"a.vmasm:{n}:3" for n in range(3, 23)]
    assert lines[20:] == ["a.vmasm: 31 more mistakes"]


def test_what_is_no_program_at_all() -> None:
    started = time.process_time()
    with pytest.raises(errors.InvalidArgument, match=r"a\.vmasm: at least 80 more mistakes$"):
        assemble("vm.module @m\nvm.func @f() -> () {\n" + "some text\n" * 200_000, "a.vmasm")
    assert time.process_time() - started < 3


def refused(text: str) -> str | None:
    """Why a text is refused, None if it is not."""
    try:
        writer.write(assemble(text))
    except errors.InvalidArgument as error:
        return str(error)
    return None


PIECES = ["", " ", ",", "(", ")", "[", "]", "{", "}", "%", "@", "^", "=", "->", ":", '"', "//!", "//", "#", "!", "vm.", "%i0",
          "%r0:1", "0x", "-1", "4294967296", "9" * 30, "nan", "type[9]", "func[9]", "import[0]", "\\u0000", "\r", "\x00", "é",
          "//! loc 1", '//! string "\\udc80"', "//! bits 00000000", "//! registers 1 1", "//! complete"]  # fmt: skip


@given(data=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_text_is_refused_or_read(data: st.DataObject, stock_module: Callable[[str], bytes]) -> None:
    module = definition.read(stock_module("counter-vulkan"))
    texts = [(PROGRAMS / "dialect.vmasm").read_text(), disassembler.disassemble(module, lossless=True)]
    lines = data.draw(st.sampled_from(texts)).split("\n")
    for _ in range(data.draw(st.integers(1, 4))):
        number = data.draw(st.integers(0, len(lines) - 1))
        line = lines[number]
        at = data.draw(st.integers(0, min(len(line), 200)))
        cut = data.draw(st.integers(0, 3))
        lines[number] = line[:at] + data.draw(st.sampled_from(PIECES)) + line[at + cut :]
        if data.draw(st.booleans()):
            lines.insert(number, data.draw(st.sampled_from(lines)))
    started = time.process_time()
    message = refused("\n".join(lines))
    assert message is None or re.match(r"<text>:(\d+:\d+)?", message), message
    assert time.process_time() - started < 5


def test_long_lines_take_no_long_time() -> None:
    started = time.process_time()
    for text in (
        "(" * 100_000,
        '"' * 100_001,
        "a/" * 100_000,
        '//! attr "' + "\\" * 100_000,
        "%i0 = " * 20_000,
        "@" * 100_000,
    ):
        for line in (text, "vm.func " + text, "  vm.return " + text, "vm.type " + text):
            with pytest.raises(errors.InvalidArgument):
                assemble(BODY.format("vm.oops") + line)
            with pytest.raises(errors.InvalidArgument):
                assemble(BODY.format(line))
    arguments = ", ".join(f"%r{n}: !vm.ref<?>" for n in range(16000))
    assemble(HEAD + f"vm.func @f({arguments}) -> () {{\n  vm.return\n}}\n")
    assert time.process_time() - started < 10


def test_registers_are_read() -> None:
    module = assemble(BODY.format("%i30:31 = vm.const.i64.zero\n  %r9 = vm.const.ref.zero"))
    ops = verifier.verify(module)[0].blocks[0].ops
    assert [op.operands[0] for op in ops[:2]] == [Reg("i32", 30), Reg("ref", 9)]
    assert (module.functions[0].i32_registers, module.functions[0].ref_registers) == (32, 10)
