"""The format vmvx-bytecode-fb: kernels of iree-compile beside stock iree-run-module, and executables made by hand."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import halgpu
from halgpu import errors, vm
from halgpu.devices import Device, open_device
from halgpu.devices.memory import MemoryAccess
from halgpu.executables import registry
from halgpu.executables.base import Executable

FORMAT = "vmvx-bytecode-fb"

REFS = "%r0: !vm.ref<?>, %r1: !vm.ref<?>, %r2: !vm.ref<?>"
COUNTS = ", ".join(f"%i{number}: i32" for number in range(9))
TYPES = "".join(f"vm.type {name}\n" for name in ("i32", "i64", "!vm.buffer", "!vm.list<!vm.buffer>"))


def kernel(name: str, body: str, bindings: int = 1, constants: int = 0, **attrs: str) -> str:
    """A kernel whose body has bindings in %r4 and up, i32 0 in %i30 and i64 0 in %i32."""
    texts = {"binding_count": str(bindings), "constant_count": str(constants), **attrs}
    listed = "\n".join(
        f"%i31 = vm.const.i32 {number}\n%r{4 + number} = vm.list.get.ref %r2, %i31 : !vm.buffer"
        for number in range(bindings)
    )
    attributes = "\n".join(f'//! attr "{key}" "{value}"' for key, value in texts.items())
    return (
        f"vm.export @{name}\nvm.func @{name}({REFS}, {COUNTS}) -> () {{\n{attributes}\n^bb0:\n"
        f"%i30 = vm.const.i32.zero\n%i32:33 = vm.const.i64.zero\n{listed}\n{body}\nvm.return\n}}\n"
    )


def module(*functions: str, head: str = "") -> bytes:
    return vm.write(vm.assemble("vm.module @kernels version 0\n" + TYPES + head + "".join(functions)))


def load(data: bytes, constants: Sequence[int] = (), device: str | Device = "host") -> Executable:
    return registry.load(open_device(device), FORMAT, memoryview(data), tuple(constants))


def run(data: bytes, *bindings: Any, grid: Any = 1, constants: Sequence[int] = (), **more: Any) -> None:
    load(data, **more).kernels[0].dispatch(grid, constants, bindings)


def buffer(values: Sequence[int] | bytes, **flags: Any) -> Any:
    data = values if isinstance(values, bytes) else struct.pack(f"<{len(values)}i", *values)
    made = open_device("host").allocator.allocate(len(data), **flags)
    made.root.host(write=True)[:] = data
    return made


def i32(of: Any) -> list[int]:
    found: list[int] = np.frombuffer(of.read(), np.int32).tolist()
    return found


# Appends the nine numbers of a workgroup to a log, at the place that the first element counts.
LOG = "".join(
    f"%i32 = vm.buffer.load.i32 %r4, %i34:35\n%i32:33 = vm.ext.i32.i64.s %i32\n"
    f"vm.buffer.store.i32 %i{number}, %r4, %i32:33\n"
    f"%i32 = vm.buffer.load.i32 %r4, %i34:35\n%i32 = vm.add.i32 %i32, %i36\n"
    f"vm.buffer.store.i32 %i32, %r4, %i34:35\n"
    for number in range(9)
)
LOG = f"%i34:35 = vm.const.i64.zero\n%i36 = vm.const.i32 1\n{LOG}"


def test_a_kernel_is_called_once_a_workgroup_x_first() -> None:
    out = buffer([1] + [0] * 9 * 12)
    run(module(kernel("log", LOG)), out, grid=(2, 3, 2))
    _, *numbers = i32(out)
    ids = [(x, y, z) for z in range(2) for y in range(3) for x in range(2)]
    assert numbers == [n for where in ids for n in (*where, 1, 1, 1, 2, 3, 2)]


CONSTANT = (
    "%i34 = vm.buffer.load.i32 %r1, %i32:33\nvm.buffer.store.i32 %i34, %r4, %i32:33\n"
    "%i36:37 = vm.const.i64 1\n%i34 = vm.buffer.load.i32 %r1, %i36:37\nvm.buffer.store.i32 %i34, %r4, %i36:37\n"
)


def test_constants_arrive_and_cannot_be_written() -> None:
    out = buffer([0, 0])
    run(module(kernel("k", CONSTANT, constants=2)), out, constants=(7, 0xFFFFFFFF))
    assert i32(out) == [7, -1]
    with pytest.raises(errors.InvalidArgument, match="kernel 'k' takes 2 constants, found 1"):
        run(module(kernel("k", CONSTANT, constants=2)), out, constants=(7,))
    with pytest.raises(errors.PermissionDenied, match="read-only"):
        run(module(kernel("k", "vm.buffer.store.i32 %i30, %r1, %i32:33\n", constants=1)), out, constants=(7,))


def test_local_memory_is_as_large_as_the_kernel_says() -> None:
    body = "%i36:37 = vm.buffer.length %r0\n%i36 = vm.trunc.i64.i32 %i36:37\nvm.buffer.store.i32 %i36, %r4, %i32:33\n"
    out = buffer([0])
    run(module(kernel("k", body, local_memory="8192")), out)
    assert i32(out) == [8192]
    run(module(kernel("k", body)), out)
    assert i32(out) == [0]


def test_read_only_bindings_are_taken_but_not_written() -> None:
    body = "%i36 = vm.buffer.load.i32 %r4, %i32:33\nvm.buffer.store.i32 %i36, %r5, %i32:33\n"
    data = module(kernel("k", body, bindings=2))
    locked, out = buffer([5], access=MemoryAccess.READ), buffer([0])
    run(data, locked, out)
    assert i32(out) == [5]
    with pytest.raises(errors.PermissionDenied, match="read-only and cannot be written"):
        run(data, out, locked)
    assert i32(locked) == [5]


def test_a_kernel_may_take_refs_out_of_its_list() -> None:
    body = "%R6 = vm.list.get.ref %r2, %i30 : !vm.buffer\nvm.buffer.store.i32 %i7, %r6, %i32:33\n"
    out = buffer([0])
    run(module(kernel("k", body)), out, grid=(1, 3, 1))
    assert i32(out) == [3]


def test_buffers_end_with_the_dispatch() -> None:
    keep = kernel("keep", "vm.global.store.ref %r4, .refs[0] : !vm.buffer\n")
    use = kernel(
        "use", "%r6 = vm.global.load.ref .refs[0] : !vm.buffer\nvm.buffer.store.i32 %i30, %r6, %i32:33\n"
    )
    executable = load(module(keep, use))
    out = buffer([9])
    executable.kernels[0].dispatch(1, (), [out])
    with pytest.raises(errors.FailedPrecondition, match="buffer was released"):
        executable.kernels[1].dispatch(1, (), [buffer([1])])
    assert i32(out) == [9]


def test_state_of_an_executable_lasts_and_is_its_own() -> None:
    count = kernel(
        "count",
        "%i36 = vm.global.load.i32 .rwdata[0]\n%i37 = vm.const.i32 1\n%i36 = vm.add.i32 %i36, %i37\n"
        "vm.global.store.i32 %i36, .rwdata[0]\nvm.buffer.store.i32 %i36, %r4, %i32:33\n",
    )
    data, out = module(count), buffer([0])
    first = load(data)
    for expected in (3, 6):
        first.kernels[0].dispatch(3, (), [out])
        assert i32(out) == [expected]
    load(data).kernels[0].dispatch(1, (), [out])
    assert i32(out) == [1]


SET = (
    "vm.export @__set_constants\nvm.func @__set_constants(%r0: !vm.ref<?>) -> () {\n^bb0:\n"
    "%i0:1 = vm.const.i64 1\n%i2 = vm.buffer.load.i32 %r0, %i0:1\nvm.global.store.i32 %i2, .rwdata[0]\nvm.return\n}\n"
)


def test_specialization_constants_are_set_once() -> None:
    body = "%i36 = vm.global.load.i32 .rwdata[0]\nvm.buffer.store.i32 %i36, %r4, %i32:33\n"
    out = buffer([0])
    load(module(SET, kernel("k", body)), (11, 22)).kernels[0].dispatch(1, (), [out])
    assert i32(out) == [22]
    with pytest.raises(errors.InvalidArgument, match="expected some specialization constants, found 0"):
        load(module(SET, kernel("k", body)))
    with pytest.raises(errors.InvalidArgument, match="expected none specialization constants, found 2"):
        load(module(kernel("k", body)), (1, 2))


def test_errors_say_where_in_the_kernel() -> None:
    body = "%i36:37 = vm.const.i64 4\nvm.buffer.store.i32 %i30, %r4, %i36:37\n"
    with pytest.raises(errors.OutOfRange, match=r"offset=16, length=4, buffer length=4\), in kernels\.k"):
        run(module(kernel("k", body)), buffer([0]))


WRONG_MODULES = {
    "no kernels": (b"", "has no kernels"),
    "another signature": (
        b"vm.export @k\nvm.func @k(%i0: i32) -> () {\n^bb0:\nvm.return\n}\n",
        "expected exports with calling convention '0rrriiiiiiiii_v', found 'k' with '0i_v'",
    ),
    "33 bindings": (kernel("k", "", 0, binding_count="33").encode(), "binding_count to be a number from 0 to 32, found '33'"),
    "no number": (kernel("k", "", 0, constant_count="-1").encode(), "constant_count to be a number from 0 to 255"),
    "too much local memory": (
        kernel("k", "", 0, local_memory="999999999").encode(), "local_memory to be a number from 0 to 268431360",
    ),
    "no number at all": (kernel("k", "", 0, local_memory="९").encode(), "local_memory to be a number"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_MODULES)
def test_modules_that_are_no_executables_are_refused(case: str) -> None:
    text, message = WRONG_MODULES[case]
    with pytest.raises(errors.InvalidArgument, match="vmvx executable.*" + message):
        load(module(text.decode()))


def test_imports_are_those_of_vmvx() -> None:
    head = 'vm.import @vmvx.fly.2d.f32 cconv "0v_v"\n'
    with pytest.raises(errors.NotFound, match=r"imports vmvx\.fly\.2d\.f32"):
        load(module(kernel("k", "vm.call @vmvx.fly.2d.f32()\n"), head=head))
    head = 'vm.import @hal_inline.buffer.length cconv "0r_I"\n'
    with pytest.raises(
        errors.NotFound, match=r"needs module hal_inline version 0, which is not in the context; it has vmvx"
    ):
        load(module(kernel("k", "%i36:37 = vm.call @hal_inline.buffer.length(%r4)\n"), head=head))


# -- kernels of iree-compile ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network(compile_mlir: Callable[..., bytes], examples: Any) -> bytes:
    return compile_mlir((examples / "network.mlir").read_text(), "vmvx")


@pytest.fixture(scope="module")
def executable(network: bytes) -> bytes:
    (found,) = [data for data in vm.read(network).rodata if bytes(data[:4]) == b"PK\3\4"]
    return bytes(found)


def test_layouts_are_those_of_the_executable(executable: bytes) -> None:
    found = load(executable)
    assert [len(kernel.layout.bindings) for kernel in found.kernels] == [4, 3, 2]
    assert found.lookup("network_dispatch_1_matmul_5x11x53_f32") == 1


def test_every_device_runs_them(executable: bytes) -> None:
    for uri in ("host", "opencl", "null"):
        device = open_device(uri)
        assert registry.query_support(device, FORMAT)
        assert len(load(executable, device=device).kernels) == 3


OPENCL_C = (
    b'{"halgpu-kernels": 1, "language": "opencl-c", "kernels": [{"name": "k", "constants": [], "bindings": '
    b'["readwrite"], "workgroup_size": [1, 1, 1], "local_memory": 0}]}\n'
    b"__kernel void k(__global int* out) { out[0] = 2; }\n"
)
# iree-compile makes no inline program with kernels of several kinds; this is what it would come to.
SEVERAL = """
module @several {{
  util.global private @kernels : !hal.executable
  util.initializer {{
    %offered = hal_loader.executable.query_support format("embedded-elf-riscv_64") : i1
    cf.cond_br %offered, ^never, ^next
  ^never:
    util.return
  ^next:
    %is_{first} = hal_loader.executable.query_support format("{first_format}") : i1
    cf.cond_br %is_{first}, ^{first}, ^{second}
  ^{first}:
    cf.br ^load_{first}
  ^{second}:
    cf.br ^load_{second}
  ^load_opencl:
    %a = util.buffer.constant : !util.buffer = dense<"0x{opencl}"> : vector<{opencl_size}xi8>
    %b = hal_loader.executable.load format("opencl-c") data(%a) : !hal.executable
    cf.br ^loaded(%b : !hal.executable)
  ^load_vmvx:
    %c = util.buffer.constant : !util.buffer = dense<"0x{vmvx}"> : vector<{vmvx_size}xi8>
    %d = hal_loader.executable.load format("vmvx-bytecode-fb") data(%c) : !hal.executable
    cf.br ^loaded(%d : !hal.executable)
  ^loaded(%loaded: !hal.executable):
    util.global.store %loaded, @kernels : !hal.executable
    util.return
  }}
  util.func public @run() -> !hal.buffer_view {{
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    %c64 = arith.constant 64 : index
    %i32 = hal.element_type<i32> : i32
    %dense = hal.encoding_type<dense_row_major> : i32
    %out_buffer, %out_storage = hal_inline.buffer.allocate alignment(%c64) : !hal.buffer{{%c4}} in !util.buffer
    %kernels = util.global.load @kernels : !hal.executable
    %k = hal_loader.executable.lookup.function target(%kernels : !hal.executable) function(@e::@k) : i64
    hal_loader.executable.dispatch executable(%kernels : !hal.executable)[%k]
      workgroups([%c1, %c1, %c1])
      bindings([(%out_storage : !util.buffer)[%c0, %c4]])
    %out = hal_inline.buffer_view.create buffer(%out_buffer : !hal.buffer)[%c0, %c4]
      shape([%c1]) type(%i32) encoding(%dense) : !hal.buffer_view
    util.return %out : !hal.buffer_view
  }}
}}
"""


@pytest.mark.parametrize("first", ["opencl", "vmvx"])
def test_a_program_with_several_kinds_takes_the_first_that_the_device_runs(
    compile_mlir: Callable[..., bytes], first: str
) -> None:
    one = module(kernel("k", "%i36 = vm.const.i32 1\nvm.buffer.store.i32 %i36, %r4, %i32:33\n"))
    text = SEVERAL.format(
        first=first,
        second={"opencl": "vmvx", "vmvx": "opencl"}[first],
        first_format={"opencl": "opencl-c", "vmvx": FORMAT}[first],
        opencl=OPENCL_C.hex(),
        opencl_size=len(OPENCL_C),
        vmvx=one.hex(),
        vmvx_size=len(one),
    )
    program = compile_mlir(text, "vmvx")
    found = {uri: np.asarray(halgpu.load(program, uri).run()).tolist() for uri in ("host", "opencl")}
    assert found == {"host": [1], "opencl": [2] if first == "opencl" else [1]}


@settings(max_examples=300)
@given(st.data())
def test_damaged_executables_are_refused_or_run(executable: bytes, data: st.DataObject) -> None:
    changed = bytearray(executable)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        changed = changed[: data.draw(st.integers(0, len(changed)))]
    with contextlib.suppress(errors.Error):
        load(bytes(changed))
