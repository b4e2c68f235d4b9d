"""Long runs that must leave nothing behind: map/unmap cycles, and module calls of which a third raise midway.

    python ci/soak.py [--maps 100000] [--calls 10000] [DEVICE …]

Each device does both, after a tenth of them to warm up; then live handles and device bytes must be where they
were, and the process's memory within a few MiB. Needs the `test` extra. Exit status 1 with what leaked.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import halgpu
from halgpu import devices

DEVICES = ("opencl", "opencl?unified=0", "opencl?pool=0", "opencl?debug=1", "host", "null")
RESIDENT_LIMIT = 8 << 10
"""KiB that the process may grow: what the interpreter's and the C library's heaps vary by."""

PROGRAM = """
func.func @halfway(%x: tensor<1024xf32>) -> tensor<1024xf32> {
  %c0 = arith.constant 0 : index
  %limit = arith.constant 1.0e+03 : f32
  %doubled = arith.addf %x, %x : tensor<1024xf32>
  %first = tensor.extract %doubled[%c0] : tensor<1024xf32>
  %small = arith.cmpf olt, %first, %limit : f32
  cf.assert %small, "the first element is too large"
  %result = arith.mulf %doubled, %doubled : tensor<1024xf32>
  return %result : tensor<1024xf32>
}
"""
"""One dispatch, a look at its result, then an error or another dispatch."""

PASSING = """
func.func @halfway(%x: tensor<1024xf32>) -> tensor<1024xf32> {
  %c0 = arith.constant 0 : index
  %limit = arith.constant 5.0e+02 : f32
  %first = tensor.extract %x[%c0] : tensor<1024xf32>
  %small = arith.cmpf olt, %first, %limit : f32
  cf.assert %small, "the first element is too large"
  return %x : tensor<1024xf32>
}
"""
"""The same for devices that run no compiled kernels: a look at the argument, then an error or the argument."""

FLAGS = ("--iree-execution-model=inline-dynamic", "--iree-hal-target-device=vulkan")


class Leak(AssertionError):
    """Something was left behind."""


@dataclass(frozen=True)
class Held:
    """What the process holds: allocations of a device, their bytes, KiB of resident memory."""

    handles: int
    byte_length: int
    resident: int


def held(device: devices.Device) -> Held:
    """What is held now, once garbage and pooled memory are gone."""
    device.wait_idle()
    gc.collect()
    device.allocator.trim()
    return_free_heap()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    statistics = device.statistics
    return Held(statistics.live_handles, statistics.bytes_allocated, pages * 4)


def return_free_heap() -> None:
    """Have the C library give freed memory back, else a leak could hide in what was free before."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def flat(device: devices.Device, what: str, times: int, turn: Callable[[int], None]) -> str:
    """Call ``turn`` with 0 … ``times``; Leak unless what is held is then what it was. Returns a report."""
    for number in range(max(times // 10, 50)):
        turn(number)
    before, started = held(device), time.perf_counter()
    for number in range(times):
        turn(number)
    after, spent = held(device), time.perf_counter() - started
    report = (
        f"{device.uri}: {times} {what}: {after.handles - before.handles:+d} handles, "
        f"{after.byte_length - before.byte_length:+d} bytes, {after.resident - before.resident:+d} KiB resident, "
        f"{spent / times * 1e6:.0f} us each"
    )
    if (after.handles, after.byte_length) != (before.handles, before.byte_length):
        raise Leak(report)
    if after.resident - before.resident > RESIDENT_LIMIT:
        raise Leak(report)
    return report


def map_cycle(device: devices.Device) -> Callable[[int], None]:
    """One cycle: device work, a mapping (every other nested), a write, unmapping; now and then a new buffer."""
    sizes = (64, 4096, 65536)
    kept = [device.allocator.allocate(size) for size in sizes]
    access = devices.MemoryAccess.READ | devices.MemoryAccess.WRITE

    def cycle(number: int) -> None:
        index = number % len(sizes)
        if number % 7 == 0:
            kept[index] = device.allocator.allocate(sizes[index])
        buffer = kept[index]
        buffer.fill(0, None, b"\1\2\3\4")
        with buffer.map(access) as mapping:
            if number % 2:
                with buffer.subspan(16).map(devices.MemoryAccess.READ, 0, 4) as nested:
                    assert nested.contents[0] == 1
            mapping.contents[0] = 7

    return cycle


def call(module: halgpu.Module) -> Callable[[int], None]:
    """One call: with a numpy array, every other with the result of the one before; each third raises midway."""
    expected = 36.0 if computes(module.device) else 3.0
    good = np.full(1024, 3, np.float32)
    bad = np.full(1024, 600, np.float32)
    function = module.halfway

    def turn(number: int) -> None:
        if number % 3 == 0:
            try:
                function(bad)
            except halgpu.errors.FailedPrecondition:
                return
            raise AssertionError("a call that had to raise did not")
        result = function(good)
        if number % 2:
            assert np.asarray(result)[0] == expected

    return turn


def computes(device: devices.Device) -> bool:
    """Whether a device runs the kernels of PROGRAM."""
    return device.capabilities.kind not in ("host", "null")


def compile_program(folder: Path, text: str) -> bytes:
    """A program, by stock iree-compile."""
    source, target = folder / "soak.mlir", folder / "soak.vmfb"
    source.write_text(text)
    tool = Path(sys.executable).with_name("iree-compile")
    subprocess.run([str(tool), *FLAGS, str(source), "-o", str(target)], check=True)
    return target.read_bytes()


def soak(
    uri: str, program: bytes, maps: int, calls: int, also: Callable[[Any], None] | None = None
) -> list[str]:
    """Run both on a device and return reports. ``also`` is called after each turn, for a test to leak in."""
    device = devices.open_device(uri)
    with halgpu.load(program, device=device) as module:
        reports = []
        for what, times, turn in (
            ("map/unmap cycles", maps, map_cycle(device)),
            ("calls, a third raising", calls, call(module)),
        ):
            reports.append(flat(device, what, times, turn if also is None else _both(turn, also, device)))
        return reports


def _both(
    turn: Callable[[int], None], also: Callable[[Any], None], device: devices.Device
) -> Callable[[int], None]:
    def both(number: int) -> None:
        turn(number)
        also(device)

    return both


def main() -> int:
    """Soak the devices named, or all of DEVICES."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--maps", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("devices", nargs="*", default=DEVICES)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        programs = {
            True: compile_program(Path(folder), PROGRAM),
            False: compile_program(Path(folder), PASSING),
        }
    for uri in chosen.devices:
        program = programs[computes(devices.open_device(uri))]
        try:
            for report in soak(uri, program, chosen.maps, chosen.calls):
                print(report, flush=True)
        except Leak as leak:
            print(f"LEAK {leak}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
