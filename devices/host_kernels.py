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


class HostOnly:
    """Bytes that only the host has, with what a dispatch looks at in a buffer and its allocation."""

    __slots__ = ("byte_length", "device", "rights", "view")

    offset = 0
    dirty = True

    def __init__(self, view: memoryview, device: Device) -> None:
        self.view = view
        self.device = device
        self.byte_length = view.nbytes
        self.rights = KERNEL_READ if view.readonly else KERNEL_READ | KERNEL_WRITE

    @property
    def root(self) -> HostOnly:
        """Itself: it has all of an allocation that matters here."""
        return self

    def host(self, *, write: bool = False) -> memoryview:
        """The bytes."""
        return self.view


def _is_view(binding: Any) -> bool:
    return type(binding) is tuple and len(binding) == 3 and type(binding[0]) is memoryview


class MappedKernel(Kernel):
    """A kernel whose launch is given host bytes, and is done when it returns. The device does no other work meanwhile.

    A binding may also be ``(memoryview, offset, length)`` or ``(HostOnly, offset, length)``: bytes that only the host
    has. Bindings may overlap.

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
        self._writes_all = all(self._writes)

    def _start(
        self, counts: tuple[int, int, int], values: tuple[int, ...], bindings: Sequence[Any],
        key: tuple[int, ...] | None = None, given: Sequence[Any] | None = None,
    ) -> None:  # fmt: skip
        # The tests are those of Kernel. Nothing is remembered: what the host maps does not stay as it is.
        device = self.device
        if len(bindings) != len(self._checks):
            raise dispatch.bad_binding_count(self, len(bindings))
        roots: list[Any] = []
        offsets: list[int] = []
        lengths: list[int] = []
        starts, granted = 0, KERNEL_WRITE
        with device.lock:
            if device.unusable is not None:
                device.require_usable()
            try:
                for (buffer, offset, length), (rights, minimum) in zip(bindings, self._checks):  # noqa: B905
                    root = buffer.root
                    if (
                        root.device is not device
                        or buffer.rights & rights != rights
                        or not 0 <= offset <= buffer.byte_length - length
                        or length < minimum
                    ):
                        break
                    start = buffer.offset + offset
                    starts |= start
                    granted &= buffer.rights
                    roots.append(root)
                    lengths.append(length)
                    offsets.append(start)
            except (AttributeError, TypeError, ValueError):
                pass  # found out in words below
            if len(offsets) != len(self._checks):
                given = bindings[len(offsets)]
                if not _is_view(given):
                    raise self._bad(len(offsets), given)
                wrapped = [
                    (HostOnly(item[0], device), *item[1:]) if _is_view(item) else item for item in bindings
                ]
                self._start(counts, values, wrapped)
                return
            if starts % self._alignment:  # one of them perhaps; all are powers of two
                dispatch.check_alignment(self, offsets)
            if 0 in counts:
                return
            if granted and self._writes_all:
                views = [root.view if root.dirty else root.host(write=True) for root in roots]
            else:
                views = self._map(roots, bindings)
            counters = device.counters
            if counters.recorder is None:
                self.launch(counts, values, views, offsets, lengths)
            else:
                counters.recorder.launch(self, counts, values, views, offsets, lengths)
            counters.dispatches += 1

    def _bad(self, index: int, binding: Any) -> Error:
        if type(binding) is not tuple or len(binding) != 3 or type(binding[0]) is not HostOnly:
            return dispatch.bad_binding(self, index, binding)
        (given, offset, length), (_, minimum) = binding, self._checks[index]
        what = f"kernel {self.layout.name!r}: binding {index}"
        if offset < 0 or length < 0 or offset + length > given.byte_length:
            return OutOfRange(
                f"{what}: {length} bytes at offset {offset} do not fit {given.byte_length} host bytes"
            )
        if length < minimum:
            return OutOfRange(f"{what} has {length} bytes; the kernel needs {minimum}")
        return PermissionDenied(f"{what} is read-only, and the kernel may write it")

    def _map(self, roots: Sequence[Any], bindings: Sequence[Any]) -> list[Any]:
        """The bytes on the host of bindings of which some are only read."""
        writable = [
            writes and buffer.rights & KERNEL_WRITE
            for (buffer, _, _), writes in zip(bindings, self._writes, strict=True)
        ]
        for root, write in zip(roots, writable, strict=True):
            # All of these before any bytes are taken: a write may move a root to other memory (windows.py).
            if write:
                root.host(write=True)
        views = zip((root.host() for root in roots), writable, strict=True)
        return [view if write else view.toreadonly() for view, write in views]

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
