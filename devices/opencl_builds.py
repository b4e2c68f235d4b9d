"""Building several OpenCL programs: as one, where a driver takes long for each, else side by side.

Part of the ``opencl`` backend. All is called under the device's lock.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from halgpu import errors
from halgpu.devices.base import Kernel, KernelLayout, Program
from halgpu.devices.opencl_checked import kernel_class
from halgpu.devices.opencl_plain import PlainKernel, check_plain
from halgpu.devices.opencl_programs import Built, build_program, check_kernel

if TYPE_CHECKING:
    from halgpu.devices.opencl import OpenCLDevice

THREADS: Final = 8

# What a macro of that name would change besides the definition it is for: components of vectors
# (OpenCL 1.2 6.1.7) and the words of the pragmas FP_CONTRACT and EXTENSION (6.12.2, 9.1).
_NOT_FOR_MACROS: Final = re.compile(
    "[xyzw]{1,4}|[sS][0-9a-fA-F]{1,16}|lo|hi|even|odd"
    "|OPENCL|STDC|EXTENSION|FP_CONTRACT|ON|OFF|DEFAULT|cl_.*|all|require|disable|enable|warn|part[0-9]+"
)


def build_all(device: OpenCLDevice, programs: Sequence[Program]) -> list[tuple[Kernel, ...]]:
    """Return each program's kernels; raises what building the first of those that fail raises alone."""
    groups = _groups(programs) if device.quirks.one_program else []
    joined: dict[int, tuple[Kernel, ...]] = {}
    for group in groups:
        with suppress(errors.Error):  # built alone below, where the error names the right program and line
            joined.update(_build_joined(device, group))
    alone = [(index, program) for index, program in enumerate(programs) if index not in joined]
    found = joined | dict(zip((index for index, _ in alone), _side_by_side(device, alone), strict=True))
    return [found[index] for index in range(len(programs))]


# -- side by side --------------------------------------------------------------------------------------


def _side_by_side(device: OpenCLDevice, programs: Sequence[tuple[int, Program]]) -> list[tuple[Kernel, ...]]:
    return [
        tuple(_kernel(device, native, program, layout) for layout in program.layouts)
        for native, (_, program) in zip(_natives(device, programs), programs, strict=True)
    ]


def _natives(device: OpenCLDevice, programs: Sequence[tuple[int, Program]]) -> Iterator[Any]:
    build = partial(build_program, device)
    sources = [program for _, program in programs]
    # OpenCL 1.2 A.2: all API calls but clSetKernelArg are thread-safe. PyOpenCL lets go of the GIL while it builds.
    threads = 1 if device.quirks.serial_builds else min(len(programs), THREADS, os.cpu_count() or 1)
    for built in map(build, sources) if threads < 2 else _in_threads(threads, build, sources):
        yield _counted(device, built)


def _in_threads(
    count: int, build: Callable[[Program], Built], programs: Sequence[Program]
) -> Iterator[Built]:
    # No ThreadPoolExecutor: it refuses work as soon as the interpreter begins to end, and a daemon thread may load
    # a program then. The threads here end before the device's lock is free, which the end of the process waits for.
    waiting = deque(enumerate(programs))
    results: dict[int, Built | BaseException] = {}

    def work() -> None:
        while waiting:
            with suppress(IndexError):  # another thread took the last one
                index, program = waiting.popleft()
                try:
                    results[index] = build(program)
                except BaseException as error:  # raised again below, in the order of the programs
                    results[index] = error
                    waiting.clear()

    threads = [Thread(target=work, name="halgpu-build", daemon=True) for _ in range(count - 1)]
    started = list(filter(_start, threads))
    work()
    for thread in started:
        thread.join()
    for index in range(len(programs)):
        result = results[index]
        if isinstance(result, BaseException):
            raise result
        yield result


def _start(thread: Thread) -> bool:
    try:
        thread.start()
    except RuntimeError:  # the interpreter is ending, or there are too many threads
        return False
    return True


def _counted(device: OpenCLDevice, built: Built) -> Any:
    if built.cached:
        device.counters.programs_cached += 1
    else:
        device.counters.programs_compiled += 1
    return built.native


def _kernel(
    device: OpenCLDevice, native: Any, program: Program, layout: KernelLayout, suffix: str = ""
) -> Kernel:
    try:
        kernel = device.cl.Kernel(native, layout.name + suffix)
    except device.cl.Error as error:
        names = native.get_info(device.cl.program_info.KERNEL_NAMES).replace(";", ", ")
        raise errors.InvalidArgument(
            f"the program has no kernel {layout.name!r}; it has: {names or 'none'}"
        ) from error
    if layout.passing == "plain":
        check_plain(device, program, layout, kernel)
        return PlainKernel(device, layout, kernel)
    check_kernel(device, layout, kernel)
    return kernel_class(layout)(device, layout, kernel)


# -- as one --------------------------------------------------------------------------------------------

Group = list[tuple[int, Program]]


def _groups(programs: Sequence[Program]) -> list[Group]:
    """Programs that can be joined, with their indices: those of the same options whose names are known."""
    groups: dict[tuple[str, ...], Group] = {}
    for index, program in enumerate(programs):
        if program.names and not any(map(_NOT_FOR_MACROS.fullmatch, program.names)):
            groups.setdefault(program.options, []).append((index, program))
    return [group for group in groups.values() if len(group) > 1]


def _build_joined(device: OpenCLDevice, group: Group) -> dict[int, tuple[Kernel, ...]]:
    native = _counted(device, build_program(device, join([program for _, program in group])))
    return {
        index: tuple(_kernel(device, native, program, layout, _suffix(part)) for layout in program.layouts)
        for part, (index, program) in enumerate(group)
    }


def join(programs: Sequence[Program]) -> Program:
    """Return one program of several with the same options.

    While the compiler reads a part, each of its names is a macro for that name and the part's number.
    """
    extensions = dict.fromkeys(name for program in programs for name in program.extensions)
    return Program(
        language=programs[0].language,
        source="".join(_part(number, program) for number, program in enumerate(programs)),
        layouts=tuple(
            replace(layout, name=layout.name + _suffix(number))
            for number, program in enumerate(programs)
            for layout in program.layouts
        ),
        options=programs[0].options,
        extensions=tuple(extensions),
    )


def _part(number: int, program: Program) -> str:
    names = sorted(program.names)
    defines = "".join(f"#define {name} {name}{_suffix(number)}\n" for name in names)
    undefines = "".join(f"#undef {name}\n" for name in names)
    return f"{defines}{program.source}\n{undefines}"


def _suffix(number: int) -> str:
    return f"_part{number}"
