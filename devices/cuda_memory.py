"""Memory of a CUDA device, with its mirror on the host. Part of the ``cuda`` backend."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from halgpu import errors
from halgpu.devices.cuda_queue import Mark, PinnedBytes, Queue
from halgpu.devices.hostmemory import Pages, pages
from halgpu.devices.memory import Memory

if TYPE_CHECKING:
    from halgpu.devices.cuda import CudaDevice

# Smaller mirrors are not worth pinning: the driver stages transfers up to this size through pinned memory of its own
# (CUDA Runtime API, "API synchronization behavior").
PINNED_BYTES: Final = 64 << 10
PATTERN_BYTES: Final = 4096


class CudaMemory(Memory):
    """Memory of the device's own, with a mirror on the host made on first need and copied to and fro."""

    __slots__ = ("_mirror", "_upload", "_view", "address", "device", "foreign", "queue", "used")

    mirrored = True

    def __init__(
        self, device: CudaDevice, byte_length: int, capacity: int = 0, block: CudaBlock | None = None
    ) -> None:
        super().__init__(byte_length)
        self.device = device
        self.queue: Queue = device.queue
        self.capacity = capacity or byte_length
        self.foreign: weakref.ref[Any] | None = None
        """Of what is held while streams that the default stream does not wait for may use it (cuda_sharing.py)."""
        self._view: memoryview | None = None
        if block is None:
            self.address = self._allocated()
            """Of the first byte, on the device."""
            self._mirror: Pages | None = None
            self._upload: Mark | None = None
            self.used = 0
            """Value of ``queue.enqueued`` after the last work on it."""
        else:
            self.address, self._mirror, self._upload = block.address, block.mirror, block.upload
            self.used = block.used
            self.foreign = block.foreign
        if self.foreign is not None:
            self.end_foreign_use()

    def _allocated(self) -> int:
        try:
            with self.queue.current():
                return self.queue.allocate(self.capacity)
        except self.device.cuda.errors as error:
            raise self.device.error(f"allocate a buffer of {self.byte_length} bytes", error) from error

    @property
    def handle(self) -> int:
        return self.address

    def end_foreign_use(self) -> None:
        """Wait for all streams, of which one may still use the memory, once nobody holds it any more."""
        if self.foreign is None or self.foreign() is not None:
            return  # what is held is never written
        self.foreign = None
        try:
            with self.queue.current():
                self.device.cuda.runtime.deviceSynchronize()
        except self.device.cuda.errors as error:
            raise self.device.error("finish the work of other streams", error) from error

    # -- the host --------------------------------------------------------------------------------------

    def acquire_host(self, *, read: bool, write: bool) -> tuple[memoryview, int]:
        if self._mirror is None:
            self._mirror = self._new_mirror()
        if self._view is None:
            self._view = self._mirror.view(self.byte_length)
        if self._upload is not None and (read or write):
            self._wait_for_upload(self._upload)
        if read:
            self._download(self._mirror)
        return self._view, self.byte_length if read else 0

    def _new_mirror(self) -> Pages:
        queue = self.queue
        if self.capacity >= PINNED_BYTES:
            try:
                with queue.current():
                    return Pages(np.asarray(PinnedBytes(queue, self.capacity)))
            except queue.cuda.errors:
                pass  # memory that cannot be pinned is slower, but as good
        try:
            return pages(self.capacity)
        except MemoryError as error:
            raise errors.ResourceExhausted(
                f"the host has no {self.capacity} bytes left for a buffer of {self.device.uri}"
            ) from error

    def _wait_for_upload(self, upload: Mark) -> None:
        try:
            with self.queue.current():
                upload.wait()
        except self.device.cuda.errors as error:
            raise self.device.error(f"write a buffer of {self.byte_length} bytes", error) from error
        self._upload = None

    def _download(self, mirror: Pages) -> None:
        doing = f"read a buffer of {self.byte_length} bytes"
        runtime = self.device.cuda.runtime
        with self.queue.current():
            self._transfer(
                "download", doing, _address_of(mirror.storage), self.address, runtime.memcpyDeviceToHost
            )
            self.queue.synchronize(doing)

    def release_host(self, *, dirty: bool) -> int:
        if not dirty:
            return 0
        assert self._mirror is not None
        source = _address_of(self._mirror.storage)
        with self.queue.current():
            # Not waited for here, but before the host writes to the mirror again.
            self._transfer(
                "upload", f"write a buffer of {self.byte_length} bytes", self.address, source,
                self.device.cuda.runtime.memcpyHostToDevice,
            )  # fmt: skip
            self._upload = self.queue.mark()
        return self.byte_length

    def _transfer(self, kind: str, doing: str, target: int, source: int, direction: int) -> None:
        queue = self.queue
        try:
            start = self._start()
            queue.cuda.runtime.memcpyAsync(target, source, self.byte_length, direction, queue.stream)
            self._enqueued(kind, self.byte_length, start)
        except queue.cuda.errors as error:
            raise self.device.error(doing, error) from error

    # -- the device ------------------------------------------------------------------------------------

    def _start(self) -> int | None:
        """Before a command on this memory."""
        if self.foreign is not None:
            self.end_foreign_use()
        return self.queue.start()

    def _enqueued(self, kind: str, byte_length: int, start: int | None) -> None:
        """After a command on this memory."""
        queue = self.queue
        queue.enqueued += 1
        self.used = queue.enqueued
        recorder = self.device.counters.recorder
        if start is not None and recorder is not None:
            recorder.note(kind, byte_length, queue.stop(start))

    def fill(self, offset: int, length: int, pattern: bytes) -> None:
        queue = self.queue
        runtime, target = queue.cuda.runtime, self.address + offset
        try:
            with queue.current():
                start = self._start()
                if pattern.count(pattern[0]) == len(pattern):
                    runtime.memsetAsync(target, pattern[0], length, queue.stream)
                else:
                    self._fill(target, length, pattern)
                self._enqueued("fill", length, start)
        except queue.cuda.errors as error:
            raise self.device.error("fill a buffer", error) from error

    def _fill(self, target: int, length: int, pattern: bytes) -> None:
        # CUDA's functions that set 16 and 32 bits are not among those that CuPy has, and none sets 64: the first
        # bytes come from the host, and what is there is copied behind itself until all is full.
        runtime, stream, kept = self.device.cuda.runtime, self.queue.stream, self.queue.kept
        block = kept.get(pattern)
        if block is None:
            block = kept[pattern] = np.frombuffer(pattern * (PATTERN_BYTES // len(pattern)), np.uint8)
        filled = min(length, PATTERN_BYTES)
        runtime.memcpyAsync(target, _address_of(block), filled, runtime.memcpyHostToDevice, stream)
        while filled < length:
            more = min(filled, length - filled)
            runtime.memcpyAsync(target + filled, target, more, runtime.memcpyDeviceToDevice, stream)
            filled += more

    def copy_from(self, source: Memory, source_offset: int, offset: int, length: int) -> None:
        assert isinstance(source, CudaMemory)
        queue = self.queue
        try:
            with queue.current():
                source.used = queue.enqueued + 1
                start = self._start()
                if source is self and abs(source_offset - offset) < length:
                    # cudaMemcpy: "the memory areas may not overlap".
                    between = queue.allocate(length)
                    queue.bury_memory(length, between)
                    self._copy(between, self.address + source_offset, length)
                    self._copy(self.address + offset, between, length)
                else:
                    self._copy(self.address + offset, source.address + source_offset, length)
                self._enqueued("copy", length, start)
        except queue.cuda.errors as error:
            raise self.device.error("copy between buffers", error) from error

    def _copy(self, target: int, source: int, length: int) -> None:
        runtime = self.device.cuda.runtime
        runtime.memcpyAsync(target, source, length, runtime.memcpyDeviceToDevice, self.queue.stream)

    # -- the end ---------------------------------------------------------------------------------------

    def free(self) -> None:
        self._view = None
        CudaBlock(self).drop()
        self._mirror = self._upload = None

    def recycle(self) -> CudaBlock | None:
        self._view = None
        block = CudaBlock(self)
        if block.mirror is not None and block.mirror.viewed:
            # Its bytes stay with whoever looks at them; an upload of them was of the last write.
            block.leave_mirror()
        self._mirror = self._upload = None
        return block


class CudaBlock:
    """Device memory between two allocations, with its mirror.

    The stream is in order, so the device memory could be used again at once; the mirror, only after its upload.
    """

    __slots__ = ("address", "capacity", "foreign", "mirror", "queue", "upload", "used")

    def __init__(self, memory: CudaMemory) -> None:
        self.queue = memory.queue
        self.capacity = memory.capacity
        self.address = memory.address
        self.mirror = memory._mirror
        self.upload = memory._upload
        self.used = memory.used
        self.foreign = memory.foreign

    def ready(self) -> bool:
        return self.upload is None or self.used <= self.queue.done

    def leave_mirror(self) -> None:
        """Keep the mirror only until what was enqueued with it is done."""
        pinned = self.mirror is not None and isinstance(self.mirror.storage.base, PinnedBytes)
        if self.used > self.queue.done and not pinned:  # which buries itself
            keep(self.queue, self.capacity, self.mirror)
        self.upload = self.mirror = None

    def drop(self) -> None:
        self.leave_mirror()
        self.queue.bury_memory(self.capacity, self.address)


def keep(queue: Queue, byte_length: int, thing: Any) -> None:
    """Keep ``thing``, which must not hold ``queue``, until enqueued work is done.

    May run inside a garbage collection.
    """
    queue.bury(byte_length, lambda _: thing, 0)


def _address_of(array: np.ndarray[Any, Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
