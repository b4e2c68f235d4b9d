"""Functions that the runtime's modules give to inline programs, and what their arguments are.

Facts: compiler/src/iree/compiler/Modules/HAL/Inline/hal_inline.imports.mlir and
Modules/HAL/Loader/hal_loader.imports.mlir.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FunctionType,
    IntegerAttr,
    IntegerType,
    StringAttr,
    TupleType,
    UnitAttr,
)
from xdsl.ir import Attribute, Region, TypeAttribute

from halgpu.compiler.dialects import hal
from halgpu.compiler.dialects.vm_structure import ImportOp
from halgpu.compiler.dialects.vm_types import BufferType, RefType

I32, I64 = IntegerType(32), IntegerType(64)
_TYPES: Final[dict[str, Attribute]] = {
    "i32": I32,
    "i64": I64,
    "bytes": BufferType(),
    "buffer": RefType(hal.BufferType()),
    "view": RefType(hal.BufferViewType()),
    "executable": RefType(hal.ExecutableType()),
    "binding": TupleType(ArrayAttr[TypeAttribute]([BufferType(), I64, I64])),
}


@dataclass(frozen=True)
class Argument:
    """An argument of an import; ``variadic``: any number of such values, or tuples of them."""

    name: str
    type: Attribute
    variadic: bool


@dataclass(frozen=True)
class Import:
    """A function of another module. ``pure``: calls whose results are not used may be left out."""

    name: str
    arguments: tuple[Argument, ...]
    results: tuple[Attribute, ...]
    pure: bool
    minimum_version: int

    @property
    def is_variadic(self) -> bool:
        return any(argument.variadic for argument in self.arguments)

    def declare(self) -> ImportOp:
        """The operation that declares it."""
        rows = [
            {"vm.name": StringAttr(a.name), **({"vm.variadic": UnitAttr()} if a.variadic else {})}
            for a in self.arguments
        ]
        op = ImportOp.build(
            properties={
                "sym_visibility": StringAttr("private"),
                "sym_name": StringAttr(self.name),
                "function_type": FunctionType.from_lists([a.type for a in self.arguments], self.results),
                "arg_attrs": ArrayAttr([DictionaryAttr(row) for row in rows]),
                **(
                    {"minimum_version": IntegerAttr(self.minimum_version, 32)} if self.minimum_version else {}
                ),
            },
            regions=[Region()],
        )
        if self.pure:
            op.attributes["nosideeffects"] = UnitAttr()
        return op


_TABLE: Final = """
hal_inline.buffer.allocate             minimum_alignment:i32 allocation_size:i64 -> buffer bytes
hal_inline.buffer.allocate.initialized minimum_alignment:i32 source:bytes offset:i64 length:i64 -> buffer bytes
hal_inline.buffer.wrap                 source:bytes offset:i64 length:i64 -> buffer
hal_inline.buffer.subspan              source_buffer:buffer source_offset:i64 length:i64 -> buffer
hal_inline.buffer.length               buffer:buffer -> i64
hal_inline.buffer.storage              buffer:buffer -> bytes
hal_inline.buffer_view.create          source_buffer:buffer source_offset:i64 source_length:i64 element_type:i32 \
encoding_type:i32 shape:i64* -> view
hal_inline.buffer_view.assert!         buffer_view:view message:bytes element_type:i32 encoding_type:i32 shape:i64*
hal_inline.buffer_view.buffer          buffer_view:view -> buffer
hal_inline.buffer_view.element_type    buffer_view:view -> i32
hal_inline.buffer_view.encoding_type   buffer_view:view -> i32
hal_inline.buffer_view.rank            buffer_view:view -> i32
hal_inline.buffer_view.dim             buffer_view:view index:i32 -> i64
hal_inline.buffer_view.trace!          key:bytes operands:view*
hal_inline.device.query.i64            category:bytes key:bytes -> i32 i64
hal_loader.executable.query_support    executable_format:bytes -> i32
hal_loader.executable.load             executable_format:bytes executable_data:bytes constants:bytes -> executable
hal_loader.executable.dispatch!1       executable:executable function_id:i64 workgroup_x:i32 workgroup_y:i32 \
workgroup_z:i32 constants:i32* bindings:binding*
hal_loader.executable.lookup.function1 executable:executable function_name:bytes -> i64
"""
"""``!``: has effects. A number behind the name: the least version of the module. ``*``: variadic."""


def _read(line: str) -> Import:
    name, *words = line.split()
    version = int(name[-1]) if name[-1].isdigit() and not name.endswith("i64") else 0
    name = name[:-1] if version else name
    at = words.index("->") if "->" in words else len(words)
    pairs = [word.split(":") for word in words[:at]]
    arguments = tuple(Argument(n, _TYPES[t.rstrip("*")], t.endswith("*")) for n, t in pairs)
    results = tuple(_TYPES[word] for word in words[at + 1 :])
    return Import(name.rstrip("!"), arguments, results, "!" not in name, version)


IMPORTS: Final = {found.name: found for found in map(_read, _TABLE.replace("\\\n", "").strip().splitlines())}
"""Imports by full name."""
