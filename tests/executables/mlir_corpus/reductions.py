"""Reductions over every set of axes, softmax, argmax and layer norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import prod

from .program import ANY_INTEGER, FLOATS, INTEGERS, Domain, Program

_LEAST = {"f16": "0xFC00", "bf16": "0xFF80", "f32": "0xFF800000", "f64": "0xFFF0000000000000"}
_GREATEST = {"f16": "0x7C00", "bf16": "0x7F80", "f32": "0x7F800000", "f64": "0x7FF0000000000000"}


def limits(kind: str) -> tuple[str, str]:
    """MLIR's text of the least and the greatest value of a type."""
    if kind in _LEAST:
        return _LEAST[kind], _GREATEST[kind]
    half = 1 << (int(kind[1:]) - 1)
    return str(-half), str(half - 1)


def _count(shape: str, axes: Sequence[int]) -> int:
    """How many elements are reduced to one; a dynamic size counts as one."""
    return prod(int(size) for i, size in enumerate(shape.split("x")) if i in axes and size != "?")


def reduction(
    shape: str, axes: Sequence[int], kind: str, operation: str, start: str, sizes: tuple[int, ...] = ()
) -> Program:
    """Reduce `axes` of a tensor by one operation of two operands."""
    dims = [f"d{i}" for i in range(shape.count("x") + 1)]
    kept = [d for i, d in enumerate(dims) if i not in axes]
    lengths = [s for i, s in enumerate(shape.split("x")) if i not in axes]
    result = f"tensor<{''.join(s + 'x' for s in lengths)}{kind}>"
    iterators = ", ".join('"reduction"' if i in axes else '"parallel"' for i in range(len(dims)))
    maps = f"affine_map<({', '.join(dims)}) -> ({', '.join(dims)})>"
    maps += f", affine_map<({', '.join(dims)}) -> ({', '.join(kept)})>"
    dynamic = [i for i, s in enumerate(shape.split("x")) if s == "?" and i not in axes]
    lines = "".join(
        f"%i{i} = arith.constant {i} : index\n  %n{i} = tensor.dim %a, %i{i} : tensor<{shape}x{kind}>\n  "
        for i in dynamic
    )
    source = f"""
func.func @main(%a: tensor<{shape}x{kind}>) -> {result} {{
  {lines}%z = arith.constant {start} : {kind}
  %e = tensor.empty({", ".join(f"%n{i}" for i in dynamic)}) : {result}
  %f = linalg.fill ins(%z : {kind}) outs(%e : {result}) -> {result}
  %r = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}}
    ins(%a : tensor<{shape}x{kind}>) outs(%f : {result}) {{
    ^bb0(%x: {kind}, %acc: {kind}):
      %y = {operation} %x, %acc : {kind}
      linalg.yield %y : {kind}
  }} -> {result}
  return %r : {result}
}}
"""
    domain = ANY_INTEGER if kind in INTEGERS else Domain()
    # A sum's rounding grows with what was added, which may cancel: here a unit of the sum of magnitudes.
    return Program(source, sizes, (domain,), floor=max(1.0, _count(shape, axes) / 8))


def reductions(kind: str, operations: Mapping[str, str]) -> Program:
    """Rows reduced by several operations in one kernel; `operations` are given with what each starts from."""
    tensor, numbers = f"tensor<16x{kind}>", range(len(operations))
    outs, results = ", ".join(f"%f{i}" for i in numbers), ", ".join([tensor] * len(operations))
    fills = "\n  ".join(
        f"%z{i} = arith.constant {start} : {kind}\n  %e{i} = tensor.empty() : {tensor}\n"
        f"  %f{i} = linalg.fill ins(%z{i} : {kind}) outs(%e{i} : {tensor}) -> {tensor}"
        for i, start in enumerate(operations.values())
    )
    body = "\n      ".join(f"%y{i} = {op} %x, %acc{i} : {kind}" for i, op in enumerate(operations))
    maps = ", ".join(["affine_map<(i,j) -> (i,j)>", *["affine_map<(i,j) -> (i)>"] * len(operations)])
    several = len(operations) > 1
    returned = ", ".join(f"%r#{i}" for i in numbers) if several else "%r"
    source = f"""
func.func @main(%a: tensor<16x64x{kind}>) -> ({results}) {{
  {fills}
  %r{f":{len(operations)}" if several else ""} = linalg.generic {{indexing_maps = [{maps}],
      iterator_types = ["parallel", "reduction"]}}
    ins(%a : tensor<16x64x{kind}>) outs({outs} : {results}) {{
    ^bb0(%x: {kind}, {", ".join(f"%acc{i}: {kind}" for i in numbers)}):
      {body}
      linalg.yield {", ".join(f"%y{i}" for i in numbers)} : {", ".join([kind] * len(operations))}
  }} -> ({results})
  return {returned} : {results}
}}
"""
    domain = ANY_INTEGER if kind in INTEGERS else Domain()
    parts = {op: reductions(kind, {op: start}) for op, start in operations.items()} if several else {}
    return Program(source, (), (domain,), parts=parts)


def softmax(shape: str, axis: int, kind: str = "f32", sizes: tuple[int, ...] = ()) -> Program:
    tensor = f"tensor<{shape}x{kind}>"
    empty = f"tensor.empty() : {tensor}"
    prefix = ""
    if "?" in shape:
        at = shape.split("x").index("?")
        prefix = f"%i = arith.constant {at} : index\n  %d = tensor.dim %a, %i : {tensor}\n  "
        empty = f"tensor.empty(%d) : {tensor}"
    return Program(
        f"""
func.func @main(%a: {tensor}) -> {tensor} {{
  {prefix}%e = {empty}
  %r = linalg.softmax dimension({axis}) ins(%a : {tensor}) outs(%e : {tensor}) -> {tensor}
  return %r : {tensor}
}}
""",
        sizes,
    )


def argmax(kind: str, index: str) -> Program:
    """The largest value of each row and the first place where it stands."""
    least = limits(kind)[0]
    compare = "cmpf ogt" if kind in FLOATS else "cmpi sgt"
    return Program(f"""
func.func @main(%a: tensor<6x37x{kind}>) -> (tensor<6x{kind}>, tensor<6x{index}>) {{
  %least = arith.constant {least} : {kind}
  %z = arith.constant 0 : {index}
  %e0 = tensor.empty() : tensor<6x{kind}>
  %e1 = tensor.empty() : tensor<6x{index}>
  %f0 = linalg.fill ins(%least : {kind}) outs(%e0 : tensor<6x{kind}>) -> tensor<6x{kind}>
  %f1 = linalg.fill ins(%z : {index}) outs(%e1 : tensor<6x{index}>) -> tensor<6x{index}>
  %r:2 = linalg.generic {{indexing_maps = [affine_map<(i,j) -> (i,j)>, affine_map<(i,j) -> (i)>,
      affine_map<(i,j) -> (i)>], iterator_types = ["parallel", "reduction"]}}
    ins(%a : tensor<6x37x{kind}>) outs(%f0, %f1 : tensor<6x{kind}>, tensor<6x{index}>) {{
    ^bb0(%x: {kind}, %m: {kind}, %mi: {index}):
      %j = linalg.index 1 : index
      %ji = arith.index_cast %j : index to {index}
      %g = arith.{compare}, %x, %m : {kind}
      %n = arith.select %g, %x, %m : {kind}
      %ni = arith.select %g, %ji, %mi : {index}
      linalg.yield %n, %ni : {kind}, {index}
  }} -> (tensor<6x{kind}>, tensor<6x{index}>)
  return %r#0, %r#1 : tensor<6x{kind}>, tensor<6x{index}>
}}
""")


def layer_norm(kind: str) -> Program:
    rows = "affine_map<(i,j) -> (i)>"
    both = "affine_map<(i,j) -> (i,j)>"
    parallel = '["parallel", "parallel"]'
    return Program(f"""
func.func @main(%a: tensor<6x48x{kind}>) -> tensor<6x48x{kind}> {{
  %z = arith.constant 0.0 : {kind}
  %n = arith.constant 48.0 : {kind}
  %eps = arith.constant 1.0e-3 : {kind}
  %e = tensor.empty() : tensor<6x{kind}>
  %e2 = tensor.empty() : tensor<6x48x{kind}>
  %f = linalg.fill ins(%z : {kind}) outs(%e : tensor<6x{kind}>) -> tensor<6x{kind}>
  %s = linalg.reduce ins(%a : tensor<6x48x{kind}>) outs(%f : tensor<6x{kind}>) dimensions = [1]
    (%x: {kind}, %acc: {kind}) {{ %y = arith.addf %x, %acc : {kind}
      linalg.yield %y : {kind} }}
  %d = linalg.generic {{indexing_maps = [{both}, {rows}, {both}], iterator_types = {parallel}}}
    ins(%a, %s : tensor<6x48x{kind}>, tensor<6x{kind}>) outs(%e2 : tensor<6x48x{kind}>) {{
    ^bb0(%x: {kind}, %m: {kind}, %o: {kind}):
      %mean = arith.divf %m, %n : {kind}
      %c = arith.subf %x, %mean : {kind}
      linalg.yield %c : {kind}
  }} -> tensor<6x48x{kind}>
  %v = linalg.generic {{indexing_maps = [{both}, {rows}], iterator_types = ["parallel", "reduction"]}}
    ins(%d : tensor<6x48x{kind}>) outs(%f : tensor<6x{kind}>) {{
    ^bb0(%x: {kind}, %acc: {kind}):
      %q = arith.mulf %x, %x : {kind}
      %y = arith.addf %q, %acc : {kind}
      linalg.yield %y : {kind}
  }} -> tensor<6x{kind}>
  %r = linalg.generic {{indexing_maps = [{both}, {rows}, {both}], iterator_types = {parallel}}}
    ins(%d, %v : tensor<6x48x{kind}>, tensor<6x{kind}>) outs(%e2 : tensor<6x48x{kind}>) {{
    ^bb0(%x: {kind}, %q: {kind}, %o: {kind}):
      %w = arith.divf %q, %n : {kind}
      %t = arith.addf %w, %eps : {kind}
      %h = math.rsqrt %t : {kind}
      %y = arith.mulf %x, %h : {kind}
      linalg.yield %y : {kind}
  }} -> tensor<6x48x{kind}>
  return %r : tensor<6x48x{kind}>
}}
""")


def _operations(kind: str) -> dict[str, str]:
    """Reductions of a type other than its sum, with what each starts from."""
    if kind == "i1":
        return {"arith.andi": "true", "arith.ori": "false", "arith.xori": "false"}
    least, greatest = limits(kind)
    if kind in FLOATS:
        found = {"arith.mulf": "1.0", "arith.maximumf": least, "arith.minimumf": greatest}
        return {**found, "arith.maxnumf": least, "arith.minnumf": greatest}
    found = {"arith.muli": "1", "arith.maxsi": least, "arith.minsi": greatest}
    return {**found, "arith.maxui": "0", "arith.andi": "-1", "arith.ori": "0", "arith.xori": "0"}


def programs() -> dict[str, Program]:
    found = {}
    every = [axes for count in (1, 2, 3) for axes in combinations(range(3), count)]
    for kind in (*INTEGERS, *FLOATS):
        add, zero = ("arith.addf", "0.0") if kind in FLOATS else ("arith.addi", "0")
        for axes in every:
            name = f"reduce_add_{kind}_axes{''.join(map(str, axes))}"
            found[name] = reduction("6x10x32", axes, kind, add, zero)
        found[f"reduce_add_{kind}_dynamic"] = reduction("?x33", (1,), kind, add, zero, (9,))
        found[f"reduce_add_{kind}_long"] = reduction("4x4096", (1,), kind, add, zero)
    for kind in ("i1", *INTEGERS, *FLOATS):
        found[f"reduce_{kind}"] = reductions(kind, _operations(kind))
    for kind in FLOATS:
        found[f"softmax_{kind}"] = softmax("5x11", 1, kind)
        found[f"softmax_{kind}_axis0"] = softmax("16x40", 0, kind)
        found[f"layer_norm_{kind}"] = layer_norm(kind)
    found["softmax_f32_axis1"] = softmax("3x16x8", 1)
    found["softmax_f32_long"] = softmax("4x1024", 1)
    found["softmax_f32_dynamic"] = softmax("?x32", 1, sizes=(9,))
    found["softmax_f32_dynamic_row"] = softmax("4x?", 1, sizes=(45,))
    for kind, index in (("f32", "i32"), ("f32", "i64"), ("f16", "i32"), ("i8", "i32"), ("i64", "i64")):
        found[f"argmax_{kind}_{index}"] = argmax(kind, index)
    return found
