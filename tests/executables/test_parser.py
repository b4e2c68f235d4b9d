"""SPIR-V that is malformed or not supported: one class of error each, with a message that names what is wrong."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from spirv_assembler import Spirv, instruction, text_words, translate_words

from halgpu import errors
from halgpu.executables.vulkan_spirv import parser
from halgpu.executables.vulkan_spirv.opcodes import INSTRUCTIONS, Op
from halgpu.executables.vulkan_spirv.translate import Target, supported_instructions


def plain() -> Spirv:
    s = Spirv("i32", "i32", size=1)
    s.store(s.load(0))
    return s


def parse(words: list[int]) -> parser.Module:
    data = struct.pack(f"<{len(words)}I", *words)
    return parser.parse(memoryview(data), "test")


def test_a_sound_module() -> None:
    module = parse(plain().words())
    assert [entry.name for entry in module.entry_points] == ["kernel"]
    assert module.entry_points[0].modes == {17: (1, 1, 1)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: b"", "0 bytes is no length"),
        (lambda d: d[:16], "16 bytes is no length"),
        (lambda d: d[:-1], "no length of SPIR-V"),
        (lambda d: b"abcd" + d[4:], "this is no SPIR-V"),
        (lambda d: struct.pack(f">{len(d) // 4}I", *struct.unpack(f"<{len(d) // 4}I", d)), "byte-swapped"),
        (lambda d: d[:12] + b"\0\0\0\0" + d[16:], "id bound 0"),
        (lambda d: d[:12] + b"\xff\xff\xff\xff" + d[16:], "id bound 4294967295"),
        (lambda d: d[:12] + b"\x05\0\0\0" + d[16:], "is not in 1 to 4"),
        (lambda d: d[:-4], "ends inside of function"),
        (lambda d: d + b"\0\0\0\0", "says 0 words"),
        (lambda d: d + b"\0\0\x05\0", "says 5 words where 1 are left"),
        (lambda d: d + d[-8:], "belongs into a block"),
    ],
)
def test_damage(change: Callable[[bytes], bytes], message: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=message):
        parser.parse(memoryview(change(plain().data())), "test")


def with_annotation(*words: int) -> list[int]:
    s = plain()
    s.annotations += words
    return s.words()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (instruction(Op.Capability, 5357), "capability CooperativeMatrixNV"),
        (instruction(Op.Capability, 5347), "capability PhysicalStorageBufferAddresses"),
        (instruction(Op.Capability, 60000), "capability 60000"),
        (instruction(Op.Extension, *text_words("SPV_FOO_bar")), "extension SPV_FOO_bar"),
        (instruction(Op.ExtInstImport, 1, *text_words("OpenCL.std")), "instruction set 'OpenCL.std'"),
        (instruction(Op.MemoryModel, 2, 1), "addressing model 2"),
        (instruction(Op.MemoryModel, 0, 2), "memory model 2"),
        (instruction(98, 1, 2), "OpImageRead"),
        (instruction(24, 1, 2), "OpTypeMatrix"),
        (instruction(7000), "opcode 7000"),
    ],
)
def test_what_is_not_supported_is_named(words: list[int], message: str) -> None:
    s = plain()
    s.bound += 1
    words = [
        s.bound - 1 if i == 1 and words[0] & 0xFFFF == Op.ExtInstImport else w for i, w in enumerate(words)
    ]
    s.annotations = words + s.annotations
    with pytest.raises(errors.Unimplemented, match=message):
        parse(s.words())


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (lambda s: s.once("t", Op.TypeInt, 24, 0), "integer of 24 bits"),
        (lambda s: s.once("t", Op.TypeFloat, 8), "float of 8 bits"),
        (lambda s: s.once("t", Op.TypeFloat, 16, 0), "encoding 0"),
        (lambda s: s.once("t", Op.TypeVector, s.type("f32"), 8), "vector of 8"),
        (lambda s: s.variable(9, s.pointer(12, s.type("i32"))), "VariablePointers"),
    ],
)
def test_types_that_are_not_supported(kind: Callable[[Spirv], int], message: str) -> None:
    s = plain()
    kind(s)
    with pytest.raises(errors.Unimplemented, match=message):
        parse(s.words())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda s: s.once("t", Op.TypeArray, s.type("i32"), s.constant("i32", 0)),
            "constant integer of 1 or more",
        ),
        (lambda s: s.once("t", Op.TypeArray, s.type("void"), s.constant("i32", 3)), "no type of data"),
        (lambda s: s.once("t", Op.TypeVector, s.type("void"), 2), "a vector of void"),
        (
            lambda s: s.once("c", Op.Constant, s.type("i32"), 1, 2, typed=True),
            "2 words for a number of type i32",
        ),
        (lambda s: s.once("c", Op.Constant, s.type("bool"), 1, typed=True), "a number of type bool"),
        (
            lambda s: s.once("c", Op.ConstantComposite, s.type("2xi32"), s.constant("i32", 1), typed=True),
            "1 parts",
        ),
        (lambda s: s.composite("2xi32", [s.constant("f32", 1)] * 2), "does not belong into"),
        (lambda s: s.globals.extend(instruction(Op.TypeInt, s.named["i32"], 32, 0)), "a second time"),
        (
            lambda s: s.globals.extend(instruction(Op.TypePointer, s.new(), 12, s.new())),
            "is no type declared before",
        ),
        (
            lambda s: s.body.extend(instruction(Op.IAdd, s.type("i32"), s.new("i32"), s.index)),
            "has 1 operands",
        ),
        (lambda s: s.body.extend(instruction(Op.Name, s.index, 0x41414141)), "no zero byte"),
        (lambda s: s.body.extend(instruction(Op.Name, s.index, 0xFF)), "not UTF-8"),
        (lambda s: s.op(Op.IAdd, "i32", s.index, s.new("i32")), "has no value yet"),
        (lambda s: s.op(Op.IAdd, "i32", s.index, s.constant("f32", 1)), "two integers of i32 expected"),
        (lambda s: s.op(Op.FAdd, "i32", s.index, s.index), "two floats of i32 expected"),
        (lambda s: s.op(Op.Load, "i32", s.index), "a value where a pointer is needed"),
        (lambda s: s.op(Op.Load, "f32", s.element(0, s.index)), "a f32 is loaded through a pointer to i32"),
        (lambda s: s.op(Op.CompositeExtract, "i32", s.constant("2xi32", 1), 2), "part 2 of a vector"),
        (
            lambda s: s.do(Op.Store, s.element(0, s.index), s.constant("f32", 1)),
            "stored through a pointer to i32",
        ),
    ],
)
def test_malformed_modules(make: Callable[[Spirv], object], message: str) -> None:
    s = plain()
    make(s)
    with pytest.raises(errors.InvalidArgument, match=message):
        translate_words(s.data(), 2)


def test_constants_that_grow_without_bound() -> None:
    """Arrays of arrays of one shared part: a small module that would spell out a huge constant."""
    s = plain()
    kind, part, constant = "i32", s.type("i32"), s.constant("i32", 5)
    for level in range(6):
        array = s.once(("level", level), Op.TypeArray, part, s.constant("i32", 50))
        constant = s.once(("constant", level), Op.ConstantComposite, array, *[constant] * 50, typed=True)
        part = array
    assert kind
    variable = s.variable(7, part, constant)
    s.access("i32", 7, variable, *[s.index] * 6)
    with pytest.raises(errors.ResourceExhausted, match="parts"):
        translate_words(s.data(), 2)


def test_types_nested_too_deep() -> None:
    s = plain()
    part = s.type("i32")
    for level in range(1000):
        part = s.once(("level", level), Op.TypeArray, part, s.constant("i32", 1))
    with pytest.raises(errors.Unimplemented, match="nested deeper"):
        parse(s.words())


def test_instructions_without_a_translation_are_named() -> None:
    s = plain()
    s.op(Op.CopyLogical, "i32", s.constant("i32", 1))
    with pytest.raises(errors.Unimplemented, match=r"kernel kernel.*OpCopyLogical"):
        translate_words(s.data(), 2)
    s = plain()
    s.ext("MatrixInverse", "f32", s.constant("f32", 1))
    with pytest.raises(errors.Unimplemented, match=r"GLSL\.std\.450 MatrixInverse"):
        translate_words(s.data(), 2)


def test_every_instruction_has_a_translation_or_is_known_to_have_none() -> None:
    """A drift test: whoever adds an opcode to the table adds its emitter, or its name here."""
    module_level = {name for name in Op.__members__ if Op[name] < 54} | {
        "ModuleProcessed", "NoLine", "Decorate", "MemberDecorate", "DecorateId", "DecorateString",
        "MemberDecorateString", "ExecutionModeId", "Function", "FunctionParameter", "FunctionEnd",
        "TypeCooperativeMatrixKHR",
    }  # fmt: skip
    without = {
        "PtrAccessChain",
        "CopyLogical",
        "Kill",
        "GroupNonUniformAllEqual",
        "GroupNonUniformBallot",
    }
    missing = {Op(code).name for code in INSTRUCTIONS if code not in supported_instructions()}
    assert missing - module_level == without


def test_names_are_made_valid() -> None:
    s = plain()
    s.annotations = instruction(Op.Name, s.bindings[0], *text_words("float")) + s.annotations
    s.annotations = instruction(Op.Name, s.bindings[1], *text_words("a$b-c\u00e9")) + s.annotations
    source = translate_words(s.data(), 2).source
    assert "*buffer_float = " in source
    assert "*a_b_c = " in source


def test_options_and_extensions_follow_the_device() -> None:
    s = Spirv("f64", "f16", "f64", size=1)
    s.op(Op.FAdd, "f16", s.load(1), s.load(1))
    s.store(s.load(0))
    emulated = s.program(Target(half=False))
    native = s.program(Target(half=True, exact_division=True))
    assert emulated.extensions == ("cl_khr_fp64",)
    assert set(native.extensions) == {"cl_khr_fp64", "cl_khr_fp16"}
    assert native.options == ("-cl-fp32-correctly-rounded-divide-sqrt",)
    assert emulated.options == ()
