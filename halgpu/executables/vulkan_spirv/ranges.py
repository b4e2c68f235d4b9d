"""Indices of a kernel for CPUs computed in 64 bits, where they are the same in 32.

SPIR-V of the stock compiler computes indices in 32 bits, where sums may wrap around. LLVM must therefore prove for each
of them that it does not, before it may say what two neighbouring work-items or passes of a loop read; its loop
strength reduction tries that for all pairs of addresses, which takes PoCL 16 s for a kernel with 64 loads in two
nested loops. Here it is proved once, by intervals: local ids are below the workgroup's size, counters of loops below
their ends. What is proved is computed in 64 bits; that kernel takes 0.5 s then.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from .tree import Assign, Local, Loop, Scope, Statement, assigns, walk, words

Interval = tuple[int, int]
"""Least and greatest value, both included."""

ANY: Final = (0, 2**32 - 1)
_INDEXED: Final = re.compile(r"[\w\]]\[|\b(?:load|store)_\w+\(")
_WORD: Final = re.compile(r"(?<![\w.)])[A-Za-z_]\w*\b(?![\w(\[.])")
_NUMBER: Final = re.compile(r"\b(0x[0-9A-Fa-f]+|\d+)u\b")
_CONSTANT: Final = re.compile(r"\bp\.constants\[\d+\]")
_A_CONSTANT: Final = "p_constants"
_END: Final = re.compile(r"(?:\(int\))?(\w+) < (\d+)u?")
_START: Final = re.compile(r"(\d+)u")
_STEP: Final = re.compile(r"(\w+) \+ ([1-9]\d*)u")


def widen(scope: Scope, locals_: Iterable[Local], known: Mapping[str, Interval]) -> None:
    """Rewrite indices in place. ``known`` are the names that a kernel begins with, of type uint, and their values."""
    widener = _Widener(scope, locals_, known)
    for statement in list(walk(scope)):
        widener.rewrite(statement)


def known(text: str, names: Mapping[str, Interval]) -> Interval:
    """The values of C text of type uint, as far as they follow from those of ``names``."""
    tree = _parse(text)
    return (tree and _interval(tree, names)) or ANY


class _Widener:
    def __init__(self, scope: Scope, locals_: Iterable[Local], known: Mapping[str, Interval]) -> None:
        self.ranges = {_A_CONSTANT: ANY, **known}
        self.wide: set[str] = set()
        statements = list(walk(scope))
        set_ = [assign for statement in statements for assign in assigns(statement)]
        self.times = Counter(assign.local.name for assign in set_)
        for local in locals_:
            if local.specifier == "uint":
                self.ranges[local.name] = ANY
        for statement in statements:
            if isinstance(statement, Loop):
                self.note_counter(statement)
        in_indices = self.indexing(statements)
        # Definitions stand before their uses.
        for statement in statements:
            if isinstance(statement, Assign) and self.is_single(statement):
                self.note(statement, statement.local.name in in_indices)

    def is_single(self, assign: Assign) -> bool:
        return assign.local.specifier == "uint" and not assign.copy and self.times[assign.local.name] == 1

    def note_counter(self, loop: Loop) -> None:
        if loop.initial is None or loop.step is None or self.times[loop.initial.local.name] != 2:
            return
        start, end = _START.fullmatch(loop.initial.text), _END.fullmatch(loop.text)
        step = _STEP.fullmatch(loop.step.text)
        name = loop.initial.local.name
        if not start or not end or not step or end[1] != name or step[1] != name:
            return
        first, last, by = int(start[1]), int(end[2]) - 1, int(step[2])
        if name in self.ranges and first <= last < last + by < 2**31:
            self.ranges[name] = first, last

    def indexing(self, statements: list[Statement]) -> set[str]:
        """Names in indices, and in what those are computed from."""
        definitions = {s.local.name: s for s in statements if isinstance(s, Assign) and self.is_single(s)}
        waiting = [
            word
            for statement in statements
            for text in _texts(statement)
            for start, end in _indices(text)
            for word in words(text[start:end])
        ]
        found: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += words(definitions[name].text) if name in definitions else ()
        return found

    def note(self, assign: Assign, indexes: bool) -> None:
        tree = _parse(assign.text)
        interval = tree and _interval(tree, self.ranges)
        if tree is None or not interval:
            return
        self.ranges[assign.local.name] = interval
        if indexes and _is_sum(tree):
            self.wide.add(assign.local.name)

    # --- the change ---------------------------------------------------------------------------------------

    def rewrite(self, statement: Statement) -> None:
        for assign in assigns(statement):
            name = assign.local.name
            if name in self.wide:
                assign.text, assign.local.specifier = self.widened(assign.text), "ulong"
            elif assign is not statement:
                assign.text = self.checked(assign.text)
        if not isinstance(statement, Assign) or statement.local.name not in self.wide:
            statement.text = self.checked(statement.text)

    def widened(self, text: str) -> str:
        """A proved expression in 64 bits."""
        text = _CONSTANT.sub(r"(ulong)\g<0>", text)
        return _WORD.sub(lambda m: m[0] if m[0] in self.wide or m[0] == "ulong" else f"(ulong){m[0]}", text)

    def checked(self, text: str) -> str:
        """C text with its proved indices in 64 bits, and all else as it was."""
        parts: list[str] = []
        at = 0
        for start, end in _indices(text):
            index = text[start:end]
            tree = _parse(index)
            proved = tree is not None and _interval(tree, self.ranges) is not None
            if proved and tree is not None and (_is_sum(tree) or index in self.wide):
                parts += [self.narrowed(text[at:start]), self.widened(index)]
                at = end
        return "".join([*parts, self.narrowed(text[at:])])

    def narrowed(self, text: str) -> str:
        return _WORD.sub(lambda m: f"(uint){m[0]}" if m[0] in self.wide else m[0], text)


def _interval(node: ast.expr, ranges: Mapping[str, Interval]) -> Interval | None:
    """The values of an expression in which nothing wraps around; None where that is not known."""
    if isinstance(node, ast.Constant):
        return (node.value, node.value) if isinstance(node.value, int) else None
    if isinstance(node, ast.Name):
        return ranges.get(node.id)
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _interval(node.left, ranges), _interval(node.right, ranges)
    found = _combined(node.op, left, right) if left and right else None
    return found if found and 0 <= found[0] <= found[1] <= ANY[1] else None


def _combined(operator: ast.operator, left: Interval, right: Interval) -> Interval | None:
    (a, b), (c, d) = left, right
    match operator:
        case ast.Add():
            return a + c, b + d
        case ast.Sub():
            return a - d, b - c
        case ast.Mult():
            return a * c, b * d
        case ast.FloorDiv() if c:
            return a // d, b // c
        case ast.Mod() if c:
            return (a, b) if b < c else (0, min(b, d - 1))
        case ast.BitAnd():
            return 0, min(b, d)
        case ast.LShift() if d < 32:
            return a << c, b << d
        case ast.RShift() if d < 32:
            return a >> d, b >> c
    return None


def _is_sum(tree: ast.expr) -> bool:
    """Whether an expression adds or multiplies, which is what may wrap; others are as good in 32 bits."""
    return isinstance(tree, ast.BinOp) and isinstance(tree.op, (ast.Add, ast.Mult))


def _parse(text: str) -> ast.expr | None:
    """C arithmetic on unsigned integers; its operators bind in Python as they do in C. None for all else."""
    if not text or re.search(r"[^\w\s+*/%&()<>.\[\]-]|//|\*\*|\buint\b|\bint\b", text):
        return None
    plain = _NUMBER.sub(r"\1", _CONSTANT.sub(_A_CONSTANT, text)).replace("/", "//")
    try:
        return ast.parse(plain.strip(), mode="eval").body
    except SyntaxError:
        return None


def _indices(text: str) -> list[tuple[int, int]]:
    """Where the indices of arrays, and of functions that load and store, begin and end; none that is inside another."""
    found = []
    for match in _INDEXED.finditer(text):
        start = match.end()
        end, commas = _close(text, start)
        if match[0].endswith("["):
            found.append((start, end))
        elif match[0].startswith("load") and commas:
            found.append((start, commas[0]))
        elif len(commas) > 1:
            found.append((commas[-2] + 1, commas[-1]))
    found.sort()
    return [span for number, span in enumerate(found) if not any(span[0] < end for _, end in found[:number])]


def _close(text: str, at: int) -> tuple[int, list[int]]:
    """Where the bracket that was opened before ``at`` closes, and the commas directly in it."""
    depth = 1
    commas: list[int] = []
    while at < len(text):
        depth += (text[at] in "([") - (text[at] in ")]")
        if not depth:
            break
        if text[at] == "," and depth == 1:
            commas.append(at)
        at += 1
    return at, commas


def _texts(statement: Statement) -> Iterator[str]:
    yield statement.text
    yield from (assign.text for assign in assigns(statement) if assign is not statement)
