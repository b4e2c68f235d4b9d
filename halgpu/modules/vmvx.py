"""The native module ``vmvx``, version 0: arithmetic on strided views of buffers, by numpy.

Functions, calling conventions and checks are those of IREE's runtime/src/iree/modules/vmvx (exports.inl, module.c).
Kernels of ``vmvx-bytecode-fb`` executables import it, and kernels in the program itself (``vmvx-inline``) may.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from halgpu.modules import vmvx_elementwise as elementwise
from halgpu.modules import vmvx_tiles as tiles
from halgpu.modules.vmvx_elementwise import F32, I32, U32, Operation
from halgpu.modules.vmvx_views import View, array
from halgpu.vm.native import NativeModule, export

UNARY: Final = "0rIIIrIIIII_v"
BINARY: Final = "0rIIIrIIIrIIIII_v"

Ref = Any


def _unary(name: str, dtype: np.dtype[Any], operation: Operation) -> Callable[..., None]:
    """Function ``name``, which makes each element of ``out`` from that of ``in``."""

    @export(name, UNARY)
    def call(
        self: Vmvx,
        in_buffer: Ref, in_offset: int, in_stride0: int, in_stride1: int,
        out_buffer: Ref, out_offset: int, out_stride0: int, out_stride1: int,
        size0: int, size1: int,
    ) -> None:  # fmt: skip
        source = View(in_buffer, in_offset, in_stride0, in_stride1, size0, size1)
        target = View(out_buffer, out_offset, out_stride0, out_stride1, size0, size1)
        written = array(target, "out", dtype, write=True)
        elementwise.apply(operation, (array(source, "in", dtype),), written)

    return call


def _binary(name: str, dtype: np.dtype[Any], operation: Operation) -> Callable[..., None]:
    """Function ``name``, which makes each element of ``out`` from those of ``lhs`` and ``rhs``."""

    @export(name, BINARY)
    def call(
        self: Vmvx,
        lhs_buffer: Ref, lhs_offset: int, lhs_stride0: int, lhs_stride1: int,
        rhs_buffer: Ref, rhs_offset: int, rhs_stride0: int, rhs_stride1: int,
        out_buffer: Ref, out_offset: int, out_stride0: int, out_stride1: int,
        size0: int, size1: int,
    ) -> None:  # fmt: skip
        left = View(lhs_buffer, lhs_offset, lhs_stride0, lhs_stride1, size0, size1)
        right = View(rhs_buffer, rhs_offset, rhs_stride0, rhs_stride1, size0, size1)
        target = View(out_buffer, out_offset, out_stride0, out_stride1, size0, size1)
        written = array(target, "out", dtype, write=True)
        elementwise.apply(operation, (array(left, "lhs", dtype), array(right, "rhs", dtype)), written)

    return call


def _copy(name: str, bits: int) -> Callable[..., None]:
    return _unary(name, np.dtype(f"u{bits // 8}"), elementwise.copy)


class Vmvx(NativeModule):
    """``vmvx`` for one context. It has no state."""

    name = "vmvx"
    version = 0

    abs_f32 = _unary("abs.2d.f32", F32, np.absolute)
    ceil_f32 = _unary("ceil.2d.f32", F32, np.ceil)
    ctlz_i32 = _unary("ctlz.2d.i32", U32, elementwise.count_leading_zeros)
    exp_f32 = _unary("exp.2d.f32", F32, elementwise.exponential)
    floor_f32 = _unary("floor.2d.f32", F32, np.floor)
    log_f32 = _unary("log.2d.f32", F32, elementwise.logarithm)
    neg_f32 = _unary("neg.2d.f32", F32, np.negative)
    rsqrt_f32 = _unary("rsqrt.2d.f32", F32, elementwise.reciprocal_root)

    add_f32 = _binary("add.2d.f32", F32, np.add)
    add_i32 = _binary("add.2d.i32", U32, np.add)
    and_i32 = _binary("and.2d.i32", U32, np.bitwise_and)
    div_f32 = _binary("div.2d.f32", F32, np.divide)
    divs_i32 = _binary("divs.2d.i32", I32, elementwise.divide_signed)
    divu_i32 = _binary("divu.2d.i32", U32, elementwise.divide_unsigned)
    mul_f32 = _binary("mul.2d.f32", F32, np.multiply)
    mul_i32 = _binary("mul.2d.i32", U32, np.multiply)
    or_i32 = _binary("or.2d.i32", U32, np.bitwise_or)
    shl_i32 = _binary("shl.2d.i32", U32, elementwise.shift_left)
    shrs_i32 = _binary("shrs.2d.i32", I32, elementwise.shift_right)
    shru_i32 = _binary("shru.2d.i32", U32, elementwise.shift_right)
    sub_f32 = _binary("sub.2d.f32", F32, np.subtract)
    sub_i32 = _binary("sub.2d.i32", U32, np.subtract)
    xor_i32 = _binary("xor.2d.i32", U32, np.bitwise_xor)

    copy_x8 = _copy("copy.2d.x8", 8)
    copy_x16 = _copy("copy.2d.x16", 16)
    copy_x32 = _copy("copy.2d.x32", 32)
    copy_x64 = _copy("copy.2d.x64", 64)

    @export("fill.2d.x32", "0irIIII_v")
    def fill_x32(self, value: int, buffer: Ref, offset: int, stride0: int, size0: int, size1: int) -> None:
        """Set all elements of rows ``stride0`` apart."""
        target = View(buffer, offset, stride0, 1, size0, size1)
        array(target, "out", I32, write=True)[...] = value

    @export("mmt4d", "0rIIrIIrIIIIIiiii_v")
    def mmt4d(
        self,
        lhs: Ref, lhs_offset: int, lhs_stride0: int,
        rhs: Ref, rhs_offset: int, rhs_stride0: int,
        out: Ref, out_offset: int, out_stride0: int,
        m: int, n: int, k: int, m0: int, n0: int, k0: int, flags: int,
    ) -> None:  # fmt: skip
        """Matrix product of tiles; see :func:`halgpu.modules.vmvx_tiles.mmt4d`."""
        tiles.mmt4d(
            (lhs, lhs_offset, lhs_stride0),
            (rhs, rhs_offset, rhs_stride0),
            (out, out_offset, out_stride0),
            (m, n, k),
            (m0, n0, k0),
            flags,
        )

    @export("pack", "0rIIIrIIIIIIIIIIi_v")
    def pack(
        self,
        in_buffer: Ref, in_offset: int, in_stride0: int, in_stride1: int,
        out_buffer: Ref, out_offset: int, out_stride0: int, out_stride1: int,
        in_size0: int, in_size1: int, out_size0: int, out_size1: int, out_size2: int, out_size3: int,
        padding: int, flags: int,
    ) -> None:  # fmt: skip
        """Copy a matrix into tiles. ``out_stride1`` is not looked at: the tiles of a row are contiguous."""
        source = View(in_buffer, in_offset, in_stride0, in_stride1, in_size0, in_size1)
        sizes = out_size0, out_size1, out_size2, out_size3
        tiles.pack(source, (out_buffer, out_offset, out_stride0), sizes, padding, flags)

    @export("unpack", "0rIIIrIIIIIIIIIi_v")
    def unpack(
        self,
        in_buffer: Ref, in_offset: int, in_stride0: int, in_stride1: int,
        out_buffer: Ref, out_offset: int, out_stride0: int, out_stride1: int,
        in_size0: int, in_size1: int, in_size2: int, in_size3: int, out_size0: int, out_size1: int,
        flags: int,
    ) -> None:  # fmt: skip
        """Copy tiles into a matrix. ``in_stride1`` is not looked at: the tiles of a row are contiguous."""
        target = View(out_buffer, out_offset, out_stride0, out_stride1, out_size0, out_size1)
        sizes = in_size0, in_size1, in_size2, in_size3
        tiles.unpack((in_buffer, in_offset, in_stride0), target, sizes, flags)

    @export("query_tile_sizes.2d", "0IIi_II")
    def query_tile_sizes(self, size0: int, size1: int, flags: int) -> tuple[int, int]:
        """Rows and columns of an operand's tiles; the same for all sizes."""
        return tiles.tile_sizes(flags)
