"""``arith`` and ``math`` as instructions.

Facts: compiler/src/iree/compiler/Dialect/VM/Conversion/{ArithToVM,MathToVM}; runtime/src/iree/vm/ops.h for what the
instructions do. Where an instruction does not do what MLIR asks for, others are added: maximum, minimum and inequality
with NaNs, floats as integers, narrow integers that overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, IntegerType
from xdsl.ir import Attribute, Operation, SSAValue

from halgpu.compiler.dialects.extra import IndexCastUIOp, RemFOp
from halgpu.compiler.transforms.lowering import (
    F32,
    F64,
    I32,
    I64,
    Lowering,
    Unsupported,
    bits,
    convert_type,
    lowers,
    suffix,
)


def _float(type_: Attribute) -> str:
    """How mnemonics name a type of floats."""
    if type_ not in (F32, F64):
        raise Unsupported(f"the virtual machine does not compute with {type_}")
    return str(type_)


@lowers(arith.ConstantOp)
def constant(to: Lowering, op: arith.ConstantOp, operands: Sequence[SSAValue]) -> SSAValue:
    return literal(to, op.value, op.result.type)


def literal(to: Lowering, value: Attribute, type_: Attribute) -> SSAValue:
    """The value of an attribute."""
    target = convert_type(type_)
    if isinstance(value, IntegerAttr):
        number = int(value.value.data)
        if bits(type_) == 1:
            return to.i32(number & 1)
        width = 64 if target == I64 else 32
        half = 1 << (bits(type_) - 1)
        number = (number + half) % (2 * half) - half
        assert -(1 << (width - 1)) <= number < 1 << (width - 1)
        return to.constant(target, number)
    if not isinstance(value, FloatAttr):
        raise Unsupported(f"the virtual machine has no constants such as {value}")
    if target in (F32, F64):
        return to.constant(target, float(value.value.data))
    packed = value.type.pack([value.value.data])
    return to.i32(int.from_bytes(packed, "little"))


_BINARY: Final[dict[type[Operation], str]] = {
    arith.AddiOp: "add.{}", arith.SubiOp: "sub.{}", arith.MuliOp: "mul.{}",
    arith.AndIOp: "and.{}", arith.OrIOp: "or.{}", arith.XOrIOp: "xor.{}",
    arith.DivSIOp: "div.{}.s", arith.RemSIOp: "rem.{}.s",
    arith.MinSIOp: "min.{}.s", arith.MaxSIOp: "max.{}.s", arith.MinUIOp: "min.{}.u", arith.MaxUIOp: "max.{}.u",
}  # fmt: skip
"""Right for narrow integers too, once the result is narrowed: they are sign-extended, which keeps any order."""


@lowers(*_BINARY)
def binary(to: Lowering, op: Any, operands: Sequence[SSAValue]) -> SSAValue:
    return _binary(to, _BINARY[type(op)], op.result.type, *operands)


def _binary(to: Lowering, form: str, type_: Attribute, left: SSAValue, right: SSAValue) -> SSAValue:
    if bits(type_) == 1 and form.endswith(".s"):
        # A set i1 is -1 where it has a sign.
        left, right = to.emit("sub.i32", to.i32(0), left), to.emit("sub.i32", to.i32(0), right)
    return to.narrow(to.emit(form.format(suffix(convert_type(type_))), left, right), type_)


_UNSIGNED: Final[dict[type[Operation], str]] = {arith.DivUIOp: "div.{}.u", arith.RemUIOp: "rem.{}.u"}


@lowers(*_UNSIGNED)
def unsigned(to: Lowering, op: Any, operands: Sequence[SSAValue]) -> SSAValue:
    type_ = op.result.type
    left, right = (to.unsigned(value, type_) for value in operands)
    return to.narrow(to.emit(_UNSIGNED[type(op)].format(suffix(convert_type(type_))), left, right), type_)


_SHIFTS: Final[dict[type[Operation], str]] = {
    arith.ShLIOp: "shl.{}", arith.ShRSIOp: "shr.{}.s", arith.ShRUIOp: "shr.{}.u",
}  # fmt: skip


@lowers(*_SHIFTS)
def shift(to: Lowering, op: Any, operands: Sequence[SSAValue]) -> SSAValue:
    type_ = op.result.type
    value, amount = operands
    if isinstance(op, arith.ShRUIOp):
        value = to.unsigned(value, type_)
    form = _SHIFTS[type(op)].format(suffix(convert_type(type_)))
    return to.narrow(to.emit(form, value, to.cast_integer(amount, I32)), type_)


@lowers(arith.CeilDivUIOp)
def ceil_div_unsigned(to: Lowering, op: Any, operands: Sequence[SSAValue]) -> SSAValue:
    """``x == 0 ? 0 : (x - 1) / y + 1``, which does not overflow."""
    type_ = op.result.type
    name = suffix(convert_type(type_))
    left, right = (to.unsigned(value, type_) for value in operands)
    one, zero = to.constant(convert_type(type_), 1), to.constant(convert_type(type_), 0)
    quotient = to.emit(f"div.{name}.u", to.emit(f"sub.{name}", left, one), right)
    nonzero = to.emit(f"cmp.nz.{name}", left)
    return to.narrow(to.emit(f"select.{name}", nonzero, to.emit(f"add.{name}", quotient, one), zero), type_)


@lowers(arith.CeilDivSIOp, arith.FloorDivSIOp)
def round_div_signed(to: Lowering, op: Any, operands: Sequence[SSAValue]) -> SSAValue:
    return to.narrow(
        rounded_quotient(to, *operands, floor=isinstance(op, arith.FloorDivSIOp)), op.result.type
    )


def rounded_quotient(to: Lowering, left: SSAValue, right: SSAValue, *, floor: bool) -> SSAValue:
    """The quotient rounded to zero, and one more or less where there is a rest on that side."""
    type_ = left.type
    name = suffix(type_)
    quotient = to.emit(f"div.{name}.s", left, right)
    rest = to.emit(f"rem.{name}.s", left, right)
    signs_differ = to.emit(f"cmp.lt.{name}.s", to.emit(f"xor.{name}", left, right), to.constant(type_, 0))
    inexact = to.emit(f"cmp.nz.{name}", rest)
    wanted = to.emit("and.i32", inexact, signs_differ if floor else to.not_(signs_differ))
    other = to.emit(f"add.{name}", quotient, to.constant(type_, -1 if floor else 1))
    return to.emit(f"select.{name}", wanted, other, quotient)


_INTEGER_PREDICATES: Final = (
    "eq", "ne", "lt.s", "le.s", "gt.s", "ge.s", "lt.u", "le.u", "gt.u", "ge.u",
)  # fmt: skip


@lowers(arith.CmpiOp)
def compare_integers(to: Lowering, op: arith.CmpiOp, operands: Sequence[SSAValue]) -> SSAValue:
    predicate, _, sign = _INTEGER_PREDICATES[op.predicate.value.data].partition(".")
    left, right = operands
    name = suffix(left.type)
    if sign == "s" and bits(op.lhs.type) == 1:
        sign = "u"
        left, right = right, left
    if not sign:
        return to.emit(f"cmp.{predicate}.{name}", left, right)
    if predicate in ("gt", "le"):
        left, right = right, left
    less = to.emit(f"cmp.lt.{name}.{sign}", left, right)
    return to.not_(less) if predicate in ("le", "ge") else less


_FLOAT_PREDICATES: Final = (
    "false", "eq.o", "gt.o", "ge.o", "lt.o", "le.o", "ne.o", "ord", "eq.u", "gt.u", "ge.u", "lt.u", "le.u",
    "ne.u", "uno", "true",
)  # fmt: skip


@lowers(arith.CmpfOp)
def compare_floats(to: Lowering, op: arith.CmpfOp, operands: Sequence[SSAValue]) -> SSAValue:
    name = _float(op.lhs.type)
    predicate, _, order = _FLOAT_PREDICATES[op.predicate.value.data].partition(".")
    left, right = operands
    if predicate in ("false", "true"):
        return to.i32(int(predicate == "true"))
    if predicate in ("ord", "uno"):
        either = to.emit("or.i32", to.emit(f"cmp.nan.{name}", left), to.emit(f"cmp.nan.{name}", right))
        return either if predicate == "uno" else to.not_(either)
    if (predicate, order) == ("ne", "o"):
        # The instruction says that NaNs differ, ordered or not (ops.h).
        less, more = to.emit(f"cmp.lt.{name}.o", left, right), to.emit(f"cmp.lt.{name}.o", right, left)
        return to.emit("or.i32", less, more)
    if predicate in ("gt", "ge"):
        left, right = right, left
    verb = {"gt": "lt", "ge": "lte", "le": "lte"}.get(predicate, predicate)
    return to.emit(f"cmp.{verb}.{name}.{order}", left, right)


@lowers(arith.SelectOp)
def select(to: Lowering, op: arith.SelectOp, operands: Sequence[SSAValue]) -> SSAValue:
    type_ = convert_type(op.result.type)
    return to.emit(f"select.{suffix(type_)}", *operands, result=type_)


_FLOAT_BINARY: Final[dict[type[Operation], str]] = {
    arith.AddfOp: "add", arith.SubfOp: "sub", arith.MulfOp: "mul", arith.DivfOp: "div",
    math.PowFOp: "pow", math.Atan2Op: "atan2",
}  # fmt: skip


@lowers(*_FLOAT_BINARY)
def float_binary(to: Lowering, op: Any, operands: Sequence[SSAValue]) -> SSAValue:
    return to.emit(f"{_FLOAT_BINARY[type(op)]}.{_float(op.result.type)}", *operands)


@lowers(RemFOp)
def remainder(to: Lowering, op: RemFOp, operands: Sequence[SSAValue]) -> SSAValue:
    """The dividend's sign, as in C's fmod: the instruction rounds the quotient to the nearest integer (ops.h).

    So it may be off by the divisor, to which it is then less than half away: the sum is exact.
    """
    name = _float(op.result.type)
    dividend, divisor = operands
    zero = to.constant(dividend.type, 0.0)
    found = to.emit(f"rem.{name}", dividend, divisor)
    negative = to.emit(f"cmp.lt.{name}.o", dividend, zero)
    size = to.emit(f"abs.{name}", divisor)
    below = to.emit(f"cmp.lt.{name}.o", found, zero)
    above = to.emit(f"cmp.lt.{name}.o", zero, found)
    more = to.emit(
        f"select.{name}", negative, to.emit(f"sub.{name}", found, size), to.emit(f"add.{name}", found, size)
    )
    wrong = to.emit("select.i32", negative, above, below)
    return to.emit(f"select.{name}", wrong, more, found)


_EXTREMES: Final[dict[type[Operation], tuple[str, bool]]] = {
    arith.MaximumfOp: ("max", True), arith.MinimumfOp: ("min", True),
    arith.MaxnumfOp: ("max", False), arith.MinnumfOp: ("min", False),
}  # fmt: skip


@lowers(*_EXTREMES)
def extreme(to: Lowering, op: Any, operands: Sequence[SSAValue]) -> SSAValue:
    """The instruction compares with ``<`` and keeps the left operand if that is false: also for a NaN (ops.h)."""
    word, propagates = _EXTREMES[type(op)]
    name = _float(op.result.type)
    left, right = operands
    found = to.emit(f"{word}.{name}", left, right)
    test = to.emit(f"cmp.nan.{name}", right if propagates else left)
    return to.emit(f"select.{name}", test, right, found)


_FLOAT_UNARY: Final[dict[type[Operation], str]] = {
    arith.NegfOp: "neg.{}", math.AbsFOp: "abs.{}", math.CeilOp: "ceil.{}", math.FloorOp: "floor.{}",
    math.RoundOp: "round.{}", math.RoundEvenOp: "round.{}.even", math.AtanOp: "atan.{}",
    math.CosOp: "cos.{}", math.SinOp: "sin.{}", math.ExpOp: "exp.{}", math.Exp2Op: "exp2.{}",
    math.ExpM1Op: "expm1.{}", math.LogOp: "log.{}", math.Log10Op: "log10.{}", math.Log1pOp: "log1p.{}",
    math.Log2Op: "log2.{}", math.RsqrtOp: "rsqrt.{}", math.SqrtOp: "sqrt.{}", math.TanhOp: "tanh.{}",
    math.ErfOp: "erf.{}",
}  # fmt: skip


@lowers(*_FLOAT_UNARY)
def float_unary(to: Lowering, op: Any, operands: Sequence[SSAValue]) -> SSAValue:
    return to.emit(_FLOAT_UNARY[type(op)].format(_float(op.result.type)), *operands)


@lowers(math.FmaOp)
def fused(to: Lowering, op: math.FmaOp, operands: Sequence[SSAValue]) -> SSAValue:
    return to.emit(f"fma.{_float(op.result.type)}", *operands)


@lowers(math.TruncOp)
def truncate_float(to: Lowering, op: math.TruncOp, operands: Sequence[SSAValue]) -> SSAValue:
    return _truncated(to, operands[0], _float(op.result.type))


def _truncated(to: Lowering, value: SSAValue, name: str) -> SSAValue:
    """Rounded down, or up below zero."""
    negative = to.emit(f"cmp.lt.{name}.o", value, to.constant(value.type, 0.0))
    return to.emit(
        f"select.{name}", negative, to.emit(f"ceil.{name}", value), to.emit(f"floor.{name}", value)
    )


@lowers(math.AbsIOp, math.CountLeadingZerosOp)
def integer_unary(to: Lowering, op: Any, operands: Sequence[SSAValue]) -> SSAValue:
    type_ = op.result.type
    name = suffix(convert_type(type_))
    (value,) = operands
    if isinstance(op, math.AbsIOp):
        return to.narrow(to.emit(f"abs.{name}", value), type_)
    counted = to.emit(f"ctlz.{name}", to.unsigned(value, type_))
    extra = 32 - bits(type_)
    return counted if extra <= 0 else to.emit("sub.i32", counted, to.i32(extra))


@lowers(arith.AddUIExtendedOp)
def add_extended(to: Lowering, op: arith.AddUIExtendedOp, operands: Sequence[SSAValue]) -> Sequence[SSAValue]:
    type_ = op.sum.type
    name = suffix(convert_type(type_))
    left, right = (to.unsigned(value, type_) for value in operands)
    total = to.narrow(to.emit(f"add.{name}", left, right), type_)
    return total, to.emit(f"cmp.lt.{name}.u", to.unsigned(total, type_), left)


@lowers(arith.MulUIExtendedOp, arith.MulSIExtendedOp)
def multiply_extended(to: Lowering, op: Any, operands: Sequence[SSAValue]) -> Sequence[SSAValue]:
    type_ = op.low.type
    sign = "s" if isinstance(op, arith.MulSIExtendedOp) else "u"
    width = bits(type_)
    if width > 32:
        left, right = operands
        return to.emit("mul.i64", left, right), _high_product(to, left, right, signed=sign == "s")
    product = to.emit("mul.i64", *(_extended(to, value, type_, sign) for value in operands))
    high = to.emit(f"shr.i64.{sign}", product, to.i32(width))
    low, high = (to.narrow(to.emit("trunc.i64.i32", half), type_) for half in (product, high))
    return low, high


def _extended(to: Lowering, value: SSAValue, type_: Attribute, sign: str) -> SSAValue:
    """An integer of at most 32 bits as one of 64."""
    if sign == "u":
        value = to.unsigned(value, type_)
    elif bits(type_) == 1:
        value = to.emit("sub.i32", to.i32(0), value)
    return to.emit(f"ext.i32.i64.{sign}", value)


def _high_product(to: Lowering, left: SSAValue, right: SSAValue, *, signed: bool) -> SSAValue:
    """The upper 64 bits of a product of i64, of halves of 32 bits; a negative factor takes the other one from them."""
    shift, mask = to.i32(32), to.i64((1 << 32) - 1)

    def halves(value: SSAValue) -> tuple[SSAValue, SSAValue]:
        return to.emit("shr.i64.u", value, shift), to.emit("and.i64", value, mask)

    def product_and(a: SSAValue, b: SSAValue, more: SSAValue) -> tuple[SSAValue, SSAValue]:
        return halves(to.emit("add.i64", to.emit("mul.i64", a, b), more))

    (left_high, left_low), (right_high, right_low) = halves(left), halves(right)
    carried, _ = halves(to.emit("mul.i64", left_low, right_low))
    upper, lower = product_and(left_high, right_low, carried)
    carried, _ = product_and(left_low, right_high, lower)
    high = to.emit("add.i64", to.emit("add.i64", to.emit("mul.i64", left_high, right_high), upper), carried)
    if not signed:
        return high
    for one, other in ((left, right), (right, left)):
        negative = to.emit("cmp.lt.i64.s", one, to.i64(0))
        high = to.emit("sub.i64", high, to.emit("select.i64", negative, other, to.i64(0)))
    return high


# Conversions.


@lowers(arith.ExtSIOp)
def extend_signed(to: Lowering, op: arith.ExtSIOp, operands: Sequence[SSAValue]) -> SSAValue:
    (value,) = operands
    if bits(op.input.type) == 1:
        value = to.emit("sub.i32", to.i32(0), value)
    return _resize(to, value, op.result.type, "s")


@lowers(arith.ExtUIOp)
def extend_unsigned(to: Lowering, op: arith.ExtUIOp, operands: Sequence[SSAValue]) -> SSAValue:
    return _resize(to, to.unsigned(operands[0], op.input.type), op.result.type, "u")


def _resize(to: Lowering, value: SSAValue, type_: Attribute, sign: str) -> SSAValue:
    target = convert_type(type_)
    if value.type == target:
        return value
    return to.emit(f"ext.i32.i64.{sign}" if target == I64 else "trunc.i64.i32", value)


@lowers(arith.TruncIOp)
def truncate_integer(to: Lowering, op: arith.TruncIOp, operands: Sequence[SSAValue]) -> SSAValue:
    return to.narrow(_resize(to, operands[0], op.result.type, "s"), op.result.type)


@lowers(arith.IndexCastOp)
def index_cast(to: Lowering, op: arith.IndexCastOp, operands: Sequence[SSAValue]) -> SSAValue:
    (value,) = operands
    if bits(op.input.type) == 1:
        value = to.emit("sub.i32", to.i32(0), value)
    return to.narrow(_resize(to, value, op.result.type, "s"), op.result.type)


@lowers(IndexCastUIOp)
def index_cast_unsigned(to: Lowering, op: IndexCastUIOp, operands: Sequence[SSAValue]) -> SSAValue:
    value = to.unsigned(operands[0], op.input.type)
    return to.narrow(_resize(to, value, op.result.type, "u"), op.result.type)


@lowers(arith.BitcastOp)
def bitcast(to: Lowering, op: arith.BitcastOp, operands: Sequence[SSAValue]) -> SSAValue:
    (value,) = operands
    target = convert_type(op.result.type)
    if value.type != target:
        return to.emit(f"bitcast.{suffix(value.type)}.{suffix(target)}", value)
    if isinstance(op.result.type, IntegerType):
        return to.narrow(value, op.result.type)
    return to.unsigned(value, op.input.type) if isinstance(op.input.type, IntegerType) else value


@lowers(arith.SIToFPOp, arith.UIToFPOp)
def integer_to_float(to: Lowering, op: Any, operands: Sequence[SSAValue]) -> SSAValue:
    (value,) = operands
    sign = "s" if isinstance(op, arith.SIToFPOp) else "u"
    if sign == "u":
        value = to.unsigned(value, op.input.type)
    elif bits(op.input.type) == 1:
        value = to.emit("sub.i32", to.i32(0), value)
    return to.emit(f"cast.{sign}{suffix(value.type)}.{_float(op.result.type)}", value)


@lowers(arith.FPToSIOp, arith.FPToUIOp)
def float_to_integer(to: Lowering, op: Any, operands: Sequence[SSAValue]) -> SSAValue:
    sign = "s" if isinstance(op, arith.FPToSIOp) else "u"
    target = convert_type(op.result.type)
    name = _float(op.input.type)
    # The instruction rounds to the nearest integer (ops.h), arith toward zero.
    whole = _truncated(to, operands[0], name)
    found = to.emit(f"cast.{name}.{sign}{suffix(target)}", whole)
    return to.narrow(found, op.result.type)


@lowers(arith.ExtFOp)
def extend_float(to: Lowering, op: arith.ExtFOp, operands: Sequence[SSAValue]) -> SSAValue:
    if (op.input.type, op.result.type) != (F32, F64):
        raise Unsupported(f"the virtual machine does not convert {op.input.type} to {op.result.type}")
    return to.emit("ext.f32.f64", *operands)


@lowers(arith.TruncFOp)
def truncate_float_type(to: Lowering, op: arith.TruncFOp, operands: Sequence[SSAValue]) -> SSAValue:
    if (op.input.type, op.result.type) != (F64, F32):
        raise Unsupported(f"the virtual machine does not convert {op.input.type} to {op.result.type}")
    return to.emit("trunc.f64.f32", *operands)
