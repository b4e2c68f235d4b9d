"""Native modules: how methods are exported, and what is refused when a class is made."""

from __future__ import annotations

from typing import Any

import pytest

from halgpu import errors
from halgpu.vm import CallingConvention, Context, NativeModule, export


class Base(NativeModule):
    name = "base"
    version = 2

    @export("one", "0_i")
    def one(self) -> int:
        return 1

    @export("list.sum", "0CiD_i")
    def sum(self, values: tuple[int, ...]) -> int:
        return sum(values)


class Derived(Base):
    name = "derived"

    @export("two", "0_i")
    def two(self) -> int:
        return 2

    def one(self) -> int:  # replaces the exported method
        return 11


def test_exports_are_collected_and_inherited() -> None:
    assert set(Base.exports) == {"one", "list.sum"}
    assert set(Derived.exports) == {"one", "list.sum", "two"}
    assert Base.exports["list.sum"].cconv == CallingConvention.parse("0CiD_i")
    assert not NativeModule.exports


def test_methods_stay_methods() -> None:
    assert (Base().one(), Derived().function("one")(), Base().sum((1, 2))) == (1, 11, 3)


def test_lookup_of_native_functions() -> None:
    with Context([Base(), Derived()]) as context:
        assert context.lookup("base.list.sum")((1, 2, 3)) == 6
        assert context.lookup("derived.one")() == 11
        with pytest.raises(errors.NotFound):
            context.lookup("one")


def test_two_methods_of_one_name_are_refused() -> None:
    with pytest.raises(TypeError, match="exports 'one' twice"):

        class Twice(Base):
            name = "twice"

            @export("one", "0_i")
            def other(self) -> int:
                return 0


@pytest.mark.parametrize("cconv", ["0_v", "0i_v", "0iii_v", "0iiCiD_v"])
def test_a_method_that_cannot_take_the_arguments_is_refused(cconv: str) -> None:
    with pytest.raises(TypeError, match=r"export 'f' .* passes \d arguments"):

        class Wrong(NativeModule):
            name = "wrong"

            @export("f", cconv)
            def f(self, left: int, right: int) -> None: ...


def test_defaults_and_star_arguments_are_fine() -> None:
    class Fine(NativeModule):
        name = "fine"

        @export("f", "0ii_v")
        def f(self, *values: Any) -> None: ...

        @export("g", "0i_v")
        def g(self, left: int, right: int = 0) -> None: ...

    assert set(Fine.exports) == {"f", "g"}


def test_malformed_conventions_are_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match="calling convention"):
        export("f", "0x")


def test_an_instance_belongs_to_one_context() -> None:
    native = Base()
    with (
        Context([native]),
        pytest.raises(errors.FailedPrecondition, match="base already belongs to a context"),
    ):
        Context([native])


def test_a_module_needs_a_name() -> None:
    class Nameless(NativeModule):
        pass

    with pytest.raises(errors.InvalidArgument, match="Nameless has no name"):
        Context([Nameless()])


def test_attach_and_detach_are_called_once() -> None:
    calls: list[str] = []

    class Watching(NativeModule):
        name = "watching"

        def attach(self) -> None:
            calls.append("attach")

        def detach(self) -> None:
            calls.append("detach")

    context = Context([Watching()])
    assert calls == ["attach"]
    context.close()
    context.close()
    assert calls == ["attach", "detach"]
