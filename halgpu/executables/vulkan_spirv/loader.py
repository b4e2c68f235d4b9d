"""The format `vulkan-spirv-fb`: SPIR-V for Vulkan, run as OpenCL C."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halgpu.devices.base import switch
from halgpu.executables.base import Builds, Executable

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

    def load(
        self, device: Device, data: memoryview, constants: tuple[int, ...], builds: Builds
    ) -> Executable:
        """Translate the executable to OpenCL C, to be built; see :class:`~halgpu.executables.base.Loader`."""
        definition = read(data.cast("B") if data.format != "B" else data)
        program = translate(definition, target_of(device), constants)
        executable = Executable(self.format, builds, [pipeline.name for pipeline in definition.pipelines])
        builds.add(executable, program)
        return executable


def target_of(device: Device) -> Target:
    """What the translation has to know about ``device``, and what the environment asks for."""
    capabilities = device.capabilities
    return Target(
        capabilities.fp16, capabilities.fp64, capabilities.exact_division, wants_checks(),
        f"{device.uri} ({capabilities.name})",
    )  # fmt: skip


def wants_checks() -> bool:
    """Whether HALGPU_CHECKED asks for kernels that check their accesses; InvalidArgument for other than 0 and 1."""
    return switch(None, "HALGPU_CHECKED", False)
