"""The ``cuda`` devices, through CuPy. No other file imports cupy.

Of CuPy only its thin wrappers of the CUDA runtime, the driver and NVRTC are used (``cupy.cuda.runtime``,
``cupy.cuda.driver``, ``cupy.cuda.nvrtc``): functions that take and return numbers and raise what CUDA says.

All work of a device is on one stream, in order. It is a *blocking* stream, so CUDA itself orders it with the legacy
default stream, on which cupy and torch work by default (CUDA Runtime API, "Stream synchronization behavior"); see
cuda_sharing.py.

A call into CUDA needs the device's context to be the calling thread's current one. It is made so for each call and
what the caller had is put back afterwards, also when the call raises. Nothing ever calls ``cudaSetDevice`` in a
caller's thread: that would make a context on a device which the caller may not even use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from halgpu import errors
from halgpu.devices.base import Capabilities, Device, DeviceInfo, Kernel, Program
from halgpu.devices.cuda_memory import CudaBlock, CudaMemory
from halgpu.devices.cuda_programs import CUDA_C, PTX, build
from halgpu.devices.cuda_queue import Cuda, Queue, mapped
from halgpu.devices.cuda_timer import CudaTimer
from halgpu.devices.forks import require_same_process
from halgpu.devices.memory import Memory

OPTIONS: dict[str, tuple[str, ...]] = {}
HOW_TO_GET_CUPY = (
    "pip install 'halgpu[cuda12x]' or 'halgpu[cuda13x]', after the CUDA version that nvidia-smi shows "
    "(in a checkout: pip install cupy-cuda12x nvidia-cuda-nvrtc-cu12)"
)
HOW_TO_GET_ONE = (
    "it takes an NVIDIA GPU with its driver; --device=opencl runs on any GPU and, with PoCL, on CPUs"
)

PARAMETER_BYTES = 4096
"""Kernel arguments of any GPU (CUDA C++ Programming Guide, "Function parameters"; newer ones have more)."""

ARCHITECTURES = (
    50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121,
)  # fmt: skip
"""Compute capabilities that PTX has as targets (PTX ISA 9.0, ".target"), ten times."""


# -- finding devices -----------------------------------------------------------------------------------


def load_cupy() -> Any:
    """Return the cupy module; Unavailable, with what to install, when it cannot be imported."""
    try:
        import cupy
    except Exception as error:  # also what a CuPy raises that does not find its libraries
        reason = " ".join(str(error).split())[:200]
        raise errors.Unavailable(f"cupy cannot be imported ({reason}): {HOW_TO_GET_CUPY}") from error
    return cupy


def load_cuda() -> Cuda:
    """Return the part of CuPy that is used."""
    require_same_process("CUDA")
    cupy = load_cupy()
    return Cuda(cupy.cuda.runtime, cupy.cuda.driver, lambda: cupy.cuda.nvrtc, str(cupy.__version__))


def count_devices(cuda: Cuda) -> int:
    """Return how many GPUs there are; Unavailable, with the reason, when there is none."""
    try:
        count: int = cuda.runtime.getDeviceCount()
    except cuda.errors as error:
        raise errors.Unavailable(f"CUDA finds no GPU ({error}): {HOW_TO_GET_ONE}") from error
    if not count:
        raise errors.Unavailable(f"CUDA finds no GPU: {HOW_TO_GET_ONE}")
    return count


def open_device(uri: str, index: int, options: Mapping[str, str]) -> Device:
    """Open GPU ``index``; NotFound lists those that exist."""
    return open_with(load_cuda(), uri, index)


def open_with(cuda: Cuda, uri: str, index: int) -> CudaDevice:
    """Open GPU ``index`` of ``cuda``."""
    count = count_devices(cuda)
    if index >= count:
        names = ", ".join(f"cuda:{i} ({_name(cuda, i)})" for i in range(count))
        raise errors.NotFound(f"no device {uri!r}; there are: {names}")
    return CudaDevice(uri, cuda, index)


def list_devices() -> list[DeviceInfo]:
    """Describe the GPUs."""
    return list_with(load_cuda(), "cuda")


def list_with(cuda: Cuda, scheme: str) -> list[DeviceInfo]:
    """Describe the GPUs of ``cuda``."""
    return [DeviceInfo(f"{scheme}:{index}", _name(cuda, index), True) for index in range(count_devices(cuda))]


def _name(cuda: Cuda, index: int) -> str:
    found = cuda.runtime.getDeviceProperties(index)
    return f"{_text(found['name'])}, sm_{found['major']}{found['minor']}"


def _text(name: bytes | str) -> str:
    return (name.decode(errors="replace") if isinstance(name, bytes) else name).strip()


# -- the device ----------------------------------------------------------------------------------------


class CudaDevice(Device):
    """One GPU with its primary context, which cupy and torch use too, and a stream of its own.

    Takes programs in ``"ptx"`` and ``"cuda-c"`` (:mod:`~halgpu.devices.cuda_programs`). ``index`` is the GPU's
    number in CUDA, ``stream`` the address of the stream, ``architecture`` ten times the compute capability.
    """

    def __init__(self, uri: str, cuda: Cuda, index: int) -> None:
        self.cuda = cuda
        self.index = index
        try:
            properties = cuda.runtime.getDeviceProperties(index)
            self.architecture: int = properties["major"] * 10 + properties["minor"]
            super().__init__(uri, capabilities_of(cuda, properties))
            context, stream = _in_thread_of_its_own(lambda: _open(cuda, index))
        except cuda.errors as error:
            raise mapped(uri, "open the GPU", error) from error
        self.queue = Queue(cuda, uri, context, stream)

    @property
    def stream(self) -> int:
        """The address of the stream (``cudaStream_t``), for ``cupy.cuda.ExternalStream`` and the like."""
        return self.queue.stream

    def error(self, doing: str, error: Any) -> errors.Error:
        """Return halgpu's error for one of CuPy's."""
        return mapped(self.uri, doing, error)

    def allocate_memory(self, byte_length: int) -> Memory:
        return self.pooled_memory(byte_length, byte_length, None)

    def pooled_memory(self, byte_length: int, capacity: int, block: Any) -> Memory:
        assert block is None or isinstance(block, CudaBlock)
        with self.lock:
            self.queue.limit_buried()
            try:
                return CudaMemory(self, byte_length, capacity, block)
            except errors.ResourceExhausted:
                self.finish()  # memory already freed may hang on work not done
                return CudaMemory(self, byte_length, capacity, block)

    def build_kernels(self, program: Program) -> tuple[Kernel, ...]:
        with self.lock, self.queue.current():
            return build(self, program)

    def finish(self) -> None:
        self.queue.finish()

    def close(self) -> None:
        super().close()
        if not self.counters.forked:
            with self.lock:
                self.finish()  # which gives back what the pool let go

    def timer(self) -> CudaTimer:
        return CudaTimer(self)


def _open(cuda: Cuda, index: int) -> tuple[int, int]:
    """The device's primary context and a new stream. Leaves the thread on that device."""
    cuda.runtime.setDevice(index)
    cuda.runtime.free(
        0
    )  # makes the context, also where setDevice does not (CUDA Runtime API, "Initialization")
    return cuda.driver.ctxGetCurrent(), cuda.runtime.streamCreateWithFlags(cuda.runtime.streamDefault)


def _in_thread_of_its_own(work: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    # The current device is a thread's, and the only way to a primary context through CuPy is to make it current.
    results: list[tuple[int, int]] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # raised again below
            raised.append(error)

    thread = threading.Thread(target=run, name="halgpu-cuda-open", daemon=True)
    thread.start()
    thread.join()
    if raised:
        raise raised.pop()
    return results[0]


def capabilities_of(cuda: Cuda, properties: Mapping[str, Any]) -> Capabilities:
    """Return what CUDA says about a GPU (``cudaDeviceProp``).

    ``extensions`` has the targets of PTX that it runs, ``"sm_60"`` and so on.
    """
    architecture = properties["major"] * 10 + properties["minor"]
    driver, runtime = (
        f"{version // 1000}.{version % 1000 // 10}"
        for version in (cuda.runtime.driverGetVersion(), cuda.runtime.runtimeGetVersion())
    )
    return Capabilities(
        name=_text(properties["name"]),
        vendor="NVIDIA",
        driver=f"driver for CUDA {driver}, runtime {runtime}, CuPy {cuda.version}",
        kind="gpu",
        # Integrated GPUs share the host's memory, but only memory that was allocated for both.
        unified_memory=False,
        fp16=architecture >= 53,
        fp64=True,
        int64_atomics=True,
        max_workgroup_invocations=properties["maxThreadsPerBlock"],
        max_workgroup_size=tuple(properties["maxThreadsDim"]),
        max_workgroup_count=tuple(properties["maxGridSize"]),
        local_memory=properties.get("sharedMemPerBlockOptin") or properties["sharedMemPerBlock"],
        max_allocation=properties["totalGlobalMem"],
        max_parameter_bytes=PARAMETER_BYTES,
        languages=frozenset({PTX, CUDA_C}),
        exact_division=True,
        extensions=frozenset(f"sm_{known}" for known in ARCHITECTURES if known <= architecture),
    )
