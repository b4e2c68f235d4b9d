"""Small helpers for messages."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, names: Iterable[str]) -> str:
    """A hint " (did you mean 'x'?)" with the name most like ``word``, or nothing."""
    import difflib

    near = difflib.get_close_matches(word, list(names), 1)
    return f" (did you mean '{near[0]}'?)" if near else ""


def one_line(text: str) -> str:
    """``text`` with line ends and other control characters escaped, so that it neither wraps nor steers a terminal."""
    return "".join(
        letter if letter >= " " and not "\x7f" <= letter <= "\x9f" else ascii(letter)[1:-1] for letter in text
    )
