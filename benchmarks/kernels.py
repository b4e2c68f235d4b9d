"""Time of kernels: halgpu's translations on PoCL beside OpenCL C by hand, stock llvm-cpu, and stock vulkan on lavapipe.

    python benchmarks/kernels.py [--json FILE] [--rounds N] [PROGRAM …]

Needs the `test` extra. All run in turns, round by round, on one machine; of each the best and the median time of a
call count, and every contestant's result is compared with numpy's. "halgpu kernel" is a dispatch and a wait for it;
"halgpu call" begins and ends with numpy arrays. By hand means PyOpenCL alone: "plain" is a work-item a result
(softmax: a row), "tiled" has tiles of 16 x 16 in workgroup memory. Stock programs are timed by iree-benchmark-module,
on one core (local-sync), on all (local-task) and, where Mesa's lavapipe is installed, on its Vulkan device.
The last part is how long a program of 30 kernels takes to load and run once, with empty caches and with full ones, as
builds.py measures it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import builds
import numpy as np

import halgpu
from halgpu.devices.opencl_programs import OpenCLKernel

TOOLS = Path(sys.executable).parent
LAVAPIPE = Path("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json")
"""Where Debian's mesa-vulkan-drivers says how to load lavapipe."""

INLINE = ("--iree-execution-model=inline-dynamic", "--iree-hal-target-device=vulkan")
TARGETS = {
    "vulkan": INLINE,
    "ampere": (*INLINE, "--iree-vulkan-target=ampere"),
    "llvm-cpu": (
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        "--iree-llvmcpu-target-cpu=host",
    ),
    "stock-vulkan": ("--iree-hal-target-device=vulkan",),
}
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}

# Programs -----------------------------------------------------------------------------------------------

LINALG = """
func.func @main(%a: tensor<{a}xf32>, %b: tensor<{b}xf32>) -> tensor<{c}xf32> {{
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<{c}xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<{c}xf32>) -> tensor<{c}xf32>
  %result = linalg.{op} ins(%a, %b : tensor<{a}xf32>, tensor<{b}xf32>)
      outs(%start : tensor<{c}xf32>) -> tensor<{c}xf32>
  return %result : tensor<{c}xf32>
}}
"""
SOFTMAX = """
func.func @main(%x: tensor<8x1000xf32>) -> tensor<8x1000xf32> {
  %empty = tensor.empty() : tensor<8x1000xf32>
  %result = linalg.softmax dimension(1) ins(%x : tensor<8x1000xf32>) outs(%empty : tensor<8x1000xf32>)
      -> tensor<8x1000xf32>
  return %result : tensor<8x1000xf32>
}
"""
CHAIN = """
func.func @main(%a: tensor<1048576xf32>, %b: tensor<1048576xf32>) -> tensor<1048576xf32> {
  %half = arith.constant dense<0.5> : tensor<1048576xf32>
  %zero = arith.constant dense<0.0> : tensor<1048576xf32>
  %1 = arith.mulf %a, %b : tensor<1048576xf32>
  %2 = arith.addf %1, %half : tensor<1048576xf32>
  %3 = arith.maximumf %2, %zero : tensor<1048576xf32>
  %4 = arith.subf %3, %b : tensor<1048576xf32>
  %5 = arith.mulf %4, %4 : tensor<1048576xf32>
  return %5 : tensor<1048576xf32>
}
"""
MATMUL_BY_HAND = """
__kernel void plain(const __global float *a, const __global float *b, __global float *c)
{
    int x = get_global_id(0), y = get_global_id(1);
    float sum = 0;
    for (int k = 0; k < 512; ++k)
        sum += a[y * 512 + k] * b[k * 512 + x];
    c[y * 512 + x] = sum;
}

__kernel __attribute__((reqd_work_group_size(16, 16, 1)))
void tiled(const __global float *a, const __global float *b, __global float *c)
{
    __local float tile_a[16][16], tile_b[16][16];
    int x = get_global_id(0), y = get_global_id(1), i = get_local_id(0), j = get_local_id(1);
    float sum = 0;
    for (int k = 0; k < 512; k += 16) {
        tile_a[j][i] = a[y * 512 + k + i];
        tile_b[j][i] = b[(k + j) * 512 + x];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int n = 0; n < 16; ++n)
            sum += tile_a[j][n] * tile_b[n][i];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    c[y * 512 + x] = sum;
}
"""
NHWC_BY_HAND = """
__kernel void plain(const __global float *image, const __global float *filter, __global float *result)
{
    int f = get_global_id(0), x = get_global_id(1), y = get_global_id(2);
    float sum = 0;
    for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j)
            for (int c = 0; c < 32; ++c)
                sum += image[((y + i) * 34 + x + j) * 32 + c] * filter[((i * 3 + j) * 32 + c) * 64 + f];
    result[(y * 32 + x) * 64 + f] = sum;
}
"""
NCHW_BY_HAND = """
__kernel void plain(const __global float *image, const __global float *filter, __global float *result)
{
    int x = get_global_id(0), y = get_global_id(1), f = get_global_id(2);
    float sum = 0;
    for (int c = 0; c < 32; ++c)
        for (int i = 0; i < 3; ++i)
            for (int j = 0; j < 3; ++j)
                sum += image[(c * 34 + y + i) * 34 + x + j] * filter[((f * 32 + c) * 3 + i) * 3 + j];
    result[(f * 32 + y) * 32 + x] = sum;
}
"""
SOFTMAX_BY_HAND = """
__kernel void plain(const __global float *x, __global float *y)
{
    int row = get_global_id(0) * 1000;
    float largest = x[row], sum = 0;
    for (int i = 1; i < 1000; ++i)
        largest = fmax(largest, x[row + i]);
    for (int i = 0; i < 1000; ++i)
        sum += y[row + i] = exp(x[row + i] - largest);
    for (int i = 0; i < 1000; ++i)
        y[row + i] /= sum;
}
"""
CHAIN_BY_HAND = """
__kernel void plain(const __global float *a, const __global float *b, __global float *c)
{
    int i = get_global_id(0);
    float x = fmax(a[i] * b[i] + 0.5f, 0.0f) - b[i];
    c[i] = x * x;
}
"""


@dataclass(frozen=True)
class Program:
    """A program for the stock compiler, the same by hand, and by numpy in 64 bits."""

    mlir: str
    shapes: Sequence[tuple[int, ...]]
    by_numpy: Callable[..., np.ndarray]
    by_hand: str
    grids: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None]]
    """Name of a kernel by hand -> global and local size."""

    def inputs(self) -> list[np.ndarray]:
        """Random arrays."""
        rng = np.random.default_rng(0)
        return [rng.standard_normal(shape).astype(np.float32) for shape in self.shapes]


def linalg(op: str, a: str, b: str, c: str) -> str:
    """MLIR of one named operation on two tensors."""
    return LINALG.format(op=op, a=a, b=b, c=c)


def conv_nhwc(image: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """The convolution, a matrix product a tap."""
    return sum(image[:, i : i + 32, j : j + 32] @ filters[i, j] for i in range(3) for j in range(3))


def conv_nchw(image: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """The same with channels in front."""
    result = conv_nhwc(image.transpose(0, 2, 3, 1), filters.transpose(2, 3, 1, 0))
    return result.transpose(0, 3, 1, 2)


def softmax(x: np.ndarray) -> np.ndarray:
    """Softmax of rows."""
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


PROGRAMS = {
    "matmul 512x512x512": Program(
        linalg("matmul", "512x512", "512x512", "512x512"), [(512, 512)] * 2, np.matmul, MATMUL_BY_HAND,
        {"plain": ((512, 512), (16, 16)), "tiled": ((512, 512), (16, 16))},
    ),
    "convolution NHWC": Program(
        linalg("conv_2d_nhwc_hwcf", "1x34x34x32", "3x3x32x64", "1x32x32x64"),
        [(1, 34, 34, 32), (3, 3, 32, 64)], conv_nhwc, NHWC_BY_HAND, {"plain": ((64, 32, 32), (64, 1, 1))},
    ),
    "convolution NCHW": Program(
        linalg("conv_2d_nchw_fchw", "1x32x34x34", "64x32x3x3", "1x64x32x32"),
        [(1, 32, 34, 34), (64, 32, 3, 3)], conv_nchw, NCHW_BY_HAND, {"plain": ((32, 32, 64), (32, 1, 1))},
    ),
    "softmax 8x1000": Program(SOFTMAX, [(8, 1000)], softmax, SOFTMAX_BY_HAND, {"plain": ((8,), None)}),
    "elementwise 2^20": Program(
        CHAIN, [(1 << 20,)] * 2, lambda a, b: (np.maximum(a * b + 0.5, 0) - b) ** 2, CHAIN_BY_HAND,
        {"plain": ((1 << 20,), (64,))},
    ),
}  # fmt: skip

# Contestants --------------------------------------------------------------------------------------------

Sample = Callable[[], tuple[float, float]]
"""Runs a contestant for a while and returns the seconds of one call, and those of all cores' time in one."""


@dataclass
class Race:
    """The contestants of one program, and their times so far."""

    samples: dict[str, Sample] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    """Those that run in the first round only."""
    times: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def run(self, rounds: int) -> None:
        """Let all run in turns."""
        for index in range(rounds):
            for name, sample in self.samples.items():
                if index == 0 or name not in self.slow:
                    self.times.setdefault(name, []).append(sample())

    def report(self) -> dict[str, dict[str, float]]:
        """Best and median milliseconds, and the best as ratios to what the targets are about.

        The cores' time is there since on a machine that others use too the time of a call says little.
        """
        rows = {}
        for name, pairs in self.times.items():
            times = [real for real, _ in pairs]
            rows[name] = {
                "best_ms": min(times) * 1e3,
                "median_ms": statistics.median(times) * 1e3,
                "best_cpu_ms": min(cpu for _, cpu in pairs) * 1e3,
            }
        for name in [name for name in rows if name.startswith("halgpu")]:
            for other in ("by hand plain", "llvm-cpu one core", "llvm-cpu all cores"):
                rows[name][f"to {other}"] = rows[name]["best_ms"] / rows[other]["best_ms"]
                rows[name][f"cpu to {other}"] = rows[name]["best_cpu_ms"] / rows[other]["best_cpu_ms"]
        return rows


def timed(call: Callable[[], Any], least: float = 0.03) -> Sample:
    """Time a call: the best of as many as fit in ``least`` seconds, three at least."""

    def sample() -> tuple[float, float]:
        times: list[float] = []
        used: list[float] = []
        while len(times) < 3 or sum(times) < least:
            started, before = time.perf_counter(), time.process_time()
            call()
            times.append(time.perf_counter() - started)
            used.append(time.process_time() - before)
        return min(times), min(used)

    return sample


def compile_program(folder: Path, program: Program, target: str) -> Path:
    """Compile by stock iree-compile."""
    source, path = folder / "main.mlir", folder / f"{target}.vmfb"
    source.write_text(program.mlir)
    subprocess.run([str(TOOLS / "iree-compile"), *TARGETS[target], str(source), "-o", str(path)], check=True)
    return path


def check(name: str, found: np.ndarray, wanted: np.ndarray) -> None:
    """Compare with numpy's result in 64 bits."""
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4, err_msg=name)


def add_halgpu(race: Race, name: str, path: Path, inputs: list[np.ndarray], wanted: np.ndarray) -> Any:
    """halgpu: the kernel by itself and the whole call. Returns the device."""
    module = halgpu.load(path, device="opencl")
    call = module.main
    seen: list[Any] = []
    real = OpenCLKernel.launch

    def launch(self: OpenCLKernel, workgroups: Any, constants: Any, *rest: Any) -> None:
        seen.append((self, workgroups, constants))
        real(self, workgroups, constants, *rest)

    OpenCLKernel.launch = launch  # type: ignore[method-assign]
    try:
        check(name, np.asarray(call(*inputs)), wanted)
    finally:
        OpenCLKernel.launch = real  # type: ignore[method-assign]
    [(kernel, workgroups, constants)] = seen
    device = module.device
    buffers = [device.allocator.allocate(array.nbytes) for array in inputs]
    for buffer, array in zip(buffers, inputs, strict=True):
        buffer.update(array.reshape(-1).view(np.uint8))
    buffers.append(device.allocator.allocate(wanted.size * 4))
    bindings = [(buffer, 0, buffer.byte_length) for buffer in buffers]

    def only_kernel() -> None:
        kernel.dispatch(workgroups, constants, bindings)
        device.wait_idle()

    only_kernel()
    result = np.frombuffer(bytes(buffers[-1].read()), np.float32).reshape(wanted.shape)
    check(f"{name} kernel", result, wanted)
    race.samples[f"{name} kernel"] = timed(only_kernel)
    race.samples[f"{name} call"] = timed(lambda: np.asarray(call(*inputs)))
    return device


def add_by_hand(
    race: Race, device: Any, program: Program, inputs: list[np.ndarray], wanted: np.ndarray
) -> None:
    """OpenCL C written by a person, driven by PyOpenCL alone on a context and queue of its own."""
    cl = device.cl
    context = cl.Context([device.native])
    queue = cl.CommandQueue(context)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffers = [cl.Buffer(context, flags, hostbuf=array) for array in inputs]
    buffers.append(cl.Buffer(context, cl.mem_flags.READ_WRITE, wanted.size * 4))
    built = cl.Program(context, program.by_hand).build(["-w"])
    for name, (grid, local) in program.grids.items():
        kernel = cl.Kernel(built, name)
        kernel.set_args(*buffers)

        def run(kernel: Any = kernel, grid: Any = grid, local: Any = local, _alive: Any = buffers) -> None:
            cl.enqueue_nd_range_kernel(queue, kernel, grid, local)
            queue.finish()

        run()
        result = np.empty(wanted.shape, np.float32)
        cl.enqueue_copy(queue, result, buffers[-1])
        check(f"by hand {name}", result, wanted)
        race.samples[f"by hand {name}"] = timed(run)


def add_stock(
    race: Race, name: str, path: Path, device: str, folder: Path, wanted: np.ndarray, slow: bool = False
) -> None:
    """A stock program, its result by iree-run-module and its time by iree-benchmark-module."""
    files = sorted(folder.glob("input*.npy"))
    arguments = [
        f"--module={path}",
        f"--device={device}",
        "--function=main",
        *(f"--input=@{f}" for f in files),
    ]
    output = folder / "output.npy"
    environment = {**os.environ, "VK_ICD_FILENAMES": str(LAVAPIPE), "VK_DRIVER_FILES": str(LAVAPIPE)}

    def tool(tool_name: str, *more: str) -> str:
        command = [str(TOOLS / tool_name), *arguments, *more]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout

    tool("iree-run-module", f"--output=@{output}")
    check(name, np.load(output), wanted)

    def sample() -> tuple[float, float]:
        printed = tool("iree-benchmark-module", "--benchmark_format=json", "--benchmark_min_time=0.03s")
        [run] = json.loads(printed[printed.index("{") :])["benchmarks"]
        unit = UNITS[run["time_unit"]]
        return float(run["real_time"]) * unit, float(run["cpu_time"]) * unit

    race.samples[name] = sample
    if slow:
        race.slow.add(name)


def raced(program: Program, rounds: int) -> dict[str, dict[str, float]]:
    """All contestants of one program."""
    inputs = program.inputs()
    wanted = np.asarray(program.by_numpy(*(array.astype(np.float64) for array in inputs)))
    race = Race()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for index, array in enumerate(inputs):
            np.save(folder / f"input{index}.npy", array)
        paths = {target: compile_program(folder, program, target) for target in TARGETS}
        device = add_halgpu(race, "halgpu", paths["vulkan"], inputs, wanted)
        add_halgpu(race, "halgpu (ampere)", paths["ampere"], inputs, wanted)
        add_by_hand(race, device, program, inputs, wanted)
        add_stock(race, "llvm-cpu one core", paths["llvm-cpu"], "local-sync", folder, wanted)
        add_stock(race, "llvm-cpu all cores", paths["llvm-cpu"], "local-task", folder, wanted)
        if LAVAPIPE.exists():
            add_stock(race, "lavapipe", paths["stock-vulkan"], "vulkan", folder, wanted, slow=True)
        race.run(rounds)
    return race.report()


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {"cpu": found[1] if found else "unknown", "cores": os.cpu_count(), "load": os.getloadavg()[0]}


def main() -> None:
    """Race all programs and print tables; with --json, write them too."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help="parts of names of programs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report: dict[str, Any] = {"machine": machine()}
    if not LAVAPIPE.exists():
        print(f"no lavapipe: {LAVAPIPE} is not there (Debian: mesa-vulkan-drivers)")
    for name, program in PROGRAMS.items():
        if options.programs and not any(part in name for part in options.programs):
            continue
        report[name] = raced(program, options.rounds)
        print(name)
        for who, figures in report[name].items():
            print(f"  {who:24} " + "  ".join(f"{key} {value:.4g}" for key, value in figures.items()))
    if not options.programs:
        with tempfile.TemporaryDirectory() as folder:
            report["building"] = builds.measure(Path(folder))
        print(f"{builds.KERNELS} kernels, seconds")
        builds.show(report["building"])
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
