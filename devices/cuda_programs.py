"""CUDA programs and kernels: compiling, loading, the check of what was compiled, launching.

Part of the ``cuda`` backend. ``"ptx"`` is PTX text, which the driver compiles for the GPU. ``"cuda-c"`` is CUDA C++,
which NVRTC compiles; its kernels are ``extern "C" __global__`` functions.

NVRTC is called as it is: what CuPy has above it compiles with ``-ftz=true``, which takes denormals for zeros.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from halgpu import disk_cache as cache
from halgpu import errors
from halgpu.devices import ptx
from halgpu.devices.base import Kernel, KernelLayout, Program
from halgpu.devices.constants import ConstantType, Passed, Scalar, size
from halgpu.devices.cuda_queue import Queue, mapped
from halgpu.devices.memory import Memory

if TYPE_CHECKING:
    from halgpu.devices.cuda import CudaDevice

PTX: Final = "ptx"
CUDA_C: Final = "cuda-c"

PLAIN_SHARED_MEMORY: Final = 48 << 10
"""Bytes of shared memory that a kernel has without asking (CUDA C++ Programming Guide, "Shared memory")."""
POINTER_ALIGNMENT: Final = 16
"""Bytes: what vectors of 128 bits need, CUDA's largest. A kernel that loads one from elsewhere takes the whole context
with it, so bindings that begin elsewhere are staged (staging.py)."""

# CUresult of the driver's compiler, and what it means to the user.
_NEWER: Final = 222  # CUDA_ERROR_UNSUPPORTED_PTX_VERSION
_UNFIT: Final = {
    200: "it is no kernel image",
    209: "it has no code for this GPU",
    218: "the driver's compiler refuses it: it is damaged, cut off or not what its .version and .target say",
    300: "it is no valid source",
}
_NOT_FOUND: Final = 500
_MAX_THREADS, _SHARED_SIZE, _MAX_DYNAMIC_SHARED_SIZE = 0, 1, 8
"""``CUfunction_attribute``: MAX_THREADS_PER_BLOCK, SHARED_SIZE_BYTES, MAX_DYNAMIC_SHARED_SIZE_BYTES."""


def build(device: CudaDevice, program: Program) -> tuple[Kernel, ...]:
    """Return the program's kernels. With the device's context current."""
    if program.language == CUDA_C:
        image, source = compile_source(device, program)
    else:
        image, source = program.source.encode(), program.source
        if b"\0" in image:
            raise errors.InvalidArgument(f"the PTX of kernels {_names(program)} has a NUL character in it")
    said = ptx.parse(source, f"kernels {_names(program)}")
    if not said.runs_on(device.architecture):
        raise errors.Incompatible(
            f"{said} does not run on {device.uri} ({device.capabilities.name}, sm_{device.architecture}): "
            f"compile for sm_{device.architecture} or an older target"
        )
    for layout in program.layouts:
        check_entry(said, layout)
    module = Module(device, image, said)
    device.counters.programs_compiled += program.language == PTX
    return tuple(CudaKernel(device, layout, module) for layout in program.layouts)


def _names(program: Program) -> str:
    return ", ".join(layout.name for layout in program.layouts)


class Module:
    """A loaded module; its end unloads it when work under way is done."""

    def __init__(self, device: CudaDevice, image: bytes, said: ptx.Ptx) -> None:
        self.handle = 0
        self.said = said
        self._queue = device.queue
        driver = device.cuda.driver
        try:
            self.handle = driver.moduleLoadData(image)
        except device.cuda.errors as error:
            raise load_error(device, said, error) from error
        self._unload = driver.moduleUnload
        self._queue.own(self._unload, self.handle)

    def __del__(self) -> None:
        if self.handle:
            self._queue.bury(0, self._unload, self.handle)


def load_error(device: CudaDevice, said: ptx.Ptx, error: Any) -> errors.Error:
    """Return the error for a module that the driver does not load: with PTX version, target and driver."""
    status = error.status
    where = (
        f"{device.uri} ({device.capabilities.name}, sm_{device.architecture}, {device.capabilities.driver})"
    )
    if status == _NEWER:
        return errors.Incompatible(
            f"{said} is newer than {where} understands: update the NVIDIA driver, or compile for an older target"
        )
    if status in _UNFIT:
        return errors.InvalidArgument(f"{said} does not load on {where}: {_UNFIT[status]} ({error})")
    return mapped(device.uri, f"load {said}", error)


# -- the check of what was compiled --------------------------------------------------------------------


POINTER: Final = "a pointer"
STRUCTURE: Final = "a structure"


def arguments(layout: KernelLayout) -> list[tuple[int, ConstantType | str]]:
    """Return bytes and kind of each argument that a kernel of ``layout`` takes, in order."""
    pointers: list[tuple[int, ConstantType | str]] = [(8, POINTER)] * layout.pointers
    if layout.types is not None:
        return [*((size(kind, CUDA_C), kind) for kind in layout.types), *pointers]
    if layout.addresses:
        return [*pointers, *((4, "a constant") for _ in range(layout.constants))]
    return pointers + [(layout.parameter_bytes, STRUCTURE)] * bool(layout.parameter_bytes)


def check_entry(said: ptx.Ptx, layout: KernelLayout) -> None:
    """Raise InvalidArgument unless PTX has a kernel of that name that takes what the layout says."""
    if layout.lengths:
        raise errors.Incompatible(f"kernel {layout.name!r} checks its accesses, which CUDA kernels cannot")
    entry = said.entries.get(layout.name)
    if entry is None:
        raise _missing(said, layout)
    expected, found = arguments(layout), entry.parameters
    if len(found) != len(expected):
        raise errors.InvalidArgument(
            f"kernel {layout.name!r} takes {len(found)} arguments; its layout has {len(layout.bindings)} bindings "
            f"and {_constants(layout)} constants, which makes {len(expected)}"
        )
    for index, ((length, kind), parameter) in enumerate(zip(expected, found, strict=True)):
        if parameter.size != length or not _agree(kind, parameter):
            raise errors.InvalidArgument(
                f"kernel {layout.name!r}: argument {index} is {parameter.text}, {parameter.size} bytes; "
                f"its layout has {kind} of {length} bytes there"
            )
    _check_block(entry, layout)


def _constants(layout: KernelLayout) -> int:
    return layout.constants if layout.types is None else len(layout.types)


def _agree(kind: ConstantType | str, parameter: ptx.Parameter) -> bool:
    """Whether a parameter of the right size can be of that kind; PTX need not say whether it is a float or pointer."""
    if kind == POINTER:
        return parameter.kind != "f"
    if isinstance(kind, Scalar):
        return not parameter.pointer and (parameter.kind == "b" or (parameter.kind == "f") == kind.is_float)
    return not parameter.pointer


def _missing(said: ptx.Ptx, layout: KernelLayout) -> errors.Error:
    names = ", ".join(said.entries) or "none"
    mangled = any(name.startswith("_Z") for name in said.entries)
    advice = '; declare kernels extern "C", else C++ mangles their names' if mangled else ""
    return errors.InvalidArgument(f"{said} has no kernel {layout.name!r}; it has: {names}{advice}")


def _check_block(entry: ptx.Entry, layout: KernelLayout) -> None:
    x, y, z = layout.workgroup_size
    if entry.required is not None and entry.required != layout.workgroup_size:
        raise errors.InvalidArgument(
            f"kernel {layout.name!r} was compiled for workgroups of {entry.required}; "
            f"its layout says {layout.workgroup_size}"
        )
    if entry.most is not None and x * y * z > entry.most:
        raise errors.InvalidArgument(
            f"kernel {layout.name!r} was compiled for up to {entry.most} work-items in a workgroup; "
            f"its layout says {layout.workgroup_size}"
        )


# -- kernels -------------------------------------------------------------------------------------------


class CudaKernel(Kernel):
    """A loaded CUDA kernel."""

    language = CUDA_C

    def __init__(self, device: CudaDevice, layout: KernelLayout, module: Module) -> None:
        super().__init__(device, layout)
        self._module = module
        self._device = device
        self._queue: Queue = device.queue
        self._errors = device.cuda.errors
        self._launch = device.cuda.driver.launchKernel
        self._block = layout.workgroup_size
        packed = layout.passing == "packed"
        self._shared = 0 if packed else layout.local_memory
        self.pointer_alignment = 1 if packed else POINTER_ALIGNMENT
        self._function = self._found()
        self._check()
        self._arguments = Arguments(layout)

    def _found(self) -> int:
        try:
            function: int = self._device.cuda.driver.moduleGetFunction(self._module.handle, self.layout.name)
        except self._errors as error:
            if error.status != _NOT_FOUND:
                raise self._device.error(f"find kernel {self.layout.name!r}", error) from error
            raise _missing(self._module.said, self.layout) from error
        return function

    def _check(self) -> None:
        """Raise unless the kernel, as compiled for this GPU, can have its workgroup and shared memory."""
        driver, layout = self._device.cuda.driver, self.layout
        x, y, z = layout.workgroup_size
        try:
            most = driver.funcGetAttribute(_MAX_THREADS, self._function)
            shared = driver.funcGetAttribute(_SHARED_SIZE, self._function) + self._shared
            for what, found, limit in (
                ("work-items in a workgroup", x * y * z, most),
                ("bytes of local memory", shared, self._device.capabilities.local_memory),
            ):
                if found > limit:
                    raise errors.Incompatible(
                        f"kernel {layout.name!r} has {found} {what}; compiled for {self._device.uri} "
                        f"it may have {limit}"
                    )
            if shared > PLAIN_SHARED_MEMORY:
                driver.funcSetAttribute(self._function, _MAX_DYNAMIC_SHARED_SIZE, self._shared)
        except self._errors as error:
            raise self._device.error(f"prepare kernel {layout.name!r}", error) from error

    def launch(
        self, workgroups: tuple[int, int, int], constants: tuple[int, ...], memories: list[Memory],
        offsets: list[int], lengths: list[int],
    ) -> Any:  # fmt: skip
        queue = self._queue
        x, y, z = workgroups
        block = self._block
        used = queue.enqueued + 1
        addresses: list[int] = []
        for memory in memories:
            memory.used = used  # type: ignore[attr-defined]  # all memories are CudaMemory
            if memory.foreign is not None:  # type: ignore[attr-defined]
                memory.end_foreign_use()  # type: ignore[attr-defined]
            addresses.append(memory.address)  # type: ignore[attr-defined]
        self._arguments.set(addresses, offsets, lengths, constants)
        get, current = queue.get_current, queue.set_current
        previous = get()
        if previous != queue.context:
            current(queue.context)
        try:
            start = queue.start() if queue.timed else None
            self._launch(
                self._function, x, y, z, block[0], block[1], block[2], self._shared, queue.stream,
                self._arguments.address, 0,
            )  # fmt: skip
            queue.enqueued = used
            return None if start is None else queue.stop(start)
        except self._errors as error:
            raise self._device.error(f"run kernel {self.layout.name!r}", error) from error
        finally:
            if previous != queue.context:
                current(previous)


class Arguments:
    """A kernel's arguments in memory, and at ``address`` their addresses one after the other, as cuLaunchKernel wants
    them; it has read them when it returns (CUDA Driver API)."""

    __slots__ = (
        "_constants",
        "_data",
        "_native",
        "_pack",
        "_packed",
        "_pieces",
        "_slots",
        "_words",
        "address",
    )

    def __init__(self, layout: KernelLayout) -> None:
        sizes = [length for length, _ in arguments(layout)]
        self._slots = _slots(layout, sizes)
        self._packed = layout.passing == "packed"
        self._pieces = None if layout.types is None else Passed(layout.types, CUDA_C).pieces
        self._words: tuple[int, ...] | None = None
        self._constants = len(layout.types or ())
        words = f"{layout.parameter_longs}Q{layout.constants}I" if self._packed else "I4x" * layout.constants
        self._pack = struct.Struct(
            f"={len(layout.bindings)}Q{'' if layout.types is not None else words}"
        ).pack_into
        self._data = bytearray(self._slots[-1] + max(sizes, default=0) + 8)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._data))
        self._native = (ctypes.c_void_p * len(self._slots))(*(base + slot for slot in self._slots))
        self.address = ctypes.addressof(self._native)

    def set(
        self, addresses: list[int], offsets: list[int], lengths: list[int], constants: tuple[int, ...]
    ) -> None:
        """Set all of them, for the next launch."""
        if self._packed:
            self._pack(self._data, 0, *addresses, *offsets, *constants)
            return
        starts = map(int.__add__, addresses, offsets)
        if self._pieces is None:
            self._pack(self._data, 0, *starts, *constants)
            return
        if constants != self._words:
            for slot, piece in zip(self._slots, self._pieces(constants), strict=False):
                self._data[slot : slot + len(piece)] = piece
            self._words = constants
        self._pack(self._data, self._slots[self._constants], *starts)


def _slots(layout: KernelLayout, sizes: Sequence[int]) -> list[int]:
    """Where each argument begins, and one more: at a multiple of 8, or of 16 where it may be a vector of CUDA's."""
    slots = [0]
    for index, length in enumerate(sizes):
        step = 16 if layout.types is not None and index < len(layout.types) else 8
        slots.append(slots[-1] + -(-length // step) * step)
    return slots


# -- CUDA C --------------------------------------------------------------------------------------------


def compile_source(device: CudaDevice, program: Program) -> tuple[bytes, str]:
    """Return what the driver loads and the PTX that it was made from: from the cache, or of NVRTC."""
    nvrtc = load_nvrtc(device)
    options = (f"--gpu-architecture={architecture(nvrtc, device.architecture)}", *program.options)
    name = cache.key(
        ["halgpu", version("halgpu"), "nvrtc", *map(str, nvrtc.getVersion()), *options, program.source]
    )
    kept = cache.load(name)
    if kept is not None:
        device.counters.programs_cached += 1
        size = int.from_bytes(kept[:8], "little")
        return kept[8 + size :], kept[8 : 8 + size].decode()
    text, image = _compile(device, nvrtc, program, options)
    device.counters.programs_compiled += 1
    cache.store(name, len(text).to_bytes(8, "little") + text + image)
    return image, text.decode()


def load_nvrtc(device: CudaDevice) -> Any:
    """Return CuPy's NVRTC; Unavailable, with what to install, where its library is missing."""
    try:
        nvrtc = device.cuda.nvrtc()
        nvrtc.getVersion()
    except Exception as error:  # CuPy looks for the library now, and raises RuntimeError or ImportError
        reason = " ".join(str(error).split())[:200]
        raise errors.Unavailable(
            f"{device.uri} cannot compile CUDA C, since NVRTC is missing ({reason}): "
            "pip install nvidia-cuda-nvrtc-cu12 (CUDA 13: nvidia-cuda-nvrtc)"
        ) from error
    return nvrtc


def architecture(nvrtc: Any, wanted: int) -> str:
    """Return NVRTC's name of the newest architecture that it knows and that a GPU of ``wanted`` runs."""
    known = nvrtc.getSupportedArchs()
    if wanted in known:
        return f"sm_{wanted}"  # machine code: the driver may be older than NVRTC and not know its PTX
    older = [found for found in known if found < wanted]
    if not older:
        raise errors.Incompatible(
            f"NVRTC {'.'.join(map(str, nvrtc.getVersion()))} compiles for sm_{min(known)} and newer, "
            f"not for sm_{wanted}"
        )
    return f"compute_{max(older)}"


def _compile(
    device: CudaDevice, nvrtc: Any, program: Program, options: tuple[str, ...]
) -> tuple[bytes, bytes]:
    made = nvrtc.createProgram(program.source, "kernels.cu", (), ())
    try:
        try:
            nvrtc.compileProgram(made, options)
        except nvrtc.NVRTCError as error:
            raise _compile_error(device, nvrtc.getProgramLog(made), program, options) from error
        text = nvrtc.getPTX(made)
        return text, nvrtc.getCUBIN(made) if options[0].partition("=")[2].startswith("sm_") else text
    finally:
        nvrtc.destroyProgram(made)


def _compile_error(
    device: CudaDevice, log: str, program: Program, options: tuple[str, ...]
) -> errors.InvalidArgument:
    lines = program.source.split("\n")
    width = len(str(len(lines)))
    source = "\n".join(f"{number:{width}} | {line}" for number, line in enumerate(lines, 1))
    return errors.InvalidArgument(
        f"{device.uri} could not build kernels {_names(program)}",
        details=f"log:\n{log.strip()}\noptions: {' '.join(options)}\nsource:\n{source}",
    )
