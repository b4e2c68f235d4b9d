"""How many work-items a group is launched with, and kernels for CPUs that loop over their work-items themselves."""

from __future__ import annotations

from collections.abc import Callable

import mlir_corpus
import numpy as np
import pytest
from spirv_assembler import BUILT_IN, INPUT, WORKGROUP, Spirv, instruction, run_program

import halgpu
from halgpu.devices import open_device
from halgpu.devices.base import Device
from halgpu.executables.vulkan_spirv import loader
from halgpu.executables.vulkan_spirv.opcodes import Op
from halgpu.executables.vulkan_spirv.translate import Target

GROUPS = 3
WORKGROUP_ID = 26
LOCAL_ID = 27
CPU = Target(cpu=True)
DEVICES = pytest.mark.parametrize("target", [CPU, Target()], ids=["cpu", "gpu"])


class Alike(Spirv):
    """Kernels of 64 work-items a group whose index is the group's: none reads what tells it from the others."""

    def invocation(self) -> int:
        variable = self.variable(INPUT, self.type("3xi32"))
        self.annotations += instruction(Op.Decorate, variable, BUILT_IN, WORKGROUP_ID)
        vector = self.op(Op.Load, "3xi32", variable)
        return self.op(Op.CompositeExtract, "i32", vector, 0)


class Summing(Spirv):
    """out[i] = start + a[0] * b[0, i] + a[1] * b[1, i] + …, in that order, with the sum in a phi or in memory.

    That is `out`, or the work-item's own element of an array in workgroup memory.
    """

    COUNT = 5

    def __init__(self, workgroup: tuple[int, int, int], *, in_memory: bool, shared: bool = False) -> None:
        super().__init__("f32", "f32", "f32", size=int(np.prod(workgroup)), workgroup=workgroup)
        self.out = self.element(2, self.index)
        start = self.op(Op.FAdd, "f32", self.op(Op.Load, "f32", self.out), self.constant("f32", 1.5))
        sum_ = self.out
        if shared:
            array = self.variable(WORKGROUP, self.array("f32", self.size))
            sum_ = self.access("f32", WORKGROUP, array, self.index)
        if in_memory:
            self.do(Op.Store, sum_, start)
        header, body, proceed, merge = (self.new() for _ in range(4))
        self.do(Op.Branch, header)
        self.label(header)
        stepped, summed = self.new("i32"), self.new("f32")
        k = self.op(Op.Phi, "i32", self.constant("i32", 0), self.start, stepped, proceed)
        total = None if in_memory else self.op(Op.Phi, "f32", start, self.start, summed, proceed)
        test = self.op(Op.SLessThan, "bool", k, self.constant("i32", self.COUNT))
        self.do(Op.LoopMerge, merge, proceed, 0)
        self.do(Op.BranchConditional, test, body, merge)
        self.label(body)
        row = self.op(Op.IMul, "i32", k, self.constant("i32", self.size))
        a = self.op(Op.Load, "f32", self.element(0, k))
        b = self.op(Op.Load, "f32", self.element(1, self.op(Op.IAdd, "i32", row, self.index)))
        product = self.op(Op.FMul, "f32", a, b)
        before = self.op(Op.Load, "f32", sum_) if total is None else total
        self.body += instruction(Op.FAdd, self.type("f32"), summed, before, product)
        if in_memory:
            self.do(Op.Store, sum_, summed)
        self.do(Op.Branch, proceed)
        self.label(proceed)
        self.body += instruction(Op.IAdd, self.type("i32"), stepped, k, self.constant("i32", 1))
        self.do(Op.Branch, header)
        self.label(merge)
        if total is not None or shared:
            self.do(Op.Store, self.out, self.op(Op.Load, "f32", sum_) if total is None else total)

    def wanted(self, a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
        total = out + np.float32(1.5)
        for k in range(self.COUNT):
            total = total + a[k] * b[k]
        return total


@DEVICES
def test_one_work_item_where_all_do_the_same(target: Target) -> None:
    s = Alike("i32", "i32", workgroup=(64, 1, 1))
    doubled = s.op(Op.IAdd, "i32", s.load(0), s.load(0))
    s.do(Op.Store, s.element(1, s.index), doubled)
    program = s.program(target)
    assert program.layouts[0].workgroup_size == (1, 1, 1)
    assert "reqd_work_group_size(1, 1, 1)" in program.source
    given = np.arange(GROUPS, dtype="i4") + 7
    found = run_program(open_device("opencl"), program, [given, 0 * given], groups=(GROUPS, 1, 1))
    np.testing.assert_array_equal(found[1], 2 * given)


class Rows(Spirv):
    """Kernels whose index is the work-item's along y: those along x and z do the same."""

    def invocation(self) -> int:
        variable = self.variable(INPUT, self.type("3xi32"))
        self.annotations += instruction(Op.Decorate, variable, BUILT_IN, LOCAL_ID)
        return self.op(Op.CompositeExtract, "i32", self.op(Op.Load, "3xi32", variable), 1)


@DEVICES
def test_one_work_item_along_axes_that_none_reads(target: Target) -> None:
    """Others would add once more to what the first has added to."""
    s = Rows("i32", size=4, workgroup=(2, 4, 8))
    place = s.element(0, s.index)
    s.do(Op.Store, place, s.op(Op.IAdd, "i32", s.op(Op.Load, "i32", place), s.index))
    program = s.program(target)
    assert program.layouts[0].workgroup_size == (1, 4, 1)
    given = np.arange(4, dtype="i4") + 7
    found = run_program(open_device("opencl"), program, [given], groups=(1, 1, 1))
    np.testing.assert_array_equal(found[0], given + np.arange(4))


@DEVICES
def test_atomics_count_every_work_item(target: Target) -> None:
    s = Alike("i32", workgroup=(64, 1, 1))
    scope, semantics = s.constant("i32", 1), s.constant("i32", 0)
    s.op(Op.AtomicIAdd, "i32", s.element(0, s.index), scope, semantics, s.constant("i32", 1))
    program = s.program(target)
    assert program.layouts[0].workgroup_size == (64, 1, 1)
    found = run_program(open_device("opencl"), program, [np.zeros(GROUPS, "i4")], groups=(GROUPS, 1, 1))
    assert found[0].tolist() == [64] * GROUPS


@pytest.mark.parametrize("workgroup", [(64, 1, 1), (8, 4, 1), (2, 3, 5)])
@pytest.mark.parametrize("where", ["out", "phi", "shared"])
def test_loops_over_work_items(workgroup: tuple[int, int, int], where: str) -> None:
    s = Summing(workgroup, in_memory=where != "phi", shared=where == "shared")
    program = s.program(CPU)
    assert program.layouts[0].workgroup_size == (1, 1, 1)
    assert program.layouts[0].local_memory == 0
    assert "__local" not in program.source
    assert "get_local_id" not in program.source
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(s.COUNT, "f4"), rng.standard_normal((s.COUNT, s.size), "f4")
    out = rng.standard_normal(s.size, "f4")
    found = run_program(open_device("opencl"), program, [a, b, out])[2]
    np.testing.assert_array_equal(found, s.wanted(a, b, out))


def test_devices_that_are_no_cpu_keep_their_work_items() -> None:
    program = Summing((64, 1, 1), in_memory=True).program(Target())
    assert program.layouts[0].workgroup_size == (64, 1, 1)
    assert "get_local_id(0)" in program.source


def test_workgroup_memory_keeps_its_work_items() -> None:
    """Stock kernels initialize all of it in each work-item, without a barrier: one must end before the next begins."""
    s = Summing((64, 1, 1), in_memory=True)
    shared = s.variable(WORKGROUP, s.array("f32", 64))
    for element in range(2):
        place = s.access("f32", WORKGROUP, shared, s.constant("i32", element))
        s.do(Op.Store, place, s.constant("f32", 1))
    assert s.program(CPU).layouts[0].workgroup_size == (64, 1, 1)


@DEVICES
def test_workgroup_memory_of_which_each_work_item_has_an_element(target: Target) -> None:
    """It is a variable, unless a second place of it is used."""
    program = Summing((64, 1, 1), in_memory=True, shared=True).program(target)
    assert "__local" not in program.source
    assert program.layouts[0].local_memory == 0
    for step in (0, 1):
        s = Summing((64, 1, 1), in_memory=True, shared=True)
        array = s.variable(WORKGROUP, s.array("f32", 64))
        place = s.access("f32", WORKGROUP, array, s.op(Op.IAdd, "i32", s.index, s.constant("i32", 1)))
        s.do(Op.Store, place, s.constant("f32", 2))
        if step:
            s.do(Op.Store, s.access("f32", WORKGROUP, array, s.index), s.constant("f32", 3))
        assert ("__local" in s.program(target).source) == bool(step)


@pytest.mark.parametrize("workgroup", [(64, 1, 1), (8, 4, 1), (16, 8, 1)])
@pytest.mark.parametrize("shared", ["nothing", "apart", "last row"])
def test_working_in_place(shared: str, workgroup: tuple[int, int, int]) -> None:
    """Stock inline programs bind the same memory to read and to write: `restrict` is for dispatches that do not."""
    s = Summing(workgroup, in_memory=True)
    program = s.program(CPU)
    plain, restricted = program.source.split("__kernel")[1:]
    assert "restrict" not in plain
    assert restricted.count("*restrict b") == 3
    device = open_device("opencl")
    kernel = device.build(program)[0]
    rng = np.random.default_rng(1)
    a, memory = rng.standard_normal(s.COUNT, "f4"), rng.standard_normal((s.COUNT + 1, s.size), "f4")
    out = s.COUNT - (shared == "last row")
    wanted = memory[out] + np.float32(1.5)
    for k in range(s.COUNT):
        wanted = wanted + a[k] * (wanted if k == out else memory[k])
    factors, rows, other = (device.allocator.allocate(n) for n in (a.nbytes, memory.nbytes, memory.nbytes))
    factors.write()[:] = a.tobytes()
    rows.write()[:] = other.write()[:] = memory.tobytes()
    row, target = memory[0].nbytes, other if shared == "nothing" else rows
    kernel.dispatch(1, (), [(factors, 0, a.nbytes), (rows, 0, s.COUNT * row), (target, out * row, row)])
    np.testing.assert_array_equal(np.frombuffer(bytes(target.read()), "f4").reshape(-1, s.size)[out], wanted)


def test_small_groups_are_unrolled_around_a_few_statements() -> None:
    """Then their sums can stay in registers."""
    sources = {size: Summing(size, in_memory=True).program(CPU).source for size in [(32, 2, 1), (256, 1, 1)]}
    loops = "#pragma unroll\n{0}for (uint local_y = 0; local_y < 2u; ++local_y) {{\n{0}{1}#pragma clang loop interleave_count(4)\n"
    assert loops.format(" " * 8, " " * 4) in sources[32, 2, 1]
    assert "#pragma clang" not in sources[256, 1, 1]


def test_texts_for_cpus_and_others_give_the_same_bits(
    compile_mlir: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrix products keep float4 in registers, which CPUs have taken apart; convolutions loop over work-items."""
    programs = {
        name: mlir_corpus.find(name)
        for name in ("conv2d_nhwc_f32", "matmul_f32_128x256x96", "softmax_f32_axis0")
    }
    data = compile_mlir(mlir_corpus.joined(programs), "vulkan")
    texts: list[str] = []

    def results(target: Callable[[Device], Target]) -> list[np.ndarray]:
        monkeypatch.setattr(loader, "target_of", target)
        module = halgpu.load(data, device="opencl")
        return [
            np.asarray(module[mlir_corpus.function_name(name)](*program.inputs()))
            for name, program in programs.items()
        ]

    real, translate = loader.target_of, loader.translate

    def noted(*arguments: object) -> object:
        translation = translate(*arguments)  # type: ignore[arg-type]
        texts.append(translation.program.source)
        return translation

    monkeypatch.setenv("HALGPU_CACHE", "0")
    monkeypatch.setattr(loader, "translate", noted)
    ours = results(real)
    assert any("for (uint local_x = 0;" in text for text in texts)
    assert any("fma_float(" in text and "float4" not in text for text in texts)
    texts.clear()
    others = results(lambda _: Target(exact_division=True))
    assert not any("fma_float" in text or "for (uint local_x = 0;" in text for text in texts)
    for one, other in zip(ours, others, strict=True):
        np.testing.assert_array_equal(one.view("i4"), other.view("i4"))
