"""Instructions on numbers, of every width and as vectors, against numpy and plain Python integers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from spirv_assembler import Batch

from halgpu.executables.vulkan_spirv.opcodes import Op

Rule = Callable[..., int]
INT_KINDS = ("i8", "i16", "i32", "i64", "4xi8", "3xi16", "4xi32", "2xi64")
FLOAT_KINDS = ("f16", "f32", "f64", "4xf16", "4xf32", "2xf64")
COUNT = 32


def shape_of(kind: str) -> tuple[int, int, str]:
    """Components, width and numpy dtype of a kind."""
    count, element = kind.split("x") if "x" in kind else ("1", kind)
    return int(count), int(element[1:]), f"{element[0]}{int(element[1:]) // 8}"


def integers(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Pairs with the edges of the type, zeros, and -1 among the divisors."""
    count, _, dtype = shape_of(kind)
    rng = np.random.default_rng(7)
    info = np.iinfo(dtype)
    a, b = (rng.integers(info.min, info.max, COUNT * count, info.dtype, endpoint=True) for _ in range(2))
    a[:8], b[:8] = [info.min, info.max, 0, -1, 1, -7, 7, 2], [-1, -1, 5, 0, 0, 2, -2, info.min]
    b[8:16] = [3, -3, 1, -1, 7, -7, 100, -100]
    return a, b


def divide(a: int, b: int) -> int:
    """Towards zero; 0 for a division by zero, which SPIR-V leaves open."""
    return 0 if b == 0 else int(math.copysign(1, a) * math.copysign(1, b)) * (abs(a) // abs(b))


def remainder(a: int, b: int) -> int:
    return a - b * divide(a, b) if b else 0


def wrapped(values: list[int], width: int) -> np.ndarray:
    """Two's complement of the low bits."""
    values = [v & ((1 << width) - 1) for v in values]
    return np.array([v - (1 << width) if v >> (width - 1) else v for v in values], f"i{width // 8}")


def unsigned_rule(rule: Rule, width: int) -> Rule:
    mask = (1 << width) - 1
    return lambda *values: rule(*(v & mask for v in values))


def integer_rules(width: int) -> dict[Op, Rule]:
    def distance(b: int) -> int:
        """By the width or more, and a negative one is, all bits are shifted out."""
        return min(b & ((1 << width) - 1), width)

    return {
        Op.IAdd: lambda a, b: a + b, Op.ISub: lambda a, b: a - b, Op.IMul: lambda a, b: a * b,
        Op.SDiv: divide, Op.SRem: remainder, Op.SMod: lambda a, b: a % b if b else 0,
        Op.UDiv: unsigned_rule(divide, width), Op.UMod: unsigned_rule(remainder, width),
        Op.BitwiseAnd: lambda a, b: a & b, Op.BitwiseOr: lambda a, b: a | b, Op.BitwiseXor: lambda a, b: a ^ b,
        Op.ShiftLeftLogical: lambda a, b: a << distance(b), Op.ShiftRightArithmetic: lambda a, b: a >> distance(b),
        Op.ShiftRightLogical: lambda a, b: (a & ((1 << width) - 1)) >> distance(b),
    }  # fmt: skip


def test_integer_arithmetic() -> None:
    s = Batch(COUNT)
    for kind in INT_KINDS:
        _, width, _ = shape_of(kind)
        a, b = integers(kind)
        x, y = s.given(kind, a), s.given(kind, b)
        pairs = [(int(p), int(q)) for p, q in zip(a, b, strict=True)]
        for op, rule in integer_rules(width).items():
            s.expect(op.name, kind, s.op(op, kind, x, y), wrapped([rule(p, q) for p, q in pairs], width))
        unary: dict[Op, Rule] = {
            Op.SNegate: lambda a: -a, Op.Not: lambda a: ~a,
            Op.BitCount: unsigned_rule(int.bit_count, width),
            Op.BitReverse: unsigned_rule(lambda a, width=width: int(f"{a:0{width}b}"[::-1], 2), width),
        }  # fmt: skip
        for op, rule in unary.items():
            s.expect(op.name, kind, s.op(op, kind, x), wrapped([rule(p) for p, _ in pairs], width))
    s.check()


def test_integers_with_constants() -> None:
    s = Batch(COUNT)
    for kind in ("i8", "i16", "i32", "i64", "2xi32", "4xi8", "2xi16"):
        _, width, _ = shape_of(kind)
        a, _ = integers(kind)
        x = s.given(kind, a)
        for op, rule in integer_rules(width).items():
            for constant in (3, -3, 1, -1, 0, -(1 << (width - 1))):
                value = s.op(op, kind, x, s.constant(kind, constant))
                s.expect(
                    (op.name, constant), kind, value, wrapped([rule(int(p), constant) for p in a], width)
                )
    s.check()


def test_integer_comparisons() -> None:
    s = Batch(COUNT)
    for kind in ("i8", "i16", "i32", "i64", "4xi8", "2xi16", "4xi32", "2xi64"):
        count, width, _ = shape_of(kind)
        boolean = f"{count}xbool" if count > 1 else "bool"
        a, b = integers(kind)
        b[20:24] = a[20:24]
        x, y = s.given(kind, a), s.given(kind, b)
        rules: dict[Op, Rule] = {
            Op.IEqual: lambda a, b: a == b, Op.INotEqual: lambda a, b: a != b,
            Op.SLessThan: lambda a, b: a < b, Op.SLessThanEqual: lambda a, b: a <= b,
            Op.SGreaterThan: lambda a, b: a > b, Op.SGreaterThanEqual: lambda a, b: a >= b,
            Op.ULessThan: unsigned_rule(lambda a, b: a < b, width),
            Op.ULessThanEqual: unsigned_rule(lambda a, b: a <= b, width),
            Op.UGreaterThan: unsigned_rule(lambda a, b: a > b, width),
            Op.UGreaterThanEqual: unsigned_rule(lambda a, b: a >= b, width),
        }  # fmt: skip
        for op, rule in rules.items():
            wanted = [rule(int(p), int(q)) for p, q in zip(a, b, strict=True)]
            s.expect(op.name, boolean, s.op(op, boolean, x, y), wanted)
        for constant in (-1, 0, 3, -(1 << (width - 1))):
            for op in (Op.SLessThan, Op.UGreaterThan):
                wanted = [rules[op](int(p), constant) for p in a]
                s.expect(
                    (op.name, constant), boolean, s.op(op, boolean, x, s.constant(kind, constant)), wanted
                )
    s.check()


def test_results_of_two_parts() -> None:
    s = Batch(COUNT)
    for kind in ("i32", "i64", "4xi32", "2xi64"):
        _, width, _ = shape_of(kind)
        mask = (1 << width) - 1
        a, b = integers(kind)
        pair = s.struct(f"pair of {kind}", kind, kind)
        assert pair
        x, y = s.given(kind, a), s.given(kind, b)
        pairs = [(int(p), int(q)) for p, q in zip(a, b, strict=True)]
        rules: dict[Op, Callable[[int, int], tuple[int, int]]] = {
            Op.IAddCarry: lambda a, b, mask=mask: (a + b, (a & mask) + (b & mask) > mask),
            Op.ISubBorrow: lambda a, b, mask=mask: (a - b, (a & mask) < (b & mask)),
            Op.UMulExtended: lambda a, b, mask=mask, width=width: (a * b, (a & mask) * (b & mask) >> width),
            Op.SMulExtended: lambda a, b, width=width: (a * b, a * b >> width),
        }  # fmt: skip
        for op, rule in rules.items():
            both = s.op(op, f"pair of {kind}", x, y)
            for part in (0, 1):
                value = s.op(Op.CompositeExtract, kind, both, part)
                s.expect(
                    (op.name, part), kind, value, wrapped([int(rule(p, q)[part]) for p, q in pairs], width)
                )
    s.check()


def test_bit_fields() -> None:
    s = Batch(COUNT)
    for kind in ("i32", "2xi32", "i64", "i16", "4xi8"):
        _, width, _ = shape_of(kind)
        a, b = integers(kind)
        x, y = s.given(kind, a), s.given(kind, b)
        for offset, count in ((0, 0), (0, width), (3, 5), (width - 4, 4), (1, width - 1), (7, 0)):
            o, c = s.constant("i32", offset), s.constant("i32", count)
            ones = ((1 << count) - 1) << offset
            inserted = [(int(p) & ~ones) | ((int(q) << offset) & ones) for p, q in zip(a, b, strict=True)]
            unsigned = [(int(p) >> offset) & ((1 << count) - 1) for p in a]
            signed = [u - (1 << count) if count and u >> (count - 1) else u for u in unsigned]
            at = (offset, count)
            s.expect(
                ("insert", at), kind, s.op(Op.BitFieldInsert, kind, x, y, o, c), wrapped(inserted, width)
            )
            s.expect(("signed", at), kind, s.op(Op.BitFieldSExtract, kind, x, o, c), wrapped(signed, width))
            s.expect(
                ("unsigned", at), kind, s.op(Op.BitFieldUExtract, kind, x, o, c), wrapped(unsigned, width)
            )
    s.check()


FLOATS = [0.0, -0.0, 1.0, -1.5, 2.5, 3.5, np.inf, -np.inf, np.nan, 6e-8, 7.25, -0.3]


def floats(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of FLOATS."""
    count, _, dtype = shape_of(kind)
    values = np.array(FLOATS, dtype)
    a, b = np.repeat(values, len(values)), np.tile(values, len(values))
    return np.resize(a, 144 * count), np.resize(b, 144 * count)


def least(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The smaller, -0 below +0, the number rather than NaN."""
    zeros = (a == 0) & (b == 0)
    return np.where(zeros, np.where(np.signbit(a), a, b), np.fmin(a, b)).astype(a.dtype)


def test_float_arithmetic() -> None:
    s = Batch(144)
    for kind in FLOAT_KINDS:
        a, b = floats(kind)
        x, y = s.given(kind, a), s.given(kind, b)
        with np.errstate(all="ignore"):
            fmod = np.fmod(a, b)
            floored = np.where((fmod != 0) & (np.signbit(fmod) != np.signbit(b)), fmod + b, fmod)
            away = np.where(np.isfinite(a), np.copysign(np.floor(np.abs(a) + a.dtype.type(0.5)), a), a)
            wanted = {
                Op.FAdd: a + b, Op.FSub: a - b, Op.FMul: a * b, Op.FDiv: a / b, Op.FRem: fmod, Op.FMod: floored,
                "NMin": least(a, b), "NMax": -least(-a, -b), "FMin": least(a, b), "FMax": -least(-a, -b),
            }  # fmt: skip
            of_one = {
                Op.FNegate: -a, "FAbs": np.abs(a), "Floor": np.floor(a), "Ceil": np.ceil(a), "Trunc": np.trunc(a),
                "RoundEven": np.rint(a), "Sqrt": np.sqrt(a), "Round": away,
            }  # fmt: skip
        for op, result in (wanted | of_one).items():
            operands = (x, y) if op in wanted else (x,)
            value = s.op(op, kind, *operands) if isinstance(op, Op) else s.ext(op, kind, *operands)
            s.expect(getattr(op, "name", op), kind, value, result)
    s.check()


def test_float_comparisons() -> None:
    s = Batch(144)
    for kind in FLOAT_KINDS:
        count, _, _ = shape_of(kind)
        boolean = f"{count}xbool" if count > 1 else "bool"
        a, b = floats(kind)
        x, y = s.given(kind, a), s.given(kind, b)
        nan = np.isnan(a) | np.isnan(b)
        wanted = {
            Op.FOrdEqual: a == b, Op.FUnordEqual: (a == b) | nan, Op.FOrdNotEqual: (a != b) & ~nan,
            Op.FUnordNotEqual: a != b, Op.FOrdLessThan: a < b, Op.FUnordLessThan: (a < b) | nan,
            Op.FOrdGreaterThan: a > b, Op.FUnordGreaterThan: (a > b) | nan, Op.FOrdLessThanEqual: a <= b,
            Op.FUnordLessThanEqual: (a <= b) | nan, Op.FOrdGreaterThanEqual: a >= b,
            Op.FUnordGreaterThanEqual: (a >= b) | nan, Op.Ordered: ~nan, Op.Unordered: nan,
        }  # fmt: skip
        for op, result in wanted.items():
            s.expect(op.name, boolean, s.op(op, boolean, x, y), result)
        s.expect("IsNan", boolean, s.op(Op.IsNan, boolean, x), np.isnan(a))
        s.expect("IsInf", boolean, s.op(Op.IsInf, boolean, x), np.isinf(a))
        s.expect("IsFinite", boolean, s.op(Op.IsFinite, boolean, x), np.isfinite(a))
        normal = np.isfinite(a) & (np.abs(a) >= np.finfo(a.dtype).tiny)
        s.expect("IsNormal", boolean, s.op(Op.IsNormal, boolean, x), normal)
        s.expect("SignBitSet", boolean, s.op(Op.SignBitSet, boolean, x), np.signbit(a))
    s.check()


def test_booleans() -> None:
    s = Batch(4)
    for count in ("", "4x"):
        n = 4 if count else 1
        a, b = np.resize([0, 0, 1, 1], 4 * n), np.resize([0, 1, 0, 1, 1], 4 * n)
        kind, boolean = f"{count}i32", f"{count}bool"
        zero = s.constant(kind, 0)
        x, y = (s.op(Op.INotEqual, boolean, s.given(kind, v.astype("i4")), zero) for v in (a, b))
        wanted = {
            Op.LogicalAnd: a & b,
            Op.LogicalOr: a | b,
            Op.LogicalEqual: a == b,
            Op.LogicalNotEqual: a != b,
        }
        for op, result in wanted.items():
            s.expect(op.name, boolean, s.op(op, boolean, x, y), result)
        s.expect("not", boolean, s.op(Op.LogicalNot, boolean, x), 1 - a)
        s.expect("constant", boolean, s.constant(boolean, 1), np.ones(4 * n))
        if count:
            rows = a.reshape(4, 4)
            s.expect("any", "bool", s.op(Op.Any, "bool", x), rows.any(1))
            s.expect("all", "bool", s.op(Op.All, "bool", x), rows.all(1))
            parts = [s.op(Op.CompositeExtract, "bool", v, i) for v, i in ((x, 1), (y, 3))]
            pair = s.op(Op.CompositeConstruct, "2xbool", *parts)
            s.expect("pair", "bool", s.op(Op.All, "bool", pair), rows[:, 1] & b.reshape(4, 4)[:, 3])
            chosen = s.op(Op.Select, "4xi32", parts[0], s.constant(kind, 5), s.constant(kind, 6))
            s.expect("one for all", "4xi32", chosen, np.repeat(np.where(rows[:, 1], 5, 6), 4))
            for other in ("4xf64", "4xi16", "4xf16"):
                each = s.op(Op.Select, other, x, s.constant(other, 2), s.constant(other, 3))
                s.expect("each", other, each, np.where(a, 2, 3))
    s.check()


def test_dot_and_scaling() -> None:
    s = Batch(8)
    rng = np.random.default_rng(3)
    for width in (16, 32, 64):
        kind, dtype = f"f{width}", np.dtype(f"f{width // 8}")
        a, b = (rng.uniform(-2, 2, (8, 4)).astype(dtype) for _ in range(2))
        x, y = s.given(f"4x{kind}", a), s.given(f"4x{kind}", b)
        # 16-bit floats are summed as 32-bit ones where the device has none of their own.
        products = (a.astype("f4") * b.astype("f4")).T if width == 16 else (a * b).T
        if width != 16:
            s.expect(
                "dot", kind, s.op(Op.Dot, kind, x, y), products[0] + products[1] + products[2] + products[3]
            )
        scaled = s.op(Op.VectorTimesScalar, f"4x{kind}", x, s.op(Op.CompositeExtract, kind, y, 2))
        s.expect("scaled", f"4x{kind}", scaled, a * b[:, 2:3])
    s.check()


def test_integer_dot_products() -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-128, 127, (16, 4), "i1", endpoint=True) for _ in range(2))
    a[0], b[0] = -128, -128
    accumulator = rng.integers(-(2**31), 2**31 - 1, 16, "i4", endpoint=True)
    accumulator[:2] = 2**31 - 5, -(2**31) + 5
    s = Batch(16)
    x, y, acc = s.given("4xi8", a), s.given("4xi8", b), s.given("i32", accumulator)
    p, q = a.astype(int), b.astype(int)
    u, v = p & 255, q & 255
    s.expect("SDot", "i32", s.op(Op.SDot, "i32", x, y), (p * q).sum(1))
    s.expect("UDot", "i32", s.op(Op.UDot, "i32", x, y), (u * v).sum(1))
    s.expect("SUDot", "i32", s.op(Op.SUDot, "i32", x, y), (p * v).sum(1))
    total = np.clip((p * q).sum(1) + accumulator.astype(int), -(2**31), 2**31 - 1)
    s.expect("SDotAccSat", "i32", s.op(Op.SDotAccSat, "i32", x, y, acc), total)
    total = np.clip((u * v).sum(1) + (accumulator.astype(int) & 0xFFFFFFFF), 0, 2**32 - 1)
    s.expect("UDotAccSat", "i32", s.op(Op.UDotAccSat, "i32", x, y, acc), wrapped(total.tolist(), 32))
    packed = [s.op(Op.Bitcast, "i32", value) for value in (x, y)]
    s.expect("packed", "i32", s.op(Op.SDot, "i32", *packed, 0), (p * q).sum(1))
    s.expect("64 bits", "i64", s.op(Op.SDot, "i64", x, y), (p * q).sum(1))
    s.check()
