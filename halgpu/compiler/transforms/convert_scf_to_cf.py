"""Loops and conditions as branches: xDSL's pass, and ``scf.while``, which that leaves as it is."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import cf, scf
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)
from xdsl.rewriter import BlockInsertPoint, InsertPoint
from xdsl.transforms.convert_scf_to_cf import ConvertScfToCf


@dataclass(frozen=True)
class ConvertScfToCfPass(ModulePass):
    """Lower loops and conditions of `scf` to branches."""

    name = "convert-scf-to-cf"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        ConvertScfToCf().apply(ctx, op)
        PatternRewriteWalker(_WhileLowering()).rewrite_module(op)


class _WhileLowering(RewritePattern):
    """The first region decides whether the second one runs, which goes back to it, or the loop ends."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: scf.WhileOp, rewriter: PatternRewriter) -> None:
        block = op.parent_block()
        assert block is not None
        rest = block.split_before(op)
        region = block.parent_region()
        assert region is not None
        end = rest
        if op.results:
            end = Block(arg_types=op.result_types)
            region.insert_block_before(end, rest)
            rewriter.insert(cf.BranchOp(rest), InsertPoint.at_end(end))
        before, after = op.before_region.blocks[0], op.after_region.blocks[0]
        rewriter.insert(cf.BranchOp(before, *op.arguments), InsertPoint.at_end(block))
        condition, yielded = op.before_region.blocks[-1].last_op, op.after_region.blocks[-1].last_op
        assert isinstance(condition, scf.ConditionOp)
        assert isinstance(yielded, scf.YieldOp)
        values = list(condition.args)
        rewriter.replace(condition, cf.ConditionalBranchOp(condition.condition, after, values, end, values))
        rewriter.replace(yielded, cf.BranchOp(before, *yielded.operands))
        rewriter.inline_region(op.before_region, BlockInsertPoint.before(end))
        rewriter.inline_region(op.after_region, BlockInsertPoint.before(end))
        rewriter.replace(op, (), end.args if end is not rest else ())
