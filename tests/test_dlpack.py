"""DLPack, both ways: capsules are read here by a parser of their own, after dlpack.h 1.1."""

from __future__ import annotations

import ctypes
import gc
import struct
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

from halgpu import arguments, dlpack, errors
from halgpu.buffer_view import BufferView
from halgpu.devices import open_device
from halgpu.signature import DECLARATION, of_function

POINTER = ctypes.pythonapi.PyCapsule_GetPointer
POINTER.restype, POINTER.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
READ_ONLY, IS_COPIED = 1, 2


def parse(capsule):
    """(name, version or None, flags, device, dtype, shape, strides or None, bytes) of a capsule."""
    name = "dltensor_versioned" if '"dltensor_versioned"' in repr(capsule) else "dltensor"
    at = POINTER(capsule, name.encode())
    version, flags = None, 0
    if name == "dltensor_versioned":
        version, flags = (
            struct.unpack("II", ctypes.string_at(at, 8)),
            ctypes.c_uint64.from_address(at + 24).value,
        )
        at += 32
    data, kind, index, rank, code, bits, lanes, shape, strides, offset = struct.unpack(
        "<QiiiBBHQQQ", ctypes.string_at(at, 48)
    )
    shape = list((ctypes.c_int64 * rank).from_address(shape)) if rank else []
    strides = list((ctypes.c_int64 * rank).from_address(strides)) if rank and strides else None
    size = int(np.prod(shape)) * bits // 8
    content = ctypes.string_at(data + offset, size) if size else b""
    return name, version, flags, (kind, index), (code, bits, lanes), shape, strides, content


ARRAYS = {
    "f32": (np.arange(6, dtype=np.float32).reshape(2, 3), (2, 32, 1)),
    "f64": (np.array([1.5]), (2, 64, 1)),
    "f16": (np.array([1, np.inf, np.nan, 6e-8], np.float16), (2, 16, 1)),
    "i8": (np.array([-1, 5], np.int8), (0, 8, 1)),
    "ui32": (np.array([1, 2**32 - 1], np.uint32), (1, 32, 1)),
    "i64": (np.array([-(2**63)]), (0, 64, 1)),
    "bool": (np.array([[True], [False]]), (6, 8, 1)),
    "complex": (np.array([1 + 2j], np.complex64), (5, 64, 1)),
    "complex128": (np.array([1 + 2j]), (5, 128, 1)),
    "bf16": (np.array([1, np.inf, np.nan, 1e-40], ml_dtypes.bfloat16), (4, 16, 1)),
    "f8E4M3FN": (np.array([1, 448], ml_dtypes.float8_e4m3fn), (10, 8, 1)),
    "f8E4M3FNUZ": (np.array([1, 2], ml_dtypes.float8_e4m3fnuz), (11, 8, 1)),
    "f8E5M2": (np.array([1, np.inf], ml_dtypes.float8_e5m2), (12, 8, 1)),
    "f8E5M2FNUZ": (np.array([1, 2], ml_dtypes.float8_e5m2fnuz), (13, 8, 1)),
    "f8E8M0FNU": (np.array([1, 2], ml_dtypes.float8_e8m0fnu), (14, 8, 1)),
    "rank 0": (np.array(7, np.int16), (0, 16, 1)),
    "rank 0 bf16": (np.array(7, ml_dtypes.bfloat16), (4, 16, 1)),
    "empty": (np.zeros((3, 0, 4), np.float32), (2, 32, 1)),
    "empty bf16": (np.zeros(0, ml_dtypes.bfloat16), (4, 16, 1)),
}
arrays = pytest.mark.parametrize(("array", "dtype"), ARRAYS.values(), ids=ARRAYS.keys())


@pytest.fixture(params=["host", "opencl", "opencl?unified=0"])
def device(request):
    return open_device(request.param)


@pytest.fixture
def view(device):
    return BufferView.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), device)


@arrays
@pytest.mark.parametrize(
    ("options", "name", "flags"),
    [
        ({}, "dltensor", 0),
        ({"max_version": (0, 8)}, "dltensor", 0),
        ({"max_version": (1, 0)}, "dltensor_versioned", READ_ONLY),
        (
            {"max_version": (1, 7), "copy": None, "dl_device": (1, 0), "stream": None},
            "dltensor_versioned",
            READ_ONLY,
        ),
        ({"max_version": (1, 0), "copy": False}, "dltensor_versioned", READ_ONLY),
        ({"max_version": (1, 0), "copy": True}, "dltensor_versioned", 0),
    ],
)
def test_capsules(device, array, dtype, options, name, flags):
    view = BufferView.from_array(array, device)
    assert view.__dlpack_device__() == (1, 0)
    capsule = view.__dlpack__(**options)
    found = parse(capsule)
    assert found[0] == name
    assert found[1] is None or found[1][0] == 1
    assert found[2] & READ_ONLY == flags
    assert found[3:6] == ((1, 0), dtype, list(array.shape))
    assert found[6] is None or array.size == 0 or found[6] == [n // array.itemsize for n in array.strides]
    assert found[7] == array.tobytes()


def test_one_capsule_holds_the_elements_and_the_other_a_copy(view):
    device = view.device
    before = device.statistics
    kept, copied = view.__dlpack__(max_version=(1, 0)), view.__dlpack__()
    assert device.statistics.bytes_allocated == before.bytes_allocated
    expected = parse(kept)[7]
    view.buffer.fill(0, None, b"abcd")
    assert parse(kept)[7] == parse(copied)[7] == expected
    view.release()
    assert parse(kept)[7] == expected
    assert device.statistics.live_handles == before.live_handles
    del kept
    assert device.statistics.live_handles == before.live_handles - 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stream": 2}, "no stream; found 2"),
        ({"stream": -1}, "no stream"),
        ({"dl_device": (2, 0)}, r"asked for \(2, 0\)"),
        ({"copy": False}, "only DLPack 1.0 can mark"),
        ({"copy": False, "max_version": (0, 5)}, "only DLPack 1.0 can mark"),
    ],
)
def test_what_cannot_be_exported(view, options, message):
    with pytest.raises(BufferError, match=message):
        view.__dlpack__(**options)


@pytest.mark.parametrize(
    ("element", "message"), [("i4", "share bytes"), ("*16", "DLPack has no element type")]
)
def test_element_types_that_dlpack_lacks(device, element, message):
    view = BufferView(device.allocator.allocate(4), (2,), element)
    for options in ({}, {"max_version": (1, 0)}):
        with pytest.raises(BufferError, match=message):
            view.__dlpack__(**options)


def test_a_released_view(view):
    view.release()
    for options in ({}, {"max_version": (1, 0)}):
        with pytest.raises((errors.FailedPrecondition, BufferError), match="released"):
            view.__dlpack__(**options)


def test_numpy_takes_it(view):
    array = np.from_dlpack(view)
    assert (array.tolist(), array.flags.writeable) == ([[0, 1, 2], [3, 4, 5]], False)
    copied = np.from_dlpack(view, copy=True, device="cpu")
    copied[0, 0] = 9
    assert view.to_numpy()[0, 0] == 0


# From others ------------------------------------------------------------------------------------------


class Producer:
    """Another library's tensor: `versioned` as of 2024, else as of 2021; on the host or elsewhere."""

    def __init__(self, array, versioned=True, device=(1, 0), fails=None):
        self.view = BufferView.from_array(array, "host")
        self.versioned, self.device, self.fails, self.asked = versioned, device, fails, []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        self.asked.append(options)
        if self.fails:
            raise self.fails
        if options and not self.versioned:
            raise TypeError("__dlpack__() got an unexpected keyword argument")
        return self.view.__dlpack__(**options)


@arrays
@pytest.mark.parametrize("versioned", [True, False])
def test_producers(device, array, dtype, versioned):
    producer = Producer(array, versioned)
    before = producer.view.device.statistics.live_handles
    view = BufferView.from_array(producer, device)
    assert view.type_text == BufferView.from_array(array, device).type_text
    assert view.to_numpy().tobytes() == array.tobytes()
    del view
    assert producer.view.device.statistics.live_handles == before


def test_producers_elsewhere_are_asked_for_a_copy_on_the_host(device):
    producer = Producer(np.arange(3), device=(2, 0))
    assert BufferView.from_array(producer, device).to_numpy().tolist() == [0, 1, 2]
    assert producer.asked == [{"max_version": (1, 0), "dl_device": (1, 0)}]
    with pytest.raises(errors.InvalidArgument, match=r"a Producer is no array: .*unexpected keyword"):
        BufferView.from_array(Producer(np.arange(3), versioned=False, device=(2, 0)), device)


def test_producers_that_fail_are_asked_for_an_array(device):
    class Both(Producer):
        def __array__(self, dtype=None, copy=None):
            return np.array([5.0])

    assert BufferView.from_array(Both([1], fails=BufferError("no")), device).to_numpy().tolist() == [5]
    with pytest.raises(errors.InvalidArgument, match="a Producer is no array: out of order"):
        BufferView.from_array(Producer([1], fails=RuntimeError("out of order")), device)


@pytest.mark.parametrize("capsule", [None, 3, "text"])
def test_what_is_no_capsule(device, capsule):
    class Broken:
        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **_):
            return capsule

    with pytest.raises(errors.InvalidArgument, match="no unused DLPack capsule"):
        BufferView.from_array(Broken(), device)


def test_a_capsule_is_used_once(device):
    array = np.arange(3.0)
    capsule = array.__dlpack__()

    class Once:
        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **_):
            return capsule

    assert BufferView.from_array(Once(), device).to_numpy().tolist() == [0, 1, 2]
    assert '"used_dltensor"' in repr(capsule)
    with pytest.raises(errors.InvalidArgument, match="no unused DLPack capsule"):
        BufferView.from_array(Once(), device)


def test_producers_as_arguments(device):
    def convert(text, value):
        function = of_function("0r_v", {DECLARATION: f"sync func @f(%input0: {text}) -> ()"})
        return arguments.converter(function.parameters[0], device)(value)

    producer = Producer(np.array([1, 2], ml_dtypes.bfloat16))
    assert convert("tensor<2xbf16>", producer).to_numpy().tolist() == [1, 2]
    assert convert("tensor<2xi32>", Producer(np.array([1, 2], np.uint32))).type_text == "2xui32"
    with pytest.raises(errors.InvalidArgument, match="input0: expected tensor<2xf32>, found 2xbf16"):
        convert("tensor<2xf32>", producer)
    with pytest.raises(TypeError, match="input0: expected tensor<2xf32>, found a Producer: out of order"):
        convert("tensor<2xf32>", Producer([1], fails=RuntimeError("out of order")))


def test_nothing_is_left_of_ten_thousand_capsules(device):
    view = BufferView.from_array(np.array([1, 2], ml_dtypes.bfloat16), device)
    gc.collect()
    before = device.statistics.live_handles
    for index in range(10_000):
        capsule = view.__dlpack__(max_version=(1, 0) if index % 2 else None)
        if index % 3 == 0:
            dlpack._tensor(capsule).dtype.code = 1
            np.from_dlpack(dlpack._Capsule(capsule))
        elif index % 3 == 1:
            cycle = [capsule]
            cycle.append(cycle)
    del capsule, cycle
    gc.collect()
    assert device.statistics.live_handles == before
    view.release()
    assert device.statistics.live_handles == before - 1


ENDS = """
import sys, threading, time
import numpy as np
from halgpu.buffer_view import BufferView
from halgpu.devices import open_device
device = open_device(sys.argv[1])
views = [BufferView.from_array(np.arange(1000.0), device) for _ in range(20)]
capsules = [view.__dlpack__(max_version=(1, 0)) for view in views] + [view.__dlpack__() for view in views]
arrays = [np.from_dlpack(view) for view in views] + [memoryview(view.memoryview()) for view in views]
sys.keep = cycle = [arrays, capsules, views, device]
cycle.append(cycle)
def work():
    while True:
        np.from_dlpack(views[0]), views[1].__dlpack__(), views[2].buffer.fill(0, 8, b"12345678")
threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""


def test_capsules_alive_when_the_interpreter_ends(device):
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", ENDS, device.uri],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
