"""The one exception tree of halgpu: a class for each of IREE's status codes.

    Error
    ├── Cancelled            1   ├── Aborted              10
    ├── Unknown              2   ├── OutOfRange           11  (IndexError)
    ├── InvalidArgument      3   ├── Unimplemented        12  (NotImplementedError)
    │   (ValueError)             ├── Internal             13
    ├── DeadlineExceeded     4   ├── Unavailable          14
    │   (TimeoutError)           ├── DataLoss             15
    ├── NotFound             5   ├── Unauthenticated      16
    │   (LookupError)            ├── Deferred             17
    ├── AlreadyExists        6   └── Incompatible         18
    ├── PermissionDenied     7
    ├── ResourceExhausted    8
    └── FailedPrecondition   9

Codes and their names are those of IREE's ``iree_status_code_e`` (runtime/src/iree/base/status.h). Where
Python has a built-in exception of the same meaning the class derives from it too, so that code that does
not know halgpu can catch it.

This module is a leaf: ``halgpu.vm`` and ``halgpu.devices`` import it, and it imports nothing of halgpu.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar


class Error(Exception):
    """Base of everything halgpu raises on purpose.

    ``code`` is IREE's numeric status code and ``status`` its name, such as ``"INVALID_ARGUMENT"``.
    ``frames`` lists the program's functions that were active, innermost first, each as text such as
    ``"module.main (model.mlir:12:5)"``; it is empty for an error raised outside a running program.
    ``details`` is text of several lines that belongs to ``message``, such as a compiler's log; mostly empty.
    """

    code: ClassVar[int] = 2
    status: ClassVar[str] = "UNKNOWN"

    def __init__(self, message: str = "", *, frames: tuple[str, ...] = (), details: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.frames = frames
        self.details = details

    def __str__(self) -> str:
        return f"{self.message}\n{self.details}" if self.details else self.message


class Cancelled(Error):
    """The operation was cancelled by its caller."""

    code = 1
    status = "CANCELLED"


class Unknown(Error):
    """An error that carries no better code."""

    code = 2
    status = "UNKNOWN"


class InvalidArgument(Error, ValueError):
    """An argument is wrong whatever the state of the system."""

    code = 3
    status = "INVALID_ARGUMENT"


class DeadlineExceeded(Error, TimeoutError):
    """A deadline passed before the operation was done."""

    code = 4
    status = "DEADLINE_EXCEEDED"


class NotFound(Error, LookupError):
    """A named thing does not exist."""

    code = 5
    status = "NOT_FOUND"


class AlreadyExists(Error):
    """The thing to be made is there already."""

    code = 6
    status = "ALREADY_EXISTS"


class PermissionDenied(Error):
    """The caller may not do this, for example write to read-only memory."""

    code = 7
    status = "PERMISSION_DENIED"


class ResourceExhausted(Error):
    """Memory, handles or another bounded resource ran out."""

    code = 8
    status = "RESOURCE_EXHAUSTED"


class FailedPrecondition(Error):
    """The system is not in the state that the operation needs."""

    code = 9
    status = "FAILED_PRECONDITION"


class Aborted(Error):
    """The operation was given up half way."""

    code = 10
    status = "ABORTED"


class OutOfRange(Error, IndexError):
    """An index, offset or length lies outside of what it refers to."""

    code = 11
    status = "OUT_OF_RANGE"


class Unimplemented(Error, NotImplementedError):
    """The operation is not supported here."""

    code = 12
    status = "UNIMPLEMENTED"


class Internal(Error):
    """An invariant of halgpu or of a driver does not hold."""

    code = 13
    status = "INTERNAL"


class Unavailable(Error):
    """A device, driver or service cannot be used right now."""

    code = 14
    status = "UNAVAILABLE"


class DataLoss(Error):
    """Data is corrupt or was lost."""

    code = 15
    status = "DATA_LOSS"


class Unauthenticated(Error):
    """The caller has no valid credentials."""

    code = 16
    status = "UNAUTHENTICATED"


class Deferred(Error):
    """The operation was put off and has to be resumed."""

    code = 17
    status = "DEFERRED"


class Incompatible(Error):
    """Two parts cannot work together, for example a module and this runtime."""

    code = 18
    status = "INCOMPATIBLE"


BY_CODE: dict[int, type[Error]] = {cls.code: cls for cls in Error.__subclasses__()}


def from_code(code: int, message: str) -> Error:
    """Return a new error for IREE status ``code``; an unknown code gives :class:`Unknown`."""
    return BY_CODE.get(code, Unknown)(message)


def nearest(word: str, names: Iterable[str]) -> str:
    """A hint " (did you mean 'x'?)" with the name most like ``word``, or nothing."""
    import difflib

    near = difflib.get_close_matches(word, list(names), 1)
    return f" (did you mean '{near[0]}'?)" if near else ""
