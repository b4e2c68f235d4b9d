"""Loops as machine code against the same loops as translated Python, bit for bit."""

from __future__ import annotations

import functools
import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from halgpu import errors, vm
from halgpu.vm import isa, jit
from halgpu.vm.allocator import NULL_ALLOCATOR
from halgpu.vm.llvm_table import FAULTS, NATIVE

DTYPES = {"i32": np.int32, "i64": np.int64, "f32": np.float32, "f64": np.float64}
STORE = {"i32": "BufferStoreI32", "i64": "BufferStoreI64", "f32": "BufferStoreF32", "f64": "BufferStoreF64"}
LOAD = {kind: symbol.replace("Store", "Load") for kind, symbol in STORE.items()}
OPERANDS = (40, 42, 44)
RESULT, COUNTER, STEP, ZERO = 46, 20, 22, 24
PURE = sorted(
    symbol
    for symbol in NATIVE
    if not symbol.startswith(("Buffer", "Global", "Branch", "Const", "Switch"))
    and not isa.BY_SYMBOL[symbol].terminator
)
ACCESSES = sorted(symbol for symbol in NATIVE if symbol.startswith(("BufferLoad", "BufferStore")))


def r(ordinal: int) -> int:
    return isa.REF_BIT | ordinal


@pytest.fixture(autouse=True)
def compile_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every loop is native from the first time on; what does not compile is an error."""
    monkeypatch.setenv("HALGPU_JIT", "check")
    monkeypatch.setenv("HALGPU_CACHE", "0")
    monkeypatch.setattr(jit, "PROBE", 0)
    monkeypatch.setattr(jit, "COMPILE", 0)
    # The same loop is compiled once, however often a test loads it.
    monkeypatch.setattr(jit.compiler(), "compile", functools.lru_cache(jit.compiler().compile))


@pytest.fixture(scope="module")
def edges(python_file: Callable[[Path], Any]) -> dict[str, list[Any]]:
    """The edge values that the instructions themselves are tested with."""
    values: dict[str, list[Any]] = python_file(Path(__file__).with_name("test_semantics.py")).VALUES
    return values


class Calls:
    """Counts how often native code ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        plain = jit.NativeLoop.__call__

        def counted(loop: jit.NativeLoop, *values: Any) -> Any:
            result = plain(loop, *values)
            self.count += result is not None
            return result

        monkeypatch.setattr(jit.NativeLoop, "__call__", counted)


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """`native.count` says how often machine code ran to an exit."""
    return Calls(monkeypatch)


def loop(body: list[Any], bound: int = 0, counter: int = COUNTER) -> list[Any]:
    """A function that runs ``body`` for the counter from 0 to the i64 argument in ``bound``."""
    return [
        ("ConstI64", 1, STEP),
        ("ConstI64Zero", ZERO),
        ("Branch", "head", [(ZERO, counter), (ZERO + 1, counter + 1)]),
        "head",
        ("CmpLTI64S", counter, bound, 10),
        ("CondBranch", 10, "body", [], "done", []),
        "body",
        *body,
        ("AddI64", counter, STEP, counter),
        ("Branch", "head", []),
        "done",
        ("Return", []),
    ]


def outcome(program: Any, on: bool, *arguments: Any) -> Any:
    """What a call returns or raises, with machine code or without."""
    os.environ["HALGPU_JIT"] = "check" if on else "0"
    with vm.Context([program.module()]) as context:
        try:
            return context.lookup("main")(*arguments)
        except errors.Error as error:
            return type(error), str(error), error.frames


def buffers(*datas: bytes) -> list[Any]:
    made = []
    for data in datas:
        made.append(vm.Buffer.create(len(data)))
        made[-1].write_view()[:] = data
    return made


def both(program: Any, *arguments: Any) -> tuple[Any, Any]:
    """Outcomes and the buffers' bytes of a call as machine code and as Python. Bytes among the arguments are buffers."""
    results = []
    for on in (True, False):
        given = [buffers(value)[0] if isinstance(value, bytes) else value for value in arguments]
        found = outcome(program, on, *given)
        results.append((found, [bytes(value) for value in given if isinstance(value, vm.Buffer)]))
    return results[0], results[1]


def rows(kinds: list[str], edges: dict[str, list[Any]]) -> list[tuple[Any, ...]]:
    """Combinations of edge values, all of them where they are not too many."""
    found = list(itertools.product(*(edges[kind] for kind in kinds)))
    return found if len(found) <= 1200 else random.Random(len(found)).sample(found, 1200)


def packed(kind: str, values: list[Any]) -> bytes:
    return np.array(values, DTYPES[kind]).tobytes()


def signature(symbol: str) -> tuple[tuple[str, ...], str]:
    """Types of an instruction's operands and of its result."""
    fields = isa.BY_SYMBOL[symbol].fields
    [result] = [str(spec.type) for spec in fields if spec.access == "write"]
    return tuple(str(spec.type) for spec in fields if spec.access == "read"), result


def batches() -> list[list[str]]:
    """Instructions that may share a loop: of one signature; what keeps a loop from being vectorized apart."""
    found: dict[Any, list[str]] = {}
    for symbol in PURE:
        alone = symbol in FAULTS or "@halgpu." in NATIVE[symbol]
        found.setdefault((signature(symbol), alone), []).append(symbol)
    return [group[at : at + 6] for group in found.values() for at in range(0, len(group), 6)]


def test_no_instruction_is_left_out() -> None:
    assert sorted(symbol for batch in batches() for symbol in batch) == PURE
    assert len(PURE) == 165


@pytest.mark.parametrize("symbols", batches(), ids=lambda symbols: symbols[0])
def test_instructions(symbols: list[str], program: Any, edges: dict[str, list[Any]], native: Calls) -> None:
    kinds, result = signature(symbols[0])
    table = rows(list(kinds), edges)
    if symbols[0] in FAULTS:
        table = [row for row in table if row[1]]
    body: list[Any] = [(LOAD[kind], r(at), COUNTER, OPERANDS[at]) for at, kind in enumerate(kinds)]
    for at, symbol in enumerate(symbols):
        body.append((symbol, *OPERANDS[: len(kinds)], RESULT))
        body.append((STORE[result], r(len(kinds) + at), COUNTER, RESULT))
    program.function(f"0I{'r' * (len(kinds) + len(symbols))}_v", loop(body))
    inputs = [
        packed(kind, list(column)) for kind, column in zip(kinds, zip(*table, strict=True), strict=True)
    ]
    room = bytes(len(table) * DTYPES[result]().itemsize)
    found, expected = both(program, len(table), *inputs, *[room] * len(symbols))
    assert native.count == 1
    assert found[0] is expected[0] is None
    for at, symbol in enumerate(symbols):
        mine, theirs = (np.frombuffer(way[1][len(kinds) + at], DTYPES[result]) for way in (found, expected))
        bits = f"u{mine.itemsize}"
        same = (mine.view(bits) == theirs.view(bits)) | ((mine != mine) & (theirs != theirs))
        assert same.all(), [(symbol, table[n], mine[n], theirs[n]) for n in np.flatnonzero(~same)[:5]]


@pytest.mark.parametrize(
    "symbol", sorted(FAULTS - {symbol for symbol in FAULTS if symbol.startswith("Buffer")})
)
def test_division_by_zero(symbol: str, program: Any) -> None:
    """The third row fails; the first two are stored."""
    program.with_lines = True
    kind = symbol[3:6].lower()
    program.function(
        "0Irrr_v",
        loop([(LOAD[kind], r(0), COUNTER, 40), (LOAD[kind], r(1), COUNTER, 42), (symbol, 40, 42, 44),
              (STORE[kind], r(2), COUNTER, 44)]),
    )  # fmt: skip
    found, expected = both(
        program, 4, packed(kind, [7, -8, 9, 1]), packed(kind, [2, 3, 0, 1]), packed(kind, [0] * 4)
    )
    assert found == expected
    assert found[0][0] is errors.InvalidArgument
    assert "test.mlir:8:1" in found[0][2][0]
    assert np.frombuffer(found[1][2], DTYPES[kind])[1] == -8 // 3 + 1 or symbol[-1] == "U" or "Rem" in symbol


@pytest.mark.parametrize("symbol", ACCESSES)
def test_accesses(symbol: str, program: Any, native: Calls) -> None:
    """Every element, in a buffer that ends within one; then one element too many."""
    spec = isa.BY_SYMBOL[symbol].fields[-1]
    kind = str(spec.type)
    size = {"8": 1, "6": 2, "2": 4, "4": 8}[symbol.rstrip("SU")[-1]]
    data = bytes(random.Random(1).randbytes(8 * size + size - 1))
    if symbol.startswith("BufferLoad"):
        body = [(symbol, r(0), COUNTER, 40), (STORE[kind], r(1), COUNTER, 40)]
    else:
        body = [(LOAD[kind], r(1), COUNTER, 40), (symbol, r(0), COUNTER, 40)]
    program.function("0Irr_v", loop(body))
    wide = np.arange(1, 10, dtype=DTYPES[kind]) * (0x01020304 if kind[0] == "i" else 1)
    found, expected = both(program, 8, data, wide.tobytes())
    assert found == expected
    assert native.count == 1
    found, expected = both(program, 9, data, wide.tobytes())
    assert found == expected
    assert found[0][0] is errors.OutOfRange
    assert f"offset={8 * size}, length={size}, buffer length={len(data)}" in found[0][1]


@pytest.mark.parametrize("start", [-1, -(1 << 63), (1 << 63) - 2, 1 << 62, 1 << 61, 5, 3])
def test_out_of_range_far_and_near(start: int, program: Any) -> None:
    """Offsets that wrap around when they are multiplied by the element's size, or grow beyond 63 bits."""
    program.with_lines = True
    program.function(
        "0IIrr_v",
        loop([("AddI64", COUNTER, 2, 40), ("BufferLoadI32", r(0), 40, 44), ("BufferStoreI32", r(1), 40, 44)]),
    )
    found, expected = both(program, 6, start, packed("i32", list(range(1, 9))), packed("i32", [0] * 8))
    assert found == expected
    assert (found[0] is None) == (start == 2)


def test_the_error_is_at_its_instruction(program: Any) -> None:
    program.with_lines = True
    program.function("0Ir_v", loop([("BufferStoreI64", r(0), COUNTER, COUNTER)]))
    found, expected = both(program, 9, bytes(64))
    assert found == expected
    assert found[1][0] == packed("i64", list(range(8)))
    assert found[0][2] == ("test.main (test.mlir:6:1)",)
    assert found[0][1].endswith("in test.main (test.mlir:6:1)")


@pytest.mark.parametrize("other", [None, object(), "released", "read-only"])
def test_buffers_that_cannot_be_used(other: Any, program: Any) -> None:
    def made() -> Any:
        if other == "released":
            [buffer] = buffers(bytes(64))
            buffer.release()
            return buffer
        if other == "read-only":
            return vm.Buffer.initialize(vm.BufferAccess.ORIGIN_HOST, bytes(64), NULL_ALLOCATOR)
        return other

    for body in (
        [("BufferStoreI64", r(0), COUNTER, COUNTER), ("BufferStoreI64", r(1), COUNTER, COUNTER)],
        [
            ("BufferStoreI64", r(0), COUNTER, COUNTER),
            ("BufferLoadI64", r(1), COUNTER, 40),
            ("BufferStoreI64", r(0), COUNTER, 40),
        ],
        [
            ("BufferStoreI64", r(0), COUNTER, COUNTER),
            ("BufferLength", r(1), 40),
            ("BufferStoreI64", r(0), COUNTER, 40),
        ],
        [("BufferStoreI64", r(0), COUNTER, COUNTER), ("BufferFillI64", r(1), ZERO, ZERO, ZERO)],
        [("BufferStoreI64", r(0), COUNTER, COUNTER), ("BufferCopy", r(1), ZERO, r(0), ZERO, ZERO)],
        [("BufferStoreI64", r(0), COUNTER, COUNTER), ("BufferCopy", r(0), ZERO, r(1), ZERO, ZERO)],
    ):
        fresh = type(program)()
        fresh.function("0Irr_v", loop(body))
        results = []
        for on in (True, False):
            [first] = buffers(bytes(64))
            results.append((outcome(fresh, on, 3, first, made()), bytes(first)))
        assert results[0] == results[1]


def test_overlapping_buffers(program: Any, native: Calls) -> None:
    """What one buffer stores another loads: LLVM must not be told otherwise."""
    program.function(
        "0Irr_v",
        loop([("BufferLoadI32", r(0), COUNTER, 40), ("BufferStoreI32", r(1), COUNTER, 40)]),
    )
    results = []
    for on in (True, False):
        memory = bytearray(packed("i32", list(range(64))))
        whole = vm.Buffer.initialize(vm.BufferAccess.ORIGIN_HOST, memoryview(memory)[:-4], NULL_ALLOCATOR)
        shifted = vm.Buffer.initialize(
            vm.BufferAccess.ORIGIN_HOST | vm.BufferAccess.MUTABLE, memoryview(memory)[4:], NULL_ALLOCATOR
        )
        assert outcome(program, on, 63, whole, shifted) is None
        results.append(bytes(memory))
    assert results[0] == results[1] == packed("i32", [0] * 64)
    assert native.count == 1


@pytest.mark.parametrize("kind", ["I8", "I16", "I32", "I64", "F32", "F64"])
def test_fills_and_copies(kind: str, program: Any) -> None:
    value = 40 if kind[0] == "I" else 44
    program.function(
        "0IIIr_v",
        [
            ("ConstI64" if kind == "I64" else "ConstI32", 0x01020304, 40),
            ("ConstF64" if kind == "F64" else "ConstF32", 1.5, 44),
            *loop(
                [
                    (f"BufferFill{kind}", r(0), COUNTER, 2, value),
                    ("BufferCopy", r(0), ZERO, r(0), 4, 2),
                ]
            ),
        ],
    )
    for length, target in ((2, 3), (0, 0), (200, 0), (-1, 0), (3, 200), (4, -1), (1, 62)):
        found, expected = both(program, 5, length, target, bytes(range(64)))
        assert found == expected


def test_globals(program: Any, native: Calls) -> None:
    program.function(
        "0I_IIFf",
        [
            *loop(
                [
                    ("GlobalLoadI64", 8, 40),
                    ("AddI64", 40, COUNTER, 40),
                    ("GlobalStoreI64", 8, 40),
                    ("GlobalLoadI32", 4, 42),
                    ("ConstI32", 1, 50),
                    ("AddI32", 42, 50, 42),
                    ("GlobalStoreI32", 4, 42),
                    ("GlobalLoadF64", 16, 44),
                    ("CastSI64F64", COUNTER, 46),
                    ("AddF64", 44, 46, 44),
                    ("GlobalStoreF64", 16, 44),
                    ("GlobalLoadF32", 28, 48),
                    ("CastSI64F32", COUNTER, 49),
                    ("AddF32", 48, 49, 48),
                    ("GlobalStoreF32", 28, 48),
                ]
            )[:-1],
            ("GlobalLoadI64", 8, 40),
            ("GlobalLoadI32", 4, 30),
            ("ExtI32I64S", 30, 42),
            ("GlobalLoadF64", 16, 44),
            ("GlobalLoadF32", 28, 48),
            ("Return", [40, 42, 44, 48]),
        ],
    )
    found, expected = both(program, 10)
    assert found == expected
    assert found[0] == (45, 10, 45.0, 45.0)
    assert native.count == 1


def test_branch_tables_and_switches(program: Any, native: Calls) -> None:
    program.function(
        "0Ir_v",
        loop(
            [
                ("TruncI64I32", COUNTER, 40),
                ("ConstI32", 2, 50),
                ("SubI32", 40, 50, 40),
                ("ConstI32", 100, 41),
                ("ConstI32", 200, 42),
                ("SwitchI32", 40, 41, [42, 40, 50], 43),
                ("BranchTable", 40, "other", [], 2, [("first", []), ("second", [(41, 43)])]),
                "first",
                ("AddI32", 43, 42, 43),
                ("Branch", "second", []),
                "other",
                ("AddI32", 43, 41, 43),
                ("Branch", "second", []),
                "second",
                ("BufferStoreI32", r(0), COUNTER, 43),
            ]
        ),
    )
    found, expected = both(program, 7, bytes(28))
    assert found == expected
    assert np.frombuffer(found[1][0], np.int32).tolist() == [200, 200, 400, 100, 102, 200, 200]
    assert native.count == 1


def test_two_ways_out_with_refs(program: Any, native: Calls) -> None:
    """A search: the loop is left where it finds, or at its end, with other refs in the register each time."""
    program.function(
        "0Iirr_Ir",
        [
            ("ConstI64", 1, STEP),
            ("ConstI64Zero", ZERO),
            ("Branch", "head", [(ZERO, COUNTER), (ZERO + 1, COUNTER + 1)]),
            "head",
            ("CmpLTI64S", COUNTER, 0, 10),
            ("CondBranch", 10, "body", [], "done", [(r(0), r(2))]),
            "body",
            ("BufferLoadI32", r(0), COUNTER, 40),
            ("CmpEQI32", 40, 2, 41),
            ("CondBranch", 41, "done", [(r(1), r(2))], "next", []),
            "next",
            ("AddI64", COUNTER, STEP, COUNTER),
            ("Branch", "head", []),
            "done",
            ("Return", [COUNTER, r(2)]),
        ],
    )
    for wanted, index in ((5, 2), (77, 4)):
        for on in (True, False):
            first, second = buffers(packed("i32", [3, 4, 5, 6]), b"")
            assert outcome(program, on, 4, wanted, first, second) == (index, second if index == 2 else first)
    assert native.count == 2


# Random loops


class Maker:
    """Writes a random function: nested loops of arithmetic, branches and accesses, most of them in range."""

    FLOATS, WORDS, WIDES = range(60, 64), range(64, 69), range(70, 80, 2)

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.items: list[Any] = []
        self.labels = 0

    def label(self) -> Any:
        self.labels += 1
        return f"l{self.labels}"

    def function(self) -> list[Any]:
        self.items = [("ConstI64", 1, STEP), ("ConstI64Zero", ZERO), ("ConstI64", 7, 26)]
        self.items += [("ConstI64", self.chance.randrange(-2, 9), wide) for wide in self.WIDES]
        self.items += [("ConstI32", self.chance.randrange(-9, 99), word) for word in self.WORDS]
        self.items += [("ConstF32", self.chance.choice([0.5, -3.0, 1e10]), held) for held in self.FLOATS]
        self.end = self.label()
        self.loop(0)
        self.items += [("Branch", self.end, []), self.end]
        for at, wide in enumerate(self.WIDES):
            self.items += [("ConstI64", at, 28), ("BufferStoreI64", r(3), 28, wide)]
        for at, word in enumerate(self.WORDS):
            self.items += [("ConstI64", 10 + at, 28), ("BufferStoreI32", r(3), 28, word)]
        for at, held in enumerate(self.FLOATS):
            self.items += [("ConstI64", 15 + at, 28), ("BufferStoreF32", r(3), 28, held)]
        return [*self.items, ("Return", [])]

    def loop(self, depth: int) -> None:
        head, body, done = self.label(), self.label(), self.label()
        counter = 30 + 2 * depth
        bound = self.chance.choice([0, 26, *self.WIDES])
        start = self.chance.choice([ZERO, ZERO, *self.WIDES])
        self.items.append(("Branch", head, [(start, counter), (start + 1, counter + 1)]))
        self.items += [head, ("CmpLTI64S", counter, bound, 10), ("CondBranch", 10, body, [], done, []), body]
        for _ in range(self.chance.randrange(1, 6)):
            self.statement(depth)
        self.items += [("AddI64", counter, STEP, counter), ("Branch", head, []), done]

    def statement(self, depth: int) -> None:
        kinds = [self.arithmetic, self.access, self.access, self.access, self.choice, self.range]
        if depth < 2:
            kinds += [self.loop_inside, self.loop_inside]
        self.chance.choice(kinds)(depth)

    def loop_inside(self, depth: int) -> None:
        self.loop(depth + 1)

    def arithmetic(self, depth: int) -> None:
        pick = self.chance.choice
        counter = 30 + 2 * self.chance.randrange(depth + 1)
        wide, word, held = list(self.WIDES), list(self.WORDS), list(self.FLOATS)
        self.items.append(
            pick(
                [
                    (
                        pick(["AddI64", "SubI64", "MulI64", "MinI64S", "AndI64"]),
                        pick(wide),
                        counter,
                        pick(wide),
                    ),
                    (
                        pick(["AddI32", "MulI32", "XorI32", "ShrI32S", "DivI32S"]),
                        pick(word),
                        pick(word),
                        pick(word),
                    ),
                    (pick(["AddF32", "MulF32", "DivF32", "MaxF32"]), pick(held), pick(held), pick(held)),
                    ("FMAF32", pick(held), pick(held), pick(held), pick(held)),
                    ("CastSI32F32", pick(word), pick(held)),
                    ("CastF32SI32", pick(held), pick(word)),
                    ("TruncI64I32", counter, pick(word)),
                    ("ExtI32I64S", pick(word), pick(wide)),
                    ("CmpLTI32U", pick(word), pick(word), pick(word)),
                    ("SelectF32", pick(word), pick(held), pick(held), pick(held)),
                ]
            )
        )

    def index(self, depth: int) -> int:
        counter = 30 + 2 * self.chance.randrange(depth + 1)
        kind = self.chance.randrange(6)
        if kind == 0:
            return counter
        if kind == 1:
            self.items.append(("AddI64", counter, 30, 50))
        elif kind == 2:
            self.items.append(("FMAI64", counter, 26, 30 + 2 * depth, 50))
        elif kind == 3:
            self.items.append(("AndI64", self.chance.choice(self.WIDES), 26, 50))
        elif kind == 4:
            self.items += [("TruncI64I32", counter, 53), ("AddI32", 53, 64, 53), ("ExtI32I64S", 53, 50)]
        else:
            return self.chance.choice(self.WIDES)
        return 50

    def access(self, depth: int) -> None:
        index = self.index(depth)
        kind, pool = self.chance.choice([("F32", self.FLOATS), ("I32", self.WORDS), ("I8", self.WORDS)])
        register = self.chance.choice(list(pool))
        if self.chance.random() < 0.5:
            self.items.append((f"BufferStore{kind}", r(self.chance.randrange(3)), index, register))
        else:
            suffix = "U" if kind == "I8" else ""
            self.items.append((f"BufferLoad{kind}{suffix}", r(self.chance.randrange(3)), index, register))

    def choice(self, depth: int) -> None:
        yes, no, after = self.label(), self.label(), self.label()
        first, second = self.chance.sample(list(self.WORDS), 2)
        out = self.end if self.chance.random() < 0.2 else after
        self.items += [("CondBranch", first, yes, [(second, first)], no, [(66, 67)]), yes]
        self.arithmetic(depth)
        self.items += [("Branch", after, []), no]
        self.access(depth)
        self.items += [("Branch", out, []), after]

    def range(self, depth: int) -> None:
        wide = self.chance.choice(list(self.WIDES))
        self.items.append(
            self.chance.choice(
                [
                    ("BufferFillI32", r(0), ZERO, STEP, 64),
                    ("BufferFillI8", r(1), wide, STEP, 64),
                    ("BufferCopy", r(0), ZERO, r(1), 26, STEP),
                    ("BufferLength", r(1), wide),
                ]
            )
        )


def test_random_loops(new_program: Callable[[], Any]) -> None:
    @settings(max_examples=30, phases=[Phase.explicit, Phase.reuse, Phase.generate])
    @given(st.integers(0, 1 << 32))
    def check(seed: int) -> None:
        check_random(seed, new_program)

    check()


def check_random(seed: int, new_program: Callable[[], Any]) -> None:
    chance = random.Random(seed)
    program = new_program()
    program.with_lines = True
    program.function("0Irrrr_v", Maker(chance).function())
    size = chance.choice([64, 300, 1000])
    shared = chance.random() < 0.3
    results = []
    for on in (True, False):
        memory = [bytearray(random.Random(seed + at).randbytes(size)) for at in range(3)]
        views = [memoryview(memory[0]), memoryview(memory[1]), memoryview(memory[2])]
        if shared:
            views[2] = memoryview(memory[0])[size // 4 :]
        access = vm.BufferAccess.ORIGIN_HOST | vm.BufferAccess.MUTABLE
        given = [vm.Buffer.initialize(access, view, NULL_ALLOCATOR) for view in views]
        [last] = buffers(bytes(80))
        found = outcome(program, on, 11, *given, last)
        floats = np.frombuffer(bytes(last), np.float32)[15:19]
        kept = np.where(floats != floats, np.float32(0), floats).tolist()
        results.append((found, [_without_nans(data) for data in memory], bytes(last)[:60], kept))
    assert results[0] == results[1]


def _without_nans(data: bytearray) -> bytes:
    """Bytes where each aligned f32 that is a NaN is one NaN: which one it is may differ."""
    words = np.frombuffer(data[: len(data) // 4 * 4], np.uint32).copy()
    nans = (words & 0x7F800000 == 0x7F800000) & (words & 0x007FFFFF != 0)
    words[nans] = 0x7FC00000
    return words.tobytes()
