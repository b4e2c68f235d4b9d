"""Bitwise operators, shifts, bit counts and bit fields."""

from __future__ import annotations

from typing import Final

from . import ctypes
from . import spirv_types as ty
from .emitter import Emitter, Handler
from .expressions import ATOM, BITS, UNARY, Expr, combine
from .module import Instruction
from .numbers import converted, is_int, same_operands, signed, unsigned, width_of, wrapped
from .opcodes import Op


def _bitwise(operator: str) -> Handler:
    def join(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
        a, b = same_operands(e, instruction, type_, is_int, "two integers")
        return wrapped(e, type_, f"{a.operand} {operator} {b.operand}", BITS, [a, b])

    return join


def complement(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpNot."""
    (a,) = same_operands(e, instruction, type_, is_int, "an integer")
    return wrapped(e, type_, f"~{a.operand}", UNARY, [a])


def _shift(kind: str) -> Handler:
    """Shifts: "left", "right", or "arithmetic", which is to the right and fills up with the sign.

    By the width or more they are undefined in SPIR-V, and modulo the width in OpenCL C. Here all bits are shifted
    out: that is what vector instructions of CPUs and PTX do, and what ONNX expects of BitShift.
    """

    def shift(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
        a, b = e.operands(instruction)
        shaped = (
            is_int(type_) and a.type is type_ and is_int(b.type) and ty.count_of(b.type) == ty.count_of(type_)
        )
        e.check(instruction, shaped, "two integers")
        if not _is_small(b, width_of(type_)):
            return combine(
                type_, f"{_shift_helper(e, kind, type_, b.type)}({a.text}, {b.text})", ATOM, [a, b]
            )
        distance = f"{b.bits}" if b.bits is not None else _as(e, b, type_)
        if kind == "arithmetic":
            return unsigned(e, combine(type_, f"{signed(a).operand} >> {distance}", BITS, [a, b]))
        first = f"(uint){a.operand}" if type_ is ty.INTS[16] else a.operand
        operator = "<<" if kind == "left" else ">>"
        return wrapped(e, type_, f"{first} {operator} {distance}", BITS, [a, b])

    return shift


def _is_small(distance: Expr, width: int) -> bool:
    """Whether a distance is known and less than the width."""
    if distance.bits is not None:
        return distance.bits < width
    if distance.constant is None:
        return False
    parts = distance.constant.value if isinstance(distance.constant.value, tuple) else ()
    return all(int(part.value or 0) < width for part in parts if not isinstance(part.value, tuple))


def _as(e: Emitter, expr: Expr, type_: ty.Type) -> str:
    """A vector of integers as one of another width."""
    return expr.text if expr.type is type_ else f"convert_{e.source.type(type_)}({expr.text})"


def _shift_helper(e: Emitter, kind: str, type_: ty.Type, distance: ty.Type) -> str:
    name, given, width = e.source.type(type_), e.source.type(distance), width_of(type_)
    if isinstance(type_, ty.Vector):
        limit, mask = f"({name}){width}", f"({name}){width - 1}"
        by = "b" if distance is type_ else f"convert_{name}_sat(b)"
        signed_name = ctypes.signed_name(type_)
        text = {
            "left": f"(a << ({by} & {mask})) & as_{name}({by} < {limit})",
            "right": f"(a >> ({by} & {mask})) & as_{name}({by} < {limit})",
            "arithmetic": f"as_{name}(as_{signed_name}(a) >> as_{signed_name}(min({by}, {mask})))",
        }[kind]
    else:
        first = "(uint)a" if type_ is ty.INTS[16] else "a"
        text = {
            "left": f"b < {width} ? ({name})({first} << b) : 0",
            "right": f"b < {width} ? ({name})(a >> b) : 0",
            "arithmetic": f"({name})(({ctypes.SIGNED[width]})a >> (b < {width} ? b : {width - 1}))",
        }[kind]
    return e.source.helper(
        f"shift_{kind}", f"static {name} NAME({name} a, {given} b)\n{{\n    return {text};\n}}", name, given
    )


def bit_count(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpBitCount; the result may be of another width."""
    (a,) = e.operands(instruction)
    shaped = is_int(type_) and is_int(a.type) and ty.count_of(a.type) == ty.count_of(type_)
    e.check(instruction, shaped, "an integer")
    return converted(e, combine(a.type, f"popcount({a.text})", ATOM, [a]), type_)


def bit_reverse(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpBitReverse."""
    (a,) = same_operands(e, instruction, type_, is_int, "an integer")
    name, width = e.source.type(type_), width_of(type_)
    lines, shift = [], 1
    for bits in (
        0x5555555555555555,
        0x3333333333333333,
        0x0F0F0F0F0F0F0F0F,
        0x00FF00FF00FF00FF,
        0x0000FFFF0000FFFF,
        0xFFFFFFFF,
    ):
        if shift >= width:
            break
        low = (
            f"({name})({ctypes.UNSIGNED[width]}){bits & ((1 << width) - 1):#x}{'ul' if width == 64 else 'u'}"
        )
        lines.append(f"    x = ({name})(((x >> {shift}) & {low}) | ((x & {low}) << {shift}));")
        shift *= 2
    body = "\n".join(lines)
    if isinstance(type_, ty.Vector):
        body = body.replace(f"x = ({name})(", "x = (")
    helper = e.source.helper(
        "bit_reverse", f"static {name} NAME({name} x)\n{{\n{body}\n    return x;\n}}", name
    )
    return combine(type_, f"{helper}({a.text})", ATOM, [a])


def _bit_field(kind: str) -> Handler:
    """OpBitFieldInsert and extracts: offset and count are scalars; a count of 0 changes or gives nothing."""

    def field(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
        operands = e.operands(instruction)
        *values, offset, count = operands
        shaped = is_int(type_) and all(v.type is type_ for v in values)
        e.check(
            instruction,
            shaped and isinstance(offset.type, ty.Int) and isinstance(count.type, ty.Int),
            "integers",
        )
        helper = _bit_field_helper(e, kind, type_)
        arguments = [v.text for v in values] + [f"(uint){offset.operand}", f"(uint){count.operand}"]
        return combine(type_, f"{helper}({', '.join(arguments)})", ATOM, operands)

    return field


def _bit_field_helper(e: Emitter, kind: str, type_: ty.Type) -> str:
    name, width = e.source.type(type_), width_of(type_)
    scalar = ctypes.UNSIGNED[width]
    vector = isinstance(type_, ty.Vector)
    ones = f"    {scalar} ones = count >= {width} ? ({scalar})-1 : ({scalar})((({scalar})1 << count) - 1);\n"
    if kind == "insert":
        body = ones + f"    {scalar} mask = ({scalar})(ones << offset);\n"
        value = f"(base & ({scalar})~mask) | ((insert << ({scalar})offset) & mask)"
        parameters = f"{name} base, {name} insert, uint offset, uint count"
    else:
        parameters = f"{name} base, uint offset, uint count"
        up, down = f"({scalar})({width} - offset - count)", f"({scalar})({width} - count)"
        body = "    if (count == 0)\n        return 0;\n"
        shifted = f"base << {up}" if vector else f"({name})(base << {up})"
        if kind == "sextract":
            signed_name = ctypes.signed_name(type_)
            shifted = f"as_{signed_name}({shifted})"
            value = f"as_{name}({shifted} >> {down})" if vector else f"{shifted} >> {down}"
            if vector:
                down = f"({ctypes.SIGNED[width]})({width} - count)"
                value = f"as_{name}({shifted} >> {down})"
        else:
            value = f"({shifted}) >> {down}"
    result = value if vector else f"({name})({value})"
    text = f"static {name} NAME({parameters})\n{{\n{body}    return {result};\n}}"
    return e.source.helper(f"bit_{kind}", text, name)


TABLE: Final[dict[int, Handler]] = {
    Op.BitwiseAnd: _bitwise("&"),
    Op.BitwiseOr: _bitwise("|"),
    Op.BitwiseXor: _bitwise("^"),
    Op.Not: complement,
    Op.ShiftLeftLogical: _shift("left"),
    Op.ShiftRightLogical: _shift("right"),
    Op.ShiftRightArithmetic: _shift("arithmetic"),
    Op.BitCount: bit_count,
    Op.BitReverse: bit_reverse,
    Op.BitFieldInsert: _bit_field("insert"),
    Op.BitFieldSExtract: _bit_field("sextract"),
    Op.BitFieldUExtract: _bit_field("uextract"),
}
