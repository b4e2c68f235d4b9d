"""Structured control flow: hand-made graphs, run and compared with the same loops in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from spirv_assembler import Spirv, instruction

from halgpu import errors
from halgpu.executables.vulkan_spirv.opcodes import Op
from halgpu.executables.vulkan_spirv.structure import MAXIMUM_NESTING

COUNT = 32
Rule = Callable[[int], int]
INPUT = np.arange(COUNT, dtype="i4") - 3


class Flow(Spirv):
    """i32 in, i32 out; with short names for what these tests use much."""

    def __init__(self) -> None:
        super().__init__("i32", "i32", size=COUNT)
        self.x = self.load(0)
        self.here = self.start

    def number(self, value: int) -> int:
        return self.constant("i32", value)

    def add(self, a: int, b: int | None = None, *, constant: int = 0) -> int:
        return self.op(Op.IAdd, "i32", a, self.number(constant) if b is None else b)

    def less(self, a: int, b: int) -> int:
        return self.op(Op.SLessThan, "bool", a, b)

    def block(self, label: int) -> None:
        self.label(label)
        self.here = label

    def jump(self, target: int) -> None:
        self.do(Op.Branch, target)

    def fork(self, condition: int, yes: int, no: int, merge: int = 0) -> None:
        if merge:
            self.do(Op.SelectionMerge, merge, 0)
        self.do(Op.BranchConditional, condition, yes, no)

    def labels(self, count: int) -> list[int]:
        return [self.new() for _ in range(count)]

    def phi(self, *pairs: int) -> int:
        return self.op(Op.Phi, "i32", *pairs)

    def expect(self, *rules: Rule, labels: Sequence[str] = ()) -> None:
        """Run, and compare each stored row with a rule of the input."""
        found = self.rows_of(INPUT, dtype="i4")
        for number, (row, rule) in enumerate(zip(found, rules, strict=True)):
            assert row.tolist() == [rule(int(x)) for x in INPUT], labels[number : number + 1]


def a_loop_that_counts_becomes_for(s: Flow) -> list[Rule]:
    header, body, merge = s.labels(3)
    start = s.here
    i_next, total_next = s.new("i32"), s.new("i32")
    s.jump(header)
    s.block(header)
    i = s.phi(s.number(0), start, i_next, body)
    total = s.phi(s.number(0), start, total_next, body)
    condition = s.less(i, s.x)
    s.do(Op.LoopMerge, merge, body, 0)
    s.fork(condition, body, merge)
    s.block(body)
    s.body += instruction(Op.IAdd, s.type("i32"), total_next, total, i)
    s.body += instruction(Op.IAdd, s.type("i32"), i_next, i, s.number(1))
    s.jump(header)
    s.block(merge)
    s.store(total)
    return [lambda x: sum(range(x))]


def phis_that_swap(s: Flow) -> list[Rule]:
    """a, b = b, a; c takes the old a: copies in any order would be wrong."""
    header, body, merge = s.labels(3)
    start, i_next = s.here, s.new("i32")
    s.jump(header)
    s.block(header)
    i = s.phi(s.number(0), start, i_next, body)
    a_id, b_id, c_id = s.labels(3)
    for id_, first, then in ((a_id, 1, b_id), (b_id, 2, a_id), (c_id, 3, a_id)):
        s.body += instruction(Op.Phi, s.type("i32"), id_, s.number(first), start, then, body)
    condition = s.less(i, s.x)
    s.do(Op.LoopMerge, merge, body, 0)
    s.fork(condition, body, merge)
    s.block(body)
    s.body += instruction(Op.IAdd, s.type("i32"), i_next, i, s.number(1))
    s.jump(header)
    s.block(merge)
    for value in (a_id, b_id, c_id):
        s.store(value)

    def rule(which: int) -> Callable[[int], int]:
        def run(x: int) -> int:
            a, b, c = 1, 2, 3
            for _ in range(x):
                a, b, c = b, a, a
            return (a, b, c)[which]

        return run

    return [rule(0), rule(1), rule(2)]


def values_of_a_header_used_behind_the_loop(s: Flow) -> list[Rule]:
    """The header computes i + 100 once more before it leaves."""
    header, body, merge = s.labels(3)
    start, i_next = s.here, s.new("i32")
    s.jump(header)
    s.block(header)
    i = s.phi(s.number(0), start, i_next, body)
    shifted = s.add(i, constant=100)
    condition = s.less(i, s.x)
    s.do(Op.LoopMerge, merge, body, 0)
    s.fork(condition, body, merge)
    s.block(body)
    s.body += instruction(Op.IAdd, s.type("i32"), i_next, i, s.number(2))
    s.jump(header)
    s.block(merge)
    s.store(shifted)
    s.store(i)
    return [lambda x: 100 + max(0, x + x % 2), lambda x: max(0, x + x % 2)]


def loop_with_continue_block_and_break(s: Flow) -> list[Rule]:
    """for i in 0, 3, …: if i % 5 == 4: continue; if i > x: break; total += i — with phis in the continue block."""
    header, test, body, after, proceed, merge = s.labels(6)
    start, i_next, kept = s.here, s.new("i32"), s.new("i32")
    s.jump(header)
    s.block(header)
    i = s.phi(s.number(0), start, i_next, proceed)
    total = s.phi(s.number(0), start, kept, proceed)
    s.do(Op.LoopMerge, merge, proceed, 0)
    s.jump(test)
    s.block(test)
    rest = s.op(Op.UMod, "i32", i, s.number(5))
    skip = s.op(Op.IEqual, "bool", rest, s.number(4))
    s.fork(skip, proceed, body)
    s.block(body)
    out = s.op(Op.SGreaterThan, "bool", i, s.x)
    s.fork(out, merge, after)
    s.block(after)
    more = s.add(total, i)
    s.jump(proceed)
    s.block(proceed)
    s.body += instruction(Op.Phi, s.type("i32"), kept, total, test, more, after)
    s.body += instruction(Op.IAdd, s.type("i32"), i_next, i, s.number(3))
    s.jump(header)
    s.block(merge)
    s.store(total)
    s.store(i)

    def run(x: int) -> tuple[int, int]:
        total = i = 0
        while True:
            if i % 5 != 4:
                if i > x:
                    return total, i
                total += i
            i += 3

    return [lambda x: run(x)[0], lambda x: run(x)[1]]


def do_while(s: Flow) -> list[Rule]:
    """The loop tests behind its body: the only block is header and continue target."""
    header, merge = s.labels(2)
    start, i_next = s.here, s.new("i32")
    s.jump(header)
    s.block(header)
    i = s.phi(s.number(0), start, i_next, header)
    s.body += instruction(Op.IAdd, s.type("i32"), i_next, i, s.number(3))
    again = s.less(i_next, s.x)
    s.do(Op.LoopMerge, merge, header, 0)
    s.fork(again, header, merge)
    s.block(merge)
    s.store(i)
    s.store(i_next)
    return [lambda x: max(0, (x - 1) // 3 * 3), lambda x: max(0, (x - 1) // 3 * 3) + 3]


def nested_loops_with_breaks(s: Flow) -> list[Rule]:
    outer, outer_body, inner, inner_body, step, after, proceed, merge = s.labels(8)
    inner_next, inner_merge = s.labels(2)
    start = s.here
    i_next, j_next, n_next = (s.new("i32") for _ in range(3))
    s.jump(outer)
    s.block(outer)
    i = s.phi(s.number(0), start, i_next, proceed)
    n = s.phi(s.number(0), start, n_next, proceed)
    more = s.less(i, s.x)
    s.do(Op.LoopMerge, merge, proceed, 0)
    s.fork(more, outer_body, merge)
    s.block(outer_body)
    s.jump(inner)
    s.block(inner)
    j = s.phi(s.number(0), outer_body, j_next, inner_next)
    count = s.phi(n, outer_body, s.bound + 0, inner_next)
    count_next = s.new("i32")
    # The phi above names the sum that is defined in the continue block.
    s.body[-2] = count_next
    enough = s.op(Op.SGreaterThan, "bool", j, i)
    s.do(Op.LoopMerge, inner_merge, inner_next, 0)
    s.fork(enough, inner_merge, inner_body)
    s.block(inner_body)
    seven = s.op(Op.IEqual, "bool", s.op(Op.IMul, "i32", i, j), s.number(42))
    s.fork(seven, inner_merge, step)
    s.block(step)
    s.jump(inner_next)
    s.block(inner_next)
    s.body += instruction(Op.IAdd, s.type("i32"), count_next, count, j)
    s.body += instruction(Op.IAdd, s.type("i32"), j_next, j, s.number(1))
    s.jump(inner)
    s.block(inner_merge)
    s.jump(after)
    s.block(after)
    huge = s.op(Op.SGreaterThan, "bool", count, s.number(300))
    s.fork(huge, merge, proceed)
    s.block(proceed)
    s.body += instruction(Op.IAdd, s.type("i32"), n_next, count, s.number(1))
    s.body += instruction(Op.IAdd, s.type("i32"), i_next, i, s.number(1))
    s.jump(outer)
    s.block(merge)
    s.store(n)
    s.store(i)

    def run(x: int) -> tuple[int, int]:
        i = n = 0
        while i < x:
            j, count = 0, n
            while not (j > i or i * j == 42):
                count, j = count + j, j + 1
            if count > 300:
                break
            n, i = count + 1, i + 1
        return n, i

    return [lambda x: run(x)[0], lambda x: run(x)[1]]


def switch_with_fallthrough(s: Flow, with_phi: bool = False) -> list[Rule]:
    """case 1 falls into case 2; 7 and 8 share a body; a loop's break leaves from inside the switch."""
    header, body, merge, proceed = s.labels(4)
    one, two, seven, default, done = s.labels(5)
    start, i_next, v_next = s.here, s.new("i32"), s.new("i32")
    s.jump(header)
    s.block(header)
    i = s.phi(s.number(0), start, i_next, proceed)
    v = s.phi(s.number(0), start, v_next, proceed)
    s.do(Op.LoopMerge, merge, proceed, 0)
    s.fork(s.less(i, s.number(10)), body, merge)
    s.block(body)
    chosen = s.op(Op.BitwiseAnd, "i32", s.add(i, s.x), s.number(15))
    s.do(Op.SelectionMerge, done, 0)
    s.do(Op.Switch, chosen, default, 1, one, 2, two, 7, seven, 8, seven, 12, done)
    s.block(one)
    a = s.add(v, constant=100)
    s.jump(two)
    s.block(two)
    given = s.phi(v, body, a, one) if with_phi else s.number(5)
    b = s.add(given, constant=1000)
    s.jump(done)
    s.block(seven)
    c = s.op(Op.IMul, "i32", v, s.number(3))
    s.fork(s.op(Op.SGreaterThan, "bool", c, s.number(5000)), merge, proceed)
    s.block(default)
    d = s.add(v, constant=1)
    s.jump(done)
    s.block(done)
    e = s.phi(b, two, d, default, v, body)
    s.jump(proceed)
    s.block(proceed)
    s.body += instruction(Op.Phi, s.type("i32"), v_next, e, done, c, seven)
    s.body += instruction(Op.IAdd, s.type("i32"), i_next, i, s.number(1))
    s.jump(header)
    s.block(merge)
    s.store(v)
    s.store(i)
    # LoopMerge stands in front of the branch, behind the comparison.
    _move_merge(s)

    def run(x: int) -> tuple[int, int]:
        i = v = 0
        while i < 10:
            chosen = (i + x) & 15
            if chosen in (7, 8):
                if v * 3 > 5000:
                    break
                v *= 3
            elif chosen == 1:
                v = v + 1100 if with_phi else 1005
            elif chosen == 2:
                v = v + 1000 if with_phi else 1005
            elif chosen != 12:
                v += 1
            i += 1
        return v, i

    return [lambda x: run(x)[0], lambda x: run(x)[1]]


def _move_merge(s: Flow) -> None:
    """Put each OpLoopMerge directly in front of its block's branch."""
    out: list[int] = []
    held: list[int] = []
    at = 0
    while at < len(s.body):
        count = s.body[at] >> 16
        words = s.body[at : at + count]
        if words[0] & 0xFFFF == Op.LoopMerge:
            held = words
        elif words[0] & 0xFFFF in (Op.Branch, Op.BranchConditional) and held:
            out += held + words
            held = []
        else:
            out += words
        at += count
    s.body = out


def switch_that_falls_into_phis(s: Flow) -> list[Rule]:
    """The copies of the switch's branch into case 2 must not happen on the way from case 1."""
    return switch_with_fallthrough(s, with_phi=True)


def test_early_return_and_selection_of_values() -> None:
    s = Flow()
    early, on, yes, no, merge = s.labels(5)
    s.store(s.number(7))
    s.fork(s.less(s.x, s.number(0)), early, on, on)
    s.block(early)
    s.do(Op.Return)
    s.block(on)
    s.fork(s.less(s.x, s.number(9)), yes, no, merge)
    s.block(yes)
    a = s.op(Op.IMul, "i32", s.x, s.x)
    s.jump(merge)
    s.block(no)
    b = s.op(Op.SNegate, "i32", s.x)
    s.jump(merge)
    s.block(merge)
    s.store(s.phi(a, yes, b, no))
    s.expect(lambda x: 7, lambda x: 0 if x < 0 else x * x if x < 9 else -x)


def loads_stay_on_their_side_of_stores(s: Flow) -> list[Rule]:
    place = s.element(1, s.add(s.index, constant=s.rows * COUNT))
    s.rows += 1
    s.do(Op.Store, place, s.number(5))
    before = s.op(Op.Load, "i32", place)
    s.do(Op.Store, place, s.number(6))
    s.store(before)
    after = s.op(Op.Load, "i32", place)
    s.do(Op.Store, place, s.number(0))
    s.store(s.add(after, before))
    return [lambda x: 0, lambda x: 5, lambda x: 11]


def calls(s: Flow) -> list[Rule]:
    """A function with two returns, called twice, with a pointer and a value."""
    int_, pointer = s.type("i32"), s.pointer(7, s.type("i32"))
    function_type = s.once("twice", Op.TypeFunction, int_, int_, pointer)
    function, given, where, entry, small, large = s.labels(6)
    halved, loaded, total, condition = s.labels(4)
    boolean = s.type("bool")
    s.functions = (
        instruction(Op.Function, int_, function, 0, function_type)
        + instruction(Op.FunctionParameter, int_, given) + instruction(Op.FunctionParameter, pointer, where)
        + instruction(Op.Label, entry) + instruction(Op.SLessThan, boolean, condition, given, s.number(10))
        + instruction(Op.SelectionMerge, large, 0) + instruction(Op.BranchConditional, condition, small, large)
        + instruction(Op.Label, small) + instruction(Op.Load, int_, loaded, where)
        + instruction(Op.IAdd, int_, total, loaded, given) + instruction(Op.Store, where, total)
        + instruction(Op.ReturnValue, total) + instruction(Op.Label, large)
        + instruction(Op.SDiv, int_, halved, given, s.number(2)) + instruction(Op.ReturnValue, halved)
        + instruction(Op.FunctionEnd)
    )  # fmt: skip
    variable = s.variable(7, int_)
    s.do(Op.Store, variable, s.number(1000))
    first = s.op(Op.FunctionCall, "i32", function, s.x, variable)
    second = s.op(Op.FunctionCall, "i32", function, first, variable)
    s.store(first)
    s.store(second)
    s.store(s.op(Op.Load, "i32", variable))

    def run(x: int) -> tuple[int, int, int]:
        memory = [1000]

        def call(given: int) -> int:
            if given < 10:
                memory[0] += given
                return memory[0]
            return given // 2

        first = call(x)
        return first, call(first), memory[0]

    return [*(lambda x, part=part: run(x)[part] for part in range(3))]


SCENARIOS = (
    a_loop_that_counts_becomes_for, phis_that_swap, values_of_a_header_used_behind_the_loop,
    loop_with_continue_block_and_break, do_while, nested_loops_with_breaks, switch_with_fallthrough,
    switch_that_falls_into_phis, calls, loads_stay_on_their_side_of_stores,
)  # fmt: skip


def test_graphs() -> None:
    """All of them one after the other in one kernel, since building kernels is what takes time."""
    s = Flow()
    rules: list[Rule] = []
    labels: list[str] = []
    for scenario in SCENARIOS:
        rules += scenario(s)
        labels += [scenario.__name__] * (len(rules) - len(labels))
    s.expect(*rules, labels=labels)


def test_readability() -> None:
    s = Flow()
    a_loop_that_counts_becomes_for(s)
    source = s.program().source
    assert "    for (uint i = 0u; (int)i < (int)v" in source
    assert "i += 1u) {\n" in source
    assert "goto" not in source


def test_recursion_is_refused() -> None:
    s = Flow()
    void = s.type("void")
    kind = s.once("function", Op.TypeFunction, void)
    function, entry, call = s.labels(3)
    s.functions = (
        instruction(Op.Function, void, function, 0, kind) + instruction(Op.Label, entry)
        + instruction(Op.FunctionCall, void, call, function) + instruction(Op.Return) + instruction(Op.FunctionEnd)
    )  # fmt: skip
    s.op(Op.FunctionCall, "void", function)
    with pytest.raises(errors.Unimplemented, match="recursion"):
        s.program()


def nested(depth: int) -> Flow:
    s = Flow()
    merges = []
    for level in range(depth):
        inside, merge = s.labels(2)
        s.fork(s.less(s.x, s.number(100 + level)), inside, merge, merge)
        s.block(inside)
        merges.append(merge)
    s.store(s.number(3))
    for merge in reversed(merges):
        s.jump(merge)
        s.block(merge)
    return s


def test_nesting_has_a_limit() -> None:
    nested(MAXIMUM_NESTING - 5).expect(lambda x: 3)
    with pytest.raises(errors.Unimplemented, match="nested deeper than"):
        nested(5000).program()


def test_long_chains_of_blocks_need_no_stack() -> None:
    s = Flow()
    for _ in range(3000):
        (following,) = s.labels(1)
        s.jump(following)
        s.block(following)
    s.store(s.number(3))
    assert "return" not in s.program().source.splitlines()[-2]


def test_unstructured_control_flow_is_refused() -> None:
    s = Flow()
    a, b, join = s.labels(3)
    s.fork(s.less(s.x, s.number(1)), a, b)
    for label in (a, b):
        s.block(label)
        s.jump(join)
    s.block(join)
    with pytest.raises(errors.InvalidArgument, match="without naming the block where they merge"):
        s.program()
    s = Flow()
    (loop,) = s.labels(1)
    s.jump(loop)
    s.block(loop)
    s.jump(loop)
    s.label(s.new())
    with pytest.raises(errors.InvalidArgument, match="not structured"):
        s.program()
