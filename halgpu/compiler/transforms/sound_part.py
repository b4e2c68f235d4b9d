"""What passes find wrong with the sound part of a module that is not sound, so that one run tells that too."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from halgpu import errors
from halgpu.compiler import mlir
from halgpu.compiler.dialects import util
from halgpu.compiler.kernels import embed
from halgpu.compiler.transforms import pipeline
from halgpu.compiler.transforms.symbols import references, symbol


def check_rest(read: mlir.Read, ctx: Context, kernels: Sequence[str]) -> None:
    """Add to a text's diagnostics what finishing the rest of its module finds; the module is of no use then.

    ``kernels`` are as for ``finish``.
    """
    module = read.module
    if module is None or module in read.diagnostics.faulty:
        return
    _remove_unsound(module, read)
    try:
        if kernels:
            embed(module, kernels)
        pipeline.run(module, ctx, pipeline.FINISH, verify_each=False)
    except errors.InvalidArgument as problem:
        for line in str(problem).splitlines():
            read.diagnostics.add(line)
    except errors.Internal:
        pass  # perhaps for what is missing


def _remove_unsound(module: ModuleOp, read: mlir.Read) -> None:
    """Remove what is wrong and what refers to it.

    All initializers go where one does: what one of them may read depends on what others store.
    """
    lost = set(read.lost)
    going = mlir.outermost(read.diagnostics.faulty, module)
    initializer_lost = read.initializer_lost
    while going:
        for op in going:
            name = symbol(op)
            lost.update(() if name is None else (name,))
            initializer_lost |= isinstance(op, util.InitializerOp)
            mlir.erase(op, used=True)
        going = {
            op
            for op in module.body.block.ops
            if not lost.isdisjoint(references(op))
            or (initializer_lost and isinstance(op, util.InitializerOp))
        }
