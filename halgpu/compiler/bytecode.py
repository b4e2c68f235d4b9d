"""MLIR bytecode as text, which xDSL reads: the IREE compiler converts it, in a child process.

    python -m halgpu.compiler.bytecode FILE RESULT

Facts: mlir/docs/BytecodeFormat.md. Locations stand in the text, so that diagnostics name the places that it came from.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from halgpu import errors

MAGIC: Final = b"ML\xefR"
NAMELESS: Final = '"-":0:0: '


def as_text(data: bytes, name: str) -> str:
    """The text of a module in MLIR bytecode, called ``name`` in messages.

    Raises Unavailable without the IREE compiler, InvalidArgument for what is none.
    """
    from halgpu.compiler import toolchain

    try:
        toolchain.check()
    except errors.Error as problem:
        raise type(problem)(
            f"{name}: expected MLIR as text, found bytecode, which the IREE compiler reads: {problem.message}"
        ) from problem
    with tempfile.TemporaryDirectory(prefix="halgpu-bytecode-") as folder:
        source, result, log = (Path(folder) / part for part in ("module.mlirbc", "module.mlir", "log.txt"))
        source.write_bytes(data)
        command = [sys.executable, "-P", "-m", __name__, str(source), str(result)]
        with log.open("wb") as stderr:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, env=toolchain.environment()
            )
        said = log.read_text(encoding="utf-8", errors="replace").replace(str(source), name)
        toolchain.require(toolchain.Done(done.returncode, said), name, folder)
        return result.read_text(encoding="utf-8")


def main(source: str, result: str) -> int:
    """Convert a file; returns the exit status."""
    from iree.compiler import ir

    data = Path(source).read_bytes()
    with ir.Context() as context:
        context.allow_unregistered_dialects = True
        try:
            module = ir.Module.parse(data)
        except ir.MLIRError as problem:
            # The module has no name for MLIR, nor lines: error: "-":0:0: …
            text = str(problem)
            print(f"{source}: error: {text.partition(NAMELESS)[2] or text}", file=sys.stderr)
            return 1
        with open(result, "w", encoding="utf-8") as file:
            file.write(module.operation.get_asm(enable_debug_info=True, use_local_scope=True))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
