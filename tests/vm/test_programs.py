"""Whole stock programs whose kernels are VM code (inline-static, vmvx-inline), against numpy and iree-run-module.

The host's side of hal_inline is a few lines here: buffers of the host and views that remember their shape.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from halgpu.vm import Buffer, BytecodeModule, Context, HostAllocator, NativeModule, export

FLAGS = (
    "--iree-execution-model=inline-static",
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=vmvx-inline",
)
F32 = 0x2100_0020


class View:
    def __init__(self, buffer: Buffer, shape: tuple[int, ...]) -> None:
        self.buffer = buffer
        self.shape = shape


class HalInline(NativeModule):
    name = "hal_inline"
    types = {"hal.buffer": Buffer, "hal.buffer_view": View}  # noqa: RUF012 - declared as a ClassVar by the base

    def __init__(self) -> None:
        self.allocator = HostAllocator()

    @export("buffer.allocate", "0iI_rr")
    def allocate(self, alignment: int, length: int) -> tuple[Buffer, Buffer]:
        buffer = Buffer.create(length, alignment=alignment, allocator=self.allocator)
        return buffer, buffer

    @export("buffer.storage", "0r_r")
    def storage(self, buffer: Buffer) -> Buffer:
        return buffer

    @export("buffer_view.create", "0rIIiiCID_r")
    def create(self, buffer: Buffer, offset: int, length: int, kind: int, encoding: int, shape: Any) -> View:
        assert (offset, kind, encoding) == (0, F32, 1)
        return View(buffer, shape)

    @export("buffer_view.assert", "0rriiCID_v")
    def check(self, view: View, message: Buffer | None, kind: int, encoding: int, shape: Any) -> None:
        assert view.shape == shape
        assert (kind, encoding) == (F32, 1)

    @export("buffer_view.buffer", "0r_r")
    def buffer(self, view: View) -> Buffer:
        return view.buffer


def view(array: NDArray[np.float32]) -> View:
    buffer = Buffer.create(array.nbytes)
    buffer.write_view()[:] = array.tobytes()
    return View(buffer, array.shape)


def array(result: View) -> NDArray[np.float32]:
    return np.frombuffer(bytes(result.buffer), np.float32).reshape(result.shape)


def stock(
    tool: Callable[..., Any], path: Path, name: str, inputs: list[NDArray[np.float32]]
) -> NDArray[np.float32]:
    """The result of iree-run-module, all digits of it."""
    arguments = []
    for number, value in enumerate(inputs):
        np.save(path.with_suffix(f".{number}.npy"), value)
        arguments.append(f"--input=@{path.with_suffix(f'.{number}.npy')}")
    out = path.with_suffix(".out.npy")
    tool("iree-run-module", f"--module={path}", f"--function={name}", *arguments, f"--output=@{out}")
    loaded: NDArray[np.float32] = np.load(out)
    return loaded


def compile_static(tool: Callable[..., Any], source: str, path: Path) -> bytes:
    path.with_suffix(".mlir").write_text(source)
    tool("iree-compile", *FLAGS, str(path.with_suffix(".mlir")), "-o", str(path))
    return path.read_bytes()


def run(data: bytes, name: str, inputs: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    hal = HalInline()
    with Context([hal, BytecodeModule.load(data)], allocator=hal.allocator) as context:
        result = array(context.lookup(name)(*map(view, inputs)))
    assert hal.allocator.statistics.live_handles == 0
    return result


ELEMENTWISE = """
func.func @f(%x: tensor<3x17xf32>, %y: tensor<3x17xf32>) -> tensor<3x17xf32> {
  %e = tensor.empty() : tensor<3x17xf32>
  %c = arith.constant 0.75 : f32
  %r = linalg.generic {indexing_maps = [affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(i,j)>, affine_map<(i,j)->(i,j)>],
                       iterator_types = ["parallel","parallel"]}
    ins(%x, %y : tensor<3x17xf32>, tensor<3x17xf32>) outs(%e : tensor<3x17xf32>) {
    ^bb0(%a: f32, %b: f32, %o: f32):
      %0 = arith.addf %a, %b : f32
      %1 = arith.mulf %0, %c : f32
      %2 = arith.divf %1, %b : f32
      %3 = arith.subf %2, %a : f32
      %4 = math.floor %3 : f32
      %5 = arith.cmpf olt, %4, %a : f32
      %6 = math.absf %b : f32
      %7 = math.sqrt %6 : f32
      %8 = arith.select %5, %7, %3 : f32
      linalg.yield %8 : f32
  } -> tensor<3x17xf32>
  return %r : tensor<3x17xf32>
}
"""


def test_elementwise(iree_tool: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "f.vmfb"
    data = compile_static(iree_tool, ELEMENTWISE, path)
    random = np.random.default_rng(3)
    x, y = (random.standard_normal((3, 17)).astype(np.float32) * 3 for _ in range(2))
    found = run(data, "f", [x, y])
    c = np.float32(0.75)
    three = (x + y) * c / y - x
    expected = np.where(np.floor(three) < x, np.sqrt(np.abs(y)), three)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(found, stock(iree_tool, path, "f", [x, y]))


def test_the_network(iree_tool: Callable[..., Any], tmp_path: Path, examples: Path) -> None:
    source = (examples / "network.mlir").read_text()
    found_signature = re.search(r"func\.func @(\w+)\((.*?)\)\s*->", source, re.DOTALL)
    assert found_signature is not None
    name, parameters = found_signature.groups()
    shapes = [tuple(map(int, text.split("x"))) for text in re.findall(r"tensor<([\dx]+)xf32>", parameters)]
    path = tmp_path / "network.vmfb"
    data = compile_static(iree_tool, source, path)
    random = np.random.default_rng(4)
    inputs = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    found = run(data, name, inputs)
    # exp is the same C library's expf in both.
    np.testing.assert_array_equal(found, stock(iree_tool, path, name, inputs))
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("target", ["vulkan", "llvm-cpu"])
@pytest.mark.parametrize("name", ["abs", "counter", "network"])
def test_example_programs_translate_with_typed_locals(
    compile_mlir: Callable[..., bytes], examples: Path, target: str, name: str
) -> None:
    module = BytecodeModule.load(compile_mlir((examples / f"{name}.mlir").read_text(), target))
    for ordinal in range(len(module.definition.functions)):
        assert "w0 = " not in module.translation.source(ordinal).text
