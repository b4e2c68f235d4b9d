"""What is particular to CUDA, on the fake of CuPy (fake_cuda), which is tested here too: it must catch mistakes."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import struct
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halgpu.devices import BindingLayout, KernelLayout, MemoryAccess, Program, cuda, cuda_timer, open_device
from halgpu.devices.memory import MemoryType
from halgpu.errors import Incompatible, Internal, InvalidArgument, NotFound, ResourceExhausted, Unavailable

FOLDER = Path(__file__).with_name("fake_cuda")
if str(FOLDER) not in sys.path:
    sys.path.append(str(FOLDER))

import fake_cupy  # noqa: E402
import halgpu_fake_cuda  # noqa: E402

PTX = """
.version {version}
.target {target}
.address_size 64
.visible .entry double_all(
  .param .u64 .ptr .global .align 16 double_all_param_0,
  .param .u64 .ptr .global .align 16 double_all_param_1,
  .param .b32 double_all_param_2
)
.maxntid 32, 1, 1
{{
  ret;
}}
"""
LAYOUT = KernelLayout(
    "double_all", 1, (BindingLayout("read", 4), BindingLayout("write", 4)), (32, 1, 1), addresses=True
)


def double_all(workgroups: Any, constants: Any, bindings: Any) -> None:
    source, target = (np.frombuffer(view, np.int32, constants[0]) for view in bindings)
    target[:] = source * 2


def program(version: str = "7.6", target: str = "sm_80", **changes: Any) -> Program:
    source = PTX.format(version=version, target=target)
    return replace(Program("ptx", source, (LAYOUT,), callables=(double_all,)), **changes)


@pytest.fixture
def gpus() -> fake_cupy.Gpus:
    return fake_cupy.Gpus()


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HALGPU_CACHE_DIR", str(tmp_path / "cache"))


def open_gpu(gpus: fake_cupy.Gpus, index: int = 0, options: dict[str, str] | None = None) -> cuda.CudaDevice:
    device = halgpu_fake_cuda.FakeCudaDevice(f"cuda:{index}", halgpu_fake_cuda.fake_cuda(gpus), index)
    device.configure(options or {})
    return device


def ran(device: cuda.CudaDevice, program: Program) -> list[int]:
    (kernel,) = device.build(program)
    with device.allocator.allocate(16) as source, device.allocator.allocate(32) as target:
        source.update(np.arange(4, dtype=np.int32))
        target.fill(0, None, b"\xff")
        kernel.dispatch(1, [4], [(source, 0, 16), (target, 16, 16)])
        return np.frombuffer(target.read(), np.int32).tolist()


def test_a_kernel_gets_addresses_in_order_and_then_constants(gpus: fake_cupy.Gpus) -> None:
    device = open_gpu(gpus)
    assert ran(device, program()) == [-1, -1, -1, -1, 0, 2, 4, 6]
    (launch,) = gpus.launches
    source, target = (struct.unpack("<Q", data)[0] for data in launch.arguments[:2])
    assert (target - 16) % 256 == source % 256 == 0
    assert launch.arguments[2] == struct.pack("<I", 4)
    assert (launch.grid, launch.block, launch.shared) == ((1, 1, 1), (32, 1, 1), 0)


# -- the fake catches mistakes -------------------------------------------------------------------------


@pytest.mark.parametrize("forgotten", [False, True])
def test_the_fake_catches_a_read_that_does_not_wait(
    gpus: fake_cupy.Gpus, monkeypatch: pytest.MonkeyPatch, forgotten: bool
) -> None:
    with open_gpu(gpus).allocator.allocate(16) as data, monkeypatch.context() as patch:
        data.fill(0, None, b"\1")
        if forgotten:
            patch.setattr(gpus.runtime, "streamSynchronize", lambda stream: None)
        assert (bytes(data.read()) == b"\1" * 16) != forgotten


@pytest.mark.parametrize("forgotten", [False, True])
def test_the_fake_catches_a_write_that_does_not_wait_for_the_upload_before(
    gpus: fake_cupy.Gpus, monkeypatch: pytest.MonkeyPatch, forgotten: bool
) -> None:
    device = open_gpu(gpus)
    with device.allocator.allocate(16) as data, device.allocator.allocate(16) as copy:
        data.write()[:] = b"first, then this"
        with monkeypatch.context() as patch:
            if forgotten:
                patch.setattr(gpus.runtime, "eventSynchronize", lambda event: None)
            copy.copy_from(data, 0, 0, 16)
            data.write()[:] = b"and then another"
        assert (bytes(copy.read()) == b"first, then this") != forgotten


def test_the_fake_catches_memory_that_is_freed_while_in_use(gpus: fake_cupy.Gpus) -> None:
    runtime = gpus.runtime
    runtime.setDevice(0)
    memory, stream = runtime.malloc(16), runtime.streamCreateWithFlags(0)
    runtime.memsetAsync(memory, 1, 16, stream)
    with pytest.raises(AssertionError, match="that enqueued work uses"):
        runtime.free(memory)
    runtime.streamSynchronize(stream)
    runtime.free(memory)
    runtime.memsetAsync(memory, 1, 16, stream)
    with pytest.raises(fake_cupy.CUDARuntimeError, match="IllegalAddress"):
        runtime.streamSynchronize(stream)


def test_the_fake_catches_a_call_on_the_wrong_device(gpus: fake_cupy.Gpus) -> None:
    runtime = gpus.runtime
    with pytest.raises(fake_cupy.CUDARuntimeError, match="InvalidContext"):
        runtime.malloc(4)
    runtime.setDevice(0)
    memory, stream = runtime.malloc(4), runtime.streamCreateWithFlags(0)
    runtime.setDevice(1)
    with pytest.raises(fake_cupy.CUDARuntimeError, match="InvalidResourceHandle"):
        runtime.memsetAsync(memory, 0, 4, stream)
    with pytest.raises(fake_cupy.CUDARuntimeError, match="InvalidValue"):
        runtime.free(memory)


def test_the_fake_orders_blocking_streams_with_the_default_stream(gpus: fake_cupy.Gpus) -> None:
    runtime = gpus.runtime
    runtime.setDevice(0)
    memory = runtime.malloc(1)
    ours, other = runtime.streamCreateWithFlags(0), runtime.streamCreateWithFlags(runtime.streamNonBlocking)
    runtime.memsetAsync(memory, 1, 1, ours)
    runtime.memsetAsync(memory, 2, 1, other)
    runtime.memsetAsync(memory, 3, 1, fake_cupy.LEGACY)
    runtime.streamSynchronize(fake_cupy.LEGACY)
    assert gpus.bytes_at(0, memory, 1)[0] == 3
    runtime.streamSynchronize(other)  # which nothing was ordered with
    assert gpus.bytes_at(0, memory, 1)[0] == 2


# -- several GPUs, and the caller's current one --------------------------------------------------------


def everything(gpus: fake_cupy.Gpus, index: int) -> None:
    """Use of all that calls CUDA, refusals too."""
    device = open_gpu(gpus, index)
    ran(device, program())
    data, other = device.allocator.allocate(1 << 17), device.allocator.allocate(1 << 17)
    data.write()[:4] = b"abcd"
    other.fill(0, None, b"\x01\x02\x03\x04")
    other.copy_from(data, 0, 4, 16)
    other.copy_from(other, 0, 4, 16)
    assert bytes(other.read()[4:12]) == b"\1\2\3\4abcd"
    with data.map(MemoryAccess.READ):
        pass
    with device.profile():
        ran(device, program())
    with pytest.raises(Incompatible):
        device.build(program(version="99.0"))
    with pytest.raises(ResourceExhausted):
        device.allocator.allocate(device.capabilities.max_allocation)
    gpus.functions["double_all"] = lambda *_: 1 / 0
    (kernel,) = device.build(program(callables=()))
    kernel.dispatch(1, [1], [(data, 0, 4), (other, 0, 4)])
    with pytest.raises(Internal, match="a kernel went wrong"):
        device.wait_idle()
    with pytest.raises(Internal, match="could not read a buffer"):
        other.read()


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("before", [None, 0, 1])
def test_the_current_device_stays_that_of_the_caller(
    gpus: fake_cupy.Gpus, index: int, before: int | None
) -> None:
    if before is not None:
        gpus.runtime.setDevice(before)
    context, current = gpus.driver.ctxGetCurrent(), gpus.runtime.getDevice()
    everything(gpus, index)
    gc.collect()
    assert gpus.driver.ctxGetCurrent() == context
    assert gpus.runtime.getDevice() == current
    assert gpus.contexts == {index} | ({before} - {None})


def test_a_device_works_in_a_thread_that_never_saw_it(gpus: fake_cupy.Gpus) -> None:
    device = open_gpu(gpus, 1)
    found: list[Any] = []
    thread = threading.Thread(
        target=lambda: found.append((ran(device, program()), gpus.driver.ctxGetCurrent()))
    )
    thread.start()
    thread.join()
    assert found == [([-1, -1, -1, -1, 0, 2, 4, 6], 0)]


def test_modules_load_on_each_gpu(gpus: fake_cupy.Gpus) -> None:
    first, second = open_gpu(gpus, 0), open_gpu(gpus, 1)
    kernels = [device.build(program())[0] for device in (first, second)]
    assert {function.device for function in gpus.kernels.values()} == {0, 1}
    for device, kernel in zip((first, second), kernels, strict=True):
        with device.allocator.allocate(8) as data:
            data.update(b"\3\0\0\0\0\0\0\0")
            kernel.dispatch(1, [1], [(data, 0, 4), (data, 4, 4)])
            assert bytes(data.read()[4:]) == b"\6\0\0\0"
    with (
        first.allocator.allocate(8) as data,
        pytest.raises(InvalidArgument, match="is on cuda:0; the kernel runs"),
    ):
        kernels[1].dispatch(1, [1], [(data, 0, 4), (data, 4, 4)])


def test_a_copy_between_gpus_goes_by_the_host(gpus: fake_cupy.Gpus) -> None:
    first, second = open_gpu(gpus, 0), open_gpu(gpus, 1)
    with first.allocator.allocate(8) as source, second.allocator.allocate(8) as target:
        source.fill(0, None, b"\1\2")
        target.copy_from(source, 0, 0, 8)
        assert bytes(target.read()) == b"\1\2" * 4


# -- memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("count", [1, 511, 512, 513, 5000])
def test_fills_of_any_length(gpus: fake_cupy.Gpus, size: int, count: int) -> None:
    device = open_gpu(gpus)
    pattern = bytes(range(1, size + 1))
    with device.allocator.allocate(count * size + 16) as data:
        data.fill(0, None, b"\xff")
        data.fill(8, count * size, pattern)
        assert bytes(data.read()) == b"\xff" * 8 + pattern * count + b"\xff" * 8
    assert device.statistics.bytes_up == 0


def test_large_mirrors_are_pinned_and_small_ones_are_not(gpus: fake_cupy.Gpus) -> None:
    device = open_gpu(gpus)
    for size in (1000, 1 << 17):
        device.allocator.allocate(size).write()
    assert [len(data) - 4096 for data in gpus.pinned.values()] == [1 << 17]


def test_memory_that_cannot_be_pinned_does(gpus: fake_cupy.Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int, flags: int) -> int:
        raise fake_cupy.CUDARuntimeError(2)

    monkeypatch.setattr(gpus.runtime, "hostAlloc", refuse)
    with open_gpu(gpus).allocator.allocate(1 << 17) as data:
        data.write()[:4] = b"abcd"
        data.fill(4, 4, b"efgh")
        assert bytes(data.read()[:8]) == b"abcdefgh"


def test_too_large_allocations_are_refused_and_the_pool_makes_room() -> None:
    device = open_gpu(fake_cupy.Gpus(memory=1 << 20))
    with pytest.raises(ResourceExhausted, match="more than cuda:0 gives at once"):
        device.allocator.allocate(1 << 21)
    with (
        device.allocator.allocate(600 << 10),
        pytest.raises(ResourceExhausted, match="cudaErrorMemoryAllocation"),
    ):
        device.allocator.allocate(600 << 10)
    assert device.statistics.bytes_pooled
    device.allocator.allocate(900 << 10).fill(0, None, b"\0")


@pytest.mark.parametrize("pool", ["0", "1"])
@pytest.mark.parametrize("cycle", [False, True])
def test_everything_is_given_back_with_the_device(gpus: fake_cupy.Gpus, pool: str, cycle: bool) -> None:
    device = open_gpu(gpus, 0, {"pool": pool})
    holders: list[Any] = [*device.build(program())]
    for size in (100, 1 << 17, 1 << 18):
        buffer = device.allocator.allocate(size)
        buffer.write()[:4] = b"abcd"
        holders[0].dispatch(1, [1], [(buffer, 0, 4), (buffer, 4, 4)])
        if size != 1 << 17:
            holders.append(buffer)
    if cycle:
        holders.append(holders)
    gone = weakref.ref(device)
    assert gpus.blocks
    assert gpus.modules
    del device, buffer, holders
    gc.collect()
    assert gone() is None
    assert (gpus.blocks, gpus.pinned, gpus.streams, gpus.modules, gpus.events) == ({}, {}, {}, {}, {})


def test_closing_gives_memory_back(gpus: fake_cupy.Gpus) -> None:
    device = open_gpu(gpus)
    device.allocator.allocate(1000).fill(0, None, b"\1")
    kept = device.allocator.allocate(4)
    kept.update(b"abcd")
    device.close()
    device.close()
    assert len(gpus.blocks) == 1
    assert bytes(kept.read()) == b"abcd"


def test_a_view_of_pinned_memory_outlives_the_device(gpus: fake_cupy.Gpus) -> None:
    device = open_gpu(gpus)
    buffer = device.allocator.allocate(1 << 17)
    buffer.fill(0, None, b"\7")
    held = np.frombuffer(buffer.read(), np.uint8)
    del device, buffer
    gc.collect()
    assert (held == 7).all()
    del held
    gc.collect()
    assert (gpus.blocks, gpus.pinned, gpus.streams) == ({}, {}, {})


def test_device_local_memory_is_as_any(gpus: fake_cupy.Gpus) -> None:
    with open_gpu(gpus).allocator.allocate(8, memory_type=MemoryType.DEVICE_LOCAL) as data:
        data.fill(0, None, b"ab")


# -- programs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (
            {"version": "9.0"},
            Incompatible,
            r"PTX 9.0 for sm_80 is newer than cuda:0 .*CUDA 12.8.*: update the NVIDIA",
        ),
        ({"target": "sm_90"}, Incompatible, r"PTX 7.6 for sm_90 does not run on cuda:0 \(Fake GPU, sm_89\)"),
        ({"target": "sm_80a"}, Incompatible, "PTX 7.6 for sm_80a does not run on cuda:0"),
        (
            {"source": PTX.format(version="7.6", target="sm_80")[:-5]},
            InvalidArgument,
            "PTX 7.6 for sm_80 is cut off",
        ),
        ({"source": ""}, InvalidArgument, "expected PTX, which begins with .version and .target, found ''"),
        ({"source": "\x7fELF"}, InvalidArgument, "expected PTX, which begins"),
        ({"source": ".version 7.6\n.target sm_80\n\0"}, InvalidArgument, "NUL character"),
        (
            {"source": ".version 7.6\n.target sm_80\n.address_size 32\n"},
            InvalidArgument,
            "addresses of 64 bits, found 32",
        ),
    ],
)
def test_ptx_that_does_not_load(
    gpus: fake_cupy.Gpus, change: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        open_gpu(gpus).build(program(**change))


def test_ptx_that_the_driver_refuses(gpus: fake_cupy.Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(image: bytes) -> int:
        raise fake_cupy.CUDADriverError(218)

    monkeypatch.setattr(gpus.driver, "moduleLoadData", refuse)
    words = r"PTX 7.6 for sm_80 does not load on cuda:0 \(Fake GPU, sm_89, driver for CUDA 12.8.*damaged"
    with pytest.raises(InvalidArgument, match=words):
        open_gpu(gpus).build(program())


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"name": "triple_all"}, InvalidArgument, "has no kernel 'triple_all'; it has: double_all$"),
        (
            {"constants": 2},
            InvalidArgument,
            "takes 3 arguments; its layout has 2 bindings and 2 constants, which makes 4",
        ),
        (
            {"bindings": (BindingLayout(),) * 3, "constants": 0},
            InvalidArgument,
            "argument 2 is .b32, 4 bytes; its layout has a pointer of 8 bytes there",
        ),
        (
            {"addresses": False},
            InvalidArgument,
            "argument 2 is .b32, 4 bytes; its layout has a structure of 24 bytes there",
        ),
        ({"workgroup_size": (64, 1, 1)}, InvalidArgument, "compiled for up to 32 work-items in a workgroup"),
        ({"workgroup_size": (2048, 1, 1)}, Incompatible, "has 2048 workgroup size x; cuda:0 allows 1024"),
        ({"local_memory": 100 << 10}, Incompatible, "bytes of local memory; cuda:0 allows 101376"),
    ],
)
def test_a_layout_that_is_not_that_of_the_ptx(
    gpus: fake_cupy.Gpus, change: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        open_gpu(gpus).build(program(layouts=(replace(LAYOUT, **change),)))


def test_an_exact_workgroup_size_is_exact(gpus: fake_cupy.Gpus) -> None:
    exact = program().source.replace(".maxntid 32, 1, 1", ".reqntid 16, 2")
    with pytest.raises(
        InvalidArgument, match=r"compiled for workgroups of \(16, 2, 1\); its layout says \(32, 1, 1\)"
    ):
        open_gpu(gpus).build(program(source=exact))


def test_shared_memory_beyond_what_all_have_is_asked_for(gpus: fake_cupy.Gpus) -> None:
    device = open_gpu(gpus)
    assert ran(device, program(layouts=(replace(LAYOUT, local_memory=64 << 10),))) == [
        -1,
        -1,
        -1,
        -1,
        0,
        2,
        4,
        6,
    ]
    assert gpus.launches[-1].shared == 64 << 10
    (function,) = gpus.kernels.values()
    assert function.attributes[8] == 64 << 10


def test_a_grid_too_large_is_refused(gpus: fake_cupy.Gpus) -> None:
    device = open_gpu(gpus)
    (kernel,) = device.build(program())
    with device.allocator.allocate(8) as data, pytest.raises(Exception, match="workgroup count y is 65536"):
        kernel.dispatch((1, 65536, 1), [1], [(data, 0, 4), (data, 4, 4)])


CUDA_C = """
extern "C" __global__ void double_all(const int* source, int* target, uint count) {
  uint i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) target[i] = source[i] * 2;
}
"""


def test_cuda_c_is_compiled_once(gpus: fake_cupy.Gpus) -> None:
    device = open_gpu(gpus)
    for _ in range(2):
        assert ran(device, program(language="cuda-c", source=CUDA_C)) == [-1, -1, -1, -1, 0, 2, 4, 6]
    assert gpus.nvrtc.compiled == 1
    found = device.statistics
    assert (found.programs_compiled, found.programs_cached) == (1, 1)


def test_cuda_c_that_does_not_compile(gpus: fake_cupy.Gpus) -> None:
    with pytest.raises(InvalidArgument, match="cuda:0 could not build kernels double_all") as caught:
        open_gpu(gpus).build(program(language="cuda-c", source=CUDA_C[:-3], options=("-DX=1",)))
    for words in ("expected a brace", "options: --gpu-architecture=sm_89 -DX=1", "2 | extern"):
        assert words in str(caught.value)


def test_a_mangled_name_is_explained(gpus: fake_cupy.Gpus) -> None:
    source = CUDA_C.replace('extern "C" ', "")
    with pytest.raises(InvalidArgument, match='it has: _Z10double_allv; declare kernels extern "C"'):
        open_gpu(gpus).build(program(language="cuda-c", source=source))


def test_without_nvrtc_it_says_what_to_install(gpus: fake_cupy.Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise RuntimeError("CuPy failed to load libnvrtc.so.12")

    monkeypatch.setattr(gpus.nvrtc, "getVersion", missing)
    with pytest.raises(Unavailable, match=r"libnvrtc.so.12\): pip install nvidia-cuda-nvrtc-cu12"):
        open_gpu(gpus).build(program(language="cuda-c", source=CUDA_C))


@pytest.mark.parametrize(
    ("gpu", "name"), [(89, "sm_89"), (86, "compute_80"), (100, "compute_90"), (52, "compute_50")]
)
def test_nvrtc_compiles_for_what_it_knows(gpus: fake_cupy.Gpus, gpu: int, name: str) -> None:
    from halgpu.devices.cuda_programs import architecture

    assert architecture(gpus.nvrtc, gpu) == name
    with pytest.raises(Incompatible, match="compiles for sm_50 and newer, not for sm_37"):
        architecture(gpus.nvrtc, 37)


# -- profiling -----------------------------------------------------------------------------------------


def test_times_stay_true_when_the_clock_moves_along(
    gpus: fake_cupy.Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_timer, "_FAR", 0.0)  # after every command
    device = open_gpu(gpus)
    with device.profile() as recording:
        for _ in range(20):
            ran(device, program())
    commands = recording.commands
    assert all(command.timed for command in commands)
    assert all(a.end <= b.start for a, b in itertools.pairwise(commands))
    assert commands[0].start >= recording.start - recording.clock_errors["cuda:0"]
    assert recording.end is not None
    assert commands[-1].end <= recording.end + recording.clock_errors["cuda:0"]
    device.wait_idle()
    assert len(gpus.events) <= 2  # those of uploads, which are used again


# -- finding GPUs --------------------------------------------------------------------------------------


def test_the_plugin_lists_the_fake() -> None:
    from halgpu.devices import list_devices

    found = {info.uri: info for info in list_devices()}
    assert found["fake-cuda:1"].name == "Fake GPU, sm_89"
    assert found["fake-cuda:1"].available
    assert open_device("fake-cuda:1").uri == "fake-cuda:1"


def test_an_index_that_does_not_exist(gpus: fake_cupy.Gpus) -> None:
    with pytest.raises(NotFound, match=r"no device 'cuda:7'; there are: cuda:0 \(Fake GPU, sm_89\), cuda:1"):
        cuda.open_with(halgpu_fake_cuda.fake_cuda(gpus), "cuda:7", 7)


@pytest.mark.parametrize("reason", ["none", "driver"])
def test_without_a_gpu_it_says_why(
    gpus: fake_cupy.Gpus, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    def raises() -> int:
        raise fake_cupy.CUDARuntimeError(719)

    monkeypatch.setattr(gpus.runtime, "getDeviceCount", raises if reason == "driver" else lambda: 0)
    with pytest.raises(Unavailable, match=r"CUDA finds no GPU.*: it takes an NVIDIA GPU with its driver"):
        cuda.open_with(halgpu_fake_cuda.fake_cuda(gpus), "cuda:0", 0)


def test_a_gpu_that_does_not_open(gpus: fake_cupy.Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(flags: int) -> int:
        raise fake_cupy.CUDARuntimeError(2)

    monkeypatch.setattr(gpus.runtime, "streamCreateWithFlags", full)
    with pytest.raises(
        ResourceExhausted, match="cuda:0 could not open the GPU: CUDA says cudaErrorMemoryAllocation"
    ):
        open_gpu(gpus)


def test_cupy_has_what_is_used() -> None:
    if importlib.util.find_spec("cupy") is None:
        pytest.skip("CuPy is not installed: pip install cupy-cuda12x (needs no GPU for this)")
    real, fake = cuda.load_cuda(), halgpu_fake_cuda.fake_cuda()
    for module, ours in (
        (real.runtime, fake.runtime),
        (real.driver, fake.driver),
        (real.nvrtc(), fake.nvrtc()),
    ):
        for name in dir(ours):
            value = getattr(ours, name)
            if name[0] != "_" and name != "compiled":
                assert hasattr(module, name), name
                if isinstance(value, int):
                    assert getattr(module, name) == value, name
