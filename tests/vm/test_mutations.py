"""Real modules with damage: each is refused or reads, prints, reassembles and runs; nothing else may happen.

$HALGPU_MUTATIONS is the number of examples for each test; ci/nightly runs 20,000.
"""

from __future__ import annotations

import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halgpu import errors, vm
from halgpu.vm import assembler, definition, disassembler, listing, verifier, writer

EXAMPLES = int(os.environ.get("HALGPU_MUTATIONS", "500"))
MANY = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
INTERESTING = [0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFC, 0xFFFFFFFE, 0xFFFFFFFF]
CALL_SECONDS = 0.5
"""A program whose branch was bent may loop for ever; then it is interrupted, as Ctrl-C would."""


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

VALUES: dict[str, Any] = {"i": 1, "I": 8, "f": 1.5, "F": -2.5}


class Handle:
    """Stands for a hal.buffer, hal.executable or the like, which the VM only passes on."""


def value(kind: str) -> Any:
    return vm.Buffer.create(64) if kind == "r" else VALUES[kind]


def result(function: str, kinds: str) -> Any:
    """What a native function returns; only storage is bytes to the VM."""
    made = [Handle() if kind == "r" else VALUES[kind] for kind in kinds]
    if function in ("buffer.allocate", "buffer.storage"):
        made[-1] = value("r")
    return made[0] if len(made) == 1 else tuple(made) or None


def natives(module: definition.ModuleDef) -> list[vm.NativeModule]:
    """Native modules with the functions that a module imports, which return new values of the right kinds."""
    members: dict[str, dict[str, Any]] = {}
    for item in module.imports:
        name, _, function = item.full_name.partition(".")
        convention = vm.CallingConvention.parse(item.cconv)
        kinds = item.cconv.partition("_")[2].replace("v", "")
        scope = {"answer": partial(result, function, kinds)}
        parameters = ", ".join(f"a{index}" for index in range(len(convention.arguments)))
        exec(f"def method(self, {parameters}):\n    return answer()", scope)
        exported = vm.export(function, item.cconv)(scope["method"])  # type: ignore[arg-type]
        members.setdefault(name, {})[f"f{len(members.get(name, ()))}"] = exported
    return [
        type("Native", (vm.NativeModule,), {"name": name, "version": 1 << 31, **functions})()
        for name, functions in members.items()
    ]


class OutOfTimeError(BaseException):
    """Raised into a running program, as KeyboardInterrupt is."""


@contextmanager
def interrupted(seconds: float) -> Iterator[None]:
    def end(*_: object) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except OutOfTimeError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run(data: bytes) -> None:
    """Load a module and call each of its functions."""
    program = vm.BytecodeModule.load(data)
    with vm.Context([*natives(program.definition), program]) as context:
        for name in program.exports:
            function = context.lookup(f"{program.name}.{name}")
            kinds = vm.CallingConvention.parse(function.cconv).arguments
            arguments = [value(kind) if isinstance(kind, str) else () for kind in kinds]
            with suppress(errors.Error):
                function(*arguments)


@MANY
@given(data=st.data())
def test_damaged_modules_are_refused_or_run(data: st.DataObject, modules: list[bytes]) -> None:
    damaged = data.draw(mutated(modules))
    started = time.monotonic()
    with interrupted(CALL_SECONDS):
        try:
            run(damaged)
        except errors.Error:
            return
    assert time.monotonic() - started < 20 * CALL_SECONDS


@pytest.mark.parametrize("name", ["counter-vulkan", "network-vulkan", "calls", "all_ops", "remaining_ops"])
def test_the_undamaged_ones_run(name: str, stock_module: Callable[[str], bytes]) -> None:
    """The run above is no empty one: whole modules link and their functions are called."""
    program = vm.BytecodeModule.load(stock_module(name))
    with vm.Context([*natives(program.definition), program]) as context:
        assert program.exports
        for export in program.exports:
            assert context.lookup(f"{program.name}.{export}").cconv
    with interrupted(10):
        run(stock_module(name))
