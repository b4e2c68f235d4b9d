"""Programs of llvm-cpu through halgpu, on any device, beside the same files in stock iree-run-module: equal bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import mlir_corpus
import numpy as np
import pytest
from mlir_corpus import stock

import halgpu
from halgpu.cli import main
from halgpu.devices import open_device
from halgpu.devices.windows import open_window

EMBEDDED = (
    "argmax_f32_i32", "divide_f16", "gather_f32", "layer_norm_f32", "matmul_f32_dynamic", "matmul_i8_i32",
    "minmax_bf16", "reduce_i64", "scatter_i16", "softmax_f32_axis0", "sort_i32", "transpose_f16",
)  # fmt: skip
SYSTEM = ("remainder_f32", "round_f32", "softmax_f32_axis0")
"""Of which the first two call the C library."""
DEVICES = ("host", "null", "opencl", "opencl?unified=0", "fake-cuda")
PLUGINS = str(Path(__file__).resolve().parents[1] / "devices" / "fake_cuda")

Compile = Callable[..., bytes]


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    if PLUGINS not in sys.path:
        monkeypatch.syspath_prepend(PLUGINS)


@pytest.mark.parametrize(
    ("device", "names", "flags"),
    [("host", EMBEDDED, ()), ("opencl?unified=0", SYSTEM, ("--iree-llvmcpu-link-embedded=false",))],
    ids=["embedded", "system"],
)
def test_results_are_stocks(
    device: str, names: tuple[str, ...], flags: tuple[str, ...], compile_mlir: Compile,
    iree_tool: Callable[..., Any], tmp_path: Path,
) -> None:  # fmt: skip
    programs = {name: mlir_corpus.find(name) for name in names}
    path = tmp_path / "cpu.vmfb"
    path.write_bytes(compile_mlir(mlir_corpus.joined(programs), "llvm-cpu", *flags))
    module = halgpu.load(path, device)
    before = module.device.statistics
    for name, program in programs.items():
        function, inputs = mlir_corpus.function_name(name), program.inputs()
        wanted = stock.run(iree_tool, path, function, program, inputs, tmp_path)
        results = module[function](*inputs)
        found = results if isinstance(results, tuple) else (results,)
        assert [np.asarray(array).tobytes() for array in found] == [array.tobytes() for array in wanted], name
        assert any(np.any(array != 0) for array in wanted), name
    after = module.device.statistics
    assert after.dispatches >= before.dispatches + len(names)
    assert (after.programs_compiled, after.programs_cached) == (
        before.programs_compiled,
        before.programs_cached,
    )


def network(x: Any, w1: Any, b1: Any, w2: Any) -> np.ndarray:
    scores = np.maximum(x @ w1 + b1, 0) @ w2
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("uri", DEVICES)
def test_examples_on_every_device(uri: str, compile_mlir: Compile, examples: Path) -> None:
    random = np.random.default_rng(3)
    arrays = [
        random.normal(0, 0.3, shape).astype(np.float32) for shape in ((5, 37), (37, 53), (53,), (53, 11))
    ]
    module = halgpu.load(compile_mlir((examples / "network.mlir").read_text(), "llvm-cpu"), uri)
    before = module.device.statistics.dispatches
    for _ in range(2):
        np.testing.assert_allclose(
            np.asarray(module.network(*arrays)), network(*arrays), rtol=1e-5, atol=1e-7
        )
    assert module.device.statistics.dispatches > before
    counter = halgpu.load(compile_mlir((examples / "counter.mlir").read_text(), "llvm-cpu"), uri)
    for number in range(1, 4):
        np.testing.assert_array_equal(
            np.asarray(counter.add(np.arange(4, dtype=np.float32))), number * np.arange(4)
        )
    again = counter.new_context()
    np.testing.assert_array_equal(np.asarray(again.add(np.ones(4, np.float32))), np.ones(4))


TWICE = """
func.func @twice(%x: tensor<?xf32>) -> tensor<?xf32> {
  %r = arith.addf %x, %x : tensor<?xf32>
  return %r : tensor<?xf32>
}
func.func @bf(%x: tensor<7xbf16>) -> tensor<7xbf16> {
  %r = arith.mulf %x, %x : tensor<7xbf16>
  return %r : tensor<7xbf16>
}
"""


@pytest.mark.parametrize("uri", DEVICES)
def test_sizes_of_any_kind_and_results_as_arguments(uri: str, compile_mlir: Compile) -> None:
    module = halgpu.load(compile_mlir(TWICE, "llvm-cpu"), uri)
    for size in (0, 1, 15, 16, 1000, 100_003):
        x = np.arange(size, dtype=np.float32)
        result = module.twice(module.twice(x))
        np.testing.assert_array_equal(np.asarray(result), 4 * x)
    values = np.arange(7).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(np.asarray(module.bf(values)), values * values)


@pytest.mark.parametrize("uri", ["host", "opencl?unified=0"])
def test_arguments_that_are_looked_at_or_imported_keep_their_bytes(uri: str, compile_mlir: Compile) -> None:
    module = halgpu.load(compile_mlir(TWICE, "llvm-cpu"), uri)
    x = np.arange(100, dtype=np.float32)
    view = halgpu.BufferView.from_array(x, module.device)
    window = open_window(view.buffer)
    np.testing.assert_array_equal(np.asarray(module.twice(view)), 2 * x)
    np.testing.assert_array_equal(window.view(np.float32), x)
    np.testing.assert_array_equal(np.asarray(view), x)


def test_an_array_in_place_is_an_argument(compile_mlir: Compile) -> None:
    device = open_device("host")
    storage = np.zeros(100 + 16, np.float32)
    start = -storage.__array_interface__["data"][0] % 64 // 4
    x = storage[start : start + 100]
    x[:] = np.arange(100)
    view = halgpu.BufferView.from_array(x, device, copy=False)
    result = halgpu.load(compile_mlir(TWICE, "llvm-cpu"), device).twice(view)
    np.testing.assert_array_equal(np.asarray(result), 2 * np.arange(100))
    np.testing.assert_array_equal(x, np.arange(100))


# Weights ----------------------------------------------------------------------------------------------


def weighted() -> tuple[str, np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    matrix, bias = random.normal(size=(40, 24)).astype(np.float32), random.normal(size=24).astype(np.float32)
    dense = [f'dense<"0x{array.tobytes().hex().upper()}">' for array in (matrix, bias)]
    source = f"""
func.func @main(%x: tensor<3x40xf32>) -> tensor<3x24xf32> {{
  %w = arith.constant {dense[0]} : tensor<40x24xf32>
  %b = arith.constant {dense[1]} : tensor<24xf32>
  %e = tensor.empty() : tensor<3x24xf32>
  %i = linalg.broadcast ins(%b : tensor<24xf32>) outs(%e : tensor<3x24xf32>) dimensions = [0]
  %r = linalg.matmul ins(%x, %w : tensor<3x40xf32>, tensor<40x24xf32>) outs(%i : tensor<3x24xf32>) -> tensor<3x24xf32>
  return %r : tensor<3x24xf32>
}}
"""
    return source, matrix, bias


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, np.ndarray]:
    """A program with weights, compiled by `halgpu compile --device=host`."""
    folder = tmp_path_factory.mktemp("weights")
    source, matrix, bias = weighted()
    (folder / "w.mlir").write_text(source)
    assert main(["compile", str(folder / "w.mlir"), "-o", str(folder / "w.vmfb"), "--device=host"]) == 0
    return folder / "w.vmfb", matrix, bias


@pytest.mark.parametrize("uri", ["host", "opencl", "opencl?unified=0"])
def test_weights(uri: str, weights: tuple[Path, np.ndarray, np.ndarray]) -> None:
    path, matrix, bias = weights
    x = np.random.default_rng(6).normal(size=(3, 40)).astype(np.float32)
    module = halgpu.load(path, uri)
    for _ in range(2):
        np.testing.assert_allclose(np.asarray(module.main(x)), x @ matrix + bias, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shift", [0, 1, 4, 33])
def test_weights_at_any_address(shift: int, weights: tuple[Path, np.ndarray, np.ndarray]) -> None:
    path, matrix, bias = weights
    data = path.read_bytes()
    storage = np.zeros(len(data) + 128, np.uint8)
    start = -storage.__array_interface__["data"][0] % 64 + shift
    storage[start : start + len(data)] = np.frombuffer(data, np.uint8)
    x = np.random.default_rng(6).normal(size=(3, 40)).astype(np.float32)
    with halgpu.load(memoryview(storage)[start : start + len(data)], "host") as module:
        for _ in range(2):
            np.testing.assert_allclose(np.asarray(module.main(x)), x @ matrix + bias, rtol=1e-4, atol=1e-5)


def test_the_command_runs_what_it_compiled_for_the_host(
    weights: tuple[Path, np.ndarray, np.ndarray], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path, matrix, bias = weights
    x = np.random.default_rng(6).normal(size=(3, 40)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    assert (
        main(["run", f"--module={path}", "--function=main", f"--input=@{tmp_path}/x.npy", "--device=host",
              f"--output=@{tmp_path}/y.npy"]) == 0
    )  # fmt: skip
    assert capsys.readouterr().out.startswith("EXEC @main")
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), x @ matrix + bias, rtol=1e-4, atol=1e-5)


# Life -------------------------------------------------------------------------------------------------


def test_closing_a_module_gives_its_code_back(compile_mlir: Compile, examples: Path) -> None:
    program = compile_mlir((examples / "network.mlir").read_text(), "llvm-cpu")
    device = open_device("host?debug=0")

    halgpu.load(program, device).close()
    before = device.statistics.live_handles
    maps = len(Path("/proc/self/maps").read_text().splitlines())
    for _ in range(50):
        halgpu.load(program, device).close()
    assert device.statistics.live_handles == before
    assert len(Path("/proc/self/maps").read_text().splitlines()) < maps + 50


def test_a_profile_names_the_kernels(compile_mlir: Compile, examples: Path) -> None:
    module = halgpu.load(compile_mlir((examples / "counter.mlir").read_text(), "llvm-cpu"), "opencl")
    with module.device.profile() as recording:
        module.add(np.ones(4, np.float32))
    assert [total.name for total in recording.kernels] == ["add_dispatch_0_elementwise_4_f32"]
    assert 0 < recording.kernels[0].seconds < recording.seconds
