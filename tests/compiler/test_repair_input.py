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


WIDE = """
func.func @NAME(%x: tensor<200xf64>, %y: tensor<200xf64>) -> tensor<200xf64> {
  %empty = tensor.empty() : tensor<200xf64>
  %result = linalg.generic {
      indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>, affine_map<(i) -> (i)>],
      iterator_types = ["parallel"]}
      ins(%x, %y : tensor<200xf64>, tensor<200xf64>) outs(%empty : tensor<200xf64>) {
    ^bb0(%a: f64, %b: f64, %unused: f64):
      %0 = OPERATION : f64
      linalg.yield %0 : f64
  } -> tensor<200xf64>
  return %result : tensor<200xf64>
}
"""
OPERATIONS = {"exp": "math.exp %a", "log": "math.log %a", "pow": "math.powf %a, %b"}
SPECIAL = [0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0, -3.0, 0.5, 1.5]


def test_functions_of_64_bit_floats() -> None:
    """Vulkan's kernels have none; those made of arithmetic are exact to some units in the last place."""
    text = "".join(WIDE.replace("NAME", f"f_{n}").replace("OPERATION", op) for n, op in OPERATIONS.items())
    module = halgpu.load(halgpu.compile(text), "opencl")
    generator = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        edges = [*SPECIAL, 709.7, 709.9, -708.3, -740.0, -745.0, -746.0, 1e300, 1e-300, 5e-324, 1e-310]
        x = np.concatenate([edges, generator.uniform(-700, 700, 100), generator.lognormal(0, 50, 80)])
        y = np.zeros(200)
        # A subnormal result is exact to a unit of its own.
        np.testing.assert_allclose(np.asarray(module.f_exp(x, y)), np.exp(x), rtol=2e-15, atol=1e-323)
        np.testing.assert_allclose(np.asarray(module.f_log(x, y)), np.log(x), rtol=1e-15, atol=1e-16)
        pairs = np.array([(a, b) for a in SPECIAL for b in SPECIAL])
        more = np.stack([generator.lognormal(0, 2, 100), generator.uniform(-20, 20, 100)], 1)
        more[:40] = generator.integers(-12, 12, (40, 2))
        x, y = np.ascontiguousarray(np.concatenate([pairs, more]).T)
        np.testing.assert_allclose(np.asarray(module.f_pow(x, y)), x**y, rtol=1e-13)
