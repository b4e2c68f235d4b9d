"""A kernel for CPUs that loops over its work-items itself, inside of the loops that all of them take together.

A CPU's OpenCL runs a workgroup as a loop over its work-items around the whole kernel; then the kernel's own
loops are the inner ones, and what they sum up in order cannot become vector instructions. Here

    for each work-item: for k: sum += a[k] * b[k * 64 + local_x]

becomes, in a kernel of one work-item a group,

    for k: for each work-item: sum[local_x] += a[k] * b[k * 64 + local_x]

which compilers vectorize. Without barriers the work-items of a group may run in any order, in lockstep too
(OpenCL 1.2, section 3.2). Kernels with barriers or atomics never come here.

What may differ between work-items (is *divergent*) goes into regions, each a loop over the work-items; the rest
is done once for all. A divergent value that several regions need is computed anew in each of them if it is plain
arithmetic, so that the compiler sees neighbouring work-items reach neighbouring elements; else it is kept in an
array with an element a work-item. A selection of work-items that take a loop becomes a condition inside of regions.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from math import prod
from typing import Final

from .tree import (
    Assign,
    If,
    Label,
    Local,
    Loop,
    Scope,
    Statement,
    WorkItems,
    assigns,
    live,
    touch,
    walk,
    walk_all,
    words,
)  # fmt: skip

MAXIMUM_ARRAYS: Final = 4
"""Values kept in arrays. With more of them the registers of one work-item at a time serve better."""
MAXIMUM_STATEMENTS: Final = 4
"""Statements of a region that is unrolled."""
MAXIMUM_LANES: Final = 96
"""Work-items of a region that is unrolled: 12 registers, of 16."""
LANES: Final = 8
"""Floats in a register (of AVX)."""

_VECTOR: Final = re.compile(r"(?:float|double|half|int|long|short|char|load|store)\d")
"""In names of vector types and of functions on vectors: `float4`, `vload4`, `max_float4`."""
_ARGUMENT: Final = re.compile(r"p\.\w+\[\w+\]")
_INDEX: Final = re.compile(r"\w\[([^\[\]]*)\]")


@dataclass(slots=True)
class WorkGroup:
    """What regions loop over: the workgroup's size, and the names that differ between its work-items."""

    size: tuple[int, int, int]
    ids: dict[int, str]
    """Axis -> the name of the local id along it, for those that the kernel reads."""
    derived: dict[str, str] = field(default_factory=dict)
    """Name -> text, for other names that the kernel begins with and that depend on the local ids."""
    changing: frozenset[str] = frozenset()
    """Names of memory that may be written: what is read from it is taken to differ."""

    @property
    def loops(self) -> list[tuple[str, int]]:
        """Name and end of each loop, outermost first. Work-items along an axis whose id is not read do the same."""
        return [
            (self.ids[axis], self.size[axis])
            for axis in (2, 1, 0)
            if axis in self.ids and self.size[axis] > 1
        ]


@dataclass(eq=False, slots=True)
class _Region:
    """Statements that become a loop over the work-items."""

    statements: list[Statement]
    looped: bool
    """It is inside of a loop that all work-items take together."""
    guards: tuple[str, ...] = ()
    """Conditions on which a work-item takes part."""
    words: set[str] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class _Split:
    """A loop or selection that stays outside, and the plans of the scopes in it."""

    statement: Statement
    inner: list[_Plan]


_Plan = list["Statement | _Region | _Split"]


def rewrite(scope: Scope, locals_: list[Local], group: WorkGroup) -> list[str] | None:
    """Put the statements of a kernel into regions, in place; returns the declarations of arrays that they need.

    None says that nothing was changed: it is not possible, or nothing would be gained.
    """
    if any(isinstance(s, Label) or s.text.startswith(("return;", "goto ")) for s in walk(scope)):
        return None
    rewriter = _Rewriter(scope, locals_, group)
    return rewriter.run() if rewriter.gains() else None


class _Rewriter:
    def __init__(self, scope: Scope, locals_: list[Local], group: WorkGroup) -> None:
        self.scope = scope
        self.group = group
        self.locals = locals_
        found = [statement for statement in walk(scope) if isinstance(statement, Assign)]
        self.assigned = Counter(assign.local.name for assign in found)
        self.definitions = {assign.local.name: assign for assign in found}
        self.divergent = {*group.ids.values(), *group.derived}
        self.regions: list[_Region] = []
        self.plan: _Plan = []
        before = -1
        while before != len(self.divergent):
            before = len(self.divergent)
            self.spread(scope, apart=False)
            self.regions.clear()
            self.plan = self.take_apart(scope)
            self.note_words()
        self.repeated = self.find_repeated()
        self.arrays = self.find_arrays()

    # --- what differs between work-items ------------------------------------------------------------------

    def differs(self, text: str) -> bool:
        """Whether C text may mean different things to the work-items of a group."""
        return any(word in self.divergent or word in self.group.changing for word in words(text))

    def spread(self, scope: Scope, *, apart: bool, guarded: bool = False) -> None:
        for item in live(scope):
            splits = not apart and self.selects(item)
            inside = apart or (self.differs(item.text) and not splits)
            for assign in assigns(item):
                # Where only some work-items go, what is set may be seen by others behind, and what is read may
                # not be there to be read by others.
                kept = guarded and assign is item and not self.is_lasting(assign)
                if inside or kept or self.differs(assign.text):
                    self.divergent.add(assign.local.name)
            for inner in item.inner():
                self.spread(inner, apart=inside, guarded=guarded or splits)

    def is_lasting(self, assign: Assign) -> bool:
        """Whether an assignment is the only one and reads no memory."""
        return self.assigned[assign.local.name] == 1 and not _reads_memory(assign.text)

    def selects(self, item: Statement) -> bool:
        """Whether ``item`` is `if` without `else`, around loops, on a condition of plain arithmetic that differs."""
        return (
            isinstance(item, If)
            and self.differs(item.text)
            and not any(True for _ in live(item.otherwise))
            and any(isinstance(inner, Loop) for inner in walk(item.then))
            and not _jumps_out(item.then)
            and self.is_plain_text(item.text)
        )

    def is_plain_text(self, text: str) -> bool:
        """Whether C text is arithmetic that gives the same wherever it stands."""
        return not _reads_memory(text) and all(map(self.is_plain_word, words(text)))

    def is_plain_word(self, word: str) -> bool:
        if word in self.group.ids.values() or word in self.group.derived:
            return True
        definition = self.definitions.get(word)
        if definition is not None and (definition.copy or self.assigned[word] > 1):
            return False
        return word not in self.divergent or self.is_plain(self.definitions[word])

    def is_plain(self, item: Assign) -> bool:
        once = self.assigned[item.local.name] == 1 and not item.copy
        return once and item.local.specifier in ("uint", "ulong", "bool") and self.is_plain_text(item.text)

    # --- regions ------------------------------------------------------------------------------------------

    def take_apart(self, scope: Scope, *, looped: bool = False, guards: tuple[str, ...] = ()) -> _Plan:
        plan: _Plan = []
        pending: list[Statement] = []

        def flush() -> None:
            if pending:
                region = _Region(pending.copy(), looped, guards)
                plan.append(region)
                self.regions.append(region)
                pending.clear()

        for item in live(scope):
            if isinstance(item, Assign) and item.local.name not in self.divergent:
                if self.assigned[item.local.name] > 1:
                    # Its value before may be read by what comes before.
                    flush()
                plan.append(item)
            elif self.taken_together(item):
                flush()
                loop = looped or isinstance(item, Loop)
                inner = [self.take_apart(scope, looped=loop, guards=guards) for scope in item.inner()]
                plan.append(_Split(item, inner))
            elif isinstance(item, If) and self.selects(item):
                flush()
                plan += self.take_apart(item.then, looped=looped, guards=(*guards, item.text))
            else:
                pending.append(item)
        flush()
        return plan

    def taken_together(self, item: Statement) -> bool:
        """Whether ``item`` is a loop, or a selection with loops, that all work-items take together."""
        differs = self.differs(item.text) or any(a.local.name in self.divergent for a in assigns(item))
        if isinstance(item, Loop):
            return not differs and not _jumps_out(item.body)
        has_loops = isinstance(item, If) and any(isinstance(s, Loop) for i in item.inner() for s in walk(i))
        return has_loops and not differs

    def note_words(self) -> None:
        for region in self.regions:
            region.words.update(word for guard in region.guards for word in words(guard))
            for statement in walk_all(region.statements):
                region.words.update(words(statement.text))
                for assign in assigns(statement):
                    region.words.update((assign.local.name, *words(assign.text)))
                    # Set by each work-item in turn: none must find what another left.
                    self.divergent.add(assign.local.name)

    def find_repeated(self) -> dict[str, Assign]:
        """Divergent values of plain arithmetic that several regions use, in the order of their definitions."""
        found: dict[str, Assign] = {}
        for region in self.regions:
            for item in region.statements:
                if isinstance(item, Assign) and self.is_plain(item):
                    found[item.local.name] = item
        return found

    def find_arrays(self) -> dict[str, Local]:
        """Divergent variables whose values outlive a region, and are not computed anew."""
        by_name = {local.name: local for local in self.locals}
        found = {}
        for name in self.divergent & by_name.keys() - self.repeated.keys():
            homes = [region for region in self.regions if name in region.words]
            if len(homes) > 1 or (self.assigned[name] > 1 and any(region.looped for region in homes)):
                found[name] = by_name[name]
        return dict(sorted(found.items()))

    # --- whether to ---------------------------------------------------------------------------------------

    def gains(self) -> bool:
        """Whether all regions in loops are straight scalar code that vectors suit, and there are any."""
        looped = [region for region in self.regions if region.looped]
        return (
            bool(looped and self.group.loops)
            and len(self.arrays) <= MAXIMUM_ARRAYS
            and all(map(self.suits, looped))
        )

    def suits(self, region: _Region) -> bool:
        texts = [statement.text for statement in region.statements]
        flat = not any(True for item in region.statements for _ in item.inner())
        return flat and not any(_VECTOR.search(text) for text in texts) and all(map(self.is_dense, texts))

    def is_dense(self, text: str) -> bool:
        """Whether neighbouring work-items reach neighbouring elements, or all the same one."""
        return all(self.stride(index) in (0, 1) for index in _INDEX.findall(text))

    def stride(self, text: str) -> int | None:
        """By how much an index grows from a work-item to the next along the innermost loop; None: no matter."""
        innermost = self.group.loops[-1][0]
        total = 0
        for word in words(text):
            if word not in self.divergent:
                continue
            inner = 1 if word == innermost else self.derived_stride(word)
            if inner and re.search(rf"[*/%>&|^(] ?{word}\b|\b{word}\b ?[*/%<&|^)]", text):
                return None
            if inner is None:
                return None
            total += inner
        return total

    def derived_stride(self, word: str) -> int | None:
        if word in self.repeated:
            return self.stride(self.repeated[word].text)
        return 0 if word in self.group.ids.values() else None

    # --- the change ---------------------------------------------------------------------------------------

    def run(self) -> list[str]:
        self.build(self.scope, self.plan)
        for local in self.locals:
            local.forget()
        gone = self.arrays.keys() | self.repeated.keys()
        touch(self.scope, {local.name: local for local in self.locals if local.name not in gone})
        for name, local in self.arrays.items():
            self.index(name, local)
        sizes = "".join(f"[{end}]" for _, end in self.group.loops)
        return [f"{local.specifier} {name}{sizes}" for name, local in self.arrays.items()]

    def build(self, scope: Scope, plan: _Plan) -> None:
        scope.items.clear()
        for entry in plan:
            if isinstance(entry, _Region):
                self.add_region(scope, entry)
            elif isinstance(entry, _Split):
                scope.add(entry.statement)
                for head in assigns(entry.statement):
                    head.scope = scope
                for inner, inner_plan in zip(entry.statement.inner(), entry.inner, strict=True):
                    inner.move(scope)
                    self.build(inner, inner_plan)
            else:
                scope.add(entry)

    def add_region(self, scope: Scope, region: _Region) -> None:
        kept = [s for s in region.statements if not (isinstance(s, Assign) and s.local.name in self.repeated)]
        if not kept:
            return
        needed = self.needed(kept, region.guards)
        items = WorkItems(scope, self.group.loops, self.vectors(kept) if region.looped else 0)
        scope.add(items)
        for name, text in self.group.derived.items():
            if name in needed:
                items.body.add(Statement(f"uint {name} = {text};"))
        for name, assign in self.repeated.items():
            if name in needed:
                items.body.add(Statement(f"{assign.local.specifier} {name} = {assign.text};"))
        body = items.body
        if region.guards:
            guard = If(body)
            body.add(guard)
            guard.text = (
                " && ".join(f"({text})" for text in region.guards) if region.guards[1:] else region.guards[0]
            )
            body = guard.then
        for statement in kept:
            body.add(statement)
            for inner in statement.inner():
                inner.move(body)

    def vectors(self, statements: list[Statement]) -> int:
        """How many vectors the innermost loop over work-items should become at once; 0 leaves it to the compiler.

        Where the whole group fits the registers, a loop around it can keep its sums there: with no loop over the
        work-items inside, each sum has a place of its own. Convolutions gain three times (NCHW, PoCL 3.0). Not
        `vectorize(enable)`: it lets the compiler change the order of sums.
        """
        sizes = [end for _, end in self.group.loops]
        small = len(statements) <= MAXIMUM_STATEMENTS and prod(sizes) <= MAXIMUM_LANES
        return sizes[-1] // LANES if small else 0

    def needed(self, statements: list[Statement], guards: tuple[str, ...]) -> set[str]:
        """The names that statements use, by way of values that are computed anew too."""
        found = {word for guard in guards for word in words(guard)}
        for statement in walk_all(statements):
            found.update(words(statement.text))
            for assign in assigns(statement):
                found.update(words(assign.text))
        for name in reversed(self.repeated):
            if name in found:
                found.update(words(self.repeated[name].text))
        return found

    def index(self, name: str, local: Local) -> None:
        """Let every use of a variable name the element of the work-item."""
        element = name + "".join(f"[{id_}]" for id_, _ in self.group.loops)
        pattern = re.compile(rf"(?<![\w.]){name}\b")
        for statement in walk(self.scope):
            statement.text = pattern.sub(element, statement.text)
            for assign in assigns(statement):
                if assign is not statement:
                    assign.text = pattern.sub(element, assign.text)
        local.name = element


def _reads_memory(text: str) -> bool:
    return "[" in _ARGUMENT.sub("", text) or "load" in text


def _jumps_out(scope: Scope) -> bool:
    """Whether `break` or `continue` of the loop around ``scope`` is in it."""
    return any(
        item.text in ("break;", "continue;")
        or (not isinstance(item, Loop) and any(map(_jumps_out, item.inner())))
        for item in scope.items
    )
