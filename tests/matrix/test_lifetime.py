"""Everything is freed exactly once: in any order, in cycles, by other threads, and at the process's end."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from halgpu.devices import Allocator, Device, Kernel, MemoryAccess
from halgpu.devices.memory import Memory

Kernels = dict[str, Kernel]


def watch_frees(monkeypatch: pytest.MonkeyPatch, device: Device) -> list[Memory]:
    """Return a list that grows by each allocation whose memory goes back to the device or its pool."""
    real, freed = Allocator.reclaim, []
    gc.collect()

    def reclaim(allocator: Allocator, memory: Memory, byte_length: int) -> None:
        if allocator.device is device:
            freed.append(memory)
        real(allocator, memory, byte_length)

    monkeypatch.setattr(Allocator, "reclaim", reclaim)
    return freed


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_any_order_of_dropping_frees_once(
    device: Device, kernels: Kernels, monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...]
) -> None:
    freed = watch_frees(monkeypatch, device)
    before = device.statistics
    root = device.allocator.allocate(100)
    kernels["scale"].dispatch(1, (4, 2), [(root, 0, 100)])
    holders: list[Any] = [root, root.subspan(8), root.map(MemoryAccess.ALL & ~MemoryAccess.DISCARD), None]
    holders[3] = holders[1].map(MemoryAccess.READ)
    del root
    for count, index in enumerate(order):
        assert len(freed) == 0, f"freed after {count} of 4 holders were dropped"
        holders[index] = None
    assert len(freed) == 1
    after = device.statistics
    assert (after.live_handles, after.bytes_allocated) == (before.live_handles, before.bytes_allocated)


def test_cycles_are_freed_by_the_garbage_collector(
    device: Device, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed = watch_frees(monkeypatch, device)
    gc.collect()
    for _ in range(50):
        cycle: list[Any] = [device, *kernels.values(), device.allocator]
        buffer = device.allocator.allocate(64)
        kernels["scale"].dispatch(1, (4, 2), [(buffer, 0, 64)])
        cycle += [buffer, buffer.subspan(3), buffer.map(MemoryAccess.READ), buffer.read(), cycle]
    del cycle, buffer
    gc.collect()
    assert len(freed) == len(set(freed)) == 50


def test_threads_that_work_and_a_thread_that_collects(device: Device, kernels: Kernels) -> None:
    before = device.statistics
    stop = threading.Event()
    wrong: list[Any] = []

    def collect() -> None:
        while not stop.wait(0.001):
            gc.collect(0)

    def work(number: int) -> None:
        try:
            for turn in range(60):
                data = np.full(16, number * 1000 + turn, np.int32)
                buffer = device.allocator.allocate(64)
                holder: list[Any] = [buffer]
                holder.append(holder)  # only the collector frees it
                buffer.update(data)
                kernels["scale"].dispatch(4, (16, 3), [(buffer, 0, 64)])
                found = np.frombuffer(buffer.read(), np.int32)
                if not np.array_equal(found, data * (1 if device.capabilities.kind == "null" else 3)):
                    wrong.append((number, turn, found))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    collector = threading.Thread(target=collect)
    for thread in [collector, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    collector.join()
    gc.collect()
    assert wrong == []
    after = device.statistics
    assert (after.live_handles, after.bytes_allocated) == (before.live_handles, before.bytes_allocated)
    assert after.dispatches == before.dispatches + 240


def resident_kib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4


@pytest.fixture(scope="session")
def held(python_file: Callable[[Path], ModuleType]) -> Callable[[Device], object]:
    """ci/soak.py's, which gives back all free memory first: else a leak could hide in what was free before."""
    return python_file(Path(__file__).resolve().parents[2] / "ci" / "soak.py").held


def leaked(
    device: Device, kernels: Kernels, turns: int, keep: list[Any] | None, held: Callable[[Device], object]
) -> tuple[int, int, int]:
    """Return handles, bytes and KiB of process memory that `turns` uses of 1 MiB buffers left behind."""

    def use() -> None:
        buffer = device.allocator.allocate(1 << 20)
        buffer.write(discard=True)[:] = b"\1\0\0\0" * (1 << 18)
        kernels["scale"].dispatch(1, (1, 2), [(buffer, 0, 4)])
        with buffer.map(MemoryAccess.READ) as mapping:
            assert mapping.contents[0] == (1 if device.capabilities.kind == "null" else 2)
        if keep is not None:
            keep.append(buffer)

    for _ in range(20):
        use()
    held(device)
    before, resident = device.statistics, resident_kib()
    for _ in range(turns):
        use()
    after = device.statistics
    return (
        after.live_handles - before.live_handles,
        after.bytes_allocated - before.bytes_allocated,
        resident_kib() - resident,
    )


@pytest.mark.plain  # which keeps freed memory for a while
def test_nothing_leaks(device: Device, kernels: Kernels, held: Callable[[Device], object]) -> None:
    handles, size, resident = leaked(device, kernels, 100, None, held)
    assert (handles, size) == (0, 0)
    assert resident < 30 << 10


@pytest.mark.plain
def test_the_leak_check_catches_a_leak(
    device: Device, kernels: Kernels, held: Callable[[Device], object]
) -> None:
    keep: list[Any] = []
    handles, size, resident = leaked(device, kernels, 100, keep, held)
    assert (handles, size) == (100, 100 << 20)
    assert resident > 30 << 10


def test_freed_memory_is_not_hoarded_while_nothing_is_waited_for(device: Device, kernels: Kernels) -> None:
    resident = resident_kib()
    for _ in range(60):
        buffer = device.allocator.allocate(8 << 20)
        buffer.fill(0, None, b"\1")
        kernels["scale"].dispatch(1, (1, 2), [(buffer, 0, 4)])
        del buffer
    assert resident_kib() - resident < 256 << 10
    device.wait_idle()


def test_buffers_and_kernels_keep_a_device_alive(device: Device) -> None:
    with device.allocator.allocate(4) as buffer:
        assert buffer.device is device
        assert buffer.root is not None
        assert buffer.root.device is device


SCRIPT = """
import gc, sys, threading, time
from halgpu.devices import KernelLayout, BindingLayout, MemoryAccess, Program, open_device
uri, mode = sys.argv[1:]
device = open_device(uri)
layout = KernelLayout("scale", 1, (BindingLayout(),), (1, 1, 1))
source = '''typedef struct { ulong offsets[1]; uint constants[1]; } arguments_t;
__kernel void scale(__global uchar* data, arguments_t arguments) {
  *(__global int*)(data + arguments.offsets[0]) *= (int)arguments.constants[0]; }'''
language = min(device.capabilities.languages, default="any")
if language == "cuda-c":
    source = source.replace("__kernel", 'extern "C" __global__').replace("__global ", " ")
    source = "#define ulong unsigned long long\\n#define uint unsigned\\n#define uchar unsigned char\\n" + source
kernel, = device.build(Program(language, source, (layout,), callables=(lambda *arguments: None,) * (language == "python")))
buffers = [device.allocator.allocate(1 << 16) for _ in range(20)]
for buffer in buffers:
    buffer.write()[:4] = b"1234"
    kernel.dispatch(1, [3], [(buffer, 0, 4)])
mapping = buffers[3].map(MemoryAccess.READ | MemoryAccess.WRITE)
view, contents = buffers[4].read(), mapping.contents
for buffer in buffers:
    kernel.dispatch(1, [3], [(buffer, 0, 4)])
if mode == "cycle":
    class Holder: pass
    holder = Holder()
    holder.all = (holder, device, kernel, buffers, mapping, view, contents)
    del holder, device, kernel, buffers, buffer, mapping, view, contents
elif mode == "daemon":
    def work():
        while True:
            buffer = device.allocator.allocate(4096)
            kernel.dispatch(1, [3], [(buffer, 0, 4)])
            buffer.read()
    threading.Thread(target=work, daemon=True).start()
    time.sleep(0.2)
elif mode == "atexit":
    import atexit
    atexit.register(lambda: (kernel.dispatch(1, [3], [(buffers[0], 0, 4)]), bytes(buffers[0].read())))
elif mode == "device first":
    del device
elif mode == "raise":
    sys.exit(7)
elif mode == "close":
    import warnings
    warnings.simplefilter("ignore", ResourceWarning)  # the debug allocator's, of each buffer alive
    device.close()
    del kernel
elif mode == "fork":
    import os
    child = os.fork()
    from halgpu.errors import FailedPrecondition
    if not child:
        seen = 0
        for use in (lambda: device.allocator.allocate(4), device.wait_idle, lambda: buffers[6].fill(0, 4, b"1234"), lambda: kernel.dispatch(1, [3], [(buffers[0], 0, 4)]),
                    lambda: device.build(None), lambda: open_device(uri).wait_idle() or 1 / 0, lambda: buffers[5].write()):
            try:
                use()
            except (FailedPrecondition, ZeroDivisionError) as error:
                seen += "fork" in str(error)
        os._exit(seen)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) >= 5
"""


@pytest.mark.parametrize(
    "mode", ["plain", "cycle", "daemon", "atexit", "device first", "raise", "close", "fork"]
)
def test_a_process_ends_cleanly_with_everything_alive(matrix_entry: dict[str, Any], mode: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", SCRIPT, matrix_entry["uri"], mode],
        capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (7 if mode == "raise" else 0, "", "")


def test_a_device_is_closed_when_the_last_holder_goes(matrix_entry: dict[str, Any]) -> None:
    from halgpu.devices.registry import _backend, parse_uri

    uri = parse_uri(matrix_entry["uri"])
    device = _backend(uri.scheme).open_device(str(uri), uri.index, uri.options)
    buffer = device.allocator.allocate(4)
    gone = weakref.ref(device)
    del device
    buffer.write()[:] = b"abcd"
    assert gone() is not None
    del buffer
    assert gone() is None
