"""The formats ``embedded-elf-<machine>``: ELF files of iree-compile's llvm-cpu target that depend on nothing.

They run on any device, on the host's bytes of its buffers. IREE's loader is runtime/src/iree/hal/local/loaders/
embedded_elf_loader.c; what of it is here is in native/. Their code is trusted as much as the program that has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from halgpu import errors
from halgpu.executables.base import Builds, Executable
from halgpu.executables.native import elf, host
from halgpu.executables.native.image import PAGE, Image
from halgpu.executables.native.kernel import NativeKernel
from halgpu.executables.native.library import Library

if TYPE_CHECKING:
    from halgpu.devices.base import Device

KIND: Final = "embedded-elf"


class ElfLoader:
    """Loads files for one machine, named as in the format: ``x86_64`` or ``arm_64``.

    ``resolve`` gives the address of what a file imports by its name; without it, files that import are refused.
    """

    def __init__(self, machine: str, kind: str = KIND, resolve: Callable[[str], int] | None = None) -> None:
        self._machine, self._kind, self._resolve = machine, kind, resolve
        self.format = f"{kind}-{machine}"

    def query_support(self, device: Device) -> bool:
        """Whether the files are for this machine; the device does not matter."""
        return not host.obstacle(self._kind, self._machine)

    def load(
        self, device: Device, data: memoryview, constants: tuple[int, ...], builds: Builds
    ) -> Executable:
        """Check ``data``, map it and ask its code for its kernels.

        Raises InvalidArgument for damaged data, before any of its code runs, Unimplemented for what iree-compile does
        not make, FailedPrecondition for another number of ``constants`` than it takes, Unavailable for an import that
        is not there.
        """
        machine = host.machine()
        obstacle = host.obstacle(self._kind, self._machine)
        if machine is None or obstacle:
            raise errors.Incompatible(obstacle)
        read = elf.read(data, machine, PAGE, imports=self._resolve is not None)
        image = Image(read, self._resolve)
        library = Library(image, image.base + read.query, machine.name, constants)
        kernels = [NativeKernel(device, library, export, machine.name) for export in library.exports]
        return Executable(self.format, kernels)
