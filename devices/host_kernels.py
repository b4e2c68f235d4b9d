"""Kernels that are functions of the host, for any device: they work on the host's bytes of its buffers.

Bound ranges are mapped by residency: in place where host and device share the memory, else by the mirror that every
map uses. So a program's GPU kernels and host kernels can follow each other on the same buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from halgpu.devices import dispatch
from halgpu.devices.base import Kernel
from halgpu.devices.buffer import KERNEL_READ, KERNEL_WRITE
from halgpu.devices.constants import Passed
from halgpu.errors import Error, OutOfRange, PermissionDenied

if TYPE_CHECKING:
    from halgpu.devices.base import Device, KernelLayout

HostFunction = Callable[[tuple[int, int, int], Any, list[memoryview]], None]


class HostFunctionKernel(Kernel):
    """A function called once a dispatch, which returns when it is done.

    It is called as ``function(workgroups, constants, views)``: three counts, of which none is 0; unsigned 32-bit ints
    or, where the layout has types, values of those; one flat ``B`` memoryview of the bound range a binding, not
    copied, writable where the kernel may write it, and valid during the call. Bindings may overlap. What the function
    raises comes out of ``dispatch``. The device does no other work meanwhile.

    A binding may also be ``(memoryview, offset, length)``: bytes that only the host has.

    ``knows_writes`` false: nothing tells which of the ``"readwrite"`` bindings the kernel writes. Then it also takes
    bytes that may only be read, as a read-only view, and the function must leave them alone. That is what IREE does
    for its CPU executables (runtime/src/iree/modules/hal/loader/module.c maps all bindings for reading).
    ``alignment`` tells who binds bytes of the host again and again at which addresses the function is quickest.
    """

    def __init__(
        self,
        device: Device,
        layout: KernelLayout,
        function: HostFunction,
        *,
        knows_writes: bool = True,
        workgroup_limits: tuple[int, int, int] | None = None,
        alignment: int = 1,
    ) -> None:
        super().__init__(device, layout)
        self.knows_writes = knows_writes
        self.alignment = alignment
        if workgroup_limits is not None:
            self.workgroup_limits = workgroup_limits
            self._smallest_limit = min(workgroup_limits)
        if not knows_writes:
            self._checks = tuple((rights & KERNEL_READ, minimum) for rights, minimum in self._checks)
        self._writes = tuple(binding.access != "read" for binding in layout.bindings)
        self._function = function
        self._typed_values = None if layout.types is None else Passed(layout.types, self.language).values

    def _start(self, counts: tuple[int, int, int], values: tuple[int, ...], bindings: Sequence[Any]) -> None:
        device = self.device
        if device.unusable is not None:
            device.require_usable()
        if len(bindings) != len(self._checks):
            raise dispatch.bad_binding_count(self, len(bindings))
        with device.lock:
            for index, binding in enumerate(bindings):
                self._check(index, binding)
            starts = [_start_of(buffer, offset) for buffer, offset, _ in bindings]
            dispatch.check_alignment(self, starts)
            if 0 in counts:
                return
            views: list[Any] = self._map(bindings)
            lengths = [length for _, _, length in bindings]
            counters = device.counters
            if counters.recorder is None:
                self.launch(counts, values, views, starts, lengths)
            else:
                counters.recorder.launch(self, counts, values, views, starts, lengths)
            counters.dispatches += 1

    def _check(self, index: int, binding: Any) -> None:
        """Raise unless the binding can be mapped. The tests are those of Kernel."""
        rights, minimum = self._checks[index]
        try:
            buffer, offset, length = binding
            if type(buffer) is memoryview:
                inside = 0 <= offset <= buffer.nbytes - length and length >= minimum
                good = inside and not (self._writes[index] and self.knows_writes and buffer.readonly)
            else:
                good = (
                    buffer.root.device is self.device
                    and buffer.rights & rights == rights
                    and 0 <= offset <= buffer.byte_length - length
                    and length >= minimum
                )
        except (AttributeError, TypeError, ValueError):
            good = False
        if not good:
            raise self._bad(index, binding)

    def _bad(self, index: int, binding: Any) -> Error:
        if type(binding) is not tuple or len(binding) != 3 or type(binding[0]) is not memoryview:
            return dispatch.bad_binding(self, index, binding)
        (view, offset, length), (_, minimum) = binding, self._checks[index]
        what = f"kernel {self.layout.name!r}: binding {index}"
        if offset < 0 or length < 0 or offset + length > view.nbytes:
            return OutOfRange(
                f"{what}: {length} bytes at offset {offset} do not fit {view.nbytes} host bytes"
            )
        if length < minimum:
            return OutOfRange(f"{what} has {length} bytes; the kernel needs {minimum}")
        return PermissionDenied(f"{what} is read-only, and the kernel may write it")

    def _map(self, bindings: Sequence[Any]) -> list[memoryview]:
        writes = [
            write
            and (not buffer.readonly if type(buffer) is memoryview else bool(buffer.rights & KERNEL_WRITE))
            for write, (buffer, _, _) in zip(self._writes, bindings, strict=True)
        ]
        for write, (buffer, _, _) in zip(writes, bindings, strict=True):
            # All of these before any bytes are taken: a write may move a root to other memory (windows.py).
            if write and type(buffer) is not memoryview:
                buffer.root.host(write=True)
        return [
            _view(buffer, offset, length, write)
            for write, (buffer, offset, length) in zip(writes, bindings, strict=True)
        ]

    def launch(
        self, workgroups: tuple[int, int, int], constants: tuple[int, ...], memories: list[Any],
        offsets: list[int], lengths: list[int],
    ) -> None:  # fmt: skip
        """Call the function; ``memories`` are the views of the bound ranges."""
        values = constants if self._typed_values is None else self._typed_values(constants)
        self._function(workgroups, values, memories)


def _start_of(buffer: Any, offset: int) -> int:
    """Where a binding begins in its allocation."""
    return offset if type(buffer) is memoryview else buffer.offset + offset


def _view(buffer: Any, offset: int, length: int, write: bool) -> memoryview:
    if type(buffer) is memoryview:
        view = buffer[offset : offset + length]
    else:
        start = buffer.offset + offset
        view = buffer.root.host()[start : start + length]
    return view if write else view.toreadonly()
