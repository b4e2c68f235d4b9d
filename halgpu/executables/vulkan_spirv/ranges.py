"""Indices of a kernel for CPUs computed in 64 bits, where they are the same in 32.

SPIR-V of the stock compiler computes indices in 32 bits, where sums may wrap around. LLVM must therefore prove for each
of them that it does not, before it may say what two neighbouring work-items or passes of a loop read; its loop
strength reduction tries that for all pairs of addresses, which takes PoCL 16 s for a kernel with 64 loads in two
nested loops. Here it is proved once, by intervals: local ids are below the workgroup's size, counters of loops below
their ends. What is proved is computed in 64 bits; that kernel takes 0.5 s then.

The number of workgroups is not known, so that a sum with a workgroup's id may always wrap around, or be negative and
become an index by wrapping around. Such a sum is taken apart: what is the same for all work-items, and all passes of
loops, stays in 32 bits, and `wide` extends it as that leaves the whole what it was.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from .tree import Assign, Local, Loop, Scope, Statement, assigns, walk, words

Interval = tuple[int, int]
"""Least and greatest value, both included."""

ANY: Final = (0, 2**32 - 1)
_INDEXED: Final = re.compile(r"[\w\]]\[|\b(?:load|store)_\w+\(")
_WORD: Final = re.compile(r"(?<![\w.)])[A-Za-z_]\w*\b(?![\w(\[.])")
_NUMBER: Final = re.compile(r"\b(0x[0-9A-Fa-f]+|\d+)u\b")
_CONSTANT: Final = re.compile(r"\bp\.constants\[\d+\]")
_ANY_NUMBER: Final = re.compile(r"(?<![\w.])\d+\b")
WIDE: Final = """static ulong NAME(uint same, uint most)
{
    // What is added is at most `most`. Where that would wrap around, `same` is a negative number.
    return same <= ~most ? same : (ulong)(int)same;
}"""
_END: Final = re.compile(r"(?:\(int\))?(\w+) < (\d+)u?")
_START: Final = re.compile(r"(\d+)u")
_STEP: Final = re.compile(r"(\w+) \+ ([1-9]\d*)u")


def widen(
    scope: Scope, locals_: Iterable[Local], known: Mapping[str, Interval], same: Iterable[str],
    extend: Callable[[], str],
) -> None:  # fmt: skip
    """Rewrite indices in place.

    ``known`` are the names that a kernel begins with, of type uint, and their values; those in ``same`` are the same
    for all work-items of a group. ``extend`` declares the function :data:`WIDE` and returns its name.
    """
    widener = _Widener(scope, locals_, known, same, extend)
    for statement in list(walk(scope)):
        widener.rewrite(statement)
    widener.drop_unused(scope)


def known(text: str, names: Mapping[str, Interval]) -> Interval:
    """The values of C text of type uint, as far as they follow from those of ``names``."""
    tree = _parse(text)
    return (tree and _interval(tree, names)) or ANY


class _Widener:
    def __init__(
        self, scope: Scope, locals_: Iterable[Local], known: Mapping[str, Interval], same: Iterable[str],
        extend: Callable[[], str],
    ) -> None:  # fmt: skip
        self.extend = extend
        self.same = set(same)
        self.sums: dict[str, ast.expr] = {}
        """Locals that are sums of which it is not known whether they wrap around."""
        self.ranges = dict(known)
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
        if tree is None:
            return
        name = assign.local.name
        if self.is_same(tree):
            self.same.add(name)
        interval = _interval(tree, self.ranges)
        if interval:
            self.ranges[name] = interval
            if indexes and _is_sum(tree):
                self.wide.add(name)
        elif isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add) and name not in self.same:
            self.sums[name] = tree

    def is_same(self, tree: ast.expr) -> bool:
        """Whether an expression is the same for all work-items of a group, and throughout the kernel."""
        return all(
            node.id in self.same or node.id == "p" for node in ast.walk(tree) if isinstance(node, ast.Name)
        )

    # --- the change ---------------------------------------------------------------------------------------

    def rewrite(self, statement: Statement) -> None:
        for assign in assigns(statement):
            name = assign.local.name
            if name in self.wide:
                text = (
                    f"(ulong)({self.narrowed(assign.text)})"
                    if name in self.same
                    else self.widened(assign.text)
                )
                assign.text, assign.local.specifier = text, "ulong"
            elif assign is not statement:
                assign.text = self.checked(assign.text)
        if not isinstance(statement, Assign) or statement.local.name not in self.wide:
            statement.text = self.checked(statement.text)

    def drop_unused(self, scope: Scope) -> None:
        """Drop sums that only stood in indices, where they are written out now."""
        used = {word for statement in walk(scope) for text in _texts(statement) for word in words(text)}
        for statement in list(walk(scope)):
            if isinstance(statement, Assign) and statement.local.name in self.sums.keys() - used:
                statement.live = False
                statement.local.forget()

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
            elif tree is not None and (not proved or index in self.sums) and (split := self.split(tree)):
                parts += [self.narrowed(text[at:start]), split]
                at = end
        return "".join([*parts, self.narrowed(text[at:])])

    def split(self, tree: ast.expr) -> str | None:
        """A sum in 64 bits as what is the same for all work-items and the proved rest; None where that is not it."""
        same: list[str] = []
        rest: list[str] = []
        most, varies = 0, False
        for term in self.terms(tree):
            interval = _interval(term, self.ranges)
            if self.is_same(term) and (interval is None or interval[1] >= 2**31):
                same.append(_text(term))
            elif interval is None:
                return None
            else:
                most += interval[1]
                rest.append(self.widened_term(term))
                varies |= not self.is_same(term)
        if not same or not varies or most >= 2**31:
            return None
        return " + ".join([f"{self.extend()}({' + '.join(same)}, {most}u)", *rest])

    def widened_term(self, term: ast.expr) -> str:
        text = _text(term)
        if isinstance(term, ast.BinOp) and self.is_same(term):
            return f"(ulong)({text})"
        return self.widened(text)

    def terms(self, tree: ast.expr) -> Iterator[ast.expr]:
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Add):
            yield from self.terms(tree.left)
            yield from self.terms(tree.right)
        elif isinstance(tree, ast.Name) and tree.id in self.sums:
            yield from self.terms(self.sums[tree.id])
        else:
            yield tree

    def narrowed(self, text: str) -> str:
        return _WORD.sub(lambda m: f"(uint){m[0]}" if m[0] in self.wide else m[0], text)


def _interval(node: ast.expr, ranges: Mapping[str, Interval]) -> Interval | None:
    """The values of an expression in which nothing wraps around; None where that is not known."""
    if isinstance(node, ast.Constant):
        return (node.value, node.value) if isinstance(node.value, int) else None
    if isinstance(node, ast.Name):
        return ranges.get(node.id)
    if isinstance(node, ast.Subscript):
        return ANY if _CONSTANT.fullmatch(ast.unparse(node)) else None
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


def _text(tree: ast.expr) -> str:
    """A term of a sum as C."""
    text = _ANY_NUMBER.sub(r"\g<0>u", ast.unparse(tree)).replace("//", "/")
    tight = not isinstance(tree, ast.BinOp) or isinstance(tree.op, (ast.Mult, ast.FloorDiv, ast.Mod))
    return text if tight else f"({text})"


def _parse(text: str) -> ast.expr | None:
    """C arithmetic on unsigned integers; its operators bind in Python as they do in C. None for all else."""
    if not text or re.search(r"[^\w\s+*/%&()<>.\[\]-]|//|\*\*|\buint\b|\bint\b", text):
        return None
    plain = _NUMBER.sub(r"\1", text).replace("/", "//")
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
            found.append((commas[-2] + 2, commas[-1]))  # past the space
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
