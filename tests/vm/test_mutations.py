"""Real modules with damage: each is refused or reads, prints, reassembles and runs; nothing else may happen.

$HALGPU_MUTATIONS is the number of examples for each test; ci/nightly runs 20,000.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halgpu import errors, vm
from halgpu.vm import assembler, definition, disassembler, listing, verifier, writer

EXAMPLES = int(os.environ.get("HALGPU_MUTATIONS", "500"))
MANY = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
INTERESTING = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFE, 0xFFFFFFFF]


@pytest.fixture(scope="module")
def modules(stock_module: Callable[[str], bytes]) -> list[bytes]:
    names = ("counter-vulkan", "network-vulkan", "counter-vmvx-inline", "calls", "all_ops", "remaining_ops")
    return [stock_module(name) for name in names]


@st.composite
def mutated(draw: st.DrawFn, modules: list[bytes]) -> bytes:
    """A real module with bits flipped, words replaced, a cut, or a piece of another one spliced in."""
    data = bytearray(draw(st.sampled_from(modules)))
    # Beyond this there are only kernels, which nothing here looks at.
    interesting = min(len(data), 3500) - 4
    kind = draw(st.sampled_from(["bits", "word", "cut", "splice"]))
    if kind == "bits":
        place = st.tuples(st.integers(0, interesting), st.integers(0, 7))
        for at, bit in draw(st.lists(place, min_size=1, max_size=8)):
            data[at] ^= 1 << bit
    elif kind == "word":
        at = draw(st.integers(0, interesting))
        struct.pack_into("<I", data, at, draw(st.sampled_from(INTERESTING) | st.integers(0, len(data))))
    elif kind == "cut":
        del data[draw(st.integers(0, len(data))) :]
    else:
        other = draw(st.sampled_from(modules))
        at, start, length = (draw(st.integers(0, interesting)) for _ in range(3))
        data[at : at + length % 256] = other[start : start + length % 256]
    return bytes(data)


def everything_in(function: verifier.VerifiedFunction) -> list[Any]:
    """A function's operations as values; NaNs are equal."""
    return [
        (block.offset, [(op.offset, op.instruction.symbol, repr(op.operands)) for op in block.ops])
        for block in function.blocks
    ]


@MANY
@given(data=st.data())
def test_damaged_modules_are_refused_or_read(data: st.DataObject, modules: list[bytes]) -> None:
    module_bytes = data.draw(mutated(modules))
    try:
        module = definition.read(module_bytes)
        functions = verifier.verify(module)
    except errors.Error:
        return
    assert disassembler.disassemble(module).startswith("vm.module @")
    assert listing.listing(module_bytes).startswith("//")
    for function in functions:
        ordinal = function.definition.ordinal
        for block in function.blocks:
            assert module.debug is None or module.debug.location(ordinal, block.offset) != ""
    try:
        text = disassembler.disassemble(module, lossless=True)
    except errors.InvalidArgument as damaged:
        # Locations are not looked at before they are needed.
        note = str(damaged)
        assert "DebugDatabaseDef" in note or "LocDef" in note or "FunctionSourceMapDef" in note
        return
    again = verifier.verify(definition.read(writer.write(assembler.assemble(text))))
    assert list(map(everything_in, again)) == list(map(everything_in, functions))


# -- running -------------------------------------------------------------------------------------------


class Runner:
    """Runs modules in children of a process of its own (module_runner.py) and says how each ended."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("module_runner.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def __call__(self, module: bytes) -> str:
        self.stdin.write(struct.pack("<I", len(module)) + module)
        self.stdin.flush()
        return str(json.loads(self.stdout.readline()))

    def close(self) -> None:
        self.stdin.close()
        self.process.wait(30)
        self.stdout.close()


@pytest.fixture(scope="module")
def run() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.close()


@MANY
@given(data=st.data())
def test_damaged_modules_are_refused_or_run(data: st.DataObject, modules: list[bytes], run: Runner) -> None:
    # A program whose branch was bent may loop for ever; then it is interrupted, as Ctrl-C would.
    assert run(data.draw(mutated(modules))) in ("ran", "refused", "interrupted")


@pytest.mark.parametrize("name", ["counter-vulkan", "network-vulkan", "calls", "all_ops", "remaining_ops"])
def test_the_undamaged_ones_run(name: str, stock_module: Callable[[str], bytes], run: Runner) -> None:
    assert run(stock_module(name)) == "ran"


def test_the_runner_sees_what_goes_wrong(run: Runner, program: Any) -> None:
    """Not every outcome is a good one: nonsense is refused, a loop is interrupted, a crash is seen."""
    assert run(b"nonsense") == "refused"
    assert "ZeroDivisionError" in run(b"raise 1 / 0")
    assert run(b"crash") == "died by signal 6"
    loop = vm.assemble(
        "vm.module @m version 0\nvm.export @f\nvm.func @f() -> () {\n^bb0:\n  vm.br ^bb0()\n}\n"
    )
    assert run(vm.write(loop)) == "interrupted"
