"""What conversion to the virtual machine is made of: the state of one function, and a table of lowerings.

A lowering turns an operation into instructions and gives the values that its results become. Values of the virtual
machine are i32, i64, f32, f64 and references: an index is an i64; an integer of fewer than 32 bits is an i32 that holds
it sign-extended, an i1 one that holds 0 or 1; a float of 16 or 8 bits is an i32 that holds its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from xdsl.dialects.builtin import (
    AnyFloat,
    Float32Type,
    Float64Type,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    StringAttr,
    SymbolRefAttr,
    TensorType,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from halgpu.compiler.dialects import hal, util_attrs, vm_types
from halgpu.compiler.dialects.vm_control import NOT_VARIADIC, CallOp, CallVariadicOp
from halgpu.compiler.dialects.vm_instructions import OPERATIONS
from halgpu.compiler.mlir import Diagnostics
from halgpu.compiler.transforms.imports import IMPORTS

I32, I64 = IntegerType(32), IntegerType(64)
F32, F64 = Float32Type(), Float64Type()
_OBJECTS: Final = (hal.BufferType, hal.BufferViewType, hal.ExecutableType)


class Unsupported(Exception):
    """An operation or a type that the virtual machine has no form for."""


def convert_type(type_: Attribute) -> Attribute:
    """The virtual machine's type for a type. Raises Unsupported."""
    if isinstance(type_, IndexType):
        return I64
    if isinstance(type_, IntegerType) and type_.width.data <= 64:
        return I32 if type_.width.data <= 32 else I64
    if isinstance(type_, Float32Type | Float64Type):
        return type_
    if isinstance(type_, AnyFloat) and type_.bitwidth <= 16:
        return I32
    if isinstance(type_, util_attrs.BufferType):
        return vm_types.BufferType()
    if isinstance(type_, util_attrs.ListType):
        return vm_types.ListType(_element_type(type_.element_type))
    if isinstance(type_, _OBJECTS):
        return vm_types.RefType(type_)
    if vm_types.is_ref(type_):
        return type_
    above = "; programs of tensors are not at HAL level yet" if isinstance(type_, TensorType) else ""
    raise Unsupported(f"the virtual machine has no values of type {type_}{above}")


def _element_type(type_: Attribute) -> Attribute:
    if isinstance(type_, util_attrs.VariantType):
        return vm_types.OpaqueType()
    return convert_type(type_)


def bits(type_: Attribute) -> int:
    """The width of a number's type."""
    if isinstance(type_, IndexType):
        return 64
    if isinstance(type_, IntegerType):
        return int(type_.width.data)
    if isinstance(type_, AnyFloat):
        return int(type_.bitwidth)
    raise Unsupported(f"expected a number, found {type_}")


def suffix(type_: Attribute) -> str:
    """How mnemonics name a type of the virtual machine."""
    return "ref" if vm_types.is_ref(type_) else str(type_)


class Module:
    """What functions share: data, and the imports and data names in use."""

    def __init__(self, diagnostics: Diagnostics) -> None:
        self.diagnostics = diagnostics
        self.imports: dict[str, None] = {}
        self.rodata: dict[tuple[Attribute, int], str] = {}
        self.mime_types: dict[str, Attribute] = {}
        self.symbols: set[str] = set()
        self.helpers: dict[str, Operation] = {}
        """Functions that lowerings call, by what they do."""

    def unique(self, hint: str) -> str:
        """A symbol that is not taken."""
        name, number = hint, 0
        while name in self.symbols:
            name, number = f"{hint}_{number}", number + 1
        self.symbols.add(name)
        return name

    def data(self, value: Attribute, hint: str, alignment: int) -> str:
        """The symbol of some data, the same one for equal data."""
        key = value, alignment
        if key not in self.rodata:
            self.rodata[key] = self.unique(hint)
        return self.rodata[key]


class Lowering:
    """Emits the instructions of one function."""

    def __init__(self, module: Module, entry: Block) -> None:
        self.module = module
        self.block = entry
        """Where instructions go."""
        self.location: Any = None
        self.values: dict[SSAValue, SSAValue] = {}
        self.blocks: dict[Block, Block] = {}
        self.spans: dict[SSAValue, tuple[SSAValue, SSAValue]] = {}
        """Parts of buffers: the whole buffer, and the offset in it."""
        self._entry = entry
        self._last_constant: Operation | None = None
        self._constants: dict[tuple[Attribute, Any], SSAValue] = {}

    # Instructions.

    def insert(self, op: Operation) -> None:
        """Append an operation."""
        self._locate(op)
        self.block.add_op(op)

    def _locate(self, op: Operation) -> None:
        if self.location is not None:
            op.location = self.location

    def emit(
        self, mnemonic: str, *operands: SSAValue, result: Attribute | None = None, **properties: Any
    ) -> SSAValue:
        """Append an instruction; returns its result, if it has one. ``result`` is its type where that is open."""
        op = self._make(mnemonic, operands, result, properties)
        self.insert(op)
        return op.results[0] if op.results else operands[0]

    def _make(
        self, mnemonic: str, operands: Sequence[SSAValue], result: Attribute | None, properties: Any
    ) -> Operation:
        cls = OPERATIONS[mnemonic]
        fields = [f for f in cls.INSTRUCTION.fields if f.kind == "register" and f.access == "write"]  # type: ignore[attr-defined]
        types = [result if f.type == "ref" and result is not None else _field_type(f.type) for f in fields]
        return cls.build(operands=list(operands), result_types=types, properties=properties)

    def constant(self, type_: Attribute, value: float) -> SSAValue:
        """A constant of a type of the virtual machine; the same one for equal values, at the function's start."""
        key = type_, repr(value)
        if key in self._constants:
            return self._constants[key]
        name = suffix(type_)
        if _is_zero(value):
            op = self._make(f"const.{name}.zero", (), None, {})
        elif isinstance(type_, IntegerType):
            op = self._make(f"const.{name}", (), None, {"value": IntegerAttr(int(value), type_)})
        else:
            op = self._make(f"const.{name}", (), None, {"value": FloatAttr(value, type_)})
        return self._at_start(op, key)

    def _at_start(self, op: Operation, key: tuple[Attribute, Any]) -> SSAValue:
        self._locate(op)
        if self._last_constant is not None:
            self._entry.insert_op_after(op, self._last_constant)
        elif self._entry.first_op is not None:
            self._entry.insert_op_before(op, self._entry.first_op)
        else:
            self._entry.add_op(op)
        self._last_constant = op
        self._constants[key] = op.results[0]
        return op.results[0]

    def i32(self, value: int) -> SSAValue:
        """A 32-bit constant."""
        return self.constant(I32, value)

    def i64(self, value: int) -> SSAValue:
        """A 64-bit constant."""
        return self.constant(I64, value)

    def null(self, type_: Attribute) -> SSAValue:
        """A null reference."""
        return self.emit("const.ref.zero", result=type_)

    def text(self, text: str) -> SSAValue:
        """A buffer with a text as UTF-8."""
        clean = "".join(c if c.isalnum() and c.isascii() else "_" for c in text[:24])
        return self.data(StringAttr(text), f"_utf8_{clean}", 1)

    def data(self, value: Attribute, hint: str, alignment: int) -> SSAValue:
        """A buffer with data of the module."""
        symbol = self.module.data(value, hint, alignment)
        return self.emit("const.ref.rodata", rodata=SymbolRefAttr(symbol), result=vm_types.BufferType())

    def call_import(self, name: str, *arguments: SSAValue | Sequence[SSAValue]) -> Sequence[SSAValue]:
        """Call an import; a sequence stands for the values of a variadic argument. Numbers are cast as declared."""
        found = IMPORTS[name]
        self.module.imports[name] = None
        sizes: list[int] = []
        operands: list[SSAValue] = []
        for argument, given in zip(found.arguments, arguments, strict=True):
            if argument.variadic:
                assert not isinstance(given, SSAValue)
                width = len(getattr(argument.type, "types", (0,)))
                sizes.append(len(given) // width)
                operands += given
            else:
                assert isinstance(given, SSAValue)
                sizes.append(NOT_VARIADIC)
                operands.append(self.cast_integer(given, argument.type) if _is_number(given) else given)
        types = [argument.type for argument in found.arguments]
        if found.is_variadic:
            call: Operation = CallVariadicOp(name, sizes, types, operands, found.results)
        else:
            call = CallOp(name, operands, found.results)
        self.insert(call)
        return call.results

    # Numbers.

    def cast_integer(self, value: SSAValue, type_: Attribute) -> SSAValue:
        """An i32 or i64 as the other, where it is not the same; extended without sign."""
        if value.type == type_ or not isinstance(type_, IntegerType):
            return value
        number = known(value)
        if number is not None:
            return self.constant(type_, number & 0xFFFFFFFF if type_ == I64 else _signed(number))
        return self.emit("trunc.i64.i32" if type_ == I32 else "ext.i32.i64.u", value)

    def narrow(self, value: SSAValue, type_: Attribute) -> SSAValue:
        """An i32 of which only the low bits count, as the value of a type of fewer than 32 bits."""
        width = bits(type_)
        if width >= 32 or value.type != I32:
            return value
        if width == 1:
            return self.emit("and.i32", value, self.i32(1))
        if width in (8, 16):
            return self.emit(f"ext.i{width}.i32.s", value)
        amount = self.i32(32 - width)
        return self.emit("shr.i32.s", self.emit("shl.i32", value, amount), amount)

    def unsigned(self, value: SSAValue, type_: Attribute) -> SSAValue:
        """The value of a narrow type, extended without sign."""
        width = bits(type_)
        if width >= 32 or width == 1:
            return value
        if width in (8, 16):
            return self.emit(f"ext.i{width}.i32.u", value)
        return self.emit("and.i32", value, self.i32((1 << width) - 1))

    def not_(self, value: SSAValue) -> SSAValue:
        """The other one of 0 and 1."""
        return self.emit("xor.i32", value, self.i32(1))


def known(value: SSAValue) -> int | None:
    """The integer that a converted value is, if it is a constant."""
    op = value.owner
    name = getattr(op, "name", "")
    if name in ("vm.const.i64.zero", "vm.const.i32.zero"):
        return 0
    if name in ("vm.const.i64", "vm.const.i32"):
        return int(op.properties["value"].value.data)  # type: ignore[union-attr]
    return None


def _signed(number: int) -> int:
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def _is_zero(value: float) -> bool:
    return value == 0 and not str(value).startswith("-")


def _is_number(value: SSAValue) -> bool:
    return isinstance(value.type, IntegerType)


def _field_type(name: str | None) -> Attribute:
    return {"i32": I32, "i64": I64, "f32": F32, "f64": F64, "ref": vm_types.BufferType()}[str(name)]


Lower = Callable[[Lowering, Any, Sequence[SSAValue]], Sequence[SSAValue] | SSAValue | None]
LOWERINGS: Final[dict[type[Operation], Lower]] = {}


def lowers(*ops: type[Operation]) -> Callable[[Lower], Lower]:
    """Enter a function into the table: it gets the lowering, the operation and its operands, converted."""

    def enter(function: Lower) -> Lower:
        for op in ops:
            LOWERINGS[op] = function
        return function

    return enter
