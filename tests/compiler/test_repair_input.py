"""What comes out wrong of models' operators is right after halgpu.compile."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

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


GATHER = """
func.func @rows(%a: tensor<9x5xf32>, %b: tensor<6x1xi32>) -> tensor<6x5xf32> {
  %r = "stablehlo.gather"(%a, %b) {
      dimension_numbers = #stablehlo.gather<
        offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
      slice_sizes = array<i64: 1, 5>} : (tensor<9x5xf32>, tensor<6x1xi32>) -> tensor<6x5xf32>
  return %r : tensor<6x5xf32>
}
"""


def test_rows_beyond_the_ends_are_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """StableHLO's specification of gather clamps the start indices."""
    monkeypatch.setenv("HALGPU_CHECKED", "1")  # an index that is not clamped would end the process
    module = halgpu.load(halgpu.compile(GATHER), "opencl")
    a = np.arange(45, dtype=np.float32).reshape(9, 5)
    index = np.int32([0, 8, 9, -1, 2**31 - 1, -(2**31)])
    np.testing.assert_array_equal(np.asarray(module.rows(a, index[:, None])), a[index.clip(0, 8)])


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


NARROW = (
    "math.ctlz %x",
    "math.cttz %x",
    "math.ctpop %x",
    "arith.shrui %x, %s",
    "arith.divui %x, %y",
    "arith.remui %x, %y",
)


def narrow_program(kind: str) -> str:
    """One kernel of all operations, on parameters x, y and shift amounts s."""
    results = ", ".join(f"tensor<64x{kind}>" for _ in NARROW)
    lines = "\n".join(f"      %r{i} = {operation} : {kind}" for i, operation in enumerate(NARROW))
    unused = ", ".join(f"%u{i}: {kind}" for i in range(len(NARROW)))
    maps = ", ".join(["affine_map<(i) -> (i)>"] * (3 + len(NARROW)))
    outs = ", ".join("%e" for _ in NARROW)
    yielded = ", ".join(f"%r{i}" for i in range(len(NARROW)))
    kinds = ", ".join(kind for _ in NARROW)
    returned = ", ".join(f"%r#{i}" for i in range(len(NARROW)))
    t = f"tensor<64x{kind}>"
    return f"""
func.func @{kind}(%a: {t}, %b: {t}, %c: {t}) -> ({results}) {{
  %e = tensor.empty() : {t}
  %r:{len(NARROW)} = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
      ins(%a, %b, %c : {t}, {t}, {t}) outs({outs} : {results}) {{
    ^bb0(%x: {kind}, %y: {kind}, %s: {kind}, {unused}):
{lines}
      linalg.yield {yielded} : {kinds}
  }} -> ({results})
  return {returned} : {results}
}}
"""


def narrow_wanted(x: np.ndarray, y: np.ndarray, shift: np.ndarray) -> list[list[int]]:
    """Python's own arithmetic, on the unsigned numbers that the bits are."""
    width = 8 * x.itemsize
    triples = list(zip(x.tolist(), y.tolist(), shift.tolist(), strict=True))
    return [
        [width - a.bit_length() for a, _, _ in triples],
        [width if a == 0 else (a & -a).bit_length() - 1 for a, _, _ in triples],
        [a.bit_count() for a, _, _ in triples],
        [a >> s for a, _, s in triples],
        [a // b for a, b, _ in triples],
        [a % b for a, b, _ in triples],
    ]


def check_narrow(module: halgpu.Module, name: str, dtype: type[np.unsignedinteger]) -> None:
    generator = np.random.default_rng(0)
    top = int(np.iinfo(dtype).max)
    x = generator.integers(0, top, 64, dtype, endpoint=True)
    y = generator.integers(1, top, 64, dtype, endpoint=True)
    x[:4], y[:4] = [0, top, 1, top // 2 + 1], [1, top, 3, 7]
    shift = generator.integers(0, 8 * x.itemsize - 1, 64, dtype, endpoint=True)
    signed = [a.view(f"i{x.itemsize}") for a in (x, y, shift)]
    found = [np.asarray(r).view(dtype).tolist() for r in module[name](*signed)]
    assert found == narrow_wanted(x, y, shift)


def test_narrow_integers() -> None:
    """The default target computes them in 32 bits, of which it sees too many."""
    source = narrow_program("i8") + narrow_program("i16")
    module = halgpu.load(halgpu.compile(source, target="vulkan"), "opencl")
    check_narrow(module, "i8", np.uint8)
    check_narrow(module, "i16", np.uint16)


WITHOUT_INSTRUCTIONS = """
func.func @zeros(%x: tensor<5x13xi64>) -> tensor<5x13xi64> {
  %r = math.ctlz %x : tensor<5x13xi64>
  return %r : tensor<5x13xi64>
}
func.func @signed(%x: tensor<?xi32>) -> tensor<?xbf16> {
  %r = arith.sitofp %x : tensor<?xi32> to tensor<?xbf16>
  return %r : tensor<?xbf16>
}
func.func @unsigned(%x: tensor<65xi16>) -> tensor<65xbf16> {
  %r = arith.uitofp %x : tensor<65xi16> to tensor<65xbf16>
  return %r : tensor<65xbf16>
}
func.func @spectrum(%x: tensor<2x4x8xf32>) -> (tensor<2x4x5xf32>, tensor<2x4x5xf32>) {
  %r, %s = tosa.rfft2d %x : (tensor<2x4x8xf32>) -> (tensor<2x4x5xf32>, tensor<2x4x5xf32>)
  return %r, %s : tensor<2x4x5xf32>, tensor<2x4x5xf32>
}
"""


def test_what_vulkan_has_no_instructions_for() -> None:
    module = halgpu.load(halgpu.compile(WITHOUT_INSTRUCTIONS + narrow_program("i8")), "opencl")
    check_narrow(module, "i8", np.uint8)
    x = np.array([0, -1, *(1 << n for n in range(63))], np.int64).reshape(5, 13)
    wanted = [[64 - (a & (1 << 64) - 1).bit_length() for a in row] for row in x.tolist()]
    assert np.asarray(module.zeros(x)).tolist() == wanted
    numbers = np.random.default_rng(1).integers(-(2**31), 2**31, 70).astype(np.int32)
    wide = np.asarray(module.signed(numbers)).astype(np.float32)
    np.testing.assert_array_equal(wide, numbers.astype(ml_dtypes.bfloat16).astype(np.float32))
    signal = np.random.default_rng(3).uniform(-1, 1, (2, 4, 8)).astype(np.float32)
    parts = [np.asarray(part) for part in module.spectrum(signal)]
    np.testing.assert_allclose(parts[0] + 1j * parts[1], np.fft.rfft2(signal), atol=1e-5)
    few = np.random.default_rng(2).integers(0, 2**16, 65).astype(np.uint16)
    wide = np.asarray(module.unsigned(few.view(np.int16))).astype(np.float32)
    np.testing.assert_array_equal(wide, few.astype(ml_dtypes.bfloat16).astype(np.float32))


ELEMENTS = """
func.func @insert(%t: tensor<3x?xf32>, %i: index, %j: index, %v: f32) -> tensor<3x?xf32> {
  %r = tensor.insert %v into %t[%i, %j] : tensor<3x?xf32>
  return %r : tensor<3x?xf32>
}
func.func @make(%v: i64, %w: i64) -> (tensor<2x1x2xi64>, tensor<3xi64>) {
  %r = tensor.from_elements %v, %w, %w, %v : tensor<2x1x2xi64>
  %s = tensor.from_elements %w, %v, %w : tensor<3xi64>
  return %r, %s : tensor<2x1x2xi64>, tensor<3xi64>
}
func.func @loop(%t: tensor<4x5xi32>, %n: index) -> tensor<4x5xi32> {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %r = scf.for %i = %c0 to %n step %c1 iter_args(%u = %t) -> tensor<4x5xi32> {
    %v = arith.index_cast %i : index to i32
    %w = tensor.insert %v into %u[%i, %i] : tensor<4x5xi32>
    scf.yield %w : tensor<4x5xi32>
  }
  return %r : tensor<4x5xi32>
}
"""


def test_elements_outside_of_kernels() -> None:
    """One element is one element, wherever it lies."""
    module = halgpu.load(halgpu.compile(ELEMENTS, target="vmvx-inline"), "opencl")
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    for place in ((0, 0), (1, 2), (2, 3)):
        wanted = table.copy()
        wanted[place] = -1
        np.testing.assert_array_equal(np.asarray(module.insert(table, *place, -1.0)), wanted)
    made, flat = module.make(5, 7)
    assert np.asarray(made).tolist() == [[[5, 7]], [[7, 5]]]
    assert np.asarray(flat).tolist() == [7, 5, 7]
    wanted = np.full((4, 5), 9)
    np.fill_diagonal(wanted, range(4))
    assert np.asarray(module.loop(np.full((4, 5), 9, np.int32), 4)).tolist() == wanted.tolist()
