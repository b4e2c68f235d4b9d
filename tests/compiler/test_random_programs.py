"""Random programs give the same results in xDSL's interpreter and, finished by halgpu, in the virtual machine."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from evaluator import BITS_OF_RESULTS, Evaluated
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import RESULTS, Writer

from halgpu import vm
from halgpu.compiler import mlir
from halgpu.compiler.finish import finish

CALLS = [(0, 0, 0), (1, -1, -128), (-(2**31), 2**63 - 1, 127), (77, 2**40 + 3, -5)]


def same(found: Any, expected: Any, type_: str) -> bool:
    if type_ == "f32":
        return struct.pack("<f", found) == struct.pack("<f", expected) or (
            found != found and expected != expected
        )
    mask = (1 << BITS_OF_RESULTS[type_]) - 1
    return (int(found) & mask) == (int(expected) & mask)


def check(text: str) -> None:
    expected = Evaluated(mlir.parse(text, "random.mlir"))
    data = finish(text, "random.mlir").data
    with vm.Context([vm.BytecodeModule.load(data)]) as context:
        main = context.lookup("m.main")
        for call in CALLS:
            found, wanted = main(*call), expected.call("main", *call)
            for one, other, type_ in zip(found, wanted, RESULTS, strict=True):
                assert same(one, other, type_), (call, found, wanted)


@given(st.integers(0, 2**64 - 1))
@settings(max_examples=12)
def test_results_are_those_of_the_interpreter(seed: int) -> None:
    check(Writer(Random(seed)).program())


@pytest.mark.parametrize("seed", [3, 8, 21])
def test_stock_runs_them_too(seed: int, tmp_path: Path, iree_tool: Callable[..., Any]) -> None:
    """Its interpreter takes references out of registers where they move, which halgpu's virtual machine need not."""
    text = Writer(Random(seed)).program()
    path = tmp_path / "random.vmfb"
    path.write_bytes(finish(text, "random.mlir").data)
    call = CALLS[seed % len(CALLS)]
    inputs = [f"--input={value}" for value in call]
    said = iree_tool("iree-run-module", f"--module={path}", "--function=main", *inputs).stdout
    found = [line.partition("=")[2] for line in said.splitlines() if line.startswith("result[")]
    expected = Evaluated(mlir.parse(text, "random.mlir")).call("main", *call)
    for one, other, type_ in zip(found, expected, RESULTS, strict=True):
        if type_ == "f32":
            assert one in (f"{other:g}", f"{other:G}", str(other)) or float(one) == pytest.approx(
                other, nan_ok=True
            )
        else:
            assert same(int(one), other, type_)


def test_the_programs_have_everything_in_them() -> None:
    text = "".join(Writer(Random(seed)).program() for seed in range(40))
    for part in (
        "util.initializer", "mutable @", "util.call", "cf.cond_br", "scf.for", "util.buffer.subspan",
        "util.buffer.fill", "util.buffer.compare", "inline.never", "arith.ceildivui", "arith.extsi", "f32",
    ):  # fmt: skip
        assert part in text, part
