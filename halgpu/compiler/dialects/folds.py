"""Lets operations have the folds of :mod:`halgpu.compiler.transforms.fold_buffers` in xDSL's pass ``canonicalize``."""

from __future__ import annotations

from xdsl.pattern_rewriter import RewritePattern
from xdsl.traits import HasCanonicalizationPatternsTrait


class FoldsBuffers(HasCanonicalizationPatternsTrait):
    """The trait; patterns that are not about the operation do not match."""

    @classmethod
    def get_canonicalization_patterns(cls) -> tuple[RewritePattern, ...]:
        from halgpu.compiler.transforms import fold_buffers

        return fold_buffers.PATTERNS
