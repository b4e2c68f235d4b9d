"""Indices in 64 bits: what they are, and that they are the elements that the 32-bit ones are."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halgpu.executables.vulkan_spirv import ranges
from halgpu.executables.vulkan_spirv.tree import Assign, Local, Scope, Statement, walk

GROUP = {"group_x": ranges.ANY, "local_x": (0, 63), "local_y": (0, 3)}


def widened(*lines: str) -> list[str]:
    """The lines of a kernel with its indices rewritten; ``name = text`` is an assignment."""
    scope, locals_ = Scope(None), []
    for line in lines:
        found = re.fullmatch(r"(v\d+) = (.*)", line)
        if found:
            locals_.append(Local(found[1], "uint", track=True))
            assign = Assign(locals_[-1], found[2], ())
            scope.add(assign)
            assign.activate()
        else:
            scope.add(Statement(line))
    ranges.widen(scope, locals_, GROUP, ["group_x"], lambda: "wide")
    return [
        f"{s.local.specifier} {s.local.name} = {s.text}" if isinstance(s, Assign) else s.text
        for s in walk(scope)
    ]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["in[local_x * 4u + 3u];"], ["in[(ulong)local_x * 4u + 3u];"]),
        (
            ["v1 = local_y * 64u + local_x", "in[v1];", "out[v1 - 70u] = v1;"],
            ["ulong v1 = (ulong)local_y * 64u + (ulong)local_x", "in[v1];", "out[(uint)v1 - 70u] = (uint)v1;"],
        ),
        (["in[group_x % 7u];"], ["in[group_x % 7u];"]),
        (["in[group_x * 64u + local_x];"], ["in[wide(group_x * 64u, 63u) + (ulong)local_x];"]),
        (
            ["v1 = group_x * 64u + local_x", "store_float4(x, v1 + 1u, out);"],
            ["store_float4(x, wide(group_x * 64u, 64u) + (ulong)local_x + 1u, out);"],
        ),
        (["in[unknown + local_x];"], ["in[unknown + local_x];"]),
        (["in[table[local_x] + 1u];"], ["in[table[local_x] + 1u];"]),
        (["in[local_x * 100000000u];"], ["in[local_x * 100000000u];"]),
    ],
)  # fmt: skip
def test_what_becomes_of_an_index(lines: list[str], expected: list[str]) -> None:
    assert widened(*lines) == expected


def value(text: str, bits: int, **names: int) -> int:
    """What C text comes to in unsigned arithmetic; `wide` is as :data:`ranges.WIDE` says."""

    def wide(same: int, most: int) -> int:
        same %= 2**32
        return same if same <= 2**32 - 1 - most else same - 2**32

    plain = re.sub(r"\b(\d+)u\b", r"\1", text.replace("(ulong)", "")).replace("/", "//")
    found: int = eval(plain, {"wide": wide}, dict(names))
    return found % 2**bits


@given(
    group=st.integers(0, 2**32 - 1), x=st.integers(0, 63), y=st.integers(0, 3),
    factor=st.integers(1, 2**32 - 1), constant=st.one_of(st.integers(0, 2**20), st.integers(2**32 - 500, 2**32 - 1)),
)  # fmt: skip
def test_the_element_is_the_same(group: int, x: int, y: int, factor: int, constant: int) -> None:
    index = f"group_x * {factor}u + local_y * 64u + local_x + {constant}u"
    [line] = widened(f"in[{index}];")
    assert "wide(" in line
    names = {"group_x": group, "local_x": x, "local_y": y}
    wanted = value(index, 32, **names)
    # An array may have fewer elements than 2**32 by what is added at most.
    if wanted < 2**32 - 2**21:
        assert value(line[3:-2], 64, **names) == wanted
