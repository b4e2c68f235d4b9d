"""Vectors, structures and arrays as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from . import ctypes, literals
from . import spirv_types as ty
from .emitter import Emitter, Handler
from .expressions import ATOM, BuiltInVector, Expr, Parts, Pointer, Value
from .module import Instruction
from .op_memory import member
from .opcodes import Op

_UNDEFINED: Final = 0xFFFFFFFF


def construct(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpCompositeConstruct; a vector may be made of vectors."""
    operands = e.operands(instruction)
    if isinstance(type_, ty.Vector):
        given = sum(ty.count_of(o.type) for o in operands)
        fits = given == type_.count and all(ty.element_of(o.type) is type_.element for o in operands)
        e.check(instruction, fits, f"{type_.count} components of {type_.element}")
        return _vector(e, type_, operands)
    types = [ty.part_type(type_, i) for i in range(len(operands))]
    fits = ty.part_type(type_, len(operands)) is None and all(
        o.type is t for o, t in zip(operands, types, strict=True)
    )  # fmt: skip
    e.check(instruction, fits and bool(operands), f"the parts of a {type_}")
    if any(isinstance(operand.type, ty.Array) for operand in operands):
        e.refuse(f"a value of type {type_} made of arrays")
    return literals.literal(e.source, type_, operands)


def _vector(e: Emitter, type_: ty.Vector, operands: Sequence[Expr]) -> Expr:
    expr = literals.literal(e.source, type_, operands)
    if len(operands) == type_.count and all(_cheap(operand) for operand in operands):
        expr.parts = tuple(operands)
    return expr


def _cheap(expr: Expr) -> bool:
    """Whether an expression may be written twice."""
    return expr.constant is not None or expr.is_name


def extract(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpCompositeExtract."""
    source, *path = instruction.operands
    thing = e.thing(source)
    if isinstance(thing, Parts) and path:
        if path[0] >= len(thing.members):
            e.fail(instruction, f"part {path[0]} of {thing.type}")
        found: Expr = e.take(thing.members[path[0]])
        path = path[1:]
    else:
        found = _for_parts(e, source)
    for index in path:
        part = _part(e, found.type, index)
        if part is None:
            e.fail(instruction, f"part {index} of a {found.type}")
        found = member(e, found, index, part)
    e.check(instruction, found.type is type_, f"a part of type {type_}")
    return found


def _for_parts(e: Emitter, id_: int) -> Expr:
    """A composite to take parts of: known parts as they are, anything else under a name."""
    thing = e.thing(id_)
    if isinstance(thing, BuiltInVector) or (
        isinstance(thing, Expr) and (thing.parts is not None or thing.constant is not None)
    ):
        return thing
    expr = thing.expr if isinstance(thing, Value) else None
    if expr is not None and expr.parts is not None and not expr.memory:
        return expr
    return e.name(id_)


def insert(e: Emitter, instruction: Instruction, type_: ty.Type) -> None:
    """OpCompositeInsert: a copy with one part set."""
    part, whole = e.value(instruction.operands[0]), e.value(instruction.operands[1])
    e.check(instruction, whole.type is type_, f"a {type_}")
    at, path = type_, ""
    for depth, index in enumerate(instruction.operands[2:]):
        inner = _part(e, at, index)
        if inner is None:
            e.fail(instruction, f"part {index} of a {at}")
        path += _path(e, at, index, outermost=depth == 0)
        last, at = at, inner
    e.check(
        instruction,
        part.type is at and at is not type_ and not isinstance(at, ty.Array),
        f"a part of type {at}",
    )
    local = e.kernel.local(f"v{instruction.result}", e.source.type(type_))
    e.assign(local, whole)
    result = Expr(type_, local.name, ATOM, (local,))
    boolean = isinstance(last, ty.Vector) and isinstance(last.element, ty.Bool)
    e.statement(f"{local.name}{path} = {literals.mask(part) if boolean else part.text};", result, part)
    e.things[instruction.result] = result


def _part(e: Emitter, type_: ty.Type, index: int) -> ty.Type | None:
    """The type of a part; of a cooperative matrix there are as many as an invocation has."""
    if isinstance(type_, ty.CooperativeMatrix) and index >= ty.count_of(e.source.share(type_)):
        return None
    return ty.part_type(type_, index)


def _path(e: Emitter, type_: ty.Type, index: int, *, outermost: bool) -> str:
    if isinstance(type_, ty.Vector):
        return f".{ctypes.COMPONENTS[index]}"
    if isinstance(type_, ty.Struct):
        return f".m{index}"
    if isinstance(type_, ty.CooperativeMatrix):
        count = ty.count_of(e.source.share(type_))
        return f".{ctypes.component(index, count)}" if count > 1 else ""
    return f".e[{index}]" if outermost else f"[{index}]"


def shuffle(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpVectorShuffle: components of two vectors by number; an undefined one becomes 0."""
    a, b = (_for_parts(e, id_) for id_ in instruction.operands[:2])
    numbers = instruction.operands[2:]
    vectors = isinstance(a.type, ty.Vector) and isinstance(b.type, ty.Vector) and isinstance(type_, ty.Vector)
    e.check(
        instruction,
        vectors and ty.element_of(a.type) is ty.element_of(b.type) is ty.element_of(type_),
        "vectors",
    )
    assert isinstance(type_, ty.Vector)
    first = ty.count_of(a.type)
    total = first + ty.count_of(b.type)
    if len(numbers) != type_.count or any(n >= total and n != _UNDEFINED for n in numbers):
        e.fail(instruction, f"component numbers {numbers} for {total} components to make {type_}")
    for source, start in ((a, 0), (b, first)):
        if (
            source.parts is None
            and not isinstance(source, BuiltInVector)
            and all(start <= n < start + ty.count_of(source.type) for n in numbers)
        ):
            letters = "".join(ctypes.COMPONENTS[n - start] for n in numbers)
            same = letters == "xyzw"[: ty.count_of(source.type)] and source.type is type_
            return source if same else source.retyped(type_, f"{source.atom}.{letters}")
    zero = literals.constant(e.source, ty.Constant(type_.element, None))
    parts = [
        zero if n == _UNDEFINED else member(e, a, n, type_.element) if n < first
        else member(e, b, n - first, type_.element)
        for n in numbers
    ]  # fmt: skip
    return _vector(e, type_, parts)


def extract_dynamic(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpVectorExtractDynamic."""
    vector, index = e.operands(instruction)
    e.check(
        instruction, isinstance(vector.type, ty.Vector) and vector.type.element is type_
        and isinstance(index.type, ty.Int), "a vector and an integer",
    )  # fmt: skip
    name, element = e.source.type(vector.type), e.source.type(type_)
    letters = ctypes.COMPONENTS[1 : ty.count_of(vector.type)]
    choice = "".join(f"i == {n} ? v.{letter} : " for n, letter in enumerate(letters, 1)) + "v.x"
    helper = e.source.helper(
        "component", f"static {element} NAME({name} v, uint i)\n{{\n    return {choice};\n}}", name
    )
    text = f"{helper}({vector.text}, (uint){index.operand})"
    return Expr(type_, text, ATOM, vector.reads + index.reads, vector.memory + index.memory)


def insert_dynamic(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpVectorInsertDynamic."""
    vector, part, index = e.operands(instruction)
    e.check(
        instruction, isinstance(type_, ty.Vector) and vector.type is type_ and part.type is type_.element
        and isinstance(index.type, ty.Int), "a vector, a component and an integer",
    )  # fmt: skip
    name, element = e.source.type(type_), e.source.type(part.type)
    given = "-(int)x" if isinstance(part.type, ty.Bool) else "x"
    cases = "".join(
        f"    if (i == {n})\n        v.{letter} = {given};\n"
        for n, letter in enumerate(ctypes.COMPONENTS[: ty.count_of(type_)])
    )
    helper = e.source.helper(
        "with_component",
        f"static {name} NAME({name} v, {element} x, uint i)\n{{\n{cases}    return v;\n}}",
        name,
    )
    text = f"{helper}({vector.text}, {part.text}, (uint){index.operand})"
    reads = vector.reads + part.reads + index.reads
    return Expr(type_, text, ATOM, reads, vector.memory + part.memory + index.memory)


def copy(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr | None:
    """OpCopyObject."""
    thing = e.thing(instruction.operands[0])
    if isinstance(thing, (Pointer, Parts)):
        e.things[instruction.result] = thing
        return None
    value = e.value(instruction.operands[0])
    e.check(instruction, value.type is type_, f"a {type_}")
    return value


TABLE: Final[dict[int, Handler]] = {
    Op.CompositeConstruct: construct,
    Op.CompositeExtract: extract,
    Op.CompositeInsert: insert,
    Op.VectorShuffle: shuffle,
    Op.VectorExtractDynamic: extract_dynamic,
    Op.VectorInsertDynamic: insert_dynamic,
    Op.CopyObject: copy,
}
