"""Variables, access chains, loads and stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from . import checked, ctypes, library, literals
from . import spirv_types as ty
from .emitter import Emitter, Handler
from .expressions import ATOM, BITS, UNARY, BuiltInVector, Expr, Place, Pointer
from .module import Instruction
from .opcodes import Op
from .places import BUFFERS, BufferPlace, BuiltInPlace, PushPlace, Term, VariablePlace, scaled_index

MAXIMUM_PIECES: Final = 256
"""Loads or stores that one instruction on an aggregate in a buffer may become."""
_VOLATILE: Final = 1
_VECTOR_LENGTHS: Final = frozenset({2, 4, 8, 16})


# --- access chains ------------------------------------------------------------------------------------------


def access_chain(e: Emitter, instruction: Instruction, type_: ty.Type) -> None:
    """OpAccessChain, OpInBoundsAccessChain: a pointer into what a pointer points to."""
    base = e.pointer(instruction.operands[0])
    place, at = base.place, base.type
    for id_ in instruction.operands[1:]:
        index = _index(e, instruction, id_)
        place = _step(e, instruction, place, at, index)
        at = _part(e, instruction, at, index)
    if not isinstance(type_, ty.Pointer) or type_.pointee is not at:
        e.fail(instruction, f"it leads to a {at}, but its type says {type_}")
    e.things[instruction.result] = Pointer(place, at, volatile=base.volatile)


def _index(e: Emitter, instruction: Instruction, id_: int) -> Expr:
    """An index: a name if the pointer is used more than once, or if the index was read from memory."""
    if e.uses[instruction.result] > 1:
        index = e.name(id_)
    else:
        index = e.value(id_)
        if index.memory:
            index = e.named(index)
    if not isinstance(index.type, ty.Int):
        e.fail(instruction, f"an index of type {index.type}")
    return index


def _part(e: Emitter, instruction: Instruction, at: ty.Type, index: Expr) -> ty.Type:
    """The type of what an index picks."""
    if isinstance(at, (ty.Array, ty.RuntimeArray)):
        return at.element
    if isinstance(at, (ty.Vector, ty.CooperativeMatrix)):
        return at.element
    if not isinstance(at, ty.Struct):
        e.fail(instruction, f"it takes a part of a {at}")
    member = index.bits
    if member is None or member >= len(at.members):
        e.fail(instruction, f"a member of a structure of {len(at.members)} must be a constant below that")
    return at.members[member]


def _step(e: Emitter, instruction: Instruction, place: Place, at: ty.Type, index: Expr) -> Place:
    if isinstance(place, BufferPlace):
        offset, term = _distance(e, instruction, at, index)
        return BufferPlace(place.binding, place.offset + offset, place.terms + term)
    if isinstance(place, PushPlace):
        offset, term = _distance(e, instruction, at, index)
        return PushPlace(place.offset + offset, place.terms + term)
    if isinstance(place, BuiltInPlace):
        if index.bits is None or index.bits > 2 or place.component is not None:
            e.refuse("an index into a built-in variable that is no constant from 0 to 2")
        return BuiltInPlace(place.builtin, index.bits)
    assert isinstance(place, VariablePlace)
    return _step_variable(e, instruction, place, at, index)


def _distance(e: Emitter, instruction: Instruction, at: ty.Type, index: Expr) -> tuple[int, tuple[Term, ...]]:
    """Bytes from a composite in a buffer to its part: a constant, and an index with a stride."""
    bits = index.bits
    if isinstance(at, ty.Struct):
        offset = at.offsets[bits] if bits is not None and bits < len(at.offsets) else None
        if offset is None:
            e.fail(instruction, f"member {bits} of {at} has no Offset")
        return offset, ()
    stride = ty.byte_size(at.element) if isinstance(at, ty.Vector) else getattr(at, "stride", None)
    if stride is None:
        e.fail(instruction, f"{at} has no ArrayStride")
    if bits is not None:
        return bits * stride, ()
    return 0, ((index, stride),)


def _step_variable(
    e: Emitter, instruction: Instruction, place: VariablePlace, at: ty.Type, index: Expr
) -> VariablePlace:
    lvalue, root = place.lvalue, place.root
    if isinstance(at, ty.Struct):
        member = index.bits
        if root.unwrapped and lvalue.text == root.name and lvalue.type is not root.type:
            return VariablePlace(root, Expr(root.type, lvalue.text, lvalue.level, lvalue.reads))
        text = f"{lvalue.atom}.m{member}"
        return VariablePlace(root, lvalue.retyped(_part(e, instruction, at, index), text))
    if isinstance(at, (ty.Vector, ty.CooperativeMatrix)):
        return VariablePlace(root, lvalue, index)
    text = f"{lvalue.atom}[{_plain(index)}]"
    reads = lvalue.reads + index.reads
    return VariablePlace(root, Expr(_part(e, instruction, at, index), text, ATOM, reads))


def _plain(index: Expr) -> str:
    """An index as text: a constant without its suffix."""
    return index.text if index.bits is None else str(index.bits)


# --- loads --------------------------------------------------------------------------------------------------


def load(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr | None:
    """OpLoad."""
    pointer = e.pointer(instruction.operands[0])
    if pointer.type is not type_:
        e.fail(instruction, f"a {type_} is loaded through a pointer to {pointer.type}")
    expr = read(e, instruction, pointer.place, type_)
    if pointer.volatile or (len(instruction.operands) > 1 and instruction.operands[1] & _VOLATILE):
        e.define(instruction, expr, now=True)
        e.kernel.touch_memory()
        e.kernel.volatile = True
        return None
    return expr


def read(e: Emitter, instruction: Instruction, place: Place, type_: ty.Type) -> Expr:
    """The expression that reads a ``type_`` from a place."""
    if isinstance(place, BuiltInPlace):
        return _read_builtin(e, instruction, place, type_)
    if isinstance(place, PushPlace):
        return _read_push(e, instruction, place, type_)
    if isinstance(place, BufferPlace):
        return _read_buffer(e, instruction, place, type_)
    assert isinstance(place, VariablePlace)
    lvalue = _lvalue(e, place, type_)
    return Expr(type_, lvalue.text, lvalue.level, lvalue.reads, e.kernel.memory(place.root.group))


def _read_builtin(e: Emitter, instruction: Instruction, place: BuiltInPlace, type_: ty.Type) -> Expr:
    if ty.element_of(type_) is not ty.INTS[32]:
        e.fail(instruction, f"a built-in variable of type {type_}")
    if not isinstance(type_, ty.Vector):
        return e.kernel.builtin(place.builtin, place.component or 0)
    return BuiltInVector(type_, place.builtin)


def _read_push(e: Emitter, instruction: Instruction, place: PushPlace, type_: ty.Type) -> Expr:
    """Push constants are words: a number of another width or kind is put together of them."""
    if not isinstance(type_, (ty.Int, ty.Float)):
        return _read_parts(e, instruction, place, type_)
    words = ty.byte_size(type_) // 4 or 1
    index = scaled_index(place.offset, place.terms, 4)
    known = place.offset // 4 if not place.terms else None
    if index is None or (known is not None and known + words > e.kernel.pipeline.constants):
        e.refuse(f"a push constant of type {type_} at byte {place.offset}")
    if not e.kernel.pipeline.constants:
        e.fail(instruction, "it reads push constants, of which the pipeline layout has none")
    word = f"p.constants[{index.text}]"
    if words == 2:
        high = f"p.constants[{index.text} + 1]" if known is None else f"p.constants[{known + 1}]"
        expr = Expr(ty.INTS[64], f"(ulong){high} << 32 | {word}", BITS, index.reads)
    elif ty.byte_size(type_) < 4:
        expr = Expr(type_, f"({ctypes.UNSIGNED[type_.width]}){word}", UNARY, index.reads)
    else:
        expr = Expr(ty.INTS[32], word, ATOM, index.reads)
    return reinterpret(e, expr, type_)


def _read_parts(e: Emitter, instruction: Instruction, place: Place, type_: ty.Type) -> Expr:
    """A composite that is read part by part."""
    parts = [
        read(e, instruction, part, part_type) for part, part_type in _pieces(e, instruction, place, type_)
    ]
    return literals.literal(e.source, type_, parts)


def _pieces(
    e: Emitter, instruction: Instruction, place: Place, type_: ty.Type
) -> list[tuple[Place, ty.Type]]:
    """The places and types of a composite's parts in a buffer or in push constants."""
    if ty.leaves_of(type_) > MAXIMUM_PIECES:
        e.refuse(f"a load or store of a whole {type_}, of more than {MAXIMUM_PIECES} parts,")
    if isinstance(type_, ty.Struct):
        types: Sequence[ty.Type] = type_.members
    elif isinstance(type_, ty.Array):
        types = (type_.element,) * type_.length
    elif isinstance(type_, ty.Vector):
        types = (type_.element,) * type_.count
    else:
        e.fail(instruction, f"a {type_} in a buffer")
    found = []
    for i, part in enumerate(types):
        index = Expr(ty.INTS[32], f"{i}u", constant=ty.Constant(ty.INTS[32], i))
        found.append((_step(e, instruction, place, type_, index), part))
    return found


def _read_buffer(e: Emitter, instruction: Instruction, place: BufferPlace, type_: ty.Type) -> Expr:
    access = _buffer_access(e, instruction, place, type_)
    if access is None:
        return _read_parts(e, instruction, place, type_)
    unit, count, index, scaled = access
    view = e.kernel.view(place.binding)
    memory = e.kernel.memory(BUFFERS)
    if count == 1:
        expr = Expr(unit, f"{view}[{index.text}]", ATOM, index.reads, memory)
    else:
        load = library.vector_load(e.source, ctypes.scalar_name(unit, half=e.source.half), count)
        text = f"{load}({index.text}, {view})" if scaled else f"{load}(0, {_moved(view, index)})"
        unit_type = ty.VECTORS[unit, count] if count <= 4 else unit
        expr = Expr(unit_type, text, ATOM, index.reads, memory)
    result = reinterpret(e, expr, type_)
    if e.kernel.recorder is not None:
        return result.retyped(type_, checked.guarded(e, index, type_, result.text))
    return result


def _moved(view: str, index: Expr) -> str:
    return f"{view} + {index.at(12)}" if index.text != "0" else view


def _buffer_access(
    e: Emitter, instruction: Instruction, place: BufferPlace, type_: ty.Type
) -> tuple[ty.Scalar, int, Expr, bool] | None:
    """How a scalar or vector in a buffer is reached: unit, how many units, index, and whether it counts all.

    None says that it has to be taken apart. Vectors are read and written by vload and vstore, which ask for no
    more alignment than their elements have.
    """
    if not isinstance(type_, (ty.Int, ty.Float, ty.Vector)):
        return None
    unit = place.binding.unit(half=e.source.half)
    size = ty.byte_size(unit)
    total = ty.byte_size(ty.element_of(type_)) * ty.count_of(type_)
    count = total // size
    if count > 1 and count not in _VECTOR_LENGTHS and not (count == 3 and ty.count_of(type_) == 3):
        return None
    index = scaled_index(place.offset, place.terms, size)
    if index is None:
        e.fail(instruction, f"a {type_} at an address that is no multiple of {size} bytes")
    if e.kernel.recorder is not None:
        return unit, count, checked.index(e, instruction, place, type_, size), False
    whole_index = scaled_index(place.offset, place.terms, total)
    return (unit, count, index, False) if whole_index is None else (unit, count, whole_index, True)


def reinterpret(e: Emitter, expr: Expr, type_: ty.Type) -> Expr:
    """The same bits as another type of the same size (booleans have no bits)."""
    name = e.source.type(type_)
    if expr.type is type_ or e.source.type(expr.type) == name:
        return expr.retyped(type_, expr.text, expr.level)
    return expr.retyped(type_, f"as_{name}({expr.text})")


# --- stores -------------------------------------------------------------------------------------------------


def store(e: Emitter, instruction: Instruction, _type: ty.Type) -> None:
    """OpStore."""
    pointer = e.pointer(instruction.operands[0])
    place = pointer.place
    if isinstance(place, VariablePlace) and place.root.group is None:
        return  # The variable became a table of what is stored here.
    value = e.value(instruction.operands[1])
    if value.type is not pointer.type:
        e.fail(instruction, f"a {value.type} is stored through a pointer to {pointer.type}")
    write(e, instruction, place, value)


def write(e: Emitter, instruction: Instruction, place: Place, value: Expr) -> None:
    """Emit the store of a value to a place."""
    if isinstance(place, VariablePlace):
        lvalue = _lvalue(e, place, value.type)
        e.statement(f"{lvalue.text} = {value.text};", lvalue, value)
        e.kernel.touch_memory(place.root.group)
    elif isinstance(place, BufferPlace):
        _write_buffer(e, instruction, place, value)
    else:
        e.fail(instruction, "a store to what can only be read")


def _write_buffer(e: Emitter, instruction: Instruction, place: BufferPlace, value: Expr) -> None:
    access = _buffer_access(e, instruction, place, value.type)
    if access is None:
        value = e.named(value)
        for i, (part, part_type) in enumerate(_pieces(e, instruction, place, value.type)):
            write(e, instruction, part, member(e, value, i, part_type))
        return
    unit, count, index, scaled = access
    view = e.kernel.view(place.binding)
    if count == 1:
        given = reinterpret(e, value, unit)
        e.statement(checked.guarded_statement(index, f"{view}[{index.text}] = {given.text};"), index, given)
    else:
        given = _as_units(e, value, unit, count)
        where = f"{index.text}, {view}" if scaled else f"0, {_moved(view, index)}"
        store = library.vector_store(e.source, ctypes.scalar_name(unit, half=e.source.half), count)
        text = checked.guarded_statement(index, f"{store}({given.text}, {where});")
        e.statement(text, index, given)
    e.kernel.touch_memory(BUFFERS)


def _as_units(e: Emitter, value: Expr, unit: ty.Scalar, count: int) -> Expr:
    if count <= 4:
        return reinterpret(e, value, ty.VECTORS[unit, count])
    return value.retyped(unit, f"as_{ctypes.scalar_name(unit, half=e.source.half)}{count}({value.text})")


def member(e: Emitter, value: Expr, index: int, type_: ty.Type) -> Expr:
    """Part ``index`` of a composite value."""
    at = value.type
    if isinstance(value, BuiltInVector):
        return e.kernel.builtin(value.builtin, index)
    if value.parts is not None:
        return value.parts[index]
    if value.constant is not None:
        return literals.constant(e.source, value.constant.part(index, type_))
    if ty.is_scalar(at):
        return value
    if isinstance(at, ty.Vector):
        picked = value.retyped(type_, f"{value.atom}.{ctypes.component(index, at.count)}")
        if isinstance(at.element, ty.Bool):
            return picked.retyped(type_, f"{picked.text} != 0", 9)
        return picked
    if isinstance(at, ty.CooperativeMatrix):
        share = e.source.share(at)
        return member(e, value.retyped(share, value.text, value.level), index, type_)
    text = f"{value.atom}.e[{index}]" if isinstance(at, ty.Array) else f"{value.atom}.m{index}"
    return whole(e, value.retyped(type_, text), "__private")


def whole(e: Emitter, lvalue: Expr, space: str) -> Expr:
    """An array in memory as a value: C's arrays are none, a structure around one is."""
    if not isinstance(lvalue.type, ty.Array):
        return lvalue
    return lvalue.retyped(lvalue.type, f"*({space} {e.source.type(lvalue.type)} *)&{lvalue.atom}", UNARY)


def _lvalue(e: Emitter, place: VariablePlace, type_: ty.Type) -> Expr:
    """The C lvalue of a place in a variable."""
    lvalue, root = place.lvalue, place.root
    if place.component is not None:
        return _component(e, place, type_)
    if root.unwrapped and lvalue.text == root.name and lvalue.type is not root.type:
        return lvalue.retyped(type_, f"*({root.space} {e.source.type(type_)} *)&{lvalue.atom}", UNARY)
    return whole(e, Expr(type_, lvalue.text, lvalue.level, lvalue.reads), root.space)


def _component(e: Emitter, place: VariablePlace, type_: ty.Type) -> Expr:
    """A component of a vector variable, by its letter or, for an index, through a pointer to scalars."""
    lvalue, index = place.lvalue, place.component
    assert index is not None
    if isinstance(type_, ty.Bool):
        e.refuse("a pointer to a component of a vector of booleans")
    if index.bits is not None and index.bits < 4 and isinstance(lvalue.type, ty.Vector):
        return lvalue.retyped(type_, f"{lvalue.atom}.{ctypes.COMPONENTS[index.bits]}")
    name = ctypes.scalar_name(type_, half=e.source.half)
    text = f"(({place.root.space} {name} *)&{lvalue.atom})[{index.text}]"
    return Expr(type_, text, ATOM, lvalue.reads + index.reads)


def copy_memory(e: Emitter, instruction: Instruction, _type: ty.Type) -> None:
    """OpCopyMemory."""
    target, source = (e.pointer(id_) for id_ in instruction.operands[:2])
    if target.type is not source.type:
        e.fail(instruction, f"a {source.type} is copied to a {target.type}")
    write(e, instruction, target.place, e.named(read(e, instruction, source.place, source.type)))


def array_length(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpArrayLength: how many elements of a block's last member the binding has room for."""
    pointer, number = e.pointer(instruction.operands[0]), instruction.operands[1]
    place, block = pointer.place, pointer.type
    if not isinstance(place, BufferPlace) or place.terms or not isinstance(block, ty.Struct):
        e.refuse("OpArrayLength of what is no block of a buffer")
    array = block.members[number] if number < len(block.members) else None
    offset = block.offsets[number] if array is not None else None
    if (
        not isinstance(array, ty.RuntimeArray)
        or not array.stride
        or offset is None
        or type_ is not ty.INTS[32]
    ):
        e.fail(instruction, f"member {number} of {block} must be an array of unknown length with a layout")
    length = e.kernel.length(place.binding)
    start = place.offset + offset
    rest = f"({length} - min({length}, {start}ul))" if start else length
    return Expr(type_, f"(uint)({rest} / {array.stride})", UNARY)


TABLE: Final[dict[int, Handler]] = {
    Op.AccessChain: access_chain,
    Op.InBoundsAccessChain: access_chain,
    Op.Load: load,
    Op.Store: store,
    Op.CopyMemory: copy_memory,
    Op.ArrayLength: array_length,
}
