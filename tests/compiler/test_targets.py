"""What the compiler is told about a device, and that it accepts that."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import halgpu
from halgpu import errors
from halgpu.compiler import driver, targets
from halgpu.devices.base import Capabilities

GPU = Capabilities(
    name="NVIDIA GeForce RTX 3090", vendor="NVIDIA Corporation", driver="1", kind="gpu", unified_memory=False,
    fp16=False, fp64=True, int64_atomics=True, max_workgroup_invocations=1024, max_workgroup_size=(1024, 1024, 64),
    max_workgroup_count=(2**32 - 1,) * 3, local_memory=48 * 1024, max_allocation=2**32, max_parameter_bytes=4096,
    languages=frozenset({"opencl-c"}),
)  # fmt: skip
CPU = dataclasses.replace(
    GPU, kind="cpu", name="cpu", vendor="?", max_workgroup_invocations=4096, max_workgroup_size=(4096,) * 3
)


@pytest.mark.parametrize(
    ("vendor", "name", "arch"),
    [
        ("NVIDIA Corporation", "NVIDIA GeForce RTX 2080 Ti", "sm_75"),
        ("NVIDIA Corporation", "Tesla V100-SXM2-16GB", "sm_70"),
        ("NVIDIA Corporation", "NVIDIA A100-SXM4-40GB", "sm_80"),
        ("NVIDIA Corporation", "NVIDIA H200", "sm_89"),
        ("Advanced Micro Devices, Inc.", "gfx1100", "rdna3"),
        ("Advanced Micro Devices, Inc.", "gfx1030", "rdna2"),
        ("Advanced Micro Devices, Inc.", "gfx90a:sramecc+:xnack-", "gfx90a"),
        ("Advanced Micro Devices, Inc.", "gfx942", "gfx942"),
        ("ARM", "Mali-G78 r0p1", "valhall2"),
        ("QUALCOMM", "QUALCOMM Adreno(TM) 740", "adreno"),
        ("Intel(R) Corporation", "Intel(R) Arc(TM) A770", None),
    ],
)  # fmt: skip
def test_the_nearest_family(vendor: str, name: str, arch: str | None) -> None:
    found = targets.family(dataclasses.replace(GPU, vendor=vendor, name=name))
    assert (found and found.arch) == arch


@pytest.mark.parametrize(
    ("gpu", "wanted"),
    [(60, "sm_60"), (86, "sm_86"), (88, "sm_87"), (90, "sm_89"), (100, "sm_89"), (120, "sm_120")],
)
def test_cuda_gets_the_newest_target_that_compiler_and_gpu_know(gpu: int, wanted: str) -> None:
    from halgpu.devices.cuda import ARCHITECTURES

    able = frozenset(f"sm_{known}" for known in ARCHITECTURES if known <= gpu)
    capabilities = dataclasses.replace(GPU, languages=frozenset({"ptx", "cuda-c"}), extensions=able)
    flags = targets.for_device(capabilities, None)
    assert flags[1:3] == ["--iree-hal-target-device=cuda", f"--iree-cuda-target={wanted}"]


def test_a_gpu_that_is_too_old_for_the_compiler() -> None:
    capabilities = dataclasses.replace(
        GPU, languages=frozenset({"ptx"}), extensions=frozenset({"sm_50", "sm_52"})
    )
    with pytest.raises(errors.Incompatible, match="is older than sm_60"):
        targets.for_device(capabilities, None)


def test_a_cpu_is_no_gpu_whatever_its_name() -> None:
    assert targets.family(dataclasses.replace(CPU, name="NVIDIA Grace")) is None


def test_the_record_has_the_types_and_limits_of_the_device() -> None:
    record = targets.device_record(GPU)
    assert "compute = fp64|fp32|fp16|int64|int32|int16|int8," in record
    assert "max_workgroup_sizes = [1024, 1024, 64], max_thread_count_per_workgroup = 1024" in record
    assert "max_workgroup_memory_bytes = 49152" in record
    assert "mma" not in record
    assert "compute = fp32|fp16|" in targets.device_record(dataclasses.replace(GPU, fp64=False))
    assert "max_thread_count_per_workgroup = 128," in targets.device_record(CPU)


SMALL = "func.func @main(%x: tensor<4x{0}>) -> tensor<4x{0}> {{\n  %0 = {1} %x, %x : tensor<4x{0}>\n  return %0 : tensor<4x{0}>\n}}\n"


@pytest.mark.parametrize("capabilities", [GPU, dataclasses.replace(GPU, vendor="ARM", name="Mali-G78")])
def test_the_compiler_accepts_the_record_and_halgpu_runs_what_it_makes(capabilities: Capabilities) -> None:
    flag = f"--iree-hal-target-device={targets.device_record(capabilities)}"
    program = halgpu.compile(SMALL.format("f64", "arith.addf"), target="vulkan", flags=[flag])
    x = np.array([0.1, 2, -3, 1e300])
    np.testing.assert_array_equal(np.asarray(halgpu.load(program, "opencl").main(x)), x + x)


MATMUL = """func.func @main(%x: tensor<64x64xi8>, %w: tensor<64x64xi8>) -> tensor<64x64xi32> {
  %z = arith.constant 0 : i32
  %e = tensor.empty() : tensor<64x64xi32>
  %f = linalg.fill ins(%z : i32) outs(%e : tensor<64x64xi32>) -> tensor<64x64xi32>
  %m = linalg.matmul ins(%x, %w : tensor<64x64xi8>, tensor<64x64xi8>)
    outs(%f : tensor<64x64xi32>) -> tensor<64x64xi32>
  return %m : tensor<64x64xi32>
}
"""


CONVOLUTION = """
func.func @main(%x: tensor<1x3x9x8xf32>) -> tensor<1x5x7x6xf32> {
  %w = arith.constant dense<WEIGHTS> : tensor<5x3x3x3xf32>
  %b = arith.constant dense<BIAS> : tensor<5xf32>
  %0 = tensor.empty() : tensor<1x5x7x6xf32>
  %1 = linalg.broadcast ins(%b : tensor<5xf32>) outs(%0 : tensor<1x5x7x6xf32>) dimensions = [0, 2, 3]
  %2 = linalg.conv_2d_nchw_fchw ins(%x, %w : tensor<1x3x9x8xf32>, tensor<5x3x3x3xf32>)
      outs(%1 : tensor<1x5x7x6xf32>) -> tensor<1x5x7x6xf32>
  return %2 : tensor<1x5x7x6xf32>
}
"""


def test_convolutions_on_cpus_have_channels_last() -> None:
    assert targets.CHANNELS_LAST in targets.for_device(CPU, None)
    assert targets.CHANNELS_LAST not in targets.for_device(GPU, None)
    generator = np.random.default_rng(0)
    weights, bias, x = (
        generator.integers(-8, 8, shape).astype(np.float32) for shape in ((5, 3, 3, 3), (5,), (1, 3, 9, 8))
    )
    text = CONVOLUTION.replace("WEIGHTS", str(weights.tolist())).replace("BIAS", str(bias.tolist()))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    wanted = np.einsum("ncyxij,fcij->nfyx", windows, weights) + bias[:, None, None]
    found = np.asarray(halgpu.load(halgpu.compile(text), "opencl").main(x))
    np.testing.assert_array_equal(found, wanted)  # small integers: exact


def test_i8_operands_of_a_matmul_keep_their_signs() -> None:
    """Which they lose with the compiler's default Vulkan target, for want of dot products."""
    x, w = np.random.default_rng(1).integers(-100, 100, (2, 64, 64)).astype(np.int8)
    found = np.asarray(halgpu.load(halgpu.compile(MATMUL), "opencl").main(x, w))
    np.testing.assert_array_equal(found, x.astype(np.int32) @ w.astype(np.int32))


def test_a_device_without_f64_says_so() -> None:
    record = targets.device_record(dataclasses.replace(CPU, fp64=False))
    with pytest.raises(
        errors.Unimplemented, match=r"the target has no 64-bit floats: --iree-input-demote-f64-to-f32"
    ):
        halgpu.compile(
            SMALL.format("f64", "arith.addf"), target="vulkan", flags=[f"--iree-hal-target-device={record}"]
        )


@pytest.mark.parametrize(
    ("device", "target", "model", "wanted"),
    [
        ("opencl", None, None, "--iree-execution-model=inline-dynamic"),
        ("host", None, None, "--iree-hal-local-target-device-backends=llvm-cpu"),
        ("opencl", None, "inline-static", "--iree-hal-local-target-device-backends=vmvx-inline"),
        (None, None, "inline-static", "--iree-hal-local-target-device-backends=vmvx-inline"),
        (None, "vmvx-inline", None, "--iree-execution-model=inline-static"),
        (None, "vmvx", None, "--iree-execution-model=inline-dynamic"),
        (None, "ampere", None, "--iree-vulkan-target=ampere"),
        (None, "sm_80", None, "--iree-cuda-target=sm_80"),
        (None, "vulkan", None, "--iree-hal-target-device=vulkan"),
    ],
)  # fmt: skip
def test_flags(device: str | None, target: str | None, model: str | None, wanted: str) -> None:
    flags = driver.target_flags(device, target, model)
    assert wanted in flags
    assert "--iree-input-demote-f64-to-f32=false" in flags


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"execution_model": "async-internal"}, "expected an execution model that halgpu runs"),
        ({"target": "vmvx-inline", "execution_model": "inline-dynamic"}, "goes with the execution model 'inline-static'"),
        ({"target": "ampere", "execution_model": "inline-static"}, "goes with the target 'vmvx-inline'"),
        ({"target": "a b"}, "is no target"),
        ({"flags": ["--compile-to=vm"]}, "set by halgpu compile itself"),
        ({"flags": ["--iree-execution-model=x"]}, "use execution_model"),
        ({"flags": ["O2"]}, "expected a flag of iree-compile"),
        ({"flags": "--iree-opt-level=O2"}, "expected a list of strings"),
        ({"shapes": {"x": (1,)}}, "for ONNX models only"),
        ({"device": "nowhere"}, "no device 'nowhere'"),
    ],
)  # fmt: skip
def test_what_does_not_go_together(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.Error, match=message):
        halgpu.compile(SMALL.format("f32", "arith.addf"), **arguments)


def test_own_flags_give_way_to_the_users() -> None:
    own = ["--iree-hal-target-device=a", "--iree-x=false"]
    assert targets.without(own, ["--iree-hal-target-device=b", "-iree-x"]) == []
