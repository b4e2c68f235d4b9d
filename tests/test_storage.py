"""The storage wrapper: bytes of a HAL buffer as a VM buffer, and an end that comes once."""

from __future__ import annotations

import gc
import itertools
import weakref

import numpy as np
import pytest

from halgpu import errors, storage
from halgpu.devices import MemoryAccess, open_device
from halgpu.vm.buffer import Buffer, BufferAccess


@pytest.fixture(params=["host", "opencl", "opencl?unified=0"])
def device(request):
    return open_device(request.param)


def filled(device, data: bytes):
    buffer = device.allocator.allocate(len(data))
    buffer.write()[:] = data
    return buffer


def test_the_program_sees_the_device_buffers_bytes(device):
    buffer = filled(device, b"abcdefgh")
    wrapped = storage.wrap(buffer)
    assert bytes(wrapped) == b"abcdefgh"
    assert wrapped.access == BufferAccess.ORIGIN_HOST | BufferAccess.MUTABLE
    wrapped.write_view()[2:4] = b"XY"
    assert bytes(buffer.read()) == b"abXYefgh"
    assert storage.unwrap(wrapped) is not None


def test_ranges_of_buffers_can_be_wrapped(device):
    buffer = filled(device, bytes(range(64)))
    wrapped = storage.wrap(buffer.subspan(5, 7))
    assert bytes(wrapped) == bytes(range(5, 12))


def test_empty_buffers_can_be_wrapped_and_end_too(device):
    before = device.statistics.live_handles
    wrapped = storage.wrap(device.allocator.allocate(0))
    assert (wrapped.byte_length, bytes(wrapped)) == (0, b"")
    wrapped.release()
    assert device.statistics.live_handles == before


def test_a_buffer_that_the_host_may_not_write_is_wrapped_read_only(device):
    wrapped = storage.wrap(device.allocator.allocate(4, access=MemoryAccess.READ))
    with pytest.raises(errors.PermissionDenied):
        wrapped.write_view()


def test_nothing_is_kept_when_the_host_may_not_read(device):
    buffer = device.allocator.allocate(4, access=MemoryAccess.WRITE)
    before = device.statistics.live_handles
    with pytest.raises(errors.PermissionDenied):
        storage.wrap(buffer)
    reference = weakref.ref(buffer)
    del buffer
    gc.collect()
    assert reference() is None
    assert device.statistics.live_handles == before - 1


def test_a_released_buffer_is_not_wrapped(device):
    buffer = filled(device, b"1234")
    buffer.release()
    with pytest.raises(errors.FailedPrecondition):
        storage.wrap(buffer)


def test_wrapping_moves_no_bytes(device):
    buffer = device.allocator.allocate(1 << 16)
    buffer.fill(0, None, b"\x01")
    before = device.statistics
    storage.wrap(buffer).release()
    after = device.statistics
    assert (after.maps, after.bytes_up, after.bytes_down) == (before.maps, before.bytes_up, before.bytes_down)


def test_holders_go_in_every_order(device):
    before = device.statistics.live_handles
    for order in itertools.permutations(range(3)):
        buffer = filled(device, b"12345678")
        holders = [buffer, storage.wrap(buffer), storage.wrap(buffer.subspan(0, 4))]
        for left, index in zip((2, 1, 0), order, strict=True):
            holders[index].release()
            assert device.statistics.live_handles == before + (left > 0)
        with pytest.raises(errors.FailedPrecondition):
            bytes(holders[1])


def test_dropping_references_ends_it_as_well(device):
    before = device.statistics.live_handles
    wrapped = storage.wrap(filled(device, b"1234"))
    assert bytes(wrapped) == b"1234"
    del wrapped
    assert device.statistics.live_handles == before


def test_it_is_an_allocator_that_only_frees_itself_and_once(device):
    wrapper = storage.Storage(filled(device, b"1234"))
    for misuse in (
        lambda: wrapper.allocate_aligned(4, 4),
        lambda: wrapper.free_aligned(wrapper),
        lambda: wrapper.free(object()),
        lambda: wrapper.free(None),
    ):
        with pytest.raises(errors.FailedPrecondition):
            misuse()
    assert bytes(wrapper.read()) == b"1234"
    wrapper.free(wrapper)
    for use in (
        lambda: wrapper.free(wrapper),
        wrapper.read,
        wrapper.write,
        lambda: wrapper.try_fill(0, 4, b"a"),
    ):
        with pytest.raises(errors.FailedPrecondition):
            use()


def test_the_vm_reports_the_end_exactly_once(device, monkeypatch):
    freed = []
    original = storage.Storage.free
    monkeypatch.setattr(
        storage.Storage, "free", lambda self, handle: (freed.append(handle), original(self, handle))
    )
    wrapped = storage.wrap(filled(device, b"1234"))
    wrapped.release()
    wrapped.release()
    del wrapped
    gc.collect()
    assert len(freed) == 1


@pytest.mark.parametrize(
    ("offset", "length", "pattern"),
    [
        (0, 16, b"a"),
        (4, 8, b"abcd"),
        (1, 8, b"abcd"),
        (2, 6, b"abc"),
        (8, 8, b"12345678"),
        (3, 4, b"xy"),
        (16, 0, b"a"),
    ],
)
def test_fills_wherever_the_bytes_are(device, offset, length, pattern):
    for on_device in (False, True):
        buffer = device.allocator.allocate(16)
        buffer.fill(0, None, b".")
        if not on_device:
            buffer.write()
        wrapped = storage.wrap(buffer)
        wrapped.fill(offset, length, pattern)
        expected = bytearray(b"." * 16)
        expected[offset : offset + length] = pattern * (length // len(pattern))
        assert bytes(wrapped) == bytes(expected)


@pytest.mark.parametrize("source_on_device", [False, True])
@pytest.mark.parametrize("target_on_device", [False, True])
def test_copies_wherever_the_bytes_are(device, source_on_device, target_on_device):
    source, target = filled(device, bytes(range(32))), filled(device, bytes(32))
    for buffer, on_device in ((source, source_on_device), (target, target_on_device)):
        if on_device:
            buffer.copy_from(filled(device, bytes(buffer.read())), 0, 0, 32)
    wrapped = storage.wrap(target)
    wrapped.copy_from(storage.wrap(source), 3, 5, 17)
    assert bytes(wrapped) == bytes(5) + bytes(range(3, 20)) + bytes(10)


def test_copies_from_and_to_plain_buffers(device):
    wrapped, plain = storage.wrap(filled(device, b"01234567")), Buffer.create(8)
    plain.copy_from(wrapped, 2, 0, 4)
    assert bytes(plain) == b"2345\0\0\0\0"
    wrapped.copy_from(plain, 0, 4, 4)
    assert bytes(wrapped) == b"01232345"


def test_overlapping_copy_within_one_buffer(device):
    wrapped = storage.wrap(filled(device, bytes(range(16))))
    wrapped.copy_from(wrapped, 0, 4, 12)
    assert bytes(wrapped) == bytes(range(4)) + bytes(range(12))


def test_ten_thousand_cycles_leave_nothing(device, unguarded):
    device = unguarded(device)
    before = device.statistics
    for _ in range(10_000):
        storage.wrap(device.allocator.allocate(64)).release()
    after = device.statistics
    assert (after.live_handles, after.bytes_allocated) == (before.live_handles, before.bytes_allocated)
    assert after.bytes_peak <= before.bytes_peak + 128


def test_host_arrays_survive_the_end(device, unguarded):
    # The debug allocator keeps the memory too, but marks its bytes as freed (tests/devices/test_debug_allocator.py).
    wrapped = storage.wrap(filled(unguarded(device), np.arange(4, dtype=np.int32).tobytes()))
    array = np.frombuffer(wrapped.read_view(), np.int32)
    wrapped.release()
    assert array.tolist() == [0, 1, 2, 3]
