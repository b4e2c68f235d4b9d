"""Windows: a buffer's bytes for the host without a copy, which never change whatever happens to the buffer.

A window holds the allocation that it looks at. When device or host are about to write to that allocation
while a window is open, the buffer moves to fresh memory first and leaves the old one to the windows
(copy on write): only a program that overwrites a buffer whose bytes somebody still looks at pays for a copy.

    open:    Root ──> memory <── Lease <── Window, Window, …
    a write: Root ──> new memory;  memory <── heir (a Root) <── Lease <── Window, Window, …

While a lease lives, the host's bytes are not newer than the device's (see residency.py), and every
write passes ``Residency.device_writes`` or ``Residency._acquire``, which call :func:`leave`.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from halgpu.devices.buffer import HOST_READ, Buffer
from halgpu.errors import FailedPrecondition

if TYPE_CHECKING:
    from halgpu.devices.buffer import Root
    from halgpu.devices.memory import Memory
    from halgpu.devices.residency import Residency


class Lease:
    """What all windows of one allocation hold; ``root`` is whoever owns the memory that they look at."""

    __slots__ = ("__weakref__", "root")

    def __init__(self, root: Root) -> None:
        self.root = root


class Window:
    """Read-only bytes of a buffer, as they were when it was opened. Made by :func:`open_window`.

    It is the ``base`` of the arrays over it, through numpy's array interface, and so lives as long as they.
    """

    __slots__ = ("__array_interface__", "_lease")

    def __init__(self, lease: Lease, view: memoryview) -> None:
        self._lease = lease
        address = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
        self.__array_interface__ = {
            "data": (address, True), "shape": (len(view),), "typestr": "|u1", "version": 3,
        }  # fmt: skip


def open_window(buffer: Buffer) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return all bytes of ``buffer`` as a flat read-only array, not copied where they are on the host.

    Waits for device work on them; bytes of a device with memory of its own come down once. The array stays
    valid and as it is after later writes and after the buffer's end. Raises FailedPrecondition for a released
    buffer and while a writable mapping's bytes are in use, PermissionDenied where the host may not read.
    """
    root = buffer.live()
    buffer.require(HOST_READ)
    if not buffer.byte_length:
        return _empty()
    root.host()
    root.require_same_process()
    with root.counters.lock:
        if root.writers:
            raise FailedPrecondition(
                f"{buffer!r} has a writable mapping in use, which may change the bytes at any time: "
                "unmap it, or take a copy"
            )
        if root.dirty:
            root.device_reads()
        view = root.host()
        lease = lease_of(root)
    window = Window(lease, view[buffer.offset : buffer.offset + buffer.byte_length])
    return np.asarray(window)


def _empty() -> np.ndarray[Any, np.dtype[np.uint8]]:
    empty = np.empty(0, np.uint8)
    empty.flags.writeable = False
    return empty


def lease_of(root: Root) -> Lease:
    """Return the open lease of an allocation, or a new one. Under the device's lock."""
    lease = None if root.lease is None else cast("Lease | None", root.lease())
    if lease is None:
        lease = Lease(root)
        root.unsettle()
        root.lease = weakref.ref(lease)
    return lease


def leave(residency: Residency, *, keep: bool, on_host: bool) -> None:
    """Move to new memory unless all windows are closed. Under the device's lock.

    ``keep``: with the bytes, which are copied on the host or the device. Raises ResourceExhausted, with
    nothing changed, when there is no memory.
    """
    root = cast("Root", residency)
    lease = None if root.lease is None else cast("Lease | None", root.lease())
    if lease is None:
        root.lease = None
        return
    memory = root.allocator.obtain(root.byte_length)
    root.counters.allocated(root.byte_length)
    lease.root = _hand_over(root, memory)
    root.lease = None
    if keep:
        _copy(lease.root, root, on_host)


def _hand_over(root: Root, memory: Memory) -> Root:
    """Go on with other ``memory``, undefined as yet; return a new root that owns the present one."""
    heir = type(root)(root.allocator, root.memory, root.byte_length)
    heir.view, heir.fresh = root.view, False
    root.memory, root.view, root.fresh = memory, None, True
    return heir


def _copy(source: Root, target: Root, on_host: bool) -> None:
    if on_host:
        target.host(write=True, discard=True)[:] = source.host()
    else:
        target.enqueue_copy(source.memory, 0, 0, target.byte_length)
        target.fresh = False
