"""Registers that alias: i32, f32 and halves of 64-bit values in the same storage."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halgpu.vm import abi
from halgpu.vm.dataflow import CallTypes, TypeConflict, analyze, arguments


def is_raw(program: Any) -> bool:
    """Whether the last translation had to keep registers as words."""
    return "w0" in program.module().python_source("main")


def analyzed(program: Any) -> Any:
    translation = program.module().translation
    return analyze(translation.functions[0], CallTypes(translation.callees, translation.conventions[0]))


def test_registers_of_arguments() -> None:
    """The packing of iree_vm_bytecode_external_enter: 64-bit values at even registers."""
    convention = abi.CallingConvention.parse("0iIfFrir_v")
    expected = [("i32", 0), ("i64", 2), ("f32", 4), ("f64", 6), ("ref", 0), ("i32", 8), ("ref", 1)]
    assert list(arguments(convention)) == expected


def test_reuse_at_another_type_is_no_conflict(program: Any) -> None:
    body = [
        ("AddI32", 0, 1, 0),
        ("ExtI32I64S", 0, 0),  # %i0:1 over %i0 and %i1
        ("TruncI64I32", 0, 3),
        ("CastSI32F32", 3, 0),
        ("MulF32", 0, 0, 0),
        ("Return", [0, 3]),
    ]
    program.function("0ii_fi", body)
    assert not is_raw(program)
    assert program.run(3, 4) == (49.0, 7)


def test_reading_halves_of_a_wide_value(program: Any) -> None:
    program.function("0I_iiI", [("Return", [0, 1, 0])])
    assert is_raw(program)
    function = program.context().lookup("main")

    @given(st.integers(-(1 << 63), (1 << 63) - 1))
    def check(value: int) -> None:
        assert function(value) == (*struct.unpack("<ii", struct.pack("<q", value)), value)

    check()


def test_joining_halves(program: Any) -> None:
    program.function("0ii_IF", [("Return", [0, 0])])
    assert is_raw(program)
    bits = struct.pack("<ii", -5, 0x3FF0_0000)
    assert program.run(-5, 0x3FF0_0000) == (struct.unpack("<q", bits)[0], struct.unpack("<d", bits)[0])


def test_overwriting_half_of_a_wide_value(program: Any) -> None:
    program.function("0I_I", [("ConstI32", 7, 1), ("Return", [0])])
    assert program.run(5) == (7 << 32) + 5


def test_floats_as_integers(program: Any) -> None:
    program.function("0fF_iI", [("Return", [0, 2])])
    one = struct.unpack("<i", struct.pack("<f", 1.5))[0], struct.unpack("<q", struct.pack("<d", 0.1))[0]
    assert program.run(1.5, 0.1) == one


def test_words_survive_calls_globals_and_branches(program: Any) -> None:
    inner = program.function("0Ifr_Ifr", [("Return", [0, 2, program.r(0)])], "inner")
    body = [
        program.label("a"),
        ("NotI32", 2, 5),  # reads the f32 as i32: words from here on
        ("Call", inner, [0, 2, program.r(0)], [6, 8, program.r(1)]),
        ("GlobalStoreI64", 8, 6),
        ("Branch", "b", [(8, 3), (0x8001, 0x8002)]),
        program.label("b"),
        ("GlobalLoadI64", 8, 10),
        ("Return", [10, 3, program.r(2), 5]),
    ]
    program.function("0Ifr_Ifri", body)
    bits = struct.unpack("<i", struct.pack("<f", 2.5))[0]
    assert program.run(-(1 << 62), 2.5, None, name="main") == (-(1 << 62), 2.5, None, ~bits)


def test_never_written_registers_are_zero(program: Any) -> None:
    program.function("0_iIfFr", [("Return", [0, 2, 4, 6, program.r(0)])])
    assert not is_raw(program)
    assert program.run() == (0, 0, 0.0, 0.0, None)


def test_written_on_one_path_only(program: Any) -> None:
    body = [
        program.label("a"),
        ("CondBranch", 0, "b", [], "c", []),
        program.label("b"),
        ("ConstI64", 5, 2),
        ("Branch", "c", []),
        program.label("c"),
        ("Return", [2]),
    ]
    program.function("0i_I", body)
    assert not is_raw(program)
    assert [program.run(n) for n in (0, 1)] == [0, 5]


def test_different_types_on_two_paths(program: Any) -> None:
    body = [
        program.label("a"),
        ("CondBranch", 0, "b", [], "c", []),
        program.label("b"),
        ("ConstI32", 0x3F80_0000, 2),
        ("Branch", "d", []),
        program.label("c"),
        ("ConstF32", 1.0, 2),
        ("Branch", "d", []),
        program.label("d"),
        ("Return", [2]),
    ]
    program.function("0i_f", body)
    with pytest.raises(TypeConflict):
        analyzed(program)
    assert [program.run(n) for n in (0, 1)] == [1.0, 1.0]


def test_a_conflict_that_nobody_reads_is_none(program: Any) -> None:
    body = [
        program.label("a"),
        ("CondBranch", 0, "b", [], "c", []),
        program.label("b"),
        ("ConstI32", 1, 2),
        ("Branch", "d", []),
        program.label("c"),
        ("ConstF64", 1.0, 2),
        ("Branch", "d", []),
        program.label("d"),
        ("Return", [0]),
    ]
    program.function("0i_i", body)
    assert not is_raw(program)
    assert program.run(3) == 3


def test_branches_copy_wide_values_in_two_words(program: Any) -> None:
    body = [
        program.label("a"),
        ("Branch", "b", [(0, 4), (1, 5), (2, 6), (3, 7)]),
        program.label("b"),
        ("Return", [4, 6]),
    ]
    program.function("0IF_IF", body)
    assert not is_raw(program)
    assert program.run(1 << 50, 0.1) == (1 << 50, 0.1)


@pytest.mark.parametrize("copies", [[(0, 4)], [(1, 5)], [(1, 5), (0, 4)], [(0, 5), (1, 6)]])
def test_branches_that_split_wide_values(program: Any, copies: list[tuple[int, int]]) -> None:
    """Legal, though no compiler writes it: the words move one by one."""
    body = [program.label("a"), ("Branch", "b", copies), program.label("b"), ("Return", [4, 5, 6])]
    program.function("0I_iii", body)
    words = [0] * 8
    words[0], words[1] = 3, 9
    for source, target in copies:
        words[target] = words[source]
    assert program.run((9 << 32) + 3) == tuple(words[4:7])


def test_a_loop_that_swaps(program: Any) -> None:
    """Copies happen in order, so the compiler goes through a spare register."""
    body = [
        program.label("a"),
        ("ConstI32", 1, 5),
        ("Branch", "b", []),
        program.label("b"),
        ("SubI32", 2, 5, 2),
        ("CondBranch", 2, "b", [(0, 4), (1, 0), (4, 1)], "c", []),
        program.label("c"),
        ("Return", [0, 1]),
    ]
    program.function("0iii_ii", body)
    assert program.run(10, 20, 1) == (10, 20)
    assert program.run(10, 20, 2) == (20, 10)
    assert program.run(10, 20, 5) == (10, 20)
