"""Lists what a program has, as iree-dump-module --output=metadata does, or shows what becomes of it.

--kernels  OpenCL C: what each kernel is translated to, its source where it is hand-written, or its VM code (vmvx)
--python   Python: what each function is translated to
--llvm     LLVM IR: what each loop that may become machine code is written as, before LLVM optimizes it
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from halgpu import errors
from halgpu.cli import programs
from halgpu.cli.flags import Parser

if TYPE_CHECKING:
    from halgpu.vm.definition import ModuleDef


def configure(parser: Parser) -> None:
    """Add the flags."""
    programs.add_module(parser)
    parser.add_argument("--kernels", action="store_true", help="see above")
    parser.add_argument(
        "--device",
        metavar="URI",
        help="the device to translate kernels for (default: one with 64-bit and without 16-bit floats)",
    )
    parser.add_argument("--python", action="store_true", help="see above")
    parser.add_argument("--llvm", action="store_true", help="see above")


def main(options: argparse.Namespace) -> int:
    """Print what was asked for; returns 0."""
    if options.device is not None and not options.kernels:
        raise errors.InvalidArgument(
            f"--device={options.device} says what to translate kernels for: use it with --kernels"
        )
    data = programs.read(options.module)
    if options.kernels:
        sys.stdout.writelines(_kernels(data, options.device))
    if options.python:
        sys.stdout.writelines(_python(data))
    if options.llvm:
        sys.stdout.writelines(_llvm(data))
    if not options.kernels and not options.python and not options.llvm:
        from halgpu.vm import listing

        sys.stdout.write(listing.listing(data))
    return 0


def _kernels(data: Any, device: str | None) -> Iterator[str]:
    from halgpu.vm import definition

    module = definition.read(data)
    texts = list(_executables(module, device))
    yield "\n".join(texts) if texts else f"// @{module.name} has no kernels\n"


def _executables(module: ModuleDef, device: str | None) -> Iterator[str]:
    for found in programs.kernels(module):
        head = f"// rodata[{found.ordinal}]: {found.kind}, {len(found.data)} bytes\n"
        yield head + _shown(found, device)


def _shown(found: programs.Kernels, device: str | None) -> str:
    if found.format == "vulkan-spirv-fb":
        return _opencl_c(found.data, device)
    if found.kind.endswith("hand-written"):
        layouts, _, source = str(found.data, "utf-8").partition("\n")
        return f"// {layouts}\n{source}"
    if found.format == "vmvx-bytecode-fb":
        from halgpu import vm

        return vm.disassemble(vm.read(bytes(found.data)))
    if found.format.startswith("embedded-elf-"):
        return "// machine code, which runs as it is\n"
    return _not_translated()


def _not_translated() -> str:
    from halgpu.executables import registry

    formats = registry.formats()
    return f"// not translated: halgpu runs {', '.join(formats)}; compile with '{registry.compile_command(formats)}'\n"


def _opencl_c(executable: memoryview, device: str | None) -> str:
    from halgpu.executables.vulkan_spirv import executable_def, translate
    from halgpu.executables.vulkan_spirv.loader import target_of, wants_checks
    from halgpu.executables.vulkan_spirv.target import Target

    target = Target(checked=wants_checks())
    if device is not None:
        from halgpu.devices import open_device

        target = target_of(open_device(device))
    return translate.translate(executable_def.read(executable), target).source


def _python(data: Any) -> Iterator[str]:
    from halgpu.vm import BytecodeModule

    translation = BytecodeModule.load(data).translation
    sources = [translation.source(function.definition.ordinal) for function in translation.functions]
    yield "\n\n".join(f"# {source.name}\n{source.text}" for source in sources)


def _llvm(data: Any) -> Iterator[str]:
    from halgpu.vm import BytecodeModule, jit

    if not jit.enabled():
        raise errors.FailedPrecondition(
            "loops are not compiled here: that needs llvmlite (pip install 'halgpu[jit]'; in a checkout: pip install "
            "llvmlite) and HALGPU_JIT not to be 0"
        )
    translation = BytecodeModule.load(data).translation
    count = 0
    for function in translation.functions:
        source = translation.source(function.definition.ordinal)
        if source.loops is None:
            continue
        for region in source.loops.regions:
            count += 1
            yield f"; {source.name}, loop at {region.loop.header:#06x}\n{source.loops.text(region.number)}\n"
    if not count:
        yield f"; @{translation.module.name} has no loops that only compute and touch buffers\n"
