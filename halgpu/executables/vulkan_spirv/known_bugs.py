"""Kernels that the stock compiler gets wrong in a way that can be told: they are refused, not run."""

from __future__ import annotations

import re
from typing import Final

from halgpu import errors

from . import spirv_types as ty
from .module import Module
from .spirv_table import Storage

_HALF: Final = re.compile(r"(?:_|x)f16(?:_|x|$)")


def check(module: Module, kernel: str) -> None:
    """Raise Incompatible if ``kernel`` is known to be wrong.

    iree-compile 3.13.0, for Vulkan targets without 16-bit floats (its default one), computes with 32-bit floats
    and by mistake also lays buffers of 16-bit floats out as 32-bit ones: kernels read and write past the ends.
    Kernels are named after the types they work on, which is the only trace of it in the SPIR-V.
    """
    types = set(module.types.values())
    if not _HALF.search(kernel) or types & {ty.FLOATS[16], ty.INTS[16]}:
        return
    if any(_holds_floats(v.type) for v in module.variables.values() if v.storage == Storage.STORAGE_BUFFER):
        raise errors.Incompatible(
            f"kernel {kernel!r} works on f16 but lays its buffers out as f32 (an error of iree-compile for Vulkan "
            "targets without 16-bit floats, its default): compile with --iree-vulkan-target= of a GPU that has "
            "them, such as --iree-vulkan-target=ampere"
        )


def _holds_floats(type_: ty.Type) -> bool:
    """Whether a buffer's block is an array of 32-bit floats, or vectors of them."""
    while isinstance(type_, (ty.Struct, ty.Array, ty.RuntimeArray)):
        if not isinstance(type_, ty.Struct):
            type_ = type_.element
        elif type_.members:
            type_ = type_.members[-1]
        else:
            return False
    return ty.element_of(type_) is ty.FLOATS[32]
