"""Bytecode modules: where they load from, and what they say about themselves."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halgpu import errors
from halgpu.vm import BytecodeModule, Context

SOURCE = """
func.func @double(%n: i32) -> i32 {
  %0 = arith.addi %n, %n : i32
  return %0 : i32
}
"""


@pytest.fixture(scope="module")
def vmfb(compile_mlir: Callable[..., bytes]) -> bytes:
    return compile_mlir(SOURCE)


def doubles(module: BytecodeModule) -> bool:
    return bool(Context([module]).lookup("double")(21) == 42)


def test_sources(vmfb: bytes, tmp_path: Path) -> None:
    path = tmp_path / "double.vmfb"
    path.write_bytes(vmfb)
    shifted = memoryview(b"\0" + vmfb)[1:]
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    for source in (path, str(path), vmfb, bytearray(vmfb), memoryview(vmfb), shifted, mapped):
        assert doubles(BytecodeModule.load(source)), type(source)


def test_the_file_may_go_away(vmfb: bytes, tmp_path: Path) -> None:
    path = tmp_path / "double.vmfb"
    path.write_bytes(vmfb)
    module = BytecodeModule.load(path)
    path.unlink()
    assert doubles(module)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFound, match=r"no such file: .*missing\.vmfb"):
        BytecodeModule.load(tmp_path / "missing.vmfb")
    with pytest.raises(errors.InvalidArgument, match="cannot read"):
        BytecodeModule.load(tmp_path)
    empty = tmp_path / "empty.vmfb"
    empty.touch()
    with pytest.raises(errors.Error, match=r"empty|0 bytes"):
        BytecodeModule.load(empty)
    with pytest.raises(errors.InvalidArgument):
        BytecodeModule.load(42)


def test_what_a_module_says(vmfb: bytes) -> None:
    module = BytecodeModule.load(vmfb)
    assert (module.name, module.version, module.exports) == ("module", 0, ("double",))
    assert "def fn0(i0):" in module.python_source("double")
    assert repr(module) == "<vm.BytecodeModule module: double>"
    with pytest.raises(errors.NotFound, match=r"exports no 'triple'; it has double"):
        module.python_source("triple")


def test_init_is_not_offered(program: Any) -> None:
    for name in ("main", "__init", "__deinit"):
        program.function("0_v", [("Return", [])], name)
    module = program.module()
    assert module.exports == ("main",)
    assert set(module.ordinals) == {"main", "__init", "__deinit"}
