"""A small assembler of SPIR-V kernels for tests, and what runs them.

A kernel is one workgroup of `size` invocations. Its bindings are arrays of the given element types (such as
"i32" or "4xf32"); the last one is the output. `load(b)` reads element `invocation` of binding `b`, and each
`store(value)` writes a further row of `size` elements of the output.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from halgpu.devices import open_device
from halgpu.devices.base import Device, Program
from halgpu.executables.vulkan_spirv.executable_def import ExecutableDef, PipelineDef, PipelineLayout
from halgpu.executables.vulkan_spirv.loader import target_of
from halgpu.executables.vulkan_spirv.opcodes import Op
from halgpu.executables.vulkan_spirv.spirv_table import GLSL
from halgpu.executables.vulkan_spirv.translate import Target, translate

GLSL_NUMBERS = {name: number for number, name in GLSL.items()}
BLOCK, ARRAY_STRIDE, BUILT_IN, BINDING, DESCRIPTOR_SET, OFFSET = 2, 6, 11, 33, 34, 35
SHADER, GLCOMPUTE, LOCAL_SIZE = 1, 5, 17
STORAGE_BUFFER, INPUT, FUNCTION, WORKGROUP, PRIVATE, PUSH_CONSTANT = 12, 1, 7, 4, 6, 9
_SIZES = {"8": 1, "16": 2, "32": 4, "64": 8}


def text_words(text: str) -> list[int]:
    data = text.encode() + b"\0"
    data += b"\0" * (-len(data) % 4)
    return list(struct.unpack(f"<{len(data) // 4}I", data))


def instruction(op: int, *words: int) -> list[int]:
    return [(len(words) + 1) << 16 | int(op), *(w & 0xFFFFFFFF for w in words)]


class Spirv:
    """A module under construction: sections in the order that SPIR-V asks for, ids, types and constants."""

    def __init__(
        self, *bindings: str, size: int = 1, workgroup: tuple[int, int, int] | None = None, constants: int = 0
    ) -> None:
        self.bound = 1
        self.capabilities = [SHADER]
        self.annotations: list[int] = []
        self.modes: list[int] = []
        self.globals: list[int] = []
        self.body: list[int] = []
        self.functions: list[int] = []
        self.locals: list[int] = []
        self.interface: list[int] = []
        self.named: dict[object, int] = {}
        self.kinds: dict[int, str] = {}
        self.size = size
        self.workgroup = workgroup or (size, 1, 1)
        self.constants = constants
        self.glsl = self.new()
        self.main = self.new()
        self.rows = 0
        self.begin()
        self.bindings = [self.buffer(kind, number) for number, kind in enumerate(bindings)]
        self.element_kinds = list(bindings)
        self.index = self.invocation()

    def begin(self) -> None:
        self.start = self.new()
        self.body += instruction(Op.Label, self.start)

    # --- ids, types, constants ---

    def new(self, kind: str = "") -> int:
        self.bound += 1
        if kind:
            self.kinds[self.bound - 1] = kind
        return self.bound - 1

    def once(self, key: object, op: int, *words: int, typed: bool = False) -> int:
        if key not in self.named:
            id_ = self.named[key] = self.new()
            head = (words[0], id_, *words[1:]) if typed else (id_, *words)
            self.globals += instruction(op, *head)
        return self.named[key]

    def type(self, kind: str) -> int:
        if kind in self.named:
            return self.named[kind]
        if "x" in kind:
            count, element = kind.split("x")
            return self.once(kind, Op.TypeVector, self.type(element), int(count))
        if kind in ("void", "bool"):
            return self.once(kind, Op.TypeVoid if kind == "void" else Op.TypeBool)
        width = int(kind[1:])
        return (
            self.once(kind, Op.TypeInt, width, 0) if kind[0] == "i" else self.once(kind, Op.TypeFloat, width)
        )

    def array(self, kind: str, length: int, stride: int | None = None) -> int:
        key = ("array", kind, length, stride)
        if key not in self.named:
            id_ = self.once(key, Op.TypeArray, self.type(kind), self.constant("i32", length))
            if stride:
                self.annotations += instruction(Op.Decorate, id_, ARRAY_STRIDE, stride)
        return self.named[key]

    def struct(self, name: str, *kinds: str) -> int:
        """A structure type, which `kind` names from then on."""
        return self.once(name, Op.TypeStruct, *(self.type(kind) for kind in kinds))

    def struct_of(self, name: str, *types: int) -> int:
        """A structure of types given by id."""
        return self.once(name, Op.TypeStruct, *types)

    def composite_array(self, kind: str, values: Sequence[float]) -> int:
        """A constant array."""
        type_ = self.array(kind, len(values))
        parts = [self.constant(kind, value) for value in values]
        return self.once(("values", kind, *values), Op.ConstantComposite, type_, *parts, typed=True)

    def index_as(self, kind: str) -> int:
        """The invocation's number as an integer of another width."""
        return self.index if kind == "i32" else self.op(Op.UConvert, kind, self.index)

    def pointer(self, storage: int, type_: int) -> int:
        return self.once(("pointer", storage, type_), Op.TypePointer, storage, type_)

    def constant(self, kind: str, value: float) -> int:
        if kind == "bool":
            return self.once(
                (kind, bool(value)),
                Op.ConstantTrue if value else Op.ConstantFalse,
                self.type(kind),
                typed=True,
            )
        if "x" in kind:
            count, element = kind.split("x")
            part = self.constant(element, value)
            return self.composite(kind, [part] * int(count))
        width = int(kind[1:])
        if kind[0] == "f":
            raw = np.array(value, f"f{width // 8}").tobytes()
        else:
            raw = (int(value) & ((1 << width) - 1)).to_bytes(width // 8, "little")
        words = np.frombuffer(raw.ljust(-(-len(raw) // 4) * 4, b"\0"), "<u4").tolist()
        id_ = self.once((kind, raw), Op.Constant, self.type(kind), *words, typed=True)
        self.kinds[id_] = kind
        return id_

    def bits(self, kind: str, value: int) -> int:
        """A constant float of exactly these bits, whatever they mean."""
        width = int(kind[1:])
        words = [value & 0xFFFFFFFF, value >> 32][: max(width // 32, 1)]
        id_ = self.once((kind, "bits", value), Op.Constant, self.type(kind), *words, typed=True)
        self.kinds[id_] = kind
        return id_

    def composite(self, kind: str, parts: Sequence[int]) -> int:
        id_ = self.once((kind, tuple(parts)), Op.ConstantComposite, self.type(kind), *parts, typed=True)
        self.kinds[id_] = kind
        return id_

    # --- variables ---

    def buffer(self, kind: str, binding: int, stride: int | None = None, offset: int = 0) -> int:
        """A storage buffer block of a runtime array."""
        array = self.new()
        self.globals += instruction(Op.TypeRuntimeArray, array, self.type(kind))
        self.annotations += instruction(Op.Decorate, array, ARRAY_STRIDE, stride or size_of(kind))
        block = self.new()
        self.globals += instruction(Op.TypeStruct, block, array)
        self.annotations += instruction(Op.MemberDecorate, block, 0, OFFSET, offset)
        self.annotations += instruction(Op.Decorate, block, BLOCK)
        variable = self.variable(STORAGE_BUFFER, block)
        self.annotations += instruction(Op.Decorate, variable, BINDING, binding)
        self.annotations += instruction(Op.Decorate, variable, DESCRIPTOR_SET, 0)
        return variable

    def variable(self, storage: int, type_: int, *initializer: int) -> int:
        id_ = self.new()
        if storage == INPUT:
            self.interface.append(id_)
        words = instruction(Op.Variable, self.pointer(storage, type_), id_, storage, *initializer)
        if storage == FUNCTION:
            self.locals += words
        else:
            self.globals += words
        return id_

    def invocation(self) -> int:
        variable = self.variable(INPUT, self.type("3xi32"))
        self.annotations += instruction(Op.Decorate, variable, BUILT_IN, 27)
        vector = self.op(Op.Load, "3xi32", variable)
        x, y, z = (self.op(Op.CompositeExtract, "i32", vector, i) for i in range(3))
        w, h, _ = self.workgroup
        index = x
        if h > 1:
            index = self.op(Op.IAdd, "i32", x, self.op(Op.IMul, "i32", y, self.constant("i32", w)))
        if self.workgroup[2] > 1:
            layer = self.op(Op.IMul, "i32", z, self.constant("i32", w * h))
            index = self.op(Op.IAdd, "i32", index, layer)
        return index

    # --- code ---

    def op(self, op: int, kind: str, *operands: int) -> int:
        """An instruction with a result of type `kind`."""
        id_ = self.new(kind)
        self.body += instruction(op, self.type(kind), id_, *operands)
        return id_

    def do(self, op: int, *operands: int) -> None:
        """An instruction without a result."""
        self.body += instruction(op, *operands)

    def ext(self, name: str, kind: str, *operands: int) -> int:
        return self.op(Op.ExtInst, kind, self.glsl, GLSL_NUMBERS[name], *operands)

    def access(self, kind: str, storage: int, base: int, *indices: int) -> int:
        id_ = self.new()
        self.body += instruction(Op.AccessChain, self.pointer(storage, self.type(kind)), id_, base, *indices)
        return id_

    def element(self, binding: int, index: int, kind: str | None = None) -> int:
        kind = kind or self.element_kinds[binding]
        return self.access(kind, STORAGE_BUFFER, self.bindings[binding], self.constant("i32", 0), index)

    def load(self, binding: int) -> int:
        return self.op(Op.Load, self.element_kinds[binding], self.element(binding, self.index))

    def store(self, value: int) -> int:
        """Write a row of the output; return its number."""
        base = self.constant("i32", self.rows * self.size)
        at = self.op(Op.IAdd, "i32", self.index, base)
        self.do(Op.Store, self.element(len(self.bindings) - 1, at), value)
        self.rows += 1
        return self.rows - 1

    def store_bool(self, value: int) -> int:
        one, zero = self.constant("i32", 1), self.constant("i32", 0)
        return self.store(self.op(Op.Select, "i32", value, one, zero))

    def label(self, id_: int) -> None:
        self.do(Op.Label, id_)

    def words(self) -> list[int]:
        name = text_words("kernel")
        void = self.type("void")
        function = self.once("function", Op.TypeFunction, void)
        head = [0x07230203, 0x00010300, 0, 0, 0]
        out: list[int] = []
        for capability in self.capabilities:
            out += instruction(Op.Capability, capability)
        out += instruction(Op.ExtInstImport, self.glsl, *text_words("GLSL.std.450"))
        out += instruction(Op.MemoryModel, 0, 1)
        out += instruction(Op.EntryPoint, GLCOMPUTE, self.main, *name, *self.interface)
        out += instruction(Op.ExecutionMode, self.main, LOCAL_SIZE, *self.workgroup)
        out += self.modes + self.annotations + self.globals
        out += instruction(Op.Function, void, self.main, 0, function)
        body = self.body
        out += body[:2] + self.locals + body[2:] + instruction(Op.Return) + instruction(Op.FunctionEnd)
        out += self.functions
        head[3] = self.bound
        return head + out

    def data(self) -> bytes:
        words = self.words()
        return struct.pack(f"<{len(words)}I", *words)

    # --- running ---

    def program(self, target: Target | None = None, constants: tuple[int, ...] = ()) -> Program:
        return translate_words(self.data(), len(self.bindings), self.constants, target, constants)

    def run_all(
        self,
        arrays: Sequence[np.ndarray],
        push: Sequence[int] = (),
        groups: int = 1,
        constants: tuple[int, ...] = (),
    ) -> list[np.ndarray]:
        """Run on the OpenCL device, an array a binding; returns what the arrays are afterwards.

        Where the texts for CPUs and for other devices are not the same, both run, with the same results.
        """
        device = open_device("opencl")
        own = target_of(device)
        texts = [self.program(replace(own, cpu=cpu), constants) for cpu in (own.cpu, not own.cpu)]
        if texts[0].source == texts[1].source:
            del texts[1]
        results, *others = (run_program(device, text, arrays, push, (groups, 1, 1)) for text in texts)
        for other in others:
            assert all(map(same, results, other)), (
                "the texts for CPUs and for other devices differ in results"
            )
        return results

    def run(self, *inputs: np.ndarray, output: np.ndarray, **options: Any) -> np.ndarray:
        """Run and return the last binding, for which `output` gives shape, dtype and what is there before."""
        return self.run_all([*inputs, output], **options)[-1]

    def rows_of(self, *inputs: np.ndarray, dtype: str | np.dtype, **options: Any) -> np.ndarray:
        """Run and return the rows that were stored."""
        count = int(self.element_kinds[-1].split("x")[0]) if "x" in self.element_kinds[-1] else 1
        output = np.zeros((self.rows, self.size, count), dtype)
        result = self.run(*inputs, output=output, **options)
        return result if count > 1 else result[..., 0]


class Batch(Spirv):
    """One kernel with many results: inputs and what is expected are given side by side, and checked at once.

    Building a kernel is what costs time in these tests, not running it.
    """

    def __init__(self, size: int, **options: Any) -> None:
        super().__init__(size=size, **options)
        self.arrays: list[np.ndarray | None] = []
        self.outputs: dict[str, int] = {}
        self.expected: dict[str, list[tuple[str, np.ndarray]]] = {}

    def bind(self, kind: str, array: np.ndarray | None, **layout: int) -> int:
        """A further binding; returns its number."""
        self.bindings.append(self.buffer(kind, len(self.bindings), **layout))
        self.element_kinds.append(kind)
        self.arrays.append(array)
        return len(self.bindings) - 1

    def given(self, kind: str, array: np.ndarray) -> int:
        """A value that is each invocation's element of an input."""
        return self.load(self.bind(kind, np.ascontiguousarray(array)))

    def expect(self, label: object, kind: str, value: int, wanted: object, dtype: str | None = None) -> None:
        """Store a value of a kind; `wanted` is one row of the output. Booleans are stored as i32."""
        if kind.endswith("bool"):
            count = kind.removesuffix("bool")
            kind = f"{count}i32"
            value = self.op(Op.Select, kind, value, self.constant(kind, 1), self.constant(kind, 0))
        if kind not in self.outputs:
            self.outputs[kind] = self.bind(kind, None)
            self.expected[kind] = []
        element = kind.split("x")[-1]
        array = (
            np.asarray(wanted).astype(dtype or f"{element[0]}{int(element[1:]) // 8}").reshape(self.size, -1)
        )
        base = self.constant("i32", len(self.expected[kind]) * self.size)
        at = self.op(Op.IAdd, "i32", self.index, base)
        self.do(Op.Store, self.element(self.outputs[kind], at), value)
        self.expected[kind].append((f"{label} of {kind}", array))

    def check(self, **options: Any) -> None:
        """Run the kernel and compare every row, bit for bit but for the bits of NaNs."""
        for kind, binding in self.outputs.items():
            rows = [row for _, row in self.expected[kind]]
            self.arrays[binding] = np.zeros((len(rows), *rows[0].shape), rows[0].dtype)
        arrays = [array for array in self.arrays if array is not None]
        assert len(arrays) == len(self.bindings)
        results = self.run_all(arrays, **options)
        wrong = []
        for kind, binding in self.outputs.items():
            for (label, wanted), found in zip(self.expected[kind], results[binding], strict=True):
                if not same(found, wanted):
                    at = np.argwhere(~equal(found, wanted))[:4].tolist()
                    wrong.append(
                        f"{label}: at {at} {[found[tuple(i)] for i in at]} for {[wanted[tuple(i)] for i in at]}"
                    )
        assert not wrong, "\n".join(wrong)


def equal(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Where two arrays are the same bits, or both NaN."""
    if wanted.dtype.kind != "f":
        return found == wanted
    return ((found == wanted) & (np.signbit(found) == np.signbit(wanted))) | (
        np.isnan(found) & np.isnan(wanted)
    )


def same(found: np.ndarray, wanted: np.ndarray) -> bool:
    return bool(equal(found, wanted).all())


def size_of(kind: str) -> int:
    count, element = kind.split("x") if "x" in kind else ("1", kind)
    return int(count) * _SIZES[element[1:]]


def translate_words(
    data: bytes,
    bindings: int,
    constants: int = 0,
    target: Target | None = None,
    values: tuple[int, ...] = (),
    name: str = "kernel",
) -> Program:
    layout = PipelineLayout(tuple((0, i) for i in range(bindings)), constants)
    definition = ExecutableDef((PipelineDef(name, 0, layout, 0),), (memoryview(data),))
    return translate(definition, target or Target(), values, "test")


def run_program(
    device: Device,
    program: Program,
    arrays: Sequence[np.ndarray],
    push: Sequence[int] = (),
    groups: tuple[int, int, int] = (1, 1, 1),
) -> list[np.ndarray]:
    """Build a program, dispatch its first kernel on copies of `arrays`, and return them afterwards."""
    kernel = device.build(program)[0]
    buffers = []
    for array in arrays:
        buffer = device.allocator.allocate(max(array.nbytes, 4))
        buffer.write()[: array.nbytes] = array.tobytes()
        buffers.append(buffer)
    bound = [(buffer, 0, array.nbytes) for buffer, array in zip(buffers, arrays, strict=True)]
    kernel.dispatch(groups, tuple(push), bound)
    results = [
        np.frombuffer(bytes(buffer.read()[: array.nbytes]), array.dtype).reshape(array.shape)
        for buffer, array in zip(buffers, arrays, strict=True)
    ]
    for buffer in buffers:
        buffer.release()
    return results
