"""Makes a program of a module at HAL level, by passes on xDSL (extra ``compiler``) and without the IREE compiler.

Such a module holds code and kernels that are compiled already: what ``iree-compile --compile-to=hal`` prints for an
inline program, or what people write around kernels of their own (docs/kernels.md).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Sequence
from typing import NamedTuple

from halgpu import errors

PARSE_STEP, EMIT_STEP = "reading the program", "writing bytecode"
Progress = Callable[[str, int, int], None]


class Finished(NamedTuple):
    """A .vmfb, and remarks on it, a line each."""

    data: bytes
    remarks: tuple[str, ...]


VERSION = "0.75"
"""The release of xDSL that these passes are written for; how MLIR is read leans on parts that may change."""


class MissingXdsl(errors.Unavailable, ImportError):
    """xDSL is not installed. An ImportError too: modules that are written on it raise it when they are imported."""


def check() -> None:
    """Raise MissingXdsl (an Unavailable) if xDSL is not installed, Incompatible if it is another release."""
    try:
        found = importlib.util.find_spec("xdsl")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise MissingXdsl(
            "xDSL, which reads MLIR, is not installed: pip install 'halgpu[compiler]' "
            f"(in a checkout: pip install 'xdsl=={VERSION}.*')"
        )
    version = importlib.metadata.version("xdsl")
    if not f"{version}.".startswith(f"{VERSION}."):
        raise errors.Incompatible(
            f"expected xDSL {VERSION}, found {version}: pip install 'xdsl=={VERSION}.*'"
        )


def finish(
    text: str,
    name: str,
    kernels: Sequence[str] = (),
    progress: Progress = lambda what, number, count: None,
) -> Finished:
    """The program of a module at HAL level. ``name`` stands in diagnostics and in the program's source locations.

    ``kernels`` are files of hand-written kernels to embed, ``FILE`` or ``SYMBOL=FILE`` (see ``kernels``).

    Raises InvalidArgument: a line ``file:line:column: error: …`` for each thing that is wrong, more of them in
    ``details``; Unavailable without xDSL.
    """
    check()
    from halgpu.compiler import emit, mlir
    from halgpu.compiler.kernels import embed
    from halgpu.compiler.transforms import pipeline
    from halgpu.compiler.transforms.sound_part import check_rest
    from halgpu.vm import writer

    steps = [PARSE_STEP, *(word.strip() for word in pipeline.FINISH.split(",")), EMIT_STEP]
    tell = _teller(steps, progress)
    tell(PARSE_STEP)
    ctx = mlir.context()
    read = mlir.read(text, name, ctx)
    if read.diagnostics.found:
        check_rest(read, ctx, kernels)
    module = read.sound()
    if kernels:
        embed(module, kernels)
    remarks = pipeline.run(module, ctx, pipeline.FINISH, tell, verify_each=False)
    tell(EMIT_STEP)
    made = emit.emit(module, mlir.resources(ctx))
    return Finished(writer.write(made), tuple(remarks))


def _teller(steps: Sequence[str], progress: Progress) -> Callable[[str], None]:
    """Tells of a step with its number; steps come in order, some of them more than once."""
    number = 0

    def tell(what: str) -> None:
        nonlocal number
        number += 1
        progress(what, number, len(steps))

    return tell
