"""Arrays through programs, on every device: cases that other runtimes got wrong.

`PASSING` hands its arguments back and needs no kernel, so that it runs on every device; `WORKING` has kernels.
Expected values are numpy's. The command line and .npy files must agree with Python (tests/cli has more).
"""

from __future__ import annotations

import gc
import itertools
import re
import time
import tomllib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import halgpu
from halgpu import errors
from halgpu.cli import main

MATRIX = Path(__file__).resolve().parents[1] / "ci" / "matrix.toml"
# The programs here are for the vulkan target, which CUDA devices do not run.
DEVICES = [
    entry["uri"] for entry in tomllib.loads(MATRIX.read_text())["device"] if "cuda" not in entry["name"]
]

PASSING = """
module @passing {
  func.func @f32(%a: tensor<?xf32>) -> tensor<?xf32> { return %a : tensor<?xf32> }
  func.func @plane(%a: tensor<?x?xf32>) -> tensor<?x?xf32> { return %a : tensor<?x?xf32> }
  func.func @ui8(%a: tensor<2xui8>) -> tensor<2xui8> { return %a : tensor<2xui8> }
  func.func @si8(%a: tensor<2xsi8>) -> tensor<2xsi8> { return %a : tensor<2xsi8> }
  func.func @i8(%a: tensor<2xi8>) -> tensor<2xi8> { return %a : tensor<2xi8> }
  func.func @f16(%a: tensor<?xf16>) -> tensor<?xf16> { return %a : tensor<?xf16> }
  func.func @bf16(%a: tensor<?xbf16>) -> tensor<?xbf16> { return %a : tensor<?xbf16> }
  func.func @i1(%a: tensor<?xi1>) -> tensor<?xi1> { return %a : tensor<?xi1> }
  func.func @empty(%a: tensor<3x0x4xf32>) -> tensor<3x0x4xf32> { return %a : tensor<3x0x4xf32> }
  func.func @rank0(%a: tensor<i32>) -> tensor<i32> { return %a : tensor<i32> }
  func.func @scalars(%a: f32, %b: i32) -> (f32, i32) { return %a, %b : f32, i32 }
}
"""

WORKING = """
module @working {
  func.func @f32(%a: tensor<?xf32>) -> tensor<?xf32> {
    %0 = arith.addf %a, %a : tensor<?xf32>
    return %0 : tensor<?xf32>
  }
  func.func @plane(%a: tensor<?x?xf32>) -> tensor<?x?xf32> {
    %0 = arith.addf %a, %a : tensor<?x?xf32>
    return %0 : tensor<?x?xf32>
  }
  func.func @i8(%a: tensor<?xi8>) -> tensor<?xi8> {
    %0 = arith.addi %a, %a : tensor<?xi8>
    return %0 : tensor<?xi8>
  }
  func.func @i1(%a: tensor<?xi1>, %b: tensor<?xi1>) -> tensor<?xi1> {
    %0 = arith.xori %a, %b : tensor<?xi1>
    return %0 : tensor<?xi1>
  }
  func.func @empty(%a: tensor<3x?x4xf32>) -> tensor<3x?x4xf32> {
    %0 = arith.addf %a, %a : tensor<3x?x4xf32>
    return %0 : tensor<3x?x4xf32>
  }
  func.func @rank0(%a: tensor<i32>) -> tensor<i32> {
    %0 = arith.addi %a, %a : tensor<i32>
    return %0 : tensor<i32>
  }
}
"""


@pytest.fixture(scope="module", params=DEVICES)
def passing(request, compile_mlir):
    return halgpu.load(compile_mlir(PASSING), request.param)


@pytest.fixture(scope="module", params=[uri for uri in DEVICES if uri.startswith("opencl")])
def working(request, compile_mlir):
    return halgpu.load(compile_mlir(WORKING), request.param)


@pytest.fixture
def exact(working, compile_mlir, unguarded):
    """`working` where no guards are counted or moved."""
    device = unguarded(working.device)
    return working if device is working.device else halgpu.load(compile_mlir(WORKING), device)


@pytest.fixture(scope="module", params=DEVICES)
def modules(request, compile_mlir):
    """Programs on one device, each with what its results are times its arguments."""
    found = [(halgpu.load(compile_mlir(PASSING), request.param), 1)]
    if request.param.startswith("opencl"):
        found.append((halgpu.load(compile_mlir(WORKING), request.param), 2))
    return found


@pytest.fixture(scope="module")
def files(compile_mlir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    (folder / "passing.vmfb").write_bytes(compile_mlir(PASSING))
    (folder / "working.vmfb").write_bytes(compile_mlir(WORKING))
    return folder


def cli(files, capsys, program, device, function, *words):
    status = main(
        ["run", f"--module={files / program}.vmfb", f"--device={device}", f"--function={function}", *words]
    )
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    return out


# Shapes -----------------------------------------------------------------------------------------------


def test_empty_tensors_through_everything(modules):
    flat, cube, truth = np.zeros(0, np.float32), np.zeros((3, 0, 4), np.float32), np.zeros(0, np.bool_)
    for module, _ in modules:
        module.f32(np.ones(1, np.float32))
        start = time.perf_counter()
        twice = [truth] * len(module.i1.signature.parameters)
        results = [
            module.f32(flat), module.f32([]), module.f32(module.f32(flat)), module.empty(cube), module.i1(*twice),
            module.plane(np.zeros((0, 5), "f4")), module.plane(np.zeros((5, 0), "f4")),
        ]  # fmt: skip
        shapes = [(0,), (0,), (0,), (3, 0, 4), (0,), (0, 5), (5, 0)]
        for view, shape in zip(results, shapes, strict=True):
            array = np.asarray(view)
            assert (view.shape, array.shape, view.nbytes, array.dtype) == (shape, shape, 0, view.dtype)
            assert (
                np.from_dlpack(view).shape
                == view.memoryview().shape
                == np.array(view, copy=False).shape
                == shape
            )
            assert halgpu.BufferView.from_array(view, "host").shape == shape
        assert time.perf_counter() - start < 1


@pytest.mark.parametrize("device", DEVICES)
def test_empty_tensors_on_the_command_line(device, files, capsys):
    start = time.perf_counter()
    assert cli(files, capsys, "passing", device, "empty", "--input=3x0x4xf32").endswith("3x0x4xf32=[][][]\n")
    assert cli(files, capsys, "passing", device, "f32", "--input=0xf32").endswith("0xf32=\n")
    assert cli(files, capsys, "passing", device, "i1", "--input=0xi1").endswith("0xi1=\n")
    assert time.perf_counter() - start < 1


def test_rank_0_stays_rank_0(modules):
    for value in (
        np.array(3, np.int32),
        np.int32(3),
        3,
        halgpu.BufferView.from_array(np.array(3, np.int32), "host"),
    ):
        for module, factor in modules:
            view = module.rank0(value)
            array = np.asarray(view)
            assert (view.shape, array.shape, array.dtype, int(array)) == ((), (), np.int32, 3 * factor)
            assert np.from_dlpack(view).shape == view.memoryview().shape == ()
    with pytest.raises(errors.InvalidArgument, match="expected tensor<i32>, found 1xsi32"):
        modules[0][0].rank0(np.array([3], np.int32))


RECORDS = np.zeros(7, [("a", "i1"), ("b", "<f4"), ("c", "i1", 3)])
RECORDS["b"] = np.arange(7)
BASE = np.arange(35, dtype=np.float32).reshape(5, 7)
STRIDED = {
    "transposed": BASE.T,
    "stepped": BASE[::2],
    "stepped both": BASE[1::2, ::3],
    "reversed": BASE[::-1],
    "reversed both": BASE[::-1, ::-1],
    "broadcast": np.broadcast_to(np.float32(2.5), (3, 4)),
    "broadcast row": np.broadcast_to(BASE[0], (3, 7)),
    "field": np.broadcast_to(RECORDS["b"], (2, 7)),
    "Fortran": np.asfortranarray(BASE),
    "big-endian": BASE.astype(">f4"),
    "big-endian transposed": BASE.astype(">f4").T,
    "unaligned": np.frombuffer(b"." + BASE.tobytes(), np.float32, 35, 1).reshape(5, 7),
}


@pytest.mark.parametrize("array", STRIDED.values(), ids=STRIDED.keys())
def test_strides_and_byte_orders_equal_a_contiguous_copy(modules, array):
    contiguous = np.array(array, np.float32, order="C")
    kept = array.copy()
    for module, factor in modules:
        for argument in (array, halgpu.BufferView.from_array(array, module.device)):
            assert np.asarray(module.plane(argument)).tobytes() == (contiguous * np.float32(factor)).tobytes()
    assert array.tobytes() == kept.tobytes()


def test_a_structured_field(modules):
    for module, factor in modules:
        assert np.asarray(module.f32(RECORDS["b"])).tolist() == [factor * i for i in range(7)]


def test_a_read_only_input_works_and_is_never_changed(modules):
    array = BASE.copy()
    array.flags.writeable = False
    for module, _ in modules:
        view = module.plane(array)
        back = np.asarray(view)
        back[:] = 0
        view.buffer.write()[:] = bytes(view.nbytes)
        module.plane(view)
    assert array.tolist() == BASE.tolist()


def test_changing_the_input_after_the_call_changes_nothing(modules):
    for module, factor in modules:
        array = BASE.copy()
        view = module.plane(array)
        array[:] = -1
        assert np.asarray(view).tolist() == (factor * BASE).tolist()


# Element types ----------------------------------------------------------------------------------------


def test_bytes_of_a_declared_sign_come_back_as_they_went_in(passing):
    unsigned, signed = np.array([200, 255], np.uint8), np.array([-56, -1], np.int8)
    for value in (unsigned, [200, 255], halgpu.BufferView.from_array(unsigned, passing.device)):
        back = np.asarray(passing.ui8(value))
        assert (back.dtype, back.tolist()) == (np.uint8, [200, 255])
    for value in (signed, [-56, -1]):
        back = np.asarray(passing.si8(value))
        assert (back.dtype, back.tolist()) == (np.int8, [-56, -1])


# The rule of docs/arrays.md, whatever the way in and out: data keeps its sign as long as nothing is computed,
# and what is signless (computed, typed in, or from a list) reads as signed.

SIGNS = [
    # program, what goes in, what the text says, dtype and values of what comes out
    ("passing", np.array([200, 255], np.uint8), "2xui8=200 255", np.uint8, [200, 255]),
    ("passing", np.array([-56, -1], np.int8), "2x(s|)i8=-56 -1", np.int8, [-56, -1]),
    ("passing", "2xi8=200 255", "2xi8=-56 -1", np.int8, [-56, -1]),
    ("passing", "2xi8=-56 -1", "2xi8=-56 -1", np.int8, [-56, -1]),
    ("working", np.array([100, 255], np.uint8), "2xi8=-56 -2", np.int8, [-56, -2]),
    ("working", np.array([100, -1], np.int8), "2xi8=-56 -2", np.int8, [-56, -2]),
    ("working", "2xi8=100 255", "2xi8=-56 -2", np.int8, [-56, -2]),
]


@pytest.mark.parametrize(("program", "given", "text", "dtype", "values"), SIGNS)
@pytest.mark.parametrize("device", DEVICES)
def test_signs(device, program, given, text, dtype, values, files, capsys, tmp_path):
    if program == "working" and not device.startswith("opencl"):
        return
    module = halgpu.load(files / f"{program}.vmfb", device)
    value = given if isinstance(given, np.ndarray) else [int(word) for word in given[5:].split()]
    for argument in (value, halgpu.BufferView.from_array(value, device) if value is given else value):
        view = module.i8(argument)
        assert re.fullmatch(text.partition("=")[0], view.type_text)
        for back in (np.asarray(view), np.from_dlpack(view), np.asarray(view.memoryview())):
            assert (back.dtype, back.tolist()) == (dtype, values)
    if value is given:
        np.save(tmp_path / "in.npy", given)
        given = f"@{tmp_path / 'in.npy'}"
    printed = cli(files, capsys, program, device, "i8", f"--input={given}").splitlines()[-1]
    assert re.fullmatch(text, printed)
    cli(files, capsys, program, device, "i8", f"--input={given}", f"--output=@{tmp_path / 'out.npy'}")
    saved = np.load(tmp_path / "out.npy")
    assert (saved.dtype, saved.tolist()) == (dtype, values)


@pytest.mark.parametrize("device", DEVICES)
def test_unsigned_bytes_on_the_command_line(device, files, capsys, tmp_path):
    assert cli(files, capsys, "passing", device, "ui8", "--input=2xui8=200 255").endswith("2xui8=200 255\n")
    cli(files, capsys, "passing", device, "ui8", "--input=2xui8=200 255", f"--output=@{tmp_path / 'out.npy'}")
    assert (np.load(tmp_path / "out.npy").dtype, np.load(tmp_path / "out.npy").tolist()) == (
        np.uint8,
        [200, 255],
    )


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_narrow_floats_of_every_bit_pattern(passing, name):
    dtype = np.dtype(np.float16 if name == "f16" else ml_dtypes.bfloat16)
    array = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    view = passing[name](array)
    back = np.asarray(view)
    assert back.dtype == dtype
    assert back.tobytes() == array.tobytes() == view.memoryview().tobytes()
    # Lists round to the nearest, subnormals included.
    smallest = float(np.array(1, np.uint16).view(dtype))
    values = [np.inf, -np.inf, np.nan, smallest, -smallest, 0.0, -0.0, 1 / 3]
    assert np.asarray(passing[name](values)).tobytes() == np.array(values).astype(dtype).tobytes()


@pytest.mark.parametrize("device", DEVICES)
def test_narrow_floats_on_the_command_line(device, files, capsys):
    for name in ("bf16", "f16"):
        text = cli(files, capsys, "passing", device, name, f"--input=4x{name}=1 2.5 nan -inf")
        assert text.lower().endswith(f"4x{name}=1 2.5 nan -inf\n")


def test_truth_values_computed_with(working):
    for value in ([0, 1, True, False], np.array([0, 1, 1, 0], np.bool_)):
        assert np.asarray(working.i1(value, [1, 1, 0, 0])).tolist() == [True, False, True, False]


def test_truth_values(passing):
    for value in ([0, 1, True, False], np.array([0, 1, 1, 0], np.bool_)):
        back = np.asarray(passing.i1(value))
        assert (back.dtype, back.tolist()) == (np.bool_, [False, True, True, False])
    with pytest.raises(OverflowError, match="2, which does not fit 0 to 1"):
        passing.i1([0, 2])
    with pytest.raises(errors.InvalidArgument, match="found 2xsi64"):
        passing.i1(np.array([0, 1]))


@pytest.mark.parametrize("device", DEVICES)
def test_truth_values_on_the_command_line(device, files, capsys):
    text = cli(files, capsys, "passing", device, "i1", "--input=4xi1=[0 1 true false]")
    assert text.endswith("4xi1=00 01 01 00\n")


def test_scalars(passing):
    for two in (2.0, 2, np.float32(2), np.array(2), np.int64(2)):
        assert passing.scalars(two, two) == (2.0, 2)
        assert [type(value) for value in passing.scalars(two, two)] == [float, int]
    for arguments in (("2", 2), (2, "2"), (None, 2), (2, [2])):
        with pytest.raises(TypeError, match=r"expected (f32|i32), found"):
            passing.scalars(*arguments)
    with pytest.raises(OverflowError, match=f"input1: expected i32, found {2**40}"):
        passing.scalars(2, 2**40)


def test_data_of_another_type_names_parameter_expected_and_found(modules):
    for module, _ in modules:
        with pytest.raises(errors.InvalidArgument, match=r"input0: expected tensor<\?xf32>, found 3xf64"):
            module.f32(np.zeros(3))
        view = halgpu.BufferView.from_array(np.zeros(3), module.device)
        with pytest.raises(errors.InvalidArgument, match=r"input0: expected tensor<\?xf32>, found 3xf64"):
            module.f32(view)


@pytest.mark.parametrize("uri", DEVICES)
def test_a_view_larger_than_its_buffer(uri):
    with halgpu.open_device(uri).allocator.allocate(15) as buffer:
        assert halgpu.BufferView(buffer, (3,), "f32").nbytes == 12
        with pytest.raises(errors.OutOfRange, match="4xf32 needs 16 bytes, its buffer has 15"):
            halgpu.BufferView(buffer, (4,), "f32")


# Without copies ---------------------------------------------------------------------------------------


def moved(before, after):
    return after.bytes_up - before.bytes_up, after.bytes_down - before.bytes_down


def test_bytes_that_calls_move(exact):
    # What docs/arrays.md says; on unified memory nothing ever moves.
    device, array = exact.device, np.arange(1000, dtype=np.float32)
    each = 0 if device.capabilities.unified_memory else array.nbytes
    one = device.statistics
    view = exact.f32(array)
    two = device.statistics
    chained = exact.f32(exact.f32(view))
    three = device.statistics
    first, second = np.asarray(chained), np.array(chained, copy=False)
    four = device.statistics
    assert moved(one, two) == (each, 0)
    assert moved(two, three) == (0, 0)
    assert moved(three, four) == (0, each)
    assert four.bytes_allocated == three.bytes_allocated
    assert first.tolist() == second.tolist() == (8 * array).tolist()


def test_a_host_array_in_place_as_an_argument(exact):
    device = exact.device
    if not device.capabilities.unified_memory:
        return
    storage = np.zeros(4064, np.uint8)
    array = storage[-storage.ctypes.data % 64 :][:4000].view(np.float32)
    array[:] = np.arange(1000)
    gc.collect()
    before = device.statistics
    view = halgpu.BufferView.from_array(array, device, copy=False)
    result = exact.f32(view)
    assert device.statistics.bytes_allocated == before.bytes_allocated + 4000  # the result's alone
    assert np.asarray(result).tolist() == list(range(0, 2000, 2))
    assert array.tolist() == list(range(1000))


def test_a_pyopencl_array_as_an_argument(exact):
    import pyopencl.array

    device = exact.device
    there = pyopencl.array.arange(device.queue.native, 1000, dtype=np.float32)
    before = device.statistics
    result = exact.f32(there)
    after = device.statistics
    assert moved(before, after) == (0, 0)
    assert after.bytes_allocated == before.bytes_allocated + 4000
    assert np.asarray(result).tolist() == list(range(0, 2000, 2))


# Ends (tests/test_processes.py has those of processes) -----------------------------------------------


@pytest.mark.parametrize("held", ["device", "module", "view", "array", "window"])
def test_each_holder_alone_keeps_what_it_needs(working, held):
    device = working.device
    program = working.new_context()
    gc.collect()
    before = device.statistics.live_handles
    objects = {"device": device, "module": program, "view": program.f32(np.ones(8, np.float32))}
    objects["array"] = np.asarray(objects["view"])
    objects["window"] = np.array(objects["view"], copy=False)
    kept = objects[held]
    del objects, program
    gc.collect()
    assert device.statistics.live_handles == before + (held in ("view", "window"))
    if held == "module":
        kept = kept.f32(np.ones(8, np.float32))
    if held != "device":
        assert np.asarray(kept).tolist() == [2] * 8


def test_results_of_one_call_are_separate(passing):
    values = [np.asarray(view) for view in itertools.starmap(passing.f32, [([1.0],), ([2.0],)])]
    values[0][0] = 9
    assert values[1].tolist() == [2]
