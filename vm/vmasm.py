"""The text form of instructions (VMASM): one form an encoding, for the disassembler and the assembler.

A form is the text of a line with ``{field}`` for each field of the encoding and ``{op}`` for ``vm.`` and the
mnemonic. Facts come from runtime/src/iree/vm/bytecode/disassembler.c. Where that text lacks a field the form
here has it: ``switch.ref`` with its type (IREE 3.13.0 prints neither the type nor, as it reads the operands
without it, the right operands).
"""

from __future__ import annotations

import json
import math
import re

from halgpu.vm.isa import Reg, ValueType

_UNARY = "{result} = {op} {operand}"
_BINARY = "{result} = {op} {left}, {right}"

FORMS = {
    "unary": _UNARY,
    "unary_comparison": _UNARY,
    "conversion": _UNARY,
    "binary": _BINARY,
    "binary_comparison": _BINARY,
    "ternary": "{result} = {op} {first}, {second}, {third}",
    "shift": "{result} = {op} {operand}, {amount}",
    "power": "{result} = {op} {operand}, {exponent}",
    "select": "{result} = {op} {condition} ? {true_value} : {false_value}",
    "select_ref": "{result} = {op} {condition} ? {true_value} : {false_value} -> {true_value_type_def}",
    "switch": "{result} = {op} {index}[{values}] else {default_value}",
    "switch_ref": "{result} = {op} {index}[{values}] else {default_value} : {type_def}",
    "cast_any_ref": "{result} = {op} {operand} : !vm.ref<?> -> {result_type}",
    "global_load": "{result} = {op} .rwdata[{byte_offset}]",
    "global_load_indirect": "{result} = {op} .rwdata[{byte_offset}]",
    "global_load_ref": "{value} = {op} .refs[{global}] : {type_def}",
    "global_load_indirect_ref": "{value} = {op} .refs[{global}] : {type_def}",
    "global_store": "{op} {value}, .rwdata[{byte_offset}]",
    "global_store_indirect": "{op} {value}, .rwdata[{byte_offset}]",
    "global_store_ref": "{op} {value}, .refs[{global}] : {type_def}",
    "global_store_indirect_ref": "{op} {value}, .refs[{global}] : {type_def}",
    "constant": "{result} = {op} {value}",
    "zero_constant": "{result} = {op}",
    "const_ref_zero": "{result} = {op}",
    "const_ref_rodata": "{value} = {op} {rodata}",
    "discard_refs": "{op} {refs}",
    "assign_ref": "{result} = {op} {source}",
    "list_alloc": "{result} = {op} {initial_capacity} : !vm.list<{element_type}>",
    "list_reserve": "{op} {list}, {minimum_capacity}",
    "list_size": "{result} = {op} {list}",
    "list_resize": "{op} {list}, {new_size}",
    "list_get": "{result} = {op} {list}, {index}",
    "list_get_ref": "{result} = {op} {list}, {index} : {type_def}",
    "list_set": "{op} {list}, {index}, {value}",
    "list_set_ref": "{op} {list}, {index}, {value}",
    "buffer_alloc": "{result} = {op} {length}, {alignment}",
    "buffer_clone": "{result} = {op} {source}, {offset}, {length}, {alignment}",
    "buffer_length": "{result} = {op} {buffer}",
    "buffer_copy": "{op} {source_buffer}, {source_offset}, {target_buffer}, {target_offset}, {length}",
    "buffer_compare": "{result} = {op} {lhs_buffer}, {lhs_offset}, {rhs_buffer}, {rhs_offset}, {length}",
    "buffer_fill": "{op} {target_buffer}, {target_offset}, {length}, {value}",
    "buffer_load": "{result} = {op} {source_buffer}, {source_offset}",
    "buffer_store": "{op} {value}, {target_buffer}, {target_offset}",
    "buffer_hash": "{result} = {op} {source_buffer}, {source_offset}, {length}",
    "branch": "{op} {dest_pc}({operands})",
    "conditional_branch": (
        "{op} {condition}, {true_dest_pc}({true_operands}), {false_dest_pc}({false_operands})"
    ),
    "conditional_break": "{op} {condition}, {dest_pc}({operands})",
    "branch_table": "{op} {index} {{ default: {default_dest_pc}({default_operands}){cases} }}",
    "call": "{results} = {op} @{callee_ordinal}({operands})",
    "call_variadic": "{results} = {op} @{callee_ordinal} segments[{segment_sizes}]({operands})",
    "yieldable_call": "{op} @{callee_ordinal}({operands}) -> {dest_pc}({results})",
    "call_variadic_yieldable": (
        "{op} @{callee_ordinal} segments[{segment_sizes}]({operands}) -> {dest_pc}({results})"
    ),
    "return": "{op} {operands}",
    "fail": '{op} {status}, "{message}"',
    "import_resolved": "{result} = {op} @{import_ordinal}",
    "trace": '{op} "{event_name}"({operands})',
}
"""``{results} =`` without results, and the space before no operands of ``return``, are left out."""

ALSO = {
    "global_load_indirect": "{result} = {op} {byte_offset}",
    "global_store_indirect": "{op} {byte_offset}, {value}",
    "global_load_indirect_ref": "{value} = {op} {global} : {type_def}",
    "global_store_indirect_ref": "{op} {global} : {type_def}, {value}",
    "trace": '{op} "{event_name}", {operands}',
}
"""Forms of some encodings that iree-as-module reads where it does not read those of :data:`FORMS`."""

TYPE_NAMES = {"i": "i32", "I": "i64", "f": "f32", "F": "f64", "r": "!vm.ref<?>"}
"""Types in the signature line of a function, by the letters of calling conventions."""


def register(reg: Reg, value_type: ValueType | None = "any") -> str:
    """``%i4``, ``%i4:5`` for 64-bit values where the type is known, ``%r1``, or ``%R1`` for a move."""
    if reg.bank == "ref":
        return f"%{'R' if reg.move else 'r'}{reg.ordinal}"
    if value_type in ("i64", "f64"):
        return f"%i{reg.ordinal}:{reg.ordinal + 1}"
    return f"%i{reg.ordinal}"


def number(value: float, value_type: ValueType | None) -> str:
    """An immediate the way C prints it, with as many digits as tell all values apart."""
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return "-nan" if math.copysign(1, value) < 0 else "nan"
    return f"{value:.9g}" if value_type == "f32" else f"{value:.17g}"


def quoted(text: str) -> str:
    """A text in quotes, with JSON's escapes and no ``"`` inside: comments are told from code by counting those."""
    return f'"{json.dumps(text)[1:-1].replace(_QUOTE, _ESCAPED_QUOTE)}"'


_QUOTE, _ESCAPED_QUOTE = '\\"', "\\u0022"


def is_symbol(name: str) -> bool:
    """Whether ``@name`` can be read back."""
    return re.fullmatch(r"[A-Za-z0-9_$.]+", name) is not None


def is_type(name: str) -> bool:
    """Whether a line may end with the type ``name``."""
    return re.fullmatch(r'(?!type\[)(?!.*//)[^\s"#,](?:[^"#,\t\r\n]*[^\s"#,])?', name) is not None
