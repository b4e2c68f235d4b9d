"""The formats ``system-elf-<machine>``: shared objects of iree-compile's llvm-cpu target that call the C library.

IREE makes these with ``--iree-llvmcpu-link-embedded=false`` and leaves them to the system's loader (runtime/src/iree/
hal/local/loaders/system_library_loader.c), which a damaged file can crash. Here they are loaded as embedded ones are
(embedded_elf.py), and what they import is looked up in the C library.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from typing import Any, Final

from halgpu import errors
from halgpu.executables.embedded_elf import ElfLoader

KIND: Final = "system-elf"
_MATH: Final = "libm.so.6"
"""Has functions that the files call without saying where from: they name no libraries."""


@cache
def _libraries() -> tuple[Any, ...]:
    found = [ctypes.CDLL(None)]
    with suppress(OSError):  # where the C library is another one, the process has its functions
        found.insert(0, ctypes.CDLL(_MATH))
    return tuple(found)


def resolve(name: str) -> int:
    """The address of a function of the C library. Raises Unavailable, naming it, where there is none."""
    for library in _libraries():
        try:
            function = library[name]  # getattr would find attributes of the Python object, too
        except AttributeError:
            continue
        return ctypes.cast(function, ctypes.c_void_p).value or 0
    raise errors.Unavailable(f"an executable library calls {name!r}, which the C library here does not have")


def loader(machine: str) -> ElfLoader:
    """Loads files for one machine, named as in the format: ``x86_64`` or ``arm_64``."""
    return ElfLoader(machine, KIND, resolve)
