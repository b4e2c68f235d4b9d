"""`halgpu.load`, modules and functions."""

from __future__ import annotations

import gc
import io
import mmap
import os
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import halgpu
from halgpu import errors

TWO = """
module @two {
  func.func @plus(%a: tensor<?x2xf32>, %b: tensor<?x2xf32>) -> tensor<?x2xf32> {
    %0 = arith.addf %a, %b : tensor<?x2xf32>
    return %0 : tensor<?x2xf32>
  }
  func.func @both(%a: tensor<2xf32>, %k: i32) -> (tensor<2xf32>, i32, tensor<2xf32>) {
    %0 = arith.addf %a, %a : tensor<2xf32>
    %1 = arith.mulf %a, %a : tensor<2xf32>
    %2 = arith.addi %k, %k : i32
    return %0, %2, %1 : tensor<2xf32>, i32, tensor<2xf32>
  }
  func.func @narrow(%a: i8, %b: ui8, %c: i1, %d: f16) -> (i8, ui8, i1, f16) { return %a, %b, %c, %d : i8, ui8, i1, f16 }
  func.func @id(%a: tensor<2x3xi16>) -> tensor<2x3xi16> { return %a : tensor<2x3xi16> }
  func.func @nothing() { return }
  func.func @device(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> }
}
"""


@pytest.fixture(scope="module")
def abs_program(compile_mlir, examples) -> bytes:
    return compile_mlir((examples / "abs.mlir").read_text())


@pytest.fixture(scope="module")
def two(compile_mlir):
    return halgpu.load(compile_mlir(TWO), "opencl")


X = np.array([-2, 3], np.float32)


def run_abs(source, **options):
    module = halgpu.load(source, device="opencl", **options)
    assert np.asarray(module.abs(X)).tolist() == [2, 3]
    return module


# Sources ----------------------------------------------------------------------------------------------


def test_a_program_comes_from_a_path(abs_program, tmp_path):
    path = tmp_path / "abs.vmfb"
    path.write_bytes(abs_program)
    run_abs(path)
    module = run_abs(str(path))
    path.unlink()
    assert np.asarray(module.abs(-X)).tolist() == [2, 3]
    assert np.asarray(module.new_context().abs(X)).tolist() == [2, 3]


@pytest.mark.parametrize("offset", [0, 1, 3, 8])
@pytest.mark.parametrize("make", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_a_program_comes_from_bytes_at_any_offset(abs_program, make, offset):
    data = make(b"#" * offset + abs_program)
    run_abs(memoryview(data)[offset:] if offset else data)


def test_a_program_comes_from_a_mapped_file(abs_program, tmp_path):
    path = tmp_path / "abs.vmfb"
    path.write_bytes(abs_program)
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    run_abs(mapped)


def test_a_program_comes_from_shared_memory_of_another_type(abs_program):
    padded = abs_program + bytes(-len(abs_program) % 4)
    run_abs(memoryview(padded).cast("I"))
    file = io.BytesIO(abs_program)
    run_abs(file.getbuffer())
    # Python 3.12 and 3.13 complain of a BytesIO that is collected together with a view of it. The first collection
    # ends the program, which is part of a cycle, and the second the cycle.
    gc.collect()
    gc.collect()
    file.close()  # raises while anything holds the view


# Modules ----------------------------------------------------------------------------------------------


def test_functions_are_attributes_and_items(two):
    assert two.plus is two["plus"] is two.functions["plus"]
    assert list(two) == list(two.functions) == ["plus", "both", "narrow", "id", "nothing", "device"]
    assert "plus" in two
    assert "__init" not in two
    assert len(two) == 6
    assert {"plus", "close", "device"} <= set(dir(two))
    assert two.name == "two"
    assert two.device is halgpu.open_device("opencl")
    assert repr(two) == f"<Module two on {two.device.uri}: plus, both, narrow, id, nothing, device>"


def test_a_function_whose_name_is_taken_is_an_item(two):
    assert np.asarray(two["device"](2.5)).tolist() == 2.5


def test_a_function_whose_name_begins_like_a_private_one_is_an_item(compile_mlir):
    module = halgpu.load(compile_mlir("func.func @_f(%a: i32) -> i32 { return %a : i32 }"), "opencl")
    assert module["_f"](3) == 3
    with pytest.raises(
        AttributeError, match=r"no attribute '_f'; its function of that name is module\['_f'\]"
    ):
        _ = module._f
    with pytest.raises(AttributeError, match=r"no attribute '_g'$"):
        _ = module._g


def test_a_function_is_like_one_of_python(two):
    assert (two.plus.__name__, type(two.plus).__name__) == ("plus", "Function")
    assert "positional argument" in two.plus.__call__.__doc__
    assert [name for name in dir(two.plus) if not name.startswith("_")] == ["name", "signature"]
    with pytest.raises(TypeError, match="found 1 and input1=; pass all by position") as caught:
        two.both(X, input1=1)
    assert isinstance(caught.value, errors.InvalidArgument)
    with pytest.raises(
        TypeError, match=r"function 'device': expected 1 argument \(input0: tensor<f32>\), found 0"
    ):
        two["device"]()


def test_a_missing_function_says_what_there_is(two):
    for get in (lambda: two.pluss, lambda: two["pluss"]):
        with pytest.raises(
            errors.NotFound, match=r"no function 'pluss' \(did you mean 'plus'\?\); it has: plus, both"
        ):
            get()
    assert not hasattr(two, "nope")
    assert not hasattr(two, "__wrapped__")


def test_signatures_are_shown(two):
    assert repr(two.both) == (
        "<Function both(input0: tensor<2xf32>, input1: i32) -> (tensor<2xf32>, i32, tensor<2xf32>)>"
    )
    assert two.both.signature.declaration.startswith("sync func @both(")


def test_the_device_is_a_uri_an_object_or_the_default(abs_program, monkeypatch):
    device = halgpu.open_device("opencl")
    assert halgpu.load(abs_program, device).device is device
    assert halgpu.load(abs_program).device is device
    monkeypatch.setenv("HALGPU_DEVICE", "opencl?unified=0")
    assert halgpu.load(abs_program).device.uri == "opencl:0?unified=0"


def test_a_closed_module_refuses_and_its_results_stay(abs_program):
    module = halgpu.load(abs_program, "opencl")
    function, result = module.abs, module.abs(X)
    module.close()
    module.close()
    assert "closed" in repr(module)
    for use in (lambda: function(X), lambda: module.abs(X), lambda: module["abs"]):
        with pytest.raises(
            errors.FailedPrecondition,
            match=r"module 'module' was closed \(by close\(\) or the end of a with block\); load it again",
        ):
            use()
    assert np.asarray(result).tolist() == [2, 3]


def test_a_dropped_module_goes_at_once(abs_program):
    module = halgpu.load(abs_program, "opencl")
    module.abs(X)
    gc.disable()
    try:
        reference = weakref.ref(module)
        del module
        assert reference() is None
    finally:
        gc.enable()


def test_dependencies_are_linked(compile_mlir):
    other = """
    module @other {
      util.global private mutable @count = 0 : i32
      func.func @f(%a: i32) -> i32 {
        %0 = util.global.load @count : i32
        %1 = arith.addi %0, %a : i32
        util.global.store %1, @count : i32
        return %1 : i32
      }
    }
    """
    main = """
    module @main {
      func.func private @other.f(i32) -> i32
      func.func @f(%a: i32) -> i32 {
        %0 = call @other.f(%a) : (i32) -> i32
        return %0 : i32
      }
    }
    """
    module = halgpu.load(compile_mlir(main), "opencl", dependencies=[compile_mlir(other)])
    assert (module.name, list(module)) == ("main", ["f"])
    assert [module.f(2), module.f(3), module.new_context().f(4)] == [2, 5, 4]


class Host(halgpu.vm.NativeModule):
    """What a program of this test imports: Python over its tensors and scalars."""

    name = "python"

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    @halgpu.vm.export("double", "0r_r")
    def double(self, view):
        self.calls += 1
        return halgpu.BufferView.from_array(view.to_numpy() * 2, view.device)

    @halgpu.vm.export("count", "0_i")
    def count(self):
        return self.calls


IMPORTS_PYTHON = """
func.func private @python.double(tensor<?xf32>) -> tensor<?xf32>
func.func private @python.count() -> i32
func.func @main(%x: tensor<?xf32>) -> (tensor<?xf32>, i32) {
  %abs = math.absf %x : tensor<?xf32>
  %two = call @python.double(%abs) : (tensor<?xf32>) -> tensor<?xf32>
  %root = math.sqrt %two : tensor<?xf32>
  %count = call @python.count() : () -> i32
  return %root, %count : tensor<?xf32>, i32
}
"""


def test_programs_import_python(compile_mlir):
    program = compile_mlir(IMPORTS_PYTHON)
    module = halgpu.load(program, "opencl", dependencies=[Host])
    for count in (1, 2):
        root, counted = module.main(np.float32([-2, 8, 0]))
        assert (np.asarray(root).tolist(), counted) == ([2, 4, 0], count)
    assert module.new_context().main(X)[1] == 1


def test_an_instance_of_a_native_module_is_for_one_context(compile_mlir):
    host = Host()
    module = halgpu.load(compile_mlir(IMPORTS_PYTHON), "opencl", dependencies=[host])
    module.main(X)
    assert host.calls == 1
    with pytest.raises(halgpu.errors.FailedPrecondition, match=r"python already belongs to a context"):
        module.new_context()


def test_a_missing_module_is_named(compile_mlir):
    with pytest.raises(halgpu.errors.Incompatible, match=r"imports python, which is not there"):
        halgpu.load(compile_mlir(IMPORTS_PYTHON), "opencl")


def test_a_program_without_kernels_runs_in_the_vm(compile_mlir, examples):
    run_abs(compile_mlir((examples / "abs.mlir").read_text(), "vmvx-inline", model="inline-static"))


# Calls ------------------------------------------------------------------------------------------------


def test_results_are_none_one_or_a_tuple(two):
    assert two.nothing() is None
    first, number, second = two.both(X, 21)
    assert isinstance(first, halgpu.BufferView)
    assert number == 42
    assert (np.asarray(first).tolist(), np.asarray(second).tolist()) == ([-4, 6], [4, 9])


def test_narrow_scalars_come_back_as_they_went_in(two):
    assert two.narrow(-3, 200, True, 1.5) == (-3, 200, True, 1.5)
    assert two.narrow(2.0, np.uint8(255), 0, np.float16(-2)) == (2, 255, False, -2.0)


def test_arrays_of_any_strides_and_byte_order(two):
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    for array in (
        base[:, :2],
        base[::-1, ::3],
        base.T[:, :2],
        base[:2, :2].astype(">f4"),
        np.broadcast_to(np.float32(2), (7, 2)),
    ):
        expected = (array + array).astype(np.float32)
        assert np.asarray(two.plus(array, array)).tobytes() == expected.tobytes()


def test_empty_arrays(two):
    assert np.asarray(two.plus(np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32))).shape == (0, 2)


def test_views_go_in_again_without_a_copy(two):
    view = halgpu.BufferView.from_array(np.arange(6, dtype=np.int16).reshape(2, 3), "opencl")
    out = two.id(view)
    assert out is not view
    assert out.buffer is view.buffer
    view.release()
    assert np.asarray(two.id(out)).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_the_input_is_not_changed_and_the_result_is_the_users(two):
    x = X.copy()
    x.flags.writeable = False
    y = np.asarray(two.both(x, 1)[0])
    y[:] = 7
    assert x.tolist() == [-2, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X,), r"function 'both': expected 2 arguments \(input0: tensor<2xf32>, input1: i32\), found 1"),
        ((X, 1, 2), "expected 2 arguments .*, found 3"),
        ((np.zeros(3), 1), "input0: expected tensor<2xf32>, found 3xf64"),
        ((X, "1"), "input1: expected i32, found str '1'"),
        ((X, 2**40), "input1: expected i32, found 1099511627776, which does not fit"),
    ],
)
def test_wrong_arguments_name_the_parameter(two, arguments, message):
    with pytest.raises(errors.InvalidArgument, match=message):
        two.both(*arguments)


def test_dynamic_sizes_that_disagree_are_an_error(two):
    with pytest.raises(errors.InvalidArgument, match="expected tensor"):
        two.plus(np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32))


def test_failing_calls_leave_nothing(two):
    device = two.device
    before = device.statistics.live_handles
    for _ in range(50):
        with pytest.raises(errors.InvalidArgument):
            two.plus(np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float64))
    gc.collect()
    assert device.statistics.live_handles == before


def test_modules_in_several_threads(compile_mlir, examples):
    program = compile_mlir((examples / "counter.mlir").read_text())
    totals = []

    def work(step: float) -> None:
        module = halgpu.load(program, "opencl")
        for _ in range(30):
            result = module.add(np.full(4, step, np.float32))
        totals.append((step, np.asarray(result).tolist()))

    threads = [threading.Thread(target=work, args=(step,)) for step in (1.0, 2.0, 4.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(totals) == [(step, [30 * step] * 4) for step in (1.0, 2.0, 4.0)]


# Ends -------------------------------------------------------------------------------------------------

ENDS = """
import itertools, sys
import numpy as np
import halgpu
def objects():
    device = halgpu.open_device("opencl")
    module = halgpu.load({program!r}, device)
    view = module.add(np.ones(4, np.float32))
    return {{"device": device, "module": module, "function": module.add, "view": view,
             "buffer": view.buffer, "bytes": view.buffer.read(), "array": np.asarray(view)}}
for order in itertools.islice(itertools.permutations(objects()), 0, None, 211):
    held = objects()
    for name in order:
        del held[name]
device = halgpu.open_device("opencl")
assert device.statistics.live_handles == 0, device.statistics
keep = objects()
cycle = [keep]; cycle.append(cycle)
"""


def test_objects_go_in_every_order_and_at_exit(compile_mlir, examples, tmp_path):
    path = tmp_path / "counter.vmfb"
    path.write_bytes(compile_mlir((examples / "counter.mlir").read_text()))
    done = subprocess.run(
        [sys.executable, "-c", ENDS.format(program=os.fspath(path))],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


DAEMONS = """
import threading, time
import numpy as np
import halgpu
module = halgpu.load({program!r}, "opencl")
def call():
    while True:
        np.asarray(module.add(np.ones(4, np.float32)))
def load():
    while True:
        halgpu.load({program!r}, "opencl").add(np.ones(4, np.float32))
for target in (call, call, load):
    threading.Thread(target=target, daemon=True).start()
time.sleep(0.3)
"""


def test_daemon_threads_may_be_in_a_program_at_exit(compile_mlir, examples, tmp_path):
    path = tmp_path / "counter.vmfb"
    path.write_bytes(compile_mlir((examples / "counter.mlir").read_text()))
    done = subprocess.run(
        [sys.executable, "-c", DAEMONS.format(program=os.fspath(path))],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_a_failed_call_keeps_nothing(compile_mlir, examples):
    """No reference cycle holds what a failed call made: it goes without a garbage collection."""
    module = halgpu.load(compile_mlir((examples / "network.mlir").read_text()), device="opencl")
    arrays = [np.zeros(shape, np.float32) for shape in ((5, 37), (37, 53), (53,))]
    wrong = halgpu.BufferView.from_array(np.zeros(3, np.float32), device="opencl").buffer
    gc.collect()
    gc.disable()
    try:
        before = module.device.statistics.live_handles
        for _ in range(5):
            with pytest.raises(halgpu.Error, match="buffer_view"):
                module.network(*arrays, wrong)
        assert module.device.statistics.live_handles == before
    finally:
        gc.enable()
