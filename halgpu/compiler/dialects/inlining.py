"""Which operations may be inlined: each dialect says so for its own.

A function's code moves into a caller, or an initializer's into the one initializer, operation by operation. What may
move is known to the operation's dialect only: a dialect that declares nothing is not inlined. Facts:
mlir/include/mlir/Transforms/Inliner.h, DialectInlinerInterface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from xdsl.dialect_interfaces import DialectInterface
from xdsl.ir import Operation


class InlinerInterface(DialectInterface, ABC):
    """What a dialect declares about inlining of its operations."""

    @abstractmethod
    def is_legal_to_inline(self, op: Operation) -> bool:
        """Whether ``op`` does the same in another function, or initializer."""


class AllOpsInline(InlinerInterface):
    """All operations of the dialect may be inlined: they depend on nothing but their operands and the context."""

    def is_legal_to_inline(self, op: Operation) -> bool:
        return True
