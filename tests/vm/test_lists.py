"""VM lists by themselves; the instructions on them are in test_semantics."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halgpu import errors
from halgpu.vm import Buffer, List
from halgpu.vm.lists import MAXIMUM_CAPACITY, VALUE_TYPES, convert


@given(st.lists(st.tuples(st.sampled_from(["resize", "reserve", "set"]), st.integers(0, 70)), max_size=30))
def test_sizes_against_a_python_list(steps: list[tuple[str, int]]) -> None:
    vm_list, model = List("i32"), []
    for what, n in steps:
        if what == "resize":
            vm_list.resize(n)
            model = model[:n] + [0] * (n - len(model))
        elif what == "reserve":
            vm_list.reserve(n)
            assert vm_list.capacity >= n
        elif n < len(model):
            vm_list.set_value(n, n, "i32")
            model[n] = n
        assert vm_list.items() == tuple(model)
        assert len(vm_list) == len(model)


def test_an_empty_list_is_no_null() -> None:
    assert List()
    assert len(List()) == 0


def test_shrinking_drops_refs_at_once() -> None:
    gc.disable()
    try:
        vm_list = List(Buffer)
        vm_list.resize(2)
        buffer = Buffer.create(1)
        vm_list.set_ref(1, buffer)
        watch = weakref.ref(buffer)
        del buffer
        assert watch() is not None
        vm_list.resize(1)
        assert watch() is None
        assert vm_list.get_ref(0) is None
    finally:
        gc.enable()


def test_moving_out_leaves_null() -> None:
    vm_list = List()
    vm_list.resize(1)
    vm_list.set_ref(0, vm_list)
    assert vm_list.get_ref(0, move=True) is vm_list
    assert vm_list.get_ref(0) is None


def test_variants_remember_the_type() -> None:
    vm_list = List()
    vm_list.resize(3)
    vm_list.set_value(0, -1, "i64")
    assert vm_list.get_value(0, "i64") == -1
    assert vm_list.get_value(0, "i32") == -1
    assert vm_list.get_value(0, "f32") == 0.0
    assert vm_list.items() == (-1, None, None)
    with pytest.raises(errors.FailedPrecondition, match="not a ref"):
        vm_list.get_ref(0)
    with pytest.raises(errors.FailedPrecondition, match="not a value"):
        vm_list.get_value(1, "i32")


def test_values_and_refs_do_not_mix() -> None:
    values, refs = List("i32"), List(Buffer)
    for vm_list in (values, refs):
        vm_list.resize(1)
    for use in (
        lambda: values.get_ref(0),
        lambda: values.set_ref(0, None),
        lambda: refs.get_value(0, "i32"),
        lambda: refs.set_value(0, 1, "i32"),
    ):
        with pytest.raises(errors.FailedPrecondition):
            use()


def test_typed_refs() -> None:
    vm_list = List(Buffer)
    vm_list.resize(1)
    with pytest.raises(errors.InvalidArgument, match="expected Buffer, found List"):
        vm_list.set_ref(0, vm_list)


def test_limits() -> None:
    with pytest.raises(errors.ResourceExhausted, match="at most"):
        List("i8", MAXIMUM_CAPACITY + 1)
    with pytest.raises(errors.ResourceExhausted):
        List().resize(MAXIMUM_CAPACITY + 1)
    with pytest.raises(errors.InvalidArgument, match="'i7'"):
        List("i7")
    for index in (-1, 0):
        with pytest.raises(errors.OutOfRange, match="0 elements"):
            List().get_ref(index)


@pytest.mark.parametrize("source", sorted(VALUE_TYPES))
@pytest.mark.parametrize("target", sorted(VALUE_TYPES))
def test_conversions_stay_in_range(source: str, target: str) -> None:
    value = 1.5 if source[0] == "f" else -1
    found = convert(value, source, target)
    assert isinstance(found, float) == (target[0] == "f")
    if source[0] == target[0]:
        assert found == value
    else:
        assert found == 0


def test_repr() -> None:
    assert [repr(List(kind)) for kind in ("i32", Buffer, None)] == [
        "<vm.List<i32> of 0>",
        "<vm.List<Buffer> of 0>",
        "<vm.List<?> of 0>",
    ]
