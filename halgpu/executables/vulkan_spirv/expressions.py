"""C expressions under construction, and what an id of a function stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from . import spirv_types as ty
from .tree import Assign, Local

ATOM: Final = 20
"""Binding strength of names, literals, calls, indexing: never needs parentheses."""
UNARY: Final = 15
MULTIPLY: Final = 13
ADD: Final = 12
RELATION: Final = 10
EQUALITY: Final = 9
BITS: Final = 7
"""Shifts and bitwise operators. Next to any other operator they get parentheses, whatever C says."""
AND: Final = 5
OR: Final = 4
CHOICE: Final = 3


class Expr:
    """A C expression: type, text, binding strength, the variables in it, and what memory it reads.

    ``memory`` holds pairs of a memory group and that group's epoch when the expression was made; a store to the
    group begins a new epoch, and the expression must not be moved across it. ``constant`` is set where the value
    is known, ``parts`` where the components of a vector are, ``signed`` where the text casts a signed expression.
    """

    __slots__ = ("constant", "level", "memory", "parts", "reads", "signed", "text", "type")

    def __init__(
        self,
        type_: ty.Type,
        text: str,
        level: int = ATOM,
        reads: tuple[Local, ...] = (),
        memory: tuple[tuple[object, int], ...] = (),
        constant: ty.Constant | None = None,
    ) -> None:
        self.type = type_
        self.text = text
        self.level = level
        self.reads = reads
        self.memory = memory
        self.constant = constant
        self.parts: tuple[Expr, ...] | None = None
        self.signed: Expr | None = None

    def at(self, level: int) -> str:
        """The text, in parentheses if it binds less than ``level``."""
        return self.text if self.level >= level else f"({self.text})"

    @property
    def operand(self) -> str:
        """The text as an operand of a cast, a bitwise operator or a member access."""
        return self.text if self.level >= UNARY else f"({self.text})"

    @property
    def atom(self) -> str:
        """The text as what an index or a member is taken of."""
        return self.text if self.level >= ATOM else f"({self.text})"

    @property
    def is_name(self) -> bool:
        """Whether the text is a single word: a name or a literal."""
        return self.level >= ATOM and self.text.replace("_", "").isalnum()

    @property
    def bits(self) -> int | None:
        """The value of a constant integer, else None."""
        if self.constant is None or not isinstance(self.type, ty.Int):
            return None
        return int(self.constant.value or 0) if not isinstance(self.constant.value, tuple) else None

    def retyped(self, type_: ty.Type, text: str, level: int = ATOM) -> Expr:
        """Another expression of the same variables and memory."""
        return Expr(type_, text, level, self.reads, self.memory)


class BuiltInVector(Expr):
    """A built-in variable's vector: each component has a name of its own, made when it is asked for."""

    __slots__ = ("builtin",)

    def __init__(self, type_: ty.Type, builtin: int) -> None:
        super().__init__(type_, "")
        self.builtin = builtin


def combine(type_: ty.Type, text: str, level: int, parts: Sequence[Expr]) -> Expr:
    """An expression made of the texts of others."""
    if len(parts) == 1:
        return Expr(type_, text, level, parts[0].reads, parts[0].memory)
    reads: tuple[Local, ...] = ()
    memory: tuple[tuple[object, int], ...] = ()
    for part in parts:
        reads += part.reads
        memory += part.memory
    return Expr(type_, text, level, reads, memory)


class Value:
    """A computed id: its expression, and the assignment that makes it a variable once that is needed."""

    __slots__ = ("assign", "expr", "loop", "name", "type", "uses")

    def __init__(self, expr: Expr, assign: Assign, loop: object, uses: int) -> None:
        self.type = expr.type
        self.expr = expr
        self.assign = assign
        self.loop = loop
        self.uses = uses
        self.name = Expr(expr.type, assign.local.name, ATOM, (assign.local,))


class Parts:
    """A structure whose members were computed apart, such as sum and carry."""

    __slots__ = ("members", "type")

    def __init__(self, type_: ty.Struct, members: tuple[Value, ...]) -> None:
        self.type = type_
        self.members = members


class Pointer:
    """What an id of pointer type stands for: a place, known while translating, never a C value.

    ``place`` is where it points; ``type`` what lies there.
    """

    __slots__ = ("place", "type", "volatile")

    def __init__(self, place: Place, type_: ty.Type, *, volatile: bool = False) -> None:
        self.place = place
        self.type = type_
        self.volatile = volatile


class Place:
    """Where a pointer points: one of the subclasses in places.py."""

    __slots__ = ()
