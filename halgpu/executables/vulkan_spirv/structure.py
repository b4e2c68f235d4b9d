"""Structured control flow: a function's basic blocks -> a tree of sequences, selections, loops and switches.

SPIR-V for shaders is structured (specification, section 2.11): a header names the block where its construct
merges, a loop also the block that continues it. A walk from the entry that stops at merges gives the tree.
Branches that leave a construct become `break` and `continue`, and `goto` where C's statements cannot say it.

Phis are left to the emitter: every taken branch is an :class:`Edge`, in the place where its copies belong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NoReturn

from halgpu import errors

from . import spirv_types as ty
from .module import Block, Function, Instruction, Module
from .opcodes import Op

MAXIMUM_NESTING: Final = 60
"""Constructs inside of one another. Compilers of C promise 127 nested blocks at least."""


@dataclass(slots=True)
class Straight:
    """The instructions of a block, without its phis and its terminator."""

    block: Block


@dataclass(slots=True)
class Edge:
    """The branch from one block to another is taken: the target's phis get their values."""

    source: int
    target: int


@dataclass(slots=True)
class Leave:
    """A jump: ``"break"`` or ``"continue"`` of the innermost statement, or ``"goto"`` the block ``target``."""

    kind: str
    target: int


@dataclass(slots=True)
class Exit:
    """The function ends: OpReturn, OpReturnValue or OpUnreachable."""

    instruction: Instruction


@dataclass(slots=True)
class Target:
    """Where a `goto` to block ``label`` arrives, if any does."""

    label: int


@dataclass(slots=True)
class If:
    """A selection on a boolean id."""

    condition: int
    then: list[Node]
    otherwise: list[Node]


@dataclass(slots=True)
class Loop:
    """An endless loop: ``body`` begins with the header's block; ``tail`` is its continue construct."""

    header: int
    body: list[Node]
    tail: list[Node]
    proceed: int
    """The block that `continue` goes to; `goto` where the tail is not empty."""


@dataclass(slots=True)
class Case:
    """One body of a switch: its literals (None is the default), and whether control falls into the next."""

    target: int
    literals: list[int | None]
    body: list[Node] = field(default_factory=list)
    falls: bool = False


@dataclass(slots=True)
class Switch:
    """A selection on an integer id."""

    selector: int
    cases: list[Case]


Node = Straight | Edge | Leave | Exit | Target | If | Loop | Switch


@dataclass(slots=True)
class _Frame:
    """A construct that is being walked: what the branches that leave it may name."""

    kind: str
    merge: int
    proceed: int = 0
    header: int = 0
    cases: frozenset[int] = frozenset()
    following: int = 0


@dataclass(slots=True)
class Structure:
    """The tree of a function's control flow and the blocks that are reached by `goto`."""

    nodes: list[Node]
    gotos: set[int]
    loops: dict[int, int]
    """Block label -> label of the header of the innermost loop around it, 0 outside of loops."""


def build(module: Module, function: Function) -> Structure:
    """Find the structure of ``function``.

    Raises InvalidArgument where control flow is not structured, and Unimplemented where it is nested too deep.
    """
    walk = _Walk(module, function)
    entry = next(iter(function.blocks))
    nodes = walk.region(entry, end=0)
    return Structure(nodes, walk.gotos, walk.loops)


class _Walk:
    def __init__(self, module: Module, function: Function) -> None:
        self.module = module
        self.function = function
        self.frames: list[_Frame] = []
        self.done: set[int] = set()
        self.reached: set[int] = set()
        self.gotos: set[int] = set()
        self.loops: dict[int, int] = {}

    def fail(self, label: int, problem: str) -> NoReturn:
        raise errors.InvalidArgument(
            f"{self.module.what}: control flow of function %{self.function.id} is not structured: "
            f"block %{label} {problem}"
        )

    def region(self, label: int, end: int) -> list[Node]:
        """Walk from ``label`` to where control would enter ``end``; each pass adds a block or a construct."""
        nodes: list[Node] = []
        while label:
            block = self.function.blocks.get(label)
            if block is None:
                self.fail(label, "does not exist in it")
            if block.merge is not None and block.merge.op == Op.LoopMerge and not self.is_header(label):
                label = self.loop(block, nodes, end)
                continue
            if label in self.done:
                self.fail(label, "is reached on two ways that do not merge there")
            self.done.add(label)
            self.loops[label] = self.innermost_header()
            nodes.append(Straight(block))
            label = self.terminator(block, nodes, end)
        return nodes

    def innermost_header(self) -> int:
        return next((frame.header for frame in reversed(self.frames) if frame.header), 0)

    def is_header(self, label: int) -> bool:
        return bool(self.frames) and self.frames[-1].header == label and label not in self.done

    def push(self, frame: _Frame) -> None:
        if len(self.frames) >= MAXIMUM_NESTING:
            raise errors.Unimplemented(
                f"{self.module.what}: control flow nested deeper than {MAXIMUM_NESTING} constructs is not supported"
            )
        self.frames.append(frame)

    # --- constructs -------------------------------------------------------------------------------------

    def loop(self, block: Block, nodes: list[Node], end: int) -> int:
        """Walk the loop whose header is ``block``; return the block to go on with, 0 where ``end`` is next."""
        assert block.merge is not None
        merge, proceed = block.merge.operands[:2]
        header = block.label
        if header in self.done:
            self.fail(header, "is the header of a loop and is entered twice")
        self.push(_Frame("loop", merge, proceed, header))
        body = self.region(header, end=proceed)
        tail: list[Node] = []
        if proceed != header and proceed in self.reached:
            tail = self.region(proceed, end=header)
        self.frames.pop()
        nodes.append(Loop(header, body, tail, proceed))
        return self.after(merge, nodes, end)

    def after(self, merge: int, nodes: list[Node], end: int) -> int:
        """What follows a construct: its merge block, unless that is where the region ends."""
        nodes.append(Target(merge))
        if merge == end or merge in self.done:
            return 0
        return merge

    def terminator(self, block: Block, nodes: list[Node], end: int) -> int:
        """Translate how a block ends; return the block to go on with, or 0 at the end of the region."""
        last = block.terminator
        if last.op == Op.Branch:
            return self.jump(block.label, last.operands[0], nodes, end)
        if last.op == Op.BranchConditional:
            return self.conditional(block, nodes, end)
        if last.op == Op.Switch:
            return self.switch(block, nodes, end)
        if last.op == Op.Kill:
            self.fail(block.label, "ends in OpKill, which compute kernels cannot have")
        nodes.append(Exit(last))
        return 0

    def conditional(self, block: Block, nodes: list[Node], end: int) -> int:
        condition, yes, no = block.terminator.operands[:3]
        if yes == no:
            return self.jump(block.label, yes, nodes, end)
        if block.merge is not None and block.merge.op == Op.SelectionMerge:
            return self.selection(block, nodes, end)
        first, second = self.leaves(yes, end), self.leaves(no, end)
        then: list[Node] = []
        otherwise: list[Node] = []
        nodes.append(If(condition, then, otherwise))
        if first is None and second is None:
            self.fail(block.label, "branches two ways without naming the block where they merge")
        if first is not None:
            self.jump(block.label, yes, then, end)
        if second is not None:
            self.jump(block.label, no, otherwise, end)
        if first is not None and second is not None:
            return 0
        leaving, going, branch = (first, no, otherwise) if first is not None else (second, yes, then)
        if leaving != "end":
            # The other way jumps off, so that what follows need not be nested.
            return self.jump(block.label, going, nodes, end)
        follow = self.jump(block.label, going, branch, end)
        branch += self.nested(follow, end) if follow else []
        return 0

    def nested(self, label: int, end: int) -> list[Node]:
        """A region one level deeper that has no merge of its own."""
        self.push(_Frame("branch", 0))
        nodes = self.region(label, end)
        self.frames.pop()
        return nodes

    def selection(self, block: Block, nodes: list[Node], end: int) -> int:
        assert block.merge is not None
        merge = block.merge.operands[0]
        condition, yes, no = block.terminator.operands[:3]
        self.push(_Frame("if", merge))
        branches = []
        for target in (yes, no):
            branch: list[Node] = []
            follow = self.jump(block.label, target, branch, merge)
            branches.append(branch + self.region(follow, merge) if follow else branch)
        self.frames.pop()
        nodes.append(If(condition, *branches))
        return self.after(merge, nodes, end)

    def switch(self, block: Block, nodes: list[Node], end: int) -> int:
        if block.merge is None or block.merge.op != Op.SelectionMerge:
            self.fail(block.label, "switches without naming the block where its cases merge")
        merge = block.merge.operands[0]
        cases = self.cases(block)
        for case in cases:
            if case.target not in self.function.blocks:
                self.fail(case.target, "does not exist in it")
        inside = frozenset(case.target for case in cases if self.leaves(case.target, merge) is None)
        frame = _Frame("switch", merge, cases=inside)
        self.push(frame)
        for case, following in zip(cases, [*(c.target for c in cases[1:]), 0], strict=True):
            frame.following = following
            self.case(block.label, case, merge)
        self.frames.pop()
        nodes.append(Switch(block.terminator.operands[0], cases))
        return self.after(merge, nodes, end)

    def case(self, source: int, case: Case, merge: int) -> None:
        """Walk the body of one case."""
        if case.target not in self.frames[-1].cases:
            self.jump(source, case.target, case.body, merge)
            return
        self.reached.add(case.target)
        case.body = [Edge(source, case.target), Target(case.target), *self.region(case.target, merge)]
        last = case.body[-1]
        case.falls = isinstance(last, Leave) and last.kind == "fall"
        if case.falls:
            case.body.pop()

    def cases(self, block: Block) -> list[Case]:
        """The cases of a switch in the order in which their targets appear, those of one target joined."""
        _, default, *words = block.terminator.operands
        wide = self.selector_width(block) == 64
        step = 3 if wide else 2
        if len(words) % step:
            self.fail(block.label, "switches with a broken list of cases")
        found: dict[int, Case] = {}
        seen: set[int] = set()
        for i in range(0, len(words), step):
            literal = words[i] | (words[i + 1] << 32 if wide else 0)
            target = words[i + step - 1]
            if literal in seen:
                self.fail(block.label, f"has two cases {literal}")
            seen.add(literal)
            found.setdefault(target, Case(target, [])).literals.append(literal)
        found.setdefault(default, Case(default, [])).literals.append(None)
        return list(found.values())

    def selector_width(self, block: Block) -> int:
        selector = block.terminator.operands[0]
        type_ = self.module.constants[selector].type if selector in self.module.constants else None
        for other in self.function.blocks.values():
            for instruction in (*other.phis, *other.body):
                if instruction.result == selector:
                    type_ = self.module.types.get(instruction.type)
        if not isinstance(type_, ty.Int):
            self.fail(block.label, "switches on something that is no integer")
        return type_.width

    # --- branches ---------------------------------------------------------------------------------------

    def leaves(self, target: int, end: int) -> str | None:
        """How a branch to ``target`` leaves the region that ends at ``end``; None when it goes on inside."""
        if target == end:
            return "end"
        for depth, frame in enumerate(reversed(self.frames)):
            kind = self.exit_of(frame, target, depth)
            if kind is not None:
                return kind
        return None

    def exit_of(self, frame: _Frame, target: int, depth: int) -> str | None:
        inner = self.frames[len(self.frames) - depth :]
        in_loop = any(other.kind == "loop" for other in inner)
        in_switch = any(other.kind == "switch" for other in inner)
        if frame.kind == "loop" and target == frame.proceed:
            return "goto" if in_loop or frame.proceed != frame.header else "continue"
        if frame.kind == "loop" and target == frame.header:
            self.fail(
                target, "is the header of a loop and is branched to from outside of the continue construct"
            )
        if target in frame.cases:
            # A case that begins with phis has its copies in front of what the case before may fall into.
            falls = depth == 0 and target == frame.following and not self.function.blocks[target].phis
            return "fall" if falls else "goto"
        if target and target == frame.merge:
            breakable = frame.kind in ("loop", "switch") and not in_loop and not in_switch
            return "break" if breakable else "goto"
        return None

    def jump(self, source: int, target: int, nodes: list[Node], end: int) -> int:
        """Take the branch ``source`` -> ``target``; return ``target`` when the walk goes on there, else 0."""
        nodes.append(Edge(source, target))
        self.reached.add(target)
        kind = self.leaves(target, end)
        if kind is None:
            return target
        if kind == "goto":
            self.gotos.add(target)
        if kind != "end":
            nodes.append(Leave(kind, target))
        return 0
