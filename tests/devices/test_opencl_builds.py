"""Building several programs: as one, side by side, and what a failing one among them says."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from halgpu.devices import BindingLayout, Device, KernelLayout, Program, opencl_builds
from halgpu.devices.opencl import OpenCLDevice
from halgpu.devices.quirks import Quirks, opencl_quirks
from halgpu.errors import InvalidArgument

# Every name of it is given anew by each program that is made of it, with another meaning.
SOURCE = """#pragma OPENCL FP_CONTRACT OFF
typedef struct { ulong offsets[1]; } arguments;
typedef struct { TYPE value; } box;
__constant uint table[2] = {VALUE, VALUE + 1};
static TYPE helper(TYPE x) { box b; b.value = x; return b.value + table[1]; }
__kernel __attribute__((reqd_work_group_size(4, 1, 1))) void NAME(__global uchar* out, arguments p) {
  uint2 v = (uint2)((uint)helper(VALUE), 1);
  ((__global uint*)(out + p.offsets[0]))[get_global_id(0)] = v.x;
}
"""
TYPES = ("uint", "int", "float", "long")


def part(value: int, name: str = "fill", names: frozenset[str] | None = None) -> Program:
    """A program whose kernel writes 2 * value + 1 into four uints."""
    text = SOURCE.replace("VALUE", str(value)).replace("NAME", name).replace("TYPE", TYPES[value % 4])
    given = frozenset({"arguments", "box", "table", "helper", name}) if names is None else names
    return Program(
        "opencl-c", text, (KernelLayout(name, 0, (BindingLayout("write", 4),), (4, 1, 1)),), names=given
    )


def ran(device: Device, programs: list[Program]) -> list[list[int]]:
    """What the first kernel of each program writes."""
    results = []
    for (kernel,) in device.build_all(programs):
        with device.allocator.allocate(16) as out:
            kernel.dispatch(1, [], [(out, 0, 16)])
            results.append(list(np.frombuffer(bytes(out.read()), np.uint32)))
    return results


@pytest.fixture
def device(request: pytest.FixtureRequest) -> OpenCLDevice:
    # A device of its own, so that counters start at zero and its quirks can be changed.
    from halgpu.devices import opencl

    device = opencl.open_device("opencl:0", 0, {})
    assert isinstance(device, OpenCLDevice)
    return device


def compiled(device: Device) -> int:
    return device.statistics.programs_compiled


def test_programs_with_the_same_names_are_built_as_one(device: OpenCLDevice) -> None:
    device.quirks = Quirks(one_program=True, serial_builds=True)
    assert ran(device, [part(value) for value in range(4)]) == [[2 * value + 1] * 4 for value in range(4)]
    assert compiled(device) == 1
    (kernel,) = device.build_all([part(1), part(2)])[1]
    assert kernel.layout.name == "fill"


@pytest.mark.parametrize("name", ["x", "OFF"])
def test_a_name_that_is_no_good_for_a_macro_is_built_alone(device: OpenCLDevice, name: str) -> None:
    device.quirks = Quirks(one_program=True, serial_builds=True)
    assert ran(device, [part(1), part(2, name), part(3)]) == [[3] * 4, [5] * 4, [7] * 4]
    assert compiled(device) == 2


def test_programs_of_other_options_or_unknown_names_are_not_joined(device: OpenCLDevice) -> None:
    device.quirks = Quirks(one_program=True, serial_builds=True)
    programs = [
        part(1), replace(part(2), options=("-DA",)), part(3, names=frozenset()),
        part(4), replace(part(5), options=("-DA",)),
    ]  # fmt: skip
    assert ran(device, programs) == [[3] * 4, [5] * 4, [7] * 4, [9] * 4, [11] * 4]
    assert compiled(device) == 3


def test_extensions_and_layouts_of_what_is_joined() -> None:
    programs = [replace(part(1), extensions=("a", "b")), replace(part(2), extensions=("b", "c"))]
    joined = opencl_builds.join(programs)
    assert joined.extensions == ("a", "b", "c")
    assert [layout.name for layout in joined.layouts] == ["fill_part0", "fill_part1"]


@pytest.mark.parametrize("together", [True, False])
def test_the_first_failing_program_is_named(device: OpenCLDevice, together: bool) -> None:
    device.quirks = Quirks(one_program=together, serial_builds=together)
    programs = [part(value, f"kernel{value}") for value in range(4)]
    for broken in (1, 3):
        source = programs[broken].source.replace("= v.x;", "= nonsense;")
        programs[broken] = replace(programs[broken], source=source)
    with pytest.raises(InvalidArgument, match=r"could not build kernels kernel1\n") as caught:
        device.build_all(programs)
    assert "8 |   ((__global uint*)(out + p.offsets[0]))[get_global_id(0)] = nonsense;" in str(
        caught.value.details
    )
    assert "part" not in str(caught.value.details)


def test_a_layout_that_disagrees_is_told_by_its_own_name(device: OpenCLDevice) -> None:
    device.quirks = Quirks(one_program=True, serial_builds=True)
    wrong = replace(part(2), layouts=(replace(part(2).layouts[0], workgroup_size=(8, 1, 1)),))
    with pytest.raises(InvalidArgument, match=r"kernel 'fill' was compiled for workgroups of \(4, 1, 1\)"):
        device.build_all([part(1), wrong])


def test_side_by_side_in_threads(device: OpenCLDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    device.quirks = Quirks()
    monkeypatch.setattr(opencl_builds.os, "cpu_count", lambda: 4)
    assert ran(device, [part(value) for value in range(6)]) == [[2 * value + 1] * 4 for value in range(6)]
    assert compiled(device) == 6


def test_no_programs(device: OpenCLDevice) -> None:
    assert list(device.build_all([])) == []


def test_drivers() -> None:
    assert opencl_quirks("Portable Computing Language", "any", cpu=True).one_program
    assert opencl_quirks("Oclgrind", "any", cpu=True).serial_builds
    assert opencl_quirks("Intel(R) OpenCL Graphics", "Intel(R) Corporation", cpu=False) == Quirks()


def test_a_process_that_ends_while_threads_build() -> None:
    code = """
import os, sys, threading
os.cpu_count = lambda: 4
from halgpu.devices import Program, KernelLayout, open_device
from halgpu.devices.quirks import Quirks
device = open_device("opencl?cache=0")
device.quirks = Quirks()
programs = [Program("opencl-c", f"__kernel void k() {{ /* {os.getpid()} {i} */ }}", (KernelLayout("k", 0, (), (1, 1, 1)),))
            for i in range(6)]
begun = threading.Event()
def build():
    begun.set()
    device.build_all(programs)
threading.Thread(target=build, daemon=True).start()
begun.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
