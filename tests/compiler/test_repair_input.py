"""What comes out wrong of models' operators is right after halgpu.compile."""

from __future__ import annotations

import numpy as np

import halgpu

SAMPLES = """
func.func @fixed(%image: tensor<3x4xf32>, %y: tensor<40xf32>, %x: tensor<40xf32>) -> tensor<40xf32> {
  %empty = tensor.empty() : tensor<40xf32>
  %result = linalg.generic {
      indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
      iterator_types = ["parallel"]}
      ins(%y, %x : tensor<40xf32>, tensor<40xf32>) outs(%empty : tensor<40xf32>) {
    ^bb0(%row: f32, %column: f32, %unused: f32):
      %0 = arith.fptosi %row : f32 to i64
      %1 = arith.fptosi %column : f32 to i64
      %2 = arith.index_cast %0 : i64 to index
      %3 = arith.index_cast %1 : i64 to index
      %4 = tensor.extract %image[%2, %3] : tensor<3x4xf32>
      linalg.yield %4 : f32
  } -> tensor<40xf32>
  return %result : tensor<40xf32>
}
func.func @open(%line: tensor<?xi32>, %x: tensor<40xf32>) -> tensor<40xi32> {
  %empty = tensor.empty() : tensor<40xi32>
  %result = linalg.generic {
      indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
      ins(%x : tensor<40xf32>) outs(%empty : tensor<40xi32>) {
    ^bb0(%place: f32, %unused: i32):
      %0 = arith.fptosi %place : f32 to i32
      %1 = arith.index_cast %0 : i32 to index
      %2 = tensor.extract %line[%1] : tensor<?xi32>
      linalg.yield %2 : i32
  } -> tensor<40xi32>
  return %result : tensor<40xi32>
}
"""


def test_samples_outside_of_a_tensor_are_zero() -> None:
    """As torch-mlir leaves grid_sample's: rows and columns are computed from floats and may lie anywhere."""
    module = halgpu.load(halgpu.compile(SAMPLES), "opencl")
    generator = np.random.default_rng(0)
    places = generator.integers(-1, 6, (2, 40)).astype(np.float32)
    places[:, :4] = [[1e9, -1e9, 2, 3], [1, 1, -1e9, 1e9]]
    image = generator.uniform(1, 2, (3, 4)).astype(np.float32)
    y, x = places.astype(np.int64)
    inside = (y >= 0) & (y < 3) & (x >= 0) & (x < 4)
    assert 5 < inside.sum() < 35
    wanted = np.where(inside, image[y.clip(0, 2), x.clip(0, 3)], 0)
    np.testing.assert_array_equal(np.asarray(module.fixed(image, *places)), wanted)
    for size in (3, 6):
        line = np.arange(1, size + 1, dtype=np.int32)
        wanted = np.where((x >= 0) & (x < size), line[x.clip(0, size - 1)], 0)
        np.testing.assert_array_equal(np.asarray(module.open(line, places[1])), wanted)
