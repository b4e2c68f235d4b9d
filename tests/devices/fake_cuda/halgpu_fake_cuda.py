"""A device plugin: the scheme ``fake-cuda``, halgpu's CUDA backend on a fake of CuPy.

With this folder on sys.path (or PYTHONPATH) the package beside this file registers it, as any plugin would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import fake_cupy

from halgpu.devices import Device, DeviceInfo, KernelLayout, Program, cuda
from halgpu.devices.base import Kernel
from halgpu.devices.cuda_programs import CudaKernel
from halgpu.devices.memory import Memory
from halgpu.devices.sources import Kernels, Sources

OPTIONS: dict[str, tuple[str, ...]] = {}


class FakeCudaKernel(CudaKernel):
    """Tells the fake how much is bound, for Python functions that look at all of it."""

    def launch(
        self, workgroups: tuple[int, int, int], constants: tuple[int, ...], memories: list[Memory],
        offsets: list[int], lengths: list[int],
    ) -> Any:  # fmt: skip
        self._device.cuda.runtime._gpus.lengths = lengths
        return super().launch(workgroups, constants, memories, offsets, lengths)


class FakeCudaDevice(cuda.CudaDevice):
    """Runs a program's ``callables`` where a GPU would run its kernels."""

    @property
    def functions(self) -> dict[str, Any]:
        """What kernels compute, by name."""
        found: dict[str, Any] = self.cuda.runtime._gpus.functions
        return found

    def load_kernels(
        self, source: str | Sources, layouts: Sequence[KernelLayout], *, options: Sequence[str] = ()
    ) -> Kernels:
        if isinstance(source, Sources):
            self.functions.update(source.by_language.get("python", {}))
        return super().load_kernels(source, layouts, options=options)

    def build_kernels(self, program: Program) -> tuple[Kernel, ...]:
        for layout, function in zip(program.layouts, program.callables, strict=False):
            self.functions[layout.name] = function
        kernels = super().build_kernels(program)
        for kernel in kernels:
            kernel.__class__ = FakeCudaKernel
        return kernels


def open_device(uri: str, index: int, options: Mapping[str, str]) -> Device:
    return FakeCudaDevice(uri, fake_cuda(), index)


def list_devices() -> list[DeviceInfo]:
    return cuda.list_with(fake_cuda(), "fake-cuda")


def fake_cuda(gpus: fake_cupy.Gpus | None = None) -> cuda.Cuda:
    """The fake, as load_cuda returns CuPy: of some GPUs, else those of the process."""
    gpus = gpus or fake_cupy.GPUS
    return cuda.Cuda(gpus.runtime, gpus.driver, lambda: gpus.nvrtc, "0.fake")
