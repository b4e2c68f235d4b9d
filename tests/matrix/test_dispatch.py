"""Dispatches: results, and refusals that name kernel and argument, the same on every device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from halgpu.devices import (
    BindingLayout,
    Buffer,
    BufferUsage,
    Device,
    Kernel,
    KernelLayout,
    MemoryAccess,
    MemoryType,
    Program,
    open_device,
)
from halgpu.errors import FailedPrecondition, InvalidArgument, OutOfRange, PermissionDenied

Kernels = dict[str, Kernel]


def filled(device: Device, array: np.ndarray[Any, Any]) -> Buffer:
    buffer = device.allocator.allocate(array.nbytes)
    buffer.update(array.tobytes())
    return buffer


@pytest.mark.computes
def test_add_gives_numpys_result_and_really_ran(device: Device, kernels: Kernels) -> None:
    a = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    b = np.random.default_rng(2).normal(size=1000).astype(np.float32)
    before = device.statistics.dispatches
    out = device.allocator.allocate(4000)
    bindings = [(filled(device, a), 0, 4000), (filled(device, b), 0, 4000), (out, 0, 4000)]
    kernels["add"].dispatch((63, 1, 1), [1000], bindings)
    np.testing.assert_array_equal(np.frombuffer(out.read(), np.float32), a + b)
    assert device.statistics.dispatches == before + 1


@pytest.mark.computes
def test_dispatches_run_in_order(device: Device, kernels: Kernels) -> None:
    data = filled(device, np.arange(64, dtype=np.int32))
    for factor in (3, -1, 5, -7):
        kernels["scale"].dispatch((16, 1, 1), (64, factor), [(data, 0, 256)])
    np.testing.assert_array_equal(np.frombuffer(data.read(), np.int32), np.arange(64) * 105)


@pytest.mark.computes
def test_dispatches_without_reading_between_see_host_writes(device: Device, kernels: Kernels) -> None:
    data = filled(device, np.ones(4, np.int32))
    for value in (1, 2, 3):
        data.write()[0] += value
        kernels["scale"].dispatch(1, (4, 10), [(data, 0, 16)])
    assert np.frombuffer(data.read(), np.int32)[0] == (((1 + 1) * 10 + 2) * 10 + 3) * 10


@pytest.mark.computes
@pytest.mark.parametrize("value", [-1, 2**32 - 1, np.int32(-1), np.uint32(2**32 - 1), np.int8(-1)])
def test_constants_are_32_bits_of_either_sign(device: Device, kernels: Kernels, value: int) -> None:
    data = filled(device, np.array([5], np.int32))
    kernels["scale"].dispatch((1, 1, 1), (1, value), [(data, 0, 4)])
    assert np.frombuffer(data.read(), np.int32)[0] == -5


@pytest.mark.computes
@pytest.mark.parametrize("workgroups", [2, (2,), (2, 1), (2, 1, 1), [2, 1, 1], np.int64(2)])
def test_workgroups_are_one_to_three_counts(device: Device, kernels: Kernels, workgroups: Any) -> None:
    data = filled(device, np.ones(16, np.int32))
    kernels["scale"].dispatch(workgroups, (16, 2), [(data, 0, 64)])
    assert list(np.frombuffer(data.read(), np.int32)) == [2] * 8 + [1] * 8


@pytest.mark.computes
def test_three_dimensions_and_local_ids(device: Device, kernels: Kernels) -> None:
    out = device.allocator.allocate(4 * 6 * 6 * 2)
    kernels["grid"].dispatch((3, 2, 2), bindings=[(out, 0, out.byte_length)])
    z, y, x = np.indices((2, 6, 6))
    expected = x // 2 + 100 * (y // 3) + 10000 * z + 1000000 * (y % 3)
    np.testing.assert_array_equal(np.frombuffer(out.read(), np.uint32).reshape(2, 6, 6), expected)


def test_no_arguments_at_all(device: Device, kernels: Kernels) -> None:
    kernels["nothing"].dispatch((1, 1, 1))
    device.wait_idle()


@pytest.mark.parametrize("workgroups", [0, (0, 5, 5), (5, 0, 5), (5, 5, 0)])
def test_a_grid_with_a_zero_runs_nothing(device: Device, kernels: Kernels, workgroups: Any) -> None:
    data = filled(device, np.ones(4, np.int32))
    before = device.statistics
    kernels["scale"].dispatch(workgroups, (4, 9), [(data, 0, 16)])
    assert list(np.frombuffer(data.read(), np.int32)) == [1] * 4
    assert device.statistics == before


@pytest.mark.computes
@pytest.mark.parametrize("start", [0, 1, 3, 4, 64, 65, 68, 128, 1000])
def test_bindings_at_any_byte_offset(device: Device, kernels: Kernels, start: int) -> None:
    source = filled(device, np.arange(2048, dtype=np.uint16).view(np.uint8))
    target = device.allocator.allocate(4096)
    target.fill(0, None, b"\xee")
    span = target.subspan(start, 77)
    kernels["copy_bytes"].dispatch(1, [70], [(source, start + 5, 70), (span, 2, 70)])
    expected = np.full(4096, 0xEE, np.uint8)
    expected[start + 2 : start + 72] = np.frombuffer(source.read(), np.uint8)[start + 5 : start + 75]
    np.testing.assert_array_equal(np.frombuffer(target.read(), np.uint8), expected)


@pytest.mark.computes
def test_floats_at_offset_68_of_a_subspan(device: Device, kernels: Kernels) -> None:
    root = filled(device, np.arange(256, dtype=np.float32))
    span = root.subspan(64).subspan(4)
    out = device.allocator.allocate(100)
    kernels["add"].dispatch(1, [10], [(span, 0, 40), (span, 40, 40), (out, 60, 40)])
    expected = np.arange(17, 27) + np.arange(27, 37)
    np.testing.assert_array_equal(np.frombuffer(out.read()[60:], np.float32), expected)


@pytest.mark.computes
def test_one_buffer_bound_to_read_and_to_write(device: Device, kernels: Kernels) -> None:
    data = filled(device, np.arange(32, dtype=np.float32))
    kernels["add"].dispatch(1, [16], [(data, 0, 64), (data, 64, 64), (data, 0, 64)])
    expected = np.arange(32, dtype=np.float32)
    expected[:16] += expected[16:]
    np.testing.assert_array_equal(np.frombuffer(data.read(), np.float32), expected)


@pytest.mark.computes
def test_a_kernel_of_many_buffers_in_turn(device: Device, kernels: Kernels) -> None:
    buffers = [filled(device, np.full(4, index, np.int32)) for index in range(20)]
    for _ in range(3):
        for buffer in buffers:
            kernels["scale"].dispatch(1, (4, 2), [(buffer, 0, 16)])
    for index, buffer in enumerate(buffers):
        assert list(np.frombuffer(buffer.read(), np.int32)) == [index * 8] * 4


# -- refusals ------------------------------------------------------------------------------------------


def refused(kernel: Kernel, kind: type[Exception], *words: str, **arguments: Any) -> None:
    before = kernel.device.statistics.dispatches
    with pytest.raises(kind) as caught:
        kernel.dispatch(**{"workgroups": 1, **arguments})
    for word in (repr(kernel.layout.name), *words):
        assert word in str(caught.value)
    assert kernel.device.statistics.dispatches == before


@pytest.mark.parametrize(
    ("workgroups", "kind", "word"),
    [
        (-1, InvalidArgument, "workgroup count x is negative: -1"),
        ((1, -2, 1), InvalidArgument, "workgroup count y is negative: -2"),
        ((0, 0, -3), InvalidArgument, "workgroup count z is negative: -3"),
        ((1, 1, 2**40), OutOfRange, f"workgroup count z is {2**40}"),
        (1.0, InvalidArgument, "1.0"),
        ((1, 2.0, 1), InvalidArgument, "2.0"),
        ("1", InvalidArgument, "'1'"),
        ((), InvalidArgument, "0 counts"),
        ((1, 1, 1, 1), InvalidArgument, "4 counts"),
        (None, InvalidArgument, "None"),
    ],
)
def test_workgroups_are_checked(
    device: Device, kernels: Kernels, workgroups: Any, kind: type[Exception], word: str
) -> None:
    refused(kernels["nothing"], kind, word, workgroups=workgroups)


@pytest.mark.parametrize(
    ("constants", "kind", "word"),
    [
        ((), InvalidArgument, "takes 2 constants, found 0"),
        (None, InvalidArgument, "constants must be a sequence, such as a tuple; found None"),
        ((1, 2, 3), InvalidArgument, "takes 2 constants, found 3"),
        ((1, 2.0), InvalidArgument, "constant 1 must be a 32-bit int, found 2.0"),
        (("1", 2), InvalidArgument, "constant 0 must be a 32-bit int, found '1'"),
        ((1, 2**32), OutOfRange, f"constant 1 does not fit 32 bits: {2**32}"),
        ((-(2**31) - 1, 2), OutOfRange, "constant 0 does not fit 32 bits"),
    ],
)
def test_constants_are_checked(
    device: Device, kernels: Kernels, constants: Any, kind: type[Exception], word: str
) -> None:
    data = device.allocator.allocate(16)
    refused(kernels["scale"], kind, word, constants=constants, bindings=[(data, 0, 16)])


@pytest.mark.plain
@pytest.mark.parametrize(
    ("binding", "kind", "word"),
    [
        (None, InvalidArgument, "binding 2 is null"),
        ((None, 0, 16), InvalidArgument, "binding 2 is null"),
        (
            5,
            InvalidArgument,
            "binding 2 must be a buffer, a buffer view or (buffer, offset, length), found 5",
        ),
        ((1, 2, 3), InvalidArgument, "binding 2 must be a device buffer, found int"),
        (("good", 0.0, 16), InvalidArgument, "binding 2"),
        (("good", -4, 16), OutOfRange, "binding 2: 16 bytes at offset -4 do not fit a buffer of 64 bytes"),
        (("good", 0, -4), OutOfRange, "binding 2: -4 bytes at offset 0"),
        (("good", 52, 16), OutOfRange, "binding 2: 16 bytes at offset 52 do not fit a buffer of 64 bytes"),
        (("good", 2**63, 2**63), OutOfRange, "binding 2"),
        (("good", 0, 3), OutOfRange, "binding 2 has 3 bytes; the kernel needs 4"),
        (
            ("good", 2, 16),
            InvalidArgument,
            "binding 2 starts at byte 2 of its allocation; it must be a multiple of 4",
        ),
    ],
)
def test_bindings_are_checked(
    device: Device, kernels: Kernels, binding: Any, kind: type[Exception], word: str
) -> None:
    good = device.allocator.allocate(64)
    if isinstance(binding, tuple) and binding[0] == "good":
        binding = (good, *binding[1:])
    refused(kernels["add"], kind, word, constants=[1], bindings=[(good, 0, 4), (good, 0, 4), binding])


@pytest.mark.computes
def test_offsets_and_lengths_may_be_numpys(device: Device, kernels: Kernels) -> None:
    data = filled(device, np.arange(4, dtype=np.int32))
    kernels["scale"].dispatch(1, (1, 5), [(data, np.int64(8), np.uint8(4))])
    assert list(np.frombuffer(data.read(), np.int32)) == [0, 1, 10, 3]


def test_the_number_of_bindings_is_checked(device: Device, kernels: Kernels) -> None:
    good = (device.allocator.allocate(4), 0, 4)
    for found in (0, 2, 4):
        refused(
            kernels["add"], InvalidArgument, f"takes 3 bindings, found {found}",
            constants=[1], bindings=[good] * found,
        )  # fmt: skip


@pytest.mark.plain
@pytest.mark.computes
def test_the_alignment_counts_from_the_allocation(device: Device, kernels: Kernels) -> None:
    root = filled(device, np.ones(16, np.int32))
    word = "starts at byte 6 of its allocation"
    span = root.subspan(2)
    refused(kernels["scale"], InvalidArgument, word, constants=(1, 2), bindings=[(span, 4, 4)])
    kernels["scale"].dispatch(1, (1, 2), [(span, 6, 4)])
    assert np.frombuffer(root.read(), np.int32)[2] == 2


def test_a_released_buffer_is_refused(device: Device, kernels: Kernels) -> None:
    gone = device.allocator.allocate(64)
    gone.release()
    word = "binding 0 is a released buffer of 64 bytes"
    refused(kernels["scale"], FailedPrecondition, word, constants=(1, 2), bindings=[(gone, 0, 4)])


def test_a_buffer_of_another_device_is_refused(device: Device, kernels: Kernels) -> None:
    foreign = open_device("null?pool=0").allocator.allocate(16)
    word = f"binding 0 is on null:0?pool=0; the kernel runs on {device.uri}"
    refused(kernels["scale"], InvalidArgument, word, constants=(1, 2), bindings=[(foreign, 0, 4)])


@pytest.mark.parametrize(
    "flags",
    [
        {"access": MemoryAccess.READ},
        {"usage": BufferUsage.TRANSFER | BufferUsage.DISPATCH_STORAGE_READ},
        {"memory_type": MemoryType.HOST_LOCAL},
    ],
)
def test_memory_that_the_kernel_may_not_write_is_refused(
    device: Device, kernels: Kernels, flags: dict[str, Any]
) -> None:
    buffer = device.allocator.allocate(16, **flags)
    for word in ("binding 0", "written by a kernel" if "memory_type" not in flags else "by a kernel"):
        refused(kernels["scale"], PermissionDenied, word, constants=(1, 2), bindings=[(buffer, 0, 4)])


@pytest.mark.computes
def test_a_read_only_buffer_can_be_read_by_a_kernel(device: Device, kernels: Kernels) -> None:
    buffer = device.allocator.allocate(16, access=MemoryAccess.READ)
    out = device.allocator.allocate(16)
    kernels["copy_bytes"].dispatch(1, [16], [(buffer, 0, 16), (out, 0, 16)])
    assert bytes(out.read()) == bytes(buffer.read())


# -- offsets -------------------------------------------------------------------------------------------

TYPES = {"char": np.int8, "float": np.float32, "double": np.float64}
# A packed structure may lie anywhere: a plain double must not lie at 4 or 68 on many GPUs.
NEGATE = """
typedef struct {{ ulong offsets[2]; uint constants[1]; }} negate_arguments;
typedef struct __attribute__((packed)) {{ {type} value; }} element;
__kernel void negate(__global uchar* a, __global uchar* b, negate_arguments arguments) {{
  size_t i = get_global_id(0);
  if (i < arguments.constants[0])
    ((__global element*)(b + arguments.offsets[1]))[i].value =
        -((__global element*)(a + arguments.offsets[0]))[i].value;
}}
"""


@pytest.mark.computes
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("offset", [4, 64, 68, 128])
@pytest.mark.parametrize("through", ["binding", "subspan", "subspan of a subspan"])
def test_bindings_at_offsets(device: Device, cuda_prelude: str, name: str, offset: int, through: str) -> None:
    """Also at offsets that no sub-buffer could have."""
    dtype = np.dtype(TYPES[name])

    def negate(workgroups: tuple[int, ...], constants: tuple[int, ...], bindings: list[memoryview]) -> None:
        a, b = (np.frombuffer(view, dtype, constants[0]) for view in bindings)
        b[:] = -a

    language = min(device.capabilities.languages)
    layout = KernelLayout("negate", 1, (BindingLayout("read"), BindingLayout("write")), (4, 1, 1))
    extensions = ("cl_khr_fp64",) if name == "double" and language == "opencl-c" else ()
    source = NEGATE.format(type=name)
    if language == "cuda-c":
        source = cuda_prelude + source
    program = Program(language, source, (layout,), extensions=extensions, callables=(negate,))
    (kernel,) = device.build(program)
    values = np.arange(1, 18).astype(dtype)
    size = values.nbytes
    source, target = (device.allocator.allocate(offset + size + 32) for _ in range(2))
    for buffer in (source, target):
        buffer.fill(0, None, b"\x5a")
    source.update(values, offset)
    if through == "binding":
        bindings = [(buffer, offset, size) for buffer in (source, target)]
    elif through == "subspan":
        bindings = [(buffer.subspan(offset), 0, size) for buffer in (source, target)]
    else:
        bindings = [(buffer.subspan(offset - 3).subspan(3, size), 0, size) for buffer in (source, target)]
    kernel.dispatch(5, [17], bindings)
    expected = np.full(offset + size + 32, 0x5A, np.uint8)
    expected[offset : offset + size] = (-values).view(np.uint8)
    np.testing.assert_array_equal(np.frombuffer(target.read(), np.uint8), expected)


@pytest.mark.plain
@pytest.mark.computes
def test_a_host_array_held_after_release_keeps_its_bytes(device: Device, kernels: Kernels) -> None:
    """A mapped array that outlives mapping, buffer and allocator: never a fault, never another's bytes."""
    for size in (64, 100_000):
        buffer = device.allocator.allocate(size)
        mapping = buffer.map(MemoryAccess.READ | MemoryAccess.WRITE)
        held = np.frombuffer(mapping.contents, np.int32)
        held[:] = 5
        kernels["scale"].dispatch(size // 16, (size // 4, 3), [(buffer, 0, size)])
        held = np.frombuffer(mapping.contents, np.int32)
        assert (held == 15).all()
        mapping.unmap()
        buffer.release()
        for _ in range(4):
            with device.allocator.allocate(size) as other:
                other.fill(0, None, b"\xee")
                other.write(discard=True)[:] = b"\xff" * size
        device.wait_idle()
        assert (held == 15).all()
        held[:] = 7
        assert held.sum() == 7 * held.size
