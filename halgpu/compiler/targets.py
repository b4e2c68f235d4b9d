"""What iree-compile is told about the device that a program is for.

The compiler generates kernels for a *target*: a record of element types, limits and family
(``#iree_gpu.target``, compiler/src/iree/compiler/Codegen/Dialect/GPU/IR/IREEGPUAttrs.td). Its ``--iree-vulkan-target``
takes the names of known GPUs only, each with all that the GPU has in Vulkan; ``--iree-hal-target-device`` takes the
record itself. A device of halgpu gets a record made of its :class:`~halgpu.devices.Capabilities`:

* 8-, 16- and 64-bit integers always (OpenCL 1.2 has them), 64-bit floats as the device has them;
* 16-bit floats always: without them iree-compile 3.13.0 makes wrong kernels for f16, and halgpu computes them in 32
  bits where the device has none;
* dot products of four 8-bit integers always, which halgpu emulates: without them iree-compile 3.13.0 takes the i8
  operands of many matmuls to i32 as unsigned;
* no cooperative matrices, which halgpu emulates at a cost;
* the architecture of the nearest known GPU, after which the compiler chooses tile sizes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from halgpu import errors
from halgpu.errors import nearest

if TYPE_CHECKING:
    from halgpu.devices.base import Capabilities

DYNAMIC: Final = "inline-dynamic"
STATIC: Final = "inline-static"
MODELS: Final = (DYNAMIC, STATIC)

HOST: Final = {
    "llvm-cpu": ("--iree-hal-local-target-device-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=generic"),
    "vmvx": ("--iree-hal-local-target-device-backends=vmvx",),
    "vmvx-inline": ("--iree-hal-local-target-device-backends=vmvx-inline",),
}
"""Targets that run on the host. ``vmvx-inline`` is VM code in the program itself, of the model inline-static."""

CUDA: Final = tuple(f"sm_{n}" for n in (60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 120, 121))
"""CUDA architectures that iree-compile 3.13.0 knows, oldest first. Newer GPUs run their PTX."""

ALWAYS: Final = (
    # Both exist to make programs fit GPUs without such types; halgpu's devices have them, or say that they do not.
    "--iree-input-demote-f64-to-f32=false",
    "--iree-input-demote-i64-to-i32=false",
    # Inline programs have no asynchronous functions, which is what torch programs become by default.
    "--iree-torch-emit-async-entry-points=false",
)


_CHANNELS_LAST: Final = "util.func(iree-preprocessing-convert-conv-to-channels-last)"
CHANNELS_LAST: Final = f"--iree-preprocessing-pass-pipeline=builtin.module({_CHANNELS_LAST})"
"""Convolutions with channels last, as the compiler tiles them best: ONNX and PyTorch have them first.

On PoCL convolutions of 3 x 3 and more take a third to a tenth of the time. GPUs have not been measured."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a workgroup: the most that the compiler is offered, whatever more the device claims."""

    invocations: int
    sizes: tuple[int, int, int]
    local_memory: int


_GPU: Final = Limits(1024, (1024, 1024, 1024), 64 * 1024)
# A CPU runs a workgroup on one core: large ones leave cores idle and local memory is no faster than any other.
# PoCL claims 4096 invocations. These are the limits of the compiler's default Vulkan target.
_CPU: Final = Limits(128, (128, 128, 64), 16 * 1024)


@dataclass(frozen=True, slots=True)
class Family:
    """A family of GPUs that the compiler knows: its ``arch``, subgroup sizes, and how OpenCL drivers name it."""

    arch: str
    subgroup_sizes: tuple[int, ...]
    names: re.Pattern[str]


def _family(arch: str, sizes: tuple[int, ...], names: str) -> Family:
    return Family(arch, sizes, re.compile(names, re.IGNORECASE))


# Architectures and subgroup sizes as KnownTargets.cpp has them (Codegen/Dialect/GPU/TargetUtils). The first whose
# names match the device's name, or the last of its vendor.
FAMILIES: Final = (
    _family("sm_60", (32,), r"\bGTX 10\d\d|\bP(4|40|100)\b|TITAN Xp?\b"),
    _family("sm_70", (32,), r"\bV100|TITAN V\b"),
    _family("sm_75", (32,), r"\bRTX 20\d\d|\bGTX 16\d\d|\bT4\b|\bT\d{3,4}\b|Quadro RTX"),
    _family("sm_80", (32,), r"\bRTX 30\d\d|\bA(2|10|16|30|40|100|800)\b|\bRTX A\d{4}"),
    _family("sm_89", (32,), r"NVIDIA"),
    _family("gfx908", (64,), r"gfx90[0-8]|MI100"),
    _family("gfx90a", (64,), r"gfx90a|MI2\d\d"),
    _family("gfx942", (64,), r"gfx9[45]\d|MI3\d\d"),
    _family("rdna1", (32, 64), r"gfx101\d"),
    _family("rdna2", (32, 64), r"gfx103\d"),
    _family("rdna3", (32, 64), r"gfx1[12]\d\d|gfx|Radeon"),
    _family("valhall1", (16,), r"Mali-G(57|77)"),
    _family("valhall2", (16,), r"Mali-G78"),
    _family("valhall3", (16,), r"Mali-G(710|510|310)"),
    _family("valhall4", (16,), r"Mali"),
    _family("adreno", (64,), r"Adreno"),
)


def family(capabilities: Capabilities) -> Family | None:
    """The known family that a GPU belongs to or is nearest to; None for other devices."""
    if capabilities.kind != "gpu":
        return None
    name = f"{capabilities.vendor} {capabilities.name}"
    return next((family for family in FAMILIES if family.names.search(name)), None)


def device_record(capabilities: Capabilities) -> str:
    """The ``#hal.device.target`` of a device, as MLIR text."""
    known = family(capabilities)
    compute = "fp64|" * capabilities.fp64 + "fp32|fp16|int64|int32|int16|int8"
    limits = _CPU if capabilities.kind == "cpu" else _GPU
    invocations = min(capabilities.max_workgroup_invocations, limits.invocations)
    sizes = ", ".join(map(str, map(min, capabilities.max_workgroup_size, limits.sizes)))
    counts = ", ".join(str(min(count, 65535)) for count in capabilities.max_workgroup_count)
    subgroups = ", ".join(map(str, known.subgroup_sizes if known else (64,)))
    operations = "shuffle|arithmetic" if known else "none"
    target = (
        f'#iree_gpu.target<arch = "{known.arch if known else ""}", features = "spirv:v1.6,cap:Shader", '
        f"wgp = <compute = {compute}, storage = b64|b32|b16|b8, subgroup = {operations}, "
        f"dot = dp4xi8toi32, subgroup_size_choices = [{subgroups}], max_workgroup_sizes = [{sizes}], "
        f"max_thread_count_per_workgroup = {invocations}, "
        f"max_workgroup_memory_bytes = {min(capabilities.local_memory, limits.local_memory)}, "
        f"max_workgroup_counts = [{counts}]>>"
    )
    kernels = (
        f'#hal.executable.target<"vulkan-spirv", "vulkan-spirv-fb", {{iree_codegen.target_info = {target}}}>'
    )
    return f'#hal.device.target<"vulkan", [{kernels}]> : !hal.device'


def for_device(capabilities: Capabilities, model: str | None) -> list[str]:
    """Flags for a program that runs on a device, whose model may be left open."""
    if capabilities.kind == "host":
        return for_name("vmvx-inline" if model == STATIC else "llvm-cpu", model)
    if model == STATIC:
        return for_name("vmvx-inline", model)
    if "ptx" in capabilities.languages:
        return for_name(cuda_architecture(capabilities), model)
    layout = [CHANNELS_LAST] if capabilities.kind == "cpu" else []
    return _flags(model or DYNAMIC, f"--iree-hal-target-device={device_record(capabilities)}", *layout)


def cuda_architecture(capabilities: Capabilities) -> str:
    """The newest architecture that the compiler knows and an NVIDIA GPU runs; Incompatible if there is none."""
    able = [name for name in CUDA if name in capabilities.extensions]
    if not able:
        raise errors.Incompatible(
            f"{capabilities.name} is older than {CUDA[0]}, the oldest NVIDIA GPU that iree-compile makes kernels for"
        )
    return able[-1]


def for_name(target: str, model: str | None) -> list[str]:
    """Flags for a target by name: one of :data:`HOST` or :data:`CUDA`, ``vulkan`` (the compiler's default) or a GPU
    that it knows for Vulkan."""
    if target in HOST:
        own = STATIC if target == "vmvx-inline" else DYNAMIC
        if model not in (None, own):
            raise errors.InvalidArgument(
                f"target {target!r} goes with the execution model {own!r}, not {model!r}"
            )
        return _flags(own, "--iree-hal-target-device=local", *HOST[target])
    if model == STATIC:
        raise errors.InvalidArgument(
            f"the execution model {STATIC!r} goes with the target 'vmvx-inline', not {target!r}"
        )
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", target):
        raise errors.InvalidArgument(
            f"{target!r} is no target: expected vulkan, a GPU's name such as ampere, rdna3 or (CUDA) sm_80, "
            f"{', '.join(HOST)}"
        )
    if target in CUDA:
        return _flags(DYNAMIC, "--iree-hal-target-device=cuda", f"--iree-cuda-target={target}")
    gpu = [] if target == "vulkan" else [f"--iree-vulkan-target={target}"]
    return _flags(DYNAMIC, "--iree-hal-target-device=vulkan", *gpu)


def check_model(model: str | None) -> None:
    """Raise InvalidArgument for an execution model that is not inline."""
    if model is not None and model not in MODELS:
        raise errors.InvalidArgument(
            f"expected an execution model that halgpu runs ({', '.join(MODELS)}), "
            f"found {model!r}{nearest(model, MODELS)}"
        )


def _flags(model: str, *flags: str) -> list[str]:
    return [f"--iree-execution-model={model}", *flags, *ALWAYS]


def without(flags: Sequence[str], given: Sequence[str]) -> list[str]:
    """``flags`` but for those that ``given`` sets too: some flags of iree-compile add up instead of replacing."""
    names = {flag.partition("=")[0].lstrip("-") for flag in given}
    return [flag for flag in flags if flag.partition("=")[0].lstrip("-") not in names]
