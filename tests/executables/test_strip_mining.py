"""Loops that add up floats in order, taken in strips by kernels for CPUs: the same bits as one pass after another."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import product

import mlir_corpus
import numpy as np
import pytest
from spirv_assembler import Spirv, instruction, run_program

import halgpu
from halgpu.devices import open_device
from halgpu.devices.base import Program
from halgpu.executables.vulkan_spirv import loader, strip_mining
from halgpu.executables.vulkan_spirv.opcodes import Op
from halgpu.executables.vulkan_spirv.translate import Target

CPU = Target(cpu=True, exact_division=True)
ROWS = 16
"""Work-items; each has a row of the first binding."""
WIDTH = 128
STRIP = re.compile(r"for \(uint lane\w* = 0u;")
VOLATILE = 1


class Loops(Spirv):
    """Kernels with loops over a row of the first binding; the last binding takes what they come to."""

    def __init__(self, kind: str = "f32", *, constants: int = 0, size: int = ROWS) -> None:
        super().__init__(kind, kind, size=size, constants=constants)
        self.kind = kind

    def number(self, value: float) -> int:
        return self.constant(self.kind, value)

    def add(self, a: int, b: int) -> int:
        return self.op(Op.FAdd, self.kind, a, b)

    def mul(self, a: int, b: int) -> int:
        return self.op(Op.FMul, self.kind, a, b)

    def at(self, i: int) -> int:
        """The place of an element of the row."""
        row = self.op(Op.IMul, "i32", self.index, self.constant("i32", WIDTH))
        return self.element(0, self.op(Op.IAdd, "i32", row, i))

    def x(self, i: int, *how: int) -> int:
        """An element of the row."""
        return self.op(Op.Load, self.kind, self.at(i), *how)

    def term(self, i: int) -> int:
        """((x + 0.25) x - 1.5) x + 0.5: enough for strips to be worth it."""
        x = self.x(i)
        inner = self.add(self.mul(self.add(x, self.number(0.25)), x), self.number(-1.5))
        return self.add(self.mul(inner, x), self.number(0.5))

    def given(self, number: int) -> int:
        """A push constant."""
        if "push" not in self.named:
            block = self.struct("push", *["i32"] * self.constants)
            self.annotations += instruction(Op.Decorate, block, 2)
            for member in range(self.constants):
                self.annotations += instruction(Op.MemberDecorate, block, member, 35, 4 * member)
            self.named["pushed"] = self.variable(9, block)
        return self.op(
            Op.Load, "i32", self.access("i32", 9, self.named["pushed"], self.constant("i32", number))
        )

    def loop(
        self,
        start: int,
        end: int,
        carried: Sequence[int],
        body: Callable[..., Sequence[int]],
        *,
        step: int = 1,
        test: Op = Op.SLessThan,
        kinds: Sequence[str] = (),
        counter: str = "i32",
    ) -> list[int]:
        """A loop; ``body`` takes the counter and what is carried, and gives the next of it."""
        kinds = kinds or [self.kind] * len(carried)
        header, inside, proceed, merge = (self.new() for _ in range(4))
        stepped, *nexts = self.new(counter), *(self.new(kind) for kind in kinds)
        self.do(Op.Branch, header)
        self.label(header)
        i = self.op(Op.Phi, counter, start, self.start, stepped, proceed)
        phis = [
            self.op(Op.Phi, kind, first, self.start, after, proceed)
            for kind, first, after in zip(kinds, carried, nexts, strict=True)
        ]
        going = self.op(test, "bool", i, end)
        self.do(Op.LoopMerge, merge, proceed, 0)
        self.do(Op.BranchConditional, going, inside, merge)
        self.label(inside)
        for kind, after, value in zip(kinds, nexts, body(i, *phis), strict=True):
            self.body += instruction(Op.CopyObject, self.type(kind), after, value)
        self.do(Op.Branch, proceed)
        self.label(proceed)
        self.body += instruction(Op.IAdd, self.type(counter), stepped, i, self.constant(counter, step))
        self.do(Op.Branch, header)
        self.label(merge)
        self.start = merge
        return phis

    def total(self, start: int, end: int, **how: object) -> int:
        """The loop that adds up the terms."""
        found = self.loop(start, end, [self.number(0)], lambda i, sum_: [self.add(self.term(i), sum_)], **how)  # type: ignore[arg-type]
        return found[0]


def numbers(dtype: str = "f4", seed: int = 0) -> np.ndarray:
    """Rows of numbers whose sum depends on the order."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((ROWS, WIDTH)) * 10.0 ** rng.uniform(-3, 3, (ROWS, WIDTH))).astype(dtype)


def terms(x: np.ndarray) -> np.ndarray:
    """What `Loops.term` gives, each operation rounded."""
    one = x.dtype.type
    return (((x + one(0.25)) * x + one(-1.5)) * x) + one(0.5)


def in_order(values: np.ndarray) -> np.ndarray:
    """The sums of rows from left to right."""
    total = np.zeros(len(values), values.dtype)
    for column in values.T:
        total = column + total
    return total


def strips(program: Program) -> int:
    """How many loops of a program are taken in strips: those that add, and half as many for each maximum."""
    return len(STRIP.findall(program.source.partition("_apart")[0])) // 2


def run(s: Spirv, *arrays: np.ndarray, **options: object) -> np.ndarray:
    """What a kernel stores, on the CPU's text and on the other; NaNs may have any bits."""
    return s.rows_of(*arrays, dtype=arrays[0].dtype, **options)


@pytest.mark.parametrize(("kind", "dtype"), [("f32", "f4"), ("f64", "f8")])
def test_sums_keep_their_order(kind: str, dtype: str) -> None:
    """Ranges of each kind of counter: whole strips and not, any step, from below zero where it is signed."""
    x, wanted = numbers(dtype), []
    s = Loops(kind)
    for start, end, step in [(0, 16, 1), (0, 17, 1), (3, 128, 1), (0, 128, 1), (1, 128, 3), (5, 127, 7)]:
        for test in (Op.SLessThan, Op.ULessThan):
            s.store(s.total(s.constant("i32", start), s.constant("i32", end), step=step, test=test))
            wanted.append(in_order(terms(x[:, start:end:step])))

    def shifted(i: int, total: int) -> list[int]:
        return [s.add(total, s.term(s.op(Op.IAdd, "i32", i, s.constant("i32", 40))))]

    below = s.loop(s.constant("i32", -40), s.constant("i32", -3), [s.number(0)], shifted)
    s.store(below[0])
    wanted.append(in_order(terms(x[:, :37])))
    assert strips(s.program(CPU)) == len(wanted)
    assert strips(s.program(Target())) == 0
    assert not np.array_equal(in_order(terms(x)), in_order(terms(x[:, ::-1])))
    np.testing.assert_array_equal(run(s, x), wanted)


def test_ends_that_are_not_known_before() -> None:
    x = numbers()
    s = Loops(constants=2)
    s.store(s.total(s.given(0), s.given(1)))
    s.store(s.total(s.given(0), s.given(1), test=Op.ULessThan, step=5))
    s.store(s.total(s.given(0), s.constant("i32", 100)))
    s.store(s.total(s.constant("i32", 3), s.given(1), test=Op.ULessThan))
    program = s.program(CPU)
    assert strips(program) == 4
    device = open_device("opencl")
    for start, end in [(0, 0), (0, 1), (0, 7), (0, 8), (0, 9), (2, 17), (7, 128), (100, 128), (60, 50)]:
        found = run_program(device, program, [x, np.zeros((4, ROWS), "f4")], (start, end))[1]
        ranges = [(start, end, 1), (start, end, 5), (start, 100, 1), (3, end, 1)]
        wanted = [in_order(terms(x[:, a:b:c])) if a < b else np.zeros(ROWS, "f4") for a, b, c in ranges]
        np.testing.assert_array_equal(found, wanted)


def test_ends_at_the_limits_of_the_counter() -> None:
    """No pass of a counter near its greatest and least values is lost or added."""
    x = numbers()
    s = Loops(constants=2)

    def near(i: int, total: int) -> list[int]:
        return [s.add(s.term(s.op(Op.BitwiseAnd, "i32", i, s.constant("i32", WIDTH - 1))), total)]

    for test in (Op.SLessThan, Op.ULessThan):
        s.store(s.loop(s.given(0), s.given(1), [s.number(0)], near, test=test)[0])
    program = s.program(CPU)
    assert strips(program) == 2
    device = open_device("opencl")
    top, middle = 2**32 - 1, 2**31 - 1
    for start, end in [
        (top - 20, top),
        (middle - 20, middle),
        (middle + 1, middle + 22),
        (top - 2, 19),
        (middle - 5, middle + 17),
    ]:
        found = run_program(device, program, [x, np.zeros((2, ROWS), "f4")], (start, end))[1]
        for row, sign in enumerate((1 << 32, 0)):
            a, b = (v - (sign if sign and v > middle else 0) for v in (start, end))
            passes = [i % WIDTH for i in range(a, b)]
            assert len(passes) < WIDTH
            np.testing.assert_array_equal(found[row], in_order(terms(x[:, passes])), str((start, end, row)))


def lasting(values: np.ndarray, greater: bool) -> np.ndarray:
    """The greatest or least number of each row, +0 above -0; NaN where there is no number."""
    found = []
    for row in values.tolist():
        row = [value for value in row if value == value]
        key = max if greater else min
        found.append(key(row, key=lambda v: (v, np.copysign(1, v))) if row else np.nan)
    return np.array(found, values.dtype)


def special(dtype: str, count: int) -> np.ndarray:
    """Rows of zeros, infinities, NaNs of different bits and a few numbers; some of nothing but NaNs, or zeros."""
    rng = np.random.default_rng(2)
    bits = np.dtype(f"u{dtype[1]}")
    one = np.array([np.nan, -np.nan], dtype).view(bits)
    nans = (one[rng.integers(0, 2, (count, WIDTH))] + rng.integers(1, 1000, (count, WIDTH), bits)).view(dtype)
    few = np.array([0.0, -0.0, np.inf, -np.inf, 1.5, -1.5, 5e-324, -1e-45], dtype)
    values = few[rng.integers(0, len(few), (count, WIDTH))]
    share = rng.choice([0.0, 0.5, 0.97], count)[:, None]
    values = np.where(rng.random((count, WIDTH)) < share, nans, values)
    values[: count // 4] = nans[: count // 4]
    zeros = np.where(rng.random((count // 8, WIDTH)) < 0.9, few[0], few[1])
    values[-(count // 8) :] = zeros * np.where(rng.random((count // 8, 1)) < 0.5, 1, -1).astype(dtype)
    return values


@pytest.mark.parametrize(("kind", "dtype"), [("f32", "f4"), ("f64", "f8")])
def test_extrema_are_the_same_in_any_order(kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the operands in both orders, from NaNs, zeros and infinities on; NaNs have the bits that they had before."""
    x, size = special(dtype, 256), 256
    s, wanted = Loops(kind, size=size), []
    width = 8 * x.itemsize
    quiet = int(np.array(np.nan, dtype).view(f"u{x.itemsize}")) + 77
    firsts = [s.number(0.0), s.number(-0.0), s.number(np.inf), s.number(-np.inf), s.bits(kind, quiet)]
    values = [np.array(v, dtype) for v in (0.0, -0.0, np.inf, -np.inf, np.nan)]
    for index, (name, swapped) in enumerate(product(("NMax", "FMin"), (False, True))):
        # Of NaNs alone the passes behind the last strip would hide which one the strips come to.
        for number, end in ((index, (16, 21, 37, 40)[index]), (4, 16)):

            def step(i: int, best: int, name: str = name, swapped: bool = swapped) -> list[int]:
                pair = (best, s.x(i)) if swapped else (s.x(i), best)
                return [s.ext(name, kind, *pair)]

            s.store(s.loop(s.constant("i32", 0), s.constant("i32", end), [firsts[number]], step)[0])
            row = np.concatenate([np.broadcast_to(values[number], (size, 1)), x[:, :end]], 1)
            wanted.append(lasting(row, "Max" in name))
    program = s.program(CPU)
    # A loop that begins the lanes, one that takes the passes, and one that joins the lanes.
    assert len(STRIP.findall(program.source.partition("_apart")[0])) == 3 * len(wanted)
    monkeypatch.setattr(strip_mining, "rewrite", lambda *_: None)
    plain = s.program(CPU)
    assert strips(plain) == 0
    device, rows = open_device("opencl"), np.zeros((len(wanted), size), dtype)
    found, before = (run_program(device, text, [x, rows])[1] for text in (program, plain))
    assert width in (32, 64)
    np.testing.assert_array_equal(found.view(f"u{x.itemsize}"), before.view(f"u{x.itemsize}"))
    numbered = ~np.isnan(np.array(wanted))
    np.testing.assert_array_equal(np.isnan(found), ~numbered)
    bits = f"u{x.itemsize}"
    np.testing.assert_array_equal(found.view(bits)[numbered], np.array(wanted).view(bits)[numbered])


def test_several_values_are_carried() -> None:
    """Sums that feed one another, a value of the last pass, one that the counter is in, and a maximum between."""
    x = numbers() / np.float32(1e3)
    s = Loops()
    zero = s.number(0)

    def body(i: int, a: int, b: int, last: int, best: int, count: int) -> list[int]:
        term = s.term(i)
        index = s.op(Op.ConvertUToF, "f32", i)
        return [
            s.add(b, s.mul(term, s.number(0.5))),
            s.add(s.op(Op.FSub, "f32", term, s.mul(index, s.number(0.125))), b),
            term,
            s.ext("NMax", "f32", s.mul(term, term), best),
            s.op(Op.IAdd, "i32", count, i),
        ]

    def swap(i: int, a: int, b: int) -> list[int]:
        return [b, s.add(s.term(i), a)]

    def long(i: int, a: int, b: int) -> list[int]:
        term = s.term(i)
        product = s.mul(s.add(a, term), s.mul(s.add(a, s.number(0.375)), s.add(term, s.number(0.0625))))
        return [term, s.mul(s.add(product, s.add(s.mul(term, a), b)), s.number(0.015625))]

    kinds = ["f32"] * 4 + ["i32"]
    first, end = s.constant("i32", 4), s.constant("i32", 93)
    carried = [zero, s.number(1), zero, zero, s.constant("i32", 9)]
    *floats, count = s.loop(first, end, carried, body, kinds=kinds)
    swapped = s.loop(first, end, [zero, s.number(1)], swap)
    longer = s.loop(first, end, [zero, zero], long)
    for value in (*floats, s.op(Op.ConvertUToF, "f32", count), *swapped, *longer):
        s.store(value)
    # Two of the first loop, two for its maximum, and two of the third; the second one is a `while`.
    assert len(STRIP.findall(s.program(CPU).source.partition("_apart")[0])) == 6
    a, b, best = np.zeros(ROWS, "f4"), np.ones(ROWS, "f4"), np.zeros(ROWS, "f4")
    c, d, e, f = a, b, a, a
    for i, term in enumerate(terms(x).T[4:93], 4):
        a, b = b + term * np.float32(0.5), (term - np.float32(i * 0.125)) + b
        best = np.maximum(term * term, best)
        c, d = d, term + c
        product = (e + term) * ((e + np.float32(0.375)) * (term + np.float32(0.0625)))
        e, f = term, (product + (term * e + f)) * np.float32(0.015625)
    wanted = [a, b, term, best, np.full(ROWS, 9 + sum(range(4, 93)), "f4"), c, d, e, f]
    np.testing.assert_array_equal(run(s, x), wanted)


Plan = list[tuple[int, np.ndarray]]
"""Operations of a random loop, with the numbers of the values that they are of."""


@pytest.mark.parametrize("seed", range(2))
def test_random_loops(seed: int) -> None:
    """Bodies of random operations on what is read and what is carried, in numpy and on both texts."""
    rng = np.random.default_rng(seed)
    x = (rng.integers(-8, 9, (ROWS, WIDTH)) / np.float32(7)).astype("f4")
    s, wanted = Loops(), list[np.ndarray]()
    for _ in range(6):
        passes, carried = int(rng.integers(16, 60)), int(rng.integers(1, 4))
        free, mixed = (int(n) for n in rng.integers((4, 2), (9, 5)))
        # Of what is read and of what came of that; then of anything.
        plan = [(int(rng.integers(5)), rng.integers(carried, carried + 1 + n, 3)) for n in range(free)]
        plan += [(int(rng.integers(5)), rng.integers(carried + 1 + free + n, size=3)) for n in range(mixed)]
        given = rng.integers(carried + 1 + free, carried + 1 + free + mixed, carried)

        def emitted(i: int, *before: int, plan: Plan = plan, given: np.ndarray = given) -> list[int]:
            values = [*before, s.x(i)]
            for what, (a, b, c) in plan:
                values.append(emit(s, what, values[a], values[b], values[c]))
            return [values[n] for n in given]

        firsts = [s.number(n) for n in range(carried)]
        for value in s.loop(s.constant("i32", 0), s.constant("i32", passes), firsts, emitted):
            s.store(value)
        state = [np.full(ROWS, n, "f4") for n in range(carried)]
        for column in x.T[:passes]:
            values = [*state, column]
            for what, (a, b, c) in plan:
                values.append(compute(what, values[a], values[b], values[c]))
            state = [values[n] for n in given]
        wanted += state
    assert strips(s.program(CPU)) > 2
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run(s, x), wanted)


def emit(s: Loops, what: int, a: int, b: int, c: int) -> int:
    """An operation of a random loop."""
    if what == 0:
        return s.mul(a, b)
    if what == 1:
        return s.op(Op.FSub, "f32", a, b)
    if what == 2:
        return s.ext("NMax", "f32", a, b)
    if what == 3:
        return s.op(Op.Select, "f32", s.op(Op.FOrdLessThan, "bool", a, b), c, b)
    return s.add(a, b)


def compute(what: int, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The same in numpy. Of zeros of two signs the greater is +0, which `fmax` leaves open."""
    with np.errstate(all="ignore"):
        if what == 2:
            return np.where((a == 0) & (b == 0), a + b, np.fmax(a, b))
        return [a * b, a - b, a, np.where(a < b, c, b), a + b][what]


# --- loops that stay as they are ----------------------------------------------------------------------------


def prefix_sums(s: Loops) -> None:
    """Each pass stores what the next one may read."""

    def body(i: int, sum_: int) -> list[int]:
        total = s.add(s.term(i), sum_)
        s.do(Op.Store, s.at(s.op(Op.IAdd, "i32", i, s.constant("i32", 1))), s.mul(total, s.number(1e-3)))
        return [total]

    s.store(s.loop(s.constant("i32", 0), s.constant("i32", WIDTH - 1), [s.number(0)], body)[0])


def volatile(s: Loops) -> None:
    def body(i: int, sum_: int) -> list[int]:
        return [s.add(s.mul(s.x(i, VOLATILE), s.term(i)), sum_)]

    s.store(s.loop(s.constant("i32", 0), s.constant("i32", WIDTH), [s.number(0)], body)[0])


def atomic(s: Loops) -> None:
    def body(i: int, sum_: int) -> list[int]:
        scope, semantics = s.constant("i32", 1), s.constant("i32", 0)
        seen = s.op(Op.AtomicIAdd, "i32", counts, scope, semantics, s.constant("i32", 1))
        return [s.add(s.mul(s.op(Op.ConvertUToF, "f32", seen), s.number(0)), s.add(s.term(i), sum_))]

    counts = s.access("i32", 4, s.variable(4, s.array("i32", 1)), s.constant("i32", 0))
    s.do(Op.Store, counts, s.constant("i32", 0))
    s.store(s.loop(s.constant("i32", 0), s.constant("i32", WIDTH), [s.number(0)], body)[0])


def cheap(s: Loops) -> None:
    """The additions alone take as long."""

    def body(i: int, sum_: int) -> list[int]:
        return [s.add(s.mul(s.x(i), s.x(i)), sum_)]

    s.store(s.loop(s.constant("i32", 0), s.constant("i32", WIDTH), [s.number(0)], body)[0])


def short(s: Loops) -> None:
    s.store(s.total(s.constant("i32", 0), s.constant("i32", 15)))


def downward(s: Loops) -> None:
    first, last = s.constant("i32", WIDTH - 1), s.constant("i32", -1)
    s.store(s.total(first, last, step=-1, test=Op.SGreaterThan))


def integers(s: Loops) -> None:
    """LLVM vectorizes these by itself."""

    def body(i: int, sum_: int) -> list[int]:
        return [s.op(Op.IAdd, "i32", sum_, s.op(Op.ConvertFToU, "i32", s.term(i)))]

    zero = s.constant("i32", 0)
    found = s.loop(zero, s.constant("i32", WIDTH), [zero], body, kinds=["i32"])
    s.store(s.op(Op.ConvertUToF, "f32", found[0]))


def moving_end(s: Loops) -> None:
    """The end comes nearer with each pass."""

    def body(i: int, sum_: int, end: int) -> list[int]:
        return [s.add(s.term(i), sum_), s.op(Op.ISub, "i32", end, s.constant("i32", 1))]

    header, inside, proceed, merge = (s.new() for _ in range(4))
    stepped, summed, shorter = s.new("i32"), s.new("f32"), s.new("i32")
    s.do(Op.Branch, header)
    s.label(header)
    end = s.op(Op.Phi, "i32", s.constant("i32", WIDTH), s.start, shorter, proceed)
    i = s.op(Op.Phi, "i32", s.constant("i32", 0), s.start, stepped, proceed)
    sum_ = s.op(Op.Phi, "f32", s.number(0), s.start, summed, proceed)
    going = s.op(Op.SLessThan, "bool", i, end)
    s.do(Op.LoopMerge, merge, proceed, 0)
    s.do(Op.BranchConditional, going, inside, merge)
    s.label(inside)
    total, nearer = body(i, sum_, end)
    s.body += instruction(Op.CopyObject, s.type("f32"), summed, total)
    s.body += instruction(Op.CopyObject, s.type("i32"), shorter, nearer)
    s.do(Op.Branch, proceed)
    s.label(proceed)
    s.body += instruction(Op.IAdd, s.type("i32"), stepped, i, s.constant("i32", 1))
    s.do(Op.Branch, header)
    s.label(merge)
    s.start = merge
    s.store(sum_)


def early_end(s: Loops) -> None:
    """It ends at the first term that is too large."""
    header, inside, rest, proceed, merge = (s.new() for _ in range(5))
    stepped, summed = s.new("i32"), s.new("f32")
    s.do(Op.Branch, header)
    s.label(header)
    i = s.op(Op.Phi, "i32", s.constant("i32", 0), s.start, stepped, proceed)
    sum_ = s.op(Op.Phi, "f32", s.number(0), s.start, summed, proceed)
    going = s.op(Op.SLessThan, "bool", i, s.constant("i32", WIDTH))
    s.do(Op.LoopMerge, merge, proceed, 0)
    s.do(Op.BranchConditional, going, inside, merge)
    s.label(inside)
    term = s.term(i)
    large = s.op(Op.FOrdGreaterThan, "bool", term, s.number(600))
    s.do(Op.BranchConditional, large, merge, rest)
    s.label(rest)
    s.body += instruction(Op.FAdd, s.type("f32"), summed, term, sum_)
    s.do(Op.Branch, proceed)
    s.label(proceed)
    s.body += instruction(Op.IAdd, s.type("i32"), stepped, i, s.constant("i32", 1))
    s.do(Op.Branch, header)
    s.label(merge)
    s.start = merge
    s.store(sum_)


def until_large(x: np.ndarray) -> np.ndarray:
    rows = terms(x)
    ends = [int(np.argmax(row > 600)) if (row > 600).any() else WIDTH for row in rows]
    return np.array([in_order(row[None, :end])[0] for row, end in zip(rows, ends, strict=True)])


def accumulated(x: np.ndarray) -> np.ndarray:
    x, total = x.copy(), np.zeros(ROWS, "f4")
    for i in range(WIDTH - 1):
        total = terms(x[:, i : i + 1])[:, 0] + total
        x[:, i + 1] = total * np.float32(1e-3)
    return total


Emit = Callable[[Loops], None]
ALONE: dict[Emit, Callable[[np.ndarray], np.ndarray]] = {
    prefix_sums: accumulated,
    volatile: lambda x: in_order(x * terms(x)),
    atomic: lambda x: in_order(terms(x)),
}
TOGETHER: dict[Emit, Callable[[np.ndarray], np.ndarray]] = {
    cheap: lambda x: in_order(x * x),
    short: lambda x: in_order(terms(x[:, :15])),
    downward: lambda x: in_order(terms(x[:, ::-1])),
    integers: lambda x: terms(x).astype("u4").sum(1, dtype="u4").astype("f4"),
    moving_end: lambda x: in_order(terms(x[:, : WIDTH // 2])),
    early_end: until_large,
}


@pytest.mark.parametrize("emit", [*ALONE, None], ids=lambda emit: getattr(emit, "__name__", "others"))
def test_loops_that_stay_as_they_are(emit: Emit | None) -> None:
    """What one of those in ALONE does may concern the whole kernel."""
    loops = TOGETHER if emit is None else {emit: ALONE[emit]}
    x = np.abs(numbers()).clip(2, 9)
    s = Loops()
    for each in loops:
        each(s)
    program = s.program(CPU)
    assert strips(program) == 0
    found = run_program(open_device("opencl"), program, [x, np.zeros((len(loops), ROWS), "f4")])[1]
    np.testing.assert_array_equal(found, [wanted(x) for wanted in loops.values()])


def test_checked_kernels_report_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not taken in strips: what is reported is what the program reads."""
    monkeypatch.setenv("HALGPU_CHECKED", "1")
    device = open_device("opencl")
    s = Loops(size=1)
    s.store(s.total(s.constant("i32", 0), s.constant("i32", WIDTH)))
    program = s.program(loader.target_of(device))
    assert strips(program) == 0
    kernel = device.build(program)[0]
    buffer = device.allocator.allocate(4 * WIDTH)
    with pytest.raises(halgpu.errors.OutOfRange, match=r"element 77\) is outside.*; 51 such accesses"):
        kernel.dispatch(1, (), [(buffer, 0, 4 * 77), (buffer, 0, 4)])


def test_softmax_of_the_stock_compiler(
    compile_mlir: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits as the text for other devices, whole strips and not, with rows of any length."""
    programs = {name: mlir_corpus.find(name) for name in ("softmax_f32_long", "softmax_f32_dynamic_row")}
    data = compile_mlir(mlir_corpus.joined(programs), "vulkan")
    monkeypatch.setenv("HALGPU_CACHE", "0")
    results: list[list[np.ndarray]] = []
    for target in (CPU, Target(exact_division=True)):
        monkeypatch.setattr(loader, "target_of", lambda _, target=target: target)
        module = halgpu.load(data, device="opencl")
        call = [(module[mlir_corpus.function_name(name)], each.inputs()) for name, each in programs.items()]
        results.append([np.asarray(function(*inputs)) for function, inputs in call])
    for one, other, program in zip(*results, programs.values(), strict=True):
        np.testing.assert_array_equal(one.view("i4"), other.view("i4"))
        [x] = program.inputs()
        powers = np.exp(x.astype("f8") - x.max(1, keepdims=True))
        np.testing.assert_allclose(one, powers / powers.sum(1, keepdims=True), rtol=1e-5)
