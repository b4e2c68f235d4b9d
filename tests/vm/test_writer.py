"""Modules are written so that IREE's tools, zip tools and the reader find in them what was there before."""

from __future__ import annotations

import dataclasses
import io
import struct
import subprocess
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halgpu import errors
from halgpu.vm import archive, debug, definition, writer

Compile = Callable[..., bytes]
Write = Callable[..., bytes]


zip_of = zip


def values(thing: Any) -> Any:
    """A definition as plain values, to compare it by."""
    if isinstance(thing, debug.DebugDatabase):
        contents = thing.contents
        return (
            [contents.location(index) for index in range(contents.location_count)],
            [(contents.local_name(i), contents.source_map(i)) for i in range(contents.function_count)],
        )
    if dataclasses.is_dataclass(thing):
        return {field.name: values(getattr(thing, field.name)) for field in dataclasses.fields(thing)}
    return [values(entry) for entry in thing] if isinstance(thing, tuple) else thing


@pytest.mark.parametrize("zip", [True, False])
def test_reads_back_the_same(any_stock: bytes, zip: bool) -> None:
    module = definition.read(any_stock)
    again = definition.read(writer.write(module, zip=zip))
    assert values(again) == values(module)


def test_iree_finds_the_same(
    any_stock: bytes, everything: Callable[[bytes], Any], dump: Callable[..., str]
) -> None:
    module = definition.read(any_stock)
    for data in (writer.write(module), writer.write(module, zip=False)):
        assert everything(data) == everything(any_stock)


def test_every_field(
    write_module: Write, function: Any, structs: Any, scalar: Any, everything: Callable[[bytes], Any]
) -> None:
    locations = [
        {0: "a.mlir", 1: scalar("i", 1), 2: scalar("i", -2)},
        {0: scalar("i", 0), 1: scalar("i", 3)},
        {0: "meta", 1: structs("i", [(0,), (1,)])},
        {0: "näme", 1: scalar("i", 0)},
        {0: "alone"},
    ]
    data = write_module(
        [function(b"\x5a\0\0\0", attrs={"a": "1", "b": ""}), function(b"\x5a\0\0\0", "0i_v", requirements=8)],
        types=["i32", "!vm.list<?>"],
        rodata=[b"", b"\0" * 99],
        external=b"external!",
        global_bytes=24,
        global_refs=3,
        slot1=scalar("I", 2**32 - 1),
        slot2=scalar("I", 15),
        slot3=[{0: "k", 1: "v"}],
        slot5=[{0: "p"}, {0: "q", 1: scalar("I", 2**32 - 1), 2: scalar("I", 2)}],
        slot6=[{0: "p.f"}, {0: "q.g", 1: {0: "0i_v", 1: [{0: "x", 1: "y"}]}, 2: scalar("I", 2)}],
        slot9=[{2: b""}, {3: scalar("Q", 0), 4: scalar("Q", 9)}, {2: b"embedded"}, {}],
        slot10=[{0: scalar("i", 16)}, {}],
        slot15={0: b"\2\1\3\4\4", 1: locations, 2: [{0: "f0", 1: structs("ii", [(1, 4), (0, 2)])}, {}]},
    )
    module = definition.read(data)
    assert module.rodata_external == (False, True, False, True)
    assert [bytes(view) for view in module.rodata] == [b"", b"external!", b"embedded", b""]
    for zip in (True, False):
        again = writer.write(module, zip=zip)
        assert values(definition.read(again)) == values(module)
    found, expected = everything(again), everything(data)
    # A field that is empty may as well be left out.
    for signature in (*found["function_signatures"], *expected["function_signatures"]):
        signature.pop("attrs", None)
    for key in ("name", "version", "requirements", "attrs", "types", "dependencies", "exported_functions",
                "function_descriptors", "module_state", "rwdata_segments", "bytecode_data", "debug_database"):  # fmt: skip
        assert found[key] == expected[key], key


def test_it_is_a_zip_archive(stock_module: Callable[[str], bytes]) -> None:
    module = definition.read(stock_module("network-vulkan"))
    data = writer.write(module)
    with zipfile.ZipFile(io.BytesIO(data)) as found:
        assert found.testzip() is None
        names = [f"rodata_{n}.bin" for n, external in enumerate(module.rodata_external) if external]
        assert found.namelist() == ["module.fb", *names]
        assert len(names) == 3
        assert found.read("rodata_1.bin") == module.rodata[1]
        # A member is a program by itself as far as it goes: the FlatBuffer behind its length.
        assert archive.parse(found.read("module.fb")).flatbuffer == archive.parse(data).flatbuffer
    assert data == writer.write(module), "the same bytes each time"


@pytest.mark.parametrize("zip", [True, False])
def test_alignment(zip: bool, write_module: Write) -> None:
    segments = [b"segment 0", b"segment 1" * 33, b"segment 2" * 7, b"segment 3", b"segment 4"]
    external = (True, True, False, True, False)
    module = dataclasses.replace(definition.read(write_module(rodata=segments)), rodata_external=external)
    data = writer.write(module, zip=zip)
    again = definition.read(data)
    assert list(again.rodata) == segments
    assert [data.index(segment) % (64 if apart else 16) for segment, apart in zip_of(segments, external)] == [
        0
    ] * 5
    flatbuffer = archive.parse(data).flatbuffer
    assert [segment in bytes(flatbuffer) for segment in segments] == [not apart for apart in external]


def test_iree_runs_it(
    compile_mlir: Compile,
    examples: Path,
    iree_tool: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
) -> None:
    source = (examples / "counter.mlir").read_text()
    data = compile_mlir(source, "llvm-cpu", name="counter.mlir")
    printed = []
    for content in (
        data,
        writer.write(definition.read(data)),
        writer.write(definition.read(data), zip=False),
    ):
        (tmp_path / "m.vmfb").write_bytes(content)
        options = (f"--module={tmp_path}/m.vmfb", "--function=add", "--input=4xf32=1 -2.5 3 4e30")
        printed.append(iree_tool("iree-run-module", "--device=local-sync", *options).stdout)
    assert "4xf32=1 -2.5 3 4" in printed[0]
    assert printed[1:] == printed[:1] * 2


def test_external_rodata_is_not_copied(write_module: Write, tmp_path: Path) -> None:
    size = 30_000_000
    module = definition.read(write_module(rodata=[bytes(size)]))
    module = dataclasses.replace(module, rodata_external=(True,))
    with open(tmp_path / "m.vmfb", "wb") as file:
        tracemalloc.start()
        writer.write_to(module, file)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (tmp_path / "m.vmfb").stat().st_size > size
    assert peak < size // 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2**32}, "a number that its field cannot hold"),
        ({"global_bytes": 2**31}, "a number that its field cannot hold"),
        ({"rwdata": (-(2**31) - 1,)}, "a number that its field cannot hold"),
    ],
)
def test_numbers_that_do_not_fit(change: dict[str, Any], message: str, write_module: Write) -> None:
    module = dataclasses.replace(definition.read(write_module()), **change)
    with pytest.raises(errors.OutOfRange, match=message):
        writer.write(module)


def test_more_than_a_flatbuffer_can_hold(write_module: Write, tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb+") as file:
        file.truncate(2**31)
        data = archive.map_file(tmp_path / "sparse")
    module = dataclasses.replace(
        definition.read(write_module()), rodata=(memoryview(data),), rodata_external=(False,)
    )
    with pytest.raises(errors.OutOfRange, match="make large segments external"):
        writer.write(module)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFound, match="no such file"):
        archive.map_file(tmp_path / "none")
    with pytest.raises(errors.InvalidArgument, match="cannot read"):
        archive.map_file(tmp_path)
    (tmp_path / "empty").write_bytes(b"")
    assert archive.map_file(tmp_path / "empty") == b""
    (tmp_path / "some").write_bytes(struct.pack("<I", 7))
    assert bytes(archive.map_file(str(tmp_path / "some"))) == b"\x07\0\0\0"
