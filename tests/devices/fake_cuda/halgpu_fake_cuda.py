"""A device plugin: the scheme ``fake-cuda``, halgpu's CUDA backend on a fake of CuPy.

With this folder on sys.path (or PYTHONPATH) the package beside this file registers it, as any plugin would.
"""

from __future__ import annotations

from collections.abc import Mapping

import fake_cupy

from halgpu.devices import Device, DeviceInfo, Program, cuda
from halgpu.devices.base import Kernel

OPTIONS: dict[str, tuple[str, ...]] = {}


class FakeCudaDevice(cuda.CudaDevice):
    """Runs a program's ``callables`` where a GPU would run its kernels."""

    def build_kernels(self, program: Program) -> tuple[Kernel, ...]:
        for layout, function in zip(program.layouts, program.callables, strict=False):
            fake_cupy.functions[layout.name] = function
        return super().build_kernels(program)


def open_device(uri: str, index: int, options: Mapping[str, str]) -> Device:
    return FakeCudaDevice(uri, fake_cuda(), index)


def list_devices() -> list[DeviceInfo]:
    return cuda.list_with(fake_cuda(), "fake-cuda")


def fake_cuda(gpus: fake_cupy.Gpus | None = None) -> cuda.Cuda:
    """The fake, as load_cuda returns CuPy: of some GPUs, else those of the process."""
    gpus = gpus or fake_cupy.GPUS
    return cuda.Cuda(gpus.runtime, gpus.driver, lambda: gpus.nvrtc, "0.fake")
