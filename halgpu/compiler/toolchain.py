"""Finds iree-compile and runs it, and the scripts of this folder, as child processes.

A compiler that crashes, or is killed for memory, ends its own process only. A child never outlives its caller's
wait: Ctrl-C, or any other exception, kills it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from halgpu import errors
from halgpu.compiler import diagnostics

VERSION = "3.13"
"""The release of iree-base-compiler whose programs halgpu runs and whose faults ``repair_stream`` knows."""

_INSTALL = "pip install 'halgpu[compiler]'"


class Done(NamedTuple):
    """What a child printed; ``status`` is its exit status, negative for a signal."""

    status: int
    text: str


@cache
def iree_compile() -> Path:
    """The path of the installed iree-compile. Raises Unavailable if there is none, Incompatible for another release.

    The program itself, not the console script around it, which would outlive its caller's kill.
    """
    try:
        spec = importlib.util.find_spec("iree.compiler")
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise errors.Unavailable(f"the IREE compiler is not installed: {_INSTALL}")
    name = "iree-compile.exe" if os.name == "nt" else "iree-compile"
    found = [
        path for folder in spec.submodule_search_locations if (path := Path(folder, "_mlir_libs", name)).exists()
    ]
    if not found:
        raise errors.Unavailable(f"the installed iree.compiler has no {name}: {_INSTALL}")
    _check_version()
    return found[0]


def _check_version() -> None:
    try:
        version = importlib.metadata.version("iree-base-compiler")
    except importlib.metadata.PackageNotFoundError:
        raise errors.Unavailable(f"iree-base-compiler is not installed: {_INSTALL}") from None
    if not f"{version}.".startswith(f"{VERSION}."):
        raise errors.Incompatible(
            f"expected iree-base-compiler {VERSION}, found {version}: pip install 'iree-base-compiler=={VERSION}.*'"
        )


def run_tool(arguments: Sequence[str]) -> Done:
    """Run iree-compile with ``arguments``."""
    return _run([str(iree_compile()), *arguments])


def run_script(name: str, *arguments: str) -> Done:
    """Run the file ``name`` of this folder with this Python, which finds the packages that the caller finds."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    script = str(Path(__file__).with_name(name))
    return _run([sys.executable, "-P", script, *arguments], environment)


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> Done:
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )
    except OSError as error:
        raise errors.Unavailable(f"{command[0]} cannot be run: {error.strerror or error}") from error
    with child:
        try:
            output, _ = child.communicate()
        except BaseException:
            child.kill()
            raise
    return Done(child.returncode, output.decode(errors="replace"))


def require(done: Done, what: str, hide: str = "") -> str:
    """What a child said that ended well, in short; else raise an error made of it (see ``diagnostics``).

    ``hide`` is a folder whose name is left out of paths.
    """
    text = done.text.replace(f"{hide}{os.sep}", "") if hide else done.text
    if done.status:
        raise diagnostics.failure(what, done.status, text)
    return diagnostics.shortened(text)
