"""The format ``cuda-nvptx-fb``: PTX of iree-compile's CUDA target, in the `CDA1` FlatBuffer.

Tables and slots are those of IREE's runtime/src/iree/schemas/cuda_executable_def.fbs; what kernels take is what its
CUDA driver passes (runtime/src/iree/hal/drivers/cuda/stream_command_buffer.c): the address of each binding, in order,
then each 32-bit constant, with the block size and dynamic shared memory of the export.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from halgpu import errors
from halgpu.devices.layout import BindingLayout, KernelLayout, Program
from halgpu.executables.base import Builds, Executable
from halgpu.executables.header import content
from halgpu.vm import flatbuffer

if TYPE_CHECKING:
    from halgpu.devices.base import Device, Kernel

FORMAT: Final = "cuda-nvptx-fb"
LANGUAGE: Final = "ptx"
IDENTIFIER: Final = b"CDA1"
WHAT: Final = "cuda executable"
MAXIMUM_CONSTANTS: Final = 1 << 12
_BLOCK: Final = struct.Struct("<III")
_READ_ONLY: Final = 1
"""Of BindingBits."""


class ExecutableSlot(enum.IntEnum):
    """Slots of ExecutableDef."""

    EXPORTS = 0
    MODULES = 1


class Export(enum.IntEnum):
    """Slots of ExportDef."""

    MODULE_ORDINAL = 0
    KERNEL_NAME = 1
    BLOCK_DIMS = 2
    BLOCK_SHARED_MEMORY_SIZE = 3
    CONSTANT_COUNT = 4
    BINDING_FLAGS = 5


class Module(enum.IntEnum):
    """Slots of ModuleDef."""

    PTX_IMAGE = 0


@dataclass(frozen=True, slots=True)
class ExecutableDef:
    """Kernels in the order of their ordinals, each with the number of its module, and the modules as PTX text."""

    kernels: tuple[tuple[int, KernelLayout], ...]
    modules: tuple[str, ...]


def read(data: memoryview) -> ExecutableDef:
    """Read an executable; ``data`` is a flat view of bytes.

    Raises InvalidArgument for damaged data, Incompatible for another version.
    """
    table = flatbuffer.root(content(data, IDENTIFIER, WHAT), IDENTIFIER, WHAT)
    modules = tuple(item.string(Module.PTX_IMAGE) for item in table.vector_of_tables(ExecutableSlot.MODULES))
    for number, text in enumerate(modules):
        if not text:
            raise errors.InvalidArgument(f"{WHAT}: module {number} is empty")
    kernels = tuple(
        _kernel(item, number, len(modules))
        for number, item in enumerate(table.vector_of_tables(ExecutableSlot.EXPORTS))
    )
    if not kernels:
        raise errors.InvalidArgument(f"{WHAT} has no kernels")
    return ExecutableDef(kernels, modules)


def _kernel(table: flatbuffer.Table, number: int, modules: int) -> tuple[int, KernelLayout]:
    name = table.string(Export.KERNEL_NAME)
    if not name:
        raise errors.InvalidArgument(f"{WHAT}: kernel {number} has no name")
    module = table.u32(Export.MODULE_ORDINAL)
    if module >= modules:
        raise errors.InvalidArgument(f"{WHAT}: kernel {name!r} names module {module} of {modules}")
    block = table.struct(Export.BLOCK_DIMS, _BLOCK)
    if block is None or 0 in block:
        raise errors.InvalidArgument(
            f"{WHAT}: kernel {name!r} has no block size: expected three counts from 1 on, found {block}"
        )
    constants = table.u32(Export.CONSTANT_COUNT)
    if constants > MAXIMUM_CONSTANTS:
        raise errors.InvalidArgument(
            f"{WHAT}: kernel {name!r} has {constants} constants; at most {MAXIMUM_CONSTANTS} are taken"
        )
    flags = table.vector_of_integers(Export.BINDING_FLAGS, "u8")
    return module, KernelLayout(
        name,
        constants,
        [BindingLayout("read" if flag & _READ_ONLY else "readwrite") for flag in flags],
        [int(count) for count in block],
        table.u32(Export.BLOCK_SHARED_MEMORY_SIZE),
        addresses=True,
    )


class CudaPtxLoader:
    """Loads what iree-compile's `cuda` target makes on any device that takes PTX."""

    format = FORMAT

    def query_support(self, device: Device) -> bool:
        """Whether ``device`` takes PTX."""
        languages = device.capabilities.languages
        return not languages or LANGUAGE in languages

    def load(
        self, device: Device, data: memoryview, constants: tuple[int, ...], builds: Builds
    ) -> Executable:
        """Add the kernels to ``builds``; see :class:`~halgpu.executables.base.Loader`."""
        if constants:
            raise errors.Unimplemented(
                f"{WHAT}: expected no specialization constants, which PTX has not, found {len(constants)}"
            )
        definition = read(data.cast("B") if data.format != "B" else data)
        names = [layout.name for _, layout in definition.kernels]
        programs = _programs(definition)
        if len(programs) > 1:
            return Executable(FORMAT, _build(device, definition, programs), names)
        executable = Executable(FORMAT, builds, names)
        builds.add(executable, next(iter(programs.values())))
        return executable


def _programs(definition: ExecutableDef) -> dict[int, Program]:
    """One program for each module that has kernels."""
    layouts: dict[int, list[KernelLayout]] = {}
    for module, layout in definition.kernels:
        layouts.setdefault(module, []).append(layout)
    return {
        module: Program(LANGUAGE, definition.modules[module], tuple(found))
        for module, found in layouts.items()
    }


def _build(device: Device, definition: ExecutableDef, programs: dict[int, Program]) -> Sequence[Kernel]:
    """The kernels of several modules, in the order of their ordinals. They are built now."""
    built = device.build_all([*programs.values()])
    kernels = {module: iter(found) for module, found in zip(programs, built, strict=True)}
    return [next(kernels[module]) for module, _ in definition.kernels]
