"""Operations on integers and bf16 that iree-compile 3.13 refuses or gets wrong in Vulkan kernels, made of others.

They happen in the child process of ``worker``. For targets without 8- and 16-bit integers, which the default target
is, the compiler widens these to 32 bits but leaves the bits above (SPIR-V's pass for emulation), counts those too, and
refuses unsigned division. For every target it has no instruction for the leading zeros of 8, 16 and 64 bits, and
makes of a conversion to bf16 a bit cast of 32 bits to 16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from halgpu.compiler import bindings


def expand(operation: Any) -> bool:
    """Replace an operation of the dialects arith and math on integers, or to bf16, by others."""
    *_, source = operation.operands
    taken, made = _element(source.type), _element(operation.results[0].type)
    if operation.name in _TO_FLOAT:
        text = _to_bf16(operation) if made == "bf16" else None
    elif taken in ("i8", "i16"):
        text = _narrow(operation, _NARROW[operation.name], int(taken[1:]))
    else:
        text = _leading_zeros(operation) if (operation.name, taken) == ("math.ctlz", "i64") else None
    if text is None:
        return False
    bindings.inline(operation, text)
    return True


def _element(type_: Any) -> str:
    """The element type of a scalar or tensor, as text."""
    return str(getattr(type_, "element_type", type_))


class _Types:
    """Types and constants of the shape of a scalar or tensor, as text."""

    def __init__(self, type_: Any) -> None:
        ir = bindings.ir()
        self.is_tensor = isinstance(type_, ir.RankedTensorType)
        self.is_static = not self.is_tensor or type_.has_static_shape
        self._sizes: list[int] = list(type_.shape) if self.is_static and self.is_tensor else []
        self._text, self._element = str(type_), _element(type_)

    def of(self, element: str) -> str:
        """The type with another element type."""
        return self._text.removesuffix(f"{self._element}>") + f"{element}>" if self.is_tensor else element

    def constant(self, value: int, element: str) -> str:
        """An operation that makes a constant; the shape must be static."""
        text = f"dense<{value}>" if self.is_tensor else str(value)
        return f"arith.constant {text} : {self.of(element)}"


def _to_bf16(operation: Any) -> str:
    """By way of 32 bits; MLIR would make one conversion of two again, but for what lies between and changes nothing."""
    types = _Types(operation.operands[0].type)
    given, wide, result = str(operation.operands[0].type), types.of("f32"), types.of("bf16")
    return f"""func.func @f(%x: {given}) -> {result} {{
  %y = {operation.name} %x : {given} to {wide}
  %w = math.floor %y : {wide}
  %z = arith.truncf %w : {wide} to {result}
  func.return %z : {result}
}}"""


def _leading_zeros(operation: Any) -> str | None:
    """Of 64 bits: of the upper half, or of the lower one where that is zero."""
    types = _Types(operation.operands[0].type)
    if not types.is_static:
        return None
    whole, half, truth = types.of("i64"), types.of("i32"), types.of("i1")
    return f"""func.func @f(%x: {whole}) -> {whole} {{
  %size = {types.constant(32, "i64")}
  %bits = {types.constant(32, "i32")}
  %zero = {types.constant(0, "i32")}
  %shifted = arith.shrui %x, %size : {whole}
  %upper = arith.trunci %shifted : {whole} to {half}
  %lower = arith.trunci %x : {whole} to {half}
  %first = math.ctlz %upper : {half}
  %second = math.ctlz %lower : {half}
  %beyond = arith.addi %second, %bits : {half}
  %none = arith.cmpi eq, %upper, %zero : {half}
  %count = arith.select %none, %beyond, %first : {truth}, {half}
  %wide = arith.extui %count : {half} to {whole}
  func.return %wide : {whole}
}}"""


# Statements on %x and %y, of 32 bits (T), that compute %r; the constants may be had of the width.
Narrow = tuple[str, Callable[[int], dict[str, int]]]


def _nothing(_width: int) -> dict[str, int]:
    return {}


_NARROW: Final[dict[str, Narrow]] = {
    "math.ctlz": (
        "%n = math.ctlz %x : T\n  %r = arith.subi %n, %above : T",
        lambda width: {"above": 32 - width},
    ),
    "math.cttz": (
        "%n = arith.ori %x, %end : T\n  %r = math.cttz %n : T",
        lambda width: {"end": 1 << width},
    ),
    "math.ctpop": ("%r = math.ctpop %x : T", _nothing),
    "arith.shrui": ("%r = arith.shrui %x, %y : T", _nothing),
    "arith.divui": ("%r = arith.divui %x, %y : T", _nothing),
    "arith.remui": ("%r = arith.remui %x, %y : T", _nothing),
}


def _narrow(operation: Any, how: Narrow, width: int) -> str | None:
    """The operation in 32 bits, its operands unsigned."""
    types = _Types(operation.operands[0].type)
    body, constants = how
    if not types.is_static:
        return None
    narrow, wide = types.of(f"i{width}"), types.of("i32")
    names = ("x", "y")[: len(operation.operands)]
    lines = [
        *(f"%{name} = arith.extui %{name}0 : {narrow} to {wide}" for name in names),
        *(f"%{name} = {types.constant(value, 'i32')}" for name, value in constants(width).items()),
        body.replace(": T", f": {wide}"),
        f"%result = arith.trunci %r : {wide} to {narrow}",
        f"func.return %result : {narrow}",
    ]
    parameters = ", ".join(f"%{name}0: {narrow}" for name in names)
    return f"func.func @f({parameters}) -> {narrow} {{\n  " + "\n  ".join(lines) + "\n}"


_TO_FLOAT: Final = ("arith.sitofp", "arith.uitofp")
NAMES: Final = (*_NARROW, *_TO_FLOAT)
