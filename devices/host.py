"""The ``host`` device: numpy memory and kernels that are Python functions. Its results are the reference."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from halgpu.devices.base import Capabilities, Device, DeviceInfo, Kernel, KernelLayout, Program
from halgpu.devices.constants import Passed
from halgpu.devices.hostmemory import POOLED, Pages, fill, pages, total
from halgpu.devices.memory import Block, Memory
from halgpu.errors import InvalidArgument, NotFound, ResourceExhausted

LANGUAGE = "python"
UNLIMITED = 2**31 - 1


def host_capabilities(kind: Literal["host", "null"], languages: frozenset[str]) -> Capabilities:
    """Return what a device that lies in the machine's own memory can do."""
    return Capabilities(
        name=platform.processor() or platform.machine(),
        vendor="halgpu",
        driver=f"numpy {np.__version__}",
        kind=kind,
        unified_memory=True,
        fp16=True,
        fp64=True,
        int64_atomics=True,
        max_workgroup_invocations=UNLIMITED,
        max_workgroup_size=(UNLIMITED,) * 3,
        max_workgroup_count=(UNLIMITED,) * 3,
        local_memory=UNLIMITED,
        max_allocation=total(),
        max_parameter_bytes=UNLIMITED,
        languages=languages,
    )


class HostMemory(Memory):
    """Page-aligned host bytes. Device work on them is done at once."""

    __slots__ = ("_pages", "bytes")

    def __init__(self, byte_length: int, capacity: int = 0, block: HostBlock | None = None) -> None:
        super().__init__(byte_length)
        self.capacity = capacity or byte_length
        try:
            self._pages = pages(self.capacity) if block is None else block.pages
        except MemoryError as error:
            raise ResourceExhausted(f"the host has no {byte_length} bytes left for a buffer") from error
        self.bytes = self._pages.view(byte_length)

    @property
    def handle(self) -> memoryview:
        """The bytes themselves."""
        return self.bytes

    def acquire_host(self, *, read: bool, write: bool) -> tuple[memoryview, int]:
        return self.bytes, 0

    def release_host(self, *, dirty: bool) -> int:
        return 0

    def fill(self, offset: int, length: int, pattern: bytes) -> None:
        fill(self.bytes[offset : offset + length], pattern)

    def copy_from(self, source: Memory, source_offset: int, offset: int, length: int) -> None:
        self.bytes[offset : offset + length] = source.handle[source_offset : source_offset + length]

    def free(self) -> None:
        # A view handed out keeps the bytes; nothing is given back by force.
        self.bytes = memoryview(b"")

    def recycle(self) -> HostBlock | None:
        self.free()
        return None if self._pages.viewed else HostBlock(self._pages)


class HostBlock:
    """Host pages between two allocations."""

    __slots__ = ("pages",)

    def __init__(self, pages: Pages) -> None:
        self.pages = pages

    def ready(self) -> bool:
        return True

    def drop(self) -> None:
        pass


class HostKernel(Kernel):
    """A Python function called once a dispatch, at once.

    It is called as ``function(workgroups, constants, bindings)``: three counts, unsigned 32-bit ints or, where
    the layout has types, values of those, and one writable ``B`` memoryview of the bound range a binding. What it
    raises comes out of ``dispatch``.
    """

    def __init__(self, device: Device, layout: KernelLayout, function: Callable[..., None]) -> None:
        super().__init__(device, layout)
        self._function = function
        self._typed_values = None if layout.types is None else Passed(layout.types, self.language).values

    def launch(
        self, workgroups: tuple[int, int, int], constants: tuple[int, ...], memories: list[Memory],
        offsets: list[int], lengths: list[int],
    ) -> None:  # fmt: skip
        ranges = zip(memories, offsets, lengths, strict=True)
        views = [memory.handle[offset : offset + length] for memory, offset, length in ranges]
        self._function(
            workgroups, constants if self._typed_values is None else self._typed_values(constants), views
        )


class HostDevice(Device):
    """The machine's own memory. Takes programs in language ``"python"`` (:attr:`Program.callables`)."""

    def __init__(self, uri: str = "host:0") -> None:
        super().__init__(uri, host_capabilities("host", frozenset({LANGUAGE})))
        self.pool.minimum = POOLED

    def allocate_memory(self, byte_length: int) -> Memory:
        return HostMemory(byte_length)

    def pooled_memory(self, byte_length: int, capacity: int, block: Block | None) -> Memory:
        assert block is None or isinstance(block, HostBlock)
        return HostMemory(byte_length, capacity, block)

    def build_kernels(self, program: Program) -> tuple[Kernel, ...]:
        if len(program.callables) != len(program.layouts):
            raise InvalidArgument(
                f"a program in {LANGUAGE!r} has a callable for each layout: "
                f"expected {len(program.layouts)}, found {len(program.callables)}"
            )
        return tuple(map(HostKernel, [self] * len(program.layouts), program.layouts, program.callables))

    def finish(self) -> None:
        """Nothing is ever left to wait for."""


OPTIONS: dict[str, tuple[str, ...]] = {}


def open_device(uri: str, index: int, options: Mapping[str, str]) -> Device:
    """Open the host device; there is one."""
    require_only(uri, index)
    return HostDevice(uri)


def require_only(uri: str, index: int) -> None:
    """Raise NotFound unless ``index`` is 0."""
    if index:
        raise NotFound(f"no device {uri!r}: there is one, with index 0")


def list_devices() -> list[DeviceInfo]:
    """Describe the host device."""
    return [DeviceInfo("host:0", f"host memory, numpy {np.__version__}", True)]
