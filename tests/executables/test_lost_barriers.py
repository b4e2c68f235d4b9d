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


DEPTHWISE = """
func.func @main(%x: tensor<2x4x6xf32>, %w: tensor<4x5xf32>) -> tensor<2x4x2xf32> {
  %zero = arith.constant 0.0 : f32
  %0 = tensor.empty() : tensor<2x4x2xf32>
  %1 = linalg.fill ins(%zero : f32) outs(%0 : tensor<2x4x2xf32>) -> tensor<2x4x2xf32>
  %2 = linalg.generic {
      indexing_maps = [affine_map<(n, i, c, k) -> (n, c, i + k)>, affine_map<(n, i, c, k) -> (c, k)>,
                       affine_map<(n, i, c, k) -> (n, c, i)>],
      iterator_types = ["parallel", "parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<2x4x6xf32>, tensor<4x5xf32>) outs(%1 : tensor<2x4x2xf32>) {
    ^bb0(%a: f32, %b: f32, %sum: f32):
      %3 = arith.mulf %a, %b : f32
      %4 = arith.addf %sum, %3 : f32
      linalg.yield %4 : f32
  } -> tensor<2x4x2xf32>
  return %2 : tensor<2x4x2xf32>
}
"""


def test_a_result_filled_along_another_axis_than_it_is_added_to(compile_mlir: Callable[..., bytes]) -> None:
    """The compiler fills with local_x along the last axis, and adds with local_x along the channels."""
    module = compile_mlir(DEPTHWISE)
    [text] = kernels(module).split("__kernel")[1:2]
    filled, added = text.split(BARRIER)
    assert "= 0.0f;" in filled
    assert "= 0.0f;" not in added
    generator = np.random.default_rng(2)
    x = generator.standard_normal((2, 4, 6)).astype(np.float32)
    w = generator.standard_normal((4, 5)).astype(np.float32)
    wanted = np.stack([(x[:, :, i : i + 5] * w).sum(-1) for i in range(2)], -1)
    found = np.asarray(halgpu.load(module, "opencl").main(x, w))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_result_filled_along_the_axes_that_it_is_added_to_along(compile_mlir: Callable[..., bytes]) -> None:
    program = DEPTHWISE.replace("2x4x6x", "8x64x68x").replace("2x4x2x", "8x64x64x").replace("4x5x", "64x5x")
    text = kernels(compile_mlir(program))
    assert "= 0.0f;" in text
    assert BARRIER not in text
