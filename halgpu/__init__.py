"""halgpu runs IREE's inline HAL programs on OpenCL devices: GPUs, and CPUs through PoCL.

>>> import halgpu, numpy as np
>>> module = halgpu.load("abs.vmfb", device="opencl")
>>> np.asarray(module.abs(np.array([-2, 3], np.float32)))
array([2., 3.], dtype=float32)

Names are loaded when they are first used (PEP 562): ``import halgpu`` imports no device library and nothing
of the virtual machine.
"""

from __future__ import annotations

import importlib
import os.path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halgpu import errors as errors
    from halgpu.api import Function as Function
    from halgpu.api import Module as Module
    from halgpu.api import load as load
    from halgpu.buffer_view import BufferView as BufferView
    from halgpu.compiler.driver import compile as compile
    from halgpu.default_device import open_device as open_device
    from halgpu.devices.base import Device as Device
    from halgpu.devices.constants import Struct as Struct
    from halgpu.devices.layout import BindingLayout as BindingLayout
    from halgpu.devices.layout import KernelLayout as KernelLayout
    from halgpu.devices.registry import list_devices as list_devices
    from halgpu.devices.sources import kernels as kernels
    from halgpu.errors import Error as Error
    from halgpu.tracing import trace as trace

_HOMES = {
    "BindingLayout": "halgpu.devices.layout",
    "BufferView": "halgpu.buffer_view",
    "Device": "halgpu.devices.base",
    "Error": "halgpu.errors",
    "Function": "halgpu.api",
    "KernelLayout": "halgpu.devices.layout",
    "Module": "halgpu.api",
    "Struct": "halgpu.devices.constants",
    "compile": "halgpu.compiler.driver",
    "kernels": "halgpu.devices.sources",
    "list_devices": "halgpu.devices.registry",
    "load": "halgpu.api",
    "open_device": "halgpu.default_device",
    "trace": "halgpu.tracing",
}
_SUBMODULES = frozenset({"devices", "errors", "vm"})

__all__ = [*sorted(_HOMES), *sorted(_SUBMODULES)]

# In a checkout halgpu.devices and halgpu.vm lie beside this folder, not in it. Python run there finds this
# folder before an installed halgpu, and must find them too.
_CHECKOUT = os.path.dirname(os.path.dirname(__file__))
if os.path.exists(os.path.join(_CHECKOUT, "pyproject.toml")):
    __path__.append(_CHECKOUT)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("halgpu")
    if name in _SUBMODULES:
        return importlib.import_module(f"halgpu.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'halgpu' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
