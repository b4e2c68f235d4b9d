"""hal_inline against IREE's exports.inl and module.c."""

from __future__ import annotations

import numpy as np
import pytest

from halgpu import errors, storage
from halgpu.buffer_view import BufferView
from halgpu.devices import open_device
from halgpu.modules.hal_inline import HalInline
from halgpu.vm.buffer import Buffer, BufferAccess
from halgpu.vm.support import NullReference

# IREE runtime/src/iree/modules/hal/inline/exports.inl, written out.
EXPORTS = {
    "buffer.allocate": "0iI_rr", "buffer.allocate.initialized": "0irII_rr", "buffer.length": "0r_I",
    "buffer.storage": "0r_r", "buffer.subspan": "0rII_r", "buffer.wrap": "0rII_r",
    "buffer_view.assert": "0rriiCID_v", "buffer_view.buffer": "0r_r", "buffer_view.create": "0rIIiiCID_r",
    "buffer_view.dim": "0ri_I", "buffer_view.element_type": "0r_i", "buffer_view.encoding_type": "0r_i",
    "buffer_view.rank": "0r_i", "buffer_view.trace": "0rCrD_v", "device.query.i64": "0rr_iI",
}  # fmt: skip
F32, I32, SI32 = 0x21000020, 0x10000020, 0x11000020


@pytest.fixture(params=["host", "opencl"])
def hal(request):
    return HalInline(open_device(request.param))


def text(string: str) -> Buffer:
    return Buffer.module_storage(memoryview(string.encode()), None)


def view(hal, shape=(2, 3), element_type=F32, encoding=1):
    buffer, _ = hal.buffer_allocate(64, 4 * int(np.prod(shape)))
    return BufferView(buffer, shape, element_type, encoding)


def test_every_function_has_irees_calling_convention():
    assert {name: str(export.cconv) for name, export in HalInline.exports.items()} == EXPORTS
    assert (HalInline.name, HalInline.version) == ("hal_inline", 0)


def test_allocate_gives_a_buffer_and_its_storage(hal):
    buffer, wrapped = hal.buffer_allocate(16, 8)
    wrapped.write_view()[:] = b"abcdefgh"
    assert bytes(buffer.read()) == b"abcdefgh"
    assert hal.buffer_length(buffer) == wrapped.byte_length == 8
    assert bytes(hal.buffer_storage(buffer)) == b"abcdefgh"


def test_storage_is_made_once_for_each_context(hal):
    buffer, _ = hal.buffer_allocate(64, 8)
    wrapped = hal.buffer_storage(buffer)
    assert hal.buffer_storage(buffer) is wrapped
    other = HalInline(hal.device).buffer_storage(buffer)
    assert other is not wrapped
    other.write_view()[:] = b"abcdefgh"
    assert bytes(hal.buffer_storage(buffer)) == bytes(wrapped) == b"abcdefgh"


def test_storage_that_somebody_released_is_made_anew(hal):
    buffer, first = hal.buffer_allocate(64, 8)
    first.write_view()[:] = b"abcdefgh"
    hal.buffer_storage(buffer).release()
    assert bytes(hal.buffer_storage(buffer)) == b"abcdefgh"


def test_storage_that_is_kept_ends_with_its_buffer(hal):
    before = hal.device.statistics.live_handles
    for drop in (lambda buffer: buffer.release(), lambda buffer: None):
        buffer, _ = hal.buffer_allocate(64, 8)
        hal.buffer_storage(buffer)
        del _
        assert hal.device.statistics.live_handles == before + 1
        drop(buffer)
        held = buffer if buffer.released else None
        del buffer
        assert hal.device.statistics.live_handles == before
        if held is not None:
            with pytest.raises(errors.FailedPrecondition):
                hal.buffer_storage(held)


def test_storage_outlives_a_buffer_that_was_released(hal):
    buffer, first = hal.buffer_allocate(64, 8)
    first.write_view()[:] = b"abcdefgh"
    wrapped = hal.buffer_storage(buffer)
    del first
    buffer.release()
    assert bytes(wrapped) == b"abcdefgh"


@pytest.mark.parametrize("length", [0, 1, 4096])
@pytest.mark.parametrize("alignment", [0, 1, 64, 4096])
def test_allocate_takes_alignments_and_empty_sizes(hal, alignment, length):
    buffer, wrapped = hal.buffer_allocate(alignment, length)
    assert buffer.byte_length == wrapped.byte_length == length


@pytest.mark.parametrize(("alignment", "length"), [(16, -1), (16, 1 << 62), (3, 16), (-16, 16)])
def test_allocate_refuses_and_keeps_nothing(hal, alignment, length):
    before = hal.device.statistics.live_handles
    with pytest.raises((errors.InvalidArgument, errors.ResourceExhausted)):
        hal.buffer_allocate(alignment, length)
    assert hal.device.statistics.live_handles == before


def test_allocate_initialized_copies_a_range(hal):
    source = text("0123456789")
    buffer, wrapped = hal.buffer_allocate_initialized(64, source, 2, 5)
    assert bytes(wrapped) == bytes(buffer.read()) == b"23456"
    again, _ = hal.buffer_allocate_initialized(64, wrapped, 1, 3)
    assert bytes(again.read()) == b"345"
    with pytest.raises(errors.OutOfRange):
        hal.buffer_allocate_initialized(64, source, 8, 3)


def test_subspans_share_bytes(hal):
    buffer, wrapped = hal.buffer_allocate(64, 16)
    part = hal.buffer_subspan(buffer, 4, 8)
    hal.buffer_storage(part).write_view()[0] = 99
    assert wrapped.read_view()[4] == 99
    assert hal.buffer_length(part) == 8
    with pytest.raises(errors.OutOfRange):
        hal.buffer_subspan(buffer, 12, 8)


def test_wrap_finds_the_buffer_of_a_storage_only(hal):
    buffer, wrapped = hal.buffer_allocate(64, 16)
    again = hal.buffer_wrap(wrapped, 4, 8)
    again.write()[:] = b"x" * 8
    assert bytes(buffer.read())[4:12] == b"x" * 8
    with pytest.raises(errors.Unimplemented):
        hal.buffer_wrap(text("abc"), 0, 3)
    with pytest.raises(errors.OutOfRange):
        hal.buffer_wrap(wrapped, 12, 8)


def test_views_say_what_they_were_created_with(hal):
    buffer, _ = hal.buffer_allocate(64, 64)
    made = hal.buffer_view_create(buffer, 8, 24, F32, 1, (2, 3))
    assert (made.shape, made.type_text) == ((2, 3), "2x3xf32")
    assert hal.buffer_view_rank(made) == 2
    assert [hal.buffer_view_dim(made, index) for index in (0, 1, 2, 3, -1)] == [2, 3, 0, 0, 0]
    assert hal.buffer_view_element_type(made) == F32
    assert hal.buffer_view_encoding_type(made) == 1
    assert hal.buffer_view_buffer(made).byte_length == 24
    whole = hal.buffer_view_create(buffer, 0, 64, F32, 1, (16,))
    assert hal.buffer_view_buffer(whole) is buffer


def test_views_larger_than_their_range_are_refused(hal):
    buffer, _ = hal.buffer_allocate(64, 64)
    with pytest.raises(errors.OutOfRange):
        hal.buffer_view_create(buffer, 0, 16, F32, 1, (5,))
    with pytest.raises(errors.OutOfRange):
        hal.buffer_view_create(buffer, 60, 16, F32, 1, (4,))


@pytest.mark.parametrize(
    ("made", "element_type", "encoding", "shape"),
    [
        ({}, F32, 1, (2, 3)),
        ({"element_type": SI32}, I32, 1, (2, 3)),
        ({"element_type": 32}, F32, 1, (2, 3)),
        ({"encoding": 0}, F32, 1, (2, 3)),
        ({"shape": ()}, F32, 1, ()),
    ],
)
def test_assert_passes(hal, made, element_type, encoding, shape):
    hal.buffer_view_assert(view(hal, **made), text("x"), element_type, encoding, shape)


# Texts of IREE's modules/hal/utils/buffer_diagnostics.c.
@pytest.mark.parametrize(
    ("element_type", "encoding", "shape", "message"),
    [
        (F32, 2, (2, 3), "input0 encoding mismatch; expected 00000002 but have 00000001"),
        (
            I32,
            1,
            (2, 3),
            r"input0 element type mismatch; expected i32 \(10000020\) but have f32 \(21000020\)",
        ),
        (
            F32,
            1,
            (2,),
            "input0 shape rank mismatch; expected 1 but have 2; expected shape `2`, actual shape `2x3`",
        ),
        (F32, 1, (), r"input0 shape rank mismatch; expected 0 \(scalar\) but have 2"),
        (F32, 1, (2, 4), "input0 shape dimension 1 mismatch; expected 4 but have 3; expected shape `2x4`"),
    ],
)
def test_assert_fails_as_in_iree(hal, element_type, encoding, shape, message):
    with pytest.raises(errors.InvalidArgument, match=message):
        hal.buffer_view_assert(view(hal), text("input0"), element_type, encoding, shape)


def test_assert_words_are_those_of_the_stock_tool(hal, compile_mlir, iree_tool, tmp_path):
    source = "func.func @f(%a: tensor<2xf32>) -> tensor<2xf32> { %0 = math.absf %a : tensor<2xf32> return %0 : tensor<2xf32> }"
    (tmp_path / "m.vmfb").write_bytes(compile_mlir(source, "llvm-cpu"))
    for spec, wrong in (
        ("3xf32", view(hal, (3,))),
        ("2x1xf32", view(hal, (2, 1))),
        ("2xi32", view(hal, (2,), I32)),
    ):
        done = iree_tool("iree-run-module", f"--module={tmp_path}/m.vmfb", f"--input={spec}=1", check=False)
        with pytest.raises(errors.InvalidArgument) as caught:
            hal.buffer_view_assert(wrong, text("input0"), F32, 1, (2,))
        assert all(part in done.stderr for part in caught.value.message.split("; expected shape")[:1])


@pytest.mark.parametrize("wrong", [None, object()])
def test_refs_that_are_null_or_of_another_type_are_refused(hal, wrong):
    calls = [
        lambda: hal.buffer_allocate_initialized(16, wrong, 0, 0), lambda: hal.buffer_length(wrong),
        lambda: hal.buffer_storage(wrong), lambda: hal.buffer_subspan(wrong, 0, 0),
        lambda: hal.buffer_wrap(wrong, 0, 0), lambda: hal.buffer_view_create(wrong, 0, 0, F32, 1, ()),
        lambda: hal.buffer_view_assert(wrong, text("x"), F32, 1, ()),
        lambda: hal.buffer_view_assert(view(hal), wrong, F32, 1, (2, 3)), lambda: hal.buffer_view_buffer(wrong),
        lambda: hal.buffer_view_dim(wrong, 0), lambda: hal.buffer_view_element_type(wrong),
        lambda: hal.buffer_view_encoding_type(wrong), lambda: hal.buffer_view_rank(wrong),
        lambda: hal.buffer_view_trace(wrong, ()), lambda: hal.buffer_view_trace(text("k"), (wrong,)),
        lambda: hal.device_query_i64(wrong, text("k")), lambda: hal.device_query_i64(text("c"), wrong),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(errors.InvalidArgument, match="expected a ref to !") as caught:
            call()
        assert isinstance(caught.value, NullReference) == (wrong is None)


def test_trace_prints_as_the_stock_module_does(hal, capsys):
    traced = BufferView.from_array(np.array([[1, 2.5]], np.float32), hal.device)
    hal.buffer_view_trace(text("key"), (traced, traced))
    assert capsys.readouterr().err == "=== key ===\n1x2xf32=[1 2.5]\n1x2xf32=[1 2.5]\n\n"
    with pytest.raises(errors.ResourceExhausted):
        hal.buffer_view_trace(text("key"), (traced,) * 129)


def test_device_queries(hal):
    scheme = hal.device.uri.partition(":")[0]
    assert hal.device_query_i64(text("hal.device.id"), text(f"{scheme}*")) == (1, 1)
    assert hal.device_query_i64(text("hal.device.id"), text("cuda*")) == (1, 0)
    assert hal.device_query_i64(text("hal.cpu"), text("no-such-feature")) == (0, 0)
    assert hal.device_query_i64(text("nonsense"), text("x")) == (0, 0)


def test_storage_is_read_only_where_the_buffer_is(hal):
    from halgpu.devices import MemoryAccess

    buffer = hal.device.allocator.allocate(4, access=MemoryAccess.READ)
    assert not hal.buffer_storage(buffer).access & BufferAccess.MUTABLE
    assert storage.unwrap(hal.buffer_storage(buffer)).byte_length == 4
