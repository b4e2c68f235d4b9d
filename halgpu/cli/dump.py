"""Lists what a program has, as iree-dump-module --output=metadata does, or shows what becomes of it.

--kernels  OpenCL C: what each kernel is translated to
--python   Python: what each function is translated to
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

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


def main(options: argparse.Namespace) -> int:
    """Print what was asked for; returns 0."""
    data = programs.read(options.module)
    if options.kernels:
        sys.stdout.writelines(_kernels(data, options.device))
    if options.python:
        sys.stdout.writelines(_python(data))
    if not options.kernels and not options.python:
        from halgpu.vm import listing

        sys.stdout.write(listing.listing(data))
    return 0


_KINDS = {
    b"VKE1": "vulkan-spirv-fb",
    b"CDA1": "cuda-nvptx-fb",
    b"\x7fELF": "an ELF binary (embedded-elf)",
    b"PK\x03\x04": "a bytecode module (vmvx-bytecode-fb)",
}
"""Kernels in rodata, by how they start (identifiers of runtime/src/iree/schemas)."""


def _kernels(data: Any, device: str | None) -> Iterator[str]:
    from halgpu.vm import definition

    module = definition.read(data)
    texts = list(_executables(module, device))
    yield "\n".join(texts) if texts else f"// @{module.name} has no kernels\n"


def _executables(module: ModuleDef, device: str | None) -> Iterator[str]:
    for ordinal, segment in enumerate(module.rodata):
        kind = _KINDS.get(bytes(segment[:4]))
        if kind is None:
            continue
        head = f"// rodata[{ordinal}]: {kind}, {len(segment)} bytes\n"
        yield head + (_opencl_c(segment, device) if kind == "vulkan-spirv-fb" else "// not translated\n")


def _opencl_c(executable: memoryview, device: str | None) -> str:
    from halgpu.executables.vulkan_spirv import executable_def, translate

    target = translate.Target()
    if device is not None:
        from halgpu.devices import open_device
        from halgpu.executables.vulkan_spirv.loader import target_of

        target = target_of(open_device(device))
    return translate.translate(executable_def.read(executable), target).source


def _python(data: Any) -> Iterator[str]:
    from halgpu.vm import BytecodeModule

    translation = BytecodeModule.load(data).translation
    sources = [translation.source(function.definition.ordinal) for function in translation.functions]
    yield "\n\n".join(f"# {source.name}\n{source.text}" for source in sources)
