"""What all kernel formats share: a loaded executable, and what a loader of a format is."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from halgpu import errors

if TYPE_CHECKING:
    from halgpu.devices.base import Device, Kernel, Program


class Executable:
    """Kernels of one executable, by ordinal and by name.

    ``names`` are the names that programs look up, by default those of the kernels' layouts; a name that is
    no identifier of the kernel language differs from the one in the layout. ``kernels`` may be a
    :class:`Builds`, which sets them when they are asked for, if not before.
    """

    __slots__ = ("__weakref__", "_builds", "_ordinals", "format", "kernels", "names")

    def __init__(
        self, format: str, kernels: Sequence[Kernel] | Builds, names: Sequence[str] | None = None
    ) -> None:
        self.format = format
        self.kernels: tuple[Kernel, ...]
        if isinstance(kernels, Builds):
            self._builds = kernels
        else:
            self.kernels = tuple(kernels)
        self.names = tuple(names) if names is not None else tuple(k.layout.name for k in self.kernels)
        self._ordinals = {name: ordinal for ordinal, name in enumerate(self.names)}

    def __getattr__(self, name: str) -> Any:
        # Comes here for an empty slot only, so that a dispatch pays nothing for kernels that may not be built.
        if name != "kernels":
            raise AttributeError(f"an executable has no attribute {name!r}")
        self._builds.finish()
        return object.__getattribute__(self, name)

    def __repr__(self) -> str:
        return f"<Executable {self.format}: {', '.join(self.names)}>"

    def lookup(self, name: str) -> int:
        """Return the ordinal of the kernel ``name``; raises NotFound, listing the names there are."""
        ordinal = self._ordinals.get(name)
        if ordinal is None:
            raise errors.NotFound(f"no kernel {name!r} in the executable; there are: {', '.join(self.names)}")
        return ordinal


class Builds:
    """Programs of a device that wait to be built together; those of executables that are gone are not built."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._waiting: list[tuple[weakref.ref[Executable], Program]] = []

    def add(self, executable: Executable, program: Program) -> None:
        """Let ``executable`` have the kernels of ``program`` once they are built.

        Raises what the device has against the program as long as it is not compiled.
        """
        self._device.check(program)
        self._waiting.append((weakref.ref(executable), program))

    @property
    def kernels(self) -> int:
        """How many kernels wait."""
        return sum(len(program.layouts) for _, program in self._alive())

    def _alive(self) -> list[tuple[Executable, Program]]:
        return [(alive, program) for ref, program in self._waiting if (alive := ref()) is not None]

    def finish(self) -> None:
        """Build what waits. Raises the error of the first program that fails; then all of them wait on."""
        waiting = self._alive()
        if waiting:
            built = self._device.build_all([program for _, program in waiting])
            for (executable, _), kernels in zip(waiting, built, strict=True):
                executable.kernels = tuple(kernels)
        self._waiting.clear()


class Loader(Protocol):
    """Loads the executables of one format.

    ``format`` is the name that compilers give to it, such as ``"vulkan-spirv-fb"``.
    """

    format: str

    def query_support(self, device: Device) -> bool:
        """Whether executables of the format can run on ``device``."""
        ...

    def load(
        self, device: Device, data: memoryview, constants: tuple[int, ...], builds: Builds
    ) -> Executable:
        """Check ``data`` and add its kernels to ``builds``.

        ``data`` is a flat view of bytes and is not kept; ``constants`` are the executable's 32-bit
        specialization constants. Raises InvalidArgument for damaged data and Unimplemented, naming what it
        is, for something that halgpu does not do.
        """
        ...
