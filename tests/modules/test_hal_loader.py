"""hal_loader against IREE's exports.inl and module.c; kernels are Python functions on the host device."""

from __future__ import annotations

import numpy as np
import pytest

from halgpu import errors
from halgpu.devices import BindingLayout, KernelLayout, Program, open_device
from halgpu.devices.host_kernels import HostFunctionKernel
from halgpu.executables import registry
from halgpu.executables.base import Executable
from halgpu.modules.hal_inline import HalInline
from halgpu.modules.hal_loader import HalLoader
from halgpu.vm.buffer import Buffer, BufferAccess
from halgpu.vm.support import NullReference

# IREE runtime/src/iree/modules/hal/loader/exports.inl, written out.
EXPORTS = {
    "executable.dispatch": "0rIiiiCiDCrIID_v", "executable.load": "0rrr_r",
    "executable.lookup.function": "0rr_I", "executable.query_support": "0r_i",
}  # fmt: skip


def text(string: str) -> Buffer:
    return Buffer.module_storage(memoryview(string.encode()), None)


class Rig:
    """A loader, and an executable of two kernels: ``copy`` (read, write) and ``add`` (read and written in place)."""

    def __init__(self, on_host: bool = False, **how) -> None:
        self.device = open_device("host")
        self.inline, self.loader = HalInline(self.device), HalLoader(self.device)
        self.calls = []
        layouts = (
            KernelLayout("copy", 1, (BindingLayout("read"), BindingLayout("write")), (1, 1, 1)),
            KernelLayout("add", 0, (BindingLayout("readwrite"), BindingLayout("read")), (1, 1, 1)),
        )
        functions = (self.copy, self.add)
        if on_host:
            kernels = [
                HostFunctionKernel(self.device, *of, **how) for of in zip(layouts, functions, strict=True)
            ]
        else:
            kernels = self.device.build(Program("python", "", layouts, callables=functions))
        self.executable = Executable("test", kernels)

    def copy(self, workgroups, constants, bindings):
        self.calls.append((workgroups, constants))
        bindings[1][:] = bindings[0]

    def add(self, workgroups, constants, bindings):
        target, source = (np.frombuffer(binding, np.uint8) for binding in bindings)
        target += source

    def dispatch(self, name, *bindings, constants=(), grid=(1, 1, 1)):
        function = self.loader.executable_lookup_function(self.executable, text(name))
        self.loader.executable_dispatch(self.executable, function, *grid, constants, bindings)

    def storage(self, data: bytes) -> Buffer:
        _, wrapped = self.inline.buffer_allocate(64, len(data))
        wrapped.write_view()[:] = data
        return wrapped


@pytest.fixture(params=[False, True], ids=["device", "host"])
def rig(request):
    """With kernels of the device, and with such that run on the host whatever the device."""
    return Rig(request.param)


def test_every_function_has_irees_calling_convention():
    assert {name: str(export.cconv) for name, export in HalLoader.exports.items()} == EXPORTS
    assert (HalLoader.name, HalLoader.version) == ("hal_loader", 1)


def test_query_support_is_the_registrys_answer():
    loader = HalLoader(open_device("opencl"))
    assert loader.executable_query_support(text("vulkan-spirv-fb")) == 1
    assert loader.executable_query_support(text("cuda-nvptx-fb")) == 0
    assert loader.executable_query_support(text("vulkan-spirv-fb")) == 1
    assert loader.asked == ["vulkan-spirv-fb", "cuda-nvptx-fb"]


def test_load_passes_format_data_and_constants_on(rig, monkeypatch):
    seen = []
    monkeypatch.setattr(registry, "load", lambda *given: seen.append(given) or rig.executable)
    constants = text("")
    constants = Buffer.module_storage(memoryview(np.array([1, 2**32 - 1], np.uint32).tobytes()), None)
    assert rig.loader.executable_load(text("f"), text("data"), constants) is rig.executable
    rig.loader.executable_load(text("f"), text("data"), None)
    assert [(device, name, bytes(data), values) for device, name, data, values, *_ in seen] == [
        (rig.device, "f", b"data", (1, 2**32 - 1)), (rig.device, "f", b"data", ()),
    ]  # fmt: skip


def test_load_refuses_odd_constants_unknown_formats_and_null_data(rig):
    with pytest.raises(errors.InvalidArgument, match="4 bytes each, found 6"):
        rig.loader.executable_load(text("f"), text("data"), text("123456"))
    with pytest.raises(errors.Error, match="no-such-format"):
        rig.loader.executable_load(text("no-such-format"), text("data"), None)
    with pytest.raises(errors.InvalidArgument, match=r"!vm\.buffer, found null"):
        rig.loader.executable_load(text("vulkan-spirv-fb"), None, None)


def test_lookup_gives_ids_for_dispatch(rig):
    name = text("add")
    for _ in range(2):
        assert rig.loader.executable_lookup_function(rig.executable, name) == 1
    with pytest.raises(errors.NotFound, match="copy, add"):
        rig.loader.executable_lookup_function(rig.executable, text("ad"))
    for wrong in (None, object()):
        with pytest.raises(errors.InvalidArgument, match=r"!hal\.executable"):
            rig.loader.executable_lookup_function(wrong, name)
        with pytest.raises(errors.InvalidArgument, match=r"!vm\.buffer"):
            rig.loader.executable_lookup_function(rig.executable, wrong)


def test_names_in_mutable_buffers_are_read_each_time(rig):
    name = Buffer.create(4)
    name.write_view()[:] = b"copy"
    assert rig.loader.executable_lookup_function(rig.executable, name) == 0
    name.write_view()[:] = b"add\0"
    with pytest.raises(errors.NotFound):
        rig.loader.executable_lookup_function(rig.executable, name)


def test_storage_is_dispatched_in_place(rig):
    source, target = rig.storage(bytes(range(16))), rig.storage(bytes(16))
    before = rig.device.statistics
    rig.dispatch("copy", (source, 2, 8), (target, 4, 8), constants=(-1,), grid=(3, 2, 1))
    after = rig.device.statistics
    assert rig.calls == [((3, 2, 1), (2**32 - 1,))]
    assert bytes(target) == bytes(4) + bytes(range(2, 10)) + bytes(4)
    assert (after.dispatches, after.live_handles) == (before.dispatches + 1, before.live_handles)


def test_an_empty_grid_runs_nothing(rig):
    source, target = rig.storage(b"1234"), rig.storage(b"....")
    rig.dispatch("copy", (source, 0, 4), (target, 0, 4), constants=(0,), grid=(1, 0, 1))
    assert bytes(target) == b"...."


def test_rodata_is_copied_to_the_device_once():
    rig = Rig()
    constant, target = text("0123456789"), rig.storage(bytes(4))
    before = rig.device.statistics.live_handles
    for offset in (0, 3, 6):
        rig.dispatch("copy", (constant, offset, 4), (target, 0, 4), constants=(0,))
        assert bytes(target) == b"0123456789"[offset : offset + 4]
    assert rig.device.statistics.live_handles == before + 1


def test_kernels_on_the_host_take_the_hosts_bytes_in_place():
    rig = Rig(on_host=True)
    seen = []
    rig.add = lambda *given: seen.extend(given[2])
    kernels = [
        HostFunctionKernel(
            rig.device, KernelLayout("look", 0, ["read", "readwrite"]), rig.add, knows_writes=knows
        )
        for knows in (True, False)
    ]
    rig.executable = Executable("test", kernels, ["strict", "lenient"])
    constant, host = text("0123456789"), Buffer.create(8)
    before = rig.device.statistics
    rig.dispatch("strict", (constant, 2, 4), (host, 4, 4))
    assert rig.device.statistics.bytes_peak == before.bytes_peak
    assert rig.device.statistics.live_handles == before.live_handles
    assert [bytes(view) for view in seen] == [b"2345", bytes(4)]
    assert [view.readonly for view in seen] == [True, False]
    seen[1][:] = b"abcd"
    assert bytes(host) == b"\0\0\0\0abcd"
    with pytest.raises(
        errors.PermissionDenied, match="kernel 'look': binding 1 is read-only for the program"
    ):
        rig.dispatch("strict", (host, 0, 4), (constant, 0, 4))
    rig.dispatch("lenient", (rig.storage(b"1234"), 0, 4), (constant, 0, 4))
    assert [view.readonly for view in seen[2:]] == [True, True]


def test_host_buffers_are_copied_there_and_back(rig):
    source, target = Buffer.create(8), Buffer.create(8)
    source.write_view()[:] = b"abcdefgh"
    before = rig.device.statistics.live_handles
    rig.dispatch("copy", (source, 0, 4), (target, 2, 4), constants=(0,))
    assert bytes(target) == b"\0\0abcd\0\0"
    assert rig.device.statistics.live_handles == before


def test_one_host_buffer_bound_twice_is_one_copy(rig):
    both = Buffer.create(8)
    both.write_view()[:] = bytes(range(8))
    rig.dispatch("add", (both, 0, 6), (both, 2, 6))
    # The kernel reads what it has not written yet: numpy buffers overlapping operands.
    assert bytes(both) == bytes([2, 4, 6, 8, 10, 12, 6, 7])


def test_host_and_device_buffers_together(rig):
    target, host = rig.storage(bytes([1, 2, 3, 4])), Buffer.create(4)
    host.write_view()[:] = b"\x0a\x0a\x0a\x0a"
    rig.dispatch("add", (target, 0, 4), (host, 0, 4))
    assert bytes(target) == bytes([11, 12, 13, 14])
    assert bytes(host) == b"\x0a\x0a\x0a\x0a"


def test_a_null_binding_names_kernel_and_binding(rig):
    with pytest.raises(
        NullReference, match=r"kernel 'copy': binding 1 is null: the program passes no buffer"
    ):
        rig.dispatch("copy", (rig.storage(b"1234"), 0, 4), (None, 0, 4), constants=(0,))


@pytest.mark.parametrize(
    ("binding", "kind", "message"),
    [
        (lambda rig: (object(), 0, 4), errors.InvalidArgument, "binding 0: expected a ref to !vm.buffer"),
        (lambda rig: (rig.storage(b"1234"), 0, 5), errors.OutOfRange, "binding 0"),
        (lambda rig: (rig.storage(b"1234"), -1, 4), errors.OutOfRange, "binding 0"),
        (lambda rig: (rig.storage(b"1234"), 2**63 - 1, 4), errors.OutOfRange, "binding 0"),
        (lambda rig: (text("1234"), 1, 4), errors.OutOfRange, "binding 0"),
        (lambda rig: (Buffer.create(2), 0, 4), errors.OutOfRange, "binding 0"),
    ],
)
def test_bad_bindings(rig, binding, kind, message):
    with pytest.raises(kind, match=message) as caught:
        rig.dispatch("copy", binding(rig), (rig.storage(b"1234"), 0, 4), constants=(0,))
    assert "kernel 'copy'" in caught.value.message


def test_kernels_do_not_write_read_only_memory(rig):
    for buffer in (text("1234"), Buffer.create(4, BufferAccess.ORIGIN_GUEST)):
        with pytest.raises(errors.PermissionDenied, match="kernel 'copy': binding 1"):
            rig.dispatch("copy", (rig.storage(b"1234"), 0, 4), (buffer, 0, 4), constants=(0,))


def test_a_released_buffer_is_refused(rig):
    released = rig.storage(b"1234")
    released.release()
    with pytest.raises(errors.FailedPrecondition, match="released"):
        rig.dispatch("copy", (released, 0, 4), (rig.storage(b"1234"), 0, 4), constants=(0,))


def test_wrong_numbers_of_things(rig):
    good = (rig.storage(b"1234"), 0, 4)
    with pytest.raises(errors.InvalidArgument, match="2 bindings, found 1"):
        rig.dispatch("copy", good, constants=(0,))
    with pytest.raises(errors.InvalidArgument, match="2 bindings, found 3"):
        rig.dispatch("copy", good, good, (Buffer.create(4), 0, 4), constants=(0,))
    with pytest.raises(errors.InvalidArgument, match="1 constants, found 0"):
        rig.dispatch("copy", good, good)
    with pytest.raises(errors.ResourceExhausted, match="at most 32 bindings, found 33"):
        rig.dispatch("copy", *[good] * 33)


@pytest.mark.parametrize("function", [2, -1, 2**40])
def test_function_ids_out_of_range(rig, function):
    with pytest.raises(errors.OutOfRange, match="function id"):
        rig.loader.executable_dispatch(rig.executable, function, 1, 1, 1, (), ())


@pytest.mark.parametrize("executable", [None, object()])
def test_refs_that_are_no_executable(rig, executable):
    with pytest.raises(errors.InvalidArgument, match=r"!hal\.executable"):
        rig.loader.executable_dispatch(executable, 0, 1, 1, 1, (), ())


def test_negative_workgroup_counts_are_refused(rig):
    good = (rig.storage(b"1234"), 0, 4)
    with pytest.raises(errors.Error, match="workgroup"):
        rig.dispatch("copy", good, good, constants=(0,), grid=(-1, 1, 1))
