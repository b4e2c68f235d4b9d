"""A home that cannot be written: PoCL and PyOpenCL run all the same, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from halgpu.devices import driver_folders

RUN = """
import os
import numpy as np
from halgpu.devices import BindingLayout, KernelLayout, Program, open_device
device = open_device("opencl?cache=1")
source = "typedef struct { ulong o[1]; } a; __kernel void k(__global int* out, a p) { out[0] = 7; }"
[kernel] = device.build(Program("opencl-c", source, (KernelLayout("k", 0, (BindingLayout("write"),), (1, 1, 1)),)))
with device.allocator.allocate(4) as out:
    kernel.dispatch(1, [], [(out, 0, 4)])
    assert bytes(out.read()) == bytes([7, 0, 0, 0])
print(os.environ["POCL_CACHE_DIR"], os.environ.get("PYOPENCL_NO_CACHE"))
"""


def test_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a folder")  # permissions would not stop root
    (tmp_path / "tmp").mkdir()
    dropped = ("POCL_CACHE_DIR", "XDG_CACHE_HOME", "HALGPU_CACHE_DIR", "PYOPENCL_NO_CACHE")
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment |= {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "tmp")}
    done = subprocess.run(
        [sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    folder, no_cache = done.stdout.split()
    assert Path(folder).parent == tmp_path / "tmp"
    assert no_cache == "1"
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"POCL_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/pocl/kcache"),
        ({"XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/pocl/kcache"),
        ({}, "/tmp/pocl/kcache"),
    ],
)
def test_where_pocl_keeps_kernels(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name in ("POCL_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert driver_folders.pocl_folder() == Path(expected)
