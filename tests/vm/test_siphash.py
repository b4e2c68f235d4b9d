"""SipHash-2-4 against the vectors of its reference implementation (vectors.h of github.com/veorq/SipHash)."""

from __future__ import annotations

import pytest

from halgpu.vm.siphash import siphash24

# Message 00 01 … n-1 under the key 00 01 … 0F, as 64-bit little-endian output.
VECTORS = {
    0: "310e0edd47db6f72", 1: "fd67dc93c539f874", 2: "5a4fa9d909806c0d", 3: "2d7efbd796666785",
    4: "b7877127e09427cf", 5: "8da699cd64557618", 6: "cee3fe586e46c9cb", 7: "37d1018bf50002ab",
    8: "6224939a79f5f593", 15: "e545be4961ca29a1", 63: "724506eb4c328a95",
}  # fmt: skip


@pytest.mark.parametrize("length", VECTORS)
def test_vectors(length: int) -> None:
    assert siphash24(bytes(range(length))) == int.from_bytes(bytes.fromhex(VECTORS[length]), "little")
    assert siphash24(memoryview(bytes(range(length)))) == siphash24(bytes(range(length)))


def test_the_key_matters() -> None:
    assert siphash24(b"x", bytes(16)) != siphash24(b"x")
