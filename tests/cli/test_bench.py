"""`halgpu bench`: its figures beside each other, beside numpy, and beside the stock iree-benchmark-module."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

import halgpu
from halgpu.cli import main, measure, timings
from halgpu.devices import open_device

PROGRAM = """
module @program {
  func.func @twice(%a: tensor<64xf32>) -> tensor<64xf32> {
    %x = arith.addf %a, %a : tensor<64xf32>
    return %x : tensor<64xf32>
  }
  func.func @triple(%a: tensor<64xf32>) -> tensor<64xf32> {
    %c = arith.constant 3.0 : f32
    %s = tensor.splat %c : tensor<64xf32>
    %x = arith.mulf %a, %s : tensor<64xf32>
    return %x : tensor<64xf32>
  }
  FUNCTIONS
  func.func @divide(%a: i32, %b: i32) -> i32 {
    %x = arith.divsi %a, %b : i32
    return %x : i32
  }
}
"""
FUNCTIONS = """
  func.func @none() { return }
  func.func @five() -> i32 {
    %x = arith.constant 5 : i32
    return %x : i32
  }
"""
PROGRAM = PROGRAM.replace("FUNCTIONS", FUNCTIONS)
WITHOUT_PARAMETERS = f"module @program {{ {FUNCTIONS} }}"
URIS = ["opencl", "opencl?unified=0", "null"]
KERNEL = "twice_dispatch_0_elementwise_64_f32"
QUICK = ["--benchmark_min_time=9x", "--benchmark_min_warmup_time=0"]


@pytest.fixture(scope="module")
def folder(compile_mlir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    (folder / "program.vmfb").write_bytes(compile_mlir(PROGRAM))
    (folder / "cpu.vmfb").write_bytes(compile_mlir(WITHOUT_PARAMETERS, "llvm-cpu"))
    one = "module @one { func.func @same(%a: i32) -> i32 { return %a : i32 } }"
    (folder / "one.vmfb").write_bytes(compile_mlir(one))
    return folder


@pytest.fixture(scope="module", autouse=True)
def devices():
    """Keeps the devices open between runs."""
    return [open_device(uri) for uri in URIS]


@pytest.fixture
def bench(folder, monkeypatch, capsys):
    """Runs it with `flags`; returns status, stdout and stderr."""
    monkeypatch.chdir(folder)

    def run(*flags: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["bench", *flags])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.mark.parametrize("uri", URIS)
def test_the_figures_agree_with_each_other(uri, bench):
    flags = ["--function=twice", "--input=64xf32=1", f"--device={uri}", "--items=4", "--profile_calls=5"]
    begin = time.perf_counter()
    status, out, err = bench("--module=program.vmfb", *flags, *QUICK, "--json")
    wall = (time.perf_counter() - begin) * 1e3
    assert (status, err) == (0, "")
    report = json.loads(out)
    context, [entry] = report["context"], report["benchmarks"]
    assert (context["module"], context["device"]) == ("program", open_device(uri).uri)
    assert context["peak_rss_bytes"] > 1 << 20
    assert (entry["iterations"], entry["warm_ups"], entry["time_unit"]) == (9, 1, "ms")
    order = [entry[f"{name}_time"] for name in ("min", "median", "p90", "p99", "max")]
    assert order == sorted(order)
    assert 0 < order[0] <= entry["real_time"] <= order[-1]
    assert 9 * entry["real_time"] + entry["first_time"] < wall
    assert entry["items_per_second"] == pytest.approx(4000 / entry["real_time"])
    [kernel] = entry["kernels"]
    assert (kernel["name"], kernel["count"], kernel["bytes"]) == (KERNEL, 1, 512)
    assert kernel["time"] == entry["kernel_time"] > 0
    assert kernel["max_time"] >= kernel["time"]
    assert entry["outside_kernels"] == pytest.approx(max(0, 1 - entry["kernel_time"] / entry["median_time"]))
    assert entry["device_bytes_peak"] == 2 * 64 * 4  # the argument and the result


def test_several_functions_get_the_same_inputs(bench):
    flags = ["--function=twice", "--function=triple", "--input=64xf32=1", "--device=opencl", *QUICK]
    status, out, err = bench("--module=program.vmfb", *flags, "--time_unit=us")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert [line for line in lines if line in ("twice", "triple")] == ["twice", "triple"]
    assert sum("kernel t" in line and line.endswith("512 B each") for line in lines) == 2
    assert "9 calls timed after 1, the first took" in out
    assert all(line.count(" us") >= 7 for line in lines if line.startswith("  median"))


def test_without_function_those_without_parameters_are_measured(bench, iree_tool):
    status, out, err = bench("--module=program.vmfb", "--device=null", *QUICK, "--json")
    assert status == 0
    assert err == "halgpu: not measured without --function= and --input=: twice, triple, divide\n"
    entries = json.loads(out)["benchmarks"]
    stock = iree_tool(
        "iree-benchmark-module",
        "--module=cpu.vmfb",
        "--device=local-sync",
        "--benchmark_min_time=9x",
        "--benchmark_format=json",
    )
    known = json.loads(stock.stdout)["benchmarks"]
    assert [entry["name"] for entry in entries] == [entry["name"] for entry in known]
    for ours, theirs in zip(entries, known, strict=True):
        kinds = {key: type(value) for key, value in theirs.items() if key in ours}
        assert {key: type(ours[key]) for key in kinds} == kinds
        for key in ("name", "run_name", "run_type", "iterations", "threads", "time_unit"):
            assert ours[key] == theirs[key]
        assert {"real_time", "cpu_time", "items_per_second"} <= kinds.keys()


def test_the_only_function_is_measured_with_inputs(bench):
    status, out, _ = bench("--module=one.vmfb", "--device=null", "--input=7", *QUICK)
    assert status == 0
    assert out.splitlines()[0].startswith("one on null:0: ")
    assert out.splitlines()[1] == "same"


def test_json_goes_to_a_file_too(bench, tmp_path):
    flags = ["--module=one.vmfb", "--device=null", "--input=7", *QUICK, "--profile_calls=0"]
    path = tmp_path / "out.json"
    status, out, _ = bench(*flags, f"--benchmark_out={path}")
    assert status == 0
    assert "median" in out
    [entry] = json.loads(path.read_text())["benchmarks"]
    assert "kernel_time" not in entry
    assert "kernels" not in out
    _, out, _ = bench(*flags, f"--benchmark_out={path}", "--json")
    assert json.loads(out) == json.loads(path.read_text())


def test_it_goes_on_for_the_time_asked_for(bench):
    begin = time.perf_counter()
    flags = ["--benchmark_min_time=0.2s", "--benchmark_min_warmup_time=0.1", "--profile_calls=1", "--json"]
    _, out, _ = bench("--module=one.vmfb", "--device=null", "--input=7", *flags)
    assert time.perf_counter() - begin >= 0.3
    [entry] = json.loads(out)["benchmarks"]
    assert entry["iterations"] * entry["real_time"] <= 1.05 * 200 + entry["max_time"]
    assert entry["iterations"] > 3
    assert entry["warm_ups"] > 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--function=missing"], "has no function 'missing'"),
        (["--function=twice"], "function 'twice': expected 1 argument"),
        (["--input=1"], "module 'program' needs --function=: it has: twice, triple, none, five, divide"),
        (["--function=divide", "--input=1", "--input=0"], "divi"),
        (["--benchmark_min_time=fast"], "argument --benchmark_min_time: expected seconds, found 'fast'"),
        (["--benchmark_min_time=0x"], "argument --benchmark_min_time: expected seconds, found '0x'"),
        (["--benchmark_min_time=nan"], "expected seconds, found 'nan'"),
        (["--benchmark_min_warmup_time=-1"], "expected seconds, found '-1'"),
        (["--profile_calls=many"], "argument --profile_calls: expected a number, found 'many'"),
        (["--items=0"], "argument --items: expected at least 1, found '0'"),
        (["--benchmark_out=/nowhere/out.json"], "/nowhere/out.json: No such file or directory"),
    ],
)
def test_mistakes(flags, message, bench):
    status, _, err = bench("--module=program.vmfb", "--device=null", *QUICK, *flags)
    assert status == 1
    assert message in err
    assert open_device("null").counters.recorder is None


def test_no_function_without_parameters(bench):
    status, _, err = bench("--module=one.vmfb", "--device=null")
    assert status == 1
    assert "'one' has no function without parameters; all it has take inputs: same." in err


def test_percentiles_are_numpys():
    times = np.random.default_rng(3).exponential(size=101).tolist()
    for length in (1, 2, 3, 50, 101):
        part = times[:length]
        found = measure.Measurement("f", 1.0, 1, part, 1.0, 0, None)
        for percent in (0, 50, 90, 99, 100):
            assert found.percentile(percent) == pytest.approx(np.percentile(part, percent))
        assert found.deviation == pytest.approx(np.std(part, ddof=1) if length > 1 else 0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ns"),
        (5e-9, "5 ns"),
        (1.5e-6, "1.5 us"),
        (0.0123456, "12.35 ms"),
        (1234.5, "1234 s"),
        (2, "2 s"),
    ],
)
def test_durations(seconds, text):
    assert timings.duration(seconds) == text
    assert timings.duration(1.5, "us") == "1500000 us"


def test_sizes():
    assert [timings.size(n) for n in (0, 1023, 1536, 3 << 20, 5 << 40)] == [
        "0 B", "1023 B", "1.5 KiB", "3 MiB", "5120 GiB",
    ]  # fmt: skip


def test_the_profile_does_not_change_what_a_program_computes(folder):
    module = halgpu.load(folder / "program.vmfb", "opencl")
    data = np.arange(64, dtype=np.float32)
    with module.device.profile() as recording:
        np.testing.assert_array_equal(np.asarray(module.triple(data)), 3 * data)
    assert recording.kernels[0].count == 1
