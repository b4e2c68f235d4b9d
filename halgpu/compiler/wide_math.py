"""exp, log and pow of 64-bit floats made of their arithmetic, in the child process of ``worker``.

Vulkan's kernels have such functions of 32-bit floats only (the SPIR-V extended instruction set GLSL.std.450), and
iree-compile refuses them for that. Models get 64-bit ones where nobody asked: PyTorch's pow of an integer and a float,
to which ONNX's becomes, is computed in 64 bits. The reductions are the usual ones, exact to a few units in the last
place: exp by ``x = k ln 2 + r`` and a series of r, log by ``x = 2^e m`` and the series of the inverse hyperbolic
tangent of ``(m - 1) / (m + 1)``; ln 2 is taken in two parts.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache
from math import factorial
from typing import Any

from halgpu.compiler import bindings

_LN2 = (6.93147180369123816490e-01, 1.90821492927058770002e-10)
"""Of the first, the last bits are zeros, so that its product with an exponent is exact."""


def expand(operation: Any) -> bool:
    """Replace an operation of the dialect math on a 64-bit float."""
    if str(operation.results[0].type) != "f64":
        return False
    bindings.inline(operation, _FUNCTIONS[operation.name]())
    return True


class _Text:
    """Lines of MLIR, each of a value with a name of its own."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def op(self, what: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {what}")
        return name

    def number(self, value: float) -> str:
        bits = int.from_bytes(struct.pack(">d", value), "big")
        return self.op(f"arith.constant {bits:#x} : f64")

    def integer(self, value: int, type_: str = "i64") -> str:
        return self.op(f"arith.constant {value} : {type_}")

    def f(self, name: str, a: str, b: str) -> str:
        return self.op(f"arith.{name}f {a}, {b} : f64")

    def i(self, name: str, a: str, b: str) -> str:
        return self.op(f"arith.{name} {a}, {b} : i64")

    def compare(self, how: str, a: str, b: str) -> str:
        return self.op(f"arith.cmpf {how}, {a}, {b} : f64")

    def select(self, condition: str, a: str, b: str) -> str:
        return self.op(f"arith.select {condition}, {a}, {b} : f64")

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """By Horner's rule; the coefficient of the highest power comes first."""
        total = self.number(coefficients[0])
        for coefficient in coefficients[1:]:
            total = self.f("add", self.f("mul", total, x), self.number(coefficient))
        return total

    def power_of_two(self, exponent: str) -> str:
        biased = self.i("addi", exponent, self.integer(1023))
        return self.op(f"arith.bitcast {self.i('shli', biased, self.integer(52))} : i64 to f64")

    def function(self, arguments: str, result: str) -> str:
        body = "\n".join(self.lines)
        return f"func.func @f({arguments}) -> f64 {{\n{body}\n  func.return {result} : f64\n}}\n"


def _exp(t: _Text, x: str) -> str:
    low, high = t.number(-746), t.number(710)
    # Beyond these it is 0 and infinity; so NaN has an integer part too.
    inside = t.select(t.compare("ogt", x, low), x, low)
    inside = t.select(t.compare("olt", inside, high), inside, high)
    scaled = t.f("mul", inside, t.number(1.4426950408889634))
    half = t.select(t.compare("olt", scaled, t.number(0)), t.number(-0.5), t.number(0.5))
    k = t.op(f"arith.fptosi {t.f('add', scaled, half)} : f64 to i64")
    whole = t.op(f"arith.sitofp {k} : i64 to f64")
    r = inside
    for part in _LN2:
        r = t.f("sub", r, t.f("mul", whole, t.number(part)))
    series = t.polynomial(r, [1 / factorial(n) for n in range(13, -1, -1)])
    # 2^k in two factors: by itself it may be subnormal or too large.
    first = t.i("shrsi", k, t.integer(1))
    result = t.f("mul", series, t.power_of_two(first))
    result = t.f("mul", result, t.power_of_two(t.i("subi", k, first)))
    return t.select(t.compare("uno", x, x), x, result)


def _log(t: _Text, x: str) -> str:
    tiny = t.compare("olt", x, t.number(2.2250738585072014e-308))
    normal = t.select(tiny, t.f("mul", x, t.number(2.0**54)), x)
    bits = t.op(f"arith.bitcast {normal} : f64 to i64")
    exponent = t.i("subi", t.i("shrsi", bits, t.integer(52)), t.integer(1023))
    fraction = t.i("andi", bits, t.integer((1 << 52) - 1))
    m = t.op(f"arith.bitcast {t.i('ori', fraction, t.integer(0x3FF << 52))} : i64 to f64")
    e = t.op(f"arith.sitofp {exponent} : i64 to f64")
    e = t.select(tiny, t.f("sub", e, t.number(54)), e)
    large = t.compare("ogt", m, t.number(2**0.5))
    m = t.select(large, t.f("mul", m, t.number(0.5)), m)
    e = t.select(large, t.f("add", e, t.number(1)), e)
    one = t.number(1)
    s = t.f("div", t.f("sub", m, one), t.f("add", m, one))
    series = t.polynomial(t.f("mul", s, s), [2 / (2 * n + 1) for n in range(11, -1, -1)])
    rest = t.f("add", t.f("mul", s, series), t.f("mul", e, t.number(_LN2[1])))
    result = t.f("add", t.f("mul", e, t.number(_LN2[0])), rest)
    infinity, zero = t.number(float("inf")), t.number(0)
    result = t.select(t.compare("oeq", x, infinity), infinity, result)
    result = t.select(t.compare("oeq", x, zero), t.number(float("-inf")), result)
    return t.select(
        t.compare("uge", x, zero), t.select(t.compare("uno", x, x), x, result), t.number(float("nan"))
    )


def _pow(t: _Text, x: str, y: str) -> str:
    zero, one = t.number(0), t.number(1)
    negative = t.compare("olt", x, zero)
    size = t.select(negative, t.f("sub", zero, x), x)
    result = _exp(t, t.f("mul", y, _log(t, size)))
    # log 1 times infinity is NaN.
    unit = t.select(t.compare("ord", y, y), one, y)
    result = t.select(t.compare("oeq", size, one), unit, result)
    # From 2^53 on, all are even numbers.
    y_size = t.select(t.compare("olt", y, zero), t.f("sub", zero, y), y)
    small = t.select(t.compare("olt", y_size, t.number(2.0**53)), y, zero)
    whole = t.op(f"arith.fptosi {small} : f64 to i64")
    odd = t.op(f"arith.trunci {whole} : i64 to i1")
    is_whole = t.compare("oeq", t.op(f"arith.sitofp {whole} : i64 to f64"), small)
    turned = t.select(t.op(f"arith.andi {odd}, {is_whole} : i1"), t.f("sub", zero, result), result)
    has_power = t.op(f"arith.ori {is_whole}, {t.compare('oeq', size, t.number(float('inf')))} : i1")
    turned = t.select(has_power, turned, t.number(float("nan")))
    result = t.select(negative, turned, result)
    result = t.select(t.compare("oeq", y, zero), one, result)
    return t.select(t.compare("oeq", x, one), one, result)


@cache
def _unary(name: str) -> str:
    text = _Text()
    return text.function("%x: f64", {"exp": _exp, "log": _log}[name](text, "%x"))


@cache
def _binary() -> str:
    text = _Text()
    return text.function("%x: f64, %y: f64", _pow(text, "%x", "%y"))


_FUNCTIONS: dict[str, Callable[[], str]] = {
    "math.exp": lambda: _unary("exp"),
    "math.log": lambda: _unary("log"),
    "math.powf": _binary,
}
NAMES = tuple(_FUNCTIONS)
