"""Constants of every kind survive, buffers stay apart, and a program that lost a weight is never written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import pytest

import halgpu
from halgpu import errors, vm
from halgpu.compiler import weights
from halgpu.vm import assembler, writer


@pytest.fixture(scope="module")
def kinds() -> halgpu.Module:
    return halgpu.load(halgpu.compile(corpus.KINDS), "opencl")


@pytest.mark.parametrize(("seed", "element"), list(enumerate(corpus.DTYPES)))
def test_constants_of_every_type(kinds: halgpu.Module, seed: int, element: str) -> None:
    dtype = corpus.DTYPES[element]
    dense = corpus.values(element, seed)
    one = np.full(corpus.SIZE, True if element == "i1" else 1.5 if "f" in element else 3, dtype)
    np.testing.assert_array_equal(np.asarray(kinds[f"dense_{element}"]()).astype(dtype), dense)
    np.testing.assert_array_equal(np.asarray(kinds[f"splat_{element}"]()).astype(dtype), one)
    if element not in corpus.ADDED:
        return
    other = corpus.values(element, seed + 100)
    x = corpus.values(element, seed + 200)
    total = x ^ dense ^ other if element == "i1" else x + dense + other
    np.testing.assert_array_equal(np.asarray(kinds[f"add_{element}"](x)).astype(dtype), total)


@pytest.fixture(scope="module")
def state() -> halgpu.Module:
    return halgpu.load(halgpu.compile(corpus.STATE), "opencl")


def run_stock(iree_tool: Callable[..., Any], module: Path, name: str, *arguments: Any) -> list[Any]:
    """What a function returns under stock iree-run-module."""
    for number, argument in enumerate(arguments):
        np.save(module.with_name(f"in{number}.npy"), argument)
    count = 1 if name == "initialized" else 2
    results = [module.with_name(f"out{number}.npy") for number in range(count)]
    iree_tool(
        "iree-run-module", "--device=local-sync", f"--module={module}", f"--function={name}",
        *(f"--input=@{module.with_name(f'in{number}.npy')}" for number in range(len(arguments))),
        *(f"--output=@{path}" for path in results),
    )  # fmt: skip
    return [np.load(path) for path in results]


Results = dict[str, list[list[Any]]]


def stock_results(iree_tool: Callable[..., Any], module: Path) -> Results:
    """Of all calls, each on a fresh state."""
    return {
        name: [run_stock(iree_tool, module, name, *arguments) for arguments in calls]
        for name, calls in corpus.STATE_CALLS.items()
    }


@pytest.fixture(scope="module")
def expected(
    compile_mlir: Callable[..., bytes],
    iree_tool: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Results:
    """Results with the full HAL, which has none of the faults."""
    module = tmp_path_factory.mktemp("full") / "full.vmfb"
    module.write_bytes(compile_mlir(corpus.STATE, "llvm-cpu", model="async-internal"))
    return stock_results(iree_tool, module)


def check(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(one), other)


@pytest.mark.parametrize("name", list(corpus.STATE_CALLS))
def test_results_are_those_of_the_full_hal(state: halgpu.Module, expected: Results, name: str) -> None:
    for arguments, wanted in zip(corpus.STATE_CALLS[name], expected[name], strict=True):
        found = state.new_context()[name](*arguments)
        check(found if isinstance(found, tuple) else (found,), wanted)


@pytest.mark.parametrize("target", ["llvm-cpu", "vmvx-inline"])
def test_host_programs_under_the_stock_runtime(
    target: str, expected: Results, iree_tool: Callable[..., Any], tmp_path: Path
) -> None:
    module = tmp_path / "host.vmfb"
    module.write_bytes(halgpu.compile(corpus.STATE, target=target))
    found = stock_results(iree_tool, module)
    for name, calls in expected.items():
        for one, wanted in zip(found[name], calls, strict=True):
            check(one, wanted)


def test_constants_that_host_code_reads(state: halgpu.Module) -> None:
    third = corpus.values("i32", 3)
    assert [state.element(index) for index in (0, 300)] == [third[0], third[300]]
    tensor, number = state.barrier()
    assert number == 5
    np.testing.assert_array_equal(np.asarray(tensor), corpus.values("i32", 4))


def test_state_starts_at_its_initial_value_and_accumulates(state: halgpu.Module) -> None:
    module = state.new_context()
    x = corpus.VECTOR.astype(np.int32)
    once = x + corpus.values("i32", 1)
    for calls in (1, 2, 3):
        total, counts = module.accumulate(x)
        np.testing.assert_array_equal(np.asarray(total), corpus.values("i32", 2) + calls * once)
        np.testing.assert_array_equal(np.asarray(counts), calls * x)


def test_constants_in_every_place() -> None:
    module = halgpu.load(halgpu.compile(corpus.PLACES), "opencl")
    fifth, sixth, *pairs = (corpus.values("i32", seed) for seed in range(5, 11))
    np.testing.assert_array_equal(np.asarray(module.part(296)), fifth[296:])
    sixth[7:11] = range(4)
    np.testing.assert_array_equal(np.asarray(module.update(np.arange(4, dtype=np.int32), 7)), sixth)
    np.testing.assert_array_equal(np.asarray(module.choose(1)), pairs[0] + pairs[1])
    np.testing.assert_array_equal(np.asarray(module.choose(0)), pairs[1])
    np.testing.assert_array_equal(np.asarray(module.select(1)), pairs[2])
    np.testing.assert_array_equal(np.asarray(module.select(0)), pairs[3])
    assert np.asarray(module.nothing()).shape == (0, 3)
    x = np.arange(192, dtype=np.float32).reshape(3, 64) / 8
    np.testing.assert_array_equal(
        np.asarray(module.weights(x)), x @ corpus.WEIGHTS
    )  # exact: few, small binary fractions


TWO_RESULTS = """
func.func @two(%x: tensor<8xf32>) -> (tensor<8xf32>, tensor<8xf32>) {
  %0 = math.absf %x : tensor<8xf32>
  %1 = util.optimization_barrier %0 : tensor<8xf32>
  %2 = arith.addf %1, %x : tensor<8xf32>
  return %0, %2 : tensor<8xf32>, tensor<8xf32>
}
"""


def test_the_fault_of_the_stock_pipeline_that_makes_buffers_one(compile_mlir: Callable[..., bytes]) -> None:
    """When this fails, iree-compile keeps them apart by itself, and repair_stream may drop a repair."""
    x = np.arange(8, dtype=np.float32) - 4
    first, second = halgpu.load(compile_mlir(TWO_RESULTS), "opencl").two(x)
    assert np.asarray(first).tolist() == np.asarray(second).tolist()
    first, second = halgpu.load(halgpu.compile(TWO_RESULTS), "opencl").two(x)
    np.testing.assert_array_equal(np.asarray(first), np.abs(x))
    np.testing.assert_array_equal(np.asarray(second), np.abs(x) + x)


LOST = f"""
func.func @get() -> tensor<64xi32> {{
  %w = arith.constant dense<[{", ".join(map(str, range(64)))}]> : tensor<64xi32>
  return %w : tensor<64xi32>
}}
func.func @double(%x: tensor<4xi32>) -> tensor<4xi32> {{
  %0 = arith.addi %x, %x : tensor<4xi32>
  return %0 : tensor<4xi32>
}}
"""


def test_a_program_that_lost_a_weight_is_refused(compile_mlir: Callable[..., bytes]) -> None:
    with pytest.raises(errors.DataLoss, match=r"module\.get would load what nothing stores") as caught:
        weights.check(compile_mlir(LOST))
    assert "double" not in str(caught.value)
    data = halgpu.compile(LOST)
    weights.check(data)
    assert weights.unstored(vm.BytecodeModule.load(data)) == []


ACCESS = """
vm.module @m
vm.type !vm.buffer
vm.type i64
vm.export @f
vm.func @f(%r0: !vm.ref<?>, %i0:1: i64) -> () {
^bb0:
  STORE
  LOAD
  vm.return
}
"""


@pytest.mark.parametrize(
    ("load", "store", "lost"),
    [
        ("%r1 = vm.global.load.ref .refs[1] : !vm.buffer", "", [("m.f", "ref 1")]),
        ("%r1 = vm.global.load.ref .refs[1] : !vm.buffer", "vm.global.store.ref %r0, .refs[0] : !vm.buffer", [("m.f", "ref 1")]),
        ("%r1 = vm.global.load.ref .refs[1] : !vm.buffer", "vm.global.store.ref %r0, .refs[1] : !vm.buffer", []),
        ("%r1 = vm.global.load.ref .refs[1] : !vm.buffer", "vm.global.store.indirect.ref %r0, .refs[%i0] : !vm.buffer", []),
        ("%i2:3 = vm.global.load.i64 .rwdata[8]", "", [("m.f", "byte 8")]),
        ("%i2:3 = vm.global.load.i64 .rwdata[8]", "vm.global.store.i64 %i0:1, .rwdata[0]", [("m.f", "byte 8")]),
        ("%i2:3 = vm.global.load.i64 .rwdata[8]", "vm.global.store.i32 %i0, .rwdata[12]", []),
        ("%i2 = vm.global.load.i32 .rwdata[4]", "", [("m.f", "byte 4")]),
    ],
)  # fmt: skip
def test_what_is_loaded_but_never_stored(load: str, store: str, lost: list[tuple[str, str]]) -> None:
    text = ACCESS.replace("LOAD", load).replace("STORE", store)
    program = vm.BytecodeModule.load(writer.write(assembler.assemble(text, "m.vmasm")))
    assert weights.unstored(program) == lost
