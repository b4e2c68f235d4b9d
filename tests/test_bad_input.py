"""Everything that can be wrong with what a user gives: one clear line and status 1, or one halgpu error."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import halgpu
from halgpu import errors
from halgpu.cli import main
from halgpu.lost_constants import HINT

X = np.array([-2, 3], np.float32)
COUNTED = """
func.func @f(%a: tensor<2xf32>, %k: i32) -> tensor<2xf32> {
  %0 = arith.addf %a, %a : tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""
IMPORTING = """
module @importing {
  func.func private @other.f(i32) -> i32
  func.func @main(%a: i32) -> i32 {
    %0 = call @other.f(%a) : (i32) -> i32
    return %0 : i32
  }
}
"""
CONSTANT = """
func.func @f(%a: tensor<4x64xf32>) -> tensor<4x64xf32> {
  %w = arith.constant dense_resource<w> : tensor<64x64xf32>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x64xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<4x64xf32>) -> tensor<4x64xf32>
  %m = linalg.matmul ins(%a, %w : tensor<4x64xf32>, tensor<64x64xf32>) outs(%f : tensor<4x64xf32>) -> tensor<4x64xf32>
  return %m : tensor<4x64xf32>
}
{-# dialect_resources: { builtin: { w: "0x04000000__DATA__" } } #-}
"""


@pytest.fixture(scope="module")
def abs_program(compile_mlir, examples) -> bytes:
    return compile_mlir((examples / "abs.mlir").read_text())


@pytest.fixture(scope="module", autouse=True)
def device():
    """Keeps the device open between runs."""
    return halgpu.open_device("opencl")


@pytest.fixture
def refused(tmp_path, capfd):
    """Run the command on a program; returns the one line it prints."""

    def run(program, *flags: str, device: str = "opencl") -> str:
        path = tmp_path / "program.vmfb"
        if isinstance(program, (bytes, bytearray)):
            path.write_bytes(program)
        capfd.readouterr()
        status = main(["run", f"--module={path if isinstance(program, (bytes, bytearray)) else program}",
                       f"--device={device}", *flags])  # fmt: skip
        captured = capfd.readouterr()
        assert status == 1
        assert captured.err.startswith("halgpu: error: ")
        assert captured.err.count("\n") == 1, captured.err
        assert captured.out in ("", "EXEC @abs\n", "EXEC @f\n")
        for word in ("Traceback", "internal error", "Error("):
            assert word not in captured.err
        return captured.err.removeprefix("halgpu: error: ").rstrip("\n")

    return run


# Programs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [b"", b"hello", b"\0" * 4096, b"PK\x03\x04" + b"x" * 100, b"#!/bin/sh\n" * 50, bytes(range(256)) * 8],
)
def test_what_is_no_program(data, refused):
    assert refused(data)
    for form in (data, bytearray(data), memoryview(b"#" + data)[1:]):
        with pytest.raises(halgpu.Error):
            halgpu.load(form, "host")


def test_a_program_cut_anywhere(abs_program, refused):
    whole = 0
    for cut in range(0, len(abs_program), 41):
        try:
            module = halgpu.load(abs_program[:cut], "opencl")
        except halgpu.Error:
            continue
        # Only the ZIP directory at the end is missing, which says nothing new.
        whole += 1
        assert np.asarray(module.abs(X)).tolist() == [2, 3]
    assert whole <= 8
    assert refused(abs_program[: len(abs_program) // 2])


def other_version(program: bytes) -> bytes:
    """The program marked as bytecode version 16.0: version 17.0 is the word 0x00110000, first in the FlatBuffer."""
    at = program.index((17 << 16).to_bytes(4, "little"))
    return program[:at] + (16 << 16).to_bytes(4, "little") + program[at + 4 :]


def test_another_bytecode_version(abs_program, refused, iree_tool, tmp_path):
    program = other_version(abs_program)
    assert "expected bytecode version 17.0, found 16.0" in refused(program)
    with pytest.raises(errors.Incompatible):
        halgpu.load(program, "opencl")
    (tmp_path / "other.vmfb").write_bytes(program)
    done = iree_tool("iree-dump-module", f"{tmp_path}/other.vmfb", check=False)
    assert "version" in done.stderr


def test_a_program_for_the_full_hal(compile_mlir, examples, refused):
    program = compile_mlir((examples / "abs.mlir").read_text(), "vulkan", model="async-external")
    line = refused(program, "--input=2xf32=1")
    assert "full HAL" in line
    assert "--iree-execution-model=inline-dynamic" in line
    with pytest.raises(errors.Incompatible):
        halgpu.load(program, "opencl")


def test_a_program_without_kernels_for_the_device(abs_program, refused):
    line = refused(abs_program, "--input=2xf32=1", device="host")
    assert "supported by the runtime, in module.__init (" in line
    assert "): it offers vulkan-spirv-fb; host:0 runs embedded-elf-" in line
    assert line.endswith(
        "; compile with 'halgpu compile --target=llvm-cpu', "
        "or use --device=opencl (in Python, device='opencl')"
    )
    with pytest.raises(errors.Unavailable):
        halgpu.load(abs_program, "host")


def test_hand_written_kernels_on_the_host(compile_mlir, examples, refused):
    program = compile_mlir((examples / "custom_kernel.mlir").read_text(), "vulkan")
    line = refused(program, "--input=2", "--input=1xf32", "--input=1xf32", device="host")
    assert "executables of format 'cuda-c' do not run on host:0" in line
    assert "compile with" not in line
    assert "; use --device=opencl (in Python, device='opencl')" in line


def test_native_code_that_is_refused_on_the_host(compile_mlir, examples, refused, monkeypatch):
    monkeypatch.setenv("HALGPU_NATIVE", "0")
    program = compile_mlir((examples / "abs.mlir").read_text(), "llvm-cpu")
    line = refused(program, "--input=2xf32=1", device="host")
    assert line.endswith("; compile with 'halgpu compile --target=vmvx'")


def test_native_code_that_is_refused(compile_mlir, examples, refused, monkeypatch):
    monkeypatch.setenv("HALGPU_NATIVE", "0")
    program = compile_mlir((examples / "abs.mlir").read_text(), "llvm-cpu")
    line = refused(program, "--input=2xf32=1")
    assert "): it offers embedded-elf-" in line
    assert "; native code is refused (HALGPU_NATIVE=0); opencl:0 runs vulkan-spirv-fb, opencl-c" in line
    assert line.endswith("; compile with 'halgpu compile --target=vulkan'")
    with pytest.raises(errors.Unavailable, match=r"native code is refused \(native=False\)"):
        halgpu.load(program, "opencl", native=False)
    assert halgpu.load(program, "opencl", native=True).name
    monkeypatch.setenv("HALGPU_NATIVE", "no")
    assert "HALGPU_NATIVE must be 0 or 1; found 'no'" in refused(program, "--input=2xf32=1")


def test_a_program_that_needs_a_module_that_is_not_there(compile_mlir, refused):
    line = refused(compile_mlir(IMPORTING), "--input=1")
    assert (
        line
        == "module 'importing' imports other, which is not there; there are: hal_inline, hal_loader, vmvx"
    )


def test_files_that_cannot_be_read(tmp_path, refused):
    assert refused("nowhere.vmfb") == "no such file: nowhere.vmfb"
    assert "directory" in refused(str(tmp_path)).lower()
    for source in ("nowhere.vmfb", tmp_path / "nowhere", tmp_path, "a\0b", ""):
        with pytest.raises(halgpu.Error):
            halgpu.load(source, "host")


def test_a_missing_file_is_one_short_traceback():
    with pytest.raises(errors.NotFound) as caught:
        halgpu.load("nowhere.vmfb", "host")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_a_source_of_no_use_says_what_is():
    with pytest.raises(errors.InvalidArgument, match=r"expected the path of a \.vmfb, or its .*, found int"):
        halgpu.load(3, "host")
    with (
        open(__file__, "rb") as file,
        pytest.raises(errors.InvalidArgument, match=r"pass its path or its read\("),
    ):
        halgpu.load(file, "host")
    with (
        open(__file__) as file,
        pytest.raises(errors.InvalidArgument, match=r"found an open file .*; pass its path$"),
    ):
        halgpu.load(file, "host")


@pytest.mark.parametrize("source", [None, 3, 1.5, object(), [b"x"], np.zeros((4, 4))[:, ::2]])
def test_sources_of_no_use(source):
    with pytest.raises(halgpu.Error):
        halgpu.load(source, "host")


# Functions --------------------------------------------------------------------------------------------


def test_a_missing_function(abs_program, refused):
    assert (
        refused(abs_program, "--function=asb")
        == "module 'module' has no function 'asb' (did you mean 'abs'?); it has: abs"
    )
    assert "it has: abs" in refused(abs_program, "--function=__init")


# Inputs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "function 'f': expected 2 arguments (input0: tensor<2xf32>, input1: i32), found 0"),
        (["2xf32=1"], "expected 2 arguments (input0: tensor<2xf32>, input1: i32), found 1"),
        (
            ["2xf32=1", "2", "3"],
            "function 'f': expected 2 arguments (input0: tensor<2xf32>, input1: i32), found 3",
        ),
        (["3xf64=1", "2"], "input0: expected tensor<2xf32>, found 3xf64"),
        (["2xi32=1", "2"], "input0: expected tensor<2xf32>, found 2xi32"),
        (["2xf32=1", "2xi32=1"], "input1: expected i32; '2xi32=1' is not an integer"),
        (["2xf32=1", "@x.npy"], "cannot read 'x.npy'"),
        (["2xf32=1", "5000000000"], "5000000000 does not fit"),
        (["2xf32=1", "two"], "'two' is not an integer"),
        (["", "2"], "input ``: no value given"),
        (["7", "2"], "such as 4x2xf32=1 2 3"),
        (["2xf32=1 x", "2"], "'x' is not a number"),
        (["2xf32=1 2 3", "2"], "expected 2 elements (or one, which is repeated), found 3"),
        (["2xf32=[]", "2"], "expected 2 elements, found none"),
        (["2xi8=1 300", "2"], "300 does not fit: expected -128 to 255"),
        (["2xx2xf32", "2"], "has a dimension ''"),
        (["2xfoo", "2"], "unknown element type 'foo'"),
        (["4294967296x4294967296xi8=0", "2"], "overflows 64 bits at dimension 1"),
        (["99999999999xf32=0", "2"], "input0: expected tensor<2xf32>, found 99999999999xf32"),
        (["2xf32=@nowhere.bin", "2"], "cannot read 'nowhere.bin': No such file or directory"),
        (["2xf32=@/", "2"], "cannot read '/': Is a directory"),
        (["@nowhere.npy", "2"], "cannot read 'nowhere.npy': No such file or directory"),
        (["@data.bin", "2"], "'data.bin' is no .npy file; other files need shape and type"),
        (["@", "2"], "is no .npy file"),
        (["2xf32=@a\0b", "2"], "cannot read"),
        (["2xf32=@/proc/self/mem", "2"], "input `2xf32=@/proc/self/mem`: "),
        (["1x" * 65 + "f32=1", "2"], "numpy has no arrays of that shape"),
        (["1x" * 65 + "f32=@/dev/null", "2"], "4 bytes are needed, the file has only 0 left"),
        ([f"0x{1 << 62}xf32", "2"], "numpy has no arrays of that shape"),
        (["2xf32=a\nb", "2"], "input `2xf32=a\\nb`: 'a' is not a number"),
        (["2xf3=1", "2"], "unknown element type 'f3' (did you mean 'f32'?); floats are f16, f32, f64, bf16"),
        (["x.npy", "2"], "input `x.npy`: a file is written with @; did you mean @x.npy?"),
        (["/dev/null", "2"], "such as 4x2xf32=1 2 3"),
        ([__file__, "2"], f"did you mean 2x3xf32=@{__file__} or the like?"),
        (["&2xq", "2"], "unknown element type 'q'"),
    ],
)
def test_wrong_inputs(inputs, message, compile_mlir, refused):
    line = refused(compile_mlir(COUNTED), *[f"--input={value}" for value in inputs])
    assert message in line


def test_files_of_the_wrong_content(compile_mlir, refused, tmp_path):
    program = compile_mlir(COUNTED)
    (tmp_path / "short.bin").write_bytes(bytes(7))
    assert "8 bytes are needed, the file has only 7 left" in refused(
        program, f"--input=2xf32=@{tmp_path}/short.bin", "--input=1"
    )
    good = tmp_path / "good.npy"
    np.save(good, X)
    data = good.read_bytes()
    for name, content in {
        "text": b"hello world",
        "cut": data[:-3],
        "head": data[:20],
        "empty": b"",
        "type": data.replace(b"<f4", b"|O8"),
    }.items():
        path = tmp_path / f"{name}.npy"
        path.write_bytes(content)
        assert refused(program, f"--input=@{path}", "--input=1").startswith(f"input `@{path}`: ")
    line = refused(program, f"--input=@{good}", f"--input=+{good}")
    assert "no further array" in line
    np.save(good, X.astype(np.float64))
    assert "input0: expected tensor<2xf32>, found 2xf64" in refused(program, f"--input=@{good}", "--input=1")


DYNAMIC = "func.func @f(%a: tensor<?xi8>) -> tensor<?xi8> { %0 = arith.addi %a, %a : tensor<?xi8> return %0 : tensor<?xi8> }"


@pytest.mark.parametrize("size", ["99999999999999", "9223372036854775807"])
def test_sizes_beyond_the_device_take_no_memory(size, compile_mlir, refused):
    line = refused(compile_mlir(DYNAMIC), f"--input={size}xi8=1")
    assert f"input0: {size}xi8: a buffer of {size} bytes is more than opencl:0 gives at once" in line


def test_sizes_beyond_the_device_in_python(compile_mlir):
    module = halgpu.load(compile_mlir(DYNAMIC), "opencl")
    huge = np.broadcast_to(np.int8(1), (1 << 45,))
    with pytest.raises(errors.ResourceExhausted, match="more than opencl:0 gives at once"):
        module.f(huge)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--output=-", "--output=-"], "expected 1 output, one for each result, found 2"),
        (
            ["--expected_output=2xf32", "--expected_output=1"],
            "function 'abs': expected 1 result, found 2 expected outputs",
        ),
        (["--output=x"], "output 'x' is unknown"),
        (["--output=@"], "output '@' is unknown"),
        (["--output=@/nowhere/x.npy"], "cannot write '/nowhere/x.npy': No such file or directory"),
        (["--output=@/dev/full"], "cannot write '/dev/full': No space left on device"),
        (["--expected_output=2xf32=x"], "expected output `2xf32=x`: 'x' is not a number"),
        (["--expected_output=@nowhere.npy"], "cannot read 'nowhere.npy'"),
    ],
)
def test_wrong_outputs(flags, message, abs_program, refused):
    assert message in refused(abs_program, "--input=2xf32=1", *flags)


# Devices ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["opencll", "opencl:99", "cuda:0", "opencl:x", "opencl?unified=7"])
def test_devices_that_are_not_there(device, abs_program, refused):
    assert refused(abs_program, "--input=2xf32=1", device=device)
    with pytest.raises(halgpu.Error):
        halgpu.load(abs_program, device)


def test_what_is_no_device(abs_program):
    for device in ("", 3, object(), b"opencl"):
        with pytest.raises(halgpu.Error):
            halgpu.load(abs_program, device)


def test_no_opencl_platform_says_how_to_get_one(abs_program, tmp_path):
    (tmp_path / "abs.vmfb").write_bytes(abs_program)
    done = subprocess.run(
        [sys.executable, "-m", "halgpu.cli", "run", f"--module={tmp_path}/abs.vmfb", "--input=2xf32=1"],
        capture_output=True, text=True, env={**os.environ, "OCL_ICD_VENDORS": str(tmp_path / "none")}, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("halgpu: error: no OpenCL platform")
    assert "pocl" in done.stderr
    assert done.stderr.count("\n") == 1


# Running ----------------------------------------------------------------------------------------------


def test_a_kernel_that_does_not_build_shows_source_and_log(abs_program, monkeypatch, capfd, tmp_path):
    from halgpu.devices.opencl import OpenCLDevice

    build = OpenCLDevice.build_programs

    def broken(self, programs):
        import dataclasses

        return build(
            self, [dataclasses.replace(p, source="this is no OpenCL C\n" + p.source) for p in programs]
        )

    monkeypatch.setattr(OpenCLDevice, "build_programs", broken)
    (tmp_path / "abs.vmfb").write_bytes(abs_program)
    assert main(["run", f"--module={tmp_path}/abs.vmfb", "--input=2xf32=1", "--device=opencl"]) == 1
    printed = capfd.readouterr().err
    assert "halgpu: error: opencl:0 could not build kernels abs_dispatch_0_elementwise_2_f32" in printed
    assert " 1 | this is no OpenCL C\n 2 | " in printed
    assert "error" in printed.partition("log:")[2]
    assert "Traceback" not in printed
    with pytest.raises(halgpu.Error):
        halgpu.load(abs_program, "opencl")


def test_a_null_binding_names_kernel_and_binding(compile_mlir, refused):
    weights = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    program = compile_mlir(CONSTANT.replace("__DATA__", weights.tobytes().hex().upper()))
    line = refused(program, "--input=4x64xf32=1")
    assert "kernel 'f_dispatch_0_matmul_4x64x64_f32': binding 1 is null" in line
    assert line.endswith(HINT)
    with pytest.raises(
        errors.InvalidArgument, match=r"binding 1 is null.*; compile it with 'halgpu compile'"
    ):
        halgpu.load(program, "opencl").f(np.ones((4, 64), np.float32))


def test_a_null_argument_of_a_function_that_lost_a_constant(compile_mlir, refused):
    weights = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    program = compile_mlir(CONSTANT.replace("__DATA__", weights.tobytes().hex().upper()))
    line = refused(program, "--input=(null)")
    assert "expected a ref to !hal.buffer_view, found null, in module.f (" in line
    assert HINT not in line


def test_a_null_argument(abs_program, refused):
    assert "null" in refused(abs_program, "--input=(null)")
    with pytest.raises(errors.InvalidArgument, match="null"):
        halgpu.load(abs_program, "opencl").abs(None)


def test_a_buffer_for_a_view(abs_program, refused):
    assert "expected a ref to !hal.buffer_view" in refused(abs_program, "--input=&2xf32=1")


def test_errors_inside_a_program_say_where(abs_program):
    with pytest.raises(errors.InvalidArgument) as caught:
        halgpu.load(abs_program, "opencl").abs(None)
    assert any("abs" in frame for frame in caught.value.frames)
