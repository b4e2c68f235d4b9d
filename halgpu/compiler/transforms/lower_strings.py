"""Strings of ``util`` as instructions, and a function that writes an integer's digits.

Facts: compiler/src/iree/compiler/Dialect/VM/Conversion/UtilToVM/ConvertStringOps.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from xdsl.ir import Attribute, Block, Region, SSAValue

from halgpu.compiler.dialects import util, vm_control, vm_structure, vm_types
from halgpu.compiler.transforms.lower_util import add
from halgpu.compiler.transforms.lowering import I64, Lowering, lowers

MOST_DIGITS: Final = 20
"""Of an integer of 64 bits without sign."""
ZERO: Final = ord("0")
_DIGITS: Final = "__string_itoa"
_BUFFER: Final = vm_types.BufferType()


@lowers(util.StringItoaOp)
def itoa(to: Lowering, op: util.StringItoaOp, operands: Sequence[SSAValue]) -> SSAValue:
    return _digits(to, operands[0], op.value.type)


def _digits(to: Lowering, value: SSAValue, type_: Attribute) -> SSAValue:
    """A buffer with the decimal digits of an integer without sign."""
    function = to.module.helpers.get(_DIGITS)
    if function is None:
        function = to.module.helpers[_DIGITS] = _digits_function(to)
    assert isinstance(function, vm_structure.FuncOp)
    wide = to.cast_integer(to.unsigned(value, type_), I64)
    call = vm_control.CallOp(function.sym_name.data, [wide], [_BUFFER])
    to.insert(call)
    return call.results[0]


def _digits_function(caller: Lowering) -> vm_structure.FuncOp:
    """Writes digits from the last one on, which a loop divides off, and returns a copy of what was written."""
    entry = Block(arg_types=[I64])
    loop, done = Block(arg_types=[I64, I64]), Block(arg_types=[I64])
    to = Lowering(caller.module, entry)
    to.location = caller.location
    made = vm_structure.FuncOp(caller.module.unique(_DIGITS), [I64], [_BUFFER], Region([entry, loop, done]))
    one, ten, size = to.i64(1), to.i64(10), to.i64(MOST_DIGITS)
    digits = to.emit("buffer.alloc", size, to.i32(1))
    to.insert(vm_control.BranchOp(loop, [entry.args[0], to.i64(MOST_DIGITS - 1)]))
    to.block = loop
    rest, at = loop.args
    digit = to.emit("trunc.i64.i32", to.emit("rem.i64.u", rest, ten))
    to.emit("buffer.store.i8", digits, at, to.emit("add.i32", digit, to.i32(ZERO)))
    further = to.emit("div.i64.u", rest, ten)
    more = to.emit("cmp.nz.i64", further)
    before = to.emit("sub.i64", at, one)
    to.insert(vm_control.CondBranchOp(more, loop, [further, before], done, [at]))
    to.block = done
    (first,) = done.args
    length = to.emit("sub.i64", size, first)
    to.insert(vm_control.ReturnOp([to.emit("buffer.clone", digits, first, length, to.i32(1))]))
    return made


@lowers(util.StringFormatOp)
def format_(to: Lowering, op: util.StringFormatOp, operands: Sequence[SSAValue]) -> SSAValue:
    values = [
        value if vm_types.is_ref(value.type) else _digits(to, value, given.type)
        for value, given in zip(operands, op.arguments, strict=True)
    ]
    pieces = [
        (to.text(part), to.i64(len(part.encode()))) if isinstance(part, str)
        else (values[part], to.emit("buffer.length", values[part]))
        for part in op.parts()
    ]  # fmt: skip
    total = to.i64(0)
    for _, length in pieces:
        total = add(to, total, length)
    made = to.emit("buffer.alloc", total, to.i32(1))
    at = to.i64(0)
    for piece, length in pieces:
        to.emit("buffer.copy", piece, to.i64(0), made, at, length)
        at = add(to, at, length)
    return made
