"""The ``null`` device: runs all the plumbing and computes nothing. Takes a program in any language."""

from __future__ import annotations

from collections.abc import Mapping

from halgpu.devices.base import Device, DeviceInfo, Kernel, Program
from halgpu.devices.host import HostBlock, HostMemory, host_capabilities, require_only
from halgpu.devices.hostmemory import POOLED
from halgpu.devices.memory import Block, Memory


class NullKernel(Kernel):
    """A kernel that leaves its bindings as they are."""

    def launch(
        self, workgroups: tuple[int, int, int], constants: tuple[int, ...], memories: list[Memory],
        offsets: list[int], lengths: list[int],
    ) -> None:  # fmt: skip
        pass


class NullDevice(Device):
    """Memory of the host, fills and copies that work, kernels that do nothing: for tests and for timing."""

    def __init__(self, uri: str = "null:0") -> None:
        super().__init__(uri, host_capabilities("null", frozenset()))
        self.pool.minimum = POOLED

    def allocate_memory(self, byte_length: int) -> Memory:
        return HostMemory(byte_length)

    def pooled_memory(self, byte_length: int, capacity: int, block: Block | None) -> Memory:
        assert block is None or isinstance(block, HostBlock)
        return HostMemory(byte_length, capacity, block)

    def build_kernels(self, program: Program) -> tuple[Kernel, ...]:
        return tuple(NullKernel(self, layout) for layout in program.layouts)

    def finish(self) -> None:
        """Nothing is ever left to wait for."""


OPTIONS: dict[str, tuple[str, ...]] = {}


def open_device(uri: str, index: int, options: Mapping[str, str]) -> Device:
    """Open the null device; there is one."""
    require_only(uri, index)
    return NullDevice(uri)


def list_devices() -> list[DeviceInfo]:
    """Describe the null device."""
    return [DeviceInfo("null:0", "computes nothing, for tests", True)]
