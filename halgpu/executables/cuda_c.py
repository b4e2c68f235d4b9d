"""The format ``cuda-c``: hand-written kernels in CUDA C, compiled by NVRTC (see handwritten.py)."""

from __future__ import annotations

from typing import Final

from halgpu.executables.handwritten import HandwrittenLoader

FORMAT: Final = "cuda-c"


def loader() -> HandwrittenLoader:
    """Return the format's loader."""
    return HandwrittenLoader(FORMAT)
