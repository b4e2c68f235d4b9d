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


def inline(operation: Any, text: str) -> None:
    """Replace an operation by the body of a function, MLIR text that takes its operands and returns its results."""
    module = ir().Module.parse(text, operation.context)
    function = module.body.operations[0].regions[0].blocks[0]
    values = dict(zip(function.arguments, operation.operands, strict=True))
    place = ir().InsertionPoint(operation)
    *body, end = function.operations
    for line in body:
        made = line.operation.clone(place)
        made.operation.location = operation.location
        for number, operand in enumerate(line.operation.operands):
            made.operation.operands[number] = values[operand]
        values |= dict(zip(line.operation.results, made.operation.results, strict=True))
    for result, value in zip(operation.results, end.operation.operands, strict=True):
        result.replace_all_uses_with(values[value])
    operation.erase()
