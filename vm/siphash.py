"""SipHash-2-4 with 64-bit output, as ``vm.buffer.hash`` computes it.

The algorithm is Aumasson and Bernstein's (https://www.aumasson.jp/siphash/siphash.pdf, section 2); the key is
the paper's test key 00 01 … 0F (runtime/src/iree/vm/buffer.h, ``iree_vm_buffer_hash``).
"""

from __future__ import annotations

import struct

_MASK = 0xFFFF_FFFF_FFFF_FFFF
_KEY = bytes(range(16))


def siphash24(data: memoryview | bytes, key: bytes = _KEY) -> int:
    """Return the hash of ``data`` as an unsigned 64-bit integer; ``key`` has 16 bytes."""
    k0, k1 = struct.unpack("<QQ", key)
    state = (
        k0 ^ 0x736F_6D65_7073_6575,
        k1 ^ 0x646F_7261_6E64_6F6D,
        k0 ^ 0x6C79_6765_6E65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    )
    length = len(data)
    whole = length & ~7
    for (word,) in struct.iter_unpack("<Q", data[:whole]):
        state = _compress(state, word)
    last = int.from_bytes(data[whole:], "little") | (length & 0xFF) << 56
    v0, v1, v2, v3 = _compress(state, last)
    v0, v1, v2, v3 = _rounds((v0, v1, v2 ^ 0xFF, v3), 4)
    return v0 ^ v1 ^ v2 ^ v3


_State = tuple[int, int, int, int]


def _compress(state: _State, word: int) -> _State:
    v0, v1, v2, v3 = state
    v0, v1, v2, v3 = _rounds((v0, v1, v2, v3 ^ word), 2)
    return v0 ^ word, v1, v2, v3


def _rounds(state: _State, count: int) -> _State:
    v0, v1, v2, v3 = state
    for _ in range(count):
        v0 = v0 + v1 & _MASK
        v1 = (v1 << 13 | v1 >> 51) & _MASK ^ v0
        v0 = (v0 << 32 | v0 >> 32) & _MASK
        v2 = v2 + v3 & _MASK
        v3 = (v3 << 16 | v3 >> 48) & _MASK ^ v2
        v0 = v0 + v3 & _MASK
        v3 = (v3 << 21 | v3 >> 43) & _MASK ^ v0
        v2 = v2 + v1 & _MASK
        v1 = (v1 << 17 | v1 >> 47) & _MASK ^ v2
        v2 = (v2 << 32 | v2 >> 32) & _MASK
    return v0, v1, v2, v3
