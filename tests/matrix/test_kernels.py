"""Hand-written kernels: results, and refusals that name kernel and argument, the same on every device.

Each kernel is written in OpenCL C, in CUDA C, and in Python for the host; expected values come from numpy.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import halgpu
from halgpu.devices import BindingLayout, Buffer, BufferUsage, Device, Kernel, MemoryAccess, open_device
from halgpu.devices.sources import Kernels
from halgpu.errors import (
    FailedPrecondition,
    Incompatible,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
)

OPENCL = """
typedef struct { char a; double b; char c; } mixed;
typedef struct { int i; float3 v; } placed;
__kernel void saxpy(uint n, float a, __global const float* x, __global float* y) {
  size_t i = get_global_id(0);
  if (i < n) y[i] = a * x[i] + y[i];
}
__kernel void narrow(uchar a, char b, ushort c, short d, __global int* out) {
  out[0] = a; out[1] = b; out[2] = c; out[3] = d;
}
__kernel void wide(long a, ulong b, double c, float4 d, __global long* out) {
  out[0] = a; out[1] = b; out[2] = as_long(c); out[3] = (long)(d.x + 10 * d.y + 100 * d.z + 1000 * d.w);
}
__kernel void structures(mixed m, placed p, __global double* out) {
  out[0] = m.a; out[1] = m.b; out[2] = m.c; out[3] = p.i; out[4] = p.v.x; out[5] = p.v.y; out[6] = p.v.z;
}
__kernel void reversed(__global const int* in, __global int* out, __local int* scratch) {
  size_t l = get_local_id(0), n = get_local_size(0), base = get_group_id(0) * n;
  scratch[l] = in[base + l];
  barrier(CLK_LOCAL_MEM_FENCE);
  out[base + l] = scratch[n - 1 - l];
}
__kernel void copied(__global const uchar* in, __global uchar* out) { out[get_global_id(0)] = in[get_global_id(0)]; }
__kernel void nothing(void) {}
"""
CUDA = """
struct mixed { signed char a; double b; signed char c; };
struct placed { int i; float3 v; };
extern "C" __global__ void saxpy(unsigned n, float a, const float* x, float* y) {
  size_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = a * x[i] + y[i];
}
extern "C" __global__ void narrow(unsigned char a, signed char b, unsigned short c, short d, int* out) {
  out[0] = a; out[1] = b; out[2] = c; out[3] = d;
}
extern "C" __global__ void wide(long long a, unsigned long long b, double c, float4 d, long long* out) {
  out[0] = a; out[1] = b; out[2] = __double_as_longlong(c);
  out[3] = (long long)(d.x + 10 * d.y + 100 * d.z + 1000 * d.w);
}
extern "C" __global__ void structures(mixed m, placed p, double* out) {
  out[0] = m.a; out[1] = m.b; out[2] = m.c; out[3] = p.i; out[4] = p.v.x; out[5] = p.v.y; out[6] = p.v.z;
}
extern "C" __global__ void reversed(const int* in, int* out) {
  extern __shared__ int scratch[];
  size_t l = threadIdx.x, n = blockDim.x, base = blockIdx.x * n;
  scratch[l] = in[base + l];
  __syncthreads();
  out[base + l] = scratch[n - 1 - l];
}
extern "C" __global__ void copied(const unsigned char* in, unsigned char* out) {
  size_t i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = in[i];
}
extern "C" __global__ void nothing() {}
"""


def saxpy(workgroups: Any, constants: Any, bindings: Any) -> None:
    n, a = constants
    x, y = (np.frombuffer(view, np.float32)[: min(n, 64 * workgroups[0])] for view in bindings)
    y[:] = np.float32(a) * x + y


def narrow(workgroups: Any, constants: Any, bindings: Any) -> None:
    np.frombuffer(bindings[0], np.int32)[:] = constants


def wide(workgroups: Any, constants: Any, bindings: Any) -> None:
    a, b, c, d = constants
    out = np.frombuffer(bindings[0], np.int64)
    out[:] = a, np.uint64(b).view(np.int64), np.float64(c).view(np.int64), np.dot(d, [1, 10, 100, 1000])


def structures(workgroups: Any, constants: Any, bindings: Any) -> None:
    (a, b, c), (i, v) = constants
    np.frombuffer(bindings[0], np.float64)[:] = a, b, c, i, *v


def reversed_(workgroups: Any, constants: Any, bindings: Any) -> None:
    source, target = (np.frombuffer(view, np.int32)[: 8 * workgroups[0]].reshape(-1, 8) for view in bindings)
    target[:] = source[:, ::-1]


def copied(workgroups: Any, constants: Any, bindings: Any) -> None:
    count = workgroups[0]
    bindings[1][:count] = bindings[0][:count]


def nothing(workgroups: Any, constants: Any, bindings: Any) -> None:
    pass


SOURCES = halgpu.kernels(
    opencl=OPENCL,
    cuda=CUDA,
    python={
        "saxpy": saxpy, "narrow": narrow, "wide": wide, "structures": structures, "reversed": reversed_,
        "copied": copied, "nothing": nothing,
    },
)  # fmt: skip
MIXED, PLACED = halgpu.Struct(a="i8", b="f64", c="i8"), halgpu.Struct(i="i32", v="f32x3")
ALIGNED = BindingLayout("readwrite", alignment=4, minimum_length=4)
LAYOUTS = [
    halgpu.KernelLayout("saxpy", ("u32", "f32"), ("read", ALIGNED), (64, 1, 1)),
    halgpu.KernelLayout("narrow", ("u8", "i8", "u16", "i16"), ("write",)),
    halgpu.KernelLayout("wide", ("i64", "u64", "f64", "f32x4"), ("write",)),
    halgpu.KernelLayout("structures", (MIXED, PLACED), ("write",)),
    halgpu.KernelLayout("reversed", (), ("read", "write"), 8, local_memory=32),
    halgpu.KernelLayout("copied", (), ("read", "write")),
    halgpu.KernelLayout("nothing"),
]


@pytest.fixture(scope="session")
def handwritten(session_device: Device) -> Kernels:
    return load(session_device)  # pytest takes a session's fixtures down between parameters


@cache
def load(device: Device) -> Kernels:
    return device.load_kernels(SOURCES, LAYOUTS)


def view(device: Device, array: np.ndarray[Any, Any]) -> halgpu.BufferView:
    return halgpu.BufferView.from_array(array, device)


@pytest.mark.computes
@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000])
def test_saxpy(device: Device, handwritten: Kernels, n: int) -> None:
    # Whole numbers: compilers may contract the product and the sum.
    x, y = np.random.default_rng(n).integers(-999, 999, (2, 1000)).astype(np.float32)
    bound = view(device, x), view(device, y)
    before = device.statistics.dispatches
    handwritten["saxpy"].dispatch((n + 63) // 64, constants=(n, 2.0), bindings=bound)
    expected = np.concatenate([2 * x[:n] + y[:n], y[n:]])
    np.testing.assert_array_equal(np.asarray(bound[1]), expected)
    assert device.statistics.dispatches == before + 1


@pytest.mark.computes
def test_constants_that_change_and_buffers_that_change(device: Device, handwritten: Kernels) -> None:
    buffers = [view(device, np.full(4, k, np.float32)) for k in range(4)]
    ones = view(device, np.ones(4, np.float32))
    expected = np.repeat(np.arange(4.0), 4).reshape(4, 4)
    for turn in range(12):
        k, a, n = turn % 4, turn % 3, 4 - turn % 2
        handwritten["saxpy"].dispatch(1, constants=(n, a), bindings=(ones, buffers[k]))
        expected[k, :n] += a
    for k, buffer in enumerate(buffers):
        np.testing.assert_array_equal(np.asarray(buffer), expected[k])


@pytest.mark.computes
@pytest.mark.parametrize("kind", [tuple, list])
def test_narrow_integers(device: Device, handwritten: Kernels, kind: Any) -> None:
    out = view(device, np.zeros(4, np.int32))
    for values in ((255, -128, 65535, -32768), (3, -1, 0, 7), (np.uint8(9), np.int64(5), True, np.int16(-3))):
        handwritten["narrow"].dispatch(1, constants=kind(values), bindings=[out])
        assert np.asarray(out).tolist() == [int(value) for value in values]


@pytest.mark.computes
def test_wide_numbers_and_vectors(device: Device, handwritten: Kernels) -> None:
    out = view(device, np.zeros(4, np.int64))
    handwritten["wide"].dispatch(1, constants=(-(2**40), 2**63 + 1, 0.1, (1, 2, 3, 4.0)), bindings=[out])
    expected = [-(2**40), -(2**63) + 1, int(np.float64(0.1).view(np.int64)), 4321]
    assert np.asarray(out).tolist() == expected


def language(device: Device) -> str:
    return "cuda-c" if "cuda-c" in device.capabilities.languages else "opencl-c"


@pytest.mark.computes
def test_structures_by_value(device: Device, handwritten: Kernels) -> None:
    out = view(device, np.zeros(7))
    expected = [-7, 0.1, 9, 12, 1, 2, 3]
    mixed, placed = np.zeros((), MIXED.dtype(language(device))), np.zeros((), PLACED.dtype(language(device)))
    mixed["a"], mixed["b"], mixed["c"], placed["i"], placed["v"] = -7, 0.1, 9, 12, (1, 2, 3)
    ways = [
        ((-7, 0.1, 9), (12, (1, 2, 3))),
        ({"c": 9, "a": -7, "b": 0.1}, {"i": 12, "v": np.array([1, 2, 3])}),
        (mixed, placed),
    ]
    for constants in ways:
        out.buffer.fill(0, None, b"\0")
        handwritten["structures"].dispatch(1, constants=constants, bindings=[out])
        assert np.asarray(out).tolist() == expected


@pytest.mark.computes
def test_local_memory(device: Device, handwritten: Kernels) -> None:
    source, target = view(device, np.arange(32, dtype=np.int32)), view(device, np.zeros(32, np.int32))
    handwritten["reversed"].dispatch((4,), bindings=(source, target))
    np.testing.assert_array_equal(np.asarray(target), np.arange(32).reshape(4, 8)[:, ::-1].ravel())


@pytest.mark.parametrize("workgroups", [0, (0, 5), (5, 0, 5)])
def test_a_grid_with_a_zero_runs_nothing(device: Device, handwritten: Kernels, workgroups: Any) -> None:
    y = view(device, np.ones(4, np.float32))
    before = device.statistics
    handwritten["saxpy"].dispatch(workgroups, constants=(4, 9), bindings=(y, y))
    assert device.statistics == before
    assert np.asarray(y).tolist() == [1] * 4


# -- bindings ------------------------------------------------------------------------------------------


@pytest.mark.computes
@pytest.mark.parametrize("start", [4, 64, 68, 128, 1024])
@pytest.mark.parametrize("through", ["binding", "subspan"])
def test_bindings_at_offsets(device: Device, handwritten: Kernels, start: int, through: str) -> None:
    """Also where the device can give a kernel no pointer to."""
    values = np.random.default_rng(start).integers(-999, 999, 600).astype(np.float32)
    x, y = view(device, values), view(device, values + 1)
    length = 40
    bound: list[Any] = [(buffer.buffer, start, length) for buffer in (x, y)]
    if through == "subspan":
        bound = [buffer.buffer.subspan(start, length) for buffer in (x, y)]
    handwritten["saxpy"].dispatch(1, constants=(10, 3.0), bindings=bound)
    handwritten["saxpy"].dispatch(1, constants=(10, -1.0), bindings=bound)
    expected = values + np.float32(1)
    for factor in (3, -1):
        part = slice(start // 4, start // 4 + 10)
        expected[part] = np.float32(factor) * values[part] + expected[part]
    np.testing.assert_array_equal(np.asarray(y), expected)
    np.testing.assert_array_equal(np.asarray(x), values)


@pytest.mark.computes
@pytest.mark.parametrize("start", [1, 3, 5, 127])
def test_bytes_beside_a_binding_stay(device: Device, handwritten: Kernels, start: int) -> None:
    source = view(device, np.arange(256, dtype=np.uint8))
    target = view(device, np.full(256, 99, np.uint8))
    handwritten["copied"].dispatch(10, bindings=[(source.buffer, start + 7, 30), (target.buffer, start, 30)])
    expected = np.full(256, 99, np.uint8)
    expected[start : start + 10] = np.arange(start + 7, start + 17)
    np.testing.assert_array_equal(np.asarray(target), expected)


@pytest.mark.computes
@pytest.mark.parametrize("start", [0, 4, 1024])
def test_one_range_bound_twice_is_one_range(device: Device, handwritten: Kernels, start: int) -> None:
    values = np.arange(300, dtype=np.float32)
    y = view(device, values)
    both = (y.buffer, start, 64)
    handwritten["saxpy"].dispatch(1, constants=(16, 2.0), bindings=(both, both))
    values[start // 4 : start // 4 + 16] *= 3
    np.testing.assert_array_equal(np.asarray(y), values)


@pytest.mark.computes
def test_bindings_of_no_bytes(device: Device, handwritten: Kernels) -> None:
    data = view(device, np.arange(8, dtype=np.uint8))
    empty = halgpu.BufferView.from_array(np.zeros(0, np.uint8), device)
    for nothing_bound in (empty, (data.buffer, 8, 0), (data.buffer, 3, 0)):
        before = device.statistics.dispatches
        handwritten["copied"].dispatch(0, bindings=(nothing_bound, data))
        assert device.statistics.dispatches == before
    layout = halgpu.KernelLayout("saxpy", ("u32", "f32"), ("read", "readwrite"), 64)
    kernel = device.load_kernels(SOURCES, [layout])["saxpy"]
    for nothing_bound in (empty, (data.buffer, 8, 0), (data.buffer, 3, 0)):
        kernel.dispatch(1, constants=(0, 1.0), bindings=(nothing_bound, nothing_bound))
    assert np.asarray(data).tolist() == [*range(8)]


@pytest.mark.computes
def test_writes_of_the_host_between(device: Device, handwritten: Kernels) -> None:
    x, y = view(device, np.ones(40, np.float32)), view(device, np.zeros(40, np.float32))
    for start in (0, 4, 0, 4):
        y.buffer.write()[:] = np.full(40, 5, np.float32).tobytes()
        handwritten["saxpy"].dispatch(1, constants=(3, 2.0), bindings=[(b.buffer, start, 12) for b in (x, y)])
        expected = [5.0] * 40
        expected[start // 4 : start // 4 + 3] = [7.0] * 3
        assert np.asarray(y).tolist() == expected


@pytest.mark.computes
def test_windows_keep_their_bytes(device: Device, handwritten: Kernels) -> None:
    x, y = view(device, np.ones(8, np.float32)), view(device, np.zeros(8, np.float32))
    for start in (0, 4):
        seen = y.to_numpy(copy=False)
        before = seen.copy()
        handwritten["saxpy"].dispatch(1, constants=(2, 2.0), bindings=[(b.buffer, start, 8) for b in (x, y)])
        np.testing.assert_array_equal(seen, before)
    assert np.asarray(y).tolist() == [2, 4, 2, 0, 0, 0, 0, 0]


# -- refusals ------------------------------------------------------------------------------------------


def refused(kernel: Kernel, kind: type[Exception], *said: str, **arguments: Any) -> None:
    before = kernel.device.statistics.dispatches
    with pytest.raises(kind) as caught:
        kernel.dispatch(**{"workgroups": 1, **arguments})
    for word in (repr(kernel.layout.name), *said):
        assert word in str(caught.value)
    assert kernel.device.statistics.dispatches == before


@pytest.mark.parametrize(
    ("name", "constants", "kind", "said"),
    [
        ("saxpy", (), InvalidArgument, "takes 2 constants (u32, f32), found 0"),
        ("saxpy", (1, 2, 3), InvalidArgument, "takes 2 constants (u32, f32), found 3"),
        ("saxpy", 5, InvalidArgument, "constants must be a sequence, such as a tuple; found 5"),
        ("saxpy", "12", InvalidArgument, "constants must be a sequence"),
        ("saxpy", None, InvalidArgument, "constants must be a sequence, such as a tuple; found None"),
        ("saxpy", {1, 2}, InvalidArgument, "constants must be a sequence, such as a tuple; found {1, 2}"),
        ("saxpy", (2.0, 2.0), InvalidArgument, "constant 0 must be an int (u32), found 2.0"),
        ("saxpy", (-1, 2.0), OutOfRange, "constant 0 does not fit u32: -1"),
        ("saxpy", (2**32, 2.0), OutOfRange, "constant 0 does not fit u32"),
        ("saxpy", [1, "2"], InvalidArgument, "constant 1 must be a number (f32), found '2'"),
        ("saxpy", (1, 1e300), OutOfRange, "constant 1 does not fit f32"),
        ("narrow", (300, 0, 0, 0), OutOfRange, "constant 0 does not fit u8: 300"),
        ("narrow", (0, 128, 0, 0), OutOfRange, "constant 1 does not fit i8: 128"),
        ("narrow", (0, 0, None, 0), InvalidArgument, "constant 2 must be an int (u16), found None"),
        (
            "structures",
            ((1, 2), (3, (1, 2, 3))),
            InvalidArgument,
            "constant 0 is {i8 a, f64 b, i8 c}, 3 fields",
        ),
        (
            "structures",
            ((1, 2.0, 300), (3, (1, 2, 3))),
            OutOfRange,
            "constant 0, field 'c' does not fit i8: 300",
        ),
    ],
)
def test_constants_are_checked(
    device: Device, handwritten: Kernels, name: str, constants: Any, kind: type[Exception], said: str
) -> None:
    out = view(device, np.zeros(16, np.float32))
    bindings = [out] * len(handwritten[name].layout.bindings)
    refused(handwritten[name], kind, said, constants=constants, bindings=bindings)


def test_a_packed_dtype_for_a_padded_structure_is_refused(device: Device, handwritten: Kernels) -> None:
    out = view(device, np.zeros(7))
    packed = np.zeros((), np.dtype([("a", "i1"), ("b", "f8"), ("c", "i1")]))
    refused(
        handwritten["structures"], InvalidArgument, "constant 0", "24 bytes", "10 bytes",
        constants=(packed, (1, (1, 2, 3))), bindings=[out],
    )  # fmt: skip


@pytest.mark.plain
@pytest.mark.parametrize(
    ("binding", "kind", "said"),
    [
        (None, InvalidArgument, "binding 1 is null; expected a buffer"),
        ((None, 0, 16), InvalidArgument, "binding 1 is null"),
        (5, InvalidArgument, "binding 1 must be a buffer, a buffer view or (buffer, offset, length), found 5"),
        (np.zeros(4, np.float32), InvalidArgument, "binding 1 is a numpy.ndarray; expected a buffer"),
        (("good", -4, 16), OutOfRange, "binding 1: 16 bytes at offset -4 do not fit a buffer of 64 bytes"),
        (("good", 52, 16), OutOfRange, "binding 1: 16 bytes at offset 52"),
        (("good", 2**63, 2**63), OutOfRange, "binding 1"),
        (("good", 0.0, 16), InvalidArgument, "binding 1 must be"),
        (("good", 0, 0), OutOfRange, "binding 1 has 0 bytes; the kernel needs 4"),
        (("good", 2, 16), InvalidArgument, "binding 1 starts at byte 2 of its allocation; it must be a multiple of 4"),
    ],
)  # fmt: skip
def test_bindings_are_checked(
    device: Device, handwritten: Kernels, binding: Any, kind: type[Exception], said: str
) -> None:
    good = device.allocator.allocate(64)
    if isinstance(binding, tuple) and binding[0] == "good":
        binding = (good, *binding[1:])
    refused(handwritten["saxpy"], kind, said, constants=(1, 2.0), bindings=(good, binding))


def test_the_number_of_bindings_is_checked(device: Device, handwritten: Kernels) -> None:
    good = device.allocator.allocate(64)
    for found in (0, 1, 3):
        said = f"takes 2 bindings, found {found}"
        refused(handwritten["saxpy"], InvalidArgument, said, constants=(1, 2.0), bindings=[good] * found)


def test_bindings_are_a_sequence(device: Device, handwritten: Kernels) -> None:
    good = device.allocator.allocate(64)
    for wrong in (None, 5, "xy", good):
        refused(
            handwritten["saxpy"], InvalidArgument, "bindings must be a sequence, such as a tuple; found",
            constants=(1, 2.0), bindings=wrong,
        )  # fmt: skip


def test_released_buffers_and_views_are_refused(device: Device, handwritten: Kernels) -> None:
    good, gone = device.allocator.allocate(64), device.allocator.allocate(64)
    gone.release()
    let_go = view(device, np.zeros(16, np.float32))
    let_go.release()
    for released in (gone, (gone, 0, 4), let_go):
        refused(
            handwritten["saxpy"], FailedPrecondition, "binding 1", "released",
            constants=(1, 2.0), bindings=(good, released),
        )  # fmt: skip


def test_a_buffer_of_another_device_is_refused(device: Device, handwritten: Kernels) -> None:
    foreign = open_device("null?pool=0").allocator.allocate(64)
    said = f"binding 0 is on null:0?pool=0; the kernel runs on {device.uri}"
    refused(handwritten["saxpy"], InvalidArgument, said, constants=(1, 2.0), bindings=(foreign, foreign))


@pytest.mark.parametrize(
    "flags", [{"access": MemoryAccess.READ}, {"usage": BufferUsage.DISPATCH_STORAGE_READ}]
)
def test_memory_that_the_kernel_may_not_write_is_refused(
    device: Device, handwritten: Kernels, flags: dict[str, Any]
) -> None:
    readable = device.allocator.allocate(64, **flags)
    writable = device.allocator.allocate(64)
    kernel = handwritten["saxpy"]
    refused(
        kernel, PermissionDenied, "binding 1", "written by a kernel",
        constants=(1, 2.0), bindings=(writable, readable),
    )  # fmt: skip
    kernel.dispatch(1, constants=(1, 2.0), bindings=(readable, writable))


@pytest.mark.parametrize(
    ("workgroups", "kind", "said"),
    [
        (-1, InvalidArgument, "workgroup count x is negative: -1"),
        ((1, 1, 2**40), OutOfRange, f"workgroup count z is {2**40}"),
        (1.0, InvalidArgument, "1.0"),
        ((1, 1, 1, 1), InvalidArgument, "4 counts"),
        ("1", InvalidArgument, "'1'"),
    ],
)
def test_grids_are_checked(
    device: Device, handwritten: Kernels, workgroups: Any, kind: type[Exception], said: str
) -> None:
    handwritten["nothing"].dispatch(1)
    handwritten["nothing"].dispatch((1, 1, 1))
    refused(handwritten["nothing"], kind, said, workgroups=workgroups)


# -- from a program ------------------------------------------------------------------------------------


def bits(*numbers: float) -> tuple[int, ...]:
    return tuple(np.array(numbers, np.float32).view(np.int32).tolist())


@pytest.mark.computes
def test_words_of_a_program(device: Device, handwritten: Kernels) -> None:
    """One path: what a program's words mean, and the same kernel called from Python in between."""
    floats, ints, doubles = (np.zeros(7, dtype) for dtype in (np.float32, np.int32, np.float64))
    out = view(device, ints)
    handwritten["narrow"].dispatch_words((1, 1, 1), (255, -1, 65535, 0x8000), [(out.buffer, 0, 16)])
    assert np.asarray(out)[:4].tolist() == [255, -1, 65535, -32768]
    handwritten["narrow"].dispatch(1, constants=(1, 2, 3, 4), bindings=[(out.buffer, 0, 16)])
    assert np.asarray(out)[:4].tolist() == [1, 2, 3, 4]
    handwritten["narrow"].dispatch_words((1, 1, 1), (255, -1, 65535, 0x8000), [(out.buffer, 0, 16)])
    assert np.asarray(out)[:4].tolist() == [255, -1, 65535, -32768]

    x, y = view(device, floats + 1), view(device, floats)
    bound = [(b.buffer, 0, 28) for b in (x, y)]
    handwritten["saxpy"].dispatch_words((1, 1, 1), (7, *bits(-2.5)), bound)
    assert np.asarray(y).tolist() == [-2.5] * 7

    out = view(device, doubles)
    double = np.array([0.1]).view(np.int32).tolist()
    words = (0xF9, *double, 9, 12, *bits(1, 2, 3))
    handwritten["structures"].dispatch_words((1, 1, 1), words, [(out.buffer, 0, 56)])
    assert np.asarray(out).tolist() == [-7, 0.1, 9, 12, 1, 2, 3]

    out = view(device, np.zeros(4, np.int64))
    words = (0, -256, 1, -(2**31), *double, *bits(1, 2, 3, 4))
    handwritten["wide"].dispatch_words((1, 1, 1), words, [(out.buffer, 0, 32)])
    expected = [-(2**40), -(2**63) + 1, int(np.float64(0.1).view(np.int64)), 4321]
    assert np.asarray(out).tolist() == expected


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        ((1, 2, 3), InvalidArgument, "takes 4 constants, found 3"),
        ((300, 0, 0, 0), OutOfRange, "constant 0 does not fit u8: its word is 0x12c"),
        ((0, 128, -1, 0), OutOfRange, "constant 2 does not fit u16: its word is 0xffffffff"),
    ],
)
def test_words_of_a_program_are_checked(
    device: Device, handwritten: Kernels, words: Any, kind: type[Exception], said: str
) -> None:
    out = device.allocator.allocate(16)
    with pytest.raises(kind, match=f"kernel 'narrow'.*{said}"):
        handwritten["narrow"].dispatch_words((1, 1, 1), words, [(out, 0, 16)])


# -- loading -------------------------------------------------------------------------------------------


def test_kernels_are_found_by_name(device: Device, handwritten: Kernels) -> None:
    assert list(handwritten) == [layout.name for layout in LAYOUTS]
    assert len(handwritten) == len(LAYOUTS)
    assert "saxpy" in handwritten
    with pytest.raises(
        NotFound, match=r"no kernel 'saxpi' .did you mean 'saxpy'.*; there are: saxpy, narrow"
    ):
        handwritten["saxpi"]


@pytest.mark.parametrize(
    ("layouts", "said"),
    [
        ([], "there is none"),
        ([LAYOUTS[0], LAYOUTS[0]], "kernel 'saxpy' has two layouts"),
        ([halgpu.KernelLayout("saxpy", 2, ("read", "write"))], "must be a sequence of types"),
        (["saxpy"], "layouts are KernelLayouts, found 'saxpy'"),
    ],
)
def test_layouts_are_checked(device: Device, layouts: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        device.load_kernels(SOURCES, layouts)


def test_limits_are_checked(device: Device) -> None:
    able = device.capabilities
    for layout, said in (
        (halgpu.KernelLayout("nothing", (), (), (2**31, 1, 1)), "workgroup size x"),
        (
            halgpu.KernelLayout("nothing", (), (), 1, local_memory=able.local_memory + 1),
            "bytes of local memory",
        ),
    ):
        with pytest.raises(Incompatible, match=f"kernel 'nothing' has .* {said}; {device.uri.split('?')[0]}"):
            device.load_kernels(SOURCES, [layout])
    with pytest.raises(InvalidArgument, match="impossible layout"):
        device.load_kernels(SOURCES, [halgpu.KernelLayout("nothing", (), (), (0, 1, 1))])


def test_sources_that_the_device_does_not_take(device: Device) -> None:
    takes = device.capabilities.languages
    if not takes:
        device.load_kernels(halgpu.kernels(ptx="…"), [LAYOUTS[-1]])["nothing"].dispatch(1)
        return
    with pytest.raises(
        Incompatible, match=f"kernels nothing are in (ptx|python); .* takes {', '.join(sorted(takes))}"
    ):
        device.load_kernels(
            halgpu.kernels(ptx="…") if "ptx" not in takes else halgpu.kernels(python={}), [LAYOUTS[-1]]
        )


def test_kernels_need_a_source() -> None:
    with pytest.raises(InvalidArgument, match="kernels need a source; give one of opencl, cuda, ptx, python"):
        halgpu.kernels()


def test_buffers_live_no_longer_than_their_holders(device: Device, handwritten: Kernels) -> None:
    before = device.statistics.live_handles
    data: Buffer | None = device.allocator.allocate(2048)
    for start in (0, 128, 132):
        handwritten["saxpy"].dispatch(
            1, constants=(1, 2.0), bindings=[(data, start, 64), (data, start + 1024, 64)]
        )
    data = None
    assert device.statistics.live_handles == before
