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

_STORED_BYTES = {"GlobalStoreI32": 4, "GlobalStoreF32": 4, "GlobalStoreI64": 8, "GlobalStoreF64": 8}


def users(program: BytecodeModule) -> tuple[str, ...]:
    """Names, as in ``error.frames``, of the functions that use what looks like a lost constant.

    They load a ref global that the program never stores; or such an i64 global, and have a null ref. None where
    the program also stores to globals whose numbers it computes.
    """
    functions = program.translation.functions
    ops = [op for function in functions for op in _ops(function)]
    if any(op.instruction.symbol.startswith("GlobalStoreIndirect") for op in ops):
        return ()
    refs = {op["global"] for op in ops if op.instruction.symbol == "GlobalStoreRef"}
    stored = {address for op in ops for address in _stored_bytes(op)}
    return tuple(
        program.translation.name(function.definition.ordinal)
        for function in functions
        if _uses_lost(function, refs, stored)
    )


def _ops(function: VerifiedFunction) -> Iterator[Op]:
    for block in function.blocks:
        yield from block.ops


def _stored_bytes(op: Op) -> range:
    size = _STORED_BYTES.get(op.instruction.symbol, 0)
    return range(op["byte_offset"], op["byte_offset"] + size) if size else range(0)


def _uses_lost(function: VerifiedFunction, refs: set[int], stored: set[int]) -> bool:
    null = offset = False
    for op in _ops(function):
        symbol = op.instruction.symbol
        if symbol == "GlobalLoadRef" and op["global"] not in refs:
            return True
        null |= symbol == "ConstRefZero"
        offset |= symbol == "GlobalLoadI64" and stored.isdisjoint(
            range(op["byte_offset"], op["byte_offset"] + 8)
        )
    return null and offset


def explain(error: NullReference, programs: Iterable[BytecodeModule]) -> None:
    """Add :data:`HINT` to the message of an error that arose in a function which uses a lost constant."""
    suspects = {name for program in programs for name in users(program)}
    if any(frame.partition(" (")[0] in suspects for frame in error.frames):
        error.message = f"{located(error)}; {HINT}"
        error.args = (error.message,)


__all__ = ["HINT", "explain", "users"]
