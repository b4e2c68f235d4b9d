"""Whether a program fails because its compiler lost a dense constant.

The inline pipelines of stock iree-compile 3.13.0 keep dense constants of more than a few elements in two globals,
the buffer and its offset (i64), and then lose the initializer that stores them. In the function that uses the
constant, loads of the buffer become null constants; the load of the offset stays, of a global that nothing stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from halgpu.text import located
from halgpu.vm.support import NullReference

if TYPE_CHECKING:
    from halgpu.vm import BytecodeModule
    from halgpu.vm.isa import Op
    from halgpu.vm.verifier import VerifiedFunction

HINT = (
    "the function loads a global that the program never stores, as programs do from which iree-compile 3.13 "
    "lost a dense constant; compile it with 'halgpu compile', which keeps them"
)

_BYTES = {"I32": 4, "F32": 4, "I64": 8, "F64": 8}


def users(program: BytecodeModule) -> tuple[str, ...]:
    """Names, as in ``error.frames``, of the functions that use what looks like a lost constant.

    They load a ref global that the program never stores; or such an i64 global, and have a null ref. None where
    the program also stores to globals whose numbers it computes.
    """
    stored = stored_places(program)
    if stored is None:
        return ()
    return tuple(
        program.translation.name(function.definition.ordinal)
        for function in program.translation.functions
        if _uses_lost(function, stored)
    )


def operations(function: VerifiedFunction) -> Iterator[Op]:
    """A function's operations, block after block."""
    for block in function.blocks:
        yield from block.ops


def places(op: Op, kind: str) -> list[tuple[str, int]]:
    """What ``op`` accesses if it is of ``kind``, GlobalLoad or GlobalStore: ``("ref", n)`` for a ref global, or
    ``("byte", n)`` for each byte of another."""
    symbol = op.instruction.symbol
    if not symbol.startswith(kind):
        return []
    if symbol == f"{kind}Ref":
        return [("ref", op["global"])]
    size = _BYTES.get(symbol.removeprefix(kind), 0)
    return [("byte", op["byte_offset"] + byte) for byte in range(size)]


def stored_places(program: BytecodeModule) -> set[tuple[str, int]] | None:
    """The globals that a program stores; None where it also stores to globals whose numbers it computes."""
    ops = [op for function in program.translation.functions for op in operations(function)]
    if any(op.instruction.symbol.startswith("GlobalStoreIndirect") for op in ops):
        return None
    return {place for op in ops for place in places(op, "GlobalStore")}


def _uses_lost(function: VerifiedFunction, stored: set[tuple[str, int]]) -> bool:
    null = offset = False
    for op in operations(function):
        symbol = op.instruction.symbol
        lost = stored.isdisjoint(places(op, "GlobalLoad"))
        if symbol == "GlobalLoadRef" and lost:
            return True
        null |= symbol == "ConstRefZero"
        offset |= symbol == "GlobalLoadI64" and lost
    return null and offset


def explain(error: NullReference, programs: Iterable[BytecodeModule]) -> None:
    """Add :data:`HINT` to the message of an error that arose in a function which uses a lost constant."""
    suspects = {name for program in programs for name in users(program)}
    if any(frame.partition(" (")[0] in suspects for frame in error.frames):
        error.message = f"{located(error)}; {HINT}"
        error.args = (error.message,)


__all__ = ["HINT", "explain", "operations", "places", "stored_places", "users"]
