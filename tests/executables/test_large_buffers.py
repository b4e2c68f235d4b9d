"""Indices up to the end of the largest buffer: 4 GiB on PoCL, of which a few pages are touched."""

from __future__ import annotations

import numpy as np
import pytest
from spirv_assembler import Spirv

from halgpu.devices import open_device
from halgpu.devices.base import Device
from halgpu.executables.vulkan_spirv.loader import target_of
from halgpu.executables.vulkan_spirv.opcodes import Op

SIZE = 8


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("opencl")


@pytest.fixture(
    scope="module", params=[("i8", "i32"), ("i8", "i64"), ("i32", "i32"), ("2xi64", "i32"), ("2xi64", "i64")]
)
def kinds(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


def test_indices_up_to_the_end_of_the_largest_buffer(device: Device, kinds: tuple[str, str]) -> None:
    """out[i] = large[index[i]]; large[index[i]] = value[i], with the index as 32 and as 64 bits."""
    element, index_kind = kinds
    length = min(device.capabilities.max_allocation, 2**32)
    assert length > 2**31
    count = 2 if "x" in element else 1
    dtype = f"i{int(element.split('x')[-1][1:]) // 8}"
    size = count * np.dtype(dtype).itemsize
    s = Spirv(element, index_kind, element, element, size=SIZE)
    at = s.load(1)
    place = s.element(0, at)
    s.store(s.op(Op.Load, element, place))
    s.do(Op.Store, place, s.load(2))
    [kernel] = device.build(s.program(target_of(device)))
    elements = length // size
    indices = sorted(
        {0, 1, 2**31 // size - 1, 2**31 // size, elements // 2 + 7, elements - 2, elements - 1, 12345}
    )
    assert len(indices) == SIZE
    before = np.arange(SIZE * count, dtype=dtype).reshape(SIZE, count) + 1
    after = -before
    large = device.allocator.allocate(length)
    view = large.write()
    for i, index in enumerate(indices):
        view[index * size : (index + 1) * size] = before[i].tobytes()
    arrays = [np.array(indices, f"u{int(index_kind[1:]) // 8}"), after, np.zeros_like(before)]
    buffers = [device.allocator.allocate(a.nbytes) for a in arrays]
    for buffer, array in zip(buffers, arrays, strict=True):
        buffer.write()[:] = array.tobytes()
    rest = [(buffer, 0, array.nbytes) for buffer, array in zip(buffers, arrays, strict=True)]
    kernel.dispatch((1, 1, 1), (), [(large, 0, length), *rest])
    assert np.array_equal(np.frombuffer(buffers[2].read(), dtype).reshape(before.shape), before)
    view = large.read()
    found = [bytes(view[index * size : (index + 1) * size]) for index in indices]
    assert found == [row.tobytes() for row in after]
    # A binding far inside of the buffer counts from there.
    start = 2**31 + 4096
    buffers[0].write()[:] = np.arange(SIZE, dtype=arrays[0].dtype).tobytes()
    kernel.dispatch((1, 1, 1), (), [(large, start, SIZE * size), *rest])
    assert bytes(large.read()[start : start + SIZE * size]) == after.tobytes()
    large.release()
