"""Every example on OpenCL, beside the same source compiled for llvm-cpu and run by the stock tool, and numpy."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import halgpu
from halgpu.cli import main
from halgpu.vm.allocator import DEFAULT_ALLOCATOR

DEVICES = ["opencl", "opencl?unified=0"]
# Target and execution model. In ci/gpu an NVIDIA GPU has its own way too.
WAYS = {
    "vulkan": "inline-dynamic", "llvm-cpu": "inline-dynamic", "vmvx": "inline-dynamic", "vmvx-inline": "inline-static",
}  # fmt: skip


@pytest.fixture(scope="module")
def program(compile_mlir, examples):
    return lambda name, target="vulkan": compile_mlir((examples / f"{name}.mlir").read_text(), target)


@pytest.fixture
def stock(program, iree_tool, tmp_path):
    """Run an example in iree-run-module: arrays in, first result out."""

    def run(name: str, function: str, *arrays):
        (tmp_path / "stock.vmfb").write_bytes(program(name, "llvm-cpu"))
        inputs = []
        for index, array in enumerate(arrays):
            np.save(tmp_path / f"in{index}.npy", array)
            inputs.append(f"--input=@{tmp_path}/in{index}.npy")
        iree_tool(
            "iree-run-module", f"--module={tmp_path}/stock.vmfb", f"--function={function}", *inputs,
            f"--output=@{tmp_path}/out.npy",
        )  # fmt: skip
        return np.load(tmp_path / "out.npy")

    return run


@pytest.fixture
def random():
    return np.random.default_rng(20250801)


def network(x, w1, b1, w2):
    """examples/network.mlir in numpy, in double precision."""
    x, w1, b1, w2 = (array.astype(np.float64) for array in (x, w1, b1, w2))
    scores = np.maximum(x @ w1 + b1, 0) @ w2
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("device", DEVICES)
def test_abs(device, program, stock, random):
    module = halgpu.load(program("abs"), device)
    for _ in range(20):
        x = random.normal(size=2).astype(np.float32)
        y = np.asarray(module.abs(x))
        assert y.dtype == np.float32
        assert y.tobytes() == np.abs(x).tobytes()
    assert stock("abs", "abs", x).tobytes() == y.tobytes()


def test_abs_of_special_values(program, stock):
    module = halgpu.load(program("abs"), "opencl")
    for x in ([-0.0, np.inf], [-np.inf, np.nan], [-1e-45, -3.4e38]):
        array = np.array(x, np.float32)
        y = np.asarray(module.abs(array))
        np.testing.assert_array_equal(y, np.abs(array))
        np.testing.assert_array_equal(y, stock("abs", "abs", array))
        assert not np.signbit(y).any()


@pytest.mark.parametrize("device", DEVICES)
def test_network(device, program, stock, random):
    module = halgpu.load(program("network"), device)
    for scale in (0.1, 1.0):
        arrays = [
            random.normal(scale=scale, size=size).astype(np.float32)
            for size in ((5, 37), (37, 53), 53, (53, 11))
        ]
        y = np.asarray(module.network(*arrays))
        assert y.shape == (5, 11)
        np.testing.assert_allclose(y, network(*arrays), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(y, stock("network", "network", *arrays), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(y.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_counter_accumulates_and_a_new_context_starts_over(device, program, stock, random):
    module = halgpu.load(program("counter"), device)
    total = np.zeros(4, np.float32)
    for _ in range(10):
        x = random.normal(size=4).astype(np.float32)
        total = total + x
        y = np.asarray(module.add(x))
        assert y.tobytes() == total.tobytes()
    again = module.new_context()
    assert np.asarray(again.add(x)).tobytes() == x.tobytes() == stock("counter", "add", x).tobytes()
    assert np.asarray(halgpu.load(program("counter"), device).add(x)).tobytes() == x.tobytes()
    assert np.asarray(module.add(x)).tobytes() == (total + x).tobytes()


@pytest.mark.parametrize("device", DEVICES)
def test_every_way_to_compile_gives_the_same(device, compile_mlir, examples, stock, random):
    arrays = {
        ("abs", "abs"): [random.normal(size=2)],
        ("counter", "add"): [random.normal(size=4)],
        ("network", "network"): [
            random.normal(scale=0.5, size=size) for size in ((5, 37), (37, 53), 53, (53, 11))
        ],
    }
    for (name, function), given in arrays.items():
        inputs = [array.astype(np.float32) for array in given]
        source, expected = (examples / f"{name}.mlir").read_text(), stock(name, function, *inputs)
        for target, model in WAYS.items():
            module = halgpu.load(compile_mlir(source, target, model=model), device)
            found = np.asarray(module[function](*inputs))
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=f"{name}, {target}")


@pytest.mark.parametrize("device", DEVICES)
def test_saxpy(device, examples):
    command = [sys.executable, examples / "saxpy.py", device]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == str(2 * np.arange(8, dtype=np.float32) + 1)


@pytest.mark.parametrize("device", DEVICES)
def test_custom_kernel_by_the_commands_that_it_shows(device, examples, tmp_path, capfd):
    """What it prints, and that iree-compile itself says nothing against it."""
    program = str(tmp_path / "custom_kernel.vmfb")
    assert main(["compile", str(examples / "custom_kernel.mlir"), "-o", program, "--device=opencl"]) == 0
    inputs = ["--input=2", "--input=3xf32=1 2 3", "--input=3xf32=10 20 30"]
    assert main(["run", f"--module={program}", "--function=saxpy", *inputs, f"--device={device}"]) == 0
    out, err = capfd.readouterr()
    assert (out, err) == ("EXEC @saxpy\nresult[0]: hal.buffer_view\n3xf32=12 24 36\n", "")


@pytest.mark.parametrize("device", DEVICES)
def test_a_thousand_calls_leave_nothing(device, program):
    module = halgpu.load(program("counter"), device)
    one = np.ones(4, np.float32)
    for _ in range(3):
        result = module.add(one)
    before, host = module.device.statistics, DEFAULT_ALLOCATOR.statistics
    for _ in range(1000):
        result = module.add(one)
    after, later = module.device.statistics, DEFAULT_ALLOCATOR.statistics
    assert np.asarray(result).tolist() == [1003.0] * 4
    assert (after.live_handles, after.bytes_allocated) == (before.live_handles, before.bytes_allocated)
    assert (later.live_handles, later.live_bytes) == (host.live_handles, host.live_bytes)
    assert after.bytes_peak <= before.bytes_peak + 4096
    assert after.dispatches == before.dispatches + 1000


@pytest.mark.parametrize("device", DEVICES)
def test_everything_ends_with_the_module(device, program):
    opened = halgpu.open_device(device)
    before, host = opened.statistics.live_handles, DEFAULT_ALLOCATOR.statistics.live_handles
    with halgpu.load(program("counter"), opened) as module:
        result = module.add(np.ones(4, np.float32))
        assert opened.statistics.live_handles > before
    assert np.asarray(result).tolist() == [1, 1, 1, 1]
    del result
    assert opened.statistics.live_handles == before
    module = halgpu.load(program("counter"), opened)
    module.add(np.ones(4, np.float32))
    del module
    assert opened.statistics.live_handles == before
    assert DEFAULT_ALLOCATOR.statistics.live_handles == host


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("abs", ["--function=abs", "--input=2xf32=-2 3"]),
        ("counter", ["--function=add", "--input=4xf32=1 2 3 4"]),
        (
            "network",
            [
                "--function=network",
                "--input=5x37xf32=0.01",
                "--input=37x53xf32=0.02",
                "--input=53xf32=-0.001",
                "--input=53x11xf32=1",
            ],
        ),
    ],
)
def test_the_command_prints_what_the_stock_tool_prints(name, flags, program, iree_tool, tmp_path, capfd):
    for target in ("vulkan", "llvm-cpu"):
        (tmp_path / f"{target}.vmfb").write_bytes(program(name, target))
    expected = iree_tool("iree-run-module", f"--module={tmp_path}/llvm-cpu.vmfb", *flags).stdout
    assert main(["run", f"--module={tmp_path}/vulkan.vmfb", "--device=opencl", *flags]) == 0
    assert capfd.readouterr().out == expected
