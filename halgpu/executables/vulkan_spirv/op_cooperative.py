"""Cooperative matrices (SPV_KHR_cooperative_matrix), emulated: OpenCL has none.

Each invocation has some elements of a matrix (matrices.py says which) in a vector of its own. A product needs those
of others: they exchange A and B through workgroup memory, between barriers, so that it is translated only where all
invocations of a workgroup come by together (see uniformity.py).
"""

from __future__ import annotations

from typing import Final

from . import ctypes, library, literals, op_arithmetic, op_composite, op_convert, op_memory, op_subgroup
from . import spirv_types as ty
from .emitter import Emitter, Handler
from .expressions import ADD, ATOM, MULTIPLY, Expr, Pointer
from .module import Instruction
from .numbers import emulated, is_float, is_int, shorten, widen
from .opcodes import Op, op_name
from .places import BufferPlace, VariablePlace
from .tree import If

_ROW_MAJOR, _COLUMN_MAJOR = 0, 1
_A, _B, _ACCUMULATOR = 0, 1, 2
_SIGNED_A, _SIGNED_B, _SIGNED_C, _SIGNED_RESULT, _SATURATING = 1, 2, 4, 8, 16
_BARRIER: Final = "barrier(CLK_LOCAL_MEM_FENCE);"


# --- an invocation's elements -------------------------------------------------------------------------------


def _matrix(e: Emitter, instruction: Instruction, id_: int) -> tuple[Expr, ty.CooperativeMatrix]:
    """The value of an operand that must be a matrix, and its type."""
    expr = e.value(id_)
    if not isinstance(expr.type, ty.CooperativeMatrix):
        e.fail(instruction, f"a {expr.type} where a cooperative matrix belongs")
    return expr, expr.type


def _own(e: Emitter, matrix: Expr) -> Expr:
    """A matrix as the number or vector that an invocation has of it."""
    assert isinstance(matrix.type, ty.CooperativeMatrix)
    return matrix.retyped(e.source.share(matrix.type), matrix.text, matrix.level)


def _whole(own: Expr, type_: ty.CooperativeMatrix) -> Expr:
    """What an invocation has of a matrix, as a matrix again."""
    return own.retyped(type_, own.text, own.level)


def _elementwise(handler: Handler) -> Handler:
    """Extend an instruction on numbers to matrices."""

    def compute(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr | None:
        if not isinstance(type_, ty.CooperativeMatrix):
            return handler(e, instruction, type_)
        operands = [_matrix(e, instruction, id_) for id_ in instruction.operands]
        for _, given in operands:
            same = (given.rows, given.columns, given.use) == (type_.rows, type_.columns, type_.use)
            e.check(instruction, same, f"matrices of the shape and use of a {type_}")
        return _apply(e, handler, instruction, type_, [_own(e, operand) for operand, _ in operands])

    return compute


def _apply(
    e: Emitter, handler: Handler, instruction: Instruction, type_: ty.CooperativeMatrix, operands: list[Expr]
) -> Expr:
    """What an instruction makes of numbers or vectors, given to it under ids that no module has."""
    ids = tuple(range(-len(operands), 0))
    e.things.update(zip(ids, operands, strict=True))
    inner = Instruction(instruction.op, instruction.type, 0, ids, instruction.at)
    expr = handler(e, inner, e.source.share(type_))
    assert expr is not None
    return _whole(expr, type_)


def times_scalar(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpMatrixTimesScalar."""
    if not isinstance(type_, ty.CooperativeMatrix):
        e.refuse("OpMatrixTimesScalar of what is no cooperative matrix")
    matrix, given = _matrix(e, instruction, instruction.operands[0])
    factor = e.value(instruction.operands[1])
    e.check(instruction, given is type_ and factor.type is type_.element, "a matrix and a number of its type")
    multiply = op_arithmetic.TABLE[Op.FMul if is_float(type_.element) else Op.IMul]
    return _apply(e, multiply, instruction, type_, [_own(e, matrix), _splat(e, factor, type_)])


def _splat(e: Emitter, value: Expr, type_: ty.CooperativeMatrix) -> Expr:
    share = e.source.share(type_)
    return literals.literal(e.source, share, [value]) if isinstance(share, ty.Vector) else value


def construct(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr | None:
    """OpCompositeConstruct; of a matrix with one number for all elements."""
    if not isinstance(type_, ty.CooperativeMatrix):
        return op_composite.construct(e, instruction, type_)
    value = e.value(instruction.operands[0]) if len(instruction.operands) == 1 else None
    if value is None or value.type is not type_.element:
        e.fail(instruction, f"one {type_.element} is expected for all elements of a {type_}")
    if value.constant is not None:
        return literals.constant(e.source, ty.Constant(type_, (value.constant,)))
    return _whole(_splat(e, value, type_), type_)


def length(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpCooperativeMatrixLengthKHR: how many elements an invocation has."""
    matrix = e.type(instruction, instruction.operands[0])
    if not isinstance(matrix, ty.CooperativeMatrix) or type_ is not ty.INTS[32]:
        e.fail(instruction, "the length, of 32 bits, of a cooperative matrix type is expected")
    return literals.constant(e.source, ty.Constant(type_, ty.count_of(e.source.share(matrix))))


# --- memory -------------------------------------------------------------------------------------------------

Offset = tuple[tuple[Expr, int], ...]
"""Where an element is from where its matrix begins: a sum of numbers times bytes."""


class _Layout:
    """How a matrix lies in memory."""

    def __init__(
        self, e: Emitter, instruction: Instruction, type_: ty.CooperativeMatrix, operands: tuple[int, ...]
    ) -> None:
        self.matrices = e.kernel.matrices
        self.type = type_
        self.pointer = e.pointer(instruction.operands[0])
        layout = e.module.constants.get(operands[0])
        if layout is None or (layout.value or 0) not in (_ROW_MAJOR, _COLUMN_MAJOR):
            e.refuse(f"{op_name(instruction.op)} of another layout than RowMajor and ColumnMajor")
        self.by_columns = layout.value == _COLUMN_MAJOR
        element = ty.element_of(self.pointer.type)
        if not isinstance(element, (ty.Int, ty.Float)) or len(operands) < 2:
            e.fail(
                instruction, f"a cooperative matrix in memory of {self.pointer.type}, which needs a stride"
            )
        self.stride = e.name(operands[1])
        if not isinstance(self.stride.type, ty.Int):
            e.fail(instruction, f"a stride of type {self.stride.type}")
        # It counts what the pointer points to, which may be of another type than the elements.
        self.unit = ty.byte_size(element) * ty.count_of(self.pointer.type)

    @property
    def contiguous(self) -> bool:
        """Whether all elements of an invocation follow one another in memory."""
        return self.matrices.in_a_row(self.type) and not self.by_columns

    def offset(self, index: int = 0) -> Offset:
        """Where an invocation's element is."""
        number = self.matrices.existing(self.type, index).at(MULTIPLY)
        row = Expr(ty.INTS[32], f"{number} / {self.type.columns}u", MULTIPLY)
        column = Expr(ty.INTS[32], f"{number} % {self.type.columns}u", MULTIPLY)
        major, minor = (column, row) if self.by_columns else (row, column)
        inner = minor, ty.byte_size(self.type.element)
        if self.stride.bits is not None:
            return (major, self.stride.bits * self.unit), inner
        text = f"(ulong)({major.text}) * {self.stride.operand}"
        return (Expr(ty.INTS[64], text, MULTIPLY, self.stride.reads), self.unit), inner


def load(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpCooperativeMatrixLoadKHR."""
    if not isinstance(type_, ty.CooperativeMatrix):
        e.fail(instruction, f"a {type_} is loaded where a cooperative matrix belongs")
    layout = _Layout(e, instruction, type_, instruction.operands[1:])
    share = e.source.share(type_)
    if layout.contiguous:
        return _whole(_read(e, instruction, layout.pointer, share, layout.offset()), type_)
    parts = [
        _read(e, instruction, layout.pointer, type_.element, layout.offset(i))
        for i in range(ty.count_of(share))
    ]
    return _whole(literals.literal(e.source, share, parts), type_)


def store(e: Emitter, instruction: Instruction, _type: ty.Type) -> None:
    """OpCooperativeMatrixStoreKHR."""
    matrix, type_ = _matrix(e, instruction, instruction.operands[1])
    layout = _Layout(e, instruction, type_, instruction.operands[2:])
    own, pointer = _own(e, matrix), layout.pointer
    if layout.contiguous:
        _write_existing(e, instruction, layout, own, 0)
    else:
        own = e.named(own)
        for i in range(ty.count_of(own.type)):
            _write_existing(e, instruction, layout, op_memory.member(e, own, i, type_.element), i)
    place = pointer.place
    e.kernel.touch_memory(place.root.group if isinstance(place, VariablePlace) else None)


def _write_existing(e: Emitter, instruction: Instruction, layout: _Layout, value: Expr, index: int) -> None:
    """Write what an invocation has, unless the matrix ends before."""
    matrices, type_ = e.kernel.matrices, layout.type
    outer = e.scope
    if matrices.is_uneven(type_):
        value = e.named(value)
        test = If(outer)
        test.text = f"{matrices.number(type_, index).text} < {type_.rows * type_.columns}u"
        outer.add(test)
        e.scope = test.then
    _write(e, instruction, layout.pointer, value, layout.offset(index))
    e.scope = outer


def _read(e: Emitter, instruction: Instruction, pointer: Pointer, type_: ty.Type, offset: Offset) -> Expr:
    """Consecutive elements of memory, or one."""
    place = pointer.place
    if isinstance(place, BufferPlace):
        moved = BufferPlace(place.binding, place.offset, place.terms + offset)
        return op_memory.read(e, instruction, moved, type_)
    address = _address(e, pointer, type_, offset)
    memory = e.kernel.memory(place.root.group) if isinstance(place, VariablePlace) else ()
    count, name = ty.count_of(address.type), e.source.type(type_)
    if count == 1:
        text = f"({address.text})[0]"
    elif count <= 16:
        load = library.vector_load(e.source, e.source.type(ty.element_of(address.type)), count, "__local")
        text = f"{load}(0, {address.text})"
    else:
        # Bytes of a vector that has more than vectors of bytes have.
        part = _suffixed(e, type_, 16 * ty.count_of(type_) // count)
        parts = (f"as_{part}(vload16({i}, {address.text}))" for i in range(count // 16))
        text = f"({name})({', '.join(parts)})"
    if count <= 16 and ty.element_of(address.type) is not ty.element_of(type_):
        text = f"as_{name}({text})"
    return Expr(type_, text, ATOM, address.reads, memory)


def _write(e: Emitter, instruction: Instruction, pointer: Pointer, value: Expr, offset: Offset) -> None:
    place = pointer.place
    if isinstance(place, BufferPlace):
        moved = BufferPlace(place.binding, place.offset, place.terms + offset)
        op_memory.write(e, instruction, moved, value)
        return
    address = _address(e, pointer, value.type, offset)
    count, own = ty.count_of(address.type), ty.count_of(value.type)
    given = value.text
    if count > 16:
        value = e.named(value)
        step = 16 * own // count
        for i in range(count // 16):
            digits = "".join(f"{digit:x}" for digit in range(i * step, (i + 1) * step))
            e.statement(f"vstore16(as_uchar16({value.text}.s{digits}), {i}, {address.text});", value, address)
        return
    if ty.element_of(address.type) is not ty.element_of(value.type):
        given = f"as_{_suffixed(e, address.type, count)}({given})"
    if count == 1:
        text = f"({address.text})[0] = {given};"
    else:
        name = e.source.type(ty.element_of(address.type))
        text = f"{library.vector_store(e.source, name, count, '__local')}({given}, 0, {address.text});"
    e.statement(text, value, address)


def _suffixed(e: Emitter, type_: ty.Type, count: int) -> str:
    name = e.source.type(ty.element_of(type_))
    return f"{name}{count}" if count > 1 else name


class _Span(ty.Vector):
    """So many elements in memory; more than a vector can have."""


def _address(e: Emitter, pointer: Pointer, type_: ty.Type, offset: Offset) -> Expr:
    """A pointer into workgroup memory, typed as what it points to: elements, or the bytes of memory of another type.

    C compilers take it that objects of different types do not overlap (C99 6.5, paragraph 7), but for bytes.
    """
    place = pointer.place
    if not isinstance(place, VariablePlace) or place.root.space != "__local" or place.component is not None:
        e.refuse("a cooperative matrix in memory that is neither a buffer's nor an array's of a workgroup")
    lvalue, element, count = place.lvalue, ty.element_of(type_), ty.count_of(type_)
    assert isinstance(element, (ty.Int, ty.Float))
    size = ty.byte_size(element)
    if e.source.type(ty.element_of(pointer.type)) != e.source.type(element):
        element, count, size = ty.INTS[8], count * size, 1
    moves = " + ".join(
        index.at(ADD) if bytes_ == size else f"{index.at(ATOM)} * {bytes_ // size}"
        for index, bytes_ in offset
    )
    reads = lvalue.reads + tuple(local for index, _ in offset for local in index.reads)
    text = f"(__local {e.source.type(element)} *)&{lvalue.atom} + {moves}"
    return Expr(_Span(element, count), text, ADD, reads)


# --- products -----------------------------------------------------------------------------------------------


def multiply_add(e: Emitter, instruction: Instruction, type_: ty.Type) -> Expr:
    """OpCooperativeMatrixMulAddKHR."""
    (a, a_type), (b, b_type), (c, c_type) = (_matrix(e, instruction, id_) for id_ in instruction.operands[:3])
    if not isinstance(type_, ty.CooperativeMatrix):
        e.fail(instruction, f"its result is a {type_}")
    shapes = {(a_type.rows, b_type.columns), (c_type.rows, c_type.columns), (type_.rows, type_.columns)}
    uses = a_type.use, b_type.use, c_type.use, type_.use
    fits = len(shapes) == 1 and a_type.columns == b_type.rows
    e.check(
        instruction, fits and uses == (_A, _B, _ACCUMULATOR, _ACCUMULATOR), "matrices A, B and C that fit"
    )
    kinds = {is_int(t.element) for t in (a_type, b_type, c_type, type_)}
    e.check(instruction, len(kinds) == 1, "matrices of either integers or floats")
    flags = instruction.operands[3] if len(instruction.operands) > 3 else 0
    c = e.named(c)
    a_start, b_start = _exchange(e, instruction, [a, b])
    helper = _product(e, [a_type, b_type, c_type, type_], flags)
    matrices, share = e.kernel.matrices, e.source.share(type_)
    if matrices.in_a_row(type_):
        text = f"{helper}({a_start}, {b_start}, {c.text}, {matrices.existing(type_).text})"
        return Expr(type_, text, ATOM, c.reads, e.kernel.memory(matrices))
    own = _own(e, c)
    parts = [
        f"{helper}({a_start}, {b_start}, {op_memory.member(e, own, i, c_type.element).text}, "
        f"{matrices.existing(type_, i).text})"
        for i in range(ty.count_of(share))
    ]
    return Expr(
        type_, f"({e.source.type(share)})({', '.join(parts)})", ATOM, c.reads, e.kernel.memory(matrices)
    )


def _exchange(e: Emitter, instruction: Instruction, operands: list[Expr]) -> list[str]:
    """Let all invocations see A and B; returns where they begin in workgroup memory."""
    op_subgroup.together(e, instruction)
    matrices = e.kernel.matrices
    starts, new = [], []
    for use, matrix, id_ in zip("ab", operands, instruction.operands, strict=False):
        type_ = matrix.type
        assert isinstance(type_, ty.CooperativeMatrix)
        array = matrices.array(use, _shared_type(e, type_), type_)
        starts.append(matrices.start(array, type_))
        held = e.things[id_], e.block
        if matrices.held.get(array) != held:
            matrices.held[array] = held
            new.append((_own(e, matrix), starts[-1], matrices.number(type_)))
    if new:
        e.statement(_BARRIER)
        for own, start, number in new:
            value = widen(e, own)
            count = ty.count_of(value.type)
            text = f"({start})[{number.text}] = {value.text};"
            if count > 1:
                name = e.source.type(ty.element_of(value.type))
                store = library.vector_store(e.source, name, count, "__local")
                text = f"{store}({value.text}, 0, {start} + {number.text});"
            e.statement(text, value)
        e.statement(_BARRIER)
        e.kernel.touch_memory()
    return starts


def _shared_type(e: Emitter, type_: ty.CooperativeMatrix) -> ty.Scalar:
    """The type that elements are exchanged as: 16-bit floats carried as bits are widened once."""
    return ty.FLOATS[32] if emulated(e, type_.element) else type_.element


def _product(e: Emitter, types: list[ty.CooperativeMatrix], flags: int) -> str:
    """Define the function that computes an invocation's elements of A x B + C, or one of them.

    Floats are summed in at least 32 bits, beginning with C, and rounded once. Integers are summed as unsigned ones
    of the result's width or more, which gives its bits right; C is added last, for that may saturate.
    """
    a, b, c, result = types
    matrices, columns = e.kernel.matrices, result.columns
    count = matrices.share(result) if matrices.in_a_row(result) else 1
    n = str(count) if count > 1 else ""
    a_type, b_type = (e.source.type(_shared_type(e, type_)) for type_ in (a, b))
    at = f"k * {columns}u + column"
    sums = _sums(e, types)
    first = _extended(e, a.element, sums, f"a[row * {a.columns}u + k]", "", flags & _SIGNED_A)
    second = f"b[{at}]"
    if n:
        second = f"{library.vector_load(e.source, b_type, count, '__local')}(0, b + {at})"
    second = _extended(e, b.element, sums, second, n, flags & _SIGNED_B)
    third = widen(e, Expr(_of(c.element, count), "c"))
    added = _extended(e, c.element, sums, third.text, n, flags & _SIGNED_C)
    start = added if is_float(result.element) else f"({sums}{n})(0)"
    text = (
        f"static {e.source.type(_of(result.element, count))} NAME(__local const {a_type} *a, "
        f"__local const {b_type} *b, {e.source.type(_of(c.element, count))} c, uint number)\n{{\n"
        f"    uint row = number / {columns}u, column = number % {columns}u;\n"
        f"    {sums}{n} sums = {start};\n    for (uint k = 0; k < {a.columns}u; ++k) {{\n"
        f"        sums += {first} * {second};\n    }}\n"
        f"    return {_finished(e, result.element, sums, n, added, flags)};\n}}"
    )
    kinds = "_".join(f"{type_.element}" for type_ in types)
    key = [f"{result.rows}x{columns}x{a.columns}", *([n] if n else []), *([str(flags)] if flags else [])]
    return e.source.helper("multiply_add", text, kinds, *key)


def _of(element: ty.Scalar, count: int) -> ty.Scalar | ty.Vector:
    return ty.VECTORS[element, count] if count > 1 else element


def _sums(e: Emitter, types: list[ty.CooperativeMatrix]) -> str:
    """The C type of the sums of products."""
    result = types[3].element
    if isinstance(result, ty.Int):
        return ctypes.UNSIGNED[max(32, result.width)]
    return e.source.type(ty.FLOATS[max(32, *(type_.element.width for type_ in types))])


def _extended(e: Emitter, element: ty.Scalar, sums: str, text: str, n: str, is_signed: int) -> str:
    """Elements as the type of the sums."""
    if isinstance(element, ty.Int) and is_signed:
        wide = sums.removeprefix("u")
        return f"as_{sums}{n}(convert_{wide}{n}(as_{ctypes.SIGNED[element.width]}{n}({text})))"
    name = "float" if emulated(e, element) else e.source.type(element)
    return text if name == sums else f"convert_{sums}{n}({text})"


def _finished(e: Emitter, element: ty.Scalar, sums: str, n: str, added: str, flags: int) -> str:
    """The elements of the result."""
    name = e.source.type(element)
    if isinstance(element, ty.Int):
        if not flags & _SATURATING:
            total = f"sums + {added}"
            return total if name == sums else f"convert_{name}{n}({total})"
        kind = (ctypes.SIGNED if flags & _SIGNED_RESULT else ctypes.UNSIGNED)[element.width]
        product, addend = (f"as_{kind}{n}(convert_{name}{n}({text}))" for text in ("sums", added))
        return f"as_{name}{n}(add_sat({product}, {addend}))"
    wide = ty.FLOATS[64 if sums == "double" else 32]
    count = int(n or 1)
    if emulated(e, element):
        return shorten(e, Expr(_of(wide, count), "sums"), _of(element, count)).text
    return "sums" if name == sums else f"convert_{name}{n}(sums)"


_EXTENDED: Final = {
    **{op: op_arithmetic.TABLE[op] for op in (
        Op.SNegate, Op.FNegate, Op.IAdd, Op.FAdd, Op.ISub, Op.FSub, Op.IMul, Op.FMul, Op.UDiv, Op.SDiv, Op.FDiv,
    )},
    **{op: op_convert.TABLE[op] for op in (
        Op.ConvertFToU, Op.ConvertFToS, Op.ConvertSToF, Op.ConvertUToF, Op.UConvert, Op.SConvert, Op.FConvert,
        Op.Bitcast,
    )},
}  # fmt: skip

TABLE: Final[dict[int, Handler]] = {
    **{op: _elementwise(handler) for op, handler in _EXTENDED.items()},
    Op.MatrixTimesScalar: times_scalar,
    Op.CompositeConstruct: construct,
    Op.CooperativeMatrixLoadKHR: load,
    Op.CooperativeMatrixStoreKHR: store,
    Op.CooperativeMatrixMulAddKHR: multiply_add,
    Op.CooperativeMatrixLengthKHR: length,
}
