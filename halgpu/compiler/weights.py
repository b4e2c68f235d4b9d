"""Checks a compiled program before anybody gets it: every global that it loads is one that it stores.

A program whose initializer the compiler lost loads globals that nothing stores: refs are null, numbers zero (see
``repair_stream``). Stricter than ``halgpu.lost_constants``, which explains a failure of a program from elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halgpu import errors
from halgpu.lost_constants import operations, places, stored_places

if TYPE_CHECKING:
    from halgpu.vm import BytecodeModule


def check(data: bytes) -> None:
    """Raise DataLoss, naming functions, if the program in ``data`` (a .vmfb) loads a global that it never stores."""
    from halgpu.vm import BytecodeModule

    lost = unstored(BytecodeModule.load(data))
    if lost:
        names = ", ".join(dict.fromkeys(name for name, _ in lost))
        what = ", ".join(dict.fromkeys(place for _, place in lost))
        raise errors.DataLoss(
            f"the compiler lost weights: {names} would load what nothing stores ({what}). No program is written. "
            "This is an error of iree-compile that halgpu does not know yet: please report it with the model"
        )


def unstored(program: BytecodeModule) -> list[tuple[str, str]]:
    """(function, global) of each load of a global that the program never stores, such as ``("m.main", "ref 3")``.

    Empty where it also stores to globals whose numbers it computes.
    """
    stored = stored_places(program)
    if stored is None:
        return []
    found: list[tuple[str, str]] = []
    for function in program.translation.functions:
        for op in operations(function):
            loaded = places(op, "GlobalLoad")
            if loaded and stored.isdisjoint(loaded):
                name = program.translation.name(function.definition.ordinal)
                found.append((name, "{} {}".format(*loaded[0])))
    return found
