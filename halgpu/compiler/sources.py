"""What can be compiled: files, MLIR as text or bytecode, ONNX models; each becomes a file for the compiler."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from halgpu import errors
from halgpu.compiler.bytecode import MAGIC

ONNX: Final = "onnx"


@dataclass(frozen=True, slots=True)
class Program:
    """A program to compile: its file, whether that is an ONNX model, and what to call it in messages."""

    path: Path
    is_onnx: bool
    name: str


def check_there(source: Any) -> None:
    """Raise NotFound for a path without a file. That is said before that no compiler is installed."""
    if isinstance(source, (str, os.PathLike)) and not (isinstance(source, str) and _is_text(source)):
        require_file(source, PROGRAM)


def prepare(source: Any, input_type: str | None, folder: Path) -> Program:
    """The program that ``source`` stands for; what is no file yet is written to ``folder``.

    Raises NotFound for a file that is not there, InvalidArgument for what cannot be compiled.
    """
    if isinstance(source, str) and _is_text(source):
        source = source.encode()
    if isinstance(source, (str, os.PathLike)):
        return _file(Path(source), input_type, folder)
    if hasattr(source, "SerializeToString") and hasattr(source, "graph"):
        return _written(_serialized(source), True, folder)
    try:
        data = bytes(memoryview(source))
    except TypeError:
        raise errors.InvalidArgument(
            f"expected a path, MLIR as text or bytes, or an ONNX ModelProto, found {type(source).__name__}"
        ) from None
    return _written(data, input_type == ONNX, folder)


def _is_text(source: str) -> bool:
    """Text of a program, not a path: all MLIR has a brace or a line break."""
    return "\n" in source or "{" in source


def read_file(path: str | os.PathLike[str], what: str) -> bytes:
    """The bytes of a file, or of what comes through a pipe. ``what`` was expected there.

    Raises NotFound for a file that is not there and for a folder, PermissionDenied, Unavailable.
    """
    require_file(path, what)
    try:
        return Path(path).read_bytes()
    except PermissionError as problem:
        raise errors.PermissionDenied(f"cannot read {os.fspath(path)}: {problem.strerror}") from None
    except OSError as problem:
        raise errors.Unavailable(f"cannot read {os.fspath(path)}: {problem.strerror}") from None


def require_file(path: str | os.PathLike[str], what: str) -> None:
    """Raise NotFound where there is nothing to read, a file or a pipe; ``what`` was expected there."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):  # ValueError: a name with a zero byte
        raise errors.NotFound(f"{os.fspath(path)}: expected {what}, found nothing there") from None
    if stat.S_ISDIR(mode):
        raise errors.NotFound(f"{os.fspath(path)}: expected {what}, found a folder")


PROGRAM: Final = "a program to compile (.mlir, .mlirbc, .onnx)"


def _file(path: Path, input_type: str | None, folder: Path) -> Program:
    require_file(path, PROGRAM)
    if not path.is_file():  # a pipe, which can be read once: the compiler gets a file
        return _written(read_file(path, PROGRAM), input_type == ONNX, folder)
    if path.suffix == ".vmfb":
        raise errors.InvalidArgument(f"{path}: expected a program to compile, found a compiled one")
    return Program(path, input_type == ONNX or (input_type is None and path.suffix == ".onnx"), str(path))


def _written(data: bytes, is_onnx: bool, folder: Path) -> Program:
    if not data.strip():
        raise errors.InvalidArgument("expected a program to compile, found nothing")
    bytecode = data.startswith(MAGIC)
    path = folder / ("model.onnx" if is_onnx else "module.mlirbc" if bytecode else "module.mlir")
    path.write_bytes(data)
    return Program(path, is_onnx, path.name)


def _serialized(model: Any) -> bytes:
    try:
        data: bytes = model.SerializeToString()
    except Exception as error:  # protobuf's EncodeError, or ValueError, for a model of more than 2 GiB
        raise errors.InvalidArgument(
            f"the ONNX model cannot be serialized ({error}): save it with external data and give its path"
        ) from error
    return data


def check_shapes(shapes: Mapping[str, Sequence[int]] | None, is_onnx: bool) -> dict[str, list[int]]:
    """``shapes`` as lists of ints. Raises InvalidArgument for a program that is no ONNX model, or a bad shape."""
    if not shapes:
        return {}
    if not is_onnx:
        raise errors.InvalidArgument("shapes can be given for ONNX models only; MLIR has them in its types")
    return {str(name): _shape(name, shape) for name, shape in shapes.items()}


def _shape(name: str, shape: Sequence[int]) -> list[int]:
    try:
        sizes = [int(size) for size in shape]
        good = all(size == given and size >= 0 for size, given in zip(sizes, shape, strict=True))
    except (TypeError, ValueError):
        good = False
    if not good:
        raise errors.InvalidArgument(
            f"shape of input {name!r}: expected sizes such as (1, 3, 224, 224), found {shape!r}"
        )
    return sizes


def parse_shape(text: str) -> tuple[str, list[int]]:
    """(name, sizes) of ``NAME=1x3x320x320``; nothing after the equals sign is rank 0."""
    name, equals, sizes = text.rpartition("=")
    if not equals or not name or not re.fullmatch(r"(\d+(x\d+)*)?", sizes):
        raise errors.InvalidArgument(f"expected --shape=NAME=1x3x320x320, found {text!r}")
    return name, [int(size) for size in sizes.split("x")] if sizes else []
