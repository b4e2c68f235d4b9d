"""The format `vulkan-spirv-fb`: SPIR-V for Vulkan, run as OpenCL C."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from halgpu import disk_cache
from halgpu.devices.base import switch
from halgpu.executables import translations
from halgpu.executables.base import Builds, Executable
from halgpu.executables.translations import Translation

from .target import Target

if TYPE_CHECKING:
    from halgpu.devices.base import Device

_HERE = os.path.dirname(os.path.abspath(__file__))


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
        program, names = translated(data, target_of(device), constants)
        executable = Executable(self.format, builds, names)
        builds.add(executable, program)
        return executable


def translated(data: memoryview, target: Target, constants: tuple[int, ...]) -> Translation:
    """The translation of an executable, kept from an earlier one if there was one (translations.py)."""
    if target.checked or not disk_cache.enabled():
        return translate(data, target, constants)
    key = translations.key(_HERE, data, repr(replace(target, device="")), constants)
    found = None if key is None else translations.load(key)
    if found is None:
        found = translate(data, target, constants)
        if key is not None:
            translations.store(key, *found)
    return found


def translate(data: memoryview, target: Target, constants: tuple[int, ...]) -> Translation:
    """Translate an executable now."""
    # Imported only here: the translator takes half as long to import as 30 kernels take to translate.
    from .executable_def import read
    from .translate import translate

    definition = read(data.cast("B") if data.format != "B" else data)
    program = translate(definition, target, constants)
    return Translation(program, tuple(pipeline.name for pipeline in definition.pipelines))


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
