"""Barriers and atomics, with the functions of OpenCL 1.2.

Those atomics are relaxed; what an atomic orders besides (its memory semantics) becomes fences around it.
"""

from __future__ import annotations

from typing import Final

from . import checked, ctypes
from . import spirv_types as ty
from .emitter import Emitter, Handler
from .expressions import ATOM, UNARY, Expr, Pointer
from .module import Instruction
from .numbers import width_of
from .op_memory import reinterpret
from .opcodes import Op
from .places import BUFFERS, BufferPlace, VariablePlace, scaled_index

_WORKGROUP: Final = 2
_SUBGROUP: Final = 3
_INVOCATION: Final = 4
_GLOBAL: Final = 0x40 | 0x200
_LOCAL: Final = 0x100
_ACQUIRE: Final = 0x2 | 0x8 | 0x10
_RELEASE: Final = 0x4 | 0x8 | 0x10


def _number(e: Emitter, instruction: Instruction, id_: int) -> int:
    """A scope or semantics operand, which must be constant."""
    constant = e.module.constants.get(id_)
    if constant is None or not isinstance(constant.type, ty.Int) or isinstance(constant.value, tuple):
        e.fail(instruction, f"%{id_} is no constant integer")
    return int(constant.value or 0)


def _fences(semantics: int) -> str:
    """The memory that semantics are about, as OpenCL's flags."""
    flags = []
    if semantics & _LOCAL:
        flags.append("CLK_LOCAL_MEM_FENCE")
    if semantics & _GLOBAL:
        flags.append("CLK_GLOBAL_MEM_FENCE")
    return " | ".join(flags)


def control_barrier(e: Emitter, instruction: Instruction, _type: ty.Type) -> None:
    """OpControlBarrier."""
    execution, _, semantics = (_number(e, instruction, id_) for id_ in instruction.operands)
    if execution not in (_WORKGROUP, _SUBGROUP, _INVOCATION):
        e.refuse(f"a barrier of scope {execution}")
    if execution == _SUBGROUP and (e.depth or not e.kernel.subgroups.uniformity.is_uniform(e.block)):
        e.refuse("a barrier of a subgroup where the invocations of a workgroup may be apart")
    if execution != _INVOCATION:
        e.statement(f"barrier({_fences(semantics) or 'CLK_LOCAL_MEM_FENCE'});")
    e.kernel.touch_memory()


def memory_barrier(e: Emitter, instruction: Instruction, _type: ty.Type) -> None:
    """OpMemoryBarrier."""
    _fence(e, _number(e, instruction, instruction.operands[1]))


def _fence(e: Emitter, semantics: int) -> None:
    flags = _fences(semantics)
    text = f"mem_fence({flags});"
    if flags and not (e.scope.items and e.scope.items[-1].text == text):
        e.statement(text)
    e.kernel.touch_memory()


# --- atomics ------------------------------------------------------------------------------------------------


def _address(e: Emitter, instruction: Instruction, pointer: Pointer, name: str) -> tuple[str, Expr, str]:
    """The address of an atomic as C, the expression whose variables it names, and its address space."""
    place = pointer.place
    if isinstance(place, BufferPlace):
        size = ty.byte_size(place.binding.unit(half=e.source.half))
        index = scaled_index(place.offset, place.terms, size)
        if index is None:
            e.fail(instruction, f"its address is no multiple of {size} bytes")
        if e.kernel.recorder is not None:
            index = checked.index(e, instruction, place, pointer.type, size)
        text = f"&{e.kernel.view(place.binding)}[{index.text}]"
        return f"(volatile __global {name} *){text}", index, "__global"
    if isinstance(place, VariablePlace) and place.root.space == "__local" and place.component is None:
        lvalue = place.lvalue
        return f"(volatile __local {name} *)&{lvalue.atom}", lvalue, "__local"
    e.refuse("an atomic on memory that is neither a buffer nor shared by a workgroup")


def _touch(e: Emitter, pointer: Pointer) -> None:
    place = pointer.place
    e.kernel.touch_memory(place.root.group if isinstance(place, VariablePlace) else BUFFERS)


def _prepare(
    e: Emitter, instruction: Instruction, type_: ty.Type, id_: int, *, narrowest: int = 32
) -> Pointer:
    pointer = e.pointer(id_)
    number = isinstance(type_, (ty.Int, ty.Float)) and type_.width >= narrowest
    if pointer.type is not type_ or not number:
        expected = "8 to 64" if narrowest == 8 else "32 and 64"
        e.fail(instruction, f"an atomic of type {type_} on a {pointer.type}; {expected} bits are expected")
    return pointer


def _function(e: Emitter, width: int, name: str, *, extended: bool = False) -> str:
    """The name of an atomic function, and the extension that the 64-bit ones need."""
    if width == 32:
        return f"atomic_{name}"
    e.source.need("cl_khr_int64_extended_atomics" if extended else "cl_khr_int64_base_atomics")
    return f"atom_{name}"


def _finish(
    e: Emitter,
    instruction: Instruction,
    type_: ty.Type,
    text: str,
    names: list[Expr],
    pointer: Pointer,
    semantics: int,
) -> None:
    """Emit an atomic: a statement, or a variable for its result if that is used. The first name is its address."""
    text = checked.guarded(e, names[0], type_, text)
    if semantics & _RELEASE:
        _fence(e, semantics)
    if instruction.result and e.uses[instruction.result]:
        reads = tuple(local for name in names for local in name.reads)
        e.define(instruction, Expr(type_, text, reads=reads), now=True)
    else:
        e.statement(f"{text};", *names)
    _touch(e, pointer)
    if semantics & _ACQUIRE:
        _fence(e, semantics)


def _integer(name: str, *, is_signed: bool = False, extended: bool = False, operand: bool = True) -> Handler:
    def atomic(e: Emitter, instruction: Instruction, type_: ty.Type) -> None:
        pointer = _prepare(e, instruction, type_, instruction.operands[0])
        semantics = _number(e, instruction, instruction.operands[2])
        e.check(instruction, isinstance(type_, ty.Int), "an integer")
        width = width_of(type_)
        element = (ctypes.SIGNED if is_signed else ctypes.UNSIGNED)[width]
        address, index, _ = _address(e, instruction, pointer, element)
        arguments, names = [address], [index]
        if operand:
            value = e.value(instruction.operands[3])
            e.check(instruction, value.type is type_, f"a {type_}")
            arguments.append(f"({element}){value.operand}" if is_signed else value.text)
            names.append(value)
        text = f"{_function(e, width, name, extended=extended)}({', '.join(arguments)})"
        if is_signed:
            text = f"({ctypes.UNSIGNED[width]}){text}"
        _finish(e, instruction, type_, text, names, pointer, semantics)

    return atomic


# What becomes of the bits of a 32-bit word when a narrow number in it is changed.
_IN_WORD: Final = {"and": "~(((uint)x ^ MASK) << at)", "or": "(uint)x << at", "xor": "(uint)x << at"}


def _bitwise(name: str) -> Handler:
    """OpAtomicAnd, OpAtomicOr and OpAtomicXor.

    iree-compile stores elements of 4 bits by an "and" and an "or" of their byte, and OpenCL has no atomics of 8 and 16
    bits: these change the word that the number lies in.
    """
    wide = _integer(name, extended=True)

    def atomic(e: Emitter, instruction: Instruction, type_: ty.Type) -> None:
        if not isinstance(type_, ty.Int) or type_.width >= 32:
            wide(e, instruction, type_)
            return
        pointer = _prepare(e, instruction, type_, instruction.operands[0], narrowest=8)
        semantics = _number(e, instruction, instruction.operands[2])
        value = e.value(instruction.operands[3])
        e.check(instruction, value.type is type_, f"a {type_}")
        address, index, space = _address(e, instruction, pointer, ctypes.UNSIGNED[type_.width])
        helper = _narrow_helper(e, name, type_.width, space)
        _finish(
            e, instruction, type_, f"{helper}({address}, {value.text})", [index, value], pointer, semantics
        )

    return atomic


def _narrow_helper(e: Emitter, name: str, width: int, space: str) -> str:
    """A function that changes 8 or 16 bits of memory; numbers are little-endian, as everywhere in halgpu."""
    t = ctypes.UNSIGNED[width]
    operand = _IN_WORD[name].replace("MASK", hex(2**width - 1))
    return e.source.helper(
        f"narrow_atomic_{name}",
        f"static {t} NAME(volatile {space} {t} *p, {t} x)\n{{\n"
        f"    volatile {space} uint *word = (volatile {space} uint *)((uintptr_t)p & ~(uintptr_t)3);\n"
        f"    uint at = (uint)((uintptr_t)p & 3) * 8;\n"
        f"    return ({t})(atomic_{name}(word, {operand}) >> at);\n}}", t, space.strip("_"),
    )  # fmt: skip


def _as_bits(type_: ty.Type) -> ty.Int:
    return ty.INTS[width_of(type_)]


def exchange(e: Emitter, instruction: Instruction, type_: ty.Type) -> None:
    """OpAtomicExchange, of floats by their bits."""
    pointer = _prepare(e, instruction, type_, instruction.operands[0])
    value = e.value(instruction.operands[3])
    e.check(instruction, value.type is type_, f"a {type_}")
    _exchange(e, instruction, type_, pointer, value, instruction.operands[2])


def store(e: Emitter, instruction: Instruction, _type: ty.Type) -> None:
    """OpAtomicStore: an exchange whose result nobody sees."""
    value = e.value(instruction.operands[3])
    pointer = _prepare(e, instruction, value.type, instruction.operands[0])
    _exchange(e, instruction, value.type, pointer, value, instruction.operands[2])


def _exchange(
    e: Emitter, instruction: Instruction, type_: ty.Type, pointer: Pointer, value: Expr, semantics: int
) -> None:
    bits = _as_bits(type_)
    address, index, _ = _address(e, instruction, pointer, ctypes.UNSIGNED[bits.width])
    given = reinterpret(e, value, bits)
    text = f"{_function(e, bits.width, 'xchg')}({address}, {given.text})"
    result = reinterpret(e, Expr(bits, text), type_).text
    _finish(e, instruction, type_, result, [index, given], pointer, _number(e, instruction, semantics))


def load(e: Emitter, instruction: Instruction, type_: ty.Type) -> None:
    """OpAtomicLoad: OpenCL 1.2 has none, so 0 is added; memory that the kernel only reads is just read."""
    pointer = _prepare(e, instruction, type_, instruction.operands[0])
    place, semantics = pointer.place, _number(e, instruction, instruction.operands[2])
    bits = _as_bits(type_)
    address, index, _ = _address(e, instruction, pointer, ctypes.UNSIGNED[bits.width])
    if isinstance(place, BufferPlace) and not place.binding.writes:
        expr = Expr(bits, f"*({address})", UNARY, index.reads)
    else:
        expr = Expr(bits, f"{_function(e, bits.width, 'add')}({address}, 0)", ATOM, index.reads)
    text = checked.guarded(e, index, type_, reinterpret(e, expr, type_).text)
    e.define(instruction, Expr(type_, text, UNARY, index.reads), now=True)
    if semantics & _ACQUIRE:
        _fence(e, semantics)


def compare_exchange(e: Emitter, instruction: Instruction, type_: ty.Type) -> None:
    """OpAtomicCompareExchange."""
    target, _, equal, _, value_id, comparator_id = instruction.operands
    pointer = _prepare(e, instruction, type_, target)
    value, comparator = e.value(value_id), e.value(comparator_id)
    e.check(instruction, isinstance(type_, ty.Int) and value.type is comparator.type is type_, "integers")
    address, index, _ = _address(e, instruction, pointer, ctypes.UNSIGNED[width_of(type_)])
    text = f"{_function(e, width_of(type_), 'cmpxchg')}({address}, {comparator.text}, {value.text})"
    names = [index, value, comparator]
    _finish(e, instruction, type_, text, names, pointer, _number(e, instruction, equal))


def _float(operation: str) -> Handler:
    """Atomics of floats, by comparing and exchanging their bits."""

    def atomic(e: Emitter, instruction: Instruction, type_: ty.Type) -> None:
        pointer = _prepare(e, instruction, type_, instruction.operands[0])
        semantics = _number(e, instruction, instruction.operands[2])
        value = e.value(instruction.operands[3])
        e.check(instruction, isinstance(type_, ty.Float) and value.type is type_, "a float")
        bits = ctypes.UNSIGNED[width_of(type_)]
        address, index, space = _address(e, instruction, pointer, bits)
        t = e.source.type(type_)
        swap = _function(e, width_of(type_), "cmpxchg")
        new = {"add": f"as_{t}(seen) + x", "min": f"fmin(as_{t}(seen), x)", "max": f"fmax(as_{t}(seen), x)"}[
            operation
        ]
        helper = e.source.helper(
            f"float_atomic_{operation}",
            f"static {t} NAME(volatile {space} {bits} *p, {t} x)\n{{\n"
            f"    {bits} seen, old = {swap}(p, 0, 0);\n    do {{\n"
            f"        seen = old;\n        old = {swap}(p, seen, as_{bits}({new}));\n"
            f"    }} while (old != seen);\n    return as_{t}(old);\n}}", t, space.strip("_"),
        )  # fmt: skip
        _finish(
            e, instruction, type_, f"{helper}({address}, {value.text})", [index, value], pointer, semantics
        )

    return atomic


TABLE: Final[dict[int, Handler]] = {
    Op.ControlBarrier: control_barrier,
    Op.MemoryBarrier: memory_barrier,
    Op.AtomicLoad: load,
    Op.AtomicStore: store,
    Op.AtomicExchange: exchange,
    Op.AtomicCompareExchange: compare_exchange,
    Op.AtomicIIncrement: _integer("inc", operand=False),
    Op.AtomicIDecrement: _integer("dec", operand=False),
    Op.AtomicIAdd: _integer("add"),
    Op.AtomicISub: _integer("sub"),
    Op.AtomicUMin: _integer("min", extended=True),
    Op.AtomicUMax: _integer("max", extended=True),
    Op.AtomicSMin: _integer("min", is_signed=True, extended=True),
    Op.AtomicSMax: _integer("max", is_signed=True, extended=True),
    Op.AtomicAnd: _bitwise("and"),
    Op.AtomicOr: _bitwise("or"),
    Op.AtomicXor: _bitwise("xor"),
    Op.AtomicFAddEXT: _float("add"),
    Op.AtomicFMinEXT: _float("min"),
    Op.AtomicFMaxEXT: _float("max"),
}
