"""``halgpu.compile``: from a model to a program (.vmfb) that runs with inline HAL.

    import      an ONNX model to MLIR                                                     import_onnx.py
    repair      what came out wrong of the model's operators                              repair_input.py
    lower       as iree-compile --compile-to=stream: host code, and kernels to be made
    repair      what the inline pipelines would break                                     repair_stream.py
    generate    as iree-compile --compile-from=stream: kernels, then the program
    check       that no weight is lost                                                    weights.py

All but the last are done by ``worker`` in a child process.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from halgpu import errors
from halgpu.compiler import sources, targets, toolchain, weights, worker
from halgpu.default_device import open_device

if TYPE_CHECKING:
    from halgpu.devices.base import Device

Progress = Callable[[str, int, int], None]
"""Told of each step: what, its number from 1 on, how many there are."""

CHECK_STEP = "checking the result"

_OURS = (
    "o",
    "compile-to",
    "compile-from",
    "compile-mode",
    "output-format",
    "iree-execution-model",
    "emit-mlir-bytecode",
)
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
    sources.check_there(source)
    toolchain.check()
    own = target_flags(device, target, execution_model)
    with tempfile.TemporaryDirectory(prefix="halgpu-compile-") as name:
        folder = Path(name)
        program = sources.prepare(source, input_type, folder)
        pinned = sources.check_shapes(shapes, program.is_onnx)
        if input_type is not None and not program.is_onnx:
            own.append(f"--iree-input-type={input_type}")
        output = folder / "result.vmfb"
        job = {
            "source": str(program.path),
            "name": program.name,
            "onnx": program.is_onnx,
            "shapes": pinned,
            "flags": [*targets.without(own, flags), *flags],
            "output": str(output),
        }
        steps = _steps(program, progress)
        done = toolchain.run_worker(job, folder, steps)
        said = toolchain.require(done, program.name, name)
        steps(CHECK_STEP)
        data = output.read_bytes()
        weights.check(data)
        return Compiled(data, said)


def _steps(program: sources.Program, progress: Progress) -> Callable[[str], None]:
    """What to tell of a step's name, so that ``progress`` learns its number as well."""
    names = [*([worker.IMPORT_STEP] if program.is_onnx else []), *worker.STEPS, CHECK_STEP]
    return lambda name: progress(name, names.index(name) + 1, len(names))


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
        raise errors.Unavailable(
            f"{error.message}; without the device, name a target to compile for"
        ) from error
    return targets.for_device(opened.capabilities, model)


def _check_flags(flags: Sequence[str]) -> None:
    if isinstance(flags, str):
        raise errors.InvalidArgument(f"flags: expected a list of strings, found the string {flags!r}")
    for flag in flags:
        if not isinstance(flag, str) or not flag.startswith("-"):
            raise errors.InvalidArgument(
                f"expected a flag of iree-compile, such as --iree-opt-level=O2, found {flag!r}"
            )
        name = flag.partition("=")[0].lstrip("-")
        if name in _OURS:
            instead = "; use execution_model" if name == "iree-execution-model" else ""
            raise errors.InvalidArgument(f"flag --{name} is set by halgpu compile itself{instead}")
