"""IREE's ``vm`` dialect as far as inline programs use it: what the bytecode holds, before registers are given out."""

from __future__ import annotations

from xdsl.ir import Dialect

from halgpu.compiler.dialects import vm_control, vm_instructions, vm_structure
from halgpu.compiler.dialects.vm_types import BufferType, ListType, OpaqueType, RefType

VM = Dialect(
    "vm",
    [*vm_structure.OPERATIONS, *vm_control.OPERATIONS, *vm_instructions.OPERATIONS.values()],
    [BufferType, ListType, OpaqueType, RefType],
)
