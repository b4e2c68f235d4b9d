"""Values, bit for bit: constants, signs, narrow types, NaN and zeros, products that must not be fused with sums."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from spirv_assembler import FUNCTION, Batch, Spirv

from halgpu.executables.vulkan_spirv.opcodes import Op

WIDTHS = (8, 16, 32, 64)

BITS = {
    # Zeros, the least subnormal (1e-45 as f32), the greatest subnormal, the least normal number, 1, pi or so, the
    # greatest number (65504 as f16), infinity, quiet and signalling NaNs with payloads; and all of them negative.
    16: (0, 1, 0x3FF, 0x400, 0x3C00, 0x4248, 0x7BFF, 0x7C00, 0x7E00, 0x7E55, 0x7FFF, 0x7C01, 0x7DAA),
    32: (0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x40490FDB, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 0x7FC12345,
         0x7FFFFFFF, 0x7F800001, 0x7FA55555),
    64: (0, 1, (1 << 52) - 1, 1 << 52, 0x3FF << 52, 0x400921FB54442D18, (0x7FF << 52) - 1, 0x7FF << 52, 0x7FF8 << 48,
         0x7FF8000012345678, (1 << 63) - 1, (0x7FF << 52) + 1, 0x7FF5555555555555),
}  # fmt: skip


@pytest.mark.parametrize("width", BITS)
def test_float_constants_keep_their_bits(width: int) -> None:
    """Stored as they are, as bits, from a table, from a variable, and chosen between."""
    kind, bits = f"f{width}", [b | sign << (width - 1) for b in BITS[width] for sign in (0, 1)]
    s = Spirv(kind, f"i{width}", kind, size=1)
    constants = [s.bits(kind, b) for b in bits]
    table = s.once("all", Op.ConstantComposite, s.array(kind, len(bits)), *constants, typed=True)
    held, written = (
        s.variable(FUNCTION, s.array(kind, len(bits))),
        s.variable(FUNCTION, s.array(kind, len(bits))),
    )
    s.do(Op.Store, held, table)
    for number, constant in enumerate(constants):
        at = s.constant("i32", number)
        s.do(Op.Store, s.access(kind, FUNCTION, written, at), constant)
    same = s.op(Op.IEqual, "bool", s.index, s.constant("i32", 0))
    for number, constant in enumerate(constants):
        at = s.op(Op.IAdd, "i32", s.index, s.constant("i32", number))
        s.do(Op.Store, s.element(0, at), constant)
        s.do(Op.Store, s.element(1, at), s.op(Op.Bitcast, f"i{width}", constant))
        for value in (
            s.op(Op.Load, kind, s.access(kind, FUNCTION, held, at)),
            s.op(Op.Load, kind, s.access(kind, FUNCTION, written, at)),
            s.op(Op.Select, kind, same, constant, constants[number - 1]),
        ):
            s.store(value)
    unsigned = f"u{width // 8}"
    arrays = [
        np.zeros(len(bits), unsigned),
        np.zeros(len(bits), unsigned),
        np.zeros((len(bits), 3), unsigned),
    ]
    plain, as_bits, others = s.run_all(arrays)
    assert [hex(b) for b in plain] == [hex(b) for b in bits]
    assert [hex(b) for b in as_bits] == [hex(b) for b in bits]
    assert [[hex(b) for b in row] for row in others] == [[hex(b)] * 3 for b in bits]


def test_constant_tables_that_hold_nan() -> None:
    """NaN is no constant expression of OpenCL C: tables in program scope hold its bits, structures are variables."""
    s = Spirv("f32", "i32", size=1)
    nan, one = s.bits("f32", 0x7FC12345), s.constant("f32", 1)
    s.struct("pair", "i32", "f32")
    pairs = [s.composite("pair", [s.constant("i32", n), part]) for n, part in ((5, nan), (6, one))]
    s.named["row"] = s.array("f32", 2)
    rows = [s.composite("row", parts) for parts in ([one, nan], [nan, nan])]
    vectors = [s.composite("2xf32", parts) for parts in ([one, nan], [nan, one])]
    index = s.op(Op.Load, "i32", s.element(1, s.index))
    for element, values in (("pair", pairs), ("row", rows), ("2xf32", vectors)):
        array = s.array(element, 2)
        table = s.once(("table", element), Op.ConstantComposite, array, *values, typed=True)
        variable = s.variable(FUNCTION, array, table)
        for at in (index, s.constant("i32", 1)):
            pointer = s.access("f32", FUNCTION, variable, at, s.constant("i32", 1))
            s.store(s.op(Op.Bitcast, "i32", s.op(Op.Load, "f32", pointer)))
    found = s.run_all([np.zeros(1, "f4"), np.zeros((6, 1), "i4")])[1][:, 0]
    assert [hex(v) for v in found.view("u4")] == ["0x7fc12345", "0x3f800000"] + ["0x7fc12345"] * 3 + [
        "0x3f800000"
    ]


def test_integer_constants_keep_their_bits() -> None:
    s = Batch(1)
    for width in WIDTHS:
        kind, least = f"i{width}", -(1 << (width - 1))
        for value in (least, least + 1, -least - 1, -1, 0, 1, 0x5A, -7):
            constant = s.constant(kind, value)
            s.expect(value, kind, constant, value)
            s.expect((value, "copy"), kind, s.op(Op.CopyObject, kind, constant), value)
            negated = s.op(Op.SNegate, kind, constant)
            s.expect((value, "negated"), kind, negated, value if value == least else -value)
            s.expect((value, "vector"), f"2x{kind}", s.composite(f"2x{kind}", [constant] * 2), [value] * 2)
    s.check()


@pytest.mark.parametrize("folded", [False, True], ids=["given", "constant"])
def test_signed_operations_on_minus_seven(folded: bool) -> None:
    """SPIR-V's integers have no sign of their own: each instruction says how it takes them."""
    s = Batch(1)
    for width in WIDTHS:
        kind, dtype = f"i{width}", f"i{width // 8}"

        def number(value: int, kind: str = kind, dtype: str = dtype) -> int:
            return s.constant(kind, value) if folded else s.given(kind, np.array([value], dtype))

        x, two, big = number(-7), number(2), (1 << width) - 7
        s.expect("SDiv", kind, s.op(Op.SDiv, kind, x, two), -3)
        s.expect("SRem", kind, s.op(Op.SRem, kind, x, two), -1)
        s.expect("SMod", kind, s.op(Op.SMod, kind, x, two), 1)
        s.expect(
            "UDiv", kind, s.op(Op.UDiv, kind, x, two), big // 2 - (1 << width) * (big // 2 >> (width - 1))
        )
        s.expect("SMin", kind, s.ext("SMin", kind, x, two), -7)
        s.expect("SMax", kind, s.ext("SMax", kind, x, two), 2)
        s.expect("UMin", kind, s.ext("UMin", kind, x, two), 2)
        s.expect("SClamp", kind, s.ext("SClamp", kind, x, number(-3), two), -3)
        s.expect("SAbs", kind, s.ext("SAbs", kind, x), 7)
        s.expect("SSign", kind, s.ext("SSign", kind, x), -1)
        s.expect("SLessThan", "bool", s.op(Op.SLessThan, "bool", x, two), 1)
        s.expect("ULessThan", "bool", s.op(Op.ULessThan, "bool", x, two), 0)
        s.expect("shift", kind, s.op(Op.ShiftRightArithmetic, kind, x, two), -2)
        s.expect("logical", kind, s.op(Op.ShiftRightLogical, kind, x, s.constant(kind, width - 1)), 1)
        for other in WIDTHS:
            if other != width:
                s.expect(("SConvert", width), f"i{other}", s.op(Op.SConvert, f"i{other}", x), -7)
                wanted = big & ((1 << other) - 1)
                wanted -= (wanted >> (other - 1)) << other
                s.expect(("UConvert", width), f"i{other}", s.op(Op.UConvert, f"i{other}", x), wanted)
        for target in ("f16", "f32", "f64"):
            s.expect(("SToF", width), target, s.op(Op.ConvertSToF, target, x), -7)
            with np.errstate(over="ignore"):
                s.expect(("UToF", width), target, s.op(Op.ConvertUToF, target, x), np.float64(big))
    s.check()


@pytest.mark.parametrize("folded", [False, True], ids=["given", "constant"])
@pytest.mark.parametrize("widths", [(32, 64), (64, 8)], ids=str)
def test_shifts_by_the_width_or_more_shift_all_bits_out(widths: tuple[int, int], folded: bool) -> None:
    """Undefined in SPIR-V; ONNX expects this of BitShift. A negative distance is a large one."""
    s = Batch(1)
    width, distance_width = widths
    scalars: dict[tuple[str, int], int] = {}

    def number(scalar: str, value: int, count: int) -> int:
        if (scalar, value) not in scalars:
            array = np.array([value]).astype(f"i{int(scalar[1:]) // 8}")
            scalars[scalar, value] = s.constant(scalar, value) if folded else s.given(scalar, array)
        found = scalars[scalar, value]
        if count == 1:
            return found
        vector = f"{count}x{scalar}"
        parts = [found] * count
        return s.composite(vector, parts) if folded else s.op(Op.CompositeConstruct, vector, *parts)

    for count, value, distance in itertools.product((1, 2), (-7, 5), (width - 1, width, -1)):
        kind = f"{count}x" * (count > 1) + f"i{width}"
        bits, by = value % (1 << width), distance % (1 << distance_width)
        a, b = number(f"i{width}", value, count), number(f"i{distance_width}", distance, count)
        for op, wanted in (
            (Op.ShiftLeftLogical, bits << min(by, width)),
            (Op.ShiftRightLogical, bits >> min(by, width)),
            (Op.ShiftRightArithmetic, value >> min(by, width)),
        ):
            found = np.full(count, wanted % (1 << width), f"u{width // 8}").view(f"i{width // 8}")
            s.expect((op, value, distance), kind, s.op(op, kind, a, b), found)
    s.check()


def test_narrow_types_do_not_widen_in_between() -> None:
    """C computes narrow integers as int: what SPIR-V cuts off must not come back in a larger expression."""
    s = Batch(1)

    def chain(kind: str, *values: int) -> list[int]:
        return [s.given(kind, np.array([v]).astype(f"i{int(kind[1:]) // 8}")) for v in values]

    x, four = chain("i8", 0xFF, 4)
    shifted = s.op(Op.ShiftRightLogical, "i8", s.op(Op.ShiftLeftLogical, "i8", x, four), four)
    s.expect("0xFF << 4 >> 4", "i8", shifted, 0x0F)
    a, b, c = chain("i8", 200, 100, 50)
    s.expect("200 + 100 < 50", "bool", s.op(Op.ULessThan, "bool", s.op(Op.IAdd, "i8", a, b), c), 1)
    s.expect("(200 + 100) / 2", "i8", s.op(Op.UDiv, "i8", s.op(Op.IAdd, "i8", a, b), s.constant("i8", 2)), 22)
    s.expect("100 - 200 as f32", "f32", s.op(Op.ConvertUToF, "f32", s.op(Op.ISub, "i8", b, a)), 156)
    s.expect("~200 == 55", "bool", s.op(Op.IEqual, "bool", s.op(Op.Not, "i8", a), s.constant("i8", 55)), 1)
    (m,) = chain("i16", 0xFFFF)
    product = s.op(Op.IMul, "i16", m, m)
    s.expect("0xFFFF * 0xFFFF", "i16", product, 1)
    s.expect("0xFFFF * 0xFFFF < 2", "bool", s.op(Op.ULessThan, "bool", product, s.constant("i16", 2)), 1)
    s.expect("widened", "i32", s.op(Op.UConvert, "i32", s.op(Op.IMul, "i16", m, m)), 1)
    s.expect("-0xFFFF", "i64", s.op(Op.UConvert, "i64", s.op(Op.SNegate, "i16", m)), 1)
    (wide,) = chain("i64", 0x0123456789ABCDEF)
    (by,) = chain("i32", 36)
    for kind, amount in (("i32", by), ("i8", chain("i8", 36)[0]), ("i64", s.constant("i64", 36))):
        s.expect(
            ("<<", kind),
            "i64",
            s.op(Op.ShiftLeftLogical, "i64", wide, amount),
            (0x0123456789ABCDEF << 36) % 2**64 - 2**64,
        )
        s.expect(
            (">>", kind), "i64", s.op(Op.ShiftRightLogical, "i64", wide, amount), 0x0123456789ABCDEF >> 36
        )
    (small,) = chain("i8", -128)
    long_four = s.constant("i64", 4)
    s.expect("i8 >> i64", "i8", s.op(Op.ShiftRightArithmetic, "i8", small, long_four), -8)
    s.expect("i8 << i64", "i8", s.op(Op.ShiftLeftLogical, "i8", a, long_four), (200 << 4) % 256 - 256)
    s.check()


Rule = Callable[..., int]
STEPS: dict[Op, Rule] = {
    Op.IAdd: lambda a, b, w: a + b, Op.ISub: lambda a, b, w: a - b, Op.IMul: lambda a, b, w: a * b,
    Op.BitwiseAnd: lambda a, b, w: a & b, Op.BitwiseOr: lambda a, b, w: a | b, Op.BitwiseXor: lambda a, b, w: a ^ b,
    Op.ShiftLeftLogical: lambda a, b, w: a << b % w, Op.ShiftRightLogical: lambda a, b, w: a >> b % w,
    Op.ShiftRightArithmetic: lambda a, b, w: (a - (a >> (w - 1) << w)) >> b % w,
    Op.UDiv: lambda a, b, w: a // b if b else 0, Op.UMod: lambda a, b, w: a % b if b else 0,
}  # fmt: skip


def test_random_expressions_of_all_widths() -> None:
    """Trees of a few operations and conversions, written as one C expression each, against Python's integers."""
    rng = np.random.default_rng(11)
    count, trees = 16, 40
    s = Batch(count)
    inputs: dict[int, list[tuple[int, list[int]]]] = {}
    for width in WIDTHS:
        inputs[width] = []
        for _ in range(3):
            values = rng.integers(0, 2**63, count, "u8", endpoint=True).astype(f"u{width // 8}")
            values[:4] = [0, 1, (1 << width) - 1, 1 << (width - 1)]
            inputs[width].append(
                (s.given(f"i{width}", values.view(f"i{width // 8}")), [int(v) for v in values])
            )

    def tree(width: int, depth: int) -> tuple[int, list[int]]:
        kind, mask = f"i{width}", (1 << width) - 1
        if depth == 0:
            return inputs[width][rng.integers(3)]
        if rng.integers(4) == 0:
            source = int(rng.choice([w for w in WIDTHS if w != width]))
            value, numbers = tree(source, depth - 1)
            if rng.integers(2):
                numbers = [n - (n >> (source - 1) << source) for n in numbers]
                return s.op(Op.SConvert, kind, value), [n & mask for n in numbers]
            return s.op(Op.UConvert, kind, value), [n & mask for n in numbers]
        op = list(STEPS)[rng.integers(len(STEPS))]
        a, left = tree(width, depth - 1)
        b, right = tree(width, depth - 1)
        if op in (Op.ShiftLeftLogical, Op.ShiftRightLogical, Op.ShiftRightArithmetic):
            # A shift by the width or more is undefined in SPIR-V.
            b = s.op(Op.BitwiseAnd, kind, b, s.constant(kind, width - 1))
            right = [n % width for n in right]
        return s.op(op, kind, a, b), [STEPS[op](p, q, width) & mask for p, q in zip(left, right, strict=True)]

    for number in range(trees):
        width = WIDTHS[number % 4]
        value, numbers = tree(width, 3)
        wanted = np.array(numbers, f"u{width // 8}").view(f"i{width // 8}")
        s.expect(("tree", number), f"i{width}", value, wanted)
    s.check()


NUMBERS = [np.nan, -np.nan, 0.0, -0.0, 1.0, -1.0, np.inf, -np.inf]
COMPARISONS: dict[Op, tuple[str, bool]] = {
    Op.FOrdEqual: ("==", False), Op.FUnordEqual: ("==", True), Op.FOrdNotEqual: ("!=", False),
    Op.FUnordNotEqual: ("!=", True), Op.FOrdLessThan: ("<", False), Op.FUnordLessThan: ("<", True),
    Op.FOrdGreaterThan: (">", False), Op.FUnordGreaterThan: (">", True), Op.FOrdLessThanEqual: ("<=", False),
    Op.FUnordLessThanEqual: ("<=", True), Op.FOrdGreaterThanEqual: (">=", False), Op.FUnordGreaterThanEqual: (">=", True),
}  # fmt: skip


def compared(operator: str, unordered: bool, a: float, b: float) -> bool:
    if np.isnan(a) or np.isnan(b):
        return unordered
    return bool({"==": a == b, "!=": a != b, "<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b}[operator])


@pytest.mark.parametrize("kind", ["f32", "f64", "f16"])
def test_comparisons_with_constants_negated_and_branched_on(kind: str) -> None:
    """What a compiler may turn round for numbers it must not turn round for NaN."""
    s = Batch(len(NUMBERS))
    x = s.given(kind, np.array(NUMBERS, f"f{int(kind[1:]) // 8}"))
    zero, one = s.constant("i32", 0), s.constant("i32", 1)
    for op, (operator, unordered) in COMPARISONS.items():
        for number in (np.nan, -0.0, 1.0, np.inf):
            constant = s.constant(kind, number)
            wanted = [compared(operator, unordered, a, number) for a in NUMBERS]
            turned = [compared(operator, unordered, number, a) for a in NUMBERS]
            result = s.op(op, "bool", x, constant)
            s.expect((op.name, number), "bool", result, wanted)
            s.expect((op.name, number, "turned"), "bool", s.op(op, "bool", constant, x), turned)
            negated = s.op(Op.LogicalNot, "bool", s.op(op, "bool", x, constant))
            s.expect((op.name, number, "not"), "bool", negated, np.logical_not(wanted))
        before = s.start
        then, merge = s.new(), s.new()
        condition = s.op(Op.LogicalNot, "bool", s.op(op, "bool", x, s.constant(kind, 1.0)))
        s.do(Op.SelectionMerge, merge, 0)
        s.do(Op.BranchConditional, condition, merge, then)
        s.label(then)
        s.do(Op.Branch, merge)
        s.label(merge)
        taken = s.op(Op.Phi, "i32", zero, before, one, then)
        s.start = merge
        wanted = [compared(operator, unordered, a, 1.0) for a in NUMBERS]
        s.expect((op.name, "branch"), "i32", taken, wanted)
    s.check()


@pytest.mark.parametrize("kind", ["f32", "f64", "f16"])
def test_minimum_and_maximum_with_constants(kind: str) -> None:
    """NMin and NMax take the number where one is NaN, in both orders. For FMin and FMax either would do: here too."""
    s = Batch(len(NUMBERS))
    dtype = f"f{int(kind[1:]) // 8}"
    given = np.array(NUMBERS, dtype)
    x = s.given(kind, given)
    for number in (np.nan, 0.0, -0.0, 1.0, -np.inf):
        constant, other = s.constant(kind, number), np.full(len(NUMBERS), number, dtype)
        zeros = (given == 0) & (other == 0)
        least = np.where(zeros, np.where(np.signbit(given), given, other), np.fmin(given, other))
        most = np.where(zeros, np.where(np.signbit(given), other, given), np.fmax(given, other))
        for name in ("NMin", "FMin", "NMax", "FMax"):
            wanted = least if name.endswith("Min") else most
            s.expect((name, number), kind, s.ext(name, kind, x, constant), wanted)
            s.expect((number, name), kind, s.ext(name, kind, constant, x), wanted)
        low, high = s.constant(kind, 0), s.constant(kind, 1)
        s.expect("NClamp", kind, s.ext("NClamp", kind, s.constant(kind, 3), low, high), np.ones(len(NUMBERS)))
    s.check()


@pytest.mark.parametrize("vector", ["", "4x"])
def test_products_are_not_fused_with_sums(vector: str) -> None:
    """1/x * x - 1 and the like: fused, the product's rounding error would be seen."""
    count = 64
    s = Batch(count)
    n = 4 if vector else 1
    rng = np.random.default_rng(3)
    for width in (16, 32, 64):
        kind, dtype = f"{vector}f{width}", np.dtype(f"f{width // 8}")
        a, b, c = (rng.uniform(0.5, 2, count * n).astype(dtype) for _ in range(3))
        c[::2] = -(a * b)[::2]
        x, y, z = (s.given(kind, v) for v in (a, b, c))
        product = a * b
        exact = a.astype("f8") * b.astype("f8")
        assert width == 64 or np.any((exact + c.astype("f8")).astype(dtype) != product + c)
        s.expect("a*b+c", kind, s.op(Op.FAdd, kind, s.op(Op.FMul, kind, x, y), z), product + c)
        s.expect("c+a*b", kind, s.op(Op.FAdd, kind, z, s.op(Op.FMul, kind, x, y)), product + c)
        s.expect("a*b-c", kind, s.op(Op.FSub, kind, s.op(Op.FMul, kind, x, y), z), product - c)
        s.expect("c-a*b", kind, s.op(Op.FSub, kind, z, s.op(Op.FMul, kind, x, y)), c - product)
        negated = s.op(Op.FNegate, kind, s.op(Op.FMul, kind, x, y))
        s.expect("-(a*b)+c", kind, s.op(Op.FAdd, kind, negated, z), c - product)
        both = s.op(Op.FAdd, kind, s.op(Op.FMul, kind, x, y), s.op(Op.FMul, kind, z, z))
        s.expect("a*b+c*c", kind, both, product + c * c)
    s.check()
