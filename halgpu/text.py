"""Small helpers for messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halgpu import errors


def counted(count: int, noun: str) -> str:
    """``1 argument``, ``2 arguments``; only for nouns that take an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def located(error: errors.Error) -> str:
    """The error's message with the place in the program where it arose, if that is known and not yet in it."""
    if not error.frames or error.frames[0] in error.message:
        return error.message
    return f"{error.message}, in {error.frames[0]}"


def one_line(text: str) -> str:
    """``text`` with line ends and other control characters escaped, so that it neither wraps nor steers a terminal."""
    return "".join(
        letter if letter >= " " and not "\x7f" <= letter <= "\x9f" else ascii(letter)[1:-1] for letter in text
    )
