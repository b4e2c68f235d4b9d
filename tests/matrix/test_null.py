"""What a device does whose kernels compute nothing: all checks and counts, and bindings stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from halgpu.devices import Device, Kernel, open_device
from halgpu.devices.residency import State
from halgpu.devices.windows import open_window


@pytest.fixture
def null() -> Device:
    return open_device("null?debug=0")


@pytest.fixture
def kernels(null: Device, python_file: Callable[[Path], ModuleType]) -> dict[str, Kernel]:
    return python_file(Path(__file__).with_name("conftest.py")).build_all(null)


def test_dispatches_are_counted_and_leave_every_binding_alone(
    null: Device, kernels: dict[str, Kernel]
) -> None:
    values = np.arange(16, dtype=np.float32)
    buffers = [null.allocator.allocate(64) for _ in range(3)]
    for buffer in buffers:
        buffer.update(values)
    before = null.statistics
    kernels["add"].dispatch(1, [16], [(buffer, 0, 64) for buffer in buffers])
    assert null.statistics.dispatches == before.dispatches + 1
    # Host and device share the memory: what the host had written was given to the device, as on every such device.
    assert {buffer.state for buffer in buffers} == {State.DEVICE}
    for buffer in buffers:
        assert np.frombuffer(buffer.read(), np.float32).tolist() == values.tolist()


def test_a_write_leaves_open_windows_their_bytes(null: Device, kernels: dict[str, Kernel]) -> None:
    buffer = null.allocator.allocate(64)
    buffer.update(np.arange(16, dtype=np.int32))
    window = open_window(buffer)
    before = null.statistics.bytes_allocated
    kernels["scale"].dispatch(4, [16, 2], [(buffer, 0, 64)])
    assert null.statistics.bytes_allocated == before + 64
    assert bytes(buffer.read()) == window.tobytes() == np.arange(16, dtype=np.int32).tobytes()


def test_programs_in_any_language_are_taken(null: Device) -> None:
    assert null.capabilities.languages == frozenset()
