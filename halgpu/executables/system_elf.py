"""The formats ``system-elf-<machine>``: shared objects of iree-compile's llvm-cpu target for the system's own loader.

As embedded ELF files (embedded_elf.py), but that they may call the C library's functions, and debuggers see them. IREE
makes these with ``--iree-llvmcpu-link-embedded=false``; its loader is runtime/src/iree/hal/local/loaders/
system_library_loader.c.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import TYPE_CHECKING, Any, Final

from halgpu import errors
from halgpu.executables.base import Builds, Executable
from halgpu.executables.native import elf, host
from halgpu.executables.native.image import PAGE, Extent
from halgpu.executables.native.kernel import NativeKernel
from halgpu.executables.native.library import Library

if TYPE_CHECKING:
    from halgpu.devices.base import Device

KIND: Final = "system-elf"
_MATH: Final = "libm.so.6"
"""Has functions that the files call without saying where from (they name no libraries)."""


class SharedObject(Extent):
    """A checked file that the system's loader has loaded, until this ends."""

    def __init__(self, read: elf.Elf) -> None:
        self._handle = _load(read.data)
        address = ctypes.cast(getattr(self._handle, elf.QUERY), ctypes.c_void_p).value
        assert address is not None
        super().__init__(address - read.query, read.segments)
        self.query = address
        weakref.finalize(self, _close, self._handle._handle)


def _load(data: memoryview) -> Any:
    # Memory that only this process has, with a name for the loader: nothing is left behind, whatever happens.
    descriptor = os.memfd_create("halgpu-system-elf", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        ctypes.CDLL(_MATH, ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(f"/proc/self/fd/{descriptor}", ctypes.RTLD_LOCAL)
    except OSError as error:
        raise errors.Unavailable(f"the system does not load an executable library: {error}") from error
    finally:
        os.close(descriptor)


def _close(handle: int) -> None:
    from _ctypes import dlclose

    dlclose(handle)


class SystemElfLoader:
    """Loads files for one machine, named as in the format: ``x86_64`` or ``arm_64``."""

    def __init__(self, machine: str) -> None:
        self._machine = machine
        self.format = f"{KIND}-{machine}"

    def query_support(self, device: Device) -> bool:
        """Whether the files are for this machine; the device does not matter."""
        return not self.obstacle()

    def obstacle(self) -> str:
        """Why the files do not run here; empty if they do."""
        return host.obstacle(KIND, self._machine)

    def load(
        self, device: Device, data: memoryview, constants: tuple[int, ...], builds: Builds
    ) -> Executable:
        """Check ``data``, let the system load it and ask its code for its kernels. Raises as an embedded one does, and
        Unavailable where the system refuses."""
        machine = host.machine()
        if machine is None or self.obstacle():
            raise errors.Incompatible(self.obstacle())
        loaded = SharedObject(elf.read(data, machine, PAGE, imports=True))
        library = Library(loaded, loaded.query, machine.name, constants)
        kernels = [NativeKernel(device, library, export, machine.name) for export in library.exports]
        return Executable(self.format, kernels)
