"""Which block every way to another one goes through."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.ir import Block, Region
from xdsl.ir.post_order import PostOrderIterator


def reached(region: Region) -> list[Block]:
    """The blocks of a region that are reached, each after those that dominate it."""
    return list(PostOrderIterator(region.blocks[0]))[::-1]


def immediate_dominators(blocks: Sequence[Block]) -> dict[Block, Block]:
    """The nearest other block on every way to each block but the first; ``blocks`` as :func:`reached` gives them.

    The algorithm is that of Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm".
    """
    number = {block: index for index, block in enumerate(blocks)}
    before: dict[Block, list[Block]] = {block: [] for block in blocks}
    for block in blocks:
        if block.last_op is not None:
            for after in block.last_op.successors:
                before[after].append(block)
    dominator = {blocks[0]: blocks[0]}

    def common(one: Block, other: Block) -> Block:
        while one is not other:
            while number[one] > number[other]:
                one = dominator[one]
            while number[other] > number[one]:
                other = dominator[other]
        return one

    changed = True
    while changed:
        changed = False
        for block in blocks[1:]:
            known = [found for found in before[block] if found in dominator]
            nearest = known[0]
            for found in known[1:]:
                nearest = common(nearest, found)
            if dominator.get(block) is not nearest:
                dominator[block] = nearest
                changed = True
    del dominator[blocks[0]]
    return dominator
