"""OpenCL programs and kernels: building, the check of what was compiled, launching.

Part of the ``opencl`` backend (opencl.py), which imports pyopencl and hands it over as ``device.cl``.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from halgpu import disk_cache as cache
from halgpu import errors
from halgpu.devices.base import Kernel, KernelLayout, Program
from halgpu.devices.forks import keep_forever
from halgpu.devices.memory import Memory

if TYPE_CHECKING:
    from halgpu.devices.opencl import OpenCLDevice


class EnqueuedKernel(Kernel):
    """A built OpenCL kernel; how it sets its arguments is what kinds of kernels differ in."""

    def __init__(self, device: OpenCLDevice, layout: KernelLayout, native: Any) -> None:
        super().__init__(device, layout)
        self._device = device
        self._queue = device.queue
        self._error = device.cl.Error
        self._enqueue = device.cl.enqueue_nd_range_kernel
        self._native = native
        self._local = layout.workgroup_size
        self._workgroups = (1, 1, 1)
        self._size = self._local
        """Of the last launch: ``workgroups`` times ``local``."""
        # PyOpenCL's public set_arg takes 13 us for bytes, since it tries every other kind first; what its
        # own generated code calls takes 0.3 us.
        self._set_bytes = getattr(native, "_set_arg_buf", native.set_arg)

    def __del__(self) -> None:
        native = getattr(self, "_native", None)  # not there when __init__ raised
        if native is not None and self.device.counters.forked:
            keep_forever(native)

    def launch(
        self, workgroups: tuple[int, int, int], constants: tuple[int, ...], memories: list[Memory],
        offsets: list[int], lengths: list[int],
    ) -> Any:  # fmt: skip
        queue, local = self._queue, self._local
        if workgroups is not self._workgroups:
            x, y, z = self._workgroups = workgroups
            self._size = x * local[0], y * local[1], z * local[2]
        try:
            self._set_arguments(memories, offsets, constants)
            event = self._enqueue(queue.native, self._native, self._size, local)
        except self._error as error:
            self._forget_arguments()
            raise self._device.error(f"run kernel {self.layout.name!r}", error) from error
        queue.enqueued += 1
        return event

    @abstractmethod
    def _set_arguments(self, memories: list[Memory], offsets: list[int], constants: tuple[int, ...]) -> None:
        """Set the arguments that are not those of the last launch, and mark the memories as used by this one."""

    @abstractmethod
    def _forget_arguments(self) -> None:
        """Have the next launch set all arguments."""


class OpenCLKernel(EnqueuedKernel):
    """A kernel with packed parameters. Arguments that did not change since its last launch are not set again."""

    def __init__(self, device: OpenCLDevice, layout: KernelLayout, native: Any) -> None:
        super().__init__(device, layout, native)
        self._serials = [0] * layout.pointers
        self._parameters: tuple[int, ...] | None = None
        padding = layout.parameter_bytes - 8 * layout.parameter_longs - 4 * layout.constants
        self._pack = struct.Struct(f"={layout.parameter_longs}Q{layout.constants}I{padding}x").pack
        if not layout.parameter_bytes:
            self._parameters = ()

    def _set_arguments(self, memories: list[Memory], offsets: list[int], constants: tuple[int, ...]) -> None:
        serials, used, values = self._serials, self._queue.enqueued + 1, (*offsets, *constants)
        for index, memory in enumerate(memories):
            memory.used = used  # type: ignore[attr-defined]  # all memories are OpenCLMemory
            if memory.serial != serials[index]:
                self._native.set_arg(index, memory.handle)
                serials[index] = memory.serial
        if values != self._parameters:
            self._set_bytes(len(memories), self._pack(*values))
            self._parameters = values

    def _forget_arguments(self) -> None:
        self._serials = [0] * len(self._serials)
        self._parameters = None if self.layout.parameter_bytes else ()


def check_kernel(device: OpenCLDevice, layout: KernelLayout, native: Any) -> None:
    """Raise unless the compiled kernel takes what the layout says and fits the device."""
    expected = layout.pointers + bool(layout.parameter_bytes)
    if native.num_args != expected:
        raise errors.InvalidArgument(
            f"kernel {layout.name!r} takes {native.num_args} arguments; its layout has {len(layout.bindings)} "
            f"bindings and {layout.parameter_bytes} bytes of parameters, which makes {expected}"
        )
    check_limits(device, layout, native)
    _check_arguments(device, layout, native)


def check_limits(device: OpenCLDevice, layout: KernelLayout, native: Any, more_local: int = 0) -> None:
    """Raise unless the compiled kernel fits the layout's workgroup and the device, with ``more_local`` bytes."""
    info = device.cl.kernel_work_group_info
    compiled = tuple(native.get_work_group_info(info.COMPILE_WORK_GROUP_SIZE, device.native))
    if any(compiled) and compiled != layout.workgroup_size:
        raise errors.InvalidArgument(
            f"kernel {layout.name!r} was compiled for workgroups of {compiled}; "
            f"its layout says {layout.workgroup_size}"
        )
    x, y, z = layout.workgroup_size
    for what, found, limit in (
        ("work-items in a workgroup", x * y * z, native.get_work_group_info(info.WORK_GROUP_SIZE, device.native)),
        ("bytes of local memory", native.get_work_group_info(info.LOCAL_MEM_SIZE, device.native) + more_local,
         device.capabilities.local_memory),
    ):  # fmt: skip
        if found > limit:
            raise errors.Incompatible(
                f"kernel {layout.name!r} has {found} {what}; compiled for {device.uri} it may have {limit}"
            )


def _check_arguments(device: OpenCLDevice, layout: KernelLayout, native: Any) -> None:
    info, spaces = device.cl.kernel_arg_info, device.cl.kernel_arg_address_qualifier
    try:
        found = [
            native.get_arg_info(index, info.ADDRESS_QUALIFIER) for index in range(native.num_args)
        ]  # fmt: skip
    except device.cl.Error:  # a program made from a binary may not have kept them
        return
    for index, space in enumerate(found):
        binding = index < layout.pointers
        allowed = (spaces.GLOBAL, spaces.CONSTANT) if binding else (spaces.PRIVATE,)
        if space not in allowed:
            raise errors.InvalidArgument(
                f"kernel {layout.name!r}: argument {index} is {spaces.to_string(space).lower()}; expected "
                + ("a pointer to global or constant memory" if binding else "the parameters, by value")
            )


class Built(NamedTuple):
    """A built native program, and whether it came from halgpu's cache."""

    native: Any
    cached: bool


def build_program(device: OpenCLDevice, program: Program) -> Built:
    """Return the built program, from the cache if it is there. May run in several threads at once."""
    options = build_options(program, device.quirks.build_options)
    if not (device.keeps_builds and cache.enabled()):
        return Built(compile_source(device, program, options), False)
    name = cache.key(_identity(device, program, options))
    native = _from_binary(device, cache.load(name), options)
    if native is not None:
        return Built(native, True)
    native = compile_source(device, program, options)
    with suppress(device.cl.Error):  # a driver need not have binaries
        cache.store(name, native.get_info(device.cl.program_info.BINARIES)[0])
    return Built(native, False)


def build_options(program: Program, more: tuple[str, ...] = ()) -> str:
    """Return what the compiler is told: the program's options, no warnings, arguments' kinds kept, and ``more``."""
    # -cl-std=CL1.2 is what compilers of OpenCL 1.2 and 3.0 assume; those of 2.x are told.
    standard = () if any(option.startswith("-cl-std") for option in program.options) else ("-cl-std=CL1.2",)
    return " ".join((*standard, "-w", "-cl-kernel-arg-info", *program.options, *more))


def _identity(device: OpenCLDevice, program: Program, options: str) -> list[str]:
    native = device.native
    parts = [native.platform.name, native.platform.version, native.vendor, native.name, native.version]
    return [*parts, native.driver_version, options, program.source]


def _from_binary(device: OpenCLDevice, binary: bytes | None, options: str) -> Any:
    if binary is None:
        return None
    try:
        native = device.cl._Program(device.context, [device.native], [binary])
        native._build(options=options.encode(), devices=[device.native])
    except device.cl.Error:  # made by another driver after all, or damaged: build it again
        return None
    return native


def compile_source(device: OpenCLDevice, program: Program, options: str) -> Any:
    # Not cl.Program(…).build: it adds options of its own, keeps a second cache behind a lock file, and turns
    # every word a compiler says into a Python warning.
    cl = device.cl
    native = cl._Program(device.context, program.source)
    try:
        native._build(options=options.encode(), devices=[device.native])
    except cl.Error as error:
        raise _build_error(device, program, options, native, error) from error
    return native


def _build_error(
    device: OpenCLDevice, program: Program, options: str, native: Any, error: Any
) -> errors.Error:
    cl = device.cl
    if (
        error.code != cl.status_code.BUILD_PROGRAM_FAILURE
        and error.code != cl.status_code.INVALID_BUILD_OPTIONS
    ):
        return device.error("build a program", error)
    log = native.get_build_info(device.native, cl.program_build_info.LOG).strip()
    names = ", ".join(layout.name for layout in program.layouts)
    lines = program.source.split("\n")
    width = len(str(len(lines)))
    source = "\n".join(f"{number:{width}} | {line}" for number, line in enumerate(lines, 1))
    return errors.InvalidArgument(
        f"{device.uri} could not build kernels {names}",
        details=f"log:\n{log}\noptions: {options}\nsource:\n{source}",
    )
