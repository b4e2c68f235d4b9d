"""What the repairs share: iree.compiler.ir, imported only in the child process of ``worker``, and walks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def ir() -> Any:
    """The module iree.compiler.ir."""
    from iree.compiler import ir

    return ir


def find(module: Any, names: Iterable[str]) -> dict[str, list[Any]]:
    """The operations of a module at any depth by name, of those ``names``, in the order of the text."""
    found: dict[str, list[Any]] = {name: [] for name in names}
    advance = ir().WalkResult.ADVANCE

    def visit(operation: Any) -> Any:
        if operation.name in found:
            found[operation.name].append(operation)
        return advance

    module.walk(visit)
    return found
