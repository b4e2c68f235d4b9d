"""Memory and composites: layouts by decoration, types over one binding, push constants, workgroup memory, atomics."""

from __future__ import annotations

import numpy as np
import pytest
from spirv_assembler import (
    ARRAY_STRIDE,
    BINDING,
    BLOCK,
    FUNCTION,
    OFFSET,
    PRIVATE,
    PUSH_CONSTANT,
    STORAGE_BUFFER,
    WORKGROUP,
    Batch,
    Spirv,
    instruction,
)

from halgpu import errors
from halgpu.executables.vulkan_spirv.opcodes import Op


def test_vectors_and_composites() -> None:
    s = Batch(4)
    a = np.arange(16, dtype="f4").reshape(4, 4)
    b = -np.arange(16, dtype="f4").reshape(4, 4)
    x, y = s.given("4xf32", a), s.given("4xf32", b)
    parts = [s.op(Op.CompositeExtract, "f32", x, i) for i in range(4)]
    s.expect("reversed", "4xf32", s.op(Op.CompositeConstruct, "4xf32", *reversed(parts)), a[:, ::-1])
    pair = s.op(Op.VectorShuffle, "2xf32", x, y, 3, 4)
    s.expect("of two", "2xf32", pair, np.stack([a[:, 3], b[:, 0]], 1))
    s.expect("swizzle", "4xf32", s.op(Op.VectorShuffle, "4xf32", y, x, 2, 1, 0, 3), b[:, [2, 1, 0, 3]])
    undefined = s.op(Op.VectorShuffle, "2xf32", x, y, 1, 0xFFFFFFFF)
    s.expect("undefined is 0", "2xf32", undefined, np.stack([a[:, 1], 0 * a[:, 0]], 1))
    joined = s.op(Op.CompositeConstruct, "4xf32", pair, parts[0], parts[1])
    s.expect("joined", "4xf32", joined, np.stack([a[:, 3], b[:, 0], a[:, 0], a[:, 1]], 1))
    inserted = s.op(Op.CompositeInsert, "4xf32", parts[2], y, 1)
    s.expect("inserted", "4xf32", inserted, np.stack([b[:, 0], a[:, 2], b[:, 2], b[:, 3]], 1))
    s.expect("kept", "4xf32", y, b)
    index = s.given("i32", np.array([3, 0, 2, 1], "i4"))
    s.expect("dynamic", "f32", s.op(Op.VectorExtractDynamic, "f32", x, index), a[range(4), [3, 0, 2, 1]])
    changed = b.copy()
    changed[range(4), [3, 0, 2, 1]] = a[:, 0]
    s.expect("dynamic", "4xf32", s.op(Op.VectorInsertDynamic, "4xf32", y, parts[0], index), changed)
    s.struct("mixed", "f32", "4xf32", "i32")
    mixed = s.op(Op.CompositeConstruct, "mixed", parts[0], y, index)
    s.expect("member", "f32", s.op(Op.CompositeExtract, "f32", mixed, 1, 2), b[:, 2])
    mixed = s.op(Op.CompositeInsert, "mixed", parts[3], mixed, 1, 2)
    s.expect(
        "member",
        "4xf32",
        s.op(Op.CompositeExtract, "4xf32", mixed, 1),
        np.stack([*b.T[:2], a[:, 3], b[:, 3]], 1),
    )
    s.named["three"] = s.array("f32", 3)
    three = s.op(Op.CompositeConstruct, "three", parts[3], parts[0], parts[1])
    three = s.op(Op.CompositeInsert, "three", parts[2], three, 1)
    s.expect("array", "f32", s.op(Op.CompositeExtract, "f32", three, 1), a[:, 2])
    null = s.once("null", Op.ConstantNull, s.type("4xf32"), typed=True)
    s.expect("null", "4xf32", null, 0 * a)
    undef = s.once("undef", Op.Undef, s.type("i32"), typed=True)
    s.expect("undef", "i32", s.op(Op.CopyObject, "i32", undef), np.zeros(4))
    s.check()


def test_layouts_by_decoration() -> None:
    """A struct with gaps in an array with a larger stride, a vector of three at a stride of 16, an offset."""
    s = Batch(3)
    inner = s.struct("inner", "f32", "2xi32", "i8")
    for member, offset in enumerate((4, 8, 19)):
        s.annotations += instruction(Op.MemberDecorate, inner, member, OFFSET, offset)
    raw = np.zeros((3, 24), "u1")
    floats, pairs = np.array([1.5, -2, 3], "f4"), np.arange(6, dtype="i4").reshape(3, 2) - 2
    raw[:, 4:8], raw[:, 8:16] = floats.view("u1").reshape(3, 4), pairs.view("u1").reshape(3, 8)
    raw[:, 19] = [5, 250, 7]
    structs = s.bind("inner", raw, stride=24)
    threes = np.arange(12, dtype="f4").reshape(3, 4)
    vectors = s.bind("3xf32", threes, stride=16)
    shifted = s.bind("i32", np.arange(5, dtype="i4"), offset=8)
    zero = s.constant("i32", 0)

    def part(kind: str, binding: int, *path: int) -> int:
        pointer = s.access(kind, STORAGE_BUFFER, s.bindings[binding], zero, s.index, *path)
        return s.op(Op.Load, kind, pointer)

    s.expect("float", "f32", part("f32", structs, zero), floats)
    s.expect("pair", "2xi32", part("2xi32", structs, s.constant("i32", 1)), pairs)
    one, two = s.constant("i32", 1), s.constant("i32", 2)
    s.expect("component", "i32", part("i32", structs, one, one), pairs[:, 1])
    s.expect("byte", "i8", part("i8", structs, two), [5, -6, 7])
    whole = part("inner", structs)
    s.expect("of the whole", "2xi32", s.op(Op.CompositeExtract, "2xi32", whole, 1), pairs)
    three = part("3xf32", vectors)
    s.expect("three", "f32", s.op(Op.CompositeExtract, "f32", three, 2), threes[:, 2])
    s.expect("shifted", "i32", part("i32", shifted), [2, 3, 4])
    s.check()


def test_several_types_over_one_binding() -> None:
    """Stores of one type are seen by loads of another; a C compiler must not assume otherwise."""
    for kinds in (("f32", "i32", "4xf32"), ("i32", "i8", "4xi32"), ("f64", "2xi32", "i16")):
        s = Spirv(kinds[0], size=4)
        views = [s.bindings[0], *(s.buffer(kind, 0) for kind in kinds[1:])]
        zero, one = s.constant("i32", 0), s.constant("i32", 1)
        s.locals += []
        condition = s.op(Op.IEqual, "bool", s.index, zero)
        then, done = s.new(), s.new()
        s.do(Op.SelectionMerge, done, 0)
        s.do(Op.BranchConditional, condition, then, done)
        s.label(then)
        s.do(Op.Store, s.access(kinds[0], STORAGE_BUFFER, views[0], zero, one), s.constant(kinds[0], 3))
        first = s.op(Op.Load, kinds[1], s.access(kinds[1], STORAGE_BUFFER, views[1], zero, one))
        s.do(Op.Store, s.access(kinds[1], STORAGE_BUFFER, views[1], zero, zero), first)
        second = s.op(Op.Load, kinds[2], s.access(kinds[2], STORAGE_BUFFER, views[2], zero, zero))
        s.do(Op.Store, s.access(kinds[2], STORAGE_BUFFER, views[2], zero, s.constant("i32", 2)), second)
        s.do(Op.Branch, done)
        s.label(done)
        memory = bytearray(np.arange(48, dtype="u1").tobytes())

        def view(kind: str, index: int) -> slice:
            count, element = kind.split("x") if "x" in kind else ("1", kind)
            size = int(count) * int(element[1:]) // 8
            return slice(index * size, (index + 1) * size)

        start = np.frombuffer(bytes(memory), "u1")
        value = np.array(3, f"{kinds[0][0]}{int(kinds[0][1:]) // 8}").tobytes()
        memory[view(kinds[0], 1)] = value
        memory[view(kinds[1], 0)] = memory[view(kinds[1], 1)]
        memory[view(kinds[2], 2)] = memory[view(kinds[2], 0)]
        assert s.run(output=start).tobytes() == bytes(memory), kinds


def test_push_constants_and_specialization() -> None:
    s = Spirv("i32", size=1, constants=6)
    block = s.struct("block", "i32", "f32", "i64", "2xi32")
    for member, offset in enumerate((0, 4, 8, 16)):
        s.annotations += instruction(Op.MemberDecorate, block, member, OFFSET, offset)
    s.annotations += instruction(Op.Decorate, block, BLOCK)
    variable = s.variable(PUSH_CONSTANT, block)
    members = []
    for member, kind in enumerate(("i32", "f32", "i64", "2xi32")):
        pointer = s.access(kind, PUSH_CONSTANT, variable, s.constant("i32", member))
        members.append(s.op(Op.Load, kind, pointer))
    s.store(members[0])
    s.store(s.op(Op.ConvertFToS, "i32", members[1]))
    s.store(s.op(Op.UConvert, "i32", s.op(Op.ShiftRightLogical, "i64", members[2], s.constant("i32", 4))))
    s.store(s.op(Op.CompositeExtract, "i32", members[3], 1))
    special, flag = s.new("i32"), s.new("bool")
    s.globals += instruction(Op.SpecConstant, s.type("i32"), special, 7)
    s.globals += instruction(Op.SpecConstantTrue, s.type("bool"), flag)
    double = s.new("i32")
    s.globals += instruction(Op.SpecConstantOp, s.type("i32"), double, Op.IMul, special, s.constant("i32", 2))
    for id_, number in ((special, 0), (flag, 1)):
        s.annotations += instruction(Op.Decorate, id_, 1, number)
    for value in (special, double):
        s.store(value)
    s.store_bool(flag)
    push = (5, int(np.array(42.9, "f4").view("u4")), 0x89ABCDEF, 0x01234567, 8, 9)
    head = [5, 42, 0x789ABCDE, 9]
    assert s.rows_of(dtype="i4", push=push)[:, 0].tolist() == [*head, 7, 14, 1]
    assert s.rows_of(dtype="i4", push=push, constants=(100, 0))[:, 0].tolist() == [*head, 100, 200, 0]


def test_private_and_function_variables() -> None:
    s = Batch(4)
    table = s.composite_array("i32", [10, 20, 30, 40])
    array = s.array("i32", 4)
    constant_table = s.variable(FUNCTION, array)
    written = s.variable(FUNCTION, array, table)
    private = s.variable(PRIVATE, s.type("4xf32"))
    pair = s.struct("pair", "i32", "2xf32")
    structure = s.variable(FUNCTION, pair)
    s.do(Op.Store, constant_table, table)
    index = s.given("i32", np.array([3, 1, 0, 2], "i4"))
    s.expect(
        "table",
        "i32",
        s.op(Op.Load, "i32", s.access("i32", FUNCTION, constant_table, index)),
        [40, 20, 10, 30],
    )
    one = s.constant("i32", 1)
    s.do(Op.Store, s.access("i32", FUNCTION, written, one), index)
    s.expect("written", "i32", s.op(Op.Load, "i32", s.access("i32", FUNCTION, written, one)), [3, 1, 0, 2])
    s.expect("kept", "i32", s.op(Op.Load, "i32", s.access("i32", FUNCTION, written, index)), [40, 1, 10, 30])
    s.named["whole"] = array
    whole = s.op(Op.Load, "whole", written)
    s.expect("whole", "i32", s.op(Op.CompositeExtract, "i32", whole, 3), [40] * 4)
    s.do(Op.Store, private, s.constant("4xf32", 2.5))
    s.do(Op.Store, s.access("f32", PRIVATE, private, index), s.constant("f32", 7))
    changed = np.full((4, 4), 2.5)
    changed[range(4), [3, 1, 0, 2]] = 7
    s.expect("private", "4xf32", s.op(Op.Load, "4xf32", private), changed)
    s.do(Op.Store, s.access("f32", FUNCTION, structure, one, one), s.constant("f32", -3))
    s.do(Op.Store, s.access("i32", FUNCTION, structure, s.constant("i32", 0)), index)
    loaded = s.op(Op.Load, "pair", structure)
    s.expect("structure", "f32", s.op(Op.CompositeExtract, "f32", loaded, 1, 1), [-3] * 4)
    s.expect("structure", "i32", s.op(Op.CompositeExtract, "i32", loaded, 0), [3, 1, 0, 2])
    s.do(Op.CopyMemory, constant_table, written)
    s.check()


def test_workgroup_memory_and_barriers() -> None:
    """Each invocation reads what another wrote, before and after it is overwritten."""
    s = Spirv("i32", "i32", size=64)
    shared = s.variable(WORKGROUP, s.struct_of("shared", s.array("i32", 64)))
    zero, scope = s.constant("i32", 0), s.constant("i32", 2)
    semantics = s.constant("i32", 0x108)
    other = s.op(Op.BitwiseXor, "i32", s.index, s.constant("i32", 37))
    x = s.load(0)
    s.do(Op.Store, s.access("i32", WORKGROUP, shared, zero, s.index), x)
    s.do(Op.ControlBarrier, scope, scope, semantics)
    before = s.op(Op.Load, "i32", s.access("i32", WORKGROUP, shared, zero, other))
    s.do(Op.ControlBarrier, scope, scope, semantics)
    doubled = s.op(Op.IAdd, "i32", before, before)
    s.do(Op.Store, s.access("i32", WORKGROUP, shared, zero, s.index), doubled)
    s.do(Op.ControlBarrier, scope, scope, semantics)
    s.store(before)
    s.store(s.op(Op.Load, "i32", s.access("i32", WORKGROUP, shared, zero, other)))
    a = np.random.default_rng(2).integers(0, 1000, 64, "i4")
    assert s.program().layouts[0].local_memory == 256
    found = s.rows_of(a, dtype="i4")
    assert found.tolist() == [a[np.arange(64) ^ 37].tolist(), (2 * a).tolist()]


ATOMICS = {
    Op.AtomicIAdd: (5, [3] * 8, 29), Op.AtomicISub: (5, [3] * 8, -19), Op.AtomicIIncrement: (5, None, 13),
    Op.AtomicIDecrement: (5, None, -3), Op.AtomicSMin: (5, [-4, 3, 9, 1, 7, 2, 8, 6], -4),
    Op.AtomicSMax: (5, [-4, 3, 9, 1, 7, 2, 8, 6], 9), Op.AtomicUMin: (5, [-4, 3, 9, 1, 7, 2, 8, 6], 1),
    Op.AtomicUMax: (5, [-4, 3, 9, 1, 7, 2, 8, 6], -4), Op.AtomicAnd: (7, [3, 2, 7, 6, 2, 3, 7, 2], 2),
    Op.AtomicOr: (1, [2, 4, 8, 16, 2, 2, 2, 2], 31), Op.AtomicXor: (0, [1, 2, 4, 8, 16, 32, 64, 128], 255),
}  # fmt: skip


@pytest.mark.parametrize("width", [32, 64])
def test_atomics(width: int) -> None:
    """Eight invocations on a word each for every instruction, in a buffer and in workgroup memory."""
    kind, dtype = f"i{width}", f"i{width // 8}"
    s = Spirv(kind, kind, f"f{width}", kind, size=8)
    scope, relaxed, ordered = s.constant("i32", 1), s.constant("i32", 0), s.constant("i32", 0x48)
    zero, workgroup = s.constant("i32", 0), s.constant("i32", 2)
    shared = s.variable(WORKGROUP, s.array(kind, 16))
    starts, operands = [], []
    for number, (op, (start, values, _)) in enumerate(ATOMICS.items()):
        starts.append(start)
        operands.append(values or [0] * 8)
        where = s.op(Op.IAdd, "i32", s.index, s.constant("i32", 8 * number))
        operand = [] if values is None else [s.op(Op.Load, kind, s.element(1, where))]
        place = s.element(0, s.constant("i32", number))
        s.op(op, kind, place, scope, ordered, *operand)
        local = s.access(kind, WORKGROUP, shared, s.constant("i32", number))
        s.do(Op.AtomicStore, local, scope, relaxed, s.constant(kind, start))
        s.do(Op.ControlBarrier, workgroup, workgroup, s.constant("i32", 0x108))
        s.op(op, kind, local, scope, relaxed, *operand)
        s.do(Op.ControlBarrier, workgroup, workgroup, s.constant("i32", 0x108))
        s.store(s.op(Op.AtomicLoad, kind, local, scope, relaxed))
    s.op(Op.AtomicFAddEXT, f"f{width}", s.element(2, zero), scope, relaxed, s.constant(f"f{width}", 0.5))
    old = s.op(Op.AtomicIAdd, kind, s.element(0, s.constant("i32", 11)), scope, relaxed, s.constant(kind, 1))
    s.store(old)
    spare = s.element(0, s.constant("i32", 12))
    seen = s.op(
        Op.AtomicCompareExchange, kind, spare, scope, relaxed, relaxed, s.index_as(kind), s.constant(kind, -1)
    )
    won = s.op(Op.IEqual, "bool", seen, s.constant(kind, -1))
    s.store(s.op(Op.Select, kind, won, s.constant(kind, 1), s.constant(kind, 0)))
    words = np.array([*starts, 0, -1], dtype)
    output = np.zeros((s.rows, 8), dtype)
    results = s.run_all([words, np.array(operands, dtype), np.array([1.0], f"f{width // 8}"), output])
    wanted = [final for _, _, final in ATOMICS.values()]
    assert results[0][:12].tolist() == [*wanted, 8]
    assert [row.tolist() for row in results[3][: len(wanted)]] == [[final] * 8 for final in wanted]
    assert results[2][0] == 5.0
    assert sorted(results[3][-2].tolist()) == list(range(8))
    assert results[3][-1].sum() == 1
    assert results[3][-1][results[0][12]] == 1


NARROW = {op: ATOMICS[op] for op in (Op.AtomicAnd, Op.AtomicOr, Op.AtomicXor)}


@pytest.mark.parametrize("width", [8, 16])
def test_narrow_atomics(width: int) -> None:
    """Eight invocations on one number for each instruction; the numbers beside it in its word stay as they are."""
    kind, dtype = f"i{width}", f"u{width // 8}"
    s = Spirv(kind, kind, kind, size=8)
    scope, relaxed = s.constant("i32", 1), s.constant("i32", 0)
    shared = s.variable(WORKGROUP, s.array(kind, 8))
    workgroup, ordered = s.constant("i32", 2), s.constant("i32", 0x108)
    numbers, operands, wanted = [], [], []
    for number, (op, (start, values, final)) in enumerate(NARROW.items()):
        operands.append(values)
        where = s.op(Op.IAdd, "i32", s.index, s.constant("i32", 8 * number))
        operand = s.op(Op.Load, kind, s.element(1, where))
        s.op(op, kind, s.element(0, s.constant("i32", 2 * number + 1)), scope, relaxed, operand)
        local = s.access(kind, WORKGROUP, shared, s.constant("i32", 2 * number + 1))
        s.do(Op.Store, local, s.constant(kind, start))
        s.do(Op.ControlBarrier, workgroup, workgroup, ordered)
        s.op(op, kind, local, scope, relaxed, operand)
        s.do(Op.ControlBarrier, workgroup, workgroup, ordered)
        s.store(s.op(Op.Load, kind, local))
        numbers += [0xA5, start]
        wanted += [0xA5, final]
    before = np.array([*numbers, 0x5A], dtype)
    output = np.zeros((s.rows, 8), dtype)
    after, _, rows = s.run_all([before, np.array(operands, dtype), output])
    assert after.tolist() == [*wanted, 0x5A]
    assert rows.tolist() == [[final] * 8 for _, _, final in NARROW.values()]


def test_access_and_alignment_in_the_layout() -> None:
    s = Spirv("f32", "4xi64", "i32", "i32", size=1)
    s.load(0)
    x = s.op(Op.CompositeExtract, "i64", s.load(1), 0)
    count = s.op(Op.UConvert, "i32", x)
    one, zero = s.constant("i32", 1), s.constant("i32", 0)
    s.op(Op.AtomicIAdd, "i32", s.element(2, zero), one, zero, count)
    s.store(count)
    bindings = s.program().layouts[0].bindings
    assert [(b.access, b.alignment) for b in bindings] == [
        ("read", 4),
        ("read", 8),
        ("readwrite", 4),
        ("write", 4),
    ]


def test_a_binding_that_the_layout_lacks() -> None:
    s = Spirv("i32", size=1)
    s.annotations = [
        9 if word == 0 and i and s.annotations[i - 1] == BINDING else word
        for i, word in enumerate(s.annotations)
    ]
    s.store(s.constant("i32", 1))
    with pytest.raises(errors.InvalidArgument, match="uses binding 9 of set 0"):
        s.program()


def test_an_array_in_a_buffer_without_a_stride() -> None:
    s = Spirv("i32", size=1)
    stride = instruction(Op.Decorate, 0, ARRAY_STRIDE, 4)
    at = next(
        i
        for i in range(len(s.annotations))
        if s.annotations[i] == stride[0] and s.annotations[i + 2] == ARRAY_STRIDE
    )
    del s.annotations[at : at + 4]
    s.store(s.constant("i32", 1))
    with pytest.raises(errors.InvalidArgument, match="no ArrayStride"):
        s.program()
