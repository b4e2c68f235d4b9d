"""The types of constants that hand-written kernels take by value: numbers, vectors, structures.

    "u32"   "f64"   "f32x3"   Struct(count="i32", scale="f32x3")

A program passes constants as 32-bit words, on every device the same ones: each number of up to 32 bits takes a
word (narrower integers extended, of either sign; f16 in the low half), each of 64 bits two, the low one first;
padding takes none. That is how IREE passes scalars, too. From Python, values are checked and become such words.
What a kernel reads has the C layout of its language, which :class:`Passed` makes of the words.
"""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np

from halgpu.errors import Incompatible, InvalidArgument, OutOfRange, nearest

CUDA: Final = frozenset({"cuda-c", "ptx"})
"""Languages whose vectors have CUDA's alignment; in all others it is OpenCL's."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number: ``name`` such as ``"u32"``, the code that ``struct`` has for it, and its bytes."""

    name: str
    code: str
    size: int

    def __str__(self) -> str:
        return self.name

    @property
    def is_float(self) -> bool:
        """Whether it is a floating-point number."""
        return self.name[0] == "f"

    @property
    def bits(self) -> str:
        """``struct``'s code for the same bytes as an unsigned number, which moves NaNs unchanged."""
        return {1: "B", 2: "H", 4: "I", 8: "Q"}[self.size]


SCALARS: Final = {
    name: Scalar(name, code, struct.calcsize(f"={code}"))
    for name, code in zip("i8 u8 i16 u16 i32 u32 i64 u64 f16 f32 f64".split(), "bBhHiIqQefd", strict=True)
}
COUNTS: Final = (2, 3, 4, 8, 16)
_VECTOR: Final = re.compile(r"([iuf]\d+)x(\d+)")


@dataclass(frozen=True, slots=True)
class Vector:
    """A vector of 2, 3, 4, 8 or 16 numbers, as OpenCL C and CUDA have them (``float3``); CUDA's end at 4."""

    element: Scalar
    count: int

    def __str__(self) -> str:
        return f"{self.element}x{self.count}"


class Struct:
    """A structure by value: its fields in order, each with its type. The layout is that of C, never packed.

    >>> Struct(count="i32", scale="f32x3")

    A dispatch takes for it a sequence of the fields' values, a mapping, or a numpy structured scalar or array of
    rank 0 whose dtype has the fields at the same offsets (:meth:`dtype`). Raises InvalidArgument for no field or
    an unknown type.
    """

    __slots__ = ("fields",)

    def __init__(self, fields: Mapping[str, Constant] | None = None, /, **more: Constant) -> None:
        given = {**(fields or {}), **more}
        if not given:
            raise InvalidArgument("a structure by value needs a field")
        self.fields: tuple[tuple[str, ConstantType], ...] = tuple(
            (name, constant_type(value)) for name, value in given.items()
        )

    def __repr__(self) -> str:
        return f"Struct({', '.join(f'{name}={str(value)!r}' for name, value in self.fields)})"

    def __str__(self) -> str:
        return "{" + ", ".join(f"{value} {name}" for name, value in self.fields) + "}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Struct) and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(self.fields)

    def dtype(self, language: str = "opencl-c") -> np.dtype[Any]:
        """The numpy dtype with the layout that a kernel in ``language`` sees."""
        return dtype_of(self, language)


ConstantType: TypeAlias = Scalar | Vector | Struct
Constant: TypeAlias = "str | Scalar | Vector | Struct"
"""How a type may be given: by its name, too."""


def constant_type(given: Constant) -> ConstantType:
    """Return the type that is meant; InvalidArgument, with the names there are, for any other."""
    if isinstance(given, Scalar | Vector | Struct):
        return given
    if not isinstance(given, str):
        raise InvalidArgument(f"a constant's type is a name such as 'u32', or a Struct; found {given!r}")
    if given in SCALARS:
        return SCALARS[given]
    match = _VECTOR.fullmatch(given)
    if match and match[1] in SCALARS and int(match[2]) in COUNTS:
        return Vector(SCALARS[match[1]], int(match[2]))
    raise InvalidArgument(
        f"no constant has type {given!r}{nearest(given, SCALARS)}; there are: {', '.join(SCALARS)}, "
        f"vectors of {', '.join(map(str, COUNTS))} of them ('f32x4'), and Struct"
    )


# C layout ---------------------------------------------------------------------------------------------


def leaves(kind: ConstantType) -> Iterator[Scalar]:
    """The numbers that a constant consists of, in order."""
    if isinstance(kind, Scalar):
        yield kind
    elif isinstance(kind, Vector):
        yield from (kind.element,) * kind.count
    else:
        for _, field in kind.fields:
            yield from leaves(field)


def words(kind: ConstantType) -> int:
    """How many 32-bit words a program passes for it."""
    return sum(2 if leaf.size == 8 else 1 for leaf in leaves(kind))


def alignment(kind: ConstantType, language: str) -> int:
    """Alignment in bytes: by OpenCL C 1.2 6.1.5, or CUDA C++ Programming Guide, "Built-in Vector Types"."""
    if isinstance(kind, Scalar):
        return kind.size
    if isinstance(kind, Struct):
        return max(alignment(field, language) for _, field in kind.fields)
    if language not in CUDA:
        return kind.element.size * (4 if kind.count == 3 else kind.count)
    return kind.element.size if kind.count == 3 else min(16, kind.element.size * kind.count)


def size(kind: ConstantType, language: str) -> int:
    """Bytes that it takes, padding included."""
    if isinstance(kind, Scalar):
        return kind.size
    if isinstance(kind, Vector):
        return _rounded(kind.element.size * kind.count, alignment(kind, language))
    return _rounded(_ends(kind, language)[-1][1], alignment(kind, language))


def _rounded(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _ends(kind: Struct, language: str) -> list[tuple[int, int]]:
    """Where each field starts and ends."""
    ends: list[tuple[int, int]] = []
    at = 0
    for _, field in kind.fields:
        start = _rounded(at, alignment(field, language))
        at = start + size(field, language)
        ends.append((start, at))
    return ends


def offsets(kind: ConstantType, language: str) -> Iterator[int]:
    """The byte offset of each of its numbers."""
    if isinstance(kind, Scalar):
        yield 0
    elif isinstance(kind, Vector):
        yield from (index * kind.element.size for index in range(kind.count))
    else:
        for (start, _), (_, field) in zip(_ends(kind, language), kind.fields, strict=True):
            yield from (start + offset for offset in offsets(field, language))


def dtype_of(kind: ConstantType, language: str) -> np.dtype[Any]:
    """The numpy dtype of the same layout; a vector is a subarray, and one of 3 has its padding behind it."""
    if isinstance(kind, Scalar):
        return np.dtype(f"={kind.code}")
    if isinstance(kind, Vector):
        return np.dtype((dtype_of(kind.element, language), (kind.count,)))
    return np.dtype(
        {
            "names": [name for name, _ in kind.fields],
            "formats": [dtype_of(field, language) for _, field in kind.fields],
            "offsets": [start for start, _ in _ends(kind, language)],
            "itemsize": size(kind, language),
        }
    )


def check_language(kind: ConstantType, language: str) -> None:
    """Raise Incompatible for a type that the language lacks."""
    if isinstance(kind, Struct):
        for _, field in kind.fields:
            check_language(field, language)
    elif isinstance(kind, Vector) and kind.count > 4 and language in CUDA:
        raise Incompatible(
            f"CUDA has no vectors of {kind.count}, such as {kind}; those of 2, 3 and 4 there are"
        )


class Passed:
    """The constants of a kernel in ``language``: what its launch makes of a dispatch's words."""

    def __init__(self, types: Sequence[ConstantType], language: str) -> None:
        self.types = tuple(types)
        self.language = language
        self._of_words = struct.Struct("=" + "".join(_word_code(leaf) for leaf in self._leaves()))
        self._count = sum(map(words, self.types))
        self._in_words = struct.Struct(f"={self._count}I")
        self._makers = [_maker(kind, language) for kind in self.types]
        self._numbers = [sum(1 for _ in leaves(kind)) for kind in self.types]

    def _leaves(self) -> Iterator[Scalar]:
        return (leaf for kind in self.types for leaf in leaves(kind))

    def pieces(self, values: tuple[int, ...]) -> list[bytes]:
        """The bytes of each constant in C layout, padding 0. ``values``: unsigned 32-bit words."""
        bits = self._of_words.unpack(self._in_words.pack(*values))
        found = []
        at = 0
        for make, count in zip(self._makers, self._numbers, strict=True):
            found.append(make(*bits[at : at + count]))
            at += count
        return found

    @cached_property
    def _dtypes(self) -> list[np.dtype[Any]]:
        return [dtype_of(kind, self.language) for kind in self.types]

    def values(self, given: tuple[int, ...]) -> tuple[Any, ...]:
        """The constants as Python values: ints, floats, a tuple for a vector or structure."""
        return tuple(
            _value(kind, np.frombuffer(piece, dtype, 1)[0])
            for kind, dtype, piece in zip(self.types, self._dtypes, self.pieces(given), strict=True)
        )


def _word_code(leaf: Scalar) -> str:
    # The rest of the word is a narrow integer's sign, or nothing.
    return f"{leaf.bits}{4 - leaf.size}x" if leaf.size < 4 else leaf.bits


def _maker(kind: ConstantType, language: str) -> Callable[..., bytes]:
    code, at = "=", 0
    for leaf, offset in zip(leaves(kind), offsets(kind, language), strict=True):
        code += f"{offset - at}x{leaf.bits}"
        at = offset + leaf.size
    return struct.Struct(f"{code}{size(kind, language) - at}x").pack


def _value(kind: ConstantType, found: Any) -> Any:
    if isinstance(kind, Scalar):
        return found.item()
    if isinstance(kind, Vector):
        return tuple(found.tolist())
    return tuple(_value(field, found[name]) for name, field in kind.fields)


# From Python to words ---------------------------------------------------------------------------------

Converter: TypeAlias = Callable[[Sequence[Any]], "tuple[int, ...]"]


def quick_converter(types: Sequence[ConstantType]) -> Converter | None:
    """What turns good values into words, and raises whatever it raises for others; None where types are structures.

    It takes no value that :func:`to_words` refuses.
    """
    if not all(isinstance(kind, Scalar) for kind in types):
        return None
    scalars = [kind for kind in types if isinstance(kind, Scalar)]
    pack = struct.Struct("=" + "".join(f"{leaf.code}{max(4 - leaf.size, 0)}x" for leaf in scalars)).pack
    unpack = struct.Struct(f"={sum(map(words, types))}I").unpack
    return lambda values: unpack(pack(*values))


def to_words(kind: ConstantType, value: Any, what: str, language: str) -> bytes:
    """Return the words of one value, or raise what is wrong with it; ``what`` names kernel and constant."""
    numbers = _numbers(kind, value, what, language)
    return b"".join(_packed(leaf, number, name).ljust(4, b"\0") for leaf, number, name in numbers)


def _numbers(kind: ConstantType, value: Any, what: str, language: str) -> Iterator[tuple[Scalar, Any, str]]:
    """Each number of a value with its type and what to call it."""
    if isinstance(kind, Scalar):
        yield kind, value, what
    elif isinstance(kind, Vector):
        for item in _items(value, kind.count, f"{what} is {kind}, {kind.count} numbers"):
            yield kind.element, item, what
    else:
        for (name, field), item in zip(kind.fields, _fields(kind, value, what, language), strict=True):
            yield from _numbers(field, item, f"{what}, field {name!r}", language)


def _items(value: Any, count: int, what: str) -> list[Any]:
    if isinstance(value, str | bytes) or not hasattr(value, "__len__") or not hasattr(value, "__getitem__"):
        raise InvalidArgument(f"{what}; found {value!r}")
    if len(value) != count:
        raise InvalidArgument(f"{what}; found {len(value)}: {value!r}")
    return list(value)


def _fields(kind: Struct, value: Any, what: str, language: str) -> list[Any]:
    names = [name for name, _ in kind.fields]
    found = getattr(value, "dtype", None)
    if isinstance(found, np.dtype) and found.names is not None:
        return _structured(kind, value, what, language)
    if isinstance(value, Mapping):
        if set(value) != set(names):
            raise InvalidArgument(f"{what} has fields {', '.join(names)}; found {', '.join(map(str, value))}")
        return [value[name] for name in names]
    return _items(value, len(names), f"{what} is {kind}, {len(names)} fields")


def _structured(kind: Struct, value: Any, what: str, language: str) -> list[Any]:
    expected, found = kind.dtype(language), value.dtype
    if getattr(value, "shape", ()) != ():
        raise InvalidArgument(f"{what} is one {kind}; found an array of shape {value.shape}")
    if found != expected:
        raise InvalidArgument(
            f"{what} is {kind}, in C of {expected.itemsize} bytes with its fields at "
            f"{_places(expected)}; found a dtype of {found.itemsize} bytes with fields at {_places(found)}. "
            "Struct.dtype() is the one that fits"
        )
    return [value[name] for name, _ in kind.fields]


def _places(dtype: np.dtype[Any]) -> str:
    assert dtype.fields is not None
    assert dtype.names is not None
    return ", ".join(f"{dtype.fields[name][1]} ({name}: {dtype.fields[name][0]})" for name in dtype.names)


def _packed(leaf: Scalar, value: Any, what: str) -> bytes:
    try:
        number = _as_float(value) if leaf.is_float else operator.index(_unboxed(value))
    except (TypeError, ValueError, OverflowError):
        wanted = f"a number ({leaf})" if leaf.is_float else f"an int ({leaf})"
        raise InvalidArgument(f"{what} must be {wanted}, found {value!r}") from None
    try:
        return struct.pack(f"={leaf.code}", number)
    except (struct.error, OverflowError):
        raise OutOfRange(f"{what} does not fit {leaf}: {value!r}") from None


def _unboxed(value: Any) -> Any:
    """numpy's bool as Python's, which counts as 0 or 1."""
    return bool(value) if isinstance(value, np.bool_) else value


def _as_float(value: Any) -> float:
    if isinstance(value, str | bytes | bytearray):
        raise TypeError
    return float(value)


def misfit(types: Sequence[ConstantType], given: tuple[int, ...]) -> str | None:
    """Say which word, if any, holds more than the narrow integer that it stands for."""
    at = 0
    for index, kind in enumerate(types):
        for leaf in leaves(kind):
            if leaf.size < 4 and not _fits(leaf, given[at]):
                return f"constant {index} does not fit {leaf}: its word is {given[at]:#x}"
            at += 2 if leaf.size == 8 else 1
    return None


def _fits(leaf: Scalar, word: int) -> bool:
    bits = 8 * leaf.size
    return word >> bits == 0 or (leaf.name[0] == "i" and word >> (bits - 1) == (1 << (33 - bits)) - 1)
