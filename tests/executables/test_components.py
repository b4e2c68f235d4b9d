"""Vectors taken apart into components mean the same."""

from __future__ import annotations

import numpy as np

import halgpu

PROGRAM = """
func.func @relu(%a: tensor<128x16xf32>, %b: tensor<16x32xf32>) -> tensor<128x32xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<128x32xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<128x32xf32>) -> tensor<128x32xf32>
  %product = linalg.matmul ins(%a, %b : tensor<128x16xf32>, tensor<16x32xf32>)
    outs(%start : tensor<128x32xf32>) -> tensor<128x32xf32>
  %result = linalg.generic {
      indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%product : tensor<128x32xf32>) outs(%empty : tensor<128x32xf32>) {
    ^bb0(%x: f32, %out: f32):
      %positive = arith.cmpf ugt, %x, %zero : f32
      %y = arith.select %positive, %x, %zero : f32
      linalg.yield %y : f32
  } -> tensor<128x32xf32>
  return %result : tensor<128x32xf32>
}
"""


def test_a_negated_comparison() -> None:
    """Of vectors it is `~(x <= 0)`, which is always true of scalars."""
    random = np.random.default_rng(0)
    a = random.integers(-3, 4, (128, 16)).astype(np.float32)
    b = random.integers(-3, 4, (16, 32)).astype(np.float32)
    module = halgpu.load(halgpu.compile(PROGRAM, device="opencl"), device="opencl")
    np.testing.assert_array_equal(np.asarray(module.relu(a, b)), np.maximum(a @ b, 0))
