"""Which loops are found, what they take and leave, and which of their bounds checks go."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from halgpu import vm
from halgpu.vm import jit
from halgpu.vm.loops import Region, components, find_loops, reachable
from halgpu.vm.verifier import Block, verify


@pytest.fixture(autouse=True)
def on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALGPU_JIT", "check")


def blocks(edges: dict[int, tuple[int, ...]]) -> dict[int, Block]:
    return {offset: Block(offset, (), targets) for offset, targets in edges.items()}


def shape(edges: dict[int, tuple[int, ...]]) -> Any:
    """Loops as nested tuples of (header, sorted blocks, inner loops)."""

    def one(loop: Any) -> Any:
        return loop.header, sorted(loop.blocks), [one(inner) for inner in loop.inner]

    return [one(loop) for loop in find_loops(blocks(edges))]


def test_a_nest() -> None:
    edges = {0: (1,), 1: (2, 5), 2: (3,), 3: (3, 4), 4: (1,), 5: (6,), 6: (6, 7), 7: ()}
    assert shape(edges) == [(1, [1, 2, 3, 4], [(3, [3], [])]), (6, [6], [])]


def test_a_loop_at_the_entry() -> None:
    assert shape({0: (0, 1), 1: ()}) == [(0, [0], [])]


def test_a_loop_with_two_entries_is_none() -> None:
    assert shape({0: (1, 2), 1: (2,), 2: (1, 3), 3: ()}) == []


def test_components_against_reachability() -> None:
    chance = random.Random(5)
    for _ in range(200):
        count = chance.randrange(1, 9)
        edges = {
            n: tuple(chance.sample(range(count), chance.randrange(min(3, count) + 1))) for n in range(count)
        }
        reach = {n: set(edges[n]) for n in edges}
        for middle, start in itertools.product(edges, edges):
            if middle in reach[start]:
                reach[start] |= reach[middle]
        expected = {
            frozenset(m for m in edges if m in reach[n] and n in reach[m]) for n in edges if n in reach[n]
        }
        assert {frozenset(found) for found in components(edges)} == expected


def test_deep_nests_and_long_functions_end() -> None:
    count = 3000
    edges = {n: (n + 1,) for n in range(count)} | {
        count + n: (count + n + 1, count - 1 - n) for n in range(count)
    }
    edges[2 * count] = ()
    depth, loops = 0, find_loops(blocks(edges))
    while loops:
        depth, loops = depth + 1, loops[0].inner
    assert depth == 12


TEXT = """
vm.module @m version 0
vm.type i32
vm.type i64
vm.type !vm.buffer
vm.import @console.say cconv "0i_v"
vm.export @f
vm.func @f(%r0: !vm.buffer, %r1: !vm.buffer, %i0:1: i64, %i2:3: i64) -> (i64) {{
^bb0:
  %i4:5 = vm.const.i64 1
  %i6:7 = vm.const.i64.zero
  %i8:9 = vm.const.i64 {stride}
  %i10:11 = vm.const.i64.zero
  vm.br ^bb1(%i6->%i20, %i7->%i21)
^bb1:
  %i12 = vm.cmp.lt.i64.s %i20:21, %i0:1
  vm.cond_br %i12, ^bb2(), ^bb6()
^bb2:
  vm.br ^bb3(%i6->%i22, %i7->%i23)
^bb3:
  %i12 = vm.cmp.lt.i64.s %i22:23, %i2:3
  vm.cond_br %i12, ^bb4(), ^bb5()
^bb4:
  {body}
  %i22:23 = vm.add.i64 %i22:23, %i4:5
  vm.br ^bb3()
^bb5:
  {between}
  %i20:21 = vm.add.i64 %i20:21, %i4:5
  vm.br ^bb1()
^bb6:
  vm.return %i10:11
}}
"""
COPY = """
  %i24:25 = vm.fma.i64 %i20:21, %i8:9, %i22:23
  %i30 = vm.buffer.load.i32 %r0, %i24:25
  vm.buffer.store.i32 %i30, %r1, %i24:25
"""


def regions(body: str, between: str = "", stride: int = 8) -> tuple[jit.NativeLoops, tuple[Region, ...]]:
    data = vm.write(vm.assemble(TEXT.format(body=body, between=between, stride=stride)))
    loops = vm.BytecodeModule.load(data).translation.source(0).loops
    assert loops is not None
    return loops, loops.regions


def names(locals_: tuple[tuple[str, int], ...]) -> set[str]:
    return {f"{kind}:{ordinal}" for kind, ordinal in locals_}


def test_what_a_region_takes_and_leaves() -> None:
    _, (outer, inner) = regions(COPY + "  %i10:11 = vm.add.i64 %i10:11, %i24:25")
    assert (outer.depth, inner.depth, outer.nest, inner.nest) == (0, 1, 0, 0)
    assert names(outer.incoming) == {"i64:0", "i64:2", "i64:4", "i64:6", "i64:8", "i64:10", "i64:20"}
    assert names(outer.outgoing) == {"i64:10"}
    assert names(inner.outgoing) == {"i64:10"}
    assert names(inner.incoming) == {"i64:2", "i64:4", "i64:8", "i64:10", "i64:20", "i64:22"}
    assert (inner.reads, inner.stores) == ((0, 1), {1})
    assert [op.instruction.symbol for op in inner.faults] == ["BufferLoadI32", "BufferStoreI32"]


def test_a_call_keeps_only_its_own_loop_from_being_native() -> None:
    _, found = regions(COPY, between="vm.call @console.say(%i12)")
    assert [(region.depth, region.nest) for region in found] == [(0, 0)]
    assert len(found[0].loop.blocks) == 2
    _, none = regions("vm.call @console.say(%i12)")
    assert none == ()


def test_refs_that_change_keep_a_loop_from_being_native() -> None:
    _, none = regions(COPY + "  %r0 = vm.const.ref.zero")
    assert none == ()


def fast_and_slow(text: str) -> tuple[str, str]:
    """What runs when the first condition of a region holds, up to the way out, and what when it does not."""
    _, after = re.split(r"\nfast\.\d+:\n", text, maxsplit=1)
    fast, slow = re.split(r"\nslow\.\d+:\n", after, maxsplit=1)
    return fast, slow


@pytest.mark.parametrize(
    ("body", "provable"),
    [
        (COPY, True),
        ("  %i30 = vm.buffer.load.i32 %r0, %i22:23\n  vm.buffer.store.i32 %i30, %r1, %i20:21", True),
        ("  %i24:25 = vm.sub.i64 %i22:23, %i20:21\n  vm.buffer.store.i32 %i12, %r1, %i24:25", True),
        ("  %i24:25 = vm.min.i64.s %i22:23, %i20:21\n  vm.buffer.store.i32 %i12, %r1, %i24:25", True),
        ("  %i24:25 = vm.div.i64.s %i22:23, %i8:9\n  vm.buffer.store.i32 %i12, %r1, %i24:25", True),
        ("  %i24:25 = vm.rem.i64.s %i22:23, %i8:9\n  vm.buffer.store.i32 %i12, %r1, %i24:25", True),
        ("  %i30 = vm.trunc.i64.i32 %i22:23\n  %i24:25 = vm.ext.i32.i64.s %i30\n  vm.buffer.store.i8 %i30, %r1, %i24:25", True),
        # What is loaded, and what grows from one turn to the next, could be anything.
        ("  %i24:25 = vm.buffer.load.i64 %r0, %i22:23\n  vm.buffer.store.i32 %i12, %r1, %i24:25", None),
        ("  %i10:11 = vm.mul.i64 %i10:11, %i8:9\n  vm.buffer.store.i32 %i12, %r1, %i10:11", False),
        ("  %i10:11 = vm.xor.i64 %i22:23, %i8:9\n  vm.buffer.store.i32 %i12, %r1, %i10:11", False),
    ],
)  # fmt: skip
def test_which_checks_go(body: str, provable: bool | None) -> None:
    """None: some of them."""
    loops, (outer, _) = regions(body)
    text = loops.text(outer.number)
    if provable is False:
        assert "fast." not in text
        return
    fast, slow = fast_and_slow(text)
    accesses = sum(symbol.instruction.encoding.startswith("buffer") for symbol in outer.faults)
    left = len(set(re.findall(r"%fault\d+", fast)))
    divisions = len(outer.faults) - accesses
    assert left == divisions + (1 if provable is None else 0)
    assert "%fault" in slow


def test_additions_that_cannot_wrap_are_told_to_llvm() -> None:
    loops, (outer, _) = regions(COPY)
    fast, slow = fast_and_slow(loops.text(outer.number))
    assert fast.count(" nsw ") == 4  # fma, and the two counters
    slowest = slow[slow.rindex("\nslow.") :]
    assert " nsw " not in slowest


def test_buffers_apart_are_told_to_llvm() -> None:
    loops, (outer, _) = regions(COPY)
    fast, _ = fast_and_slow(loops.text(outer.number))
    assert fast.count("!noalias") == fast.count("align 1") == 2
    alone, (region, _) = regions("  vm.buffer.store.i32 %i12, %r1, %i22:23")
    assert "!noalias !" not in alone.text(region.number)


def test_stock_programs_have_regions(compile_mlir: Callable[..., bytes], examples: Any) -> None:
    """The outermost loops of the network's kernels, each with all of its accesses proven."""
    source = (examples / "network.mlir").read_text()
    module = vm.BytecodeModule.load(compile_mlir(source, "vmvx-inline", model="inline-static"))
    [function] = [f for f in verify(module.definition) if f.definition.name == "network"]
    loops = module.translation.source(function.definition.ordinal).loops
    assert loops is not None
    outermost = [region for region in loops.regions if region.depth == 0]
    assert len(outermost) == len(find_loops(reachable(function)))
    for region in outermost:
        assert "%fault" not in fast_and_slow(loops.text(region.number))[0]
