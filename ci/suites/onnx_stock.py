"""Runs cases of the node tests of onnx with stock iree-run-module."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from onnx_nodes import Case, difference
from toolchain import ToolFailed, run_tool

ELEMENTS = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"} | {
    f"{sign}int{bits}": f"i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
"""MLIR's integers have no sign."""


def run_stock(module: Path, case: Case) -> str:
    """How what iree-run-module computes differs from what is expected; empty if it does not."""
    try:
        return difference(case, stock_results(module, case))
    except (ToolFailed, ValueError) as problem:
        return str(problem)


def stock_results(module: Path, case: Case) -> list[np.ndarray]:
    """What iree-run-module computes. Raises ToolFailed, or ValueError for results that are not in numpy's format."""
    with tempfile.TemporaryDirectory() as work:
        given = [_given(Path(work, f"in{number}"), array) for number, array in enumerate(case.inputs)]
        kept = [Path(work, f"out{number}{_suffix(a)}") for number, a in enumerate(case.expected)]
        run_tool(
            "iree-run-module", "--device=local-sync", f"--module={module}", f"--function={case.name}",
            *given, *(f"--output=@{path}" for path in kept), seconds=60,
        )  # fmt: skip
        return [_found(path, wanted) for path, wanted in zip(kept, case.expected, strict=True)]


def _suffix(array: np.ndarray) -> str:
    return ".bin" if array.dtype.kind == "V" or array.dtype.isbuiltin != 1 else ".npy"


def _given(path: Path, array: np.ndarray) -> str:
    element = ELEMENTS.get(array.dtype.name)
    if element is None:
        np.save(f"{path}.npy", array)
        return f"--input=@{path}.npy"
    path.write_bytes(array.tobytes())
    return f"--input={'x'.join([*map(str, array.shape), element])}=@{path}"


def _found(path: Path, wanted: np.ndarray) -> np.ndarray:
    """What was written; bare bytes in the shape that is expected, if they are as many."""
    if path.suffix == ".npy":
        return np.load(path)
    data = np.frombuffer(path.read_bytes(), wanted.dtype)
    return data.reshape(wanted.shape) if data.size == wanted.size else data
