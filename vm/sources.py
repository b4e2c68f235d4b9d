"""Translated functions as Python source: their lines, where those come from, and which file names are theirs."""

from __future__ import annotations

import linecache
from types import CodeType

from halgpu.vm import jit
from halgpu.vm.definition import ModuleDef


class Source:
    """The Python source of a function and where each line comes from."""

    __slots__ = (
        "_offsets", "callees", "code", "continues", "filename", "function_ordinal", "lines", "loops", "module", "name",
    )  # fmt: skip

    def __init__(
        self,
        module: ModuleDef,
        name: str,
        filename: str,
        function_ordinal: int,
        lines: list[str],
        offsets: list[int],
        continues: bool = False,
    ) -> None:
        self.module = module
        self.name = name
        self.filename = filename
        self.function_ordinal = function_ordinal
        self.lines = lines
        self._offsets = offsets
        self.continues = continues
        self.callees = frozenset()
        self.loops = None
        self.code: CodeType = compile(self.text, filename, "exec", dont_inherit=True)

    continues: bool
    """It is one instruction of a loop that ran as machine code; its frame takes the place of that loop's caller."""
    callees: frozenset[int]
    """Ordinals of the module's own functions that it calls, as ``fn0``, ``fn1``, …"""
    loops: jit.NativeLoops | None
    """Its loops that may become machine code; None where it continues another source."""

    @property
    def text(self) -> str:
        """The source as one string."""
        return "\n".join(self.lines) + "\n"

    def frame(self, line_number: int) -> str:
        """A line as a stack frame: ``module.main (model.mlir:12:5)``, or the bytecode offset where that is unknown."""
        offset = self._offsets[line_number - 1] if 0 < line_number <= len(self._offsets) else 0
        debug = self.module.debug
        location = debug.location(self.function_ordinal, offset) if debug is not None else None
        return f"{self.name} ({location or f'bytecode {offset:#06x}'})"


_sources: dict[str, Source] = {}


def source_of(filename: str) -> Source | None:
    """The translated function that code of this file name belongs to, None for other Python code."""
    return _sources.get(filename)


def register(source: Source) -> None:
    """Let tracebacks and pdb find a source."""
    _sources[source.filename] = source
    linecache.cache[source.filename] = (
        len(source.text), None, source.text.splitlines(keepends=True), source.filename,
    )  # fmt: skip


def forget(prefix: str) -> None:
    """Undo that for all sources whose file names are ``prefix``, a space, and more."""
    for filename in [name for name in _sources if name.startswith(prefix + " ")]:
        del _sources[filename]
        linecache.cache.pop(filename, None)
