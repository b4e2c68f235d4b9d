"""CUDA C through NVIDIA's own NVRTC, and what it makes of parameters; skipped where that is not installed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from halgpu.devices import KernelLayout, Program, cuda, ptx
from halgpu.devices.constants import Struct
from halgpu.devices.cuda_programs import architecture, arguments, check_entry
from halgpu.errors import InvalidArgument

HERE = Path(__file__).resolve().parent
for folder in (str(HERE), str(HERE / "fake_cuda")):
    if folder not in sys.path:
        sys.path.append(folder)

import fake_cupy  # noqa: E402
import halgpu_fake_cuda  # noqa: E402
import nvrtc  # noqa: E402


class ForFake:
    """Real NVRTC for the fake driver, which takes no real machine code: PTX in its place."""

    def __init__(self) -> None:
        self._real = nvrtc.nvrtc()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def getCUBIN(self, program: int) -> bytes:
        assert self._real.getCUBIN(program)[:4] == b"\x7fELF"
        return b"\x7fELF" + self._real.getPTX(program)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> cuda.CudaDevice:
    monkeypatch.setenv("HALGPU_CACHE_DIR", str(tmp_path))
    compiler = ForFake()
    fake = replace(halgpu_fake_cuda.fake_cuda(fake_cupy.Gpus(ptx=99.0)), nvrtc=lambda: compiler)
    return halgpu_fake_cuda.FakeCudaDevice("cuda:0", fake, 0)


def compiled(source: str) -> ptx.Ptx:
    return ptx.parse(compiled_text(source))


def compiled_text(source: str) -> str:
    real = nvrtc.nvrtc()
    made = real.createProgram(source, "kernels.cu", (), ())
    try:
        real.compileProgram(made, (f"--gpu-architecture={architecture(real, 89)}",))
        return real.getPTX(made).decode()
    finally:
        real.destroyProgram(made)


def test_the_kernels_of_the_matrix_are_cuda_c(python_file: Callable[[Path], ModuleType]) -> None:
    """Which the devices of a machine with a GPU are tested with."""
    matrix = python_file(HERE.parent / "matrix" / "conftest.py")
    program = matrix.program("cuda-c", [*matrix.KERNELS])
    said = compiled(program.source)
    assert [*said.entries] == [layout.name for layout in program.layouts]
    for layout in program.layouts:
        check_entry(said, layout)


@pytest.mark.parametrize("kind", ["char", "float", "double"])
def test_the_matrix_reads_at_odd_addresses_byte_by_byte(
    kind: str, python_file: Callable[[Path], ModuleType]
) -> None:
    """A plain load there would take the whole context with it."""
    matrix = python_file(HERE.parent / "matrix" / "conftest.py")
    source = (
        (HERE.parent / "matrix" / "test_dispatch.py").read_text().split('NEGATE = """')[1].split('"""')[0]
    )
    text = compiled_text(matrix.CUDA_PRELUDE + source.format(type=kind))
    assert [*ptx.parse(text).entries] == ["negate"]
    loads = {line.split()[0] for line in text.splitlines() if line.strip().startswith("ld.global")}
    assert loads
    assert all(load.endswith(("u8", "s8", "b8")) for load in loads), loads


TYPES = {
    "u32": "unsigned", "i32": "int", "i8": "signed char", "u8": "unsigned char", "i16": "short", "i64": "long long",
    "u64": "unsigned long long", "f32": "float", "f64": "double", "f32x2": "float2", "f32x3": "float3",
    "f32x4": "float4", "i8x4": "char4", "f64x2": "double2", "u16x3": "ushort3",
}  # fmt: skip
STRUCTS: dict[str, tuple[Struct, str]] = {
    "a": (Struct(x="i32", y="i8"), "struct a { int x; signed char y; };"),
    "b": (Struct(x="i8", y="f64", z="i8"), "struct b { signed char x; double y; signed char z; };"),
    "c": (Struct(x="i32", y="f32x3"), "struct c { int x; float3 y; };"),
    "d": (Struct(x="i32", y="f32x4"), "struct d { int x; float4 y; };"),
    "e": (
        Struct(x="i8", y=Struct(z="i16", w="f32x2")),
        "struct e { char x; struct { short z; float2 w; } y; };",
    ),
}


@pytest.mark.parametrize("name", [*TYPES, *STRUCTS])
def test_constants_have_the_size_that_nvrtc_gives_them(name: str) -> None:
    kind, definition = STRUCTS.get(name, (name, ""))
    given = TYPES.get(name, name)
    said = compiled(
        f'{definition}\nextern "C" __global__ void k(const {given} v, int* out) {{ out[0] = sizeof(v); }}'
    )
    layout = KernelLayout("k", (kind,), ("write",))
    check_entry(said, layout)
    assert [size for size, _ in arguments(layout)] == [item.size for item in said.entries["k"].parameters]


@pytest.mark.parametrize(
    ("constants", "bindings", "words"),
    [
        (("u32",), ("read", "write"), "takes 4 arguments; its layout has 2 bindings and 1 constants"),
        (("u32", "f64"), ("read", "write"), "argument 1 is .*, 4 bytes; its layout has f64 of 8 bytes"),
        (("u32", "u64", "f32"), ("write",), "argument 1 is .*, 4 bytes; its layout has u64 of 8 bytes"),
        (("f32", "f32"), ("read", "write"), "argument 0 is .u32, 4 bytes; its layout has f32 of 4 bytes"),
    ],
)
def test_layouts_that_are_not_those_of_the_source(
    constants: tuple[str, ...], bindings: tuple[str, ...], words: str
) -> None:
    said = compiled(
        'extern "C" __global__ void saxpy(unsigned n, float a, const float* x, float* y) { y[0] = a * x[n]; }'
    )
    with pytest.raises(InvalidArgument, match=words):
        check_entry(said, KernelLayout("saxpy", constants, bindings))


def test_hand_written_kernels(device: cuda.CudaDevice) -> None:
    kernels = device.load_kernels(
        """extern "C" __global__ void __launch_bounds__(64) saxpy(unsigned n, float a, const float* x, float* y) {
          unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
          if (i < n) y[i] += a * x[i];
        }""",
        [KernelLayout("saxpy", ("u32", "f32"), ("read", "readwrite"), 64)],
    )
    with device.allocator.allocate(400) as x, device.allocator.allocate(400) as y:
        kernels["saxpy"].dispatch(2, (100, 2.5), (x, y))
        (launch,) = device.cuda.runtime._gpus.launches
        n, a, *pointers = launch.arguments
        assert (int.from_bytes(n, "little"), np.frombuffer(a, np.float32)[0]) == (100, 2.5)
        assert [int.from_bytes(pointer, "little") for pointer in pointers] == [
            buffer.root.memory.address for buffer in (x, y) if buffer.root is not None
        ]


def test_a_source_that_does_not_compile(device: cuda.CudaDevice) -> None:
    source = 'extern "C" __global__ void k() { nonsense(); }'
    with pytest.raises(InvalidArgument, match="cuda:0 could not build kernels k") as caught:
        device.build(Program("cuda-c", source, (KernelLayout("k"),), options=("-DX=1",)))
    for words in (
        'identifier "nonsense" is undefined',
        "options: --gpu-architecture=sm_89 -DX=1",
        "1 | extern",
    ):
        assert words in str(caught.value)


def test_denormals_stay() -> None:
    """NVRTC flushes none unless it is told to, which CuPy's own compiler does."""
    real = nvrtc.nvrtc()
    made = real.createProgram(
        'extern "C" __global__ void k(float a, float* out) { out[0] = out[1] * a; }', "k.cu", (), ()
    )
    real.compileProgram(made, ("--gpu-architecture=compute_80",))
    text = real.getPTX(made).decode()
    real.destroyProgram(made)
    assert "mul" in text
    assert ".ftz" not in text
