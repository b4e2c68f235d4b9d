"""Flags as IREE's tools take them: ``--name=value`` or ``--name value``, any value, names in full."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from halgpu import errors
from halgpu.errors import nearest


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are halgpu's.

    With ``takes_rest``, words after ``--`` are left alone and become the option ``rest``.
    """

    takes_rest = False

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse ``words``. Raises InvalidArgument for an unknown flag, with the nearest one, and for bad values."""
        passed: Sequence[str] = ()
        if self.takes_rest and "--" in words:
            words, passed = words[: (end := words.index("--"))], words[end + 1 :]
        options, rest = self.parse_known_args(self._joined(words))
        options.rest = list(passed)
        if rest:
            raise errors.InvalidArgument(self._unexpected(rest[0]))
        return options

    def _unexpected(self, word: str) -> str:
        """What to say of a word that no argument takes."""
        meant = self._meant(word)
        if not word.startswith("-"):
            return f"unexpected argument '{word}'{meant}; '{self.prog} --help' lists what it takes"
        if self.takes_rest and word.startswith("--iree-"):
            return f"unknown flag '{word}'{meant}; flags of iree-compile come last, after --"
        return f"unknown flag '{word}'{meant}; '{self.prog} --help' lists them"

    def _meant(self, word: str) -> str:
        """A hint " (did you mean …?)", or nothing."""
        known = [name for action in self._actions for name in action.option_strings]
        if "--module" in known and word.endswith(".vmfb") and not word.startswith("-"):
            return f" (did you mean --module={word}?)"
        return nearest(word.partition("=")[0], known) if word.startswith("-") else ""

    def error(self, message: str) -> NoReturn:
        raise errors.InvalidArgument(f"{message}; '{self.prog} --help' explains the flags")

    def _joined(self, words: Sequence[str]) -> list[str]:
        """``--flag value`` as ``--flag=value``: argparse takes a value like ``-inf`` for a flag."""
        valued = {name for action in self._actions if action.nargs != 0 for name in action.option_strings}
        joined: list[str] = []
        remaining = iter(words)
        for word in remaining:
            value = next(remaining, None) if word in valued else None
            joined.append(word if value is None else f"{word}={value}")
        return joined
