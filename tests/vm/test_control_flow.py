"""Control flow: random graphs against a walker, deep and wide functions, loops that can be stopped."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halgpu.vm.control_flow import Units

# A graph: for each node the kind of its end and the nodes it goes to, each with copies between registers 2 … 5.
COPIES = st.lists(st.tuples(st.integers(2, 5), st.integers(2, 5)), max_size=3)


@st.composite
def graphs(draw: st.DrawFn) -> list[tuple[str, list[tuple[int, list[tuple[int, int]]]]]]:
    count = draw(st.integers(1, 8))
    edge = st.tuples(st.integers(0, count - 1), COPIES)
    nodes = []
    for _ in range(count):
        kind = draw(st.sampled_from(["return", "br", "cond", "cond", "table"]))
        edges = {"return": 0, "br": 1, "cond": 2, "table": draw(st.integers(1, 5))}[kind]
        nodes.append((kind, [draw(edge) for _ in range(edges)]))
    return nodes


def walk(nodes: Any, fuel: int, start: int) -> tuple[int, ...]:
    """What the graph's program computes: each node burns fuel and mixes its number into register 2."""
    registers = [fuel, 0, start, 1, 2, 3]
    node = 0
    while True:
        registers[0] -= 1
        if registers[0] < 0:
            return tuple(registers[2:])
        registers[2] = (registers[2] * 5 + node) & 0xFF
        kind, edges = nodes[node]
        if kind == "return":
            return tuple(registers[2:])
        index = 0
        if kind == "cond":
            index = 0 if registers[3] else 1
        elif kind == "table":
            chosen = registers[2]
            index = chosen + 1 if chosen < len(edges) - 1 else 0  # the default is encoded first
        node, copies = edges[index]
        for source, target in copies:
            registers[target] = registers[source]


def assemble(nodes: Any, program: Any) -> list[Any]:
    label = program.label
    body: list[Any] = [
        label("start"),
        *[("ConstI32", n, 2 + n) for n in (1, 2, 3)],
        *[("ConstI32", value, register) for value, register in ((1, 10), (5, 11), (0xFF, 12))],
        ("Branch", "check0", []),
    ]
    for number, (kind, edges) in enumerate(nodes):
        targets = [(f"check{target}", copies) for target, copies in edges]
        body += [
            label(f"check{number}"),
            ("SubI32", 0, 10, 0),
            ("ConstI32Zero", 13),
            ("CmpLTI32S", 0, 13, 14),
            ("CondBranch", 14, "out", [], f"node{number}", []),
            label(f"node{number}"),
            ("ConstI32", number, 15),
            ("MulI32", 2, 11, 2),
            ("AddI32", 2, 15, 2),
            ("AndI32", 2, 12, 2),
        ]
        if kind == "return":
            body.append(("Return", [2, 3, 4, 5]))
        elif kind == "br":
            body.append(("Branch", *targets[0]))
        elif kind == "cond":
            body.append(("CondBranch", 3, *targets[0], *targets[1]))
        else:
            body.append(("BranchTable", 2, *targets[0], len(targets) - 1, targets[1:]))
    return [*body, label("out"), ("Return", [2, 3, 4, 5])]


@pytest.mark.parametrize("raw", [False, True], ids=["locals", "words"])
def test_random_graphs(new_program: Callable[[], Any], raw: bool) -> None:
    @settings(max_examples=120)
    @given(graphs(), st.integers(0, 40), st.integers(0, 255))
    def check(nodes: Any, fuel: int, start: int) -> None:
        program = new_program()
        body = assemble(nodes, program)
        if raw:
            body[1:1] = [("ConstF32", 1.0, 20), ("NotI32", 20, 20)]
        program.function("0iii_iiii", body)
        assert program.run(fuel, 0, start) == walk(nodes, fuel, start)

    check()


def nested(program: Any, depth: int) -> list[Any]:
    """``depth`` conditional branches, each in the true side of the one before."""
    body: list[Any] = [program.label("b0")]
    for n in range(depth):
        body += [
            ("AddI32", 1, 0, 1),
            ("CondBranch", 0, f"b{n + 1}", [], f"no{n}", []),
            program.label(f"b{n + 1}"),
        ]
    body += [("Return", [1])]
    for n in range(depth):
        body += [program.label(f"no{n}"), ("Return", [1])]
    return body


@pytest.mark.parametrize("depth", [1, 10, 24, 25, 120, 600])
def test_deep_nesting(program: Any, depth: int) -> None:
    program.function("0ii_i", nested(program, depth))
    function = program.context().lookup("main")
    assert function(1, 0) == depth
    assert function(0, 0) == 0


def test_a_long_chain_of_blocks(program: Any) -> None:
    body: list[Any] = [program.label("b0")]
    for n in range(3000):
        body += [("AddI32", 0, 1, 0), ("Branch", f"b{n + 1}", []), program.label(f"b{n + 1}")]
    program.function("0ii_i", [*body, ("Return", [0])])
    assert program.run(1, 2) == 6001


def test_a_wide_table(program: Any) -> None:
    cases = [(f"case{n}", []) for n in range(700)]
    body: list[Any] = [program.label("a"), ("BranchTable", 0, "default", [], len(cases), cases)]
    for n in range(700):
        body += [program.label(f"case{n}"), ("ConstI32", n * 3, 1), ("Branch", "join", [])]
    body += [program.label("default"), ("ConstI32", -1, 1), ("Branch", "join", [])]
    program.function("0i_i", [*body, program.label("join"), ("Return", [1])])
    function = program.context().lookup("main")
    assert [function(n) for n in (-1, 0, 1, 350, 698, 699, 700)] == [-1, 0, 3, 1050, 2094, 2097, -1]


def test_many_instructions(program: Any) -> None:
    program.function("0ii_i", [("AddI32", 0, 1, 0)] * 15_000 + [("Return", [0])])
    assert program.run(0, 1) == 15_000


def straight(program: Any) -> Any:
    """An entry, two sides that meet again, and the rest: no loop."""
    label = program.label
    program.function(
        "0i_i",
        [
            label("a"), ("CondBranch", 0, "b", [], "c", []),
            label("b"), ("ConstI32", 1, 1), ("Branch", "d", [(1, 2)]),
            label("c"), ("ConstI32", 2, 1), ("Branch", "d", [(1, 2)]),
            label("d"), ("Return", [2]),
        ],
    )  # fmt: skip
    return program


def test_code_without_loops_has_no_loop(program: Any) -> None:
    module = straight(program).module()
    assert "while" not in module.python_source("main")
    assert [program.run(n) for n in (1, 0)] == [1, 2]


def test_units(program: Any) -> None:
    units = Units(straight(program).module().translation.functions[0])
    assert [unit.number for unit in units.in_order] == [0, 1]
    assert units.sequential
    assert not any(unit.loops for unit in units.in_order)


def test_a_running_program_can_be_interrupted(program: Any) -> None:
    program.function(
        "0_v", [program.label("a"), ("Branch", "b", []), program.label("b"), ("Branch", "b", [])]
    )
    function = program.context().lookup("main")
    timer = threading.Timer(0.2, _thread.interrupt_main)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            function()
    finally:
        timer.join()
