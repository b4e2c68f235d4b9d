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
        half=capabilities.fp16,
        double=capabilities.fp64,
        # A check reports the work-item that the device runs: loops over several of them would hide it.
        cpu=capabilities.kind == "cpu" and not wants_checks(),
        exact_division=capabilities.exact_division,
        checked=wants_checks(),
        device=f"{device.uri} ({capabilities.name})",
    )


def wants_checks() -> bool:
    """Whether HALGPU_CHECKED asks for kernels that check their accesses; InvalidArgument for other than 0 and 1."""
    return switch(None, "HALGPU_CHECKED", False)
