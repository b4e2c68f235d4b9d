"""halgpu.compile: what it takes, what it says when it fails, and that it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import halgpu
from halgpu import errors
from halgpu.compiler import diagnostics, driver, toolchain

ADD = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = arith.addf %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
STABLEHLO = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
X = np.arange(4, dtype=np.float32)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, which is empty again after each test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", ["text", "bytes", "path", "str path", "stablehlo"])
def test_sources(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "add.mlir"
    path.write_text(ADD)
    sources: dict[str, Any] = {
        "text": ADD, "bytes": memoryview(ADD.encode()), "path": path, "str path": str(path), "stablehlo": STABLEHLO
    }  # fmt: skip
    assert np.asarray(halgpu.load(halgpu.compile(sources[kind]), "opencl").main(X)).tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("nothing.mlir", errors.NotFound, "nothing.mlir: expected a program to compile"),
        (Path("/"), errors.NotFound, "found a folder"),
        (b"", errors.InvalidArgument, "found nothing"),
        (
            7,
            errors.InvalidArgument,
            "expected a path, MLIR as text or bytes, or an ONNX ModelProto, found int",
        ),
    ],
)
def test_what_cannot_be_compiled(source: Any, error: type[errors.Error], message: str) -> None:
    with pytest.raises(error, match=message):
        halgpu.compile(source)


def test_a_mistake_is_told_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "wrong.mlir"
    path.write_text(ADD.replace("return %0", "return %1"))
    with pytest.raises(errors.InvalidArgument) as caught:
        halgpu.compile(path)
    assert caught.value.message == f"{path}:3:10: error: use of undeclared SSA value name"
    assert "  return %1 : tensor<4xf32>\n         ^" in caught.value.details
    with pytest.raises(errors.InvalidArgument, match=r"^module\.mlir:3:10: error: "):
        halgpu.compile(path.read_text())


FENCES = """util.func public @main(%x: !hal.buffer_view, %w: !hal.fence, %s: !hal.fence) -> !hal.buffer_view {
  %0 = hal.tensor.import wait(%w) => %x : !hal.buffer_view -> tensor<4xf32>
  %1 = arith.addf %0, %0 : tensor<4xf32>
  %2 = hal.tensor.barrier join(%1 : tensor<4xf32>) => %s : !hal.fence
  %3 = hal.tensor.export %2 : tensor<4xf32> -> !hal.buffer_view
  util.return %3 : !hal.buffer_view
}
"""
COLLECTIVE = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = flow.channel.default : !flow.channel
  %1 = tensor.empty() : tensor<4xf32>
  %2 = flow.collective.all_reduce sum, f32, %1, %x, %0 : (tensor<4xf32>, tensor<4xf32>, !flow.channel) -> tensor<4xf32>
  return %2 : tensor<4xf32>
}
"""
PARAMETER = """util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<64xf32>
func.func @main() -> tensor<64xf32> {
  %w = util.global.load @w : tensor<64xf32>
  return %w : tensor<64xf32>
}
"""


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (FENCES, "they have no asynchronous functions"),
        (COLLECTIVE, "have no collectives, such as all-reduce"),
        (PARAMETER, r"have no parameter files \(\.irpa\): keep the weights in the program"),
        (ADD.replace("arith.addf %x, %x", "math.log %x").replace("f32", "f64"), "no Log of 64-bit floats"),
    ],
)
def test_what_inline_programs_cannot_hold_is_explained(source: str, sentence: str) -> None:
    with pytest.raises(errors.Unimplemented, match=rf"^module\.mlir:\d+:\d+: error: .*{sentence}") as caught:
        halgpu.compile(source)
    assert "see current operation" not in caught.value.details
    assert max(map(len, caught.value.details.splitlines())) <= diagnostics.LONGEST + 2


DUMPED = """<unknown>:0: error: loc("net/Mul_3"): failed to legalize operation 'arith.truncf' that was explicitly marked \
illegal: %5 = "arith.truncf"(%4) : (f64) -> f32
<unknown>:0: note: loc("net/Mul_3"): see current operation: %5 = "arith.truncf"(%4) : (f64) -> f32
<unknown>:0: error: conversion to vm.module failed
<unknown>:0: note: see current operation:
"builtin.module"() ({
  "util.func"() <{function_type = (!hal.buffer_view, !hal.fence) -> !hal.buffer_view}> ({
    %1 = "hal.devices.get"(%0) : (index) -> !hal.device
  }) : () -> ()
}) : () -> ()
"""


def test_what_stands_around_a_mistake_does_not_explain_it() -> None:
    found = diagnostics.failure("net.onnx", 1, DUMPED)
    assert "the target has no 64-bit floats" in found.message
    assert "asynchronous" not in found.message
    # The first mistake that there is a reason for tells, not the first reason.
    later = DUMPED.replace("arith.truncf", "arith.cosine").replace("f64", "f32")
    later += "a.mlir:1:1: error: timepoints are not supported across the ABI\n"
    assert "asynchronous" in diagnostics.failure("net.onnx", 1, later).message
    assert "64-bit floats" in diagnostics.failure("net.onnx", 1, DUMPED + later).message


def test_a_compiler_that_crashes_is_an_error() -> None:
    with pytest.raises(errors.Internal, match=r"^module\.mlir: the compiler crashed \(SIG[A-Z]+\)$"):
        halgpu.compile('func.func @main() {\n  "foo.bar"() : () -> ()\n  return\n}\n')


def test_unknown_flags_and_targets() -> None:
    with pytest.raises(errors.InvalidArgument, match="Unknown command line argument '--iree-nope'"):
        halgpu.compile(ADD, flags=["--iree-nope"])
    with pytest.raises(errors.InvalidArgument, match=r"Unknown Vulkan target 'amper'.*name its family"):
        halgpu.compile(ADD, target="amper")


def test_the_compilers_warnings_are_pythons() -> None:
    with pytest.warns(UserWarning, match="changed public function signatures") as caught:
        data = halgpu.compile(ADD.replace("f32", "f64"), flags=["--iree-input-demote-f64-to-f32"])
    assert caught[0].filename == __file__
    assert np.asarray(halgpu.load(data, "opencl").main(X)).dtype == np.float32


def test_progress_tells_every_step() -> None:
    told: list[tuple[str, int, int]] = []
    driver.build(ADD, progress=lambda *step: told.append(step))
    assert told == [
        ("lowering the program", 1, 3),
        ("generating kernels", 2, 3),
        ("checking the result", 3, 3),
    ]


@pytest.mark.parametrize(
    ("found", "message"), [("3.12.0", "found 3.12.0"), ("3.130", "found 3.130"), (None, "not installed")]
)
def test_another_compiler_or_none(monkeypatch: pytest.MonkeyPatch, found: str | None, message: str) -> None:
    def version(name: str) -> str:
        if found is None:
            raise toolchain.importlib.metadata.PackageNotFoundError(name)
        return found

    toolchain.check.cache_clear()
    monkeypatch.setattr(toolchain.importlib.metadata, "version", version)
    with pytest.raises((errors.Unavailable, errors.Incompatible), match=f"{message}.*pip install"):
        halgpu.compile(ADD)


def children(process: int) -> set[int]:
    """The processes that ``process`` started and that live (Linux)."""
    lines = (path.read_text() for path in Path("/proc").glob("[0-9]*/stat") if path.exists())
    fields = [[*line.rpartition(")")[2].split(), line.split()[0]] for line in lines]
    return {int(field[-1]) for field in fields if int(field[1]) == process and field[0] != "Z"}


def test_ctrl_c_ends_the_compiler_and_cleans_up(temporary: Path) -> None:
    code = "import halgpu, sys; print('ready', flush=True); halgpu.compile(sys.argv[1])"
    large = "".join(ADD.replace("@main", f"@f{n}").replace("4x", f"{n + 4}x") for n in range(400))
    with subprocess.Popen(
        [sys.executable, "-c", code, large], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        limit = time.monotonic() + 60
        while not (found := children(process.pid)) and time.monotonic() < limit:
            time.sleep(0.05)
        assert found
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in said
    assert not any(Path(f"/proc/{number}").exists() for number in found)


def test_threads_compile_at_the_same_time() -> None:
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(halgpu.compile(ADD))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 2
    assert results[0] == results[1]


def onnx_model(rows: Any = "batch") -> Any:
    """y = x @ w + b, with x of shape (rows, 8)."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"])
    graph = helper.make_graph(
        [node], "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 100])],
        [numpy_helper.from_array(W, "w"), numpy_helper.from_array(B, "b")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(model)
    return model


W = (np.arange(800, dtype=np.float32).reshape(8, 100) % 13 - 6) / 4
B = np.arange(100, dtype=np.float32)


@pytest.fixture(autouse=True)
def quiet_onnx() -> Iterator[None]:
    """protobuf warns of its own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


def test_an_onnx_model_with_its_weights() -> None:
    import onnx

    model = onnx_model()
    assert isinstance(model, onnx.ModelProto)
    program = halgpu.load(halgpu.compile(model), "opencl")
    for rows in (1, 3):
        x = np.arange(rows * 8, dtype=np.float32).reshape(rows, 8) / 8
        np.testing.assert_array_equal(np.asarray(program.linear(x)), x @ W + B)


def test_shapes_are_pinned(tmp_path: Path) -> None:
    path = tmp_path / "linear.onnx"
    path.write_bytes(onnx_model().SerializeToString())
    told: list[str] = []
    done = driver.build(path, shapes={"x": (2, 8)}, progress=lambda what, number, count: told.append(what))
    assert told[0] == "importing the model"
    program = halgpu.load(done.data, "opencl")
    assert "tensor<2x8xf32>) -> (tensor<2x100xf32>)" in repr(program.linear)
    for shapes, message in (
        ({"z": (2, 8)}, "no input 'z'; it has: x"),
        ({"x": (2,)}, "input 'x' has 2 dimensions, the shape given 1"),
        ({"x": (2, 9)}, "input 'x': dimension 1 is 8, the shape given says 9"),
    ):
        with pytest.raises(errors.InvalidArgument, match=message):
            halgpu.compile(path, shapes=shapes)
    with pytest.raises(errors.InvalidArgument, match="expected sizes such as"):
        halgpu.compile(path, shapes={"x": ("a", 8)})  # type: ignore[dict-item]


def test_models_of_old_opsets_are_converted() -> None:
    from onnx import TensorProto, helper

    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    graph = helper.make_graph(
        [node], "pool",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 2, 2])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 7)], ir_version=3)
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    found = np.asarray(halgpu.load(halgpu.compile(model), "opencl").pool(x))
    np.testing.assert_array_equal(found, [[[[5, 7], [13, 15]]]])


def test_an_operator_that_the_compiler_lacks_is_named() -> None:
    from onnx import helper

    model = onnx_model()
    model.graph.node[0].CopyFrom(helper.make_node("Mystery", ["x", "w", "b"], ["y"], domain="far.away"))
    model.opset_import.append(helper.make_opsetid("far.away", 1))
    with pytest.raises(
        errors.Unimplemented, match=r"the compiler has no onnx\.Mystery of this version"
    ) as caught:
        halgpu.compile(model)
    assert 'loc("linear/Mystery_0")' in str(caught.value)


def test_what_is_no_onnx_model() -> None:
    with pytest.raises(errors.InvalidArgument, match=r"^model\.onnx: no ONNX model can be read"):
        halgpu.compile(b"not a model", input_type="onnx")


def test_a_64_bit_constant_that_becomes_a_32_bit_one() -> None:
    """The virtual machine, and the compiler's evaluation of constants, have no conversion for it."""
    program = """func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
      %c = arith.constant 1.1 : f64
      %t = arith.truncf %c : f64 to f32
      %empty = tensor.empty() : tensor<4xf32>
      %f = linalg.fill ins(%t : f32) outs(%empty : tensor<4xf32>) -> tensor<4xf32>
      %b = util.optimization_barrier %f : tensor<4xf32>
      %y = arith.addf %x, %b : tensor<4xf32>
      return %y, %f : tensor<4xf32>, tensor<4xf32>
    }"""
    sums, filled = halgpu.load(halgpu.compile(program), "opencl").main(X)
    np.testing.assert_array_equal(filled, np.full(4, 1.1, np.float32))
    np.testing.assert_array_equal(sums, X + np.float32(1.1))
