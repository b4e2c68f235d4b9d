"""The functions of vmvx an element at a time, in the order of IREE's C code, over one bytearray.

Numbers are those that a kernel of vmvx_kernels passes, without the refs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

F32 = np.float32


def signed(value: int) -> int:
    """A 32-bit pattern as a signed integer."""
    return (value & 0xFFFFFFFF ^ 0x80000000) - 0x80000000


def truncated(left: int, right: int) -> int:
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


# Floats as numpy's f32, integers as unsigned patterns.
FLOATS: dict[str, Callable[..., Any]] = {
    "abs": abs, "ceil": np.ceil, "floor": np.floor, "neg": lambda a: -a,
    "exp": lambda a: F32(np.exp(np.float64(a))), "log": lambda a: F32(np.log(np.float64(a))),
    "rsqrt": lambda a: F32(1) / np.sqrt(a),
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
}  # fmt: skip
INTEGERS: dict[str, Callable[..., int]] = {
    "ctlz": lambda a: 32 - a.bit_length(),
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
    "divs": lambda a, b: truncated(signed(a), signed(b)), "divu": lambda a, b: a // b,
    "shl": lambda a, b: a << b % 32, "shru": lambda a, b: a >> b % 32,
    "shrs": lambda a, b: signed(a) >> b % 32,
}  # fmt: skip


class Memory:
    """Elements of one struct format in bytes."""

    def __init__(self, data: bytearray, code: str) -> None:
        self._data, self._code, self._size = data, "<" + code, struct.calcsize(code)

    def __getitem__(self, index: int) -> Any:
        (value,) = struct.unpack_from(self._code, self._data, index * self._size)
        return value

    def __setitem__(self, index: int, value: Any) -> None:
        struct.pack_into(self._code, self._data, index * self._size, value)


def run(name: str, data: bytes, numbers: Sequence[int]) -> bytes:
    """The data after a call of function ``name``."""
    memory = bytearray(data)
    operation, _, rest = name.partition(".")
    if rest.endswith(("f32", "i32")):
        _elementwise(operation, rest.endswith("f32"), memory, numbers)
    else:
        {"copy": _copy, "fill": _fill, "mmt4d": _mmt4d, "pack": _pack, "unpack": _unpack}[operation](
            memory, numbers, rest
        )
    return bytes(memory)


def _elementwise(operation: str, is_float: bool, data: bytearray, numbers: Sequence[int]) -> None:
    memory = Memory(data, "f" if is_float else "I")
    function = (FLOATS if is_float else INTEGERS)[operation]
    views = [numbers[at : at + 3] for at in range(0, len(numbers) - 2, 3)]
    rows, columns = numbers[-2:]
    with np.errstate(all="ignore"):
        for i in range(rows):
            for j in range(columns):
                *inputs, out = (offset + i * s0 + j * s1 for offset, s0, s1 in views)
                values = [memory[at] for at in inputs]
                if is_float:
                    memory[out] = function(*map(F32, values))
                else:
                    memory[out] = function(*values) & 0xFFFFFFFF


def _copy(data: bytearray, numbers: Sequence[int], kind: str) -> None:
    memory = Memory(data, {"8": "B", "16": "H", "32": "I", "64": "Q"}[kind.rpartition("x")[2]])
    start, s0, s1, out, t0, t1, rows, columns = numbers
    for i in range(rows):
        for j in range(columns):
            memory[out + i * t0 + j * t1] = memory[start + i * s0 + j * s1]


def _fill(data: bytearray, numbers: Sequence[int], kind: str) -> None:
    memory = Memory(data, "i")
    value, out, stride, rows, columns = numbers
    for i in range(rows):
        for j in range(columns):
            memory[out + i * stride + j] = value


def _mmt4d(data: bytearray, numbers: Sequence[int], kind: str) -> None:
    lhs, ls, rhs, rs, out, os, m, n, k, m0, n0, k0, flags = numbers
    is_float = flags & 0xFF == 1
    given, made = Memory(data, "f" if is_float else "b"), Memory(data, "f" if is_float else "i")
    for i in range(m):
        for j in range(n):
            for i0 in range(m0):
                for j0 in range(n0):
                    at = out + i * os + j * m0 * n0 + i0 * n0 + j0
                    total = made[at] if flags & 0x100 else 0
                    for p in range(k * k0):
                        q, q0 = divmod(p, k0)
                        left = given[lhs + i * ls + q * m0 * k0 + i0 * k0 + q0]
                        total += left * given[rhs + j * rs + q * n0 * k0 + j0 * k0 + q0]
                    made[at] = total if is_float else signed(total)


_TILE_TYPES = {1: "I", 2: "B", 3: "I"}


def _places(rows: int, columns: int, sizes: Sequence[int], flags: int) -> Any:
    """(row, column, place in the tiles as four indices) of each element of the tiles."""
    for indices in np.ndindex(*sizes):
        a, b, c, d = indices
        tile0, tile1 = sizes[2:]
        if flags & 0x100:
            c, d, tile0, tile1 = d, c, tile1, tile0
        if flags & 0x200:
            a, b = b, a
        yield a * tile0 + c, b * tile1 + d, indices


def _at(start: int, stride: int, sizes: Sequence[int], indices: Sequence[int]) -> int:
    a, b, c, d = indices
    return start + a * stride + (b * sizes[2] + c) * sizes[3] + d


def _pack(data: bytearray, numbers: Sequence[int], kind: str) -> None:
    start, s0, s1, out, t0, _, rows, columns, *sizes, padding, flags = numbers
    memory = Memory(data, _TILE_TYPES[flags & 0xFF])
    mask = 0xFF if flags & 0xFF == 2 else 0xFFFFFFFF
    for row, column, indices in _places(rows, columns, sizes, flags):
        inside = row < rows and column < columns
        memory[_at(out, t0, sizes, indices)] = (
            memory[start + row * s0 + column * s1] if inside else padding & mask
        )


def _unpack(data: bytearray, numbers: Sequence[int], kind: str) -> None:
    start, s0, _, out, t0, t1, *sizes, rows, columns, flags = numbers
    memory = Memory(data, _TILE_TYPES[flags & 0xFF])
    for row, column, indices in _places(rows, columns, sizes, flags):
        if row < rows and column < columns:
            memory[out + row * t0 + column * t1] = memory[_at(start, s0, sizes, indices)]
