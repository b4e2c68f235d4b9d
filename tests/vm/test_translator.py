"""The translation as a whole: real programs, the source that shows, frames, sharing, and what is freed when."""

from __future__ import annotations

import gc
import linecache
import math
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halgpu import errors, vm
from halgpu.vm import sources

SCALARS = """
func.func @collatz(%n: i64) -> i32 {
  %zero = arith.constant 0 : i32
  %one32 = arith.constant 1 : i32
  %one = arith.constant 1 : i64
  %two = arith.constant 2 : i64
  %three = arith.constant 3 : i64
  %r:2 = scf.while (%x = %n, %steps = %zero) : (i64, i32) -> (i64, i32) {
    %more = arith.cmpi sgt, %x, %one : i64
    scf.condition(%more) %x, %steps : i64, i32
  } do {
  ^bb0(%x: i64, %steps: i32):
    %bit = arith.remsi %x, %two : i64
    %odd = arith.cmpi eq, %bit, %one : i64
    %next = scf.if %odd -> i64 {
      %a = arith.muli %x, %three : i64
      %b = arith.addi %a, %one : i64
      scf.yield %b : i64
    } else {
      %a = arith.divsi %x, %two : i64
      scf.yield %a : i64
    }
    %s = arith.addi %steps, %one32 : i32
    scf.yield %next, %s : i64, i32
  }
  return %r#1 : i32
}
func.func @sum(%n: i32) -> i32 {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %zero32 = arith.constant 0 : i32
  %end = arith.index_cast %n : i32 to index
  %r = scf.for %i = %zero to %end step %one iter_args(%acc = %zero32) -> i32 {
    %inner = scf.for %j = %zero to %i step %one iter_args(%a = %acc) -> i32 {
      %j32 = arith.index_cast %j : index to i32
      %b = arith.addi %a, %j32 : i32
      scf.yield %b : i32
    }
    scf.yield %inner : i32
  }
  return %r : i32
}
func.func @horner(%x: f32) -> f32 {
  %a = arith.constant 0.1 : f32
  %b = arith.constant 2.5 : f32
  %m = arith.mulf %x, %a : f32
  %s = arith.addf %m, %b : f32
  %e = math.exp %s : f32
  return %e : f32
}
"""


@pytest.fixture(scope="module")
def scalars(compile_mlir: Callable[..., bytes]) -> bytes:
    return compile_mlir(SCALARS)


@pytest.fixture
def functions(scalars: bytes) -> vm.Context:
    return vm.Context([vm.BytecodeModule.load(scalars)])


def collatz(n: int) -> int:
    steps = 0
    while n > 1:
        n = n * 3 + 1 if n % 2 else n // 2
        steps += 1
    return steps


def test_a_stock_program_with_loops(functions: vm.Context) -> None:
    for n in (1, 2, 7, 27, 97, 871):
        assert functions.lookup("collatz")(n) == collatz(n)
    for n in (0, 1, 2, 17):
        assert functions.lookup("sum")(n) == sum(j for i in range(n) for j in range(i))


def test_a_stock_program_against_iree(
    functions: vm.Context, scalars: bytes, tmp_path: Path, iree_tool: Callable[..., Any]
) -> None:
    path = tmp_path / "scalars.vmfb"
    path.write_bytes(scalars)
    for name, value in [("collatz", 27), ("sum", 30), ("horner", 0.3), ("horner", -7.25)]:
        done = iree_tool("iree-run-module", f"--module={path}", f"--function={name}", f"--input={value}")
        expected = float(done.stdout.split("=")[-1])
        found = functions.lookup(name)(value)
        assert math.isclose(found, expected, rel_tol=1e-5), (name, found, done.stdout)


def test_locations_of_a_stock_program(scalars: bytes) -> None:
    module = vm.BytecodeModule.load(scalars)
    # The debug database of iree-compile 3.13.0 holds the function that comes last only.
    source = module.translation.source(module.ordinals["horner"])
    frames = {source.frame(number) for number in range(1, len(source.lines) + 1)}
    assert any("module.mlir:" in frame for frame in frames), frames


# Errors


def dividing(program: Any) -> Any:
    """main calls middle, which calls leaf, which divides %i0 by %i1."""
    program.with_lines = True
    leaf = program.function("0ii_i", [("AddI32", 0, 1, 2), ("DivI32S", 0, 1, 0), ("Return", [0])], "leaf")
    middle = program.function("0ii_i", [("Call", leaf, [0, 1], [0]), ("Return", [0])], "middle")
    program.function("0ii_i", [("Call", middle, [0, 1], [0]), ("Return", [0])])
    return program


FRAMES = ("test.leaf (test.mlir:2:1)", "test.middle (test.mlir:1:1)", "test.main (test.mlir:1:1)")


def test_errors_carry_the_stack(program: Any) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        dividing(program).run(1, 0)
    assert caught.value.frames == FRAMES
    assert str(caught.value) == f"integer division by zero, in {FRAMES[0]}"


def test_without_a_debug_database_frames_have_offsets(program: Any) -> None:
    dividing(program).with_lines = False
    with pytest.raises(errors.InvalidArgument) as caught:
        program.run(1, 0)
    assert caught.value.frames[0] == "test.leaf (bytecode 0x0008)"


def test_tracebacks_show_the_generated_source(program: Any) -> None:
    context = dividing(program).context()
    with pytest.raises(errors.InvalidArgument) as caught:
        context.lookup("main")(1, 0)
    text = "".join(traceback.format_exception(caught.value))
    assert "i0 = div_s(i0, i1)  # 0x0008 div.i32.s" in text
    assert "test.leaf>" in text


def test_pdb_can_list_the_source(program: Any) -> None:
    context = dividing(program).context()
    code = context.lookup("leaf")._target.__code__
    assert linecache.getline(code.co_filename, 1) == "def fn0(i0, i1):\n"
    linecache.checkcache()
    assert linecache.getline(code.co_filename, 1) == "def fn0(i0, i1):\n"


class Trouble(vm.NativeModule):
    name = "trouble"

    def __init__(self, action: Callable[[], Any]) -> None:
        self.action = action

    @vm.export("make", "0_i")
    def make(self) -> Any:
        return self.action()


def troubled(program: Any, action: Callable[[], Any]) -> vm.Function:
    program.with_lines = True
    make = program.imported("trouble.make", "0_i")
    program.function("0_i", [("Call", make, [], [0]), ("Return", [0])])
    function: vm.Function = program.context(Trouble(action)).lookup("main")
    return function


def raising(error: BaseException) -> Callable[[], Any]:
    def action() -> Any:
        raise error

    return action


def test_native_errors_keep_their_class_and_message(program: Any) -> None:
    error = errors.Unavailable("device lost")
    with pytest.raises(errors.Unavailable) as caught:
        troubled(program, raising(error))()
    assert caught.value is error
    assert str(error) == "device lost"
    assert error.frames == ("test.main (test.mlir:1:1)",)


def test_foreign_errors_become_internal(program: Any) -> None:
    error = ValueError("broken")
    with pytest.raises(
        errors.Internal, match=r"test\.main: a native function raised ValueError: broken"
    ) as caught:
        troubled(program, raising(error))()
    assert caught.value.__cause__ is error
    assert caught.value.frames == ("test.main (test.mlir:1:1)",)


def test_memory_errors_are_resource_exhausted(program: Any) -> None:
    with pytest.raises(errors.ResourceExhausted, match="out of host memory"):
        troubled(program, raising(MemoryError()))()


def test_interrupts_pass(program: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        troubled(program, raising(KeyboardInterrupt()))()


@pytest.mark.parametrize("value", [None, "1", 1.5, 1 << 31, -(1 << 31) - 1])
def test_wrong_results_of_native_functions(program: Any, value: Any) -> None:
    with pytest.raises(errors.Internal, match="a native function returned"):
        troubled(program, lambda: value)()


def test_frames_of_a_program_called_by_a_native_function(new_program: Callable[[], Any]) -> None:
    inner = dividing(new_program()).context().lookup("main")
    outer = new_program()
    outer.name = "outer"
    with pytest.raises(errors.InvalidArgument) as caught:
        troubled(outer, lambda: inner(1, 0))()
    assert caught.value.frames == (*FRAMES, "outer.main (test.mlir:1:1)")
    assert str(caught.value) == f"integer division by zero, in {FRAMES[0]}"


def test_endless_recursion(program: Any) -> None:
    program.function("0i_i", [("Call", 0, [0], [0]), ("Return", [0])])
    with pytest.raises(errors.ResourceExhausted, match="nested too deeply"):
        program.run(1)


def test_recursion_that_ends(program: Any) -> None:
    label = program.label
    body = [
        label("a"), ("CondBranch", 0, "more", [], "end", []),
        label("more"), ("ConstI32", -1, 1), ("AddI32", 0, 1, 1), ("Call", 0, [1], [2]), ("AddI32", 2, 0, 2),
        ("Return", [2]),
        label("end"), ("Return", [0]),
    ]  # fmt: skip
    program.function("0i_i", body)
    assert program.run(300) == sum(range(301))


# Names and lifetimes


def test_locals_and_functions_do_not_share_names(program: Any) -> None:
    """Register %i0 as f32 beside a call of function 0."""
    inner = program.function("0f_f", [("AddF32", 0, 0, 0), ("Return", [0])], "inner")
    program.function("0f_f", [("Call", inner, [0], [0]), ("Call", inner, [0], [0]), ("Return", [0])])
    assert program.run(1.5) == 6.0


def test_contexts_share_the_translation(program: Any) -> None:
    program.function("0i_i", [("NotI32", 0, 0), ("Return", [0])])
    module = program.module()
    one, two = (vm.Context([module]).lookup("main") for _ in range(2))
    assert one._target.__code__ is two._target.__code__
    assert one._target is not two._target


def test_functions_are_translated_when_needed(program: Any) -> None:
    program.function("0i_i", [("NotI32", 0, 0), ("Return", [0])], "used")
    program.function("0i_i", [("NotI32", 0, 0), ("Return", [0])], "unused")
    module = program.module()
    context = vm.Context([module])
    assert not module.translation._sources
    context.lookup("used")(1)
    assert list(module.translation._sources) == [0]


def test_a_dropped_module_leaves_nothing(program: Any) -> None:
    program.function("0i_i", [("NotI32", 0, 0), ("Return", [0])])
    module = program.module()
    filename = module.translation.source(0).filename
    assert filename in linecache.cache
    assert sources.source_of(filename) is not None
    del module
    gc.collect()
    assert filename not in linecache.cache
    assert sources.source_of(filename) is None


def test_names_may_be_anything(program: Any) -> None:
    program.name = "a\0b\nc"
    program.function("0ii_i", [("DivI32S", 0, 1, 0), ("Return", [0])], "x\r\u2028'y")
    with pytest.raises(errors.InvalidArgument, match="in a\ufffdb\ufffdc\\.x\ufffd\ufffd'y "):
        program.run(1, 0, name="x\r\u2028'y")


def test_the_source_is_readable(program: Any) -> None:
    program.function("0ri_i", [("BufferLoadI32", program.r(0), 2, 4), ("AddI32", 0, 4, 0), ("Return", [0])])
    assert program.module().python_source("main").splitlines() == [
        "def fn0(r0, i0):",
        "    r1 = r2 = r3 = r4 = r5 = r6 = r7 = r8 = None",
        "    l2 = 0",
        "    i4 = load(r0, 'i', l2)  # 0x0001 buffer.load.i32",
        "    i0 = i0 + i4  # 0x0008 add.i32",
        "    if not -2147483648 <= i0 <= 2147483647: i0 = wrap32(i0)",
        "    return i0  # 0x000f return",
    ]


def test_programs_leave_nothing_at_interpreter_exit() -> None:
    script = """
import sys
from halgpu import vm
class Sample(vm.NativeModule):
    name = "sample"
    def detach(self): print("detached")
context = vm.Context([Sample()])
sys.modules["keep"] = context
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "detached\n", "")
