"""Inline-static programs with their kernels as machine code: as Python and iree-run-module compute them, bit for bit."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import halgpu
from halgpu.vm import jit

KERNELS = """
func.func @kernels(%a: tensor<8x33xf32>, %rows: tensor<5xi32>, %w: tensor<4x3x3x3xf32>, %x: tensor<1x3x9x9xf32>)
    -> (tensor<8x33xf32>, tensor<5x33xf32>, tensor<1x4x7x7xf32>, tensor<8xi32>, tensor<8x33xi8>) {
  %zero = arith.constant 0.0 : f32
  %izero = arith.constant 0 : i32
  %exp = math.exp %a : tensor<8x33xf32>
  %tanh = math.tanh %exp : tensor<8x33xf32>
  %e0 = tensor.empty() : tensor<8xf32>
  %f0 = linalg.fill ins(%zero : f32) outs(%e0 : tensor<8xf32>) -> tensor<8xf32>
  %sum = linalg.reduce ins(%exp : tensor<8x33xf32>) outs(%f0 : tensor<8xf32>) dimensions = [1]
    (%p: f32, %q: f32) { %r = arith.addf %p, %q : f32 linalg.yield %r : f32 }
  %e1 = tensor.empty() : tensor<8x33xf32>
  %div = linalg.generic {indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(i)>, affine_map<(i,j)->(i,j)>],
                         iterator_types = ["parallel", "parallel"]}
    ins(%tanh, %sum : tensor<8x33xf32>, tensor<8xf32>) outs(%e1 : tensor<8x33xf32>) {
    ^bb0(%p: f32, %q: f32, %o: f32):
      %r = arith.divf %p, %q : f32
      linalg.yield %r : f32
  } -> tensor<8x33xf32>
  %e2 = tensor.empty() : tensor<5x33xf32>
  %gather = linalg.generic {indexing_maps = [affine_map<(i,j)->(i)>, affine_map<(i,j)->(i,j)>],
                            iterator_types = ["parallel", "parallel"]}
    ins(%rows : tensor<5xi32>) outs(%e2 : tensor<5x33xf32>) {
    ^bb0(%p: i32, %o: f32):
      %j = linalg.index 1 : index
      %i = arith.index_cast %p : i32 to index
      %r = tensor.extract %div[%i, %j] : tensor<8x33xf32>
      linalg.yield %r : f32
  } -> tensor<5x33xf32>
  %e3 = tensor.empty() : tensor<1x4x7x7xf32>
  %f3 = linalg.fill ins(%zero : f32) outs(%e3 : tensor<1x4x7x7xf32>) -> tensor<1x4x7x7xf32>
  %conv = linalg.conv_2d_nchw_fchw ins(%x, %w : tensor<1x3x9x9xf32>, tensor<4x3x3x3xf32>)
    outs(%f3 : tensor<1x4x7x7xf32>) -> tensor<1x4x7x7xf32>
  %e4 = tensor.empty() : tensor<8xi32>
  %f4 = linalg.fill ins(%izero : i32) outs(%e4 : tensor<8xi32>) -> tensor<8xi32>
  %count = linalg.generic {indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(i)>],
                           iterator_types = ["parallel", "reduction"]}
    ins(%a : tensor<8x33xf32>) outs(%f4 : tensor<8xi32>) {
    ^bb0(%p: f32, %q: i32):
      %c = arith.cmpf ogt, %p, %zero : f32
      %n = arith.extui %c : i1 to i32
      %r = arith.addi %q, %n : i32
      linalg.yield %r : i32
  } -> tensor<8xi32>
  %i8 = arith.fptosi %a : tensor<8x33xf32> to tensor<8x33xi8>
  return %div, %gather, %conv, %count, %i8
    : tensor<8x33xf32>, tensor<5x33xf32>, tensor<1x4x7x7xf32>, tensor<8xi32>, tensor<8x33xi8>
}
"""


@functools.cache
def _compiled_once(text: str) -> bytes:
    """A program is loaded for several devices; its loops are the same."""
    return jit._Compiler.compile(jit.compiler(), text)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[Any], int]]:
    """`ways(data, on, device)` loads a program with machine code on or off; its result counts native calls."""
    monkeypatch.setenv("HALGPU_CACHE", "0")
    monkeypatch.setattr(jit, "PROBE", 0)
    monkeypatch.setattr(jit, "COMPILE", 0)
    monkeypatch.setattr(jit.compiler(), "compile", _compiled_once)
    calls = [0]
    plain = jit.NativeLoop.__call__

    def counted(loop: jit.NativeLoop, *values: Any) -> Any:
        calls[0] += 1
        return plain(loop, *values)

    monkeypatch.setattr(jit.NativeLoop, "__call__", counted)

    def run(data: bytes, name: str, inputs: list[Any], on: bool, device: str) -> tuple[list[Any], int]:
        monkeypatch.setenv("HALGPU_JIT", "check" if on else "0")
        calls[0] = 0
        with halgpu.load(data, device) as module:
            results = getattr(module, name)(*inputs)
            results = results if isinstance(results, tuple) else (results,)
            return [np.array(result) for result in results], calls[0]

    return run


def random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32) * 2


def arguments(name: str, source: str) -> list[Any]:
    if name == "kernels":
        return [random(8, 33), np.array([7, 0, 3, 3, 1], np.int32), random(4, 3, 3, 3), random(1, 3, 9, 9)]
    parameters = source.partition("func.func @")[2].partition("->")[0]
    return [random(*map(int, text.split("x"))) for text in re.findall(r"tensor<([\dx]+)xf32>", parameters)]


@pytest.mark.parametrize("device", ["host", "opencl"])
@pytest.mark.parametrize("name", ["kernels", "network"])
def test_programs(
    name: str,
    device: str,
    ways: Callable[..., Any],
    compile_mlir: Callable[..., bytes],
    iree_tool: Callable[..., Any],
    examples: Path,
    tmp_path: Path,
) -> None:
    source = KERNELS if name == "kernels" else (examples / f"{name}.mlir").read_text()
    data = compile_mlir(source, "vmvx-inline", model="inline-static")
    inputs = arguments(name, source)
    native, calls = ways(data, name, inputs, True, device)
    assert calls >= 5
    plain, none = ways(data, name, inputs, False, device)
    assert none == 0
    (tmp_path / "m.vmfb").write_bytes(data)
    flags = []
    for number, value in enumerate(inputs):
        np.save(tmp_path / f"{number}.npy", value)
        flags.append(f"--input=@{tmp_path / f'{number}.npy'}")
    outputs = [f"--output=@{tmp_path / f'out{number}.npy'}" for number in range(len(native))]
    iree_tool("iree-run-module", f"--module={tmp_path / 'm.vmfb'}", f"--function={name}", *flags, *outputs)
    for number, (mine, python) in enumerate(zip(native, plain, strict=True)):
        stock = np.load(tmp_path / f"out{number}.npy")
        assert mine.tobytes() == python.tobytes() == stock.tobytes()


@pytest.mark.parametrize("device", ["host", "opencl"])
def test_state_that_a_program_keeps(
    device: str, ways: Callable[..., Any], compile_mlir: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call's native loops see what the last one's left, wherever the device keeps it."""
    source = """
    module @counter {
      util.global private mutable @total = dense<0.0> : tensor<7x9xf32>
      func.func @add(%x : tensor<7x9xf32>) -> tensor<7x9xf32> {
        %t = util.global.load @total : tensor<7x9xf32>
        %s = arith.addf %t, %x : tensor<7x9xf32>
        util.global.store %s, @total : tensor<7x9xf32>
        return %s : tensor<7x9xf32>
      }
    }
    """
    data = compile_mlir(source, "vmvx-inline", model="inline-static")
    monkeypatch.setenv("HALGPU_JIT", "check")
    step = random(7, 9)
    with halgpu.load(data, device) as module:
        found = [np.array(module.add(step)) for _ in range(4)]
    expected = np.cumsum([step] * 4, axis=0, dtype=np.float32)
    np.testing.assert_array_equal(found, expected)
