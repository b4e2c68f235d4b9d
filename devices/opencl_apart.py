"""OpenCL kernels with a second text for bindings that do not overlap.

Programs may bind the same memory to read and to write, so that a compiler must take it that each store changes
what the next load finds. Only at a dispatch it is known whether it does. Where not, the kernel whose pointers are
`restrict` runs (:attr:`KernelLayout.apart`): its sums can stay in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from halgpu.devices.base import KernelLayout
from halgpu.devices.memory import Memory
from halgpu.devices.opencl_programs import OpenCLKernel

if TYPE_CHECKING:
    from halgpu.devices.opencl import OpenCLDevice


class ApartKernel(OpenCLKernel):
    """A kernel that goes to its other text where the bindings of a launch are apart."""

    def __init__(self, device: OpenCLDevice, layout: KernelLayout, native: Any, apart: Any) -> None:
        super().__init__(device, layout, native)
        self.other = OpenCLKernel(device, layout, apart)
        self._writes = tuple(binding.access != "read" for binding in layout.bindings)

    def launch(
        self, workgroups: tuple[int, int, int], constants: tuple[int, ...], memories: list[Memory],
        offsets: list[int], lengths: list[int],
    ) -> Any:  # fmt: skip
        # Two allocations never overlap: what is imported may not be written while kernels read it (imported.py).
        distinct = len({memory.serial for memory in memories}) == len(memories)
        if distinct or not overlap(self._writes, memories, offsets, lengths):
            return self.other.launch(workgroups, constants, memories, offsets, lengths)
        return super().launch(workgroups, constants, memories, offsets, lengths)


def overlap(
    writes: Sequence[bool], memories: Sequence[Memory], offsets: Sequence[int], lengths: Sequence[int]
) -> bool:
    """Return whether the range of a binding that is written has a byte in common with another binding's."""
    ranges = [
        (memory.serial, start, start + length)
        for memory, start, length in zip(memories, offsets, lengths, strict=True)
    ]
    return any(
        one[0] == other[0] and max(one[1], other[1]) < min(one[2], other[2])
        for index, one in enumerate(ranges)
        if writes[index]
        for other in (*ranges[:index], *ranges[index + 1 :])
    )
