"""`halgpu run` beside the stock iree-run-module: the same flags, the same standard output, the same status.

Both run the same source, one compiled for vulkan and run on OpenCL, the other for llvm-cpu.
"""

from __future__ import annotations

import numpy as np
import pytest

from halgpu.cli import main
from halgpu.devices import open_device

# Functions without kernels, which load quickly, and with.
PLAIN = """
module @plain {
  func.func @scalars(%a: i32, %b: f32, %c: i64, %d: f64) -> (i32, f32, i64, f64) {
    %x = arith.addi %a, %a : i32
    %y = arith.addf %b, %b : f32
    %z = arith.addi %c, %c : i64
    %w = arith.addf %d, %d : f64
    return %x, %y, %z, %w : i32, f32, i64, f64
  }
  func.func @narrow(%a: i8, %b: i16, %c: i1, %d: f16, %e: bf16, %f: index) -> (i8, i16, i1, f16, bf16, index) {
    return %a, %b, %c, %d, %e, %f : i8, i16, i1, f16, bf16, index
  }
  func.func @id(%a: tensor<?xf32>) -> tensor<?xf32> { return %a : tensor<?xf32> }
  func.func @any(%a: !hal.buffer_view) -> !hal.buffer_view { return %a : !hal.buffer_view }
  func.func @pair(%a: !hal.buffer_view, %b: !hal.buffer_view) -> (!hal.buffer_view, !hal.buffer_view) {
    return %a, %b : !hal.buffer_view, !hal.buffer_view
  }
  func.func @none() { return }
}
"""
KERNELS = """
module @kernels {
  func.func @two(%a: tensor<2x2xf32>, %b: tensor<3xi64>) -> (tensor<2x2xf32>, tensor<3xi64>) {
    %x = arith.addf %a, %a : tensor<2x2xf32>
    %y = arith.addi %b, %b : tensor<3xi64>
    return %x, %y : tensor<2x2xf32>, tensor<3xi64>
  }
  func.func @shaped(%a: tensor<?x?xf32>) -> (tensor<?x?xf32>, index) {
    %b = arith.addf %a, %a : tensor<?x?xf32>
    %c0 = arith.constant 0 : index
    %d = tensor.dim %a, %c0 : tensor<?x?xf32>
    return %b, %d : tensor<?x?xf32>, index
  }
}
"""
KEEP_F64 = "--iree-input-demote-f64-to-f32=false"


@pytest.fixture(scope="module")
def programs(compile_mlir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    for name, source in (("plain", PLAIN), ("kernels", KERNELS)):
        for target in ("vulkan", "llvm-cpu"):
            (folder / f"{name}.{target}.vmfb").write_bytes(compile_mlir(source, target, KEEP_F64))
    np.save(folder / "a.npy", np.array([[1, 2], [3, 4]], np.float32))
    with open(folder / "several.npy", "wb") as file:
        np.save(file, np.array([[1, 2], [3, 4]], np.float32))
        np.save(file, np.array([5, -6, 7], np.int64))
    (folder / "raw.bin").write_bytes(np.arange(8, dtype=np.float32).tobytes())
    return folder


def module(function: str, target: str = "vulkan") -> str:
    """The flag for the program that has the function of a flag."""
    return f"--module={'kernels' if function in ('--function=two', '--function=shaped') else 'plain'}.{target}.vmfb"


@pytest.fixture(scope="module", autouse=True)
def device():
    """Keeps the device open between runs."""
    return open_device("opencl")


@pytest.fixture
def both(programs, iree_tool, capfd, monkeypatch):
    """Run both tools; returns (status, stdout) of each and our stderr."""
    monkeypatch.chdir(programs)

    def run(*flags: str):
        stock = iree_tool("iree-run-module", module(flags[0], "llvm-cpu"), *flags, check=False)
        capfd.readouterr()
        status = main(["run", module(flags[0]), "--device=opencl", *flags])
        captured = capfd.readouterr()
        return (stock.returncode, stock.stdout), (status, captured.out), captured.err

    return run


SAME = {
    "scalars": "--function=scalars --input=3 --input=1.5 --input=0x10 --input=1e10",
    "scalar specials": "--function=scalars --input=4294967295 --input=-inf --input=-1 --input=nan",
    "scalar nulls": "--function=scalars --input=(null) --input=(null) --input=(ignored) --input=(null)",
    "narrow scalars": "--function=narrow --input=1 --input=-2 --input=1 --input=15360 --input=3 --input=7",
    "nothing": "--function=none",
    "several results": "--function=two --input=2x2xf32=[1|2][3|4] --input=3xi64=5",
    "dynamic shapes": "--function=shaped --input=3x5xf32=1.25",
    "dynamic empty": "--function=shaped --input=0x5xf32",
    "zeros": "--function=id --input=4xf32",
    "empty": "--function=id --input=0xf32",
    "specials": "--function=id --input=5xf32=nan|-nan|-inf|1e-45|-0.0",
    "quoted": '--function=id --input="2xf32=1|3"',
    "rank 0": "--function=any --input=f32=-2",
    "rank 3": "--function=any --input=2x2x2xi8=1,2,3,4,5,6,7,200",
    "bf16": "--function=any --input=4xbf16=1|2.5|nan|-inf",
    "bool": "--function=any --input=4xi1=00|01|01|00",
    "complex": "--function=any --input=2xcf64=000000000000803f|0000803f00000000",
    "empty rank 3": "--function=any --input=3x0x4xf32",
    "null": "--function=any --input=(null)",
    "buffer only": "--function=any --input=&2xf32=1",
    "npy": "--function=any --input=@a.npy",
    "npy again": "--function=pair --input=@several.npy --input=+several.npy",
    "all of npy": "--function=pair --input=*several.npy",
    "npy of int64": "--function=two --input=2x2xf32=0 --input=3xi64=1 --expected_output=2x2xf32 --expected_output=3xi64=2",
    "raw": "--function=id --input=3xf32=@raw.bin",
    "raw, then on": "--function=two --input=2x2xf32=@raw.bin --input=3xi64=0",
    "more than 1024": "--function=id --input=1100xf32=1.5",
    "limit": "--function=pair --input=2x2xf32=1 --input=3xi64=1 --output_max_element_count=3",
    "print": "--function=pair --input=2x2xf32=1 --input=3xi64=1 --output=- --output=-",
    "discard": "--function=pair --input=2x2xf32=1 --input=3xi64=1 --output= --output=-",
    "print scalars": "--function=scalars --input=3 --input=1 --input=2 --input=4 --output=- --output= --output=- --output=-",
    "equal": "--function=id --input=2xf32=-2|3 --expected_output=2xf32=-2|3",
    "near enough": "--function=id --input=2xf32=nan|3 --expected_output=2xf32=nan|3.0001",
    "too far": "--function=id --input=2xf32=nan|3 --expected_output=2xf32=nan|3.0002",
    "near with tolerance": "--function=id --input=1xf32=3 --expected_output=1xf32=3.1 --expected_f32_threshold=0.2",
    "near relatively": "--function=id --input=1xf32=300 --expected_output=1xf32=303 --expected_rtol=0.02",
    "infinities": "--function=id --input=2xf32=inf|-inf --expected_output=2xf32=inf|inf",
    "exact": "--function=id --input=1xf32=3 --expected_output=1xf32=3.00001 --equality_mode=exact",
    "f16 near": "--function=any --input=1xf16=1 --expected_output=1xf16=1.0009",
    "bf16 far": "--function=any --input=1xbf16=1 --expected_output=1xbf16=1.05",
    "integers exact": "--function=any --input=2xi32=1|2 --expected_output=2xi32=1|3",
    "other shape": "--function=id --input=2xf32=1 --expected_output=3xf32=1",
    "other type": "--function=any --input=2xf32=1 --expected_output=2xi32=1",
    "buffer for view": "--function=id --input=2xf32=1 --expected_output=&2xf32=1",
    "ignored": "--function=pair --input=2x2xf32=1 --input=3xi64=1 --expected_output=(ignored) --expected_output=3xi64=2",
    "one of two": "--function=pair --input=2x2xf32=1 --input=3xi64=1 --expected_output=2x2xf32=1",
    "expected npy": "--function=any --input=@a.npy --expected_output=@a.npy",
    "long difference": "--function=id --input=2000xf32=1 --expected_output=2000xf32=2",
}


def split(line: str) -> list[str]:
    return [flag.replace("|", " ") for flag in line.split(" ")]


@pytest.mark.parametrize("line", SAME.values(), ids=SAME.keys())
def test_same_text_and_status(both, line):
    stock, ours, _ = both(*split(line))
    assert ours == stock


def test_values_may_follow_their_flags_after_a_space(programs, capfd, monkeypatch):
    monkeypatch.chdir(programs)
    flags = "run --module plain.vulkan.vmfb --function scalars --input -3 --input -inf --input -1 --input -1.5 --device opencl"
    assert main(flags.split()) == 0
    assert capfd.readouterr().out.splitlines()[1:] == [
        "result[0]: i32=-6", "result[1]: f32=-inf", "result[2]: i64=-2", "result[3]: f64=-3",
    ]  # fmt: skip


WRITTEN = [
    "--function=pair --input=2x2xf32=1|2|3|4 --input=3xi64=1", "--function=any --input=3xi1=01",
    "--function=any --input=f32=2", "--function=any --input=2xcf64=0000803f00000000", "--function=any --input=3x0xi8",
    "--function=any --input=(null)", "--function=any --input=&3xf32=1", "--function=any --input=2x*32=01020304",
    "--function=any --input=5xf16=1", "--function=scalars --input=1 --input=2 --input=3 --input=4",
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "spec"),
    [(line, spec) for line in WRITTEN for spec in ("@{}.npy", "+{}.bin")]
    + [(WRITTEN[0], "+{}.npy"), (WRITTEN[0], "@{}.bin")],
)
def test_same_files(programs, iree_tool, monkeypatch, line, spec):
    monkeypatch.chdir(programs)
    flags = split(line)
    count = {"pair": 2, "any": 1, "scalars": 4}[flags[0].removeprefix("--function=")]
    names = {tool: [f"{tool}{index}{spec[-4:]}" for index in range(count)] for tool in ("stock", "ours")}
    for name in names["stock"] + names["ours"]:
        (programs / name).unlink(missing_ok=True)
    for _ in range(2):  # twice, so that appending shows
        outputs = {tool: [f"--output={spec[0]}{name}" for name in files] for tool, files in names.items()}
        iree_tool("iree-run-module", module(flags[0], "llvm-cpu"), *flags, *outputs["stock"])
        assert main(["run", module(flags[0]), "--device=opencl", *flags, *outputs["ours"]]) == 0
    for stock, ours in zip(names["stock"], names["ours"], strict=True):
        assert (programs / ours).read_bytes() == (programs / stock).read_bytes()


def test_appended_arrays_are_what_the_stock_tool_appends(programs, iree_tool, capfd, monkeypatch):
    monkeypatch.chdir(programs)
    flags = split("--function=two --input=2x2xf32=1|2|3|4 --input=3xi64=1")
    for path in ("s.npy", "o.npy"):
        (programs / path).unlink(missing_ok=True)
    iree_tool("iree-run-module", module(flags[0], "llvm-cpu"), *flags, "--output=@s.npy", "--output=+s.npy")
    assert (
        main(["run", module(flags[0]), "--device=opencl", *flags, "--output=@o.npy", "--output=+o.npy"]) == 0
    )
    assert (programs / "o.npy").read_bytes() == (programs / "s.npy").read_bytes()
    with open(programs / "o.npy", "rb") as file:
        assert np.load(file).tolist() == [[2, 4], [6, 8]]
        assert np.load(file).tolist() == [2, 2, 2]


# Where this command knowingly differs: see halgpu/cli/values.py and results.py.


def ours(programs, monkeypatch, capfd, line: str):
    monkeypatch.chdir(programs)
    capfd.readouterr()
    flags = split(line)
    status = main(["run", module(flags[0]), "--device=opencl", *flags])
    return (status, *capfd.readouterr())


def test_scalars_are_compared(programs, monkeypatch, capfd):
    line = "--function=scalars --input=3 --input=1.5 --input=5 --input=2 --expected_output={} --expected_output=3.00005 " \
           "--expected_output=(ignored) --expected_output=4"  # fmt: skip
    status, out, _ = ours(programs, monkeypatch, capfd, line.format(6))
    assert (status, out.splitlines()[1]) == (
        0,
        "[SUCCESS] all function outputs matched their expected values.",
    )
    status, out, _ = ours(programs, monkeypatch, capfd, line.format(7))
    assert (status, out.splitlines()[1:]) == (
        1, ["[FAILED] result[0]: i32 values differ", "  expected: 7", "  actual: 6"],
    )  # fmt: skip


def test_signed_npy_files_serve_for_signless_results(programs, monkeypatch, capfd):
    np.save(programs / "i64.npy", np.array([2, 4, 6], np.int64))
    line = "--function=two --input=2x2xf32 --input=3xi64=1|2|3 --expected_output=(ignored) --expected_output=@i64.npy"
    assert ours(programs, monkeypatch, capfd, line)[0] == 0


def test_arrays_that_the_stock_tool_cannot_read(programs, monkeypatch, capfd):
    np.save(programs / "fortran.npy", np.asfortranarray([[1, 2], [3, 4]], np.float32))
    np.save(programs / "big.npy", np.array([[1, 2], [3, 4]], ">f4"))
    for name in ("fortran", "big"):
        status, out, _ = ours(
            programs,
            monkeypatch,
            capfd,
            f"--function=two --input=@{name}.npy --input=3xi64 --output=- --output=",
        )
        assert (status, out.splitlines()[-1]) == (0, "2x2xf32=[2 4][6 8]")


def test_bf16_goes_through_npy_as_raw_bytes(programs, monkeypatch, capfd):
    status, _, _ = ours(
        programs, monkeypatch, capfd, "--function=any --input=3xbf16=1|2.5|-inf --output=@bf16.npy"
    )
    assert status == 0
    assert np.load(programs / "bf16.npy").dtype == np.dtype("V2")
    line = "--function=any --input=3xbf16=1|2.5|-inf --expected_output=@bf16.npy"
    assert ours(programs, monkeypatch, capfd, line)[0] == 0


def test_truth_values_in_words(programs, monkeypatch, capfd):
    status, out, _ = ours(programs, monkeypatch, capfd, "--function=any --input=4xi1=[0|1|true|false]")
    assert (status, out.splitlines()[-1]) == (0, "4xi1=00 01 01 00")


def test_f8_is_compared_exactly(programs, monkeypatch, capfd):
    # The stock tool aborts on a name as long as f8E4M3FN.
    for value, status in (("1", 0), ("1.125", 1)):
        line = f"--function=any --input=1xf8E4M3FN=1 --expected_output=1xf8E4M3FN={value}"
        assert ours(programs, monkeypatch, capfd, line)[0] == status


def test_packed_elements_come_from_files_and_go_to_files(programs, monkeypatch, capfd):
    (programs / "i4.bin").write_bytes(b"\x21\x03")
    status, _, _ = ours(programs, monkeypatch, capfd, "--function=any --input=3xi4=@i4.bin --output=@i4.out")
    assert (status, (programs / "i4.out").read_bytes()) == (0, b"\x21\x03")


def test_the_function_may_be_left_out_when_there_is_one(examples, compile_mlir, tmp_path, capfd):
    (tmp_path / "abs.vmfb").write_bytes(compile_mlir((examples / "abs.mlir").read_text()))
    flags = ["run", f"--module={tmp_path}/abs.vmfb", "--input=2xf32=-2 3", "--device=opencl"]
    assert main(flags) == 0
    assert main([*flags, "--function=abs"]) == 0
    text = "EXEC @abs\nresult[0]: hal.buffer_view\n2xf32=2 3\n"
    assert capfd.readouterr().out == 2 * text


def test_a_module_from_standard_input(examples, compile_mlir, capfd, monkeypatch):
    import io
    import sys

    data = compile_mlir((examples / "abs.mlir").read_text())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert main(["run", "--module=-", "--input=2xf32=-1", "--device=opencl"]) == 0
    assert capfd.readouterr().out.endswith("2xf32=1 1\n")


def test_statistics_go_to_stderr(programs, monkeypatch, capfd):
    status, out, err = ours(
        programs, monkeypatch, capfd, "--function=two --input=2x2xf32 --input=3xi64 --print_statistics"
    )
    assert status == 0
    assert "dispatches" not in out
    assert "dispatches: " in err
