"""Modules, views and arrays at the end of a process, in forked children and in spawned ones, on every device.

Each test runs a script of its own: a child that forks beside pytest's threads may hang in anybody's code.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

MATRIX = Path(__file__).resolve().parents[1] / "ci" / "matrix.toml"
# The programs here are for the vulkan target, which CUDA devices do not run.
DEVICES = [
    entry["uri"] for entry in tomllib.loads(MATRIX.read_text())["device"] if "cuda" not in entry["name"]
]
FORKS = os.environ.get("HALGPU_FORKS", "1")
"""Forked children of each device; ci/nightly has more, since other threads are elsewhere in each."""

COMPUTING = """
func.func @f32(%a: tensor<?xf32>) -> tensor<?xf32> {
  %0 = arith.addf %a, %a : tensor<?xf32>
  return %0 : tensor<?xf32>
}
"""
PASSING = "func.func @f32(%a: tensor<?xf32>) -> tensor<?xf32> { return %a : tensor<?xf32> }"


@pytest.fixture(scope="module")
def programs(compile_mlir: Callable[..., bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    (folder / "computing.vmfb").write_bytes(compile_mlir(COMPUTING))
    (folder / "passing.vmfb").write_bytes(compile_mlir(PASSING))
    return folder


def run(script: str | Path, programs: Path, uri: str, *more: str, options: tuple[str, ...] = ()) -> None:
    """Run a script with a program that the device can run, and `uri`; it must say nothing and exit with 0."""
    program = programs / ("computing.vmfb" if uri.startswith("opencl") else "passing.vmfb")
    command = [script] if isinstance(script, Path) else ["-c", script]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", *options, *command, program, uri, *more],
        capture_output=True, text=True, timeout=90,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


ENDS = """
import gc, random, sys, threading, time
import numpy as np
import halgpu
path, uri = sys.argv[1:]
def objects():
    device = halgpu.open_device(uri)
    module = halgpu.load(path, device)
    view = module.f32(np.ones(1000, np.float32))
    fixed = np.array(view, copy=False)
    view.buffer.fill(0, 4, b"abcd")
    return {"device": device, "module": module, "function": module.f32, "view": view, "share": view.share(),
            "buffer": view.buffer.subspan(4), "array": np.asarray(view), "window": np.array(view, copy=False),
            "left": fixed, "dlpack": np.from_dlpack(view), "capsule": view.__dlpack__(max_version=(1, 0)),
            "memoryview": view.memoryview(), "mapping": view.buffer.map(1)}
stop = threading.Event()
def collect():
    while not stop.is_set():
        gc.collect()
        time.sleep(0.001)
thread = threading.Thread(target=collect)
thread.start()
order = random.Random(7)
for turn in range(6):
    held = objects()
    names = [*held]
    order.shuffle(names)
    if turn % 3 == 0:
        held["cycle"] = held
        names.append("cycle")
    for name in names:
        del held[name]
    del held
stop.set()
thread.join()
gc.collect()
device = halgpu.open_device(uri)
assert device.statistics.live_handles == 0 == device.statistics.bytes_allocated, device.statistics
keep = objects()
cycle = [keep]; cycle.append(cycle)
sys.keep = objects()
"""


@pytest.mark.parametrize("uri", DEVICES)
def test_everything_goes_in_any_order_with_a_collector_and_at_exit(programs: Path, uri: str) -> None:
    run(ENDS, programs, uri, options=("-X", "dev"))


FORK = """
import gc, os, pathlib, signal, sys, threading, time
import numpy as np
import halgpu
from halgpu import devices, errors

path, uri, forks = sys.argv[1:]
device = halgpu.open_device(uri)
module = halgpu.load(path, device)
busy, stop = module.new_context(), threading.Event()
program = pathlib.Path(path).read_bytes()

def launch():  # another thread, which may hold any lock when the process forks
    while not stop.is_set():
        np.asarray(busy.f32(busy.f32(np.ones(5000, np.float32))))
        device.allocator.trim()
        time.sleep(0.001)

def told(use):
    try:
        use()
    except errors.FailedPrecondition as error:
        assert "forked" in str(error), error
    else:
        raise AssertionError(f"{use.__code__.co_names} was not refused in a forked child")

def natives():
    if not uri.startswith("opencl"):
        return []
    kernels = [item._native for item in gc.get_objects() if isinstance(item, devices.Kernel)]
    memories = [item._native for item in gc.get_objects() if isinstance(item, devices.Memory)]
    return [device.context, device.queue.native, *kernels, *filter(None, memories)]

def child(view, window):
    global device, module, busy, function
    signal.alarm(30)  # a child that hangs dies of it, and the parent sees so
    ones = np.ones(8, np.float32)
    for use in (
        lambda: function(ones), lambda: module.new_context().f32(ones),
        lambda: np.array(view, copy=False), lambda: view.memoryview(), lambda: view.buffer.fill(0, 4, b"1234"),
        lambda: halgpu.BufferView.from_array(ones, device), lambda: device.wait_idle(),
    ):
        told(use)
    assert window.tolist() == [2 ** times] * 8
    if uri.startswith("opencl"):  # the driver's threads are not here, and the bytes were not on the host
        told(lambda: np.asarray(view))
        told(lambda: halgpu.open_device(uri))
        told(lambda: halgpu.open_device(uri + ("&" if "?" in uri else "?") + "pool=1"))
    else:
        assert np.asarray(halgpu.load(program, uri).f32(ones)).tolist() == [1] * 8
    device.allocator.trim()
    device.close()
    kept = natives()
    count = len(kept)
    del device, module, busy, function, view
    gc.collect()
    assert len(kept) == count
    # What the driver made is nobody's now but is never freed: this list and a second holder.
    assert all(sys.getrefcount(item) > 3 for item in kept)
    sys.exit(0)

times = 1 if uri.startswith("opencl") else 0
thread = threading.Thread(target=launch, daemon=True)
thread.start()
for turn in range(int(forks)):
    function = module.f32
    view = function(np.ones(8, np.float32))
    window = np.array(function(np.ones(8, np.float32)), copy=False)
    device.wait_idle()
    process = os.fork()
    if not process:
        child(view, window)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    assert np.asarray(view).tolist() == window.tolist() == [2 ** times] * 8
stop.set()
thread.join()
"""


@pytest.mark.parametrize("uri", DEVICES)
def test_a_forked_child_is_told(programs: Path, uri: str) -> None:
    run(FORK, programs, uri, FORKS)


SPAWN = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
import numpy as np
import halgpu
def call(path, uri):
    return np.asarray(halgpu.load(path, uri).f32(np.ones(8, np.float32))).tolist()
if __name__ == "__main__":
    path, uri = sys.argv[1:]
    expected = call(path, uri)
    assert expected == [2 if uri.startswith("opencl") else 1] * 8
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(call, path, uri).result(60) == expected
"""


@pytest.mark.parametrize("uri", DEVICES)
def test_spawned_children_have_devices_of_their_own(programs: Path, tmp_path: Path, uri: str) -> None:
    script = tmp_path / "spawn.py"
    script.write_text(SPAWN)
    run(script, programs, uri)
