"""Translations kept on disk: the same as made anew, found by all that they depend on, and a miss when damaged."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from halgpu import disk_cache
from halgpu.devices import KernelLayout, Program, open_device
from halgpu.executables import translations
from halgpu.executables.base import Builds
from halgpu.executables.vulkan_spirv import loader
from halgpu.executables.vulkan_spirv.target import Target
from halgpu.vm import definition

TRANSLATOR = os.path.dirname(loader.__file__)
TARGET = Target(cpu=True)

START = """
import sys, numpy as np, halgpu
module = halgpu.load(sys.argv[1], device="opencl")
x = np.linspace(-1, 1, 5 * 37, dtype=np.float32).reshape(5, 37)
w1, b1, w2 = np.ones((37, 53), np.float32), np.ones(53, np.float32), np.ones((53, 11), np.float32)
print(np.asarray(module.network(x, w1, b1, w2)).tobytes().hex())
print(sorted(name for name in sys.modules if name.startswith("halgpu.executables.vulkan_spirv.")))
"""


@pytest.fixture(scope="module")
def network(compile_mlir: Callable[..., bytes], examples: Path) -> bytes:
    return compile_mlir((examples / "network.mlir").read_text())


@pytest.fixture(scope="module")
def executables(network: bytes) -> list[memoryview]:
    found = [data for data in definition.read(network).rodata if bytes(data[:4]) == b"VKE1"]
    assert len(found) > 1
    return found


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HALGPU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("HALGPU_CACHE", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Target]:
    """The targets of the translations that were made, not found."""
    targets: list[Target] = []
    real = loader.translate

    def noted(data: memoryview, target: Target, constants: tuple[int, ...]) -> translations.Translation:
        targets.append(target)
        return real(data, target, constants)

    monkeypatch.setattr(loader, "translate", noted)
    return targets


def test_what_is_found_is_what_was_made(executables: list[memoryview], made: list[Target]) -> None:
    first = [loader.translated(data, TARGET, ()) for data in executables]
    assert len(made) == len(executables)
    second = [loader.translated(data, TARGET, ()) for data in executables]
    assert len(made) == len(executables)
    assert first == second
    assert any(layout.apart for program, _ in second for layout in program.layouts)


def test_every_field_is_kept() -> None:
    """A new field of a program or a layout must be kept too, or translations with it must not be."""
    kept = {"name", "constants", "bindings", "workgroup_size", "local_memory", "lengths", "apart"}
    never = {"checks", "addresses", "types"}  # of checked, CUDA and hand-written kernels
    assert {field.name for field in fields(KernelLayout)} == kept | never
    assert {field.name for field in fields(Program)} == {
        "language", "source", "layouts", "options", "extensions", "names", "callables",
    }  # fmt: skip


def test_it_depends_on_data_constants_and_target(executables: list[memoryview], made: list[Target]) -> None:
    one, two = executables[:2]
    loader.translated(one, TARGET, ())
    for data, target, constants in (
        (two, TARGET, ()),
        (one, TARGET, (1,)),
        (one, replace(TARGET, cpu=False), ()),
        (one, replace(TARGET, half=True), ()),
        (one, replace(TARGET, exact_division=True), ()),
    ):
        before = len(made)
        loader.translated(data, target, constants)
        assert len(made) == before + 1
    before = len(made)
    loader.translated(one, replace(TARGET, device="another that is the same"), ())
    assert len(made) == before


def test_it_depends_on_the_translator(tmp_path: Path) -> None:
    copy = tmp_path / "translator"
    shutil.copytree(TRANSLATOR, copy)
    data, keys = memoryview(b"data"), set()
    for change in (lambda: None, lambda: os.utime(copy / "kernel.py", (1, 1)), (copy / "emitter.py").unlink):
        change()
        translations._state.cache_clear()
        keys.add(translations.key(str(copy), data, "", ()))
    shutil.rmtree(copy)
    translations._state.cache_clear()
    assert translations.key(str(copy), data, "", ()) is None
    assert len(keys) == 3
    assert None not in keys


def damaged(path: Path, how: str) -> None:
    data = path.read_bytes()
    body = {
        "no json": b"{",
        "no text": b"\xff\xfe",
        "another thing": b"[1, 2]",
        "deep": b"[" * 100_000,
        "a field less": json.dumps({**json.loads(data[32:]), "layouts": [{}]}).encode(),
        "a wrong kind": json.dumps({**json.loads(data[32:]), "layouts": 7}).encode(),
    }.get(how)
    if body is not None:
        data = hashlib.sha256(body).digest() + body
    elif how == "cut":
        data = data[: len(data) // 2]
    elif how == "a flipped bit":
        data = data[:100] + bytes([data[100] ^ 1]) + data[101:]
    else:
        data = b""
    path.write_bytes(data)


@pytest.mark.parametrize(
    "how",
    ["no json", "no text", "another thing", "deep", "a field less", "a wrong kind", "cut", "a flipped bit", "empty"],
)  # fmt: skip
def test_a_damaged_entry_is_a_miss(executables: list[memoryview], made: list[Target], how: str) -> None:
    good = loader.translated(executables[0], TARGET, ())
    (path,) = disk_cache.entries()
    damaged(path, how)
    assert loader.translated(executables[0], TARGET, ()) == good
    assert len(made) == 2
    assert loader.translated(executables[0], TARGET, ()) == good
    assert len(made) == 2, "what was damaged is made good"


def test_a_place_that_cannot_be_written_is_no_error(
    executables: list[memoryview], made: list[Target], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HALGPU_CACHE_DIR", str(tmp_path / "file"))
    first, second = (loader.translated(executables[0], TARGET, ()) for _ in range(2))
    assert first == second
    assert len(made) == 2


def test_what_is_not_kept(
    executables: list[memoryview], made: list[Target], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_device("opencl")
    with monkeypatch.context() as patch:
        patch.setenv("HALGPU_CHECKED", "1")
        loader.VulkanSpirvLoader().load(device, executables[0], (), Builds(device))
    with monkeypatch.context() as patch:
        patch.setenv("HALGPU_CACHE", "0")
        loader.VulkanSpirvLoader().load(device, executables[0], (), Builds(device))
    assert [target.checked for target in made] == [True, False]
    assert not folder.exists()


def test_a_second_start_does_without_the_translator(network: bytes, tmp_path: Path) -> None:
    program = tmp_path / "network.vmfb"
    program.write_bytes(network)
    command = [sys.executable, "-c", START, str(program)]
    runs = [
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
        for _ in range(2)
    ]
    assert runs[0][0] == runs[1][0]
    assert "vulkan_spirv.translate" in runs[0][1]
    assert runs[1][1] == str([f"halgpu.executables.vulkan_spirv.{name}" for name in ("loader", "target")])
