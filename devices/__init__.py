"""Devices: memory, buffers and kernels, whatever the hardware. Knows nothing of the virtual machine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halgpu.devices.base import (
        Allocator,
        Binding,
        BindingLayout,
        Buffer,
        BufferUsage,
        Capabilities,
        Device,
        DeviceInfo,
        Kernel,
        KernelLayout,
        Mapping,
        Memory,
        MemoryAccess,
        MemoryType,
        Program,
        Statistics,
    )
    from halgpu.devices.registry import list_devices, open_device

__all__ = [
    "Allocator", "Binding", "BindingLayout", "Buffer", "BufferUsage", "Capabilities", "Device", "DeviceInfo",
    "Kernel", "KernelLayout", "Mapping", "Memory", "MemoryAccess", "MemoryType", "Program", "Statistics",
    "list_devices", "open_device",
]  # fmt: skip

_IN_REGISTRY = frozenset({"list_devices", "open_device"})


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module("halgpu.devices.registry" if name in _IN_REGISTRY else "halgpu.devices.base")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
