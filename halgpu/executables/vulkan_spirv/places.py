"""Where pointers point: buffers, push constants, built-in variables, and variables that C declares.

A buffer is a pointer to bytes at an offset, so places in it are counted by the Offset and ArrayStride
decorations, whatever a C compiler would do. Places in C variables are C expressions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from . import ctypes
from . import spirv_types as ty
from .expressions import ATOM, UNARY, Expr, Place
from .module import Variable
from .source import Source

BUFFERS: Final = "buffers"
"""The memory group of all buffers: two bindings may be the same memory.

SPIR-V rules that out for variables without the decoration Aliased (specification, section 2.18.2), but stock
iree-compile 3.13.0 has inline programs work in place through one binding to read and another to write, both
undecorated. So pointers are `restrict` only in a second text, for dispatches whose bindings do not overlap.
"""


@dataclass(eq=False, slots=True)
class Binding:
    """A buffer argument, by its ordinal in the kernel's layout."""

    ordinal: int
    elements: set[ty.Scalar] = field(default_factory=set)
    """The scalar types that the kernel's variables over this binding are made of."""
    reads: bool = False
    writes: bool = False
    views: dict[str, str] = field(default_factory=dict)
    """C element type -> name of the typed pointer that the kernel declares."""
    name: str = ""

    @property
    def access(self) -> Literal["read", "write", "readwrite"]:
        """``"read"``, ``"write"`` or ``"readwrite"``; an unused binding counts as read."""
        if self.writes:
            return "readwrite" if self.reads else "write"
        return "read"

    @property
    def alignment(self) -> int:
        """Bytes that a scalar access needs."""
        return max((ty.byte_size(element) for element in self.elements), default=1)

    def unit(self, *, half: bool) -> ty.Scalar:
        """The element type that all accesses go through.

        C compilers assume that objects of different types do not overlap (C99 6.5, paragraph 7), SPIR-V does
        not: a binding that is seen as several types is accessed as one, and values are reinterpreted.
        """
        if len(self.elements) == 1:
            return next(iter(self.elements))
        widths = {ty.byte_size(element) * 8 for element in self.elements}
        if len(widths) == 1:
            kinds = {ctypes.scalar_name(element, half=half) for element in self.elements}
            return next(iter(self.elements)) if len(kinds) == 1 else ty.INTS[widths.pop()]
        return ty.INTS[8]


Term = tuple[Expr, int]
"""An index and the bytes that it counts."""


class BufferPlace(Place):
    """Bytes of a binding: a constant offset and indices times strides."""

    __slots__ = ("binding", "offset", "terms")

    def __init__(self, binding: Binding, offset: int = 0, terms: tuple[Term, ...] = ()) -> None:
        self.binding = binding
        self.offset = offset
        self.terms = terms


class PushPlace(Place):
    """Bytes of the push constants."""

    __slots__ = ("offset", "terms")

    def __init__(self, offset: int = 0, terms: tuple[Term, ...] = ()) -> None:
        self.offset = offset
        self.terms = terms


class BuiltInPlace(Place):
    """A built-in variable, or with ``component`` one of its components."""

    __slots__ = ("builtin", "component")

    def __init__(self, builtin: int, component: int | None = None) -> None:
        self.builtin = builtin
        self.component = component


class VariablePlace(Place):
    """A C lvalue in a variable. ``component`` is an index into a vector that the lvalue names, as an expression."""

    __slots__ = ("component", "lvalue", "root")

    def __init__(self, root: Root, lvalue: Expr, component: Expr | None = None) -> None:
        self.root = root
        self.lvalue = lvalue
        self.component = component


@dataclass(eq=False, slots=True)
class Root:
    """A C variable: its name, its address space, and the memory group it makes (None for constants)."""

    name: str
    space: str
    type: ty.Type
    group: object
    unwrapped: bool = False
    """The variable is a structure of one member and declared as that member."""


def scaled_index(offset: int, terms: tuple[Term, ...], unit: int) -> Expr | None:
    """The index in units of ``unit`` bytes, or None where a stride or the offset is no multiple of it."""
    if offset % unit or any(stride % unit for _, stride in terms):
        return None
    pieces, used = [], []
    for index, stride in terms:
        pieces.append(_times(index, stride // unit))
        used.append(index)
    if offset or not pieces:
        pieces.append(f"{offset // unit}")
    reads = tuple(local for index in used for local in index.reads)
    level = used[0].level if len(pieces) == 1 and used and terms[0][1] == unit else ATOM
    if len(pieces) > 1 or "*" in pieces[0]:
        level = 0
    return Expr(ty.INTS[64], " + ".join(pieces), level, reads)


def _times(index: Expr, factor: int) -> str:
    """An index times a factor; a factor makes it 64 bits wide first, so that it cannot wrap."""
    if factor == 1:
        return index.at(UNARY) if index.level < 12 else index.text
    return f"(ulong){index.operand} * {factor}"


def variable_declaration(source: Source, variable: Variable, name: str, space: str = "") -> str:
    """Declare a variable of Function, Private or Workgroup storage."""
    type_ = unwrap(variable.type)
    prefix = f"{space} " if space else ""
    return f"{prefix}{source.declarator(type_, name)}"


def unwrap(type_: ty.Type) -> ty.Type:
    """The member of a structure that has one, else the type: how a variable is declared."""
    if isinstance(type_, ty.Struct) and len(type_.members) == 1:
        return type_.members[0]
    return type_
