"""The native module ``hal_inline``, version 0: HAL buffers and views as a program sees them.

Functions, calling conventions and checks are those of IREE's runtime/src/iree/modules/hal/inline
(exports.inl, module.c) and modules/hal/utils/buffer_diagnostics.c.
"""

from __future__ import annotations

import fnmatch
import sys
from typing import TYPE_CHECKING, ClassVar

from halgpu import elements, errors, storage
from halgpu.buffer_view import BufferView, Encoding
from halgpu.devices.buffer import Buffer as HalBuffer
from halgpu.modules.refs import Ref, buffer_view, hal_buffer, text, vm_buffer
from halgpu.vm.buffer import Buffer as VmBuffer
from halgpu.vm.native import NativeModule, export

if TYPE_CHECKING:
    from halgpu.devices import Device

MAXIMUM_TRACED = 128


class HalInline(NativeModule):
    """``hal_inline`` for one context on ``device``. Buffers are allocated there."""

    name = "hal_inline"
    version = 0
    types: ClassVar[dict[str, type]] = {"hal.buffer": HalBuffer, "hal.buffer_view": BufferView}

    def __init__(self, device: Device, native: bool | None = None) -> None:
        super().__init__()
        self.device = device
        self.native = native
        self._allocate = device.allocator.allocate
        self._key = object()
        """Tells this context's storage from that of others, which other threads may be in."""

    # -- buffers ---------------------------------------------------------------------------------------

    @export("buffer.allocate", "0iI_rr")
    def buffer_allocate(self, alignment: int, length: int) -> tuple[HalBuffer, VmBuffer]:
        """A new buffer of undefined contents, and its storage."""
        buffer = self._allocate(length, alignment=alignment or 64)
        return buffer, storage.wrap(buffer)

    @export("buffer.allocate.initialized", "0irII_rr")
    def buffer_allocate_initialized(
        self, alignment: int, source: Ref, offset: int, length: int
    ) -> tuple[HalBuffer, VmBuffer]:
        """A new buffer with a copy of a range of a VM buffer, and its storage."""
        source = vm_buffer(source)
        source.check_range(offset, length)
        buffer, wrapped = self.buffer_allocate(alignment, length)
        wrapped.copy_from(source, offset, 0, length)
        return buffer, wrapped

    @export("buffer.length", "0r_I")
    def buffer_length(self, buffer: Ref) -> int:
        """Bytes of a buffer."""
        return hal_buffer(buffer).byte_length

    @export("buffer.storage", "0r_r")
    def buffer_storage(self, buffer: Ref) -> VmBuffer:
        """A VM buffer over a HAL buffer's bytes.

        The same one as long as that lives: programs ask in every call for the storage of what they are given.
        """
        kept = hal_buffer(buffer).kept
        if kept is not None and kept[0] is self._key and not kept[1].released:
            found: VmBuffer = kept[1]
            return found
        made = storage.wrap(buffer)
        buffer.kept = self._key, made
        return made

    @export("buffer.subspan", "0rII_r")
    def buffer_subspan(self, buffer: Ref, offset: int, length: int) -> HalBuffer:
        """A range of a buffer, sharing its bytes."""
        return hal_buffer(buffer).subspan(offset, length)

    @export("buffer.wrap", "0rII_r")
    def buffer_wrap(self, source: Ref, offset: int, length: int) -> HalBuffer:
        """The HAL buffer under a range of a storage; Unimplemented (as in IREE) for other VM buffers."""
        source = vm_buffer(source)
        source.check_range(offset, length)
        buffer = storage.unwrap(source)
        if buffer is None:
            raise errors.Unimplemented("only the storage of a HAL buffer can be wrapped as a HAL buffer")
        return buffer.subspan(offset, length)

    # -- views -----------------------------------------------------------------------------------------

    @export("buffer_view.create", "0rIIiiCID_r")
    def buffer_view_create(
        self, buffer: Ref, offset: int, length: int, element_type: int, encoding: int, shape: tuple[int, ...]
    ) -> BufferView:
        """A view of a range of a buffer."""
        buffer = hal_buffer(buffer)
        if offset or length != buffer.byte_length:
            buffer = buffer.subspan(offset, length)
        return BufferView(buffer, shape, element_type, encoding)

    @export("buffer_view.assert", "0rriiCID_v")
    def buffer_view_assert(
        self, view: Ref, message: Ref, element_type: int, encoding: int, shape: tuple[int, ...]
    ) -> None:
        """Raise InvalidArgument unless a view has the encoding, element type and shape expected."""
        if (
            type(view) is BufferView
            and view.shape == shape
            and view.element_type.code == element_type & 0xFFFFFFFF
            and view.encoding == encoding
            and type(message) is VmBuffer
        ):
            return
        _check_view(buffer_view(view), text(message), elements.of_code(element_type), encoding, shape)

    @export("buffer_view.buffer", "0r_r")
    def buffer_view_buffer(self, view: Ref) -> HalBuffer:
        """The buffer that a view looks at."""
        return buffer_view(view).buffer

    @export("buffer_view.dim", "0ri_I")
    def buffer_view_dim(self, view: Ref, index: int) -> int:
        """Size of a dimension; 0 beyond the rank, which programs ask for before they assert the rank."""
        shape = buffer_view(view).shape
        return shape[index] if 0 <= index < len(shape) else 0

    @export("buffer_view.element_type", "0r_i")
    def buffer_view_element_type(self, view: Ref) -> int:
        """HAL code of a view's elements."""
        return buffer_view(view).element_type.code

    @export("buffer_view.encoding_type", "0r_i")
    def buffer_view_encoding_type(self, view: Ref) -> int:
        """Encoding of a view."""
        return buffer_view(view).encoding

    @export("buffer_view.rank", "0r_i")
    def buffer_view_rank(self, view: Ref) -> int:
        """Number of dimensions of a view."""
        return len(buffer_view(view).shape)

    @export("buffer_view.trace", "0rCrD_v")
    def buffer_view_trace(self, key: Ref, views: tuple[Ref, ...]) -> None:
        """Print views to stderr under a heading."""
        heading = text(key)
        if len(views) > MAXIMUM_TRACED:
            raise errors.ResourceExhausted(
                f"{len(views)} views are too many for one trace call: at most {MAXIMUM_TRACED}"
            )
        lines = [f"=== {heading} ===", *(_view_text(buffer_view(view)) for view in views), "\n"]
        sys.stderr.write("\n".join(lines))

    # -- the device ------------------------------------------------------------------------------------

    @export("device.query.i64", "0rr_iI")
    def device_query_i64(self, category: Ref, key: Ref) -> tuple[int, int]:
        """(1, value) of a property, (0, 0) where it is not known.

        Categories are those of the full HAL, ``hal.device.id`` and ``hal.executable.format``; ``key`` is a
        pattern. Nothing of ``hal.cpu`` is known: the host's features say nothing about the device's.
        """
        asked, pattern = text(category), text(key)
        if asked == "hal.device.id":
            uri = self.device.uri
            return 1, int(any(fnmatch.fnmatchcase(name, pattern) for name in (uri, uri.partition(":")[0])))
        if asked == "hal.executable.format":
            from halgpu.executables import registry

            return 1, int(registry.query_support(self.device, pattern, self.native))
        return 0, 0


def _view_text(view: BufferView) -> str:
    array = view.to_numpy()
    return f"{view.type_text}={elements.format_elements(array, view.element_type, array.size)}"


def _check_view(
    view: BufferView, what: str, expected: elements.ElementType, encoding: int, shape: tuple[int, ...]
) -> None:
    # An opaque encoding or element type passes as any.
    if view.encoding not in (Encoding.OPAQUE, encoding):
        raise errors.InvalidArgument(
            f"{what} encoding mismatch; expected {encoding:08X} but have {view.encoding:08X}"
        )
    found = view.element_type
    if not elements.compatible(found, expected):
        raise errors.InvalidArgument(
            f"{what} element type mismatch; expected {expected} ({expected.code:08X}) "
            f"but have {found} ({found.code:08X})"
        )
    if view.shape != shape:
        wanted, actual = elements.format_shape(shape), elements.format_shape(view.shape)
        raise errors.InvalidArgument(
            f"{what} {_shape_mismatch(view.shape, shape)}; expected shape `{wanted}`, actual shape `{actual}`"
        )


def _shape_mismatch(found: tuple[int, ...], expected: tuple[int, ...]) -> str:
    if len(found) != len(expected):
        scalar = {0: " (scalar)"}
        return (
            f"shape rank mismatch; expected {len(expected)}{scalar.get(len(expected), '')} "
            f"but have {len(found)}{scalar.get(len(found), '')}"
        )
    axis = next(axis for axis, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
    return f"shape dimension {axis} mismatch; expected {expected[axis]} but have {found[axis]}"
