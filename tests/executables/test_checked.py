"""HALGPU_CHECKED=1: accesses outside of a binding are left out and reported; what lies inside is as ever."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from spirv_assembler import (
    ARRAY_STRIDE,
    OFFSET,
    STORAGE_BUFFER,
    Batch,
    Spirv,
    instruction,
    run_program,
    text_words,
)

import halgpu
from halgpu import errors
from halgpu.cli import programs
from halgpu.devices import open_device
from halgpu.devices.base import Device
from halgpu.executables import registry
from halgpu.executables.vulkan_spirv.loader import target_of
from halgpu.executables.vulkan_spirv.opcodes import Op
from halgpu.executables.vulkan_spirv.translate import Target
from halgpu.vm import definition

SENTINEL = 0x5A


@pytest.fixture(autouse=True)
def _checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALGPU_CHECKED", "1")


@pytest.fixture
def device() -> Device:
    return open_device("opencl")


def dispatch(
    s: Spirv, arrays: Sequence[np.ndarray], lengths: Sequence[int] | None = None
) -> tuple[list[np.ndarray], str]:
    """Run with each binding 64 bytes into a larger buffer; returns arrays and the error, "" where there is none.

    Checks that nothing around the bindings was written. ``lengths`` are the bindings' if they are not the arrays'.
    """
    device = open_device("opencl")
    kernel = device.build(s.program(target_of(device)))[0]
    buffers = [device.allocator.allocate(128 + array.nbytes) for array in arrays]
    for buffer, array in zip(buffers, arrays, strict=True):
        view = buffer.write()
        view[:] = bytes([SENTINEL]) * len(view)
        view[64 : 64 + array.nbytes] = array.tobytes()
    given = lengths or [array.nbytes for array in arrays]
    message = ""
    try:
        bound = [(buffer, 64, length) for buffer, length in zip(buffers, given, strict=True)]
        kernel.dispatch((1, 1, 1), (), bound)
    except errors.OutOfRange as error:
        message = error.message
    found = []
    for buffer, array in zip(buffers, arrays, strict=True):
        data = bytes(buffer.read())
        assert set(data[:64] + data[64 + array.nbytes :]) == {SENTINEL}
        found.append(np.frombuffer(data[64 : 64 + array.nbytes], array.dtype).reshape(array.shape))
        buffer.release()
    return found, message


def test_reads_give_zero_and_writes_do_nothing() -> None:
    s = Spirv("i32", "i64", "i64", "f32", "f32", size=8)
    x = s.op(Op.Load, "f32", s.element(3, s.load(1)))
    s.do(Op.Store, s.element(4, s.load(2)), x)
    data = np.arange(1, 9, dtype="f4")
    reads = np.array([7, 8, -1, 0, 2**32, 2**62, 2**62 + 1, -(2**63)], "i8")
    writes = np.arange(8, dtype="i8")
    arrays = [np.zeros(8, "i4"), reads, writes, data, np.full(8, -5, "f4")]
    found, message = dispatch(s, arrays)
    assert found[4].tolist() == [8, 0, 0, 1, 0, 0, 0, 0]
    assert "kernel 'kernel': a load of f32 at " in message
    assert " is outside of binding 3, which has 32 bytes: OpLoad at word " in message
    assert message.endswith("; 6 such accesses in all")
    arrays = [np.zeros(8, "i4"), writes, reads, data, np.full(8, -5, "f4")]
    found, message = dispatch(s, arrays)
    assert found[4].tolist() == [4, -5, -5, -5, -5, -5, -5, 1]
    assert "a store of f32 at " in message
    assert " is outside of binding 4, which has 32 bytes: OpStore at word " in message


@pytest.mark.parametrize("way", ["dispatch", "program"])
def test_dispatches_that_repeat_are_checked_too(device: Device, way: str) -> None:
    """What is not checked again (devices/dispatch.py) is that the buffers are right for the kernel."""
    s = Spirv("i32", "i32", size=8)
    index = s.op(
        Op.Select,
        "i32",
        s.op(Op.IEqual, "bool", s.index, s.constant("i32", 3)),
        s.constant("i32", 8),
        s.index,
    )
    s.store(s.op(Op.Load, "i32", s.element(0, index)))
    kernel = device.build(s.program(target_of(device)))[0]
    with device.allocator.allocate(32) as source, device.allocator.allocate(32) as target:
        bound = [(source, 0, 32), (target, 0, 32)]
        run = {
            "dispatch": lambda: kernel.dispatch(1, (), (source, target)),
            "program": lambda: kernel.dispatch_words((1, 1, 1), (), bound, remember=True),
        }[way]
        for _ in range(4):
            with pytest.raises(errors.OutOfRange, match=r"at byte 32 .* is outside of binding 0"):
                run()
        assert device.counters.known


def test_the_report_tells_where() -> None:
    s = Spirv("i32", "i32", size=8)
    file = s.new()
    s.modes += instruction(Op.String, file, *text_words("model.mlir"))
    s.do(Op.Line, file, 12, 5)
    over = s.op(Op.IEqual, "bool", s.index, s.constant("i32", 3))
    index = s.op(Op.Select, "i32", over, s.constant("i32", 1000), s.index)
    x = s.op(Op.Load, "i32", s.element(0, index))
    s.do(Op.NoLine)
    s.store(x)
    _, message = dispatch(s, [np.arange(8, dtype="i4"), np.zeros(8, "i4")])
    assert message.startswith(
        "kernel 'kernel': a load of i32 at byte 4000 (element 1000) is outside of binding 0, which has 32 bytes: "
        "model.mlir:12:5, OpLoad at word "
    )
    assert message.endswith(" of its SPIR-V, in work-item (3, 0, 0)")


def strided(s: Spirv) -> int:
    """Binding 0 as a block { …, 16: struct { f32; 8: 4xf32 } [ ] stride 32 }."""
    inner = s.struct("inner", "f32", "4xf32")
    for member, offset in enumerate((0, 8)):
        s.annotations += instruction(Op.MemberDecorate, inner, member, OFFSET, offset)
    return s.buffer("inner", 0, stride=32, offset=16)


@pytest.mark.parametrize(("element", "inside"), [(0, True), (1, True), (2, False), (2**27 - 1, False)])
def test_offsets_and_strides_count(element: int, inside: bool) -> None:
    """2^27 elements of 32 bytes are 2^32 bytes: in 32 bits the last one would begin below zero, at byte -16."""
    s = Spirv("f32", "f32", size=1)
    block = strided(s)
    zero, one, index = s.constant("i32", 0), s.constant("i32", 1), s.constant("i32", element)
    place = s.access("f32", STORAGE_BUFFER, block, zero, index, one, s.constant("i32", 2))
    s.store(s.op(Op.Load, "f32", place))
    data = np.arange(20, dtype="f4")
    found, message = dispatch(s, [data, np.full(1, -1, "f4")])
    wanted = 4 + 8 * element + 4
    assert found[1][0] == (data[wanted] if inside else 0)
    assert bool(message) != inside
    assert inside or f"at byte {4 * wanted} is outside" in message


def test_vectors_composites_and_copies() -> None:
    s = Spirv("f32", "4xf32", size=4)
    block = strided(s)
    zero, one = s.constant("i32", 0), s.constant("i32", 1)
    last = s.op(Op.Load, "4xf32", s.access("4xf32", STORAGE_BUFFER, block, zero, one, one))
    whole = s.op(Op.Load, "inner", s.access("inner", STORAGE_BUFFER, block, zero, one))
    s.store(last)
    s.store(s.op(Op.CompositeExtract, "4xf32", whole, 1))
    first = s.access("4xf32", STORAGE_BUFFER, block, zero, zero, one)
    s.do(Op.CopyMemory, s.element(1, s.op(Op.IAdd, "i32", s.index, s.constant("i32", 8))), first)
    data = np.arange(20, dtype="f4")
    output = np.full((3, 4, 4), -1, "f4")
    found, message = dispatch(s, [data, output])
    assert found[1].tolist() == [[[14, 15, 16, 17]] * 4] * 2 + [[[6, 7, 8, 9]] * 4]
    assert not message
    # A vector that is partly outside is all outside.
    found, message = dispatch(s, [data[:17], output])
    assert found[1].tolist() == [[[0] * 4] * 4] * 2 + [[[6, 7, 8, 9]] * 4]
    assert "a load of vector<4xf32> at byte 56 is outside of binding 0, which has 68 bytes" in message
    found, message = dispatch(s, [data, output], [80, 4 * 40])
    assert found[1].tolist() == [[[14, 15, 16, 17]] * 4] * 2 + [[[6, 7, 8, 9]] * 2 + [[-1] * 4] * 2]
    assert re.search(
        r"a copy of vector<4xf32> at byte 1\d\d \(element 1[01]\) is outside of binding 1", message
    )


def test_atomics() -> None:
    s = Spirv("i32", "f32", "i32", size=4)
    scope, relaxed, one = s.constant("i32", 1), s.constant("i32", 0), s.constant("i32", 1)
    far = s.op(Op.IAdd, "i32", s.index, s.constant("i32", 2))
    place = s.element(0, far)
    s.store(s.op(Op.AtomicIAdd, "i32", place, scope, relaxed, one))
    s.store(s.op(Op.AtomicLoad, "i32", place, scope, relaxed))
    s.do(Op.AtomicStore, place, scope, relaxed, s.constant("i32", 9))
    zero = s.constant("i32", 0)
    s.store(s.op(Op.AtomicCompareExchange, "i32", place, scope, relaxed, relaxed, one, zero))
    s.op(Op.AtomicSMin, "i32", place, scope, relaxed, s.constant("i32", -3))
    s.op(Op.AtomicFAddEXT, "f32", s.element(1, far), scope, relaxed, s.constant("f32", 0.5))
    arrays = [np.array([5, 6, 7, 8], "i4"), np.ones(4, "f4"), np.full((3, 4), 77, "i4")]
    found, message = dispatch(s, arrays)
    assert found[0].tolist() == [5, 6, -3, -3]
    assert found[1].tolist() == [1, 1, 1.5, 1.5]
    assert found[2].tolist() == [[7, 8, 0, 0], [8, 9, 0, 0], [9, 9, 0, 0]]
    assert re.search(r"an atomic on i32 at byte (16|20) \(element [45]\) is outside of binding 0", message)
    assert message.endswith("; 12 such accesses in all")


def test_narrow_elements_and_words_that_are_partly_inside() -> None:
    s = Spirv("i8", "i16", "i32", "i32", size=4)
    for binding, kind in enumerate(("i8", "i16", "i32")):
        at = s.op(Op.IAdd, "i32", s.index, s.constant("i32", 12 // (1, 2, 4)[binding]))
        x = s.op(Op.Load, kind, s.element(binding, at))
        s.store(x if kind == "i32" else s.op(Op.SConvert, "i32", x))
    data = np.arange(1, 41, dtype="i1")
    found, message = dispatch(s, [data, data, data, np.zeros((3, 4), "i4")], [13, 13, 13, 48])
    bytes_, shorts, words = (data.view(dtype).astype("i4") for dtype in ("i1", "i2", "i4"))
    assert found[3].tolist() == [[bytes_[12], 0, 0, 0], [shorts[6], 0, 0, 0], [words[3], 0, 0, 0]]
    assert message.endswith("; 9 such accesses in all")


@pytest.mark.parametrize("checked", [False, True])
def test_array_length(checked: bool) -> None:
    """Whole elements that the binding has room for, also in kernels that are not checked."""
    s = Spirv("i32", "i32", size=1)
    views = [
        s.bindings[0],
        s.buffer("i8", 0),
        s.buffer("i64", 0, stride=24, offset=8),
        s.buffer("i32", 0, offset=64),
    ]
    for view in views:
        s.store(s.op(Op.ArrayLength, "i32", view, 0))
    program = s.program(Target(checked=checked))
    assert program.layouts[0].lengths
    assert (program.layouts[0].checks is not None) == checked
    output = run_program(open_device("opencl"), program, [np.zeros(61, "i1"), np.zeros((4, 1), "i4")])[1]
    assert output[:, 0].tolist() == [15, 61, 2, 0]


def test_off_it_costs_nothing() -> None:
    s = Batch(4)
    s.expect("same", "i32", s.given("i32", np.arange(4, dtype="i4")), np.arange(4))
    layout, source = s.program(Target()).layouts[0], s.program(Target()).source
    assert layout.checks is None
    assert not layout.lengths
    assert "report" not in source
    assert "lengths" not in source
    s.check()


SOURCE = """
func.func @add(%a: tensor<?xf32>, %b: tensor<?xf32>) -> tensor<?xf32> {
  // A line of its own, for the report.
  %0 = arith.addf %a, %b : tensor<?xf32>
  return %0 : tensor<?xf32>
}
func.func @narrow(%a: tensor<13xi8>, %b: tensor<13xi8>) -> tensor<13xi8> {
  %0 = arith.addi %a, %b : tensor<13xi8>
  return %0 : tensor<13xi8>
}
"""


def test_a_stock_program(compile_mlir: Callable[..., bytes], device: Device) -> None:
    data = compile_mlir(SOURCE)
    a, b = np.arange(100, dtype="f4"), np.ones(100, "f4")
    module = halgpu.load(data, device=device)
    assert np.array_equal(np.asarray(module.add(a, b)), a + b)
    c = np.arange(13, dtype="i1")
    assert np.array_equal(np.asarray(module.narrow(c, c)), 2 * c)

    [found] = [k for k in programs.kernels(definition.read(data)) if b"_f32" in bytes(k.data)]
    executable = registry.load(device, found.format, found.data)
    [name] = executable.names
    buffer = device.allocator.allocate(4096)
    buffer.write()[:] = bytes(4096)
    constants = executable.kernels[0].layout.constants
    # The kernel is told of 100 elements, of which binding 1 has 90.
    with pytest.raises(
        errors.OutOfRange, match=rf"kernel '{name}': a load of f32 at byte 3\d\d .*binding 1"
    ) as caught:
        executable.kernels[0].dispatch(
            (1, 1, 1), (100,) * constants, [(buffer, 0, 400), (buffer, 0, 360), (buffer, 0, 400)]
        )
    assert "module.mlir:2, OpLoad at word " in caught.value.message


def test_the_switch(monkeypatch: pytest.MonkeyPatch, device: Device) -> None:
    assert target_of(device).checked
    monkeypatch.setenv("HALGPU_CHECKED", "0")
    assert not target_of(device).checked
    monkeypatch.setenv("HALGPU_CHECKED", "yes")
    with pytest.raises(errors.InvalidArgument, match="HALGPU_CHECKED must be 0 or 1; found 'yes'"):
        target_of(device)


def test_an_index_of_more_than_64_bits_of_bytes() -> None:
    """Two terms that add up to 2^64: each alone fits."""
    s = Spirv("i64", "i32", size=1)
    row = s.array("i32", 4, stride=2**31)
    s.named["row"] = row
    array = s.new()
    s.globals += instruction(Op.TypeRuntimeArray, array, row)
    s.annotations += instruction(Op.Decorate, array, ARRAY_STRIDE, 2**31)
    block = s.new()
    s.globals += instruction(Op.TypeStruct, block, array)
    s.annotations += instruction(Op.MemberDecorate, block, 0, OFFSET, 0) + instruction(Op.Decorate, block, 2)
    variable = s.variable(STORAGE_BUFFER, block)
    s.annotations += instruction(Op.Decorate, variable, 33, 1) + instruction(Op.Decorate, variable, 34, 0)
    half = s.load(0)
    place = s.access("i32", STORAGE_BUFFER, variable, s.constant("i32", 0), half, half)
    s.store(s.op(Op.Load, "i32", place))
    found, message = dispatch(s, [np.array([2**32], "i8"), np.array([7], "i4")])
    assert found[1][0] == 0
    assert "a load of i32 at an offset of more than 64 bits is outside of binding 1" in message
