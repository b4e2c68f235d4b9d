"""Buffers: allocation, ranges, mapping, fills, copies and the end of life, the same on every device."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from halgpu.devices import Buffer, BufferUsage, Device, Kernel, MemoryAccess, MemoryType, open_device
from halgpu.errors import (
    Error,
    FailedPrecondition,
    InvalidArgument,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
)

READ, WRITE, DISCARD = MemoryAccess.READ, MemoryAccess.WRITE, MemoryAccess.DISCARD
Kernels = dict[str, Kernel]


def product(device: Device, factor: int) -> int:
    """What `scale` multiplies by: 1 where kernels compute nothing."""
    return 1 if device.capabilities.kind == "null" else factor


def numbered(device: Device, size: int) -> Buffer:
    buffer = device.allocator.allocate(size)
    buffer.update((np.arange(size) % 251).astype(np.uint8))
    return buffer


def double(kernels: Kernels, buffer: Buffer) -> None:
    """Device work that changes the buffer: its first 4-byte integer is doubled."""
    kernels["scale"].dispatch(1, (1, 2), [(buffer, 0, 4)])


# -- allocation ----------------------------------------------------------------------------------------


@pytest.mark.plain
@pytest.mark.parametrize("size", [0, 1, 3, 64, 4095, 4096, 65536, 1_000_001])
def test_any_size(device: Device, size: int) -> None:
    before = device.statistics
    buffer = numbered(device, size)
    assert buffer.byte_length == size
    np.testing.assert_array_equal(np.frombuffer(buffer.read(), np.uint8), np.arange(size) % 251)
    after = device.statistics
    assert after.bytes_allocated == before.bytes_allocated + size
    assert after.bytes_peak >= after.bytes_allocated
    assert after.live_handles == before.live_handles + 1


@pytest.mark.computes
def test_nothing_can_be_done_with_nothing(device: Device, kernels: Kernels) -> None:
    empty = device.allocator.allocate(0)
    assert bytes(empty.read()) == b""
    assert empty.write(discard=True).nbytes == 0
    empty.fill(0, None, b"\1\2\3\4")
    empty.copy_from(empty, 0, 0, 0)
    empty.update(b"")
    with empty.map(READ | WRITE) as mapping:
        assert mapping.contents.nbytes == 0
    assert empty.subspan(0).byte_length == 0
    data = numbered(device, 4)
    kernels["copy_bytes"].dispatch(1, [0], [(empty, 0, 0), (data, 0, 4)])
    assert bytes(data.read()) == b"\0\1\2\3"


@pytest.mark.parametrize(
    ("size", "kind"), [(-1, InvalidArgument), (2**63, ResourceExhausted), (2**70, ResourceExhausted)]
)
def test_impossible_sizes(device: Device, size: int, kind: type[Error]) -> None:
    with pytest.raises(kind, match=str(size)) as caught:
        device.allocator.allocate(size)
    if size > 0:
        assert f"limit {device.capabilities.max_allocation}" in str(caught.value)


@pytest.mark.parametrize("alignment", [0, -1, 3, 8192])
def test_impossible_alignments(device: Device, alignment: int) -> None:
    with pytest.raises(InvalidArgument, match=f"found {alignment}"):
        device.allocator.allocate(4, alignment=alignment)


@pytest.mark.parametrize("alignment", [1, 64, 4096])
def test_host_bytes_are_aligned(device: Device, alignment: int) -> None:
    buffer = device.allocator.allocate(100, alignment=alignment)
    address = np.frombuffer(buffer.read(), np.uint8).ctypes.data
    assert address % alignment == 0


def test_a_new_device_counts_from_zero() -> None:
    statistics = open_device("null").statistics
    assert (statistics.bytes_allocated, statistics.live_handles) == (0, 0)


# -- ranges --------------------------------------------------------------------------------------------


@pytest.mark.plain
def test_subspans_of_subspans_share_bytes(device: Device, kernels: Kernels) -> None:
    root = numbered(device, 100)
    span = root.subspan(20, 60).subspan(10, 8)
    assert (span.offset, span.byte_length) == (30, 8)
    assert bytes(span.read()) == bytes(range(30, 38))
    span.write()[0] = 99
    assert root.read()[30] == 99
    double(kernels, root.subspan(28))
    assert root.state is span.state
    expected = np.frombuffer(bytes([28, 29, 99, 31]), "<i4")[0] * product(device, 2)
    assert np.frombuffer(root.read()[28:32], "<i4")[0] == expected


@pytest.mark.parametrize(("offset", "length"), [(-1, 4), (0, 17), (17, 0), (8, 9), (0, -1), (2**63, 2**63)])
def test_ranges_that_do_not_fit(device: Device, offset: int, length: int) -> None:
    buffer = device.allocator.allocate(16)
    for use in (
        lambda: buffer.subspan(offset, length),
        lambda: buffer.map(READ, offset, length),
        lambda: buffer.fill(offset, length, b"\0"),
        lambda: buffer.copy_from(buffer, offset, 0, length),
        lambda: buffer.copy_from(buffer, 0, offset, length),
    ):
        with pytest.raises(OutOfRange, match="16 bytes"):
            use()
    with pytest.raises(OutOfRange):
        buffer.update(bytes(12), 5)


def test_a_subspan_keeps_the_allocation(device: Device) -> None:
    before = device.statistics.live_handles
    root = numbered(device, 100)
    span = root.subspan(10, 5)
    root.release()
    del root
    assert device.statistics.live_handles == before + 1
    assert bytes(span.read()) == bytes(range(10, 15))
    del span
    assert device.statistics.live_handles == before


def test_a_share_is_the_same_range_with_a_life_of_its_own(device: Device) -> None:
    span = numbered(device, 100).subspan(10, 5)
    share = span.share()
    assert (share.offset, share.byte_length, share.rights) == (span.offset, 5, span.rights)
    span.release()
    assert bytes(share.read()) == bytes(range(10, 15))
    with pytest.raises(FailedPrecondition, match="released"):
        span.share()


# -- mapping -------------------------------------------------------------------------------------------


@pytest.mark.computes
def test_a_mapping_reads_and_writes(device: Device, kernels: Kernels) -> None:
    buffer = numbered(device, 32)
    with buffer.map(READ | WRITE, 4, 8) as mapping:
        assert bytes(mapping.contents) == bytes(range(4, 12))
        mapping.contents[:4] = b"\1\0\0\0"
    kernels["scale"].dispatch(1, (1, 7), [(buffer, 4, 4)])
    assert bytes(buffer.read()[:9]) == b"\0\1\2\3\7\0\0\0\10"


def test_a_mapping_to_read_refuses_writes(device: Device) -> None:
    with numbered(device, 8).map(READ) as mapping:
        assert mapping.contents.readonly
        with pytest.raises(TypeError):
            mapping.contents[0] = 1
    with numbered(device, 8).map(WRITE | DISCARD) as mapping:
        assert not mapping.contents.readonly


@pytest.mark.computes
def test_a_kernel_sees_what_was_written_without_unmapping(device: Device, kernels: Kernels) -> None:
    buffer = numbered(device, 8)
    mapping = buffer.map(READ | WRITE)
    for value in (3, 5):
        mapping.contents[:4] = value.to_bytes(4, "little")
        double(kernels, buffer)
        assert mapping.contents[0] == 2 * value
    mapping.unmap()


@pytest.mark.computes
def test_a_held_view_may_be_written_again_before_a_kernel_that_only_reads(
    device: Device, kernels: Kernels
) -> None:
    source, target = numbered(device, 8), device.allocator.allocate(8)
    mapping = source.map(WRITE)
    view = mapping.contents
    for byte in (b"a", b"b"):
        view[:] = byte * 8
        kernels["copy_bytes"].dispatch(1, [8], [(source, 0, 8), (target, 0, 8)])
        assert bytes(target.read()) == byte * 8
    mapping.unmap()


def test_nested_mappings_are_counted(device: Device) -> None:
    buffer = numbered(device, 8)
    outer, inner = buffer.map(READ), buffer.map(READ | WRITE, 2)
    root = buffer.root
    assert root is not None
    assert root.maps == 2
    inner.unmap()
    inner.unmap()
    assert root.maps == 1
    assert outer.contents[3] == 3
    del outer
    assert root.maps == 0


@pytest.mark.computes
def test_flush_and_invalidate(device: Device, kernels: Kernels) -> None:
    buffer = numbered(device, 8)
    with buffer.map(READ | WRITE) as mapping:
        view = mapping.contents
        view[:4] = b"\4\0\0\0"
        mapping.flush()
        double(kernels, buffer)
        mapping.invalidate()
        assert view[0] == 8


def test_an_ended_mapping_is_refused(device: Device) -> None:
    mapping = numbered(device, 8).map(READ)
    mapping.unmap()
    for use in (lambda: mapping.contents, mapping.flush, mapping.invalidate, mapping.__enter__):
        with pytest.raises(FailedPrecondition, match="unmapped"):
            use()


def test_a_mapping_outlives_its_buffer(device: Device) -> None:
    buffer = numbered(device, 8)
    mapping = buffer.map(READ)
    buffer.release()
    assert bytes(mapping.contents) == bytes(range(8))
    mapping.unmap()


@pytest.mark.parametrize("access", [MemoryAccess.NONE, DISCARD])
def test_a_mapping_reads_or_writes(device: Device, access: MemoryAccess) -> None:
    with pytest.raises(InvalidArgument, match="READ or WRITE"):
        device.allocator.allocate(4).map(access)


@pytest.mark.parametrize(
    ("flags", "denied"),
    [
        ({"access": READ}, {"write", "map write", "update", "fill"}),
        ({"access": WRITE}, {"read", "map read", "copy"}),
        ({"usage": BufferUsage.TRANSFER}, {"read", "write", "map read", "map write"}),
        ({"memory_type": MemoryType.DEVICE_LOCAL}, {"read", "write", "map read", "map write"}),
        ({"usage": BufferUsage.MAPPING | BufferUsage.TRANSFER_SOURCE}, {"update", "fill"}),
        ({"usage": BufferUsage.MAPPING | BufferUsage.TRANSFER_TARGET}, {"copy"}),
    ],
)
def test_flags_decide_what_may_be_done(device: Device, flags: dict[str, Any], denied: set[str]) -> None:
    buffer, other = device.allocator.allocate(8, **flags), device.allocator.allocate(8)
    uses = {
        "read": buffer.read,
        "write": buffer.write,
        "map read": lambda: buffer.map(READ),
        "map write": lambda: buffer.map(WRITE),
        "update": lambda: buffer.update(b"12345678"),
        "fill": lambda: buffer.fill(0, 8, b"1"),
        "copy": lambda: other.copy_from(buffer, 0, 0, 8),
    }
    for name, use in uses.items():
        if name in denied:
            with pytest.raises(PermissionDenied, match="8 bytes"):
                use()
        else:
            use()


# -- fill, copy, update --------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [b"\x5a", b"\1\2", b"\1\2\3\4", b"\1\2\3\4\5\6\7\10"])
@pytest.mark.parametrize("side", ["host", "device"])
@pytest.mark.parametrize("shift", [0, 4])
def test_fill(device: Device, kernels: Kernels, pattern: bytes, side: str, shift: int) -> None:
    root = numbered(device, 80)
    double(kernels, root)
    if side == "host":
        root.write()
    expected = bytearray(bytes(product(device, 2) * i for i in range(4)) + bytes(range(4, 80)))
    span = root.subspan(shift)
    span.fill(16, 48, pattern)
    expected[shift + 16 : shift + 64] = pattern * (48 // len(pattern))
    assert bytes(root.read()) == bytes(expected)


@pytest.mark.parametrize("pattern", [b"\x5a", b"\1\2", b"\1\2\3\4", b"\1\2\3\4\5\6\7\10"])
def test_a_large_fill_on_the_host_takes_no_further_memory(device: Device, pattern: bytes) -> None:
    size = 1 << 20
    buffer = device.allocator.allocate(size)
    buffer.write()[:] = bytes(size)
    tracemalloc.start()
    buffer.fill(8, size - 16, pattern)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size // 8
    assert bytes(buffer.read()) == bytes(8) + pattern * ((size - 16) // len(pattern)) + bytes(8)


@pytest.mark.parametrize("pattern", [b"", b"123", b"12345", b"0123456789abcdef"])
def test_fill_patterns_have_1_2_4_or_8_bytes(device: Device, pattern: bytes) -> None:
    with pytest.raises(InvalidArgument, match=f"found {len(pattern)}"):
        device.allocator.allocate(32).fill(0, 16, pattern)


@pytest.mark.parametrize(("offset", "length"), [(2, 8), (0, 6), (1, 1)])
def test_fills_are_whole_patterns(device: Device, offset: int, length: int) -> None:
    with pytest.raises(InvalidArgument, match="multiples of the pattern's 4 bytes"):
        device.allocator.allocate(32).fill(offset, length, b"1234")


@pytest.mark.parametrize("source_side", ["host", "device"])
@pytest.mark.parametrize("target_side", ["host", "device", "fresh"])
def test_copy_between_buffers(device: Device, kernels: Kernels, source_side: str, target_side: str) -> None:
    source, target = numbered(device, 64), device.allocator.allocate(64)
    expected = np.zeros(64, np.uint8)
    if target_side != "fresh":
        target.update(np.arange(100, 164, dtype=np.uint8))
        expected[:] = np.arange(100, 164)
    if target_side == "device":
        double(kernels, target)
        expected[:4].view("<u4")[:] *= product(device, 2)
    if source_side == "device":
        double(kernels, source)
    target.copy_from(source, 8, 20, 30)
    expected[20:50] = np.arange(8, 38)
    found = np.frombuffer(target.read(), np.uint8)
    np.testing.assert_array_equal(found[20:50], expected[20:50])
    if target_side != "fresh":
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("source", "target"), [(0, 4), (4, 0), (0, 0), (0, 40), (3, 1)])
@pytest.mark.parametrize("side", ["host", "device"])
def test_overlapping_copies(device: Device, kernels: Kernels, source: int, target: int, side: str) -> None:
    buffer = numbered(device, 80)
    if side == "device":
        double(kernels, buffer)
    expected = bytearray(buffer.read())
    if side == "device":
        double(kernels, buffer)
        expected[:4] = (int.from_bytes(expected[:4], "little") * product(device, 2)).to_bytes(4, "little")
    expected[target : target + 40] = expected[source : source + 40]
    buffer.copy_from(buffer, source, target, 40)
    assert bytes(buffer.read()) == bytes(expected)


def test_copy_from_another_device(device: Device) -> None:
    foreign = open_device("null").allocator.allocate(16)
    foreign.update(bytes(range(16)))
    buffer = device.allocator.allocate(16)
    buffer.copy_from(foreign.subspan(4), 2, 1, 8)
    assert bytes(buffer.read()[1:9]) == bytes(range(6, 14))


def test_update_takes_any_contiguous_bytes(device: Device) -> None:
    buffer = device.allocator.allocate(16)
    for data in (bytes(16), bytearray(16), memoryview(bytes(16)), np.zeros((2, 2), np.float32)):
        buffer.fill(0, None, b"x")
        buffer.update(data)
        assert bytes(buffer.read()) == bytes(16)
    buffer.update(b"abc", 5)
    assert bytes(buffer.read()) == bytes(5) + b"abc" + bytes(8)
    with pytest.raises(InvalidArgument, match="contiguous"):
        buffer.update(np.zeros((4, 4), np.uint8)[:, ::2])
    with pytest.raises(InvalidArgument, match="bytes-like"):
        buffer.update(5)


# -- the end of life -----------------------------------------------------------------------------------


def test_release_ends_a_life_early(device: Device) -> None:
    before = device.statistics.live_handles
    with numbered(device, 16) as buffer:
        assert device.statistics.live_handles == before + 1
    assert device.statistics.live_handles == before
    buffer.release()
    assert buffer.released
    assert "released" in repr(buffer)
    other = device.allocator.allocate(16)
    for use in (
        buffer.read, buffer.write, buffer.__enter__, buffer.subspan.__get__(buffer), lambda: buffer.state,
        lambda: buffer.subspan(0), lambda: buffer.map(READ), lambda: buffer.fill(0, 4, b"1"),
        lambda: buffer.update(b"1"), lambda: buffer.copy_from(other, 0, 0, 4),
        lambda: other.copy_from(buffer, 0, 0, 4),
    ):  # fmt: skip
        with pytest.raises(FailedPrecondition, match="released"):
            use() if use.__name__ != "subspan" else use(0)


@pytest.mark.plain
def test_views_keep_their_memory_after_the_end(device: Device, kernels: Kernels) -> None:
    views = []
    for _ in range(8):
        buffer = numbered(device, 100_000)
        double(kernels, buffer)
        views.append((buffer.read(), buffer.write()))
        buffer.release()
    for _ in range(8):
        device.allocator.allocate(100_000).fill(0, None, b"\xff")
    device.wait_idle()
    for read, write in views:
        write[5] = 77
        assert read[5] == 77
        assert read[6] == 6


def test_reading_is_cheap_while_the_host_has_the_bytes(device: Device) -> None:
    buffer = numbered(device, 4096)
    buffer.read()
    before = device.statistics
    for _ in range(100):
        buffer.read()
    assert device.statistics == before
