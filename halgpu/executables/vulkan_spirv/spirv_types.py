"""SPIR-V types and constants as the translator sees them.

Types are compared by identity: the parser makes one object a type id, and one only for equal scalars and
vectors. An integer's signedness is dropped, because SPIR-V puts it into the instructions: a value is bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeGuard


@dataclass(frozen=True, slots=True, eq=False)
class Type:
    """Any type."""


@dataclass(frozen=True, slots=True, eq=False)
class Void(Type):
    """No value."""

    def __str__(self) -> str:
        return "void"


@dataclass(frozen=True, slots=True, eq=False)
class Bool(Type):
    """A boolean, which has no size in memory."""

    def __str__(self) -> str:
        return "bool"


@dataclass(frozen=True, slots=True, eq=False)
class Int(Type):
    """An integer of 8, 16, 32 or 64 bits."""

    width: int

    def __str__(self) -> str:
        return f"i{self.width}"


@dataclass(frozen=True, slots=True, eq=False)
class Float(Type):
    """A binary floating-point number of 16, 32 or 64 bits."""

    width: int

    def __str__(self) -> str:
        return f"f{self.width}"


Scalar = Bool | Int | Float


@dataclass(frozen=True, slots=True, eq=False)
class Vector(Type):
    """Two or more scalars."""

    element: Scalar
    count: int

    def __str__(self) -> str:
        return f"vector<{self.count}x{self.element}>"


@dataclass(frozen=True, slots=True, eq=False)
class Array(Type):
    """An array of known length; ``stride`` is the bytes between elements where laid out in a buffer."""

    element: Type
    length: int
    stride: int | None
    leaves: int
    depth: int

    def __str__(self) -> str:
        return f"array<{self.length}x{self.element}>"


@dataclass(frozen=True, slots=True, eq=False)
class RuntimeArray(Type):
    """The array of unknown length at the end of a buffer."""

    element: Type
    stride: int | None
    depth: int

    def __str__(self) -> str:
        return f"array<?x{self.element}>"


@dataclass(frozen=True, slots=True, eq=False)
class Struct(Type):
    """A structure; ``offsets`` are the members' bytes where laid out in a buffer."""

    id: int
    members: tuple[Type, ...]
    offsets: tuple[int | None, ...]
    leaves: int
    depth: int
    size: int
    align: int

    def __str__(self) -> str:
        return f"struct<{', '.join(map(str, self.members))}>" if self.depth < 4 else f"struct %{self.id}"


@dataclass(frozen=True, slots=True, eq=False)
class CooperativeMatrix(Type):
    """A matrix whose elements are spread over the invocations of a subgroup; ``use`` is 0 for A, 1 for B, 2 for C."""

    element: Int | Float
    rows: int
    columns: int
    use: int

    def __str__(self) -> str:
        return f"matrix {'ABC'[self.use]}<{self.rows}x{self.columns}x{self.element}>"


@dataclass(frozen=True, slots=True, eq=False)
class Pointer(Type):
    """A pointer into a storage class."""

    storage: int
    pointee: Type

    def __str__(self) -> str:
        return f"pointer to {self.pointee}"


@dataclass(frozen=True, slots=True, eq=False)
class FunctionType(Type):
    """Result and parameters of a function."""

    result: Type
    parameters: tuple[Type, ...]

    def __str__(self) -> str:
        return f"function of {len(self.parameters)} parameters"


VOID: Final = Void()
BOOL: Final = Bool()
INTS: Final = {width: Int(width) for width in (8, 16, 32, 64)}
FLOATS: Final = {width: Float(width) for width in (16, 32, 64)}
SCALARS: Final[tuple[Scalar, ...]] = (BOOL, *INTS.values(), *FLOATS.values())
VECTORS: Final = {
    (element, count): Vector(element, count) for element in SCALARS for count in (2, 3, 4, 8, 16)
}
"""SPIR-V for Vulkan has vectors of up to four; those of more are an invocation's elements of a cooperative matrix."""


def is_scalar(type_: Type) -> TypeGuard[Scalar]:
    """Whether ``type_`` is a boolean, an integer or a float."""
    return isinstance(type_, (Bool, Int, Float))


def element_of(type_: Type) -> Type:
    """The scalar of a scalar or vector; any other type is returned as it is."""
    return type_.element if isinstance(type_, Vector) else type_


def count_of(type_: Type) -> int:
    """How many scalars a scalar or vector has."""
    return type_.count if isinstance(type_, Vector) else 1


def like(type_: Type, element: Scalar) -> Type:
    """The scalar or vector of ``element`` with as many components as ``type_``."""
    return VECTORS[element, type_.count] if isinstance(type_, Vector) else element


def leaves_of(type_: Type) -> int:
    """How many scalars or vectors a value of ``type_`` is made of."""
    return type_.leaves if isinstance(type_, (Array, Struct)) else 1


def depth_of(type_: Type) -> int:
    """How deep ``type_`` is nested."""
    return type_.depth if isinstance(type_, (Array, RuntimeArray, Struct)) else 0


def byte_size(type_: Type) -> int:
    """Bytes of a value of ``type_`` as a C compiler lays it out; a boolean takes one, in a vector four."""
    if isinstance(type_, (Int, Float)):
        return type_.width // 8
    if isinstance(type_, Vector):
        scalar = 4 if isinstance(type_.element, Bool) else byte_size(type_.element)
        return scalar * (4 if type_.count == 3 else type_.count)
    if isinstance(type_, Array):
        return byte_size(type_.element) * type_.length
    return type_.size if isinstance(type_, Struct) else 1


def alignment(type_: Type) -> int:
    """The alignment that a C compiler gives to a value of ``type_``."""
    if isinstance(type_, Array):
        return alignment(type_.element)
    return type_.align if isinstance(type_, Struct) else byte_size(type_)


def make_struct(id_: int, members: tuple[Type, ...], offsets: tuple[int | None, ...]) -> Struct:
    """Build a structure type; sizes are computed once, so that nesting costs nothing."""
    end, align = 0, max(map(alignment, members), default=1)
    for member in members:
        at = alignment(member)
        end = -(-end // at) * at + byte_size(member)
    return Struct(
        id=id_,
        members=members,
        offsets=offsets,
        leaves=sum(map(leaves_of, members)),
        depth=1 + max(map(depth_of, members), default=0),
        size=-(-end // align) * align,
        align=align,
    )


def part_type(type_: Type, index: int) -> Type | None:
    """The type of part ``index`` of a composite; None if there is no such part."""
    if isinstance(type_, Vector):
        return type_.element if index < type_.count else None
    if isinstance(type_, Array):
        return type_.element if index < type_.length else None
    if isinstance(type_, Struct):
        return type_.members[index] if index < len(type_.members) else None
    if isinstance(type_, CooperativeMatrix):
        return type_.element if index < type_.rows * type_.columns else None
    return None


def holds_matrices(type_: Type) -> bool:
    """Whether there are cooperative matrices in a type."""
    waiting, seen = [type_], set()
    while waiting:
        at = waiting.pop()
        if isinstance(at, CooperativeMatrix):
            return True
        if at not in seen and isinstance(at, (Array, RuntimeArray)):
            waiting.append(at.element)
        elif at not in seen and isinstance(at, Struct):
            waiting.extend(at.members)
        seen.add(at)
    return False


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A constant: the bits of a number, a bool, the parts of a composite, or None for all zeros."""

    type: Type
    value: int | bool | tuple[Constant, ...] | None

    def part(self, index: int, type_: Type) -> Constant:
        """Member ``index`` of a composite, whose type is ``type_``; a cooperative matrix has one for all."""
        if isinstance(self.value, tuple):
            return self.value[0 if isinstance(self.type, CooperativeMatrix) else index]
        return Constant(type_, None)
