"""The passes by name, and the ones that make a program of a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass, PassPipeline
from xdsl.transforms.canonicalize import CanonicalizePass
from xdsl.transforms.common_subexpression_elimination import CommonSubexpressionElimination
from xdsl.utils.exceptions import ArgSpecParseError, DiagnosticException, PassFailedException, VerifyException

from halgpu import errors
from halgpu.compiler import mlir
from halgpu.compiler.transforms import inline
from halgpu.compiler.transforms.combine_initializers import CombineInitializersPass
from halgpu.compiler.transforms.common_values import CommonValuesPass
from halgpu.compiler.transforms.convert_scf_to_cf import ConvertScfToCfPass
from halgpu.compiler.transforms.convert_to_vm import ConvertToVmPass
from halgpu.compiler.transforms.discard_refs import DiscardRefsPass
from halgpu.compiler.transforms.fold_globals import FoldGlobalsPass
from halgpu.compiler.transforms.inline import InlinePass
from halgpu.compiler.transforms.materialize_executables import MaterializeExecutablesPass
from halgpu.compiler.transforms.registers import AnnotateRegistersPass
from halgpu.compiler.transforms.symbols import SymbolDcePass

PASSES: Final[dict[str, type[ModulePass]]] = {
    found.name: found
    for found in (
        AnnotateRegistersPass,
        CanonicalizePass,
        CombineInitializersPass,
        CommonValuesPass,
        CommonSubexpressionElimination,
        ConvertScfToCfPass,
        ConvertToVmPass,
        DiscardRefsPass,
        FoldGlobalsPass,
        InlinePass,
        MaterializeExecutablesPass,
        SymbolDcePass,
    )
}
"""All passes of ``halgpu opt``."""

FINISH: Final = (
    "materialize-executables,convert-scf-to-cf,inline,symbol-dce,combine-initializers,canonicalize,common-values,fold-globals,"
    "symbol-dce,canonicalize,convert-to-vm,canonicalize,common-values,discard-refs"
)
"""From a module at HAL level to the virtual machine."""

Told = Callable[[str], None]


def run(
    module: ModuleOp, ctx: Context, spec: str, told: Told = lambda name: None, *, verify_each: bool = True
) -> list[str]:
    """Run the passes of a pipeline such as ``"inline,canonicalize"``; ``told`` hears each pass's name.

    The module is verified after each pass, or after the last one only.

    Returns remarks, a line each. Raises InvalidArgument with what a pass finds wrong, and for a pipeline that cannot
    be.
    """
    remarks: list[str] = []
    inline.REMARKS.set(remarks)
    passes = _parse(spec)
    for found in passes:
        told(found.name)
        try:
            found.apply(ctx, module)
        except errors.Error:
            raise
        except (DiagnosticException, PassFailedException, VerifyException, RecursionError) as problem:
            raise errors.InvalidArgument(f"pass {found.name}: {_first_line(problem)}") from problem
        except Exception as problem:
            raise errors.Internal(f"pass {found.name}: {_first_line(problem)}") from problem
        if verify_each or found is passes[-1]:
            mlir.verify(module)
    return remarks


def _first_line(problem: BaseException) -> str:
    return next(iter(str(problem).splitlines()), type(problem).__name__)


def _parse(spec: str) -> list[ModulePass]:
    try:
        return list(
            PassPipeline.parse_spec({name: _getter(cls) for name, cls in PASSES.items()}, spec).passes
        )
    except (ArgSpecParseError, ValueError, TypeError, KeyError) as problem:
        names = [word.partition("{")[0].strip() for word in spec.split(",")]
        unknown = next((name for name in names if name and name not in PASSES), None)
        if unknown is not None:
            names = sorted(PASSES)
            text = (
                f"there is no pass '{unknown}'{errors.nearest(unknown, names)}; there are: {', '.join(names)}"
            )
            raise errors.InvalidArgument(text) from problem
        raise errors.InvalidArgument(
            f"expected passes such as inline,canonicalize, found {spec!r}"
        ) from problem


def _getter(cls: type[ModulePass]) -> Callable[[], type[ModulePass]]:
    return lambda: cls
