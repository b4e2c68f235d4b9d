"""Time per dispatch of an empty hand-written kernel: halgpu beside bare PyOpenCL, in one run, as differences.

    python benchmarks/dispatch.py [--json FILE]

Runs on the first OpenCL device. For 0, 2 and 8 bindings and 0 and 4 constants, microseconds on the host, the best of
several turns in which all ways alternate:

    enqueue      bare PyOpenCL, the kernel's arguments set once before
    set, enqueue bare PyOpenCL, the arguments set each time: set_args, then the enqueue
    dispatch     halgpu from Python, the same arguments each time
    changing     halgpu from Python, with other constants each time
    program      halgpu, from a loop of a program's bytecode; a turn of the loop with no dispatch is taken off
    program, lookup   the same with the kernel looked up by name before each dispatch, as compiled programs may

The device is held back by an event of the user's while a turn is timed, so that figures are of the host's work alone;
they are of processor time, so that a busy machine says nearly the same as an idle one.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl as cl

import halgpu
from halgpu import vm
from halgpu.executables import handwritten

DISPATCHES = 50
TURNS = 200
TYPES = ("u32", "f32", "i32", "f32")
C_NAMES = {"u32": "uint", "i32": "int", "f32": "float"}


def source(bindings: int, constants: int) -> str:
    """An empty kernel in OpenCL C."""
    parameters = [f"{C_NAMES[kind]} c{index}" for index, kind in enumerate(TYPES[:constants])]
    parameters += [f"__global float* b{index}" for index in range(bindings)]
    return f"__kernel void empty({', '.join(parameters) or 'void'}) {{}}"


def program(container: bytes, bindings: int, constants: int, *, dispatches: bool, looks_up: bool) -> bytes:
    """A program that dispatches the kernel ``%i0`` times with the buffer of a view as every binding."""
    segments = ", ".join(["65535"] * 5 + [str(constants), str(bindings)])
    operands = ["%r2", "%i4", *["%i3"] * 3, *[f"%i{10 + index}" for index in range(constants)]]
    operands += ["%r1, %i6, %i8"] * bindings
    look_up = "%i4 = vm.call @hal_loader.executable.lookup.function(%r2, %r3)"
    dispatch = (
        f"vm.call.variadic @hal_loader.executable.dispatch segments[{segments}]({', '.join(operands)})"
        if dispatches
        else ""
    )
    values = "\n".join(f"  %i{10 + index} = vm.const.i32 {index + 1}" for index in range(constants))
    text = f"""
vm.module @bench version 0
vm.type i32
vm.type i64
vm.type !hal.buffer
vm.type !hal.buffer_view
vm.type !hal.executable
vm.type !vm.buffer
vm.import @hal_inline.buffer.length cconv "0r_I"
vm.import @hal_inline.buffer.storage cconv "0r_r"
vm.import @hal_inline.buffer_view.buffer cconv "0r_r"
vm.import @hal_loader.executable.load cconv "0rrr_r"
vm.import @hal_loader.executable.dispatch cconv "0rIiiiCiDCrIID_v"
vm.import @hal_loader.executable.lookup.function cconv "0rr_I"
vm.rodata[0] = {container.hex()}
vm.rodata[1] = {b"opencl-c".hex()}
vm.rodata[2] = {b"empty".hex()}
vm.export @main
vm.func @main(%i0: i32, %r0: !vm.ref<?>) -> () {{
^bb0:
  %i1 = vm.const.i32.zero
  %i3 = vm.const.i32 1
{values}
  %r3 = vm.const.ref.rodata 2
  %r2 = vm.global.load.ref .refs[0] : !hal.executable
  %r0 = vm.call @hal_inline.buffer_view.buffer(%r0)
  %r1 = vm.call @hal_inline.buffer.storage(%r0)
  %i8 = vm.call @hal_inline.buffer.length(%r0)
  %i6:7 = vm.const.i64.zero
  {look_up}
  vm.br ^bb1()
^bb1:
  {look_up if looks_up else ""}
  {dispatch}
  %i1 = vm.add.i32 %i1, %i3
  %i2 = vm.cmp.lt.i32.s %i1, %i0
  vm.cond_br %i2, ^bb1(), ^bb2()
^bb2:
  vm.return
}}
vm.export @__init
vm.func @__init() -> () {{
^bb0:
  %r0 = vm.const.ref.zero
  %r1 = vm.const.ref.rodata 0
  %r2 = vm.const.ref.rodata 1
  %r3 = vm.call @hal_loader.executable.load(%R2, %R1, %R0)
  vm.global.store.ref %R3, .refs[0] : !hal.executable
  vm.return
}}
"""
    return vm.write(vm.assemble(text))


def ways(device: Any, bindings: int, constants: int) -> dict[str, Callable[[int], None]]:
    """Each way to dispatch ``count`` times."""
    text = source(bindings, constants)
    layout = halgpu.KernelLayout("empty", TYPES[:constants], ("readwrite",) * bindings, (1, 1, 1))
    kernel = device.load_kernels(text, [layout])["empty"]
    view = halgpu.BufferView.from_array(np.zeros(16, np.float32), device)
    values = tuple(range(1, constants + 1))
    others = tuple(range(5, constants + 5))
    bound = (view,) * bindings

    queue = device.queue.native
    native = cl.Program(device.context, text).build().empty
    scalars = [np.dtype({"u": "u4", "i": "i4", "f": "f4"}[kind[0]]).type(1) for kind in TYPES[:constants]]
    arguments = [*scalars, *[cl.Buffer(device.context, cl.mem_flags.READ_WRITE, 64)] * bindings]
    native.set_args(*arguments)
    enqueue = cl.enqueue_nd_range_kernel

    container = handwritten.write(text, [layout], "opencl-c")
    flags = {"loop": (False, False), "program": (True, False), "program, lookup": (True, True)}
    loaded = {
        name: halgpu.load(
            program(container, bindings, constants, dispatches=dispatches, looks_up=looks_up), device
        )
        for name, (dispatches, looks_up) in flags.items()
    }

    def once(count: int) -> None:
        for _ in range(count):
            enqueue(queue, native, (1, 1, 1), (1, 1, 1))

    def each_time(count: int) -> None:
        for _ in range(count):
            native.set_args(*arguments)
            enqueue(queue, native, (1, 1, 1), (1, 1, 1))

    def dispatch(count: int) -> None:
        for _ in range(count):
            kernel.dispatch(1, constants=values, bindings=bound)

    def changing(count: int) -> None:
        for _ in range(count // 2):
            kernel.dispatch(1, constants=values, bindings=bound)
            kernel.dispatch(1, constants=others, bindings=bound)

    from_program = {
        name: (lambda count, main=module["main"]: main(count, view)) for name, module in loaded.items()
    }
    return {
        "enqueue": once, "set, enqueue": each_time, "dispatch": dispatch, "changing": changing, **from_program,
    }  # fmt: skip


def timed(device: Any, run: Callable[[int], None]) -> float:
    """Microseconds for a dispatch, of the host's work."""
    queue = device.queue.native
    gate = cl.UserEvent(device.context)
    cl.enqueue_barrier(queue, wait_for=[gate])
    start = time.thread_time()
    run(DISPATCHES)
    end = time.thread_time()
    gate.set_status(cl.command_execution_status.COMPLETE)
    device.wait_idle()
    return (end - start) / DISPATCHES * 1e6


def measure(device: Any, bindings: int, constants: int) -> dict[str, float]:
    """The best time of each way."""
    runs = ways(device, bindings, constants)
    for run in runs.values():
        run(2)
    device.wait_idle()
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(TURNS):
        for name, run in runs.items():
            best[name] = min(best[name], timed(device, run))
    loop = best.pop("loop")
    return {name: round(value - (loop if "program" in name else 0), 2) for name, value in best.items()}


def main() -> None:
    """Measure all and print a table; with --json, write it too."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = halgpu.open_device("opencl")
    report: dict[str, Any] = {
        "device": f"{device.capabilities.name}, {device.capabilities.driver}",
        "pyopencl": cl.VERSION_TEXT,
        "unit": "microseconds of the host's processor time for a dispatch",
        "load_average": os.getloadavg()[0],
        "cpus": os.cpu_count(),
        "dispatches": [],
    }
    for bindings in (0, 2, 8):
        for constants in (0, 4):
            found = measure(device, bindings, constants)
            report["dispatches"].append({"bindings": bindings, "constants": constants, **found})
            numbers = "  ".join(f"{name} {value:.2f}" for name, value in found.items())
            print(f"{bindings} bindings, {constants} constants: {numbers}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
