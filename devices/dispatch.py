"""The argument check of a dispatch: what is wrong with it, in words.

``Kernel.dispatch`` (base.py) tests that all is well in as few steps as it can; only when it is not does it
come here to find out what is not, so that every refusal names kernel, argument, what was expected and what
was found.
"""

from __future__ import annotations

import itertools
import operator
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from halgpu.devices.buffer import KERNEL_READ, KERNEL_WRITE, Buffer, denied
from halgpu.devices.constants import misfit, to_words
from halgpu.errors import Error, FailedPrecondition, InvalidArgument, OutOfRange, PermissionDenied

if TYPE_CHECKING:
    from halgpu.devices.base import BindingLayout, Kernel
    from halgpu.devices.memory import Memory

U32_MAX = 0xFFFFFFFF
I32_MIN = -0x80000000
_RIGHTS = {"read": KERNEL_READ, "write": KERNEL_WRITE, "readwrite": KERNEL_READ | KERNEL_WRITE}


UNCHANGING = frozenset({int, float})
"""Types of constants that are the same whenever the tuple that holds them is the same object."""

# What was checked is known: a dispatch that repeats the bindings of an earlier one is not checked again. All of it
# is forgotten by whatever might make any of it wrong: the release of a buffer, the end of an allocation, the host's
# looking at one, a lease of it (Residency.unsettle), the end of the device, a recording. It holds:
#   (number of the kernel, token of each buffer or view) -> memories, offsets, lengths;
#   (- number of the kernel) -> the same, and the bindings that the program gave, which end by being released.

Known = tuple["Sequence[Any] | None", "list[Memory]", "list[int]", "list[int]"]
MAX_KNOWN = 256
_numbers = itertools.count(1)
token = operator.attrgetter("dispatch_token")


def number() -> int:
    """A number that no other kernel, buffer or view has."""
    return next(_numbers)


def named(item: Any) -> int:
    """The token of a buffer or view, which gets one now if it has none."""
    item.dispatch_token = found = item.dispatch_token or next(_numbers)
    return found


def remember(known: dict[tuple[int, ...], Known], key: tuple[int, ...], checked: Known) -> None:
    """Let a dispatch with the same key find what was checked. Under the device's lock."""
    if len(known) >= MAX_KNOWN:
        known.clear()
    known[key] = checked


def binding_check(layout: BindingLayout) -> tuple[int, int]:
    """Return a binding's rights and minimum length for the quick test of a dispatch.

    Raises InvalidArgument for a layout that nothing could satisfy.
    """
    if layout.access not in _RIGHTS:
        raise InvalidArgument(f"binding access must be one of {', '.join(_RIGHTS)}, found {layout.access!r}")
    if layout.alignment < 1 or layout.alignment & (layout.alignment - 1) or layout.minimum_length < 0:
        raise InvalidArgument(
            f"binding alignment must be a power of two and minimum length not negative: {layout}"
        )
    return _RIGHTS[layout.access], layout.minimum_length


def grid(kernel: Kernel, workgroups: int | Sequence[int]) -> tuple[int, int, int]:
    """Return three workgroup counts as ints, or raise for what is no grid or outside the device's limits."""
    try:
        given = tuple(workgroups) if isinstance(workgroups, Sequence) else (workgroups,)
        counts = tuple(map(operator.index, given))
    except TypeError as error:
        raise InvalidArgument(
            f"kernel {kernel.layout.name!r}: workgroups must be an int or up to three, found {workgroups!r}"
        ) from error
    if not 1 <= len(counts) <= 3:
        raise InvalidArgument(
            f"kernel {kernel.layout.name!r}: workgroups must be an int or up to three, "
            f"found {len(counts)} counts"
        )
    x, y, z = (*counts, 1, 1)[:3]
    for axis, count, limit in zip("xyz", (x, y, z), kernel.workgroup_limits, strict=True):
        if count < 0:
            raise InvalidArgument(
                f"kernel {kernel.layout.name!r}: workgroup count {axis} is negative: {count}"
            )
        if count > limit:
            raise OutOfRange(
                f"kernel {kernel.layout.name!r}: workgroup count {axis} is {count}, "
                f"{kernel.device.uri} allows {limit}"
            )
    return x, y, z


def constants(kernel: Kernel, values: Sequence[Any]) -> tuple[int, ...]:
    """Return constants as unsigned 32-bit ints, or raise naming the one that is not."""
    _require_sequence(kernel, values)
    expected = kernel.layout.constants
    if len(values) != expected:
        raise InvalidArgument(
            f"kernel {kernel.layout.name!r} takes {expected} constants, found {len(values)}"
        )
    return tuple(_constant(kernel, index, value) for index, value in enumerate(values))


def _require_sequence(kernel: Kernel, values: Any) -> None:
    if (
        isinstance(values, str | bytes)
        or not hasattr(values, "__len__")
        or not hasattr(values, "__getitem__")
    ):
        raise InvalidArgument(
            f"kernel {kernel.layout.name!r}: constants must be a sequence, such as a tuple; found {values!r}"
        )


def _constant(kernel: Kernel, index: int, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError as error:
        raise InvalidArgument(
            f"kernel {kernel.layout.name!r}: constant {index} must be a 32-bit int, found {value!r}"
        ) from error
    if not I32_MIN <= number <= U32_MAX:
        raise OutOfRange(f"kernel {kernel.layout.name!r}: constant {index} does not fit 32 bits: {number}")
    return number & U32_MAX


def typed_constants(kernel: Kernel, values: Any) -> tuple[int, ...]:
    """Return a plain kernel's constants as 32-bit words, or raise naming the one that does not fit its type."""
    types = kernel.layout.types or ()
    _require_sequence(kernel, values)
    if len(values) != len(types):
        listed = f" ({', '.join(map(str, types))})" if types else ""
        raise InvalidArgument(
            f"kernel {kernel.layout.name!r} takes {len(types)} constants{listed}, found {len(values)}"
        )
    packed = b"".join(
        to_words(kind, value, f"kernel {kernel.layout.name!r}: constant {index}", kernel.language)
        for index, (kind, value) in enumerate(zip(types, values, strict=True))
    )
    return struct.unpack(f"={len(packed) // 4}I", packed)


def words(kernel: Kernel, given: tuple[int, ...]) -> tuple[int, ...]:
    """Return a program's constants as unsigned 32-bit ints, or raise naming the one that does not fit its type."""
    values = constants(kernel, given)
    found = misfit(kernel.layout.types or (), values)
    if found is not None:
        raise OutOfRange(f"kernel {kernel.layout.name!r}: {found}")
    return values


_views: set[type] = set()
"""Classes that turned out to be buffer views. They are not imported here: a view has ``buffer`` and ``byte_length``."""


def bindings(kernel: Kernel, given: Sequence[Any]) -> list[Any]:
    """Return what a caller from Python gave as (buffer, offset, length), its numbers ints; or raise."""
    if isinstance(given, str | bytes) or not hasattr(given, "__iter__"):
        raise InvalidArgument(
            f"kernel {kernel.layout.name!r}: bindings must be a sequence, such as a tuple; found {given!r}"
        )
    bound: list[Any] = []
    for item in given:
        kind = type(item)
        if kind in _views:
            try:
                item = (item.buffer, 0, item.byte_length)
            except Error as error:
                raise type(error)(f"{_name(kernel, len(bound))}: {error.message}") from error
        elif kind is Buffer:
            item = (item, 0, item.byte_length)
        elif kind is not tuple or len(item) != 3 or not type(item[1]) is type(item[2]) is int:
            item = _triple(kernel, len(bound), item)
        bound.append(item)
    return bound


def _triple(kernel: Kernel, index: int, given: Any) -> tuple[Any, int, int]:
    if isinstance(given, Buffer):
        return given, 0, given.byte_length
    if given is None:
        raise InvalidArgument(f"{_name(kernel, index)} is null; expected a buffer")
    if _is_view(type(given)):
        _views.add(type(given))
        buffer, offset, length = bindings(kernel, [given])[0]
        return buffer, offset, length
    try:
        buffer, offset, length = given
        return buffer, operator.index(offset), operator.index(length)
    except (TypeError, ValueError) as error:
        raise _no_binding(_name(kernel, index), kernel, given) from error


def _is_view(kind: type) -> bool:
    ours = kind.__module__.partition(".")[0] == "halgpu"
    return ours and hasattr(kind, "buffer") and hasattr(kind, "byte_length")


def _name(kernel: Kernel, index: int) -> str:
    return f"kernel {kernel.layout.name!r}: binding {index}"


def _no_binding(what: str, kernel: Kernel, given: Any) -> Error:
    kind = type(given)
    if any(hasattr(given, name) for name in ("__array__", "__dlpack__", "int_ptr")):  # the last is PyOpenCL's
        return InvalidArgument(
            f"{what} is a {kind.__module__}.{kind.__qualname__}; expected a buffer or buffer view on "
            f"{kernel.device.uri}: halgpu.BufferView.from_array(it, device) makes one"
        )
    return InvalidArgument(
        f"{what} must be a buffer, a buffer view or (buffer, offset, length), found {given!r}"
    )


def bad_binding_count(kernel: Kernel, found: int) -> Error:
    """Return the error for a wrong number of bindings."""
    expected = len(kernel.layout.bindings)
    return InvalidArgument(f"kernel {kernel.layout.name!r} takes {expected} bindings, found {found}")


def bad_binding(kernel: Kernel, index: int, given: Any) -> Error:
    """Return the error for a binding that the quick test refuses."""
    what = _name(kernel, index)
    buffer, offset, length = _triple(kernel, index, given)
    if buffer is None:
        return InvalidArgument(f"{what} is null; expected a buffer")
    if not isinstance(buffer, Buffer):
        return InvalidArgument(f"{what} must be a device buffer, found {type(buffer).__name__}")
    return _wrong(kernel, index, buffer, offset, length, what)


def check_alignment(kernel: Kernel, starts: Sequence[int]) -> None:
    """Raise unless each binding begins at a multiple of its alignment."""
    for index, (start, layout) in enumerate(zip(starts, kernel.layout.bindings, strict=True)):
        if start % layout.alignment:
            raise InvalidArgument(
                f"{_name(kernel, index)} starts at byte {start} of its allocation; "
                f"it must be a multiple of {layout.alignment}"
            )


def _wrong(kernel: Kernel, index: int, buffer: Buffer, offset: int, length: int, what: str) -> Error:
    layout = kernel.layout.bindings[index]
    if buffer.released:
        return FailedPrecondition(f"{what} is a released buffer of {buffer.byte_length} bytes")
    if buffer.device is not kernel.device:
        return InvalidArgument(f"{what} is on {buffer.device.uri}; the kernel runs on {kernel.device.uri}")
    if offset < 0 or length < 0 or offset + length > buffer.byte_length:
        return OutOfRange(
            f"{what}: {length} bytes at offset {offset} do not fit a buffer of {buffer.byte_length} bytes"
        )
    if length < layout.minimum_length:
        return OutOfRange(f"{what} has {length} bytes; the kernel needs {layout.minimum_length}")
    missing = _RIGHTS[layout.access] & ~buffer.rights
    return PermissionDenied(f"{what}: {denied(buffer, missing).message}")
