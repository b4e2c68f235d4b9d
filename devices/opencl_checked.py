"""OpenCL kernels that are told the lengths of their bindings, and those that check their accesses (checks.py)."""

from __future__ import annotations

from typing import Any

from halgpu.devices import checks
from halgpu.devices.base import KernelLayout
from halgpu.devices.memory import Memory
from halgpu.devices.opencl_programs import OpenCLKernel


def kernel_class(layout: KernelLayout) -> type[OpenCLKernel]:
    """Return the class of kernels with ``layout``."""
    if layout.checks is not None:
        return CheckedKernel
    return MeasuringKernel if layout.lengths else OpenCLKernel


class MeasuringKernel(OpenCLKernel):
    """A kernel whose parameters hold the byte lengths of its bindings behind their offsets."""

    def launch(
        self, workgroups: tuple[int, int, int], constants: tuple[int, ...], memories: list[Memory],
        offsets: list[int], lengths: list[int],
    ) -> Any:  # fmt: skip
        return super().launch(workgroups, constants, memories, [*offsets, *lengths], lengths)


class CheckedKernel(MeasuringKernel):
    """A kernel that reports accesses out of bounds. It is waited for, so that the error comes where it belongs."""

    def launch(
        self, workgroups: tuple[int, int, int], constants: tuple[int, ...], memories: list[Memory],
        offsets: list[int], lengths: list[int],
    ) -> None:  # fmt: skip
        assert self.layout.checks is not None
        report = self.device.allocate_memory(checks.REPORT.size)
        try:
            view, _ = report.acquire_host(read=False, write=True)
            view[:] = bytes(checks.REPORT.size)
            report.release_host(dirty=True)
            super().launch(workgroups, constants, [*memories, report], offsets, lengths)
            view, _ = report.acquire_host(read=True, write=False)
            error = checks.violation(self.layout.checks, view, lengths)
            report.release_host(dirty=False)
        finally:
            report.free()
        if error is not None:
            raise error
