"""What all tests share: the stock IREE tools and a cached `iree-compile`.

The tools come with the `test` extra. A missing tool fails the test that needs it; nothing is skipped.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import settings

from halgpu.devices import Device, open_device

REPOSITORY = Path(__file__).resolve().parent.parent

# A change is judged by the same cases each time; ci/nightly looks for new ones with --hypothesis-profile=search. No
# deadlines: they fail on busy machines.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("repeatable")

TARGETS = {
    "vulkan": ("--iree-hal-target-device=vulkan",),
    "cuda": ("--iree-hal-target-device=cuda",),
    "llvm-cpu": (
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        "--iree-llvmcpu-target-cpu=generic",
    ),
    # Kernels as VM code in the module itself: for model="inline-static".
    "vmvx-inline": ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx-inline"),
    "vmvx": ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx"),
}


def find_tool(name: str) -> str:
    """Return the path of an installed IREE tool, looking beside this Python before PATH."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise FileNotFoundError(f"{name} is not installed: pip install 'halgpu[test]'")
    return found


def run_tool(name: str, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run an IREE tool and return what it printed; with `check`, an exit status other than 0 fails."""
    done = subprocess.run([find_tool(name), *arguments], capture_output=True, text=True, timeout=300)
    if check and done.returncode:
        raise AssertionError(f"{name} {' '.join(arguments)} exited {done.returncode}:\n{done.stderr}")
    return done


def compile_source(
    source: str, target: str = "vulkan", *flags: str, model: str = "inline-dynamic", name: str = "module.mlir"
) -> bytes:
    """Compile MLIR text with stock iree-compile; results are kept by content in the temporary directory."""
    command = [f"--iree-execution-model={model}", *TARGETS[target], *flags]
    key = hashlib.sha256(repr((source, command, name, "3.13.0")).encode()).hexdigest()[:32]
    cache = Path(tempfile.gettempdir()) / f"halgpu-test-modules-{os.getuid()}"
    cache.mkdir(exist_ok=True)
    kept = cache / f"{key}.vmfb"
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=cache) as work:
            (Path(work) / name).write_text(source)
            run_tool("iree-compile", *command, str(Path(work) / name), "-o", f"{work}/out.vmfb")
            os.replace(f"{work}/out.vmfb", kept)
    return kept.read_bytes()


@pytest.fixture(scope="session", autouse=True)
def _caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What halgpu keeps on disk is of this run alone, and not the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HALGPU_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def compile_mlir() -> Callable[..., bytes]:
    """`compile_mlir(source, target="vulkan", *flags, model="inline-dynamic") -> bytes` of a .vmfb."""
    return compile_source


@pytest.fixture(scope="session")
def iree_tool() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`iree_tool("iree-run-module", "--module=…", …)` runs a stock tool."""
    return run_tool


@pytest.fixture(scope="session")
def examples() -> Path:
    """The folder of example programs."""
    return REPOSITORY / "examples"


def load_file(path: Path) -> ModuleType:
    """A Python file that lies in no package, as a module."""
    spec = importlib.util.spec_from_file_location(f"halgpu_{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def python_file() -> Callable[[Path], ModuleType]:
    """`python_file(path)` is a script of ci/ or benchmarks/, or a conftest.py, as a module."""
    return load_file


@pytest.fixture(scope="session")
def unguarded() -> Callable[[Device], Device]:
    """`unguarded(device)` is that device without HALGPU_DEBUG_ALLOCATOR's guards, for tests of exact counts."""

    def opened(device: Device) -> Device:
        if device.ledger is None:
            return device
        return open_device(f"{device.uri}{'&' if '?' in device.uri else '?'}debug=0")

    return opened


def pytest_collection_finish() -> None:
    """Let the garbage collector, which many tests call, pass over what is there before the first test."""
    gc.collect()
    gc.freeze()
