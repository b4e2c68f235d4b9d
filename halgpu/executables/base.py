"""What all kernel formats share: a loaded executable, and what a loader of a format is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from halgpu import errors

if TYPE_CHECKING:
    from halgpu.devices.base import Device, Kernel


class Executable:
    """Kernels of one executable, by ordinal and by name.

    ``names`` are the names that programs look up, by default those of the kernels' layouts; a name that is
    no identifier of the kernel language differs from the one in the layout.
    """

    __slots__ = ("__weakref__", "_ordinals", "format", "kernels", "names")

    def __init__(self, format: str, kernels: Sequence[Kernel], names: Sequence[str] | None = None) -> None:
        self.format = format
        self.kernels = tuple(kernels)
        self.names = tuple(names) if names is not None else tuple(k.layout.name for k in self.kernels)
        self._ordinals = {name: ordinal for ordinal, name in enumerate(self.names)}

    def __repr__(self) -> str:
        return f"<Executable {self.format}: {', '.join(self.names)}>"

    def lookup(self, name: str) -> int:
        """Return the ordinal of the kernel ``name``; raises NotFound, listing the names there are."""
        ordinal = self._ordinals.get(name)
        if ordinal is None:
            raise errors.NotFound(f"no kernel {name!r} in the executable; there are: {', '.join(self.names)}")
        return ordinal


class Loader(Protocol):
    """Loads the executables of one format.

    ``format`` is the name that compilers give to it, such as ``"vulkan-spirv-fb"``.
    """

    format: str

    def query_support(self, device: Device) -> bool:
        """Whether executables of the format can run on ``device``."""
        ...

    def load(self, device: Device, data: memoryview, constants: tuple[int, ...]) -> Executable:
        """Check ``data`` and build its kernels.

        ``data`` is a flat view of bytes and is not kept; ``constants`` are the executable's 32-bit
        specialization constants. Raises InvalidArgument for damaged data and Unimplemented, naming what it
        is, for something that halgpu does not do.
        """
        ...
