"""Ranges of buffer indexes in a loop, computed before it runs: what lets bounds checks leave the loop.

An index is followed back through integer arithmetic to counters of the loop and of those inside it, whose first and
last value are known at the loop's entry, and to values that the loop does not change. The result is IR that
computes the least and greatest index that an access may use, in 128 bits, and a condition under which the access is
always inside its buffer. Ranges are wider than the truth at times; then the loop with its checks runs.

A counter is a phi at a loop's header that starts outside, grows by a positive constant, and that the header
compares (signed, less than) to a bound before the body.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from halgpu.vm.dataflow import CallTypes, Local, TypedFunction, branches, reads
from halgpu.vm.isa import Op
from halgpu.vm.loops import Loop
from halgpu.vm.value_flow import Flow, Value, constant
from halgpu.vm.verifier import Block

Number = int | str
"""A number known now, or the name of an i128 in the IR."""
Interval = tuple[Number, Number]

MAXIMUM_STEPS = 2000
"""Instructions looked at for one loop before its ranges are given up."""


class Unknown(Exception):
    """A range cannot be told. Stays in this module."""


@dataclass(slots=True)
class Proof:
    """What a condition proves when it holds."""

    condition: str
    """An i1."""
    accesses: frozenset[int]
    """Offsets of the loads and stores that stay inside their buffers."""
    exact: frozenset[int]
    """Offsets of the additions and products that do not wrap around."""


@dataclass(slots=True)
class _Findings:
    conditions: list[str] = field(default_factory=list)
    exact: set[int] = field(default_factory=set)


class RangeAnalysis:
    """Ranges in one loop of a function. ``whole`` are the values of the function around it, for constants."""

    def __init__(
        self, loop: Loop, blocks: dict[int, Block], typed: TypedFunction, calls: CallTypes, whole: Flow
    ) -> None:
        self.loop = loop
        self.flow = Flow(blocks, loop.blocks, loop.header, typed, calls)
        self.accesses: dict[int, tuple[Op, int]] = {}
        self._whole = whole
        self._calls = calls
        self._home = {header.header: header for header in loop.nest()}
        for offset in sorted(loop.blocks):
            for op in blocks[offset].ops:
                if op.instruction.encoding in ("buffer_load", "buffer_store"):
                    self.accesses[op.offset] = op, offset

    def provable(self) -> frozenset[int]:
        """Offsets of the accesses whose range can be told, whatever it turns out to be."""
        dry = _Emission(self, lambda text: "%0", lambda local: "%0")
        found = set()
        for offset in self.accesses:
            try:
                dry.check(offset, "%0")
                found.add(offset)
            except Unknown:
                continue
        return frozenset(found)

    def prove(
        self,
        accesses: frozenset[int],
        emit: Callable[[str], str],
        read: Callable[[Local], str],
        count: Callable[[Op], str],
    ) -> Proof:
        """Write the condition that ``accesses``, some of :meth:`provable`, stay inside their buffers.

        ``emit(text)`` writes an instruction and returns the name of its result, ``read(local)`` one that reads a
        local where the loop is entered; ``count(op)`` is the number of elements, an i64, that an access may use.
        """
        emission = _Emission(self, emit, read)
        for offset in sorted(accesses):
            emission.check(offset, emission.unsigned(count(self.accesses[offset][0])))
        return Proof(emission.all(), accesses, frozenset(emission.found.exact))

    def ends_by(self, exact: frozenset[int]) -> Local | None:
        """A counter that ends the loop, provided that the additions ``exact`` do not wrap around."""
        for local, value in self.flow.starts[self.loop.header].items():
            if value != ("phi", self.loop.header, local):
                continue
            try:
                adds = self.counter(self.loop.header, local)[-1]
            except Unknown:
                continue
            if exact.issuperset(adds):
                return local
        return None

    # What the analysis knows

    def known(self, value: Value) -> int | None:
        """The integer that a value is, where it is a constant of the function."""
        number = constant(self.flow, value)
        if number is None and value[0] == "in":
            state = self._whole.starts[self.loop.header]
            number = constant(self._whole, state.get(value[1], value))
        return number if isinstance(number, int) else None

    def operands(self, op: Op) -> list[Value]:
        """What an instruction reads from registers of the i32 bank, in order."""
        return [self.flow.operands[op.offset, local] for local in reads(op, self._calls)]

    def counter(self, block: int, local: Local) -> tuple[list[tuple[Value, int]], int, Value, int, list[int]]:
        """Starts (with where they come from), step, bound, bits and the additions of a phi that is a counter."""
        loop = self._home.get(block)
        if loop is None or local[0] not in ("i32", "i64"):
            raise Unknown
        phi: Value = ("phi", block, local)
        starts: list[tuple[Value, int]] = [(("in", local), -1)] if loop is self.loop else []
        steps: set[int] = set()
        adds: list[int] = []
        for (source, _), value in self.flow.meeting(block, local).items():
            if source not in loop.blocks:
                starts.append((value, source))
                continue
            steps.add(self._grows(phi, value, loop))
            adds.append(value[1])
        if len(steps) != 1 or not starts:
            raise Unknown
        bound, bits = self._bound(loop, phi)
        return starts, steps.pop(), bound, bits, adds

    def _grows(self, phi: Value, value: Value, loop: Loop) -> int:
        if value[0] != "op":
            raise Unknown
        op, block = self.flow.ops[value[1]]
        if op.instruction.symbol not in ("AddI32", "AddI64") or not self.inside_body(loop.header, block):
            raise Unknown
        operands = [self.flow.operands[op.offset, local] for local in _pair(op)]
        for first, second in (operands, operands[::-1]):
            step = self.known(second)
            if first == phi and step is not None and 0 < step < 1 << 31:
                return step
        raise Unknown

    def _bound(self, loop: Loop, phi: Value) -> tuple[Value, int]:
        """What a loop's header compares its counter to before control goes on to the body."""
        last = self.flow.blocks[loop.header].ops[-1]
        if last.instruction.symbol != "CondBranch":
            raise Unknown
        (inside, _), (outside, _) = branches(last)
        if inside not in loop.blocks or inside == loop.header or outside in loop.blocks:
            raise Unknown
        [condition] = [self.flow.operands[last.offset, local] for local in reads(last, self._calls)]
        if condition[0] != "op":
            raise Unknown
        op, block = self.flow.ops[condition[1]]
        bits = {"CmpLTI32S": 32, "CmpLTI64S": 64}.get(op.instruction.symbol)
        if bits is None or block != loop.header:
            raise Unknown
        left, right = (self.flow.operands[op.offset, local] for local in _pair(op))
        if left != phi:
            raise Unknown
        return right, bits

    def inside_body(self, header: int, block: int) -> bool:
        """Whether ``block`` is only come to through the branch of a loop's header into its body."""
        return block in self._home[header].blocks and block != header


def _pair(op: Op) -> tuple[Local, Local]:
    kind = op.instruction.fields[0].type
    assert kind is not None
    return (kind, op["left"].ordinal), (kind, op["right"].ordinal)


class _Emission:
    """Writes the ranges of one loop, each value once."""

    def __init__(
        self, analysis: RangeAnalysis, emit: Callable[[str], str], read: Callable[[Local], str]
    ) -> None:
        self._analysis = analysis
        self._emit = emit
        self._read = read
        self._made: dict[tuple[Value, bool], Interval] = {}
        self._busy: set[Value] = set()
        self._steps = 0
        self.found = _Findings()

    def check(self, offset: int, count: Number) -> None:
        """Require that the index of an access is below ``count`` and not negative."""
        op, block = self._analysis.accesses[offset]
        name = next(name for name in op.instruction.index if name.endswith("_offset"))
        low, high = self.value(self._analysis.flow.operands[offset, ("i64", op[name].ordinal)], block)
        self.require("sge", low, 0)
        self.require("slt", high, count)

    def all(self) -> str:
        """All requirements as one i1."""
        condition = "true"
        for other in self.found.conditions:
            condition = other if condition == "true" else self._emit(f"and i1 {condition}, {other}")
        return condition

    def value(self, value: Value, block: int) -> Interval:
        """The range of an integer where ``block`` uses it."""
        known = self._analysis.known(value)
        if known is not None:
            return known, known
        body = (
            value[0] == "phi"
            and value[1] in self._analysis._home
            and self._analysis.inside_body(value[1], block)
        )
        made = self._made.get((value, body))
        if made is None:
            if value in self._busy:
                raise Unknown
            self._steps += 1
            if self._steps > MAXIMUM_STEPS:
                raise Unknown
            self._busy.add(value)
            try:
                made = self._made[value, body] = self._compute(value, body)
            finally:
                self._busy.discard(value)
        return made

    def _compute(self, value: Value, body: bool) -> Interval:
        if value[0] == "in":
            return self._outside(value[1])
        if value[0] == "op":
            op, block = self._analysis.flow.ops[value[1]]
            return self._operation(op, block)
        _, block, local = value
        if block in self._analysis._home:
            if not body:
                raise Unknown
            return self._counter(block, local)
        meeting = self._analysis.flow.meeting(block, local)
        ranges = [self.value(other, source) for (source, _), other in meeting.items()]
        return self._least([low for low, _ in ranges]), self._greatest([high for _, high in ranges])

    def _outside(self, local: Local) -> Interval:
        if local[0] not in ("i32", "i64"):
            raise Unknown
        name = self._emit(f"sext {local[0]} {self._read(local)} to i128")
        return name, name

    def _counter(self, block: int, local: Local) -> Interval:
        starts, step, bound, bits, adds = self._analysis.counter(block, local)
        least = [self.value(start, source)[0] for start, source in starts]
        last = self._add(self.value(bound, block)[1], -1)
        self._fits(self._add(last, step), bits)
        self.found.exact.update(adds)
        return self._least(least), last

    def _operation(self, op: Op, block: int) -> Interval:
        rule = _RULES.get(op.instruction.symbol)
        if rule is None:
            raise Unknown
        values = self._analysis.operands(op)
        if op.instruction.encoding == "select":
            del values[0]  # either may be chosen
        return rule(self, op, [self.value(value, block) for value in values])

    # Arithmetic

    def require(self, condition: str, left: Number, right: Number) -> None:
        """Note a requirement; raises Unknown for one that can never hold."""
        if isinstance(left, int) and isinstance(right, int):
            if not {"sge": left >= right, "sle": left <= right, "slt": left < right}[condition]:
                raise Unknown
            return
        self.found.conditions.append(self._emit(f"icmp {condition} i128 {left}, {right}"))

    def unsigned(self, name: str) -> str:
        """An i64 that is not negative as a number here."""
        return self._emit(f"zext i64 {name} to i128")

    def _fits(self, number: Number, bits: int) -> None:
        self.require("sge", number, -(1 << bits - 1))
        self.require("sle", number, (1 << bits - 1) - 1)

    def exact(self, op: Op, bits: int, interval: Interval) -> Interval:
        """A range of results that, when it fits in ``bits``, is not wrapped around."""
        self._fits(interval[0], bits)
        self._fits(interval[1], bits)
        self.found.exact.add(op.offset)
        return interval

    def _add(self, left: Number, right: Number) -> Number:
        if isinstance(left, int) and isinstance(right, int):
            return left + right
        return self._emit(f"add i128 {left}, {right}")

    def _subtract(self, left: Number, right: Number) -> Number:
        if isinstance(left, int) and isinstance(right, int):
            return left - right
        return self._emit(f"sub i128 {left}, {right}")

    def _multiply(self, left: Number, right: Number) -> Number:
        if isinstance(left, int) and isinstance(right, int):
            return left * right
        return self._emit(f"mul i128 {left}, {right}")

    def _pick(self, condition: str, numbers: list[Number]) -> Number:
        first, *others = dict.fromkeys(numbers)
        for other in others:
            if isinstance(first, int) and isinstance(other, int):
                first = min(first, other) if condition == "slt" else max(first, other)
                continue
            chosen = self._emit(f"icmp {condition} i128 {first}, {other}")
            first = self._emit(f"select i1 {chosen}, i128 {first}, i128 {other}")
        return first

    def _least(self, numbers: list[Number]) -> Number:
        return self._pick("slt", numbers)

    def _greatest(self, numbers: list[Number]) -> Number:
        return self._pick("sgt", numbers)

    def add(self, left: Interval, right: Interval) -> Interval:
        """The range of sums."""
        return self._add(left[0], right[0]), self._add(left[1], right[1])

    def subtract(self, left: Interval, right: Interval) -> Interval:
        """The range of differences."""
        return self._subtract(left[0], right[1]), self._subtract(left[1], right[0])

    def multiply(self, left: Interval, right: Interval) -> Interval:
        """The range of products, by their corners."""
        corners = list(
            dict.fromkeys(self._multiply(a, b) for a in dict.fromkeys(left) for b in dict.fromkeys(right))
        )
        return self._least(corners), self._greatest(corners)

    def least(self, left: Interval, right: Interval) -> Interval:
        """The range of the lesser one."""
        return self._least([left[0], right[0]]), self._least([left[1], right[1]])

    def greatest(self, left: Interval, right: Interval) -> Interval:
        """The range of the greater one."""
        return self._greatest([left[0], right[0]]), self._greatest([left[1], right[1]])

    def either(self, left: Interval, right: Interval) -> Interval:
        """The range of one or the other."""
        return self._least([left[0], right[0]]), self._greatest([left[1], right[1]])

    def divide(self, value: Interval, divisor: Interval) -> Interval:
        """The range of quotients by a positive constant."""
        by = _positive(divisor)
        return self._quotient(value[0], by), self._quotient(value[1], by)

    def _quotient(self, number: Number, by: int) -> Number:
        if isinstance(number, int):
            return abs(number) // by * (1 if number >= 0 else -1)
        # In 64 bits: a division of 128 bits is a call of a function that there may not be.
        self._fits(number, 64)
        narrow = self._emit(f"sdiv i64 {self._emit(f'trunc i128 {number} to i64')}, {by}")
        return self._emit(f"sext i64 {narrow} to i128")

    def remainder(self, value: Interval, divisor: Interval) -> Interval:
        """The range of remainders of what is not negative by a positive constant."""
        by = _positive(divisor)
        self.require("sge", value[0], 0)
        return 0, self._least([by - 1, value[1]])

    def fits(self, value: Interval, bits: int, low: int | None = None) -> Interval:
        """The same range where a conversion changes nothing."""
        if low is not None:
            self.require("sge", value[0], low)
        self._fits(value[0], bits)
        self._fits(value[1], bits)
        return value


def _positive(divisor: Interval) -> int:
    if not isinstance(divisor[0], int) or divisor[0] != divisor[1] or divisor[0] <= 0:
        raise Unknown
    return divisor[0]


_Rule = Callable[[_Emission, Op, list[Interval]], Interval]


def _rules() -> dict[str, _Rule]:
    rules: dict[str, _Rule] = {
        "ExtI32I64S": lambda e, op, r: r[0],
        "ExtI32I64U": lambda e, op, r: e.fits(r[0], 32, low=0),
        "TruncI64I32": lambda e, op, r: e.fits(r[0], 32),
    }
    for bits in (32, 64):
        n = f"I{bits}"
        rules |= {
            f"Add{n}": lambda e, op, r, b=bits: e.exact(op, b, e.add(*r)),  # type: ignore[misc]
            f"Sub{n}": lambda e, op, r, b=bits: e.exact(op, b, e.subtract(*r)),  # type: ignore[misc]
            f"Mul{n}": lambda e, op, r, b=bits: e.exact(op, b, e.multiply(*r)),  # type: ignore[misc]
            f"FMA{n}": lambda e, op, r, b=bits: e.exact(  # type: ignore[misc]
                op, b, e.add(e.exact(op, b, e.multiply(r[0], r[1])), r[2])
            ),
            f"Min{n}S": lambda e, op, r: e.least(*r),
            f"Max{n}S": lambda e, op, r: e.greatest(*r),
            f"Div{n}S": lambda e, op, r: e.divide(*r),
            f"Rem{n}S": lambda e, op, r: e.remainder(*r),
            f"Select{n}": lambda e, op, r: e.either(*r),
        }
    return rules


_RULES = _rules()
