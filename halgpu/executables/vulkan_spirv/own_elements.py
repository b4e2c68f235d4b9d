"""Workgroup memory of which each work-item uses an element of its own becomes a variable.

Stock iree-compile keeps what a fused operation computes first, such as a convolution before its bias is added, in
workgroup memory, at ``local_z * 16 + local_y * 4 + local_x`` say, and adds to it there at every step. Without
barriers no other work-item can rely on what is stored there. A variable stays in a register, and leaves the kernel
without workgroup memory, which lets loops over work-items be put where they become vector instructions
(see ``workitems``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from .tree import Assign, Local, Loop, Scope, Statement, assigns, touch, walk, words

_DECLARED: Final = re.compile(r"__local (float|double|u?int|ulong|ushort|uchar) (\w+)\[\d+\]")
"""Arrays of numbers, each in a place of its own."""


@dataclass(frozen=True, slots=True)
class Found:
    """An array in workgroup memory: its declaration, its name, and the C type of its elements."""

    declaration: str
    name: str
    type: str


def arrays(declarations: Collection[str]) -> list[Found]:
    """The arrays that may become variables, by their declarations."""
    matches = ((text, _DECLARED.fullmatch(text)) for text in declarations)
    return [Found(text, match[2], match[1]) for text, match in matches if match]


def replace(scope: Scope, array: Found, locals_: list[Local], fixed: Collection[str]) -> Local | None:
    """Put a variable in the place of an array, if all that is used of it is one element.

    ``fixed`` are the names of values that the kernel begins with. Returns the variable, None if nothing was changed.
    """
    statements = [statement for statement in walk(scope) if any(_mentions(statement, array.name))]
    indices = {index for statement in statements for index in _indices(statement, array.name)}
    if len(indices) != 1 or not statements:
        return None
    [index] = indices
    if index is None or not all(word in fixed or _is_fixed(scope, word) for word in words(index)):
        return None
    element = f"{array.name}[{index}]"
    if not _is_store(statements[0], element):
        return None
    variable = Local(array.name, array.type)
    by_name = {local.name: local for local in (*locals_, variable)}
    for statement in statements:
        _rename(statement, element, variable, by_name)
    touch(scope, {variable.name: variable})
    return variable


def _texts(statement: Statement) -> Iterator[str]:
    yield statement.text
    yield from (assign.text for assign in assigns(statement) if assign is not statement)


def _mentions(statement: Statement, name: str) -> Iterator[bool]:
    return (name in words(text) for text in _texts(statement))


def _indices(statement: Statement, name: str) -> Iterator[str | None]:
    """The indices of an array in a statement; None for a use of another kind."""
    for text in _texts(statement):
        for match in re.finditer(rf"(&?)(?<![\w.]){name}\b(?:\[([^\[\]]*)\])?(?![\[.])", text):
            yield None if match[1] else match[2]


def _is_fixed(scope: Scope, name: str) -> bool:
    """Whether a variable is set once, in no loop."""
    found = [
        assign for statement in walk(scope) for assign in assigns(statement) if assign.local.name == name
    ]
    return len(found) == 1 and not found[0].copy and not _in_loop(found[0].scope)


def _in_loop(scope: Scope | None) -> bool:
    while scope is not None:
        if isinstance(scope.owner, Loop):
            return True
        scope = scope.parent
    return False


def _is_store(statement: Statement, element: str) -> bool:
    return not isinstance(statement, Assign) and statement.text.startswith(f"{element} = ")


def _rename(statement: Statement, element: str, variable: Local, locals_: dict[str, Local]) -> None:
    pattern = re.compile(rf"(?<!\w){re.escape(element)}")
    if not _is_store(statement, element):
        for changed in {statement, *assigns(statement)}:
            changed.text = pattern.sub(variable.name, changed.text)
        return
    text = pattern.sub(variable.name, statement.text.removeprefix(f"{element} = ").removesuffix(";"))
    assign = Assign(variable, text, tuple(locals_[word] for word in words(text) if word in locals_))
    assign.live = True
    assign.scope = statement.scope
    items = statement.scope.items
    items[items.index(statement)] = assign
