"""Which of a kernel's two texts a dispatch runs: the one for bindings that are apart, or the one for any."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from halgpu.devices import open_device
from halgpu.devices.base import BindingLayout, Device, KernelLayout, Program
from halgpu.errors import InvalidArgument

SIZE = 64
READ, WRITE = BindingLayout("read"), BindingLayout("write")
ARGUMENTS = "typedef struct { ulong offsets[3]; } arguments;\n"
KERNEL = """__kernel void NAME(const __global uchar *a, const __global uchar *b, __global uchar *c, const arguments p)
{
    c[p.offsets[2]] = VALUE;
}
"""
ANY, APART = 1, 2
"""What the texts write: other than a translator's, the two here can be told from each other."""


def program(apart: str = "apart", name: str = "plain") -> Program:
    texts = [KERNEL.replace("NAME", n).replace("VALUE", str(v)) for n, v in ((name, ANY), ("apart", APART))]
    layout = KernelLayout(name, 0, (READ, READ, WRITE), (1, 1, 1), apart=apart)
    return Program(
        "opencl-c", ARGUMENTS + "".join(texts), (layout,), names=frozenset({"arguments", name, "apart"})
    )


@pytest.fixture
def device() -> Iterator[Device]:
    with open_device("opencl") as device:
        yield device


# Which allocation each binding is of, its start there, its length.
Where = tuple[int, int, int]


@pytest.mark.parametrize(
    ("a", "b", "c", "wanted"),
    [
        ((0, 0, SIZE), (1, 0, SIZE), (2, 0, SIZE), APART),
        ((0, 0, SIZE), (0, 0, SIZE), (2, 0, SIZE), APART),
        ((0, 0, SIZE), (1, 0, SIZE), (0, 0, SIZE), ANY),
        ((0, 0, SIZE), (1, 0, SIZE), (1, 0, SIZE), ANY),
        ((0, 0, 32), (0, 16, 16), (0, 32, 32), APART),
        ((0, 0, 33), (1, 0, SIZE), (0, 32, 32), ANY),
        ((0, 40, 8), (1, 0, SIZE), (0, 32, 32), ANY),
        ((0, 32, 32), (1, 0, SIZE), (0, 0, 32), APART),
        ((0, 31, 33), (1, 0, SIZE), (0, 0, 32), ANY),
        ((0, 8, 0), (1, 0, SIZE), (0, 0, 32), APART),
    ],
)
def test_the_text_that_runs(device: Device, a: Where, b: Where, c: Where, wanted: int) -> None:
    [kernel] = device.build(program())
    buffers = [device.allocator.allocate(SIZE) for _ in range(3)]
    for buffer in buffers:
        buffer.write()[:] = bytes(SIZE)
    kernel.dispatch(1, (), [(buffers[n], start, length) for n, start, length in (a, b, c)])
    assert bytes(buffers[c[0]].read())[c[1]] == wanted


def test_the_text_is_chosen_at_each_dispatch(device: Device) -> None:
    [kernel] = device.build(program())
    one, two, three = (device.allocator.allocate(SIZE) for _ in range(3))

    def written(*buffers: object) -> int:
        kernel.dispatch(1, (), [(buffer, 0, SIZE) for buffer in buffers])
        return bytes(buffers[-1].read())[0]

    one.write()[:] = two.write()[:] = bytes(SIZE)
    found = [
        written(one, two, three),
        written(one, two, two),
        written(two, one, three),
        written(one, one, one),
    ]
    assert found == [APART, ANY, APART, ANY]


def test_subspans_of_a_buffer(device: Device) -> None:
    """Two buffers may look at the same allocation."""
    [kernel] = device.build(program())
    whole, other = device.allocator.allocate(SIZE), device.allocator.allocate(SIZE)
    whole.write()[:] = other.write()[:] = bytes(SIZE)
    low, high = whole.subspan(0, 32), whole.subspan(32, 32)
    kernel.dispatch(1, (), [(low, 0, 32), (other, 0, SIZE), (high, 0, 32)])
    kernel.dispatch(1, (), [(whole, 0, SIZE), (other, 0, SIZE), (low, 8, 8)])
    assert [bytes(whole.read())[at] for at in (32, 8)] == [APART, ANY]


def test_without_another_text(device: Device) -> None:
    [kernel] = device.build(program(apart=""))
    buffers = [device.allocator.allocate(SIZE) for _ in range(3)]
    kernel.dispatch(1, (), [(buffer, 0, SIZE) for buffer in buffers])
    assert bytes(buffers[2].read())[0] == ANY


def test_both_texts_of_programs_that_are_built_as_one(device: Device) -> None:
    for [kernel] in device.build_all([program(), program()]):
        buffers = [device.allocator.allocate(SIZE) for _ in range(3)]
        kernel.dispatch(1, (), [(buffer, 0, SIZE) for buffer in buffers])
        assert kernel.layout.name == "plain"
        assert bytes(buffers[2].read())[0] == APART


def test_a_text_that_is_not_there(device: Device) -> None:
    with pytest.raises(InvalidArgument, match="the program has no kernel 'nowhere'; it has: "):
        device.build(program(apart="nowhere"))


def test_a_text_that_disagrees_with_the_layout(device: Device) -> None:
    built = program()
    other = built.source.replace("void apart(", "__attribute__((reqd_work_group_size(2, 1, 1))) void apart(")
    with pytest.raises(InvalidArgument, match="was compiled for workgroups of"):
        device.build(replace(built, source=other))
