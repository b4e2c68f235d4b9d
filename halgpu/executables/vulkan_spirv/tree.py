"""C statements as a tree of scopes, with declarations put where they belong when all is known.

A :class:`Local` remembers the innermost scope that holds all of its appearances and the first statement that
it appears in. Rendering declares it there: with its first value where that is an assignment in that scope,
else in front of the first statement. An :class:`Assign` that nothing needs as a variable prints nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

INDENT = "    "
_WORD: Final = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


class Scope:
    """A list of statements in braces."""

    __slots__ = ("depth", "items", "owner", "parent")

    def __init__(self, parent: Scope | None) -> None:
        self.items: list[Statement] = []
        self.parent = parent
        self.owner: Statement | None = None
        self.depth: int = 0 if parent is None else parent.depth + 1

    def move(self, parent: Scope) -> None:
        """Hang the scope, with all in it, under another one."""
        self.parent, self.depth = parent, parent.depth + 1
        for item in self.items:
            for inner in item.inner():
                inner.move(self)

    def add(self, statement: Statement) -> Statement:
        """Append a statement."""
        statement.scope = self
        self.items.append(statement)
        return statement


class Local:
    """A variable of the C function: its name, the declaration in front of the name, and where it appears."""

    __slots__ = ("first", "home", "name", "scopes", "specifier")

    def __init__(self, name: str, specifier: str, *, track: bool = False) -> None:
        self.name = name
        self.specifier = specifier
        self.home: Scope | None = None
        self.first: Statement | None = None
        self.scopes: list[tuple[Scope, Statement]] | None = [] if track else None

    def forget(self) -> None:
        """Forget where the variable appears."""
        self.home = self.first = None

    def touch(self, statement: Statement) -> None:
        """Note that the variable appears in ``statement``."""
        scope = statement.scope
        if self.scopes is not None:
            self.scopes.append((scope, statement))
        home = self.home
        if home is None:
            self.home, self.first = scope, statement
            return
        while home is not scope:
            if home.depth >= scope.depth:
                assert home.parent is not None
                home = home.parent
            else:
                assert scope.parent is not None
                scope = scope.parent
        self.home = home


class Statement:
    """A line of C, given whole."""

    __slots__ = ("declared", "scope", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.scope: Scope
        self.declared: list[str] = []

    def lines(self, indent: str) -> Iterator[str]:
        """The statement's lines, each with ``indent`` in front."""
        yield indent + self.text

    def inner(self) -> Iterator[Scope]:
        """The scopes in the statement, in order."""
        yield from ()


class Assign(Statement):
    """``local = text;``, printed only when live. ``copy`` marks a phi's copy on a branch."""

    __slots__ = ("copy", "declares", "live", "local", "reads")

    def __init__(self, local: Local, text: str, reads: tuple[Local, ...], *, copy: bool = False) -> None:
        super().__init__(text)
        self.local = local
        self.reads = reads
        self.live = False
        self.declares = False
        self.copy = copy

    def activate(self) -> None:
        """Make the variable real: it gets declared and assigned."""
        self.live = True
        for local in self.reads:
            local.touch(self)
        self.local.touch(self)

    def lines(self, indent: str) -> Iterator[str]:
        if self.live:
            specifier = f"{self.local.specifier} " if self.declares else ""
            yield f"{indent}{specifier}{self.local.name} = {self.text};"


class Label(Statement):
    """A label; the empty statement lets a declaration or a brace follow."""

    __slots__ = ()

    def lines(self, indent: str) -> Iterator[str]:
        yield f"{indent.removesuffix(INDENT)}{self.text}: ;"


class If(Statement):
    """``if (text)`` with its two branches; an empty first branch turns the condition round."""

    __slots__ = ("otherwise", "then")

    def __init__(self, parent: Scope) -> None:
        super().__init__("")
        self.then = _nested(self, parent)
        self.otherwise = _nested(self, parent)

    def inner(self) -> Iterator[Scope]:
        yield self.then
        yield self.otherwise

    def lines(self, indent: str) -> Iterator[str]:
        then = list(render(self.then, indent + INDENT))
        otherwise = list(render(self.otherwise, indent + INDENT))
        if not then and not otherwise:
            return
        if not then:
            yield f"{indent}if ({negate(self.text)}) {{"
            yield from otherwise
            yield f"{indent}}}"
            return
        yield f"{indent}if ({self.text}) {{"
        yield from then
        if otherwise:
            yield from self.alternative(otherwise, indent)
        else:
            yield f"{indent}}}"

    def alternative(self, lines: list[str], indent: str) -> Iterator[str]:
        """The else branch; one that is a single `if` joins the line."""
        live = [item for item in self.otherwise.items if not isinstance(item, Assign) or item.live]
        if len(live) == 1 and isinstance(live[0], If) and not live[0].declared:
            joined = list(live[0].lines(indent))
            yield f"{indent}}} else {joined[0].lstrip()}"
            yield from joined[1:]
            return
        yield f"{indent}}} else {{"
        yield from lines
        yield f"{indent}}}"


class Loop(Statement):
    """``while (text)``, or ``for`` once :func:`form_for` found the variable it counts."""

    __slots__ = ("body", "continues", "initial", "step")

    def __init__(self, parent: Scope) -> None:
        super().__init__("true")
        self.body = _nested(self, parent)
        self.initial: Assign | None = None
        self.step: Assign | None = None
        self.continues = False

    def inner(self) -> Iterator[Scope]:
        yield self.body

    def lines(self, indent: str) -> Iterator[str]:
        if self.initial is not None and self.step is not None:
            first, step = self.initial, self.step
            specifier = f"{first.local.specifier} " if first.declares else ""
            name = first.local.name
            yield f"{indent}for ({specifier}{name} = {first.text}; {self.text}; {_step(name, step.text)}) {{"
        else:
            yield f"{indent}while ({self.text}) {{"
        yield from render(self.body, indent + INDENT)
        yield f"{indent}}}"


class Switch(Statement):
    """``switch (text)``; each case has its label lines and whether it ends in `break`."""

    __slots__ = ("cases",)

    def __init__(self) -> None:
        super().__init__("")
        self.cases: list[tuple[list[str], Scope, bool]] = []

    def case(self, parent: Scope) -> Scope:
        """Open the scope of one more case."""
        return _nested(self, parent)

    def inner(self) -> Iterator[Scope]:
        for _, scope, _ in self.cases:
            yield scope

    def lines(self, indent: str) -> Iterator[str]:
        yield f"{indent}switch ({self.text}) {{"
        for labels, scope, falls in self.cases:
            yield from (f"{indent}{label}" for label in labels[:-1])
            yield f"{indent}{labels[-1]} {{"
            yield from render(scope, indent + INDENT)
            yield f"{indent}}}" if falls else f"{indent}}} break;"
        yield f"{indent}}}"


class WorkItems(Statement):
    """A loop over the work-items of a group: for each of ``loops``, outermost first, a name and its end.

    ``vectors``, if not 0, asks clang to make as many vectors of the innermost loop and no loop of it.
    """

    __slots__ = ("body", "loops", "vectors")

    def __init__(self, parent: Scope, loops: list[tuple[str, int]], vectors: int = 0) -> None:
        super().__init__("")
        self.loops = loops
        self.vectors = vectors
        self.body = _nested(self, parent)

    def inner(self) -> Iterator[Scope]:
        yield self.body

    def lines(self, indent: str) -> Iterator[str]:
        depth = len(self.loops)
        for level, (name, end) in enumerate(self.loops):
            if self.vectors:
                yield f"{indent}{INDENT * level}#pragma {self.pragma(level)}"
            yield f"{indent}{INDENT * level}for (uint {name} = 0; {name} < {end}u; ++{name}) {{"
        yield from render(self.body, indent + INDENT * depth)
        yield from (f"{indent}{INDENT * level}}}" for level in reversed(range(depth)))

    def pragma(self, level: int) -> str:
        """What to ask of the loop at a level."""
        innermost = level == len(self.loops) - 1
        return f"clang loop interleave_count({self.vectors})" if innermost else "unroll"


def _nested(owner: Statement, parent: Scope) -> Scope:
    scope = Scope(parent)
    scope.owner = owner
    return scope


def _step(name: str, text: str) -> str:
    """``i += 4u`` for an update of the form ``i + 4u``."""
    head = f"{name} + "
    rest = text.removeprefix(head)
    simple = text.startswith(head) and rest.replace("_", "").isalnum()
    return f"{name} += {rest}" if simple else f"{name} = {text}"


def negate(text: str) -> str:
    """The C expression that is true when ``text`` is false."""
    if text.startswith("!(") and _matching(text, 1) == len(text) - 1:
        return text[2:-1]
    return f"!{text}" if text.replace("_", "").isalnum() else f"!({text})"


def _matching(text: str, at: int) -> int:
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if not depth:
            return i
    return -1


def render(scope: Scope, indent: str) -> Iterator[str]:
    """The lines of a scope's statements."""
    for item in scope.items:
        for declaration in item.declared:
            yield f"{indent}{declaration};"
        yield from item.lines(indent)


def declare(locals_: Iterable[Local]) -> None:
    """Decide where each variable is declared."""
    for local in locals_:
        statement = local.first
        if statement is None:
            continue
        while statement.scope is not local.home:
            owner = statement.scope.owner
            assert owner is not None
            statement = owner
        if isinstance(statement, Assign) and statement.local is local and local not in statement.reads:
            statement.declares = True
        else:
            statement.declared.append(f"{local.specifier} {local.name}")


def form_for(loop: Loop) -> None:
    """Turn a `while` whose variable is set just before it and stepped last in its body into a `for`."""
    before = loop.scope.items[: loop.scope.items.index(loop)]
    first, last = _copies(before), _copies(loop.body.items)
    if loop.continues:
        return
    for step in reversed(last):
        initial = next((a for a in first if a.local is step.local), None)
        if initial is None or not _counts(loop, initial, step):
            continue
        if _conflicts(initial, first) or _conflicts(step, last):
            continue
        loop.scope.items.remove(initial)
        loop.body.items.remove(step)
        loop.initial, loop.step = initial, step
        return


def _copies(items: list[Statement]) -> list[Assign]:
    """The copies at the end of a list of statements."""
    found: list[Assign] = []
    for item in reversed(items):
        if not isinstance(item, Assign) or (item.live and not item.copy):
            break
        if item.live:
            found.insert(0, item)
    return found


def _counts(loop: Loop, initial: Assign, step: Assign) -> bool:
    """Whether the variable decides when the loop ends, is stepped from itself, and is not used outside."""
    local = step.local
    if local.scopes is None or local not in step.reads:
        return False
    decides = any(statement is loop for _, statement in local.scopes)
    return decides and all(
        statement is loop or statement is initial or _inside(scope, loop.body)
        for scope, statement in local.scopes
    )


def _inside(scope: Scope | None, outer: Scope) -> bool:
    while scope is not None and scope is not outer:
        scope = scope.parent
    return scope is outer


def _conflicts(moved: Assign, copies: list[Assign]) -> bool:
    """Whether a copy after ``moved`` changes what it reads."""
    later = copies[copies.index(moved) + 1 :]
    return any(other.local in moved.reads for other in later)


def words(text: str) -> list[str]:
    """The identifiers in C text, without members."""
    return _WORD.findall(text)


def live(scope: Scope) -> Iterator[Statement]:
    """The statements of a scope that print something."""
    return (item for item in scope.items if not isinstance(item, Assign) or item.live)


def walk(scope: Scope) -> Iterator[Statement]:
    """All statements that print something, at any depth."""
    return walk_all(live(scope))


def walk_all(statements: Iterable[Statement]) -> Iterator[Statement]:
    """Statements with all inside of them."""
    for item in statements:
        yield item
        for inner in item.inner():
            yield from walk(inner)


def assigns(item: Statement) -> Iterator[Assign]:
    """The assignments that a statement is or, as a `for`, has in its head."""
    if isinstance(item, Assign):
        yield item
    elif isinstance(item, Loop) and item.initial is not None and item.step is not None:
        yield item.initial
        yield item.step


def touch(scope: Scope, locals_: dict[str, Local]) -> None:
    """Note where variables appear, by their names; they must have forgotten it before."""
    for item in live(scope):
        heads = [assign for assign in assigns(item) if assign is not item]
        texts = [item.text, *(assign.text for assign in heads)]
        names = [a.local.name for a in assigns(item)] + [word for text in texts for word in words(text)]
        first = heads[0] if heads else item
        for name in names:
            if name in locals_:
                locals_[name].touch(first if name == (heads[0].local.name if heads else name) else item)
        for inner in item.inner():
            touch(inner, locals_)
