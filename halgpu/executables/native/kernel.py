"""One kernel of an executable library, on the host's bytes of any device (devices/host_kernels.py)."""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Sequence
from ctypes import addressof
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from halgpu import errors
from halgpu.devices.host_kernels import MappedKernel
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


class NativeKernel(MappedKernel):
    """Calls the code of a kernel for each workgroup of a dispatch, on one or more threads.

    Nothing tells which bindings it writes, so that all may be written.
    """

    def __init__(self, device: Device, library: Library, export: Export, machine: str) -> None:
        bindings = [BindingLayout("readwrite")] * export.bindings
        super().__init__(
            device,
            KernelLayout(export.name, export.constants, bindings, export.workgroup_size),
            knows_writes=False,
            workgroup_limits=GRID_LIMITS,
            alignment=ALIGNMENT,
        )
        self._library = library  # keeps the code in memory
        self._export = export
        self._run = workgroups.loop(machine)
        self._constants: Any = (ctypes.c_uint32 * export.constants)()
        self._bindings: Any = (ctypes.c_uint64 * (2 * export.bindings))()
        """All addresses, then all lengths."""
        self._pack = struct.Struct(f"={2 * export.bindings}Q").pack_into
        self._next = ctypes.c_uint64()
        self._state = self._dispatch_state()
        self._workers: list[_Worker] = []
        self._prepared: tuple[tuple[int, int, int], int] = ((0, 0, 0), 0)
        self._limit = 1 if export.sequential else workgroups.thread_count()
        self._pace = 0.0
        """Nanoseconds that a workgroup took last time on one thread; 0 while nothing is known."""

    def _dispatch_state(self) -> abi.DispatchState:
        # Sizes of 1 are what IREE's inline loader passes; code that is compiled for another size does not ask.
        return abi.DispatchState(
            1, 1, 1, self._export.constants, binding_count=self._export.bindings,
            constants=ctypes.addressof(self._constants), binding_ptrs=ctypes.addressof(self._bindings),
            binding_lengths=ctypes.addressof(self._bindings) + 8 * self._export.bindings,
        )  # fmt: skip

    def launch(
        self, workgroups: tuple[int, int, int], constants: tuple[int, ...], memories: list[Any],
        offsets: list[int], lengths: list[int],
    ) -> None:  # fmt: skip
        """Run all workgroups. Raises Internal, naming kernel and workgroup, when one fails."""
        x, y, z = workgroups
        total = x * y * z
        if total > MOST_WORKGROUPS:
            raise errors.OutOfRange(
                f"kernel '{self._export.name}': {total} workgroups are more than {MOST_WORKGROUPS}"
            )
        if constants:
            self._constants[:] = constants
        addresses = places(memories, offsets, lengths)
        together = 0
        for place in addresses:
            together |= place
        moved: Sequence[Copy] = ()
        if together % ALIGNMENT:
            moved = self._move(memories, offsets, lengths, addresses)
        self._pack(self._bindings, 0, *addresses, *lengths)
        self._execute(workgroups, total)
        for copy in moved:
            copy.back()

    def _move(
        self, views: Sequence[Any], offsets: Sequence[int], lengths: Sequence[int], addresses: list[int]
    ) -> Sequence[Copy]:
        """Put aligned copies in place of the bindings that do not begin where the code expects them to."""
        ranges = [
            view[start : start + length] for view, start, length in zip(views, offsets, lengths, strict=True)
        ]
        moved = copies(self._export.name, ranges, addresses)
        for index, copy in enumerate(moved):
            if copy is not None:
                addresses[index] = address(copy.bytes)
        return list({id(copy): copy for copy in moved if copy is not None}.values())

    def _execute(self, counts: tuple[int, int, int], total: int) -> None:
        threads = self._threads(total)
        if self._prepared != (counts, threads):
            self._prepare(counts, total, threads)
        self._next.value = 0
        start = perf_counter_ns()
        if threads == 1:
            job = self._workers[0].job
            result = self._run(ctypes.addressof(job))
            failed = [(job.failed, result)] if result else []
        else:
            failed = workgroups.run(self._run, [worker.job for worker in self._workers[:threads]])
        if failed:
            raise self._failure(counts, *min(failed))
        self._pace = (perf_counter_ns() - start) * threads / total

    def _threads(self, total: int) -> int:
        if self._limit == 1:
            return 1
        worth = int(total * self._pace) // WORTH_A_THREAD if self._pace else total
        return max(1, min(self._limit, total, worth))

    def _prepare(self, counts: tuple[int, int, int], total: int, threads: int) -> None:
        self._prepared = ((0, 0, 0), 0)  # should an interrupt leave it half done
        state = self._state
        state.workgroup_count_x, state.workgroup_count_y, state.workgroup_count_z = counts
        state.max_concurrency = min(threads, 255)
        while len(self._workers) < threads:
            self._workers.append(self._worker())
        for worker in self._workers[:threads]:
            worker.job.end = total
            worker.job.count_x, worker.job.count_y, _ = counts
        self._prepared = (counts, threads)

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


from_buffer: Final = ctypes.c_char.from_buffer

NOWHERE: Final = ALIGNMENT
"""The address of bindings of no bytes: aligned, not null, and nobody's."""


def places(views: Sequence[Any], offsets: Sequence[int], lengths: Sequence[int]) -> list[int]:
    """Where bindings begin, each ``offset`` bytes into a view."""
    if 0 not in lengths:
        try:
            return [addressof(from_buffer(view)) + start for view, start in zip(views, offsets, strict=True)]
        except TypeError:  # of a view that is only to be read
            pass
    return [
        address(view) + start if length else NOWHERE
        for view, start, length in zip(views, offsets, lengths, strict=True)
    ]


def address(view: Any) -> int:
    """Where the bytes of a view, which has some, are."""
    if view.readonly:
        found: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
        return found
    return addressof(from_buffer(view))
