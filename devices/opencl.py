"""The ``opencl`` devices, through PyOpenCL. OpenCL 1.2 is enough. No other file imports pyopencl.

Options of the URI: ``unified=0`` copies between host and device as a discrete GPU would, ``unified=1`` works
in place; ``cache=1`` keeps built programs in halgpu's cache, ``cache=0`` leaves it to the driver; ``maps=1`` hands
shared memory over by mapping also where that does nothing. Without them the driver decides (quirks.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import numpy as np

from halgpu import errors
from halgpu.devices import driver_folders, pocl_linker
from halgpu.devices.base import Capabilities, Device, DeviceInfo, Kernel, Program
from halgpu.devices.forks import require_same_process
from halgpu.devices.hostmemory import POOLED, Pages, padded, pages
from halgpu.devices.memory import Memory
from halgpu.devices.opencl_builds import build_all
from halgpu.devices.opencl_timer import OpenCLTimer
from halgpu.devices.quirks import Quirks, opencl_quirks

if TYPE_CHECKING:
    import pyopencl as cl

LANGUAGE = "opencl-c"
OPTIONS = {"unified": ("0", "1"), "cache": ("0", "1"), "maps": ("1",)}
HOW_TO_GET_ONE = (
    "install your GPU's OpenCL driver, or run kernels on the CPU: pip install 'halgpu[pocl]' "
    "(in a checkout: pip install 'pyopencl[pocl]')"
)

# Freed memory that enqueued work may still use is kept until the queue was waited for; past either of these
# the next allocation waits. A wait costs some 60 us on PoCL.
MAX_BURIED_BYTES = 64 << 20
MAX_BURIED = 256

# Smaller mirrors are not worth pinning: drivers stage transfers of this size through pinned memory of their
# own (NVIDIA OpenCL Best Practices Guide, 3.1), and pinning costs a mapping.
PINNED_BYTES = 64 << 10


# -- finding devices -----------------------------------------------------------------------------------


def load_pyopencl() -> Any:
    """Return the pyopencl module; Unavailable, with what to install, when it cannot be imported."""
    driver_folders.prepare()
    try:
        import pyopencl
    except Exception as error:  # also what a broken OpenCL loader raises
        raise errors.Unavailable(f"pyopencl cannot be imported ({error}): pip install pyopencl") from error
    return pyopencl


def find_devices(cl: Any) -> list[Any]:
    """Return all pyopencl devices, GPUs first; Unavailable, with what to do, when there is none."""
    require_same_process("OpenCL")
    try:
        found = [device for platform in cl.get_platforms() for device in _devices_of(cl, platform)]
    except cl.Error as error:
        raise errors.Unavailable(f"no OpenCL platform was found: {HOW_TO_GET_ONE}") from error
    if not found:
        raise errors.Unavailable(f"the OpenCL platforms here have no device: {HOW_TO_GET_ONE}")
    return sorted(found, key=lambda device: not device.type & cl.device_type.GPU)


def _devices_of(cl: Any, platform: Any) -> list[Any]:
    try:
        return list(platform.get_devices())
    except cl.Error:  # CL_DEVICE_NOT_FOUND: a driver without hardware
        return []


def open_device(uri: str, index: int, options: Mapping[str, str]) -> Device:
    """Open OpenCL device ``index``; NotFound lists those that exist."""
    cl = load_pyopencl()
    found = find_devices(cl)
    if index >= len(found):
        names = ", ".join(f"opencl:{i} ({device.name.strip()})" for i, device in enumerate(found))
        raise errors.NotFound(f"no device {uri!r}; there are: {names}")
    return OpenCLDevice(uri, found[index], options)


def list_devices() -> list[DeviceInfo]:
    """Describe the OpenCL devices."""
    return [_describe(index, device) for index, device in enumerate(find_devices(load_pyopencl()))]


def _describe(index: int, device: Any) -> DeviceInfo:
    reason = _obstacle(_quirks(device)) or ""
    name = f"{device.name.strip()}, {device.platform.name.strip()}"
    return DeviceInfo(f"opencl:{index}", name, not reason, reason)


def _quirks(device: Any) -> Quirks:
    cpu = bool(device.type & load_pyopencl().device_type.CPU)
    return opencl_quirks(device.platform.name.strip(), device.vendor.strip(), cpu)


def _obstacle(quirks: Quirks) -> str | None:
    """Why a device cannot be used although its driver is there."""
    return pocl_linker.prepare() if quirks.needs_linker else None


# -- errors --------------------------------------------------------------------------------------------

_BY_NAME = {
    "MEM_OBJECT_ALLOCATION_FAILURE": errors.ResourceExhausted,
    "OUT_OF_RESOURCES": errors.ResourceExhausted,
    "OUT_OF_HOST_MEMORY": errors.ResourceExhausted,
    "INVALID_BUFFER_SIZE": errors.ResourceExhausted,
    "MAP_FAILURE": errors.ResourceExhausted,
    "DEVICE_NOT_FOUND": errors.Unavailable,
    "DEVICE_NOT_AVAILABLE": errors.Unavailable,
    "COMPILER_NOT_AVAILABLE": errors.Unavailable,
}


def mapped(cl: Any, uri: str, doing: str, error: Any) -> errors.Error:
    """Return halgpu's error for a pyopencl one; raise it ``from`` that."""
    name = cl.status_code.to_string(error.code, f"status {error.code}")
    kind = _BY_NAME.get(name, errors.Internal)
    return kind(f"{uri} could not {doing}: {error.routine} failed with {name}")


# -- order of work and the end of memory ---------------------------------------------------------------


class Queue:
    """A device's in-order queue, how much of its work is known to be done, and memory waiting for that.

    OpenCL 1.2 5.2.1: bytes given with CL_MEM_USE_HOST_PTR must outlive the device's use of them. A freed
    allocation that enqueued work may still use is therefore buried here until the queue was waited for.
    """

    __slots__ = ("_buried", "_buried_bytes", "_dying", "cl", "done", "enqueued", "native", "uri")

    def __init__(self, cl: Any, uri: str, native: Any) -> None:
        self.cl = cl
        self.uri = uri
        self.native = native
        self.enqueued = 0
        """Number of launches, fills, copies and uploads so far."""
        self.done = 0
        """How many of them are known to have run."""
        self._dying: deque[tuple[int, tuple[Any, ...]]] = deque()
        self._buried: list[tuple[Any, ...]] = []
        self._buried_bytes = 0

    def finish(self) -> None:
        """Wait for all that was enqueued."""
        self.before_waiting()
        try:
            self.native.finish()
        except self.cl.Error as error:
            raise mapped(self.cl, self.uri, "finish its work", error) from error
        self.waited()

    def before_waiting(self) -> None:
        """Note what is buried by now: a blocking command says nothing about what comes while it waits."""
        while self._dying:
            byte_length, things = self._dying.popleft()
            self._buried.append(things)
            self._buried_bytes += byte_length

    def waited(self) -> None:
        """Note that a blocking command returned: the queue is in order, so all before it has run."""
        self.done = self.enqueued
        self._buried.clear()
        self._buried_bytes = 0

    def bury(self, byte_length: int, *things: Any) -> None:
        """Keep things until enqueued work is done; may run inside a garbage collection."""
        self._dying.append((byte_length, things))

    def limit_buried(self) -> None:
        """Wait for the queue when too much freed memory hangs on it."""
        self.before_waiting()
        if self._buried_bytes > MAX_BURIED_BYTES or len(self._buried) > MAX_BURIED:
            self.finish()


# -- memory --------------------------------------------------------------------------------------------


class OpenCLMemory(Memory):
    """What the two kinds of OpenCL memory share: fills, copies, and when the device used them last."""

    __slots__ = ("_native", "device", "used")

    def __init__(self, device: OpenCLDevice, byte_length: int) -> None:
        super().__init__(byte_length)
        self.device = device
        self.used = 0
        """Value of ``queue.enqueued`` after the last work on it."""
        self._native: Any = None

    def enqueue(self) -> Any:
        """Return the native object for a command that is about to be enqueued."""
        self.used = self.device.queue.enqueued + 1
        return self.handle

    def note(self, kind: str, byte_length: int, event: Any) -> None:
        """Tell who records, if anybody does, of a command that was enqueued."""
        recorder = self.device.counters.recorder
        if recorder is not None:
            recorder.note(kind, byte_length, event)

    def fill(self, offset: int, length: int, pattern: bytes) -> None:
        device = self.device
        try:
            event = device.cl.enqueue_fill_buffer(
                device.queue.native, self.enqueue(), pattern, offset, length
            )
        except device.cl.Error as error:
            raise device.error("fill a buffer", error) from error
        device.queue.enqueued += 1
        self.note("fill", length, event)

    def copy_from(self, source: Memory, source_offset: int, offset: int, length: int) -> None:
        assert isinstance(source, OpenCLMemory)
        device = self.device
        try:
            if source is self and abs(source_offset - offset) < length:
                self._copy_overlapping(source_offset, offset, length)
            else:
                self._copy(self.enqueue(), source.enqueue(), source_offset, offset, length)
        except device.cl.Error as error:
            raise device.error("copy between buffers", error) from error
        device.queue.enqueued += 1

    def _copy_overlapping(self, source_offset: int, offset: int, length: int) -> None:
        # clEnqueueCopyBuffer refuses overlapping ranges with CL_MEM_COPY_OVERLAP (OpenCL 1.2 5.2.4).
        cl, native = self.device.cl, self.enqueue()
        between = cl.Buffer(self.device.context, cl.mem_flags.READ_WRITE, length)
        self._copy(between, native, source_offset, 0, length)
        self._copy(native, between, 0, offset, length)

    def _copy(self, target: Any, source: Any, source_offset: int, offset: int, length: int) -> None:
        event = self.device.cl.enqueue_copy(
            self.device.queue.native, target, source,
            src_offset=source_offset, dst_offset=offset, byte_count=length,
        )  # fmt: skip
        self.note("copy", length, event)


class UnifiedMemory(OpenCLMemory):
    """Host pages that the device works on in place (CL_MEM_USE_HOST_PTR); access is handed over by mapping.

    Intel's and AMD's guides name page-aligned CL_MEM_USE_HOST_PTR as zero-copy, and PoCL uses the pages as
    they are. It is chosen over CL_MEM_ALLOC_HOST_PTR since the pages are ours: a view kept after the buffer's
    end still has its memory, and until the device first needs it, no OpenCL object exists and the host writes
    without mapping (creating the object takes PoCL 0.6 us). Where a driver does copy (Arm's), mapping keeps it
    right; where it never does (quirks.py), waiting for the work on the memory is enough.
    """

    __slots__ = ("_map", "_pages", "_view")

    access = "READ_WRITE"
    """What kernels may do, as one of cl.mem_flags."""
    making = "make a buffer of {} bytes"

    def __init__(
        self, device: OpenCLDevice, byte_length: int, capacity: int = 0, block: UnifiedBlock | None = None
    ) -> None:
        super().__init__(device, byte_length)
        self.capacity = capacity or byte_length
        self._pages = host_pages(device, padded(self.capacity)) if block is None else block.pages
        self._view: Any = self._pages.view(byte_length)
        self._map: Any = None
        if block is not None:
            self.used = block.used

    @property
    def handle(self) -> Any:
        if self._native is None:
            device, flags = self.device, self.device.cl.mem_flags
            access = getattr(flags, self.access)
            try:
                self._native = device.cl.Buffer(
                    device.context, access | flags.USE_HOST_PTR, hostbuf=self._pages.storage
                )
            except device.cl.Error as error:
                raise device.error(self.making.format(self.byte_length), error) from error
        return self._native

    def acquire_host(self, *, read: bool, write: bool) -> tuple[memoryview, int]:
        if self._native is not None and not self.device.maps:
            if self.used > self.device.queue.done:
                self.device.finish()
        elif self._native is not None:
            flags = self.device.cl.map_flags
            if read or self._map is not None:
                wanted = flags.READ | flags.WRITE if write else flags.READ
            else:
                wanted = flags.WRITE_INVALIDATE_REGION
            self.release_host(dirty=False)
            self._map = self._mapped(wanted)
        # OpenCL 1.2 5.4.2: with CL_MEM_USE_HOST_PTR these pages hold the latest bits once the map is done.
        return self._view, 0

    def _mapped(self, flags: int) -> Any:
        device = self.device
        device.queue.before_waiting()
        try:
            array, event = device.cl.enqueue_map_buffer(
                device.queue.native, self._native, flags, 0, (self.byte_length,), np.uint8
            )
        except device.cl.Error as error:
            raise device.error(f"map a buffer of {self.byte_length} bytes", error) from error
        device.queue.waited()
        self.note("map", self.byte_length, event)
        return array.base

    def release_host(self, *, dirty: bool) -> int:
        mapping, self._map = self._map, None
        if mapping is not None:
            try:
                event = mapping.release(self.device.queue.native)
            except self.device.cl.Error as error:
                raise self.device.error("unmap a buffer", error) from error
            self.device.queue.enqueued += 1
            self.used = self.device.queue.enqueued
            self.note("unmap", self.byte_length, event)
        return 0

    def free(self) -> None:
        self._end().drop()

    def recycle(self) -> UnifiedBlock | None:
        block = self._end()
        if not self._pages.viewed:
            return block
        block.drop()
        return None

    def _end(self) -> UnifiedBlock:
        # A mapping waited for all work before it; unmapping changes nothing on these pages.
        worked = self.used if self._map is None else 0
        if self._map is not None:
            queue = self.device.queue
            try:  # noqa: SIM105  # no global is used here, since the interpreter may be ending
                self._map.release(queue.native)
            except queue.cl.Error:  # the device is lost, and this is no place to say so
                pass
            queue.enqueued += 1
            self.used = queue.enqueued
        block = UnifiedBlock(self, worked)
        self._native = self._map = self._view = None
        return block


class UnifiedBlock:
    """Host pages between two allocations, with the OpenCL object that enqueued work may still use.

    The next allocation makes an OpenCL object of its own: until the device needs one, the host then writes
    without mapping.
    """

    __slots__ = ("_native", "_queue", "_worked", "capacity", "pages", "used")

    def __init__(self, memory: UnifiedMemory, worked: int) -> None:
        self._queue: Queue = memory.device.queue
        self._native = memory._native
        self._worked = worked
        self.capacity = memory.capacity
        self.pages: Pages = memory._pages
        self.used: int = memory.used

    def ready(self) -> bool:
        return self._worked <= self._queue.done

    def drop(self) -> None:
        if self.used > self._queue.done:
            self._queue.bury(self.capacity, self._native, self.pages)


class MirroredMemory(OpenCLMemory):
    """Memory of the device's own, with a mirror on the host made on first need and copied to and fro."""

    __slots__ = ("_mirror", "_upload", "_view")

    mirrored = True

    def __init__(
        self, device: OpenCLDevice, byte_length: int, capacity: int = 0, block: MirroredBlock | None = None
    ) -> None:
        super().__init__(device, byte_length)
        self.capacity = capacity or byte_length
        self._view: Any = None
        if block is None:
            self._mirror: Pages | None = None
            self._upload: Any = None
            self._native = self._allocated()
        else:
            self._native, self._mirror, self._upload = block.native, block.mirror, block.upload
            self.serial, self.used = block.serial, block.used

    def _allocated(self) -> Any:
        device, cl = self.device, self.device.cl
        try:
            # Whole words: stock kernels keep elements of 8 bits in them, and the last may be partly used.
            return cl.Buffer(device.context, cl.mem_flags.READ_WRITE, -(-self.capacity // 4) * 4)
        except cl.Error as error:
            raise device.error(f"allocate a buffer of {self.byte_length} bytes", error) from error

    @property
    def handle(self) -> Any:
        return self._native

    def acquire_host(self, *, read: bool, write: bool) -> tuple[memoryview, int]:
        if self._mirror is None:
            self._mirror = self.device.host_mirror(self.capacity)
        if self._view is None:
            self._view = self._mirror.view(self.byte_length)
        if self._upload is not None and (read or write):
            self._upload.wait()
            self._upload = None
        if read:
            self._download(self._view)
        return self._view, self.byte_length if read else 0

    def _download(self, mirror: memoryview) -> None:
        device = self.device
        device.queue.before_waiting()
        try:
            event = device.cl.enqueue_copy(device.queue.native, mirror, self._native)
        except device.cl.Error as error:
            raise device.error(f"read a buffer of {self.byte_length} bytes", error) from error
        device.queue.waited()
        self.note("download", self.byte_length, event)

    def release_host(self, *, dirty: bool) -> int:
        if not dirty:
            return 0
        device = self.device
        assert self._mirror is not None
        try:
            # Not waited for here; the event holds the mirror, and waits where it is dropped. It gets no view,
            # since it would hold that too.
            self._upload = device.cl.enqueue_copy(
                device.queue.native, self.enqueue(), self._mirror.storage[: self.byte_length],
                is_blocking=False,
            )  # fmt: skip
        except device.cl.Error as error:
            raise device.error(f"write a buffer of {self.byte_length} bytes", error) from error
        device.queue.enqueued += 1
        self.note("upload", self.byte_length, self._upload)
        return self.byte_length

    def free(self) -> None:
        MirroredBlock(self).drop()
        self._native = self._mirror = self._upload = self._view = None

    def recycle(self) -> MirroredBlock | None:
        self._view = None
        block = MirroredBlock(self)
        if block.mirror is not None and block.mirror.viewed:
            # Its bytes stay with whoever looks at them; an upload of them was of the last write.
            block.leave_mirror()
        self._native = self._mirror = self._upload = None
        return block


class MirroredBlock:
    """Device memory between two allocations, with its mirror.

    The queue is in order, so the device memory could be used again at once; the mirror, only after its upload.
    """

    __slots__ = ("_queue", "capacity", "mirror", "native", "serial", "upload", "used")

    def __init__(self, memory: MirroredMemory) -> None:
        self._queue = memory.device.queue
        self.capacity = memory.capacity
        self.native = memory._native
        self.mirror = memory._mirror
        self.upload = memory._upload
        self.serial = memory.serial
        self.used = memory.used

    def ready(self) -> bool:
        return self.upload is None or self.used <= self._queue.done

    def leave_mirror(self) -> None:
        """Keep the mirror only until what was enqueued with it is done."""
        if self.used > self._queue.done:
            self._queue.bury(self.capacity, self.upload, self.mirror)
        self.upload = self.mirror = None

    def drop(self) -> None:
        if self.used > self._queue.done:
            self._queue.bury(self.capacity, self.upload, self.native, self.mirror)


def host_pages(device: OpenCLDevice, byte_length: int) -> Pages:
    """Return host pages, or raise ResourceExhausted."""
    try:
        return pages(byte_length)
    except MemoryError as error:
        raise errors.ResourceExhausted(
            f"the host has no {byte_length} bytes left for a buffer of {device.uri}"
        ) from error


# -- the device ----------------------------------------------------------------------------------------


class OpenCLDevice(Device):
    """One OpenCL device with its context and an in-order queue. Takes programs in ``"opencl-c"``."""

    def __init__(self, uri: str, native: cl.Device, options: Mapping[str, str]) -> None:
        self.cl = load_pyopencl()
        self.native = native
        self.quirks = _quirks(native)
        obstacle = _obstacle(self.quirks)
        if obstacle:
            raise errors.Unavailable(f"{uri} cannot be used: {obstacle}")
        unified = options["unified"] == "1" if "unified" in options else is_unified(self.cl, native)
        self.keeps_builds = options["cache"] == "1" if "cache" in options else not self.quirks.caches_builds
        self.maps = "maps" in options or not self.quirks.maps_nothing
        """Whether memory that is shared has to be mapped for the host."""
        super().__init__(uri, capabilities_of(self.cl, native, unified))
        try:
            self.context = self.cl.Context([native])
            self.queue = Queue(self.cl, uri, self.cl.CommandQueue(self.context, native))
        except self.cl.Error as error:
            raise self.error("open a context and a queue", error) from error
        self.regions: WeakKeyDictionary[Memory, dict[int, Any]] = WeakKeyDictionary()
        """Sub-buffers by offset. They go with their memory; what was enqueued with them keeps them as long as it needs
        (OpenCL 1.2 5.4.1, clReleaseMemObject)."""
        self._memory = UnifiedMemory if unified else MirroredMemory
        self.pool.minimum = POOLED if unified else 0

    def __del__(self) -> None:
        # Memory of ours that enqueued work still uses, buried or pooled, goes with the device: OpenCL does
        # not wait when a queue is released, and PoCL then writes to memory that is no longer there.
        queue = getattr(self, "queue", None)
        if queue is not None and queue.enqueued > queue.done and not self.counters.forked:
            try:  # noqa: SIM105  # no global is used here, since the interpreter may be ending
                queue.native.finish()
            except queue.cl.Error:  # the device is lost
                pass

    def error(self, doing: str, error: Any) -> errors.Error:
        """Return halgpu's error for a pyopencl one."""
        return mapped(self.cl, self.uri, doing, error)

    def allocate_memory(self, byte_length: int) -> Memory:
        return self.pooled_memory(byte_length, byte_length, None)

    def pooled_memory(self, byte_length: int, capacity: int, block: Any) -> Memory:
        with self.lock:
            self.queue.limit_buried()
            try:
                return self._memory(self, byte_length, capacity, block)
            except errors.ResourceExhausted:
                self.finish()  # memory already freed may hang on work not done
                return self._memory(self, byte_length, capacity, block)

    def host_mirror(self, byte_length: int) -> Pages:
        """Return host memory for transfers, pinned where that pays."""
        if byte_length < PINNED_BYTES:
            return host_pages(self, byte_length)
        cl = self.cl
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        self.queue.before_waiting()
        try:
            pinned = cl.Buffer(self.context, flags, byte_length)
            access = cl.map_flags.READ | cl.map_flags.WRITE
            array, _ = cl.enqueue_map_buffer(self.queue.native, pinned, access, 0, (byte_length,), np.uint8)
        except cl.Error as error:
            raise self.error(f"pin {byte_length} bytes of host memory", error) from error
        self.queue.waited()
        return Pages(array)  # holds the map, which holds the pinned buffer

    def build_kernels(self, program: Program) -> tuple[Kernel, ...]:
        return self.build_programs([program])[0]

    def build_programs(self, programs: Sequence[Program]) -> Sequence[tuple[Kernel, ...]]:
        with self.lock:
            return build_all(self, programs)

    def finish(self) -> None:
        self.queue.finish()

    def timer(self) -> OpenCLTimer:
        return OpenCLTimer(self)


def is_unified(cl: Any, native: Any) -> bool:
    """Return whether device and host share memory: what the driver says, and every CPU."""
    return bool(native.type & cl.device_type.CPU) or bool(native.host_unified_memory)


def capabilities_of(cl: Any, native: Any, unified: bool) -> Capabilities:
    """Return what an OpenCL device says about itself."""
    extensions = frozenset(native.extensions.split())
    kind: Literal["cpu", "gpu", "accelerator"] = "accelerator"
    if native.type & (cl.device_type.CPU | cl.device_type.GPU):
        kind = "cpu" if native.type & cl.device_type.CPU else "gpu"
    sizes = (*native.max_work_item_sizes, 1, 1)[:3]
    return Capabilities(
        name=native.name.strip(),
        vendor=native.vendor.strip(),
        driver=f"{native.platform.name.strip()} {native.driver_version.strip()}",
        kind=kind,
        unified_memory=unified,
        fp16="cl_khr_fp16" in extensions,
        fp64="cl_khr_fp64" in extensions or "cl_amd_fp64" in extensions,
        int64_atomics="cl_khr_int64_base_atomics" in extensions,
        max_workgroup_invocations=native.max_work_group_size,
        max_workgroup_size=sizes,
        # Global sizes are size_t (OpenCL 1.2 5.8); group ids are 32-bit in the programs that halgpu runs.
        max_workgroup_count=(2**32 - 1 if native.address_bits == 64 else 2**16 - 1,) * 3,
        local_memory=native.local_mem_size,
        max_allocation=native.max_mem_alloc_size,
        max_parameter_bytes=native.max_parameter_size,
        languages=frozenset({LANGUAGE}),
        exact_division=bool(native.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT),
        extensions=extensions,
    )
