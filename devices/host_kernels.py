"""Kernels that run on the host, for any device: they work on the host's bytes of its buffers.

Bound ranges are mapped by residency: in place where host and device share the memory, else by the mirror that every
map uses. So a program's GPU kernels and host kernels can follow each other on the same buffers.
"""

from __future__ import annotations

from abc import abstractmethod
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


class MappedKernel(Kernel):
    """A kernel whose launch is given host bytes, and is done when it returns. The device does no other work meanwhile.

    A binding may also be ``(memoryview, offset, length)``: bytes that only the host has. Bindings may overlap.

    ``knows_writes`` false: nothing tells which of the ``"readwrite"`` bindings the kernel writes. Then it also takes
    bytes that may only be read, as a read-only view, and must leave them alone. That is what IREE does for its CPU
    executables (runtime/src/iree/modules/hal/loader/module.c maps all bindings for reading). ``alignment`` tells who
    binds bytes of the host again and again at which addresses the kernel is quickest. ``workgroup_limits`` are the
    kernel's own instead of the device's.
    """

    def __init__(
        self,
        device: Device,
        layout: KernelLayout,
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

    def _start(self, counts: tuple[int, int, int], values: tuple[int, ...], bindings: Sequence[Any]) -> None:
        # The tests are those of Kernel; what is mapped already, as all bytes of a device in host memory soon are,
        # is used as it is.
        device = self.device
        if device.unusable is not None:
            device.require_usable()
        if len(bindings) != len(self._checks):
            raise dispatch.bad_binding_count(self, len(bindings))
        views: list[Any] = []
        offsets: list[int] = []
        lengths: list[int] = []
        starts = 0
        mapped = True
        with device.lock:
            for binding, (rights, minimum), writes in zip(bindings, self._checks, self._writes):  # noqa: B905
                try:
                    buffer, offset, length = binding
                    if type(buffer) is memoryview:
                        view: Any = self._host_bytes(buffer, writes)
                        good = (
                            view is not None and 0 <= offset <= buffer.nbytes - length and length >= minimum
                        )
                        start = offset
                    else:
                        root = buffer.root
                        granted = buffer.rights
                        good = (
                            root.device is device
                            and granted & rights == rights
                            and 0 <= offset <= buffer.byte_length - length
                            and length >= minimum
                        )
                        start = buffer.offset + offset
                        view = root.view
                        if not writes or not granted & KERNEL_WRITE:
                            view = None if view is None else view.toreadonly()
                        elif not root.dirty:
                            view = None
                        if view is None:
                            mapped = False
                except (AttributeError, TypeError, ValueError):
                    good = False
                if not good:
                    raise self._bad(len(offsets), binding)
                starts |= start
                views.append(view)
                offsets.append(start)
                lengths.append(length)
            if starts % self._alignment:  # one of them perhaps; all are powers of two
                dispatch.check_alignment(self, offsets)
            if 0 in counts:
                return
            if not mapped:
                self._map(bindings, views)
            counters = device.counters
            if counters.recorder is None:
                self.launch(counts, values, views, offsets, lengths)
            else:
                counters.recorder.launch(self, counts, values, views, offsets, lengths)
            counters.dispatches += 1

    def _host_bytes(self, view: memoryview, writes: bool) -> memoryview | None:
        """Bytes that only the host has, as the kernel gets them; None where it may not have them."""
        if not writes:
            return view.toreadonly()
        return None if view.readonly and self.knows_writes else view

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

    def _map(self, bindings: Sequence[Any], views: list[Any]) -> None:
        """Bring all buffers to the host and put their bytes into ``views``."""
        for (buffer, _, _), writes in zip(bindings, self._writes, strict=True):
            # All of these before any bytes are taken: a write may move a root to other memory (windows.py).
            if writes and type(buffer) is not memoryview and buffer.rights & KERNEL_WRITE:
                buffer.root.host(write=True)
        for index, (buffer, _, _) in enumerate(bindings):
            if type(buffer) is not memoryview:
                view = buffer.root.host()
                writable = self._writes[index] and buffer.rights & KERNEL_WRITE
                views[index] = view if writable else view.toreadonly()

    @abstractmethod
    def launch(
        self, workgroups: tuple[int, int, int], constants: tuple[int, ...], memories: list[Any],
        offsets: list[int], lengths: list[int],
    ) -> None:  # fmt: skip
        """Run the kernel. ``memories`` are views of whole allocations, flat ``B``, read-only where the kernel may not
        write, and valid during the call; the rest is as for other kernels."""


class HostFunctionKernel(MappedKernel):
    """A function called once a dispatch, which returns when it is done.

    It is called as ``function(workgroups, constants, views)``: three counts, of which none is 0; unsigned 32-bit ints
    or, where the layout has types, values of those; one flat ``B`` memoryview of the bound range a binding, not
    copied, writable where the kernel may write it, and valid during the call. What the function raises comes out of
    ``dispatch``.
    """

    def __init__(self, device: Device, layout: KernelLayout, function: HostFunction, **how: Any) -> None:
        super().__init__(device, layout, **how)
        self._function = function
        self._typed_values = None if layout.types is None else Passed(layout.types, self.language).values

    def launch(
        self, workgroups: tuple[int, int, int], constants: tuple[int, ...], memories: list[Any],
        offsets: list[int], lengths: list[int],
    ) -> None:  # fmt: skip
        """Call the function with the bound ranges."""
        ranges = zip(memories, offsets, lengths, strict=True)
        views = [view[start : start + length] for view, start, length in ranges]
        self._function(
            workgroups, constants if self._typed_values is None else self._typed_values(constants), views
        )
