"""Contexts: linking, lookup, calls, packed calls, init and deinit, state and its end."""

from __future__ import annotations

import gc
import struct
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from halgpu import errors
from halgpu.vm import Buffer, BytecodeModule, Context, HostAllocator, List, NativeModule, export
from halgpu.vm.definition import Dependency

LOG: list[Any] = []


class Math(NativeModule):
    name = "math"
    version = 2

    @export("add", "0ii_i")
    def add(self, left: int, right: int) -> int:
        return left + right

    @export("log", "0i_v")
    def log(self, value: int) -> None:
        LOG.append(value)

    @export("buffer", "0_r")
    def buffer(self) -> Any:
        return self.made


def adding(program: Any, full_name: str = "math.add", cconv: str = "0ii_i", optional: bool = False) -> Any:
    add = program.imported(full_name, cconv, optional)
    program.function("0ii_i", [("Call", add, [0, 1], [0]), ("Return", [0])])
    return program


# Linking


def test_imports_are_bound_to_methods(program: Any) -> None:
    assert adding(program).context(Math()).lookup("main")(2, 3) == 5


def test_a_missing_module_is_named(program: Any) -> None:
    with pytest.raises(
        errors.NotFound,
        match=r"test imports math\.add 0ii_i, but the context has no such module; it has none",
    ):
        adding(program).context()


def test_a_missing_function_is_named_with_the_nearest(program: Any) -> None:
    with pytest.raises(errors.NotFound, match=r"module math version 2 has no such function; nearest: add"):
        adding(program, "math.addd").context(Math())


def test_a_mismatch_prints_both_signatures(program: Any) -> None:
    wanted = program.imported("math.add", "0iI_i")
    program.function("0iI_i", [("Call", wanted, [0, 2], [0]), ("Return", [0])])
    with pytest.raises(errors.Incompatible) as caught:
        program.context(Math())
    assert str(caught.value) == (
        "import math.add of module test has another signature: "
        "expected 0iI_i (i32, i64) -> (i32), found 0ii_i (i32, i32) -> (i32)"
    )


def test_an_empty_convention_matches_only_by_trust(program: Any) -> None:
    program.imported("math.add", "")
    program.function("0_v", [("Return", [])])
    program.context(Math()).lookup("main")()


@pytest.mark.parametrize(("version", "fine"), [(0, True), (2, True), (3, False)])
def test_minimum_versions(program: Any, version: int, fine: bool) -> None:
    program.dependencies = [Dependency("math", version)]
    adding(program)
    if fine:
        program.context(Math())
        return
    with pytest.raises(errors.Incompatible, match="needs module math version 3 or newer, found version 2"):
        program.context(Math())


def test_missing_dependencies(program: Any) -> None:
    program.dependencies = [Dependency("math", 1)]
    program.function("0_v", [("Return", [])])
    with pytest.raises(
        errors.NotFound, match="needs module math version 1, which is not in the context; it has none"
    ):
        program.context()


def test_optional_dependencies_may_be_missing_or_old(program: Any) -> None:
    program.dependencies = [Dependency("absent", 1, optional=True), Dependency("math", 9, optional=True)]
    assert adding(program).context(Math()).lookup("main")(1, 1) == 2


def test_the_full_hal_is_refused_in_one_line(program: Any) -> None:
    program.dependencies = [Dependency("hal", 6)]
    program.imported("hal.device.allocator", "0r_r")
    program.function("0_v", [("Return", [])])
    with pytest.raises(errors.Incompatible) as caught:
        program.context(Math())
    assert str(caught.value) == (
        "module test was compiled for the full HAL (it imports hal.device.allocator); "
        "compile it with --iree-execution-model=inline-dynamic"
    )


def test_a_stock_full_hal_module(compile_mlir: Callable[..., bytes]) -> None:
    source = "func.func @f(%a: tensor<4xf32>) -> tensor<4xf32> {\n %0 = math.absf %a : tensor<4xf32>\n return %0 : tensor<4xf32>\n}"
    module = BytecodeModule.load(compile_mlir(source, "vulkan", model="async-internal"))
    with pytest.raises(errors.Incompatible, match="--iree-execution-model=inline-dynamic"):
        Context([module])


def test_modules_import_one_another(new_program: Callable[[], Any]) -> None:
    library, user = new_program(), new_program()
    library.name, user.name = "library", "user"
    body = [("GlobalLoadI32", 0, 1), ("AddI32", 0, 1, 0), ("GlobalStoreI32", 0, 0), ("Return", [0])]
    library.function("0i_i", body, "accumulate")
    accumulate = user.imported("library.accumulate", "0i_i")
    user.function("0i_i", [("Call", accumulate, [0], [1]), ("Return", [1])])
    context = Context([library.module(), user.module()])
    assert [context.lookup("main")(n) for n in (1, 2, 3)] == [1, 3, 6]
    assert context.lookup("library.accumulate")(0) == 6
    with pytest.raises(errors.NotFound, match="no such module"):
        Context([user.module(), library.module()])


def test_what_is_no_module() -> None:
    with pytest.raises(errors.InvalidArgument, match="found str"):
        Context(["math"])  # type: ignore[list-item]


def test_a_module_twice(program: Any) -> None:
    program.function("0_v", [("Return", [])])
    module = program.module()
    with pytest.raises(errors.AlreadyExists):
        Context([module, module])


# Lookup


def test_lookup(program: Any) -> None:
    for name in ("main", "sub.main", "other"):
        program.function("0i_i", [("Return", [0])], name)
    context = program.context()
    assert context.exports == ("test.main", "test.sub.main", "test.other")
    for name, full in [
        ("main", "main"),
        ("test.main", "main"),
        ("sub.main", "sub.main"),
        ("test.sub.main", "sub.main"),
    ]:
        function = context.lookup(name)
        assert (function.module_name, function.name, function.cconv) == ("test", full, "0i_i")
        assert function(7) == 7
    assert repr(context.lookup("main")) == "<vm.Function test.main 0i_i>"


@pytest.mark.parametrize("name", ["mian", "test.mian"])
def test_lookup_lists_what_there_is(program: Any, name: str) -> None:
    program.function("0_v", [("Return", [])], "main")
    program.function("0_v", [("Return", [])], "__init")
    with pytest.raises(
        errors.NotFound, match=rf"no function '{name}'; there is test\.main; did you mean '.*main'\?"
    ):
        program.context().lookup(name)


def test_attributes(compile_mlir: Callable[..., bytes]) -> None:
    module = BytecodeModule.load(compile_mlir("func.func @f(%a: i32) -> i32 {\n return %a : i32\n}"))
    assert "iree.abi.declaration" in Context([module]).lookup("f").attrs


# Calls


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected 2 values .*i32, ref.*, found 0"),
        ((1, None, 2), "expected 2 values .*, found 3"),
        (("1", None), "value 0: expected an int for i32, found str"),
        ((1 << 31, None), "value 0: 2147483648 does not fit in i32"),
        ((1, 2), "value 1: expected a VM object or None for ref, found int"),
    ],
)
def test_wrong_arguments(program: Any, arguments: tuple[Any, ...], message: str) -> None:
    program.function("0ir_v", [("Return", [])])
    with pytest.raises(errors.InvalidArgument, match=rf"test\.main: {message}"):
        program.context().lookup("main")(*arguments)


def test_results(program: Any) -> None:
    program.function("0_v", [("Return", [])], "none")
    program.function("0_i", [("Return", [0])], "one")
    program.function("0_ii", [("Return", [0, 1])], "two")
    context = program.context()
    assert [context.lookup(name)() for name in ("none", "one", "two")] == [None, 0, (0, 0)]


def test_packed_calls(program: Any) -> None:
    r = program.r
    program.function("0irIfF_FrfIi", [("Return", [6, r(0), 4, 2, 0])])
    program.function("0_v", [("Return", [])], "nothing")
    context = program.context()
    function, thing, refs = context.lookup("main"), Buffer.create(1), []
    refs = [thing]
    data = struct.pack("<i4xQQqf4xd", -3, 1, 0, 1 << 40, 1.5, 0.1)
    result = function.invoke_packed(data, refs)
    assert result == struct.pack("<dQQf4xqi", 0.1, 2, 0, 1.5, 1 << 40, -3)
    assert refs == [thing, thing]
    assert context.lookup("nothing").invoke_packed(b"") == b""
    with pytest.raises(errors.InvalidArgument, match=f"expected {len(data)} bytes, found {len(data) + 4}"):
        function.invoke_packed(data + bytes(4), refs)
    with pytest.raises(errors.InvalidArgument, match="handle 1 out of range"):
        function.invoke_packed(data)


def test_packed_and_translated_calls_agree() -> None:
    class Spans(NativeModule):
        name = "spans"

        @export("echo", "0rIiiiCiDCrIID_I")
        def echo(
            self, executable: Any, function: int, x: int, y: int, z: int, constants: Any, bindings: Any
        ) -> int:
            return (
                function + x + y + z + sum(constants) + sum(offset + length for _, offset, length in bindings)
            )

    function = Context([Spans()]).lookup("spans.echo")
    values = (None, 1 << 40, 1, 2, 3, (4, 5), ((None, 6, 7), (None, 8, 9)))
    packed = function.invoke_packed(function.convention.argument_layout.pack(values))
    assert struct.unpack("<q", packed) == (function(*values),)
    padded = function.convention.argument_layout.pack(values)
    with pytest.raises(errors.InvalidArgument, match="ends at byte 36"):
        function.invoke_packed(padded[:36] + bytes(4) + padded[36:])


# Types of refs


class Thing:
    pass


class Things(NativeModule):
    name = "things"
    types = {"things.thing": Thing}  # noqa: RUF012 - declared as a ClassVar by the base


def casting(program: Any, type_name: str) -> Any:
    body = [("CastAnyRef", program.r(0), program.type(type_name), program.r(1)), ("Return", [program.r(1)])]
    program.function("0r_r", body)
    return program


def test_types_of_native_modules(program: Any) -> None:
    function = casting(program, "!things.thing").context(Things()).lookup("main")
    thing = Thing()
    assert function(thing) is thing
    with pytest.raises(errors.InvalidArgument, match="expected Thing, found Buffer"):
        function(Buffer.create(1))


def test_types_that_nobody_registered_take_any_foreign_object(program: Any) -> None:
    function = casting(program, "!things.thing").context().lookup("main")
    thing = Thing()
    assert function(thing) is thing
    for value in (Buffer.create(1), List()):
        with pytest.raises(errors.InvalidArgument, match=r"expected things\.thing"):
            function(value)


@pytest.mark.parametrize("type_name", ["!things\0.thing", "i\0", "!\0"])
def test_types_of_any_name(program: Any, type_name: str) -> None:
    function = casting(program, type_name).context().lookup("main")
    with pytest.raises(errors.InvalidArgument, match="mismatch"):
        function(Buffer.create(1))


@pytest.mark.parametrize(
    ("type_name", "fits"),
    [("!vm.opaque", (True, True)), ("!vm.list<i32>", (False, True)), ("i32", (False, False))],
)
def test_types_of_the_vm(program: Any, type_name: str, fits: tuple[bool, bool]) -> None:
    function = casting(program, type_name).context().lookup("main")
    for value, fit in zip((Buffer.create(1), List()), fits, strict=True):
        if fit:
            assert function(value) is value
        else:
            with pytest.raises(errors.InvalidArgument, match="mismatch"):
                function(value)


# Lives


def lifecycle(program: Any, name: str, init: int, deinit: int) -> Any:
    log = program.imported("math.log", "0i_v")
    program.name = name
    for function, value in (("__init", init), ("__deinit", deinit)):
        program.function("0_v", [("ConstI32", value, 0), ("Call", log, [0], []), ("Return", [])], function)
    program.function("0_v", [("Return", [])])
    return program.module()


def test_init_in_order_and_deinit_in_reverse(new_program: Callable[[], Any]) -> None:
    LOG.clear()
    modules = [lifecycle(new_program(), "a", 1, 10), lifecycle(new_program(), "b", 2, 20)]
    with Context([Math(), *modules]) as context:
        assert LOG == [1, 2]
        function = context.lookup("b.main")
    assert LOG == [1, 2, 20, 10]
    assert context.closed
    assert context.modules == ()
    with pytest.raises(errors.FailedPrecondition, match=r"context of b\.main is closed"):
        function()
    with pytest.raises(errors.FailedPrecondition, match="closed"):
        context.lookup("b.main")


def test_a_failing_init_undoes_what_was_done(new_program: Callable[[], Any]) -> None:
    LOG.clear()
    failing = new_program()
    failing.with_lines = True
    failing.function("0_v", [("ConstI32", 9, 0), ("Fail", 0, "no device")], "__init")
    with pytest.raises(errors.FailedPrecondition, match="no device") as caught:
        Context([Math(), lifecycle(new_program(), "a", 1, 10), failing.module()])
    assert caught.value.frames == ("test.__init (test.mlir:2:1)",)
    assert LOG == [1, 10]


def test_a_failing_deinit_is_ignored(program: Any) -> None:
    program.function("0_v", [("ConstI32", 9, 0), ("Fail", 0, "too late")], "__deinit")
    program.context().close()


def holding(program: Any) -> tuple[Context, HostAllocator]:
    """A context whose program keeps a buffer in a global."""
    keep = [("BufferAlloc", 2, 0, program.r(0)), ("GlobalStoreRef", 0, 0, program.moved(0)), ("Return", [])]
    program.function("0i_v", [("ConstI64", 64, 2), *keep], "keep")
    allocator = HostAllocator()
    context = Context([program.module()], allocator=allocator)
    context.lookup("keep")(16)
    assert allocator.statistics.live_bytes == 64
    return context, allocator


@pytest.mark.parametrize("close", [True, False])
def test_the_last_reference_frees_without_a_garbage_collection(program: Any, close: bool) -> None:
    gc.collect()
    gc.disable()
    try:
        context, allocator = holding(program)
        if close:
            context.close()
        else:
            del context
        assert allocator.statistics.live_handles == 0
    finally:
        gc.enable()


def test_functions_keep_their_context(program: Any) -> None:
    context, allocator = holding(program)
    function = context.lookup("keep")
    del context
    assert allocator.statistics.live_handles == 1
    function(16)
    assert allocator.statistics.live_handles == 1
    del function
    assert allocator.statistics.live_handles == 0


def test_rodata_keeps_its_module_when_the_context_is_gone(program: Any) -> None:
    program.rodata = [b"constant"]
    program.function("0_r", [("ConstRefRodata", 0, program.r(0)), ("Return", [program.r(0)])])
    module = program.module()
    watch = weakref.ref(module)
    buffer = Context([module]).lookup("main")()
    del module
    gc.collect()
    assert watch() is not None
    assert bytes(buffer) == b"constant"
    del buffer
    gc.collect()
    assert watch() is None


def test_a_thousand_failing_calls_leave_nothing(program: Any) -> None:
    r = program.r
    body = [
        ("ConstI64", 64, 2),
        ("BufferAlloc", 2, 1, r(0)),
        ("DivI32S", 0, 1, 4),
        ("DiscardRefs", [r(0)]),
        ("Return", [4]),
    ]
    program.function("0ii_i", body)
    allocator = HostAllocator()
    function = Context([program.module()], allocator=allocator).lookup("main")
    for n in range(1000):
        if n % 3:
            assert function(6, 2) == 3
        else:
            with pytest.raises(errors.Error):
                function(6, 0)
    assert allocator.statistics.live_handles == 0
    assert allocator.statistics.allocations >= 600
