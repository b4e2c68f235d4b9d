"""Bindings of plain kernels that begin where the device can give a kernel no pointer to: through a temporary.

OpenCL 1.2 5.2.1: a sub-buffer begins at a multiple of CL_DEVICE_MEM_BASE_ADDR_ALIGN (PoCL 128 bytes, NVIDIA
512). A binding elsewhere is copied on the device to memory of its own before the launch and, where the kernel
may write it, back afterwards; bindings that begin at the same byte share it. What cannot be kept right that
way, bindings that overlap without beginning together and of which one is written, is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halgpu.devices.buffer import Root
from halgpu.errors import InvalidArgument

if TYPE_CHECKING:
    from halgpu.devices.base import Kernel


def needed(alignment: int, offsets: list[int], lengths: list[int]) -> bool:
    """Whether a binding with bytes begins at no multiple of ``alignment``."""
    return any(offset % alignment and length for offset, length in zip(offsets, lengths, strict=True))


def run(
    kernel: Kernel, counts: tuple[int, int, int], values: tuple[int, ...], roots: list[Root],
    offsets: list[int], lengths: list[int],
) -> None:  # fmt: skip
    """Launch with those bindings staged. Under the device's lock."""
    bindings = kernel.layout.bindings
    writes = [binding.access != "read" for binding in bindings]
    staged = [
        bool(offset % kernel.pointer_alignment and length)
        for offset, length in zip(offsets, lengths, strict=True)
    ]
    _check_overlaps(kernel, roots, offsets, lengths, staged, writes)
    longest: dict[tuple[Root, int], int] = {}
    for root, offset, length, apart in zip(roots, offsets, lengths, staged, strict=True):
        if apart:
            longest[root, offset] = max(length, longest.get((root, offset), 0))
    copies = {key: _copy(kernel, *key, length) for key, length in longest.items()}
    kernel.run(
        counts,
        values,
        [copies.get(key, key[0]) for key in zip(roots, offsets, strict=True)],
        [0 if apart else offset for offset, apart in zip(offsets, staged, strict=True)],
        lengths,
    )
    written = {
        (root, offset)
        for root, offset, apart, may_write in zip(roots, offsets, staged, writes, strict=True)
        if apart and may_write
    }
    for root, offset in written:
        root.copy_from(copies[root, offset], 0, offset, longest[root, offset])


def _copy(kernel: Kernel, root: Root, offset: int, length: int) -> Root:
    # No buffer, which the debug allocator would not let begin at byte 0.
    temporary = kernel.device.allocator.root(length, Root)
    # Also for a binding that is only written: a kernel need not write all of it.
    temporary.copy_from(root, offset, 0, length)
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
