"""Compiles ONNX models together: a process that keeps the compiler, and finds out which of some models it refuses.

Nearly all the time that iree-compile takes for a model of one operator it takes for any model, so that twenty joined
in one module cost little more than one. Most refusals are found before, by lowering each model to linalg alone, which
is quick. A module that is refused after that is compiled again without the models at fault, which diagnostics name:
import_onnx gives nodes the name of their graph, and that is the name of the case.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from worker import Broken, Child, Refused

QUIET = "--mlir-print-op-on-diagnostic=false"


@dataclass
class Modules:
    """Which module has which case, and why the other cases have none."""

    paths: dict[str, Path] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)


class Compiler:
    """Compiles models with certain flags: as halgpu does, or as iree-import-onnx and iree-compile do."""

    def __init__(self, flags: list[str], folder: Path, *, repaired: bool, modern: bool) -> None:
        self._child = Child(_serve, flags, repaired)
        self._folder = folder
        self._modern = modern
        self._count = 0

    def close(self) -> None:
        self._child.close()

    def compile(self, models: Mapping[str, bytes], seconds: float = 60) -> Modules:
        """Compile models by name, together as far as that goes; ``seconds`` is for each, a part of it for more."""
        imported, made = {}, Modules()
        for name, model in models.items():
            try:
                imported[name] = self._child.ask(("import", model, self._modern), seconds)
                self._child.ask(("lower", imported[name], ""), seconds)
            except Refused as problem:
                made.refused[name] = first_error(str(problem))
                imported.pop(name, None)
            except Broken as problem:
                made.broken[name] = str(problem)
                imported.pop(name, None)
        self._join(imported, made, seconds)
        return made

    def _join(self, imported: dict[str, bytes], made: Modules, seconds: float) -> None:
        while imported:
            self._count += 1
            path = self._folder / f"{os.getpid()}-{id(self)}-{self._count}.vmfb"
            try:
                self._child.ask(
                    ("compile", list(imported.values()), str(path)), seconds * (1 + len(imported) / 8)
                )
                made.paths |= dict.fromkeys(imported, path)
                return
            except Refused as problem:
                culprits = blamed(imported, str(problem))
                if len(imported) == 1:
                    culprits = dict.fromkeys(imported, first_error(str(problem)))
                made.refused |= culprits
            except Broken as problem:
                culprits = dict.fromkeys(imported, str(problem)) if len(imported) == 1 else {}
                made.broken |= culprits
            if not culprits:
                names = list(imported)
                for half in (names[: len(names) // 2], names[len(names) // 2 :]):
                    self._join({name: imported[name] for name in half}, made, seconds)
                return
            imported = {name: data for name, data in imported.items() if name not in culprits}


def blamed(names: Mapping[str, Any], text: str) -> dict[str, str]:
    """The first error of each case that diagnostics name in the place of an error."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        place, error, _ = line.partition(" error: ")
        for name in re.findall(r'"(?:graph:)?([^"/]+)[^"]*"', place) if error else ():
            if name in names:
                found.setdefault(name, first_error(line))
    return found


def first_error(text: str) -> str:
    """A diagnostic's message, without places."""
    lines = text.splitlines()
    line = next((line for line in lines if "error: " in line), lines[0] if lines else "no message")
    return line.partition("error: ")[2][:600] or line[:600]


def _serve(pipe: Connection, flags: list[str], repaired: bool) -> None:
    from iree.compiler.api import ctypes_dl as api

    from halgpu.compiler import weights, worker

    said = tempfile.TemporaryFile()  # noqa: SIM115 - what MLIR writes to stderr, as long as the process lives
    os.dup2(said.fileno(), 2)
    api._initializeGlobalCL("iree-compile", *flags, QUIET)
    compile_module: Callable[[Any, bytes, Path], None] = partial(_halgpu, flags) if repaired else _stock
    while True:
        kind, what, how = pipe.recv()
        said.seek(0)
        said.truncate()
        try:
            if kind == "import":
                pipe.send(("done", _imported(what, how)))
                continue
            if kind == "lower":
                _lower(api, what)
                pipe.send(("done", None))
                continue
            from onnx_nodes import joined

            compile_module(api, joined(what), Path(how))
            if repaired:
                weights.check(Path(how).read_bytes())
            pipe.send(("done", None))
        except worker.Wrong:
            said.seek(0)
            pipe.send(("refused", said.read().decode(errors="replace")))
        except Exception as problem:
            pipe.send(("refused", f"error: {type(problem).__name__}: {problem}"))


def _imported(model: bytes, modern: bool) -> bytes:
    import onnx

    from halgpu.compiler import import_onnx

    loaded = onnx.load_model_from_string(model)
    return import_onnx.imported(import_onnx.modern(loaded) if modern else loaded)


def _lower(api: Any, module: bytes) -> None:
    """The first phase alone, which is where operators are unknown."""
    from halgpu.compiler import worker

    with api.Session() as session:
        invocation = worker._invocation(api, session, end="input")
        if not invocation.parse_source(worker._wrap(api, module, "lowered", session)):
            raise worker.Wrong
        worker._execute(invocation)


def _halgpu(flags: list[str], api: Any, module: bytes, output: Path) -> None:
    from halgpu.compiler import worker

    source = output.with_suffix(".mlirbc")
    source.write_bytes(module)
    job = {
        "source": str(source), "name": "joined", "onnx": False, "shapes": {}, "flags": flags, "output": str(output)
    }  # fmt: skip
    try:
        stdout, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115 - steps that it tells
        worker.compile_with(api, job)
    finally:
        sys.stdout.close()
        sys.stdout = stdout
        source.unlink()


def _stock(api: Any, module: bytes, output: Path) -> None:
    """What iree-compile does with a module."""
    from halgpu.compiler import worker

    with api.Session() as session:
        invocation = session.invocation()
        invocation.enable_console_diagnostics()
        source = worker._wrap(api, module, "joined", session)
        if not invocation.parse_source(source) or not invocation.execute():
            raise worker.Wrong
        with api.Output.open_file(str(output)) as written:
            invocation.output_vm_bytecode(written)
            written.keep()
