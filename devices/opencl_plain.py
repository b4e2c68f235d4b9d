"""Hand-written OpenCL kernels: parameters as people write them, checked against what the compiler reports.

Part of the ``opencl`` backend. A binding that does not begin with its allocation is a sub-buffer; those have an
alignment (CL_DEVICE_MEM_BASE_ADDR_ALIGN), which staging.py looks after.
"""

from __future__ import annotations

import re
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from halgpu import errors
from halgpu.devices.base import KernelLayout, Program
from halgpu.devices.constants import ConstantType, Passed, Scalar, Struct, Vector, size
from halgpu.devices.memory import Memory
from halgpu.devices.opencl_programs import EnqueuedKernel, build_options, check_limits, compile_source

if TYPE_CHECKING:
    from halgpu.devices.opencl import OpenCLDevice

LANGUAGE: Final = "opencl-c"
_serial: Final = attrgetter("serial")


class PlainKernel(EnqueuedKernel):
    """A kernel with plain parameters. Arguments that did not change since its last launch are not set again."""

    language = LANGUAGE

    def __init__(self, device: OpenCLDevice, layout: KernelLayout, native: Any) -> None:
        super().__init__(device, layout, native)
        self.pointer_alignment = max(device.native.mem_base_addr_align // 8, 1)
        assert layout.types is not None
        self._pieces = Passed(layout.types, LANGUAGE).pieces
        self._first = len(layout.types)
        self._words_set: tuple[int, ...] | None = None
        self._pieces_set = [b""] * self._first
        self._serials = [0] * len(layout.bindings)
        self._starts = [0] * len(layout.bindings)
        if layout.local_memory:
            native.set_arg(self._first + layout.pointers, device.cl.LocalMemory(layout.local_memory))

    def _set_arguments(self, memories: list[Memory], offsets: list[int], constants: tuple[int, ...]) -> None:
        if constants is not self._words_set and constants != self._words_set:
            self._set_constants(constants)
        used = self._queue.enqueued + 1
        for memory in memories:
            memory.used = used  # type: ignore[attr-defined]  # all memories are OpenCLMemory
        if offsets is self._starts:  # the very same list comes with the same memories
            return
        serials = list(map(_serial, memories))
        if serials != self._serials or offsets != self._starts:
            self._set_bindings(memories, serials, offsets)

    def _set_constants(self, words: tuple[int, ...]) -> None:
        known = self._pieces_set
        for index, piece in enumerate(self._pieces(words)):
            if piece != known[index]:
                self._set_bytes(index, piece)
                known[index] = piece
        self._words_set = words

    def _set_bindings(self, memories: list[Memory], serials: list[int], offsets: list[int]) -> None:
        known, starts = self._serials, self._starts
        self._serials, self._starts = [0] * len(serials), [0] * len(serials)  # in case it fails half way
        for index, memory in enumerate(memories):
            if serials[index] != known[index] or offsets[index] != starts[index]:
                self._native.set_arg(self._first + index, pointer(self._device, memory, offsets[index]))
        self._serials, self._starts = serials, offsets

    def _forget_arguments(self) -> None:
        self._words_set = None
        self._pieces_set = [b""] * self._first
        self._serials, self._starts = [0] * len(self._serials), [0] * len(self._serials)


def pointer(device: OpenCLDevice, memory: Memory, offset: int) -> Any:
    """What a kernel takes for a pointer to byte ``offset``: the allocation, or a sub-buffer from there to the end."""
    if not 0 < offset < memory.byte_length:  # no bytes are bound at the end
        return memory.handle
    found = device.regions.setdefault(memory, {})
    if offset not in found:
        found[offset] = _sub_buffer(device, memory.handle, offset, memory.byte_length - offset)
    return found[offset]


def _sub_buffer(device: OpenCLDevice, native: Any, offset: int, byte_length: int) -> Any:
    # OpenCL 1.2 5.2.1: a sub-buffer has none. Imported memory (imported.py) may be one.
    whole = native.get_info(device.cl.mem_info.ASSOCIATED_MEMOBJECT)
    if whole is not None:
        native, offset = whole, offset + native.get_info(device.cl.mem_info.OFFSET)
    return native.get_sub_region(offset, byte_length)


# What was compiled ------------------------------------------------------------------------------------

_NAMES: Final = {
    "char": "i8", "uchar": "u8", "short": "i16", "ushort": "u16", "int": "i32", "uint": "u32", "long": "i64",
    "ulong": "u64", "half": "f16", "float": "f32", "double": "f64",
}  # fmt: skip
_C: Final = {ours: theirs for theirs, ours in _NAMES.items()}
_BUILT_IN: Final = re.compile(rf"({'|'.join(_NAMES)})(2|3|4|8|16)?")


def c_name(kind: ConstantType) -> str:
    """How OpenCL C calls a type."""
    if isinstance(kind, Scalar):
        return _C[kind.name]
    if isinstance(kind, Vector):
        return f"{_C[kind.element.name]}{kind.count}"
    return "struct " + str(kind)


def check_plain(device: OpenCLDevice, program: Program, layout: KernelLayout, native: Any) -> None:
    """Raise unless the compiled kernel takes what the layout says and fits the device."""
    assert layout.types is not None
    expected = len(layout.types) + layout.pointers + bool(layout.local_memory)
    if native.num_args != expected:
        raise errors.InvalidArgument(
            f"kernel {layout.name!r} takes {native.num_args} arguments ({_signature(native, device)}); its layout has "
            f"{len(layout.types)} constants, {len(layout.bindings)} bindings and {layout.local_memory} bytes of local "
            f"memory, which makes {expected}: {_described(layout)}"
        )
    sizes: dict[int, tuple[str, ConstantType]] = {}
    for index, found in enumerate(_arguments(native, device)):
        _check_argument(layout, index, found, sizes)
    if sizes:
        _check_sizes(device, program, layout, sizes)
    check_limits(device, layout, native, more_local=layout.local_memory)


class _Argument:
    """What the compiler says of a kernel's parameter."""

    def __init__(self, native: Any, index: int, device: OpenCLDevice) -> None:
        info, cl = device.cl.kernel_arg_info, device.cl
        spaces = cl.kernel_arg_address_qualifier
        self.name: str = native.get_arg_info(index, info.NAME)
        self.type: str = native.get_arg_info(index, info.TYPE_NAME)
        space = native.get_arg_info(index, info.ADDRESS_QUALIFIER)
        self.space: str = spaces.to_string(space).lower()
        qualifiers = native.get_arg_info(index, info.TYPE_QUALIFIER)
        self.const = bool(qualifiers & cl.kernel_arg_type_qualifier.CONST)

    @property
    def is_pointer(self) -> bool:
        return self.type.endswith("*")

    def __str__(self) -> str:
        space = "" if self.space == "private" else f"__{self.space} "
        const = "const " if self.const and self.is_pointer and self.space != "constant" else ""
        return f"{space}{const}{self.type} {self.name}"


def _arguments(native: Any, device: OpenCLDevice) -> list[_Argument]:
    try:
        return [_Argument(native, index, device) for index in range(native.num_args)]
    except device.cl.Error:  # a program made from a binary may not have kept them
        return []


def _signature(native: Any, device: OpenCLDevice) -> str:
    return ", ".join(map(str, _arguments(native, device))) or "none"


def _described(layout: KernelLayout) -> str:
    """The parameters of a layout in order, in words."""
    wanted = [f"constant {kind}" for kind in layout.types or ()]
    wanted += [f"{binding.access} pointer" for binding in layout.bindings]
    wanted += ["__local pointer"] * bool(layout.local_memory)
    return ", ".join(wanted) or "none"


def _check_argument(
    layout: KernelLayout, index: int, found: _Argument, sizes: dict[int, tuple[str, ConstantType]]
) -> None:
    """Raise unless a parameter is what the layout says; note in ``sizes`` a type whose name says nothing."""
    types = layout.types or ()
    what = f"kernel {layout.name!r}: argument {index}, '{found}',"
    if index < len(types):
        if found.space != "private" or found.is_pointer:
            raise _wrong_kind(layout, what, f"constant {index}, {types[index]} by value")
        if not _check_type(what, types[index], found.type, index):
            sizes[index] = (found.type, types[index])
    elif index < len(types) + len(layout.bindings):
        number = index - len(types)
        if found.space not in ("global", "constant") or not found.is_pointer:
            raise _wrong_kind(layout, what, f"binding {number}, a __global or __constant pointer")
        access = layout.bindings[number].access
        if access != "read" and (found.const or found.space == "constant"):
            raise errors.InvalidArgument(
                f"{what} is read-only; the layout says that binding {number} is {access!r}: expected 'read'"
            )
    elif found.space != "local":
        raise _wrong_kind(layout, what, f"a __local pointer to {layout.local_memory} bytes")


def _wrong_kind(layout: KernelLayout, what: str, expected: str) -> errors.Error:
    return errors.InvalidArgument(
        f"{what} is not what the layout has there: {expected}. Parameters come in this order: constants, "
        f"bindings, local memory; here {_described(layout)}"
    )


def _check_type(what: str, kind: ConstantType, found: str, index: int) -> bool:
    """Raise where a built-in type is another than the layout's; False for a name that the source defines."""
    match = _BUILT_IN.fullmatch(found)
    if match is None and found not in ("image1d_t", "image2d_t", "image3d_t", "sampler_t", "event_t"):
        return False
    if found != c_name(kind) or isinstance(kind, Struct):
        ours = f" ({_NAMES[match[1]]}{'x' + match[2] if match[2] else ''})" if match else ""
        raise errors.InvalidArgument(
            f"{what} is a {found}{ours}; the layout says that constant {index} is {kind} ({c_name(kind)})"
        )
    return True


def _check_sizes(
    device: OpenCLDevice, program: Program, layout: KernelLayout, sizes: dict[int, tuple[str, ConstantType]]
) -> None:
    """Let the compiler compare the size of each structure with the layout's; argument info has no sizes."""
    if _sizes_agree(device, program, sizes):
        return
    for index, (name, kind) in sizes.items():
        if not _sizes_agree(device, program, {index: (name, kind)}):
            raise errors.InvalidArgument(
                f"kernel {layout.name!r}: argument {index} is a {name} in the source, which does not have the "
                f"{size(kind, LANGUAGE)} bytes of {kind}, the layout's constant {index}"
            )


def _sizes_agree(device: OpenCLDevice, program: Program, sizes: dict[int, tuple[str, ConstantType]]) -> bool:
    checks = "".join(
        f"\ntypedef char halgpu_size_of_argument_{index}[sizeof({name}) == {size(kind, LANGUAGE)} ? 1 : -1];"
        for index, (name, kind) in sizes.items()
    )
    device.counters.programs_compiled += 1
    checked = Program(program.language, program.source + checks, program.layouts, program.options)
    try:
        compile_source(device, checked, build_options(checked, device.quirks.build_options))
    except errors.InvalidArgument:
        return False
    return True
