"""The format `vulkan-spirv-fb`: SPIR-V for Vulkan, run as OpenCL C."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halgpu.executables.base import Executable

from .executable_def import read
from .translate import Target, translate

if TYPE_CHECKING:
    from halgpu.devices.base import Device


class VulkanSpirvLoader:
    """Loads what iree-compile's `vulkan` target makes on any device that builds OpenCL C."""

    format = "vulkan-spirv-fb"

    def query_support(self, device: Device) -> bool:
        """Whether ``device`` builds OpenCL C."""
        languages = device.capabilities.languages
        return not languages or "opencl-c" in languages

    def load(self, device: Device, data: memoryview, constants: tuple[int, ...] = ()) -> Executable:
        """Translate the executable to OpenCL C and build it; see :class:`~halgpu.executables.base.Loader`."""
        executable = read(data.cast("B") if data.format != "B" else data)
        program = translate(executable, target_of(device), constants)
        kernels = device.build(program)
        return Executable(self.format, kernels, [pipeline.name for pipeline in executable.pipelines])


def target_of(device: Device) -> Target:
    """What the translation has to know about ``device``."""
    capabilities = device.capabilities
    return Target(
        half=capabilities.fp16,
        double=capabilities.fp64,
        cpu=capabilities.kind == "cpu",
        exact_division=capabilities.exact_division,
    )
