"""No byte moves that need not: the cases of benchmarks/transfers.py, and proof that a needless copy shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import halgpu


@pytest.fixture(scope="module")
def transfers(python_file: Callable[[Path], ModuleType]) -> ModuleType:
    return python_file(Path(__file__).resolve().parent.parent / "benchmarks" / "transfers.py")


@pytest.fixture(params=["opencl?debug=0", "opencl?debug=0&unified=0"])
def module(
    request: pytest.FixtureRequest, transfers: ModuleType, compile_mlir: Callable[..., bytes]
) -> halgpu.Module:
    return halgpu.load(compile_mlir(transfers.PROGRAM.format(n=1024)), request.param)


def test_bytes_moved_are_those_necessary(transfers: ModuleType, module: halgpu.Module) -> None:
    x = np.arange(1024, dtype=np.float32)
    cases = transfers.cases(module, x)
    assert len(cases) == 4
    for _ in range(3):
        found = {case.name: transfers.moved(module.device, case) for case in cases}
        assert {name: figures["ratio"] for name, figures in found.items()} == dict.fromkeys(found, 1.0)
    if not module.device.capabilities.unified_memory:
        assert [found[case.name]["moved"] for case in cases] == [2 * x.nbytes, x.nbytes, x.nbytes, x.nbytes]


def test_a_needless_copy_shows(transfers: ModuleType, module: halgpu.Module) -> None:
    x = np.arange(1024, dtype=np.float32)
    wasteful = transfers.Case("with a device array", lambda: np.asarray(module.one(x)), 0, x.nbytes)
    figures = transfers.moved(module.device, wasteful)
    assert figures["ratio"] == (1.0 if module.device.capabilities.unified_memory else 2.0)


def test_raw_pyopencl_computes_the_same(transfers: ModuleType, module: halgpu.Module) -> None:
    """What calls are timed against: raw PyOpenCL with the same kernel, which programs built together rename."""
    x = np.arange(1024, dtype=np.float32)
    raw, cases = transfers.Raw(module, x), transfers.cases(module, x)
    for case, theirs in zip(cases, (raw.with_numpy, raw.with_buffer, raw.chained), strict=False):
        np.testing.assert_array_equal(theirs(), case.call())
