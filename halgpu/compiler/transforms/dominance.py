"""Which block every way to another one goes through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.ir import Block, Region


def reached(region: Region) -> list[Block]:
    """The blocks of a region that are reached, each after those that dominate it; the first way on comes first."""
    entry = region.blocks[0]
    found: list[Block] = []
    seen = {entry}
    path = [(entry, _ways(entry))]
    while path:
        block, ways = path[-1]
        after = next((way for way in ways if way not in seen), None)
        if after is None:
            found.append(block)
            path.pop()
        else:
            seen.add(after)
            path.append((after, _ways(after)))
    return found[::-1]


def _ways(block: Block) -> Iterator[Block]:
    return iter(block.last_op.successors[::-1] if block.last_op is not None else ())


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
