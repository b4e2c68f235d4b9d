"""What a library says of itself is checked: libraries here are C structures that tests fill in, right but for one thing."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from native_samples import COUNT, MACHINE, code

from halgpu import errors
from halgpu.executables.native import abi, processor
from halgpu.executables.native.elf import Segment
from halgpu.executables.native.image import Extent
from halgpu.executables.native.library import Library

BYTES = 1 << 16


class Fake:
    """A library of two kernels in memory of its own; ``parts`` are its structures, to be changed."""

    def __init__(self) -> None:
        self.memory = (ctypes.c_uint8 * BYTES)()
        self.base = ctypes.addressof(self.memory)
        self._end = 0
        self.code = code(COUNT)
        text = Segment(0, self.code - self.base, 16, 16, False, True)
        data = Segment(0, 0, BYTES, BYTES, True, False)
        self.extent = Extent(self.base, (data, text))
        self.library = self.make(abi.Library)
        self.header = self.make(abi.Header, version=abi.VERSION, name=self.text(b"fake"))
        self.attributes = self.make(abi.DispatchAttributes * 2)
        for item, bindings in zip(self.attributes, (1, 3), strict=True):
            item.constant_count, item.binding_count = 2, bindings
        self.attributes[1].workgroup_size_y, self.attributes[1].local_memory_pages = 8, 2
        self.attributes[1].flags = abi.SEQUENTIAL
        self.pointers = self.make(ctypes.c_void_p * 2, self.code, self.code)
        self.names = self.make(ctypes.c_void_p * 2, self.text(b"first"), self.text(b"second"))
        self.library.header = ctypes.addressof(self.header)
        exports = self.library.exports
        exports.count, exports.ptrs = 2, ctypes.addressof(self.pointers)
        exports.attrs, exports.names = ctypes.addressof(self.attributes), ctypes.addressof(self.names)
        self.answer: int | None = ctypes.addressof(self.library)
        self.asked: list[tuple[int, list[int]]] = []
        self._query = abi.QUERY_FUNCTION(self._queried)

    def _queried(self, version: int, environment: int) -> int | None:
        data = abi.Environment.from_address(environment).processor_data
        self.asked.append((version, list(data)))
        return self.answer

    def make(self, kind: Any, *values: int, **fields: int) -> Any:
        made = kind.from_address(self._place(ctypes.sizeof(kind)))
        for index, value in enumerate(values):
            made[index] = value
        for name, value in fields.items():
            setattr(made, name, value)
        return made

    def text(self, data: bytes) -> int:
        address = self._place(len(data) + 1)
        ctypes.memmove(address, data + b"\0", len(data) + 1)
        return address

    def _place(self, size: int) -> int:
        start, self._end = self._end, self._end + -(-size // 16) * 16
        return self.base + start

    def load(self, constants: tuple[int, ...] = ()) -> Library:
        query = ctypes.cast(self._query, ctypes.c_void_p).value
        assert query is not None
        return Library(self.extent, query, MACHINE, constants)


@pytest.fixture
def fake() -> Fake:
    return Fake()


def test_a_library_is_read(fake):
    library = fake.load()
    first, second = library.exports
    assert library.name == "fake"
    assert (first.name, first.address, first.constants, first.bindings) == ("first", fake.code, 2, 1)
    assert (first.workgroup_size, first.local_memory, first.sequential) == ((1, 1, 1), 0, False)
    assert (second.name, second.bindings, second.workgroup_size) == ("second", 3, (1, 8, 1))
    assert (second.local_memory, second.sequential) == (8192, True)
    assert fake.asked == [(6, list(processor.data(MACHINE)))]


def test_constants_are_in_the_environment_and_must_be_as_many_as_it_takes(fake):
    fake.library.constant_count = 2
    library = fake.load((7, 2**32 - 1))
    found = (ctypes.c_uint32 * 2).from_address(library.environment.constants)
    assert list(found) == [7, 2**32 - 1]
    with pytest.raises(
        errors.FailedPrecondition, match="library 'fake' takes 2 constants, the program passes 1"
    ):
        fake.load((1,))


def test_versions_and_sanitizers(fake):
    fake.header.sanitizer = 1
    with pytest.raises(errors.Unavailable, match="library 'fake' was compiled for sanitizer 1"):
        fake.load()
    fake.header.version = 7
    with pytest.raises(errors.Incompatible, match="version 0x6 or older, found 0x7"):
        fake.load()
    fake.answer = None
    with pytest.raises(errors.Incompatible, match="does not support version 0x6"):
        fake.load()


def test_imports_that_are_not_needed_are_null_and_others_are_refused(fake):
    symbols = fake.make(ctypes.c_void_p * 2, fake.text(b"?xsmm_gemm"), fake.text(b"?mylib_v2"))
    fake.library.imports.count, fake.library.imports.symbols = 2, ctypes.addressof(symbols)
    library = fake.load()
    environment = library.environment
    for table in (environment.import_funcs, environment.import_contexts):
        assert list((ctypes.c_void_p * 2).from_address(table)) == [None, None]
    symbols[1] = fake.text(b"mylib_v1")
    with pytest.raises(errors.Unavailable, match="library 'fake' imports 'mylib_v1', and halgpu provides no"):
        fake.load()


def test_limits(fake):
    fake.attributes[0].constant_count = 65
    with pytest.raises(errors.OutOfRange, match="kernel 'first' takes 65 constants; at most 64"):
        fake.load()
    fake.attributes[0].constant_count, fake.attributes[0].binding_count = 64, 65
    with pytest.raises(errors.OutOfRange, match="kernel 'first' takes 65 bindings; at most 64"):
        fake.load()
    fake.library.exports.count = 0
    assert fake.load().exports == ()


WRONG = (0, 1, 2**63, 2**64 - 1)


@pytest.mark.parametrize("address", WRONG)
@pytest.mark.parametrize(
    "place", ["answer", "header", "name", "ptrs", "attrs", "names", "pointer", "kernel name"]
)
def test_pointers_out_of_the_library(place, address, fake):
    if place == "answer":
        fake.answer = address or 8
    elif place in ("ptrs", "attrs", "names"):
        setattr(fake.library.exports, place, address)
    elif place == "header":
        fake.library.header = address
    elif place == "name":
        fake.header.name = address
    elif place == "pointer":
        fake.pointers[1] = address
    else:
        fake.names[0] = address
    with pytest.raises(errors.InvalidArgument, match=r"damaged executable library: .* of its own"):
        fake.load()


def test_pointers_half_out_of_the_library(fake):
    end = fake.base + BYTES
    fake.library.exports.attrs = end - 64
    with pytest.raises(errors.InvalidArgument, match="attributes of kernels at 0xffc0 is no 128 bytes"):
        fake.load()
    ctypes.memset(end - 8, 65, 8)
    fake.header.name = end - 8
    with pytest.raises(errors.InvalidArgument, match="the library's name at 0xfff8 does not end"):
        fake.load()


def test_kernels_that_are_no_code_or_have_no_name(fake):
    fake.pointers[0] = fake.base
    with pytest.raises(errors.InvalidArgument, match="kernel 'first' at 0x0 is no code"):
        fake.load()
    fake.names[0] = fake.text(b"")
    with pytest.raises(errors.InvalidArgument, match="a kernel has no name"):
        fake.load()


def test_counts_from_damage(fake):
    fake.library.exports.count = 1 << 31
    with pytest.raises(errors.InvalidArgument, match="it has 2147483648 kernels"):
        fake.load()
    fake.library.imports.count = 1 << 17
    with pytest.raises(errors.InvalidArgument, match="it has 131072 imports"):
        fake.load()
