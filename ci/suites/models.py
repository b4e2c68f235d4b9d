"""ci/conformance models: real models with real weights, and networks, beside other runtimes.

    sh ci/conformance models [--only=GLOB]… [--device=URI] [--calls=N] [--report=FILE.json]

    magika      the model of the package magika: values and top label are ONNX Runtime's on 20 inputs, and memory stays
                flat over 1,000 calls
    light_…     the networks in the package onnx: the result is the .pb beside them, within the tolerance that the
                package gives
    jax         a JAX function by way of StableHLO: the result is JAX's
    pytorch     a PyTorch module by way of ONNX: the result is PyTorch's

The report has one entry a case. `status` is one of

    equal
    compile-refused   halgpu.compile refuses the model; `stock` tells whether stock iree-compile takes it
    differs           the message says how
    broken            an exception of another kind, or memory that grows

Exit status 1 if a case is broken or differs, or is refused though stock iree-compile takes it. Needs onnxruntime,
magika, jax, torch and onnxscript, which it installs into the environment if they are missing (500 MB).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = str(Path(__file__).resolve().parent)
# The suite beside this one is named as the package onnx is, which has to be found first.
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != HERE]
sys.path += [HERE, str(ROOT / "tests" / "executables")]

import argparse  # noqa: E402
import gc  # noqa: E402
import json  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import Callable, Mapping  # noqa: E402
from dataclasses import asdict, dataclass  # noqa: E402
from fnmatch import fnmatch  # noqa: E402
from functools import partial  # noqa: E402
from importlib.util import find_spec  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402
import toolchain  # noqa: E402

import halgpu  # noqa: E402
from halgpu import errors  # noqa: E402

PACKAGES = {
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
    "magika": "magika",
    "jax": "jax",
    "torch": "torch==2.13.*",
    "onnxscript": "onnxscript",
}
LIGHT = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
)  # fmt: skip
INPUTS = 20
CALLS = 1000
GROWTH = 4 << 20
"""Bytes by which the process may grow over the calls: what the allocator and the interpreter keep."""


class DiffersError(Exception):
    """A result is not what the other runtime gets."""


class GrowsError(Exception):
    """Memory that should stay flat does not."""


@dataclass
class Entry:
    """The report's line on one case."""

    name: str
    status: str
    message: str = ""
    seconds: float = 0.0
    stock: bool | None = None
    figures: Mapping[str, Any] | None = None

    @property
    def unexpected(self) -> bool:
        return self.status in ("differs", "broken") or (self.status == "compile-refused" and bool(self.stock))


def same(found: np.ndarray, wanted: np.ndarray, rtol: float, atol: float) -> float:
    """The greatest difference. Raises DiffersError for one that is out of tolerance."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        raise DiffersError(f"expected {wanted.dtype} {wanted.shape}, found {found.dtype} {found.shape}")
    error = float(np.abs(found.astype(np.float64) - wanted).max(initial=0))
    if not np.allclose(found, wanted, rtol=rtol, atol=atol, equal_nan=True):
        raise DiffersError(f"greatest difference {error:g}, tolerance {atol:g} + {rtol:g} times the value")
    return error


def folder_of(package: str) -> Path:
    """Where a package is installed."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


# --- magika ---------------------------------------------------------------------------------------------


def magika_inputs() -> list[np.ndarray]:
    """The model takes the first and the last 1024 bytes of a file as integers, and 256 where there is none."""
    generator = np.random.default_rng(0)
    files = sorted([*ROOT.glob("*.md"), *ROOT.glob("*.toml"), *ROOT.glob("ci/*"), *ROOT.glob("examples/*")])
    texts = [path.read_bytes() for path in files if path.is_file()][: INPUTS - 8]
    texts += [b"", b"x", b'{"a": [1, 2]}\n', b"<html><body></body></html>", b"\x7fELF" + bytes(3000)]
    while len(texts) < INPUTS:
        texts.append(generator.integers(0, 256, 4096, np.uint8).tobytes())
    return [_tokens(text.strip()) for text in texts]


def _tokens(text: bytes) -> np.ndarray:
    tokens = np.full((1, 2048), 256, np.int32)
    first, last = text[:1024], text[-1024:]
    tokens[0, : len(first)] = np.frombuffer(first, np.uint8)
    tokens[0, 2048 - len(last) :] = np.frombuffer(last, np.uint8)
    return tokens


def case_magika(device: str, calls: int = CALLS) -> dict[str, Any]:
    """Values, top label, and memory."""
    import onnxruntime

    [path] = folder_of("magika").glob("models/standard*/model.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    module = halgpu.load(halgpu.compile(path, device=device, shapes={"bytes": (1, 2048)}), device=device)
    [function] = module.functions.values()
    worst, labels = 0.0, set()
    for given in magika_inputs():
        [wanted] = session.run(None, {"bytes": given})
        found = np.asarray(function(given))
        worst = max(worst, same(found, wanted, 1e-4, 1e-5))
        if found.argmax() != wanted.argmax():
            raise DiffersError(f"top label {found.argmax()}, expected {wanted.argmax()}")
        labels.add(int(found.argmax()))
    return {"greatest_difference": worst, "labels": sorted(labels), **memory(module, given, calls)}


def memory(module: halgpu.Module, given: np.ndarray, calls: int) -> dict[str, Any]:
    """Resident bytes and bytes on the device before and after calls. Raises GrowsError."""
    device = module.device
    [function] = module.functions.values()
    for _ in range(20):
        np.asarray(function(given))
    gc.collect()
    before, held = resident(), device.statistics.bytes_allocated
    for _ in range(calls):
        np.asarray(function(given))
    gc.collect()
    after, still = resident(), device.statistics.bytes_allocated
    if still != held or after - before > GROWTH:
        raise GrowsError(
            f"after {calls} calls {after - before} more bytes resident, {still - held} more on the device"
        )
    return {"calls": calls, "resident_growth": after - before, "device_growth": still - held}


def resident() -> int:
    """Resident bytes of this process (Linux)."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


# --- light networks -------------------------------------------------------------------------------------


def case_light(name: str, device: str) -> dict[str, Any]:
    """The input is what onnx.backend.test.runner makes for these networks, the tolerance that of their data.json."""
    import onnx

    data = folder_of("onnx") / "backend" / "test" / "data"
    expected = onnx.TensorProto()
    expected.ParseFromString((data / "light" / f"light_{name}_output_0.pb").read_bytes())
    described = json.loads((data / "real" / f"test_{name}" / "data.json").read_text())
    model = data / "light" / f"light_{name}.onnx"
    started = time.monotonic()
    program = halgpu.compile(model, device=device)
    compiled = time.monotonic() - started
    module = halgpu.load(program, device=device)
    [function] = module.functions.values()
    shape = (1, 3, 224, 224)
    given = (np.arange(np.prod(shape)).reshape(shape) / np.prod(shape)).astype(np.float32)
    started = time.monotonic()
    found = np.asarray(function(given))
    first = time.monotonic() - started
    wanted = onnx.numpy_helper.to_array(expected)
    worst = same(found, wanted, described["rtol"], described["atol"])
    return {"greatest_difference": worst, "compile_seconds": compiled, "first_call_seconds": first}


def stock_compiles(name: str) -> bool:
    """Whether stock iree-compile takes a network for the default Vulkan target."""
    from halgpu.compiler.import_onnx import import_model

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "model.mlirbc")
        path = folder_of("onnx") / "backend" / "test" / "data" / "light" / f"light_{name}.onnx"
        source.write_bytes(import_model(str(path), {}))
        flags = (
            toolchain.VULKAN, "--iree-execution-model=inline-dynamic", "--iree-torch-emit-async-entry-points=false",
        )  # fmt: skip
        try:
            toolchain.run_tool("iree-compile", *flags, str(source), "-o", f"{folder}/out.vmfb", seconds=1200)
        except toolchain.ToolFailed:
            return False
    return True


# --- frameworks -----------------------------------------------------------------------------------------


def case_jax(device: str) -> dict[str, Any]:
    """A network with a convolution, a normalization and attention, as docs/jax.md exports it."""
    import jax
    import jax.numpy as jnp
    from jax import export

    generator = np.random.default_rng(0)

    def weights(*shape: int) -> np.ndarray:
        return (generator.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    filters, query, key, value, head = (
        weights(16, 3, 3, 3), weights(16, 16), weights(16, 16), weights(16, 16), weights(16, 10),
    )  # fmt: skip

    @jax.jit
    def predict(images: Any) -> Any:
        x = jax.lax.conv_general_dilated(images, filters, (2, 2), "SAME")
        x = jax.nn.gelu(x.reshape(x.shape[0], 16, -1).transpose(0, 2, 1))
        x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        scores = jax.nn.softmax((x @ query) @ (x @ key).transpose(0, 2, 1) / 4)
        return jax.nn.softmax((x + scores @ (x @ value)).mean(1) @ head)

    exported = export.export(predict)(jax.ShapeDtypeStruct((2, 3, 16, 16), jnp.float32))
    module = halgpu.load(halgpu.compile(exported.mlir_module(), device=device), device=device)
    images = generator.standard_normal((2, 3, 16, 16)).astype(np.float32)
    return {
        "greatest_difference": same(np.asarray(module.main(images)), np.asarray(predict(images)), 1e-4, 1e-5)
    }


def case_pytorch(device: str) -> dict[str, Any]:
    """A module with a convolution, a batch normalization and a transformer's layer, as docs/pytorch.md exports it."""
    import torch

    torch.manual_seed(0)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = torch.nn.Sequential(
                torch.nn.Conv2d(3, 16, 3, stride=2, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU()
            )
            self.layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
            self.head = torch.nn.Linear(16, 10)

        def forward(self, images: Any) -> Any:
            x = self.layer(self.stem(images).flatten(2).transpose(1, 2))
            return self.head(x.mean(1)).softmax(-1)

    network = Network().eval()
    images = torch.randn(2, 3, 16, 16)
    model = torch.onnx.export(network, (images,), dynamo=True).model_proto
    module = halgpu.load(halgpu.compile(model, device=device), device=device)
    [function] = module.functions.values()
    with torch.no_grad():
        wanted = network(images).numpy()
    return {"greatest_difference": same(np.asarray(function(images.numpy())), wanted, 1e-4, 1e-5)}


# --- the suite ------------------------------------------------------------------------------------------


CASES: dict[str, Callable[[str], dict[str, Any]]] = {
    "magika": case_magika,
    **{f"light_{name}": partial(case_light, name) for name in LIGHT},
    "jax": case_jax,
    "pytorch": case_pytorch,
}


def settle(name: str, device: str) -> Entry:
    """Run a case."""
    started = time.monotonic()
    entry = Entry(name, "equal")
    try:
        entry.figures = CASES[name](device)
    except DiffersError as problem:
        entry.status, entry.message = "differs", str(problem)
    except (errors.InvalidArgument, errors.Unimplemented) as problem:
        entry.status, entry.message = "compile-refused", str(problem)[:2000]
        entry.stock = stock_compiles(name.removeprefix("light_")) if name.startswith("light_") else True
    except Exception as problem:
        traceback.print_exc()
        entry.status, entry.message = "broken", f"{type(problem).__name__}: {problem}"[:2000]
    entry.seconds = round(time.monotonic() - started, 1)
    return entry


def install_packages() -> None:
    missing = [package for name, package in PACKAGES.items() if find_spec(name) is None]
    if missing:
        print(f"installing {' '.join(missing)}", flush=True)
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *missing], check=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="ci/conformance models", description="Real models and networks.")
    parser.add_argument("--only", action="append", metavar="GLOB", help="cases by name; may be repeated")
    parser.add_argument("--device", default="opencl", help="the device that halgpu runs them on")
    parser.add_argument("--calls", type=int, default=CALLS, help="of magika, over which memory is watched")
    parser.add_argument("--report", type=Path, metavar="FILE.json", help="where to write one entry a case")
    options = parser.parse_args(arguments)
    names = [name for name in CASES if any(fnmatch(name, glob) for glob in options.only or ["*"])]
    if not names:
        parser.error(f"no case is named so; there are: {' '.join(CASES)}")
    install_packages()
    CASES["magika"] = partial(case_magika, calls=options.calls)
    entries = []
    for name in names:
        entry = settle(name, options.device)
        entries.append(entry)
        print(f"{name}: {entry.status}, {entry.seconds} s {entry.figures or entry.message[:300]}", flush=True)
        if options.report:
            content = {"suite": "models", "device": options.device, **Counter(e.status for e in entries)}
            options.report.write_text(
                json.dumps({**content, "cases": [asdict(e) for e in entries]}, indent=1) + "\n"
            )
    unexpected = [entry.name for entry in entries if entry.unexpected]
    print(f"{len(unexpected)} unexpected {' '.join(unexpected)}".strip())
    return bool(unexpected)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
