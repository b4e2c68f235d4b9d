"""SPIR-V words -> types, constants, variables and functions of basic blocks, every word checked.

Follows section 2 of the SPIR-V specification: header of five words, then instructions of a word count and an
opcode, in the order of section 2.4. Only what compute kernels for Vulkan use is taken.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

from halgpu import errors

from . import spirv_types as ty
from .constants import evaluate
from .module import Block, EntryPoint, Function, Instruction, Module, Variable
from .opcodes import INSTRUCTIONS, Op, op_name
from .spirv_table import CAPABILITIES, EXTENSIONS, OTHER_CAPABILITIES, Decoration, Storage

MAGIC: Final = 0x07230203
MAXIMUM_BOUND: Final = 0x3FFFFF
"""Largest id bound that the specification's universal limits (section 2.17) ask for."""
MAXIMUM_DEPTH: Final = 16
MAXIMUM_LEAVES: Final = 1 << 22
MAXIMUM_ELEMENTS: Final = 1 << 14
"""Elements of a cooperative matrix; devices have some hundreds."""
SUBGROUP: Final = 3


def parse(data: memoryview, what: str, constants: tuple[int, ...] = ()) -> Module:
    """Parse a SPIR-V module.

    ``data`` is a flat view of bytes, little-endian; ``what`` names the module in errors; ``constants`` are
    the 32-bit values of specialization constants 0, 1, ….

    Raises InvalidArgument for anything malformed and Unimplemented for what halgpu does not translate.
    """
    return _Parser(_words(data, what), what, constants).module


def _words(data: memoryview, what: str) -> tuple[int, ...]:
    if len(data) < 20 or len(data) % 4:
        raise errors.InvalidArgument(
            f"{what}: {len(data)} bytes is no length of SPIR-V: 20 or more and a multiple of 4 are expected"
        )
    words = struct.unpack(f"<{len(data) // 4}I", data)
    if words[0] == MAGIC:
        return words
    swapped = int.from_bytes(words[0].to_bytes(4, "little"), "big") == MAGIC
    why = "the module is byte-swapped (big-endian)" if swapped else "this is no SPIR-V"
    raise errors.InvalidArgument(f"{what}: magic number {words[0]:#010x}, expected {MAGIC:#010x}: {why}")


class _Parser:
    def __init__(self, words: tuple[int, ...], what: str, constants: tuple[int, ...]) -> None:
        self.words = words
        self.what = what
        self.specialization = constants
        self.module = Module(what, words[3])
        self.function: Function | None = None
        self.block: Block | None = None
        self.defined: set[int] = set()
        self.strings: dict[int, str] = {}
        self.line = ""
        self.check_header()
        for instruction in self.instructions():
            handler = _HANDLERS.get(instruction.op)
            if handler is not None:
                handler(self, instruction)
            else:
                self.body(instruction)
        if self.function is not None:
            self.fail(None, f"the module ends inside of function %{self.function.id}")
        self.check_entry_points()

    def fail(self, instruction: Instruction | None, problem: str) -> NoReturn:
        where = f"{instruction!r}: " if instruction else ""
        raise errors.InvalidArgument(f"{self.what}: malformed SPIR-V: {where}{problem}")

    def refuse(self, problem: str) -> NoReturn:
        raise errors.Unimplemented(f"{self.what}: {problem} is not supported")

    def check_header(self) -> None:
        _, version, _, bound, schema = self.words[:5]
        if version >> 24 or version & 0xFF or version >> 16 != 1 or (version >> 8) & 0xFF > 6:
            self.refuse(
                f"SPIR-V version {version >> 16}.{(version >> 8) & 0xFF} ({version:#010x}; 1.0 to 1.6 are)"
            )
        if not 0 < bound <= MAXIMUM_BOUND:
            self.fail(None, f"id bound {bound} is not in 1 to {MAXIMUM_BOUND}")
        if schema:
            self.refuse(f"instruction schema {schema}")

    # --- words to instructions --------------------------------------------------------------------------

    def instructions(self) -> Iterator[Instruction]:
        words, at, end = self.words, 5, len(self.words)
        while at < end:
            opcode, count = words[at] & 0xFFFF, words[at] >> 16
            if not count or at + count > end:
                self.fail(
                    None, f"{op_name(opcode)} at word {at} says {count} words where {end - at} are left"
                )
            yield self.decode(opcode, words[at + 1 : at + count], at)
            at += count

    def decode(self, opcode: int, words: tuple[int, ...], at: int) -> Instruction:
        info = INSTRUCTIONS.get(opcode)
        if info is None:
            self.refuse(f"instruction {op_name(opcode)} at word {at}")
        head = info.has_type + info.has_result
        have = len(words) - head
        if have < info.minimum or (info.fixed and have > info.minimum):
            more = "" if info.fixed else " or more"
            self.fail(
                None, f"{op_name(opcode)} at word {at} has {have} operands, expected {info.minimum}{more}"
            )
        operands = words[head:]
        bound = self.module.bound
        for word in info.ids_of(operands):
            if not 0 < word < bound:
                self.bad_id(opcode, at, word)
        type_ = words[0] if info.has_type else 0
        result = words[head - 1] if info.has_result else 0
        if info.has_result:
            self.claim(opcode, at, result)
        return Instruction(opcode, type_, result, operands, at)

    def bad_id(self, opcode: int, at: int, word: int) -> NoReturn:
        self.fail(None, f"{op_name(opcode)} at word {at}: id {word} is not in 1 to {self.module.bound - 1}")

    def claim(self, opcode: int, at: int, result: int) -> None:
        if not 0 < result < self.module.bound:
            self.bad_id(opcode, at, result)
        if result in self.defined:
            self.fail(None, f"{op_name(opcode)} at word {at} defines %{result} a second time")
        self.defined.add(result)

    def text(self, instruction: Instruction, start: int) -> tuple[str, int]:
        """The string that begins at operand ``start``, and the position behind it."""
        operands = instruction.operands
        raw = struct.pack(f"<{len(operands) - start}I", *operands[start:])
        end = raw.find(b"\0")
        if end < 0:
            self.fail(instruction, "its string has no zero byte at the end")
        try:
            return raw[:end].decode(), start + end // 4 + 1
        except UnicodeDecodeError as problem:
            self.fail(instruction, f"its string is not UTF-8: {problem.reason}")

    # --- module level -----------------------------------------------------------------------------------

    def capability(self, instruction: Instruction) -> None:
        number = instruction.operands[0]
        if number not in CAPABILITIES:
            self.refuse(f"SPIR-V capability {OTHER_CAPABILITIES.get(number, number)}")
        self.module.capabilities.add(number)

    def extension(self, instruction: Instruction) -> None:
        name, _ = self.text(instruction, 0)
        if name not in EXTENSIONS:
            self.refuse(f"SPIR-V extension {name}")

    def ext_inst_import(self, instruction: Instruction) -> None:
        name, _ = self.text(instruction, 0)
        if name != "GLSL.std.450" and not name.startswith("NonSemantic."):
            self.refuse(f"extended instruction set {name!r}")
        self.module.imports[instruction.result] = name

    def memory_model(self, instruction: Instruction) -> None:
        addressing, memory = instruction.operands
        if addressing:
            self.refuse(f"SPIR-V addressing model {addressing} (only Logical is)")
        if memory not in (1, 3):
            self.refuse(f"SPIR-V memory model {memory} (GLSL450 and Vulkan are)")

    def entry_point(self, instruction: Instruction) -> None:
        model, function = instruction.operands[:2]
        name, _ = self.text(instruction, 2)
        if model != 5:
            self.refuse(f"entry point {name!r} of execution model {model} (only GLCompute is)")
        if any(name == known.name for known in self.module.entry_points):
            self.fail(instruction, f"there are two entry points {name!r}")
        self.module.entry_points.append(EntryPoint(name, function))

    def execution_mode(self, instruction: Instruction) -> None:
        function, mode, *rest = instruction.operands
        for entry in self.module.entry_points:
            if entry.function == function:
                entry.modes[mode] = tuple(rest)

    def name(self, instruction: Instruction) -> None:
        self.module.names[instruction.operands[0]], _ = self.text(instruction, 1)

    def decorate(self, instruction: Instruction) -> None:
        target, kind, *rest = instruction.operands
        self.module.decorations.setdefault(target, {})[kind] = tuple(rest)

    def member_decorate(self, instruction: Instruction) -> None:
        target, member, kind, *rest = instruction.operands
        self.module.members.setdefault(target, {}).setdefault(member, {})[kind] = tuple(rest)

    # --- types ------------------------------------------------------------------------------------------

    def type_of(self, instruction: Instruction, id_: int) -> ty.Type:
        found = self.module.types.get(id_)
        if found is None:
            self.fail(instruction, f"%{id_} is no type declared before")
        return found

    def declare(self, instruction: Instruction, type_: ty.Type) -> None:
        if ty.depth_of(type_) > MAXIMUM_DEPTH:
            self.refuse(f"type %{instruction.result}, nested deeper than {MAXIMUM_DEPTH} levels,")
        if ty.leaves_of(type_) > MAXIMUM_LEAVES:
            raise errors.ResourceExhausted(
                f"{self.what}: type %{instruction.result} has {ty.leaves_of(type_)} parts, more than {MAXIMUM_LEAVES}"
            )
        self.module.types[instruction.result] = type_

    def type_void(self, instruction: Instruction) -> None:
        self.declare(instruction, ty.VOID)

    def type_bool(self, instruction: Instruction) -> None:
        self.declare(instruction, ty.BOOL)

    def type_int(self, instruction: Instruction) -> None:
        width = instruction.operands[0]
        if width not in ty.INTS:
            self.refuse(f"an integer of {width} bits")
        self.declare(instruction, ty.INTS[width])

    def type_float(self, instruction: Instruction) -> None:
        width, *encoding = instruction.operands
        if width not in ty.FLOATS or encoding:
            self.refuse(f"a float of {width} bits" + (f" in encoding {encoding[0]}" if encoding else ""))
        self.declare(instruction, ty.FLOATS[width])

    def type_vector(self, instruction: Instruction) -> None:
        element, count = self.type_of(instruction, instruction.operands[0]), instruction.operands[1]
        if not ty.is_scalar(element):
            self.fail(instruction, f"a vector of {element}")
        if not 2 <= count <= 4:
            self.refuse(f"a vector of {count} components")
        self.declare(instruction, ty.VECTORS[element, count])

    def type_array(self, instruction: Instruction) -> None:
        element = self.data_type(instruction, instruction.operands[0])
        length = self.constant_of(instruction, instruction.operands[1])
        if not isinstance(length.type, ty.Int) or not isinstance(length.value, int) or length.value < 1:
            self.fail(instruction, "an array's length must be a constant integer of 1 or more")
        leaves = ty.leaves_of(element) * length.value
        stride = self.stride(instruction)
        self.declare(instruction, ty.Array(element, length.value, stride, leaves, 1 + ty.depth_of(element)))

    def type_runtime_array(self, instruction: Instruction) -> None:
        element = self.data_type(instruction, instruction.operands[0])
        stride = self.stride(instruction)
        self.declare(instruction, ty.RuntimeArray(element, stride, 1 + ty.depth_of(element)))

    def stride(self, instruction: Instruction) -> int | None:
        found = self.module.decoration(instruction.result, Decoration.ARRAY_STRIDE)
        if found is None:
            return None
        if len(found) != 1 or not found[0]:
            self.fail(instruction, "its ArrayStride must be one number of 1 or more")
        return found[0]

    def data_type(self, instruction: Instruction, id_: int) -> ty.Type:
        found = self.type_of(instruction, id_)
        if isinstance(found, (ty.Void, ty.FunctionType)):
            self.fail(instruction, f"{found} is no type of data")
        if isinstance(found, ty.Pointer):
            self.refuse("a pointer in memory (SPIR-V capability VariablePointers)")
        return found

    def type_struct(self, instruction: Instruction) -> None:
        members = tuple(self.data_type(instruction, id_) for id_ in instruction.operands)
        decorations = self.module.members.get(instruction.result, {})
        offsets: list[int | None] = []
        for index in range(len(members)):
            offset = decorations.get(index, {}).get(Decoration.OFFSET)
            offsets.append(offset[0] if offset else None)
        if any(isinstance(member, ty.RuntimeArray) for member in members[:-1]):
            self.fail(instruction, "only the last member may be an array of unknown length")
        self.declare(instruction, ty.make_struct(instruction.result, members, tuple(offsets)))

    def type_matrix(self, instruction: Instruction) -> None:
        element = self.type_of(instruction, instruction.operands[0])
        if not isinstance(element, (ty.Int, ty.Float)):
            self.fail(instruction, f"a cooperative matrix of {element}")
        scope, rows, columns, use = (
            constant.value if isinstance(constant.type, ty.Int) and isinstance(constant.value, int) else 0
            for constant in (self.constant_of(instruction, id_) for id_ in instruction.operands[1:])
        )
        if scope != SUBGROUP:
            self.refuse(f"a cooperative matrix of scope {scope} (Subgroup, {SUBGROUP}, is)")
        if not rows or not columns or use > 2:
            self.fail(instruction, f"a cooperative matrix of {rows} rows and {columns} columns for use {use}")
        if rows * columns > MAXIMUM_ELEMENTS:
            raise errors.ResourceExhausted(
                f"{self.what}: type %{instruction.result} has {rows} x {columns} elements, more than {MAXIMUM_ELEMENTS}"
            )
        self.declare(instruction, ty.CooperativeMatrix(element, rows, columns, use))

    def type_pointer(self, instruction: Instruction) -> None:
        storage, pointee = instruction.operands
        self.declare(instruction, ty.Pointer(storage, self.type_of(instruction, pointee)))

    def type_function(self, instruction: Instruction) -> None:
        result, *parameters = (self.type_of(instruction, id_) for id_ in instruction.operands)
        self.declare(instruction, ty.FunctionType(result, tuple(parameters)))

    # --- constants and variables ------------------------------------------------------------------------

    def constant_of(self, instruction: Instruction, id_: int) -> ty.Constant:
        found = self.module.constants.get(id_)
        if found is None:
            self.fail(instruction, f"%{id_} is no constant declared before")
        return found

    def constant(self, instruction: Instruction) -> None:
        """Any of the instructions that make a constant."""
        type_ = self.data_type(instruction, instruction.type)
        value = _CONSTANTS[instruction.op](self, instruction, type_)
        self.module.constants[instruction.result] = ty.Constant(type_, value)

    def boolean(self, instruction: Instruction, type_: ty.Type) -> bool:
        if not isinstance(type_, ty.Bool):
            self.fail(instruction, f"a boolean of type {type_}")
        value = instruction.op in (Op.ConstantTrue, Op.SpecConstantTrue)
        given = self.specialized(instruction)
        return value if given is None else bool(given)

    def specialized(self, instruction: Instruction) -> int | None:
        """The value that the loader was given for a specialization constant, or None."""
        id_ = self.module.decoration(instruction.result, Decoration.SPEC_ID)
        if not id_ or instruction.op < Op.SpecConstantTrue or id_[0] >= len(self.specialization):
            return None
        return self.specialization[id_[0]] & 0xFFFFFFFF

    def number(self, instruction: Instruction, type_: ty.Type) -> int:
        if not isinstance(type_, (ty.Int, ty.Float)):
            self.fail(instruction, f"a number of type {type_}")
        words = instruction.operands
        if len(words) != (2 if type_.width == 64 else 1):
            self.fail(instruction, f"{len(words)} words for a number of type {type_}")
        given = self.specialized(instruction)
        value = given if given is not None else words[0] | (words[1] << 32 if len(words) == 2 else 0)
        return value & ((1 << type_.width) - 1)

    def composite(self, instruction: Instruction, type_: ty.Type) -> tuple[ty.Constant, ...]:
        parts = tuple(self.constant_of(instruction, id_) for id_ in instruction.operands)
        if isinstance(type_, ty.CooperativeMatrix):
            if len(parts) != 1 or parts[0].type is not type_.element:
                self.fail(instruction, f"one {type_.element} is expected for all elements of a {type_}")
            return parts
        if (
            not parts
            or ty.part_type(type_, len(parts) - 1) is None
            or ty.part_type(type_, len(parts)) is not None
        ):
            self.fail(instruction, f"{len(parts)} parts for a {type_}")
        for index, part in enumerate(parts):
            if part.type is not ty.part_type(type_, index):
                self.fail(instruction, f"part {index}, of type {part.type}, does not belong into a {type_}")
        return parts

    def nothing(self, instruction: Instruction, type_: ty.Type) -> None:
        if isinstance(type_, ty.RuntimeArray):
            self.fail(instruction, f"a constant of type {type_}")

    def computed(
        self, instruction: Instruction, type_: ty.Type
    ) -> int | bool | tuple[ty.Constant, ...] | None:
        opcode, *words = instruction.operands
        return evaluate(self.what, opcode, type_, words, self.module.constants)

    def undefined(self, instruction: Instruction) -> None:
        """OpUndef: any value will do, and zero is one that can be reproduced."""
        type_ = self.data_type(instruction, instruction.type)
        self.nothing(instruction, type_)
        self.module.constants[instruction.result] = ty.Constant(type_, None)

    def variable(self, instruction: Instruction) -> None:
        pointer = self.type_of(instruction, instruction.type)
        storage, *initializer = instruction.operands
        if not isinstance(pointer, ty.Pointer) or pointer.storage != storage:
            self.fail(instruction, f"its type {pointer} does not point to storage class {storage}")
        if len(initializer) > 1:
            self.fail(instruction, f"{len(initializer)} initializers")
        if isinstance(pointer.pointee, (ty.Pointer, ty.FunctionType, ty.Void)):
            self.refuse(f"a variable of {pointer.pointee} (SPIR-V capability VariablePointers)")
        if storage not in (Storage.FUNCTION, Storage.PRIVATE) and ty.holds_matrices(pointer.pointee):
            self.fail(instruction, "cooperative matrices can only be in variables of an invocation")
        start = self.constant_of(instruction, initializer[0]) if initializer else None
        if start and start.type is not pointer.pointee:
            self.fail(instruction, f"an initializer of type {start.type} for a {pointer.pointee}")
        variable = Variable(instruction.result, storage, pointer.pointee, start)
        if self.function is None:
            self.module.variables[variable.id] = variable
        elif storage != Storage.FUNCTION:
            self.fail(instruction, f"a variable of storage class {storage} in a function")
        else:
            self.function.variables[variable.id] = variable

    # --- functions --------------------------------------------------------------------------------------

    def begin(self, instruction: Instruction) -> None:
        type_ = self.type_of(instruction, instruction.operands[1])
        if self.function is not None or not isinstance(type_, ty.FunctionType):
            self.fail(instruction, "a function inside of a function, or without a function's type")
        if self.type_of(instruction, instruction.type) is not type_.result:
            self.fail(instruction, f"its result is {type_.result} by its type")
        self.function = Function(instruction.result, type_)

    def parameter(self, instruction: Instruction) -> None:
        function = self.function
        if function is None or function.blocks or len(function.parameters) >= len(function.type.parameters):
            self.fail(instruction, "there is no place for a parameter here")
        if (
            self.type_of(instruction, instruction.type)
            is not function.type.parameters[len(function.parameters)]
        ):
            self.fail(instruction, "its type is not the one that the function's type gives")
        function.parameters.append(instruction.result)

    def end(self, instruction: Instruction) -> None:
        function = self.function
        if function is None or self.block is not None:
            self.fail(instruction, "no function, or an unfinished block, ends here")
        if len(function.parameters) != len(function.type.parameters):
            self.fail(instruction, f"function %{function.id} lacks parameters")
        if not function.blocks:
            self.refuse(f"function %{function.id} without a body")
        self.module.functions[function.id] = function
        self.function = None

    def label(self, instruction: Instruction) -> None:
        if self.function is None or self.block is not None:
            self.fail(instruction, "a block begins outside of a function or inside of another block")
        self.block = self.function.blocks[instruction.result] = Block(instruction.result)

    def current(self, instruction: Instruction) -> Block:
        if self.block is None:
            self.fail(instruction, "it belongs into a block")
        if self.block.merge is not None and instruction.op not in _TERMINATORS:
            self.fail(instruction, "only the end of the block may follow a merge instruction")
        return self.block

    def string(self, instruction: Instruction) -> None:
        self.strings[instruction.result], _ = self.text(instruction, 0)

    def begin_line(self, instruction: Instruction) -> None:
        """OpLine, which holds up to the next one, to OpNoLine, or to the end of the block (section 3.52.2)."""
        file, line, column = instruction.operands
        self.line = f"{self.strings.get(file, f'%{file}')}:{line}:{column}"

    def end_line(self, instruction: Instruction) -> None:
        self.line = ""

    def body(self, instruction: Instruction) -> None:
        if self.line:
            self.module.lines[instruction.at] = self.line
        self.current(instruction).body.append(instruction)

    def phi(self, instruction: Instruction) -> None:
        block = self.current(instruction)
        if block.body or len(instruction.operands) % 2:
            self.fail(instruction, "a phi stands first in its block and has pairs of a value and a block")
        block.phis.append(instruction)

    def merge(self, instruction: Instruction) -> None:
        self.current(instruction).merge = instruction

    def terminate(self, instruction: Instruction) -> None:
        self.current(instruction).terminator = instruction
        self.block = None
        self.line = ""

    def ignore(self, instruction: Instruction) -> None:
        """Debug information and hints."""

    def check_entry_points(self) -> None:
        module = self.module
        if not module.entry_points:
            self.fail(None, "there is no entry point")
        for entry in module.entry_points:
            function = module.functions.get(entry.function)
            if function is None:
                self.fail(None, f"entry point {entry.name!r} is no function of the module")
            if function.parameters or not isinstance(function.type.result, ty.Void):
                self.fail(None, f"entry point {entry.name!r} takes parameters or returns something")


_Handler = Callable[[_Parser, Instruction], None]
_TERMINATORS: Final = frozenset({
    Op.Branch, Op.BranchConditional, Op.Switch, Op.Return, Op.ReturnValue, Op.Kill, Op.Unreachable,
})  # fmt: skip
_CONSTANTS: Final[dict[int, Callable[[_Parser, Instruction, ty.Type], int | bool | tuple[ty.Constant, ...] | None]]] = {
    Op.ConstantTrue: _Parser.boolean, Op.ConstantFalse: _Parser.boolean, Op.SpecConstantTrue: _Parser.boolean,
    Op.SpecConstantFalse: _Parser.boolean, Op.Constant: _Parser.number, Op.SpecConstant: _Parser.number,
    Op.ConstantComposite: _Parser.composite, Op.SpecConstantComposite: _Parser.composite,
    Op.ConstantNull: _Parser.nothing, Op.SpecConstantOp: _Parser.computed,
}  # fmt: skip
_HANDLERS: Final[dict[int, _Handler]] = {
    **dict.fromkeys(
        (Op.Nop, Op.SourceContinued, Op.Source, Op.SourceExtension, Op.MemberName, Op.ModuleProcessed,
         Op.DecorateString, Op.MemberDecorateString, Op.DecorateId), _Parser.ignore),
    **dict.fromkeys(_CONSTANTS, _Parser.constant),
    **dict.fromkeys(_TERMINATORS, _Parser.terminate),
    Op.Capability: _Parser.capability, Op.Extension: _Parser.extension, Op.ExtInstImport: _Parser.ext_inst_import,
    Op.MemoryModel: _Parser.memory_model, Op.EntryPoint: _Parser.entry_point,
    Op.ExecutionMode: _Parser.execution_mode, Op.ExecutionModeId: _Parser.execution_mode,
    Op.String: _Parser.string, Op.Line: _Parser.begin_line, Op.NoLine: _Parser.end_line,
    Op.Name: _Parser.name, Op.Decorate: _Parser.decorate, Op.MemberDecorate: _Parser.member_decorate,
    Op.TypeVoid: _Parser.type_void, Op.TypeBool: _Parser.type_bool, Op.TypeInt: _Parser.type_int,
    Op.TypeFloat: _Parser.type_float, Op.TypeVector: _Parser.type_vector, Op.TypeArray: _Parser.type_array,
    Op.TypeRuntimeArray: _Parser.type_runtime_array, Op.TypeStruct: _Parser.type_struct,
    Op.TypeCooperativeMatrixKHR: _Parser.type_matrix,
    Op.TypePointer: _Parser.type_pointer, Op.TypeFunction: _Parser.type_function, Op.Undef: _Parser.undefined,
    Op.Variable: _Parser.variable, Op.Function: _Parser.begin, Op.FunctionParameter: _Parser.parameter,
    Op.FunctionEnd: _Parser.end, Op.Label: _Parser.label, Op.Phi: _Parser.phi, Op.LoopMerge: _Parser.merge,
    Op.SelectionMerge: _Parser.merge,
}  # fmt: skip
