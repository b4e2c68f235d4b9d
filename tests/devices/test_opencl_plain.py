"""Hand-written OpenCL kernels at load: what the compiler reports against the layout, on PoCL."""

from __future__ import annotations

import gc
import os
from typing import Any

import numpy as np
import pytest

import halgpu
from halgpu.devices import Device, open_device
from halgpu.devices.opencl_programs import check_limits
from halgpu.errors import Incompatible, InvalidArgument

BODY = "{ }"
SAXPY = "__kernel void k(uint n, float a, __global const float* x, __global float* y) { }"
PAIR = "typedef struct { int a; char b; } pair;\n"


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("opencl")


def load(device: Device, source: str, *layout: Any, **more: Any) -> Any:
    return device.load_kernels(source, [halgpu.KernelLayout("k", *layout, **more)])["k"]


@pytest.mark.parametrize(
    ("parameters", "constants", "bindings", "local_memory"),
    [
        (
            "uint n, float a, __global const float* x, __global float* y",
            ("u32", "f32"),
            ("read", "readwrite"),
            0,
        ),
        ("unsigned int n", ("u32",), (), 0),
        ("const int n", ("i32",), (), 0),
        ("uchar4 a, double2 b, unsigned long c", ("u8x4", "f64x2", "u64"), (), 0),
        ("pair p", (halgpu.Struct(a="i32", b="i8"),), (), 0),
        ("struct two p", (halgpu.Struct(a="i32", b="f32x3"),), (), 0),
        ("name n", ("u32",), (), 0),
        ("__constant float* x", (), ("read",), 0),
        ("__global const pair* restrict x, volatile __global int* y", (), ("read", "write"), 0),
        ("__global float* x", (), ("read",), 0),
        ("__global void* x, __local float* scratch", (), ("readwrite",), 128),
        ("void", (), (), 0),
    ],
)
def test_what_agrees_is_taken(
    device: Device, parameters: str, constants: Any, bindings: Any, local_memory: int
) -> None:
    source = (
        f"typedef uint name; struct two {{ int a; float3 b; }};\n{PAIR}__kernel void k({parameters}) {{ }}"
    )
    load(device, source, constants, bindings, 1, local_memory)


@pytest.mark.parametrize(
    ("constants", "bindings", "said"),
    [
        (("u32",), ("read", "write"), "takes 4 arguments (uint n, float a, __global const float* x, __global float* y); "
         "its layout has 1 constants, 2 bindings and 0 bytes of local memory, which makes 3"),
        (("i32", "f32"), ("read", "write"), "argument 0, 'uint n', is a uint (u32); the layout says that constant 0 is "
         "i32 (int)"),
        (("u32", "f64"), ("read", "write"), "argument 1, 'float a', is a float (f32); the layout says that constant 1 "
         "is f64 (double)"),
        (("u32", "f32x2"), ("read", "write"), "constant 1 is f32x2 (float2)"),
        ((halgpu.Struct(n="u32"), "f32"), ("read", "write"), "argument 0, 'uint n', is a uint (u32)"),
        (("u32", "f32", "u64"), ("write",), "argument 2, '__global const float* x', is not what the layout has there: "
         "constant 2, u64 by value. Parameters come in this order: constants, bindings, local memory"),
        (("u32",), ("read", "read", "read"), "argument 1, 'float a', is not what the layout has there: binding 0"),
        (("u32", "f32"), ("readwrite", "write"), "argument 2, '__global const float* x', is read-only; the layout says "
         "that binding 0 is 'readwrite'"),
        (("u32", "f32"), ("write", "write"), "that binding 0 is 'write': expected 'read'"),
    ],
)  # fmt: skip
def test_what_disagrees_is_refused(device: Device, constants: Any, bindings: Any, said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        load(device, SAXPY, constants, bindings)
    assert str(caught.value).startswith("kernel 'k'")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "layout", "said"),
    [
        ("__constant float* x", ((), ("write",)), "argument 0, '__constant float* x', is read-only"),
        ("__local float* x", ((), ("read",)), "argument 0, '__local float* x', is not what the layout has there: binding 0"),
        ("__global float* x", ((), (), 1, 64), "is not what the layout has there: a __local pointer to 64 bytes"),
        ("__global float* x, __local int* y", ((), ("read",)), "and 0 bytes of local memory, which makes 1"),
        ("__local int* y, __global float* x", ((), ("read",), 1, 64), "in this order: constants, bindings, local memory"),
        ("image2d_t x", ((), ("read",)), "argument 0, '__global image2d_t x', is not what"),
        ("sampler_t x", (("u32",),), "is a sampler_t; the layout says that constant 0 is u32"),
        ("pair p", (("u32",),), "argument 0 is a pair in the source, which does not have the 4 bytes of u32"),
        ("pair p", (("u32x2",),), ""),
        ("pair p, pair q", ((halgpu.Struct(a="i32", b="i8"), halgpu.Struct(a="i32", b="f32x3")),),
         "argument 1 is a pair in the source, which does not have the 32 bytes of {i32 a, f32x3 b}"),
        ("wide p", ((halgpu.Struct(a="i8", b="f64", c="i8"),),), ""),
        ("struct tight p", ((halgpu.Struct(a="i8", b="f64", c="i8"),),), "argument 0 is a struct tight"),
    ],
)  # fmt: skip
def test_other_parameters(device: Device, parameters: str, layout: Any, said: str) -> None:
    source = (
        "typedef struct { char a; double b; char c; } wide;\n"
        "struct __attribute__((packed)) tight { char a; double b; char c; };\n"
        f"{PAIR}__kernel void k({parameters}) {{ }}"
    )
    if not said:
        load(device, source, *layout)
        return
    with pytest.raises(InvalidArgument) as caught:
        load(device, source, *layout)
    assert said in str(caught.value)


def test_a_source_that_does_not_build_says_so(device: Device) -> None:
    with pytest.raises(InvalidArgument, match="could not build kernels k") as caught:
        load(device, "\n__kernel void k(uint n) { n = m; }", ("u32",))
    assert "2 | __kernel void k(uint n) { n = m; }" in caught.value.details
    assert "undeclared identifier 'm'" in caught.value.details


def test_a_kernel_that_is_not_there(device: Device) -> None:
    with pytest.raises(InvalidArgument, match="no kernel 'k'; it has: other"):
        load(device, "__kernel void other() { }")


def test_sources_are_text(device: Device) -> None:
    with pytest.raises(InvalidArgument, match="no NUL"):
        load(device, SAXPY + "\0")
    with pytest.raises(InvalidArgument, match="is a str, found bytes"):
        load(device, SAXPY.encode())  # type: ignore[arg-type]


def test_the_compiled_workgroup_size_must_be_the_layouts(device: Device) -> None:
    source = "__kernel __attribute__((reqd_work_group_size(8, 1, 1))) void k(void) { }"
    load(device, source, (), (), (8, 1, 1))
    with pytest.raises(InvalidArgument, match=r"kernel 'k' was compiled for workgroups of \(8, 1, 1\)"):
        load(device, source, (), (), (16, 1, 1))


class Native:
    """A kernel of a driver that says how much local memory the source declares, which PoCL 3 does not."""

    def __init__(self, local_memory: int) -> None:
        self.local_memory = local_memory

    def get_work_group_info(self, what: int, device: Any) -> Any:
        import pyopencl as cl

        info = cl.kernel_work_group_info
        return {
            info.COMPILE_WORK_GROUP_SIZE: (0, 0, 0), info.WORK_GROUP_SIZE: 4096, info.LOCAL_MEM_SIZE: self.local_memory,
        }[what]  # fmt: skip


def test_local_memory_of_the_source_and_of_the_layout_add_up(device: Device) -> None:
    limit = device.capabilities.local_memory
    layout = halgpu.KernelLayout("k", (), (), 1, 1000)
    check_limits(device, layout, Native(limit - 1000), more_local=1000)  # type: ignore[arg-type]
    with pytest.raises(
        Incompatible, match=f"kernel 'k' has {limit + 1} bytes of local memory; .* it may have {limit}"
    ):
        check_limits(device, layout, Native(limit - 999), more_local=1000)  # type: ignore[arg-type]


def test_options_reach_the_compiler(device: Device) -> None:
    source = "__kernel void k(__global int* out) { out[0] = VALUE; }"
    layout = halgpu.KernelLayout("k", (), ("write",))
    out = halgpu.BufferView.from_array(np.zeros(1, np.int32), device)
    for value in (3, 4):
        device.load_kernels(source, [layout], options=[f"-DVALUE={value}"])["k"].dispatch(1, bindings=[out])
        assert np.asarray(out).tolist() == [value]


@pytest.mark.parametrize("uri", ["opencl", "opencl?unified=0"])
def test_ranges_that_overlap_where_they_must_be_staged_are_refused(uri: str) -> None:
    device = open_device(uri)
    source = "__kernel void k(__global const int* a, __global int* b) { b[0] = a[1] + 1; }"
    kernel = load(device, source, (), ("read", "write"))
    alignment = kernel.pointer_alignment
    assert alignment == device.native.mem_base_addr_align // 8  # type: ignore[attr-defined]
    data = halgpu.BufferView.from_array(np.arange(alignment, dtype=np.int32), device)
    with pytest.raises(InvalidArgument) as caught:
        kernel.dispatch(1, bindings=[(data.buffer, 0, 8), (data.buffer, 4, 8)])
    assert "kernel 'k': bindings 0 and 1 overlap, one is written" in str(caught.value)
    assert f"multiples of {alignment} on {device.uri}" in str(caught.value)
    kernel.dispatch(1, bindings=[(data.buffer, 0, 2 * alignment), (data.buffer, alignment, 4)])
    kernel.dispatch(1, bindings=[(data.buffer, 0, 4), (data.buffer, 4, 4)])
    expected = np.arange(alignment)
    expected[alignment // 4], expected[1] = 2, 2
    assert np.asarray(data).tolist() == expected.tolist()


@pytest.mark.parametrize("uri", ["opencl", "opencl?unified=0"])
def test_staging_copies_on_the_device_and_keeps_nothing(uri: str) -> None:
    device = open_device(uri)
    source = "__kernel void k(__global const int* a, __global int* b) { b[0] += a[0]; }"
    kernel = load(device, source, (), ("read", "readwrite"))
    data = halgpu.BufferView.from_array(np.array([0, 3, 4], np.int32), device)
    kernel.dispatch(1, bindings=[(data.buffer, 4, 4), (data.buffer, 8, 4)])
    gc.collect()
    before = device.statistics
    for _ in range(3):
        kernel.dispatch(1, bindings=[(data.buffer, 4, 4), (data.buffer, 8, 4)])
    after = device.statistics
    assert (after.bytes_up, after.bytes_down, after.maps) == (before.bytes_up, before.bytes_down, before.maps)
    assert (after.live_handles, after.dispatches) == (before.live_handles, before.dispatches + 3)
    assert np.asarray(data).tolist() == [0, 3, 16]


def test_an_imported_sub_buffer_is_bound_at_an_offset(device: Device) -> None:
    import pyopencl as cl

    source = "__kernel void k(__global const int* a, __global int* b) { b[0] = a[0]; }"
    kernel = load(device, source, (), ("read", "write"))
    step = kernel.pointer_alignment
    native: Any = device
    values = np.arange(step, dtype=np.int32)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    whole = cl.Buffer(native.context, flags, hostbuf=values)
    part = halgpu.BufferView.from_array(whole.get_sub_region(step, 3 * step), device)
    out = halgpu.BufferView.from_array(np.zeros(1, np.int32), device)
    for offset, expected in ((0, step), (step, 2 * step), (4, step + 4), (step + 8, 2 * step + 8)):
        kernel.dispatch(1, bindings=[(part.buffer, offset, 4), out])
        assert np.asarray(out).tolist() == [expected // 4]


def test_launches_are_recorded(device: Device) -> None:
    kernel = load(device, SAXPY, ("u32", "f32"), ("read", "write"))
    data = halgpu.BufferView.from_array(np.zeros(64, np.float32), device)
    with device.profile() as recording:
        kernel.dispatch(1, constants=(1, 2.0), bindings=(data, data))
    assert [(command.name, command.kind) for command in recording.commands if command.kind == "kernel"] == [
        ("k", "kernel")
    ]


@pytest.mark.parametrize("wrong", ["u32", 7.0, [["u32"]], ["u33"]])
def test_layouts_are_checked_as_they_are_made(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        halgpu.KernelLayout("k", wrong)
    for more in (
        {"bindings": "read"},
        {"bindings": ["reed"]},
        {"workgroup_size": ()},
        {"workgroup_size": (1, 2, 3, 4)},
        {"workgroup_size": 1.5},
        {"workgroup_size": "64"},
        {"local_memory": "64"},
    ):
        with pytest.raises(InvalidArgument, match=r"kernel 'k'|binding"):
            halgpu.KernelLayout("k", **more)  # type: ignore[arg-type]


def test_a_child_process_leaves_kernels_alone(device: Device) -> None:
    kernel = load(device, SAXPY, ("u32", "f32"), ("read", "write"))
    data = device.allocator.allocate(64)
    kernel.dispatch(1, constants=(1, 2.0), bindings=(data, data))
    device.wait_idle()
    child = os.fork()
    if not child:
        code = 1
        try:
            kernel.dispatch(1, constants=(1, 2.0), bindings=(data, data))
        except halgpu.errors.FailedPrecondition:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
