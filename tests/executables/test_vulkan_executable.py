"""The `vulkan-spirv-fb` format as stock iree-compile writes it: reading, loading, damage."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlir_corpus import PROGRAMS
from spirv_assembler import Spirv, translate_words

from halgpu import errors
from halgpu.devices import open_device
from halgpu.executables import registry
from halgpu.executables.vulkan_spirv import executable_def
from halgpu.executables.vulkan_spirv.opcodes import Op
from halgpu.executables.vulkan_spirv.translate import Target, translate
from halgpu.vm import definition

FORMAT = "vulkan-spirv-fb"


def executables(module: bytes) -> list[memoryview]:
    """The executables among a module's rodata."""
    return [data for data in definition.read(module).rodata if bytes(data[:4]) == b"VKE1"]


@pytest.fixture(scope="module")
def network(compile_mlir: Callable[..., bytes], examples: Path) -> memoryview:
    """The largest executable of examples/network.mlir."""
    return max(executables(compile_mlir((examples / "network.mlir").read_text())), key=len)


def test_reading(network: memoryview) -> None:
    read = executable_def.read(network)
    assert len(read.pipelines) == len(read.modules) == 1
    assert all(pipeline.layout.bindings[0] == (0, 0) for pipeline in read.pipelines)
    assert all(bytes(module[:4]) == b"\x03\x02\x23\x07" for module in read.modules)


def test_loading(network: memoryview) -> None:
    executable = registry.load(open_device("opencl"), FORMAT, network)
    names = [pipeline.name for pipeline in executable_def.read(network).pipelines]
    assert list(executable.names) == names
    assert [executable.lookup(name) for name in names] == list(range(len(names)))
    assert len(executable.kernels) == len(names)
    with pytest.raises(errors.NotFound, match=rf"no kernel 'x'.*{names[0]}"):
        executable.lookup("x")


def test_layouts(network: memoryview) -> None:
    program = translate(executable_def.read(network), Target())
    for layout in program.layouts:
        assert layout.workgroup_size[0] > 1
        assert layout.bindings[-1].access in ("write", "readwrite")
        assert layout.bindings[0].access == "read"
        assert f"void {layout.name}(" in program.source


def test_several_kernels_of_the_same_name() -> None:
    """Executables may have many kernels; in the C source their names are made to differ."""
    data = memoryview(Spirv("i32", size=1).data())
    layout = executable_def.PipelineLayout(((0, 0),), 0)
    pipelines = tuple(executable_def.PipelineDef("kernel", i, layout, 0) for i in range(3))
    program = translate(executable_def.ExecutableDef(pipelines, (data, data, data)), Target())
    names = [layout.name for layout in program.layouts]
    assert len(set(names)) == 3
    assert len(open_device("opencl").build(program)) == 3


def test_formats_and_devices() -> None:
    opencl, host = open_device("opencl"), open_device("host")
    assert registry.query_support(opencl, FORMAT)
    assert not registry.query_support(opencl, "no-such-format")
    assert FORMAT in [loader.format for loader in registry.loaders_for(opencl)]
    supported = registry.query_support(host, FORMAT)
    assert supported == ("opencl-c" in host.capabilities.languages or not host.capabilities.languages)
    with pytest.raises(errors.Incompatible, match=r"'no-such-format' do not run on opencl.*vulkan-spirv-fb"):
        registry.load(opencl, "no-such-format", memoryview(b""))
    with pytest.raises(errors.NotFound, match=r"did you mean 'vulkan-spirv-fb'\?"):
        registry.get("vulkan-spirv-f")


def test_buffer_device_addresses_are_refused(compile_mlir: Callable[..., bytes], examples: Path) -> None:
    source = (examples / "abs.mlir").read_text()
    found = executables(compile_mlir(source, "vulkan", "--iree-vulkan-dispatch-abi=bda"))
    with pytest.raises(errors.Unimplemented, match=r"BDA_V1.*--iree-vulkan-dispatch-abi=descriptors"):
        executable_def.read(found[0])


def test_half_floats_that_stock_iree_compile_takes_for_floats(compile_mlir: Callable[..., bytes]) -> None:
    """For its default target the compiler makes kernels that overrun buffers of f16; with 16-bit floats it is right."""
    source = PROGRAMS["transpose_f16"].source
    (wrong,) = executables(compile_mlir(source))
    with pytest.raises(errors.Incompatible, match=r"lays its buffers out as f32.*--iree-vulkan-target="):
        translate(executable_def.read(wrong), Target())
    (right,) = executables(compile_mlir(source, "vulkan", "--iree-vulkan-target=ampere"))
    assert "ushort *out1" in translate(executable_def.read(right), Target()).source
    (float_,) = executables(compile_mlir(PROGRAMS["transpose_f32"].source))
    assert "float *out1" in translate(executable_def.read(float_), Target()).source


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda d: b"", errors.InvalidArgument, "0 bytes are fewer than its header"),
        (lambda d: d[:63], errors.InvalidArgument, "63 bytes are fewer"),
        (lambda d: b"VKE2" + d[4:], errors.InvalidArgument, "begins with b'VKE2'"),
        (lambda d: d[:4] + b"\1" + d[5:], errors.Incompatible, "version 1"),
        (lambda d: d[:8] + bytes(8) + d[16:], errors.InvalidArgument, "0 bytes follow"),
        (lambda d: d[:8] + b"\xff" * 8 + d[16:], errors.InvalidArgument, "18446744073709551615 bytes follow"),
        (lambda d: d[:100], errors.InvalidArgument, "but there are 36"),
        (lambda d: d[:68] + b"XXXX" + d[72:], errors.InvalidArgument, "file identifier"),
    ],
)
def test_damaged_headers(
    network: memoryview, change: Callable[[bytes], bytes], error: type[errors.Error], message: str
) -> None:
    with pytest.raises(error, match=message):
        executable_def.read(memoryview(change(bytes(network))))


def survives(work: Callable[[], object]) -> None:
    """Whatever was damaged, it is translated or refused by one of halgpu's errors."""
    with contextlib.suppress(errors.Error):
        work()


MUTATE = settings(max_examples=200, deadline=20_000, suppress_health_check=list(HealthCheck))


@MUTATE
@given(seed=st.integers(0, 2**32))
def test_damaged_executables(network: memoryview, seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(network)
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(4)
        at = rng.randrange(len(data))
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + 4] = rng.choice([0, 1, 0xFFFFFFFF, len(data), rng.getrandbits(32)]).to_bytes(
                4, "little"
            )
        elif kind == 2:
            del data[at:]
        else:
            other = rng.randrange(len(data))
            data[at : at + 16] = data[other : other + 16]
        if not data:
            break
    survives(lambda: translate(executable_def.read(memoryview(data)), Target()))


@MUTATE
@given(seed=st.integers(0, 2**32))
def test_damaged_spirv(network: memoryview, seed: int) -> None:
    rng = random.Random(seed)
    read = executable_def.read(network)
    words = list(read.modules[0].cast("I"))
    bound = words[3]
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(3, len(words))
        kind = rng.randrange(6)
        if kind == 0:
            words[at] ^= 1 << rng.randrange(32)
        elif kind == 1:
            words[at] = rng.randrange(bound + 2)
        elif kind == 2:
            words[at] = words[at] & 0xFFFF0000 | rng.choice(list(Op))
        elif kind == 3:
            del words[at : at + rng.randint(1, 8)]
        elif kind == 4:
            words[at:at] = words[at : at + rng.randint(1, 8)]
        else:
            words[at] = rng.choice([0, 1, 2, 0xFFFFFFFF, 0x80000000, bound, rng.getrandbits(32)])
        if len(words) < 8:
            break
    data = struct.pack(f"<{len(words)}I", *words)
    survives(lambda: translate_words(data, 3, 4, name=read.pipelines[0].name))


def test_translation_is_fast() -> None:
    """2,000 instructions within 50 ms; allowed here is five times that, for slow machines."""
    import time

    s = Spirv("4xf32", "4xf32", size=1)
    x = y = s.load(0)
    for _ in range(1000):
        y = s.op(Op.FAdd, "4xf32", s.op(Op.FMul, "4xf32", y, x), x)
    s.store(y)
    data = s.data()
    times = []
    for _ in range(5):
        start = time.process_time()
        translate_words(data, 2)
        times.append(time.process_time() - start)
    assert min(times) < 0.25
