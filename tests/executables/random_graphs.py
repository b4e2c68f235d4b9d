"""Random structured control flow: a graph of blocks, as SPIR-V that traces the blocks it runs, and walked in Python.

Every block adds a word to its invocation's trace, made of its own number, of the block it was entered from (a phi)
and, in the header of a loop, of three phis that swap, rotate and feed one another. It then steps a random state,
whose bits decide branches and switches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from spirv_assembler import FUNCTION, Spirv, instruction

from halgpu.executables.vulkan_spirv.opcodes import Op

INVOCATIONS = 16
LIMIT = 60
"""Words in a trace after which every loop ends."""
MULTIPLIER, INCREMENT = 1664525, 1013904223


class Choices:
    """Numbers that decide what is generated, given or 0 once they are used up, which ends everything soon."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = list(numbers)

    def pick(self, below: int) -> int:
        return self.numbers.pop(0) % below if self.numbers else 0


@dataclass
class Block:
    """A block: how it ends, where it may go, and what SPIR-V wants to know of the construct that it begins.

    ``end`` is jump, fork, switch, return or unreachable; ``shift`` says which bits of the state decide. A fork that
    is ``bounded`` is not taken any more once the trace is long. ``feeds``, of a loop's header, says what each of its
    three phis becomes on the way back: the old value of phi 0, 1 or 2, or (3) the number of the block it comes from.
    """

    number: int
    end: str = "return"
    targets: list[int] = field(default_factory=list)
    literals: list[int] = field(default_factory=list)
    shift: int = 0
    bounded: bool = False
    merge: int | None = None
    proceed: int | None = None
    feeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Exits:
    """Where a branch may lead out of the constructs around it."""

    leave: int | None = None
    proceed: int | None = None
    out_of_switch: int | None = None


class Graph:
    """A random graph; ``blocks`` are in an order that SPIR-V takes, the first is the entry."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.choices = Choices(numbers)
        self.blocks: list[Block] = []
        self.count = 0
        self.sequence(self.open(self.label()), Exits(), None, 5)
        self.sources: dict[int, list[int]] = {}
        for block in self.blocks:
            for target in dict.fromkeys(block.targets):
                self.sources.setdefault(target, []).append(block.number)

    # --- making ---

    def label(self) -> int:
        self.count += 1
        return self.count - 1

    def open(self, number: int) -> Block:
        self.blocks.append(Block(number, shift=self.choices.pick(24)))
        return self.blocks[-1]

    def reached(self, number: int) -> bool:
        return any(number in block.targets for block in self.blocks)

    def sequence(self, block: Block, exits: Exits, target: int | None, depth: int) -> None:
        """Statements from ``block`` on, then a jump to ``target`` (None: a return)."""
        for _ in range(self.choices.pick(5)):
            following = self.statement(block, exits, depth)
            if following is None:
                return
            block = following
        self.jump(block, target)

    def jump(self, block: Block, target: int | None) -> None:
        if target is not None:
            block.end, block.targets = "jump", [target]

    def statement(self, block: Block, exits: Exits, depth: int) -> Block | None:
        """Add one statement; returns the block behind it, or None if nothing comes there."""
        kind = self.choices.pick(8)
        if kind == 0 or depth == 0:
            following = self.label()
            self.jump(block, following)
            return self.open(following)
        if kind == 1:
            return self.way_out(block, exits)
        if kind in (2, 3):
            return self.selection(block, exits, depth)
        if kind == 4:
            return self.switch(block, exits, depth)
        return self.loop(block, depth, kind)

    def way_out(self, block: Block, exits: Exits) -> Block | None:
        """A return, break or continue, always or on a condition."""
        ways = [t for t in (exits.leave, exits.proceed, exits.out_of_switch) if t is not None]
        choice = self.choices.pick(2 * len(ways) + 1)
        if choice == 0:
            return None if self.choices.pick(4) == 3 else block
        way = ways[(choice - 1) // 2]
        if choice % 2 or way not in (exits.leave, exits.proceed):
            self.jump(block, way)
            return None
        following = self.label()
        block.end, block.targets = "fork", [way, following]
        return self.open(following)

    def after(self, merge: int) -> Block | None:
        block = self.open(merge)
        if self.reached(merge):
            return block
        block.end = "unreachable"
        return None

    def selection(self, block: Block, exits: Exits, depth: int) -> Block | None:
        merge, then = self.label(), self.label()
        otherwise = self.label() if self.choices.pick(2) else merge
        targets = [then, otherwise] if self.choices.pick(2) else [otherwise, then]
        block.end, block.targets, block.merge = "fork", targets, merge
        self.sequence(self.open(then), exits, merge, depth - 1)
        if otherwise != merge:
            self.sequence(self.open(otherwise), exits, merge, depth - 1)
        return self.after(merge)

    def switch(self, block: Block, exits: Exits, depth: int) -> Block | None:
        """Cases in order; each may fall into the next, and some literals lead straight to the merge.

        A case that falls must stand directly in front of the next one in OpSwitch (SPIR-V 2.11).
        """
        merge = self.label()
        cases = [self.label() for _ in range(1 + self.choices.pick(4))]
        default = cases[self.choices.pick(len(cases))] if self.choices.pick(2) else merge
        block.end, block.merge, block.targets = "switch", merge, [default]
        chosen = sorted((self.choices.pick(len(cases) + 2), literal) for literal in range(8))
        for case, literal in chosen:
            if case <= len(cases):
                block.literals.append(literal)
                block.targets.append([*cases, merge][case])
        inside = Exits(exits.leave, exits.proceed, merge)
        named = [case for case in cases if case in block.targets]
        for case, following in zip(named, [*named, merge][1:], strict=True):
            falls = default == merge and self.choices.pick(3) == 0
            self.sequence(self.open(case), inside, following if falls else merge, depth - 1)
        return self.after(merge)

    def loop(self, block: Block, depth: int, kind: int) -> Block | None:
        header, body, proceed, merge = (self.label() for _ in range(4))
        self.jump(block, header)
        head = self.open(header)
        head.merge, head.proceed = merge, proceed
        head.feeds = tuple(self.choices.pick(4) for _ in range(3))
        tests_first = kind != 5
        if tests_first:
            head.end, head.targets, head.bounded = "fork", [body, merge], True
        else:
            self.jump(head, body)
        self.sequence(self.open(body), Exits(merge, proceed), proceed, depth - 1)
        back = self.open(proceed)
        if tests_first and self.choices.pick(2):
            self.jump(back, header)
        else:
            back.end, back.targets, back.bounded = "fork", [header, merge], True
        return self.after(merge)

    # --- walking ---

    def walk(self, state: int) -> list[int]:
        """The trace of an invocation that begins with ``state``."""
        blocks = {block.number: block for block in self.blocks}
        block, source, trace, phis = self.blocks[0], 0, [], {b.number: [0, 1, 2] for b in self.blocks}
        while True:
            if block.feeds:
                old, came_back = phis[block.number], source == block.proceed
                new = [source % 8 if feed == 3 else old[feed] for feed in block.feeds]
                phis[block.number] = new if came_back else [0, 1, 2]
            trace.append(self.word(block, source, phis[block.number]))
            state = (state * MULTIPLIER + INCREMENT + block.number) % 2**32
            bits = state >> block.shift
            if block.end in ("return", "unreachable"):
                assert block.end == "return"
                return trace
            target = block.targets[0]
            if block.end == "fork":
                taken = bool(bits & 1) and not (block.bounded and len(trace) >= LIMIT)
                target = block.targets[0 if taken else 1]
            elif block.end == "switch" and bits & 7 in block.literals:
                target = block.targets[1 + block.literals.index(bits & 7)]
            block, source = blocks[target], block.number

    def word(self, block: Block, source: int, phis: list[int]) -> int:
        value = block.number * 256 + source
        return value * 512 + phis[0] * 64 + phis[1] * 8 + phis[2] if block.feeds else value

    @property
    def capacity(self) -> int:
        """Words that a trace may have: beyond LIMIT no block comes more than twice."""
        return LIMIT + 2 * len(self.blocks) + 2

    # --- SPIR-V ---

    def spirv(self) -> Spirv:
        """A kernel: states in, traces out, a row an invocation."""
        return _Writer(self).s


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.s = s = Spirv("i32", "i32", size=INVOCATIONS)
        self.labels = {block.number: s.new() for block in graph.blocks}
        self.state, self.length = s.variable(FUNCTION, s.type("i32")), s.variable(FUNCTION, s.type("i32"))
        s.do(Op.Store, self.state, s.load(0))
        s.do(Op.Store, self.length, self.number(0))
        s.do(Op.Branch, self.labels[graph.blocks[0].number])
        for block in graph.blocks:
            self.block(block)
        # The assembler ends the function with a return of its own: in a block that nothing leads to.
        s.label(s.new())

    def number(self, value: int) -> int:
        return self.s.constant("i32", value)

    def block(self, block: Block) -> None:
        s, sources = self.s, self.graph.sources.get(block.number, [])
        s.label(self.labels[block.number])
        pairs = [part for source in sources for part in (self.number(source), self.labels[source])]
        if block is self.graph.blocks[0]:
            pairs += [self.number(0), s.start]
        source = s.op(Op.Phi, "i32", *pairs) if pairs else self.number(0)
        word = self.plus(self.number(block.number * 256), source)
        if block.feeds:
            word = self.with_phis(block, sources, word)
        length = s.op(Op.Load, "i32", self.length)
        start = s.op(Op.IMul, "i32", s.index, self.number(self.graph.capacity))
        s.do(Op.Store, s.element(1, self.plus(start, length)), word)
        length = self.plus(length, self.number(1))
        s.do(Op.Store, self.length, length)
        scaled = s.op(Op.IMul, "i32", s.op(Op.Load, "i32", self.state), self.number(MULTIPLIER))
        state = self.plus(scaled, self.number(INCREMENT + block.number))
        s.do(Op.Store, self.state, state)
        self.end(block, s.op(Op.ShiftRightLogical, "i32", state, self.number(block.shift)), length)

    def plus(self, a: int, b: int) -> int:
        return self.s.op(Op.IAdd, "i32", a, b)

    def with_phis(self, block: Block, sources: list[int], word: int) -> int:
        s = self.s
        # Phis stand first: move them in front of what was written since.
        at = len(s.body) - (len(instruction(Op.IAdd, 0, 0, 0, 0)))
        tail, s.body = s.body[at:], s.body[:at]
        ids = [s.new("i32") for _ in range(3)]
        for first, (id_, feed) in enumerate(zip(ids, block.feeds, strict=True)):
            pairs = []
            for source in sources:
                back = self.number(source % 8) if feed == 3 else ids[feed]
                pairs += [back if source == block.proceed else self.number(first), self.labels[source]]
            s.body += instruction(Op.Phi, s.type("i32"), id_, *pairs)
        s.body += tail
        for id_ in ids:
            word = self.plus(s.op(Op.IMul, "i32", word, self.number(8)), id_)
        return word

    def end(self, block: Block, bits: int, length: int) -> None:
        s = self.s
        low = s.op(Op.BitwiseAnd, "i32", bits, self.number(7 if block.end == "switch" else 1))
        condition = s.op(Op.INotEqual, "bool", low, self.number(0)) if block.end == "fork" else 0
        if block.bounded:
            short = s.op(Op.ULessThan, "bool", length, self.number(LIMIT))
            condition = s.op(Op.LogicalAnd, "bool", condition, short)
        if block.proceed is not None:
            s.do(Op.LoopMerge, self.labels[block.merge or 0], self.labels[block.proceed], 0)
        elif block.merge is not None:
            s.do(Op.SelectionMerge, self.labels[block.merge], 0)
        targets = [self.labels[target] for target in block.targets]
        if block.end == "jump":
            s.do(Op.Branch, targets[0])
        elif block.end == "fork":
            s.do(Op.BranchConditional, condition, *targets)
        elif block.end == "switch":
            pairs = [part for pair in zip(block.literals, targets[1:], strict=True) for part in pair]
            s.do(Op.Switch, low, targets[0], *pairs)
        else:
            s.do(Op.Unreachable if block.end == "unreachable" else Op.Return)


def states() -> np.ndarray:
    return np.arange(INVOCATIONS, dtype="i4") * 77777777 - 99


def traces(graph: Graph) -> np.ndarray:
    """The traces of all invocations, by walking; -1 behind their ends."""
    wanted = np.full((INVOCATIONS, graph.capacity), -1, "i4")
    for row, state in zip(wanted, states(), strict=True):
        trace = graph.walk(int(state) % 2**32)
        row[: len(trace)] = np.array(trace, "u4").view("i4")
    return wanted
