"""The pool: what is kept and used again, what is not, how much, and that nobody can tell but by the time."""

from __future__ import annotations

import dis
import gc
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halgpu.devices import Device, open_device, registry
from halgpu.devices import pool as pool_module
from halgpu.devices.pool import MAX_WAITING, MAX_WAITING_BYTES, Pool
from halgpu.devices.residency import State
from halgpu.errors import InvalidArgument

SIZE = 1 << 18
URIS = ["host", "null", "opencl", "opencl?unified=0"]


def fresh(text: str) -> Device:
    """A device of its own, which nobody shares."""
    uri = registry.parse_uri(text)
    device = registry._backend(uri.scheme).open_device(str(uri), uri.index, uri.options)
    device.configure(uri.options)
    return device


@pytest.fixture(params=URIS)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    device = fresh(request.param)
    yield device
    assert device.statistics.live_handles == 0


class Thing:
    """A block that says when it was dropped."""

    def __init__(self, dropped: list[Thing], ready: bool = True) -> None:
        self.is_ready = ready
        self.dropped = dropped

    def ready(self) -> bool:
        return self.is_ready

    def drop(self) -> None:
        self.dropped.append(self)


# -- size classes --------------------------------------------------------------------------------------


@given(st.integers(1, 1 << 40))
def test_a_class_wastes_at_most_an_eighth(size: int) -> None:
    pool = Pool(1 << 50)
    capacity = pool.capacity(size)
    assert size <= capacity <= max(256, size + size / 8 + 256)
    assert pool.capacity(capacity) == capacity
    assert capacity % 64 == 0


def test_there_are_few_classes() -> None:
    pool = Pool()
    assert len({pool.capacity(size) for size in range(1 << 16, 1 << 17)}) <= 9


def test_what_is_larger_than_the_limit_is_not_rounded() -> None:
    assert Pool(1000).capacity(1001) == 1001


# -- the pool itself -----------------------------------------------------------------------------------


def test_the_newest_block_is_used_first_if_ready_else_the_oldest() -> None:
    pool, dropped = Pool(), []
    first, second, third = (Thing(dropped, ready=False) for _ in range(3))
    for block in (first, second, third):
        pool.give(512, block)
    assert pool.take(512) is None
    first.is_ready = True
    assert pool.take(512) is first
    assert pool.take(512) is None
    third.is_ready = second.is_ready = True
    assert pool.take(512) is third
    assert pool.take(512) is second
    assert pool.take(512) is None
    assert (pool.hits, pool.misses, pool.bytes_pooled, pool.bytes_peak) == (3, 3, 0, 1536)
    assert dropped == []


def test_past_the_limit_the_class_not_used_for_longest_goes_first() -> None:
    dropped: list[Thing] = []
    pool = Pool(3000)
    unused = Thing(dropped)
    pool.give(1000, Thing(dropped))
    pool.give(512, unused)
    again = pool.take(1000)
    assert again is not None
    pool.give(1000, again)
    pool.give(1488, Thing(dropped))
    assert dropped == []
    pool.give(512, Thing(dropped))
    assert dropped == [unused]
    assert pool.bytes_pooled == 3000


def test_trim_and_limit() -> None:
    dropped: list[Thing] = []
    pool = Pool(10_000)
    for _ in range(5):
        pool.give(1000, Thing(dropped))
    assert pool.trim(3000) == 2000
    assert (pool.bytes_pooled, len(dropped)) == (3000, 2)
    pool.limit = 1000
    assert (pool.bytes_pooled, len(dropped)) == (1000, 4)
    assert pool.trim() == 1000
    assert pool.trim() == 0
    assert pool.bytes_peak == 5000


def test_a_crowd_waits_for_the_device() -> None:
    pool = Pool(1 << 40)
    assert not pool.crowded(256)
    for _ in range(MAX_WAITING + 1):
        pool.give(256, Thing([], ready=False))
    assert pool.crowded(256)
    pool.give(2 * MAX_WAITING_BYTES, Thing([], ready=False))
    assert pool.crowded(2 * MAX_WAITING_BYTES)


def test_blocks_given_inside_the_pool_are_not_lost() -> None:
    """As by a finalizer that runs while the pool's lock is held, in this thread or another."""
    pool = Pool()
    with pool._lock:
        pool.give(512, Thing([]))
        assert pool.bytes_pooled == 0
    assert pool.take(512) is None
    assert pool.bytes_pooled == 512
    assert pool.take(512) is not None


def test_an_interrupt_leaves_no_lock_taken() -> None:
    """Wherever it comes: CPython looks for signals behind calls and jumps back, and where functions begin."""

    class Interrupt(BaseException):
        pass

    def interrupted_at(number: int) -> Callable[..., Any]:
        left = number
        last: dict[Any, str] = {}

        def trace(frame: Any, event: str, argument: Any) -> Any:
            nonlocal left
            if frame.f_code.co_filename != pool_module.__file__:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                looked = last.get(frame, "RESUME").startswith(("CALL", "JUMP_BACKWARD", "RESUME"))
                last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
                left -= looked
                if looked and left == 0:
                    raise Interrupt
            return trace

        return trace

    for number in itertools.count(1):
        pool = Pool(1 << 10)
        before = sys.gettrace()
        sys.settrace(interrupted_at(number))
        try:
            for _ in range(4):
                pool.give(512, Thing([]))
        except Interrupt:
            done = False
        else:
            done = True
        finally:
            sys.settrace(before)
        assert not pool._lock.locked()
        for _ in range(3):  # goes on, with a count that an interrupt may have left wrong
            pool.give(512, Thing([]))
        pool.trim()
        assert pool.bytes_pooled == 0
        assert pool.take(512) is None
        if done:
            break
    assert number > 30


def test_threads() -> None:
    pool, dropped = Pool(64 << 10), []

    def work() -> None:
        for turn in range(3000):
            capacity = 256 << turn % 4
            pool.give(capacity, pool.take(capacity) or Thing(dropped))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = pool.bytes_pooled
    assert 0 < left <= 64 << 10
    assert pool.trim() == left
    assert pool.bytes_pooled == 0
    assert pool.hits + pool.misses == 12_000


# -- on devices ----------------------------------------------------------------------------------------


def test_memory_is_used_again_and_its_state_is_not(device: Device) -> None:
    allocator = device.allocator
    first = allocator.allocate(SIZE)
    first.update(np.ones(SIZE, np.uint8))
    first.fill(0, None, b"\7")
    first.read()
    first.write()
    before = device.statistics
    first.release()
    device.wait_idle()
    now = device.statistics
    assert (now.live_handles, now.bytes_allocated) == (before.live_handles - 1, before.bytes_allocated - SIZE)
    assert now.bytes_pooled == SIZE
    for size in (SIZE, SIZE - 100):
        with allocator.allocate(size) as second:
            assert second.byte_length == size
            assert second.state is State.FRESH
            assert device.statistics.bytes_pooled == 0
            assert device.statistics.bytes_allocated == before.bytes_allocated - SIZE + size
            moved = device.statistics
            assert len(second.read()) == size
            assert device.statistics.bytes_down == moved.bytes_down
            second.fill(0, size // 4 * 4, b"abcd")
            assert bytes(second.read()[:4]) == b"abcd"
        device.wait_idle()
    assert device.pool.hits == 2


def test_memory_that_somebody_still_sees_is_not_used_again(device: Device) -> None:
    buffer = device.allocator.allocate(SIZE)
    buffer.fill(0, None, b"\1")
    array = np.frombuffer(buffer.read(), np.uint8)[5:]
    held = buffer.write()[:10]
    buffer.release()
    device.wait_idle()
    for _ in range(3):
        other = device.allocator.allocate(SIZE)
        other.fill(0, None, b"\2")
        other.write()[:] = b"\3" * SIZE
        other.release()
        device.wait_idle()
    assert (array == 1).all()
    held[5] = 9
    assert array[0] == 9
    del array, held
    with device.allocator.allocate(SIZE) as last:
        last.fill(0, None, b"\4")
        assert bytes(last.read()) == b"\4" * SIZE


def test_work_on_freed_memory_ends_before_the_host_writes_to_it(device: Device) -> None:
    """Copies out of a buffer that is freed and used again while they are enqueued see the old bytes."""
    size = 1 << 20
    for turn in range(20):
        source, targets = device.allocator.allocate(size), [device.allocator.allocate(size) for _ in range(4)]
        source.write(discard=True)[:] = bytes([turn]) * size
        for target in targets:
            target.fill(0, None, b"\xee")
            target.copy_from(source, 0, 0, size)
        source.release()
        with device.allocator.allocate(size) as again:
            again.write(discard=True)[:] = b"\xff" * size
        for target in targets:
            assert bytes(target.read()) == bytes([turn]) * size
            target.release()


def test_trim_gives_everything_back(device: Device) -> None:
    allocator = device.allocator
    for buffer in [allocator.allocate(SIZE) for _ in range(4)]:
        buffer.release()
    assert device.statistics.bytes_pooled == 4 * SIZE
    assert device.pool.bytes_peak == 4 * SIZE
    assert allocator.trim(2 * SIZE) == 2 * SIZE
    assert allocator.trim() == 2 * SIZE
    assert device.statistics.bytes_pooled == 0


def test_the_limit_may_be_set(device: Device) -> None:
    allocator = device.allocator
    allocator.pool_limit = 2 * SIZE
    for buffer in [allocator.allocate(SIZE) for _ in range(4)]:
        buffer.release()
    assert device.statistics.bytes_pooled == 2 * SIZE
    allocator.allocate(3 * SIZE).release()
    assert device.statistics.bytes_pooled == 2 * SIZE
    allocator.pool_limit = 0
    allocator.allocate(SIZE).release()
    assert device.statistics.bytes_pooled == 0
    with pytest.raises(InvalidArgument, match="found -1"):
        allocator.pool_limit = -1


def test_an_allocator_without_buffers_does_not_take_the_pool_along(device: Device) -> None:
    device.allocator.allocate(SIZE).release()
    gc.collect()
    device.allocator.allocate(SIZE).release()
    assert device.pool.hits == 1


def test_closing_empties_the_pool(device: Device) -> None:
    kept = device.allocator.allocate(SIZE)
    device.allocator.allocate(SIZE).release()
    device.close()
    assert device.statistics.bytes_pooled == 0
    kept.release()
    assert device.statistics.bytes_pooled == 0


def test_a_full_device_gets_its_pooled_memory_back(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    from halgpu.errors import ResourceExhausted

    device.allocator.allocate(SIZE).release()
    real = type(device).pooled_memory

    def full(self: Device, byte_length: int, capacity: int, block: Any) -> Any:
        if self.pool.bytes_pooled:
            raise ResourceExhausted("full")
        return real(self, byte_length, capacity, block)

    monkeypatch.setattr(type(device), "pooled_memory", full)
    device.allocator.allocate(2 * SIZE).release()


@pytest.mark.parametrize("uri", ["host?pool=0", "opencl?pool=0", "opencl?unified=0&pool=0"])
def test_a_uri_switches_it_off(uri: str) -> None:
    device = open_device(uri)
    device.allocator.allocate(SIZE).release()
    assert device.statistics.bytes_pooled == 0
    assert device.pool.limit == 0


@pytest.mark.parametrize(
    ("value", "uri", "limit"),
    [("0", "null", False), ("0", "null?pool=1", True), ("1", "null", True), ("", "null", True)],
)
def test_the_environment_switches_it_off(
    monkeypatch: pytest.MonkeyPatch, value: str, uri: str, limit: bool
) -> None:
    monkeypatch.setenv("HALGPU_POOL", value)
    assert bool(fresh(uri).pool.limit) is limit


def test_a_wrong_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALGPU_POOL", "no")
    with pytest.raises(InvalidArgument, match="HALGPU_POOL must be 0 or 1; found 'no'"):
        fresh("null")


DROP = """
import sys
from halgpu.devices import open_device
for _ in range(20):
    device = open_device(sys.argv[1])
    buffers = [device.allocator.allocate(8 << 20) for _ in range(3)]
    for buffer in buffers:
        buffer.fill(0, None, b"1234")
        buffer.copy_from(buffers[0], 0, 4, 1 << 20)
    del buffer, buffers, device
"""


@pytest.mark.parametrize("uri", URIS)
@pytest.mark.parametrize("pool", ["0", "1"])
def test_a_device_may_go_while_pooled_memory_is_in_use(uri: str, pool: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", DROP, uri],
        capture_output=True, text=True, timeout=60, env={**os.environ, "HALGPU_POOL": pool},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
