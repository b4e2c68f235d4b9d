"""Computes what is the same only once: xDSL's ``cse`` for functions of several blocks.

Only operations without effects are merged. Allocations are not, though the runtime's imports say of them that they have
no effects either: two buffers are two (iree-compile 3.13 makes one of them, and programs that write to both are wrong).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region
from xdsl.passes import ModulePass
from xdsl.traits import IsTerminator, Pure

from halgpu.compiler.mlir import erase
from halgpu.compiler.transforms.dominance import immediate_dominators, reached


@dataclass(frozen=True)
class CommonValuesPass(ModulePass):
    """Merge operations without effects that compute the same."""

    name = "common-values"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in list(op.walk()):
            for region in function.regions:
                if region.blocks and region.blocks[0].last_op is not None:
                    _merge(region)


def _merge(region: Region) -> None:
    blocks = reached(region)
    dominators = immediate_dominators(blocks)
    known: dict[Block, dict[Any, Operation]] = {}
    for block in blocks:
        scope = dict(known[dominators[block]]) if block in dominators else {}
        known[block] = scope
        for op in list(block.ops):
            key = _key(op)
            if key is None:
                continue
            first = scope.setdefault(key, op)
            if first is not op:
                for old, new in zip(op.results, first.results, strict=True):
                    old.replace_all_uses_with(new)
                erase(op)


def _key(op: Operation) -> Any:
    """What makes an operation compute what it does; None for one that is not to be merged."""
    if op.regions or not op.has_trait(Pure, value_if_unregistered=False) or op.has_trait(IsTerminator):
        return None
    return (
        type(op),
        tuple(op.operands),
        tuple(op.result_types),
        tuple(sorted(op.properties.items(), key=lambda entry: entry[0])),
        tuple(sorted(op.attributes.items(), key=lambda entry: entry[0])),
    )
