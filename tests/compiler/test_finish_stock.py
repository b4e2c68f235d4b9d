"""Programs from iree-compile --compile-to=hal, finished by halgpu, beside the same ones finished by iree-compile.

More of them, each against stock, are in ``ci/conformance finish``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_nodes
import pytest

import halgpu
from halgpu.cli import main
from halgpu.compiler.finish import finish
from halgpu.compiler.transforms import pipeline
from halgpu.vm import definition

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CPU = (
    "--iree-execution-model=inline-dynamic", "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=generic",
)  # fmt: skip
STATIC = (
    "--iree-execution-model=inline-static", "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=vmvx-inline",
)  # fmt: skip
VULKAN = (
    "--iree-execution-model=inline-dynamic", "--iree-hal-target-device=vulkan",
    "--iree-torch-emit-async-entry-points=false",
)  # fmt: skip
SAMPLE = {
    "argmax": ["test_argmax_keepdims_random_select_last_index"],
    "softmax": ["test_softmax_axis_1"],
    "topk": ["test_top_k"],
    "where": ["test_where_example"],
}
random = np.random.default_rng(3)


def array(*shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "function", "flags", "inputs"),
    [
        ("counter", "add", CPU, [array(4)]),
        ("counter", "add", STATIC, [array(4)]),
        ("network", "network", CPU, [array(5, 37), array(37, 53), array(53), array(53, 11)]),
    ],
    ids=["dynamic", "static", "network"],
)
def test_stock_runs_both_the_same(
    name: str,
    function: str,
    flags: Sequence[str],
    inputs: Sequence[np.ndarray],
    tmp_path: Path,
    iree_tool: Callable[..., Any],
) -> None:
    level, stock, ours = (str(tmp_path / n) for n in ("hal.mlir", "stock.vmfb", "ours.vmfb"))
    iree_tool("iree-compile", str(EXAMPLES / f"{name}.mlir"), *flags, "--compile-to=hal", "-o", level)
    iree_tool("iree-compile", level, *flags, "--compile-from=hal", "-o", stock)
    Path(ours).write_bytes(finish(Path(level).read_text(), "hal.mlir").data)
    words = []
    for number, given in enumerate(inputs):
        np.save(tmp_path / f"{number}.npy", given)
        words.append(f"--input=@{tmp_path}/{number}.npy")
    results = []
    for module in (stock, ours):
        output = f"{module}.npy"
        iree_tool(
            "iree-run-module", f"--module={module}", f"--function={function}", *words, f"--output=@{output}"
        )
        results.append(np.load(output))
    np.testing.assert_array_equal(*results)
    assert f"@{function}" in iree_tool("iree-dump-module", ours).stdout
    # What halgpu imports, exports and says of its functions is what iree-compile does.
    one, other = (definition.read(Path(module).read_bytes()) for module in (ours, stock))
    assert {(i.full_name, i.cconv) for i in one.imports} == {(i.full_name, i.cconv) for i in other.imports}
    assert [e.local_name for e in one.exports] == [e.local_name for e in other.exports]
    assert {d.name: d.minimum_version for d in one.dependencies} == {
        d.name: d.minimum_version for d in other.dependencies
    }
    (attrs,) = ({s.cconv: s.attrs for s in m.signatures} for m in (one,))
    assert attrs == {s.cconv: s.attrs for s in other.signatures}


def test_iree_compile_goes_on_from_what_passes_print(tmp_path: Path, iree_tool: Callable[..., Any]) -> None:
    """The vm dialect is IREE's: its compiler takes over where halgpu's passes end."""
    lowered, program = str(tmp_path / "vm.mlir"), str(tmp_path / "vm.vmfb")
    source = str(EXAMPLES / "accumulate_static.mlir")
    assert main(["opt", source, f"--pass-pipeline={pipeline.FINISH}", "-o", lowered]) == 0
    iree_tool("iree-compile", "--compile-from=vm", lowered, "-o", program)
    said = iree_tool(
        "iree-run-module", f"--module={program}", "--function=add", "--input=4xf32=1 2 3 4"
    ).stdout
    assert said.splitlines()[-1] == "4xf32=1 2 3 4"


def test_onnx_models_give_what_is_expected(tmp_path: Path, iree_tool: Callable[..., Any]) -> None:
    """In the virtual machine of halgpu, with kernels on an OpenCL device."""
    cases, source = onnx_nodes.sample(SAMPLE)
    (tmp_path / "models.mlirbc").write_bytes(source)
    level = tmp_path / "hal.mlir"
    iree_tool("iree-compile", str(tmp_path / "models.mlirbc"), *VULKAN, "--compile-to=hal", "-o", str(level))
    data = finish(level.read_text(), "hal.mlir").data
    with halgpu.load(data, device="opencl") as module:
        for name, case in cases.items():
            found = module[name](*case.inputs)
            results = [np.asarray(r) for r in (found if isinstance(found, tuple) else (found,))]
            assert onnx_nodes.difference(case, results) == "", name
