"""Finds the IREE compiler and runs it in a child process.

A compiler that crashes, or is killed for memory, ends its own process only. A child never outlives its caller's
wait: Ctrl-C, or any other exception, kills it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

from halgpu import errors
from halgpu.compiler import diagnostics, worker

VERSION = "3.13"
"""The release of iree-base-compiler whose programs halgpu runs and whose faults ``repair_stream`` knows."""


class Done(NamedTuple):
    """How a child ended (negative: by which signal), and what it said on stderr."""

    status: int
    text: str


@cache
def check() -> None:
    """Raise Unavailable if no compiler is installed, Incompatible if it is another release's."""
    try:
        found = importlib.util.find_spec("iree.compiler")
    except ModuleNotFoundError:
        found = None
    try:
        version = importlib.metadata.version("iree-base-compiler") if found else ""
    except importlib.metadata.PackageNotFoundError:
        version = ""
    if not version:
        raise errors.Unavailable(
            "the IREE compiler is not installed: pip install 'halgpu[compiler]', for ONNX models 'halgpu[onnx]' "
            f"(in a checkout: pip install 'iree-base-compiler=={VERSION}.*' onnx)"
        )
    if not f"{version}.".startswith(f"{VERSION}."):
        raise errors.Incompatible(
            f"expected iree-base-compiler {VERSION}, found {version}: pip install 'iree-base-compiler=={VERSION}.*'"
        )


def run_worker(job: dict[str, Any], folder: Path, told: Callable[[str], None]) -> Done:
    """Do ``job`` (see ``worker``) in a child process; its steps go to ``told``, its files to ``folder``."""
    description, log = folder / "job.json", folder / "log.txt"
    description.write_text(json.dumps(job), encoding="utf-8")
    command = [sys.executable, "-P", "-m", "halgpu.compiler.worker", str(description)]
    with log.open("wb") as stderr:
        status = _run(command, environment(), stderr, told)
    return Done(status, log.read_text(encoding="utf-8", errors="replace"))


def environment() -> dict[str, str]:
    """The variables of a child that finds the packages that this process finds."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}


def _run(
    command: list[str], environment: dict[str, str], stderr: IO[bytes], told: Callable[[str], None]
) -> int:
    """The exit status of ``command``, which does not outlive this call."""
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=environment,
        encoding="utf-8", errors="replace",
    )  # fmt: skip
    with child:
        try:
            for line in child.stdout or ():
                if line.startswith(worker.STEP):
                    told(line.removeprefix(worker.STEP).strip())
            return child.wait()
        except BaseException:
            child.kill()
            raise


def require(done: Done, what: str, hide: str) -> str:
    """What a child said that ended well, in short; else raise an error made of it (see ``diagnostics``).

    ``hide`` is a folder whose name is left out of paths.
    """
    text = done.text.replace(f"{hide}{os.sep}", "")
    if done.status:
        raise diagnostics.failure(what, done.status, text)
    return diagnostics.shortened(text)
