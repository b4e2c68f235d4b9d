"""Subgroup instructions, emulated: OpenCL 1.2 has no subgroups.

A subgroup is as many neighbours by local index as the compiler counted on. Its invocations exchange values
through workgroup memory, between barriers, so that these instructions are translated only where all invocations
of a workgroup come by together (see uniformity.py).
"""

from __future__ import annotations

from typing import Final

from . import ctypes
from . import spirv_types as ty
from .emitter import Emitter, Handler
from .expressions import ATOM, EQUALITY, Expr
from .module import Instruction
from .numbers import is_bool, is_float, is_int, shorten, widen
from .op_glsl import define_max, define_min
from .opcodes import Op, op_name

_REDUCE, _INCLUSIVE, _EXCLUSIVE, _CLUSTERED = 0, 1, 2, 3
_BARRIER: Final = "barrier(CLK_LOCAL_MEM_FENCE);"


def together(e: Emitter, instruction: Instruction) -> None:
    """Refuse an instruction that some invocations of the workgroup may not come to."""
    if e.depth or not e.kernel.subgroups.uniformity.is_uniform(e.block):
        e.refuse(f"{op_name(instruction.op)} where the invocations of a workgroup may be apart")


def _share(e: Emitter, instruction: Instruction, value: Expr) -> tuple[Expr, str, str]:
    """Let all invocations see a value; returns it as shared, the array it is in, and the own index there."""
    together(e, instruction)
    if not isinstance(value.type, (ty.Bool, ty.Int, ty.Float)):
        e.refuse(f"{op_name(instruction.op)} of a {value.type}")
    given = widen(e, value)
    array, apart = e.kernel.subgroups.exchange(e.block, given.type)
    index = e.kernel.subgroups.index
    if apart:
        e.statement(_BARRIER)
    e.statement(f"{array}[{index}] = {given.text};", given)
    e.statement(_BARRIER)
    e.kernel.touch_memory()
    return given, array, index


def _take(e: Emitter, instruction: Instruction, type_: ty.Type, given: Expr, text: str, *reads: Expr) -> None:
    """Let the result be what is read of the shared values, now: other values will take their place."""
    used = tuple(local for expr in reads for local in expr.reads)
    e.define(instruction, shorten(e, Expr(given.type, text, ATOM, used), type_), now=True)


def _scope(e: Emitter, instruction: Instruction) -> None:
    constant = e.module.constants.get(instruction.operands[0])
    if constant is None or constant.value != 3:
        e.refuse(f"{op_name(instruction.op)} of another scope than Subgroup")


def _reduction(operation: str, kind: str) -> Handler:
    """Reductions and inclusive scans; ``operation`` combines r and x."""

    def reduce(e: Emitter, instruction: Instruction, type_: ty.Type) -> None:
        _scope(e, instruction)
        mode, value_id, *cluster = instruction.operands[1:]
        value = e.value(value_id)
        right = {"i": is_int, "f": is_float, "b": is_bool}[kind[0]](type_)
        e.check(instruction, right and value.type is type_, f"a {type_}")
        size = e.kernel.subgroups.size
        if mode == _CLUSTERED:
            size = _cluster(e, instruction, cluster, size)
        elif mode not in (_REDUCE, _INCLUSIVE):
            e.refuse(f"{op_name(instruction.op)} as an exclusive scan or a group operation {mode}")
        given, array, index = _share(e, instruction, value)
        helper = _helper(e, instruction, operation, kind, given.type, size, mode == _INCLUSIVE)
        _take(e, instruction, type_, given, f"{helper}({array}, {index})")

    return reduce


def _cluster(e: Emitter, instruction: Instruction, operands: list[int], size: int) -> int:
    constant = e.module.constants.get(operands[0]) if operands else None
    number = constant.value if constant is not None and isinstance(constant.value, int) else 0
    if not 0 < number <= size or number & (number - 1):
        e.fail(instruction, f"a cluster of {number} in a subgroup of {size}")
    return number


def _helper(
    e: Emitter, instruction: Instruction, operation: str, kind: str, type_: ty.Type, size: int, scan: bool
) -> str:
    """A function that combines the values from the first of a subgroup on, in order."""
    name = e.source.type(type_)
    total = e.kernel.subgroups.total
    if kind == "fmin":
        operation = f"{define_min(e, type_)}(r, x)"
    elif kind == "fmax":
        operation = f"{define_max(e, type_)}(r, x)"
    elif isinstance(type_, ty.Int):
        operation = operation.replace("signed", ctypes.signed_name(type_))
    end = "i + 1" if scan else f"min(first + {size}u, {total}u)" if total % size else f"first + {size}u"
    text = (
        f"static {name} NAME(__local const {name} *lanes, uint i)\n{{\n    uint first = i & ~{size - 1}u;\n"
        f"    {name} r = lanes[first];\n    for (uint k = first + 1; k < {end}; ++k) {{\n"
        f"        {name} x = lanes[k];\n        r = ({name})({operation});\n    }}\n    return r;\n}}"
    )
    action = Op(instruction.op).name.removeprefix("GroupNonUniform").lower()
    return e.source.helper(f"subgroup_{action}", text, name, f"{size}{'_scan' if scan else ''}", str(total))


def _shuffle(lane: str) -> Handler:
    """Reading the value of another invocation: the index of which, from ``i`` (own), ``n`` (operand), ``last``."""

    def shuffle(e: Emitter, instruction: Instruction, type_: ty.Type) -> None:
        _scope(e, instruction)
        value = e.value(instruction.operands[1])
        operand = e.name(instruction.operands[2]) if len(instruction.operands) > 2 else None
        e.check(instruction, value.type is type_, f"a {type_}")
        if operand is not None:
            e.check(instruction, operand.type is ty.INTS[32], "a 32-bit number of an invocation")
        given, array, index = _share(e, instruction, value)
        size, total = e.kernel.subgroups.size, e.kernel.subgroups.total
        number = operand.text if operand is not None else "0u"
        text = lane.format(i=index, n=number, last=f"{size - 1}u")
        if total % size:
            text = f"min({text}, {total - 1}u)"
        _take(e, instruction, type_, given, f"{array}[{text}]", *([operand] if operand is not None else []))

    return shuffle


def vote(e: Emitter, instruction: Instruction, type_: ty.Type) -> None:
    """OpGroupNonUniformAll, OpGroupNonUniformAny."""
    _scope(e, instruction)
    value = e.value(instruction.operands[1])
    e.check(instruction, value.type is type_ is ty.BOOL, "a boolean")
    operation = "r && x" if instruction.op == Op.GroupNonUniformAll else "r || x"
    given, array, index = _share(e, instruction, value)
    helper = _helper(e, instruction, operation, "b", given.type, e.kernel.subgroups.size, False)
    _take(e, instruction, type_, given, f"{helper}({array}, {index})")


def elect(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpGroupNonUniformElect: where all come by together, the first one."""
    _scope(e, instruction)
    together(e, instruction)
    e.check(instruction, type_ is ty.BOOL, "a boolean result")
    subgroups = e.kernel.subgroups
    return Expr(type_, f"({subgroups.index} & {subgroups.size - 1}u) == 0u", EQUALITY)


TABLE: Final[dict[int, Handler]] = {
    Op.GroupNonUniformElect: elect,
    Op.GroupNonUniformAll: vote,
    Op.GroupNonUniformAny: vote,
    Op.GroupNonUniformBroadcast: _shuffle("({i} & ~{last}) + ({n} & {last})"),
    Op.GroupNonUniformBroadcastFirst: _shuffle("{i} & ~{last}"),
    Op.GroupNonUniformShuffle: _shuffle("({i} & ~{last}) + ({n} & {last})"),
    Op.GroupNonUniformShuffleXor: _shuffle("({i} & ~{last}) + (({i} ^ {n}) & {last})"),
    Op.GroupNonUniformShuffleUp: _shuffle("({i} & {last}) < {n} ? {i} : {i} - {n}"),
    Op.GroupNonUniformShuffleDown: _shuffle("{n} > {last} - ({i} & {last}) ? {i} : {i} + {n}"),
    Op.GroupNonUniformIAdd: _reduction("r + x", "i"),
    Op.GroupNonUniformFAdd: _reduction("r + x", "f"),
    Op.GroupNonUniformIMul: _reduction("(uint)r * x", "i"),
    Op.GroupNonUniformFMul: _reduction("r * x", "f"),
    Op.GroupNonUniformSMin: _reduction("min((signed)r, (signed)x)", "i"),
    Op.GroupNonUniformUMin: _reduction("min(r, x)", "i"),
    Op.GroupNonUniformFMin: _reduction("", "fmin"),
    Op.GroupNonUniformSMax: _reduction("max((signed)r, (signed)x)", "i"),
    Op.GroupNonUniformUMax: _reduction("max(r, x)", "i"),
    Op.GroupNonUniformFMax: _reduction("", "fmax"),
    Op.GroupNonUniformBitwiseAnd: _reduction("r & x", "i"),
    Op.GroupNonUniformBitwiseOr: _reduction("r | x", "i"),
    Op.GroupNonUniformBitwiseXor: _reduction("r ^ x", "i"),
    Op.GroupNonUniformLogicalAnd: _reduction("r && x", "b"),
    Op.GroupNonUniformLogicalOr: _reduction("r || x", "b"),
    Op.GroupNonUniformLogicalXor: _reduction("r != x", "b"),
}
