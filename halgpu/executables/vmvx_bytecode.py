"""The format ``vmvx-bytecode-fb``: kernels as VM bytecode, run on the host by halgpu's own VM.

The data is a bytecode module (.vmfb) whose exports are kernels, called once a workgroup, in the order and with the
arguments of IREE's runtime/src/iree/hal/local/loaders/vmvx_module_loader.c. As its hal_loader module dispatches them
(runtime/src/iree/modules/hal/loader/module.c), workgroups have a size of 1 and no binding is known to be read-only:
a write to one that is raises PermissionDenied.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from halgpu import errors
from halgpu.devices.host_kernels import HostFunctionKernel
from halgpu.devices.layout import KernelLayout
from halgpu.executables.base import Builds, Executable
from halgpu.modules.vmvx import Vmvx
from halgpu.vm.allocator import NULL_ALLOCATOR
from halgpu.vm.buffer import Buffer, BufferAccess
from halgpu.vm.context import Context, Function
from halgpu.vm.lists import List
from halgpu.vm.module import LIFECYCLE, BytecodeModule

if TYPE_CHECKING:
    from halgpu.devices.base import Device

FORMAT: Final = "vmvx-bytecode-fb"
WHAT: Final = "vmvx executable"
ENTRY: Final = "0rrriiiiiiiii_v"
"""Calling convention of a kernel: local memory, constants, list of bindings; workgroup id, size and count."""
SET_CONSTANTS: Final = "__set_constants"
SPECIAL: Final = frozenset((*LIFECYCLE, SET_CONSTANTS))
UNLIMITED: Final = 2**31 - 1
PAGE: Final = 4096
"""Bytes that local memory is counted in, at most LIMITS["local_memory"] of them."""
LIMITS: Final = {"binding_count": 32, "constant_count": 0xFF, "local_memory": 0xFFFF * PAGE}

_MUTABLE: Final = BufferAccess.ORIGIN_HOST | BufferAccess.MUTABLE
_READ_ONLY: Final = BufferAccess.ORIGIN_HOST


def _borrowed(view: memoryview) -> Buffer:
    access = _READ_ONLY if view.readonly else _MUTABLE
    return Buffer.initialize(access, view, NULL_ALLOCATOR)


class BytecodeKernel:
    """A kernel as a host function: see :class:`~halgpu.devices.host_kernels.HostFunctionKernel`."""

    def __init__(self, context: Context, name: str, local_memory: int) -> None:
        self._context = context
        self._name = name
        self._local_memory = local_memory
        self._function: Function | None = None

    def __call__(
        self, workgroups: tuple[int, int, int], constants: Sequence[int], views: list[memoryview]
    ) -> None:
        """Call the function for each workgroup, x fastest; the buffers that it sees end with the dispatch."""
        if self._function is None:  # translated when it is first needed
            self._function = self._context.lookup(self._name)
        local_memory = _borrowed(memoryview(bytearray(self._local_memory)))
        packed = _borrowed(memoryview(struct.pack(f"<{len(constants)}I", *constants)))
        bindings = [_borrowed(view) for view in views]
        try:
            self._function.call_each(_calls(workgroups, local_memory, packed, bindings))
        finally:
            for buffer in (local_memory, packed, *bindings):
                buffer.release()


def _calls(
    workgroups: tuple[int, int, int], local_memory: Buffer, constants: Buffer, bindings: list[Buffer]
) -> Iterator[tuple[Any, ...]]:
    """The arguments for each workgroup."""
    across, down, deep = workgroups
    for z in range(deep):
        for y in range(down):
            for x in range(across):
                # A kernel may take refs out of its list.
                listed = List.of(Buffer, bindings)
                yield local_memory, constants, listed, x, y, z, 1, 1, 1, across, down, deep


class VmvxBytecodeLoader:
    """Loads what iree-compile's `vmvx` backend makes, on any device: kernels work on its host-mapped storage."""

    format = FORMAT

    def query_support(self, device: Device) -> bool:
        """Yes: the kernels need nothing of the device but its memory."""
        return True

    def load(
        self, device: Device, data: memoryview, constants: tuple[int, ...], builds: Builds
    ) -> Executable:
        """Load the module in a context of its own; see :class:`~halgpu.executables.base.Loader`.

        Raises NotFound or Incompatible where the module imports what ``vmvx`` does not have, and what its initializer
        raises.
        """
        module = BytecodeModule.load(bytes(data))
        names = [name for name in module.ordinals if name not in SPECIAL]
        if not names:
            raise errors.InvalidArgument(f"{WHAT} has no kernels")
        layouts = [_layout(module, name) for name in names]
        context = Context([Vmvx(), module])
        _set_constants(context, module, constants)
        kernels = [
            HostFunctionKernel(
                device,
                layout,
                BytecodeKernel(context, f"{module.name}.{name}", layout.local_memory),
                knows_writes=False,
                workgroup_limits=(UNLIMITED,) * 3,
            )
            for name, layout in zip(names, layouts, strict=True)
        ]
        return Executable(FORMAT, kernels, names)


def _layout(module: BytecodeModule, name: str) -> KernelLayout:
    signature = module.definition.signatures[module.ordinals[name]]
    if signature.cconv != ENTRY:
        raise errors.InvalidArgument(
            f"{WHAT}: expected exports with calling convention '{ENTRY}', found {name!r} with '{signature.cconv}'"
        )
    bindings, count, local_memory = (_number(name, signature.attrs, key) for key in LIMITS)
    return KernelLayout(name, count, ["readwrite"] * bindings, local_memory=local_memory)


def _number(name: str, attrs: Any, key: str) -> int:
    """An attribute of a kernel that says how many there are of something; left out for none."""
    text = attrs.get(key, "0")
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 11 else None
    if value is None or value > LIMITS[key]:
        raise errors.InvalidArgument(
            f"{WHAT}: kernel {name!r}: expected {key} to be a number from 0 to {LIMITS[key]}, found {text[:40]!r}"
        )
    return value


def _set_constants(context: Context, module: BytecodeModule, constants: tuple[int, ...]) -> None:
    takes = SET_CONSTANTS in module.ordinals
    if takes != bool(constants):
        expected = "some" if takes else "none"
        raise errors.InvalidArgument(
            f"{WHAT}: expected {expected} specialization constants, found {len(constants)}"
        )
    if takes:
        packed = _borrowed(memoryview(struct.pack(f"<{len(constants)}I", *constants)))
        with packed:
            context.lookup(f"{module.name}.{SET_CONSTANTS}")(packed)
