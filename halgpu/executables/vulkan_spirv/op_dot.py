"""Integer dot products (SPV_KHR_integer_dot_product): exact sums, and the accumulating ones saturate."""

from __future__ import annotations

from typing import Final

from . import ctypes
from . import spirv_types as ty
from .emitter import Emitter, Handler
from .expressions import ATOM, Expr, combine
from .module import Instruction
from .numbers import unsigned
from .opcodes import Op

_BYTES: Final = ty.VECTORS[ty.INTS[8], 4]


def _dot(first: str, second: str, *, accumulate: bool) -> Handler:
    """``first`` and ``second`` say whether the vectors are signed (``"s"``) or unsigned (``"u"``)."""

    def dot(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
        count = 3 if accumulate else 2
        a, b, *more = [e.value(id_) for id_ in instruction.operands[:count]]
        formats = instruction.operands[count:]
        if a.type is ty.INTS[32] and formats == (0,):
            a, b = (Expr(_BYTES, f"as_uchar4({x.text})", ATOM, x.reads, x.memory) for x in (a, b))
        shaped = isinstance(a.type, ty.Vector) and a.type is b.type and isinstance(type_, ty.Int)
        e.check(instruction, shaped and all(m.type is type_ for m in more), "two vectors of integers")
        assert isinstance(a.type, ty.Vector)
        assert isinstance(type_, ty.Int)
        if not isinstance(a.type.element, ty.Int) or a.type.element.width > 16 or type_.width < 32:
            e.refuse(f"an integer dot product of {a.type} giving {type_}")
        helper = _helper(e, a.type, type_, first, second, accumulate)
        arguments = [a, b, *more]
        expr = combine(type_, f"{helper}({', '.join(x.text for x in arguments)})", ATOM, arguments)
        return expr if first == second == "u" else unsigned(e, expr)

    return dot


def _helper(e: Emitter, at: ty.Vector, type_: ty.Int, first: str, second: str, accumulate: bool) -> str:
    is_signed = "s" in (first, second)
    result = (ctypes.SIGNED if is_signed else ctypes.UNSIGNED)[type_.width]
    wide = "long" if is_signed else "ulong"
    vector = e.source.type(at)
    assert isinstance(at.element, ty.Int)
    elements = [
        (ctypes.SIGNED if kind == "s" else ctypes.UNSIGNED)[at.element.width] for kind in (first, second)
    ]
    # Products of 16 bits need 32, and their sum two more.
    term = "int" if at.element.width == 8 else wide
    products = [f"({term})({elements[0]})a.{c} * ({elements[1]})b.{c}" for c in ctypes.COMPONENTS[: at.count]]
    total = " + ".join(products)
    parameters = f"{vector} a, {vector} b"
    if not accumulate:
        text = f"static {result} NAME({parameters})\n{{\n    return ({result})({total});\n}}"
    else:
        unsigned_name = ctypes.UNSIGNED[type_.width]
        text = (
            f"static {result} NAME({parameters}, {unsigned_name} accumulator)\n{{\n"
            f"    return add_sat(({result})({total}), ({result})accumulator);\n}}"
        )
    name = f"{first}{second if second != first else ''}dot{'_add_sat' if accumulate else ''}"
    return e.source.helper(name, text, vector, result)


TABLE: Final[dict[int, Handler]] = {
    Op.SDot: _dot("s", "s", accumulate=False),
    Op.UDot: _dot("u", "u", accumulate=False),
    Op.SUDot: _dot("s", "u", accumulate=False),
    Op.SDotAccSat: _dot("s", "s", accumulate=True),
    Op.UDotAccSat: _dot("u", "u", accumulate=True),
    Op.SUDotAccSat: _dot("s", "u", accumulate=True),
}
