"""Allocators: alignment, counters, and that nothing is freed twice or the wrong way."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from halgpu import errors
from halgpu.vm import HostAllocator
from halgpu.vm.allocator import NULL_ALLOCATOR, AllocatorStatistics, checked_alignment


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).ctypes.data)


@pytest.mark.parametrize("alignment", [1, 2, 16, 64, 4096])
@pytest.mark.parametrize("length", [1, 7, 64, 100_000])
def test_memory_is_aligned_zeroed_and_writable(alignment: int, length: int) -> None:
    handle = HostAllocator().allocate_aligned(length, alignment)
    assert address(handle.memory) % alignment == 0
    assert handle.memory.tobytes() == bytes(length)
    assert (handle.memory.format, handle.memory.ndim, handle.memory.readonly) == ("B", 1, False)


def test_counters() -> None:
    allocator = HostAllocator()
    first, second = allocator.allocate_aligned(10, 16), allocator.allocate(5)
    assert allocator.statistics == AllocatorStatistics(2, 15, 15, 2, 0)
    allocator.free_aligned(first)
    third = allocator.allocate(1)
    assert allocator.statistics == AllocatorStatistics(2, 6, 15, 3, 1)
    allocator.free(second)
    allocator.free(third)
    assert allocator.statistics == AllocatorStatistics(0, 0, 15, 3, 3)


def test_empty_memory_counts_as_a_handle() -> None:
    allocator = HostAllocator()
    handle = allocator.allocate(0)
    assert allocator.statistics.live_handles == 1
    assert len(handle.memory) == 0


def test_freeing_twice_or_the_wrong_way_is_refused() -> None:
    allocator = HostAllocator()
    aligned, plain = allocator.allocate_aligned(4, 4), allocator.allocate(4)
    with pytest.raises(errors.FailedPrecondition, match="free_aligned"):
        allocator.free(aligned)
    with pytest.raises(errors.FailedPrecondition, match=r"through free\(\)"):
        allocator.free_aligned(plain)
    allocator.free(plain)
    with pytest.raises(errors.FailedPrecondition, match="twice"):
        allocator.free(plain)
    with pytest.raises(errors.InvalidArgument, match="found str"):
        allocator.free("handle")  # type: ignore[arg-type]
    assert allocator.statistics.live_handles == 1


def test_impossible_requests() -> None:
    allocator = HostAllocator()
    with pytest.raises(errors.ResourceExhausted, match=str(1 << 62)):
        allocator.allocate_aligned(1 << 62, 16)
    with pytest.raises(errors.ResourceExhausted):
        allocator.allocate(1 << 70)
    with pytest.raises(errors.InvalidArgument, match="negative"):
        allocator.allocate(-1)
    for alignment in (3, -8, 24):
        with pytest.raises(errors.InvalidArgument, match="power of two"):
            allocator.allocate_aligned(1, alignment)
    assert allocator.statistics.live_handles == 0


def test_alignment_zero_is_the_default() -> None:
    assert checked_alignment(0) == 16


def test_null_allocator_makes_nothing_and_ignores_ends() -> None:
    with pytest.raises(errors.FailedPrecondition):
        NULL_ALLOCATOR.allocate_aligned(1, 1)
    NULL_ALLOCATOR.free(object())
    NULL_ALLOCATOR.free_aligned(object())


def test_memory_outlives_its_end_while_a_view_is_held() -> None:
    allocator = HostAllocator()
    handle = allocator.allocate(4)
    view = handle.memory
    view[:] = b"abcd"
    allocator.free(handle)
    del handle
    assert bytes(view) == b"abcd"


FORK = """
import os, signal, threading
from halgpu.vm import HostAllocator

allocator = HostAllocator()
handle, held, finish = allocator.allocate(4), threading.Event(), threading.Event()

def hold():
    with allocator._lock:
        held.set()
        finish.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
process = os.fork()
if not process:
    signal.alarm(20)
    allocator.free(handle)
    allocator.allocate_aligned(3, 16)
    os._exit(allocator.statistics.live_bytes)
finish.set()
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 3
assert allocator.statistics.live_bytes == 4
"""


def test_a_child_forked_while_another_thread_counts_can_allocate() -> None:
    # Python 3.12 warns of any fork beside threads, which is what this is about.
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", FORK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
