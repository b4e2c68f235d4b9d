"""The values of ``--input`` and ``--expected_output``, in all forms that iree-run-module takes.

Numbers are checked more strictly than there: trailing garbage and values that do not fit are errors, where
C's strtol and friends would stop or wrap.
"""

from __future__ import annotations

import io
import os.path
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import BinaryIO

import numpy as np

from halgpu import elements, errors
from halgpu.buffer_view import NDArray
from halgpu.cli import npy
from halgpu.elements import ElementType
from halgpu.errors import nearest
from halgpu.signature import Value
from halgpu.text import counted

NULLS = ("(null)", "(ignored)")
FLOATS = ("f16", "f32", "f64", "bf16")


@dataclass(frozen=True, slots=True)
class Tensor:
    """Elements on the host. ``array`` may repeat one element without taking memory for the others.

    ``storage`` marks the ``&`` form: only the buffer is meant, without shape and type.
    """

    array: NDArray
    element: ElementType
    shape: tuple[int, ...]
    """The array's, but for packed elements (``i4``), whose array is of bytes."""
    storage: bool = False

    @property
    def type_text(self) -> str:
        """Shape and element type, ``2x3xf32``."""
        return elements.format_type(self.shape, self.element)


class Ignored:
    """A value of no interest: ``(null)`` for a ref, ``(ignored)``."""


IGNORED = Ignored()
Parsed = Tensor | int | float | Ignored


class Files:
    """The files that values come from. Each is opened once and read on where the last value ended."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._open: dict[str, BinaryIO] = {}

    def __enter__(self) -> Files:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def get(self, path: str, from_start: bool) -> BinaryIO:
        """The file at ``path``, at its beginning or where it was left."""
        stream = self._open.get(path)
        if stream is None:
            stream = self._open[path] = self._read(path)
        elif from_start:
            stream.seek(0)
        return stream

    def _read(self, path: str) -> BinaryIO:
        try:
            stream: BinaryIO = self._stack.enter_context(open(path, "rb"))  # noqa: SIM115 - the stack closes it
            return stream if stream.seekable() else io.BytesIO(stream.read())
        except (OSError, ValueError) as error:
            raise errors.NotFound(f"cannot read '{path}': {getattr(error, 'strerror', error)}") from error


def parse(specs: Sequence[str], targets: Sequence[Value], what: str = "input") -> list[Parsed]:
    """Parse the values for ``targets``; ``*file.npy`` may stand for several.

    Their number is not checked: those without a target are not looked at and count as ignored.
    Raises an error that quotes the value and says what is wrong with it.
    """
    parsed: list[Parsed] = []
    with Files() as files:
        for spec in map(str.strip, specs):
            try:
                _parse_one(spec, targets, files, parsed)
            except errors.Error as error:
                raise type(error)(f"{what} {_quoted(spec)}: {error.message}") from error
            except OSError as error:  # while reading on in a file that could be opened
                raise errors.Unavailable(f"{what} {_quoted(spec)}: {error.strerror}") from error
    return parsed


def _quoted(spec: str) -> str:
    return f"`{spec if len(spec) <= 100 else spec[:100] + '...'}`"


def _parse_one(spec: str, targets: Sequence[Value], files: Files, parsed: list[Parsed]) -> None:
    if not spec:
        raise errors.InvalidArgument("no value given")
    if spec.startswith("*"):
        parsed += _all_arrays(spec[1:], files)
        return
    if len(parsed) >= len(targets):
        parsed.append(IGNORED)
        return
    target = targets[len(parsed)]
    if spec in NULLS:
        parsed.append(IGNORED)
    elif spec[0] in "@+":
        parsed.append(_next_array(_npy_file(spec[1:], spec[0] == "@", files)))
    elif spec[0] == "&":
        tensor = parse_tensor(spec[1:], files)
        parsed.append(replace(tensor, storage=True))
    elif target.is_scalar:
        parsed.append(_parse_scalar(spec, target))
    else:
        parsed.append(parse_tensor(spec, files))


def _npy_file(path: str, from_start: bool, files: Files) -> BinaryIO:
    # A pipe, such as <(command) or /dev/stdin, has no name that says what comes.
    pipe = os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    if not pipe and not os.path.realpath(path).endswith(".npy") and not path.endswith(".npy"):
        raise errors.Unimplemented(
            f"'{path}' is no .npy file; other files need shape and type, as in 2x3xf32=@{path or 'file.bin'}"
        )
    return files.get(path, from_start)


def _next_array(stream: BinaryIO) -> Tensor:
    array = npy.read(stream)
    return Tensor(array, elements.of_dtype(array.dtype), array.shape)


def _all_arrays(path: str, files: Files) -> list[Parsed]:
    stream = _npy_file(path, False, files)
    found: list[Parsed] = []
    while stream.read(1):
        stream.seek(-1, 1)
        found.append(_next_array(stream))
    return found


def _parse_scalar(spec: str, target: Value) -> int | float:
    """A number for a register of the VM, as 32- or 64-bit integer or as float."""
    try:
        if target.cconv in "fF":
            return elements.parse_float(spec)
        bits = 32 if target.cconv == "i" else 64
        value = elements.parse_integer(spec, bits)
    except errors.InvalidArgument as error:
        raise errors.InvalidArgument(f"{target.name}: expected {target.text}; {error.message}") from error
    return value - (1 << bits) if value >> bits - 1 > 0 else value


def parse_tensor(spec: str, files: Files) -> Tensor:
    """Parse ``2x3xf32``, ``2x3xf32=1 2 …``, ``2x3xf32=@file`` or ``…=+file``."""
    text = spec.strip().removeprefix('"').removesuffix('"')
    type_text, equals, data = text.partition("=")
    if not equals and (text.endswith(".npy") or os.path.isfile(text)):
        raise errors.InvalidArgument(_file_hint(text))
    if not equals and "x" not in type_text:
        raise errors.InvalidArgument("a tensor is written with its type, such as 4x2xf32=1 2 3")
    shape, element = _parse_type(type_text)
    if data[:1] in ("@", "+"):
        return Tensor(_read_raw(files.get(data[1:], data[0] == "@"), shape, element), element, shape)
    if element.is_packed:
        raise errors.Unimplemented(f"{element} elements are packed: give their bytes in a file, =@file.bin")
    return Tensor(_filled(data, shape, element), element, shape)


def _file_hint(path: str) -> str:
    if path.endswith(".npy"):
        return f"a file is written with @; did you mean @{path}?"
    return f"a file of raw bytes is written with shape and type; did you mean 2x3xf32=@{path} or the like?"


def _parse_type(text: str) -> tuple[tuple[int, ...], ElementType]:
    shape, element = elements.parse_type(text)
    if element.is_packed and element.is_float:
        # IREE reads any number of bits here; nothing makes such floats, so it is a typing mistake.
        raise errors.InvalidArgument(
            f"unknown element type '{element}'{nearest(element.name, FLOATS)}; floats are {', '.join(FLOATS)}"
        )
    return shape, element


def _filled(text: str, shape: tuple[int, ...], element: ElementType) -> NDArray:
    count = elements.element_count(shape)
    if not text:
        return elements.shaped(np.zeros((), element.dtype), shape)
    found = elements.parse_elements(text, element, count)
    if found.size == count:
        return elements.shaped(found, shape)
    if not found.size:
        raise errors.OutOfRange(f"expected {count} elements, found none")
    return elements.shaped(found[:1].reshape(()), shape)


def _read_raw(stream: BinaryIO, shape: tuple[int, ...], element: ElementType) -> NDArray:
    count = elements.element_count(shape)
    length = element.byte_length(count)
    dtype = np.dtype(np.uint8) if element.is_packed else element.dtype
    if npy.left(stream) < length:
        raise errors.OutOfRange(
            f"{counted(length, 'byte')} are needed, the file has only {npy.left(stream)} left"
        )
    array = np.frombuffer(stream.read(length), dtype)
    return array if element.is_packed else elements.shaped(array, shape)
