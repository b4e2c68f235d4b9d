"""Repairs a program between two phases of iree-compile 3.13, in the child process of ``worker``.

The program is what ``--compile-to=stream`` leaves. The inline pipelines that follow have four faults; each repair
makes the program mean the same in a form that they carry through. Sources are those of IREE 3.13.0, under
compiler/src/iree/compiler/.

1. *Lost constants.* ``stream.resource.try_map`` asks to use rodata in place. The inline lowering always says yes
   (Modules/HAL/Inline/Conversion/StreamToHALInline/Patterns.cpp, ResourceTryMapOpPattern), but loses the
   initializer that stores the result. Answered "no" here, the program takes its other branch: it allocates a
   buffer and copies the constant into it, once.
2. *Buffers that become one.* ``hal_inline.buffer.allocate`` is declared to have no side effects
   (Modules/HAL/Inline/hal_inline.imports.mlir), so that common subexpression elimination in the VM dialect
   (Dialect/VM/Transforms/Passes.cpp) takes two allocations of the same size for the same buffer: two results,
   two constants, or the operand and the result of a kernel overwrite each other. An optimization barrier around
   each size keeps them apart; these are dropped after the last such pass, and cost nothing.
3. *Illegal subspans.* A part of a resource behind ``util.optimization_barrier`` becomes a
   ``util.buffer.subspan`` that nothing folds and the VM conversion refuses. What the barrier had to hold back is
   over by now: it is taken away.
4. *Initializers out of order.* Executables become globals and initializers where they stand, which may be after
   an initializer that runs their kernels: "initializer at position N accesses global". They are moved to the top.
"""

from __future__ import annotations

from typing import Any

from halgpu.compiler import bindings


def repair(module: Any) -> dict[str, int]:
    """Repair ``module``, an operation builtin.module of iree.compiler.ir, in place, with its context entered.

    Returns how many operations of each kind there were.
    """
    found = bindings.find(module, _REPAIRS)
    for name, operations in found.items():
        for operation in operations:
            _REPAIRS[name](operation)
    _executables_first(module)
    return {name: len(operations) for name, operations in found.items()}


def _never_map(operation: Any) -> None:
    ir = bindings.ir()
    flag = ir.IntegerType.get_signless(1)
    attributes = {"value": ir.IntegerAttr.get(flag, 0)}
    with ir.InsertionPoint(operation), operation.location:
        no = ir.Operation.create("arith.constant", results=[flag], attributes=attributes)
    operation.results[0].replace_all_uses_with(no.results[0])


def _keep_apart(operation: Any) -> None:
    """The storage size is the first operand (Dialect/Stream/IR/StreamOps.td)."""
    ir = bindings.ir()
    size = operation.operands[0]
    if str(size.type) != "index":
        raise TypeError(f"{operation.name}: expected its storage size first, found {size.type}")
    with ir.InsertionPoint(operation), operation.location:
        barrier = ir.Operation.create("util.optimization_barrier", results=[size.type], operands=[size])
    operation.operands[0] = barrier.results[0]


def _open_barrier(operation: Any) -> None:
    """Take resources out of a barrier, which has a result for each operand; other values stay behind theirs."""
    ir = bindings.ir()
    pairs = list(zip(operation.operands, operation.results, strict=True))
    others = [pair for pair in pairs if not str(pair[0].type).startswith("!stream.resource")]
    if len(others) == len(pairs):
        return
    for value, result in pairs:
        if str(value.type).startswith("!stream.resource"):
            result.replace_all_uses_with(value)
    if others:
        with ir.InsertionPoint(operation), operation.location:
            rest = ir.Operation.create(
                "util.optimization_barrier",
                results=[value.type for value, _ in others],
                operands=[value for value, _ in others],
            )
        for (_, old), new in zip(others, rest.results, strict=True):
            old.replace_all_uses_with(new)
    operation.erase()


def _executables_first(module: Any) -> None:
    operations = list(module.regions[0].blocks[0].operations)
    first = next((op for op in operations if op.operation.name != "stream.executable"), None)
    if first is None:
        return
    for operation in operations[operations.index(first) :]:
        if operation.operation.name == "stream.executable":
            operation.operation.move_before(first.operation)


_REPAIRS = {
    "stream.resource.try_map": _never_map,
    "stream.resource.alloc": _keep_apart,
    "stream.resource.alloca": _keep_apart,
    "util.optimization_barrier": _open_barrier,
}
