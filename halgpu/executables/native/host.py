"""Which native code this process can run, and why it cannot run the rest."""

from __future__ import annotations

import platform
import sys
from functools import cache
from importlib.util import find_spec
from typing import Final

from halgpu import environment
from halgpu.executables.native.elf import ARM_64, X86_64, Machine

_MACHINES: Final = {"x86_64": X86_64, "AMD64": X86_64, "aarch64": ARM_64, "arm64": ARM_64}
"""By what Python calls them (``platform.machine``)."""


@cache
def machine() -> Machine | None:
    """The machine that this process runs code of; None where halgpu cannot."""
    if sys.platform != "linux" or sys.maxsize < 2**32 or sys.byteorder != "little":
        return None
    return _MACHINES.get(platform.machine())


def obstacle(kind: str, name: str) -> str:
    """Why files of format ``kind`` (such as ``embedded-elf``) for the machine ``name`` do not run; empty if they do."""
    found = machine()
    if found is None:
        return f"halgpu runs {kind} on Linux on x86_64 and arm_64 only, not on {sys.platform} on {platform.machine()}"
    if found.name != name:
        return f"{kind}-{name} is for another machine than this one, which runs {kind}-{found.name}"
    if find_spec("elftools") is None:
        return "it takes pyelftools: pip install 'halgpu[host]' (in a checkout: pip install pyelftools)"
    return ""


def refused(allowed: bool | None) -> str:
    """Why native code is refused: ``allowed`` is what load was told, None to ask HALGPU_NATIVE; empty if it is not."""
    if allowed is not None:
        return "" if allowed else "native code is refused (native=False)"
    return "" if environment.switch("HALGPU_NATIVE", True) else "native code is refused (HALGPU_NATIVE=0)"
