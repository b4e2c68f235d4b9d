"""Runs the workgroups of a dispatch: a loop of machine code, in as many threads as are worth it.

A kernel is called once a workgroup. Calls from Python take about a microsecond each, which is as long as many
workgroups take, so that the loop over them is native, too: some 100 bytes of code, the same for all kernels. Threads
take the next workgroup from one counter, without the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from halgpu import errors
from halgpu.executables.native import abi
from halgpu.executables.native.image import executable_pages

# int32_t run(Job*): calls job->function(environment, dispatch_state, workgroup_state) with the workgroup that the
# shared counter `next` gives, until that is `end` (0 is returned) or a call does not return 0 (its result is returned,
# `failed` is the workgroup, and the counter is set to the end so that all threads stop).
_LOOPS: Final = {
    "x86_64": (
        "f30f1efa"          # run:  endbr64
        "53"                #       push   %rbx
        "55"                #       push   %rbp
        "4883ec08"          #       sub    $8, %rsp
        "4889fb"            #       mov    %rdi, %rbx
        "488b4b20"          # 1:    mov    next(%rbx), %rcx
        "b801000000"        #       mov    $1, %eax
        "f0480fc101"        #       lock xadd %rax, (%rcx)
        "483b4328"          #       cmp    end(%rbx), %rax
        "733e"              #       jae    2f
        "4889c5"            #       mov    %rax, %rbp
        "31d2"              #       xor    %edx, %edx
        "48f77330"          #       divq   count_x(%rbx)
        "488b4b18"          #       mov    workgroup_state(%rbx), %rcx
        "8911"              #       mov    %edx, workgroup_id_x(%rcx)
        "31d2"              #       xor    %edx, %edx
        "48f77338"          #       divq   count_y(%rbx)
        "895104"            #       mov    %edx, workgroup_id_y(%rcx)
        "66894108"          #       mov    %ax, workgroup_id_z(%rcx)
        "488b7b08"          #       mov    environment(%rbx), %rdi
        "488b7310"          #       mov    dispatch_state(%rbx), %rsi
        "4889ca"            #       mov    %rcx, %rdx
        "ff13"              #       call   *function(%rbx)
        "85c0"              #       test   %eax, %eax
        "74bf"              #       jz     1b
        "48896b40"          #       mov    %rbp, failed(%rbx)
        "488b4b20"          #       mov    next(%rbx), %rcx
        "488b5328"          #       mov    end(%rbx), %rdx
        "488911"            #       mov    %rdx, (%rcx)
        "eb02"              #       jmp    3f
        "31c0"              # 2:    xor    %eax, %eax
        "4883c408"          # 3:    add    $8, %rsp
        "5d"                #       pop    %rbp
        "5b"                #       pop    %rbx
        "c3"                #       ret
    ),
    "arm_64": (
        "5f2403d5"          # run:  bti    c
        "fd7bbea9"          #       stp    x29, x30, [sp, #-32]!
        "fd030091"          #       mov    x29, sp
        "f35301a9"          #       stp    x19, x20, [sp, #16]
        "f30300aa"          #       mov    x19, x0
        "611240f9"          # 1:    ldr    x1, [x19, #next]
        "34fc5fc8"          # 2:    ldaxr  x20, [x1]
        "82060091"          #       add    x2, x20, #1
        "22fc03c8"          #       stlxr  w3, x2, [x1]
        "a3ffff35"          #       cbnz   w3, 2b
        "621640f9"          #       ldr    x2, [x19, #end]
        "9f0202eb"          #       cmp    x20, x2
        "42020054"          #       b.hs   3f
        "631243a9"          #       ldp    x3, x4, [x19, #count_x]
        "850ac39a"          #       udiv   x5, x20, x3
        "a6d0039b"          #       msub   x6, x5, x3, x20
        "a708c49a"          #       udiv   x7, x5, x4
        "e594049b"          #       msub   x5, x7, x4, x5
        "620e40f9"          #       ldr    x2, [x19, #workgroup_state]
        "46140029"          #       stp    w6, w5, [x2, #workgroup_id_x]
        "47100079"          #       strh   w7, [x2, #workgroup_id_z]
        "608640a9"          #       ldp    x0, x1, [x19, #environment]
        "680240f9"          #       ldr    x8, [x19, #function]
        "00013fd6"          #       blr    x8
        "a0fdff34"          #       cbz    w0, 1b
        "742200f9"          #       str    x20, [x19, #failed]
        "611240f9"          #       ldr    x1, [x19, #next]
        "621640f9"          #       ldr    x2, [x19, #end]
        "220000f9"          #       str    x2, [x1]
        "02000014"          #       b      4f
        "00008052"          # 3:    mov    w0, #0
        "f35341a9"          # 4:    ldp    x19, x20, [sp, #16]
        "fd7bc2a8"          #       ldp    x29, x30, [sp], #32
        "c0035fd6"          #       ret
    ),
}  # fmt: skip


@cache
def loop(machine: str) -> Any:
    """The loop as a ctypes function; it lives as long as the process."""
    memory, address = executable_pages(bytes.fromhex(_LOOPS[machine]))
    function: Any = abi.RUN_FUNCTION(address)
    function.memory = memory
    return function


def run(function: Any, jobs: Sequence[abi.Job]) -> list[tuple[int, int]]:
    """Run the loop's function for a dispatch of which each of ``jobs`` is one thread's part.

    Returns (workgroup, result) of what failed.
    The calling thread does the first. One that no thread has begun when the counter is at its end is left out.
    Whatever comes out of it, such as KeyboardInterrupt, no thread is at work any more: they use the caller's memory.
    """
    parts = [_Part(function, job) for job in jobs[1:]]
    try:
        try:
            _submit(parts)
            results = [function(ctypes.addressof(jobs[0]))]
        finally:
            _join(parts)
    finally:
        _join(parts)  # an interrupt may have come before the other one had begun
    results += [part.result for part in parts]
    return [(job.failed, result) for job, result in zip(jobs, results, strict=True) if result]


class _Part:
    """A job that a thread of the pool may do. Either that begins it, or the caller has it left out.

    A signal may raise an exception in the caller after any step. So it is not a list of what was submitted that
    tells what to wait for, and each step of the caller may be taken twice.
    """

    __slots__ = ("_done", "_finished", "_function", "_job", "_taken", "result")

    def __init__(self, function: Any, job: abi.Job) -> None:
        self._function, self._job = function, job
        self._taken: dict[str, str] = {}  # setdefault, unlike a lock, also tells who has had it
        self._done = threading.Lock()
        self._done.acquire()
        self._finished = False
        self.result = 0

    def __call__(self) -> None:
        if self._taken.setdefault("by", "thread") == "thread":
            try:
                self.result = self._function(ctypes.addressof(self._job))
            finally:
                self._finished = True
                self._done.release()

    def join(self) -> None:
        """Wait for the thread that has begun it; without one, none will."""
        if self._taken.setdefault("by", "caller") == "thread":
            while not self._finished:
                self._done.acquire()


def _submit(parts: Sequence[_Part]) -> None:
    _start_threads(len(parts))
    for part in parts if _threads else ():
        _waiting.put(part)


def _join(parts: Sequence[_Part]) -> None:
    """Wait until no thread is at work."""
    interrupt: BaseException | None = None
    while True:
        try:
            for part in parts:
                part.join()
            break
        except BaseException as error:  # KeyboardInterrupt, which is raised when they are done
            interrupt = error
    if interrupt is not None:
        raise interrupt


# Threads ----------------------------------------------------------------------------------------------


def thread_count() -> int:
    """How many threads a dispatch may use: HALGPU_THREADS, else the processors of this process."""
    given = os.environ.get("HALGPU_THREADS")
    if not given:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not given.isascii() or not given.isdecimal() or len(given) > 9 or not 1 <= int(given) <= 1024:
        raise errors.InvalidArgument(
            f"environment variable HALGPU_THREADS must be a number from 1 to 1024; found {given[:40]!r}"
        )
    return int(given)


# No ThreadPoolExecutor: its locks are of Python code, and an interrupt in it may leave one taken for ever.
_waiting: queue.SimpleQueue[_Part] = queue.SimpleQueue()
_threads: list[threading.Thread] = []


def _start_threads(count: int) -> None:
    """Have that many threads for the parts of all kernels; fewer where the system gives no more."""
    while len(_threads) < count:
        thread = threading.Thread(target=_work, args=(_waiting,), name="halgpu-kernel", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            break
        _threads.append(thread)


def _work(waiting: queue.SimpleQueue[_Part]) -> None:
    while True:
        waiting.get()()


def _forget_in_child() -> None:
    # A fork takes only the thread that forks.
    global _waiting
    _waiting = queue.SimpleQueue()
    _threads.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
