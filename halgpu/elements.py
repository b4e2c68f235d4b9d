"""HAL element types: their 32-bit codes, their names, their numpy dtypes, and their text form.

A code is ``numerical type << 24 | bit count`` (IREE runtime/src/iree/hal/buffer_view.h); a name is what
``iree-run-module`` reads and prints (hal/string_util.c). Three tables hold everything: the families of
types, the types with a name of their own, and the dtypes of ``ml_dtypes``, which is imported only when a
type needs it.

Integers of one width are interchangeable, signed, unsigned or signless, everywhere: as arguments, on the
command line and in .npy files (:func:`compatible`). ``i1`` is stored in a byte and so counts as 8 bits wide.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, Literal

import numpy as np

from halgpu import errors

OPAQUE, INTEGER, SIGNED, UNSIGNED, BOOLEAN = 0x00, 0x10, 0x11, 0x12, 0x13
IEEE, BRAIN, COMPLEX = 0x21, 0x22, 0x23

# Prefix of a name -> numerical type; the bit count follows the prefix.
_FAMILIES = {
    "i": INTEGER,
    "si": SIGNED,
    "ui": UNSIGNED,
    "f": IEEE,
    "bf": BRAIN,
    "cf": COMPLEX,
    "*": OPAQUE,
}
_PREFIXES = {code: prefix for prefix, code in _FAMILIES.items()}

# Names that do not follow prefix + bit count -> code.
_NAMED = {
    "i1": BOOLEAN << 24 | 8,
    "f8E5M2": 0x24 << 24 | 8,
    "f8E4M3FN": 0x25 << 24 | 8,
    "f8E5M2FNUZ": 0x26 << 24 | 8,
    "f8E4M3FNUZ": 0x27 << 24 | 8,
    "f8E8M0FNU": 0x28 << 24 | 8,
}
_NAMES = {code: name for name, code in _NAMED.items()}

# Code -> numpy's own dtype.
_NUMPY = {
    **{INTEGER << 24 | bits: f"int{bits}" for bits in (8, 16, 32, 64)},
    **{SIGNED << 24 | bits: f"int{bits}" for bits in (8, 16, 32, 64)},
    **{UNSIGNED << 24 | bits: f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{IEEE << 24 | bits: f"float{bits}" for bits in (16, 32, 64)},
    BOOLEAN << 24 | 8: "bool",
    COMPLEX << 24 | 64: "complex64",
    COMPLEX << 24 | 128: "complex128",
}

# Code -> dtype of the package ml_dtypes.
_ML_DTYPES = {
    BRAIN << 24 | 16: "bfloat16",
    _NAMED["f8E5M2"]: "float8_e5m2",
    _NAMED["f8E4M3FN"]: "float8_e4m3fn",
    _NAMED["f8E5M2FNUZ"]: "float8_e5m2fnuz",
    _NAMED["f8E4M3FNUZ"]: "float8_e4m3fnuz",
    _NAMED["f8E8M0FNU"]: "float8_e8m0fnu",
}

# An array's integers know their sign, so a dtype names the signed or unsigned type, never the signless one.
_OF_DTYPE = {name: code for code, name in (_ML_DTYPES | _NUMPY).items() if code >> 24 != INTEGER}


@dataclass(frozen=True, slots=False)
class ElementType:
    """What one element of a buffer view is: HAL ``code``, ``name`` as IREE writes it, width in ``bits``."""

    code: int
    name: str
    bits: int

    @property
    def numerical(self) -> int:
        """The numerical type: integer, float, … without the width."""
        return self.code >> 24

    @property
    def is_integer(self) -> bool:
        return self.numerical & 0xF0 == INTEGER

    @property
    def is_float(self) -> bool:
        """True of every floating-point type that is not complex."""
        return self.numerical & 0xF0 == 0x20 and self.numerical != COMPLEX

    @property
    def is_packed(self) -> bool:
        """True where several elements share a byte (``i4``)."""
        return self.bits % 8 != 0

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The numpy dtype; raw bytes (``V<n>``) for a type that neither numpy nor ml_dtypes knows.

        Raises Unimplemented for types narrower than a byte: numpy cannot view packed elements.
        """
        if self.is_packed:
            raise errors.Unimplemented(f"{self.name} elements share bytes, and numpy has no dtype for that")
        if self.code in _NUMPY:
            return np.dtype(_NUMPY[self.code])
        if self.code in _ML_DTYPES:
            return _ml_dtype(_ML_DTYPES[self.code])
        return np.dtype((np.void, self.bits // 8))

    def byte_length(self, count: int) -> int:
        """Bytes of ``count`` dense elements."""
        return (count * self.bits + 7) // 8

    def __str__(self) -> str:
        return self.name


def _ml_dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes

    scalar = getattr(ml_dtypes, name, None)
    if scalar is None:
        raise errors.Unimplemented(f"ml_dtypes {ml_dtypes.__version__} has no {name}: install a newer one")
    dtype: np.dtype[Any] = np.dtype(scalar)
    return dtype


@lru_cache(maxsize=256)
def of_code(code: int) -> ElementType:
    """The element type of a HAL code (signed 32-bit values are taken as unsigned)."""
    code &= 0xFFFFFFFF
    bits = code & 0xFF
    name = _NAMES.get(code)
    if name is None:
        name = "i1" if code >> 24 == BOOLEAN else f"{_PREFIXES.get(code >> 24, '*')}{bits}"
    return ElementType(code, name, bits)


@lru_cache(maxsize=256)
def of_name(name: str) -> ElementType:
    """The element type of a name: IREE's (``f32``, ``si8``, ``*16``) or MLIR's (``complex<f32>``).

    Raises InvalidArgument for anything else.
    """
    if name in _NAMED:
        return of_code(_NAMED[name])
    if match := re.fullmatch(r"complex<f(32|64)>", name):
        return of_code(COMPLEX << 24 | 2 * int(match[1]))
    match = re.fullmatch(r"(i|si|ui|f|bf|cf|\*)([0-9]{1,3})", name)
    if not match or not 0 < int(match[2]) <= 0xFF:
        raise errors.InvalidArgument(
            f"unknown element type '{name}'; there are i1, i8 to i64, si…, ui…, f16, bf16, f32, f64, "
            f"{', '.join(n for n in _NAMED if n != 'i1')}, cf64, cf128 and opaque *8 to *64"
        )
    return of_code(_FAMILIES[match[1]] << 24 | int(match[2]))


@lru_cache(maxsize=256)
def of_dtype(dtype: np.dtype[Any]) -> ElementType:
    """The element type of a numpy dtype of any byte order; raw ``V<n>`` is opaque.

    Raises InvalidArgument for dtypes that are no numbers (objects, strings, dates, records).
    """
    code = _OF_DTYPE.get(dtype.newbyteorder("=").name)
    if code is not None:
        return of_code(code)
    if dtype.kind == "V" and dtype.names is None and dtype.subdtype is None and 0 < dtype.itemsize < 32:
        return of_code(OPAQUE << 24 | dtype.itemsize * 8)
    raise errors.InvalidArgument(f"dtype {dtype} is no element type that a program can take")


def compatible(found: ElementType, expected: ElementType) -> bool:
    """True where data of type ``found`` may be passed as ``expected``.

    Opaque data passes as anything, integers of one width pass as each other, all else must be equal
    (IREE modules/hal/utils/buffer_diagnostics.c).
    """
    if found.code == expected.code or found.numerical == OPAQUE:
        return True
    return found.is_integer and expected.is_integer and found.bits == expected.bits


# Shapes -----------------------------------------------------------------------------------------------


def element_count(shape: Sequence[int]) -> int:
    """Number of elements of a shape. Raises OutOfRange where it does not fit 63 bits."""
    count = 1
    for axis, size in enumerate(shape):
        count *= size
        if count > 0x7FFFFFFFFFFFFFFF:
            raise errors.OutOfRange(
                f"shape {format_shape(shape)}: the number of elements overflows 64 bits at dimension {axis}"
            )
    return count


def format_shape(shape: Sequence[int]) -> str:
    """``(2, 3)`` as ``2x3``."""
    return "x".join(map(str, shape))


def format_type(shape: Sequence[int], element: ElementType) -> str:
    """Shape and element type as IREE writes them: ``2x3xf32``, and ``f32`` for rank 0."""
    return "".join(f"{size}x" for size in shape) + element.name


def parse_type(text: str) -> tuple[tuple[int, ...], ElementType]:
    """The reverse of :func:`format_type`. Raises InvalidArgument, or OutOfRange where the shape overflows."""
    # The x of "complex<f32>" separates nothing.
    head, opening, rest = text.strip().partition("complex<")
    *sizes, name = head.split("x")
    element = of_name(name.strip() + opening + rest)
    shape = tuple(_parse_size(size, text) for size in sizes)
    element.byte_length(element_count(shape))
    return shape, element


def _parse_size(size: str, text: str) -> int:
    if not re.fullmatch(r"\s*[0-9]+\s*", size, re.ASCII):
        raise errors.InvalidArgument(f"'{text}' has a dimension '{size}'; a shape is written like 2x3xf32")
    return int(size) if len(size) < 32 else 1 << 100


def shaped(
    array: np.ndarray[Any, Any], shape: Sequence[int], order: Literal["C", "F"] = "C"
) -> np.ndarray[Any, Any]:
    """``array`` in another shape; one of rank 0 is repeated, which takes no memory.

    Raises Unimplemented for a shape that no numpy array has: over 64 dimensions, or huge ones beside a zero.
    """
    try:
        return array.reshape(shape, order=order) if array.ndim else np.broadcast_to(array, shape)
    except (ValueError, OverflowError) as error:
        raise errors.Unimplemented(f"numpy has no arrays of that shape: {error}") from error


# Numbers to text --------------------------------------------------------------------------------------


def format_float(value: float, form: str = "G") -> str:
    """``value`` in six digits as C's printf does it, whose NaN has a sign where Python's has none."""
    text = format(value, form)
    if value != value and math.copysign(1.0, value) < 0:
        return "-" + text
    return text


def format_array(array: np.ndarray[Any, Any], element: ElementType) -> list[str]:
    """The text of every element, in order: decimal integers, ``%G`` floats, hex bytes for all else."""
    flat = array.reshape(-1)
    if element.is_integer and element.numerical != BOOLEAN and element.code in _NUMPY:
        return list(map(str, flat.tolist()))
    if element.is_float and element.bits >= 32 and element.code in _NUMPY:
        return list(map(format_float, flat.tolist()))
    if element.is_float and (element.code in _NUMPY or element.code in _ML_DTYPES):
        # Read through f32, where IREE's conversions lose the sign of a NaN.
        with np.errstate(all="ignore"):
            return [f"{value:G}" for value in flat.astype(np.float32).tolist()]
    size = element.dtype.itemsize
    digits = np.ascontiguousarray(flat).tobytes().hex().upper()
    return [digits[at : at + 2 * size] for at in range(0, len(digits), 2 * size)]


def format_elements(array: np.ndarray[Any, Any], element: ElementType, limit: int = 1024) -> str:
    """Elements as IREE prints them: ``[1 2][3 4]``; rows end in ``...`` after ``limit`` elements."""
    shape = array.shape or (1,)
    row = shape[-1]
    rows = math.prod(shape[:-1])
    limit = max(limit, 0)
    words = iter(format_array(array.reshape(-1)[:limit], element))
    texts: list[str] = []
    while limit > 0 and row > 0 and len(texts) < rows:
        taken = list(islice(words, min(row, limit)))
        limit -= len(taken)
        texts.append(" ".join(taken) + ("..." if len(taken) < row else ""))
    texts += ["..." if row else ""] * (rows - len(texts))
    for axis in range(len(shape) - 2, -1, -1):
        texts = list(_bracketed(texts, shape[axis], math.prod(shape[:axis])))
    return texts[0] if texts else ""


def _bracketed(texts: list[str], size: int, groups: int) -> Iterator[str]:
    for group in range(groups):
        yield "".join(f"[{text}]" for text in texts[group * size : (group + 1) * size])


# Text to numbers --------------------------------------------------------------------------------------

_INTEGER_TEXT = re.compile(r"([+-]?)(?:0[xX]([0-9a-fA-F]+)|0([0-7]+)|([0-9]+))", re.ASCII)
_NAN_TEXT = re.compile(r"([+-]?)nan(?:\([0-9a-z_]*\))?", re.ASCII | re.IGNORECASE)
_BOOLEAN_TEXT = {"0": 0, "00": 0, "false": 0, "1": 1, "01": 1, "true": 1}


def parse_integer(text: str, bits: int, signed: bool | None = None) -> int:
    """An integer in C's notation (decimal, ``0x`` hex, ``0`` octal) that fits ``bits``.

    ``signed`` None is signless: it takes -2^(bits-1) to 2^bits - 1. Raises InvalidArgument for text that is
    no integer, or does not fit.
    """
    match = _INTEGER_TEXT.fullmatch(text)
    # A decimal's leading zero would mean octal: C reads 08 as 0 and stops, which is nobody's intention.
    if not match or len(text) > 64 or (match[4] and match[4] != "0" and match[4][0] == "0"):
        raise errors.InvalidArgument(f"'{text[:40]}' is not an integer")
    sign, hexadecimal, octal, decimal = match.groups()
    value = int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else int(decimal)
    value = -value if sign == "-" else value
    low = 0 if signed is False else -(1 << bits - 1)
    high = (1 << bits - 1) - 1 if signed else (1 << bits) - 1
    if not low <= value <= high:
        raise errors.InvalidArgument(f"{value} does not fit: expected {low} to {high}")
    return value


def parse_float(text: str) -> float:
    """A float in C's notation: decimal, hex (``0x1.8p3``), ``inf``, ``nan``. Raises InvalidArgument."""
    if match := _NAN_TEXT.fullmatch(text):
        return math.copysign(math.nan, -1.0 if match[1] == "-" else 1.0)
    try:
        if "_" in text or not text.isascii():
            raise ValueError
        return float.fromhex(text) if "x" in text.lower() else float(text)
    except (ValueError, OverflowError):
        raise errors.InvalidArgument(f"'{text[:40]}' is not a number") from None


def _parse_boolean(text: str) -> int:
    if text not in _BOOLEAN_TEXT:
        raise errors.InvalidArgument(f"'{text[:40]}' is no truth value: expected 0, 1, 00, 01, false or true")
    return _BOOLEAN_TEXT[text]


def _parse_words(words: list[str], element: ElementType) -> np.ndarray[Any, Any]:
    if element.numerical == BOOLEAN:
        return np.array(list(map(_parse_boolean, words)), np.uint8).view(np.bool_)
    if element.is_integer and element.code in _NUMPY:
        return _parse_integers(words, element)
    if element.is_float and (element.code in _NUMPY or element.code in _ML_DTYPES):
        return _rounded(list(map(parse_float, words)), element)
    return _parse_hex(words, element)


def _parse_integers(words: list[str], element: ElementType) -> np.ndarray[Any, Any]:
    signed = {SIGNED: True, UNSIGNED: False}.get(element.numerical)
    mask = (1 << element.bits) - 1
    values = [parse_integer(word, element.bits, signed) & mask for word in words]
    return np.array(values, f"uint{element.bits}").view(element.dtype)


def _rounded(values: list[float], element: ElementType) -> np.ndarray[Any, Any]:
    array = np.array(values, np.float64)
    if element.code == _NAMED["f8E8M0FNU"]:
        array = np.maximum(array, 2.0**-127)  # has neither zero nor sign: its smallest value stands for them
    with np.errstate(all="ignore"):
        # Narrow types round twice, by way of f32, as IREE's parser does (hal/string_util.c).
        return array.astype(np.float32 if element.bits < 64 else np.float64).astype(element.dtype)


def _parse_hex(words: list[str], element: ElementType) -> np.ndarray[Any, Any]:
    digits = 2 * element.dtype.itemsize
    for word in words:
        if len(word) != digits or not re.fullmatch(r"[0-9a-fA-F]*", word):
            raise errors.InvalidArgument(
                f"'{word[:40]}' is no {element.name} element: expected {digits} hexadecimal digits"
            )
    return np.frombuffer(bytearray.fromhex("".join(words)), element.dtype)


def parse_elements(text: str, element: ElementType, count: int) -> np.ndarray[Any, Any]:
    """The elements written in ``text``: ``count`` of them, or one, to be repeated, or none, meaning zeros.

    Brackets and commas count as spaces. The result is flat and of dtype ``element.dtype``. Raises
    InvalidArgument for a word that is no element, OutOfRange for too few or too many.
    """
    words = re.sub(r"[,\[\]]", " ", text).split()
    # One value for an empty view is one too many; IREE says so too.
    if len(words) > count or 1 < len(words) < count:
        raise errors.OutOfRange(f"expected {count} elements (or one, which is repeated), found {len(words)}")
    return _parse_words(words, element)
