"""How native kernels are run: every workgroup once, on any number of threads, on aligned bytes."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import native_samples
import numpy as np
import pytest
from native_samples import COUNT, LOOK, MACHINE, Library

from halgpu import errors
from halgpu.devices import Device, open_device
from halgpu.executables.native import abi, workgroups
from halgpu.executables.native.kernel import NativeKernel

NEVER = 0xFFFFFFFF
"""Constant 0 of COUNT where no workgroup is to fail."""


@pytest.fixture
def device() -> Device:
    return open_device("host?debug=0")


def kernel_of(device: Device, program: dict[str, str] = COUNT, **more: Any) -> NativeKernel:
    return NativeKernel(device, Library(), native_samples.export(program, **more), MACHINE)


def count(kernel: NativeKernel, grid: tuple[int, ...], fails: int = NEVER) -> np.ndarray:
    counts = np.zeros(np.prod(grid), np.int32)
    aligned = kernel.device.allocator.allocate(counts.nbytes)
    aligned.write()[:] = bytes(counts.nbytes)
    kernel.dispatch(grid, (fails,), [aligned])
    return np.frombuffer(aligned.read(), np.int32).copy()


@pytest.mark.parametrize("threads", ["1", "2", "7", ""])
@pytest.mark.parametrize("grid", [(1, 1, 1), (5, 7, 3), (100_000, 1, 1), (1, 300, 2), (3, 1, 65535)])
def test_every_workgroup_runs_once(threads, grid, device, monkeypatch):
    monkeypatch.setenv("HALGPU_THREADS", threads)
    kernel = kernel_of(device)
    for _ in range(2):  # the second time with what is known of the first
        assert (count(kernel, grid) == 1).all()


@pytest.mark.parametrize("threads", ["1", "4"])
def test_a_workgroup_that_fails_is_named_and_ends_the_dispatch(threads, device, monkeypatch):
    monkeypatch.setenv("HALGPU_THREADS", threads)
    kernel = kernel_of(device)
    with pytest.raises(
        errors.Internal,
        match=r"kernel 'k' failed in workgroup \(3, 2, 1\) of \(5, 7, 3\): its code returned -1",
    ):
        count(kernel, (5, 7, 3), fails=(1 * 7 + 2) * 5 + 3)
    with pytest.raises(errors.Internal, match=r"workgroup \(10, 0, 0\)"):
        count(kernel, (10_000_000, 1, 1), fails=10)
    assert (count(kernel, (5, 7, 3)) == 1).all()


def test_local_memory_is_of_the_size_asked_for_and_aligned(device, monkeypatch):
    monkeypatch.setenv("HALGPU_THREADS", "3")
    seen = device.allocator.allocate(24)
    for size in (0, 4096, 65535 * 4096):
        kernel_of(device, LOOK, constants=0, local_memory=size).dispatch((2, 1, 1), (), [seen])
        address, found, threads = np.frombuffer(seen.read(), np.int64)
        assert (found, threads) == (size, 2)
        assert (address != 0) == (size != 0)
        assert address % 4096 == 0
    kernel_of(device, LOOK, constants=0, sequential=True).dispatch((2, 1, 1), (), [seen])
    assert np.frombuffer(seen.read(), np.int64)[2] == 1


def test_grids_that_the_abi_has_no_bits_for(device):
    kernel = kernel_of(device)
    with pytest.raises(errors.OutOfRange, match="workgroup count z is 65536"):
        count(kernel, (1, 1, 65536))
    with pytest.raises(errors.OutOfRange, match=r"kernel 'k': \d+ workgroups are more than"):
        kernel.dispatch((2**32 - 1, 2**32 - 1, 2), (NEVER,), [device.allocator.allocate(4)])


@pytest.mark.parametrize("value", ["0", "many", "-1", "1025"])
def test_wrong_thread_counts_are_refused(value, device, monkeypatch):
    monkeypatch.setenv("HALGPU_THREADS", value)
    with pytest.raises(errors.InvalidArgument, match=f"HALGPU_THREADS must be .* found '{value}'"):
        kernel_of(device)


# Alignment -------------------------------------------------------------------------------------------


def unaligned(byte_length: int) -> memoryview:
    storage = np.zeros(byte_length + 64 + 4, np.uint8)
    start = -storage.__array_interface__["data"][0] % 64 + 4
    return storage[start : start + byte_length].data


def test_bytes_elsewhere_go_through_an_aligned_copy(device):
    data = unaligned(44)
    kernel_of(device).dispatch((10, 1, 1), (NEVER,), [(data, 0, 40)])
    assert np.frombuffer(data, np.int32).tolist() == [1] * 10 + [0]


def test_the_code_is_given_the_aligned_address(device):
    data = unaligned(24)
    other = device.allocator.allocate(64)
    probe = kernel_of(device, LOOK, constants=0)
    seen = probe._bindings
    probe.dispatch(1, (), [(data, 0, 24)])
    assert seen[0] % 64 == 0
    probe.dispatch(1, (), [(other, 0, 24)])
    assert seen[0] % 64 == 0


def test_unaligned_bindings_that_begin_together_share_their_copy(device):
    data = unaligned(40)
    kernel = kernel_of(device, bindings=2)
    for first, second in ((40, 8), (8, 40)):
        kernel.dispatch((first // 4, 1, 1), (NEVER,), [(data, 0, first), (data, 0, second)])
    assert np.frombuffer(data, np.int32).tolist() == [2, 2, *[1] * 8]


def test_unaligned_overlap_is_refused(device):
    data = unaligned(128)
    before = bytes(data)
    with pytest.raises(
        errors.InvalidArgument,
        match="kernel 'k': bindings 0 and 1 overlap, one may be written, and one does not begin",
    ):
        kernel_of(device, bindings=2).dispatch((1, 1, 1), (NEVER,), [(data, 0, 40), (data, 36, 40)])
    assert bytes(data) == before
    # Next to each other is fine, and so is what is only read.
    kernel_of(device, bindings=2).dispatch((1, 1, 1), (NEVER,), [(data, 0, 40), (data, 40, 40)])
    locked = data.toreadonly()
    kernel_of(device, bindings=3).dispatch(
        (1, 1, 1), (NEVER,), [(data, 80, 4), (locked, 0, 40), (locked, 36, 40)]
    )
    assert data[80] == 1


def test_an_empty_binding_has_an_address_of_nothing(device):
    data = device.allocator.allocate(4)
    data.write()[:] = bytes(4)
    kernel_of(device, bindings=2).dispatch(1, (NEVER,), [data, (data, 4, 0)])
    assert bytes(data.read()) == b"\1\0\0\0"


# Threads ---------------------------------------------------------------------------------------------


def test_other_python_threads_run_meanwhile(device, monkeypatch):
    monkeypatch.setenv("HALGPU_THREADS", "1")
    kernel = kernel_of(device)
    buffer = device.allocator.allocate(4 * 2_000_000)
    buffer.write()[:] = bytes(8_000_000)
    done = threading.Event()
    turns = 0

    def dispatch() -> None:
        for _ in range(20):
            kernel.dispatch((2_000_000, 1, 1), (NEVER,), [buffer])
        done.set()

    worker = threading.Thread(target=dispatch)
    worker.start()
    while not done.wait(0.001):
        turns += 1
    worker.join()
    assert turns > 5
    assert np.frombuffer(buffer.read(), np.int32).tolist()[:3] == [20, 20, 20]


FORK = """
import os, sys, warnings
warnings.simplefilter("ignore")  # of Python 3.12, of forks of a process with threads
sys.path.insert(0, sys.argv[1])
import numpy as np
import test_native_kernels as tests
from halgpu.devices import open_device

def run():
    kernel = tests.kernel_of(open_device("host?debug=0"))
    assert (tests.count(kernel, (200_000, 1, 1)) == 1).all()

run()
child = os.fork()
if not child:
    code = 1
    try:
        run()
        code = 0
    finally:
        os._exit(code)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_has_threads_of_its_own():
    folder = str(Path(__file__).parent)
    environment = {**os.environ, "HALGPU_THREADS": "3"}
    done = subprocess.run(
        [sys.executable, "-c", FORK, folder], env=environment, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


class InterruptedQueue:
    """As if a signal came when a thread had just begun the first part that it was given."""

    def __init__(self, begun: threading.Event) -> None:
        self._real, self._begun = workgroups._waiting, begun

    def put(self, part: Any) -> None:
        self._real.put(part)
        assert self._begun.wait(10)
        raise KeyboardInterrupt


def test_no_thread_is_at_work_after_an_interrupt(monkeypatch):
    begun, ended, at_work = [], [], threading.Event()

    def function(address):
        begun.append(address)
        at_work.set()
        time.sleep(0.1)
        ended.append(address)
        return 0

    jobs = [abi.Job() for _ in range(3)]
    workgroups._start_threads(2)
    monkeypatch.setattr(workgroups, "_waiting", InterruptedQueue(at_work))
    with pytest.raises(KeyboardInterrupt):
        workgroups.run(function, jobs)
    assert begun == ended == [ctypes.addressof(jobs[1])]


def test_a_part_that_no_thread_has_begun_never_begins():
    calls: list[int] = []
    part = workgroups._Part(calls.append, abi.Job())
    for _ in range(2):  # an interrupted step is taken again
        part.join()
    part()
    assert calls == []


def test_an_interrupted_preparation_is_made_again(device, monkeypatch):
    monkeypatch.setenv("HALGPU_THREADS", "1")
    kernel = kernel_of(device)
    assert (count(kernel, (5, 7, 3)) == 1).all()
    worker = NativeKernel._worker

    def interrupted(kernel):
        raise KeyboardInterrupt

    monkeypatch.setattr(NativeKernel, "_worker", interrupted)
    kernel._workers.clear()
    with pytest.raises(KeyboardInterrupt):
        count(kernel, (2, 2, 2))
    monkeypatch.setattr(NativeKernel, "_worker", worker)
    assert (count(kernel, (5, 7, 3)) == 1).all()


def test_a_long_number_of_threads_is_refused(device, monkeypatch):
    monkeypatch.setenv("HALGPU_THREADS", "9" * 5000)
    with pytest.raises(errors.InvalidArgument, match="HALGPU_THREADS must be"):
        kernel_of(device)
