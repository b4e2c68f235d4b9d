"""The `cuda-nvptx-fb` format as stock iree-compile writes it: reading, loading, launches, damage.

Launches go to the fake of CuPy (tests/devices/fake_cuda); what kernels compute there is numpy's. PTX is assembled by
NVIDIA's own ptxas where that is installed.
"""

from __future__ import annotations

import contextlib
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest

import halgpu
from halgpu import errors
from halgpu.devices import Device, open_device, ptx
from halgpu.devices.layout import KernelLayout
from halgpu.executables import cuda_ptx, registry
from halgpu.vm import definition

DEVICES = Path(__file__).resolve().parents[1] / "devices"
for folder in (str(DEVICES), str(DEVICES / "fake_cuda")):
    if folder not in sys.path:
        sys.path.append(folder)

import fake_cupy  # noqa: E402
import nvrtc  # noqa: E402

PROGRAM = """
func.func @add(%a: tensor<10x7xf32>, %b: tensor<10x7xf32>) -> tensor<10x7xf32> {
  %r = arith.addf %a, %b : tensor<10x7xf32>
  return %r : tensor<10x7xf32>
}
func.func @double(%a: tensor<?xi32>) -> tensor<?xi32> {
  %r = arith.addi %a, %a : tensor<?xi32>
  return %r : tensor<?xi32>
}
func.func @softmax(%a: tensor<12x256xf32>) -> tensor<12x256xf32> {
  %e = tensor.empty() : tensor<12x256xf32>
  %r = linalg.softmax dimension(1) ins(%a : tensor<12x256xf32>) outs(%e : tensor<12x256xf32>) -> tensor<12x256xf32>
  return %r : tensor<12x256xf32>
}
func.func @matmul(%a: tensor<128x256xf16>, %b: tensor<256x128xf16>) -> tensor<128x128xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<128x128xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<128x128xf32>) -> tensor<128x128xf32>
  %r = linalg.matmul ins(%a, %b : tensor<128x256xf16>, tensor<256x128xf16>)
    outs(%f : tensor<128x128xf32>) -> tensor<128x128xf32>
  return %r : tensor<128x128xf32>
}
"""


@pytest.fixture(scope="module")
def program(compile_mlir: Callable[..., bytes]) -> bytes:
    return compile_mlir(PROGRAM, "cuda", "--iree-cuda-target=sm_80")


@pytest.fixture(scope="module")
def executable(program: bytes) -> memoryview:
    (found,) = [data for data in definition.read(program).rodata if bytes(data[:4]) == b"CDA1"]
    return found


@pytest.fixture
def device() -> Device:
    return open_device("fake-cuda")


def named(executable: memoryview, part: str) -> tuple[str, KernelLayout]:
    ((name, layout),) = [(k.name, k) for _, k in cuda_ptx.read(executable).kernels if part in k.name]
    return name, layout


def test_reading(executable: memoryview) -> None:
    found = cuda_ptx.read(executable)
    (text,) = found.modules
    said = ptx.parse(text)
    assert (said.target, said.architecture, said.scope) == ("sm_80", 80, "")
    assert [layout.name for _, layout in found.kernels] == [*said.entries]
    _, add = named(executable, "add")
    assert [binding.access for binding in add.bindings] == ["read", "read", "readwrite"]
    assert (add.constants, add.passing) == (0, "addresses")
    _, double = named(executable, "double")
    assert (len(double.bindings), double.constants) == (2, 2)
    _, matmul = named(executable, "matmul")
    assert matmul.workgroup_size != (32, 1, 1)
    for _, layout in found.kernels:
        x, y, z = layout.workgroup_size
        assert said.entries[layout.name].most == x * y * z


def test_a_program_runs_with_what_its_kernels_are_given(
    program: bytes, executable: memoryview, device: Device
) -> None:
    def add(workgroups: Any, constants: Any, bindings: Any) -> None:
        a, b, c = (np.frombuffer(view, np.float32, 70) for view in bindings)
        c[:] = a + b

    def double(workgroups: Any, constants: Any, bindings: Any) -> None:
        size = constants[0] | constants[1] << 32
        a, b = (np.frombuffer(view, np.int32, size) for view in bindings)
        b[:] = a * 2

    fake_cupy.GPUS.functions[named(executable, "add")[0]] = add
    fake_cupy.GPUS.functions[named(executable, "double")[0]] = double
    module = halgpu.load(program, device)
    a, b = np.random.default_rng(1).normal(size=(2, 10, 7)).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(module.add(a, b)), a + b)
    values = np.arange(1000, dtype=np.int32)
    np.testing.assert_array_equal(np.asarray(module.double(values)), values * 2)
    launch = fake_cupy.GPUS.launches[-1]
    name, layout = named(executable, "double")
    assert (launch.name, launch.block, launch.shared) == (name, layout.workgroup_size, 0)
    assert launch.arguments[2:] == (struct.pack("<I", 1000), bytes(4))


def test_halgpu_compiles_for_the_gpu(device: Device) -> None:
    module = halgpu.load(halgpu.compile(PROGRAM, device=device), device)
    assert module.add(np.zeros((10, 7), np.float32), np.zeros((10, 7), np.float32)).shape == (10, 7)


@pytest.mark.parametrize("target", ["sm_60", "sm_80", "sm_89", "sm_120"])
def test_ptxas_assembles_what_is_handed_to_the_driver(
    compile_mlir: Callable[..., bytes], tmp_path: Path, target: str
) -> None:
    nvrtc.ptxas()
    source = PROGRAM if target == "sm_80" else PROGRAM.split("func.func @softmax")[0]
    module = compile_mlir(source, "cuda", f"--iree-cuda-target={target}")
    (found,) = [data for data in definition.read(module).rodata if bytes(data[:4]) == b"CDA1"]
    (text,) = cuda_ptx.read(found).modules
    assert nvrtc.assemble(text, target, tmp_path) == ""
    assert "fatal" in nvrtc.assemble(text[: len(text) // 2], target, tmp_path / ".")


def test_the_ptx_is_checked_against_the_device(device: Device) -> None:
    newer = make([{"name": "a"}], [entry("a").replace("sm_60", "sm_120")])
    with pytest.raises(
        errors.Incompatible, match=r"PTX .* for sm_120 does not run on fake-cuda:0 \(Fake GPU, sm_89\)"
    ):
        registry.load(device, "cuda-nvptx-fb", newer)


def test_formats_and_devices(program: bytes, executable: memoryview, device: Device) -> None:
    assert registry.query_support(device, "cuda-nvptx-fb")
    assert not registry.query_support(device, "vulkan-spirv-fb")
    with pytest.raises(errors.Incompatible, match="opencl:0 runs vulkan-spirv-fb"):
        registry.load(open_device("opencl"), "cuda-nvptx-fb", executable)
    with pytest.raises(
        errors.Incompatible, match=r"fake-cuda:0 runs cuda-nvptx-fb.*halgpu compile --device=cuda"
    ):
        registry.load(device, "vulkan-spirv-fb", executable)
    with pytest.raises(errors.Error, match="halgpu compile --target=vulkan"):
        halgpu.load(program, "opencl")
    with pytest.raises(errors.Unimplemented, match="no specialization constants, which PTX has not, found 2"):
        registry.load(device, "cuda-nvptx-fb", executable, (1, 2))


# -- executables made by hand --------------------------------------------------------------------------


def entry(name: str) -> str:
    return f".version 7.0\n.target sm_60\n.visible .entry {name}(.param .u64 a, .param .u32 b)\n{{ ret; }}\n"


def make(exports: list[dict[str, Any]], modules: list[str]) -> memoryview:
    """A CDA1 executable, written with the flatbuffers package."""
    builder = flatbuffers.Builder()

    def vector(items: list[int]) -> int:
        builder.StartVector(4, len(items), 4)
        for item in reversed(items):
            builder.PrependUOffsetTRelative(item)
        return int(builder.EndVector())

    tables = []
    for text in modules:
        image = builder.CreateString(text)
        builder.StartObject(1)
        builder.PrependUOffsetTRelativeSlot(0, image, 0)
        tables.append(builder.EndObject())
    listed = vector(tables)
    tables = []
    for export in exports:
        name = builder.CreateString(export.get("name", ""))
        flags = export.get("flags", [0])
        builder.StartVector(8, len(flags), 8)
        for flag in reversed(flags):
            builder.PrependUint64(flag)
        bindings = builder.EndVector()
        builder.StartObject(7)
        builder.PrependUint32Slot(0, export.get("module", 0), 0)
        builder.PrependUOffsetTRelativeSlot(1, name, 0)
        block = export.get("block", (8, 1, 1))
        if block is not None:
            builder.Prep(4, 12)
            for size in reversed(block):
                builder.PrependUint32(size)
            builder.PrependStructSlot(2, builder.Offset(), 0)
        builder.PrependUint32Slot(3, export.get("shared", 0), 0)
        builder.PrependUint32Slot(4, export.get("constants", 1), 0)
        builder.PrependUOffsetTRelativeSlot(5, bindings, 0)
        tables.append(builder.EndObject())
    kernels = vector(tables)
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(0, kernels, 0)
    builder.PrependUOffsetTRelativeSlot(1, listed, 0)
    builder.Finish(builder.EndObject(), file_identifier=b"CDA1")
    body = bytes(builder.Output())
    return memoryview(struct.pack("<4sIQ48x", b"CDA1", 0, len(body)) + body)


def test_kernels_of_several_modules_keep_their_order(device: Device) -> None:
    exports = [
        {"name": "c", "module": 1},
        {"name": "a", "shared": 512},
        {"name": "b", "module": 1, "flags": [3]},
    ]
    loaded = registry.load(device, "cuda-nvptx-fb", make(exports, [entry("a"), entry("b") + entry("c")[29:]]))
    assert loaded.names == ("c", "a", "b")
    assert [kernel.layout.name for kernel in loaded.kernels] == ["c", "a", "b"]
    assert loaded.kernels[2].layout.bindings[0].access == "read"
    with device.allocator.allocate(4) as data:
        loaded.kernels[1].dispatch(2, [7], [(data, 0, 4)])
    launch = fake_cupy.GPUS.launches[-1]
    assert (launch.name, launch.grid, launch.block, launch.shared) == ("a", (2, 1, 1), (8, 1, 1), 512)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": ""}, "kernel 0 has no name"),
        ({"module": 3}, "kernel 'a' names module 3 of 1"),
        ({"block": None}, "kernel 'a' has no block size: .* found None"),
        ({"block": (8, 0, 1)}, r"found \(8, 0, 1\)"),
        ({"constants": 1 << 30}, "1073741824 constants"),
        ({"constants": 2}, "kernel 'a' takes 2 arguments; its layout has 1 bindings and 2 constants"),
        ({"flags": []}, "kernel 'a' takes 2 arguments"),
        ({"name": "z"}, "PTX 7.0 for sm_60 has no kernel 'z'; it has: a"),
    ],
)
def test_exports_that_cannot_be(device: Device, change: dict[str, Any], words: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=words):
        registry.load(device, "cuda-nvptx-fb", make([{"name": "a", **change}], [entry("a")]))


def test_blocks_and_shared_memory_beyond_the_device(device: Device) -> None:
    for change in ({"block": (2048, 1, 1)}, {"shared": 1 << 20}):
        with pytest.raises(errors.Incompatible, match="fake-cuda:0 allows"):
            registry.load(device, "cuda-nvptx-fb", make([{"name": "a", **change}], [entry("a")]))


def test_executables_without_anything(device: Device) -> None:
    for exports, modules, words in (
        ([], [entry("a")], "has no kernels"),
        ([{"name": "a"}], [""], "module 0 is empty"),
        ([{"name": "a"}], [], "module 0 of 0"),
    ):
        with pytest.raises(errors.InvalidArgument, match=words):
            registry.load(device, "cuda-nvptx-fb", make(exports, modules))  # type: ignore[arg-type]


def test_damage_is_answered_in_words(executable: memoryview, device: Device) -> None:
    """Whatever byte of the tables is changed and wherever it is cut, nothing but an Error comes out."""
    whole = make([{"name": "a"}, {"name": "b"}], [entry("a") + entry("b")[29:]])
    for cut in range(len(whole)):
        with pytest.raises(errors.Error):
            cuda_ptx.read(whole[:cut])
    rng = random.Random(1)
    for data in (whole, executable):
        for _ in range(300):
            changed = bytearray(data)
            for _ in range(rng.choice((1, 1, 4))):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            with contextlib.suppress(errors.Error):
                registry.load(device, "cuda-nvptx-fb", memoryview(bytes(changed)))
