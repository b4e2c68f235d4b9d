"""A fake of the part of CuPy that halgpu uses, for machines without a GPU: strict where CUDA is forgiving.

- Nothing that is enqueued runs before somebody waits for it: what reads too early reads old bytes.
- Addresses of device memory are no addresses of the host; new memory is full of rubbish; freeing what enqueued work
  uses, and touching what was freed, are errors.
- Every call needs the right context to be the thread's current one. Contexts that were made are counted.
- Streams that are not *non-blocking* and the legacy default stream wait for one another, as CUDA has it.

Numbers, names and errors are those of ``cupy.cuda.runtime``, ``driver`` and ``nvrtc``. Kernels are Python functions
by name (``Gpus.functions``), called as those of the host device; one that is missing does nothing but be recorded.
What a kernel is given by value it reads through ctypes, by its signature in C, so layouts are the C compiler's.
"""

from __future__ import annotations

import bisect
import ctypes
import itertools
import json
import re
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

LEGACY = 1

_NAMES = {
    1: "InvalidValue", 2: "MemoryAllocation", 201: "InvalidContext", 209: "NoBinaryForGpu", 218: "InvalidPtx",
    222: "UnsupportedPtxVersion", 400: "InvalidResourceHandle", 500: "NotFound", 600: "NotReady",
    700: "IllegalAddress", 716: "MisalignedAddress", 719: "LaunchFailure",
}  # fmt: skip


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"cudaError{_NAMES[status]}: of the fake")


class CUDADriverError(RuntimeError):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"CUDA_ERROR_{_NAMES[status].upper()}: of the fake")


class NVRTCError(RuntimeError):
    pass


@dataclass
class Operation:
    number: int
    run: Callable[[], None]
    touches: tuple[tuple[int, int], ...]


@dataclass
class Stream:
    device: int
    blocking: bool
    waiting: deque[Operation] = field(default_factory=deque)
    newest: int = 0

    def run(self, until: int | None = None) -> None:
        while self.waiting and (until is None or self.waiting[0].number <= until):
            self.waiting.popleft().run()


@dataclass
class Event:
    device: int
    timed: bool
    stream: Stream | None = None
    number: int = 0
    time: int = 0

    @property
    def done(self) -> bool:
        return self.stream is None or not self.stream.waiting or self.stream.waiting[0].number > self.number


@dataclass(frozen=True)
class Launch:
    name: str
    device: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    arguments: tuple[bytes, ...]


@dataclass
class Function:
    name: str
    device: int
    sizes: list[int]
    types: list[Any]
    """Of ctypes; None for a pointer. Of PTX that was not made here, what its parameters' sizes say."""
    attributes: dict[int, int]


class Gpus:
    """Some GPUs, ``memory`` bytes each, and the state of CUDA in a process. ``ptx`` is the newest that it knows."""

    def __init__(
        self, count: int = 2, memory: int = 8 << 30, architecture: int = 89, ptx: float = 8.7
    ) -> None:
        self.count, self.memory, self.architecture, self.ptx = count, memory, architecture, ptx
        self.lock = threading.RLock()
        self.local = threading.local()
        self.contexts: set[int] = set()
        self.bases: list[int] = []
        self.blocks: dict[int, tuple[int, np.ndarray]] = {}
        self.pinned: dict[int, np.ndarray] = {}
        self.freed_pinned: deque[np.ndarray] = deque(maxlen=4)
        self.next_address = itertools.count(0x1000)
        self.numbers = itertools.count(1)
        self.handles = itertools.count(0x5000, 0x10)
        self.streams: dict[int, Stream] = {}
        self.legacy = [Stream(index, True) for index in range(count)]
        self.events: dict[int, Event] = {}
        self.modules: dict[int, dict[str, Function]] = {}
        self.kernels: dict[int, Function] = {}
        self.launches: deque[Launch] = deque(maxlen=1000)
        self.programs: dict[int, Any] = {}
        self.lost: set[int] = set()
        self.functions: dict[str, Callable[..., None]] = {}
        self.lengths: list[int] | None = None
        """Bytes behind each pointer of the next launch, if it is known, which CUDA never knows."""
        self.runtime, self.driver, self.nvrtc = Runtime(self), Driver(self), Nvrtc(self)

    # -- the current device ----------------------------------------------------------------------------

    def current(self, kind: type[Exception] = CUDARuntimeError) -> int:
        context = getattr(self.local, "context", 0)
        if not context:
            raise kind(201)
        if context - 0xC0 in self.lost:
            raise kind(719)
        return context - 0xC0

    def stream(self, handle: int, kind: type[Exception] = CUDARuntimeError) -> Stream:
        device = self.current(kind)
        found = self.legacy[device] if handle in (0, LEGACY) else self.streams.get(handle)
        if found is None or found.device != device:
            raise kind(400)
        return found

    # -- work ------------------------------------------------------------------------------------------

    def enqueue(self, stream: Stream, run: Callable[[], None], *touches: tuple[int, int]) -> int:
        others = [self.legacy[stream.device]] if stream.blocking else []
        if stream is self.legacy[stream.device]:
            others = [
                other for other in self.streams.values() if other.blocking and other.device == stream.device
            ]
        for other in others:
            if other.waiting and other is not stream:
                self._append(stream, lambda other=other, until=other.newest: other.run(until), ())
        return self._append(stream, run, touches)

    def _append(self, stream: Stream, run: Callable[[], None], touches: tuple[tuple[int, int], ...]) -> int:
        stream.newest = next(self.numbers)
        stream.waiting.append(Operation(stream.newest, run, touches))
        return stream.newest

    def streams_of(self, device: int) -> list[Stream]:
        return [*(found for found in self.streams.values() if found.device == device), self.legacy[device]]

    def synchronize(self, device: int) -> None:
        for stream in self.streams_of(device):
            self.run(stream)

    def run(self, stream: Stream, until: int | None = None) -> None:
        try:
            stream.run(until)
        except Exception as error:  # a fault of a kernel: the context is lost
            self.lost.add(stream.device)
            raise CUDARuntimeError(getattr(error, "status", 719)) from error

    # -- memory ----------------------------------------------------------------------------------------

    def malloc(self, size: int) -> int:
        device = self.current()
        if size + sum(len(data) for owner, data in self.blocks.values() if owner == device) > self.memory:
            raise CUDARuntimeError(2)
        address = next(self.next_address) << 44 >> 8  # far apart, and nothing of the host lies there
        self.blocks[address] = (device, np.full(size, 0xA5, np.uint8))
        bisect.insort(self.bases, address)
        return address

    def bytes_at(self, device: int, address: int, size: int | None = None) -> np.ndarray:
        """The bytes of device memory from an address on."""
        index = bisect.bisect_right(self.bases, address) - 1
        if index >= 0:
            base = self.bases[index]
            owner, data = self.blocks[base]
            start = address - base
            if owner == device and start + (size or 0) <= len(data):
                return data[start:] if size is None else data[start : start + size]
        raise CUDARuntimeError(700)

    def require_unused(self, device: int, address: int, size: int) -> None:
        for stream in self.streams_of(device):
            for operation in stream.waiting:
                if any(
                    start < address + size and address < start + length for start, length in operation.touches
                ):
                    raise AssertionError(f"freed {size} bytes at {address:#x} that enqueued work uses")


def host_bytes(address: int, size: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_uint8 * size).from_address(address), np.uint8)


class Runtime:
    """``cupy.cuda.runtime``."""

    CUDARuntimeError = CUDARuntimeError
    memcpyHostToHost, memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = range(4)
    streamDefault, streamNonBlocking = 0, 1
    eventDefault, eventDisableTiming = 0, 2
    hostAllocDefault = 0
    memoryTypeUnregistered, memoryTypeHost, memoryTypeDevice = range(3)

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus

    def driverGetVersion(self) -> int:
        return 12080

    def runtimeGetVersion(self) -> int:
        return 12090

    def getDeviceCount(self) -> int:
        return self._gpus.count

    def getDeviceProperties(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self._gpus.count:
            raise CUDARuntimeError(1)
        return {
            "name": b"Fake GPU", "major": self._gpus.architecture // 10, "minor": self._gpus.architecture % 10,
            "totalGlobalMem": self._gpus.memory, "maxThreadsPerBlock": 1024, "maxThreadsDim": (1024, 1024, 64),
            "maxGridSize": (2**31 - 1, 65535, 65535), "sharedMemPerBlock": 48 << 10,
            "sharedMemPerBlockOptin": 99 << 10,
        }  # fmt: skip

    def getDevice(self) -> int:
        context = getattr(self._gpus.local, "context", 0)
        return context - 0xC0 if context else getattr(self._gpus.local, "device", 0)

    def setDevice(self, index: int) -> None:
        self._gpus.local.device = index
        self._gpus.local.context = 0xC0 + index
        self._gpus.contexts.add(index)

    def deviceSynchronize(self) -> None:
        with self._gpus.lock:
            self._gpus.synchronize(self._gpus.current())

    # -- memory ----------------------------------------------------------------------------------------

    def malloc(self, size: int) -> int:
        with self._gpus.lock:
            return self._gpus.malloc(size)

    def free(self, address: int) -> None:
        gpus = self._gpus
        with gpus.lock:
            device = gpus.current()
            if not address:
                return
            owner, data = gpus.blocks.get(address, (None, None))
            if owner != device or data is None:
                raise CUDARuntimeError(1)
            gpus.require_unused(device, address, len(data))
            gpus.synchronize(device)
            del gpus.blocks[address]
            gpus.bases.remove(address)

    def pointerGetAttributes(self, address: int) -> Any:
        for base, (device, data) in self._gpus.blocks.items():
            if base <= address < base + len(data):
                return SimpleNamespace(device=device, type=self.memoryTypeDevice)
        return SimpleNamespace(device=-2, type=self.memoryTypeUnregistered)

    def hostAlloc(self, size: int, flags: int) -> int:
        with self._gpus.lock:
            self._gpus.current()
            data = np.full(size + 4096, 0xB6, np.uint8)
            address = -(-data.ctypes.data // 4096) * 4096
            self._gpus.pinned[address] = data
            return address

    def freeHost(self, address: int) -> None:
        gpus = self._gpus
        with gpus.lock:
            device = gpus.current()
            data = gpus.pinned.pop(address)
            gpus.require_unused(device, address, len(data) - 4096)
            data[:] = 0xDD
            gpus.freed_pinned.append(data)  # for a moment, so that a wrong use is seen and does not crash

    def memcpyAsync(self, target: int, source: int, size: int, kind: int, stream: int) -> None:
        gpus = self._gpus
        with gpus.lock:
            found = gpus.stream(stream)
            device = found.device

            def run() -> None:
                on_device = kind in (1, 3), kind in (2, 3)
                to = gpus.bytes_at(device, target, size) if on_device[0] else host_bytes(target, size)
                origin = gpus.bytes_at(device, source, size) if on_device[1] else host_bytes(source, size)
                if kind == 3 and abs(target - source) < size:
                    raise AssertionError("a copy on the device whose ranges overlap")
                to[:] = origin

            gpus.enqueue(found, run, (target, size), (source, size))

    def memsetAsync(self, target: int, value: int, size: int, stream: int) -> None:
        gpus = self._gpus
        with gpus.lock:
            found = gpus.stream(stream)
            gpus.enqueue(found, lambda: gpus.bytes_at(found.device, target, size).fill(value), (target, size))

    # -- streams and events ----------------------------------------------------------------------------

    def streamCreateWithFlags(self, flags: int) -> int:
        gpus = self._gpus
        with gpus.lock:
            handle = next(gpus.handles)
            gpus.streams[handle] = Stream(gpus.current(), not flags & self.streamNonBlocking)
            return handle

    def streamDestroy(self, handle: int) -> None:
        with self._gpus.lock:
            assert not self._gpus.stream(handle).waiting, "a stream was destroyed with work on it"
            del self._gpus.streams[handle]

    def streamSynchronize(self, handle: int) -> None:
        with self._gpus.lock:
            self._gpus.run(self._gpus.stream(handle))

    def streamWaitEvent(self, handle: int, event: int, flags: int = 0) -> None:
        gpus = self._gpus
        with gpus.lock:
            found = gpus.events[event]
            stream, number = found.stream, found.number
            if stream is not None:
                gpus.enqueue(gpus.stream(handle), lambda: stream.run(number))

    def eventCreateWithFlags(self, flags: int) -> int:
        gpus = self._gpus
        with gpus.lock:
            handle = next(gpus.handles)
            gpus.events[handle] = Event(gpus.current(), not flags & self.eventDisableTiming)
            return handle

    def eventDestroy(self, handle: int) -> None:
        self._gpus.current()
        del self._gpus.events[handle]

    def eventRecord(self, handle: int, stream: int) -> None:
        gpus = self._gpus
        with gpus.lock:
            event, found = gpus.events[handle], gpus.stream(stream)
            if event.device != found.device:
                raise CUDARuntimeError(400)
            event.stream = found
            event.number = gpus.enqueue(found, lambda: setattr(event, "time", time.perf_counter_ns()))

    def eventQuery(self, handle: int) -> int:
        self._gpus.current()
        return 0 if self._gpus.events[handle].done else 600

    def eventSynchronize(self, handle: int) -> None:
        with self._gpus.lock:
            self._gpus.current()
            event = self._gpus.events[handle]
            if event.stream is not None:
                self._gpus.run(event.stream, event.number)

    def eventElapsedTime(self, first: int, second: int) -> float:
        a, b = self._gpus.events[first], self._gpus.events[second]
        if not (a.timed and b.timed):
            raise CUDARuntimeError(400)
        if not (a.done and b.done):
            raise CUDARuntimeError(600)
        return float(np.float32((b.time - a.time) / 1e6))


class Driver:
    """``cupy.cuda.driver``."""

    CUDADriverError = CUDADriverError

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus

    def ctxGetCurrent(self) -> int:
        return getattr(self._gpus.local, "context", 0)

    def ctxSetCurrent(self, context: int) -> None:
        if context and context - 0xC0 not in self._gpus.contexts:
            raise CUDADriverError(201)
        self._gpus.local.context = context

    def moduleLoadData(self, image: bytes) -> int:
        gpus = self._gpus
        device = gpus.current(CUDADriverError)
        text = image.removeprefix(b"\x7fELF").decode()
        if image[:4] != b"\x7fELF":
            version = re.search(r"^\.version (\d+\.\d+)$", text, re.MULTILINE)
            if version is None or text.count("{") != text.count("}"):
                raise CUDADriverError(218)
            if float(version[1]) > gpus.ptx:
                raise CUDADriverError(222)
        target = re.search(r"^\.target sm_(\d+)", text, re.MULTILINE)
        if target is None or int(target[1]) > gpus.architecture:
            raise CUDADriverError(209)
        module = {}
        written = re.search(r"^//C (.*)$", text, re.MULTILINE)
        signatures = {name: types for _, name, types in kernels_of(json.loads(written[1]))} if written else {}
        for name, parameters in re.findall(r"\.entry (\w+)\s*\(?([^){]*)", text):
            found = re.findall(r"\.param (?:\.align \d+ )?\.[a-z](\d+)[^,\[]*(?:\[(\d+)\])?", parameters)
            sizes = [int(bits) // 8 * int(count or 1) for bits, count in found]
            types = signatures.get(name, [None if size == 8 else ctypes.c_uint32 for size in sizes])
            module[name] = Function(name, device, sizes, types, {0: 1024, 1: 0})
        handle = next(gpus.handles)
        gpus.modules[handle] = module
        return handle

    def moduleUnload(self, handle: int) -> None:
        self._gpus.current(CUDADriverError)
        for function in self._gpus.modules.pop(handle).values():
            for stream in self._gpus.streams_of(function.device):
                assert not any(o.run.__name__ == function.name for o in stream.waiting), (
                    "unloaded while in use"
                )

    def moduleGetFunction(self, module: int, name: str) -> int:
        device = self._gpus.current(CUDADriverError)
        function = self._gpus.modules[module].get(name)
        if function is None or function.device != device:
            raise CUDADriverError(500)
        handle = next(self._gpus.handles)
        self._gpus.kernels[handle] = function
        return handle

    def funcGetAttribute(self, attribute: int, function: int) -> int:
        return self._gpus.kernels[function].attributes[attribute]

    def funcSetAttribute(self, function: int, attribute: int, value: int) -> None:
        if value > 99 << 10:
            raise CUDADriverError(1)
        self._gpus.kernels[function].attributes[attribute] = value

    def launchKernel(
        self, function: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int, stream: int,
        parameters: int, extra: int,
    ) -> None:  # fmt: skip
        gpus = self._gpus
        with gpus.lock:
            found, kernel = gpus.stream(stream, CUDADriverError), gpus.kernels[function]
            if kernel.device != found.device:
                raise CUDADriverError(400)
            most = kernel.attributes.get(8, 48 << 10)
            if (
                min(gx, gy, gz) < 1
                or gx >= 2**31
                or max(gy, gz) > 65535
                or bx * by * bz > 1024
                or shared > most
            ):
                raise CUDADriverError(1)
            addresses = (ctypes.c_void_p * len(kernel.sizes)).from_address(parameters) if kernel.sizes else ()
            arguments = tuple(
                ctypes.string_at(address, size) for address, size in zip(addresses, kernel.sizes, strict=True)
            )
            gpus.launches.append(
                Launch(kernel.name, found.device, (gx, gy, gz), (bx, by, bz), shared, arguments)
            )
            pointers, constants = unpack(kernel, arguments)
            lengths, gpus.lengths = gpus.lengths or [None] * len(pointers), None

            def run() -> None:
                work = gpus.functions.get(kernel.name)
                if work is not None:
                    ranges = zip(pointers, lengths, strict=True)
                    views = [
                        memoryview(gpus.bytes_at(found.device, start, length)) for start, length in ranges
                    ]
                    work((gx, gy, gz), constants, views)

            run.__name__ = kernel.name
            gpus.enqueue(found, run, *((pointer, 1) for pointer in pointers))


def unpack(kernel: Function, arguments: tuple[bytes, ...]) -> tuple[list[int], tuple[Any, ...]]:
    """A launch's pointers and constants; those in halgpu's packed structure are an offset a pointer, then words."""
    pointers, constants = [], []
    for kind, data in zip(kernel.types, arguments, strict=True):
        if kind is None:
            pointers.append(struct.unpack("<Q", data)[0])
        else:
            constants.append(kind.from_buffer_copy(data))
    if constants and hasattr(constants[-1], "offsets"):
        words = constants[-1]
        pointers = [pointer + offset for pointer, offset in zip(pointers, words.offsets, strict=True)]
        return pointers, tuple(getattr(words, "constants", ()))
    return pointers, tuple(map(value_of, constants))


def value_of(found: Any) -> Any:
    """A value of ctypes as numbers and tuples of them."""
    if isinstance(found, ctypes.Structure):
        return tuple(value_of(getattr(found, name)) for name, *_ in found._fields_)
    return tuple(found) if isinstance(found, ctypes.Array) else getattr(found, "value", found)


C_TYPES: dict[str, Any] = {
    "char": ctypes.c_int8, "signed char": ctypes.c_int8, "unsigned char": ctypes.c_uint8, "uchar": ctypes.c_uint8,
    "short": ctypes.c_int16, "unsigned short": ctypes.c_uint16, "int": ctypes.c_int32, "unsigned": ctypes.c_uint32,
    "unsigned int": ctypes.c_uint32, "uint": ctypes.c_uint32, "long long": ctypes.c_int64, "float": ctypes.c_float,
    "unsigned long long": ctypes.c_uint64, "ulong": ctypes.c_uint64, "double": ctypes.c_double,
    "float2": ctypes.c_float * 2, "float3": ctypes.c_float * 3, "float4": ctypes.c_float * 4,
}  # fmt: skip


def c_structures(source: str) -> dict[str, Any]:
    """The structures that a source defines: ``struct name { … };`` and ``typedef struct { … } name;``."""
    found: dict[str, Any] = {}
    for before, body, after in re.findall(
        r"struct(?: __attribute__\(\(packed\)\))? ?(\w*) ?\{([^}]*)\} ?(\w*);", source
    ):
        fields = []
        for kind, name, count in re.findall(r"([\w ]+?) (\w+)(?:\[(\d+)\])?;", body):
            element = found.get(kind.strip()) or C_TYPES[kind.strip()]
            fields.append((name, element * int(count) if count else element))
        found[before or after] = type(before or after, (ctypes.Structure,), {"_fields_": fields})
    return found


def c_type(parameter: str, structures: dict[str, Any]) -> Any:
    """The type of a parameter; None for a pointer."""
    if "*" in parameter:
        return None
    kind = parameter.removeprefix("const ").rpartition(" ")[0].strip()
    return structures.get(kind) or C_TYPES[kind]


def kernels_of(source: str) -> Iterator[tuple[bool, str, list[Any]]]:
    """Each kernel of a source in CUDA C: whether C++ mangles its name, the name, the types of its parameters."""
    structures = c_structures(source)
    for linkage, name, given in re.findall(
        r"(__kernel|extern \"C\" __global__|__global__)\s+(?:__attribute__\(\([^;{]*?\)\)\)?\s*)?void\s+(\w+)\s*\(([^)]*)\)",
        source,
    ):
        parameters = [item.strip() for item in given.split(",") if item.strip() not in ("", "void")]
        types = [c_type(item.replace("__global ", ""), structures) for item in parameters]
        yield linkage == "__global__", name, types


def ptx_parameter(kind: Any) -> str:
    """How PTX declares a parameter, without its name."""
    if kind is None:
        return ".u64 p"
    size = ctypes.sizeof(kind)
    if issubclass(kind, ctypes.Structure | ctypes.Array):
        return f".align 8 .b8 p[{size}]"
    return f".{'f' if kind in (ctypes.c_float, ctypes.c_double) else 'u'}{size * 8} p"


class Nvrtc:
    """``cupy.cuda.nvrtc``: reads the signatures of kernels, and nothing else."""

    NVRTCError = NVRTCError

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self.compiled = 0

    def getVersion(self) -> tuple[int, int]:
        # Of no real one, and of this very file: halgpu keeps results in its cache.
        return 0, zlib.crc32(Path(__file__).read_bytes())

    def getSupportedArchs(self) -> tuple[int, ...]:
        return 50, 60, 75, 80, 89, 90

    def createProgram(self, source: str, name: str, headers: Any, include_names: Any) -> int:
        handle = next(self._gpus.handles)
        self._gpus.programs[handle] = [source, b"", "", ""]
        return handle

    def compileProgram(self, handle: int, options: tuple[str, ...]) -> None:
        program = self._gpus.programs[handle]
        source = re.sub(r"//[^\n]*|/\*.*?\*/|^\s*#[^\n]*", "", program[0], flags=re.DOTALL | re.MULTILINE)
        if source.count("{") != source.count("}"):
            program[2] = "kernels.cu(1): error: expected a brace"
            raise NVRTCError("NVRTC_ERROR_COMPILATION (6)")
        architecture = options[0].partition("=")[2].replace("compute", "sm")
        self.compiled += 1
        text = f"//C {json.dumps(source)}\n.version 8.7\n.target {architecture}\n.address_size 64\n"
        for mangled, name, types in kernels_of(source):
            listed = ",\n".join(f"\t.param {ptx_parameter(kind)}" for kind in types)
            entry = f"_Z{len(name)}{name}v" if mangled else name
            text += f".visible .entry {entry}(\n{listed}\n)\n{{\n\tret;\n}}\n"
        program[1] = text.encode()

    def getProgramLog(self, handle: int) -> str:
        return self._gpus.programs[handle][2]

    def getPTX(self, handle: int) -> bytes:
        return self._gpus.programs[handle][1]

    def getCUBIN(self, handle: int) -> bytes:
        return b"\x7fELF" + self._gpus.programs[handle][1]

    def destroyProgram(self, handle: int) -> None:
        del self._gpus.programs[handle]


GPUS = Gpus()
