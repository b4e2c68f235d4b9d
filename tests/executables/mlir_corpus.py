"""MLIR programs that make the stock compiler emit many kinds of kernels, with the shapes to run them on.

`PROGRAMS[name]` is a :class:`Program`: one function `main` of tensors to tensors. Dynamic dimensions take the
sizes in `sizes`, in order of appearance.

    python tests/executables/mlir_corpus.py [--target=ampere] [NAME…]

compiles them for Vulkan and for CPUs, runs both and says what differs (minutes; nothing of it runs in ci/test).
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Program:
    source: str
    sizes: tuple[int, ...] = ()
    low: float = -4.0
    high: float = 4.0

    @property
    def parameters(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and MLIR element type of each parameter of `main`, dynamic sizes filled in."""
        signature = re.search(r"func\.func @main\((.*?)\)\s*->", self.source, re.S)
        assert signature
        sizes = iter(self.sizes)
        found = []
        for text in re.findall(r"tensor<([^>]*)>", signature[1]):
            *dimensions, element = text.split("x")
            found.append((tuple(int(next(sizes)) if d == "?" else int(d) for d in dimensions), element))
        return found

    @property
    def results(self) -> int:
        """How many tensors `main` returns."""
        returned = re.search(r"func\.func @main\(.*?\)\s*->(.*?)\{", self.source, re.S)
        assert returned
        return returned[1].count("tensor<")

    def inputs(self, seed: int = 0) -> list[np.ndarray]:
        """Random inputs: floats in [low, high), integers likewise unless the type is narrower."""
        rng = np.random.default_rng(seed)
        return [self._draw(rng, shape, element) for shape, element in self.parameters]

    def _draw(self, rng: np.random.Generator, shape: tuple[int, ...], element: str) -> np.ndarray:
        if element == "i1":
            return rng.integers(0, 2, shape).astype(bool)
        if element.startswith("i"):
            dtype = np.dtype(f"int{element[1:]}")
            info = np.iinfo(dtype)
            low, high = max(info.min, int(self.low)), min(info.max, int(self.high))
            return rng.integers(low, high, shape, endpoint=True).astype(dtype)
        return rng.uniform(self.low, self.high, shape).astype(f"float{element[1:]}")


def joined(names: Sequence[str]) -> str:
    """One module of several programs, each function under the program's name: compilers take long to start."""
    return "\n".join(PROGRAMS[name].source.replace("@main(", f"@{name}(") for name in names)


def call(function: Callable[..., Any], inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Call a function of a module that halgpu loaded."""
    results = function(*inputs)
    return [np.asarray(r) for r in (results if isinstance(results, (tuple, list)) else [results])]


def run_by_iree(
    iree_tool: Callable[..., Any], module: Path, name: str, inputs: Sequence[np.ndarray], work: Path
) -> list[np.ndarray]:
    """Run a function of a module compiled for CPUs with iree-run-module."""
    for number, array in enumerate(inputs):
        np.save(work / f"in{number}.npy", array)
    given = [f"--input=@{work}/in{number}.npy" for number in range(len(inputs))]
    kept = [f"--output=@{work}/out{number}.npy" for number in range(PROGRAMS[name].results)]
    flags = (f"--module={module}", "--device=local-sync", f"--function={name}")
    iree_tool("iree-run-module", *flags, *given, *kept)
    return [np.load(work / f"out{number}.npy") for number in range(PROGRAMS[name].results)]


def check_same(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    """Floats within 16 units of rounding of the largest value, signs of zeros and NaNs the same; integers equal."""
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        if one.dtype.kind != "f":
            np.testing.assert_array_equal(one, other)
            continue
        bound = 16 * float(np.finfo(one.dtype).eps)
        size = float(np.max(np.abs(other[np.isfinite(other)]), initial=1))
        np.testing.assert_allclose(one.astype("f8"), other.astype("f8"), rtol=bound, atol=bound * size)
        zeros = (one == 0) & (other == 0)
        np.testing.assert_array_equal(np.signbit(one[zeros]), np.signbit(other[zeros]))


def generic(inputs: str, output: str, body: str, rank: int = 1) -> str:
    """Return `main`: an elementwise linalg.generic over `inputs` (comma-separated element types)."""
    kinds = inputs.split(",")
    shape = "x".join(["13", "7", "5"][:rank])
    axes = ",".join(f"d{i}" for i in range(rank))
    identity = f"affine_map<({axes}) -> ({axes})>"
    parameters = ", ".join(f"%p{i}: tensor<{shape}x{k}>" for i, k in enumerate(kinds))
    names = ", ".join(f"%p{i}" for i in range(len(kinds)))
    types = ", ".join(f"tensor<{shape}x{k}>" for k in kinds)
    arguments = ", ".join(f"%a{i}: {k}" for i, k in enumerate(kinds))
    maps = ", ".join([identity] * (len(kinds) + 1))
    iterators = ", ".join(['"parallel"'] * rank)
    return f"""
func.func @main({parameters}) -> tensor<{shape}x{output}> {{
  %e = tensor.empty() : tensor<{shape}x{output}>
  %r = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}}
    ins({names} : {types}) outs(%e : tensor<{shape}x{output}>) {{
    ^bb0({arguments}, %o: {output}):
      {body}
      linalg.yield %y : {output}
  }} -> tensor<{shape}x{output}>
  return %r : tensor<{shape}x{output}>
}}
"""


def unary(operation: str, element: str = "f32", **ranges: float) -> Program:
    return Program(generic(element, element, f"%y = {operation} %a0 : {element}"), **ranges)


def binary(operation: str, element: str, **ranges: float) -> Program:
    return Program(
        generic(f"{element},{element}", element, f"%y = {operation} %a0, %a1 : {element}"), **ranges
    )


def cast(operation: str, source: str, target: str, **ranges: float) -> Program:
    return Program(generic(source, target, f"%y = {operation} %a0 : {source} to {target}"), **ranges)


def compare(operation: str, element: str, **ranges: float) -> Program:
    return Program(generic(f"{element},{element}", "i1", f"%y = {operation}, %a0, %a1 : {element}"), **ranges)


def matmul(m: str, n: str, k: str, a: str, c: str, sizes: tuple[int, ...] = ()) -> Program:
    zero = f"arith.constant {'0.0' if c.startswith('f') else '0'} : {c}"
    dynamic = ""
    arguments = ""
    if m == "?":
        dynamic = f"%i0 = arith.constant 0 : index\n  %m = tensor.dim %a, %i0 : tensor<{m}x{k}x{a}>"
        arguments = "%m"
    return Program(
        f"""
func.func @main(%a: tensor<{m}x{k}x{a}>, %b: tensor<{k}x{n}x{a}>) -> tensor<{m}x{n}x{c}> {{
  %z = {zero}
  {dynamic}
  %e = tensor.empty({arguments}) : tensor<{m}x{n}x{c}>
  %f = linalg.fill ins(%z : {c}) outs(%e : tensor<{m}x{n}x{c}>) -> tensor<{m}x{n}x{c}>
  %r = linalg.matmul ins(%a, %b : tensor<{m}x{k}x{a}>, tensor<{k}x{n}x{a}>)
    outs(%f : tensor<{m}x{n}x{c}>) -> tensor<{m}x{n}x{c}>
  return %r : tensor<{m}x{n}x{c}>
}}
""",
        sizes,
    )


def reduction(shape: str, axis: int, element: str, operation: str, start: str) -> Program:
    sizes = shape.split("x")
    rank = len(sizes)
    axes = [f"d{i}" for i in range(rank)]
    kept = ", ".join(a for i, a in enumerate(axes) if i != axis)
    result = "x".join([s for i, s in enumerate(sizes) if i != axis] + [element])
    iterators = ", ".join('"reduction"' if i == axis else '"parallel"' for i in range(rank))
    maps = (
        f"affine_map<({', '.join(axes)}) -> ({', '.join(axes)})>, affine_map<({', '.join(axes)}) -> ({kept})>"
    )
    return Program(f"""
func.func @main(%a: tensor<{shape}x{element}>) -> tensor<{result}> {{
  %z = arith.constant {start} : {element}
  %e = tensor.empty() : tensor<{result}>
  %f = linalg.fill ins(%z : {element}) outs(%e : tensor<{result}>) -> tensor<{result}>
  %r = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}}
    ins(%a : tensor<{shape}x{element}>) outs(%f : tensor<{result}>) {{
    ^bb0(%x: {element}, %acc: {element}):
      %y = {operation} %x, %acc : {element}
      linalg.yield %y : {element}
  }} -> tensor<{result}>
  return %r : tensor<{result}>
}}
""")


def softmax(shape: str, axis: int, element: str = "f32", sizes: tuple[int, ...] = ()) -> Program:
    t = f"tensor<{shape}x{element}>"
    empty = f"tensor.empty() : {t}"
    prefix = ""
    if "?" in shape:
        prefix = f"%i = arith.constant {shape.split('x').index('?')} : index\n  %d = tensor.dim %a, %i : {t}"
        empty = f"tensor.empty(%d) : {t}"
    return Program(
        f"""
func.func @main(%a: {t}) -> {t} {{
  {prefix}
  %e = {empty}
  %r = linalg.softmax dimension({axis}) ins(%a : {t}) outs(%e : {t}) -> {t}
  return %r : {t}
}}
""",
        sizes,
    )


PROGRAMS: dict[str, Program] = {}

for _op in (
    "absf ceil floor round roundeven trunc sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh exp exp2 "
    "expm1 log log1p log2 log10 sqrt rsqrt erf cbrt"
).split():
    _range = {"low": -0.95, "high": 0.95} if _op in ("asin", "acos", "atanh") else {}
    if _op in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "acosh"):
        _range = {"low": 1.0, "high": 9.0}
    PROGRAMS[f"math_{_op}"] = unary(f"math.{_op}", **_range)
for _op in ("absf", "floor", "sqrt", "exp", "tanh"):
    PROGRAMS[f"math_{_op}_f64"] = unary(f"math.{_op}", "f64", low=0.1, high=3.0)
for _op in ("math.absf", "arith.negf", "math.exp", "math.tanh"):
    PROGRAMS[f"{_op.replace('.', '_')}_f16"] = unary(_op, "f16")
for _op in ("absi", "ctlz", "cttz", "ctpop"):
    for _type in ("i8", "i16", "i32", "i64"):
        PROGRAMS[f"math_{_op}_{_type}"] = unary(f"math.{_op}", _type, low=-1000, high=1000)
for _op in ("powf", "atan2", "copysign"):
    PROGRAMS[f"math_{_op}"] = binary(f"math.{_op}", "f32", low=0.2, high=3.0)
for _op in ("addf", "subf", "mulf", "divf", "remf", "minimumf", "maximumf", "minnumf", "maxnumf"):
    for _type in ("f16", "f32", "f64", "bf16") if _op in ("addf", "divf", "maximumf") else ("f32",):
        if _type != "bf16":
            PROGRAMS[f"arith_{_op}_{_type}"] = binary(f"arith.{_op}", _type)
for _op in ("addi", "subi", "muli", "andi", "ori", "xori", "minsi", "maxsi", "minui", "maxui"):
    for _type in (
        ("i1", "i8", "i16", "i32", "i64") if _op in ("andi", "ori", "xori") else ("i8", "i16", "i32", "i64")
    ):
        PROGRAMS[f"arith_{_op}_{_type}"] = binary(f"arith.{_op}", _type, low=-1000, high=1000)
for _op in ("divsi", "divui", "remsi", "remui", "floordivsi", "ceildivsi", "shli", "shrsi", "shrui"):
    for _type in ("i8", "i16", "i32", "i64"):
        PROGRAMS[f"arith_{_op}_{_type}"] = binary(f"arith.{_op}", _type, low=1, high=7)
PROGRAMS["arith_mulsi_extended"] = Program(
    generic("i32,i32", "i32", "%l, %h = arith.mulsi_extended %a0, %a1 : i32\n %y = arith.xori %l, %h : i32"),
    low=-(2**31),
    high=2**31 - 1,
)
PROGRAMS["arith_mului_extended"] = Program(
    generic("i32,i32", "i32", "%l, %h = arith.mului_extended %a0, %a1 : i32\n %y = arith.xori %l, %h : i32"),
    low=-(2**31),
    high=2**31 - 1,
)
PROGRAMS["arith_addui_extended"] = Program(
    generic(
        "i32,i32",
        "i32",
        "%l, %c = arith.addui_extended %a0, %a1 : i32, i1\n"
        " %x = arith.extui %c : i1 to i32\n %y = arith.subi %l, %x : i32",
    ),
    low=-(2**31),
    high=2**31 - 1,
)
for _predicate in (
    "oeq",
    "ogt",
    "oge",
    "olt",
    "ole",
    "one",
    "ord",
    "ueq",
    "ugt",
    "uge",
    "ult",
    "ule",
    "une",
    "uno",
):
    PROGRAMS[f"cmpf_{_predicate}"] = compare(f"arith.cmpf {_predicate}", "f32")
for _predicate in ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"):
    PROGRAMS[f"cmpi_{_predicate}"] = compare(f"arith.cmpi {_predicate}", "i32")
    PROGRAMS[f"cmpi_{_predicate}_i8"] = compare(f"arith.cmpi {_predicate}", "i8")
for _op, _source, _target in (
    ("sitofp", "i32", "f32"),
    ("uitofp", "i32", "f32"),
    ("sitofp", "i8", "f32"),
    ("uitofp", "i8", "f32"),
    ("sitofp", "i64", "f64"),
    ("uitofp", "i1", "f32"),
    ("fptosi", "f32", "i32"),
    ("fptosi", "f32", "i8"),
    ("fptosi", "f64", "i64"),
    ("extsi", "i8", "i32"),
    ("extui", "i8", "i32"),
    ("extsi", "i32", "i64"),
    ("extui", "i1", "i32"),
    ("extsi", "i1", "i8"),
    ("trunci", "i32", "i8"),
    ("trunci", "i64", "i32"),
    ("trunci", "i64", "i16"),
    ("trunci", "i32", "i1"),
    ("extf", "f16", "f32"),
    ("truncf", "f32", "f16"),
    ("extf", "f32", "f64"),
    ("truncf", "f64", "f32"),
    ("bitcast", "i32", "f32"),
    ("bitcast", "f32", "i32"),
    ("bitcast", "f16", "i16"),
    ("bitcast", "i64", "f64"),
):
    PROGRAMS[f"{_op}_{_source}_{_target}"] = cast(f"arith.{_op}", _source, _target, low=-100, high=100)
PROGRAMS["fptoui_f32_i32"] = cast("arith.fptoui", "f32", "i32", low=0, high=100)
PROGRAMS["select"] = Program(generic("i1,f32,f32", "f32", "%y = arith.select %a0, %a1, %a2 : f32", rank=3))
PROGRAMS["fma"] = Program(generic("f32,f32,f32", "f32", "%y = math.fma %a0, %a1, %a2 : f32"))
PROGRAMS["fpowi"] = Program(generic("f32,i32", "f32", "%y = math.fpowi %a0, %a1 : f32, i32"), low=1, high=4)
PROGRAMS["f16_through_f32"] = Program(
    generic(
        "f16,f16",
        "f16",
        "%l = arith.extf %a0 : f16 to f32\n %r = arith.extf %a1 : f16 to f32\n"
        " %s = arith.mulf %l, %r : f32\n %y = arith.truncf %s : f32 to f16",
    )
)

PROGRAMS["matmul_f32_odd"] = matmul("5", "53", "37", "f32", "f32")
PROGRAMS["matmul_f32_64"] = matmul("64", "64", "64", "f32", "f32")
PROGRAMS["matmul_f32_128x256x96"] = matmul("128", "256", "96", "f32", "f32")
PROGRAMS["matmul_f64"] = matmul("8", "12", "20", "f64", "f64")
PROGRAMS["matmul_f16"] = matmul("32", "32", "32", "f16", "f16")
PROGRAMS["matmul_i32"] = matmul("8", "16", "12", "i32", "i32")
PROGRAMS["matmul_i64"] = matmul("8", "16", "12", "i64", "i64")
PROGRAMS["matmul_dynamic"] = matmul("?", "16", "24", "f32", "f32", (7,))
PROGRAMS["matvec"] = matmul("64", "1", "128", "f32", "f32")
PROGRAMS["vecmat"] = matmul("1", "64", "128", "f32", "f32")
PROGRAMS["matmul_i8_i32"] = Program(
    """
func.func @main(%a: tensor<16x32xi8>, %b: tensor<32x16xi8>) -> tensor<16x16xi32> {
  %z = arith.constant 0 : i32
  %e = tensor.empty() : tensor<16x16xi32>
  %f = linalg.fill ins(%z : i32) outs(%e : tensor<16x16xi32>) -> tensor<16x16xi32>
  %r = linalg.matmul ins(%a, %b : tensor<16x32xi8>, tensor<32x16xi8>) outs(%f : tensor<16x16xi32>) -> tensor<16x16xi32>
  return %r : tensor<16x16xi32>
}
""",
    low=-128,
    high=127,
)
PROGRAMS["batch_matmul"] = Program("""
func.func @main(%a: tensor<3x5x16xf32>, %b: tensor<3x16x9xf32>) -> tensor<3x5x9xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3x5x9xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<3x5x9xf32>) -> tensor<3x5x9xf32>
  %r = linalg.batch_matmul ins(%a, %b : tensor<3x5x16xf32>, tensor<3x16x9xf32>)
    outs(%f : tensor<3x5x9xf32>) -> tensor<3x5x9xf32>
  return %r : tensor<3x5x9xf32>
}
""")
PROGRAMS["conv2d"] = Program("""
func.func @main(%a: tensor<1x12x12x3xf32>, %b: tensor<3x3x3x8xf32>) -> tensor<1x10x10x8xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x10x10x8xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<1x10x10x8xf32>) -> tensor<1x10x10x8xf32>
  %r = linalg.conv_2d_nhwc_hwcf {strides = dense<1> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}
    ins(%a, %b : tensor<1x12x12x3xf32>, tensor<3x3x3x8xf32>) outs(%f : tensor<1x10x10x8xf32>) -> tensor<1x10x10x8xf32>
  return %r : tensor<1x10x10x8xf32>
}
""")
PROGRAMS["depthwise_conv2d"] = Program("""
func.func @main(%a: tensor<1x13x13x8xf32>, %b: tensor<3x3x8xf32>) -> tensor<1x6x6x8xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<1x6x6x8xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<1x6x6x8xf32>) -> tensor<1x6x6x8xf32>
  %r = linalg.depthwise_conv_2d_nhwc_hwc {strides = dense<2> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}
    ins(%a, %b : tensor<1x13x13x8xf32>, tensor<3x3x8xf32>) outs(%f : tensor<1x6x6x8xf32>) -> tensor<1x6x6x8xf32>
  return %r : tensor<1x6x6x8xf32>
}
""")
PROGRAMS["pooling_max"] = Program("""
func.func @main(%a: tensor<1x11x11x4xf32>) -> tensor<1x5x5x4xf32> {
  %z = arith.constant 0xFF800000 : f32
  %w = tensor.empty() : tensor<3x3xf32>
  %e = tensor.empty() : tensor<1x5x5x4xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<1x5x5x4xf32>) -> tensor<1x5x5x4xf32>
  %r = linalg.pooling_nhwc_max {strides = dense<2> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}
    ins(%a, %w : tensor<1x11x11x4xf32>, tensor<3x3xf32>) outs(%f : tensor<1x5x5x4xf32>) -> tensor<1x5x5x4xf32>
  return %r : tensor<1x5x5x4xf32>
}
""")
PROGRAMS["pooling_sum"] = Program(
    PROGRAMS["pooling_max"]
    .source.replace("pooling_nhwc_max", "pooling_nhwc_sum")
    .replace("0xFF800000", "0.0")
)

for _axis in (0, 1, 2):
    PROGRAMS[f"reduce_add_axis{_axis}"] = reduction("9x10x33", _axis, "f32", "arith.addf", "0.0")
PROGRAMS["reduce_add_long"] = reduction("4x4096", 1, "f32", "arith.addf", "0.0")
PROGRAMS["reduce_max_long"] = reduction("4x4096", 1, "f32", "arith.maximumf", "0xFF800000")
PROGRAMS["reduce_add_all"] = reduction("1024", 0, "f32", "arith.addf", "0.0")
PROGRAMS["reduce_mul_i32"] = reduction("16x64", 1, "i32", "arith.muli", "1")
PROGRAMS["reduce_min_i64"] = reduction("16x64", 1, "i64", "arith.minsi", "9223372036854775807")
PROGRAMS["reduce_max_i8"] = reduction("16x64", 1, "i8", "arith.maxsi", "-128")
PROGRAMS["reduce_or_i32"] = reduction("16x512", 1, "i32", "arith.ori", "0")
PROGRAMS["reduce_add_f64"] = reduction("8x65", 1, "f64", "arith.addf", "0.0")
PROGRAMS["reduce_add_f16"] = reduction("8x64", 1, "f16", "arith.addf", "0.0")
PROGRAMS["softmax_axis1"] = softmax("5x11", 1)
PROGRAMS["softmax_axis0"] = softmax("16x40", 0)
PROGRAMS["softmax_long"] = softmax("4x1024", 1)
PROGRAMS["softmax_dynamic"] = softmax("?x32", 1, sizes=(9,))
PROGRAMS["softmax_f16"] = softmax("4x64", 1, "f16")
PROGRAMS["argmax"] = Program("""
func.func @main(%a: tensor<6x37xf32>) -> (tensor<6xf32>, tensor<6xi32>) {
  %ninf = arith.constant 0xFF800000 : f32
  %z = arith.constant 0 : i32
  %e0 = tensor.empty() : tensor<6xf32>
  %e1 = tensor.empty() : tensor<6xi32>
  %f0 = linalg.fill ins(%ninf : f32) outs(%e0 : tensor<6xf32>) -> tensor<6xf32>
  %f1 = linalg.fill ins(%z : i32) outs(%e1 : tensor<6xi32>) -> tensor<6xi32>
  %r:2 = linalg.generic {indexing_maps = [affine_map<(i,j) -> (i,j)>, affine_map<(i,j) -> (i)>, affine_map<(i,j) -> (i)>],
      iterator_types = ["parallel", "reduction"]}
    ins(%a : tensor<6x37xf32>) outs(%f0, %f1 : tensor<6xf32>, tensor<6xi32>) {
    ^bb0(%x: f32, %m: f32, %mi: i32):
      %j = linalg.index 1 : index
      %ji = arith.index_cast %j : index to i32
      %g = arith.cmpf ogt, %x, %m : f32
      %n = arith.select %g, %x, %m : f32
      %ni = arith.select %g, %ji, %mi : i32
      linalg.yield %n, %ni : f32, i32
  } -> (tensor<6xf32>, tensor<6xi32>)
  return %r#0, %r#1 : tensor<6xf32>, tensor<6xi32>
}
""")
PROGRAMS["gather"] = Program(
    """
func.func @main(%a: tensor<17x8xf32>, %i: tensor<5xi32>) -> tensor<5x8xf32> {
  %e = tensor.empty() : tensor<5x8xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i,j) -> (i)>, affine_map<(i,j) -> (i,j)>],
      iterator_types = ["parallel", "parallel"]} ins(%i : tensor<5xi32>) outs(%e : tensor<5x8xf32>) {
    ^bb0(%k: i32, %o: f32):
      %k1 = arith.index_cast %k : i32 to index
      %j = linalg.index 1 : index
      %x = tensor.extract %a[%k1, %j] : tensor<17x8xf32>
      linalg.yield %x : f32
  } -> tensor<5x8xf32>
  return %r : tensor<5x8xf32>
}
""",
    low=0,
    high=16,
)
PROGRAMS["transpose"] = Program("""
func.func @main(%a: tensor<33x70xf32>) -> tensor<70x33xf32> {
  %e = tensor.empty() : tensor<70x33xf32>
  %r = linalg.transpose ins(%a : tensor<33x70xf32>) outs(%e : tensor<70x33xf32>) permutation = [1, 0]
  return %r : tensor<70x33xf32>
}
""")
PROGRAMS["transpose_f16"] = Program(PROGRAMS["transpose"].source.replace("f32", "f16"))
PROGRAMS["transpose_64"] = Program(
    PROGRAMS["transpose"].source.replace("33x70", "64x128").replace("70x33", "128x64")
)
PROGRAMS["concat"] = Program("""
func.func @main(%a: tensor<3x7xf32>, %b: tensor<3x5xf32>) -> tensor<3x12xf32> {
  %r = tensor.concat dim(1) %a, %b : (tensor<3x7xf32>, tensor<3x5xf32>) -> tensor<3x12xf32>
  return %r : tensor<3x12xf32>
}
""")
PROGRAMS["pad"] = Program("""
func.func @main(%a: tensor<3x7xf32>) -> tensor<6x12xf32> {
  %z = arith.constant 1.5 : f32
  %r = tensor.pad %a low[1, 2] high[2, 3] {
  ^bb0(%i: index, %j: index):
    tensor.yield %z : f32
  } : tensor<3x7xf32> to tensor<6x12xf32>
  return %r : tensor<6x12xf32>
}
""")
PROGRAMS["slice"] = Program("""
func.func @main(%a: tensor<16x20xi8>) -> tensor<5x6xi8> {
  %r = tensor.extract_slice %a[2, 3] [5, 6] [2, 3] : tensor<16x20xi8> to tensor<5x6xi8>
  return %r : tensor<5x6xi8>
}
""")
PROGRAMS["broadcast_add"] = Program(
    """
func.func @main(%a: tensor<?x12xf32>, %b: tensor<12xf32>) -> tensor<?x12xf32> {
  %i = arith.constant 0 : index
  %d = tensor.dim %a, %i : tensor<?x12xf32>
  %e = tensor.empty(%d) : tensor<?x12xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i,j) -> (i,j)>, affine_map<(i,j) -> (j)>, affine_map<(i,j) -> (i,j)>],
      iterator_types = ["parallel", "parallel"]}
    ins(%a, %b : tensor<?x12xf32>, tensor<12xf32>) outs(%e : tensor<?x12xf32>) {
    ^bb0(%x: f32, %y: f32, %o: f32):
      %s = arith.addf %x, %y : f32
      linalg.yield %s : f32
  } -> tensor<?x12xf32>
  return %r : tensor<?x12xf32>
}
""",
    (19,),
)
PROGRAMS["dynamic_2d"] = Program(
    """
func.func @main(%a: tensor<?x?xf32>, %b: tensor<?x?xf32>) -> tensor<?x?xf32> {
  %i0 = arith.constant 0 : index
  %i1 = arith.constant 1 : index
  %z = arith.constant 0.0 : f32
  %m = tensor.dim %a, %i0 : tensor<?x?xf32>
  %n = tensor.dim %b, %i1 : tensor<?x?xf32>
  %e = tensor.empty(%m, %n) : tensor<?x?xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<?x?xf32>) -> tensor<?x?xf32>
  %r = linalg.matmul ins(%a, %b : tensor<?x?xf32>, tensor<?x?xf32>) outs(%f : tensor<?x?xf32>) -> tensor<?x?xf32>
  return %r : tensor<?x?xf32>
}
""",
    (5, 9, 9, 13),
)
PROGRAMS["large_constant"] = Program(
    """
func.func @main(%i: tensor<9xi32>) -> tensor<9xf32> {
  %t = arith.constant dense<[1.0, 2.5, -3.0, 0x7F800000, 0.1, 1.0e-40, 5.0, 6.0, 7.0, 8.0]> : tensor<10xf32>
  %e = tensor.empty() : tensor<9xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>], iterator_types = ["parallel"]}
    ins(%i : tensor<9xi32>) outs(%e : tensor<9xf32>) {
    ^bb0(%k: i32, %o: f32):
      %k1 = arith.index_cast %k : i32 to index
      %x = tensor.extract %t[%k1] : tensor<10xf32>
      linalg.yield %x : f32
  } -> tensor<9xf32>
  return %r : tensor<9xf32>
}
""",
    low=0,
    high=9,
)
PROGRAMS["scan"] = Program("""
func.func @main(%a: tensor<12x9xf32>) -> tensor<12x9xf32> {
  %e = tensor.empty() : tensor<12x9xf32>
  %z = arith.constant 0.0 : f32
  %acc0 = tensor.empty() : tensor<12xf32>
  %acc = linalg.fill ins(%z : f32) outs(%acc0 : tensor<12xf32>) -> tensor<12xf32>
  %r:2 = iree_linalg_ext.scan dimension(1) inclusive(true)
    ins(%a : tensor<12x9xf32>) outs(%e, %acc : tensor<12x9xf32>, tensor<12xf32>) {
    ^bb0(%x: f32, %y: f32):
      %s = arith.addf %x, %y : f32
      iree_linalg_ext.yield %s : f32
  } -> tensor<12x9xf32>, tensor<12xf32>
  return %r#0 : tensor<12x9xf32>
}
""")
PROGRAMS["sort"] = Program(
    """
func.func @main(%a: tensor<4x21xi32>) -> tensor<4x21xi32> {
  %r = iree_linalg_ext.sort dimension(1) outs(%a : tensor<4x21xi32>) {
    ^bb0(%x: i32, %y: i32):
      %c = arith.cmpi sgt, %x, %y : i32
      iree_linalg_ext.yield %c : i1
  } -> tensor<4x21xi32>
  return %r : tensor<4x21xi32>
}
""",
    low=-1000,
    high=1000,
)
PROGRAMS["scatter"] = Program(
    """
func.func @main(%o: tensor<10x3xf32>, %i: tensor<4x1xi32>, %u: tensor<4x3xf32>) -> tensor<10x3xf32> {
  %r = iree_linalg_ext.scatter dimension_map = [0] unique_indices(true)
    ins(%u, %i : tensor<4x3xf32>, tensor<4x1xi32>) outs(%o : tensor<10x3xf32>) {
    ^bb0(%x: f32, %y: f32):
      iree_linalg_ext.yield %x : f32
  } -> tensor<10x3xf32>
  return %r : tensor<10x3xf32>
}
""",
    low=0,
    high=9,
)
PROGRAMS["layer_norm"] = Program("""
func.func @main(%a: tensor<6x48xf32>) -> tensor<6x48xf32> {
  %z = arith.constant 0.0 : f32
  %n = arith.constant 48.0 : f32
  %eps = arith.constant 1.0e-5 : f32
  %e = tensor.empty() : tensor<6xf32>
  %e2 = tensor.empty() : tensor<6x48xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<6xf32>) -> tensor<6xf32>
  %s = linalg.reduce ins(%a : tensor<6x48xf32>) outs(%f : tensor<6xf32>) dimensions = [1]
    (%x: f32, %acc: f32) { %y = arith.addf %x, %acc : f32
      linalg.yield %y : f32 }
  %d = linalg.generic {indexing_maps = [affine_map<(i,j) -> (i,j)>, affine_map<(i,j) -> (i)>, affine_map<(i,j) -> (i,j)>],
      iterator_types = ["parallel", "parallel"]}
    ins(%a, %s : tensor<6x48xf32>, tensor<6xf32>) outs(%e2 : tensor<6x48xf32>) {
    ^bb0(%x: f32, %m: f32, %o: f32):
      %mean = arith.divf %m, %n : f32
      %c = arith.subf %x, %mean : f32
      linalg.yield %c : f32
  } -> tensor<6x48xf32>
  %v = linalg.generic {indexing_maps = [affine_map<(i,j) -> (i,j)>, affine_map<(i,j) -> (i)>],
      iterator_types = ["parallel", "reduction"]} ins(%d : tensor<6x48xf32>) outs(%f : tensor<6xf32>) {
    ^bb0(%x: f32, %acc: f32):
      %q = arith.mulf %x, %x : f32
      %y = arith.addf %q, %acc : f32
      linalg.yield %y : f32
  } -> tensor<6xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(i,j) -> (i,j)>, affine_map<(i,j) -> (i)>, affine_map<(i,j) -> (i,j)>],
      iterator_types = ["parallel", "parallel"]}
    ins(%d, %v : tensor<6x48xf32>, tensor<6xf32>) outs(%e2 : tensor<6x48xf32>) {
    ^bb0(%x: f32, %q: f32, %o: f32):
      %w = arith.divf %q, %n : f32
      %t = arith.addf %w, %eps : f32
      %h = math.rsqrt %t : f32
      %y = arith.mulf %x, %h : f32
      linalg.yield %y : f32
  } -> tensor<6x48xf32>
  return %r : tensor<6x48xf32>
}
""")
PROGRAMS["while_in_kernel"] = Program(
    generic(
        "i32",
        "i32",
        """%one = arith.constant 1 : i32
      %zero = arith.constant 0 : i32
      %two = arith.constant 2 : i32
      %three = arith.constant 3 : i32
      %w:2 = scf.while (%v = %a0, %n = %zero) : (i32, i32) -> (i32, i32) {
        %c = arith.cmpi sgt, %v, %one : i32
        scf.condition(%c) %v, %n : i32, i32
      } do {
      ^bb0(%v: i32, %n: i32):
        %odd = arith.andi %v, %one : i32
        %is = arith.cmpi ne, %odd, %zero : i32
        %next = scf.if %is -> i32 {
          %t = arith.muli %v, %three : i32
          %u = arith.addi %t, %one : i32
          scf.yield %u : i32
        } else {
          %h = arith.divui %v, %two : i32
          scf.yield %h : i32
        }
        %n1 = arith.addi %n, %one : i32
        scf.yield %next, %n1 : i32, i32
      }
      %y = arith.addi %w#1, %zero : i32""",
    ),
    low=1,
    high=60,
)


def main(arguments: list[str]) -> int:
    """Compare every program of the corpus, or those that are named; returns how many differ or fail."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from conftest import compile_source, run_tool

    import halgpu

    target = next((a.partition("=")[2] for a in arguments if a.startswith("--target=")), "")
    flags = [f"--iree-vulkan-target={target}"] if target else []
    names = [a for a in arguments if not a.startswith("--")] or list(PROGRAMS)
    wrong = 0
    for name in names:
        # The default Vulkan target has no 64-bit floats, and stock iree-compile then narrows parameters too.
        inputs = [a.astype("f4") if a.dtype == np.float64 else a for a in PROGRAMS[name].inputs()]
        try:
            with tempfile.TemporaryDirectory() as work:
                cpu = Path(work) / "cpu.vmfb"
                cpu.write_bytes(compile_source(joined([name]), "llvm-cpu", "--iree-input-demote-f64-to-f32"))
                module = halgpu.load(compile_source(joined([name]), "vulkan", *flags), device="opencl")
                check_same(call(module[name], inputs), run_by_iree(run_tool, cpu, name, inputs, Path(work)))
        except Exception as problem:
            wrong += 1
            print(f"{name}: {type(problem).__name__}: {str(problem).strip()[:400]}")
    print(f"{len(names) - wrong} of {len(names)} programs agree")
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
