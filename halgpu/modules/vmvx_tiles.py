"""The tiled operations of ``vmvx``: ``mmt4d``, ``pack``, ``unpack`` and the tile sizes they are made for.

Flags, layouts and limits are those of IREE's runtime/src/iree/builtins/ukernel (exported_bits.h, mmt4d.c, pack.c,
unpack.c, query_tile_sizes.c) as its vmvx module calls them. What its release build leaves unchecked and would leave
the buffers, a check of its debug build refuses; here it raises InvalidArgument.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from halgpu import errors
from halgpu.modules.vmvx_views import Array, View, array, check, disjoint

TYPE_MASK: Final = 0xFF
MMT4D_TYPES: Final = {1: ("f4", "f4"), 2: ("i1", "i4")}
"""Element types of the operands and of the result, by the type in the flags."""
MMT4D_ACCUMULATE: Final = 0x100
PACK_TYPES: Final = {1: "f4", 2: "i1", 3: "i4"}
UNPACK_TYPES: Final = {1: "f4", 3: "i4"}
TRANSPOSE_INNER: Final = 0x100
TRANSPOSE_OUTER: Final = 0x200
MATMULS: Final = range(0x0100, 0x0700, 0x0100)
"""Operations that tile sizes may be asked for; by element types."""
TILE_SIZES: Final = {1: (8, 4), 2: (8, 4), 3: (8, 8)}
"""Of left side, right side and result, by role: IREE's choice where it knows nothing of the CPU."""


def _type_of(flags: int, types: dict[int, Any], what: str) -> Any:
    found = types.get(flags & TYPE_MASK)
    if found is None:
        known = ", ".join(map(str, types))
        raise errors.InvalidArgument(
            f"{what}: expected a type of {known} in the flags, found {flags & TYPE_MASK}"
        )
    return found


def _checked(view: View, what: str, dtype: str, write: bool = False) -> tuple[View, str, np.dtype[Any]]:
    kind = np.dtype(dtype)
    check(view, what, kind, write)
    return view, what, kind


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise errors.InvalidArgument(message)


def mmt4d(
    lhs: tuple[Any, int, int], rhs: tuple[Any, int, int], out: tuple[Any, int, int],
    outer: tuple[int, int, int], inner: tuple[int, int, int], flags: int,
) -> None:  # fmt: skip
    """``out[m, n, m0, n0]`` = (with ACCUMULATE: +=) the sum over k, k0 of ``lhs[m, k, m0, k0] * rhs[n, k, n0, k0]``.

    Operands are (buffer, offset, stride of the first axis), the other axes contiguous; ``outer`` is m, n, k and
    ``inner`` m0, n0, k0. f32 sums are rounded in the order that numpy's matrix product chooses; i32 sums wrap.
    """
    (m, n, k), (m0, n0, k0) = outer, inner
    operand, result = _type_of(flags, MMT4D_TYPES, "mmt4d")
    _require(
        all(0 <= size < 1 << 31 for size in outer) and all(0 <= size < 1 << 15 for size in inner),
        f"mmt4d: expected outer sizes below 2**31 and tile sizes below 2**15, none negative, found {outer} and {inner}",
    )
    left = _checked(View(*lhs, 1, m, k * m0 * k0), "lhs", operand)
    right = _checked(View(*rhs, 1, n, k * n0 * k0), "rhs", operand)
    target = _checked(View(*out, 1, m, n * m0 * n0), "out", result, write=True)
    if not m * n * m0 * n0 or (flags & MMT4D_ACCUMULATE and not k * k0):
        return
    written = array(*target, write=True)
    rows = array(*left).reshape(m, k, m0, k0)
    columns = array(*right).reshape(n, k, n0, k0).transpose(1, 3, 0, 2).reshape(k * k0, n * n0)
    # Rows of the result that overlap are written one after the other.
    step = m if disjoint(written.shape, written.strides) else 1
    for at in range(0, m, step):
        part = rows[at : at + step].transpose(0, 2, 1, 3).reshape(step * m0, k * k0)
        tiles = _product(part, columns).reshape(step, m0, n, n0).transpose(0, 2, 1, 3)
        found = written[at : at + step].reshape(step, n, m0, n0)
        with np.errstate(all="ignore"):
            written[at : at + step] = (found + tiles if flags & MMT4D_ACCUMULATE else tiles).reshape(step, -1)


def _product(left: Array, right: Array) -> Array:
    """Matrix product of f32, or of i8 as i32 with wrapping sums."""
    if left.dtype == np.float32:
        with np.errstate(all="ignore"):
            product: Array = left @ right
            return product
    # Floats have a fast product. Sums of 2**14 at most are exact in f32 up to 2**24, in f64 always.
    exact = np.float32 if left.shape[1] <= 1 << 10 else np.float64
    sums: Array = left.astype(exact) @ right.astype(exact)
    return sums.astype(np.int64).astype(np.int32)


def _tile_axes(
    sizes: tuple[int, int, int, int], flags: int
) -> tuple[tuple[int, int, int, int], tuple[int, ...]]:
    """Sizes (outer0, outer1, tile0, tile1) by the axes of the untiled matrix, and where these axes lie in the tiles."""
    axes = [0, 1, 2, 3]
    if flags & TRANSPOSE_OUTER:
        axes[0], axes[1] = 1, 0
    if flags & TRANSPOSE_INNER:
        axes[2], axes[3] = 3, 2
    outer0, outer1, tile0, tile1 = (sizes[axis] for axis in axes)
    return (outer0, outer1, tile0, tile1), tuple(axes)


def _check_tiles(what: str, sizes: tuple[int, int, int, int], matrix: tuple[int, int]) -> None:
    outer0, outer1, tile0, tile1 = sizes
    _require(
        outer0 * tile0 >= matrix[0] and outer1 * tile1 >= matrix[1],
        f"{what}: expected tiles that cover {matrix[0]} x {matrix[1]} elements, "
        f"found {outer0} x {outer1} tiles of {tile0} x {tile1}",
    )


def _tiles_view(
    tiles: tuple[Any, int, int], sizes: tuple[int, int, int, int], what: str, dtype: str, write: bool = False
) -> tuple[View, str, np.dtype[Any]]:
    # 64-bit products of sizes do not overflow in Python, so that the view's own check sees what is too large.
    _require(min(sizes) >= 0, f"{what}: expected sizes from 0, found {sizes}")
    return _checked(View(*tiles, 1, sizes[0], sizes[1] * sizes[2] * sizes[3]), what, dtype, write)


def pack(
    source: View, tiles: tuple[Any, int, int], sizes: tuple[int, int, int, int], padding: int, flags: int
) -> None:
    """Copy a matrix into tiles; ``padding`` (its low bits) fills what tiles have beyond the matrix.

    ``tiles`` is (buffer, offset, stride of the first axis), ``sizes`` those of its four axes: tiles down and across,
    then a tile's; with TRANSPOSE_OUTER the first two are swapped, with TRANSPOSE_INNER the last two.
    """
    dtype = _type_of(flags, PACK_TYPES, "pack")
    given = _checked(source, "in", dtype)
    target = _tiles_view(tiles, sizes, "out", dtype, write=True)
    if 0 in sizes:
        return
    (outer0, outer1, tile0, tile1), axes = _tile_axes(sizes, flags)
    _check_tiles("pack", (outer0, outer1, tile0, tile1), (source.size0, source.size1))
    written, matrix = array(*target, write=True), array(*given)
    bits = np.dtype(f"u{matrix.itemsize}")
    padded = np.full((outer0 * tile0, outer1 * tile1), padding & (1 << 8 * matrix.itemsize) - 1, bits)
    padded[: source.size0, : source.size1] = matrix.view(bits) if matrix.size else 0
    tiled = padded.reshape(outer0, tile0, outer1, tile1).transpose(0, 2, 1, 3)
    for row, values in zip(written.view(bits), tiled.transpose(axes).reshape(sizes[0], -1), strict=True):
        row[:] = values


def unpack(tiles: tuple[Any, int, int], target: View, sizes: tuple[int, int, int, int], flags: int) -> None:
    """Copy tiles into a matrix, leaving out what they have beyond it; the reverse of :func:`pack`."""
    dtype = _type_of(flags, UNPACK_TYPES, "unpack")
    given = _tiles_view(tiles, sizes, "in", dtype)
    wanted = _checked(target, "out", dtype, write=True)
    if not target.size0 or not target.size1:
        return
    (outer0, outer1, tile0, tile1), axes = _tile_axes(sizes, flags)
    _check_tiles("unpack", (outer0, outer1, tile0, tile1), (target.size0, target.size1))
    written = array(*wanted, write=True)
    # A swap of axes undoes itself.
    tiled = array(*given).reshape(sizes).transpose(axes)
    matrix = tiled.transpose(0, 2, 1, 3).reshape(outer0 * tile0, outer1 * tile1)
    written[...] = matrix[: target.size0, : target.size1]


def tile_sizes(flags: int) -> tuple[int, int]:
    """Rows and columns of the tiles that an operand of a matrix product is to be packed in."""
    role = TILE_SIZES.get(flags & 0xFF)
    if role is None or flags & 0xFF00 not in MATMULS:
        raise errors.InvalidArgument(
            f"query_tile_sizes: expected an operation from 1 to 6 and a role from 1 to 3 in the flags, "
            f"found {flags & 0xFFFFFFFF:#x}"
        )
    return role
