"""The native module ``hal_loader``, version 1: executables and their dispatch.

Functions, calling conventions and checks are those of IREE's runtime/src/iree/modules/hal/loader
(exports.inl, module.c); version 1 has ``executable.lookup.function`` and dispatches by the id it returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from halgpu import errors
from halgpu.devices.buffer import Buffer as HalBuffer
from halgpu.devices.host_kernels import HostOnly, MappedKernel
from halgpu.devices.hostmemory import aligned_bytes
from halgpu.executables import registry
from halgpu.executables.base import Builds, Executable
from halgpu.modules.refs import Ref, text, vm_buffer, wrong_ref
from halgpu.storage import Storage
from halgpu.vm.buffer import Buffer as VmBuffer
from halgpu.vm.buffer import BufferAccess
from halgpu.vm.native import NativeModule, export
from halgpu.vm.support import NullReference

if TYPE_CHECKING:
    from halgpu.devices import Device, Kernel

MAXIMUM_BINDINGS = 32


class HalLoader(NativeModule):
    """``hal_loader`` for one context on ``device``. ``asked`` are the formats that a program offered.

    ``native`` false refuses native code; None asks HALGPU_NATIVE.
    """

    name = "hal_loader"
    version = 1
    types: ClassVar[dict[str, type]] = {"hal.executable": Executable}

    def __init__(self, device: Device, native: bool | None = None) -> None:
        super().__init__()
        self.device = device
        self.native = native
        self.asked: list[str] = []
        self._builds = Builds(device)
        # Keyed by the objects: rodata buffers live as long as the program and hash by identity.
        self._functions: dict[tuple[Executable, VmBuffer], int] = {}
        self._rodata: dict[VmBuffer, HalBuffer] = {}
        self._aligned: dict[VmBuffer, memoryview] = {}

    def detach(self) -> None:
        """Drop what was kept for the program's calls."""
        self._functions.clear()
        self._rodata.clear()
        self._aligned.clear()

    @property
    def waiting(self) -> int:
        """How many kernels :meth:`build` would build."""
        return self._builds.kernels

    def build(self) -> None:
        """Build the kernels of all executables loaded so far; else the first dispatch does."""
        self._builds.finish()

    @export("executable.query_support", "0r_i")
    def executable_query_support(self, executable_format: Ref) -> int:
        """Whether executables of a format run on the device."""
        name = text(executable_format)
        if name not in self.asked:
            self.asked.append(name)
        return int(registry.query_support(self.device, name, self.native))

    @export("executable.load", "0rrr_r")
    def executable_load(self, executable_format: Ref, data: Ref, constants: Ref) -> Executable:
        """An executable of the device, from ``data`` and 32-bit specialization constants (null: none)."""
        name = text(executable_format)
        values: tuple[int, ...] = ()
        if isinstance(constants, VmBuffer):
            if constants.byte_length % 4:
                raise errors.InvalidArgument(
                    f"executable constants are 4 bytes each, found {constants.byte_length} bytes of them"
                )
            values = tuple(constants.read_view().cast("I"))
        view = vm_buffer(data).read_view()
        return registry.load(self.device, name, view, values, self._builds, self.native)

    @export("executable.lookup.function", "0rr_I")
    def executable_lookup_function(self, executable: Ref, name: Ref) -> int:
        """The id of a kernel, for dispatch. Raises NotFound, listing the kernels there are."""
        try:
            return self._functions[executable, name]
        except (KeyError, TypeError):
            pass
        function = _executable(executable).lookup(text(name))
        if _is_rodata(name):
            self._functions[executable, name] = function
        return function

    @export("executable.dispatch", "0rIiiiCiDCrIID_v")
    def executable_dispatch(
        self, executable: Ref, function: int, x: int, y: int, z: int,
        constants: tuple[int, ...], bindings: tuple[tuple[Ref, int, int], ...],
    ) -> None:  # fmt: skip
        """Run a kernel on ``x y z`` workgroups; ``bindings`` are (VM buffer, offset, length) in bytes.

        Storage of HAL buffers goes to the kernel as it is, and bytes that only the host has to a kernel that runs on
        the host. Else these are copied to the device, rodata once a program, and back afterwards where the kernel
        may have written them.
        """
        kernel = _kernel(executable, function)
        if len(bindings) > MAXIMUM_BINDINGS:
            raise errors.ResourceExhausted(
                f"kernel '{kernel.layout.name}': expected at most {MAXIMUM_BINDINGS} bindings, "
                f"found {len(bindings)}"
            )
        try:
            bound = [(buffer.source.hal_buffer, offset, length) for buffer, offset, length in bindings]
        except AttributeError:  # one is no storage, which alone has a HAL buffer, or null
            bound = None
        if bound is not None:
            kernel.dispatch_words((x, y, z), constants, bound, remember=True)
        elif isinstance(kernel, MappedKernel):
            bound = [self._host_binding(kernel, *binding) for binding in enumerate(bindings)]
            kernel.dispatch_words((x, y, z), constants, bound)
        else:
            self._dispatch_staged(kernel, (x, y, z), constants, bindings)

    def _host_binding(
        self, kernel: MappedKernel, index: int, binding: tuple[Ref, int, int]
    ) -> tuple[Any, int, int]:
        """A binding of a kernel that runs on the host: a HAL buffer, or the bytes of a VM buffer as they are."""
        buffer, offset, length = binding
        may_write = _check_binding(kernel, index, buffer, offset, length)
        if type(buffer.source) is Storage:
            return buffer.source, offset, length
        view = buffer.write_view() if may_write else self._rodata_view(kernel, buffer)
        return HostOnly(view, self.device), offset, length

    def _rodata_view(self, kernel: MappedKernel, buffer: VmBuffer) -> memoryview:
        """The bytes of a VM buffer for reading; those of rodata at an address that suits the kernel."""
        view = buffer.read_view()
        if kernel.alignment == 1 or not _is_rodata(buffer) or not view.nbytes:
            return view
        kept = self._aligned.get(buffer)
        if kept is None:
            kept = self._aligned[buffer] = _aligned(view, kernel.alignment)
        return kept

    def _dispatch_staged(
        self, kernel: Kernel, workgroups: tuple[int, int, int], constants: tuple[int, ...],
        bindings: tuple[tuple[Ref, int, int], ...],
    ) -> None:  # fmt: skip
        """Dispatch with bindings of which some are no storage of HAL buffers."""
        copies: dict[VmBuffer, HalBuffer] = {}
        written = []
        bound = []
        for index, (buffer, offset, length) in enumerate(bindings):
            may_write = _check_binding(kernel, index, buffer, offset, length)
            target = self._device_buffer(buffer, copies)
            bound.append((target, offset, length))
            if may_write and buffer in copies:
                written.append((buffer, target, offset, length))
        kernel.dispatch_words(workgroups, constants, bound)
        for buffer, target, offset, length in written:
            buffer.write_view()[offset : offset + length] = target.read()[offset : offset + length]

    def _device_buffer(self, buffer: VmBuffer, copies: dict[VmBuffer, HalBuffer]) -> HalBuffer:
        """The HAL buffer with the bytes of ``buffer``, offsets the same: its own, or a copy."""
        source = buffer.source
        if type(source) is Storage:
            return source
        kept = self._rodata if _is_rodata(buffer) else copies
        found = kept.get(buffer)
        if found is None:
            # The whole buffer, not the range: two bindings may overlap.
            found = kept[buffer] = self.device.allocator.allocate(buffer.byte_length)
            found.write(discard=True)[:] = buffer.read_view()
        return found


def _aligned(view: memoryview, alignment: int) -> memoryview:
    """The bytes themselves where they begin at a multiple of ``alignment``, else a copy of them that does."""
    if not np.frombuffer(view, np.uint8).__array_interface__["data"][0] % alignment:
        return view
    copy = aligned_bytes(view.nbytes, alignment)
    copy[:] = view
    return copy.toreadonly()


def _check_binding(kernel: Kernel, index: int, buffer: Ref, offset: int, length: int) -> bool:
    """Whether the kernel may write the binding. Raises for one that cannot be bound."""
    what = f"kernel '{kernel.layout.name}': binding {index}"
    if buffer is None:
        raise NullReference(f"{what} is null: the program passes no buffer there")
    if type(buffer) is not VmBuffer:
        raise wrong_ref("!vm.buffer", buffer, f"{what}: ")
    try:
        buffer.check_range(offset, length)
    except errors.OutOfRange as error:
        raise errors.OutOfRange(f"{what}: {error.message}") from None
    layouts = kernel.layout.bindings
    may_write = index < len(layouts) and layouts[index].access != "read"
    if may_write and not buffer.access & BufferAccess.MUTABLE:
        if isinstance(kernel, MappedKernel) and not kernel.knows_writes:
            return False
        raise errors.PermissionDenied(f"{what} is read-only for the program, and the kernel may write it")
    return may_write


def _kernel(executable: Ref, function: int) -> Kernel:
    kernels = executable.kernels if type(executable) is Executable else _executable(executable).kernels
    if not 0 <= function < len(kernels):
        raise errors.OutOfRange(f"function id {function} is out of range: the executable has {len(kernels)}")
    return kernels[function]


def _executable(ref: Ref) -> Executable:
    if isinstance(ref, Executable):
        return ref
    raise wrong_ref("!hal.executable", ref)


def _is_rodata(buffer: Any) -> bool:
    return bool(buffer.access & BufferAccess.ORIGIN_MODULE) and not buffer.access & BufferAccess.MUTABLE
