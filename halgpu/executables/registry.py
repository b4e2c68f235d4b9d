"""The kernel formats that halgpu knows, each imported when it is first asked for."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from halgpu import errors

if TYPE_CHECKING:
    from halgpu.devices.base import Device
    from halgpu.executables.base import Executable, Loader


def _vulkan_spirv() -> Loader:
    from halgpu.executables.vulkan_spirv.loader import VulkanSpirvLoader

    return VulkanSpirvLoader()


_GETTERS: Final[dict[str, Callable[[], Loader]]] = {"vulkan-spirv-fb": _vulkan_spirv}
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
            near = difflib.get_close_matches(format, _GETTERS, 1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise errors.NotFound(f"no kernel format {format!r}{hint}; there are: {', '.join(_GETTERS)}")
        loader = _loaders[format] = getter()
    return loader


def loaders_for(device: Device) -> tuple[Loader, ...]:
    """Return the loaders of the formats that run on ``device``."""
    return tuple(loader for loader in map(get, _GETTERS) if loader.query_support(device))


def query_support(device: Device, format: str) -> bool:
    """Whether executables of ``format`` run on ``device``; an unknown format does not."""
    return format in _GETTERS and get(format).query_support(device)


def load(device: Device, format: str, data: memoryview, constants: tuple[int, ...] = ()) -> Executable:
    """Load an executable of ``format`` on ``device``.

    Raises Incompatible when the format does not run there, saying which do, and what the loader raises.
    """
    if not query_support(device, format):
        supported = ", ".join(loader.format for loader in loaders_for(device)) or "none"
        raise errors.Incompatible(
            f"executables of format {format!r} do not run on {device.uri}; supported there: {supported}"
        )
    return get(format).load(device, data, constants)
