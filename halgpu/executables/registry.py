"""The kernel formats that halgpu knows, each imported when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from halgpu import errors
from halgpu.errors import nearest
from halgpu.executables.base import Builds
from halgpu.executables.native import host

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


def _embedded_elf(machine: str) -> Loader:
    from halgpu.executables.embedded_elf import ElfLoader

    return ElfLoader(machine)


def _system_elf(machine: str) -> Loader:
    from halgpu.executables import system_elf

    return system_elf.loader(machine)


_GETTERS: Final[dict[str, Callable[[], Loader]]] = {
    "vulkan-spirv-fb": _vulkan_spirv,
    "cuda-nvptx-fb": _cuda_ptx,
    "embedded-elf-x86_64": lambda: _embedded_elf("x86_64"),
    "embedded-elf-arm_64": lambda: _embedded_elf("arm_64"),
    "system-elf-x86_64": lambda: _system_elf("x86_64"),
    "system-elf-arm_64": lambda: _system_elf("arm_64"),
    "opencl-c": _opencl_c,
    "cuda-c": _cuda_c,
    "vmvx-bytecode-fb": _vmvx_bytecode,
}
_LLVM_CPU: Final = "--target=llvm-cpu"
_TARGETS: Final = {
    "vulkan-spirv-fb": "--target=vulkan",
    "cuda-nvptx-fb": "--device=cuda",
    "embedded-elf-x86_64": _LLVM_CPU,
    "embedded-elf-arm_64": _LLVM_CPU,
    "vmvx-bytecode-fb": "--target=vmvx",
}
"""How ``halgpu compile`` makes kernels of a format; the others are written by hand."""
_NATIVE: Final = ("embedded-elf-", "system-elf-")
"""How formats of native code begin: code that runs in this process, with all that the process may do."""
_HAND_WRITTEN: Final = frozenset(("opencl-c", "cuda-c"))
"""Formats that no flag of a compiler makes."""
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


def loaders_for(device: Device, native: bool | None = None) -> tuple[Loader, ...]:
    """Return the loaders of the formats that run on ``device``; ``native`` as for :func:`query_support`."""
    return tuple(get(format) for format in _GETTERS if query_support(device, format, native))


def query_support(device: Device, format: str, native: bool | None = None) -> bool:
    """Whether executables of ``format`` run on ``device``; an unknown format does not.

    ``native`` false refuses native code; None asks the environment variable HALGPU_NATIVE.
    """
    if format not in _GETTERS or (format.startswith(_NATIVE) and host.refused(native)):
        return False
    return get(format).query_support(device)


def remedy(device: Device, offered: Sequence[str] = (), native: bool | None = None) -> str:
    """What ``device`` runs and how to get a program for it, as the end of a message about one that it does not run.

    ``offered`` are the formats that the program has.
    """
    reasons = list(dict.fromkeys(filter(None, (_obstacle(format, native) for format in offered))))
    supported = [loader.format for loader in loaders_for(device, native)]
    ways = []
    if not offered or not _HAND_WRITTEN.issuperset(offered):
        ways.append(f"compile with '{compile_command(supported)}'")
    elsewhere = not offered or any(not format.startswith(_NATIVE) for format in offered)
    if elsewhere and device.capabilities.kind in ("host", "null"):
        ways.append("use --device=opencl (in Python, device='opencl')")
    runs = f"{device.uri} runs {', '.join(supported)}"
    return "; ".join([*reasons, runs, *filter(None, [", or ".join(ways)])])


def _obstacle(format: str, native: bool | None) -> str:
    """Why native code does not run here; empty for other formats and for code that does."""
    if not format.startswith(_NATIVE):
        return ""
    kind, _, machine = format.rpartition("-")
    return host.refused(native) or host.obstacle(kind, machine)


def compile_command(formats: Sequence[str]) -> str:
    """The command that makes kernels of the first of ``formats`` that are not written by hand."""
    compiled = [format for format in formats if format in _TARGETS]
    return f"halgpu compile {_TARGETS[compiled[0]]}"


def load(
    device: Device,
    format: str,
    data: memoryview,
    constants: tuple[int, ...] = (),
    builds: Builds | None = None,
    native: bool | None = None,
) -> Executable:
    """Load an executable of ``format`` on ``device``. Its kernels are built with ``builds``, if given, else now.

    Raises Incompatible when the format does not run there, saying which do, and what the loader raises. ``native`` as
    for :func:`query_support`.
    """
    if not query_support(device, format, native):
        raise errors.Incompatible(
            f"executables of format '{format}' do not run on {device.uri}: {remedy(device, [format], native)}"
        )
    together = builds if builds is not None else Builds(device)
    executable = get(format).load(device, data, constants, together)
    if builds is None:
        together.finish()
    return executable
