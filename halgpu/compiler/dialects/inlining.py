"""Which operations may be inlined: each dialect says so for its own.

A function's code moves into a caller, or an initializer's into the one initializer, operation by operation. What may
move is known to the operation's dialect only: a dialect that declares nothing is not inlined. Facts:
mlir/include/mlir/Transforms/Inliner.h, DialectInlinerInterface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from xdsl.context import Context
from xdsl.dialect_interfaces import DialectInterface
from xdsl.ir import Dialect, Operation


class InlinerInterface(DialectInterface, ABC):
    """What a dialect declares about inlining of its operations."""

    @abstractmethod
    def is_legal_to_inline(self, op: Operation) -> bool:
        """Whether ``op`` does the same in another function, or initializer."""


class AllOpsInline(InlinerInterface):
    """All operations of the dialect may be inlined: they depend on nothing but their operands and the context."""

    def is_legal_to_inline(self, op: Operation) -> bool:
        return True


OTHERS: Final = {
    name: AllOpsInline() for name in ("affine", "arith", "builtin", "cf", "func", "math", "scf", "util")
}
"""Declarations for dialects that are xDSL's, or whose operations' structure the inliner knows (util, func)."""


def _declared(dialect: Dialect | None) -> InlinerInterface | None:
    # get_interface asks for a concrete class, which its own callers do not give either.
    return dialect.get_interface(InlinerInterface) if dialect is not None else None  # type: ignore[type-abstract]


def obstacle(op: Operation, ctx: Context) -> str | None:
    """Why ``op`` may not be inlined; None if it may."""
    name = op.attributes.get("op_name__")
    full = op.name if name is None else str(name).strip('"')
    prefix = Dialect.split_name(full)[0] if "." in full else "builtin"
    dialect = next((found for found in ctx.loaded_dialects if found.name == prefix), None)
    interface = _declared(dialect) or OTHERS.get(prefix)
    if interface is None:
        return f"dialect '{prefix}' declares nothing about inlining its operations"
    return (
        None if interface.is_legal_to_inline(op) else f"dialect '{prefix}' says that it is not to be inlined"
    )
