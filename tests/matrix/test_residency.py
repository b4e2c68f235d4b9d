"""Whatever order hosts, kernels, fills, copies, mappings and ends come in, every reader sees the last bytes written."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from halgpu.devices import Buffer, Device, Kernel, Mapping, MemoryAccess
from halgpu.devices.debug_allocator import FREED

SIZE = 64
WORDS = SIZE // 4
NUMBER = st.integers(0, 255)
WORD = st.integers(0, WORDS - 1)
PATTERN = st.sampled_from([1, 2, 4, 8]).flatmap(lambda size: st.binary(min_size=size, max_size=size))


class World(RuleBasedStateMachine):
    """Buffers of a device beside numpy arrays that hold what their bytes must be.

    A subspan's array is a view of its parent's, as its bytes are. A rule names a buffer or mapping by any
    number.
    """

    def __init__(self, device: Device, kernels: dict[str, Kernel]) -> None:
        super().__init__()
        self.device = device
        self.kernels = kernels
        self.computes = device.capabilities.kind != "null"
        self.before = device.statistics
        self.buffers: list[Buffer] = []
        self.models: list[np.ndarray] = []
        self.mappings: list[tuple[Mapping, np.ndarray]] = []
        self.held: list[tuple[np.ndarray, np.ndarray]] = []
        for seed in range(2):
            self.allocate(seed)
            self.dispatch(seed, 3)
        self.each = SIZE
        if device.ledger is not None:  # guards are counted too
            self.each = (device.statistics.bytes_allocated - self.before.bytes_allocated) // 2

    def teardown(self) -> None:
        for index in range(len(self.buffers)):
            self.read(index)
        for array, expected in self.held:
            np.testing.assert_array_equal(array, expected)
        after = self.device.statistics
        if self.device.capabilities.unified_memory:
            assert (after.bytes_up, after.bytes_down) == (self.before.bytes_up, self.before.bytes_down)
        for mapping, _ in self.mappings:
            mapping.unmap()
        for buffer in self.buffers:
            buffer.release()
        after = self.device.statistics
        assert after.live_handles == self.before.live_handles
        assert after.bytes_allocated == self.before.bytes_allocated

    def at(self, index: int) -> tuple[Buffer, np.ndarray]:
        index %= len(self.buffers)
        return self.buffers[index], self.models[index]

    # -- lives -----------------------------------------------------------------------------------------

    @rule(seed=NUMBER)
    def allocate(self, seed: int) -> None:
        self.buffers.append(self.device.allocator.allocate(SIZE))
        self.models.append(np.zeros(SIZE, np.uint8))
        self.overwrite(len(self.buffers) - 1, seed)

    @rule(index=NUMBER, word=WORD, words=WORD)
    def subspan(self, index: int, word: int, words: int) -> None:
        buffer, model = self.at(index)
        start = min(word * 4, model.size - 4)
        length = min(words * 4 + 4, model.size - start)
        self.buffers.append(buffer.subspan(start, length))
        self.models.append(model[start : start + length])

    @precondition(lambda self: len(self.buffers) > 1)
    @rule(index=NUMBER)
    def release(self, index: int) -> None:
        index %= len(self.buffers)
        self.buffers.pop(index).release()
        self.models.pop(index)

    @rule(value=NUMBER, by_device=st.booleans())
    def keep_only_a_view(self, value: int, by_device: bool) -> None:
        """The end of a buffer whose bytes somebody still looks at; later buffers must not get its memory."""
        with self.device.allocator.allocate(SIZE) as buffer:
            if by_device:
                buffer.fill(0, None, bytes([value]))
            else:
                buffer.write(discard=True)[:] = bytes([value]) * SIZE
            # The debug allocator keeps the memory too, and marks its bytes as those of no buffer.
            later = value if self.device.ledger is None else FREED
            self.held.append((np.frombuffer(buffer.read(), np.uint8), np.full(SIZE, later, np.uint8)))

    @rule(seed=NUMBER, times=st.integers(1, 3))
    def come_and_go(self, seed: int, times: int) -> None:
        """Buffers with work on them still enqueued when they end."""
        for turn in range(times):
            with self.device.allocator.allocate(SIZE) as buffer:
                buffer.write(discard=True)[:] = bytes([(seed + turn) % 256]) * SIZE
                self.kernels["scale"].dispatch(WORDS // 4, (WORDS, 3), [(buffer, 0, SIZE)])

    # -- the host --------------------------------------------------------------------------------------

    @rule(index=NUMBER)
    def read(self, index: int) -> None:
        buffer, model = self.at(index)
        assert bytes(buffer.read()) == model.tobytes()

    @rule(index=NUMBER, seed=NUMBER)
    def overwrite(self, index: int, seed: int) -> None:
        buffer, model = self.at(index)
        data = np.random.default_rng(seed).integers(0, 256, model.size, np.uint8)
        buffer.write(discard=True)[:] = data.tobytes()
        model[:] = data

    @rule(index=NUMBER, byte=NUMBER, value=NUMBER)
    def poke(self, index: int, byte: int, value: int) -> None:
        buffer, model = self.at(index)
        buffer.write()[byte % model.size] = value
        model[byte % model.size] = value

    @rule(index=NUMBER, byte=NUMBER, value=NUMBER)
    def update(self, index: int, byte: int, value: int) -> None:
        buffer, model = self.at(index)
        buffer.update(bytes([value]), byte % model.size)
        model[byte % model.size] = value

    @rule(index=NUMBER, start=NUMBER, length=NUMBER, value=NUMBER)
    def discard(self, index: int, start: int, length: int, value: int) -> None:
        buffer, model = self.at(index)
        start %= model.size
        length = min(length % SIZE, model.size - start)
        with buffer.map(MemoryAccess.DISCARD_WRITE, start, length) as mapping:
            mapping.contents[:] = bytes([value]) * length
        model[start : start + length] = value

    @rule(index=NUMBER, writable=st.booleans(), start=NUMBER)
    def open_mapping(self, index: int, writable: bool, start: int) -> None:
        buffer, model = self.at(index)
        start %= model.size
        access = MemoryAccess.READ | (MemoryAccess.WRITE if writable else MemoryAccess.NONE)
        self.mappings.append((buffer.map(access, start), model[start:]))

    @precondition(lambda self: self.mappings)
    @rule(number=NUMBER, value=NUMBER)
    def use_mapping(self, number: int, value: int) -> None:
        mapping, model = self.mappings[number % len(self.mappings)]
        assert bytes(mapping.contents) == model.tobytes()
        if mapping.access & MemoryAccess.WRITE:
            mapping.contents[value % model.size] = value
            model[value % model.size] = value

    @precondition(lambda self: self.mappings)
    @rule(number=NUMBER, invalidate=st.booleans())
    def flush_or_invalidate(self, number: int, invalidate: bool) -> None:
        mapping, _ = self.mappings[number % len(self.mappings)]
        mapping.invalidate() if invalidate else mapping.flush()

    @precondition(lambda self: self.mappings)
    @rule(number=NUMBER)
    def close_mapping(self, number: int) -> None:
        self.mappings.pop(number % len(self.mappings))[0].unmap()

    # -- the device ------------------------------------------------------------------------------------

    @rule(index=NUMBER, word=WORD, pattern=PATTERN)
    def fill(self, index: int, word: int, pattern: bytes) -> None:
        buffer, model = self.at(index)
        size = len(pattern)
        start = word * 4 % model.size // size * size
        length = (model.size - start) // size * size
        buffer.fill(start, length, pattern)
        model[start : start + length] = np.tile(np.frombuffer(pattern, np.uint8), length // size)

    @rule(into=NUMBER, source=NUMBER, byte=NUMBER)
    def copy(self, into: int, source: int, byte: int) -> None:
        (to, new), (origin, old) = self.at(into), self.at(source)
        length = min(new.size, old.size) // 2
        byte %= length + 1
        to.copy_from(origin, byte, length - byte, length)
        new[length - byte : 2 * length - byte] = old[byte : byte + length].copy()

    @rule(index=NUMBER, factor=NUMBER)
    def dispatch(self, index: int, factor: int) -> None:
        buffer, model = self.at(index)
        self.kernels["scale"].dispatch(WORDS // 4, (model.size // 4, factor), [(buffer, 0, model.size)])
        if self.computes:
            model.view(np.uint32)[:] *= np.uint32(factor)

    @rule(into=NUMBER, source=NUMBER)
    def dispatch_copy(self, into: int, source: int) -> None:
        (to, new), (origin, old) = self.at(into), self.at(source)
        if np.shares_memory(new, old):
            return
        size = min(new.size, old.size)
        self.kernels["copy_bytes"].dispatch(1, [size], [(origin, 0, size), (to, 0, size)])
        if self.computes:
            new[:size] = old[:size]

    @rule()
    def wait(self) -> None:
        self.device.wait_idle()

    @invariant()
    def live_buffers_are_counted(self) -> None:
        roots = {id(buffer.root) for buffer in self.buffers}
        roots |= {id(mapping._root) for mapping, _ in self.mappings}
        now = self.device.statistics
        assert now.live_handles - self.before.live_handles == len(roots)
        assert now.bytes_allocated - self.before.bytes_allocated == self.each * len(roots)


@pytest.fixture
def small_ones_pooled(session_device: Device) -> Iterator[None]:
    """The pool keeps buffers of any size, so that small ones test it too."""
    minimum, session_device.pool.minimum = session_device.pool.minimum, 0
    yield
    session_device.pool.minimum = minimum


@pytest.mark.usefixtures("small_ones_pooled")
def test_every_reader_sees_the_last_bytes_written(session_device: Device, kernels: dict[str, Kernel]) -> None:
    used = session_device.pool.hits
    run_state_machine_as_test(
        lambda: World(session_device, kernels),
        settings=settings(
            max_examples=100,
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        ),
    )
    if session_device.ledger is None:  # the debug allocator uses no memory again
        assert session_device.pool.hits > used + 100


@pytest.mark.plain
@pytest.mark.computes
def test_transfers_are_those_that_are_needed(device: Device, kernels: dict[str, Kernel]) -> None:
    """One input written, one result read: each crosses once; what stays on the device does not cross."""
    crossed = 0 if device.capabilities.unified_memory else 1
    before = device.statistics
    source, middle, result = (device.allocator.allocate(1024) for _ in range(3))
    source.update(bytes(range(256)) * 4)
    for _ in range(3):
        kernels["copy_bytes"].dispatch(1, [1024], [(source, 0, 1024), (middle, 0, 1024)])
        kernels["copy_bytes"].dispatch(1, [1024], [(middle, 0, 1024), (result, 0, 1024)])
    for _ in range(3):
        assert bytes(result.read()) == bytes(range(256)) * 4
    after = device.statistics
    assert after.bytes_up - before.bytes_up == 1024 * crossed
    assert after.bytes_down - before.bytes_down == 1024 * crossed
