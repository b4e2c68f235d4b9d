"""PoCL on machines without a C toolchain: a subprocess whose PATH and libraries are hidden runs a kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from halgpu.devices import pocl_linker

RUN = """
    import os, sys
    from halgpu.devices import list_devices, open_device, pocl_linker
    from halgpu.devices.base import BindingLayout, KernelLayout, Program
    from halgpu.errors import Unavailable

    pocl_linker._LIBRARIES = (("/nowhere/*",),)
    if sys.argv[1] != "system":
        os.defpath = ""
    if sys.argv[1] == "nothing":
        pocl_linker._bundled = lambda: None
    try:
        device = open_device("opencl")
    except Unavailable as error:
        print(error)
        print([(info.available, info.reason) for info in list_devices() if info.uri == "opencl:0"])
        sys.exit()
    source = "typedef struct { ulong o[1]; } P; __kernel void k(__global uchar* b, P p) { b[p.o[0]] = 42; }"
    layout = KernelLayout("k", 0, (BindingLayout(),), (1, 1, 1))
    [kernel] = device.build(Program("opencl-c", source, (layout,)))
    buffer = device.allocator.allocate(4)
    kernel.dispatch((1, 1, 1), (), [(buffer, 0, 4)])
    print(buffer.read()[0], os.environ["HALGPU_POCL_LINKER"])
"""


def run(path: str, how: str, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": path, "POCL_CACHE_DIR": str(cache)}
    environment.pop(pocl_linker.VARIABLE, None)
    command = [sys.executable, "-c", textwrap.dedent(RUN), how]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def only_sh(folder: Path) -> str:
    (folder / "bin").mkdir()
    for name in ("sh", "env"):
        (folder / "bin" / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    return str(folder / "bin")


def test_without_any_toolchain_the_bundled_lld_links(tmp_path: Path) -> None:
    done = run(only_sh(tmp_path), "bundled", tmp_path / "cache")
    assert done.stderr == ""
    answer, linker = done.stdout.split()
    assert answer == "42"
    assert Path(linker).name == "iree-lld"


@pytest.mark.skipif(not shutil.which("ld"), reason="no system linker here; the bundled one is tested above")
def test_a_linker_without_libraries_is_used_without_them(tmp_path: Path) -> None:
    done = run(os.environ["PATH"], "system", tmp_path / "cache")
    assert done.stderr == ""
    assert done.stdout.split() == ["42", shutil.which("ld")]


@pytest.mark.skipif(not shutil.which("ld", path=os.defpath), reason="no system linker here")
def test_without_a_path_the_usual_folders_are_searched(tmp_path: Path) -> None:
    done = run("", "system", tmp_path / "cache")
    assert done.stderr == ""
    assert done.stdout.split() == ["42", shutil.which("ld", path=os.defpath)]


def test_with_nothing_the_device_says_what_to_install(tmp_path: Path) -> None:
    done = run(only_sh(tmp_path), "nothing", tmp_path / "cache")
    message, listed = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert message.startswith("opencl:0 cannot be used: PoCL needs a linker and found no ld: install one")
    assert listed.startswith('[(False, "PoCL needs a linker')


def test_a_whole_toolchain_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ld").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(pocl_linker.VARIABLE, raising=False)
    monkeypatch.delenv("COMPILER_PATH", raising=False)
    monkeypatch.setattr(pocl_linker, "_LIBRARIES", ((str(tmp_path / "ld"),),))
    assert pocl_linker.prepare() is None
    assert "COMPILER_PATH" not in os.environ
