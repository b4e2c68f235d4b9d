"""The child process that compiles: the whole way from a file to a .vmfb, in one go and without files between.

    python -m halgpu.compiler.worker JOB.json

JOB has ``source``, ``name`` (what its locations are to say), ``onnx`` (whether it is an ONNX model), ``shapes`` (of
its inputs), ``flags`` (of iree-compile), and ``output``. Steps are told on stdout, a line each that starts with
:data:`STEP`; diagnostics go to stderr. MLIR ends the process it runs in for what it did not expect, and for a flag
that it does not know.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import sys
from typing import Any

STEP = "\x1estep "
"""How a line starts that tells a step."""

STEPS = ("lowering the program", "generating kernels")
IMPORT_STEP = "importing the model"


class Wrong(Exception):
    """Something that is wrong with what the user gave, to be told in a line."""


def main(job: dict[str, Any]) -> int:
    """Do ``job``; returns the exit status."""
    try:
        _compile(job)
    except Wrong as problem:
        if str(problem):
            print(problem, file=sys.stderr)
        return 1
    return 0


def _compile(job: dict[str, Any]) -> None:
    from iree.compiler.api import ctypes_dl as api

    # All flags go where iree-compile itself has them: some are LLVM's, which a session's set_flags does not take.
    api._initializeGlobalCL("iree-compile", *job["flags"])
    compile_with(api, job)


def compile_with(api: Any, job: dict[str, Any]) -> None:
    """Do ``job`` with the flags that the process has already. Raises Wrong."""
    from halgpu.compiler import repair_input, repair_stream

    with api.Session() as session:
        context = session.context
        if job["onnx"]:
            _tell(IMPORT_STEP)
            source = _import_onnx(api, job, session)
        else:
            source = _open(api, job, session)
        first = _invocation(api, session, end="input")
        if not first.parse_source(source):
            raise Wrong
        _tell(STEPS[0])
        _execute(first)
        module = first.export_module()
        with context:
            vulkan = any("vulkan" in flag for flag in job["flags"])
            repair_input.repair(module, vulkan=vulkan, stablehlo=_is_stablehlo(job))
        second = _invocation(api, session, start="input", end="stream")
        second.import_module(module)
        _execute(second)
        module = second.export_module()
        with context:
            repair_stream.repair(module)
            module.verify()
        _tell(STEPS[1])
        third = _invocation(api, session, start="stream")
        third.import_module(module)
        _execute(third)
        with api.Output.open_file(job["output"]) as output:
            third.output_vm_bytecode(output)
            output.keep()


def _tell(step: str) -> None:
    print(f"{STEP}{step}", flush=True)


def _invocation(api: Any, session: Any, start: str = "", end: str = "") -> Any:
    """A run of the compiler on from one phase, up to another.

    The functions are in the C API (compiler/bindings/c/iree/compiler/embedding_api.h) but not in its Python one.
    """
    invocation = session.invocation()
    invocation.enable_console_diagnostics()
    for direction, phase in (("From", start), ("To", end)):
        if phase:
            limit = getattr(api._dylib, f"ireeCompilerInvocationSetCompile{direction}Phase")
            limit.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
            limit.restype = None
            limit(invocation._inv_p, phase.encode())
    return invocation


def _is_stablehlo(job: dict[str, Any]) -> bool:
    """Whether a program has operations of StableHLO: text and bytecode both name the dialect."""
    if job["onnx"]:
        return False
    with open(job["source"], "rb") as file:
        return b"stablehlo" in file.read()


def _open(api: Any, job: dict[str, Any], session: Any) -> Any:
    if job["name"] != job["source"]:
        with open(job["source"], "rb") as file:
            return _wrap(api, file.read(), job["name"], session)
    try:
        return api.Source.open_file(session, job["source"])
    except ValueError as error:
        raise Wrong(str(error)) from error


def _wrap(api: Any, data: bytes, name: str, session: Any) -> Any:
    """A source of ``data``.

    The bytecode of tensors' data has to lie at an aligned address, which a Python buffer's need not be
    (mlir/lib/Bytecode/Reader/BytecodeReader.cpp, "expected section alignment"): pages are.
    """
    pages = mmap.mmap(-1, len(data))
    pages.write(data)
    buffer = (ctypes.c_char * len(data)).from_buffer(pages)
    source = ctypes.c_void_p()
    # Source.wrap_buffer does not take a ctypes array, which the C API needs.
    api._handle_error(
        api._dylib.ireeCompilerSourceWrapBuffer(
            session._session_p, name.encode(), buffer, len(data), False, ctypes.byref(source)
        )
    )
    return api.Source(session, source, buffer)


def _execute(invocation: Any) -> None:
    """Run; what is wrong has been told by diagnostics."""
    if not invocation.execute():
        raise Wrong


def _import_onnx(api: Any, job: dict[str, Any], session: Any) -> Any:
    """The model as a source of MLIR bytecode.

    The first invocation of a session has to parse: given a module, the pipeline of 3.13.0 ends in a segmentation
    fault.
    """
    from halgpu.compiler import import_onnx

    try:
        data = import_onnx.import_model(job["source"], job["shapes"])
    except import_onnx.Wrong as problem:
        raise Wrong(str(problem)) from problem
    return _wrap(api, data, job["name"], session)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        sys.exit(main(json.load(file)))
