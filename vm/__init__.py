"""IREE VM bytecode: load, check and run it. Knows values and programs, nothing of devices.

context = vm.Context([SomeNativeModule(), vm.BytecodeModule.load("program.vmfb")])
context.lookup("main")(1, 2)

A module as data: read(bytes) -> ModuleDef, verify, disassemble and assemble (text), write (bytes).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halgpu.vm.abi import CallingConvention as CallingConvention
    from halgpu.vm.abi import CallLayout as CallLayout
    from halgpu.vm.allocator import Allocator as Allocator
    from halgpu.vm.allocator import HostAllocator as HostAllocator
    from halgpu.vm.assembler import assemble as assemble
    from halgpu.vm.buffer import Buffer as Buffer
    from halgpu.vm.buffer import BufferAccess as BufferAccess
    from halgpu.vm.buffer import HostBytes as HostBytes
    from halgpu.vm.context import Context as Context
    from halgpu.vm.context import Function as Function
    from halgpu.vm.definition import ModuleDef as ModuleDef
    from halgpu.vm.definition import read as read
    from halgpu.vm.disassembler import disassemble as disassemble
    from halgpu.vm.lists import List as List
    from halgpu.vm.module import BytecodeModule as BytecodeModule
    from halgpu.vm.native import NativeModule as NativeModule
    from halgpu.vm.native import export as export
    from halgpu.vm.verifier import verify as verify
    from halgpu.vm.writer import write as write

_EXPORTS = {
    "Allocator": "allocator",
    "Buffer": "buffer",
    "BufferAccess": "buffer",
    "BytecodeModule": "module",
    "CallLayout": "abi",
    "CallingConvention": "abi",
    "Context": "context",
    "Function": "context",
    "HostAllocator": "allocator",
    "HostBytes": "buffer",
    "List": "lists",
    "ModuleDef": "definition",
    "NativeModule": "native",
    "assemble": "assembler",
    "disassemble": "disassembler",
    "export": "native",
    "read": "definition",
    "verify": "verifier",
    "write": "writer",
}
__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    # PEP 562: importing a part of the package loads that part only.
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
