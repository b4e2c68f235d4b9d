"""What translated code calls, where test_semantics does not reach it."""

from __future__ import annotations

from typing import Any

import pytest

from halgpu import errors
from halgpu.vm import Buffer, BufferAccess, HostBytes
from halgpu.vm.allocator import NULL_ALLOCATOR
from halgpu.vm.support import (
    Globals,
    NullReference,
    as_float,
    as_int,
    buffer_length,
    fail,
    list_size,
    load,
    store,
)


class Failing:
    """Bytes whose place is lost."""

    byte_length = 8

    def __init__(self, error: Exception) -> None:
        self.error = error

    def read(self) -> memoryview:
        raise self.error

    write = read

    def try_fill(self, offset: int, length: int, pattern: bytes) -> bool:
        raise self.error

    def try_copy_from(self, source: HostBytes, source_offset: int, offset: int, length: int) -> bool:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [errors.Unavailable("lost"), errors.OutOfRange("not here"), AttributeError("a bug"), IndexError("a bug")],
)
def test_errors_of_the_bytes_are_not_taken_for_the_programs(error: Exception) -> None:
    buffer = Buffer.initialize(BufferAccess.MUTABLE, Failing(error), NULL_ALLOCATOR)
    uses: list[Any] = [lambda: load(buffer, "i", 0), lambda: store(buffer, "i", 0, 1)]
    for use in uses:
        if type(error) is IndexError:  # cannot be told from an index behind the end
            with pytest.raises(errors.OutOfRange, match="offset=0, length=4, buffer length=8"):
                use()
            continue
        with pytest.raises(type(error)) as caught:
            use()
        assert caught.value is error


def test_null_is_an_error_of_its_own() -> None:
    for use in (lambda value: load(value, "i", 0), buffer_length, list_size):
        with pytest.raises(NullReference, match=r"expected a vm\.(buffer|list), found null"):
            use(None)
        with pytest.raises(errors.InvalidArgument, match="found object") as caught:
            use(object())
        assert not isinstance(caught.value, NullReference)


@pytest.mark.parametrize("index", [2, -1, 2**62, -(2**63)])
def test_offsets_are_named_in_bytes(index: int) -> None:
    buffer = Buffer.create(8)
    with pytest.raises(errors.OutOfRange, match=rf"offset={index % 2**64 * 4}, length=4, buffer length=8"):
        load(buffer, "i", index)


def test_globals_are_zero_and_bounded() -> None:
    state = Globals(5, 2)
    assert (state.byte_length, len(state.data), state.refs) == (5, 8, [None, None])
    assert bytes(state.data) == bytes(8)
    with pytest.raises(errors.ResourceExhausted, match="no host memory"):
        Globals(1 << 62, 0)


@pytest.mark.parametrize(
    ("value", "bits", "expected"), [(True, 32, 1), (-(2**31), 32, -(2**31)), (2**40, 64, 2**40)]
)
def test_integers_of_native_functions(value: Any, bits: int, expected: int) -> None:
    assert as_int(value, bits) == expected
    assert type(as_int(value, bits)) is int


def test_floats_of_native_functions() -> None:
    assert as_float(0.1, 32) == 0.10000000149011612
    assert as_float(1, 64) == 1.0
    with pytest.raises(errors.Internal, match="returned str where f32 is expected"):
        as_float("1", 32)


def test_fail_takes_the_class_of_the_code() -> None:
    for code, wanted in errors.BY_CODE.items():
        with pytest.raises(wanted, match="why"):
            fail(code, "why")
