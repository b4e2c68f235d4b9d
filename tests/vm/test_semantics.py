"""Every instruction against an independent oracle: numpy, the C library, SipHash's published vectors."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from value_oracles import DTYPES, INEXACT, LETTERS, ORACLES, VALUES, libm_function, unsigned

import halgpu
from halgpu import errors, vm
from halgpu.vm import isa, semantics
from halgpu.vm.allocator import NULL_ALLOCATOR

_COVERED = set(ORACLES)


def place(kinds: list[str]) -> list[int]:
    """Registers of arguments of these types (all of the i32 bank)."""
    at, placed = 0, []
    for kind in kinds:
        wide = kind in ("i64", "f64")
        at += wide and at & 1
        placed.append(at)
        at += 2 if wide else 1
    return placed


PUN = [("ConstF32", 1.5, 20), ("NotI32", 20, 20)]
"""Reads an f32 register as i32, so that the translator has to keep registers as words."""


def operation(program: Any, symbol: str, before: Any = ()) -> tuple[list[str], str]:
    """Add a function that is one instruction; return its operand types and result type."""
    instruction = isa.BY_SYMBOL[symbol]
    kinds = [str(spec.type) for spec in instruction.fields[:-1]]
    result = str(instruction.fields[-1].type)
    cconv = f"0{''.join(LETTERS[kind] for kind in kinds)}_{LETTERS[result]}"
    program.function(cconv, [*before, (symbol, *place(kinds), 10), ("Return", [10])])
    return kinds, result


def same(found: Any, expected: Any, ulps: int, kind: str) -> bool:
    if kind[0] == "i":
        return type(found) is int and found == expected
    assert type(found) is float
    if math.isnan(expected) or math.isnan(found):
        return math.isnan(expected) and math.isnan(found)
    if found == expected:
        return math.copysign(1, found) == math.copysign(1, expected)
    if not ulps or math.isinf(found) or math.isinf(expected):
        return False
    dtype = DTYPES[kind]
    return bool(abs(found - expected) <= ulps * float(np.spacing(dtype(abs(expected)))))


@pytest.mark.parametrize("raw", [False, True], ids=["locals", "words"])
@pytest.mark.parametrize("symbol", sorted(ORACLES))
def test_value_instruction(program: Any, symbol: str, raw: bool) -> None:
    kinds, result = operation(program, symbol, PUN if raw else ())
    oracle = ORACLES[symbol]
    domain = [VALUES[kind] for kind in kinds]
    cases = list(itertools.product(*domain))
    limit = 300 if raw else 900
    if len(cases) > limit:
        cases = cases[:: len(cases) // limit | 1]
    function = program.context().lookup("main")
    for case in cases:
        if symbol[:3] in ("Div", "Rem") and "I" in symbol[3:] and case[1] == 0:
            continue
        expected = oracle(*case)
        found = function(*case)
        assert same(found, expected, 1 if symbol in INEXACT else 0, result), (case, found, expected)


@pytest.mark.parametrize("symbol", ["DivI32S", "DivI32U", "RemI32S", "RemI32U", "DivI64S", "RemI64U"])
def test_division_by_zero_names_the_function(program: Any, symbol: str) -> None:
    operation(program, symbol)
    with pytest.raises(errors.InvalidArgument, match=r"by zero, in test\.main") as caught:
        program.run(1, 0)
    assert len(caught.value.frames) == 1


@pytest.mark.parametrize(
    ("symbol", "left", "right", "expected"),
    [
        ("DivI32S", -7, 2, -3),
        ("RemI32S", -7, 2, -1),
        ("DivI32S", -(2**31), -1, -(2**31)),
        ("RemI32S", -(2**31), -1, 0),
        ("DivI64S", -(2**63), -1, -(2**63)),
        ("ShlI32", 1, 32, 1),
        ("ShrI64U", -1, 63, 1),
        ("ShlI64", 1, 63, -(2**63)),
        ("RemF32", 5.0, 3.0, -1.0),
    ],
)
def test_documented_values(program: Any, symbol: str, left: Any, right: Any, expected: Any) -> None:
    operation(program, symbol)
    assert program.run(left, right) == expected


def covers(*symbols: str) -> Callable[[Any], Any]:
    """Say which instructions a test is the test of; the drift test adds them up."""

    def mark(test: Any) -> Any:
        _COVERED.update(symbols)
        return test

    return mark


@covers("FMAF32", "FMAF64")
@pytest.mark.parametrize("bits", [32, 64])
def test_fma_rounds_as_this_platform_does(program: Any, bits: int) -> None:
    """ops.h: fused where C says that is fast, which no x86-64 build does; there the product is rounded first."""
    symbol = f"FMAF{bits}"
    operation(program, symbol)
    function = program.context().lookup("main")
    dtype = DTYPES[f"f{bits}"]
    kind = ctypes.c_float if bits == 32 else ctypes.c_double
    fused = libm_function("fmaf" if bits == 32 else "fma", kind, kind, kind, result=kind)
    values = [1 + float(np.finfo(dtype).eps), -1.5, 3.0, 0.1, 1e30, -0.0, math.inf]
    values = [float(dtype(value)) for value in values]
    for case in itertools.product(values, repeat=3):
        with np.errstate(all="ignore"):
            a, b, c_ = (np.array([value], dtype) for value in case)
            expected = float((a * b + c_)[0])
        if semantics.numerics.FUSED_MULTIPLY_ADD:
            expected = fused(*case)
        assert same(function(*case), expected, 0, f"f{bits}"), case


@covers("ConstI32", "ConstI64", "ConstF32", "ConstF64")
@pytest.mark.parametrize(
    ("symbol", "values"), [(f"Const{kind.upper()}", values) for kind, values in VALUES.items()]
)
def test_constants(new_program: Any, symbol: str, values: list[Any]) -> None:
    for value in values:
        program = new_program()
        kind = symbol[-3:].lower()
        program.function(f"0_{LETTERS[kind]}", [(symbol, value, 0), ("Return", [0])])
        assert same(program.run(), value, 0, kind)


@covers("ConstI32Zero", "ConstI64Zero", "ConstF32Zero", "ConstF64Zero")
@pytest.mark.parametrize("kind", ["i32", "i64", "f32", "f64"])
def test_zero_constants(program: Any, kind: str) -> None:
    body = [(f"Const{kind.upper()}", 7, 2), (f"Const{kind.upper()}Zero", 2), ("Return", [2])]
    program.function(f"0_{LETTERS[kind]}", body)
    assert same(program.run(), DTYPES[kind](0).item(), 0, kind)


@covers("SwitchI32", "SwitchI64", "SwitchF32", "SwitchF64")
@pytest.mark.parametrize("kind", ["i32", "i64", "f32", "f64"])
def test_switch(program: Any, kind: str) -> None:
    wide = kind in ("i64", "f64")
    default, first, second, result = (2, 4, 6, 8) if wide else (1, 2, 3, 4)
    letter = LETTERS[kind]
    body = [(f"Switch{kind.upper()}", 0, default, [first, second], result), ("Return", [result])]
    program.function(f"0i{letter * 3}_{letter}", body)
    values = [VALUES[kind][-4], VALUES[kind][5], VALUES[kind][7]]
    function = program.context().lookup("main")
    for index, expected in [(0, 1), (1, 2), (2, 0), (-1, 0), (-(2**31), 0), (2**31 - 1, 0)]:
        assert function(index, *values) == values[expected]


def test_switch_without_cases(program: Any) -> None:
    program.function("0ii_i", [("SwitchI32", 0, 1, [], 2), ("Return", [2])])
    assert program.run(0, 9) == 9


# Globals

_KINDS = [("I32", -5), ("I64", -(1 << 40)), ("F32", 1.5), ("F64", 0.1)]


@covers(
    *(f"Global{op}{kind}" for kind, _ in _KINDS for op in ("Load", "Store", "LoadIndirect", "StoreIndirect"))
)
@pytest.mark.parametrize(("kind", "value"), _KINDS)
@pytest.mark.parametrize("offset", [0, 8, 16, 4, 3])
def test_globals(program: Any, kind: str, value: Any, offset: int) -> None:
    letter = LETTERS[kind.lower()]
    program.function(f"0{letter}_v", [(f"GlobalStore{kind}", offset, 0), ("Return", [])], "set")
    program.function(f"0_{letter}", [(f"GlobalLoad{kind}", offset, 0), ("Return", [0])], "get")
    indirect = [(f"GlobalStoreIndirect{kind}", 0, 2), ("Return", [])]
    program.function(f"0ii{letter}_v", indirect, "set_at")
    program.function(f"0i_{letter}", [(f"GlobalLoadIndirect{kind}", 0, 2), ("Return", [2])], "get_at")
    context = program.context()
    get, set_, get_at, set_at = (context.lookup(name) for name in ("get", "set", "get_at", "set_at"))
    assert get() == 0
    set_(value)
    assert get() == get_at(offset) == value
    set_at(offset, 0, value * 2)
    assert get() == value * 2
    assert program.context().lookup("get")() == 0, "globals are per context"


@pytest.mark.parametrize(("kind", "size"), [("I32", 4), ("F64", 8)])
def test_indirect_global_out_of_range(program: Any, kind: str, size: int) -> None:
    letter = LETTERS[kind.lower()]
    program.function(f"0i_{letter}", [(f"GlobalLoadIndirect{kind}", 0, 2), ("Return", [2])])
    program.function(f"0ii{letter}_v", [(f"GlobalStoreIndirect{kind}", 0, 2), ("Return", [])], "set")
    context = program.context()
    get, set_ = context.lookup("main"), context.lookup("set")
    assert get(64 - size) == 0
    for offset in (64 - size + 1, 64 - 3, 64, -1, -4, -8, 0x7FFF_FFFF):
        with pytest.raises(errors.OutOfRange, match="global byte offset"):
            get(offset)
        with pytest.raises(errors.OutOfRange, match="global byte offset"):
            set_(offset, 0, 1 if size == 4 and letter == "i" else 1.0)


def test_indirect_f32_loads_as_the_stock_compiler_writes_them(program: Any) -> None:
    """iree-compile 3.13.0 writes the f64 instruction and goes on with the register as f32."""
    body = [("GlobalStoreF32", 60, 4), ("GlobalLoadIndirectF64", 0, 2), ("Return", [2])]
    program.function("0ifff_f", [("ConstF32", 1.25, 4), *body])
    function = program.context().lookup("main")
    assert function(60, 0.0, 0.0, 0.0) == 1.25
    assert function(0, 0.0, 0.0, 0.0) == 0.0


@covers("GlobalLoadRef", "GlobalStoreRef", "GlobalLoadIndirectRef", "GlobalStoreIndirectRef")
def test_ref_globals(program: Any) -> None:
    r = program.r
    buffer_type = program.type("!vm.buffer")
    program.function("0r_v", [("GlobalStoreRef", 1, buffer_type, program.moved(0)), ("Return", [])], "set")
    program.function("0_r", [("GlobalLoadRef", 1, buffer_type, r(0)), ("Return", [program.moved(0)])], "get")
    taking = [("GlobalLoadRef", 1, buffer_type, program.moved(0)), ("Return", [program.moved(0)])]
    program.function("0_r", taking, "take")
    program.function("0ir_v", [("GlobalStoreIndirectRef", 0, buffer_type, r(0)), ("Return", [])], "set_at")
    program.function("0i_r", [("GlobalLoadIndirectRef", 0, buffer_type, r(0)), ("Return", [r(0)])], "get_at")
    context = program.context()
    get, set_, take, get_at, set_at = map(context.lookup, ("get", "set", "take", "get_at", "set_at"))
    buffer = vm.Buffer.create(4)
    assert get() is None
    set_(buffer)
    assert get() is buffer
    assert get_at(1) is buffer
    assert take() is buffer
    assert get() is None, "a load into a moved register takes the global's ref"
    set_at(1, buffer)
    assert get() is buffer
    with pytest.raises(errors.InvalidArgument, match="expected Buffer, found List"):
        set_(vm.List("i32"))
    assert get() is buffer, "a failed store changes nothing"
    for index in (4, -1):
        with pytest.raises(errors.OutOfRange, match="global ref ordinal"):
            get_at(index)


# Refs


@covers("ConstRefZero", "CmpEQRef", "CmpNERef", "CmpNZRef")
def test_ref_comparisons(program: Any) -> None:
    r = program.r
    body = [
        ("CmpEQRef", r(0), r(1), 0),
        ("CmpNERef", r(0), r(1), 1),
        ("CmpNZRef", r(0), 2),
        ("Return", [0, 1, 2]),
    ]
    program.function("0rr_iii", body)
    program.function("0r_r", [("ConstRefZero", r(0)), ("Return", [r(0)])], "zero")
    context = program.context()
    function = context.lookup("main")
    one, other = vm.Buffer.create(0), vm.Buffer.create(0)
    assert function(one, one) == (1, 0, 1)
    assert function(one, other) == (0, 1, 1)
    assert function(None, other) == (0, 1, 0)
    assert function(None, None) == (1, 0, 0)
    assert context.lookup("zero")(one) is None


@covers("ConstRefRodata")
def test_rodata(program: Any) -> None:
    program.rodata = [b"", b"constant"]
    program.function("0_r", [("ConstRefRodata", 1, program.r(0)), ("Return", [program.r(0)])])
    context = program.context()
    buffer = context.lookup("main")()
    assert bytes(buffer) == b"constant"
    assert buffer is context.lookup("main")(), "one buffer a context, so that refs compare equal"
    assert buffer.access == vm.BufferAccess.ORIGIN_MODULE
    with pytest.raises(errors.PermissionDenied):
        buffer.write_view()


class Recorder(vm.NativeModule):
    """Lets programs ask which objects are alive."""

    name = "recorder"

    def __init__(self) -> None:
        self.allocator = vm.HostAllocator()

    @vm.export("make", "0_r")
    def make(self) -> vm.Buffer:
        return vm.Buffer.create(1, allocator=self.allocator)

    @vm.export("alive", "0_i")
    def alive(self) -> int:
        return self.allocator.statistics.live_handles


def _alive_after(program: Any, body: list[Any], count: int = 1) -> tuple[int, ...]:
    """Make a buffer in %r0, run the body, in which ("alive", n) puts the live count into %in."""
    make, alive = program.imported("recorder.make", "0_r"), program.imported("recorder.alive", "0_i")
    ops = [("Call", make, [], [program.r(0)])]
    for op in body:
        ops.append(("Call", alive, [], [op[1]]) if op[0] == "alive" else op)
    program.function(f"0_{'i' * count}", [*ops, ("Return", list(range(count)))])
    recorder = Recorder()
    result = program.context(recorder).lookup("main")()
    assert recorder.allocator.statistics.live_handles == 0
    return result if isinstance(result, tuple) else (result,)


@covers("DiscardRefs", "AssignRef")
def test_discard_drops_at_once(program: Any) -> None:
    r = program.r
    body = [
        ("AssignRef", r(0), r(1)),
        ("DiscardRefs", [program.moved(0)]),
        ("alive", 0),
        ("DiscardRefs", [program.moved(1)]),
        ("alive", 1),
    ]
    assert _alive_after(program, body, 2) == (1, 0)


def test_assign_moves(program: Any) -> None:
    body = [
        ("AssignRef", program.moved(0), program.r(1)),
        ("CmpNZRef", program.r(0), 0),
        ("DiscardRefs", [program.r(1)]),
        ("alive", 1),
    ]
    assert _alive_after(program, body, 2) == (0, 0)


@covers("CastAnyRef")
def test_cast(program: Any) -> None:
    r, moved = program.r, program.moved
    body = [
        ("CastAnyRef", moved(0), program.type("!vm.list<i32>"), r(1)),
        ("CmpNZRef", r(0), 0),
        ("Return", [0, r(1)]),
    ]
    program.function("0r_ir", body)
    function = program.context().lookup("main")
    vm_list = vm.List("i32")
    assert function(vm_list) == (0, vm_list)
    assert function(None) == (0, None)
    with pytest.raises(errors.InvalidArgument, match="expected List, found Buffer"):
        function(vm.Buffer.create(1))


@covers("SelectRef")
def test_select_ref(program: Any) -> None:
    r, moved = program.r, program.moved
    body = [
        ("SelectRef", 0, program.type("!vm.buffer"), moved(0), moved(1), r(2)),
        ("CmpNZRef", r(0), 0),
        ("CmpNZRef", r(1), 1),
        ("Return", [moved(2), 0, 1]),
    ]
    program.function("0irr_rii", body)
    program.function("0irr_r", [("SelectRef", 0, 0, moved(0), r(1), r(0)), ("Return", [r(0)])], "in_place")
    context = program.context()
    one, other = vm.Buffer.create(0), vm.Buffer.create(0)
    assert context.lookup("main")(1, one, other) == (one, 0, 0)
    assert context.lookup("main")(0, one, other) == (other, 0, 0)
    assert context.lookup("main")(0, one, None) == (None, 0, 0)
    assert context.lookup("in_place")(5, one, other) is one
    assert context.lookup("in_place")(0, one, other) is other
    with pytest.raises(errors.InvalidArgument, match="mismatch"):
        context.lookup("main")(1, vm.List(), other)


@covers("SwitchRef")
def test_switch_ref(program: Any) -> None:
    r, moved = program.r, program.moved
    body = [
        ("SwitchRef", 0, program.type("!vm.buffer"), moved(0), [moved(1), r(2)], r(3)),
        *(("CmpNZRef", r(n), n) for n in range(3)),
        ("Return", [moved(3), 0, 1, 2]),
    ]
    program.function("0irrr_riii", body)
    function = program.context().lookup("main")
    default, one, two = (vm.Buffer.create(0) for _ in range(3))
    assert function(0, default, one, two) == (one, 1, 0, 1), "only the chosen register moves"
    assert function(1, default, one, two) == (two, 1, 1, 1)
    assert function(2, default, one, two) == (default, 0, 1, 1)
    assert function(-1, default, one, two) == (default, 0, 1, 1)


# Buffers


@covers("BufferAlloc", "BufferLength", "BufferClone")
def test_buffer_alloc_and_clone(program: Any) -> None:
    r = program.r
    body = [("BufferAlloc", 0, 2, r(0)), ("BufferLength", r(0), 4), ("Return", [r(0), 4])]
    program.function("0Ii_rI", body, "alloc")
    program.function("0rIIi_r", [("BufferClone", r(0), 0, 2, 4, r(1)), ("Return", [r(1)])], "clone")
    context = program.context()
    alloc, clone = context.lookup("alloc"), context.lookup("clone")
    buffer, length = alloc(10, 64)
    assert (bytes(buffer), length) == (bytes(10), 10)
    assert np.frombuffer(buffer.read_view(), np.uint8).ctypes.data % 64 == 0
    assert buffer.access & vm.BufferAccess.COALLOCATED
    buffer.write_view()[:] = b"0123456789"
    assert bytes(clone(buffer, 2, 5, 0)) == b"23456"
    assert bytes(clone(buffer, 10, 0, 0)) == b""
    for offset, length in [(6, 5), (-1, 1), (0, -1), (2**62, 2**62), (-(2**63), -(2**63))]:
        with pytest.raises(errors.OutOfRange, match=r"offset=\d+, length=\d+, buffer length=10"):
            clone(buffer, offset, length, 0)
    with pytest.raises(errors.ResourceExhausted):
        alloc(-1, 0)
    with pytest.raises(errors.InvalidArgument, match="power of two"):
        alloc(8, 3)
    with pytest.raises(errors.InvalidArgument, match=r"expected a vm\.buffer, found null"):
        clone(None, 0, 0, 0)


ACCESS = {
    # symbol suffix: (numpy dtype in memory, register kind)
    "I8U": (np.uint8, "i32"), "I8S": (np.int8, "i32"), "I16U": (np.uint16, "i32"), "I16S": (np.int16, "i32"),
    "I32": (np.int32, "i32"), "I64": (np.int64, "i64"), "F32": (np.float32, "f32"), "F64": (np.float64, "f64"),
}  # fmt: skip
FILLS = {
    "I8": np.uint8,
    "I16": np.uint16,
    "I32": np.int32,
    "I64": np.int64,
    "F32": np.float32,
    "F64": np.float64,
}


@covers(*(f"BufferLoad{name}" for name in ACCESS))
@pytest.mark.parametrize("name", ACCESS)
def test_buffer_loads(program: Any, name: str) -> None:
    dtype, kind = ACCESS[name]
    body = [(f"BufferLoad{name}", program.r(0), 0, 2), ("Return", [2])]
    program.function(f"0rI_{LETTERS[kind]}", body)
    function = program.context().lookup("main")
    data = np.random.default_rng(1).integers(0, 256, 43, np.uint8)  # no multiple of anything
    size = np.dtype(dtype).itemsize
    buffer = vm.Buffer.initialize(vm.BufferAccess.ORIGIN_HOST, data.data, NULL_ALLOCATOR)
    count = 43 // size
    expected = data[: count * size].view(dtype)
    for index in range(count):
        assert same(function(buffer, index), expected[index].item(), 0, kind)
    for index in (count, -1, 2**31, 2**32, 2**62, -(2**63), 2**63 - 1):
        with pytest.raises(errors.OutOfRange, match="buffer length=43"):
            function(buffer, index)
    with pytest.raises(errors.InvalidArgument, match="found null"):
        function(None, 0)
    buffer.release()
    with pytest.raises(errors.FailedPrecondition, match="released"):
        function(buffer, 0)


@covers(*(f"BufferStore{name}" for name in FILLS))
@pytest.mark.parametrize("name", FILLS)
def test_buffer_stores(program: Any, name: str) -> None:
    kind = name.lower() if name not in ("I8", "I16") else "i32"
    program.function(f"0rI{LETTERS[kind]}_v", [(f"BufferStore{name}", program.r(0), 0, 2), ("Return", [])])
    function = program.context().lookup("main")
    dtype = np.dtype(FILLS[name])
    for value in VALUES[kind]:
        rest = dtype.itemsize - 1  # bytes behind the last whole element
        buffer = vm.Buffer.create(3 * dtype.itemsize + rest)
        function(buffer, 1, value)
        expected = np.zeros(3, dtype)
        expected[1] = value if dtype.kind == "f" else np.array(value).astype(dtype)
        assert bytes(buffer) == expected.tobytes() + bytes(rest)
        for index in (3, -1, 2**32, 2**61):
            with pytest.raises(errors.OutOfRange):
                function(buffer, index, value)
    constant = vm.Buffer.module_storage(memoryview(bytes(8)), object())
    with pytest.raises(errors.PermissionDenied):
        function(constant, 0, VALUES[kind][0])


@covers(*(f"BufferFill{name}" for name in FILLS))
@pytest.mark.parametrize("name", FILLS)
def test_buffer_fills(program: Any, name: str) -> None:
    kind = name.lower() if name not in ("I8", "I16") else "i32"
    wide = kind in ("i64", "f64")
    body = [(f"BufferFill{name}", program.r(0), 0, 2, 4), ("Return", [])]
    program.function(f"0rII{LETTERS[kind]}_v", body)
    function = program.context().lookup("main")
    dtype = np.dtype(FILLS[name])
    value = {"i32": -2, "i64": -(2**60), "f32": -1.5, "f64": 0.1}[kind]
    assert wide == (dtype.itemsize == 8)
    buffer = vm.Buffer.create(10 * dtype.itemsize)
    function(buffer, 2, 5, value)
    expected = np.zeros(10, dtype)
    expected[2:7] = np.array(value).astype(dtype)
    assert bytes(buffer) == expected.tobytes()
    function(buffer, 10, 0, value)
    for offset, length in [(6, 5), (-1, 1), (1, -1), (2**61, 2**61), (2**63 - 1, 1)]:
        with pytest.raises(errors.OutOfRange):
            function(buffer, offset, length, value)


@covers("BufferCopy", "BufferCompare")
def test_buffer_copy_and_compare(program: Any) -> None:
    r = program.r
    program.function("0rIrII_v", [("BufferCopy", r(0), 0, r(1), 2, 4), ("Return", [])], "copy")
    program.function("0rIrII_i", [("BufferCompare", r(0), 0, r(1), 2, 4, 6), ("Return", [6])], "compare")
    context = program.context()
    copy, compare = context.lookup("copy"), context.lookup("compare")
    source, target = vm.Buffer.create(8), vm.Buffer.create(8)
    source.write_view()[:] = b"abcdefgh"
    copy(source, 2, target, 1, 4)
    assert bytes(target) == b"\0cdef\0\0\0"
    copy(source, 0, source, 2, 6)
    assert bytes(source) == b"ababcdef", "an overlapping copy moves"
    assert compare(source, 4, target, 1, 4) == 1
    assert compare(source, 4, target, 2, 4) == 0
    assert compare(source, 8, target, 8, 0) == 1
    for offsets in [(5, 0, 4), (0, 5, 4), (-1, 0, 1), (0, 0, -1), (0, 2**63 - 1, 2)]:
        with pytest.raises(errors.OutOfRange):
            copy(source, offsets[0], target, offsets[1], offsets[2])
        with pytest.raises(errors.OutOfRange):
            compare(source, offsets[0], target, offsets[1], offsets[2])
    with pytest.raises(errors.InvalidArgument, match="found List"):
        copy(source, 0, vm.List(), 0, 1)


@covers("BufferHash")
def test_buffer_hash(program: Any) -> None:
    """Vectors of the SipHash paper's reference implementation: key 00…0F, messages 00, 00 01, …"""
    program.function("0rII_I", [("BufferHash", program.r(0), 0, 2, 4), ("Return", [4])])
    function = program.context().lookup("main")
    buffer = vm.Buffer.create(64)
    buffer.write_view()[:] = bytes(range(64))
    vectors = {
        0: 0x726FDB47DD0E0E31, 1: 0x74F839C593DC67FD, 7: 0xAB0200F58B01D137, 8: 0x93F5F5799A932462,
        15: 0xA129CA6149BE45E5, 63: 0x958A324CEB064572,
    }  # fmt: skip
    for length, expected in vectors.items():
        assert unsigned(function(buffer, 0, length), 64) == expected
    with pytest.raises(errors.OutOfRange):
        function(buffer, 60, 5)


# Lists


@covers("ListAlloc", "ListReserve", "ListSize", "ListResize")
def test_list_sizes(program: Any) -> None:
    r = program.r
    body = [
        ("ListAlloc", program.type("i32"), 0, r(0)),
        ("ListReserve", r(0), 1),
        ("ListResize", r(0), 2),
        ("ListSize", r(0), 3),
        ("Return", [r(0), 3]),
    ]
    program.function("0iii_ri", body)
    function = program.context().lookup("main")
    vm_list, size = function(0, 5, 3)
    assert (len(vm_list), size, vm_list.element_type) == (3, 3, "i32")
    for arguments in [(-1, 0, 0), (0, -1, 0), (0, 0, -1)]:
        with pytest.raises(errors.ResourceExhausted):
            function(*arguments)


@covers(*(f"List{op}{kind}" for op in ("Get", "Set") for kind in ("I32", "I64", "F32", "F64")))
@pytest.mark.parametrize("kind", ["I32", "I64", "F32", "F64"])
@pytest.mark.parametrize("element", ["i8", "i16", "i32", "i64", "f32", "f64", None])
def test_list_values(program: Any, kind: str, element: str | None) -> None:
    """numpy's conversions between integers (wrapping) and between floats; what crosses over becomes zero."""
    letter = LETTERS[kind.lower()]
    program.function(
        f"0ri{letter}_v",
        [(f"ListSet{kind}", program.r(0), 0, 2 if letter in "IF" else 1), ("Return", [])],
        "set",
    )
    program.function(f"0ri_{letter}", [(f"ListGet{kind}", program.r(0), 0, 2), ("Return", [2])], "get")
    context = program.context()
    get, set_ = context.lookup("get"), context.lookup("set")
    vm_list = vm.List(element)
    vm_list.resize(3)
    dtype = np.dtype(DTYPES[kind.lower()])
    held = dtype if element is None else np.dtype(element.replace("i", "int").replace("f", "float"))
    for value in VALUES[kind.lower()]:
        set_(vm_list, 1, value)
        with np.errstate(all="ignore"):
            array = np.array([value], dtype)
            expected = array.astype(held).astype(dtype)[0] if held.kind == dtype.kind else dtype.type(0)
        assert same(get(vm_list, 1), expected.item(), 0, kind.lower())
    for index in (3, -1):
        with pytest.raises(errors.OutOfRange, match="out of bounds"):
            get(vm_list, index)
        with pytest.raises(errors.OutOfRange, match="out of bounds"):
            set_(vm_list, index, value)
    with pytest.raises(errors.InvalidArgument, match=r"expected a vm\.list, found null"):
        get(None, 0)
    if element is None:
        with pytest.raises(errors.FailedPrecondition, match="not a value"):
            get(vm_list, 0)


@covers("ListGetRef", "ListSetRef")
def test_list_refs(program: Any) -> None:
    r, moved = program.r, program.moved
    buffer_type = program.type("!vm.buffer")
    program.function("0rir_v", [("ListSetRef", r(0), 0, moved(1)), ("Return", [])], "set")
    program.function("0ri_r", [("ListGetRef", r(0), 0, buffer_type, r(1)), ("Return", [r(1)])], "get")
    program.function("0ri_r", [("ListGetRef", r(0), 0, buffer_type, moved(1)), ("Return", [r(1)])], "take")
    program.function(
        "0i_r", [("ListAlloc", buffer_type, 0, r(0)), ("ListResize", r(0), 0), ("Return", [r(0)])], "new"
    )
    context = program.context()
    new, get, set_, take = map(context.lookup, ("new", "get", "set", "take"))
    for vm_list in (new(2), vm.List()):
        vm_list.resize(2)
        buffer = vm.Buffer.create(1)
        set_(vm_list, 1, buffer)
        assert get(vm_list, 1) is buffer
        assert take(vm_list, 1) is buffer
        assert get(vm_list, 1) is None
        set_(vm_list, 0, None)
    with pytest.raises(errors.InvalidArgument, match="mismatch"):
        set_(new(1), 0, vm.List())
    mixed = vm.List()
    mixed.resize(2)
    set_(mixed, 0, vm.List())
    assert get(mixed, 0) is None, "a ref of another type reads as null"
    mixed.set_value(1, 7, "i32")
    with pytest.raises(errors.FailedPrecondition):
        get(mixed, 1)
    with pytest.raises(errors.FailedPrecondition):
        get(_sized("i32", 1), 0)


def _sized(element: str, size: int) -> vm.List:
    made = vm.List(element)
    made.resize(size)
    return made


# Control flow and calls


@covers("Block", "Branch", "CondBranch", "Return")
def test_loop(program: Any) -> None:
    """Sum of 0 … n-1."""
    label = program.label
    body = [
        label("entry"),
        ("ConstI32Zero", 1),
        ("ConstI32Zero", 2),
        ("ConstI32", 1, 3),
        ("Branch", "head", []),
        label("head"),
        ("CmpLTI32S", 2, 0, 4),
        ("CondBranch", 4, "body", [], "exit", [(1, 5)]),
        label("body"),
        ("AddI32", 1, 2, 1),
        ("AddI32", 2, 3, 2),
        ("Branch", "head", []),
        label("exit"),
        ("Return", [5]),
    ]
    program.function("0i_i", body)
    function = program.context().lookup("main")
    assert [function(n) for n in (0, 1, 5, 1000)] == [sum(range(n)) for n in (0, 1, 5, 1000)]


@covers("BranchTable")
def test_branch_table(program: Any) -> None:
    label = program.label
    cases = [(f"case{n}", [(1, 2)]) for n in range(5)]
    body: list[Any] = [label("entry"), ("BranchTable", 0, "default", [], 5, cases)]
    for n in range(5):
        body += [label(f"case{n}"), ("ConstI32", 10 + n, 3), ("AddI32", 2, 3, 3), ("Return", [3])]
    body += [label("default"), ("ConstI32", -1, 3), ("Return", [3])]
    program.function("0ii_i", body)
    program.function(
        "0i_i",
        [label("a"), ("BranchTable", 0, "b", [], 0, []), label("b"), ("ConstI32", 4, 1), ("Return", [1])],
        "empty",
    )
    context = program.context()
    function = context.lookup("main")
    assert [function(n, 100) for n in range(-1, 7)] == [-1, 110, 111, 112, 113, 114, -1, -1]
    assert context.lookup("empty")(0) == 4


class Calls(vm.NativeModule):
    name = "calls"
    version = 2

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @vm.export("mixed", "0irCiDCrIID_Ifr")
    def mixed(
        self, number: int, ref: Any, numbers: tuple[int, ...], tuples: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        self.seen.append((number, ref, numbers, tuples))
        return (1 << 40, 0.1, ref)

    @vm.export("plain", "0iIfFr_v")
    def plain(self, *values: Any) -> None:
        self.seen.append(values)

    @vm.export("one", "0_i")
    def one(self) -> int:
        return 1


_NONE = isa.VARIADIC_NONE


@covers("Call", "CallVariadic", "CallYieldable", "CallVariadicYieldable")
@pytest.mark.parametrize("yieldable", [False, True])
def test_calls(program: Any, yieldable: bool) -> None:
    r = program.r
    mixed = program.imported("calls.mixed", "0irCiDCrIID_Ifr")
    plain = program.imported("calls.plain", "0iIfFr_v")
    segments, registers, results = [_NONE, _NONE, 2, 1], [0, r(0), 0, 0, r(1), 2, 2], [4, 6, r(2)]
    if yieldable:
        body: list[Any] = [
            program.label("a"),
            ("CallVariadicYieldable", mixed, segments, registers, "b", results),
            program.label("b"),
            ("CallYieldable", plain, [0, 2, 6, 8, program.moved(0)], "c", []),
            program.label("c"),
        ]
    else:
        body = [
            ("CallVariadic", mixed, segments, registers, results),
            ("Call", plain, [0, 2, 6, 8, program.moved(0)], []),
        ]
    program.function("0iIrr_Ifr", [*body, ("Return", [4, 6, r(2)])])
    native = Calls()
    first, second = vm.Buffer.create(0), vm.Buffer.create(0)
    result = program.context(native).lookup("main")(3, 4, first, second)
    assert result == (1 << 40, float(np.float32(0.1)), first), "an f32 result is rounded to f32"
    assert native.seen[0] == (3, first, (3, 3), ((second, 4, 4),))
    assert native.seen[1] == (3, 4, float(np.float32(0.1)), 0.0, first)


def test_internal_calls_pass_wide_values(program: Any) -> None:
    inner = program.function("0iIfF_FfIi", [("Return", [6, 4, 2, 0])], "inner")
    program.function(
        "0iIfF_FfIi", [("Call", inner, [0, 2, 4, 6], [8, 10, 12, 14]), ("Return", [8, 10, 12, 14])]
    )
    assert program.run(-1, 1 << 40, 1.5, 0.1) == (0.1, 1.5, 1 << 40, -1)


def test_a_moved_argument_is_dropped_while_the_callee_runs(program: Any) -> None:
    alive = program.imported("recorder.alive", "0_i")
    make = program.imported("recorder.make", "0_r")
    drop = program.function(
        "0r_i", [("DiscardRefs", [program.r(0)]), ("Call", alive, [], [0]), ("Return", [0])], "drop"
    )
    body = [("Call", make, [], [program.r(0)]), ("Call", drop, [program.moved(0)], [0]), ("Return", [0])]
    program.function("0_i", body)
    assert program.context(Recorder()).lookup("main")() == 0


@covers("ImportResolved")
def test_import_resolved(program: Any) -> None:
    there = program.imported("calls.one", "0_i", optional=True)
    missing = program.imported("calls.absent", "0_v", optional=True)
    elsewhere = program.imported("absent.absent", "0_v", optional=True)
    body = [("ImportResolved", n, k) for k, n in enumerate((there, missing, elsewhere))]
    program.function("0_iii", [*body, ("Return", [0, 1, 2])])
    program.function("0_v", [("Call", missing, [], []), ("Return", [])], "call_missing")
    context = program.context(Calls())
    assert context.lookup("main")() == (1, 0, 0)
    with pytest.raises(errors.NotFound, match=r"optional import calls\.absent is not resolved"):
        context.lookup("call_missing")()


@covers("Fail")
@pytest.mark.parametrize("code", [*range(1, 19), 0, 200])
def test_fail(program: Any, code: int) -> None:
    program.function("0i_v", [("Fail", 0, "the message: {0} %s '\"\n")])
    wanted = errors.BY_CODE.get(code, errors.Unknown) if code else errors.Internal
    wanted = errors.BY_CODE.get(200 & 0x1F, errors.Unknown) if code == 200 else wanted
    with pytest.raises(wanted) as caught:
        program.run(code)
    assert type(caught.value) is wanted
    assert caught.value.message.endswith("the message: {0} %s '\"\n")
    assert len(caught.value.frames) == 1


@covers("Yield", "Break", "CondBreak")
def test_resuming_branches(program: Any) -> None:
    """A synchronous call resumes at once, so a yield is a branch; nobody debugs, so is a break."""
    label = program.label
    body = [
        label("a"),
        ("Yield", "b", [(0, 1)]),
        label("b"),
        ("Break", "c", [(1, 2)]),
        label("c"),
        ("CondBreak", 2, "d", [(2, 3)]),
        label("d"),
        ("Return", [3]),
    ]
    program.function("0i_i", body)
    assert program.run(5) == 5


@covers("Trace", "Print")
@pytest.mark.parametrize("symbol", ["Trace", "Print"])
def test_debug_events_drop_what_moves(program: Any, symbol: str, capfd: pytest.CaptureFixture[str]) -> None:
    body = [("AssignRef", program.r(0), program.r(1)), (symbol, "event", [program.moved(0), 0]), ("alive", 0)]
    body += [(symbol, "event", [program.moved(1)]), ("alive", 1)]
    assert _alive_after(program, body, 2) == (1, 0)
    assert capfd.readouterr() == ("", "")


FPOWI = """
func.func @power(%a: tensor<208xELEMENT>, %b: tensor<208xi64>) -> tensor<208xELEMENT> {
  %r = math.fpowi %a, %b : tensor<208xELEMENT>, tensor<208xi64>
  return %r : tensor<208xELEMENT>
}
"""


@covers("FPowIF32", "FPowIF64")
@pytest.mark.parametrize("bits", [32, 64])
def test_integer_powers_are_those_of_the_stock_runtime(
    program: Any, compile_mlir: Any, iree_tool: Any, tmp_path: Any, bits: int
) -> None:
    """isa.json lacks the instruction, so that the runtime is all that tells what it does."""
    keep = [f"--iree-input-demote-{kind}=false" for kind in ("f64-to-f32", "i64-to-i32")]
    source = FPOWI.replace("ELEMENT", f"f{bits}")
    data = compile_mlir(source, "vmvx-inline", *keep, model="inline-static")
    (tmp_path / "m.vmfb").write_bytes(data)
    bases = [-0.0, 0.0, 1, -1, 2, 0.5, 1.1, -1.1, math.inf, -math.inf, math.nan, 1e-3, 7.7]
    exponents = [0, 1, 2, 3, -1, -2, -3, 5, 10, 31, -31, 100, 2**31, 2**33 + 1, -(2**31) + 1, -(2**63)]
    pairs = list(itertools.product(bases, exponents))
    np.save(tmp_path / "a.npy", np.array([base for base, _ in pairs], f"f{bits // 8}"))
    np.save(tmp_path / "b.npy", np.array([exponent for _, exponent in pairs], np.int64))
    inputs = [f"--input=@{tmp_path}/{name}.npy" for name in "ab"]
    output = f"--output=@{tmp_path}/r.npy"
    iree_tool("iree-run-module", f"--module={tmp_path}/m.vmfb", "--function=power", *inputs, output)
    expected = np.load(tmp_path / "r.npy")
    operation(program, f"FPowIF{bits}")
    function = program.context().lookup("main")
    for (base, exponent), wanted in zip(pairs, expected.tolist(), strict=True):
        given = semantics.numerics.round_f32(base) if bits == 32 else float(base)
        assert same(function(given, exponent), wanted, 0, f"f{bits}"), (base, exponent)
    with halgpu.load(data, "host") as module:
        found = np.asarray(module.power(np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy")))
    np.testing.assert_array_equal(found, expected)


_COVERED |= {"PrefixExtF32", "PrefixExtF64"}  # encoded in front of every instruction of their sets


def test_every_instruction_has_a_meaning_and_a_test(program: Any) -> None:
    symbols = {instruction.symbol for instruction in isa.INSTRUCTIONS}
    assert len(symbols) == 267
    meant = set(semantics.SEMANTICS) | set(semantics.METHODS) | semantics.STRUCTURAL
    assert symbols == meant
    assert symbols == _COVERED, (symbols - _COVERED, _COVERED - symbols)


def test_every_test_encodes_what_it_covers(request: pytest.FixtureRequest, program: Any) -> None:
    """Runs last: when the whole file ran, each covered instruction was in bytecode that ran."""
    mine = [item for item in request.session.items if item.path == request.node.path]
    if len(mine) < 400:
        assert program.encoded <= _COVERED, "only a part of the file was selected"
        return
    assert program.encoded >= _COVERED, _COVERED - program.encoded
