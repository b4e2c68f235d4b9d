"""A tree reduction in workgroup memory, over and over: a barrier in the wrong place shows up sooner or later."""

from __future__ import annotations

import os

import numpy as np
from spirv_assembler import BLOCK, OFFSET, PUSH_CONSTANT, WORKGROUP, Spirv, instruction

from halgpu.devices import open_device
from halgpu.executables.vulkan_spirv.loader import target_of
from halgpu.executables.vulkan_spirv.opcodes import Op

SIZE = 64
ROUNDS = int(os.environ.get("HALGPU_ROUNDS", "1000"))
"""Fewer are asked for where kernels are interpreted (ci/suites/kernels.py)."""


def tree_reduction() -> Spirv:
    """out[group] = sum of in[i] over the group's stretch of the first `count` elements; count is a push constant."""
    s = Spirv("i32", "i32", size=SIZE, constants=1)
    block = s.struct("block", "i32")
    s.annotations += instruction(Op.MemberDecorate, block, 0, OFFSET, 0) + instruction(
        Op.Decorate, block, BLOCK
    )
    push = s.variable(PUSH_CONSTANT, block)
    groups = s.variable(1, s.type("3xi32"))
    s.annotations += instruction(Op.Decorate, groups, 11, 26)
    shared = s.variable(WORKGROUP, s.array("i32", SIZE))
    zero, one, scope, semantics = (s.constant("i32", n) for n in (0, 1, 2, 0x108))
    count = s.op(Op.Load, "i32", s.access("i32", PUSH_CONSTANT, push, zero))
    group = s.op(Op.CompositeExtract, "i32", s.op(Op.Load, "3xi32", groups), 0)
    own = s.op(Op.IAdd, "i32", s.op(Op.IMul, "i32", group, s.constant("i32", SIZE)), s.index)
    inside, loaded, header, body, adding, added, proceed, merge, last, end = (s.new() for _ in range(10))
    there = s.op(Op.ULessThan, "bool", own, count)
    s.do(Op.SelectionMerge, loaded, 0)
    s.do(Op.BranchConditional, there, inside, loaded)
    s.label(inside)
    given = s.op(Op.Load, "i32", s.element(0, own))
    s.do(Op.Branch, loaded)
    s.label(loaded)
    value = s.op(Op.Phi, "i32", zero, s.start, given, inside)
    s.do(Op.Store, s.access("i32", WORKGROUP, shared, s.index), value)
    s.do(Op.ControlBarrier, scope, scope, semantics)
    s.do(Op.Branch, header)
    s.label(header)
    half = s.new("i32")
    stride = s.op(Op.Phi, "i32", s.constant("i32", SIZE // 2), loaded, half, proceed)
    more = s.op(Op.INotEqual, "bool", stride, zero)
    s.do(Op.LoopMerge, merge, proceed, 0)
    s.do(Op.BranchConditional, more, body, merge)
    s.label(body)
    left = s.op(Op.ULessThan, "bool", s.index, stride)
    s.do(Op.SelectionMerge, added, 0)
    s.do(Op.BranchConditional, left, adding, added)
    s.label(adding)
    mine = s.access("i32", WORKGROUP, shared, s.index)
    other = s.access("i32", WORKGROUP, shared, s.op(Op.IAdd, "i32", s.index, stride))
    s.do(Op.Store, mine, s.op(Op.IAdd, "i32", s.op(Op.Load, "i32", mine), s.op(Op.Load, "i32", other)))
    s.do(Op.Branch, added)
    s.label(added)
    s.do(Op.ControlBarrier, scope, scope, semantics)
    s.do(Op.Branch, proceed)
    s.label(proceed)
    s.body += instruction(Op.ShiftRightLogical, s.type("i32"), half, stride, one)
    s.do(Op.Branch, header)
    s.label(merge)
    first = s.op(Op.IEqual, "bool", s.index, zero)
    s.do(Op.SelectionMerge, end, 0)
    s.do(Op.BranchConditional, first, last, end)
    s.label(last)
    total = s.op(Op.Load, "i32", s.access("i32", WORKGROUP, shared, zero))
    s.do(Op.Store, s.element(1, group), total)
    s.do(Op.Branch, end)
    s.label(end)
    return s


def test_a_tree_reduction_a_thousand_times() -> None:
    """Lengths that are no multiple of the group's size, and some that are."""
    device = open_device("opencl")
    [kernel] = device.build(tree_reduction().program(target_of(device)))
    most = 50 * SIZE
    data = np.random.default_rng(1).integers(-(2**31), 2**31 - 1, most, "i4", endpoint=True)
    source, target = device.allocator.allocate(4 * most), device.allocator.allocate(4 * 50)
    source.write()[:] = data.tobytes()
    lengths = np.random.default_rng(2).integers(1, most, ROUNDS, endpoint=True)
    lengths[:6] = [1, SIZE - 1, SIZE, SIZE + 1, most - 1, most]
    for length in map(int, lengths):
        groups = -(-length // SIZE)
        kernel.dispatch((groups, 1, 1), (length,), [(source, 0, 4 * length), (target, 0, 4 * groups)])
        found = np.frombuffer(target.read(), "i4")[:groups]
        with np.errstate(over="ignore"):
            wanted = np.add.reduceat(data[:length], np.arange(0, length, SIZE), dtype="i4")
        assert np.array_equal(found, wanted), length
