"""The debug allocator: each kind of misuse is found, with the place where the buffer was allocated."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable

import numpy as np
import pytest

from halgpu.devices import (
    BindingLayout,
    Buffer,
    Device,
    KernelLayout,
    MemoryAccess,
    Program,
    open_device,
    registry,
)
from halgpu.devices.debug_allocator import GUARD_BYTES, MAX_QUARANTINE, DebugAllocator, DebugRoot
from halgpu.errors import DataLoss

URIS = ["host?debug=1", "opencl?debug=1", "opencl?debug=1&unified=0"]


@pytest.fixture(params=URIS)
def device(request: pytest.FixtureRequest) -> Device:
    uri = registry.parse_uri(request.param)
    device = registry._backend(uri.scheme).open_device(str(uri), uri.index, uri.options)
    device.configure(uri.options)
    return device


def allocator(device: Device) -> DebugAllocator:
    found = device.allocator
    assert isinstance(found, DebugAllocator)
    return found


def make(device: Device, size: int = 100) -> Buffer:
    return device.allocator.allocate(size)  # the place of allocation


PLACE = r"test_debug_allocator\.py:\d+ in make"


def host_poke(device: Device, buffer: Buffer, at: int, count: int) -> None:
    """Write beyond a view, as a stray pointer would."""
    buffer.write()
    root = buffer.root
    assert root is not None
    view = root.host(write=True)
    view[buffer.offset + at : buffer.offset + at + count] = b"\x11" * count


SOURCE = """typedef struct { ulong offsets[1]; uint constants[2]; } poke_arguments;
__kernel void poke(__global uchar* data, poke_arguments arguments) {
  for (uint i = 0; i < arguments.constants[1]; ++i)
    (data + arguments.offsets[0])[(int)arguments.constants[0] + (int)i] = 0x11;
}
"""


def within(workgroups: tuple[int, ...], constants: tuple[int, ...], bindings: list[memoryview]) -> None:
    """What a Python kernel can do: it gets its range and no more."""
    start, count = constants
    bindings[0][start : start + count] = b"\x11" * count


def kernel_poke(device: Device, buffer: Buffer, at: int, count: int) -> None:
    """Write to a binding from a kernel, or outside of it."""
    (language,) = device.capabilities.languages
    layout = KernelLayout("poke", 2, (BindingLayout(),), (1, 1, 1))
    (kernel,) = device.build(Program(language, SOURCE, (layout,), callables=(within,)))
    kernel.dispatch(1, [at, count], [(buffer, 0, buffer.byte_length)])


POKES = [(uri, host_poke) for uri in URIS] + [(uri, kernel_poke) for uri in URIS if "host" not in uri]


@pytest.mark.parametrize(("device", "poke"), POKES, indirect=["device"])
@pytest.mark.parametrize(
    ("at", "count", "words"),
    [
        (100, 1, "1 bytes behind buffer"),
        (100 + GUARD_BYTES - 3, 3, "3 bytes behind buffer"),
        (-1, 1, "1 bytes in front of buffer"),
        (-GUARD_BYTES, 2, "2 bytes in front of buffer"),
        (98, 6, "4 bytes behind buffer"),
    ],
)
@pytest.mark.parametrize("when", ["release", "drop", "check", "wait", "close", "subspan"])
def test_writes_outside_are_found(
    device: Device, poke: Callable[..., None], at: int, count: int, words: str, when: str
) -> None:
    buffers = [make(device)]
    poke(device, buffers[0], at, count)
    with pytest.raises(DataLoss, match=words) as caught:
        end(device, buffers, when)
    assert f"of 100 bytes, allocated at {__file__}" in caught.value.message
    assert " in make, were written" in caught.value.message
    assert "found 11" in caught.value.message
    assert f"in {test_writes_outside_are_found.__name__}" in (caught.value.details or "")
    if when in ("check", "wait"):
        with pytest.raises(DataLoss):
            buffers[0].release()
    elif when != "close":
        allocator(device).check()  # said once


def end(device: Device, buffers: list[Buffer], when: str) -> None:
    """Bring about a check of the one buffer."""
    match when:
        case "release":
            buffers[0].release()
        case "drop":
            buffers.clear()
            make(device)
        case "check":
            allocator(device).check()
        case "wait":
            device.wait_idle()
        case "close":
            device.close()
        case "subspan":
            span = buffers[0].subspan(10, 20)
            buffers[0].release()
            span.release()


def test_what_is_within_is_fine(device: Device) -> None:
    buffer = make(device)
    buffer.update(np.arange(100, dtype=np.uint8))
    kernel_poke(device, buffer, 0, 100)
    allocator(device).check()
    assert bytes(buffer.read()) == b"\x11" * 100
    buffer.fill(0, None, b"\x22")
    span = buffer.subspan(40, 20).subspan(4, 8)
    span.write(discard=True)[:] = b"12345678"
    assert bytes(buffer.read()) == b"\x22" * 44 + b"12345678" + b"\x22" * 48
    with buffer.map(MemoryAccess.DISCARD_WRITE) as mapping:
        mapping.contents[:] = bytes(100)
    buffer.release()
    span.release()
    allocator(device).check()


def test_new_bytes_and_freed_bytes_have_patterns(device: Device) -> None:
    buffer = make(device)
    assert bytes(buffer.read()) == b"\xcd" * 100
    with make(device) as other:
        other.copy_from(buffer, 0, 0, 100)
        kernel_poke(device, other, 0, 1)
        assert bytes(other.read()) == b"\x11" + b"\xcd" * 99
    held = buffer.read()
    buffer.release()
    assert bytes(held) == b"\xdd" * 100


def test_writes_to_freed_bytes_are_found(device: Device) -> None:
    buffer = make(device)
    held = buffer.write()
    buffer.release()
    held[7] = 1
    with pytest.raises(DataLoss, match=rf"1 bytes to the freed bytes of .*{PLACE}.*first at byte 7"):
        allocator(device).check()


def test_writes_to_freed_bytes_are_found_when_they_leave_the_quarantine(device: Device) -> None:
    buffer = make(device)
    held = buffer.write()
    buffer.release()
    held[7] = 1
    with pytest.raises(DataLoss, match="freed bytes"):
        fill_quarantine(device)


def fill_quarantine(device: Device) -> None:
    for _ in range(MAX_QUARANTINE + 1):
        make(device).release()


def test_leaks_are_listed_with_their_place(device: Device) -> None:
    assert allocator(device).leaks() == ()
    first, second = make(device, 10), make(device, 20)
    span = first.subspan(2)
    assert [leak.byte_length for leak in allocator(device).leaks()] == [10, 20]
    first.release()
    second.release()
    (leak,) = allocator(device).leaks()
    assert leak.byte_length == 10
    assert leak.place.endswith("in make")
    assert leak.frames[1].endswith(f"in {test_leaks_are_listed_with_their_place.__name__}")
    span.release()
    assert allocator(device).leaks() == ()


def test_closing_warns_of_leaks(device: Device) -> None:
    kept = make(device)
    with pytest.warns(ResourceWarning, match=rf"of 100 bytes, allocated at .*{PLACE}, was never released"):
        device.close()
    kept.release()


def test_closing_warns_of_nothing_else(device: Device) -> None:
    make(device).release()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        device.close()


def test_a_free_comes_once(device: Device) -> None:
    buffer = make(device)
    root = buffer.root
    assert root is not None
    ledger = device.ledger
    assert ledger is not None
    assert isinstance(root, DebugRoot)
    assert root.allocation is not None
    ledger.forget(root.allocation)
    with pytest.raises(AssertionError, match=rf"of 100 bytes, allocated at .*{PLACE} was freed twice"):
        ledger.forget(root.allocation)
    ledger.begin(root)


def test_statistics_return_to_where_they_were(device: Device) -> None:
    before = device.statistics
    buffers = [make(device) for _ in range(5)]
    assert device.statistics.live_handles == before.live_handles + 5
    cycle: list[object] = [buffers]
    cycle.append(cycle)
    del buffers, cycle
    gc.collect()
    after = device.statistics
    assert (after.live_handles, after.bytes_allocated) == (before.live_handles, before.bytes_allocated)
    assert after.bytes_pooled == 0


def test_the_environment_switches_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALGPU_DEBUG_ALLOCATOR", "1")
    uri = registry.parse_uri("null")
    device = registry._backend("null").open_device(str(uri), 0, {})
    assert isinstance(device.allocator, DebugAllocator)
    assert not isinstance(open_device("null?debug=0").allocator, DebugAllocator)


REPORT = """
from halgpu.devices import open_device
device = open_device("host?debug=1")
buffer = device.allocator.allocate(16)
buffer.root.host(write=True)[buffer.offset + 16] = 1
del buffer, device
"""


def test_what_nobody_asked_for_is_printed_at_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", REPORT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "halgpu debug allocator: 1 bytes behind buffer" in done.stderr
    assert "<string>:4 in <module>" in done.stderr


LIVE = """
import sys
from halgpu.devices import MemoryAccess, open_device
device = open_device(sys.argv[1])
buffers = [device.allocator.allocate(1 << 12) for _ in range(8)]
for buffer in buffers:
    buffer.fill(0, None, b"1234")
mapping = buffers[3].map(MemoryAccess.READ | MemoryAccess.WRITE)
view, contents = buffers[4].read(), mapping.contents
class Holder: pass
holder = Holder()
holder.all = (holder, device, buffers, mapping, view)
del device, buffers, mapping
"""


@pytest.mark.parametrize("uri", URIS)
def test_a_process_ends_cleanly_with_everything_alive(uri: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", LIVE, uri],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_windows_left_behind_are_no_damage(device: Device) -> None:
    """A buffer written while its bytes are seen through a window moves, guards and all (windows.py)."""
    from halgpu.devices.windows import open_window

    buffer = make(device)
    buffer.fill(0, None, b"\x33")
    seen = open_window(buffer)
    buffer.fill(0, 50, b"\x44")
    assert bytes(seen) == b"\x33" * 100
    assert bytes(buffer.read()) == b"\x44" * 50 + b"\x33" * 50
    host_poke(device, buffer, 100, 1)
    with pytest.raises(DataLoss, match="1 bytes behind buffer"):
        buffer.release()
    assert allocator(device).leaks() == ()
    del seen
    allocator(device).check()
    assert device.statistics.live_handles == 0


def test_threads(device: Device) -> None:
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            for turn in range(50):
                with device.allocator.allocate(64) as buffer:
                    buffer.fill(0, None, bytes([turn]))
                    cycle: list[object] = [buffer.subspan(8)]
                    cycle.append(cycle)
                    assert bytes(buffer.read()) == bytes([turn]) * 64
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        gc.collect()
        time.sleep(0.01)  # a collection holds the interpreter's lock all the time
    assert wrong == []
    gc.collect()
    assert allocator(device).leaks() == ()
    assert device.statistics.live_handles == 0
