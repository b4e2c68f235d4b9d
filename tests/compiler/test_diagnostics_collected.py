"""One run tells all that is wrong with a program, in the order of the text, and nothing that only follows from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halgpu import errors
from halgpu.cli import main
from halgpu.compiler import mlir
from halgpu.compiler.finish import finish

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

MANY = """module @m {
  util.global private mutable @count : i32
  util.global private @lost = : i32
  util.func public @syntax(%a: i32) -> i32 {
    %b = arith.addi %a %a : i32
    %c = arith.muli %b, %a : i32
    %d = arith.subi %c, %q : i32
    %e = mine.op %d : i32
    cf.br ^next(%e : i32)
  ^next(%z: i32):
    util.return %z : i64
  }
  util.func public @symbols() {
    util.call @syntax() : () -> ()
    util.call @missing() : () -> ()
    %0 = util.global.load @lost : i32
    util.return
  }
  util.func public @results(%a: i32) -> i64 {
    util.return %a : i32
  }
  util.func public @header(%a) -> i32 {
    util.return %a : i32
  }
  util.func public @unknown(%a: i32) -> i32 {
    %0 = "mine.op"(%a) : (i32) -> i32
    util.return %0 : i32
  }
  util.func public @order() -> i32 {
    %y = arith.addi %y, %y : i32
    util.return %y : i32
  }
  util.func public @sound() {
    util.return
  }
}
"""
EXPECTED = [
    r"3:31: error: attribute expected",
    r"5:24: error: Expected ','",
    r"7:5: error: there is no value %q",
    r"8:5: error: there is no operation 'mine.op'",
    r"11:17: error: operand is used with type i64",
    r"15:5: error: 'util.call': there is no function @missing",
    r"20:5: error: 'util.return': returns other types than the function's results",
    r"22:30: error: ",
    r"26:5: error: 'mine.op': there is no conversion to the virtual machine",
    r"30:5: error: 'arith.addi': uses a value that is not computed on every way to it",
]


def mistakes(text: str, *kernels: str) -> list[str]:
    """What finishing a program finds wrong, without the file's name."""
    try:
        finish(text, "m.mlir", kernels)
    except errors.InvalidArgument as problem:
        return [line.removeprefix("m.mlir:") for line in str(problem).splitlines()]
    return []


def test_all_kinds_are_told_in_order_and_no_file_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.mlir").write_text(MANY)
    assert main(["compile", "--from=hal", "m.mlir", "-o", "m.vmfb"]) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["m.mlir"]
    lines = err.removeprefix("halgpu: error: ").splitlines()
    assert len(lines) == len(EXPECTED), err
    for line, expected in zip(lines, EXPECTED, strict=True):
        assert re.match("m.mlir:" + expected, line), err


def test_opt_tells_them_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.mlir"
    path.write_text(MANY)
    assert main(["opt", str(path)]) == 1
    # All but what is known only when instructions are made.
    assert len(capfd.readouterr().err.splitlines()) == len(EXPECTED) - 1


@pytest.mark.parametrize("name", ["loaded_executable", "accumulate_static", "custom_kernel"])
def test_a_mistake_is_told_once(name: str) -> None:
    """An operation that does not exist, in the place of each, is all that is told."""
    lines = (EXAMPLES / f"{name}.mlir").read_text().splitlines()
    bodies = [n for n, line in enumerate(lines) if re.match(r"    +(%\S.* = )?[a-z_]+\.", line)]
    assert len(bodies) > 3
    for number in bodies:
        if lines[number].endswith("{"):
            continue
        wrong = re.sub(r"^( +(?:%[^=]* = )?)[a-z_.]+", r"\1mine.op", lines[number])
        found = mistakes("\n".join((*lines[:number], wrong, *lines[number + 1 :])))
        assert len(found) == 1, found
        assert re.match(rf"{number + 1}:\d+: error: there is no operation 'mine.op'", found[0])


F = "util.func public @f() {\n  util.return\n"
G = "util.func public @g(%a: i32) {\n  mine.op %a\n  util.return\n}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # A function that does not end holds what follows.
        (F + G, ["4:3: error: there is no operation", "7:1: error: expected an operation or '}'"]),
        # One whose first line is wrong is left out, whatever it holds.
        ("util.func public f() {\n  mine.op 1\n}\n" + G, ["1:18: error: ", "5:3: error: there is no operation"]),
        ('util.func public @f() {\n  "mine.op"( : () -> ()\n  util.return\n}\n' + G, ["2:14: ", "6:3: "]),
        # Operations of several lines end the function that holds them, as far as reading goes.
        (
            "util.func public @f(%c: i32) {\n  scf.if %c {\n    mine.op 1\n  }\n  mine.op 2\n  util.return\n}\n" + G,
            ["2:10: error: operand is used with type i1", "9:3: error: there is no operation"],
        ),
        # Nested in loops too, one that is alone on its line is left out.
        (
            "util.func public @f(%a: index) {\n  scf.for %i = %a to %a step %a {\n    %x = mine.op 1\n"
            "    %y = arith.addi %x, %x : index\n    mine.op 2\n  }\n  mine.op 3\n  util.return\n}\n",
            ["3:5: ", "5:5: ", "7:3: "],
        ),
        # Callers of what could not be read, and what reads it, are not to blame.
        (
            "util.global private @x : i0x\nutil.func public @f() -> i32 {\n  %0 = util.global.load @x : i32\n"
            "  util.return %0 : i32\n}\nutil.func public @h() -> i32 {\n  %0 = util.call @f() : () -> i32\n"
            "  util.return %0 : i32\n}\n" + G,
            ["1:26: |1:1: ", "11:3: "],
        ),
        # An initializer that is wrong leaves nothing to say of the order of the others.
        (
            "util.global private mutable @x : i32\nutil.global private mutable @y : i32\n"
            "util.initializer {\n  mine.op 1\n  util.return\n}\n"
            "util.initializer {\n  %0 = util.global.load @x : i32\n  util.global.store %0, @y : i32\n  util.return\n}\n"
            "util.initializer {\n  %0 = arith.constant 1 : i32\n  util.global.store %0, @x : i32\n  util.return\n}\n",
            ["4:3: "],
        ),
        # Signs that are none, strings that do not end, text behind the program.
        ('util.func public @f() {\n  mine.op \0\n  util.call @"x\n}\n' + G, ["2:3: |2:11: ", "6:3: "]),
        (G + "}\n", ["2:3: ", "5:1: error: expected an operation"]),
        ("#a = #b<\n" + G, ["1:9|2:1|5:1"]),
        ("", ["1:1: error: expected an operation"]),
    ],
)  # fmt: skip
def test_where_reading_goes_on(text: str, expected: list[str]) -> None:
    found = mistakes(text)
    assert len(found) == len(expected), found
    for line, pattern in zip(found, expected, strict=True):
        assert re.match(pattern, line), found


def test_many_mistakes_are_counted() -> None:
    text = "".join(f"util.func public @f{n}() {{\n  mine.op\n  util.return\n}}\n" for n in range(50))
    found = mistakes(text)
    assert len(found) == mlir.MAX_REPORTED + 1
    assert found[-1] == "… 30 more errors"


def test_mistakes_of_a_long_line_are_found_in_linear_time() -> None:
    assert len(mistakes(f"util.func public @f() {{ {'mine.op() ' * 20_000} }}")) == 1
