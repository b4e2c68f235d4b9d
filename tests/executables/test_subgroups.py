"""Subgroup instructions, emulated through workgroup memory, against numpy on rows of invocations."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
import pytest
from spirv_assembler import BUILT_IN, INPUT, Batch, instruction

from halgpu import errors
from halgpu.executables.vulkan_spirv.opcodes import Op

TOTAL = 64
REDUCE, INCLUSIVE, CLUSTERED = 0, 1, 3


def batch(size: int) -> Batch:
    """A kernel of one workgroup that says how large its subgroups are: it divides its index by that."""
    s = Batch(TOTAL)
    if size != TOTAL:
        s.op(Op.UDiv, "i32", s.index, s.constant("i32", size))
    return s


def group(s: Batch, op: Op, kind: str, value: int, mode: int = REDUCE, *cluster: int) -> int:
    return s.op(op, kind, s.constant("i32", 3), mode, value, *cluster)


REDUCTIONS: dict[Op, tuple[str, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    Op.GroupNonUniformIAdd: ("i32", np.add), Op.GroupNonUniformIMul: ("i32", np.multiply),
    Op.GroupNonUniformSMin: ("i8", np.minimum), Op.GroupNonUniformSMax: ("i64", np.maximum),
    Op.GroupNonUniformUMin: ("i32", lambda a, b: np.minimum(a.view("u4"), b.view("u4")).view("i4")),
    Op.GroupNonUniformUMax: ("i32", lambda a, b: np.maximum(a.view("u4"), b.view("u4")).view("i4")),
    Op.GroupNonUniformBitwiseAnd: ("i32", np.bitwise_and), Op.GroupNonUniformBitwiseOr: ("i32", np.bitwise_or),
    Op.GroupNonUniformBitwiseXor: ("i16", np.bitwise_xor), Op.GroupNonUniformFAdd: ("f32", np.add),
    Op.GroupNonUniformFMul: ("f32", np.multiply), Op.GroupNonUniformFMin: ("f32", np.fmin),
    Op.GroupNonUniformFMax: ("f64", np.fmax),
}  # fmt: skip


def test_reductions() -> None:
    size = 16
    s = batch(size)
    rng = np.random.default_rng(size)
    for op, (kind, rule) in REDUCTIONS.items():
        dtype = f"{kind[0]}{int(kind[1:]) // 8}"
        a = (
            rng.integers(-100, 100, TOTAL).astype(dtype)
            if kind[0] == "i"
            else rng.uniform(0.9, 1.1, TOTAL).astype(dtype)
        )
        x = s.given(kind, a)
        rows = a.reshape(-1, size)
        with np.errstate(all="ignore"):
            # Columns: in the order in which the emulation combines them.
            wanted = np.repeat(reduce(rule, [rows[:, i].copy() for i in range(size)]), size)
            s.expect(op.name, kind, group(s, op, kind, x), wanted)
    s.check()


def test_halves_are_summed_as_floats() -> None:
    s = batch(TOTAL)
    a = np.random.default_rng(1).uniform(-4, 4, TOTAL).astype("f2")
    total = np.float32(0)
    for value in a.astype("f4"):
        total += value
    s.expect("sum", "f16", group(s, Op.GroupNonUniformFAdd, "f16", s.given("f16", a)), np.full(TOTAL, total))
    s.check()


def test_scans_clusters_and_votes() -> None:
    s = batch(16)
    a = np.random.default_rng(2).integers(-50, 50, TOTAL).astype("i4")
    x = s.given("i32", a)
    scanned = group(s, Op.GroupNonUniformIAdd, "i32", x, INCLUSIVE)
    s.expect("scan", "i32", scanned, np.cumsum(a.reshape(-1, 16), 1))
    clustered = group(s, Op.GroupNonUniformIAdd, "i32", x, CLUSTERED, s.constant("i32", 4))
    s.expect("cluster", "i32", clustered, np.repeat(a.reshape(-1, 4).sum(1), 4))
    for limit in (30,):
        above = s.op(Op.SGreaterThan, "bool", x, s.constant("i32", limit))
        rows = (a > limit).reshape(-1, 16)
        scope = s.constant("i32", 3)
        s.expect("all", "bool", s.op(Op.GroupNonUniformAll, "bool", scope, above), np.repeat(rows.all(1), 16))
        s.expect("any", "bool", s.op(Op.GroupNonUniformAny, "bool", scope, above), np.repeat(rows.any(1), 16))
        for op, rule in (
            (Op.GroupNonUniformLogicalAnd, np.logical_and), (Op.GroupNonUniformLogicalOr, np.logical_or),
            (Op.GroupNonUniformLogicalXor, np.logical_xor),
        ):  # fmt: skip
            s.expect(op.name, "bool", group(s, op, "bool", above), np.repeat(rule.reduce(rows, axis=1), 16))
    elected = s.op(Op.GroupNonUniformElect, "bool", s.constant("i32", 3))
    s.expect("elect", "bool", elected, np.arange(TOTAL) % 16 == 0)
    s.check()


def test_shuffles() -> None:
    s = batch(16)
    a = np.random.default_rng(3).uniform(-1, 1, TOTAL).astype("f4")
    lanes = np.random.default_rng(4).integers(0, 16, TOTAL).astype("i4")
    x, lane, scope = s.given("f32", a), s.given("i32", lanes), s.constant("i32", 3)
    own = np.arange(TOTAL)
    first = own // 16 * 16

    def shuffle(op: Op, *operand: int) -> int:
        return s.op(op, "f32", scope, x, *operand)

    s.expect("shuffle", "f32", shuffle(Op.GroupNonUniformShuffle, lane), a[first + lanes])
    s.expect("broadcast", "f32", shuffle(Op.GroupNonUniformBroadcast, s.constant("i32", 5)), a[first + 5])
    s.expect("first", "f32", shuffle(Op.GroupNonUniformBroadcastFirst), a[first])
    for mask in (1, 2, 4, 8, 15):
        s.expect(
            ("xor", mask),
            "f32",
            shuffle(Op.GroupNonUniformShuffleXor, s.constant("i32", mask)),
            a[own ^ mask],
        )
    # Beyond the ends of the subgroup the value is undefined in SPIR-V; here it is the own one.
    up = np.where(own - first >= 3, own - 3, own)
    s.expect("up", "f32", shuffle(Op.GroupNonUniformShuffleUp, s.constant("i32", 3)), a[up])
    down = np.where(own - first + 3 <= 15, own + 3, own)
    s.expect(
        "down",
        "f32",
        shuffle(Op.GroupNonUniformShuffleDown, s.constant("i32", 3)),
        a[np.minimum(down, TOTAL - 1)],
    )
    s.check()


def test_built_in_variables() -> None:
    s = batch(16)
    own = np.arange(TOTAL)
    wanted = {36: np.full(TOTAL, 16), 38: np.full(TOTAL, 4), 40: own // 16, 41: own % 16, 29: own}
    for number, row in wanted.items():
        variable = s.variable(INPUT, s.type("i32"))
        s.annotations += instruction(Op.Decorate, variable, BUILT_IN, number)
        s.expect(("built-in", number), "i32", s.op(Op.Load, "i32", variable), row)
    s.check()


def loop_around(s: Batch, last: int, leave: Callable[[int], int]) -> None:
    """total += sum over the subgroup, while i < last; ``leave`` makes the condition from i."""
    header, body, merge = (s.new() for _ in range(3))
    i_next, total_next = s.new("i32"), s.new("i32")
    s.do(Op.Branch, header)
    s.label(header)
    i = s.op(Op.Phi, "i32", s.constant("i32", 0), s.start, i_next, body)
    total = s.op(Op.Phi, "i32", s.constant("i32", 0), s.start, total_next, body)
    condition = s.op(Op.SLessThan, "bool", i, leave(last))
    s.do(Op.LoopMerge, merge, body, 0)
    s.do(Op.BranchConditional, condition, body, merge)
    s.label(body)
    summed = group(s, Op.GroupNonUniformIAdd, "i32", s.op(Op.IAdd, "i32", s.index, i))
    s.body += instruction(Op.IAdd, s.type("i32"), total_next, total, summed)
    s.body += instruction(Op.IAdd, s.type("i32"), i_next, i, s.constant("i32", 1))
    s.do(Op.Branch, header)
    s.label(merge)
    s.expect(
        "total", "i32", total, np.full(TOTAL, sum(int((np.arange(TOTAL) + i).sum()) for i in range(last)))
    )


def test_in_a_loop_that_all_go_through_together() -> None:
    s = batch(TOTAL)
    loop_around(s, 5, lambda last: s.constant("i32", last))
    s.check()


def test_where_invocations_may_be_apart() -> None:
    s = batch(TOTAL)
    loop_around(s, 5, lambda last: s.op(Op.IAdd, "i32", s.index, s.constant("i32", last)))
    with pytest.raises(
        errors.Unimplemented, match="GroupNonUniformIAdd where the invocations of a workgroup may be apart"
    ):
        s.check()
    s = batch(TOTAL)
    inside, merge = s.new(), s.new()
    some = s.op(Op.SLessThan, "bool", s.index, s.constant("i32", 5))
    s.do(Op.SelectionMerge, merge, 0)
    s.do(Op.BranchConditional, some, inside, merge)
    s.label(inside)
    s.do(Op.ControlBarrier, *(s.constant("i32", n) for n in (3, 3, 0x108)))
    s.do(Op.Branch, merge)
    s.label(merge)
    s.expect("index", "i32", s.index, np.arange(TOTAL))
    with pytest.raises(errors.Unimplemented, match="barrier of a subgroup where"):
        s.check()


def test_after_some_invocations_returned() -> None:
    s = batch(TOTAL)
    out, on = s.new(), s.new()
    some = s.op(Op.SLessThan, "bool", s.index, s.constant("i32", 5))
    s.do(Op.SelectionMerge, on, 0)
    s.do(Op.BranchConditional, some, out, on)
    s.label(out)
    s.do(Op.Return)
    s.label(on)
    s.expect("sum", "i32", group(s, Op.GroupNonUniformIAdd, "i32", s.index), np.zeros(TOTAL))
    with pytest.raises(errors.Unimplemented, match="may be apart"):
        s.check()


def test_the_size_by_which_one_invocation_is_elected() -> None:
    """As stock reduces 6x10x32xi8 over axes 0 and 2 for ampere: the index divided by 16 finds data only."""
    s = batch(16)
    s.op(Op.UDiv, "i32", s.index, s.constant("i32", 8))
    lane = s.op(Op.UMod, "i32", s.index, s.constant("i32", 16))
    first = s.op(Op.IEqual, "bool", lane, s.constant("i32", 0))
    s.expect("first", "bool", first, np.arange(TOTAL) % 16 == 0)
    wanted = np.repeat(np.arange(TOTAL).reshape(-1, 16).sum(1), 16)
    s.expect("sum", "i32", group(s, Op.GroupNonUniformIAdd, "i32", s.index), wanted)
    s.check()


def test_a_size_that_cannot_be_told() -> None:
    s = batch(16)
    s.op(Op.UMod, "i32", s.index, s.constant("i32", 32))
    s.expect("sum", "i32", group(s, Op.GroupNonUniformIAdd, "i32", s.index), np.zeros(TOTAL))
    with pytest.raises(errors.Unimplemented, match="size of subgroups cannot be told"):
        s.check()


def test_operations_that_are_refused() -> None:
    s = batch(16)
    s.expect("scan", "i32", group(s, Op.GroupNonUniformIAdd, "i32", s.index, 2), np.zeros(TOTAL))
    with pytest.raises(errors.Unimplemented, match="exclusive scan"):
        s.check()
    s = batch(16)
    s.op(Op.GroupNonUniformBallot, "4xi32", s.constant("i32", 3), s.constant("bool", 1))
    with pytest.raises(errors.Unimplemented, match="OpGroupNonUniformBallot"):
        s.program()
