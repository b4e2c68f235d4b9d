"""MLIR programs that make the stock compiler emit many kinds of kernels, with the inputs to run them on.

`PROGRAMS[name]` is a :class:`Program`: one function `main` of tensors to tensors. They cover element types (i1, ui8,
i8 to i64, f16, bf16, f32, f64) times elementwise operations, reductions, matrix products, convolutions, pooling,
softmax, gather, scatter, sort, scan, transpose, pad, concat and dynamic shapes.

`ci/conformance linalg` runs all of them for several Vulkan targets; tests/executables/test_programs.py runs a few.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import contractions, elementwise, movement, reductions, stablehlo
from .program import Program, function_name

__all__ = ["PROGRAMS", "Program", "find", "function_name", "joined"]

PROGRAMS: dict[str, Program] = {
    **elementwise.programs(),
    **reductions.programs(),
    **contractions.programs(),
    **movement.programs(),
    **elementwise.signed_zeros(),
    **stablehlo.programs(),
}


def find(name: str) -> Program:
    """A program by name; "GROUP.OPERATION" is one operation of a program that has several."""
    whole, _, part = name.partition(".")
    return PROGRAMS[whole].parts[part] if part else PROGRAMS[whole]


def joined(programs: Mapping[str, Program]) -> str:
    """One module of several programs, each function under its program's name: compilers take long to start."""
    return "\n".join(program.named(name) for name, program in programs.items())
