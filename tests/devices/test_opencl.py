"""What is particular to OpenCL: building, the check of a compiled kernel, its limits, the cache of builds."""

from __future__ import annotations

import threading
import warnings
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halgpu import disk_cache
from halgpu.devices import (
    BindingLayout,
    Device,
    KernelLayout,
    Program,
    open_device,
    opencl,
    opencl_programs,
)
from halgpu.devices.quirks import opencl_quirks
from halgpu.errors import Incompatible, Internal, InvalidArgument, ResourceExhausted, Unavailable

SOURCE = """typedef struct { ulong offsets[1]; uint constants[1]; } arguments_t;
__kernel void fill(__global uchar* out, arguments_t arguments) {
  ((__global uint*)(out + arguments.offsets[0]))[get_global_id(0)] = VALUE + arguments.constants[0];
}
"""
LAYOUT = KernelLayout("fill", 1, (BindingLayout("write", 4),), (4, 1, 1))


def program(value: int = 7, **changes: Any) -> Program:
    return replace(Program("opencl-c", f"#define VALUE {value}\n{SOURCE}", (LAYOUT,)), **changes)


@pytest.fixture
def device() -> Device:
    return open_device("opencl")


def ran(device: Device, program: Program) -> list[int]:
    (kernel,) = device.build(program)
    with device.allocator.allocate(16) as out:
        kernel.dispatch(1, [100], [(out, 0, 16)])
        return list(np.frombuffer(bytes(out.read()), np.uint32))


# -- building ------------------------------------------------------------------------------------------


def test_a_source_that_does_not_compile(device: Device) -> None:
    broken = program(
        source="__kernel void fill(__global int* a) {\n  a[0] = nonsense;\n}\n", options=("-DX=1",)
    )
    with pytest.raises(InvalidArgument) as caught:
        device.build(broken)
    text = str(caught.value)
    assert "could not build kernels fill" in text
    assert "undeclared identifier 'nonsense'" in text
    assert "2 |   a[0] = nonsense;" in text
    assert "options: -cl-std=CL1.2" in text
    assert "-DX=1" in text
    assert caught.value.__cause__.code == -11  # type: ignore[union-attr]  # CL_BUILD_PROGRAM_FAILURE


def test_options_that_the_compiler_does_not_know(device: Device) -> None:
    with pytest.raises(InvalidArgument, match="-no-such-option"):
        device.build(program(options=("-no-such-option",)))


def test_nothing_relaxes_arithmetic() -> None:
    options = opencl_programs.build_options(program())
    assert "fast" not in options
    assert "mad" not in options
    assert "unsafe" not in options
    assert "-cl-std=CL2.0" in opencl_programs.build_options(program(options=("-cl-std=CL2.0",)))
    assert "CL1.2" not in opencl_programs.build_options(program(options=("-cl-std=CL2.0",)))


def test_what_a_compiler_says_becomes_no_warning(device: Device) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert ran(device, program(source=f"#define VALUE 1\n#warning look\n{SOURCE}")) == [101] * 4
    assert seen == []


def test_a_kernel_that_the_program_lacks(device: Device) -> None:
    with pytest.raises(InvalidArgument, match="no kernel 'file'; it has: fill"):
        device.build(program(layouts=(replace(LAYOUT, name="file"),)))


def test_kernels_come_in_the_order_of_their_layouts(device: Device) -> None:
    source = "__kernel void a() {} __kernel void b() {} __kernel void c() {}"
    layouts = tuple(KernelLayout(name, 0, (), (1, 1, 1)) for name in "cab")
    found = device.build(Program("opencl-c", source, layouts))
    assert [kernel.layout.name for kernel in found] == ["c", "a", "b"]
    for kernel in found:
        kernel.dispatch(1)


@pytest.mark.parametrize(
    ("source", "changes", "words"),
    [
        ("__kernel void fill(__global int* a) {}", {}, r"takes 1 arguments.*which makes 2"),
        ("__kernel void fill(__global int* a, uint n, uint m) {}", {}, "takes 3 arguments"),
        (
            "__kernel void fill(ulong a, ulong2 b) {}",
            {},
            "argument 0 is private; expected a pointer to global",
        ),
        ("__kernel void fill(__local int* a, ulong2 b) {}", {}, "argument 0 is local"),
        (
            "__kernel void fill(__global int* a, __global int* b) {}",
            {},
            "argument 1 is global; expected the param",
        ),
        (
            "__kernel __attribute__((reqd_work_group_size(8, 1, 1))) void fill(__global int* a, ulong2 b) {}",
            {},
            r"compiled for workgroups of \(8, 1, 1\); its layout says \(4, 1, 1\)",
        ),
    ],
)
def test_a_kernel_that_disagrees_with_its_layout(
    device: Device, source: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        device.build(Program("opencl-c", source, (replace(LAYOUT, **changes),)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"workgroup_size": (1 << 20, 1, 1)}, "1048576 workgroup size x"),
        ({"workgroup_size": (1024, 1024, 1)}, "1048576 work-items in a workgroup"),
        ({"local_memory": 1 << 40}, "bytes of local memory"),
        ({"constants": 5000}, r"20016 bytes of arguments; opencl:0 allows \d+"),
    ],
)
def test_a_layout_beyond_the_device(device: Device, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Incompatible, match=rf"kernel 'fill' has .*{words}"):
        device.build(program(layouts=(replace(LAYOUT, **changes),)))


@pytest.mark.parametrize(
    "changes",
    [{"workgroup_size": (0, 1, 1)}, {"constants": -1}, {"local_memory": -1}],
)
def test_an_impossible_layout(device: Device, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="'fill' has an impossible layout"):
        device.build(program(layouts=(replace(LAYOUT, **changes),)))


@pytest.mark.parametrize("binding", [BindingLayout("rw"), BindingLayout("read", 0)])  # type: ignore[arg-type]
def test_an_impossible_binding(device: Device, binding: BindingLayout) -> None:
    with pytest.raises(InvalidArgument, match="binding"):
        device.build(program(layouts=(replace(LAYOUT, bindings=(binding,)),)))


def test_an_extension_that_the_device_lacks(device: Device) -> None:
    with pytest.raises(Incompatible, match=r"kernels fill need cl_khr_made_up, which opencl:0 \(.+\) lacks"):
        device.build(program(extensions=("cl_khr_made_up",)))


def test_another_language(device: Device) -> None:
    with pytest.raises(Incompatible, match="'cuda-c'; opencl:0 takes opencl-c"):
        device.build(program(language="cuda-c"))


def test_the_parameter_structure_is_what_c_makes_of_it(device: Device) -> None:
    """The compiler's own sizeof and offsets, for all small counts of bindings and constants."""
    for bindings in range(1, 4):
        for constants in range(4):
            fields = f"ulong offsets[{bindings}]; " + (f"uint constants[{constants}];" if constants else "")
            pointers = "".join(f"__global uchar* p{index}, " for index in range(bindings))
            source = (
                f"typedef struct {{ {fields} }} arguments_t;\n"
                f"__kernel void sizes({pointers}arguments_t arguments) {{\n"
                f"  __global uint* out = (__global uint*)p0;\n  out[0] = sizeof(arguments_t);\n"
                + (f"  out[1] = arguments.constants[{constants - 1}];\n" if constants else "")
                + f"  out[2] = arguments.offsets[{bindings - 1}];\n"
                + "}\n"
            )
            layout = KernelLayout("sizes", constants, (BindingLayout(),) * bindings, (1, 1, 1))
            (kernel,) = device.build(Program("opencl-c", source, (layout,)))
            out = device.allocator.allocate(64)
            kernel.dispatch(1, [9] * constants, [(out, 0, 12)] * (bindings - 1) + [(out, 4, 12)])
            size, constant, offset = np.frombuffer(out.read()[:12], np.uint32)
            assert size == layout.parameter_bytes
            assert not constants or constant == 9
            assert offset == 4


def test_kernels_from_several_threads(device: Device) -> None:
    (kernel,) = device.build(program())
    wrong: list[Any] = []

    def work(number: int) -> None:
        for turn in range(40):
            with device.allocator.allocate(16) as out:
                kernel.dispatch(1, [number * 100 + turn], [(out, 0, 16)])
                found = list(np.frombuffer(bytes(out.read()), np.uint32))
                if found != [7 + number * 100 + turn] * 4:
                    wrong.append((number, turn, found))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# -- errors of the driver ------------------------------------------------------------------------------


def test_each_error_of_pyopencl_is_one_of_ours_with_its_cause(device: Device) -> None:
    import pyopencl as cl

    assert isinstance(device, opencl.OpenCLDevice)
    with pytest.raises(cl.Error) as caught:
        cl.Buffer(device.context, cl.mem_flags.READ_WRITE, 1 << 60)
    error = device.error("make a buffer", caught.value)
    assert isinstance(error, ResourceExhausted)
    assert str(error) == "opencl:0 could not make a buffer: create_buffer failed with INVALID_BUFFER_SIZE"
    with pytest.raises(cl.Error) as caught:
        cl.enqueue_copy(
            device.queue.native, *[cl.Buffer(device.context, 0, 4) for _ in range(2)], byte_count=8
        )
    assert type(device.error("copy", caught.value)) is Internal


def test_a_driver_that_fails_to_allocate(monkeypatch: pytest.MonkeyPatch) -> None:
    device = open_device("opencl?unified=0")
    limit = device.capabilities.max_allocation
    with pytest.raises(ResourceExhausted, match=f"{limit + 1} bytes.*limit {limit}"):
        device.allocator.allocate(limit + 1)
    # Past our own check, so that the driver has to refuse.
    with pytest.raises(ResourceExhausted, match=f"allocate a buffer of {1 << 60} bytes") as caught:
        device.allocate_memory(1 << 60)
    assert type(caught.value.__cause__).__module__ == "pyopencl._cl"


def test_the_host_out_of_memory(device: Device) -> None:
    with pytest.raises(ResourceExhausted, match="the host has no"):
        device.allocate_memory(1 << 60)


def test_platforms_without_devices() -> None:
    class NoDevices:
        class Error(Exception):
            pass

        class device_type:  # noqa: N801
            GPU = 4

        @classmethod
        def get_platforms(cls) -> list[Any]:
            return [cls]

        @classmethod
        def get_devices(cls) -> list[Any]:
            raise cls.Error("DEVICE_NOT_FOUND")

    with pytest.raises(Unavailable, match=r"no device: .*pip install 'halgpu\[pocl\]'"):
        opencl.find_devices(NoDevices)


# -- built programs on disk ----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HALGPU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("HALGPU_CACHE", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """Grows by each program that is really compiled."""
    real, seen = opencl_programs.compile_source, []

    def compile_and_note(device: Any, program: Program, options: str) -> Any:
        seen.append(program)
        return real(device, program, options)

    monkeypatch.setattr(opencl_programs, "compile_source", compile_and_note)
    return seen


def test_a_second_build_comes_from_the_cache(folder: Path, compiled: list[Program]) -> None:
    device = open_device("opencl?cache=1")
    assert ran(device, program(1)) == [101] * 4
    assert ran(device, program(1)) == [101] * 4
    assert len(compiled) == 1
    assert ran(device, program(2)) == [102] * 4
    assert ran(device, program(1, options=("-DUNUSED",))) == [101] * 4
    assert len(compiled) == 3
    assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "swapped", "folder"])
def test_a_damaged_entry_is_a_miss(folder: Path, compiled: list[Program], damage: str) -> None:
    device = open_device("opencl?cache=1")
    ran(device, program(3))
    (entry,) = folder.iterdir()
    data = entry.read_bytes()
    if damage == "folder":
        entry.unlink()
        entry.mkdir()
    else:
        body = b"not a program"
        entry.write_bytes({
            "empty": b"", "cut": data[:-5], "flipped": data[:99] + bytes([data[99] ^ 1]) + data[100:],
            "swapped": disk_cache.hashlib.sha256(body).digest() + body,
        }[damage])  # fmt: skip
    assert ran(device, program(3)) == [103] * 4
    assert len(compiled) == 2


def test_the_cache_can_be_turned_off(
    folder: Path, compiled: list[Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALGPU_CACHE", "0")
    device = open_device("opencl?cache=1")
    for _ in range(2):
        assert ran(device, program(4)) == [104] * 4
    assert len(compiled) == 2
    assert not folder.exists()


def test_drivers_that_keep_builds_are_left_to_it(folder: Path) -> None:
    assert opencl_quirks("Portable Computing Language", "any", cpu=True).caches_builds
    assert not opencl_quirks("Intel(R) OpenCL Graphics", "Intel(R) Corporation", cpu=False).caches_builds
    ran(open_device("opencl"), program(5))
    assert not folder.exists()


# -- memory that enqueued work may still use -----------------------------------------------------------


class Thing:
    """Something that can be seen to die."""


def test_what_is_buried_while_waiting_stays_for_the_next_wait() -> None:
    device = open_device("opencl")
    assert isinstance(device, opencl.OpenCLDevice)
    early, late = Thing(), Thing()
    alive = [weakref.ref(early), weakref.ref(late)]
    device.queue.bury(1, early)
    device.queue.before_waiting()
    device.queue.bury(1, late)
    del early, late
    device.queue.waited()
    assert [reference() is not None for reference in alive] == [False, True]
    device.wait_idle()
    assert alive[1]() is None


def test_much_freed_memory_is_waited_for() -> None:
    device = open_device("opencl")
    assert isinstance(device, opencl.OpenCLDevice)
    for count, size in ((1, opencl.MAX_BURIED_BYTES + 1), (opencl.MAX_BURIED + 1, 1)):
        things = [Thing() for _ in range(count)]
        alive = weakref.WeakSet(things)
        while things:
            device.queue.bury(size, things.pop())
        assert len(alive) == count
        device.allocator.allocate(4)
        assert len(alive) == 0
