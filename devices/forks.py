"""Devices in a process that was forked from one that had them open.

The child has its parent's memory but none of its threads: a driver's worker never runs there, and a lock that another
thread held is never let go. So nothing of a driver that the parent used may be called in the child, not even to free:
PoCL waits for its workers in clFinish, and takes locks in every clRelease. Devices refuse work there, what they own is
left to the end of the process, and a driver that the parent had started is not started again.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from halgpu.errors import FailedPrecondition

FORKED = "before this process was forked; open it in the child only, or start processes by spawn"

_users: dict[str, int] = {}
"""Drivers by name, each with the process that started it."""


def keep_forever(
    thing: Any, _hold: Callable[[Any], None] = ctypes.pythonapi.Py_IncRef, _object: Any = ctypes.py_object
) -> None:
    """Have ``thing`` never end, not even with the interpreter; the process's end takes it.

    Also called while modules are taken down, so no global is used.
    """
    _hold(_object(thing))


def require_same_process(driver: str) -> None:
    """Note that this process uses a driver. Raises FailedPrecondition when a parent had started it."""
    process = os.getpid()
    if _users.setdefault(driver, process) != process:
        raise FailedPrecondition(
            f"{driver} devices cannot be used: the driver was started {FORKED} "
            "(multiprocessing.get_context('spawn'))"
        )
