"""Programs with constants of every kind, in every place, and calls of their functions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

SIZE = 301  # elements: more than 256 bytes, which kernels hold themselves; odd, so that packed constants are padded
DTYPES: dict[str, Any] = {
    "i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip


def values(element: str, seed: int, count: int = SIZE) -> np.ndarray[Any, Any]:
    """What the dense constant of ``element`` and ``seed`` holds: small numbers, exact in every type."""
    random = np.random.default_rng(seed)
    if element == "i1":
        return random.integers(0, 2, count).astype(np.bool_)
    numbers = random.integers(-30, 30, count)
    return (numbers / 4 if "f" in element else numbers).astype(DTYPES[element])


def _dense(element: str, seed: int) -> str:
    found = values(element, seed)
    if element == "i1":
        return ", ".join("true" if bit else "false" for bit in found)
    return ", ".join(str(number) for number in found.astype(np.float64 if "f" in element else np.int64))


ADDED = ("i1", "i8", "i64", "f16", "bf16", "f64")
"""Types that kernels compute with here; of the others constants are returned only."""


def _kind(element: str, seed: int) -> str:
    """Functions that return a dense constant and a splat, and one that computes with two."""
    tensor = f"tensor<{SIZE}x{element}>"
    one = "true" if element == "i1" else "1.5" if "f" in element else "3"
    add = "arith.xori" if element == "i1" else "arith.addf" if "f" in element else "arith.addi"
    added = f"""
func.func @add_{element}(%x: {tensor}) -> {tensor} {{
  %c = arith.constant dense<[{_dense(element, seed)}]> : {tensor}
  %d = arith.constant dense<[{_dense(element, seed + 100)}]> : {tensor}
  %0 = {add} %x, %c : {tensor}
  %1 = {add} %0, %d : {tensor}
  return %1 : {tensor}
}}
"""
    return f"""{added if element in ADDED else ""}
func.func @dense_{element}() -> {tensor} {{
  %c = arith.constant dense<[{_dense(element, seed)}]> : {tensor}
  return %c : {tensor}
}}
func.func @splat_{element}() -> {tensor} {{
  %c = arith.constant dense<{one}> : {tensor}
  return %c : {tensor}
}}
"""


KINDS = "".join(_kind(element, seed) for seed, element in enumerate(DTYPES))

STATE = f"""
util.global private @initial = dense<[{_dense("i32", 1)}]> : tensor<{SIZE}xi32>
util.global private mutable @state = dense<[{_dense("i32", 2)}]> : tensor<{SIZE}xi32>
util.global private mutable @counts = dense<0> : tensor<{SIZE}xi32>
func.func @accumulate(%x: tensor<{SIZE}xi32>) -> (tensor<{SIZE}xi32>, tensor<{SIZE}xi32>) {{
  %g = util.global.load @initial : tensor<{SIZE}xi32>
  %s = util.global.load @state : tensor<{SIZE}xi32>
  %n = util.global.load @counts : tensor<{SIZE}xi32>
  %0 = arith.addi %x, %g : tensor<{SIZE}xi32>
  %1 = arith.addi %s, %0 : tensor<{SIZE}xi32>
  %2 = arith.addi %n, %x : tensor<{SIZE}xi32>
  util.global.store %1, @state : tensor<{SIZE}xi32>
  util.global.store %2, @counts : tensor<{SIZE}xi32>
  return %1, %2 : tensor<{SIZE}xi32>, tensor<{SIZE}xi32>
}}
func.func @element(%i: index) -> i32 {{
  %c = arith.constant dense<[{_dense("i32", 3)}]> : tensor<{SIZE}xi32>
  %0 = tensor.extract %c[%i] : tensor<{SIZE}xi32>
  return %0 : i32
}}
func.func @barrier() -> (tensor<{SIZE}xi32>, i32) {{
  %c = arith.constant dense<[{_dense("i32", 4)}]> : tensor<{SIZE}xi32>
  %n = arith.constant 5 : i32
  %0, %1 = util.optimization_barrier %c, %n : tensor<{SIZE}xi32>, i32
  return %0, %1 : tensor<{SIZE}xi32>, i32
}}
func.func @two(%x: tensor<{SIZE}xf32>) -> (tensor<{SIZE}xf32>, tensor<{SIZE}xf32>) {{
  %0 = math.absf %x : tensor<{SIZE}xf32>
  %1 = util.optimization_barrier %0 : tensor<{SIZE}xf32>
  %2 = arith.addf %1, %x : tensor<{SIZE}xf32>
  return %0, %2 : tensor<{SIZE}xf32>, tensor<{SIZE}xf32>
}}
util.global private @first : tensor<{SIZE}xf32>
util.initializer {{
  %c = arith.constant dense<[{_dense("f32", 11)}]> : tensor<{SIZE}xf32>
  %0 = util.optimization_barrier %c : tensor<{SIZE}xf32>
  %1 = arith.mulf %0, %0 : tensor<{SIZE}xf32>
  util.global.store %1, @first : tensor<{SIZE}xf32>
  util.return
}}
util.global private mutable @second : tensor<{SIZE}xf32>
util.initializer {{
  %0 = util.global.load @first : tensor<{SIZE}xf32>
  %1 = math.floor %0 : tensor<{SIZE}xf32>
  util.global.store %1, @second : tensor<{SIZE}xf32>
  util.return
}}
func.func @initialized(%x: tensor<{SIZE}xf32>) -> tensor<{SIZE}xf32> {{
  %g = util.global.load @first : tensor<{SIZE}xf32>
  %h = util.global.load @second : tensor<{SIZE}xf32>
  %0 = arith.addf %x, %g : tensor<{SIZE}xf32>
  %1 = arith.subf %0, %h : tensor<{SIZE}xf32>
  util.global.store %1, @second : tensor<{SIZE}xf32>
  return %1 : tensor<{SIZE}xf32>
}}
"""

_PLACES = f"""
func.func @part(%i: index) -> tensor<5xi32> {{
  %c = arith.constant dense<[{_dense("i32", 5)}]> : tensor<{SIZE}xi32>
  %0 = tensor.extract_slice %c[%i] [5] [1] : tensor<{SIZE}xi32> to tensor<5xi32>
  return %0 : tensor<5xi32>
}}
func.func @update(%x: tensor<4xi32>, %i: index) -> tensor<{SIZE}xi32> {{
  %c = arith.constant dense<[{_dense("i32", 6)}]> : tensor<{SIZE}xi32>
  %0 = tensor.insert_slice %x into %c[%i] [4] [1] : tensor<4xi32> into tensor<{SIZE}xi32>
  return %0 : tensor<{SIZE}xi32>
}}
func.func @choose(%which: i1) -> tensor<{SIZE}xi32> {{
  %c = arith.constant dense<[{_dense("i32", 7)}]> : tensor<{SIZE}xi32>
  %d = arith.constant dense<[{_dense("i32", 8)}]> : tensor<{SIZE}xi32>
  %0 = scf.if %which -> (tensor<{SIZE}xi32>) {{
    %e = arith.addi %c, %d : tensor<{SIZE}xi32>
    scf.yield %e : tensor<{SIZE}xi32>
  }} else {{
    scf.yield %d : tensor<{SIZE}xi32>
  }}
  return %0 : tensor<{SIZE}xi32>
}}
func.func @select(%which: i1) -> tensor<{SIZE}xi32> {{
  %c = arith.constant dense<[{_dense("i32", 9)}]> : tensor<{SIZE}xi32>
  %d = arith.constant dense<[{_dense("i32", 10)}]> : tensor<{SIZE}xi32>
  %0 = arith.select %which, %c, %d : tensor<{SIZE}xi32>
  return %0 : tensor<{SIZE}xi32>
}}
func.func @nothing() -> tensor<0x3xf32> {{
  %c = arith.constant dense<> : tensor<0x3xf32>
  return %c : tensor<0x3xf32>
}}
func.func @weights(%x: tensor<?x64xf32>) -> tensor<?x64xf32> {{
  %c = arith.constant dense_resource<weights> : tensor<64x64xf32>
  %zero = arith.constant 0.0 : f32
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?x64xf32>
  %e = tensor.empty(%n) : tensor<?x64xf32>
  %f = linalg.fill ins(%zero : f32) outs(%e : tensor<?x64xf32>) -> tensor<?x64xf32>
  %m = linalg.matmul ins(%x, %c : tensor<?x64xf32>, tensor<64x64xf32>) outs(%f : tensor<?x64xf32>) -> tensor<?x64xf32>
  return %m : tensor<?x64xf32>
}}
"""

WEIGHTS = (np.arange(64 * 64, dtype=np.float32).reshape(64, 64) % 17 - 8) / 8
_BLOB = f'{{-# dialect_resources: {{ builtin: {{ weights: "0x40000000{WEIGHTS.tobytes().hex()}" }} }} #-}}'

PLACES = _PLACES + _BLOB

VECTOR = np.arange(SIZE)
STATE_CALLS: dict[str, list[tuple[Any, ...]]] = {
    "accumulate": [(VECTOR.astype(np.int32),), (VECTOR.astype(np.int32) * 3,)],
    "two": [(VECTOR.astype(np.float32) - 150,)],
    "initialized": [(VECTOR.astype(np.float32),), (VECTOR.astype(np.float32) * 2,)],
}
