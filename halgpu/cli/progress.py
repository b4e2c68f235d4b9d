"""Progress of long work: one line on a terminal that the next step overwrites; nothing where nobody watches."""

from __future__ import annotations

import sys
from types import TracebackType

CLEAR = "\r\x1b[K"


class Progress:
    """Shows ``[2/4] lowering the program`` on stderr if that is a terminal; the line is gone when the block ends."""

    def __init__(self, quiet: bool = False) -> None:
        self._shown = False
        self._silent = quiet or not sys.stderr.isatty()

    def __call__(self, what: str, number: int, count: int) -> None:
        """Show that step ``number`` of ``count`` has begun."""
        if not self._silent:
            sys.stderr.write(f"{CLEAR}[{number}/{count}] {what} …")
            sys.stderr.flush()
            self._shown = True

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            sys.stderr.write(CLEAR)
            sys.stderr.flush()
