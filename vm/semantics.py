"""What each instruction means: one entry an opcode, as Python source.

:data:`SEMANTICS` maps an instruction's symbol to a template. In a template ``{name}`` stands for the operand of
that name: a local variable for registers, a literal for immediates. The result is assigned in the first statement
that mentions it and no operand is read behind that, because both may be the same variable. Instructions that end
blocks, call, or whose operands are lists have a method of :class:`halgpu.vm.translator.FunctionTranslator` instead.

Names a template may use are those of :data:`NAMES`, and what a context binds: ``F`` (a cell that rounds to f32),
``G`` (globals), ``Gi Gq Gf Gd`` (its typed views), ``refs`` (its refs), ``allocator``.
Meanings are those of runtime/src/iree/vm/ops.h.
"""

from __future__ import annotations

import builtins
import math
from types import ModuleType
from typing import Any

from halgpu.vm import numerics, support


def _public(module: ModuleType) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (isinstance(value, int | float) or getattr(value, "__module__", None) == module.__name__)
    }


NAMES: dict[str, Any] = {
    **_public(support),
    **_public(numerics),
    **numerics.F32_FUNCTIONS,
    "math": math,
    "inf": math.inf,
    "nan": math.nan,
    "__builtins__": builtins,
}

STRUCTURAL = frozenset({"Block", "PrefixExtF32", "PrefixExtF64"})
"""Symbols without a meaning of their own: the block marker and the prefixes of the extension sets."""

METHODS = {
    "DiscardRefs": "discard_refs",
    "AssignRef": "assign_ref",
    "GlobalLoadRef": "global_load_ref",
    "GlobalStoreRef": "global_store_ref",
    "GlobalLoadIndirectRef": "global_load_indirect_ref",
    "GlobalStoreIndirectRef": "global_store_indirect_ref",
    "ConstRefRodata": "const_ref_rodata",
    "ListGetRef": "list_get_ref",
    "SelectRef": "select_ref",
    "SwitchI32": "switch",
    "SwitchI64": "switch",
    "SwitchF32": "switch",
    "SwitchF64": "switch",
    "SwitchRef": "switch_ref",
    "CastAnyRef": "cast_any_ref",
    "Call": "call",
    "CallVariadic": "call",
    "ImportResolved": "import_resolved",
    "Trace": "debug_event",
    "Print": "debug_event",
    "GlobalLoadI32": "global_load",
    "GlobalLoadI64": "global_load",
    "GlobalLoadF32": "global_load",
    "GlobalLoadF64": "global_load",
    "GlobalStoreI32": "global_store",
    "GlobalStoreI64": "global_store",
    "GlobalStoreF32": "global_store",
    "GlobalStoreF64": "global_store",
    # Terminators: halgpu.vm.control_flow
    "Branch": "branch",
    "CondBranch": "cond_branch",
    "BranchTable": "branch_table",
    "CallYieldable": "yieldable_call",
    "CallVariadicYieldable": "yieldable_call",
    "Return": "return_",
    "Fail": "fail",
    "Yield": "branch",
    "Break": "branch",
    "CondBreak": "branch",
}
"""Symbols that a method translates; its name follows ``emit_``."""


def _wrapping(bits: int, expression: str) -> str:
    """Integer arithmetic: the check is cheaper than masking, and hardly ever fails."""
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return f"{{result}} = {expression}\nif not {low} <= {{result}} <= {high}: {{result}} = wrap{bits}({{result}})"


def _integer(bits: int) -> dict[str, str]:
    n = f"I{bits}"
    mask = f"0x{(1 << bits) - 1:X}"
    left, right = f"({{left}} & {mask})", f"({{right}} & {mask})"
    entries = {
        f"Add{n}": _wrapping(bits, "{left} + {right}"),
        f"Sub{n}": _wrapping(bits, "{left} - {right}"),
        f"Mul{n}": _wrapping(bits, "{left} * {right}"),
        f"Div{n}S": _wrapping(bits, "div_s({left}, {right})"),
        f"Div{n}U": _wrapping(bits, f"div_u({left}, {right})"),
        f"Rem{n}S": "{result} = rem_s({left}, {right})",
        f"Rem{n}U": _wrapping(bits, f"rem_u({left}, {right})"),
        f"FMA{n}": _wrapping(bits, "{first} * {second} + {third}"),
        f"Abs{n}": _wrapping(bits, "abs({operand})"),
        f"Min{n}S": "{result} = {right} if {right} < {left} else {left}",
        f"Min{n}U": f"{{result}} = {{right}} if {right} < {left} else {{left}}",
        f"Max{n}S": "{result} = {right} if {left} < {right} else {left}",
        f"Max{n}U": f"{{result}} = {{right}} if {left} < {right} else {{left}}",
        f"Not{n}": "{result} = ~{operand}",
        f"And{n}": "{result} = {left} & {right}",
        f"Or{n}": "{result} = {left} | {right}",
        f"Xor{n}": "{result} = {left} ^ {right}",
        f"Ctlz{n}": f"{{result}} = {bits} - ({{operand}} & {mask}).bit_length()",
        f"Shl{n}": _wrapping(bits, f"{{operand}} << ({{amount}} & {bits - 1})"),
        f"Shr{n}S": f"{{result}} = {{operand}} >> ({{amount}} & {bits - 1})",
        f"Shr{n}U": _wrapping(bits, f"({{operand}} & {mask}) >> ({{amount}} & {bits - 1})"),
        f"CmpEQ{n}": "{result} = 1 if {left} == {right} else 0",
        f"CmpNE{n}": "{result} = 1 if {left} != {right} else 0",
        f"CmpLT{n}S": "{result} = 1 if {left} < {right} else 0",
        f"CmpLT{n}U": f"{{result}} = 1 if {left} < {right} else 0",
        f"CmpNZ{n}": "{result} = 1 if {operand} else 0",
    }
    return entries | _typed(n)


def _typed(n: str) -> dict[str, str]:
    """What exists for each of the four primitive types."""
    code = {"I32": "i", "I64": "q", "F32": "f", "F64": "d"}[n]
    kind = n.lower()
    return {
        f"Const{n}": "{result} = {value}",
        f"Const{n}Zero": "{result} = 0" + (".0" if n[0] == "F" else ""),
        f"Select{n}": "{result} = {true_value} if {condition} else {false_value}",
        f"GlobalLoadIndirect{n}": f"{{result}} = global_load(G, '{code}', {{byte_offset}})",
        f"GlobalStoreIndirect{n}": f"global_store(G, '{code}', {{byte_offset}}, {{value}})",
        f"ListGet{n}": f"{{result}} = list_get({{list}}, {{index}}, '{kind}')",
        f"ListSet{n}": f"list_set({{list}}, {{index}}, {{value}}, '{kind}')",
        f"BufferLoad{n}": f"{{result}} = load({{source_buffer}}, '{code}', {{source_offset}})",
        f"BufferStore{n}": f"store({{target_buffer}}, '{code}', {{target_offset}}, {{value}})",
        f"BufferFill{n}": f"fill({{target_buffer}}, '{code}', {{target_offset}}, {{length}}, {{value}})",
    }


def _float(bits: int) -> dict[str, str]:
    n = f"F{bits}"

    def rounded(expression: str) -> str:
        return f"F[0] = {expression}\n{{result}} = F[0]" if bits == 32 else f"{{result}} = {expression}"

    def compare(condition: str) -> str:
        return f"{{result}} = 1 if {condition} else 0"

    functions = {
        "Ceil": "ceil_f", "Floor": "floor_f", "Round": "round_away", "Sqrt": "sqrt_f", "Rsqrt": f"rsqrt_f{bits}",
    }  # fmt: skip
    library = {
        "Exp": "exp_f", "Exp2": "exp2_f", "ExpM1": "expm1_f", "Log": "log_f", "Log10": "log10_f", "Log1p": "log1p_f",
        "Log2": "log2_f", "Sin": "sin_f", "Cos": "cos_f", "Atan": "math.atan", "Tanh": "math.tanh",
        "Erf": "math.erf",
    }  # fmt: skip

    def c_library(function: str) -> str:
        return f"{function.removeprefix('math.').removesuffix('_f')}_f32" if bits == 32 else function

    entries = {f"{name}{n}": rounded(f"{function}({{operand}})") for name, function in functions.items()}
    entries |= {
        f"{name}{n}": f"{{result}} = {c_library(function)}({{operand}})" for name, function in library.items()
    }
    entries |= {
        f"Add{n}": rounded("{left} + {right}"),
        f"Sub{n}": rounded("{left} - {right}"),
        f"Mul{n}": rounded("{left} * {right}"),
        f"Div{n}": rounded("{left} / {right} if {right} else div_f({left}, {right})"),
        f"Rem{n}": rounded("rem_f({left}, {right})"),
        f"Pow{n}": f"{{result}} = {c_library('pow_f')}({{left}}, {{right}})",
        f"FPowI{n}": f"{{result}} = fpowi_f{bits}({{operand}}, {{exponent}})",
        f"Atan2{n}": f"{{result}} = {c_library('math.atan2')}({{left}}, {{right}})",
        f"FMA{n}": rounded(f"fma_f{bits}({{first}}, {{second}}, {{third}})"),
        f"Round{n}Even": "{result} = round_even({operand})",
        f"Abs{n}": "{result} = abs({operand})",
        f"Neg{n}": "{result} = -{operand}",
        # A NaN on either side gives the left operand.
        f"Min{n}": "{result} = {right} if {right} < {left} else {left}",
        f"Max{n}": "{result} = {right} if {left} < {right} else {left}",
        # Ordered "ne" is C's !=, which holds for NaN.
        f"CmpEQ{n}O": compare("{left} == {right}"),
        f"CmpEQ{n}U": compare("not ({left} < {right} or {left} > {right})"),
        f"CmpNE{n}O": compare("{left} != {right}"),
        f"CmpNE{n}U": compare("{left} != {right}"),
        f"CmpLT{n}O": compare("{left} < {right}"),
        f"CmpLT{n}U": compare("not {left} >= {right}"),
        f"CmpLTE{n}O": compare("{left} <= {right}"),
        f"CmpLTE{n}U": compare("not {left} > {right}"),
        f"CmpNaN{n}": compare("{operand} != {operand}"),
    }
    return entries | _typed(n)


_CORE = {
    "ConstRefZero": "{result} = None",
    "TruncI32I8": "{result} = {operand} & 0xFF",
    "TruncI32I16": "{result} = {operand} & 0xFFFF",
    "ExtI8I32S": "{result} = ({operand} + 0x80 & 0xFF) - 0x80",
    "ExtI8I32U": "{result} = {operand} & 0xFF",
    "ExtI16I32S": "{result} = ({operand} + 0x8000 & 0xFFFF) - 0x8000",
    "ExtI16I32U": "{result} = {operand} & 0xFFFF",
    "TruncI64I32": "{result} = ({operand} + 0x80000000 & 0xFFFFFFFF) - 0x80000000",
    "ExtI32I64S": "{result} = {operand}",
    "ExtI32I64U": "{result} = {operand} & 0xFFFFFFFF",
    "CmpEQRef": "{result} = 1 if {left} is {right} else 0",
    "CmpNERef": "{result} = 1 if {left} is not {right} else 0",
    "CmpNZRef": "{result} = 0 if {operand} is None else 1",
    "BufferAlloc": "{result} = buffer_alloc({length}, {alignment}, allocator)",
    "BufferClone": "{result} = buffer_clone({source}, {offset}, {length}, {alignment}, allocator)",
    "BufferLength": "{result} = buffer_length({buffer})",
    "BufferCopy": (
        "buffer_copy({source_buffer}, {source_offset}, {target_buffer}, {target_offset}, {length})"
    ),
    "BufferCompare": (
        "{result} = buffer_compare({lhs_buffer}, {lhs_offset}, {rhs_buffer}, {rhs_offset}, {length})"
    ),
    "BufferHash": "{result} = buffer_hash({source_buffer}, {source_offset}, {length})",
    "BufferFillI8": "fill({target_buffer}, 'B', {target_offset}, {length}, {value} & 0xFF)",
    "BufferFillI16": "fill({target_buffer}, 'H', {target_offset}, {length}, {value} & 0xFFFF)",
    "BufferLoadI8U": "{result} = load({source_buffer}, 'B', {source_offset})",
    "BufferLoadI8S": "{result} = load({source_buffer}, 'b', {source_offset})",
    "BufferLoadI16U": "{result} = load({source_buffer}, 'H', {source_offset})",
    "BufferLoadI16S": "{result} = load({source_buffer}, 'h', {source_offset})",
    "BufferStoreI8": "store({target_buffer}, 'B', {target_offset}, {value} & 0xFF)",
    "BufferStoreI16": "store({target_buffer}, 'H', {target_offset}, {value} & 0xFFFF)",
    "ListAlloc": "{result} = list_alloc({element_type}, {initial_capacity})",
    "ListReserve": "list_reserve({list}, {minimum_capacity})",
    "ListSize": "{result} = list_size({list})",
    "ListResize": "list_resize({list}, {new_size})",
    "ListSetRef": "list_set_ref({list}, {index}, {value})",
}

_CONVERSIONS = {
    "CastSI32F32": "{result} = int_to_f32({operand})",
    "CastSI64F32": "{result} = int_to_f32({operand})",
    "CastUI32F32": "{result} = int_to_f32({operand} & 0xFFFFFFFF)",
    "CastUI64F32": "{result} = int_to_f32({operand} & 0xFFFFFFFFFFFFFFFF)",
    "CastF32SI32": "{result} = to_s32({operand})",
    "CastF32SI64": "{result} = to_s64({operand})",
    "CastF32UI32": "{result} = to_s32({operand})",
    "CastF32UI64": "{result} = to_u64({operand})",
    "BitcastI32F32": "{result} = from_bits32({operand})",
    "BitcastF32I32": "{result} = bits_f32({operand})",
    "TruncF64F32": "F[0] = {operand}\n{result} = F[0]",
    "ExtF32F64": "{result} = {operand}",
    "CastSI32F64": "{result} = float({operand})",
    "CastUI32F64": "{result} = float({operand} & 0xFFFFFFFF)",
    "CastSI64F64": "{result} = float({operand})",
    "CastUI64F64": "{result} = float({operand} & 0xFFFFFFFFFFFFFFFF)",
    # ops.h passes the f64 to lroundf, which would lose bits of it; these round the f64 itself.
    "CastF64SI32": "{result} = to_s32({operand})",
    "CastF64UI32": "{result} = to_s32({operand})",
    "CastF64SI64": "{result} = to_s64({operand})",
    "CastF64UI64": "{result} = to_u64({operand})",
    "BitcastI64F64": "{result} = from_bits64({operand})",
    "BitcastF64I64": "{result} = bits_f64({operand})",
}

SEMANTICS: dict[str, str] = {
    **_integer(32),
    **_integer(64),
    **_float(32),
    **_float(64),
    **_CORE,
    **_CONVERSIONS,
}
for _symbol in METHODS:
    SEMANTICS.pop(_symbol, None)
