"""Checks a compiled program before anybody gets it: every global that it loads is one that it stores.

A program whose initializer the compiler lost loads globals that nothing stores: refs are null, numbers zero (see
``repair_stream``). Stricter than ``halgpu.lost_constants``, which explains a failure of a program from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from halgpu import errors

if TYPE_CHECKING:
    from halgpu.vm import BytecodeModule
    from halgpu.vm.isa import Op

_BYTES = {"I32": 4, "F32": 4, "I64": 8, "F64": 8}


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
    functions = program.translation.functions
    operations = [(function, op) for function in functions for op in _ops(function)]
    if any(op.instruction.symbol.startswith("GlobalStoreIndirect") for _, op in operations):
        return []
    stored = {place for _, op in operations for place in _places(op, "GlobalStore")}
    found: list[tuple[str, str]] = []
    for function, op in operations:
        places = _places(op, "GlobalLoad")
        if places and stored.isdisjoint(places):
            found.append((program.translation.name(function.definition.ordinal), "{} {}".format(*places[0])))
    return found


def _ops(function: object) -> Iterator[Op]:
    for block in function.blocks:  # type: ignore[attr-defined]
        yield from block.ops


def _places(op: Op, kind: str) -> list[tuple[str, int]]:
    """What ``op`` accesses if it is of ``kind``: a ref global's number, or the bytes of another's."""
    symbol = op.instruction.symbol
    if not symbol.startswith(kind):
        return []
    if symbol == f"{kind}Ref":
        return [("ref", op["global"])]
    size = _BYTES.get(symbol.removeprefix(kind), 0)
    return [("byte", op["byte_offset"] + byte) for byte in range(size)]
