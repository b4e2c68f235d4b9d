"""The kernel formats that halgpu knows, each imported when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from halgpu import errors
from halgpu.errors import nearest
from halgpu.executables.base import Builds

if TYPE_CHECKING:
    from halgpu.devices.base import Device
    from halgpu.executables.base import Executable, Loader


def _vulkan_spirv() -> Loader:
    from halgpu.executables.vulkan_spirv.loader import VulkanSpirvLoader

    return VulkanSpirvLoader()


def _cuda_ptx() -> Loader:
    from halgpu.executables.cuda_ptx import CudaPtxLoader

    return CudaPtxLoader()


def _opencl_c() -> Loader:
    from halgpu.executables import opencl_c

    return opencl_c.loader()


def _cuda_c() -> Loader:
    from halgpu.executables import cuda_c

    return cuda_c.loader()


def _vmvx_bytecode() -> Loader:
    from halgpu.executables.vmvx_bytecode import VmvxBytecodeLoader

    return VmvxBytecodeLoader()


_GETTERS: Final[dict[str, Callable[[], Loader]]] = {
    "vulkan-spirv-fb": _vulkan_spirv,
    "cuda-nvptx-fb": _cuda_ptx,
    "opencl-c": _opencl_c,
    "cuda-c": _cuda_c,
    "vmvx-bytecode-fb": _vmvx_bytecode,
}
_TARGETS: Final = {
    "vulkan-spirv-fb": "vulkan",
    "cuda-nvptx-fb": "cuda",
    "vmvx-bytecode-fb": "local --iree-hal-local-target-device-backends=vmvx",
}
"""What --iree-hal-target-device= of iree-compile has to be for a format; the others are written by hand."""
_loaders: dict[str, Loader] = {}


def formats() -> tuple[str, ...]:
    """Names of all formats, whatever they run on."""
    return tuple(_GETTERS)


def get(format: str) -> Loader:
    """Return the loader of a format; raises NotFound naming the formats there are and the nearest."""
    loader = _loaders.get(format)
    if loader is None:
        getter = _GETTERS.get(format)
        if getter is None:
            raise errors.NotFound(
                f"no kernel format '{format}'{nearest(format, _GETTERS)}; there are: {', '.join(_GETTERS)}"
            )
        loader = _loaders[format] = getter()
    return loader


def loaders_for(device: Device) -> tuple[Loader, ...]:
    """Return the loaders of the formats that run on ``device``."""
    return tuple(loader for loader in map(get, _GETTERS) if loader.query_support(device))


def query_support(device: Device, format: str) -> bool:
    """Whether executables of ``format`` run on ``device``; an unknown format does not."""
    return format in _GETTERS and get(format).query_support(device)


def remedy(device: Device) -> str:
    """What ``device`` runs and how to get a program for it, as the end of a message about one that it does not run."""
    supported = [loader.format for loader in loaders_for(device)]
    other = ""
    if device.capabilities.kind in ("host", "null"):
        other = ", or use --device=opencl (in Python, device='opencl')"
    return f"{device.uri} runs {', '.join(supported)}; compile with {compiler_flag(supported)}{other}"


def compiler_flag(formats: Sequence[str]) -> str:
    """The flag of iree-compile that makes kernels of the first of ``formats`` that it knows."""
    compiled = [format for format in formats if format in _TARGETS]
    return f"--iree-hal-target-device={_TARGETS[compiled[0]]}"


def load(
    device: Device,
    format: str,
    data: memoryview,
    constants: tuple[int, ...] = (),
    builds: Builds | None = None,
) -> Executable:
    """Load an executable of ``format`` on ``device``. Its kernels are built with ``builds``, if given, else now.

    Raises Incompatible when the format does not run there, saying which do, and what the loader raises.
    """
    if not query_support(device, format):
        raise errors.Incompatible(
            f"executables of format '{format}' do not run on {device.uri}: {remedy(device)}"
        )
    together = builds if builds is not None else Builds(device)
    executable = get(format).load(device, data, constants, together)
    if builds is None:
        together.finish()
    return executable
