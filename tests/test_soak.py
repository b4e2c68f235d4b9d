"""The short form of ci/soak.py, and proof that it can fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def soak(python_file: Callable[[Path], ModuleType]) -> ModuleType:
    return python_file(Path(__file__).resolve().parent.parent / "ci" / "soak.py")


@pytest.fixture(scope="module")
def program(soak: ModuleType, compile_mlir: Callable[..., bytes]) -> bytes:
    return compile_mlir(soak.PROGRAM)


@pytest.mark.parametrize(
    "uri", ["opencl", "opencl?unified=0", "opencl?pool=0", "opencl?debug=1", "host", "null"]
)
def test_maps_and_calls_leave_nothing_behind(
    soak: ModuleType, compile_mlir: Callable[..., bytes], uri: str
) -> None:
    program = compile_mlir(soak.PROGRAM if uri.startswith("opencl") else soak.PASSING)
    reports = soak.soak(uri, program, 1500, 400)
    assert [report.partition(": ")[0] for report in reports] == [soak.devices.open_device(uri).uri] * 2


def keeps_buffers(device: Any, kept: list[Any]) -> None:
    kept.append(device.allocator.allocate(16))


def keeps_memory(device: Any, kept: list[Any]) -> None:
    kept.append(bytearray(b"x" * (256 << 10)))


@pytest.mark.parametrize(
    ("leak", "words"), [(keeps_buffers, r"\+300 handles, \+4800 bytes"), (keeps_memory, r"\+\d{4,} KiB")]
)
def test_a_leak_is_caught(soak: ModuleType, program: bytes, leak: Callable[..., None], words: str) -> None:
    kept: list[Any] = []
    with pytest.raises(soak.Leak, match=words):
        soak.soak("opencl", program, 300, 1, lambda device: leak(device, kept))
