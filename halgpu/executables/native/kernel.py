"""One kernel of an executable library as a function on the host's bytes (devices/host_kernels.py)."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from halgpu import errors
from halgpu.devices.host_kernels import HostFunctionKernel
from halgpu.devices.layout import BindingLayout, KernelLayout
from halgpu.executables.native import abi, workgroups
from halgpu.executables.native.aligned import ALIGNMENT, Copy, copies
from halgpu.executables.native.image import address_of, private_pages

if TYPE_CHECKING:
    from halgpu.devices.base import Device
    from halgpu.executables.native.library import Export, Library

GRID_LIMITS: Final = (2**32 - 1, 2**32 - 1, 2**16 - 1)
"""Workgroup counts are of 32, 32 and 16 bits."""
MOST_WORKGROUPS: Final = 2**63 - 1
WORTH_A_THREAD: Final = 50_000
"""Nanoseconds of work; to wake a thread takes about as long."""


def native_kernel(device: Device, library: Library, export: Export, machine: str) -> HostFunctionKernel:
    """A kernel that any device runs on the host's bytes of its buffers.

    Nothing tells which bindings it writes, so that all may be written.
    """
    layout = KernelLayout(
        export.name, export.constants, [BindingLayout("readwrite")] * export.bindings, export.workgroup_size
    )
    function = NativeFunction(library, export, machine)
    return HostFunctionKernel(
        device, layout, function, knows_writes=False, workgroup_limits=GRID_LIMITS, alignment=ALIGNMENT
    )


class NativeFunction:
    """Calls the code of a kernel for each workgroup of a dispatch, on one or more threads.

    One dispatch at a time: its caller holds the device's lock.
    """

    def __init__(self, library: Library, export: Export, machine: str) -> None:
        self._library = library  # keeps the code in memory
        self._export = export
        self._machine = machine
        self._constants = (ctypes.c_uint32 * max(export.constants, 1))()
        self._addresses: Any = (ctypes.c_void_p * max(export.bindings, 1))()
        self._lengths = (ctypes.c_size_t * max(export.bindings, 1))()
        self._next = ctypes.c_uint64()
        self._state = self._dispatch_state()
        self._workers: list[_Worker] = []
        self._limit = 1 if export.sequential else workgroups.thread_count()
        self._pace = 0.0
        """Nanoseconds that a workgroup took last time on one thread; 0 while nothing is known."""

    def _dispatch_state(self) -> abi.DispatchState:
        # Sizes of 1 are what IREE's inline loader passes; code that is compiled for another size does not ask.
        return abi.DispatchState(
            1, 1, 1, self._export.constants, binding_count=self._export.bindings,
            constants=ctypes.addressof(self._constants), binding_ptrs=ctypes.addressof(self._addresses),
            binding_lengths=ctypes.addressof(self._lengths),
        )  # fmt: skip

    def __call__(
        self, counts: tuple[int, int, int], constants: Sequence[int], views: Sequence[memoryview]
    ) -> None:
        total = math.prod(counts)
        if total > MOST_WORKGROUPS:
            raise errors.OutOfRange(
                f"kernel '{self._export.name}': {total} workgroups are more than {MOST_WORKGROUPS}"
            )
        self._constants[: len(constants)] = list(constants)
        moved = self._bind(views)
        jobs = [worker.job for worker in self._prepare(counts, total)]
        start = perf_counter_ns()
        failed = workgroups.run(self._machine, jobs)
        if failed:
            raise self._failure(counts, *min(failed))
        for copy in moved:
            copy.back()
        self._pace = (perf_counter_ns() - start) * len(jobs) / total

    def _bind(self, views: Sequence[memoryview]) -> list[Copy]:
        """Take the addresses of the bindings; returns the copies that stand for them."""
        addresses = [address(view) for view in views]
        self._lengths[: len(views)] = [view.nbytes for view in views]
        if not any(start % ALIGNMENT for start in addresses):
            self._addresses[: len(views)] = addresses
            return []
        moved = copies(self._export.name, views, addresses)
        self._addresses[: len(views)] = [
            start if copy is None else address(copy.bytes)
            for start, copy in zip(addresses, moved, strict=True)
        ]
        return list({id(copy): copy for copy in moved if copy is not None}.values())

    def _prepare(self, counts: tuple[int, int, int], total: int) -> list[_Worker]:
        threads = self._threads(total)
        state = self._state
        state.workgroup_count_x, state.workgroup_count_y, state.workgroup_count_z = counts
        state.max_concurrency = min(threads, 255)
        self._next.value = 0
        while len(self._workers) < threads:
            self._workers.append(self._worker())
        for worker in self._workers[:threads]:
            worker.job.end = total
            worker.job.count_x, worker.job.count_y, _ = counts
        return self._workers[:threads]

    def _threads(self, total: int) -> int:
        worth = total if not self._pace else int(total * self._pace) // WORTH_A_THREAD
        return max(1, min(self._limit, total, worth))

    def _worker(self) -> _Worker:
        return _Worker(
            self._export.local_memory,
            function=self._export.address,
            environment=ctypes.addressof(self._library.environment),
            dispatch_state=ctypes.addressof(self._state),
            next=ctypes.addressof(self._next),
        )

    def _failure(self, counts: tuple[int, int, int], workgroup: int, result: int) -> errors.Internal:
        rest, x = divmod(workgroup, counts[0])
        z, y = divmod(rest, counts[1])
        return errors.Internal(
            f"kernel '{self._export.name}' failed in workgroup ({x}, {y}, {z}) of {counts}: its code returned {result}"
        )


class _Worker:
    """What one thread needs of its own."""

    def __init__(self, local_memory: int, **job: int) -> None:
        self._memory: mmap.mmap | None = None
        self._state = abi.WorkgroupState()
        if local_memory:
            self._memory = private_pages(local_memory)
            self._state.local_memory = address_of(self._memory)
            self._state.local_memory_size = local_memory
        self.job = abi.Job(workgroup_state=ctypes.addressof(self._state), **job)


def address(view: Any) -> int:
    """Where the bytes of a view are; for an empty one, an address at which there are none of anybody's."""
    if not view.nbytes:
        return ALIGNMENT
    if view.readonly:
        found: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
        return found
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


__all__ = ["NativeFunction", "address", "native_kernel"]
