"""The environment variables of halgpu, read in one way: a wrong value is one clear error, a misspelled name is told.

This module is a leaf but for ``halgpu.errors``. What the variables mean is in docs/python.md, "Environment".
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from typing import Final

from halgpu import errors

PREFIX: Final = "HALGPU_"
NAMES: Final = (
    "HALGPU_CACHE", "HALGPU_CACHE_DIR", "HALGPU_CHECKED", "HALGPU_DEBUG", "HALGPU_DEBUG_ALLOCATOR", "HALGPU_DEVICE",
    "HALGPU_JIT", "HALGPU_NATIVE", "HALGPU_POCL_LINKER", "HALGPU_POOL", "HALGPU_THREADS",
)  # fmt: skip
"""All that halgpu reads. HALGPU_POCL_LINKER it sets itself, for the linker that PoCL starts."""
_NEAR: Final = 0.7
"""How like a name of halgpu's another one is that is taken for it: HALGPU_CHECK is, a program's own are not."""


def choice(name: str, allowed: Sequence[str], default: str) -> str:
    """The value of a variable, ``default`` where it is not set or empty. Raises InvalidArgument for other values."""
    value = os.environ.get(name) or default
    if value not in allowed:
        *firsts, last = allowed
        raise errors.InvalidArgument(
            f"environment variable {name} must be {', '.join(firsts)} or {last}; found {value[:40]!r}"
        )
    return value


def switch(name: str, default: bool) -> bool:
    """Whether a variable is 1 rather than 0. Raises InvalidArgument for other values."""
    return choice(name, ("0", "1"), str(int(default))) == "1"


_told: set[str] = set()


def misspelled() -> list[str]:
    """A line for each variable that is set and whose name is nearly one of halgpu's; each is told once."""
    said = []
    for name in sorted(set(os.environ) - set(NAMES) - _told):
        if not name.startswith(PREFIX):
            continue
        _told.add(name)
        # Without what all names have in common, which would make any two alike.
        near = difflib.get_close_matches(
            name.removeprefix(PREFIX), [known.removeprefix(PREFIX) for known in NAMES], 1, _NEAR
        )
        if near:
            said.append(f"environment variable {name} is not known (did you mean {PREFIX}{near[0]}?)")
    return said
