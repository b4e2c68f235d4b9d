"""Whole programs of stock iree-compile on OpenCL, compared with the same source compiled for CPUs by stock IREE.

`python mlir_corpus.py` (see there) compares every program of the corpus; here are those that differ most in the
SPIR-V that they become.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlir_corpus
import numpy as np
import pytest

import halgpu

DEFAULT = (
    "argmax", "arith_addi_i8", "conv2d", "gather", "layer_norm", "matmul_dynamic", "matmul_f32_128x256x96",
    "reduce_min_i64", "softmax_axis0", "sort", "while_in_kernel",
)  # fmt: skip
AMPERE = ("arith_divf_f16", "matmul_i8_i32", "math_cttz_i64", "transpose_f16")


@pytest.mark.parametrize(
    ("names", "flags"), [(DEFAULT, ()), (AMPERE, ("--iree-vulkan-target=ampere",))], ids=["default", "ampere"]
)
def test_programs(
    names: tuple[str, ...],
    flags: tuple[str, ...],
    compile_mlir: Callable[..., bytes],
    iree_tool: Callable[..., object],
    tmp_path: Path,
) -> None:
    source = mlir_corpus.joined(names)
    module = halgpu.load(compile_mlir(source, "vulkan", *flags), device="opencl")
    stock = tmp_path / "cpu.vmfb"
    stock.write_bytes(compile_mlir(source, "llvm-cpu", "--iree-input-demote-f64-to-f32"))
    for name in names:
        inputs = mlir_corpus.PROGRAMS[name].inputs()
        wanted = mlir_corpus.run_by_iree(iree_tool, stock, name, inputs, tmp_path)
        mlir_corpus.check_same(mlir_corpus.call(module[name], inputs), wanted)
        assert any(np.any(array != 0) for array in wanted), name
