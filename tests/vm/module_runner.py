"""Runs modules for test_mutations.py: reads them from stdin, a length before each, and prints how each ended.

Each runs in a forked child with limited time and memory, so that a crash, a hang or a bomb harms nothing here.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import struct
import sys
import traceback
from contextlib import suppress
from functools import partial
from typing import Any

from halgpu import errors, vm
from halgpu.vm import definition

CALL_SECONDS = 0.5
HANG_SECONDS = 15
MEMORY = 8 << 30
SMALL = vm.write(
    vm.assemble("vm.module @m version 0\nvm.export @f\nvm.func @f() -> () {\n^bb0:\n  vm.return\n}\n")
)

VALUES: dict[str, Any] = {"i": 1, "I": 8, "f": 1.5, "F": -2.5}


class Handle:
    """Stands for a hal.buffer, hal.executable or the like, which the VM only passes on."""


def value(kind: str) -> Any:
    return vm.Buffer.create(64) if kind == "r" else VALUES[kind]


def result(function: str, kinds: str) -> Any:
    """What a native function returns; only storage is bytes to the VM."""
    made = [Handle() if kind == "r" else VALUES[kind] for kind in kinds]
    if function in ("buffer.allocate", "buffer.storage"):
        made[-1] = value("r")
    return made[0] if len(made) == 1 else tuple(made) or None


def natives(module: definition.ModuleDef) -> list[vm.NativeModule]:
    """Native modules with the functions that a module imports, which return new values of the right kinds."""
    members: dict[str, dict[str, Any]] = {}
    for item in module.imports:
        name, _, function = item.full_name.partition(".")
        convention = vm.CallingConvention.parse(item.cconv)
        kinds = item.cconv.partition("_")[2].replace("v", "")
        scope = {"answer": partial(result, function, kinds)}
        parameters = ", ".join(f"a{index}" for index in range(len(convention.arguments)))
        exec(f"def method(self, {parameters}):\n    return answer()", scope)
        exported = vm.export(function, item.cconv)(scope["method"])  # type: ignore[arg-type]
        members.setdefault(name, {})[f"f{len(members.get(name, ()))}"] = exported
    return [
        type("Native", (vm.NativeModule,), {"name": name, "version": 1 << 31, **functions})()
        for name, functions in members.items()
    ]


def run(data: bytes) -> None:
    """Load a module and call each of its functions."""
    program = vm.BytecodeModule.load(data)
    with vm.Context([*natives(program.definition), program]) as context:
        for name in program.exports:
            function = context.lookup(f"{program.name}.{name}")
            kinds = vm.CallingConvention.parse(function.cconv).arguments
            arguments = [value(kind) if isinstance(kind, str) else () for kind in kinds]
            with suppress(errors.Error):
                function(*arguments)


def outcome(data: bytes) -> str:
    """How a module ends: ran, refused, interrupted, or the traceback of what must not happen."""
    try:
        if data == b"raise 1 / 0":
            raise ZeroDivisionError
        if data == b"crash":
            os.abort()
        run(data)
    except errors.Error as error:
        return "refused" if str(error) else "refused without a word"
    except KeyboardInterrupt:
        return "interrupted"
    except BaseException:
        return traceback.format_exc()
    return "ran"


def child(data: bytes, pipe: int) -> None:
    """Write the outcome to a pipe and end."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    # Again and again: an exception that comes inside a finalizer is lost.
    signal.setitimer(signal.ITIMER_REAL, CALL_SECONDS, CALL_SECONDS)
    text = "interrupted"
    with suppress(KeyboardInterrupt):
        text = outcome(data)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    os.write(pipe, text.encode()[-4000:])
    os._exit(0)


def ended(data: bytes) -> str:
    """Run a module in a child and return its outcome."""
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        child(data, writer)
    os.close(writer)
    in_time = select.select([reader], [], [], HANG_SECONDS)[0]
    if not in_time:
        os.kill(process, signal.SIGKILL)
    text = os.read(reader, 8000).decode()
    os.close(reader)
    status = os.waitpid(process, 0)[1]
    if not in_time:
        return f"did not end in {HANG_SECONDS} s"
    return text or f"died by signal {os.WTERMSIG(status)}"


def main() -> None:
    """Serve until stdin ends."""
    # Children inherit what is loaded before they are made.
    for name in vm.__all__:
        getattr(vm, name)
    outcome(SMALL)
    while header := sys.stdin.buffer.read(4):
        data = sys.stdin.buffer.read(struct.unpack("<I", header)[0])
        print(json.dumps(ended(data)), flush=True)


if __name__ == "__main__":
    main()
