"""Bindings of plain kernels that begin where the device can give a kernel no pointer to: through a temporary.

OpenCL 1.2 5.2.1: a sub-buffer begins at a multiple of CL_DEVICE_MEM_BASE_ADDR_ALIGN (PoCL 128 bytes, NVIDIA
512). A binding elsewhere is copied on the device to memory of its own before the launch and, where the kernel
may write it, back afterwards; bindings that begin at the same byte share it. What cannot be kept right that
way, bindings that overlap without beginning together and of which one is written, is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from halgpu.devices.buffer import Root
from halgpu.errors import InvalidArgument

if TYPE_CHECKING:
    from halgpu.devices.base import Kernel
    from halgpu.devices.memory import Memory


@dataclass(slots=True)
class Copy:
    """A range of an allocation and the temporary that stands for it in one launch."""

    source: Root
    start: int
    length: int
    written: bool
    temporary: Root

    def back(self) -> None:
        """Copy what the kernel may have written."""
        if self.written:
            self.source.copy_from(self.temporary, 0, self.start, self.length)


def prepare(
    kernel: Kernel, bindings: Sequence[Any], memories: list[Memory], offsets: list[int], lengths: list[int]
) -> list[Copy]:
    """Bring bindings to the device, staged where they need it, with their memories and offsets set to that.

    Under the device's lock. What is returned has to be copied back after the launch.
    """
    roots = [buffer.root for buffer, _, _ in bindings]
    writes = [layout.access != "read" for layout in kernel.layout.bindings]
    staged = [bool(start % kernel.pointer_alignment and n) for start, n in zip(offsets, lengths, strict=True)]
    _check_overlaps(kernel, roots, offsets, lengths, staged, writes)
    copies: dict[tuple[Root, int], Copy] = {}
    for index, root in enumerate(roots):
        if staged[index]:
            copy = copies.setdefault((root, offsets[index]), Copy(root, offsets[index], 0, False, root))
            copy.length = max(copy.length, lengths[index])
            copy.written |= writes[index]
        elif writes[index]:
            root.device_writes()
        else:
            root.device_reads()
    for copy in copies.values():
        copy.temporary = _filled(kernel, copy)
    for index, root in enumerate(roots):
        if staged[index]:
            root = copies[root, offsets[index]].temporary
        memories[index] = root.memory
        offsets[index] = 0 if staged[index] or not lengths[index] else offsets[index]
    return list(copies.values())


def _filled(kernel: Kernel, copy: Copy) -> Root:
    # No buffer, which the debug allocator would not let begin at byte 0.
    temporary = kernel.device.allocator.root(copy.length, Root)
    # Also for a binding that is only written: a kernel need not write all of it.
    temporary.copy_from(copy.source, copy.start, 0, copy.length)
    if copy.written:
        temporary.device_writes()
    else:
        temporary.device_reads()
    return temporary


def _check_overlaps(
    kernel: Kernel, roots: list[Root], offsets: list[int], lengths: list[int], staged: list[bool],
    writes: list[bool],
) -> None:  # fmt: skip
    for i in range(len(roots)):
        for j in range(i):
            if (
                roots[i] is roots[j]
                and (staged[i] or staged[j])
                and (writes[i] or writes[j])
                and offsets[i] != offsets[j]
                and offsets[i] < offsets[j] + lengths[j]
                and offsets[j] < offsets[i] + lengths[i]
            ):
                raise InvalidArgument(
                    f"kernel {kernel.layout.name!r}: bindings {j} and {i} overlap, one is written, and they begin "
                    f"at bytes {offsets[j]} and {offsets[i]} of their allocation; to overlap, both must begin at "
                    f"multiples of {kernel.pointer_alignment} on {kernel.device.uri}, or at the same byte"
                )
