"""Bytes moved over bytes necessary, and the time of a call beyond its kernel beside raw PyOpenCL, in one run.

    python benchmarks/transfers.py [--json FILE [--note TEXT]] [DEVICE …]

Needs the `test` extra. Raw PyOpenCL launches the very kernel that halgpu built, with buffers of its own: made,
filled, launched and read anew each call, as a program without halgpu would. "Kernel" is a launch and a wait for
it; what a call takes more is its overhead. Ratios compare both ways of working on the same machine, minute and
driver; times of rounds alternate, and the best of each counts. The last part compares the pool with no pool.
"""

from __future__ import annotations

import argparse
import json
import struct
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
from halgpu.devices.opencl_programs import OpenCLKernel

DEVICES = ("opencl", "opencl?unified=0")
SIZES = (1024, 1 << 20)
"""Elements of f32."""

CHAIN = 4
PROGRAM = """
func.func @one(%x: tensor<{n}xf32>) -> tensor<{n}xf32> {{
  %y = arith.addf %x, %x : tensor<{n}xf32>
  return %y : tensor<{n}xf32>
}}
func.func @two(%x: tensor<{n}xf32>) -> (tensor<{n}xf32>, tensor<{n}xf32>) {{
  %y = arith.addf %x, %x : tensor<{n}xf32>
  %barrier = util.optimization_barrier %y : tensor<{n}xf32>
  %z = arith.mulf %barrier, %x : tensor<{n}xf32>
  return %y, %z : tensor<{n}xf32>, tensor<{n}xf32>
}}
"""
FLAGS = ("--iree-execution-model=inline-dynamic", "--iree-hal-target-device=vulkan")
Call = Callable[[], Any]


def compile_program(folder: Path, elements: int) -> bytes:
    """The program for vectors of ``elements``, by stock iree-compile."""
    source, target = folder / "transfers.mlir", folder / "transfers.vmfb"
    source.write_text(PROGRAM.format(n=elements))
    tool = Path(sys.executable).with_name("iree-compile")
    subprocess.run([str(tool), *FLAGS, str(source), "-o", str(target)], check=True)
    return target.read_bytes()


def rounds(calls: dict[str, Call], repeat: int = 15, least: float = 0.02) -> dict[str, float]:
    """Seconds of one call of each, the best of rounds that alternate."""
    counts, times = {}, {name: float("inf") for name in calls}
    for name, call in calls.items():
        call()
        started = time.perf_counter()
        call()
        counts[name] = max(3, int(least / max(time.perf_counter() - started, 1e-7)))
    for _ in range(repeat):
        for name, call in calls.items():
            started = time.perf_counter()
            for _ in range(counts[name]):
                call()
            times[name] = min(times[name], (time.perf_counter() - started) / counts[name])
    return times


# Bytes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A way to call, and the bytes that must cross for one call where device and host share no memory."""

    name: str
    call: Call
    up: int
    down: int
    calls: int = 1


def cases(module: halgpu.Module, x: np.ndarray) -> list[Case]:
    """The ways that are measured."""
    size, one, two = x.nbytes, module.one, module.two
    view = halgpu.BufferView.from_array(x, device=module.device)
    np.asarray(one(view))  # the view's bytes are on the device now

    def chained() -> Any:
        value = view
        for _ in range(CHAIN):
            value = one(value)
        return np.asarray(value)

    return [
        Case("call with numpy", lambda: np.asarray(one(x)), size, size),
        Case("call with a device array", lambda: np.asarray(one(view)), 0, size),
        Case(f"{CHAIN} chained calls", chained, 0, size, CHAIN),
        Case("read-back of one result of two", lambda: np.asarray(two(view)[1]), 0, size),
    ]


def moved(device: devices.Device, case: Case) -> dict[str, float]:
    """Bytes that one call moves, over those necessary; nothing is necessary on memory that is shared."""
    before = device.statistics
    case.call()
    after = device.statistics
    found = after.bytes_up - before.bytes_up + after.bytes_down - before.bytes_down
    needed = 0 if device.capabilities.unified_memory else case.up + case.down
    return {"moved": found, "necessary": needed, "ratio": found / needed if needed else 1.0 + found}


# Time -------------------------------------------------------------------------------------------------


class Raw:
    """The kernel of ``one`` driven by PyOpenCL alone, in halgpu's context, on a queue of its own."""

    def __init__(self, module: halgpu.Module, x: np.ndarray) -> None:
        device: Any = module.device
        self.cl, self.context, self.x = device.cl, device.context, x
        self.queue = self.cl.CommandQueue(self.context, device.native)
        kernel, counts, constants, offsets = captured(lambda: module.one(x))
        program = kernel._native.get_info(self.cl.kernel_info.PROGRAM)
        # Not the layout's name: programs that are built together give their kernels names of their own.
        self.kernel = self.cl.Kernel(program, kernel._native.get_info(self.cl.kernel_info.FUNCTION_NAME))
        self.local = kernel.layout.workgroup_size
        self.grid = tuple(count * size for count, size in zip(counts, self.local, strict=True))
        padding = kernel.layout.parameter_bytes - 8 * len(offsets) - 4 * len(constants)
        packed = struct.pack(f"={len(offsets)}Q{len(constants)}I{padding}x", *[0] * len(offsets), *constants)
        if packed:
            self.kernel.set_arg(2, packed)
        self.source, self.target = self.upload(), self.fresh()

    def upload(self) -> Any:
        """A new buffer with the input."""
        flags = self.cl.mem_flags
        return self.cl.Buffer(self.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=self.x)

    def fresh(self) -> Any:
        """A new buffer for a result."""
        return self.cl.Buffer(self.context, self.cl.mem_flags.READ_WRITE, self.x.nbytes)

    def launch(self, source: Any, target: Any) -> None:
        """Enqueue the kernel."""
        self.kernel.set_arg(0, source)
        self.kernel.set_arg(1, target)
        self.cl.enqueue_nd_range_kernel(self.queue, self.kernel, self.grid, self.local)

    def only_kernel(self) -> None:
        """A launch and a wait, with buffers that exist."""
        self.launch(self.source, self.target)
        self.queue.finish()

    def read(self, buffer: Any) -> np.ndarray:
        """A new array with a buffer's bytes."""
        result = np.empty_like(self.x)
        self.cl.enqueue_copy(self.queue, result, buffer)
        return result

    def with_numpy(self) -> np.ndarray:
        """As halgpu's call with a numpy array."""
        return self._call(self.upload())

    def with_buffer(self) -> np.ndarray:
        """As halgpu's call with a device array."""
        return self._call(self.source)

    def _call(self, source: Any) -> np.ndarray:
        target = self.fresh()
        self.launch(source, target)
        return self.read(target)

    def chained(self) -> np.ndarray:
        """As halgpu's chained calls."""
        value = self.source
        for _ in range(CHAIN):
            target = self.fresh()
            self.launch(value, target)
            value = target
        return self.read(value)


def captured(call: Call) -> tuple[OpenCLKernel, tuple[int, ...], tuple[int, ...], list[int]]:
    """The kernel that ``call`` launches last, with its workgroups, constants and offsets."""
    seen: list[Any] = []
    real = OpenCLKernel.launch

    def launch(
        self: OpenCLKernel, workgroups: Any, constants: Any, memories: Any, offsets: Any, lengths: Any
    ) -> None:
        seen.append((self, workgroups, constants, offsets))
        real(self, workgroups, constants, memories, offsets, lengths)

    OpenCLKernel.launch = launch  # type: ignore[method-assign]
    try:
        call()
    finally:
        OpenCLKernel.launch = real  # type: ignore[method-assign]
    return seen[-1]


def compared(module: halgpu.Module, x: np.ndarray, found: list[Case]) -> dict[str, dict[str, float]]:
    """Microseconds of a call beyond its kernel, here and with raw PyOpenCL."""
    raw = Raw(module, x)
    pairs = {
        found[0].name: (found[0], raw.with_numpy),
        found[1].name: (found[1], raw.with_buffer),
        found[2].name: (found[2], raw.chained),
    }
    for case, theirs in pairs.values():
        np.testing.assert_array_equal(case.call(), theirs())
    calls: dict[str, Call] = {"kernel": raw.only_kernel}
    for name, (case, theirs) in pairs.items():
        calls |= {f"halgpu {name}": case.call, f"raw {name}": theirs}
    times = rounds(calls)
    kernel = times["kernel"] * 1e6
    report = {"kernel and wait": {"us": kernel}}
    for name, (case, _) in pairs.items():
        ours, theirs_us = (times[f"{who} {name}"] * 1e6 / case.calls for who in ("halgpu", "raw"))
        report[name] = {
            "halgpu_us": ours,
            "raw_us": theirs_us,
            "beyond_kernel_halgpu_us": ours - kernel / case.calls,
            "beyond_kernel_raw_us": theirs_us - kernel / case.calls,
            "ratio": ours / theirs_us,
        }
    return report


# The pool ---------------------------------------------------------------------------------------------


def pooled(uri: str, program: bytes, x: np.ndarray) -> dict[str, dict[str, float]]:
    """Microseconds with and without the pool, for a call and for a buffer's life; ratios below 1 are gains."""
    without = f"{uri}{'&' if '?' in uri else '?'}pool=0"
    calls: dict[str, Call] = {}
    for name, text in (("pool", uri), ("none", without)):
        module = halgpu.load(program, device=text)
        allocator, data = module.device.allocator, x.view(np.uint8)
        calls[f"{name} call"] = lambda module=module: np.asarray(module.one(x))  # type: ignore[misc]

        def life(allocator: Any = allocator, data: Any = data) -> None:
            with allocator.allocate(data.nbytes) as buffer:
                buffer.update(data)

        def bare(allocator: Any = allocator, size: int = x.nbytes) -> None:
            allocator.allocate(size).release()

        calls[f"{name} allocate, write, free"] = life
        calls[f"{name} allocate, free"] = bare
    times = rounds(calls)
    return {
        what: {
            "pool_us": times[f"pool {what}"] * 1e6,
            "none_us": times[f"none {what}"] * 1e6,
            "ratio": times[f"pool {what}"] / times[f"none {what}"],
        }
        for what in ("call", "allocate, write, free", "allocate, free")
    }


def measure(uri: str, elements: int, program: bytes) -> dict[str, Any]:
    """All figures of a device and a size."""
    x = np.arange(elements, dtype=np.float32)
    module = halgpu.load(program, device=uri)
    found = cases(module, x)
    for case in found:
        case.call()
    return {
        "bytes": {case.name: moved(module.device, case) for case in found},
        "time": compared(module, x, found),
        "pool": pooled(uri, program, x),
    }


def main() -> None:
    """Measure all and print a table; with --json, write it too."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--note", help="what else is worth knowing of the run, kept in the JSON")
    parser.add_argument("devices", nargs="*", default=DEVICES)
    options = parser.parse_args()
    report: dict[str, Any] = {"note": options.note} if options.note else {}
    for elements in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            program = compile_program(Path(folder), elements)
        for uri in options.devices:
            figures = report[f"{uri}, {elements} x f32"] = measure(uri, elements, program)
            print(f"{uri}, {elements} x f32")
            for part, lines in figures.items():
                for what, values in lines.items():
                    numbers = "  ".join(f"{key} {value:.4g}" for key, value in values.items())
                    print(f"  {part:6} {what:32} {numbers}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
