"""Runs modules at HAL level in xDSL's interpreter: what a program means, without the passes and the virtual machine.

xDSL has the interpreter and branches; here are arith (xDSL's own gives attributes and lacks unsigned operations), loops
and util. Integers are Python's, signed, as wide as their type says; a buffer is a memoryview; functions and initializers
run as they stand.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, ModuleOp
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    ReturnedValues,
    impl,
    impl_callable,
    impl_terminator,
    register_impls,
)
from xdsl.interpreters.cf import CfFunctions

from halgpu.compiler.dialects import util
from halgpu.compiler.dialects.extra import IndexCastUIOp


def width(type_: Any) -> int:
    return 64 if isinstance(type_, IndexType) else type_.bitwidth


def signed(value: int, type_: Any) -> int:
    """The low bits of a number, with a sign; an i1 is 0 or 1 to xDSL's branches and so here."""
    bits = width(type_)
    value &= (1 << bits) - 1
    return value - (1 << bits) if bits > 1 and value >> (bits - 1) else value


def unsigned(value: int, type_: Any) -> int:
    return int(value) & ((1 << width(type_)) - 1)


BITS_OF_RESULTS = {"i1": 1, "i8": 8, "i32": 32, "i64": 64}
FORMATS = {1: "b", 2: "h", 4: "i", 8: "q"}


PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
COMPARE = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def truncated(a: int, b: int) -> int:
    """The quotient rounded to zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


@register_impls
class Arith(InterpreterFunctions):
    """``arith`` as MLIR's documents define it; floats are rounded to single precision."""

    def _signed(self, op: Any, args: Sequence[int], compute: Any) -> tuple[int]:
        return (signed(compute(*args), op.results[0].type),)

    @impl(arith.AddiOp)
    def addi(self, _: Interpreter, op: Any, args: Any) -> Any:
        return self._signed(op, args, operator.add)

    @impl(arith.SubiOp)
    def subi(self, _: Interpreter, op: Any, args: Any) -> Any:
        return self._signed(op, args, operator.sub)

    @impl(arith.MuliOp)
    def muli(self, _: Interpreter, op: Any, args: Any) -> Any:
        return self._signed(op, args, operator.mul)

    @impl(arith.AndIOp)
    def andi(self, _: Interpreter, op: Any, args: Any) -> Any:
        return self._signed(op, args, operator.and_)

    @impl(arith.OrIOp)
    def ori(self, _: Interpreter, op: Any, args: Any) -> Any:
        return self._signed(op, args, operator.or_)

    @impl(arith.XOrIOp)
    def xori(self, _: Interpreter, op: Any, args: Any) -> Any:
        return self._signed(op, args, operator.xor)

    @impl(arith.ShLIOp)
    def shli(self, _: Interpreter, op: Any, args: Any) -> Any:
        return self._signed(op, args, operator.lshift)

    @impl(arith.ShRSIOp)
    def shrsi(self, _: Interpreter, op: Any, args: Any) -> Any:
        return self._signed(op, args, operator.rshift)

    @impl(arith.DivSIOp)
    def divsi(self, _: Interpreter, op: Any, args: Any) -> Any:
        return self._signed(op, args, truncated)

    @impl(arith.RemSIOp)
    def remsi(self, _: Interpreter, op: Any, args: Any) -> Any:
        return self._signed(op, args, lambda a, b: a - truncated(a, b) * b)

    @impl(arith.CmpiOp)
    def cmpi(self, _: Interpreter, op: Any, args: Any) -> Any:
        name = PREDICATES[op.predicate.value.data]
        if name[0] == "u":
            args = [unsigned(value, op.lhs.type) for value in args]
        return (int(COMPARE[name[-2:]](*args)),)

    @impl(arith.SelectOp)
    def select(self, _: Interpreter, op: Any, args: Any) -> Any:
        return (args[1] if args[0] else args[2],)

    def _unsigned(self, op: Any, args: Sequence[int], compute: Any) -> tuple[int]:
        type_ = op.operands[0].type
        return (signed(compute(*(unsigned(a, type_) for a in args)), op.results[0].type),)

    @impl(arith.ConstantOp)
    def constant(self, _: Interpreter, op: Any, args: Any) -> Any:
        value = op.value.value.data
        return (value if isinstance(value, float) else signed(value, op.result.type),)

    @impl(arith.DivUIOp)
    def divui(self, _: Interpreter, op: Any, args: Any) -> Any:
        return self._unsigned(op, args, lambda a, b: a // b)

    @impl(arith.RemUIOp)
    def remui(self, _: Interpreter, op: Any, args: Any) -> Any:
        return self._unsigned(op, args, lambda a, b: a % b)

    @impl(arith.CeilDivUIOp)
    def ceildivui(self, _: Interpreter, op: Any, args: Any) -> Any:
        return self._unsigned(op, args, lambda a, b: -(-a // b))

    @impl(arith.CeilDivSIOp)
    def ceildivsi(self, _: Interpreter, op: Any, args: Any) -> Any:
        return (signed(-(-args[0] // args[1]), op.result.type),)

    @impl(arith.MinUIOp)
    def minui(self, _: Interpreter, op: Any, args: Any) -> Any:
        return self._unsigned(op, args, min)

    @impl(arith.MaxUIOp)
    def maxui(self, _: Interpreter, op: Any, args: Any) -> Any:
        return self._unsigned(op, args, max)

    @impl(arith.MinSIOp)
    def minsi(self, _: Interpreter, op: Any, args: Any) -> Any:
        return (min(args),)

    @impl(arith.MaxSIOp)
    def maxsi(self, _: Interpreter, op: Any, args: Any) -> Any:
        return (max(args),)

    @impl(arith.ShRUIOp)
    def shrui(self, _: Interpreter, op: Any, args: Any) -> Any:
        return self._unsigned(op, args, lambda a, b: a >> b)

    @impl(arith.ExtUIOp)
    def extui(self, _: Interpreter, op: Any, args: Any) -> Any:
        return (signed(unsigned(args[0], op.input.type), op.result.type),)

    @impl(arith.ExtSIOp)
    def extsi(self, _: Interpreter, op: Any, args: Any) -> Any:
        return (-args[0] if width(op.input.type) == 1 else args[0],)

    @impl(arith.TruncIOp)
    def trunci(self, _: Interpreter, op: Any, args: Any) -> Any:
        return (signed(args[0], op.result.type),)

    @impl(arith.IndexCastOp)
    def index_cast(self, _: Interpreter, op: Any, args: Any) -> Any:
        return (signed(args[0], op.result.type),)

    @impl(IndexCastUIOp)
    def index_castui(self, _: Interpreter, op: Any, args: Any) -> Any:
        return (signed(unsigned(args[0], op.input.type), op.result.type),)

    @impl(arith.AddfOp)
    def addf(self, _: Interpreter, op: Any, args: Any) -> Any:
        with np.errstate(all="ignore"):
            return (float(np.float32(args[0]) + np.float32(args[1])),)

    @impl(arith.MulfOp)
    def mulf(self, _: Interpreter, op: Any, args: Any) -> Any:
        with np.errstate(all="ignore"):
            return (float(np.float32(args[0]) * np.float32(args[1])),)

    @impl(arith.BitcastOp)
    def bitcast(self, _: Interpreter, op: Any, args: Any) -> Any:
        if isinstance(args[0], float):
            return struct.unpack("<i", struct.pack("<f", args[0]))
        return struct.unpack("<f", struct.pack("<i", args[0]))


@register_impls
class Loops(InterpreterFunctions):
    """``scf.for``."""

    @impl(scf.ForOp)
    def loop(self, interpreter: Interpreter, op: Any, args: Any) -> Any:
        low, high, step, *values = args
        for i in range(low, high, step):
            values = list(interpreter.run_ssacfg_region(op.body, (i, *values), "for"))
        return tuple(values)

    @impl_terminator(scf.YieldOp)
    def yield_(self, _: Interpreter, op: Any, args: Any) -> Any:
        return ReturnedValues(args), ()


@register_impls
class Util(InterpreterFunctions):
    """``util``, with the globals of one loaded program."""

    def __init__(self) -> None:
        self.globals: dict[str, Any] = {}

    @impl(util.GlobalLoadOp)
    def load_global(self, _: Interpreter, op: Any, args: Any) -> Any:
        return (self.globals[op.symbol],)

    @impl(util.GlobalStoreOp)
    def store_global(self, _: Interpreter, op: Any, args: Any) -> Any:
        self.globals[op.symbol] = args[0]
        return ()

    @impl(util.CallOp)
    def call(self, interpreter: Interpreter, op: Any, args: Any) -> Any:
        return interpreter.call_op(op.callee.string_value(), args)

    @impl_callable(util.FuncOp)
    def function(self, interpreter: Interpreter, op: Any, args: Any) -> Any:
        return interpreter.run_ssacfg_region(op.body, args, op.sym_name.data)

    @impl_terminator(util.ReturnOp)
    def return_(self, _: Interpreter, op: Any, args: Any) -> Any:
        return ReturnedValues(args), ()

    @impl(util.BufferAllocOp)
    def alloc(self, _: Interpreter, op: Any, args: Any) -> Any:
        return (memoryview(bytearray(args[0])),)

    @impl(util.BufferSliceOp)
    def slice(self, _: Interpreter, op: Any, args: Any) -> Any:
        source, _size, offset, length = args
        return (memoryview(bytearray(source[offset : offset + length])),)

    @impl(util.BufferSubspanOp)
    def subspan(self, _: Interpreter, op: Any, args: Any) -> Any:
        source, _size, offset, length = args
        return (source[offset : offset + length],)

    @impl(util.BufferSizeOp)
    def size(self, _: Interpreter, op: Any, args: Any) -> Any:
        return (len(args[0]),)

    @impl(util.BufferLoadOp)
    def load(self, _: Interpreter, op: Any, args: Any) -> Any:
        return struct.unpack_from(f"<{self._format(op.result.type)}", args[0], args[2])

    @impl(util.BufferStoreOp)
    def store(self, _: Interpreter, op: Any, args: Any) -> Any:
        struct.pack_into(f"<{self._format(op.source.type)}", args[1], args[3], args[0])
        return ()

    @impl(util.BufferFillOp)
    def fill(self, _: Interpreter, op: Any, args: Any) -> Any:
        pattern, target, _size, offset, length = args
        data = struct.pack(f"<{self._format(op.pattern.type)}", pattern)
        target[offset : offset + length] = data * (length // len(data))
        return ()

    @impl(util.BufferCopyOp)
    def copy(self, _: Interpreter, op: Any, args: Any) -> Any:
        source, _, source_offset, target, _, target_offset, length = args
        target[target_offset : target_offset + length] = bytes(source[source_offset : source_offset + length])
        return ()

    @impl(util.BufferCompareOp)
    def compare(self, _: Interpreter, op: Any, args: Any) -> Any:
        left, _, left_offset, right, _, right_offset, length = args
        return (int(left[left_offset : left_offset + length] == right[right_offset : right_offset + length]),)

    def _format(self, type_: Any) -> str:
        return "f" if str(type_) == "f32" else FORMATS[width(type_) // 8]


class Evaluated:
    """A program as its MLIR says: made by running its initializers; then its functions can be called."""

    def __init__(self, module: ModuleOp) -> None:
        self._interpreter = Interpreter(module, index_bitwidth=64)
        self._util = Util()
        for functions in (CfFunctions(), Loops(), Arith(), self._util):
            self._interpreter.register_implementations(functions, override=True)
        for op in module.body.block.ops:
            if isinstance(op, util.GlobalOp):
                value = op.initial_value
                known = isinstance(value, IntegerAttr | FloatAttr)
                self._util.globals[op.sym_name.data] = value.value.data if known else 0
            elif isinstance(op, util.InitializerOp):
                self._interpreter.run_ssacfg_region(op.body, (), "init")

    def call(self, function: str, *args: Any) -> tuple[Any, ...]:
        return tuple(self._interpreter.call_op(function, args))
