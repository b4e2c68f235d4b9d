"""The format ``opencl-c``: hand-written kernels in OpenCL C (see handwritten.py)."""

from __future__ import annotations

from typing import Final

from halgpu.executables.handwritten import HandwrittenLoader

FORMAT: Final = "opencl-c"


def loader() -> HandwrittenLoader:
    """Return the format's loader."""
    return HandwrittenLoader(FORMAT)
