"""Loops of a kernel for CPUs that add up floats in order, taken a strip of several passes at a time.

Floats have to be added in the order that the program says, so that LLVM does not vectorize a loop that does it, nor
anything that the loop computes for each term: softmax takes one scalar exponential after another. Here

    for each i: sum = f(i) + sum

becomes

    for each strip of i: { for each lane: term[lane] = f(i + lane);  for each lane: sum = term[lane] + sum; }

whose first inner loop has nothing to do with the sum and becomes vector instructions; the second one adds in the
same order as before, so that the result has the same bits. What is left behind the last whole strip goes the old way.

A maximum has no order to keep, but LLVM does not know that; it gets a variable a lane, each of which begins as the
maximum so far, and they are joined at the end. Zeros and NaNs come out as before too: `max(a, b)` (op_glsl.py) is the
greater one by an order with +0 above -0 and all NaNs below the numbers, and `a` where both are NaN. So a chain of
max(x, before) over nothing but NaNs gives the last x, one of max(before, x) what it began with; the lanes, joined in
their order with the operands in the same order, give the same. A minimum is the like.

Only loops that do nothing but assign variables come here: no stores, so that what they read stays the same, and no
way out but the counter's end. A strip is begun only where all of its passes take place: nothing is read that was not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Final

from .components import arguments
from .tree import INDENT, Assign, Local, Loop, Scope, live, render, walk, words

STRIP: Final = 8
"""Passes of a strip: the floats in a register of AVX. With 16 and 32 nothing is faster (PoCL 3.0, LLVM 14)."""
LEAST_PASSES: Final = 2 * STRIP
LEAST_OPERATIONS: Final = 4
"""Operations of a term; with fewer the additions take longer than all else, and nothing is gained."""
MAXIMUM_ARRAYS: Final = 4
"""Values that the first inner loop hands to the second."""

_FLOATS: Final = frozenset({"float", "double", "half"})
_KEPT: Final = _FLOATS | {"uchar", "ushort", "uint", "ulong"}
_SUFFIXES: Final = {"uint": "u", "ulong": "ul"}
_CASTS: Final = {"uint": "(int)", "ulong": "(long)"}
_TEST: Final = re.compile(r"(\((?:int|long)\))?(\w+) < (\((?:int|long)\))?(-?\w+|p\.constants\[\d+\])")
_STEP: Final = re.compile(r"(\w+) \+ (\d+)ul?")
_INTEGER: Final = re.compile(r"(-?0x[\da-f]+|-?\d+)(u?l?)")
_HEX_FLOAT: Final = re.compile(r"-?0x[\da-f.]+p[+-]\d+f?")
_INDEX: Final = re.compile(r"\[[^\[\]]*\]")
_NAME: Final = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
_OPERATION: Final = re.compile(r" (?:[-+*/%&|^<>?]|<<|>>|[=!<>]=) |\b(?!as_)[a-z]\w*\(")


def rewrite(scope: Scope, reserve: Callable[[str], str], extrema: Collection[str]) -> None:
    """Rewrite the loops of a kernel, in place, once it is decided where its variables are declared.

    ``reserve`` gives out a name like the one it is given; ``extrema`` are the functions that give the greater or the
    lesser of two numbers.
    """
    for loop in [statement for statement in walk(scope) if isinstance(statement, Loop)]:
        count = _counted(loop)
        body = _sorted_out(loop, extrema)
        if count is not None and body is not None and body.gains() and not count.reads & body.assigned:
            items = loop.scope.items
            items[items.index(loop)] = StripMined(loop, count, _Writer(count, body, reserve))


class StripMined(Loop):
    """A loop that takes whole strips first."""

    __slots__ = ("count", "strips")

    def __init__(self, loop: Loop, count: _Count, writer: _Writer) -> None:
        super().__init__(loop.scope)
        self.scope, self.declared, self.text, self.body = loop.scope, loop.declared, loop.text, loop.body
        self.initial, self.step = loop.initial, loop.step
        self.body.owner = self
        self.count = count
        self.strips = list(writer.lines())

    def lines(self, indent: str) -> Iterator[str]:
        yield from (indent + line for line in self.strips)
        if self.count.rest:
            yield f"{indent}for (; {self.text}; {self.count.stepped(1)}) {{"
            yield from render(self.body, indent + INDENT)
            yield f"{indent}}}"


# --- how a loop counts --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Count:
    """The head of a loop that counts up from `first` to below `end` by `step`."""

    name: str
    suffix: str
    """Of the counter's literals; it is unsigned."""
    first: str
    """The statement that sets the counter, without its semicolon."""
    end: str
    step: int
    test: str
    passes: int | None
    """How many there are; None where that is not known."""

    @property
    def reads(self) -> set[str]:
        """The names that the body has to leave alone."""
        return {self.name, *words(self.end)}

    @property
    def rest(self) -> bool:
        """Whether there may be passes behind the last whole strip."""
        return self.passes is None or self.passes % STRIP != 0

    @property
    def whole(self) -> str:
        """The test of whether all passes of a strip take place, which is that the last one does."""
        if not self.rest:
            return self.test
        last = self.step * (STRIP - 1)
        constant = _INTEGER.fullmatch(self.end)
        if constant is not None and self.passes is not None:
            return f"{self.test.removesuffix(self.end)}{int(constant[1], 0) - last}{constant[2]}"
        end = f"{constant[1]}{self.suffix}" if constant is not None else self.end
        # The distance of a counter to its end, as long as it is below that, fits its type, whatever their signs.
        return f"{self.test} && {end} - {self.name} > {last}{self.suffix}"

    def stepped(self, passes: int) -> str:
        """The counter's step over so many passes."""
        return f"{self.name} += {self.step * passes}{self.suffix}"


def _counted(loop: Loop) -> _Count | None:
    """How a loop counts; None where that is another way, or where there are too few passes."""
    initial, step, test = loop.initial, loop.step, _TEST.fullmatch(loop.text)
    by = _STEP.fullmatch(step.text) if step is not None else None
    if initial is None or test is None or by is None or loop.declared:
        return None
    local, size, end = initial.local, int(by[2]), test[4]
    if not local.name == by[1] == test[2] or local.specifier not in _SUFFIXES or not 0 < size < 1 << 24:
        return None
    if test[1] not in (None, _CASTS[local.specifier]):
        return None
    if test[3] != test[1] and (test[3] or _integer(end) is None):
        return None
    start, stop = _integer(initial.text), _integer(end)
    passes = None
    if start is not None and stop is not None:
        bits = 64 if local.specifier == "ulong" else 32
        passes = _passes(start, stop, size, bits, signed=test[1] is not None)
        if passes < LEAST_PASSES:
            return None
    first = f"{local.specifier} " * initial.declares + f"{local.name} = {initial.text}"
    return _Count(local.name, _SUFFIXES[local.specifier], first, end, size, loop.text, passes)


def _passes(start: int, stop: int, step: int, bits: int, *, signed: bool) -> int:
    """How many passes there are; 0 where the counter would wrap around."""
    if signed:
        bits -= 1
        start -= (start >> bits) << bits + 1
    passes = -(-(stop - start) // step)
    return passes if start + passes * step < 1 << bits else 0


def _integer(text: str) -> int | None:
    """The value of an integer literal."""
    found = _INTEGER.fullmatch(text)
    return int(found[1], 0) if found else None


# --- what a loop does ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Extremum:
    """`variable = function(…)` of the variable and `text`, in that order if `first`."""

    variable: Local
    function: str
    text: str
    first: bool

    def of(self, before: str, other: str) -> str:
        """The call with operands in the order of the program."""
        return f"{self.function}({', '.join((before, other) if self.first else (other, before))})"


@dataclass(frozen=True, slots=True)
class _Term:
    """`variable = text + variable`, or the other way round if `first`."""

    variable: Local
    text: str
    first: bool

    def added(self, term: str) -> str:
        """The sum with the operands in the order of the program."""
        return f"{self.variable.name} + {term}" if self.first else f"{term} + {self.variable.name}"


@dataclass(slots=True)
class _Body:
    """The statements of a loop, by what they have to do with the passes before."""

    assigned: set[str]
    free: list[Assign]
    """Those of which each pass has its own."""
    extrema: list[_Extremum]
    ordered: list[Assign]
    """Those that need the pass before."""
    terms: dict[str, _Term]
    """Sums among them of which one operand is computed apart, by the names of their variables."""

    @property
    def handed(self) -> list[Local]:
        """The variables that the ordered statements take from the others."""
        texts = [each.text for each in self.ordered if each.local.name not in self.terms]
        used = {word for text in texts for word in words(text)}
        return [assign.local for assign in self.free if assign.local.name in used]

    def gains(self) -> bool:
        """Whether strips are worth their while: there is an extremum, or what is added in order is computed long."""
        handed = self.handed
        if len(handed) + len(self.terms) > MAXIMUM_ARRAYS or any(x.specifier not in _KEPT for x in handed):
            return False
        adds = any(each.local.specifier in _FLOATS and not each.declares for each in self.ordered)
        texts = [assign.text for assign in self.free] + [term.text for term in self.terms.values()]
        return bool(self.extrema) or (adds and sum(map(_operations, texts)) >= LEAST_OPERATIONS)


def _sorted_out(loop: Loop, extrema: Collection[str]) -> _Body | None:
    """What the statements of a loop are; None where there are others than assignments, each of its own variable."""
    items = list(live(loop.body))
    assigns = [item for item in items if isinstance(item, Assign) and item.local.name.isidentifier()]
    names = {assign.local.name for assign in assigns}
    if len(names) != len(items) or any(item.declared for item in items):
        return None
    assigns = _forwarded(assigns)
    body = _Body(names, [], [], [], {})
    # What is declared outside is there in the next pass, or behind the loop.
    later = {assign.local.name for assign in assigns if not assign.declares}
    for assign in assigns:
        if assign.local.name not in later and later.isdisjoint(words(assign.text)):
            body.free.append(assign)
            continue
        later.add(assign.local.name)
        body.ordered.append(assign)
    for assign in body.ordered.copy():
        _take_apart(body, assign, later, extrema)
    return body


def _forwarded(assigns: list[Assign]) -> list[Assign]:
    """The statements with each value that is only copied to what is carried (`v = …; sum = v`) put in its place."""
    found = assigns.copy()
    for copy in assigns:
        value = next((each for each in found if each.local.name == copy.text and each.declares), None)
        if value is None or sum(words(each.text).count(copy.text) for each in found) != 1:
            continue
        start, end = found.index(value), found.index(copy)
        if not {each.local.name for each in found[start + 1 : end]}.isdisjoint(words(value.text)):
            continue
        joined = Assign(copy.local, value.text, value.reads)
        joined.declares = copy.declares
        found[end] = joined
        found.remove(value)
    return found


def _take_apart(body: _Body, assign: Assign, later: set[str], extrema: Collection[str]) -> None:
    """Note an ordered statement as an extremum or as a sum, if it is one of a variable and what is free of order."""
    name = assign.local.name
    if assign.declares or assign.local.specifier not in _FLOATS:
        return
    extremum, term = _extremum(assign, extrema), _term(assign)
    others = [each for each in body.ordered if each is not assign]
    if extremum is not None and later.isdisjoint(words(extremum.text)):
        if not any(name in words(each.text) for each in others):
            body.ordered.remove(assign)
            body.extrema.append(extremum)
    elif term is not None and later.isdisjoint(words(term.text)) and not term.text.isidentifier():
        body.terms[name] = term


def _extremum(assign: Assign, functions: Collection[str]) -> _Extremum | None:
    function, _, rest = assign.text.partition("(")
    if function not in functions or not rest.endswith(")") or not _balanced(rest[:-1]):
        return None
    operands, name = arguments(rest[:-1]), assign.local.name
    if len(operands) != 2 or name not in operands:
        return None
    first = operands[0] == name
    return _Extremum(assign.local, function, operands[first], first)


def _term(assign: Assign) -> _Term | None:
    name, text = assign.local.name, assign.text
    if text.endswith(f" + {name}"):
        term, first = text.removesuffix(f" + {name}"), False
    else:
        term, first = text.removeprefix(f"{name} + "), True
    if term == text or not _balanced(term):
        return None
    # Additions go from left to right: what stands in front of the last one may be a sum, what stands behind may not.
    looser = "?:<>=!&|^" + "+-" * first
    outer = _outside(_HEX_FLOAT.sub("1", term))
    return _Term(assign.local, term, first) if set(looser).isdisjoint(outer) else None


def _balanced(text: str) -> bool:
    """Whether parentheses in a text close after they open."""
    depth = 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if depth < 0:
            return False
    return depth == 0


def _outside(text: str) -> str:
    """A text without what is in parentheses or brackets."""
    found, depth = "", 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        found += character if not depth else ""
    return found


def _operations(text: str) -> int:
    """The operators and calls in a text, those of indices left out."""
    return len(_OPERATION.findall(_INDEX.sub("", text)))


# --- the new text -------------------------------------------------------------------------------------------


class _Writer:
    """The text of a loop over whole strips."""

    def __init__(self, count: _Count, body: _Body, reserve: Callable[[str], str]) -> None:
        self.count = count
        self.body = body
        self.lane = reserve("lane")
        self.counter = reserve(f"{count.name}_lane")
        """The counter in a pass of a strip."""
        self.arrays = {local.name: reserve(f"{local.name}_lanes") for local in body.handed}
        self.terms = {name: reserve(f"{name}_terms") for name in body.terms}
        self.extrema = {each.variable.name: reserve(f"{each.variable.name}_lanes") for each in body.extrema}

    def lines(self) -> Iterator[str]:
        """The whole."""
        count = self.count
        if count.rest:
            yield f"{count.first};"
        for each in self.body.extrema:
            yield f"{each.variable.specifier} {self.extrema[each.variable.name]}[{STRIP}];"
        yield from self.each_lane(self.begun())
        yield f"for ({'' if count.rest else count.first}; {count.whole}; {count.stepped(STRIP)}) {{"
        yield from (INDENT + line for line in self.strip())
        yield "}"
        yield from self.each_lane(self.joined())

    def strip(self) -> Iterator[str]:
        for local in self.body.handed:
            yield f"{local.specifier} {self.arrays[local.name]}[{STRIP}];"
        for name, term in self.body.terms.items():
            yield f"{term.variable.specifier} {self.terms[name]}[{STRIP}];"
        yield from self.each_pass(self.free())
        yield from self.each_pass(self.ordered())

    def begun(self) -> list[str]:
        return [f"{self.at(lanes)} = {name};" for name, lanes in self.extrema.items()]

    def joined(self) -> list[str]:
        extrema = ((each, each.variable.name) for each in self.body.extrema)
        return [f"{name} = {each.of(name, self.at(self.extrema[name]))};" for each, name in extrema]

    def free(self) -> list[str]:
        body = self.body
        return [
            *(f"{each.local.specifier} {each.local.name} = {each.text};" for each in body.free),
            *(f"{self.at(array)} = {name};" for name, array in self.arrays.items()),
            *(f"{self.at(self.terms[name])} = {term.text};" for name, term in body.terms.items()),
            *(f"{lanes} = {each.of(lanes, each.text)};" for each, lanes in self.lanes()),
        ]

    def lanes(self) -> Iterator[tuple[_Extremum, str]]:
        return ((each, self.at(self.extrema[each.variable.name])) for each in self.body.extrema)

    def ordered(self) -> list[str]:
        return [
            f"{each.local.specifier} " * each.declares + f"{each.local.name} = {self.text(each)};"
            for each in self.body.ordered
        ]

    def text(self, each: Assign) -> str:
        """The value of an ordered statement."""
        name = each.local.name
        if name in self.terms:
            return self.body.terms[name].added(self.at(self.terms[name]))
        return _renamed(each.text, {local: self.at(array) for local, array in self.arrays.items()})

    def at(self, array: str) -> str:
        return f"{array}[{self.lane}]"

    def each_pass(self, lines: list[str]) -> Iterator[str]:
        """A loop over the passes of a strip."""
        count = self.count
        new = [_renamed(line, {count.name: self.counter}) for line in lines]
        if new != lines:
            type_ = "ulong" if count.suffix == "ul" else "uint"
            ahead = self.lane if count.step == 1 else f"{self.lane} * {count.step}{count.suffix}"
            new.insert(0, f"const {type_} {self.counter} = {count.name} + {ahead};")
        return self.each_lane(new)

    def each_lane(self, lines: list[str]) -> Iterator[str]:
        if lines:
            yield f"for (uint {self.lane} = 0u; {self.lane} < {STRIP}u; ++{self.lane}) {{"
            yield from (INDENT + line for line in lines)
            yield "}"


def _renamed(text: str, names: dict[str, str]) -> str:
    """A text with other names for some variables."""
    return _NAME.sub(lambda match: names.get(match[0], match[0]), text)
