"""Instrumented programs: every call goes through the wrapper, in order, and nothing of it stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from halgpu import errors
from halgpu.vm import BytecodeModule, Context, NativeModule, assemble, export, write
from halgpu.vm.context import instrument

PROGRAM = """
vm.module @program version 0
vm.type i32
vm.import @sample.twice cconv "0i_i"

vm.export @outer
vm.func @outer(%i0: i32) -> (i32) {
^bb0:
  %i0 = vm.call @inner(%i0)
  %i0 = vm.call @inner(%i0)
  vm.return %i0
}
vm.func @inner(%i0: i32) -> (i32) {
^bb0:
  %i0 = vm.call @sample.twice(%i0)
  vm.return %i0
}
"""


class Sample(NativeModule):
    name = "sample"

    @export("twice", "0i_i")
    def twice(self, value: int) -> int:
        if value > 1000:
            raise errors.ResourceExhausted("too large")
        return 2 * value


@pytest.fixture
def calls() -> Iterator[list[str]]:
    """What was called while the test has instrumented; ends it."""
    seen: list[str] = []
    yield seen
    instrument(None)


def noted(calls: list[str]) -> Callable[[str, Callable[..., Any]], Callable[..., Any]]:
    def wrap(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            calls.append(name)
            return function(*arguments)

        return called

    return wrap


def linked() -> Context:
    return Context([Sample(), BytecodeModule.load(write(assemble(PROGRAM)))])


ALL = ["program.outer", "program.inner", "sample.twice", "program.inner", "sample.twice"]


def test_a_program_that_is_there_already(calls: list[str]) -> None:
    with linked() as context:
        outer = context.lookup("outer")
        assert outer(3) == 12
        instrument(noted(calls))
        assert outer(3) == 12
        assert calls == ALL
        assert context.lookup("outer")(3) == 12
        assert calls == ALL * 2


def test_a_program_that_comes_later(calls: list[str]) -> None:
    instrument(noted(calls))
    with linked() as context:
        assert context.lookup("outer")(5) == 20
        assert calls == ALL


def test_the_plain_functions_come_back(calls: list[str]) -> None:
    with linked() as context:
        [state] = context._states.values()
        before = dict(state.namespace)
        outer = context.lookup("outer")
        plain = outer._target
        instrument(noted(calls))
        assert outer._target is not plain
        instrument(noted(calls))  # the wrappers do not pile up
        outer(1)
        assert calls == ALL
        instrument(None)
        assert outer._target is plain
        names = [name for name in state.namespace if name.startswith(("fn", "m0"))]
        assert len(names) == 3
        assert all(state.namespace[name].__code__.co_name != "called" for name in names)
        assert outer(3) == 12
        assert calls == ALL
        assert before["m0"] == state.namespace["m0"]


def test_errors_have_the_same_frames(calls: list[str]) -> None:
    with linked() as context:
        outer = context.lookup("outer")
        with pytest.raises(errors.ResourceExhausted, match="too large") as plain:
            outer(600)
        instrument(noted(calls))
        with pytest.raises(errors.ResourceExhausted, match="too large") as instrumented:
            outer(600)
    assert plain.value.frames == instrumented.value.frames
    assert len(plain.value.frames) == 2


def test_a_closed_program_is_left_alone(calls: list[str]) -> None:
    context = linked()
    outer = context.lookup("outer")
    context.close()
    instrument(noted(calls))
    with pytest.raises(errors.FailedPrecondition, match="closed"):
        outer(1)
    assert calls == []
