"""The matrix of devices, and kernels that every device of it can run.

A test that takes `device` runs once a device of ci/matrix.toml. Each kernel is written twice, in OpenCL C by
halgpu's packed argument convention and in Python for the host; expected values come from numpy. CUDA devices
compile the OpenCL C as CUDA C, with a few macros; `fake-cuda` is a plugin (tests/devices/fake_cuda).
"""

from __future__ import annotations

import gc
import os
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halgpu.devices import BindingLayout, Device, Kernel, KernelLayout, Program, open_device

MATRIX = Path(__file__).resolve().parents[2] / "ci" / "matrix.toml"
PLUGINS = str(Path(__file__).resolve().parents[1] / "devices" / "fake_cuda")
View = memoryview

if PLUGINS not in sys.path:
    sys.path.append(PLUGINS)


def read_matrix(path: Path = MATRIX, chosen: str | None = None) -> list[dict[str, Any]]:
    """Return the matrix's devices, or those that `chosen` names; fail when that leaves none."""
    entries = {entry["name"]: entry for entry in tomllib.loads(path.read_text()).get("device", [])}
    names = [name for name, entry in entries.items() if entry.get("default", True)]
    if chosen is not None:
        names = [name.strip() for name in chosen.split(",") if name.strip()]
    unknown = [name for name in names if name not in entries]
    if unknown or not names:
        raise pytest.UsageError(f"no device to test: chose {unknown or names}, {path} has {[*entries]}")
    return [entries[name] for name in names]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "computes: of what kernels compute, so not for a device that does not")
    config.addinivalue_line(
        "markers", "plain: of exact offsets and counts, so with no debug allocator's guards"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test runs on every device, or on every one whose kernels compute (test_null.py has what the other does)."""
    if "matrix_entry" in metafunc.fixturenames:
        entries = read_matrix(chosen=os.environ.get("HALGPU_MATRIX"))
        if metafunc.definition.get_closest_marker("computes"):
            entries = [entry for entry in entries if entry.get("computes", True)]
        if metafunc.definition.get_closest_marker("plain"):
            entries = [{**entry, "uri": without_guards(entry["uri"])} for entry in entries]
        names = [entry["name"] for entry in entries]
        metafunc.parametrize("matrix_entry", entries or [None], ids=names or ["none"], scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test that is for none of the devices chosen is deselected: pytest would call it skipped, of every run."""
    idle = [item for item in items if _parameters(item).get("matrix_entry", item) is None]
    if idle:
        config.hook.pytest_deselected(items=idle)
        items[:] = [item for item in items if item not in idle]


def _parameters(item: pytest.Item) -> dict[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def without_guards(uri: str) -> str:
    """The URI itself or, where the environment asks for the debug allocator, that of a device without it."""
    if os.environ.get("HALGPU_DEBUG_ALLOCATOR") != "1":
        return uri
    return f"{uri}{'&' if '?' in uri else '?'}debug=0"


@pytest.fixture(scope="session")
def session_device(matrix_entry: dict[str, Any]) -> Device:
    return open_device(matrix_entry["uri"])


@pytest.fixture
def device(matrix_entry: dict[str, Any], session_device: Device) -> Iterator[Device]:
    """A device of the matrix, which must be the one meant and must be left without live buffers."""
    found = session_device.capabilities
    assert found.kind == matrix_entry["kind"]
    assert found.unified_memory == matrix_entry["unified"]
    before = session_device.statistics.live_handles
    yield session_device
    if session_device.statistics.live_handles > before:
        # pytest.raises leaves cycles: frame, exception, traceback, frame. Most are young.
        gc.collect(1)
    if session_device.statistics.live_handles > before:
        gc.collect()
    assert session_device.statistics.live_handles <= before, "the test left buffers alive"


# -- kernels -------------------------------------------------------------------------------------------

ADD = """
typedef struct { ulong offsets[3]; uint constants[1]; } add_arguments;
__kernel __attribute__((reqd_work_group_size(16, 1, 1)))
void add(__global uchar* a, __global uchar* b, __global uchar* c, add_arguments arguments) {
  size_t i = get_global_id(0);
  if (i >= arguments.constants[0]) return;
  ((__global float*)(c + arguments.offsets[2]))[i] =
      ((__global float*)(a + arguments.offsets[0]))[i] + ((__global float*)(b + arguments.offsets[1]))[i];
}
"""

SCALE = """
typedef struct { ulong offsets[1]; uint constants[2]; } scale_arguments;
__kernel void scale(__global uchar* data, scale_arguments arguments) {
  size_t i = get_global_id(0);
  if (i < arguments.constants[0]) ((__global int*)(data + arguments.offsets[0]))[i] *= (int)arguments.constants[1];
}
"""

COPY_BYTES = """
typedef struct { ulong offsets[2]; uint constants[1]; } copy_bytes_arguments;
__kernel void copy_bytes(__global const uchar* from, __global uchar* to, copy_bytes_arguments arguments) {
  for (uint i = 0; i < arguments.constants[0]; ++i) to[arguments.offsets[1] + i] = from[arguments.offsets[0] + i];
}
"""

GRID = """
typedef struct { ulong offsets[1]; } grid_arguments;
__kernel __attribute__((reqd_work_group_size(2, 3, 1))) void grid(__global uchar* out, grid_arguments arguments) {
  size_t x = get_global_id(0), y = get_global_id(1), z = get_global_id(2);
  size_t at = (z * get_global_size(1) + y) * get_global_size(0) + x;
  ((__global uint*)(out + arguments.offsets[0]))[at] =
      get_group_id(0) + 100 * get_group_id(1) + 10000 * get_group_id(2) + 1000000 * get_local_id(1);
}
"""

NOTHING = "__kernel void nothing(void) {}\n"


def add(workgroups: tuple[int, ...], constants: tuple[int, ...], bindings: list[View]) -> None:
    count = min(constants[0], workgroups[0] * 16)
    a, b, c = (np.frombuffer(view, np.float32, count) for view in bindings)
    c[:] = a + b


def scale(workgroups: tuple[int, ...], constants: tuple[int, ...], bindings: list[View]) -> None:
    data = np.frombuffer(bindings[0], np.int32, min(constants[0], workgroups[0] * 4))
    data *= np.uint32(constants[1]).astype(np.int32)


def copy_bytes(workgroups: tuple[int, ...], constants: tuple[int, ...], bindings: list[View]) -> None:
    bindings[1][: constants[0]] = bindings[0][: constants[0]]


def grid(workgroups: tuple[int, ...], constants: tuple[int, ...], bindings: list[View]) -> None:
    x, y, z = workgroups
    out = np.frombuffer(bindings[0], np.uint32, x * 2 * y * 3 * z).reshape(z, y * 3, x * 2)
    for k, j, i in np.ndindex(out.shape):
        out[k, j, i] = i // 2 + 100 * (j // 3) + 10000 * k + 1000000 * (j % 3)


def nothing(workgroups: tuple[int, ...], constants: tuple[int, ...], bindings: list[View]) -> None:
    pass


READ, WRITE, BOTH = (BindingLayout(access, 4, 4) for access in ("read", "write", "readwrite"))
KERNELS: dict[str, tuple[str, Callable[..., None], KernelLayout]] = {
    "add": (ADD, add, KernelLayout("add", 1, (READ, READ, WRITE), (16, 1, 1))),
    "scale": (SCALE, scale, KernelLayout("scale", 2, (BOTH,), (4, 1, 1))),
    "copy_bytes": (
        COPY_BYTES, copy_bytes,
        KernelLayout("copy_bytes", 1, (BindingLayout("read"), BindingLayout("write")), (1, 1, 1)),
    ),
    "grid": (GRID, grid, KernelLayout("grid", 0, (WRITE,), (2, 3, 1))),
    "nothing": (NOTHING, nothing, KernelLayout("nothing", 0, (), (1, 1, 1))),
}  # fmt: skip


CUDA_PRELUDE = """
#define __kernel extern "C" __global__
#define __global
#define uchar unsigned char
#define uint unsigned int
#define ulong unsigned long long
#define reqd_work_group_size(x, y, z) unused
#define axis(of, i) ((size_t)((i) == 0 ? of.x : (i) == 1 ? of.y : of.z))
#define get_group_id(i) axis(blockIdx, i)
#define get_local_id(i) axis(threadIdx, i)
#define get_global_id(i) (axis(blockIdx, i) * axis(blockDim, i) + axis(threadIdx, i))
#define get_global_size(i) (axis(gridDim, i) * axis(blockDim, i))
"""


def language_of(device: Device) -> str:
    """A kernel language that the device takes and the kernels here are written in."""
    return min(device.capabilities.languages, default="opencl-c")


def source_in(language: str, source: str) -> str:
    """OpenCL C as it is, or with macros that make it CUDA C."""
    return CUDA_PRELUDE + source if language == "cuda-c" else source


def program(language: str, names: list[str]) -> Program:
    """Return the named kernels as a program for a device that takes `language`."""
    sources, functions, layouts = zip(*(KERNELS[name] for name in names), strict=True)
    if language == "python":
        return Program(language, "", layouts, callables=functions)
    return Program(language, source_in(language, "".join(sources)), layouts, callables=functions)


@pytest.fixture(scope="session")
def build() -> Callable[[Device], dict[str, Kernel]]:
    """What builds every kernel above for a device of a test's own."""
    return build_all.__wrapped__  # not cached, which would keep the device


@cache
def build_all(device: Device) -> dict[str, Kernel]:
    return dict(zip(KERNELS, device.build(program(language_of(device), [*KERNELS])), strict=True))


@pytest.fixture(scope="session")
def kernels(session_device: Device) -> dict[str, Kernel]:
    """Every kernel above, by name, built for the device."""
    return build_all(session_device)  # pytest takes a session's fixtures down between parameters


@pytest.fixture(scope="session")
def cuda_prelude() -> str:
    """Macros that make OpenCL C of these tests CUDA C."""
    return CUDA_PRELUDE
