"""When loops are compiled, where compiled ones are kept, and how native code lives with signals, threads and forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halgpu import disk_cache, vm
from halgpu.vm import jit

SUM = """
vm.module @m version 0
vm.type i32
vm.type i64
vm.type !vm.buffer
vm.export @sum
vm.func @sum(%r0: !vm.buffer, %i0:1: i64) -> (i64) {
^bb0:
  %i2:3 = vm.const.i64.zero
  %i4:5 = vm.const.i64 1
  %i6:7 = vm.const.i64.zero
  vm.br ^bb1()
^bb1:
  %i8 = vm.cmp.lt.i64.s %i2:3, %i0:1
  vm.cond_br %i8, ^bb2(), ^bb3()
^bb2:
  %i10:11 = vm.buffer.load.i64 %r0, %i2:3
  %i6:7 = vm.add.i64 %i6:7, %i10:11
  %i2:3 = vm.add.i64 %i2:3, %i4:5
  vm.br ^bb1()
^bb3:
  vm.return %i6:7
}
vm.export @spin
vm.func @spin(%i0: i32) -> () {
^bb0:
  vm.br ^bb1()
^bb1:
  vm.cond_br %i0, ^bb1(), ^bb2()
^bb2:
  vm.return
}
vm.export @long
vm.func @long(%i0: i32) -> (i32) {
^bb0:
  %i1 = vm.const.i32.zero
  %i2 = vm.const.i32 1
  %i4 = vm.const.i32 7
  vm.br ^bb1()
^bb1:
  %i4 = vm.mul.i32 %i4, %i4
  %i4 = vm.xor.i32 %i4, %i1
  %i1 = vm.add.i32 %i1, %i2
  %i3 = vm.cmp.lt.i32.s %i1, %i0
  vm.cond_br %i3, ^bb1(), ^bb2()
^bb2:
  vm.return %i4
}
"""
MODULE = vm.write(vm.assemble(SUM))
LENGTH = 20_000


class Events:
    """Numbers of compilations, of loops that came from disk, and of calls of native code."""

    def __init__(self) -> None:
        self.compiled = self.loaded = self.called = 0


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Events:
    """What happens to loops, with a disk cache of its own."""
    monkeypatch.setenv("HALGPU_JIT", "check")
    monkeypatch.delenv("HALGPU_CACHE", raising=False)
    monkeypatch.setenv("HALGPU_CACHE_DIR", str(tmp_path))
    found = Events()
    compiler = jit.compiler()
    plain_compile, plain_load, plain_call = compiler.compile, compiler.load, jit.NativeLoop.__call__

    def compile_(text: str) -> bytes:
        found.compiled += 1
        return plain_compile(text)

    def load(code: bytes) -> Any:
        found.loaded += 1
        return plain_load(code)

    def call(loop: jit.NativeLoop, *values: Any) -> Any:
        result = plain_call(loop, *values)
        found.called += result is not None
        return result

    monkeypatch.setattr(compiler, "compile", compile_)
    monkeypatch.setattr(compiler, "load", load)
    monkeypatch.setattr(jit.NativeLoop, "__call__", call)
    return found


@pytest.fixture
def numbers() -> vm.Buffer:
    """A buffer of LENGTH i64 numbers."""
    made = vm.Buffer.create(8 * LENGTH)
    made.write_view()[:] = np.arange(LENGTH).tobytes()
    return made


EXPECTED = LENGTH * (LENGTH - 1) // 2


@contextmanager
def opened() -> Iterator[Callable[[str], vm.Function]]:
    with vm.Context([vm.BytecodeModule.load(MODULE)]) as context:
        yield context.lookup


def test_a_loop_is_compiled_when_it_is_hot(events: Events, numbers: vm.Buffer) -> None:
    with opened() as lookup:
        call = lookup("sum")
        assert call(numbers, jit.PROBE - 1) == (jit.PROBE - 1) * (jit.PROBE - 2) // 2
        assert (events.compiled, events.called) == (0, 0)
        assert call(numbers, LENGTH) == EXPECTED  # goes on in machine code from the middle
        assert (events.compiled, events.called) == (1, 1)
        assert call(numbers, 10) == 45
        assert (events.compiled, events.called) == (1, 2)


def test_calls_add_up(events: Events, numbers: vm.Buffer) -> None:
    with opened() as lookup:
        for _ in range(jit.COMPILE // 100 + 2):
            assert lookup("sum")(numbers, 99) == 99 * 49
    assert events.compiled == 1


def test_contexts_share_machine_code(events: Events, numbers: vm.Buffer) -> None:
    module = vm.BytecodeModule.load(MODULE)
    for _ in range(2):
        with vm.Context([module]) as context:
            assert context.lookup("sum")(numbers, LENGTH) == EXPECTED
    assert (events.compiled, events.loaded, events.called) == (1, 1, 2)


def test_machine_code_is_kept_on_disk(events: Events, numbers: vm.Buffer, tmp_path: Path) -> None:
    for _ in range(2):
        with opened() as lookup:
            assert lookup("sum")(numbers, LENGTH) == EXPECTED
    assert (events.compiled, events.loaded, events.called) == (1, 2, 2)
    assert len(disk_cache.entries()) == 1
    # From disk it is taken before it would be compiled.
    with opened() as lookup:
        assert lookup("sum")(numbers, jit.PROBE + 10) == (jit.PROBE + 10) * (jit.PROBE + 9) // 2
    assert (events.compiled, events.loaded, events.called) == (1, 3, 3)


@pytest.mark.parametrize("damage", ["cut", "flip", "folder", "unreadable", "read-only"])
def test_what_is_wrong_on_disk_is_a_miss(
    damage: str, events: Events, numbers: vm.Buffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened() as lookup:
        assert lookup("sum")(numbers, LENGTH) == EXPECTED
    [entry] = disk_cache.entries()
    data = entry.read_bytes()
    entry.unlink()
    if damage == "cut":
        entry.write_bytes(data[:-1])
    elif damage == "flip":
        entry.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    elif damage == "folder":
        entry.mkdir()
    elif damage == "unreadable":
        entry.symlink_to("/proc/self/mem")
    else:
        monkeypatch.setenv("HALGPU_CACHE_DIR", "/proc/nothing/can/be/written/here")
    with opened() as lookup:
        assert lookup("sum")(numbers, LENGTH) == EXPECTED
    assert (events.compiled, events.called) == (2, 2)


def test_the_key_is_the_code_and_the_machine(
    events: Events, monkeypatch: pytest.MonkeyPatch, numbers: vm.Buffer
) -> None:
    monkeypatch.setattr(jit.compiler(), "identity", (*jit.compiler().identity[:-1], "+another"))
    for compiled in (1, 2):
        with opened() as lookup:
            assert lookup("sum")(numbers, LENGTH) == EXPECTED
        assert events.compiled == len(disk_cache.entries()) == compiled
        monkeypatch.setattr(jit.compiler(), "identity", (*jit.compiler().identity[:-1], "+one more"))


RUN = """
import sys, time
from halgpu import vm
from halgpu.vm import jit
import numpy as np
numbers = vm.Buffer.create(8 * 20000)
numbers.write_view()[:] = np.arange(20000).tobytes()
with vm.Context([vm.BytecodeModule.load(sys.argv[1])]) as context:
    print(context.lookup("sum")(numbers, 20000))
print("llvmlite" in sys.modules)
"""


def spawn(path: Path, cache: Path, **environment: str) -> subprocess.Popen[str]:
    path.write_bytes(MODULE)
    return subprocess.Popen(
        [sys.executable, "-c", RUN, str(path)],
        env={**os.environ, "HALGPU_CACHE_DIR": str(cache), "HALGPU_JIT": "check", **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_eight_processes_at_once(tmp_path: Path) -> None:
    running = [spawn(tmp_path / f"m{number}.vmfb", tmp_path / "cache") for number in range(8)]
    assert [process.communicate()[0] for process in running] == [f"{EXPECTED}\nTrue\n"] * 8
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    assert spawn(tmp_path / "m.vmfb", tmp_path, HALGPU_JIT="0").communicate()[0] == f"{EXPECTED}\nFalse\n"


def test_without_llvmlite(monkeypatch: pytest.MonkeyPatch, numbers: vm.Buffer) -> None:
    monkeypatch.setenv("HALGPU_JIT", "1")
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    assert not jit.enabled()
    with opened() as lookup:
        assert lookup("sum")(numbers, LENGTH) == EXPECTED


def test_what_llvm_refuses_runs_as_python(
    events: Events, monkeypatch: pytest.MonkeyPatch, numbers: vm.Buffer
) -> None:
    def refuse(text: str) -> bytes:
        events.compiled += 1
        raise RuntimeError("no")

    monkeypatch.setenv("HALGPU_JIT", "1")
    monkeypatch.setattr(jit.compiler(), "compile", refuse)
    module = vm.BytecodeModule.load(MODULE)
    for _ in range(2):
        with vm.Context([module]) as context:
            for _ in range(2):
                assert context.lookup("sum")(numbers, LENGTH) == EXPECTED
    assert (events.compiled, events.called) == (1, 0)


@pytest.mark.parametrize("name", ["spin", "long"])
def test_signals_end_native_loops(name: str, events: Events) -> None:
    """One that never ends, and one that would take seconds."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, stop)
    try:
        with opened() as lookup:
            call = lookup(name)
            signal.setitimer(signal.ITIMER_REAL, 0.8)
            with pytest.raises(KeyboardInterrupt):
                call((1 << 31) - 1)
        with opened() as lookup:
            assert isinstance(lookup("long")(3), int)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert events.compiled == 1


def test_other_threads_run_meanwhile(events: Events) -> None:
    """The interpreter's lock is let go: a native loop does not keep others waiting."""
    with opened() as lookup:
        call = lookup("long")
        call(100_000)
        assert events.called == 1
        worker = threading.Thread(target=call, args=(300_000_000,))
        started = time.perf_counter()
        worker.start()
        longest, last = 0.0, time.perf_counter()
        turns = 0
        while worker.is_alive():
            now = time.perf_counter()
            longest, last, turns = max(longest, now - last), now, turns + 1
        whole = time.perf_counter() - started
        worker.join()
    assert turns > 1000
    assert longest < whole / 2


def test_threads_compile_at_once(events: Events, numbers: vm.Buffer) -> None:
    module = vm.BytecodeModule.load(MODULE)
    found = []

    def run() -> None:
        with vm.Context([module]) as context:
            found.append(context.lookup("sum")(numbers, LENGTH))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [EXPECTED] * 4
    assert events.compiled == 1


@pytest.mark.parametrize("compiled_before", [True, False])
def test_after_a_fork(compiled_before: bool, events: Events, numbers: vm.Buffer) -> None:
    """The child uses what its parent compiled, and compiles, also when another thread was about it."""
    with opened() as lookup:
        call = lookup("sum")
        if compiled_before:
            call(numbers, LENGTH)
        held = threading.Event()

        def hold() -> None:
            with jit._lock:
                held.set()
                time.sleep(0.3)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
            child = os.fork()
        if not child:
            os._exit(0 if call(numbers, LENGTH) == EXPECTED and events.called else 1)
        thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert call(numbers, LENGTH) == EXPECTED
