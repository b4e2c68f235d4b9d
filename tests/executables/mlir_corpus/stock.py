"""Runs a program of the corpus with stock iree-run-module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .program import Program, dtype_of


def run(
    iree_tool: Callable[..., Any],
    module: Path,
    function: str,
    program: Program,
    inputs: Sequence[np.ndarray],
    work: Path,
    device: str = "local-sync",
) -> list[np.ndarray]:
    """Results of a function of a compiled module; `work` is a folder for the arrays.

    bf16 travels as bare bytes, for iree-run-module writes no .npy file of it, so its dynamic sizes get lost: such a
    result is flat.
    """
    given, kept = [], []
    for number, (array, (shape, element)) in enumerate(zip(inputs, program.parameters, strict=True)):
        path = work / f"in{number}.{_suffix(element)}"
        if element == "bf16":
            path.write_bytes(array.tobytes())
            given.append(f"--input={'x'.join(map(str, (*shape, element)))}=@{path}")
        else:
            np.save(path, array)
            given.append(f"--input=@{path}")
    for number, (_, element) in enumerate(program.results):
        kept.append(f"--output=@{work}/out{number}.{_suffix(element)}")
    iree_tool(
        "iree-run-module", f"--module={module}", f"--device={device}", f"--function={function}", *given, *kept
    )
    return [_read(work / f"out{number}", *result) for number, result in enumerate(program.results)]


def _suffix(element: str) -> str:
    return "bin" if element == "bf16" else "npy"


def _read(path: Path, shape: tuple[int | None, ...], element: str) -> np.ndarray:
    if element != "bf16":
        return np.load(path.with_suffix(".npy")).view(dtype_of(element))
    flat = np.frombuffer(path.with_suffix(".bin").read_bytes(), dtype_of(element))
    return flat if None in shape else flat.reshape(tuple(size or 0 for size in shape))
