"""``halgpu.compile``: from a model to a program (.vmfb) that runs with inline HAL, in four steps.

    import      ONNX to MLIR                                              import_onnx.py, in a child
    lower       iree-compile --compile-to=stream                          host code and kernels apart, not yet generated
    repair      what the inline pipelines would break                     repair_stream.py, in a child
    generate    iree-compile --compile-from=stream                        kernels, then the program

The result is checked (weights.py) before anybody gets it.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from halgpu import errors
from halgpu.compiler import sources, targets, toolchain, weights
from halgpu.default_device import open_device

if TYPE_CHECKING:
    from halgpu.devices.base import Device

Progress = Callable[[str, int, int], None]
"""Told of each step: what, its number from 1 on, how many there are."""

_OURS = ("o", "compile-to", "compile-from", "compile-mode", "output-format", "iree-execution-model", "emit-mlir-bytecode")
"""Flags of iree-compile that the steps set."""


class Compiled(NamedTuple):
    """A program, and the compiler's warnings as text, mostly empty."""

    data: bytes
    warnings: str


def compile(
    source: Any,
    *,
    device: Device | str | None = None,
    target: str | None = None,
    execution_model: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    input_type: str | None = None,
    flags: Sequence[str] = (),
) -> bytes:
    """Compile a program for a device and return the bytes of a .vmfb, for :func:`halgpu.load` or a file.

    ``source`` is a path; MLIR text (a str with a line break or a brace) or bytes, text or bytecode; or an
    ``onnx.ModelProto``. A path that ends in ``.onnx`` is an ONNX model, everything else MLIR in any dialect that
    iree-compile takes as input, StableHLO among them.

    ``device`` (a URI or a Device; default ``$HALGPU_DEVICE``, else the first OpenCL device) decides element types,
    limits and the GPU to optimize for. ``target`` names one instead: ``"vulkan"``, a GPU that iree-compile knows
    (``"ampere"``), or ``"llvm-cpu"``, ``"vmvx"``, ``"vmvx-inline"`` for the host; then no device is opened.
    ``execution_model`` is ``"inline-dynamic"`` (kernels apart, the default) or ``"inline-static"`` (kernels as
    code of the virtual machine). ``shapes`` pins inputs of an ONNX model: ``{"images": (1, 3, 320, 320)}``.
    ``input_type`` is iree-compile's, or ``"onnx"``. ``flags`` are further flags for iree-compile and win.

    The compiler's warnings are Python warnings. Raises InvalidArgument for a program that is wrong, Unimplemented
    for one that inline programs cannot hold, with the compiler's diagnostics in ``details``; Unavailable if no
    compiler is installed; NotFound for a missing file; Internal if the compiler crashed; DataLoss if it lost
    weights. Compilers run in child processes; temporary files are gone when the call ends, however it ends.
    """
    done = build(
        source, device=device, target=target, execution_model=execution_model, shapes=shapes,
        input_type=input_type, flags=flags,
    )  # fmt: skip
    if done.warnings:
        warnings.warn(done.warnings, stacklevel=2)
    return done.data


def build(
    source: Any,
    *,
    device: Device | str | None = None,
    target: str | None = None,
    execution_model: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    input_type: str | None = None,
    flags: Sequence[str] = (),
    progress: Progress = lambda what, number, count: None,
) -> Compiled:
    """:func:`compile`, which tells ``progress`` of its steps and returns warnings instead of raising them."""
    _check_flags(flags)
    toolchain.iree_compile()
    own = target_flags(device, target, execution_model)
    with tempfile.TemporaryDirectory(prefix="halgpu-compile-") as name:
        folder = Path(name)
        program = sources.prepare(source, input_type, folder)
        pinned = sources.check_shapes(shapes, program.is_onnx)
        steps = _Steps(progress, 5 if program.is_onnx else 4)
        if program.is_onnx:
            steps.next("importing the model")
            path = _import_onnx(program, pinned, folder)
        else:
            path = program.path
            if input_type is not None:
                own = [*own, f"--iree-input-type={input_type}"]
        options = [*targets.without(own, flags), *flags]
        return _generate(program, path, options, folder, steps)


def target_flags(device: Device | str | None, target: str | None, model: str | None) -> list[str]:
    """The flags of iree-compile that a device or a target stands for (see ``targets``)."""
    targets.check_model(model)
    if target is not None:
        return targets.for_name(target, model)
    if device is None and model == targets.STATIC:
        return targets.for_name("vmvx-inline", model)
    try:
        opened = open_device(device)
    except errors.Unavailable as error:
        raise errors.Unavailable(f"{error.message}; without the device, name a target to compile for") from error
    return targets.for_device(opened.capabilities, model)


class _Steps:
    def __init__(self, progress: Progress, count: int) -> None:
        self._progress, self._count, self._number = progress, count, 0

    def next(self, what: str) -> None:
        self._number += 1
        self._progress(what, self._number, self._count)


def _check_flags(flags: Sequence[str]) -> None:
    if isinstance(flags, str):
        raise errors.InvalidArgument(f"flags: expected a list of strings, found the string {flags!r}")
    for flag in flags:
        if not isinstance(flag, str) or not flag.startswith("-"):
            raise errors.InvalidArgument(f"expected a flag of iree-compile, such as --iree-opt-level=O2, found {flag!r}")
        name = flag.partition("=")[0].lstrip("-")
        if name in _OURS:
            instead = "; use execution_model" if name == "iree-execution-model" else ""
            raise errors.InvalidArgument(f"flag --{name} is set by halgpu compile itself{instead}")


def _import_onnx(program: sources.Program, shapes: dict[str, list[int]], folder: Path) -> Path:
    imported = folder / "imported.mlirbc"
    done = toolchain.run_script("import_onnx.py", str(program.path), str(imported), json.dumps(shapes))
    toolchain.require(done, program.name, str(folder))
    return imported


def _generate(program: sources.Program, path: Path, options: list[str], folder: Path, steps: _Steps) -> Compiled:
    stream, repaired, result = (folder / name for name in ("stream.mlirbc", "repaired.mlirbc", "result.vmfb"))
    # Inline programs have no asynchronous functions, which is what torch programs become by default.
    options = targets.without(["--iree-torch-emit-async-entry-points=false"], options) + options
    steps.next("lowering the program")
    first = _tool(program, folder, *options, "--compile-to=stream", "--emit-mlir-bytecode", str(path), "-o", str(stream))
    steps.next("repairing it")
    toolchain.require(toolchain.run_script("repair_stream.py", str(stream), str(repaired)), program.name, str(folder))
    steps.next("generating kernels")
    second = _tool(program, folder, *options, "--compile-from=stream", str(repaired), "-o", str(result))
    steps.next("checking the result")
    data = result.read_bytes()
    weights.check(data)
    return Compiled(data, "\n".join(dict.fromkeys(filter(None, (first, second)))))


def _tool(program: sources.Program, folder: Path, *arguments: str) -> str:
    return toolchain.require(toolchain.run_tool(arguments), program.name, str(folder))
