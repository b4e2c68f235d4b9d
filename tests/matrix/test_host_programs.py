"""Programs whose kernels run on the host, on every device, beside stock iree-run-module running the same file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import halgpu
from halgpu.devices import Device

MICROKERNELS = (
    "--iree-vmvx-enable-microkernels", "--iree-opt-data-tiling", "--iree-vmvx-enable-ukernels-decompose-linalg-generic",
)  # fmt: skip
# What a program is compiled with: target, flags, execution model.
WAYS: dict[str, tuple[Any, ...]] = {
    "llvm-cpu": ("llvm-cpu", (), "inline-dynamic"),
    "vmvx": ("vmvx", (), "inline-dynamic"),
    "vmvx with microkernels": ("vmvx", MICROKERNELS, "inline-dynamic"),
    "inline-static": ("vmvx-inline", (), "inline-static"),
}
# So large that plain iree-compile loses them, in all of these ways.
WEIGHTS = """
func.func @dense(%x: tensor<3x40xf32>) -> tensor<3x50xf32> {
  %w = arith.constant dense<"0x{hex}"> : tensor<40x50xf32>
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<3x50xf32>
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<3x50xf32>) -> tensor<3x50xf32>
  %m = linalg.matmul ins(%x, %w : tensor<3x40xf32>, tensor<40x50xf32>) outs(%f : tensor<3x50xf32>) -> tensor<3x50xf32>
  return %m : tensor<3x50xf32>
}
""".replace("{hex}", np.random.default_rng(5).normal(size=(40, 50)).astype("<f4").tobytes().hex())
SHAPES: dict[str, Sequence[tuple[int, ...]]] = {
    "abs": [(2,)],
    "counter": [(4,)],
    "network": [(5, 37), (37, 53), (53,), (53, 11)],
    "dense": [(3, 40)],
}
FUNCTIONS = {"counter": "add"}

Array = np.ndarray[Any, Any]
CompileMlir = Callable[..., bytes]


@pytest.fixture(scope="session")
def compiled(compile_mlir: CompileMlir, examples: Path) -> Callable[[str, str], bytes]:
    """`compiled(name, way)`; weights take halgpu's compiler, which keeps them."""
    kept: dict[tuple[str, str], bytes] = {}

    def make(name: str, way: str) -> bytes:
        if (name, way) not in kept:
            target, flags, model = WAYS[way]
            if name == "dense":
                kept[name, way] = halgpu.compile(WEIGHTS, target=target, flags=flags)
            else:
                source = (examples / f"{name}.mlir").read_text()
                kept[name, way] = compile_mlir(source, target, *flags, model=model)
        return kept[name, way]

    return make


def inputs(name: str) -> list[Array]:
    random = np.random.default_rng(7)
    return [random.normal(scale=0.5, size=shape).astype(np.float32) for shape in SHAPES[name]]


@pytest.fixture(scope="session")
def stock(
    compiled: Callable[[str, str], bytes],
    iree_tool: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str, str], Array]:
    """What iree-run-module makes of a program compiled in a way."""
    kept: dict[tuple[str, str], Array] = {}

    def run(name: str, way: str) -> Array:
        if (name, way) not in kept:
            folder = tmp_path_factory.mktemp("stock")
            (folder / "program.vmfb").write_bytes(compiled(name, way))
            passed = []
            for number, array in enumerate(inputs(name)):
                np.save(folder / f"{number}.npy", array)
                passed.append(f"--input=@{folder}/{number}.npy")
            function = f"--function={FUNCTIONS.get(name, name)}"
            iree_tool(
                "iree-run-module",
                f"--module={folder}/program.vmfb",
                function,
                *passed,
                f"--output=@{folder}/out.npy",
            )
            kept[name, way] = np.load(folder / "out.npy")
        return kept[name, way]

    return run


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SHAPES)
def test_results_are_those_of_the_stock_runtime(
    name: str,
    way: str,
    device: Device,
    compiled: Callable[[str, str], bytes],
    stock: Callable[[str, str], Array],
) -> None:
    with halgpu.load(compiled(name, way), device) as module:
        found = np.asarray(module[FUNCTIONS.get(name, name)](*inputs(name)))
    expected = stock(name, way)
    # Exponentials, and sums whose order is the kernel's own, may be rounded otherwise.
    tolerance = 1e-6 if name == "network" or "microkernels" in way else 0
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("way", WAYS)
def test_mutable_globals_last_and_belong_to_one_context(
    way: str, device: Device, compiled: Callable[[str, str], bytes]
) -> None:
    with halgpu.load(compiled("counter", way), device) as module, module.new_context() as other:
        (x,) = inputs("counter")
        for count in (1, 2, 3):
            assert np.asarray(module.add(np.ones(4, np.float32))).tolist() == [count] * 4
        assert np.asarray(other.add(x)).tobytes() == x.tobytes()


@pytest.mark.parametrize("way", WAYS)
def test_results_feed_the_next_call(way: str, device: Device, compiled: Callable[[str, str], bytes]) -> None:
    with halgpu.load(compiled("counter", way), device) as module:
        total = module.add(np.arange(4, dtype=np.float32))
        assert np.asarray(module.add(total)).tolist() == [0, 2, 4, 6]
