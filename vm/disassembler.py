"""Prints a module as text (VMASM): what ``iree-dump-module --output=disassembly`` prints, or all there is.

IREE's text says what the functions do, the imports, types and read-only data. The rest, and what it has wrong, is
in the *lossless* text, from which :func:`halgpu.vm.assembler.assemble` makes the same module again. That is in
comments, so iree-as-module reads it too.
"""

from __future__ import annotations

from halgpu import errors
from halgpu.vm.definition import FunctionDef, ModuleDef
from halgpu.vm.verifier import verify
from halgpu.vm.vmasm_lossless import LosslessPrinter
from halgpu.vm.vmasm_printer import ModulePrinter


def disassemble(
    module: ModuleDef, function: str | int | None = None, *, offsets: bool = False, lossless: bool = False
) -> str:
    """The text of ``module``, of one function of it when ``function`` gives a name or an ordinal.

    With ``offsets`` each line starts with its bytecode offset. Without ``lossless`` the text is that of IREE's
    tool, which takes names of functions from the debug database by ordinal: in modules of iree-compile 3.13.0
    two functions can have one name, and a callee a wrong one. With it, each name is its own function's.

    Raises NotFound for a function that does not exist, and what :func:`halgpu.vm.verifier.verify` raises.
    """
    functions = verify(module)
    printer = LosslessPrinter(module, functions) if lossless else ModulePrinter(module, functions)
    chosen = [f for f in functions if _matches(function, f.definition, printer.names)]
    if function is not None and not chosen:
        names = ", ".join(printer.names)
        raise errors.NotFound(f"no function {function!r} in @{module.name}; there are {names}")
    lines = list(printer.header())
    if len(lines) > 1:
        lines.append("")
    for verified in chosen:
        if lines[-1]:
            lines.append("")
        lines += printer.function(verified, offsets)
    lines += printer.footer()
    return "\n".join(lines) + "\n"


def _matches(wanted: str | int | None, function: FunctionDef, names: list[str]) -> bool:
    return wanted is None or wanted in (function.ordinal, str(function.ordinal), names[function.ordinal])
