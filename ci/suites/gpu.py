"""What a machine with an NVIDIA GPU shows: the device suite, the examples, an ONNX model, benchmarks. Run by ci/gpu.

    python ci/suites/gpu.py [--device=cuda:0] [--json=FILE] [--only=NAME,…]

Each part runs in a process of its own with a time limit, so that one that hangs or crashes leaves the others alone.
Results are one JSON object, on stdout at the end and in FILE; the exit status is 1 if a part failed. `--device=opencl`
tries the script itself where there is no GPU: parts that need CUDA are skipped, IREE's CUDA driver is replaced by its
CPU one, and the figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import halgpu
from halgpu import devices, errors
from halgpu.compiler import targets

ROOT = Path(__file__).resolve().parents[2]
MATRIX = {"cuda:0": "cuda", "opencl": "opencl", "fake-cuda": "cuda-fake"}
MATMUL = """
func.func @main(%a: tensor<512x512xf32>, %b: tensor<512x512xf32>) -> tensor<512x512xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<512x512xf32>
  %c = linalg.fill ins(%zero : f32) outs(%empty : tensor<512x512xf32>) -> tensor<512x512xf32>
  %r = linalg.matmul ins(%a, %b : tensor<512x512xf32>, tensor<512x512xf32>)
    outs(%c : tensor<512x512xf32>) -> tensor<512x512xf32>
  return %r : tensor<512x512xf32>
}
"""
EMPTY = """
.version 6.0
.target sm_60
.address_size 64
.visible .entry empty(.param .u64 a, .param .u64 b, .param .u32 c) { ret; }
"""
Result = dict[str, Any]


class Skipped(Exception):
    """A part that does not apply here, and why."""


def is_cuda(uri: str) -> bool:
    return uri.startswith("cuda")


# -- what is right -------------------------------------------------------------------------------------


def machine(uri: str) -> Result:
    found = devices.open_device(uri).capabilities
    smi = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True) if is_cuda(uri) else None
    return {
        "device": found.name, "driver": found.driver, "python": sys.version.split()[0],
        "nvidia-smi": smi and smi.stdout.splitlines(),
        "devices": [f"{info.uri} {info.name}" for info in devices.list_devices() if info.available],
    }  # fmt: skip


def suite(uri: str) -> Result:
    """tests/matrix on the device, and the tests of the CUDA backend."""
    more = (
        ["tests/devices/test_cuda_toolchain.py", "tests/executables/test_cuda_ptx.py"] if is_cuda(uri) else []
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--no-header", "tests/matrix", *more], cwd=ROOT,
        capture_output=True, text=True, env={**os.environ, "HALGPU_MATRIX": MATRIX[uri]},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    if done.returncode:
        raise AssertionError("\n".join(lines[-60:]))
    return {"pytest": lines[-1]}


def examples(uri: str) -> Result:
    """The programs of examples/, beside numpy: for the GPU, then for the CPU and the VM on its host-mapped storage."""
    ways: dict[str, dict[str, Any]] = {"device": {"device": uri}}
    ways |= {target: {"target": target} for target in ("llvm-cpu", "vmvx", "vmvx-inline")}
    for way in ways.values():
        _examples(uri, way)
    return {"ways": [*ways], "programs": ["abs", "counter", "network"]}


def _examples(uri: str, way: dict[str, Any]) -> None:
    random = np.random.default_rng(1)
    load = {
        name: halgpu.load(halgpu.compile(ROOT / "examples" / f"{name}.mlir", **way), uri)
        for name in ("abs", "counter", "network")
    }
    x = random.normal(size=2).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(load["abs"].abs(x)), np.abs(x))
    y = random.normal(size=4).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(load["counter"].add(y)), y)
    np.testing.assert_array_equal(np.asarray(load["counter"].add(y)), y + y)
    a, b, c, d = (
        (random.normal(size=size) / 4).astype(np.float32) for size in ((5, 37), (37, 53), 53, (53, 11))
    )
    scores = np.maximum(a.astype(float) @ b + c, 0) @ d
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    np.testing.assert_allclose(
        np.asarray(load["network"].network(a, b, c, d)),
        powers / powers.sum(axis=1, keepdims=True),
        rtol=1e-4,
        atol=1e-6,
    )


def onnx_model() -> Any:
    """A small convolutional network with weights."""
    try:
        from onnx import TensorProto, helper, numpy_helper
    except ImportError:
        raise Skipped("the package onnx is not installed") from None
    random = np.random.default_rng(2)
    weights = {
        "w": random.normal(size=(8, 3, 3, 3)), "b": random.normal(size=8), "f": random.normal(size=(8, 10)) / 4,
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["l"]),
        helper.make_node("MatMul", ["l", "f"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "sample",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def onnx_sample(uri: str) -> Result:
    """The model beside onnx's own reference evaluator."""
    model = onnx_model()
    from onnx.reference import ReferenceEvaluator

    x = np.random.default_rng(3).normal(size=(1, 3, 32, 32)).astype(np.float32)
    module = halgpu.load(halgpu.compile(model, device=uri), uri)
    (function,) = module.functions
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(np.asarray(getattr(module, function)(x)), expected, rtol=1e-3, atol=1e-3)
    return {"function": function}


def refusals(uri: str) -> Result:
    """What the real driver says to modules that do not load."""
    if not is_cuda(uri):
        raise Skipped("needs CUDA")
    device = devices.open_device(uri)
    layout = halgpu.KernelLayout("empty", 1, ("read", "readwrite"), 32, addresses=True)
    said = {}
    for name, source in {
        "newer": EMPTY.replace("6.0", "99.9"), "target": EMPTY.replace("sm_60", "sm_999"),
        "cut off": EMPTY.rpartition("{")[0] + "{", "damaged": EMPTY.replace("ret;", "rot;"),
        "no entry": EMPTY.replace("empty(", "other("),
    }.items():  # fmt: skip
        try:
            device.build(devices.Program("ptx", source, (layout,)))
        except (errors.Incompatible, errors.InvalidArgument) as error:
            said[name] = f"{type(error).__name__}: {error.message}"
    assert len(said) == 5, said
    return said


def sharing(uri: str) -> Result:
    """cupy and, if it is installed, torch on the same memory, from several streams."""
    if not is_cuda(uri):
        raise Skipped("needs CUDA")
    import cupy

    device = devices.open_device(uri)
    program = halgpu.compile(ROOT / "examples" / "counter.mlir", device=device)
    x = np.arange(4, dtype=np.float32)
    results: Result = {"cupy": cupy.__version__}
    with cupy.cuda.Device(int(uri.partition(":")[2] or 0)):
        for stream in (cupy.cuda.Stream.null, cupy.cuda.Stream(non_blocking=True)):
            module = halgpu.load(program, device)
            with stream:
                for turn in range(1, 50):
                    given = cupy.asarray(x) * 1
                    view = module.add(given)
                    address = view.buffer.root.memory.handle + view.buffer.offset
                    for taken in (cupy.asarray(view), cupy.from_dlpack(view)):
                        assert taken.data.ptr == address
                        np.testing.assert_array_equal(cupy.asnumpy(taken * 2), x * turn * 2)
    try:
        import torch
    except ImportError:
        return results
    module = halgpu.load(program, device)
    tensor = torch.arange(4, dtype=torch.float32, device=uri)
    for turn in range(1, 50):
        view = module.add(tensor)
        for taken in (torch.as_tensor(view, device=uri), torch.from_dlpack(view)):
            np.testing.assert_array_equal((taken * 2).cpu().numpy(), x * turn * 2)
    return {**results, "torch": torch.__version__}


# -- how fast ------------------------------------------------------------------------------------------


def microseconds(
    ways: dict[str, Callable[[], Any]], turns: int = 7, seconds: float = 0.15
) -> dict[str, float]:
    """The best mean time of each way over several turns in which they alternate."""
    best = dict.fromkeys(ways, float("inf"))
    for turn in range(turns):
        for name, way in ways.items():
            way()
            count, start = 0, time.perf_counter()
            while (passed := time.perf_counter() - start) < (seconds if turn else 0.03):
                way()
                count += 1
            best[name] = min(best[name], passed / count * 1e6)
    return {name: round(value, 2) for name, value in best.items()}


def bench_matmul(uri: str) -> Result:
    """A call of a 512x512 matmul, inputs on the device, beside IREE's own driver with its full HAL."""
    import iree.runtime as rt

    device = devices.open_device(uri)
    flags = targets.for_device(device.capabilities, None)
    target = [flag for flag in flags if "target" in flag]
    driver = "cuda"
    if not is_cuda(uri):
        driver = "local-task"
        target = [
            "--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu",
            "--iree-llvmcpu-target-cpu=host",
        ]  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        source, output = Path(name) / "m.mlir", Path(name) / "m.vmfb"
        source.write_text(MATMUL)
        compiler = Path(sys.executable).with_name("iree-compile")
        subprocess.run([compiler, *target, source, "-o", output], check=True, capture_output=True)
        data = output.read_bytes()
    config = rt.Config(driver)
    theirs = rt.load_vm_module(rt.VmModule.copy_buffer(config.vm_instance, data), config)
    ours = halgpu.load(halgpu.compile(MATMUL, device=device), device)
    a, b = np.random.default_rng(4).normal(size=(2, 512, 512)).astype(np.float32)
    given = [halgpu.BufferView.from_array(x, device) for x in (a, b)]
    given_theirs = [rt.asdevicearray(config.device, x) for x in (a, b)]

    def call() -> None:
        ours.main(*given)
        device.wait_idle()

    for result in (np.asarray(ours.main(*given)), theirs.main(*given_theirs).to_host()):
        np.testing.assert_allclose(result, a @ b, rtol=1e-2, atol=1e-2)
    times = microseconds(
        {
            "halgpu": call,
            f"iree {driver}": lambda: theirs.main(*given_theirs),  # which waits
            "halgpu to numpy": lambda: np.asarray(ours.main(*given)),
            f"iree {driver} to numpy": lambda: theirs.main(*given_theirs).to_host(),
        }
    )
    with device.profile() as recording:
        call()
    return {"us a call": times, "us in kernels": round(recording.device_seconds * 1e6, 2)}


def bench_dispatch(uri: str) -> Result:
    """A dispatch of an empty kernel beside bare CuPy, arguments set each time; the GPU keeps up with neither."""
    if not is_cuda(uri):
        raise Skipped("needs CuPy and a GPU")
    import cupy

    device = devices.open_device(uri)
    layout = halgpu.KernelLayout("empty", 1, ("read", "readwrite"), 32, addresses=True)
    (kernel,) = device.build(devices.Program("ptx", EMPTY, (layout,)))
    buffers = [device.allocator.allocate(1024) for _ in range(2)]
    bindings = [(buffer, 0, 1024) for buffer in buffers]
    module = cupy.cuda.function.Module()
    module.load(EMPTY.encode())
    function = module.get_function("empty")
    arrays = [cupy.zeros(256, cupy.float32) for _ in range(2)]
    number = np.uint32(7)

    def waited(enqueue: Callable[[], Any], wait: Callable[[], Any]) -> Callable[[], None]:
        def way() -> None:
            for _ in range(100):
                enqueue()
            wait()

        return way

    times = microseconds(
        {
            "halgpu": waited(lambda: kernel.dispatch((4, 1, 1), (7,), bindings), device.wait_idle),
            "cupy": waited(
                lambda: function((4,), (32,), (*arrays, number)), cupy.cuda.Stream.null.synchronize
            ),
        }
    )
    return {"us a dispatch": {name: round(value / 100, 3) for name, value in times.items()}}


# -- running -------------------------------------------------------------------------------------------

PARTS: dict[str, tuple[Callable[[str], Result], int]] = {
    "machine": (machine, 60),
    "examples": (examples, 60),
    "onnx": (onnx_sample, 60),
    "refusals": (refusals, 30),
    "sharing": (sharing, 30),
    "matmul": (bench_matmul, 60),
    "dispatch": (bench_dispatch, 30),
    "suite": (suite, 200),
}
TOTAL = 290
"""Seconds for all of them."""


def run_part(name: str, uri: str) -> None:
    """In a process of its own: one line of JSON."""
    start = time.perf_counter()
    try:
        found: Result = {"status": "ok", **PARTS[name][0](uri)}
    except Skipped as why:
        found = {"status": "skipped", "why": str(why)}
    print(json.dumps({**found, "seconds": round(time.perf_counter() - start, 1)}))


def part(name: str, uri: str, left: float) -> Result:
    command = [sys.executable, __file__, f"--device={uri}", f"--part={name}"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=max(min(PARTS[name][1], left), 1)
        )
    except subprocess.TimeoutExpired as error:
        return {"status": "failed", "why": f"took longer than {error.timeout:.0f} s"}
    if done.returncode:
        return {"status": "failed", "exit": done.returncode, "why": done.stderr[-4000:]}
    found: Result = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda:0", choices=list(MATRIX))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        run_part(options.part, options.device)
        return 0
    end = time.monotonic() + TOTAL
    results: dict[str, Result] = {}
    for name in options.only.split(","):
        results[name] = part(name, options.device, end - time.monotonic())
        print(
            f"{name}: {results[name]['status']} {results[name].get('seconds', '')}",
            file=sys.stderr,
            flush=True,
        )
        if options.json:  # after each part, should the machine go away
            options.json.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))
    return int(any(result["status"] == "failed" for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
