"""Cooperative matrices, emulated, against numpy; and stock programs that use them against stock llvm-cpu."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlir_corpus
import numpy as np
import pytest
from mlir_corpus import compare, stock
from spirv_assembler import FUNCTION, WORKGROUP, Spirv, instruction, run_program

import halgpu
from halgpu import errors
from halgpu.devices import open_device
from halgpu.executables.vulkan_spirv.loader import target_of
from halgpu.executables.vulkan_spirv.opcodes import Op
from halgpu.executables.vulkan_spirv.translate import Target

CAPABILITY = 6022
A, B, C = 0, 1, 2
ROWS, COLUMNS = 0, 1
SIGNED_A, SIGNED_B, SIGNED_C, SIGNED_RESULT, SATURATING = 1, 2, 4, 8, 16


class Matrices(Spirv):
    """A kernel of 64 invocations, of which 32 share a matrix: where that is depends on the index / 32.

    Bindings and what is expected of them are added one by one, so that one kernel shows much: building is what costs.
    """

    def __init__(self, *bindings: str, size: int = 64, lanes: int = 32) -> None:
        super().__init__(*bindings, size=size)
        self.capabilities.append(CAPABILITY)
        self.group = self.op(Op.UDiv, "i32", self.index, self.constant("i32", lanes))
        self.arrays: list[np.ndarray] = []
        self.wanted: list[tuple[int, object, np.ndarray]] = []

    def bind(self, kind: str, array: np.ndarray) -> int:
        """A further binding; returns its number."""
        self.bindings.append(self.buffer(kind, len(self.bindings)))
        self.element_kinds.append(kind)
        self.arrays.append(array)
        return len(self.bindings) - 1

    def expect(self, label: object, kind: str, wanted: np.ndarray, start: float = 0) -> int:
        """A further binding for results, which `start` says what is in it before."""
        binding = self.bind(kind, np.full_like(wanted, start))
        self.wanted.append((binding, label, wanted))
        return binding

    def check(self) -> None:
        found = self.run_all(self.arrays)
        for binding, label, wanted in self.wanted:
            assert np.array_equal(found[binding], wanted), (label, found[binding], wanted)

    def matrix(self, element: str, rows: int, columns: int, use: int, scope: int = 3) -> str:
        """A matrix type, by the name that `type` knows."""
        key = f"{element}@{rows},{columns},{use},{scope}"
        words = [self.constant("i32", word) for word in (scope, rows, columns, use)]
        self.once(key, Op.TypeCooperativeMatrixKHR, self.type(element), *words)
        return key

    def place(self, binding: int, units: int, kind: str | None = None) -> int:
        """A pointer to where the matrix of the own group is, when matrices have so many units."""
        at = self.op(Op.IMul, "i32", self.group, self.constant("i32", units))
        return self.element(binding, at, kind)

    def load_matrix(self, kind: str, pointer: int, layout: int, stride: int) -> int:
        words = self.constant("i32", layout), self.constant("i32", stride)
        return self.op(Op.CooperativeMatrixLoadKHR, kind, pointer, *words)

    def store_matrix(self, pointer: int, value: int, layout: int, stride: int) -> None:
        words = self.constant("i32", layout), self.constant("i32", stride)
        self.do(Op.CooperativeMatrixStoreKHR, pointer, value, *words)

    def given(self, element: str, use: int, array: np.ndarray) -> int:
        """A matrix for each group, of the same numbers by rows."""
        rows, columns = array.shape[1:]
        pointer = self.place(self.bind(element, array), rows * columns)
        return self.load_matrix(self.matrix(element, rows, columns, use), pointer, ROWS, columns)

    def splat(self, kind: str, value: float) -> int:
        return self.op(Op.CompositeConstruct, kind, self.constant("f32", value))


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if dtype[0] == "f":
        return rng.uniform(-2, 2, shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def dtype_of(kind: str) -> str:
    return f"{kind[0]}{int(kind[1:]) // 8}"


def test_layouts_in_memory() -> None:
    """Matrices by rows are stored by columns, and the other way round; the room between rows is kept."""
    s = Matrices()
    rng = np.random.default_rng(1)
    for element, rows, columns in (
        ("f16", 16, 16), ("f32", 8, 16), ("i8", 16, 32), ("i32", 16, 8), ("f16", 4, 4), ("f32", 5, 9),
        ("f16", 32, 16), ("f64", 2, 16), ("i64", 16, 32),
    ):  # fmt: skip
        kind = s.matrix(element, rows, columns, C)
        given = numbers(rng, (2, rows, columns + 3), dtype_of(element))
        turned = np.full((2, columns, rows + 2), 7, given.dtype)
        turned[:, :, :rows] = given[:, :, :columns].transpose(0, 2, 1)
        for array, wanted, layout in ((given, turned, ROWS), (turned, given, COLUMNS)):
            result = wanted.copy()
            result[:, :, (rows if layout == ROWS else columns) :] = 7
            value = s.load_matrix(
                kind, s.place(s.bind(element, array), array[0].size), layout, array.shape[2]
            )
            target = s.place(s.expect((element, rows, columns, layout), element, result, 7), result[0].size)
            s.store_matrix(target, value, 1 - layout, result.shape[2])
    s.check()


def test_memory_of_another_type() -> None:
    """Halves that go through workgroup memory of vectors, floats, bytes or halves; the stride counts those."""
    s = Matrices()
    given = numbers(np.random.default_rng(4), (2, 16, 24), "f2")
    wanted = given.copy()
    wanted[..., 16:] = 0
    stores = []
    for memory, size in (("4xf32", 16), ("f32", 4), ("i8", 1), ("f16", 2)):
        for layout in (ROWS, COLUMNS):
            kind, stride = s.matrix("f16", 16, 16, A), 48 // size
            total = 16 * stride
            shared = s.variable(WORKGROUP, s.array(memory, 2 * total))
            at = s.op(Op.IMul, "i32", s.group, s.constant("i32", total))
            inside = s.access(memory, WORKGROUP, shared, at)
            source = s.place(s.bind(memory, given), total)
            s.store_matrix(inside, s.load_matrix(kind, source, layout, stride), layout, stride)
            target = s.place(s.expect((memory, layout), memory, wanted), total)
            stores.append((kind, inside, target, layout, stride))
    s.do(Op.ControlBarrier, *(s.constant("i32", n) for n in (2, 2, 0x108)))
    for kind, inside, target, layout, stride in stores:
        s.store_matrix(target, s.load_matrix(kind, inside, layout, stride), layout, stride)
    s.check()


def test_products_of_floats() -> None:
    s = Matrices()
    rng = np.random.default_rng(2)
    results = []
    for kinds, (m, n, k) in (
        (("f16", "f16", "f16", "f16"), (16, 16, 16)),
        (("f16", "f16", "f32", "f32"), (16, 8, 16)),
        (("f16", "f16", "f32", "f16"), (8, 8, 4)),
        (("f32", "f32", "f32", "f32"), (5, 7, 9)),
        (("f64", "f64", "f64", "f64"), (8, 4, 4)),
    ):
        shapes = (m, k), (k, n), (m, n)
        a, b, c = (
            numbers(rng, (2, *shape), dtype_of(kind)) for shape, kind in zip(shapes, kinds, strict=False)
        )
        loaded = [
            s.given(kind, use, array) for kind, use, array in zip(kinds, (A, B, C), (a, b, c), strict=False)
        ]
        result = s.op(Op.CooperativeMatrixMulAddKHR, s.matrix(kinds[3], m, n, C), *loaded)
        binding = s.bind(kinds[3], np.zeros((2, m, n), dtype_of(kinds[3])))
        s.store_matrix(s.place(binding, m * n), result, ROWS, n)
        results.append((binding, a.astype("f8") @ b.astype("f8") + c, k))
    found = s.run_all(s.arrays)
    for binding, wanted, k in results:
        # Sums have 32 bits or more: a result of 16 is off by its own rounding only, or by what sums lose.
        dtype = found[binding].dtype
        sums = 1e-7 if dtype != "f8" else 1e-15
        np.testing.assert_allclose(
            found[binding], wanted, rtol=max(np.finfo(dtype).eps, 2 * sums), atol=4 * k * sums
        )


def test_products_of_integers() -> None:
    s = Matrices()
    rng = np.random.default_rng(3)
    every = SIGNED_A | SIGNED_B | SIGNED_C | SIGNED_RESULT
    for kinds, (m, n, k), flags in (
        (("i8", "i8", "i32", "i32"), (16, 16, 32), every),
        (("i8", "i8", "i32", "i32"), (16, 8, 32), 0),
        (("i8", "i8", "i32", "i32"), (8, 8, 16), SIGNED_A),
        (("i8", "i8", "i16", "i32"), (16, 16, 16), SIGNED_B | SIGNED_C),
        (("i16", "i16", "i64", "i64"), (8, 8, 8), SIGNED_A | SIGNED_B),
        (("i8", "i8", "i8", "i8"), (16, 16, 16), every),
        (("i8", "i8", "i32", "i32"), (5, 3, 7), every | SATURATING),
        (("i8", "i8", "i32", "i32"), (16, 16, 16), SATURATING),
    ):
        signed = (flags & flag for flag in (SIGNED_A, SIGNED_B, SIGNED_C, SIGNED_RESULT))
        types = [
            f"{'i' if sign else 'u'}{dtype_of(kind)[1]}" for kind, sign in zip(kinds, signed, strict=True)
        ]
        shapes = (m, k), (k, n), (m, n)
        a, b, c = (numbers(rng, (2, *shape), dtype) for shape, dtype in zip(shapes, types, strict=False))
        limits = np.iinfo(types[3])
        if flags & SATURATING:
            c[:, 0, 0], c[:, 1, 1] = limits.max, limits.min
        wanted = a.astype(object) @ b.astype(object) + c.astype(object)
        if flags & SATURATING:
            assert np.any(wanted > limits.max)
            wanted = np.clip(wanted, int(limits.min), int(limits.max))
        wrapped = np.array([int(w) % 2**limits.bits for w in wanted.flat], f"u{limits.bits // 8}")
        loaded = [
            s.given(kind, use, array) for kind, use, array in zip(kinds, (A, B, C), (a, b, c), strict=False)
        ]
        words = [flags] if flags else []
        result = s.op(Op.CooperativeMatrixMulAddKHR, s.matrix(kinds[3], m, n, C), *loaded, *words)
        binding = s.expect((kinds, m, n, k, flags), kinds[3], wrapped.reshape(2, m, n))
        s.store_matrix(s.place(binding, m * n), result, ROWS, n)
    s.check()


Case = tuple[str, str, Op, Callable[[np.ndarray, np.ndarray], np.ndarray]]
BINARY: list[Case] = [
    ("f32", "f32", Op.FAdd, np.add), ("f32", "f32", Op.FSub, np.subtract), ("f32", "f32", Op.FMul, np.multiply),
    ("f32", "f32", Op.FDiv, np.divide), ("i32", "i32", Op.IAdd, np.add), ("i32", "i32", Op.ISub, np.subtract),
    ("f16", "f16", Op.FAdd, lambda a, b: (a.astype("f4") + b).astype("f2")), ("i32", "i32", Op.IMul, np.multiply),
    ("i32", "i32", Op.SDiv, lambda a, b: np.trunc(a / b).astype("i4")),
    ("i32", "i32", Op.UDiv, lambda a, b: (a.view("u4") // b.view("u4")).view("i4")),
]  # fmt: skip
UNARY: list[Case] = [
    ("f32", "f32", Op.FNegate, lambda a, b: -a), ("i32", "i32", Op.SNegate, lambda a, b: -a),
    ("f32", "f16", Op.FConvert, lambda a, b: a.astype("f2")), ("f16", "f32", Op.FConvert, lambda a, b: a.astype("f4")),
    ("f32", "i32", Op.ConvertFToS, lambda a, b: a.astype("i4")),
    ("i32", "f32", Op.ConvertSToF, lambda a, b: a.astype("f4")),
    ("i32", "i8", Op.UConvert, lambda a, b: a.astype("i1")), ("i8", "i32", Op.SConvert, lambda a, b: a.astype("i4")),
    ("i32", "i32", Op.Bitcast, lambda a, b: a),
]  # fmt: skip


@pytest.mark.parametrize("shape", [(16, 16), (32, 16)])
def test_element_by_element(shape: tuple[int, int]) -> None:
    s = Matrices()
    rng = np.random.default_rng(9)
    arrays = {k: [numbers(rng, (2, *shape), dtype_of(k)) for _ in "ab"] for k in ("f16", "f32", "i8", "i32")}
    loaded = {kind: [s.given(kind, C, array) for array in pair] for kind, pair in arrays.items()}
    results = []
    for given, gives, op, rule in BINARY + UNARY:
        operands = loaded[given] if (given, gives, op, rule) in BINARY else loaded[given][:1]
        with np.errstate(all="ignore"):
            results.append((op, gives, s.op(op, s.matrix(gives, *shape, C), *operands), rule(*arrays[given])))
    kind, (a, _), (x, _) = s.matrix("f32", *shape, C), loaded["f32"], arrays["f32"]
    scaled = s.op(Op.MatrixTimesScalar, kind, a, s.constant("f32", 1.5))
    results.append(("times scalar", "f32", scaled, x * np.float32(1.5)))
    composite = s.once("splat", Op.ConstantComposite, s.type(kind), s.constant("f32", 0.5), typed=True)
    for value, matrix in ((2.5, s.splat(kind, 2.5)), (0.5, composite)):
        results.append(("splat", "f32", s.op(Op.FAdd, kind, a, matrix), x + np.float32(value)))
    for label, gives, value, wanted in results:
        target = s.place(s.expect(label, gives, wanted), wanted[0].size)
        s.store_matrix(target, value, ROWS, shape[1])
    s.check()


def test_composites() -> None:
    """Each invocation adds 1 to each of its elements, of which OpCooperativeMatrixLengthKHR tells how many."""
    s = Matrices()
    lengths = []
    for rows, columns, count in ((16, 16, 8), (8, 4, 1), (16, 32, 16), (3, 3, 1), (5, 9, 2)):
        kind = s.matrix("f32", rows, columns, C)
        array = numbers(np.random.default_rng(3), (2, rows, columns), "f4")
        value = s.given("f32", C, array)
        for i in range(count):
            part = s.op(Op.FAdd, "f32", s.op(Op.CompositeExtract, "f32", value, i), s.constant("f32", 1))
            value = s.op(Op.CompositeInsert, kind, part, value, i)
        target = s.place(s.expect((rows, columns), "f32", array + np.float32(1)), rows * columns)
        s.store_matrix(target, value, ROWS, columns)
        lengths.append((s.op(Op.CooperativeMatrixLengthKHR, "i32", s.type(kind)), count))
    for length, count in lengths:
        target = s.element(s.expect("length", "i32", np.full(64, count, "i4")), s.index)
        s.do(Op.Store, target, length)
    s.check()


def test_variables_and_phis() -> None:
    """A sum that a loop carries, and one in a variable whose elements are reached by index."""
    s = Matrices()
    array = numbers(np.random.default_rng(5), (2, 8, 8), "f4")
    kind, a = s.matrix("f32", 8, 8, C), s.given("f32", C, array)
    header, body, merge = (s.new() for _ in range(3))
    i_next, total_next = s.new("i32"), s.new(kind)
    zero, one = s.constant("i32", 0), s.constant("i32", 1)
    null = s.once("null", Op.ConstantNull, s.type(kind), typed=True)
    s.do(Op.Branch, header)
    s.label(header)
    i = s.op(Op.Phi, "i32", zero, s.start, i_next, body)
    total = s.op(Op.Phi, kind, null, s.start, total_next, body)
    less = s.op(Op.SLessThan, "bool", i, s.constant("i32", 4))
    s.do(Op.LoopMerge, merge, body, 0)
    s.do(Op.BranchConditional, less, body, merge)
    s.label(body)
    s.body += instruction(Op.FAdd, s.type(kind), total_next, total, a)
    s.body += instruction(Op.IAdd, s.type("i32"), i_next, i, one)
    s.do(Op.Branch, header)
    s.label(merge)
    summed = array + array + array + array
    s.store_matrix(s.place(s.expect("sum", "f32", summed), 64), total, ROWS, 8)
    variable = s.variable(FUNCTION, s.type(kind))
    s.do(Op.Store, variable, total)
    for index in (zero, s.op(Op.BitwiseAnd, "i32", s.index, zero), one):
        pointer = s.access("f32", FUNCTION, variable, index)
        s.do(Op.Store, pointer, s.op(Op.FAdd, "f32", s.op(Op.Load, "f32", pointer), s.constant("f32", 1)))
    changed = summed + np.float32(1)
    changed[..., 0::2] += np.float32(1)
    s.store_matrix(s.place(s.expect("changed", "f32", changed), 64), s.op(Op.Load, kind, variable), ROWS, 8)
    s.check()


def multiplied(s: Matrices) -> int:
    a, b = (s.load_matrix(s.matrix("f32", 8, 8, use), s.place(0, 64), ROWS, 8) for use in (A, B))
    c = s.matrix("f32", 8, 8, C)
    result = s.op(Op.CooperativeMatrixMulAddKHR, c, a, b, s.once("z", Op.ConstantNull, s.type(c), typed=True))
    s.store_matrix(s.place(1, 64), result, ROWS, 8)
    return result


def test_a_product_where_invocations_may_be_apart() -> None:
    s = Matrices("f32", "f32")
    inside, merge = s.new(), s.new()
    first = s.op(Op.IEqual, "bool", s.group, s.constant("i32", 0))
    s.do(Op.SelectionMerge, merge, 0)
    s.do(Op.BranchConditional, first, inside, merge)
    s.label(inside)
    multiplied(s)
    s.do(Op.Branch, merge)
    s.label(merge)
    with pytest.raises(
        errors.Unimplemented, match="CooperativeMatrixMulAddKHR where the invocations of a workgroup may"
    ):
        s.program()


def test_invocations_that_do_not_agree() -> None:
    """The place of a matrix differs from invocation to invocation, so that none could share it."""
    s = Matrices("f32", "f32", lanes=1)
    multiplied(s)
    with pytest.raises(errors.Unimplemented, match="size of subgroups cannot be told"):
        s.program()


@pytest.mark.parametrize(
    ("element", "rows", "columns", "use", "scope", "error", "message"),
    [
        ("f32", 8, 8, C, 2, errors.Unimplemented, "cooperative matrix of scope 2"),
        ("bool", 8, 8, C, 3, errors.InvalidArgument, "cooperative matrix of bool"),
        ("f32", 0, 8, C, 3, errors.InvalidArgument, "0 rows"),
        ("f32", 8, 8, 3, 3, errors.InvalidArgument, "for use 3"),
        ("f32", 1 << 16, 1 << 16, C, 3, errors.ResourceExhausted, "65536 x 65536 elements"),
        ("f32", 64, 64, C, 3, errors.Unimplemented, "more than 16 elements"),
    ],
)  # fmt: skip
def test_types_that_are_refused(
    element: str, rows: int, columns: int, use: int, scope: int, error: type[Exception], message: str
) -> None:
    s = Matrices("f32", "f32")
    kind = s.matrix(element, rows, columns, use, scope)
    s.store_matrix(s.place(1, 64), s.load_matrix(kind, s.place(0, 64), ROWS, 8), ROWS, 8)
    with pytest.raises(error, match=message):
        s.program()


def malformed(change: Callable[[Matrices, str, int], object]) -> Matrices:
    s = Matrices("f32", "f32")
    kind = s.matrix("f32", 8, 8, C)
    change(s, kind, s.load_matrix(kind, s.place(0, 64), ROWS, 8))
    return s


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s, k, m: s.op(Op.CooperativeMatrixLoadKHR, k, s.place(0, 64), s.constant("i32", 0)), "a stride"),
        (lambda s, k, m: s.op(Op.CooperativeMatrixLoadKHR, "f32", s.place(0, 64), s.constant("i32", 0), s.constant("i32", 8)), "where a cooperative matrix belongs"),
        (lambda s, k, m: s.store_matrix(s.place(1, 64), s.constant("f32", 1), ROWS, 8), "where a cooperative matrix belongs"),
        (lambda s, k, m: s.op(Op.FAdd, k, m, s.constant("f32", 1)), "where a cooperative matrix belongs"),
        (lambda s, k, m: s.op(Op.FAdd, s.matrix("f32", 8, 8, A), m, m), "of the shape and use"),
        (lambda s, k, m: s.op(Op.CompositeExtract, "f32", m, 2), "part 2"),
        (lambda s, k, m: s.op(Op.CompositeConstruct, k, s.constant("i32", 1)), "one f32 is expected"),
        (lambda s, k, m: s.op(Op.CooperativeMatrixMulAddKHR, k, m, m, m), "A, B and C that fit"),
        (lambda s, k, m: s.op(Op.CooperativeMatrixLengthKHR, "i32", s.type("f32")), "of a cooperative matrix type"),
        (lambda s, k, m: s.op(Op.MatrixTimesScalar, k, m, s.constant("i32", 1)), "a number of its type"),
        (lambda s, k, m: s.variable(WORKGROUP, s.type(k)), "variables of an invocation"),
        (lambda s, k, m: s.once("c", Op.ConstantComposite, s.type(k), *[s.constant("f32", 1)] * 2, typed=True), "one f32 is expected"),
    ],
)  # fmt: skip
def test_what_is_malformed(change: Callable[[Matrices, str, int], object], message: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=message):
        malformed(change).program()


def test_an_unknown_layout() -> None:
    s = malformed(lambda s, k, m: s.store_matrix(s.place(1, 64), m, 4202, 8))
    with pytest.raises(errors.Unimplemented, match="another layout"):
        s.program()


def test_devices_with_halves_compute_with_them() -> None:
    s = Matrices("f16", "f16")
    kinds = [s.matrix("f16", 16, 16, use) for use in (A, B, C)]
    values = [s.load_matrix(kind, s.place(0, 256), ROWS, 16) for kind in kinds]
    s.store_matrix(s.place(1, 256), s.op(Op.CooperativeMatrixMulAddKHR, kinds[2], *values), ROWS, 16)
    source = s.program(Target(half=True)).source
    assert "convert_half8(sums)" in source
    assert "cl_khr_fp16" in source


NAMES = ("matmul_f16_64", "batch_matmul_f16", "matmul_f16_f32_64")


@pytest.mark.parametrize("target", ["ampere", "rdna3"])
def test_stock_programs(
    target: str,
    compile_mlir: Callable[..., bytes],
    iree_tool: Callable[..., object],
    tmp_path: Path,
) -> None:
    source = mlir_corpus.joined({name: mlir_corpus.find(name) for name in NAMES})
    vmfb = compile_mlir(source, "vulkan", f"--iree-vulkan-target={target}")
    module = halgpu.load(vmfb, device="opencl")
    cpu = tmp_path / "cpu.vmfb"
    cpu.write_bytes(compile_mlir(source, "llvm-cpu"))
    for name in NAMES:
        program, function = mlir_corpus.find(name), mlir_corpus.function_name(name)
        inputs = program.inputs()
        wanted = stock.run(iree_tool, cpu, function, program, inputs, tmp_path)
        compare.check_same(program, [np.asarray(module[function](*inputs))], wanted)
        assert any(np.any(array != 0) for array in wanted), name
    # The capability's number in an instruction OpCapability: the compiler did use such matrices.
    assert np.array([2 << 16 | Op.Capability, CAPABILITY], "<u4").tobytes() in vmfb


def test_checked_kernels_report_what_lies_outside() -> None:
    s = Matrices()
    value = s.given("f32", C, np.ones((2, 8, 8), "f4"))
    binding = s.bind("f32", np.zeros(100, "f4"))
    s.store_matrix(s.place(binding, 64), value, ROWS, 8)
    device = open_device("opencl")
    program = s.program(replace(target_of(device), checked=True))
    with pytest.raises(errors.OutOfRange, match=r"a store of .*CooperativeMatrixStoreKHR"):
        run_program(device, program, s.arrays)
