"""The stock compiler and iree-run-module, with what they made kept by content.

In $HALGPU_CONFORMANCE_CACHE, or a folder of the user's in the temporary directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from mlir_corpus import stock
from mlir_corpus.program import Program, dtype_of

VULKAN = "--iree-hal-target-device=vulkan"
CPU = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=generic",
)
# Without libm the generic CPU has no code for rounding, logarithms and more; the host's CPU has more of it, and a
# library of the system's linker can call libm.
CPU_WAYS = ((), ("--iree-llvmcpu-target-cpu=host",), ("--iree-llvmcpu-link-embedded=false",))
INLINE, FULL = "inline-dynamic", "async-external"


class ToolFailed(Exception):
    """A stock tool exited with an error, crashed, or did not end in time; `output` is all it said."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


def cache_folder() -> Path:
    default = Path(tempfile.gettempdir()) / f"halgpu-conformance-{os.getuid()}"
    folder = Path(os.environ.get("HALGPU_CONFORMANCE_CACHE") or default)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@lru_cache
def find_tool(name: str) -> str:
    """The program itself where the packages of IREE have it: what pip puts on PATH starts Python first."""
    packages = find_spec("iree")
    for folder in (packages and packages.submodule_search_locations) or ():
        for libraries in ("compiler/_mlir_libs", "_runtime_libs"):
            if (found := Path(folder, libraries, name)).exists():
                return str(found)
    if on_path := shutil.which(name):
        return on_path
    raise FileNotFoundError(f"{name} is not installed: pip install 'halgpu[test]'")


def run_tool(name: str, *arguments: str, seconds: float = 300) -> str:
    """Run a stock tool; returns what it printed."""
    try:
        done = subprocess.run([find_tool(name), *arguments], capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        raise ToolFailed(f"{name}: no end after {seconds:.0f} s") from None
    if done.returncode:
        raise ToolFailed(f"{name} exited {done.returncode}: {_reason(done.stderr)}", done.stderr)
    return done.stdout


def _reason(text: str) -> str:
    """The first error of a tool's output, without what it quotes of the program."""
    lines = text.splitlines()
    errors = [line for line in lines if "error:" in line or "; " in line]
    return re.sub(r"\S*/module\.mlir", "module.mlir", (errors or lines or ["no message"])[0].strip())[:500]


def compile_module(source: str, *flags: str, model: str = INLINE) -> Path:
    """Compile MLIR text; a failure is remembered too."""
    return _compiled(source, [f"--iree-execution-model={model}", *flags])


def compile_with_kernels(source: str, *flags: str, model: str) -> tuple[Path, dict[str, str]]:
    """Compile MLIR text; also the digest of each kernel's SPIR-V, by name."""
    with tempfile.TemporaryDirectory() as work:
        dump = f"--iree-hal-dump-executable-binaries-to={work}"
        key = _key(source, flags, model, version("iree-base-compiler"))
        kept = cache_folder() / f"{key}.kernels.json"
        module = cache_folder() / f"{key}.vmfb"
        if not kept.exists():
            _compile(source, [f"--iree-execution-model={model}", *flags, dump], module)
            digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in Path(work).glob("*.spv")}
            kept.write_text(json.dumps(digests))
    found: dict[str, str] = json.loads(kept.read_text())
    return module, found


def _compiled(source: str, command: list[str]) -> Path:
    key = _key(source, command, version("iree-base-compiler"))
    kept, failed = cache_folder() / f"{key}.vmfb", cache_folder() / f"{key}.failed"
    if failed.exists():
        raise ToolFailed(*json.loads(failed.read_text()))
    if not kept.exists():
        try:
            _compile(source, command, kept)
        except ToolFailed as problem:
            failed.write_text(json.dumps([str(problem), problem.output]))
            raise
    return kept


def _compile(source: str, command: list[str], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=cache_folder()) as work:
        Path(work, "module.mlir").write_text(source)
        run_tool("iree-compile", *command, f"{work}/module.mlir", "-o", f"{work}/out.vmfb")
        os.replace(f"{work}/out.vmfb", target)


def stock_results(
    module: Path, function: str, program: Program, inputs: Sequence[np.ndarray], device: str = "local-sync"
) -> list[np.ndarray]:
    """What stock iree-run-module computes; kept for the CPU, whose runs are many."""
    if device != "local-sync":
        return _run(module, function, program, inputs, device)
    key = _key(module.name, function, [(a.tobytes(), a.shape) for a in inputs], version("iree-base-runtime"))
    kept = cache_folder() / f"{key}.npz"
    if not kept.exists():
        results = _run(module, function, program, inputs, device)
        with tempfile.TemporaryDirectory(dir=cache_folder()) as work:
            # numpy keeps no bfloat16: bare bytes.
            np.savez(
                f"{work}/r.npz", *[np.frombuffer(r.tobytes(), np.uint8) for r in results], *_shapes(results)
            )
            os.replace(f"{work}/r.npz", kept)
    with np.load(kept) as arrays:
        loaded = [arrays[f"arr_{i}"] for i in range(len(arrays.files))]
    half = len(loaded) // 2
    kinds = [dtype_of(element) for _, element in program.results]
    parts = zip(loaded[:half], kinds, loaded[half:], strict=True)
    return [data.view(dtype).reshape(tuple(shape)) for data, dtype, shape in parts]


def _shapes(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [np.array(array.shape, np.int64) for array in arrays]


def _run(
    module: Path, function: str, program: Program, inputs: Sequence[np.ndarray], device: str
) -> list[np.ndarray]:
    with tempfile.TemporaryDirectory() as work:
        return stock.run(run_tool, module, function, program, inputs, Path(work), device)


def _key(*content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:32]
