"""Runs programs with halgpu in a process of its own, so that a crash or a hang of a driver ends only that one."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np


class Refused(Exception):
    """halgpu answered with an error of halgpu.errors."""


class Broken(Exception):
    """The process died or did not answer in time, or something else than halgpu raised an exception."""


class Child:
    """A process that answers requests, one at a time; a new one is started when one breaks.

    It runs ``serve(pipe, *arguments)``, which sends a pair for each request: "done" and a value, or "refused" or
    "broken" and a message.
    """

    def __init__(self, serve: Callable[..., None], *arguments: Any) -> None:
        self._serve, self._arguments = serve, arguments
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = self._pipe = None

    def ask(self, request: tuple[Any, ...], seconds: float) -> Any:
        """The answer to ``request``. Raises Refused or Broken."""
        try:
            kind, value = self._answer(request, seconds)
        except Broken:
            # A process that owes an answer is of no more use.
            self.close()
            raise
        if kind == "refused":
            raise Refused(value)
        if kind == "broken":
            raise Broken(value)
        return value

    def _answer(self, request: tuple[Any, ...], seconds: float) -> tuple[str, Any]:
        pipe = self._started()
        try:
            pipe.send(request)
            if not pipe.poll(seconds):
                raise Broken(f"no answer after {seconds:.0f} s")
            kind, value = pipe.recv()
        except (EOFError, OSError) as problem:
            assert self._process is not None
            self._process.join(5)
            raise Broken(f"the process ended with exit status {self._process.exitcode}") from problem
        return kind, value

    def _started(self) -> Connection:
        if self._pipe is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=self._serve, args=(theirs, *self._arguments), daemon=True)
            self._process.start()
            theirs.close()
        return self._pipe


class Worker(Child):
    """A child that loads modules and calls their functions.

    ``checked`` kernels report accesses outside of their bindings (HALGPU_CHECKED).
    """

    def __init__(self, device: str = "opencl", *, checked: bool = False) -> None:
        super().__init__(_serve, device, checked)
        self.device = device

    def load(self, module: Path, seconds: float = 300) -> None:
        """Load a module, which builds its kernels; it stays until the next one."""
        self.ask(("load", str(module)), seconds)

    def refusals(self, module: Path, seconds: float = 300) -> list[str]:
        """Why kernels of a module cannot be translated, one message an executable."""
        messages: list[str] = self.ask(("refusals", str(module)), seconds)
        return messages

    def call(self, function: str, inputs: Sequence[np.ndarray], seconds: float = 60) -> list[np.ndarray]:
        """Call a function of the loaded module."""
        results: list[np.ndarray] = self.ask(("call", function, list(inputs)), seconds)
        return results


def _serve(pipe: Connection, device: str, checked: bool) -> None:
    os.environ["HALGPU_CHECKED"] = str(int(checked))
    import halgpu
    from halgpu import errors

    opened = halgpu.open_device(device)
    module: Any = None
    while True:
        kind, what, *rest = pipe.recv()
        try:
            if kind == "refusals":
                pipe.send(("done", _refusals(Path(what).read_bytes(), opened)))
            elif kind == "load":
                module = halgpu.load(what, device=opened)
                pipe.send(("done", None))
            else:
                results = module[what](*rest[0])
                several = results if isinstance(results, (tuple, list)) else [results]
                pipe.send(("done", [np.asarray(result) for result in several]))
        except errors.Error as problem:
            pipe.send(("refused", f"{type(problem).__name__}: {problem}"))
        except Exception as problem:
            pipe.send(("broken", f"{type(problem).__name__}: {problem}"))


def _refusals(module: bytes, device: Any) -> list[str]:
    from halgpu import errors
    from halgpu.executables.vulkan_spirv import executable_def, loader, translate
    from halgpu.vm import definition

    messages = []
    for data in definition.read(module).rodata:
        if bytes(data[:4]) == b"VKE1":
            try:
                translate.translate(executable_def.read(data), loader.target_of(device))
            except errors.Error as problem:
                messages.append(f"{type(problem).__name__}: {problem}")
    return messages
