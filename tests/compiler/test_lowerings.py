"""What operations become, by what they compute in the virtual machine; the random programs have the others."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest

from halgpu import errors, vm
from halgpu.compiler.finish import finish


def run(body: str, *args: Any, results: str = "i32", parameters: str = "", before: str = "") -> Any:
    """Call a function of some body, whose results are %r or %r0, %r1 …"""
    types = [t.strip() for t in results.split(",")]
    names = ["%r"] if len(types) == 1 else [f"%r{number}" for number in range(len(types))]
    text = f"""{before}
util.func public @f({parameters}) -> ({results}) {{
{body}
  util.return {", ".join(names)} : {results}
}}
"""
    with vm.Context([vm.BytecodeModule.load(finish(text, "f.mlir").data)]) as context:
        return context.lookup("module.f")(*args)


TWO = "%a: f32, %b: f32"
UNARY = {
    "math.absf": np.abs, "math.ceil": np.ceil, "math.floor": np.floor, "math.trunc": np.trunc,
    "math.roundeven": np.rint, "math.sqrt": np.sqrt, "math.rsqrt": lambda x: 1 / np.sqrt(x), "math.exp": np.exp,
    "math.exp2": np.exp2, "math.expm1": np.expm1, "math.log": np.log, "math.log2": np.log2,
    "math.log10": np.log10, "math.log1p": np.log1p, "math.sin": np.sin, "math.cos": np.cos, "math.tanh": np.tanh,
    "math.atan": np.arctan, "math.erf": np.vectorize(math.erf), "arith.negf": np.negative,
    "math.round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}  # fmt: skip
BINARY = {
    "arith.addf": np.add, "arith.subf": np.subtract, "arith.mulf": np.multiply, "arith.divf": np.divide,
    "math.powf": np.power, "math.atan2": np.arctan2,
}  # fmt: skip


@pytest.mark.parametrize("type_", ["f32", "f64"])
def test_functions_of_one_float(type_: str) -> None:
    body = "\n".join(f"  %r{n} = {name} %a : {type_}" for n, name in enumerate(UNARY))
    results = ", ".join([type_] * len(UNARY))
    for value in (-2.5, -0.25, 0.5, 3.75):
        found = run(body, value, results=results, parameters=f"%a: {type_}")
        with np.errstate(all="ignore"):
            expected = [function(value) for function in UNARY.values()]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_functions_of_two_floats() -> None:
    body = "\n".join(f"  %r{n} = {name} %a, %b : f32" for n, name in enumerate(BINARY))
    found = run(body, 2.5, 3.0, results=", ".join(["f32"] * len(BINARY)), parameters=TWO)
    np.testing.assert_allclose(found, [function(2.5, 3.0) for function in BINARY.values()], rtol=1e-6)


def test_fused_multiply_add() -> None:
    assert run("  %r = math.fma %a, %b, %a : f32", 2.0, 3.0, results="f32", parameters=TWO) == 8.0


PREDICATES = {
    "false": lambda a, b: False, "oeq": lambda a, b: a == b, "ogt": lambda a, b: a > b,
    "oge": lambda a, b: a >= b, "olt": lambda a, b: a < b, "ole": lambda a, b: a <= b,
    "one": lambda a, b: a < b or a > b, "ord": lambda a, b: a == a and b == b,
    "ueq": lambda a, b: not (a < b or a > b), "ugt": lambda a, b: not a <= b, "uge": lambda a, b: not a < b,
    "ult": lambda a, b: not a >= b, "ule": lambda a, b: not a > b, "une": lambda a, b: a != b,
    "uno": lambda a, b: a != a or b != b, "true": lambda a, b: True,
}  # fmt: skip


def test_comparisons_of_floats() -> None:
    values = (1.0, 2.0, math.nan)
    body = "\n".join(f"  %r{n} = arith.cmpf {name}, %a, %b : f32" for n, name in enumerate(PREDICATES))
    for a in values:
        for b in values:
            found = run(body, a, b, results=", ".join(["i1"] * len(PREDICATES)), parameters=TWO)
            expected = {name: int(compare(a, b)) for name, compare in PREDICATES.items()}
            assert dict(zip(PREDICATES, found, strict=True)) == expected, (a, b)


def test_conversions_of_floats() -> None:
    body = """  %r0 = arith.fptosi %a : f32 to i32
  %r1 = arith.fptosi %a : f32 to i8
  %r2 = arith.sitofp %b : i8 to f32
  %r3 = arith.uitofp %b : i8 to f32
  %w = arith.extf %a : f32 to f64
  %r4 = arith.truncf %w : f64 to f32
  %r5 = arith.bitcast %a : f32 to i32"""
    found = run(body, -2.75, -1, results="i32, i8, f32, f32, f32, i32", parameters="%a: f32, %b: i8")
    assert found == (-2, -2, -1.0, 255.0, -2.75, np.float32(-2.75).view(np.int32))


@pytest.mark.parametrize(("flag", "expected"), [(0, 10), (1, 11), (5, 15), (2, 99), (-1, 99)])
def test_switches(flag: int, expected: int) -> None:
    body = """  %c10 = arith.constant 10 : i32
  cf.switch %a : i32, [
    default: ^other,
    0: ^rest(%c10 : i32),
    1: ^one(%c10 : i32),
    5: ^five(%c10 : i32)
  ]
^one(%x: i32):
  %y = arith.addi %x, %a : i32
  cf.br ^rest(%y : i32)
^five(%z: i32):
  %w = arith.addi %z, %a : i32
  cf.br ^rest(%w : i32)
^other:
  %c99 = arith.constant 99 : i32
  cf.br ^rest(%c99 : i32)
^rest(%r: i32):"""
    assert run(body, flag, parameters="%a: i32") == expected
    index = "  %i = arith.index_cast %a : i32 to index\n  %c = arith.constant 7 : i32\n  %d = arith.constant 9 : i32\n"
    text = f"{index}  %r = util.switch i32 from [%c, %a] at %i else %d : i32"
    assert run(text, flag, parameters="%a: i32") == {0: 7, 1: 1}.get(flag, 9)


def test_utilities() -> None:
    body = """  %c16 = arith.constant 16 : index
  %r0 = util.align %a, %c16 : index
  %r1 = util.range.min %a, %c16, %b : index
  %r2 = util.range.max %a, %c16, %b : index
  %r3 = util.sizeof f32
  %r4 = util.optimization_barrier %a : index
  %r5 = util.unfoldable_constant 42 : i32"""
    found = run(
        body, 17, -3, results="index, index, index, index, index, i32", parameters="%a: index, %b: index"
    )
    assert found == (32, 16, -3, 4, 17, 42)


def test_references() -> None:
    body = """  %c4 = arith.constant 4 : index
  %x = util.buffer.alloc uninitialized : !util.buffer{%c4}
  %y = util.buffer.alloc uninitialized : !util.buffer{%c4}
  %null = util.null : !util.buffer
  %z = arith.select %a, %x, %y : !util.buffer
  %r0 = util.cmp.eq %x, %z : !util.buffer
  %r1 = util.cmp.ne %y, %z : !util.buffer
  %r2 = util.cmp.eq %x, %null : !util.buffer"""
    for flag in (0, 1):
        assert run(body, flag, results="i1, i1, i1", parameters="%a: i1") == (flag, flag, 0)


def test_slices_and_hashes_and_sizes() -> None:
    body = """  %c0 = arith.constant 0 : index
  %c4 = arith.constant 4 : index
  %c8 = arith.constant 8 : index
  %data = util.buffer.constant : !util.buffer = dense<[1, 2, 3, 4]> : tensor<4xi32>
  %part = util.buffer.slice %data[%c8] : !util.buffer{%c8} -> !util.buffer{%c8}
  %r0 = util.buffer.size %part : !util.buffer
  %r1 = util.buffer.load %part[%c4 for %c4] : !util.buffer{%c8} -> i32
  %h0 = util.buffer.hash %data[%c8 for %c8] : !util.buffer{%c8} -> i64
  %h1 = util.buffer.hash %part[%c0 for %c8] : !util.buffer{%c8} -> i64
  %r2 = arith.cmpi eq, %h0, %h1 : i64"""
    assert run(body, results="index, i32, i1") == (8, 4, 1)


@pytest.mark.parametrize("type_", ["i1", "i4", "i8", "i16", "i24"])
def test_narrow_integers_wrap(type_: str) -> None:
    width = int(type_[1:])
    text = f"  %r = arith.muli %a, %a : {type_}\n"
    for value in (0, 1, 3, (1 << width) - 1):
        found = run(text, value, results=type_, parameters=f"%a: {type_}")
        assert (found - value * value) % (1 << width) == 0
        assert found in range(-(1 << (width - 1)), 1 << max(width - 1, 1))


def test_integer_functions() -> None:
    body = """  %r0 = math.absi %a : i8
  %r1 = math.ctlz %b : i8
  %r2 = math.ctlz %c : i64
  %r3 = arith.floordivsi %c, %d : i64"""
    found = run(
        body, -5, 16, 1, -3, results="i8, i8, i64, i64", parameters="%a: i8, %b: i8, %c: i64, %d: i64"
    )
    assert found == (5, 3, 63, -1)


def test_loops_and_conditions() -> None:
    body = """  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %zero = arith.constant 0 : i32
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%sum = %zero) -> (i32) {
    %k = arith.index_cast %i : index to i32
    %odd = arith.trunci %k : i32 to i1
    %next = scf.if %odd -> (i32) {
      %more = arith.addi %sum, %k : i32
      scf.yield %more : i32
    } else {
      scf.yield %sum : i32
    }
    scf.yield %next : i32
  }"""
    assert run(body, 10, parameters="%n: index") == 1 + 3 + 5 + 7 + 9


def test_assertions_and_places_out_of_reach() -> None:
    text = '  cf.assert %a, "asserted"\n  %r = arith.constant 1 : i32'
    assert run(text, 1, parameters="%a: i1") == 1
    with pytest.raises(errors.FailedPrecondition, match="asserted"):
        run(text, 0, parameters="%a: i1")
    with pytest.raises(errors.Unavailable, match="not here"):
        run('  util.unreachable "not here"\n^bb1(%r: i32):', parameters="")
    constant = (
        '  %s = arith.constant 7 : i32\n  util.status.check_ok %s, "always"\n  %r = arith.constant 1 : i32'
    )
    with pytest.raises(errors.PermissionDenied, match="always"):
        run(constant)


def test_a_function_of_another_module() -> None:
    class Other(vm.NativeModule):
        name = "other"

        @vm.export("twice", "0i_i")
        def twice(self, value: int) -> int:
            return 2 * value

    text = """util.func private @other.twice(%a: i32) -> i32
util.func public @f(%a: i32) -> i32 {
  %0 = util.call @other.twice(%a) : (i32) -> i32
  util.return %0 : i32
}
"""
    with vm.Context([Other(), vm.BytecodeModule.load(finish(text, "o.mlir").data)]) as context:
        assert context.lookup("module.f")(21) == 42


def test_what_a_device_answers() -> None:
    class Device(vm.NativeModule):
        name = "hal_inline"

        @vm.export("device.query.i64", "0rr_iI")
        def query(self, category: vm.Buffer, key: vm.Buffer) -> tuple[int, int]:
            return (1, 300) if bytes(key) == b"known" else (0, 0)

    text = """util.func public @f() -> (i1, i8, i32) {
  %ok, %value = hal_inline.device.query key("c" :: "known") : i1, i8
  %no, %default = hal_inline.device.query key("c" :: "other") : i1, i32 = 7 : i32
  util.return %ok, %value, %default : i1, i8, i32
}
"""
    with vm.Context([Device(), vm.BytecodeModule.load(finish(text, "d.mlir").data)]) as context:
        assert context.lookup("module.f")() == (1, 44, 7)


def test_executables_get_their_constants() -> None:
    loaded: list[bytes] = []

    class Kernels:
        pass

    class Loader(vm.NativeModule):
        name = "hal_loader"
        types: ClassVar[dict[str, type]] = {"hal.executable": Kernels}

        @vm.export("executable.load", "0rrr_r")
        def load(self, format: vm.Buffer, data: vm.Buffer, constants: vm.Buffer) -> Kernels:
            loaded.append(bytes(constants))
            return Kernels()

    text = """util.func public @f(%a: i32) -> !hal.executable {
  %c2 = arith.constant 2 : i32
  %data = util.buffer.constant : !util.buffer = "x"
  %0 = hal_loader.executable.load format("f") data(%data) constants([%a, %c2]) : !hal.executable
  util.return %0 : !hal.executable
}
"""
    with vm.Context([Loader(), vm.BytecodeModule.load(finish(text, "l.mlir").data)]) as context:
        context.lookup("module.f")(5)
    assert loaded == [np.array([5, 2], np.int32).tobytes()]
