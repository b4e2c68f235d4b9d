"""The listing is that of iree-dump-module, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from halgpu import errors
from halgpu.vm import definition, listing, writer

Write = Callable[..., bytes]
Dump = Callable[..., str]


def test_same_text_as_iree(any_stock: bytes, dump: Dump) -> None:
    assert listing.listing(any_stock) == dump(any_stock, "--output=metadata")


def test_same_text_of_what_was_written(stock_module: Callable[[str], bytes], dump: Dump) -> None:
    for name in ("network-vulkan", "calls", "all_ops"):
        data = writer.write(definition.read(stock_module(name)), zip=False)
        assert listing.listing(data) == dump(data, "--output=metadata")


def test_every_section(write_module: Write, function: Any, scalar: Any, structs: Any, dump: Dump) -> None:
    code = b"\x5a\0\0\0"
    data = write_module(
        [
            function(code, attrs={"a": "1", "b": ""}, requirements=1),
            function(code, "0iIfFr_rFfIi", requirements=15, i32=20, refs=11, blocks=1),
            function(code, ""),
        ],
        types=["i32", "!vm.list<?>"],
        external=b"external!" * 20,
        global_bytes=24,
        global_refs=3,
        slot1=scalar("I", 2**32 - 1),
        slot2=scalar("I", 15),
        slot3=[{0: "k", 1: "v"}],
        slot5=[{0: "p"}, {0: "q", 1: scalar("I", 2**31), 2: scalar("I", 2)}],
        slot6=[
            {0: "p.f", 1: {}},
            {0: "q.g", 1: {0: "0iCrIDCiD_v", 1: [{0: "x", 1: "y"}]}, 2: scalar("I", 2)},
            {0: "q.h", 1: {0: "0v_v"}},
        ],
        slot7=[{0: "f", 1: scalar("i", 1)}, {0: "g"}, {0: "h", 1: scalar("i", 1)}],
        slot9=[
            {2: b""},
            {3: scalar("Q", 64), 4: scalar("Q", 100)},
            {2: b"text"},
            {2: b"text\0more"},
            {2: b"t" * 31},
            {2: b"t" * 32},
            {2: b"t" * 40 + b"\0"},
            {2: b"caf\xc3\xa9"},
            {2: b"\0"},
        ],
        slot10=[{0: scalar("i", 16)}, {}],
        slot15={0: b"\2", 1: [{0: "a.mlir"}]},
    )
    text = listing.listing(data)
    assert text == dump(data, "--output=metadata")
    assert "?q.g(i32, tuple<!vm.ref<?>, i64>..., tuple<i32>...) -> ()" in text
    assert "Requirements: EXT_F32 | EXT_F64 | 0000000C" in text


@pytest.mark.parametrize("present", [(), (12,), (4, 9), (6, 7, 8)])
def test_sections_that_are_empty_and_those_that_are_not_there(
    present: tuple[int, ...], write_module: Write, dump: Dump
) -> None:
    absent = {f"slot{slot}": None for slot in (4, 6, 7, 8, 9, 11, 12, 14) if slot not in present}
    data = write_module(**absent)
    assert listing.listing(data) == dump(data, "--output=metadata")


@pytest.mark.parametrize("cconv", ["1v_v", "0x_v", "0Ci_v", "0i_D"])
def test_a_calling_convention_that_is_none(cconv: str, write_module: Write) -> None:
    with pytest.raises(errors.InvalidArgument, match=f"calling convention '{cconv}'"):
        listing.listing(write_module(imports=[("a.b", cconv)]))
