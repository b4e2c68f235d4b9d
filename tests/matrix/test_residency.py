"""Whatever order hosts, kernels, fills and copies come in, every reader sees the last bytes written."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from halgpu.devices import Buffer, Device, Kernel, Mapping, MemoryAccess

SIZE = 64
WORDS = SIZE // 4


@dataclass
class World:
    """Buffers of a device beside numpy arrays that hold what their bytes must be."""

    device: Device
    kernels: dict[str, Kernel]
    buffers: list[Buffer] = field(default_factory=list)
    models: list[np.ndarray] = field(default_factory=list)
    mappings: list[tuple[Mapping, np.ndarray]] = field(default_factory=list)

    def allocate(self, seed: int) -> None:
        self.buffers.append(self.device.allocator.allocate(SIZE))
        self.models.append(np.zeros(SIZE, np.uint8))
        self.overwrite(len(self.buffers) - 1, seed)

    def overwrite(self, index: int, seed: int) -> None:
        data = np.random.default_rng(seed).integers(0, 256, self.models[index].size, np.uint8)
        self.buffers[index].write(discard=True)[:] = data.tobytes()
        self.models[index][:] = data

    def subspan(self, index: int, word: int) -> None:
        word = min(word, self.models[index].size // 4 - 1)
        self.buffers.append(self.buffers[index].subspan(word * 4))
        self.models.append(self.models[index][word * 4 :])

    def release(self, index: int) -> None:
        if len(self.buffers) > 1:
            self.buffers.pop(index).release()
            self.models.pop(index)

    def read(self, index: int) -> None:
        assert bytes(self.buffers[index].read()) == self.models[index].tobytes()

    def poke(self, index: int, byte: int, value: int) -> None:
        byte %= self.models[index].size
        self.buffers[index].write()[byte] = value
        self.models[index][byte] = value

    def update(self, index: int, byte: int, value: int) -> None:
        byte %= self.models[index].size
        self.buffers[index].update(bytes([value]), byte)
        self.models[index][byte] = value

    def fill(self, index: int, word: int, value: int) -> None:
        start = word % (self.models[index].size // 4) * 4
        pattern = value.to_bytes(4, "little")
        self.buffers[index].fill(start, None, pattern)
        self.models[index][start:] = np.tile(
            np.frombuffer(pattern, np.uint8), (self.models[index].size - start) // 4
        )

    def copy(self, target: int, source: int, byte: int) -> None:
        length = min(self.models[target].size, self.models[source].size) // 2
        byte %= length + 1
        self.buffers[target].copy_from(self.buffers[source], byte, length - byte, length)
        self.models[target][length - byte : 2 * length - byte] = self.models[source][
            byte : byte + length
        ].copy()

    def dispatch(self, index: int, factor: int) -> None:
        size = self.models[index].size
        self.kernels["scale"].dispatch(WORDS // 4, (size // 4, factor), [(self.buffers[index], 0, size)])
        words = self.models[index].view(np.uint32)
        words *= np.uint32(factor)

    def dispatch_copy(self, target: int, source: int) -> None:
        if np.shares_memory(self.models[target], self.models[source]):
            return
        size = min(self.models[target].size, self.models[source].size)
        bindings = [(self.buffers[source], 0, size), (self.buffers[target], 0, size)]
        self.kernels["copy_bytes"].dispatch(1, [size], bindings)
        self.models[target][:size] = self.models[source][:size]

    def open_mapping(self, index: int, writable: bool) -> None:
        access = MemoryAccess.READ | (MemoryAccess.WRITE if writable else MemoryAccess.NONE)
        self.mappings.append((self.buffers[index].map(access), self.models[index]))

    def use_mapping(self, number: int, value: int) -> None:
        if self.mappings:
            mapping, model = self.mappings[number % len(self.mappings)]
            assert bytes(mapping.contents) == model.tobytes()
            if mapping.access & MemoryAccess.WRITE:
                mapping.contents[value % model.size] = value
                model[value % model.size] = value

    def close_mapping(self, number: int) -> None:
        if self.mappings:
            self.mappings.pop(number % len(self.mappings))[0].unmap()


NUMBER = st.integers(0, 255)
STEPS = st.sampled_from(
    [name for name in vars(World) if not name.startswith("_") and name not in World.__dataclass_fields__]
)


@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
@given(script=st.lists(st.tuples(STEPS, NUMBER, NUMBER, NUMBER), min_size=5, max_size=40))
def test_every_reader_sees_the_last_bytes_written(
    session_device: Device, kernels: dict[str, Kernel], script: list[tuple[str, int, int, int]]
) -> None:
    before = session_device.statistics
    world = World(session_device, kernels)
    for seed in range(2):
        world.allocate(seed)
        world.dispatch(seed, 3)
    for name, first, second, third in script:
        step(world, name, first % len(world.buffers), second, third)
    for index in range(len(world.buffers)):
        world.read(index)
    after = session_device.statistics
    if session_device.capabilities.unified_memory:
        assert (after.bytes_up, after.bytes_down) == (before.bytes_up, before.bytes_down)
    for mapping, _ in world.mappings:
        mapping.unmap()
    for buffer in world.buffers:
        buffer.release()
    assert session_device.statistics.live_handles == before.live_handles


def step(world: World, name: str, index: int, second: int, third: int) -> None:
    """Take the step `name` with as many of the numbers as it needs."""
    match name:
        case "allocate":
            world.allocate(second)
        case "copy":
            world.copy(index, second % len(world.buffers), third)
        case "dispatch_copy":
            world.dispatch_copy(index, second % len(world.buffers))
        case "open_mapping":
            world.open_mapping(index, bool(second % 2))
        case "use_mapping":
            world.use_mapping(second, third)
        case "close_mapping" | "release" | "read":
            getattr(world, name)(second if name == "close_mapping" else index)
        case "poke" | "update" | "fill":
            getattr(world, name)(index, second, third)
        case _:
            getattr(world, name)(index, second)


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
