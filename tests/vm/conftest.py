"""A small encoder, so that tests can make bytecode instruction by instruction and run it.

    program.function("0ii_i", [("AddI32", i(0), i(1), i(2)), ("Return", [i(2)])])

It encodes by the fields of the instruction table, and the module goes through the verifier.
"""

from __future__ import annotations

import functools
import json
import re
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from halgpu.vm import Context, isa
from halgpu.vm.definition import (
    DebugDatabase,
    Dependency,
    ExportDef,
    Feature,
    FunctionDef,
    ImportDef,
    ModuleDef,
    SignatureDef,
)
from halgpu.vm.module import BytecodeModule

sys.path.insert(0, str(Path(__file__).parent))  # value_oracles

IMMEDIATES = {"u16": "<H", "i32": "<i", "i64": "<q", "f32": "<f", "f64": "<d"}
ENCODED: set[str] = set()
"""Symbols of all instructions that any test encoded."""


def i(ordinal: int) -> int:
    """A register of the i32 bank (for i64 and f64 the even one of the pair)."""
    return ordinal


def r(ordinal: int) -> int:
    """A ref register."""
    return isa.REF_BIT | ordinal


def moved(ordinal: int) -> int:
    """A ref register that the use moves from."""
    return isa.REF_BIT | isa.MOVE_BIT | ordinal


class Label(str):
    """Names a block: in a function's list it starts one, as an operand it is a branch target."""

    __slots__ = ()


class Encoder:
    """Encodes one function."""

    def __init__(self) -> None:
        self.code = bytearray()
        self.labels: dict[str, int] = {}
        self.fixups: list[tuple[int, str]] = []
        self.offsets: list[int] = []
        self.registers = {"i32": 0, "ref": 0}

    def put(self, layout: str, *values: Any) -> None:
        self.code += struct.pack(layout, *values)

    def register(self, raw: int, value_type: str | None = None) -> None:
        self.put("<H", raw)
        if raw & isa.REF_BIT:
            self.registers["ref"] = max(self.registers["ref"], (raw & isa.REF_MASK) + 1)
        else:
            self.registers["i32"] = max(self.registers["i32"], raw + 2)

    def counted(self, values: Sequence[Any]) -> None:
        self.code += b"\0" * (len(self.code) & 1)
        self.put("<H", len(values))

    def target(self, label: str) -> None:
        self.fixups.append((len(self.code), label))
        self.put("<I", 0)

    def remap(self, pairs: Sequence[tuple[int, int]]) -> None:
        self.counted(pairs)
        for pair in pairs:
            for raw in pair:
                self.register(raw)

    def operand(self, spec: isa.Field, value: Any) -> None:
        if spec.kind == "register":
            self.register(value)
        elif spec.kind == "registers":
            self.counted(value)
            for raw in value:
                self.register(raw)
        elif spec.kind == "immediate":
            self.put(IMMEDIATES[str(spec.type)], value)
        elif spec.kind == "string":
            self.put("<H", len(value.encode()))
            self.code += value.encode()
        elif spec.kind == "counts":
            self.counted(value)
            self.put(f"<{len(value)}H", *value)
        elif spec.kind == "target":
            self.target(value)
        elif spec.kind == "remap":
            self.remap(value)
        elif spec.kind == "cases":
            for label, pairs in value:
                self.target(label)
                self.remap(pairs)
        else:
            self.put("<I", value)

    def op(self, symbol: str, *operands: Any) -> None:
        instruction = isa.BY_SYMBOL[symbol]
        ENCODED.add(symbol)
        self.offsets.append(len(self.code))
        prefix = {"ext_f32": "PrefixExtF32", "ext_f64": "PrefixExtF64"}.get(instruction.opcode_set)
        if prefix:
            ENCODED.add(prefix)
            self.put("<B", isa.BY_SYMBOL[prefix].opcode)
        self.put("<B", instruction.opcode)
        assert len(operands) == len(instruction.fields), (
            f"{symbol} takes {[f.name for f in instruction.fields]}"
        )
        for spec, value in zip(instruction.fields, operands, strict=True):
            self.operand(spec, value)

    def block(self, label: str) -> None:
        self.labels[label] = len(self.code)
        ENCODED.add("Block")
        self.put("<B", isa.BLOCK.opcode)

    def finish(self) -> bytes:
        for at, label in self.fixups:
            struct.pack_into("<I", self.code, at, self.labels[label])
        return bytes(self.code)


class Lines(DebugDatabase):
    """A debug database that says ``test.mlir:LINE`` for the n-th instruction of a function."""

    def __init__(self, offsets: list[list[int]]) -> None:
        self.offsets = offsets

    def location(self, function_ordinal: int, bytecode_offset: int) -> str | None:
        return f"test.mlir:{self.offsets[function_ordinal].index(bytecode_offset) + 1}:1"


class Program:
    """A module in the making. Functions are exported by name; ``run`` calls one in a new context."""

    def __init__(self) -> None:
        self.types: list[str] = [
            "!vm.buffer",
            "!vm.list<?>",
            "!vm.opaque",
            "i8",
            "i16",
            "i32",
            "i64",
            "f32",
            "f64",
        ]
        self.imports: list[ImportDef] = []
        self.dependencies: list[Dependency] = []
        self.rodata: list[bytes] = []
        self.global_bytes = 64
        self.global_refs = 4
        self.name = "test"
        self.with_lines = False
        self._functions: list[tuple[str, str, Encoder]] = []

    def type(self, name: str) -> int:
        """Ordinal of a type in the module's table."""
        if name not in self.types:
            self.types.append(name)
        return self.types.index(name)

    def imported(self, full_name: str, cconv: str, optional: bool = False) -> int:
        """Declare an import and return the ordinal that calls use."""
        self.imports.append(ImportDef(full_name, cconv, {}, optional))
        return len(self.imports) - 1 | isa.IMPORT_BIT

    def function(self, cconv: str, body: Sequence[Any], name: str = "main") -> int:
        """Add a function and return its ordinal."""
        encoder = Encoder()
        if not isinstance(body[0], str):
            encoder.block("entry")
        for item in body:
            if isinstance(item, str):
                encoder.block(item)
            else:
                encoder.op(*item)
        self._functions.append((name, cconv, encoder))
        return len(self._functions) - 1

    def module(self) -> BytecodeModule:
        functions = []
        bytecode = b""
        for ordinal, (name, _, encoder) in enumerate(self._functions):
            code = encoder.finish()
            features = Feature.EXT_F32 | Feature.EXT_F64 | Feature.YIELD
            functions.append(
                FunctionDef(
                    ordinal, name, len(bytecode), len(code), features, len(encoder.labels),
                    encoder.registers["i32"] + 16, encoder.registers["ref"] + 8, memoryview(code),
                )
            )  # fmt: skip
            bytecode += code + b"\0" * (-len(code) % 8)
        lines = [encoder.offsets for _, _, encoder in self._functions]
        return BytecodeModule(
            ModuleDef(
                name=self.name,
                version=3,
                requirements=Feature.EXT_F32 | Feature.EXT_F64 | Feature.YIELD,
                attrs={},
                types=tuple(self.types),
                dependencies=tuple(self.dependencies),
                imports=tuple(self.imports),
                exports=tuple(ExportDef(name, n) for n, (name, _, _) in enumerate(self._functions)),
                signatures=tuple(SignatureDef(cconv, {}) for _, cconv, _ in self._functions),
                rodata=tuple(memoryview(data) for data in self.rodata),
                rodata_external=tuple(False for _ in self.rodata),
                rwdata=(),
                global_bytes=self.global_bytes,
                global_refs=self.global_refs,
                functions=tuple(functions),
                bytecode=memoryview(bytecode),
                bytecode_version=isa.VERSION,
                debug=Lines(lines) if self.with_lines else None,
            )
        )

    def context(self, *natives: Any) -> Context:
        return Context([*natives, self.module()])

    def run(self, *arguments: Any, name: str = "main") -> Any:
        with self.context() as context:
            return context.lookup(name)(*arguments)

    # What tests use to write operands.
    i = staticmethod(i)
    r = staticmethod(r)
    moved = staticmethod(moved)
    label = Label
    encoded = ENCODED


@pytest.fixture
def program() -> Program:
    """An empty module; see :class:`Program`."""
    return Program()


@pytest.fixture
def new_program() -> Callable[[], Program]:
    """Makes empty modules, for tests that need several."""
    return Program


# Modules of iree-compile and iree-as-module, each a bit different.

PROGRAMS = Path(__file__).parent / "programs"
INTERNAL_CALLS = """
vm.module @calls {
  vm.func private @helper(%x: i32) -> i32 attributes {inlining_policy = #util.inline.never} {
    %0 = vm.mul.i32 %x, %x : i32
    vm.return %0 : i32
  }
  vm.func private @other(%x: i32) -> i32 attributes {inlining_policy = #util.inline.never} {
    %0 = vm.call @helper(%x) : (i32) -> i32
    %1 = vm.add.i32 %0, %x : i32
    vm.return %1 : i32
  }
  vm.export @run
  vm.func @run(%x: i32) -> i32 {
    %0 = vm.call @helper(%x) : (i32) -> i32
    %1 = vm.call @other(%0) : (i32) -> i32
    vm.return %1 : i32
  }
}
"""
EXAMPLES = [f"{p}-{t}" for p in ("abs", "counter", "network") for t in ("vulkan", "llvm-cpu", "vmvx")]
STOCK = [*EXAMPLES, "counter-vmvx-inline", "network-vmvx-inline", "abs-async", "calls", "all_ops"]
UNPRINTABLE = ["remaining_ops"]
"""Has instructions that IREE's tools print wrongly."""


@pytest.fixture(scope="session")
def stock_module(
    compile_mlir: Callable[..., bytes],
    iree_tool: Callable[..., Any],
    examples: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], bytes]:
    """`stock_module(name) -> bytes` of a .vmfb; the names are those that tests get as `stock` and `any_stock`."""
    folder = tmp_path_factory.mktemp("modules")

    @functools.cache
    def make(name: str) -> bytes:
        program, _, target = name.partition("-")
        if name == "calls":
            return compile_mlir(INTERNAL_CALLS, "vulkan", "--compile-mode=vm")
        if name == "remaining_ops":
            return compile_mlir((PROGRAMS / "remaining_ops.mlir").read_text(), "vulkan", "--compile-mode=vm")
        if name == "all_ops":
            # IREE 3.13.0 cannot print this one instruction.
            text = re.sub(r".* = vm\.cast\.ui64\.f32 .*\n", "", (PROGRAMS / "all_ops.vmasm").read_text())
            (folder / "a.vmasm").write_text(text)
            iree_tool("iree-as-module", f"--output={folder}/a.vmfb", f"{folder}/a.vmasm")
            return (folder / "a.vmfb").read_bytes()
        source = (examples / f"{program}.mlir").read_text()
        if target == "async":
            return compile_mlir(source, "vulkan", model="async-internal")
        model = "inline-static" if target == "vmvx-inline" else "inline-dynamic"
        return compile_mlir(source, target, model=model, name=f"{program}.mlir")

    return make


@pytest.fixture(params=STOCK)
def stock(request: pytest.FixtureRequest, stock_module: Callable[[str], bytes]) -> bytes:
    """Each module whose text IREE's tools print as it is."""
    return stock_module(request.param)


@pytest.fixture(params=[*STOCK, *UNPRINTABLE])
def any_stock(request: pytest.FixtureRequest, stock_module: Callable[[str], bytes]) -> bytes:
    """Each module of IREE's tools."""
    return stock_module(request.param)


@pytest.fixture
def dump(iree_tool: Callable[..., Any], tmp_path: Path) -> Callable[..., str]:
    """`dump(data, "--output=metadata", …) -> str`: what iree-dump-module prints of a .vmfb."""

    def run(data: bytes, *options: str) -> str:
        (tmp_path / "dumped.vmfb").write_bytes(data)
        printed: str = iree_tool("iree-dump-module", *options, str(tmp_path / "dumped.vmfb")).stdout
        return printed

    return run


@pytest.fixture
def everything(dump: Callable[..., str]) -> Callable[[bytes], Any]:
    """`everything(data)`: all that IREE finds in a .vmfb, but for where rodata lies, to compare modules by."""

    def read(data: bytes) -> Any:
        found = json.loads(dump(data, "--output=flatbuffer-json"))
        for segment in found.get("rodata_segments", []):
            segment.pop("external_data_offset", None)
        return found

    return read


# Modules written field by field, so that any field can be wrong (test_definition.py, test_verifier.py).


@dataclass
class Scalar:
    """A number of the given struct format, such as ``Scalar("I", 7)``."""

    layout: str
    value: int


@dataclass
class Structs:
    """A vector of structs, packed."""

    layout: str
    values: Sequence[tuple[int, ...]]


class FlatBufferWriter:
    """Writes tables given as {slot: value}, parents before children as offsets must point forward.

    A value is a Scalar, str, bytes (a vector of u8), a dict (a table), a list of dicts, or Structs.
    """

    def __init__(self, identifier: bytes, root: Mapping[int, Any]) -> None:
        self.out = bytearray(8)
        self.out[4:8] = identifier
        self._patch(0, self._table(root))

    def _patch(self, at: int, target: int) -> None:
        struct.pack_into("<I", self.out, at, target - at)

    def _align(self, alignment: int) -> int:
        self.out += bytes(-len(self.out) % alignment)
        return len(self.out)

    def _table(self, fields: Mapping[int, Any]) -> int:
        wide = [slot for slot, value in fields.items() if getattr(value, "layout", "") in ("Q", "q")]
        narrow = [slot for slot in fields if slot not in wide]
        sizes = [8] * len(wide) + [4] * len(narrow)
        count = max(fields, default=-1) + 1
        vtable = self._align(2)
        offsets = {slot: 4 + sum(sizes[:i]) for i, slot in enumerate(wide + narrow)}
        size = 4 + sum(sizes)
        self.out += struct.pack(
            f"<HH{count}H", 4 + 2 * count, size, *(offsets.get(i, 0) for i in range(count))
        )
        # A 4-byte prefix lies in front, so 8-byte fields 4 bytes into the table are aligned.
        at = self._align(8)
        self.out += struct.pack("<i", at - vtable) + bytes(size - 4)
        for slot, value in fields.items():
            if isinstance(value, Scalar):
                struct.pack_into("<" + value.layout, self.out, at + offsets[slot], value.value)
            else:
                self._patch(at + offsets[slot], self._child(value))
        return at

    def _child(self, value: Any) -> int:
        if isinstance(value, Mapping):
            return self._table(value)
        at = self._align(4)
        if isinstance(value, str):
            text = value.encode()
            self.out += struct.pack("<I", len(text)) + text + b"\0"
        elif isinstance(value, bytes):
            self.out += struct.pack("<I", len(value)) + value
        elif isinstance(value, Structs):
            self.out += struct.pack("<I", len(value.values))
            self.out += b"".join(struct.pack("<" + value.layout, *row) for row in value.values)
        else:
            self.out += struct.pack("<I", len(value)) + bytes(4 * len(value))
            for index, element in enumerate(value):
                self._patch(at + 4 + 4 * index, self._table(element))
        return at


@dataclass
class Function:
    """A function to write; ``code`` is bytecode without the marker of the first block."""

    code: bytes
    cconv: str = "0v_v"
    blocks: int = 1
    i32: int = 8
    refs: int = 4
    requirements: int = 0
    attrs: Mapping[str, str] = field(default_factory=dict)


def write(
    functions: Sequence[Function] = (),
    *,
    imports: Sequence[tuple[str, str]] = (),
    types: Sequence[str] = (),
    rodata: Sequence[bytes] = (),
    external: bytes = b"",
    global_bytes: int = 0,
    global_refs: int = 0,
    **slots: Any,
) -> bytes:
    """Write a module. ``slot9=…`` replaces slot 9 of the root table, ``slot9=None`` leaves it out.

    Functions are exported as f0, f1, …; ``external`` are the bytes behind the FlatBuffer.
    """
    codes = [b"\x79" + function.code for function in functions]
    starts = [sum(map(len, codes[:index])) for index in range(len(codes))]
    descriptors = [
        (start, len(code), f.requirements, 0, f.blocks, f.i32, f.refs)
        for start, code, f in zip(starts, codes, functions, strict=True)
    ]
    root: dict[int, Any] = {
        0: "m",
        4: [{0: name} for name in types],
        6: [{0: name, 1: {0: cconv}} for name, cconv in imports],
        7: [{0: f"f{index}", 1: Scalar("i", index)} for index in range(len(functions))],
        8: [{0: f.cconv, 1: [{0: key, 1: value} for key, value in f.attrs.items()]} for f in functions],
        9: [{2: data} for data in rodata],
        11: {0: Scalar("i", global_bytes), 1: Scalar("i", global_refs)},
        12: Structs("iiIhhhh", descriptors),
        13: Scalar("I", 17 << 16),
        14: b"".join(codes),
    }
    root.update({int(name.removeprefix("slot")): value for name, value in slots.items()})
    buffer = FlatBufferWriter(b"IREE", {slot: value for slot, value in root.items() if value is not None}).out
    head = struct.pack("<I", len(buffer)) + buffer
    return head + bytes(-len(head) % 64) + external if external else head


@pytest.fixture(scope="session")
def write_module() -> Callable[..., bytes]:
    """`write_module([function(code, …)], imports=…, …) -> bytes`; see `write` above."""
    return write


@pytest.fixture(scope="session")
def function() -> type[Function]:
    """The class of functions that `write_module` takes."""
    return Function


@pytest.fixture(scope="session")
def structs() -> type[Structs]:
    """A vector of structs for `write_module`: `structs("ii", [(1, 2)])`."""
    return Structs


@pytest.fixture(scope="session")
def scalar() -> type[Scalar]:
    """A number for `write_module`: `scalar("I", 7)`."""
    return Scalar
