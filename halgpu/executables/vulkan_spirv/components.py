"""Vectors of a kernel for CPUs taken apart into their components, where that lets the compiler make longer ones.

Stock iree-compile unrolls matrix products for GPUs: a work-item keeps a tile of float4 in registers. A CPU's vectors
are longer, but LLVM joins only scalars to vectors (its SLP vectorizer), never short vectors to long ones. Component
by component the same code becomes instructions on whole registers, with the same results: no rounding changes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Final

from .names import Names
from .tree import Assign, Local, Scope, Statement, touch, walk, words

LEAST: Final = 4
"""Vectors that a loop carries from one pass to the next; with fewer, nothing is gained."""

_LETTERS: Final = "xyzw"
_VECTOR: Final = "float4"
_LOAD: Final = "load_float4("
_STORE: Final = "store_float4("
_MADE: Final = "(float4)("
_FUSED: Final = "fma_float4("
_SHORT: Final = re.compile(r"(?:float|double|half|int|long|short|char|load|store)\d")
_PLAIN: Final = re.compile(r"float4(?: \w+)?")
_WHOLE: Final = re.compile(r"(?<![\w.])[A-Za-z_]\w*\b(?!\.)")
_COPIES: Final = re.compile(r"\(float4\)\(([A-Za-z_]\w*)\)")
_MEMBER: Final = re.compile(r"(?<![\w.])(\w+)\.([xyzw])\b")


class _Refused(Exception):
    """The kernel has something that is not understood."""


def split(
    scope: Scope, locals_: list[Local], variables: list[str], names: Names, scalar_fma: Callable[[], str]
) -> tuple[list[Local], list[str]] | None:
    """Split the vectors in a kernel's statements, in place.

    ``variables`` are declarations of private variables; ``scalar_fma`` names the function that `fma_float4` is of
    vectors. Returns the new locals and declarations, or None where nothing was changed.
    """
    carried = [local for local in locals_ if local.scopes is not None and local.specifier == _VECTOR]
    statements = list(walk(scope))
    if len(carried) < LEAST or not any(_FUSED in statement.text for statement in statements):
        return None
    try:
        splitter = _Splitter(locals_, variables, names, scalar_fma)
        splitter.find_copies(statements)
        changes = [(statement, splitter.replacement(statement)) for statement in statements]
    except _Refused:
        return None
    for statement, new in changes:
        splitter.apply(statement, new)
    remaining = splitter.new_locals()
    for local in remaining:
        local.forget()
    touch(scope, {local.name: local for local in remaining})
    return remaining, splitter.new_variables()


class _Splitter:
    def __init__(
        self, locals_: list[Local], variables: list[str], names: Names, scalar_fma: Callable[[], str]
    ) -> None:
        self.locals = locals_
        self.variables = variables
        self.scalar_fma = scalar_fma
        shapes = [local.specifier for local in locals_ if local.first is not None] + variables
        if any(_SHORT.search(shape) and not _PLAIN.fullmatch(shape) for shape in shapes):
            raise _Refused
        self.parts = {
            local.name: [
                Local(f"{local.name}_{letter}", "float", track=local.scopes is not None)
                for letter in _LETTERS
            ]
            for local in locals_
            if local.specifier == _VECTOR
        }
        self.vectors = {*self.parts, *(v.removeprefix("float4 ") for v in variables if v.startswith(_VECTOR))}
        self.copies: dict[str, str] = {}
        for name in self.vectors:
            if any(names.reserve(f"{name}_{letter}") != f"{name}_{letter}" for letter in _LETTERS):
                raise _Refused

    def find_copies(self, statements: list[Statement]) -> None:
        """Find the vectors of four times the same variable, which need no components."""
        assigns = [statement for statement in statements if isinstance(statement, Assign)]
        times = Counter(assign.local.name for assign in assigns)
        for assign in assigns:
            found = _COPIES.fullmatch(assign.text)
            name = assign.local.name
            if found and name in self.parts and times[name] == 1 and times[found[1]] == 1:
                self.copies[name] = found[1]

    def new_locals(self) -> list[Local]:
        kept = [local for local in self.locals if local.name not in self.parts]
        return kept + [part for parts in self.parts.values() for part in parts]

    def new_variables(self) -> list[str]:
        found: list[str] = []
        for variable in self.variables:
            name = variable.removeprefix("float4 ")
            parts = ", ".join(f"{name}_{letter}" for letter in _LETTERS)
            found.append(f"float {parts}" if name in self.vectors else variable)
        return found

    # --- statements -------------------------------------------------------------------------------------

    def replacement(self, statement: Statement) -> list[str]:
        """The texts of a statement's components, or one text of a statement that stays one; none drops it."""
        text = statement.text
        if isinstance(statement, Assign) and statement.local.name in self.copies:
            return []
        if isinstance(statement, Assign) and statement.local.name in self.parts:
            return [self.component(text, letter) for letter in _LETTERS]
        head, _, value = text.partition(" = ")
        if head in self.vectors and value.endswith(";"):
            return [f"{head}_{letter} = {self.component(value, letter)}" for letter in _LETTERS]
        if text.startswith(_STORE):
            value, index, view = arguments(text[len(_STORE) : text.rindex(")")])
            if not view.isidentifier():
                raise _Refused
            return [
                f"{view}[{_operand(self.scalar(index))} * 4ul + {i}] = {self.component(value, letter)};"
                for i, letter in enumerate(_LETTERS)
            ]
        return [self.scalar(text)]

    def scalar(self, text: str) -> str:
        """C text that is no vector, with the vectors' members named."""
        text = _MEMBER.sub(lambda m: self.part(m[1], m[2]) if m[1] in self.vectors else m[0], text)
        if _SHORT.search(text) or any(word in self.vectors for word in words(text)):
            raise _Refused
        return text

    def component(self, text: str, letter: str) -> str:
        """One component of a vector expression."""
        position = _LETTERS.index(letter)
        while _LOAD in text:
            before, inside, after = _call(text, _LOAD)
            index, view = arguments(inside)
            if not view.isidentifier():
                raise _Refused
            text = f"{before}{view}[{_operand(self.scalar(index))} * 4ul + {position}]{after}"
        while _MADE in text:
            before, inside, after = _call(text, _MADE)
            given = arguments(inside)
            text = f"{before}{_operand(given[position if len(given) == 4 else 0])}{after}"
        text = text.replace(_FUSED, f"{self.scalar_fma()}(")
        # Comparisons of vectors are -1 where they are true, those of scalars 1 (OpenCL 1.2 6.3.d): `~1` is true.
        text = text.replace("~", "!")
        return self.scalar(_WHOLE.sub(lambda m: self.part(m[0], letter), text))

    def part(self, name: str, letter: str) -> str:
        if name in self.copies:
            return self.copies[name]
        return f"{name}_{letter}" if name in self.vectors else name

    # --- the change -------------------------------------------------------------------------------------

    def apply(self, statement: Statement, texts: list[str]) -> None:
        if len(texts) == 1:
            statement.text = texts[0]
            return
        scope = statement.scope
        new: list[Statement] = []
        for position, text in enumerate(texts):
            if isinstance(statement, Assign):
                assign = Assign(self.parts[statement.local.name][position], text, (), copy=statement.copy)
                assign.live = True
                new.append(assign)
            else:
                new.append(Statement(text))
            new[-1].scope = scope
        at = scope.items.index(statement)
        scope.items[at : at + 1] = new


def _operand(text: str) -> str:
    return text if text.isidentifier() else f"({text})"


def arguments(text: str) -> list[str]:
    """The arguments in the text between a call's parentheses."""
    found, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth:
            found.append(text[start:at].strip())
            start = at + 1
    return [*found, text[start:].strip()]


def _call(text: str, name: str) -> tuple[str, str, str]:
    """What stands before, inside and behind the first call of ``name``, which ends in a parenthesis."""
    start = text.index(name)
    depth, at = 1, start + len(name)
    while depth:
        depth += (text[at] == "(") - (text[at] == ")")
        at += 1
    return text[:start], text[start + len(name) : at - 1], text[at:]
