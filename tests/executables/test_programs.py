"""Whole programs of stock iree-compile on OpenCL, compared with the same source compiled for CPUs by stock IREE.

`ci/conformance linalg` compares every program of the corpus for five Vulkan targets; here are those that differ most
in the SPIR-V that they become.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import mlir_corpus
import numpy as np
import pytest
from mlir_corpus import compare, stock

import halgpu

DEFAULT = (
    "argmax_f32_i32", "arith_i8", "concat_ui8", "conv2d_nhwc_f32", "gather_f32", "layer_norm_f32",
    "matmul_f32_dynamic", "matmul_f32_128x256x96", "reduce_i64", "scan_f32", "scatter_i16",
    "softmax_f32_axis0", "sort_i32", "while_in_kernel",
)  # fmt: skip
STABLEHLO = ("hlo_convolution_transposed", "hlo_pad_i8", "hlo_scatter_f32_add", "hlo_window_running_sum")
AMPERE = ("bits_i64.math.cttz", "divide_f16", "matmul_i8_i32", "minmax_bf16", "transpose_f16")


@pytest.mark.parametrize(
    ("names", "flags"),
    [(DEFAULT, ()), (STABLEHLO, ()), (AMPERE, ("--iree-vulkan-target=ampere",))],
    ids=["default", "stablehlo", "ampere"],
)
def test_programs(
    names: tuple[str, ...],
    flags: tuple[str, ...],
    compile_mlir: Callable[..., bytes],
    iree_tool: Callable[..., object],
    tmp_path: Path,
) -> None:
    source = mlir_corpus.joined({name: mlir_corpus.find(name) for name in names})
    module = halgpu.load(compile_mlir(source, "vulkan", *flags), device="opencl")
    cpu = tmp_path / "cpu.vmfb"
    cpu.write_bytes(compile_mlir(source, "llvm-cpu"))
    for name in names:
        program, function = mlir_corpus.find(name), mlir_corpus.function_name(name)
        inputs = program.inputs()
        wanted = stock.run(iree_tool, cpu, function, program, inputs, tmp_path)
        results = module[function](*inputs)
        several = results if isinstance(results, (tuple, list)) else [results]
        compare.check_same(program, [np.asarray(result) for result in several], wanted)
        assert any(np.any(array != 0) for array in wanted), name
