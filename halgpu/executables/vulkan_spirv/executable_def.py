"""The `VKE1` FlatBuffer: kernels by name, their SPIR-V and the layout of their arguments.

Tables and slots are those of IREE's runtime/src/iree/schemas/vulkan_executable_def.fbs. In front of the
FlatBuffer stands a header (header.py).
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Final

from halgpu import errors
from halgpu.executables.header import content
from halgpu.vm import flatbuffer

IDENTIFIER: Final = b"VKE1"
_RANGE: Final = struct.Struct("<III")
_STORAGE_BUFFER: Final = 7
_UNIFORM_BUFFER: Final = 6
_BDA_V1: Final = 1
MAXIMUM_CONSTANTS: Final = 1 << 12


class Executable(enum.IntEnum):
    """Slots of ExecutableDef."""

    PIPELINES = 0
    DESCRIPTOR_SET_LAYOUTS = 1
    PIPELINE_LAYOUTS = 2
    SHADER_MODULES = 3


class Pipeline(enum.IntEnum):
    """Slots of PipelineDef."""

    SHADER_MODULE_ORDINAL = 0
    ENTRY_POINT = 1
    PIPELINE_LAYOUT_ORDINAL = 2
    SUBGROUP_SIZE = 3
    DEBUG_INFO = 4
    DISPATCH_ABI = 5


class Layout(enum.IntEnum):
    """Slots of PipelineLayoutDef."""

    DESCRIPTOR_SET_LAYOUT_ORDINALS = 0
    PUSH_CONSTANT_RANGES = 1


class SetLayout(enum.IntEnum):
    """Slots of DescriptorSetLayoutDef."""

    BINDINGS = 0


class SetBinding(enum.IntEnum):
    """Slots of DescriptorSetLayoutBindingDef."""

    BINDING = 0
    DESCRIPTOR_TYPE = 1
    DESCRIPTOR_COUNT = 2


class Export(enum.IntEnum):
    """Slots of ExportDef in runtime/src/iree/schemas/executable_debug_info.fbs."""

    NAME = 0
    LOCATION = 1


class FileLine(enum.IntEnum):
    """Slots of FileLineLocDef, there too."""

    FILENAME = 0
    LINE = 1


class Shader(enum.IntEnum):
    """Slots of ShaderModuleDef."""

    SPIRV_CODE = 0


@dataclass(frozen=True, slots=True)
class PipelineLayout:
    """The arguments of a kernel: (set, binding) of each HAL binding in order, and 32-bit constants."""

    bindings: tuple[tuple[int, int], ...]
    constants: int


@dataclass(frozen=True, slots=True)
class PipelineDef:
    """A kernel: the entry point ``name`` of SPIR-V module ``module``. Subgroup size 0 is any.

    ``location`` is the place in the source that it came from, such as ``"model.mlir:12"``, or empty.
    """

    name: str
    module: int
    layout: PipelineLayout
    subgroup_size: int
    location: str = ""


@dataclass(frozen=True, slots=True)
class ExecutableDef:
    """Kernels in the order of their ordinals, and the SPIR-V modules as views of the file."""

    pipelines: tuple[PipelineDef, ...]
    modules: tuple[memoryview, ...]


def read(data: memoryview, what: str = "vulkan executable") -> ExecutableDef:
    """Read an executable; ``data`` is a flat view of bytes and is kept.

    Raises InvalidArgument for damaged data, Incompatible for another version, Unimplemented for the
    buffer-device-address dispatch ABI and for descriptors that are no buffers.
    """
    table = flatbuffer.root(content(data, IDENTIFIER, what), IDENTIFIER, what)
    sets = [
        _read_set(item, i, what)
        for i, item in enumerate(table.vector_of_tables(Executable.DESCRIPTOR_SET_LAYOUTS))
    ]
    layouts = [_read_layout(item, sets, what) for item in table.vector_of_tables(Executable.PIPELINE_LAYOUTS)]
    modules = [
        item.vector(Shader.SPIRV_CODE, "u4").cast("B")
        for item in table.vector_of_tables(Executable.SHADER_MODULES)
    ]
    pipelines = [
        _read_pipeline(item, layouts, len(modules), what)
        for item in table.vector_of_tables(Executable.PIPELINES)
    ]
    if not pipelines:
        raise errors.InvalidArgument(f"{what} has no kernels")
    return ExecutableDef(tuple(pipelines), tuple(modules))


def _read_set(table: flatbuffer.Table, ordinal: int, what: str) -> tuple[int, ...]:
    numbers = []
    for item in table.vector_of_tables(SetLayout.BINDINGS):
        number = item.u32(SetBinding.BINDING)
        kind = item.u32(SetBinding.DESCRIPTOR_TYPE)
        count = item.u32(SetBinding.DESCRIPTOR_COUNT)
        if kind not in (_STORAGE_BUFFER, _UNIFORM_BUFFER):
            raise errors.Unimplemented(
                f"{what}: binding {number} of set layout {ordinal}: descriptor type {kind}"
            )
        if count != 1:
            raise errors.Unimplemented(
                f"{what}: binding {number} of set layout {ordinal} is an array of {count}"
            )
        if number in numbers:
            raise errors.InvalidArgument(f"{what}: set layout {ordinal} has binding {number} twice")
        numbers.append(number)
    return tuple(numbers)


def _read_layout(table: flatbuffer.Table, sets: list[tuple[int, ...]], what: str) -> PipelineLayout:
    bindings: list[tuple[int, int]] = []
    for number, ordinal in enumerate(table.vector(Layout.DESCRIPTOR_SET_LAYOUT_ORDINALS, "u4")):
        if ordinal >= len(sets):
            raise errors.InvalidArgument(f"{what}: descriptor set layout {ordinal} of {len(sets)} is named")
        bindings += [(number, binding) for binding in sets[ordinal]]
    end = 0
    for _, offset, size in table.vector_of_structs(Layout.PUSH_CONSTANT_RANGES, _RANGE):
        if offset % 4 or size % 4:
            raise errors.InvalidArgument(
                f"{what}: push constants at {offset}, {size} bytes, are not in whole words"
            )
        end = max(end, offset + size)
    if end // 4 > MAXIMUM_CONSTANTS:
        raise errors.InvalidArgument(
            f"{what}: {end // 4} push constants; at most {MAXIMUM_CONSTANTS} are taken"
        )
    return PipelineLayout(tuple(bindings), end // 4)


def _read_pipeline(
    table: flatbuffer.Table, layouts: list[PipelineLayout], modules: int, what: str
) -> PipelineDef:
    name = table.string(Pipeline.ENTRY_POINT)
    module = table.u32(Pipeline.SHADER_MODULE_ORDINAL)
    layout = table.u32(Pipeline.PIPELINE_LAYOUT_ORDINAL)
    abi = table.u8(Pipeline.DISPATCH_ABI)
    if abi:
        kind = "BDA_V1 (buffer device addresses)" if abi == _BDA_V1 else f"number {abi}"
        raise errors.Unimplemented(
            f"{what}: kernel {name!r} has dispatch ABI {kind}, which is not supported; "
            "compile with --iree-vulkan-dispatch-abi=descriptors"
        )
    if not name:
        raise errors.InvalidArgument(f"{what}: a kernel has no entry point name")
    if module >= modules or layout >= len(layouts):
        raise errors.InvalidArgument(
            f"{what}: kernel {name!r} names SPIR-V module {module} of {modules} and layout {layout} of {len(layouts)}"
        )
    subgroup_size = table.u32(Pipeline.SUBGROUP_SIZE)
    return PipelineDef(name, module, layouts[layout], subgroup_size, _read_location(table))


def _read_location(table: flatbuffer.Table) -> str:
    export = table.table(Pipeline.DEBUG_INFO)
    location = None if export is None else export.table(Export.LOCATION)
    if location is None or not location.string(FileLine.FILENAME):
        return ""
    return f"{location.string(FileLine.FILENAME)}:{location.i32(FileLine.LINE)}"
