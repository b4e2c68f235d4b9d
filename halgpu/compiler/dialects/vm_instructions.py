"""The ``vm`` operations that are one instruction each, made from the instruction table of :mod:`halgpu.vm.isa`.

An operation's operands and results are the instruction's registers in the table's order, under the table's names; what
is no register is a property. Formats are those of compiler/src/iree/compiler/Dialect/VM/IR/VMOps.td.
"""

from typing import Any, ClassVar, Final

from xdsl.dialects.builtin import (
    FlatSymbolRefAttrConstr,
    Float32Type,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    IntegerType,
)
from xdsl.irdl import (
    BaseAttr,
    IRDLOperation,
    VarConstraint,
    eq,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import MemoryAllocEffect, MemoryReadEffect, MemoryWriteEffect, Pure

from halgpu.compiler.dialects.vm_types import REF, BufferType, ListType
from halgpu.vm import isa

_TYPES: Final[dict[str, Any]] = {
    "i32": IntegerType(32),
    "i64": IntegerType(64),
    "f32": Float32Type(),
    "f64": Float64Type(),
}

_UNARY = "$operand attr-dict `:` type($result)"
_COMPARE_ONE = "$operand attr-dict `:` type($operand)"
_CONVERT = "$operand attr-dict `:` type($operand) `->` type($result)"

FORMATS: Final = {
    "unary": _UNARY,
    "binary": "$left `,` $right attr-dict `:` type($result)",
    "ternary": "$first `,` $second `,` $third attr-dict `:` type($result)",
    "shift": "$operand `,` $amount attr-dict `:` type($operand)",
    "select": "$condition `,` $true_value `,` $false_value attr-dict `:` type($result)",
    "select_ref": "$condition `,` $true_value `,` $false_value attr-dict `:` type($result)",
    "unary_comparison": _COMPARE_ONE,
    "binary_comparison": "$left `,` $right attr-dict `:` type($left)",
    "conversion": _CONVERT,
    "cast_any_ref": _CONVERT,
    "constant": "$value attr-dict",
    "zero_constant": "attr-dict",
    "const_ref_zero": "attr-dict `:` type($result)",
    "const_ref_rodata": "$rodata attr-dict `:` type($value)",
    "global_load": "$global attr-dict `:` type($result)",
    "global_load_ref": "$global attr-dict `:` type($value)",
    "global_store": "$value `,` $global attr-dict `:` type($value)",
    "global_store_ref": "$value `,` $global attr-dict `:` type($value)",
    "buffer_alloc": "$length `,` $alignment attr-dict `:` type($result)",
    "buffer_clone": (
        "$source `,` $offset `,` $length `,` $alignment attr-dict `:` type($source) `->` type($result)"
    ),
    "buffer_length": "$buffer attr-dict `:` type($buffer) `->` type($result)",
    "buffer_copy": (
        "$source_buffer `,` $source_offset `,` $target_buffer `,` $target_offset `,` $length attr-dict "
        "`:` type($source_buffer) `->` type($target_buffer)"
    ),
    "buffer_compare": (
        "$lhs_buffer `,` $lhs_offset `,` $rhs_buffer `,` $rhs_offset `,` $length attr-dict "
        "`:` type($lhs_buffer) `,` type($rhs_buffer)"
    ),
    "buffer_fill": (
        "$target_buffer `,` $target_offset `,` $length `,` $value attr-dict "
        "`:` type($value) `->` type($target_buffer)"
    ),
    "buffer_load": (
        "$source_buffer `[` $source_offset `]` attr-dict `:` type($source_buffer) `->` type($result)"
    ),
    "buffer_store": (
        "$value `,` $target_buffer `[` $target_offset `]` attr-dict "
        "`:` type($value) `->` type($target_buffer)"
    ),
    "buffer_hash": (
        "$source_buffer `,` $source_offset `,` $length attr-dict `:` type($source_buffer) `->` type($result)"
    ),
    "list_alloc": "$initial_capacity attr-dict `:` `(` type($initial_capacity) `)` `->` type($result)",
    "list_reserve": (
        "$list `,` $minimum_capacity attr-dict `:` `(` type($list) `,` type($minimum_capacity) `)`"
    ),
    "list_size": "$list attr-dict `:` `(` type($list) `)` `->` type($result)",
    "list_resize": "$list `,` $new_size attr-dict `:` `(` type($list) `,` type($new_size) `)`",
    "list_get": "$list `,` $index attr-dict `:` `(` type($list) `,` type($index) `)` `->` type($result)",
    "list_get_ref": "$list `,` $index attr-dict `:` `(` type($list) `,` type($index) `)` `->` type($result)",
    "list_set": (
        "$list `,` $index `,` $value attr-dict `:` `(` type($list) `,` type($index) `,` type($value) `)`"
    ),
    "list_set_ref": (
        "$list `,` $index `,` $value attr-dict `:` `(` type($list) `,` type($index) `,` type($value) `)`"
    ),
}
"""Formats by encoding; encodings that are not here have no operation, or one of :mod:`.vm_structure`."""

_EFFECTS: Final[dict[str, Any]] = {
    "global_load": MemoryReadEffect,
    "global_load_ref": MemoryReadEffect,
    "global_store": MemoryWriteEffect,
    "global_store_ref": MemoryWriteEffect,
    "buffer_alloc": MemoryAllocEffect,
    "buffer_clone": MemoryAllocEffect,
    "buffer_copy": MemoryWriteEffect,
    "buffer_compare": MemoryReadEffect,
    "buffer_fill": MemoryWriteEffect,
    "buffer_load": MemoryReadEffect,
    "buffer_store": MemoryWriteEffect,
    "buffer_hash": MemoryReadEffect,
    "list_alloc": MemoryAllocEffect,
    "list_reserve": MemoryWriteEffect,
    "list_size": MemoryReadEffect,
    "list_resize": MemoryWriteEffect,
    "list_get": MemoryReadEffect,
    "list_get_ref": MemoryReadEffect,
    "list_set": MemoryWriteEffect,
    "list_set_ref": MemoryWriteEffect,
}
MOVABLE: Final = {"global_store_ref", "cast_any_ref"}
"""Encodings whose reference operands may move: the register ends with its use (VMOps.td, RefMoveInterface)."""
MAY_FAIL: Final = {
    "buffer_alloc", "buffer_clone", "buffer_copy", "buffer_compare", "buffer_fill", "buffer_load",
    "buffer_store", "buffer_hash", "list_alloc", "list_reserve", "list_size", "list_resize", "list_get",
    "list_get_ref", "list_set", "list_set_ref",
}  # fmt: skip
"""Encodings of instructions that may end a call with an error, beside division (VMOps.td, VM_MayFail)."""


def _constraint(field: isa.Field, encoding: str) -> Any:
    if field.type != "ref":
        return eq(_TYPES[str(field.type)])
    if encoding.startswith("buffer") or encoding == "const_ref_rodata":
        return eq(BufferType())
    if field.name == "list" or encoding == "list_alloc":
        return BaseAttr(ListType)
    if encoding in ("select_ref", "binary_comparison"):
        return VarConstraint("T", REF)
    return REF


def _property(field: isa.Field) -> tuple[str, Any] | None:
    """Name and constraint of the property that holds what is no register; None for what follows from types."""
    match field.kind:
        case "immediate":
            type_ = _TYPES[str(field.type)]
            constr: Any = IntegerAttr.constr if isinstance(type_, IntegerType) else FloatAttr.constr
            return "value", prop_def(constr(type_))
        case "global" | "global_ref":
            return "global", prop_def(FlatSymbolRefAttrConstr, prop_name="global")
        case "rodata":
            return "rodata", prop_def(FlatSymbolRefAttrConstr)
    return None


def _define(instruction: isa.Instruction) -> type[IRDLOperation]:
    """The operation of an instruction."""
    encoding = instruction.encoding
    body: dict[str, Any] = {
        "name": f"vm.{instruction.mnemonic}",
        "__doc__": f"The instruction {instruction.mnemonic}.",
        "assembly_format": FORMATS[encoding],
        "traits": traits_def(_EFFECTS.get(encoding, Pure)()),
        "INSTRUCTION": instruction,
        "__module__": __name__,
    }
    for field in instruction.fields:
        if field.kind == "register":
            make = operand_def if field.access == "read" else result_def
            body[field.name] = make(_constraint(field, encoding))
        elif (found := _property(field)) is not None:
            body["global_" if found[0] == "global" else found[0]] = found[1]
    body["__annotations__"] = {"INSTRUCTION": ClassVar[isa.Instruction]}
    return irdl_op_definition(type(instruction.symbol + "Op", (IRDLOperation,), body))


OPERATIONS: Final = {
    str(instruction.mnemonic): _define(instruction)
    for instruction in isa.INSTRUCTIONS
    if instruction.encoding in FORMATS and instruction.mnemonic is not None
}
"""Operations by mnemonic."""
