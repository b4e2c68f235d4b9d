"""Lists, strings, ranges, loops that test first, wide products, remainders: what they compute, and stock's word on both.

Stock iree-compile takes the same text from the same level, as far as it can: it has no wide products, and its remainders
are IEEE's where MLIR asks for C's. iree-dump-module reads what halgpu makes of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_lowerings import run

from halgpu import errors, vm
from halgpu.cli import main
from halgpu.compiler import mlir
from halgpu.compiler.finish import finish
from halgpu.lost_constants import operations

STATIC = (
    "--compile-from=hal", "--iree-execution-model=inline-static", "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=vmvx-inline",
)  # fmt: skip

WHILE = """  %limit = arith.constant 100 : i32
  %two = arith.constant 2 : i32
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %r0, %r1 = scf.while (%x = %a, %n = %zero) : (i32, i32) -> (i32, i32) {
    %more = arith.cmpi slt, %x, %limit : i32
    scf.condition(%more) %x, %n : i32, i32
  } do {
  ^bb0(%x: i32, %n: i32):
    %odd = arith.trunci %n : i32 to i1
    %y = scf.if %odd -> (i32) {
      %y = arith.addi %x, %one : i32
      scf.yield %y : i32
    } else {
      %y = arith.muli %x, %two : i32
      scf.yield %y : i32
    }
    %m = arith.addi %n, %one : i32
    scf.yield %y, %m : i32, i32
  }"""
LISTS = """  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c3 = arith.constant 3 : index
  %numbers = util.list.create %c3 : !util.list<i32>
  util.list.resize %numbers, %c3 : !util.list<i32>
  util.list.set %numbers[%c1], %a : !util.list<i32>
  %r0 = util.list.get %numbers[%c1] : !util.list<i32>
  %r1 = util.list.get %numbers[%c0] : !util.list<i32>
  %r2 = util.list.size %numbers : !util.list<i32>
  %b = arith.trunci %a : i32 to i8
  %f = arith.sitofp %a : i32 to f32
  %any = util.list.construct [%b : i8, %f : f32, %numbers : !util.list<i32>] : !util.list<?>
  %r3 = util.list.get %any[%c0] : !util.list<?> -> i8
  %r4 = util.list.get %any[%c1] : !util.list<?> -> f32
  %c2 = arith.constant 2 : index
  %again = util.list.get %any[%c2] : !util.list<?> -> !util.list<i32>
  util.list.set %again[%c0], %a : !util.list<i32>
  %r5 = util.list.get %numbers[%c0] : !util.list<i32>"""
STRINGS = """  %s = util.string.itoa %a : i32 -> !util.buffer
  %r = util.string.format "<{}|{}>{{é}}{}"(%s, %b, %a) : (!util.buffer, i64, i32) -> !util.buffer"""
NUMBERED = '  %r = util.string.format "{1}{0}{1}"(%a, %b) : (i32, i64) -> !util.buffer'


def test_loops_that_test_first() -> None:
    def expected(x: int) -> tuple[int, int]:
        n = 0
        while x < 100:
            x, n = (x + 1 if n % 2 else x * 2), n + 1
        return x, n

    for start in (1, 7, 100, 250):
        assert run(WHILE, start, parameters="%a: i32", results="i32, i32") == expected(start)


def test_loops_without_results() -> None:
    body = """  %c0 = arith.constant 0 : index
  %c4 = arith.constant 4 : index
  %one = arith.constant 1 : i32
  %b = util.buffer.alloc uninitialized : !util.buffer{%c4}
  util.buffer.store %a, %b[%c0 for %c4] : i32 -> !util.buffer{%c4}
  scf.while : () -> () {
    %x = util.buffer.load %b[%c0 for %c4] : !util.buffer{%c4} -> i32
    %y = arith.subi %x, %one : i32
    util.buffer.store %y, %b[%c0 for %c4] : i32 -> !util.buffer{%c4}
    %more = arith.cmpi sgt, %y, %one : i32
    scf.condition(%more)
  } do {
    scf.yield
  }
  %r = util.buffer.load %b[%c0 for %c4] : !util.buffer{%c4} -> i32"""
    assert run(body.replace("scf.while :", "scf.while () :"), 9, parameters="%a: i32") == 1


@pytest.mark.parametrize("type_", ["f32", "f64"])
def test_remainders_have_the_sign_of_the_dividend(type_: str) -> None:
    number = {"f32": np.float32, "f64": np.float64}[type_]
    values = [0.0, -0.0, 1.0, -1.0, 5.5, -5.5, 3.0, -3.0, 0.1, 1e-40, 1e30, math.inf, -math.inf, math.nan]
    body = f"  %r = arith.remf %a, %b : {type_}"
    text = f"util.func public @f(%a: {type_}, %b: {type_}) -> {type_} {{\n{body}\n  util.return %r : {type_}\n}}\n"
    with vm.Context([vm.BytecodeModule.load(finish(text, "r.mlir").data)]) as context:
        f = context.lookup("module.f")
        for a in map(number, values):
            for b in map(number, values):
                with np.errstate(all="ignore"):
                    expected = np.fmod(a, b)
                np.testing.assert_array_equal(number(f(float(a), float(b))), expected, err_msg=f"{a} {b}")
                if expected == 0:
                    assert math.copysign(1, f(float(a), float(b))) == math.copysign(1, a)


@pytest.mark.parametrize("width", [1, 8, 13, 32, 64])
def test_wide_sums_and_products(width: int) -> None:
    t = f"i{width}"
    body = f"""  %r0, %r1 = arith.addui_extended %a, %b : {t}, i1
  %r2, %r3 = arith.mului_extended %a, %b : {t}
  %r4, %r5 = arith.mulsi_extended %a, %b : {t}"""
    text = (
        f"util.func public @f(%a: {t}, %b: {t}) -> ({t}, i1, {t}, {t}, {t}, {t}) {{\n{body}\n"
        f"  util.return %r0, %r1, %r2, %r3, %r4, %r5 : {t}, i1, {t}, {t}, {t}, {t}\n}}\n"
    )
    mask, half = (1 << width) - 1, 1 << (width - 1)

    def signed(value: int) -> int:
        return (value + half) % (2 * half) - half

    given = {0, 1, mask, half, half - 1 if width > 1 else 0, mask // 3, (mask // 7) * 5}
    with vm.Context([vm.BytecodeModule.load(finish(text, "w.mlir").data)]) as context:
        f = context.lookup("module.f")
        for a in given:
            for b in given:
                found = [value & mask for value in f(signed(a), signed(b))]
                product, other = a * b, signed(a) * signed(b)
                expected = [a + b, (a + b) >> width, product, product >> width, other, other >> width]
                assert found == [value & mask for value in expected], (a, b)


def test_lists() -> None:
    found = run(LISTS, 300, parameters="%a: i32", results="i32, i32, index, i8, f32, i32")
    assert found == (300, 0, 3, 300 - 256, 300.0, 300)


def switch(type_: str, cases: dict[int, str]) -> str:
    """Lets %a decide which constant %r is; cases that are equal share a block."""
    listed = ",\n".join(f"    {number}: ^{name}" for number, name in cases.items())
    blocks = "".join(
        f"^{name}:\n  %c{name} = arith.constant {ord(name)} : i32\n  cf.br ^end(%c{name} : i32)\n"
        for name in sorted({*cases.values(), "z"})
    )
    return f"  cf.switch %a : {type_}, [\n    default: ^z,\n{listed}\n  ]\n{blocks}^end(%r: i32):"


TABLES = {
    "dense": {0: "a", 1: "b", 2: "c", 3: "a"},
    "holes": {5: "a", 7: "b", 8: "c", 13: "d"},
    "negative": {-3: "a", -1: "b", 0: "c", 2: "d"},
    "far": {-100: "a", 0: "b", 100: "c"},
}


@pytest.mark.parametrize("type_", ["i8", "i32", "i64"])
@pytest.mark.parametrize("name", TABLES)
def test_switches_as_tables(name: str, type_: str) -> None:
    cases = TABLES[name]
    text = f"util.func public @f(%a: {type_}) -> i32 {{\n{switch(type_, cases)}\n  util.return %r : i32\n}}\n"
    module = vm.BytecodeModule.load(finish(text, "t.mlir").data)
    names = [op.instruction.mnemonic for f in module.translation.functions for op in operations(f)]
    assert ("br_table" in names) is (name != "far")
    low, high = -(1 << (int(type_[1:]) - 1)), (1 << (int(type_[1:]) - 1)) - 1
    wraps = [(1 << 32) + number for number in (0, 1, 5)] if type_ == "i64" else []
    with vm.Context([module]) as context:
        for flag in (*range(-5, 16), low, low + 1, high, *(number for number in (-100, 100)), *wraps):
            assert chr(context.lookup("module.f")(flag)) == cases.get(flag, "z"), flag


def test_tables_release_what_only_some_ways_need(tmp_path: Path, iree_tool: Callable[..., Any]) -> None:
    """References: one needed on one way, one passed on two, one that is made before and not used on most."""
    text = """util.func public @f(%a: i32, %x: !util.buffer, %y: !util.buffer) -> (!util.buffer, index) {
  %c4 = arith.constant 4 : index
  %new = util.buffer.alloc uninitialized : !util.buffer{%c4}
  cf.switch %a : i32, [
    default: ^end(%x : !util.buffer),
    0: ^end(%y : !util.buffer),
    1: ^one,
    2: ^end(%new : !util.buffer),
    4: ^one
  ]
^one:
  %s = util.buffer.size %y : !util.buffer
  %t = util.buffer.alloc uninitialized : !util.buffer{%s}
  cf.br ^end(%t : !util.buffer)
^end(%r: !util.buffer):
  %n = util.buffer.size %r : !util.buffer
  util.return %r, %n : !util.buffer, index
}
"""
    data = finish(text, "t.mlir").data
    sizes = {0: 5, 1: 5, 2: 4, 3: 7, 4: 5, 5: 7, -1: 7}
    with vm.Context([vm.BytecodeModule.load(data)]) as context:
        for flag, size in sizes.items():
            x, y = vm.Buffer.create(7), vm.Buffer.create(5)
            assert context.lookup("module.f")(flag, x, y)[1] == size
    # What the passes print, stock reads and finishes the same.
    (tmp_path / "s.mlir").write_text(text)
    passes = "--pass-pipeline=convert-to-vm,discard-refs"
    assert main(["opt", passes, str(tmp_path / "s.mlir"), "-o", str(tmp_path / "vm.mlir")]) == 0
    assert "vm.br_table" in (tmp_path / "vm.mlir").read_text()
    assert main(["opt", str(tmp_path / "vm.mlir"), "-o", str(tmp_path / "again.mlir")]) == 0
    assert (tmp_path / "again.mlir").read_text() == (tmp_path / "vm.mlir").read_text()
    iree_tool(
        "iree-compile", "--compile-from=vm", str(tmp_path / "again.mlir"), "-o", str(tmp_path / "s.vmfb")
    )
    stock = (tmp_path / "s.vmfb").read_bytes()
    with vm.Context([vm.BytecodeModule.load(stock)]) as context:
        for flag, size in sizes.items():
            x, y = vm.Buffer.create(7), vm.Buffer.create(5)
            assert context.lookup("module.f")(flag, x, y)[1] == size


def test_places_that_lists_do_not_have() -> None:
    with pytest.raises(errors.OutOfRange):
        run(
            "  %l = util.list.create : !util.list<i32>\n  %r = util.list.get %l[%a] : !util.list<i32>",
            2,
            parameters="%a: index",
        )


@pytest.mark.parametrize(("a", "b"), [(0, 0), (7, 10), (-1, -1), (1 << 30, 1 << 62), (10, 100)])
def test_strings(a: int, b: int) -> None:
    parameters = "%a: i32, %b: i64"
    found = run(STRINGS, a, b, parameters=parameters, results="!util.buffer")
    a, b = a % (1 << 32), b % (1 << 64)
    assert bytes(found) == f"<{a}|{b}>{{é}}{a}".encode()
    assert bytes(run(NUMBERED, 5, 6, parameters=parameters, results="!util.buffer")) == b"656"


def test_digits_of_narrow_integers_and_texts_without_places() -> None:
    body = '  %r0 = util.string.itoa %a : i8 -> !util.buffer\n  %r1 = util.string.format "x{{"() : () -> !util.buffer'
    found = run(body, -2, parameters="%a: i8", results="!util.buffer, !util.buffer")
    assert list(map(bytes, found)) == [b"254", b"x{"]


def test_ranges_have_no_sign() -> None:
    body = """  %r0 = util.range.min %a, %b, %c : index
  %r1 = util.range.max %a, %b, %c : index
  %r2, %r3 = util.range.extents [%a for %b], [%b for %c] : index"""
    found = run(
        body, 9, 4, 7, parameters="%a: index, %b: index, %c: index", results="index, index, index, index"
    )
    assert found == (4, 9, 4, 12)
    assert run(
        body, 9, -4, 7, parameters="%a: index, %b: index, %c: index", results="index, index, index, index"
    )[:2] == (7, -4)


# Beside stock.

PROGRAMS = {
    "while": (WHILE, "%a: i32", "i32, i32", ["7"]),
    "lists": (LISTS, "%a: i32", "i32, i32, index, i8, f32, i32", ["300"]),
    "range": (
        "  %r0 = util.range.min %a, %b : index\n  %r1 = util.range.max %a, %b : index\n"
        "  %r2, %r3 = util.range.extents [%a for %b], [%b for %a] : index",
        "%a: index, %b: index", "index, index, index, index", ["9", "4"],
    ),
    "strings": (
        STRINGS.replace("%r =", "%s1 =") + "\n  %r0 = util.buffer.size %s1 : !util.buffer\n"
        "  %c7 = arith.constant 7 : index\n  %c1 = arith.constant 1 : index\n"
        "  %r1 = util.buffer.load %s1[%c7 for %c1] : !util.buffer{%r0} -> i8",
        "%a: i32, %b: i64", "index, i8", ["12345", "678"],
    ),
    "switch": (
        "  cf.switch %a : i32, [\n    default: ^end(%a : i32),\n    1: ^one,\n    2: ^one,\n"
        "    4: ^end(%b : i32)\n  ]\n^one:\n"
        "  cf.br ^end(%b : i32)\n^end(%r: i32):", "%a: i32, %b: i32", "i32", ["4", "8"],
    ),
}  # fmt: skip


def function(name: str) -> str:
    body, parameters, results, _ = PROGRAMS[name]
    count = results.count(",") + 1
    names = ", ".join(f"%r{n}" for n in range(count)) if count > 1 else "%r"
    return f"util.func public @{name}({parameters}) -> ({results}) {{\n{body}\n  util.return {names} : {results}\n}}\n"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory, iree_tool: Callable[..., Any]) -> Path:
    """A folder with all of these functions in a program, as text, and finished by stock and by halgpu."""
    folder = tmp_path_factory.mktemp("programs")
    text = "\n".join(map(function, PROGRAMS))
    (folder / "s.mlir").write_text(text)
    iree_tool("iree-compile", *STATIC, str(folder / "s.mlir"), "-o", str(folder / "stock.vmfb"))
    (folder / "ours.vmfb").write_bytes(finish(text, "s.mlir").data)
    return folder


@pytest.mark.parametrize("name", PROGRAMS)
def test_stock_computes_the_same(name: str, programs: Path, iree_tool: Callable[..., Any]) -> None:
    _, _, results, arguments = PROGRAMS[name]
    words = [f"--function={name}", *(f"--input={value}" for value in arguments)]
    found = [
        iree_tool("iree-run-module", f"--module={programs / path}", *words).stdout
        for path in ("stock.vmfb", "ours.vmfb")
    ]
    assert found[0] == found[1]
    assert found[0].count("result[") == results.count(",") + 1


def test_stock_reads_what_is_made_and_printed(programs: Path, iree_tool: Callable[..., Any]) -> None:
    assert "@strings" in iree_tool("iree-dump-module", str(programs / "ours.vmfb")).stdout
    source, printed = programs / "s.mlir", programs / "printed.mlir"
    printed.write_text(mlir.print_module(mlir.parse(source.read_text(), "s.mlir")))
    forms = [iree_tool("iree-opt", str(path)).stdout for path in (source, printed)]
    assert forms[0] == forms[1]


REFUSED = {
    "add16": ("arith.addf %a, %a : f16", "%a: f16", "f16", "the virtual machine does not compute with f16"),
    "bf16": (
        "arith.mulf %a, %a : bf16",
        "%a: bf16",
        "bf16",
        "the virtual machine does not compute with bf16",
    ),
    "ext16": ("arith.extf %a : f16 to f32", "%a: f16", "f32", "does not convert f16 to f32"),
    "trunc16": ("arith.truncf %a : f32 to bf16", "%a: f32", "bf16", "does not convert f32 to bf16"),
    "i128": ("arith.addi %a, %a : i128", "%a: i128", "i128", "no values of type i128"),
    "ctpop": ("math.ctpop %a : i32", "%a: i32", "i32", "no conversion to the virtual machine"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_stock_refuses_too(name: str, tmp_path: Path, iree_tool: Callable[..., Any]) -> None:
    line, parameter, result, message = REFUSED[name]
    text = (
        f"util.func public @f({parameter}) -> {result} {{\n  %r = {line}\n  util.return %r : {result}\n}}\n"
    )
    (tmp_path / "s.mlir").write_text(text)
    done = iree_tool(
        "iree-compile", *STATIC, str(tmp_path / "s.mlir"), "-o", str(tmp_path / "x"), check=False
    )
    assert done.returncode != 0
    with pytest.raises(errors.InvalidArgument, match=rf"s.mlir:[12]:\d+: error: .*{message}"):
        finish(text, "s.mlir")


def test_constants_of_16_bits_are_their_bits() -> None:
    """Stock refuses those; they go to buffers as they are."""
    body = """  %v = arith.constant 1.5 : f16
  %w = arith.constant -2.0 : bf16
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c4 = arith.constant 4 : index
  %r = util.buffer.alloc uninitialized : !util.buffer{%c4}
  util.buffer.store %v, %r[%c0 for %c2] : f16 -> !util.buffer{%c4}
  util.buffer.store %w, %r[%c2 for %c2] : bf16 -> !util.buffer{%c4}"""
    found = bytes(run(body, results="!util.buffer"))
    assert found == np.float16(1.5).tobytes() + b"\x00\xc0"


MISTAKES = {
    "both": ('util.string.format "{}{0}"(%a) : (i32) -> !util.buffer', "places with numbers or without"),
    "few": ('util.string.format "{}{}"(%a) : (i32) -> !util.buffer', "expected values for 2 places, found 1"),
    "many": ('util.string.format "{}"(%a, %a) : (i32, i32) -> !util.buffer', "a place for each value"),
    "open": ('util.string.format "{"(%a) : (i32) -> !util.buffer', "expected a place such as"),
    "element": (
        "util.list.construct [%a : i32] : !util.list<i64>",
        "expected an element of type i64, found i32",
    ),
    "get": ("util.list.get %l[%i] : !util.list<i32> -> i64", "expected an element of type i32, found i64"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    line, message = MISTAKES[name]
    text = (
        f"util.func public @f(%a: i32, %i: index, %l: !util.list<i32>) {{\n  %r = {line}\n  util.return\n}}\n"
    )
    with pytest.raises(errors.InvalidArgument, match=rf"m.mlir:2:3: error: 'util.*{message}"):
        finish(text, "m.mlir")
