"""Elementwise programs: every operation of `arith` and `math` on every element type."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from .program import ANY, ANY_INTEGER, FLOATS, INTEGERS, Domain, Program, on_unsigned

# Vectors of four fit the first; nothing fits the second; both hold all pairs of special values.
EVEN, ODD = "4x64", "7x37"
# A result's type and the statements that compute %y from the parameters' elements %a0, %a1…
Result = tuple[str, str]


def elementwise(inputs: str, results: Mapping[str, Result], shape: str = EVEN, **options: Any) -> Program:
    """One kernel over `inputs` (element types, by comma) that computes all the results."""
    parts = {}
    if len(results) > 1:
        parts = {label: elementwise(inputs, {label: r}, shape, **options) for label, r in results.items()}
    return Program(_source(inputs.split(","), list(results.values()), shape), parts=parts, **options)


def _source(kinds: list[str], results: list[Result], shape: str) -> str:
    rank = shape.count("x") + 1
    axes = ", ".join(f"d{i}" for i in range(rank))
    maps = ", ".join([f"affine_map<({axes}) -> ({axes})>"] * (len(kinds) + len(results)))
    iterators = ", ".join(['"parallel"'] * rank)
    ins = [f"tensor<{shape}x{kind}>" for kind in kinds]
    outs = [f"tensor<{shape}x{kind}>" for kind, _ in results]
    dynamic = [i for i, size in enumerate(shape.split("x")) if size == "?"]
    dims = "".join(
        f"%i{i} = arith.constant {i} : index\n  %d{i} = tensor.dim %p0, %i{i} : {ins[0]}\n  " for i in dynamic
    )
    sizes = ", ".join(f"%d{i}" for i in dynamic)
    empties = "\n  ".join(f"%e{i} = tensor.empty({sizes}) : {kind}" for i, kind in enumerate(outs))
    body = "\n      ".join(
        re.sub(r"%([a-z]+)(?![a-z0-9])", rf"%\g<1>_{i}", text) for i, (_, text) in enumerate(results)
    )
    yielded = ", ".join(f"%y_{i}" for i in range(len(results)))
    arguments = [f"%a{i}: {kind}" for i, kind in enumerate(kinds)]
    arguments += [f"%o{i}: {kind}" for i, (kind, _) in enumerate(results)]
    several = f":{len(results)}" if len(results) > 1 else ""
    returned = ", ".join(f"%r#{i}" for i in range(len(results))) if several else "%r"
    return f"""
func.func @main({", ".join(f"%p{i}: {kind}" for i, kind in enumerate(ins))}) -> ({", ".join(outs)}) {{
  {dims}{empties}
  %r{several} = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}}
    ins({", ".join(f"%p{i}" for i in range(len(ins)))} : {", ".join(ins)})
    outs({", ".join(f"%e{i}" for i in range(len(outs)))} : {", ".join(outs)}) {{
    ^bb0({", ".join(arguments)}):
      {body}
      linalg.yield {yielded} : {", ".join(kind for kind, _ in results)}
  }} -> ({", ".join(outs)})
  return {returned} : {", ".join(outs)}
}}
"""


def unary(operations: Iterable[str], element: str) -> dict[str, Result]:
    return {op: (element, f"%y = {op} %a0 : {element}") for op in operations}


def binary(operations: Iterable[str], element: str) -> dict[str, Result]:
    return {op: (element, f"%y = {op} %a0, %a1 : {element}") for op in operations}


def compare(operation: str, predicates: str, element: str) -> dict[str, Result]:
    return {p: ("i1", f"%y = arith.{operation} {p}, %a0, %a1 : {element}") for p in predicates.split()}


def cast(operation: str, source: str, targets: Iterable[str]) -> dict[str, Result]:
    return {f"{operation}_{t}": (t, f"%y = arith.{operation} %a0 : {source} to {t}") for t in targets}


def arith(names: str) -> list[str]:
    return [f"arith.{name}" for name in names.split()]


def math(names: str) -> list[str]:
    return [f"math.{name}" for name in names.split()]


# Sums and such are exact in IEEE arithmetic; Vulkan allows divisions 2.5 units.
EXACT = {"ulps": 1, "floor": 0.0, "relative_to_largest": False}
# IREE's CPU code approximates these by polynomials, OpenCL by its own library.
NEAR = {"ulps": 32, "floor": 1.0, "relative_to_largest": False}

INTEGER_PREDICATES = "eq ne slt sle sgt sge ult ule ugt uge"
FLOAT_PREDICATES = "oeq ogt oge olt ole one ord ueq ugt uge ult ule une uno"
POSITIVE = (Domain(0.25, 9.0),)
INSIDE = (Domain(-0.95, 0.95),)
MATH = {
    "trigonometry": (math("sin cos tan"), {}),
    "arcs": (math("asin acos atan"), {"domains": INSIDE}),
    "hyperbolic": (math("sinh cosh tanh"), {}),
    "area": (math("asinh atanh"), {"domains": INSIDE}),
    "acosh": (math("acosh"), {"domains": (Domain(1.0, 9.0),)}),
    "exponential": (math("exp exp2 expm1"), {}),
    "logarithms": (math("log log2 log10 log1p"), {"domains": POSITIVE}),
    "roots": (math("sqrt rsqrt cbrt"), {"domains": POSITIVE}),
    "erf": (math("erf"), {}),
}


def integers(kind: str) -> dict[str, Program]:
    width = int(kind[1:])
    any_pair = {"domains": (ANY_INTEGER,)}
    # No division by zero, no least value by -1: both are undefined.
    dividing = {"domains": (ANY_INTEGER, replace(ANY_INTEGER, without=(0, -1)))}
    shifting = {"domains": (ANY_INTEGER, Domain(0, width - 1))}
    found = {
        "arith": (arith("addi subi muli andi ori xori"), any_pair),
        "minmax": (arith("minsi maxsi minui maxui"), any_pair),
        "divide": (arith("divsi divui remsi remui floordivsi ceildivsi ceildivui"), dividing),
        "shift": (arith("shli shrsi shrui"), shifting),
    }
    programs = {}
    for name, (operations, options) in found.items():
        # Vectors and single elements are compiled differently; divisions differ most.
        for suffix, shape in (("", EVEN), ("_odd", ODD)) if name in ("arith", "divide") else (("", EVEN),):
            results = binary(operations, kind)
            programs[f"{name}_{kind}{suffix}"] = elementwise(f"{kind},{kind}", results, shape, **options)
    programs[f"bits_{kind}"] = elementwise(kind, unary(math("absi ctlz cttz ctpop"), kind), **any_pair)
    results = compare("cmpi", INTEGER_PREDICATES, kind)
    programs[f"compare_{kind}"] = elementwise(f"{kind},{kind}", results, **any_pair)
    select = {"select": (kind, "%y = arith.select %a0, %a1, %a2 : " + kind)}
    programs[f"select_{kind}"] = elementwise(
        f"i1,{kind},{kind}", select, ODD, domains=(Domain(), ANY_INTEGER)
    )
    programs[f"wide_{kind}"] = elementwise(f"{kind},{kind}", _wide(kind), **any_pair)
    return programs


def _wide(kind: str) -> dict[str, Result]:
    """Both halves of products and sums."""
    products = ("arith.mulsi_extended", "arith.mului_extended")
    found = {op: (kind, f"%l, %y = {op} %a0, %a1 : {kind}") for op in products}
    carry = f"%l, %c = arith.addui_extended %a0, %a1 : {kind}, i1\n %y = arith.extui %c : i1 to {kind}"
    return {**found, "arith.addui_extended": (kind, carry)}


def floats(kind: str) -> dict[str, Program]:
    pair, both = f"{kind},{kind}", {"domains": (ANY,), **EXACT}
    programs = {}
    for suffix, shape in (("", EVEN), ("_odd", ODD)):
        results = {**binary(arith("addf subf mulf"), kind), **binary(math("copysign"), kind)}
        programs[f"arith_{kind}{suffix}"] = elementwise(pair, results, shape, **both)
        results = binary(arith("minimumf maximumf minnumf maxnumf"), kind)
        # minnumf and maxnumf may return either of two zeros.
        programs[f"minmax_{kind}{suffix}"] = elementwise(pair, results, shape, **both, signed_zeros=False)
    divided = {**both, "ulps": 3}
    programs[f"divide_{kind}"] = elementwise(pair, binary(arith("divf"), kind), **divided)
    programs[f"remainder_{kind}"] = elementwise(pair, binary(arith("remf"), kind), ODD, **EXACT)
    signs = unary(["arith.negf", "math.absf"], kind)
    programs[f"signs_{kind}"] = elementwise(kind, signs, ODD, **both)
    rounding = unary(math("ceil floor round roundeven trunc"), kind)
    programs[f"round_{kind}"] = elementwise(kind, rounding, **both)
    programs[f"compare_{kind}"] = elementwise(pair, compare("cmpf", FLOAT_PREDICATES, kind), **both)
    select = {"select": (kind, "%y = arith.select %a0, %a1, %a2 : " + kind)}
    programs[f"select_{kind}"] = elementwise(f"i1,{pair}", select, ODD, domains=(Domain(), ANY), **EXACT)
    classes = {op: ("i1", f"%y = {op} %a0 : {kind}") for op in math("isnan isinf isfinite isnormal")}
    programs[f"classes_{kind}"] = elementwise(kind, classes, ODD, **both)
    fma = {"math.fma": (kind, f"%y = math.fma %a0, %a1, %a2 : {kind}")}
    programs[f"fma_{kind}"] = elementwise(f"{pair},{kind}", fma)
    powers = binary(math("powf atan2"), kind)
    programs[f"powers_{kind}"] = elementwise(pair, powers, domains=POSITIVE, **NEAR)
    fpowi = {"math.fpowi": (kind, f"%y = math.fpowi %a0, %a1 : {kind}, i32")}
    programs[f"fpowi_{kind}"] = elementwise(f"{kind},i32", fpowi, domains=(Domain(1, 2), Domain(1, 4)))
    for name, (operations, options) in MATH.items():
        programs[f"{name}_{kind}"] = elementwise(kind, unary(operations, kind), **{**NEAR, **options})
    return programs


def _width(kind: str) -> int:
    return int(kind.lstrip("buif"))


def conversions() -> dict[str, Program]:
    programs = {}
    for kind in INTEGERS:
        wider = [t for t in INTEGERS if _width(t) > _width(kind)]
        narrower = ["i1", *(t for t in INTEGERS if _width(t) < _width(kind))]
        results = cast("trunci", kind, narrower)
        results |= {**cast("extsi", kind, wider), **cast("extui", kind, wider)}
        programs[f"resize_{kind}"] = elementwise(kind, results, domains=(ANY_INTEGER,))
        for target in FLOATS:
            results = {**cast("sitofp", kind, [target]), **cast("uitofp", kind, [target])}
            domain = ANY_INTEGER if target in ("f32", "f64", "bf16") else Domain(0, 1000)
            programs[f"to_float_{kind}_{target}"] = elementwise(kind, results, domains=(domain,), **EXACT)
            results = cast("fptosi", target, [kind])
            results |= cast("fptoui", target, [kind])
            programs[f"to_integer_{target}_{kind}"] = elementwise(target, results, domains=(Domain(0, 120),))
            signed = cast("fptosi", target, [kind])
            programs[f"to_signed_{target}_{kind}"] = elementwise(
                target, signed, ODD, domains=(Domain(-120, 120),)
            )
    for kind in FLOATS:
        signed = cast("fptosi", kind, INTEGERS)
        programs[f"to_signed_{kind}"] = elementwise(kind, signed, ODD, domains=(Domain(-120, 120),))
    results = {**cast("extui", "i1", INTEGERS), **cast("extsi", "i1", INTEGERS)}
    programs["resize_i1"] = elementwise("i1", results)
    programs["to_float_i1"] = elementwise(
        "i1", {**cast("uitofp", "i1", FLOATS), **cast("sitofp", "i1", FLOATS)}
    )
    for kind in FLOATS:
        wider = [t for t in FLOATS if _width(t) > _width(kind)]
        narrower = [t for t in FLOATS if _width(t) < _width(kind)]
        for operation, targets in (("extf", wider), ("truncf", narrower)):
            for target in targets:
                results = cast(operation, kind, [target])
                name = f"{operation}_{kind}_{target}"
                programs[name] = elementwise(kind, results, domains=(ANY,), **EXACT)
        bits = f"i{_width(kind)}"
        programs[f"bitcast_{kind}"] = elementwise(
            kind, cast("bitcast", kind, [bits]), ODD, domains=(Domain(),)
        )
        programs[f"bitcast_{bits}_{kind}"] = elementwise(bits, cast("bitcast", bits, [kind]), ODD, **EXACT)
    return programs


COLLATZ = """%one = arith.constant 1 : i32
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
        %m = arith.addi %n, %one : i32
        scf.yield %next, %m : i32, i32
      }
      %y = arith.addi %w#1, %zero : i32"""
F16_PRODUCT = """%l = arith.extf %a0 : f16 to f32
      %r = arith.extf %a1 : f16 to f32
      %s = arith.mulf %l, %r : f32
      %y = arith.truncf %s : f32 to f16"""


def programs() -> dict[str, Program]:
    found: dict[str, Program] = {}
    for kind in INTEGERS:
        found |= integers(kind)
    for kind in FLOATS:
        found |= floats(kind)
    found |= conversions()
    logic = binary(arith("andi ori xori addi muli minui maxsi"), "i1")
    found["logic_i1"] = elementwise("i1,i1", {**logic, **compare("cmpi", "eq ne ult slt", "i1")}, ODD)
    for name in ("arith_i8", "minmax_i8", "divide_i8", "shift_i8", "compare_i8", "bits_i8"):
        found[name.replace("i8", "ui8")] = on_unsigned(found[name])
    for kind in ("i8", "i32", "i64", "f16", "f32"):
        operation = "arith.addf" if "f" in kind else "arith.muli"
        results = binary([operation], kind)
        found[f"dynamic_{kind}"] = elementwise(
            f"{kind},{kind}", results, "?x?", sizes=(5, 12, 5, 12), domains=(Domain(),)
        )
    found["f16_through_f32"] = elementwise("f16,f16", {"mulf": ("f16", F16_PRODUCT)})
    found["while_in_kernel"] = elementwise(
        "i32", {"collatz": ("i32", COLLATZ)}, ODD, domains=(Domain(1, 60),)
    )
    return found


def signed_zeros() -> dict[str, Program]:
    """Minimum and maximum where -0.0 is less than 0.0."""
    found = {}
    for kind in FLOATS:
        results = binary(arith("minimumf maximumf"), kind)
        found[f"minmax_{kind}_zeros"] = elementwise(f"{kind},{kind}", results, domains=(ANY,), **EXACT)
    return found
