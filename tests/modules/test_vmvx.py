"""vmvx against loops over elements, and against stock iree-run-module on kernels of every function."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import vmvx_kernels
import vmvx_reference
from hypothesis import given
from hypothesis import strategies as st
from vmvx_kernels import BINARY, EXPORTS, KERNELS, UNARY, function_of

import halgpu
from halgpu import errors
from halgpu.modules.vmvx import Vmvx
from halgpu.vm.allocator import NULL_ALLOCATOR
from halgpu.vm.buffer import Buffer, BufferAccess
from halgpu.vm.support import NullReference

SIZE = 1024  # bytes of the data, in which all operands lie

FLOAT_SAMPLES = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    2.25,
    1e-40,
    -3e38,
    88.0,
    100.0,
    math.inf,
    -math.inf,
    math.nan,
    0.75,
    7.5,
]
INTEGER_SAMPLES = [0, 1, -1, 2, 31, 32, 33, -(2**31), 2**31 - 1, 7, -7, 12345, -98765]


def data_for(name: str, seed: int = 0) -> bytes:
    """Bytes whose elements suit a function; without zeros where it divides integers."""
    random = np.random.default_rng(seed)
    if name.endswith("f32"):
        values = random.normal(scale=3, size=SIZE // 4)
        chosen = random.choice(FLOAT_SAMPLES, SIZE // 4)
        return np.where(random.random(SIZE // 4) < 0.3, chosen, values).astype("<f4").tobytes()
    if name in ("mmt4d", "pack", "unpack") or name.startswith("copy"):
        # Small whole numbers as f32 too, so that sums are exact in any order.
        return (random.integers(-8, 8, SIZE // 4).astype("<f4")).tobytes()
    values = random.choice(INTEGER_SAMPLES, SIZE // 4)
    if name.startswith("div"):
        values = np.where(values == 0, 3, values)
    return values.astype("<i4").tobytes()


# Elements from 0: inputs from 0 and 64, the result from 128, unless they share memory on purpose.
# (lhs offset, strides), (rhs offset, strides), (out offset, strides), sizes
GEOMETRIES = {
    "contiguous": ((0, 6, 1), (64, 6, 1), (128, 6, 1), (5, 6)),
    "rows apart": ((1, 9, 1), (65, 7, 1), (130, 11, 1), (5, 6)),
    "transposed": ((0, 1, 5), (64, 6, 1), (128, 2, 10), (5, 6)),
    "columns apart": ((0, 12, 2), (64, 12, 2), (128, 12, 2), (5, 6)),
    "broadcast": ((3, 0, 1), (64, 1, 0), (128, 6, 1), (5, 6)),
    "one value": ((3, 0, 0), (64, 0, 0), (128, 6, 1), (5, 6)),
    "in place": ((0, 6, 1), (64, 6, 1), (0, 6, 1), (5, 6)),
    "in place of the right": ((0, 6, 1), (64, 6, 1), (64, 6, 1), (5, 6)),
    "in place, transposed": ((0, 6, 1), (64, 6, 1), (0, 1, 6), (6, 6)),
    "shifted up": ((0, 6, 1), (64, 6, 1), (1, 6, 1), (5, 6)),
    "shifted down": ((1, 6, 1), (64, 6, 1), (0, 6, 1), (5, 6)),
    "interleaved": ((0, 12, 2), (1, 12, 2), (128, 6, 1), (5, 6)),
    "interleaved result": ((0, 12, 2), (64, 6, 1), (1, 12, 2), (5, 6)),
    "last row stays": ((0, 6, 1), (64, 6, 1), (128, 0, 1), (5, 6)),
    "last column stays": ((0, 6, 1), (64, 6, 1), (128, 6, 0), (5, 6)),
    "last element stays": ((0, 6, 1), (64, 6, 1), (128, 0, 0), (5, 6)),
    "rows overlap": ((0, 6, 1), (64, 6, 1), (128, 2, 1), (5, 6)),
    "accumulates": ((128, 0, 0), (64, 6, 1), (128, 0, 0), (5, 6)),
    "accumulates columns": ((128, 1, 0), (64, 6, 1), (128, 1, 0), (5, 6)),
    "one element": ((7, 1, 1), (70, 0, 5), (200, 3, 9), (1, 1)),
    "one row": ((7, 0, 2), (70, 0, 1), (200, 0, 1), (1, 17)),
    "one column": ((7, 2, 0), (70, 1, 0), (200, 3, 0), (17, 1)),
    "to the end": ((0, 6, 1), (64, 6, 1), (226, 6, 1), (5, 6)),
    "nothing": ((0, 6, 1), (64, 6, 1), (128, 6, 1), (0, 6)),
}  # fmt: skip


def numbers_of(name: str, geometry: str) -> list[int]:
    left, right, out, sizes = GEOMETRIES[geometry]
    if name.startswith("fill"):
        return [-123456789, out[0], out[1], *sizes]
    return [*left, *out, *sizes] if EXPORTS[name] == UNARY else [*left, *right, *out, *sizes]


def pick(data: bytes, scale: int) -> bytes:
    """The data repeated, for elements of ``scale`` bytes instead of 4."""
    return (data * math.ceil(scale / 4))[: SIZE * scale // 4]


def fitting(name: str, seed: int = 0) -> bytes:
    scale = int(name.rpartition("x")[2]) // 8 if name.startswith("copy") else 4
    return pick(data_for(name, seed), scale)


# Flag 0x200 of mmt4d lets IREE take tiles that it has no special code for; without it, it crashes.
TILED = {
    "mmt4d f32": ("mmt4d", [0, 24, 64, 24, 128, 24, 2, 2, 3, 2, 3, 4, 0x201]),
    "mmt4d f32 accumulates": ("mmt4d", [1, 25, 50, 24, 128, 30, 2, 3, 3, 2, 3, 2, 0x301]),
    "mmt4d i8": ("mmt4d", [0, 24, 256, 40, 128, 24, 2, 2, 3, 2, 3, 4, 0x202]),
    "mmt4d i8 accumulates": ("mmt4d", [3, 24, 256, 37, 128, 24, 2, 2, 3, 4, 3, 2, 0x302]),
    "mmt4d of one": ("mmt4d", [0, 0, 64, 0, 128, 0, 1, 1, 1, 1, 1, 1, 0x201]),
    "mmt4d without k": ("mmt4d", [0, 0, 64, 0, 128, 12, 2, 2, 0, 2, 3, 4, 0x201]),
    "mmt4d without k accumulates": ("mmt4d", [0, 0, 64, 0, 128, 12, 2, 2, 0, 2, 3, 4, 0x301]),
    "mmt4d of shared rows": ("mmt4d", [0, 0, 64, 24, 128, 12, 2, 2, 3, 2, 3, 4, 0x201]),
    "pack f32": ("pack", [0, 7, 1, 128, 12, 4, 5, 7, 3, 4, 2, 2, 0x40400000, 1]),
    "pack i32 transposed inner": ("pack", [0, 7, 1, 128, 16, 8, 5, 7, 3, 2, 4, 2, -1, 0x103]),
    "pack i32 transposed outer": ("pack", [2, 7, 1, 128, 30, 8, 5, 7, 2, 3, 2, 4, 0x01020304, 0x203]),
    "pack f32 transposed both": ("pack", [0, 7, 1, 128, 24, 8, 5, 7, 2, 3, 4, 2, 0, 0x301]),
    "pack i8": ("pack", [0, 14, 2, 512, 64, 16, 5, 6, 3, 2, 2, 4, 0x1234567800000099, 2]),
    "pack without padding": ("pack", [0, 8, 1, 128, 16, 8, 4, 8, 2, 2, 2, 4, 0, 1]),
    "pack of whole padding tiles": ("pack", [0, 8, 1, 128, 16, 4, 2, 3, 3, 4, 2, 2, 5, 3]),
    "unpack f32": ("unpack", [128, 16, 4, 0, 7, 1, 3, 4, 2, 2, 5, 7, 1]),
    "unpack i32 transposed inner": ("unpack", [128, 16, 8, 0, 9, 1, 3, 2, 4, 2, 5, 7, 0x103]),
    "unpack i32 transposed outer": ("unpack", [128, 30, 8, 0, 1, 5, 2, 3, 2, 4, 5, 7, 0x203]),
    "unpack f32 transposed both": ("unpack", [128, 24, 8, 3, 14, 2, 2, 3, 4, 2, 5, 7, 0x301]),
}  # fmt: skip


@pytest.fixture(scope="module")
def compiled(compile_mlir) -> bytes:
    return compile_mlir(vmvx_kernels.program(), "vmvx")


@pytest.fixture(scope="module")
def module(compiled) -> halgpu.Module:
    return halgpu.load(compiled, "host")


def ours(module: halgpu.Module, name: str, data: bytes, numbers: list[int]) -> bytes:
    packed = np.frombuffer(struct.pack(f"<{len(numbers)}q", *numbers), np.int8)
    return np.asarray(module[function_of(name)](np.frombuffer(data, np.int8), packed)).tobytes()


@pytest.fixture
def stock(compiled, iree_tool, tmp_path):
    """Run a kernel in iree-run-module: the data afterwards, or the name of the status it failed with."""
    path = tmp_path / "kernels.vmfb"

    def run(name: str, data: bytes, numbers: list[int]) -> bytes | str:
        path.write_bytes(compiled)
        np.save(tmp_path / "data.npy", np.frombuffer(data, np.int8))
        np.save(tmp_path / "numbers.npy", np.array(numbers, "<i8").view(np.int8))
        done = iree_tool(
            "iree-run-module", f"--module={path}", f"--function={function_of(name)}", "--device=local-sync",
            f"--input=@{tmp_path}/data.npy", f"--input=@{tmp_path}/numbers.npy", f"--output=@{tmp_path}/out.npy",
            check=False,
        )  # fmt: skip
        if done.returncode:
            return done.stderr.partition("; ")[0].rpartition(" ")[2]
        return np.load(tmp_path / "out.npy").tobytes()

    return run


def assert_same(name: str, found: bytes, expected: bytes, ulps: int = 0) -> None:
    if not name.endswith("f32"):
        assert found == expected
        return
    left, right = np.frombuffer(found, "<f4"), np.frombuffer(expected, "<f4")
    nans = np.isnan(left)
    assert (nans == np.isnan(right)).all()
    bits = [np.where(nans, 0, side.view("<i4")).astype(np.int64) for side in (left, right)]
    assert np.abs(bits[0] - bits[1]).max() <= ulps


def test_every_function_has_irees_calling_convention():
    assert {name: str(export.cconv) for name, export in Vmvx.exports.items()} == EXPORTS
    assert (Vmvx.name, Vmvx.version) == ("vmvx", 0)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_elementwise_functions_are_those_of_loops(module, geometry):
    for name in (name for name in KERNELS if EXPORTS[name] in (UNARY, BINARY) or name.startswith("fill")):
        data, numbers = fitting(name), numbers_of(name, geometry)
        if name.startswith("div") and name.endswith("i32") and geometry.startswith("accumulates"):
            continue  # becomes a division by zero
        assert_same(name, ours(module, name, data, numbers), vmvx_reference.run(name, data, numbers))


@pytest.mark.parametrize("case", TILED)
def test_tiled_functions_are_those_of_loops(module, case):
    name, numbers = TILED[case]
    data = data_for(name)
    assert ours(module, name, data, numbers) == vmvx_reference.run(name, data, numbers)


@pytest.mark.parametrize("name", KERNELS)
def test_functions_give_what_the_stock_runtime_gives(module, stock, name):
    cases = [numbers for other, numbers in TILED.values() if other == name]
    for numbers in cases or [numbers_of(name, "transposed")]:
        data = fitting(name, 1)
        # C's expf and logf are not exactly rounded.
        found = ours(module, name, data, numbers)
        assert_same(name, found, stock(name, data, numbers), 1 if name[:3] in ("exp", "log") else 0)


@pytest.mark.parametrize("geometry", [name for name in GEOMETRIES if name != "nothing"])
def test_geometries_give_what_the_stock_runtime_gives(module, stock, geometry):
    name = "copy.2d.x16" if geometry in ("shifted up", "interleaved result", "rows overlap") else "sub.2d.f32"
    data, numbers = fitting(name, 2), numbers_of(name, geometry)
    assert_same(name, ours(module, name, data, numbers), stock(name, data, numbers))


@given(st.data())
def test_random_views_are_those_of_loops(data):
    name = data.draw(st.sampled_from(["sub.2d.i32", "copy.2d.x32"]))
    rows, columns = data.draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))
    views = []
    for _ in range(3 if EXPORTS[name] == BINARY else 2):
        strides = data.draw(st.tuples(st.integers(0, 9), st.integers(0, 9)))
        views += [data.draw(st.integers(0, 40)), *strides]
    numbers, before = [*views, rows, columns], data_for("add.2d.i32")
    buffer = Buffer.create(SIZE)
    buffer.write_view()[:] = before
    passed = [value for at in range(0, len(views), 3) for value in (buffer, *views[at : at + 3])]
    Vmvx().function(name)(*passed, rows, columns)
    assert bytes(buffer) == vmvx_reference.run(name, before, numbers)


def test_division_by_zero_is_refused_before_anything_is_written(module):
    for name in ("divs.2d.i32", "divu.2d.i32"):
        buffer = Buffer.create(12)
        buffer.write_view()[:] = struct.pack("<3i", 5, 1, 0)
        with pytest.raises(errors.InvalidArgument, match="integer division by zero"):
            Vmvx().function(name)(buffer, 0, 0, 0, buffer, 1, 0, 1, buffer, 1, 0, 1, 1, 2)
        assert struct.unpack("<3i", bytes(buffer)) == (5, 1, 0)


def test_the_smallest_integer_by_minus_one_wraps():
    buffer = Buffer.create(8)
    buffer.write_view()[:] = struct.pack("<2i", -(2**31), -1)
    Vmvx().divs_i32(buffer, 0, 0, 0, buffer, 1, 0, 0, buffer, 0, 0, 0, 1, 1)
    assert struct.unpack("<2i", bytes(buffer)) == (-(2**31), -1)


BIG = 2**32
BAD_VIEWS = {
    # offset, strides, sizes of a view of 4-byte elements in 64 bytes; what is wrong with it
    "past the end": ((0, 4, 1, 4, 5), errors.OutOfRange),
    "by one element": ((1, 4, 1, 4, 4), errors.OutOfRange),
    "offset past the end": ((17, 0, 0, 1, 1), errors.OutOfRange),
    "negative offset": ((-1, 0, 0, 1, 1), errors.OutOfRange),
    "huge offset": ((2**62, 0, 0, 1, 1), errors.OutOfRange),
    "offset that wraps": ((-(2**62), 0, 0, 1, 1), errors.OutOfRange),
    "huge stride": ((0, BIG - 2, 1, 2, 1), errors.OutOfRange),
    "huge product": ((0, BIG - 2, BIG - 2, BIG - 1, BIG - 1), errors.InvalidArgument),
    "huge end": ((0, BIG - 2, BIG - 2, 2**20, 2**20), errors.OutOfRange),
    "stride too large": ((0, BIG - 1, 1, 1, 1), errors.InvalidArgument),
    "stride of 2**62": ((0, 2**62, 1, 1, 1), errors.InvalidArgument),
    "negative stride": ((4, -2, 1, 2, 1), errors.InvalidArgument),
    "size too large": ((0, 0, 0, BIG, 1), errors.InvalidArgument),
    "negative size": ((0, 1, 1, 1, -1), errors.InvalidArgument),
}  # fmt: skip
WRAPS_IN_C = ("negative offset", "huge offset", "offset that wraps", "huge product")
"""Offsets and ends that are less than 64 bytes modulo 2**64: the stock runtime takes them."""
STATUS = {errors.OutOfRange: "OUT_OF_RANGE", errors.InvalidArgument: "INVALID_ARGUMENT"}


@pytest.mark.parametrize("case", BAD_VIEWS)
def test_views_outside_of_the_buffer_are_refused(module, stock, case):
    (offset, stride0, stride1, size0, size1), error = BAD_VIEWS[case]
    before = data_for("add.2d.i32")[:64]
    good, bad = (0, 0, 0), (offset, stride0, stride1)
    for name, views in (
        ("abs.2d.f32", (bad, good)),
        ("abs.2d.f32", (good, bad)),
        ("add.2d.i32", (good, bad, good)),
        ("copy.2d.x32", (bad, good)),
    ):
        numbers = [value for view in views for value in view] + [size0, size1]
        with pytest.raises(error):
            ours(module, name, before, numbers)
    if case not in WRAPS_IN_C:
        assert stock("copy.2d.x32", before, [*bad, *good, size0, size1]) == STATUS[error]


def test_a_stride_of_minus_one_is_refused_though_irees_check_lets_it_by(module):
    # Elements 0 to 2 in rows of 3, backwards: IREE reads element -1.
    with pytest.raises(errors.InvalidArgument, match="strides"):
        ours(module, "copy.2d.x32", bytes(64), [0, 3, -1, 8, 1, 1, 2, 2])


BAD_TILES = {
    "mmt4d type": ("mmt4d", [0, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 1, 3], "expected a type of 1, 2"),
    "mmt4d negative": ("mmt4d", [0, 1, 0, 1, 0, 1, -1, 1, 1, 1, 1, 1, 1], "none negative"),
    "mmt4d tile": ("mmt4d", [0, 1, 0, 1, 0, 1, 1, 1, 1, 2**15, 1, 1, 1], "tile sizes below"),
    "pack type": ("pack", [0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 4], "expected a type of 1, 2, 3"),
    "pack too few": ("pack", [0, 1, 1, 0, 1, 1, 3, 1, 1, 1, 2, 1, 0, 1], "cover 3 x 1 elements"),
    "pack negative": ("pack", [0, 1, 1, 0, 1, 1, 3, 1, 1, -1, 2, -1, 0, 1], "sizes from 0"),
    "unpack type": ("unpack", [0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2], "expected a type of 1, 3"),
    "unpack too few": ("unpack", [0, 1, 1, 0, 1, 1, 1, 1, 2, 1, 1, 2, 1], "cover 1 x 2 elements"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_TILES)
def test_wrong_flags_and_tiles_are_refused(module, case):
    name, numbers, message = BAD_TILES[case]
    with pytest.raises(errors.InvalidArgument, match=message):
        ours(module, name, bytes(64), numbers)


@pytest.mark.parametrize("case", TILED)
def test_tiles_outside_of_the_buffer_are_refused(module, case):
    name, numbers = TILED[case]
    ours(module, name, data_for(name), numbers)
    starts = {"mmt4d": (0, 2, 4), "pack": (0, 3), "unpack": (0, 3)}[name]
    for at in starts:
        moved = [*numbers]
        moved[at] = SIZE
        if "without k" in case and at < 4:
            continue  # reads nothing there
        with pytest.raises(errors.OutOfRange, match="do not lie in a buffer of 1024 bytes"):
            ours(module, name, data_for(name), moved)


def test_refs_that_are_no_writable_buffers_are_refused():
    vmvx, good = Vmvx(), Buffer.create(16)
    read_only = Buffer.initialize(BufferAccess.ORIGIN_HOST, bytes(16), NULL_ALLOCATOR)
    gone = Buffer.create(16)
    gone.release()
    for out, error in (
        (None, NullReference),
        ("text", errors.InvalidArgument),
        (read_only, errors.PermissionDenied),
        (gone, errors.FailedPrecondition),
    ):
        with pytest.raises(error):
            vmvx.abs_f32(good, 0, 1, 1, out, 0, 1, 1, 1, 1)
        with pytest.raises(error):
            vmvx.fill_x32(7, out, 0, 1, 1, 1)
        with pytest.raises(error):
            vmvx.mmt4d(good, 0, 1, good, 0, 1, out, 0, 1, 1, 1, 1, 1, 1, 1, 1)
    with pytest.raises(NullReference, match=r"lhs: expected a ref to !vm\.buffer, found null"):
        vmvx.add_f32(None, 0, 1, 1, good, 0, 1, 1, good, 0, 1, 1, 1, 1)
    vmvx.abs_f32(read_only, 0, 1, 1, good, 0, 1, 1, 1, 1)


def test_sums_of_i8_wrap_and_are_exact():
    # 2**17 products of -128 * -128 sum up to 2**31, which wraps.
    count = 2**17
    left = Buffer.create(count)
    left.write_view()[:] = b"\x80" * count
    out = Buffer.create(4)
    Vmvx().mmt4d(left, 0, 0, left, 0, 0, out, 0, 0, 1, 1, count // 16, 1, 1, 16, 2)
    assert struct.unpack("<i", bytes(out)) == (-(2**31),)


def test_tile_sizes_are_those_for_an_unknown_cpu():
    # ukernel/query_tile_sizes.c: M = 8, K = 4, N = 8.
    vmvx = Vmvx()
    for operation in range(0x100, 0x700, 0x100):
        assert [vmvx.query_tile_sizes(9, 9, operation | role) for role in (1, 2, 3)] == [
            (8, 4),
            (8, 4),
            (8, 8),
        ]
    for flags in (0, 0x100, 0x001, 0x104, 0x701, -1):
        with pytest.raises(errors.InvalidArgument, match="expected an operation from 1 to 6"):
            vmvx.query_tile_sizes(9, 9, flags)
