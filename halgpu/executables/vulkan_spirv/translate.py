"""SPIR-V kernels of an executable -> one OpenCL C program."""

from __future__ import annotations

from itertools import chain

from halgpu import errors
from halgpu.devices.base import Program

from . import (
    known_bugs,
    op_arithmetic,
    op_bits,
    op_composite,
    op_convert,
    op_cooperative,
    op_dot,
    op_glsl,
    op_logic,
    op_memory,
    op_subgroup,
    op_sync,
)
from .emitter import HANDLERS, Emitter
from .executable_def import ExecutableDef, PipelineDef
from .kernel import Kernel
from .module import EntryPoint, Module
from .opcodes import Op
from .parser import parse
from .source import Source
from .target import Target

for _table in (
    op_memory,
    op_arithmetic,
    op_logic,
    op_bits,
    op_convert,
    op_composite,
    op_glsl,
    op_sync,
    op_dot,
    op_subgroup,
    op_cooperative,
):
    HANDLERS.update(_table.TABLE)
HANDLERS[Op.FunctionCall] = Emitter.call


def translate(
    executable: ExecutableDef,
    target: Target,
    constants: tuple[int, ...] = (),
    what: str = "vulkan executable",
) -> Program:
    """Translate every kernel of ``executable``, in order.

    ``constants`` are the values of specialization constants 0, 1, …. The layouts are in the order of the
    kernels' ordinals; their names are those in the source.

    Raises InvalidArgument for malformed SPIR-V, Unimplemented naming the instruction, capability or type that has
    no translation, and Incompatible for 64-bit floats where the device has none.
    """
    source = Source(what, half=target.half, double=target.double, checked=target.checked, cpu=target.cpu)
    modules: dict[int, Module] = {}
    texts, layouts = [], []
    for pipeline in executable.pipelines:
        if pipeline.module not in modules:
            name = f"{what}: SPIR-V module {pipeline.module} of kernel {pipeline.name}"
            modules[pipeline.module] = parse(executable.modules[pipeline.module], name, constants)
        module = modules[pipeline.module]
        known_bugs.check(module, pipeline.name)
        kernel = Kernel(source, module, _entry(module, pipeline), pipeline)
        Emitter(kernel, kernel.function, kernel.scope).emit()
        if "cl_khr_fp64" in source.extensions and not target.double:
            raise errors.Incompatible(
                f"{kernel.what}: it computes with 64-bit floats (f64), which {target.device} does not: compile with "
                "--iree-input-demote-f64-to-f32, or use another device"
            )
        texts.append(kernel.text())
        layouts.append(kernel.layout())
    return Program(
        language="opencl-c",
        source=source.text(texts),
        layouts=tuple(layouts),
        options=("-cl-fp32-correctly-rounded-divide-sqrt",) if target.exact_division else (),
        extensions=tuple(source.extensions),
        names=source.names.given,
    )


def _entry(module: Module, pipeline: PipelineDef) -> EntryPoint:
    for entry in module.entry_points:
        if entry.name == pipeline.name:
            return entry
    names = ", ".join(sorted(entry.name for entry in module.entry_points))
    raise errors.InvalidArgument(f"{module.what}: no entry point {pipeline.name!r}; there are: {names}")


def supported_instructions() -> frozenset[int]:
    """Opcodes that have a translation inside of functions."""
    control = (Op.Phi, Op.LoopMerge, Op.SelectionMerge, Op.Label, Op.Branch, Op.BranchConditional, Op.Switch,
               Op.Return, Op.ReturnValue, Op.Unreachable, Op.Variable, Op.Undef)  # fmt: skip
    return frozenset(chain(HANDLERS, control))
