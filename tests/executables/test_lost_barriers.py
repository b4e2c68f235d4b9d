"""Kernels without the barriers that they need: results are right, and barriers are where they belong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import halgpu
from halgpu.executables.vulkan_spirv import executable_def, loader, translate
from halgpu.vm import definition

ARGMAX = """
func.func @argmax(%x: tensor<SHAPExf32>) -> tensor<RESULTxi32> {
  %zero = arith.constant 0 : i32
  %least = arith.constant 0xFF800000 : f32
  %0 = tensor.empty() : tensor<RESULTxi32>
  %1 = tensor.empty() : tensor<RESULTxf32>
  %2 = linalg.fill ins(%zero : i32) outs(%0 : tensor<RESULTxi32>) -> tensor<RESULTxi32>
  %3 = linalg.fill ins(%least : f32) outs(%1 : tensor<RESULTxf32>) -> tensor<RESULTxf32>
  %4:2 = iree_linalg_ext.arg_compare dimension(DIM) ins(%x : tensor<SHAPExf32>)
      outs(%3, %2 : tensor<RESULTxf32>, tensor<RESULTxi32>) {
  ^bb0(%a: f32, %b: f32):
    %5 = arith.cmpf ogt, %a, %b : f32
    iree_linalg_ext.yield %5 : i1
  } -> tensor<RESULTxf32>, tensor<RESULTxi32>
  return %4#1 : tensor<RESULTxi32>
}
"""
BARRIER = "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);"


def argmax(shape: tuple[int, ...], axis: int) -> str:
    result = shape[:axis] + shape[axis + 1 :]
    text = ARGMAX.replace("SHAPE", "x".join(map(str, shape))).replace("RESULT", "x".join(map(str, result)))
    return text.replace("DIM", str(axis))


def kernels(module: bytes) -> str:
    """The C text of a program's kernels."""
    target = loader.target_of(halgpu.open_device("opencl"))
    data = [entry for entry in definition.read(module).rodata if bytes(entry[:4]) == b"VKE1"]
    return "\n".join(translate.translate(executable_def.read(entry), target).source for entry in data)


@pytest.mark.parametrize(("shape", "axis"), [((2, 2), 0), ((5, 70), 0), ((6, 9), 1), ((3, 4, 5), 1)])
def test_argmax(compile_mlir: Callable[..., bytes], shape: tuple[int, ...], axis: int) -> None:
    x = np.random.default_rng(0).permutation(int(np.prod(shape))).astype(np.float32).reshape(shape)
    found = halgpu.load(compile_mlir(argmax(shape, axis)), "opencl").argmax(x)
    np.testing.assert_array_equal(np.asarray(found), x.argmax(axis))


SHARES = """
func.func @shares(%x: tensor<3x4x5xf32>) -> tensor<3x4x5xf32> {
  %zero = arith.constant 0.0 : f32
  %0 = tensor.empty() : tensor<SUMSxf32>
  %1 = linalg.fill ins(%zero : f32) outs(%0 : tensor<SUMSxf32>) -> tensor<SUMSxf32>
  %sums = linalg.reduce ins(%x : tensor<3x4x5xf32>) outs(%1 : tensor<SUMSxf32>) dimensions = AXES
    (%a: f32, %b: f32) { %s = arith.addf %a, %b : f32  linalg.yield %s : f32 }
  %2 = tensor.empty() : tensor<3x4x5xf32>
  %3 = linalg.generic {
      indexing_maps = [affine_map<(i, j, k) -> (i, j, k)>, affine_map<(i, j, k) -> (KEPT)>,
                       affine_map<(i, j, k) -> (i, j, k)>],
      iterator_types = ["parallel", "parallel", "parallel"]}
      ins(%x, %sums : tensor<3x4x5xf32>, tensor<SUMSxf32>) outs(%2 : tensor<3x4x5xf32>) {
    ^bb0(%a: f32, %sum: f32, %unused: f32):
      %4 = arith.divf %a, %sum : f32
      linalg.yield %4 : f32
  } -> tensor<3x4x5xf32>
  return %3 : tensor<3x4x5xf32>
}
"""


@pytest.mark.parametrize(
    ("axes", "kept", "sums"),
    [
        ((1,), "i, k", "3x5"),
        # A selection that some invocations take holds both the sums and their uses.
        ((0, 2), "j", "4"),
    ],
)
def test_sums_that_all_invocations_read(
    compile_mlir: Callable[..., bytes], axes: tuple[int, ...], kept: str, sums: str
) -> None:
    program = SHARES.replace("AXES", str(list(axes))).replace("KEPT", kept).replace("SUMS", sums)
    module = compile_mlir(program)
    assert BARRIER in kernels(module)
    x = np.random.default_rng(1).uniform(1, 2, (3, 4, 5)).astype(np.float32)
    found = np.asarray(halgpu.load(module, "opencl").shares(x))
    np.testing.assert_allclose(found, x / x.sum(axes, keepdims=True), rtol=1e-5)


def test_a_barrier_comes_between_filling_and_updating(compile_mlir: Callable[..., bytes]) -> None:
    for text in kernels(compile_mlir(argmax((2, 2), 0))).split("__kernel")[
        1:
    ]:  # a second is for bindings apart
        check_order(text)


def check_order(text: str) -> None:
    filled, updated = text.split(BARRIER)
    assert "= 0u;" in filled
    assert "local_x]" in updated
    assert "local_x]" not in filled


def test_other_kernels_get_no_barriers(compile_mlir: Callable[..., bytes]) -> None:
    program: Any = """
    func.func @main(%x: tensor<64x32xf32>) -> tensor<64xf32> {
      %zero = arith.constant 0.0 : f32
      %0 = tensor.empty() : tensor<64xf32>
      %1 = linalg.fill ins(%zero : f32) outs(%0 : tensor<64xf32>) -> tensor<64xf32>
      %2 = linalg.reduce ins(%x : tensor<64x32xf32>) outs(%1 : tensor<64xf32>) dimensions = [1]
        (%a: f32, %b: f32) { %s = arith.addf %a, %b : f32  linalg.yield %s : f32 }
      return %2 : tensor<64xf32>
    }"""
    assert BARRIER not in kernels(compile_mlir(program))
