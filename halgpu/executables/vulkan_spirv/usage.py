"""What the variables of a kernel are used for, found before anything is emitted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from . import spirv_types as ty
from .module import Function, Instruction, Module
from .opcodes import Op

_DERIVE: Final = frozenset({Op.AccessChain, Op.InBoundsAccessChain, Op.CopyObject, Op.PtrAccessChain})
_ATOMIC: Final = frozenset(range(Op.AtomicLoad, Op.AtomicXor + 1)) | {
    Op.AtomicFAddEXT, Op.AtomicFMinEXT, Op.AtomicFMaxEXT,
}  # fmt: skip


COOPERATIVE: Final = frozenset(op for op in Op if op.name.startswith("CooperativeMatrix"))
_TOGETHER: Final = _ATOMIC | {Op.ControlBarrier, Op.MemoryBarrier} | COOPERATIVE | {
    op for op in Op if op.name.startswith("GroupNonUniform")
}  # fmt: skip
"""Instructions by which invocations of a workgroup tell each other something."""


@dataclass(slots=True)
class Usage:
    """Ids of variables that a kernel reads and writes, and those that only ever hold one constant."""

    functions: list[Function]
    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    named: set[int] = field(default_factory=set)
    constants: dict[int, ty.Constant] = field(default_factory=dict)
    opcodes: set[int] = field(default_factory=set)

    @property
    def cooperates(self) -> bool:
        """Whether there are cooperative matrices in memory, products of them, or questions about them."""
        return not self.opcodes.isdisjoint(COOPERATIVE)

    @property
    def synchronizes(self) -> bool:
        """Whether there are atomics, barriers or subgroup instructions."""
        return not self.opcodes.isdisjoint(_TOGETHER)


def analyze(module: Module, entry: Function) -> Usage:
    """Find out what ``entry`` and the functions that it calls do with their variables."""
    usage = Usage(_reached(module, entry))
    stores: dict[int, list[ty.Constant | None]] = {}
    for function in usage.functions:
        roots: dict[int, int] = {}
        for instruction in _instructions(function):
            usage.opcodes.add(instruction.op)
            _note(module, usage, roots, stores, instruction)
    for function in usage.functions:
        for variable in (*function.variables.values(), *module.variables.values()):
            values = [*([variable.initializer] if variable.initializer else []), *stores.get(variable.id, [])]
            if len(values) == 1 and values[0] is not None and isinstance(variable.type, ty.Array):
                usage.constants[variable.id] = values[0]
    return usage


def _reached(module: Module, entry: Function) -> list[Function]:
    found, waiting = {entry.id: entry}, [entry]
    while waiting:
        for instruction in _instructions(waiting.pop()):
            if instruction.op == Op.FunctionCall:
                callee = module.functions.get(instruction.operands[0])
                if callee is not None and callee.id not in found:
                    found[callee.id] = callee
                    waiting.append(callee)
    return list(found.values())


def _instructions(function: Function) -> Iterator[Instruction]:
    for block in function.blocks.values():
        yield from block.body


def _note(
    module: Module,
    usage: Usage,
    roots: dict[int, int],
    stores: dict[int, list[ty.Constant | None]],
    instruction: Instruction,
) -> None:
    op, operands = instruction.op, instruction.operands
    if op in _DERIVE:
        roots[instruction.result] = roots.get(operands[0], operands[0])
        usage.named.add(roots[instruction.result])
    elif op in (Op.Load, Op.CooperativeMatrixLoadKHR):
        _mark(usage.reads, usage, roots, operands[0])
    elif op in (Op.Store, Op.CooperativeMatrixStoreKHR):
        root = _mark(usage.writes, usage, roots, operands[0])
        whole = module.constants.get(operands[1]) if root == operands[0] else None
        stores.setdefault(root, []).append(whole)
    elif op == Op.CopyMemory:
        root = _mark(usage.writes, usage, roots, operands[0])
        stores.setdefault(root, []).append(None)
        _mark(usage.reads, usage, roots, operands[1])
    elif op in _ATOMIC:
        pointer = operands[0]
        root = pointer
        if op != Op.AtomicLoad:
            root = _mark(usage.writes, usage, roots, pointer)
            stores.setdefault(root, []).append(None)
        if op != Op.AtomicStore:
            _mark(usage.reads, usage, roots, pointer)
    elif op in (Op.FunctionCall, Op.ExtInst):
        for id_ in operands[1:]:
            # A pointer that is handed on may be used for anything.
            root = _mark(usage.reads, usage, roots, id_)
            usage.writes.add(root)
            stores.setdefault(root, []).append(None)


def pointer_roots(function: Function) -> dict[int, int]:
    """Pointers into variables -> the variables."""
    roots: dict[int, int] = {}
    for instruction in _instructions(function):
        if instruction.op in _DERIVE:
            roots[instruction.result] = roots.get(instruction.operands[0], instruction.operands[0])
    return roots


def _mark(ids: set[int], usage: Usage, roots: dict[int, int], pointer: int) -> int:
    root = roots.get(pointer, pointer)
    ids.add(root)
    usage.named.add(root)
    return root
