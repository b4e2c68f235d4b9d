"""VM buffers: the three kinds and their ends, access, ranges, and bytes that live elsewhere."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halgpu import errors
from halgpu.vm import Allocator, Buffer, BufferAccess, HostAllocator, HostBytes, support
from halgpu.vm.allocator import NULL_ALLOCATOR, AllocatorStatistics
from halgpu.vm.siphash import siphash24

MUTABLE = BufferAccess.MUTABLE


class Owner(Allocator):
    """Owns bytes that buffers are initialized over, and records the ends it hears of."""

    def __init__(self) -> None:
        self.freed: list[Any] = []

    def allocate_aligned(self, byte_length: int, alignment: int) -> Any:
        raise errors.FailedPrecondition("only free")

    def free(self, handle: Any) -> None:
        self.freed.append(handle)

    def free_aligned(self, handle: Any) -> None:
        raise AssertionError("never called for buffers initialized in place")


class Elsewhere:
    """Bytes that keep count of how they are used; ``device`` says whether fills and copies are done in place."""

    def __init__(self, data: bytes, device: bool) -> None:
        self.data = bytearray(data)
        self.device = device
        self.calls: list[str] = []

    @property
    def byte_length(self) -> int:
        return len(self.data)

    def read(self) -> memoryview:
        self.calls.append("read")
        return memoryview(self.data)

    def write(self) -> memoryview:
        self.calls.append("write")
        return memoryview(self.data)

    def try_fill(self, offset: int, length: int, pattern: bytes) -> bool:
        self.calls.append("fill")
        if self.device:
            self.data[offset : offset + length] = pattern * (length // len(pattern))
        return self.device

    def try_copy_from(self, source: HostBytes, source_offset: int, offset: int, length: int) -> bool:
        self.calls.append("copy")
        if self.device:
            assert isinstance(source, Elsewhere)
            self.data[offset : offset + length] = source.data[source_offset : source_offset + length]
        return self.device


def over(data: bytes, access: BufferAccess = MUTABLE) -> Buffer:
    return Buffer.initialize(access, bytearray(data), NULL_ALLOCATOR)


# The two ways to end


def test_created_buffers_are_coallocated_and_freed_once() -> None:
    allocator = HostAllocator()
    buffer = Buffer.create(100, alignment=64, allocator=allocator)
    assert buffer.access == BufferAccess.COALLOCATED | MUTABLE | BufferAccess.ORIGIN_GUEST
    assert (buffer.byte_length, bytes(buffer), buffer.source) == (100, bytes(100), None)
    assert np.frombuffer(buffer.read_view(), np.uint8).ctypes.data % 64 == 0
    assert allocator.statistics.live_bytes == 100
    del buffer
    assert allocator.statistics.live_handles == 0
    assert allocator.statistics.frees == 1


def test_clones_are_coallocated_copies() -> None:
    allocator = HostAllocator()
    source = over(b"0123456789")
    clone = Buffer.clone(source, 3, 4, access=BufferAccess.ORIGIN_HOST, allocator=allocator)
    assert bytes(clone) == b"3456"
    assert clone.access == BufferAccess.COALLOCATED | BufferAccess.ORIGIN_HOST
    with pytest.raises(errors.PermissionDenied, match="read-only"):
        clone.write_view()
    source.write_view()[3] = 0
    assert bytes(clone) == b"3456"
    for offset, length in [(8, 3), (-1, 1), (0, -1), (11, 0)]:
        with pytest.raises(errors.OutOfRange, match=f"offset={offset}, length={length}, buffer length=10"):
            Buffer.clone(source, offset, length, allocator=allocator)
    assert allocator.statistics.live_handles == 1


@pytest.mark.parametrize("data", [b"", b"abc"])
@pytest.mark.parametrize("handle", [None, "a handle"])
def test_initialized_buffers_tell_their_owner_once(data: bytes, handle: Any) -> None:
    owner, memory = Owner(), bytearray(data)
    buffer = Buffer.initialize(MUTABLE, memory, owner, handle)
    assert buffer.access == MUTABLE
    buffer.release()
    buffer.release()
    del buffer
    assert len(owner.freed) == 1
    assert owner.freed[0] is (memory if handle is None else handle)


def test_an_empty_hostbytes_is_announced_too() -> None:
    owner, source = Owner(), Elsewhere(b"", device=True)
    Buffer.initialize(MUTABLE, source, owner)
    assert owner.freed == [source]


def test_coallocated_cannot_be_asked_for() -> None:
    flag = MUTABLE | BufferAccess.COALLOCATED
    source = over(b"1234")
    for make in (
        lambda: Buffer.create(1, flag),
        lambda: Buffer.clone(source, 0, 1, flag),
        lambda: Buffer.initialize(flag, bytearray(1), NULL_ALLOCATOR),
    ):
        with pytest.raises(errors.InvalidArgument, match="COALLOCATED"):
            make()
    with pytest.raises(TypeError, match=r"Buffer\.create"):
        Buffer()


def test_mutable_needs_writable_memory() -> None:
    with pytest.raises(errors.InvalidArgument, match="read-only"):
        Buffer.initialize(MUTABLE, memoryview(b"1234"), NULL_ALLOCATOR)
    with pytest.raises(errors.InvalidArgument, match="contiguous"):
        Buffer.initialize(MUTABLE, np.zeros((4, 4), np.int32)[:, 1].data, NULL_ALLOCATOR)
    with pytest.raises(errors.InvalidArgument, match="found int"):
        Buffer.initialize(MUTABLE, 5, NULL_ALLOCATOR)
    typed = Buffer.initialize(MUTABLE, np.arange(3, dtype=np.int32).data, NULL_ALLOCATOR)
    assert typed.byte_length == 12


def test_module_storage_keeps_its_module() -> None:
    class Module:
        alive = 0

        def __init__(self) -> None:
            Module.alive += 1

        def __del__(self) -> None:
            Module.alive -= 1

    buffer = Buffer.module_storage(memoryview(b"rodata"), Module())
    assert (Module.alive, bytes(buffer), buffer.access) == (1, b"rodata", BufferAccess.ORIGIN_MODULE)
    with pytest.raises(errors.PermissionDenied):
        buffer.fill(0, 1, b"x")
    del buffer
    assert Module.alive == 0


def test_use_after_release() -> None:
    buffer, other = over(b"12345678"), over(b"12345678")
    buffer.release()
    assert buffer.released
    uses = [
        buffer.read_view, buffer.write_view, lambda: bytes(buffer), buffer.__enter__,
        lambda: buffer.fill(0, 1, b"x"), lambda: buffer.copy_from(other, 0, 0, 1),
        lambda: other.copy_from(buffer, 0, 0, 1), lambda: buffer.equals(0, other, 0, 1),
        lambda: other.equals(0, buffer, 0, 1), lambda: buffer.hash(0, 1),
        lambda: Buffer.clone(buffer, 0, 1), lambda: buffer.reads["i"], lambda: buffer.writes["i"],
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(errors.FailedPrecondition, match="released"):
            use()


def test_with_ends_a_life_early() -> None:
    allocator = HostAllocator()
    with Buffer.create(4, allocator=allocator) as buffer:
        view = buffer.write_view()
    assert allocator.statistics.live_handles == 0
    view[0] = 1  # a view that is held keeps its memory
    assert bytes(view) == bytes([1, 0, 0, 0])


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_any_order_of_dropping(order: tuple[int, ...]) -> None:
    allocator = HostAllocator()
    things: list[Any] = [Buffer.create(8, allocator=allocator)]
    things.append(things[0].write_view())
    things.append(np.frombuffer(things[0].read_view(), np.uint8))
    for index in order:
        things[index] = None
    assert allocator.statistics == AllocatorStatistics(0, 0, 8, 1, 1)


def test_reference_cycles_are_collected_once() -> None:
    allocator, owner = HostAllocator(), Owner()
    cycle: list[Any] = [Buffer.create(8, allocator=allocator)]
    inner = Buffer.initialize(MUTABLE, bytearray(4), owner, handle=cycle)
    cycle += [cycle, inner]
    del cycle, inner
    gc.collect()
    assert allocator.statistics.frees == 1
    assert len(owner.freed) == 1
    owner.freed.clear()
    gc.collect()
    assert allocator.statistics.live_handles == 0


def test_collection_in_another_thread() -> None:
    allocator = HostAllocator()
    stop = threading.Event()

    def collect() -> None:
        while not stop.is_set():
            gc.collect()

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        for _ in range(300):
            cycle: list[Any] = [Buffer.create(8, allocator=allocator)]
            cycle.append(cycle)
            del cycle
    finally:
        stop.set()
        thread.join()
    gc.collect()
    assert allocator.statistics.live_handles == 0
    assert allocator.statistics.frees == 300


def test_interpreter_exit_is_silent() -> None:
    script = """
import sys
from halgpu import vm
class Owner(vm.Allocator):
    def allocate_aligned(self, n, a): raise NotImplementedError
    def free_aligned(self, h): raise NotImplementedError
    def free(self, h): print("freed", h, file=sys.stdout)
buffer = vm.Buffer.create(8)
other = vm.Buffer.initialize(vm.BufferAccess.MUTABLE, bytearray(2), Owner(), "h")
cycle = [buffer, other]; cycle.append(cycle)
sys.modules["keep"] = cycle
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout in ("", "freed h\n"), "at most once: Python may not finalize what is left at exit"


# Bytes


def test_fill() -> None:
    buffer = over(bytes(10))
    buffer.fill(1, 6, b"ab")
    assert bytes(buffer) == b"\0ababab\0\0\0"
    buffer.fill(10, 0, b"ab")
    with pytest.raises(errors.InvalidArgument, match="multiple"):
        buffer.fill(0, 3, b"ab")
    with pytest.raises(errors.OutOfRange, match="offset=8, length=4, buffer length=10"):
        buffer.fill(8, 4, b"ab")
    with pytest.raises(errors.PermissionDenied):
        over(b"1234", BufferAccess.ORIGIN_HOST).fill(0, 1, b"x")


def test_fill_of_more_than_a_piece() -> None:
    buffer = Buffer.create((1 << 18) * 2 + 24)
    count = ((1 << 18) * 2) // 3 + 2
    buffer.fill(3, count * 3, b"abc")
    expected = (b"\0\0\0" + b"abc" * count).ljust(buffer.byte_length, b"\0")
    assert bytes(buffer) == expected


@given(st.binary(max_size=40), st.data())
def test_copy_and_equals_against_bytearray(data: bytes, choose: st.DataObject) -> None:
    buffer, model = over(data), bytearray(data)
    length = choose.draw(st.integers(0, len(data)))
    source, target = (choose.draw(st.integers(0, len(data) - length)) for _ in range(2))
    assert buffer.equals(source, buffer, target, length) == (
        data[source : source + length] == data[target : target + length]
    )
    buffer.copy_from(buffer, source, target, length)
    model[target : target + length] = data[source : source + length]
    assert bytes(buffer) == bytes(model)


@given(st.integers(-20, 20), st.integers(-20, 20))
def test_ranges_against_python(offset: int, length: int) -> None:
    buffer = over(bytes(10))
    if offset >= 0 and length >= 0 and offset + length <= 10:
        buffer.check_range(offset, length)
    else:
        with pytest.raises(errors.OutOfRange):
            buffer.check_range(offset, length)


def test_hash_is_signed() -> None:
    data = bytes(range(64))
    assert over(data).hash(0, 8) == int.from_bytes(
        siphash24(data[:8]).to_bytes(8, "little"), "little", signed=True
    )


def test_views() -> None:
    buffer = over(b"12345678")
    assert buffer.read_view().readonly
    assert not buffer.write_view().readonly
    assert buffer.read_view().format == "B"
    assert "8 bytes" in repr(buffer)


@pytest.mark.parametrize("device", [True, False])
def test_hostbytes_are_used_where_they_offer(device: bool) -> None:
    source, target = Elsewhere(b"abcdefgh", device), Elsewhere(bytes(8), device)
    one = Buffer.initialize(BufferAccess.ORIGIN_HOST, source, NULL_ALLOCATOR)
    two = Buffer.initialize(MUTABLE, target, NULL_ALLOCATOR)
    assert two.source is target
    two.copy_from(one, 2, 1, 4)
    two.fill(6, 2, b"z")
    assert bytes(target.data) == b"\0cdef\0zz"
    assert target.calls == (["copy", "fill"] if device else ["copy", "write", "fill", "write"])
    assert source.calls == ([] if device else ["read"])
    assert one.equals(2, two, 1, 4)
    # Views are asked for at each use: device work may have moved the bytes in between.
    source.calls.clear()
    assert one.typed(False)["i"][0] == one.typed(False)["i"][0] == int.from_bytes(b"abcd", "little")
    assert source.calls == ["read", "read"]
    with pytest.raises(errors.PermissionDenied):
        one.writes["i"]


def test_copy_between_host_and_hostbytes() -> None:
    target = Elsewhere(bytes(4), device=True)
    buffer = Buffer.initialize(MUTABLE, target, NULL_ALLOCATOR)
    buffer.copy_from(over(b"wxyz"), 1, 0, 2)
    assert bytes(target.data) == b"xy\0\0"
    host = over(bytes(4))
    host.copy_from(buffer, 0, 2, 2)
    assert bytes(host) == b"\0\0xy"


@pytest.mark.parametrize("elsewhere", [True, False])
def test_typed_views_are_made_when_they_are_asked_for(elsewhere: bool) -> None:
    data = bytearray(range(1, 9))
    buffer = Buffer.initialize(MUTABLE, Elsewhere(data, True) if elsewhere else data, NULL_ALLOCATOR)
    assert not buffer.released
    assert not hasattr(buffer, "reads")
    assert support.load(buffer, "B", 2) == 3
    assert hasattr(buffer, "reads")
    fresh = Buffer.initialize(MUTABLE, Elsewhere(data, True) if elsewhere else data, NULL_ALLOCATOR)
    support.store(fresh, "B", 2, 77)
    assert fresh.typed(False)["B"][2] == fresh.typed(True)["B"][2] == 77
    locked = Buffer.initialize(BufferAccess.ORIGIN_HOST, Elsewhere(data, True), NULL_ALLOCATOR)
    with pytest.raises(errors.PermissionDenied):
        support.store(locked, "B", 2, 77)
    for index in (8, -1):
        with pytest.raises(errors.OutOfRange):
            support.load(Buffer.initialize(MUTABLE, Elsewhere(data, True), NULL_ALLOCATOR), "B", index)
    never_looked_at = Buffer.initialize(MUTABLE, Elsewhere(data, True), NULL_ALLOCATOR)
    never_looked_at.release()
    assert never_looked_at.released
    with pytest.raises(errors.FailedPrecondition):
        support.load(never_looked_at, "B", 0)
    with pytest.raises(errors.FailedPrecondition):
        support.store(never_looked_at, "B", 0, 1)
