"""When a program's kernels are built: together, once it is loaded, and only those of executables that it keeps."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import halgpu
from halgpu import errors
from halgpu.devices import KernelLayout, Program, opencl
from halgpu.executables import registry
from halgpu.executables.base import Builds, Executable
from halgpu.executables.translations import Translation
from halgpu.executables.vulkan_spirv import loader
from halgpu.vm import definition

FORMAT = "vulkan-spirv-fb"
X = np.linspace(-1, 1, 5 * 37, dtype=np.float32).reshape(5, 37)
W1 = np.linspace(1, -1, 37 * 53, dtype=np.float32).reshape(37, 53)
B1 = np.linspace(0, 1, 53, dtype=np.float32)
W2 = np.linspace(-1, 1, 53 * 11, dtype=np.float32).reshape(53, 11)


@pytest.fixture(scope="module")
def network(compile_mlir: Callable[..., bytes], examples: Path) -> bytes:
    """A program of several executables."""
    data = compile_mlir((examples / "network.mlir").read_text())
    assert len(executables(data)) > 1
    return data


def executables(module: bytes) -> list[memoryview]:
    return [data for data in definition.read(module).rodata if bytes(data[:4]) == b"VKE1"]


@pytest.fixture
def device() -> halgpu.devices.Device:
    return opencl.open_device("opencl:0", 0, {})  # of its own: its counters start at zero


def expected() -> np.ndarray:
    hidden = np.maximum(X @ W1 + B1, 0) @ W2
    exponential = np.exp(hidden - hidden.max(1, keepdims=True))
    return exponential / exponential.sum(1, keepdims=True)


def test_a_program_is_ready_once_it_is_loaded(network: bytes, device: halgpu.devices.Device) -> None:
    module = halgpu.load(network, device)
    assert device.statistics.programs_compiled == 1, "PoCL is given all kernels as one program"
    np.testing.assert_allclose(np.asarray(module.network(X, W1, B1, W2)), expected(), rtol=1e-4)
    assert device.statistics.programs_compiled == 1


def test_a_kernel_that_does_not_build_fails_the_load(
    network: bytes, device: halgpu.devices.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loader.translate

    def spoiled(*arguments: object) -> Translation:
        program, names = real(*arguments)  # type: ignore[arg-type]
        if "softmax" in program.source:
            program = replace(program, source=program.source + "nonsense")
        return Translation(program, names)

    monkeypatch.setenv("HALGPU_CACHE", "0")
    monkeypatch.setattr(loader, "translate", spoiled)
    with pytest.raises(errors.InvalidArgument, match=r"could not build kernels network_dispatch_.*softmax"):
        halgpu.load(network, device)


def test_kernels_of_an_executable_that_is_gone_are_not_built(
    network: bytes, device: halgpu.devices.Device
) -> None:
    builds = Builds(device)
    for data in executables(network):
        registry.load(device, FORMAT, data, (), builds)
    builds.finish()
    assert device.statistics.programs_compiled == 0


def test_asking_for_kernels_builds_all_that_wait(network: bytes, device: halgpu.devices.Device) -> None:
    builds = Builds(device)
    loaded = [registry.load(device, FORMAT, data, (), builds) for data in executables(network)]
    assert device.statistics.programs_compiled == 0
    assert [loaded[0].lookup(name) for name in loaded[0].names] == list(range(len(loaded[0].names)))
    assert device.statistics.programs_compiled == 0
    assert len(loaded[0].kernels) == len(loaded[0].names)
    builds.finish()
    assert all(executable.kernels for executable in loaded)
    assert device.statistics.programs_compiled == 1


def test_what_failed_waits_on(device: halgpu.devices.Device) -> None:
    builds = Builds(device)
    executable = Executable("test", builds, ["k"])
    builds.add(executable, Program("opencl-c", "nonsense", (KernelLayout("k", 0, (), (1, 1, 1)),)))
    for _ in range(2):
        with pytest.raises(errors.InvalidArgument, match="could not build kernels k"):
            _ = executable.kernels
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = executable.nothing
    with pytest.raises(errors.Incompatible, match="takes opencl-c"):
        builds.add(executable, Program("cuda-c", "", ()))


def test_eight_processes_on_a_cold_cache_then_one_that_builds_nothing(
    tmp_path: Path, compile_mlir: Callable[..., bytes], examples: Path
) -> None:
    (tmp_path / "abs.vmfb").write_bytes(compile_mlir((examples / "abs.mlir").read_text()))
    environment = {
        **os.environ, "HALGPU_CACHE_DIR": str(tmp_path / "halgpu"), "POCL_CACHE_DIR": str(tmp_path / "pocl"),
    }  # fmt: skip
    environment.pop("HALGPU_CACHE", None)
    command = [
        sys.executable, "-m", "halgpu.cli", "run", f"--module={tmp_path}/abs.vmfb", "--input=2xf32=-2 3",
        "--device=opencl?cache=1", "--print_statistics",
    ]  # fmt: skip

    def started() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def built(process: subprocess.Popen[str]) -> tuple[int, int]:
        out, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        assert out.endswith("2xf32=2 3\n")
        counts = dict(re.findall(r"^(\w+): (\d+)$", err, re.MULTILINE))
        assert len(err.splitlines()) == len(counts), err
        return int(counts["programs_compiled"]), int(counts["programs_cached"])

    for compiled, cached in map(built, [started() for _ in range(8)]):
        assert compiled + cached == 1
    assert len(list((tmp_path / "halgpu").iterdir())) == 2  # the translation and what was built of it
    assert built(started()) == (0, 1)
