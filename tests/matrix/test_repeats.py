"""Dispatches that repeat the bindings of an earlier one, which are not checked again: what must still be noticed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from halgpu import BufferView
from halgpu.devices import Buffer, Device, Kernel, open_device
from halgpu.devices import dispatch as dispatching
from halgpu.devices.windows import open_window
from halgpu.errors import FailedPrecondition, InvalidArgument, OutOfRange

Kernels = dict[str, Kernel]
COUNT = 16


def filled(device: Device) -> Buffer:
    buffer = device.allocator.allocate(4 * COUNT)
    buffer.update(np.arange(COUNT, dtype=np.int32))
    return buffer


def double(kernels: Kernels, *bindings: Any, times: int = 1) -> None:
    for _ in range(times):
        kernels["scale"].dispatch(COUNT // 4, (COUNT, 2), bindings)


def as_program(kernels: Kernels, buffer: Buffer, offset: int = 0, times: int = 1) -> None:
    """As a program dispatches, with the share that its storage holds and releases in the end."""
    for _ in range(times):
        kernels["scale"].dispatch_words(
            (COUNT // 4, 1, 1), (COUNT, 2), [(buffer, offset, 4 * COUNT)], remember=True
        )


WAYS = pytest.mark.parametrize("dispatch", [double, as_program])
Dispatch = Callable[..., None]


def with_option(uri: str, option: str) -> str:
    return f"{uri}{'&' if '?' in uri else '?'}{option}"


def values(buffer: Buffer) -> Any:
    return np.frombuffer(buffer.read(), np.int32)


@pytest.mark.computes
@WAYS
def test_repeats_compute_and_are_known(device: Device, kernels: Kernels, dispatch: Dispatch) -> None:
    with filled(device) as buffer:
        before = device.statistics.dispatches
        dispatch(kernels, buffer, times=5)
        assert device.counters.known  # else nothing here tests what it is about
        assert device.statistics.dispatches == before + 5
        np.testing.assert_array_equal(values(buffer), np.arange(COUNT) * 32)
        assert not device.counters.known


@pytest.mark.computes
@WAYS
def test_what_the_host_does_between_is_seen(device: Device, kernels: Kernels, dispatch: Dispatch) -> None:
    with filled(device) as buffer:
        dispatch(kernels, buffer, times=3)
        buffer.write()[:] = np.full(COUNT, 3, np.int32).tobytes()
        dispatch(kernels, buffer, times=3)
        np.testing.assert_array_equal(values(buffer), np.full(COUNT, 24))
        dispatch(kernels, buffer)
        np.testing.assert_array_equal(values(buffer), np.full(COUNT, 48))
        buffer.fill(0, None, b"\1\0\0\0")
        dispatch(kernels, buffer, times=3)
        np.testing.assert_array_equal(values(buffer), np.full(COUNT, 8))


@pytest.mark.computes
@WAYS
def test_windows_keep_their_bytes(device: Device, kernels: Kernels, dispatch: Dispatch) -> None:
    with filled(device) as buffer:
        dispatch(kernels, buffer, times=3)
        window = open_window(buffer).view(np.int32)
        dispatch(kernels, buffer, times=3)
        np.testing.assert_array_equal(window, np.arange(COUNT) * 8)
        np.testing.assert_array_equal(values(buffer), np.arange(COUNT) * 64)
        del window


@WAYS
def test_a_released_buffer_is_refused(device: Device, kernels: Kernels, dispatch: Dispatch) -> None:
    buffer = filled(device)
    other = buffer.share()
    dispatch(kernels, buffer, times=3)
    buffer.release()
    with pytest.raises(FailedPrecondition, match=r"binding 0 is a released buffer of"):
        dispatch(kernels, buffer)
    dispatch(kernels, other, times=3)
    other.release()


def test_a_released_view_is_refused(device: Device, kernels: Kernels) -> None:
    view = BufferView(filled(device), (COUNT,), "si32")
    other = view.share()
    double(kernels, view, times=3)
    double(kernels, other, times=3)
    view.release()
    with pytest.raises(FailedPrecondition, match=r"binding 0: this view of 16xsi32 was released"):
        double(kernels, view)
    double(kernels, other, times=3)
    other.buffer.release()
    with pytest.raises(FailedPrecondition, match=r"binding 0 is a released buffer of"):
        double(kernels, other)


def test_known_bindings_are_not_kept_alive(device: Device, kernels: Kernels) -> None:
    before = device.statistics.live_handles
    buffer = filled(device)
    double(kernels, buffer, times=3)
    memory = weakref.ref(buffer.root.memory)
    del buffer
    assert device.statistics.live_handles <= before  # fewer where a collection ends what another test left
    assert device.counters.known == {}
    assert memory() is None or device.ledger is not None


@pytest.mark.computes
def test_other_buffers_in_the_same_list(device: Device, kernels: Kernels) -> None:
    one, two = filled(device), filled(device)
    given = [one]
    for _ in range(3):
        kernels["scale"].dispatch(COUNT // 4, (COUNT, 2), given)
    given[0] = two
    kernels["scale"].dispatch(COUNT // 4, (COUNT, 3), given)
    for _ in range(2):  # in turn, as solvers do
        double(kernels, one)
        double(kernels, two)
    np.testing.assert_array_equal(values(one), np.arange(COUNT) * 32)
    np.testing.assert_array_equal(values(two), np.arange(COUNT) * 12)


@pytest.mark.computes
def test_other_grids_and_constants(device: Device, kernels: Kernels) -> None:
    scale = kernels["scale"]
    with filled(device) as buffer:
        bindings, constants, grid = (buffer,), (COUNT, 2), (COUNT // 4, 1)
        for _ in range(3):
            scale.dispatch(grid, constants, bindings)
        scale.dispatch(2, constants, bindings)
        scale.dispatch(grid, (COUNT, 3), bindings)
        np.testing.assert_array_equal(values(buffer), np.arange(COUNT) * 24 * ([2] * 8 + [1] * 8))
        double(kernels, buffer, times=3)
        before = device.statistics.dispatches
        scale.dispatch(0, constants, bindings)
        scale.dispatch((1, 0), constants, bindings)
        scale.dispatch_words((1, 0, 1), (COUNT, 2), [(buffer, 0, 64)], remember=True)
        assert device.statistics.dispatches == before


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"workgroups": (4.0, 1)}, InvalidArgument),
        ({"workgroups": (4, -1)}, InvalidArgument),
        ({"constants": (16, 2.0)}, InvalidArgument),
        ({"constants": (16, 1 << 32)}, OutOfRange),
        ({"constants": (16,)}, InvalidArgument),
    ],
)
def test_equal_is_not_the_same(
    device: Device, kernels: Kernels, arguments: dict[str, Any], kind: type[Exception]
) -> None:
    with filled(device) as buffer:
        good = {"workgroups": (4, 1), "constants": (COUNT, 2), "bindings": (buffer,)}
        for _ in range(3):
            kernels["scale"].dispatch(**good)
        with pytest.raises(kind):
            kernels["scale"].dispatch(**good | arguments)


def test_constants_that_can_change_are_looked_at_again(device: Device, kernels: Kernels) -> None:
    class Number:
        value = 2

        def __index__(self) -> int:
            return self.value

    constants = (COUNT, Number())
    with filled(device) as buffer:
        for _ in range(3):
            kernels["scale"].dispatch(4, constants, (buffer,))
        Number.value = 1 << 32
        with pytest.raises(OutOfRange, match="constant 1 does not fit 32 bits"):
            kernels["scale"].dispatch(4, constants, (buffer,))


def test_other_ranges_of_the_same_buffer(device: Device, kernels: Kernels) -> None:
    with filled(device) as buffer:
        as_program(kernels, buffer, times=3)
        with pytest.raises(OutOfRange, match=r"64 bytes at offset 4 do not fit"):
            as_program(kernels, buffer, offset=4)
        with pytest.raises(OutOfRange, match=r"64 bytes at offset -4 do not fit"):
            as_program(kernels, buffer, offset=-4)
        with pytest.raises(InvalidArgument, match="takes 1 bindings, found 2"):
            double(kernels, buffer, buffer)


def test_bindings_known_to_one_kernel_are_checked_for_another(device: Device, kernels: Kernels) -> None:
    with filled(device) as buffer, device.allocator.allocate(8) as small:
        double(kernels, buffer, times=3)
        with pytest.raises(InvalidArgument, match="'add' takes 3 bindings, found 1"):
            kernels["add"].dispatch(1, (1,), (buffer,))
        kernels["nothing"].dispatch(1)
        kernels["nothing"].dispatch(1)
        with pytest.raises(InvalidArgument, match="'nothing' takes 0 bindings, found 1"):
            kernels["nothing"].dispatch(1, (), (small,))


@WAYS
def test_a_profile_that_begins_records_them(device: Device, kernels: Kernels, dispatch: Dispatch) -> None:
    with filled(device) as buffer:
        dispatch(kernels, buffer, times=3)
        with device.profile() as recording:
            dispatch(kernels, buffer, times=4)
        dispatch(kernels, buffer, times=3)
        assert sum(total.count for total in recording.kernels) == 4


@WAYS
def test_a_closed_device_takes_none(
    matrix_entry: dict[str, Any],
    session_device: Device,
    build: Callable[[Device], Kernels],
    dispatch: Dispatch,
) -> None:
    session_device.wait_idle()  # the fake of CUDA minds modules' ends while kernels of the same names wait
    with open_device(with_option(matrix_entry["uri"], "pool=0")) as device:  # no other test's
        kernels = build(device)
        buffer = filled(device)
        dispatch(kernels, buffer, times=3)
    with pytest.raises(FailedPrecondition, match="it was closed"):
        dispatch(kernels, buffer)
    buffer.release()


def test_where_the_debug_allocator_watches(
    matrix_entry: dict[str, Any], build: Callable[[Device], Kernels]
) -> None:
    device = open_device(with_option(matrix_entry["uri"], "debug=1"))
    watched = build(device)
    buffer = filled(device)
    double(watched, buffer, times=4)
    buffer.release()
    assert device.counters.known == {}
    with pytest.raises(FailedPrecondition, match="released"):
        double(watched, buffer)
    device.wait_idle()
    assert device.allocator.leaks() == ()


@WAYS
def test_a_release_between_check_and_note_is_noticed(
    device: Device, kernels: Kernels, dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = filled(device)
    other = buffer.share()  # so that the release ends no allocation, which would be noticed too
    dispatch(kernels, buffer)  # settles it
    real = dispatching.remember

    def remember(*checked: Any) -> None:
        buffer.release()  # as another thread may
        real(*checked)

    monkeypatch.setattr(dispatching, "remember", remember)
    dispatch(kernels, buffer)
    with pytest.raises(FailedPrecondition, match="released"):
        dispatch(kernels, buffer)
    assert not device.counters.known
    other.release()
