"""Module definitions: what iree-dump-module says of the same file, and every field that can be wrong."""

from __future__ import annotations

import json
import mmap
import subprocess
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halgpu import errors
from halgpu.vm import definition

Compile = Callable[..., bytes]
Tool = Callable[..., subprocess.CompletedProcess[str]]
Write = Callable[..., bytes]
PROGRAMS = Path(__file__).parent / "programs"


# Against iree-dump-module.


def features(value: str | int) -> int:
    """The bits of a flatcc JSON enum: names in a string, or a number."""
    names = {"EXT_F32": 1, "EXT_F64": 2, "YIELD": 4, "UNWIND": 8}
    return value if isinstance(value, int) else sum(names[name] for name in value.split())


def attrs(tables: list[dict[str, str]]) -> dict[str, str]:
    return {entry["key"]: entry.get("value", "") for entry in tables}


def as_json(module: definition.ModuleDef) -> dict[str, Any]:
    """What `expected` takes from flatcc's JSON, from ours."""
    return {
        "name": module.name,
        "version": module.version,
        "requirements": int(module.requirements),
        "attrs": module.attrs,
        "types": list(module.types),
        "dependencies": [(d.name, d.minimum_version, d.optional) for d in module.dependencies],
        "imports": [(i.full_name, i.cconv, dict(i.attrs), i.optional) for i in module.imports],
        "exports": [(e.local_name, e.ordinal) for e in module.exports],
        "signatures": [(s.cconv, s.attrs) for s in module.signatures],
        "rodata": [
            len(data) if external else list(data)
            for data, external in zip(module.rodata, module.rodata_external, strict=True)
        ],
        "rwdata": list(module.rwdata),
        "globals": (module.global_bytes, module.global_refs),
        "functions": [
            (f.offset, f.length, int(f.requirements), f.block_count, f.i32_registers, f.ref_registers)
            for f in module.functions
        ],
        "bytecode": list(module.bytecode),
        "bytecode_version": module.bytecode_version,
    }


def expected(dump: dict[str, Any]) -> dict[str, Any]:
    state = dump.get("module_state", {})
    version = dump["bytecode_version"]
    return {
        "name": dump["name"],
        "version": dump.get("version", 0),
        "requirements": features(dump.get("requirements", 0)),
        "attrs": attrs(dump.get("attrs", [])),
        "types": [entry["full_name"] for entry in dump.get("types", [])],
        "dependencies": [
            (d["name"], d.get("minimum_version", 0), "OPTIONAL" in str(d.get("flags", "")))
            for d in dump.get("dependencies", [])
        ],
        "imports": [
            (
                i["full_name"],
                i["signature"]["calling_convention"],
                attrs(i["signature"].get("attrs", [])),
                "OPTIONAL" in str(i.get("flags", "")),
            )
            for i in dump.get("imported_functions", [])
        ],
        "exports": [
            (e["local_name"], e.get("internal_ordinal", 0)) for e in dump.get("exported_functions", [])
        ],
        "signatures": [
            (s.get("calling_convention", ""), attrs(s.get("attrs", [])))
            for s in dump.get("function_signatures", [])
        ],
        "rodata": [
            segment.get("embedded_data", segment.get("external_data_length"))
            for segment in dump.get("rodata_segments", [])
        ],
        "rwdata": [segment.get("byte_size", 0) for segment in dump.get("rwdata_segments", [])],
        "globals": (state.get("global_bytes_capacity", 0), state.get("global_ref_count", 0)),
        "functions": [
            (
                f["bytecode_offset"],
                f["bytecode_length"],
                features(f["requirements"]),
                f["block_count"],
                f["i32_register_count"],
                f["ref_register_count"],
            )
            for f in dump["function_descriptors"]
        ],
        "bytecode": dump["bytecode_data"],
        "bytecode_version": (version >> 16, version & 0xFFFF),
    }


def dumped(data: bytes, iree_tool: Tool, folder: Path) -> dict[str, Any]:
    (folder / "m.vmfb").write_bytes(data)
    text = iree_tool("iree-dump-module", "--output=flatbuffer-json", str(folder / "m.vmfb")).stdout
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.mark.parametrize(
    ("program", "target"),
    [
        ("abs", "vulkan"),
        ("counter", "vulkan"),
        ("network", "vulkan"),
        ("counter", "llvm-cpu"),
        ("abs", "vmvx"),
    ],
)
def test_stock_modules(
    program: str, target: str, compile_mlir: Compile, iree_tool: Tool, examples: Path, tmp_path: Path
) -> None:
    data = compile_mlir((examples / f"{program}.mlir").read_text(), target)
    assert as_json(definition.read(data)) == expected(dumped(data, iree_tool, tmp_path))


def test_assembled_module(iree_tool: Tool, tmp_path: Path) -> None:
    iree_tool("iree-as-module", f"--output={tmp_path}/a.vmfb", str(PROGRAMS / "all_ops.vmasm"))
    data = (tmp_path / "a.vmfb").read_bytes()
    module = definition.read(data)
    assert as_json(module) == expected(dumped(data, iree_tool, tmp_path))
    assert [i.optional for i in module.imports] == [False, True, False]
    assert module.version == 3
    assert [f.name for f in module.functions] == ["straight", "control", None]


def test_external_rodata_are_the_bytes_that_iree_prints(
    compile_mlir: Compile, iree_tool: Tool, examples: Path, tmp_path: Path
) -> None:
    data = compile_mlir((examples / "network.mlir").read_text())
    (tmp_path / "m.vmfb").write_bytes(data)
    text = iree_tool("iree-dump-module", "--output=disassembly", str(tmp_path / "m.vmfb")).stdout
    lines = [line.split(" = ")[1] for line in text.splitlines() if line.startswith("vm.rodata[")]
    module = definition.read(data)
    assert [view.hex().upper() for view in module.rodata] == lines
    assert any(module.rodata_external)


def test_every_kind_of_buffer(compile_mlir: Compile, examples: Path, tmp_path: Path) -> None:
    data = compile_mlir((examples / "counter.mlir").read_text())
    plain = as_json(definition.read(data))
    assert as_json(definition.read(memoryview(b"x" + data)[1:])) == plain
    assert as_json(definition.read(bytearray(data))) == plain
    (tmp_path / "m.vmfb").write_bytes(data)
    with open(tmp_path / "m.vmfb", "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    (tmp_path / "m.vmfb").unlink()
    assert as_json(definition.read(mapped)) == plain


def test_ten_megabytes_of_rodata_are_not_copied(write_module: Write, scalar: Any) -> None:
    size = 10 << 20
    data = write_module(
        slot9=[{3: scalar("Q", 0), 4: scalar("Q", size)}, {2: bytes(size)}], external=bytes(size)
    )
    tracemalloc.start()
    module = definition.read(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [len(view) for view in module.rodata] == [size, size]
    assert module.rodata_external == (True, False)
    assert peak < 200_000


# The debug database.


def test_locations(compile_mlir: Compile, iree_tool: Tool, examples: Path, tmp_path: Path) -> None:
    data = compile_mlir((examples / "counter.mlir").read_text(), name="counter.mlir")
    module = definition.read(data)
    database = dumped(data, iree_tool, tmp_path)["debug_database"]
    table = list(zip(database["location_table_type"], database["location_table"], strict=True))

    def text(index: int) -> str | None:
        kind, entry = table[index]
        if kind == "FileLineColLocDef":
            return f"{entry['filename']}:{entry['line']}:{entry['column']}"
        if kind == "CallSiteLocDef":
            return f"{text(entry['callee'])} at {text(entry['caller'])}"
        return None

    assert module.debug is not None
    ordinals = {export.local_name: export.ordinal for export in module.exports}
    found = 0
    for function in database["functions"]:
        ordinal = ordinals[function["local_name"]]
        for entry in function["locations"]:
            location = module.debug.location(ordinal, entry["bytecode_offset"])
            assert location == text(entry.get("location", 0))
            found += location is not None
    assert found > 5
    assert module.debug.location(99, 0) is None
    assert module.debug.location(-1, 0) is None


def test_names_of_functions(compile_mlir: Compile, examples: Path) -> None:
    # The stock debug database has one entry, that of the last function; names must not be mixed up by it.
    module = definition.read(compile_mlir((examples / "abs.mlir").read_text()))
    assert [f.name for f in module.functions] == ["abs", "__init"]


def database(
    structs: Any, scalar: Any, functions: list[Any], locations: list[tuple[int, dict[int, Any]]]
) -> Any:
    types = bytes(kind for kind, _ in locations)
    return {0: types, 1: [entry for _, entry in locations], 2: functions}


def test_every_kind_of_location(write_module: Write, function: Any, structs: Any, scalar: Any) -> None:
    def i32(value: int) -> Any:
        return scalar("i", value)

    locations = [
        (2, {0: "a.mlir", 1: i32(1), 2: i32(2)}),
        (2, {0: "b.mlir", 1: i32(3), 2: i32(4)}),
        (1, {0: i32(0), 1: i32(1)}),
        (3, {1: structs("i", [(0,), (1,), (0,)])}),
        (3, {1: structs("i", [(0,)])}),
        (4, {0: "name", 1: i32(2)}),
        (4, {0: "alone"}),
        (9, {}),
    ]
    entries = [(10 * i, i) for i in range(len(locations))] + [(1000, -1), (1010, 1 << 30)]
    maps = [{0: "original", 1: structs("ii", list(reversed(entries)))}]
    debug = database(structs, scalar, maps, locations)
    module = definition.read(write_module([function(b"\x5a\0\0\0")], slot15=debug))
    assert module.functions[0].name == "original"
    assert module.debug is not None
    assert module.debug.location_count == len(locations)
    assert [module.debug.location(0, 10 * i + 5) for i in range(len(locations))] == [
        "a.mlir:1:2",
        "b.mlir:3:4",
        "a.mlir:1:2 at b.mlir:3:4",
        "[a.mlir:1:2, b.mlir:3:4]",
        "a.mlir:1:2",
        '"name"(a.mlir:1:2 at b.mlir:3:4)',
        '"alone"',
        None,
    ]
    assert module.debug.location(0, 1000) is None
    assert module.debug.location(0, 1 << 31) is None


@pytest.mark.parametrize("kind", ["cycle", "shared"])
def test_location_without_end(
    kind: str, write_module: Write, function: Any, structs: Any, scalar: Any
) -> None:
    # A cycle; and call sites that all refer to the one before twice, 2^60 places written out.
    last = 60
    caller = last if kind == "cycle" else 0
    locations = [(2, {0: "a.mlir"})] + [
        (1, {0: scalar("i", i - 1), 1: scalar("i", caller if i == 1 else i - 1)}) for i in range(1, last + 1)
    ]
    maps = [{0: "f", 1: structs("ii", [(0, last)])}]
    module = definition.read(
        write_module([function(b"\x5a\0\0\0")], slot15=database(structs, scalar, maps, locations))
    )
    assert module.debug is not None
    text = module.debug.location(0, 0)
    assert text is not None
    assert "…" in text
    assert len(text) < 2000


# What must not be taken for a module.


@pytest.mark.parametrize("version", [0, 16 << 16, 17 << 16 | 1, 18 << 16])
def test_another_bytecode_version(version: int, write_module: Write, scalar: Any) -> None:
    data = write_module(slot13=scalar("I", version), slot0=None)
    message = (
        f"expected bytecode version 17.0, found {version >> 16}.{version & 0xFFFF}; compile the module with"
    )
    with pytest.raises(errors.Incompatible, match=message):
        definition.read(data)


def descriptor(*values: int) -> list[tuple[int, ...]]:
    """A function descriptor with some of offset, length, requirements, reserved, blocks, i32s, refs replaced."""
    return [values + (0, 5, 0, 0, 1, 8, 4)[len(values) :]]


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        ({"slot0": None}, "the module has no name"),
        ({"slot0": ""}, "the module has no name"),
        ({"slot2": ("I", 1 << 4)}, "the module requires features 0x10, of which 0x10 are not known"),
        ({"slot4": [{}]}, "type 0 has no name"),
        ({"slot4": [{0: "i32"}, {0: ""}]}, "type 1 has no name"),
        ({"slot5": [{1: ("I", 3)}]}, "dependency 0 has no name"),
        ({"slot6": [{0: ""}]}, "import 0 has no name"),
        ({"slot7": [{1: ("i", 0)}]}, "an export has no name"),
        ({"slot7": [{0: "x", 1: ("i", 1)}]}, "export 'x' is function 1, but there are 1 functions"),
        ({"slot7": [{0: "x", 1: ("i", -1)}]}, "export 'x' is function -1"),
        ({"slot8": []}, "1 functions and 0 signatures"),
        ({"slot8": None}, "1 functions and 0 signatures"),
        ({"slot9": [{0: ("B", 2)}]}, "rodata segment 0 has an unknown compression"),
        ({"slot9": [{3: ("Q", 0), 4: ("Q", 1000)}]}, "rodata segment 0 has 1000 bytes at"),
        ({"slot9": [{3: ("Q", 2**64 - 1), 4: ("Q", 2)}]}, "rodata segment 0 has 2 bytes at"),
        ({"slot9": [{3: ("Q", 2), 4: ("Q", 2**64 - 1)}]}, "bytes at"),
        ({"slot10": [{0: ("i", -4)}]}, "an rwdata segment has the size -4"),
        ({"slot11": {0: ("i", -1)}}, "the global storage has the size -1"),
        ({"slot11": {1: ("i", -1)}}, "the table of global refs has the size -1"),
        ({"slot12": descriptor(-1)}, "5 bytes at -1 of 5 bytes"),
        ({"slot12": descriptor(1)}, r"function 0 \(@f0\) has 5 bytes at 1 of 5 bytes of bytecode"),
        ({"slot12": descriptor(0, 0)}, "has 0 bytes at 0"),
        ({"slot12": descriptor(0, -1)}, "has -1 bytes"),
        ({"slot12": descriptor(0, 2**31 - 1)}, "has 2147483647 bytes"),
        ({"slot12": descriptor(0, 5, 1 << 31)}, r"function 0 \(@f0\) requires features 0x80000000"),
        ({"slot12": descriptor(0, 5, 0, 0, 0)}, "has 0 blocks; it needs at least one"),
        ({"slot12": descriptor(0, 5, 0, 0, -1)}, "has -1 blocks"),
        ({"slot12": descriptor(0, 5, 0, 0, 1, -1)}, "has -1 i32 and 4 ref registers"),
        ({"slot12": descriptor(0, 5, 0, 0, 1, 1, 0x4000)}, "has 1 i32 and 16384 ref registers"),
        ({"slot14": None}, "has 5 bytes at 0 of 0 bytes of bytecode"),
    ],
)
def test_malformed(
    slots: dict[str, Any], message: str, write_module: Write, function: Any, structs: Any, scalar: Any
) -> None:
    def build(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: build(entry) for key, entry in value.items()}
        if isinstance(value, tuple):
            return scalar(*value)
        return [build(entry) for entry in value] if isinstance(value, list) else value

    made = {
        name: structs("iiIhhhh", value) if name == "slot12" else build(value) for name, value in slots.items()
    }
    sound = write_module([function(b"\x5a\0\0\0")])
    assert definition.read(sound).functions[0].code == b"\x79\x5a\0\0\0"
    with pytest.raises(errors.InvalidArgument, match=f"malformed: .*{message}"):
        definition.read(write_module([function(b"\x5a\0\0\0")], **made))


def test_attributes_and_flags(write_module: Write, function: Any, scalar: Any) -> None:
    module = definition.read(
        write_module(
            [function(b"\x5a\0\0\0", attrs={"a": "1", "b": ""})],
            slot3=[{0: "k", 1: "first"}, {0: "k", 1: "second"}, {0: "empty"}],
            slot5=[{0: "p"}, {0: "q", 1: scalar("I", 3), 2: scalar("I", 2)}],
            slot6=[{0: "p.f"}, {0: "q.g", 1: {0: "0i_v", 1: [{0: "x", 1: "y"}]}, 2: scalar("I", 2)}],
            slot10=[{0: scalar("i", 16)}, {}],
        )
    )
    assert module.attrs == {"k": "first", "empty": ""}
    assert module.signatures[0].attrs == {"a": "1", "b": ""}
    assert [(d.name, d.minimum_version, d.optional) for d in module.dependencies] == [
        ("p", 0, False),
        ("q", 3, True),
    ]
    assert [(i.cconv, dict(i.attrs), i.optional) for i in module.imports] == [
        ("", {}, False),
        ("0i_v", {"x": "y"}, True),
    ]
    assert module.rwdata == (16, 0)


def test_the_smallest_module(write_module: Write) -> None:
    absent = {f"slot{i}": None for i in (4, 6, 7, 8, 9, 11, 12, 14)}
    module = definition.read(write_module(**absent))
    assert (module.name, module.functions, module.rodata, module.debug) == ("m", (), (), None)
    assert (module.global_bytes, module.global_refs, len(module.bytecode)) == (0, 0, 0)
