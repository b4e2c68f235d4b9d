"""Kernels by any name: escaped in the source, called by the name they have. What a device lacks is named with them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from spirv_assembler import GLCOMPUTE, Spirv, instruction, text_words

from halgpu import errors
from halgpu.devices import open_device
from halgpu.executables.base import Executable
from halgpu.executables.vulkan_spirv.executable_def import ExecutableDef, PipelineDef, PipelineLayout
from halgpu.executables.vulkan_spirv.loader import target_of
from halgpu.executables.vulkan_spirv.opcodes import Op
from halgpu.executables.vulkan_spirv.translate import Target, translate

NAMES = (
    "torch-jit-export$async_dispatch_0", "kernel", "main", "1abc", "a" * 300, "a" * 299 + "b", "a-b", "a$b", "a_b",
    "a__b", "_a_b", "float", "float4", "get_global_id", "barrier", "p", "b0", "report", "is_inside", "__kernel", "é",
    "", " ", "a b;}", "arguments_1_0", "abs", "NULL", "vload4", "half", "class", "local_x", "x" * 96, "x" * 97,
)  # fmt: skip


def executable(names: tuple[str, ...], kind: str = "i32") -> ExecutableDef:
    """A kernel a name, each storing its own number."""
    pipelines, modules = [], []
    for number, name in enumerate(names):
        s = Spirv(kind, size=1)
        s.store(s.constant(kind, number + 1))
        words = s.words()
        old = instruction(Op.EntryPoint, GLCOMPUTE, s.main, *text_words("kernel"), *s.interface)
        at = next(i for i in range(len(words)) if words[i : i + len(old)] == old)
        words[at : at + len(old)] = instruction(
            Op.EntryPoint, GLCOMPUTE, s.main, *text_words(name), *s.interface
        )
        modules.append(memoryview(np.array(words, "<u4").tobytes()))
        pipelines.append(PipelineDef(name, number, PipelineLayout(((0, 0),), 0), 0))
    return ExecutableDef(tuple(pipelines), tuple(modules))


def test_any_name_is_escaped_and_looked_up_as_it_is() -> None:
    device = open_device("opencl")
    definition = executable(NAMES)
    program = translate(definition, target_of(device))
    escaped = [layout.name for layout in program.layouts]
    assert len(set(escaped)) == len(NAMES)
    assert all(name.isidentifier() and name.isascii() and len(name) <= 110 for name in escaped)
    kernels = Executable("test", device.build(program), [p.name for p in definition.pipelines])
    # A first launch compiles the kernel for its workgroup: not all of them.
    for number, name in enumerate(NAMES[:8]):
        buffer = device.allocator.allocate(4)
        kernels.kernels[kernels.lookup(name)].dispatch((1, 1, 1), (), [(buffer, 0, 4)])
        assert np.frombuffer(buffer.read(), "i4")[0] == number + 1
        buffer.release()


def test_errors_of_checked_kernels_have_the_name_that_the_program_uses() -> None:
    device = open_device("opencl")
    [kernel] = device.build(
        translate(executable(("torch-jit-export$async_dispatch_0",)), Target(checked=True))
    )
    buffer = device.allocator.allocate(4)
    with pytest.raises(
        errors.OutOfRange, match=r"^kernel 'torch-jit-export\$async_dispatch_0': a store of i32 at byte 0 "
    ):
        kernel.dispatch((1, 1, 1), (), [(buffer, 0, 0)])


def test_64_bit_floats_are_refused_where_the_device_has_none() -> None:
    device = open_device("opencl")
    target = dataclasses.replace(target_of(device), double=False)
    one, two = executable(("one",)), executable(("two",), "f64")
    pipelines = one.pipelines[0], dataclasses.replace(two.pipelines[0], module=1)
    both = ExecutableDef(pipelines, (one.modules[0], two.modules[0]))
    with pytest.raises(
        errors.Incompatible, match=r"kernel two: it computes with 64-bit floats \(f64\), which opencl.* \("
    ):
        translate(both, target)
    translate(executable(("one",)), target)
