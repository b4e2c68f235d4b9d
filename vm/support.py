"""What translated code calls: buffer, list and global access, and the errors of refs.

Every function here runs inside a program; what it raises reaches the caller with the program's stack.
Messages and status codes follow runtime/src/iree/vm/bytecode/dispatch.c.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable
from typing import Any, NoReturn

from halgpu import errors
from halgpu.vm import numerics
from halgpu.vm.buffer import Buffer, out_of_range
from halgpu.vm.lists import List

_SIZES = {"b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "q": 8, "f": 4, "d": 8}
_PACK: dict[str, Callable[..., bytes]] = {code: struct.Struct("<" + code).pack for code in _SIZES}


class NullReference(errors.InvalidArgument):
    """A ref is null where the program, or a native function that it calls, needs an object."""


# Buffers. Offsets and lengths of loads, stores and fills count elements (vm/buffer.h, iree_vm_buffer_check_ro).


def load(buffer: Any, code: str, index: int) -> Any:
    """Element ``index`` of the buffer seen as elements of format ``code``."""
    try:
        if index >= 0:
            return buffer.reads[code][index]
    except AttributeError as error:  # the first load, or no buffer
        if isinstance(buffer, Buffer) and buffer.look():
            return load(buffer, code, index)
        raise _access_error(buffer, code, index, error) from None
    except IndexError as error:
        raise _access_error(buffer, code, index, error) from None
    raise _access_error(buffer, code, index)


def store(buffer: Any, code: str, index: int, value: Any) -> None:
    """Set element ``index``."""
    try:
        view = buffer.writes[code]
        if index >= 0:
            view[index] = value
            return
    except AttributeError as error:
        if isinstance(buffer, Buffer) and buffer.look():
            store(buffer, code, index, value)
            return
        raise _access_error(buffer, code, index, error) from None
    except IndexError as error:
        raise _access_error(buffer, code, index, error) from None
    raise _access_error(buffer, code, index)


def _access_error(buffer: Any, code: str, index: int, cause: Exception | None = None) -> Exception:
    """Say what was wrong; the fast paths above check nothing twice."""
    if not isinstance(buffer, Buffer):
        return _not_a_buffer(buffer)
    size = _SIZES[code]
    if isinstance(cause, AttributeError | errors.Error):
        return cause  # of the buffer's own making
    return out_of_range(_unsigned(index) * size, size, buffer.byte_length)


def fill(buffer: Any, code: str, index: int, length: int, value: Any) -> None:
    """Set ``length`` elements from ``index``."""
    buffer = _buffer(buffer)
    size = _SIZES[code]
    buffer.fill(_unsigned(index) * size, _unsigned(length) * size, _PACK[code](value))


def buffer_alloc(length: int, alignment: int, allocator: Any) -> Buffer:
    """A new guest buffer; ``length`` is an unsigned 64-bit number in a signed register."""
    if length < 0:
        raise errors.ResourceExhausted(f"no host memory for {_unsigned(length)} bytes")
    return Buffer.create(length, alignment=alignment, allocator=allocator)


def buffer_clone(source: Any, offset: int, length: int, alignment: int, allocator: Any) -> Buffer:
    """A new guest buffer with bytes of ``source``."""
    source = _buffer(source)
    source.check_range(_unsigned(offset), _unsigned(length))
    return Buffer.clone(source, offset, length, alignment=alignment, allocator=allocator)


def buffer_length(buffer: Any) -> int:
    """Bytes in the buffer."""
    return _buffer(buffer).byte_length


def buffer_copy(source: Any, source_offset: int, target: Any, offset: int, length: int) -> None:
    """Copy bytes."""
    source, target = _buffer(source), _buffer(target)
    target.copy_from(source, _unsigned(source_offset), _unsigned(offset), _unsigned(length))


def buffer_compare(left: Any, left_offset: int, right: Any, right_offset: int, length: int) -> int:
    """1 where the bytes are the same."""
    left, right = _buffer(left), _buffer(right)
    return 1 if left.equals(_unsigned(left_offset), right, _unsigned(right_offset), _unsigned(length)) else 0


def buffer_hash(buffer: Any, offset: int, length: int) -> int:
    """SipHash-2-4 of a range."""
    return _buffer(buffer).hash(_unsigned(offset), _unsigned(length))


def _buffer(value: Any) -> Buffer:
    if not isinstance(value, Buffer):
        raise _not_a_buffer(value)
    return value


def _not_a_buffer(value: Any) -> errors.InvalidArgument:
    return _wrong("vm.buffer", value)


def _wrong(expected: str, value: Any) -> errors.InvalidArgument:
    kind = NullReference if value is None else errors.InvalidArgument
    return kind(f"expected a {expected}, found {_name(value)}")


def _unsigned(value: int) -> int:
    """A register's 64 bits as a host size."""
    return value & numerics.MASK64


# Lists


def list_alloc(element_type: Any, capacity: int) -> List:
    """A new list; ``element_type`` as the context resolved it: a value type, a class, or None for variants."""
    return List(element_type, capacity & numerics.MASK32)


def list_reserve(vm_list: Any, capacity: int) -> None:
    """Make room."""
    _list(vm_list).reserve(capacity & numerics.MASK32)


def list_size(vm_list: Any) -> int:
    """Number of elements."""
    return len(_list(vm_list))


def list_resize(vm_list: Any, size: int) -> None:
    """Cut or extend."""
    _list(vm_list).resize(size & numerics.MASK32)


def list_get(vm_list: Any, index: int, value_type: str) -> Any:
    """A value, converted."""
    return _list(vm_list).get_value(index & numerics.MASK32, value_type)


def list_set(vm_list: Any, index: int, value: Any, value_type: str) -> None:
    """Store a value, converted."""
    _list(vm_list).set_value(index & numerics.MASK32, value, value_type)


def list_get_ref(vm_list: Any, index: int, expected: type, move: bool = False) -> Any:
    """A ref; null where it is not of the expected type, as in IREE."""
    found = _list(vm_list).get_ref(index & numerics.MASK32, move)
    return found if isinstance(found, expected) else None


def list_set_ref(vm_list: Any, index: int, value: Any) -> None:
    """Store a ref."""
    _list(vm_list).set_ref(index & numerics.MASK32, value)


def _list(value: Any) -> List:
    if isinstance(value, List):
        return value
    raise _wrong("vm.list", value)


# Globals


class Globals:
    """The mutable state of a module in one context: bytes of primitive globals, and refs."""

    __slots__ = ("byte_length", "data", "refs", "views")

    def __init__(self, byte_length: int, ref_count: int) -> None:
        self.byte_length = byte_length
        try:
            cells: Any = memoryview(bytearray(-(-byte_length // 8) * 8))
            self.refs: list[Any] = [None] * ref_count
        except MemoryError as error:
            raise errors.ResourceExhausted(
                f"no host memory for {byte_length} bytes of globals and {ref_count} refs"
            ) from error
        self.data = cells
        self.views: dict[str, Any] = {code: cells.cast(code) for code in "iqfd"}


def global_load(state: Globals, code: str, offset: int) -> Any:
    """A primitive global at any byte offset."""
    offset &= numerics.MASK32
    if code == "d" and offset + 4 == state.byte_length:
        # iree-compile 3.13.0 writes vm.global.load.indirect.f32 as the f64 instruction, for which dispatch.c asks
        # for 4 bytes only. What follows is zero here, and the program looks at the f32 in the low half.
        return numerics.from_bits64(struct.unpack_from("<I", state.data, offset)[0])
    _check_global(state, code, offset)
    return struct.unpack_from("<" + code, state.data, offset)[0]


def global_store(state: Globals, code: str, offset: int, value: Any) -> None:
    """Set a primitive global at any byte offset."""
    offset &= numerics.MASK32
    _check_global(state, code, offset)
    struct.pack_into("<" + code, state.data, offset, value)


def _check_global(state: Globals, code: str, offset: int) -> None:
    if offset + _SIZES[code] > state.byte_length:
        raise errors.OutOfRange(
            f"global byte offset {offset} out of range: {_SIZES[code]} bytes in {state.byte_length}"
        )


def global_ref_index(state: Globals, index: int) -> int:
    """A ref global's ordinal from a register, checked."""
    index &= numerics.MASK32
    if index >= len(state.refs):
        raise errors.OutOfRange(f"global ref ordinal {index} out of range: {len(state.refs)} refs")
    return index


# Refs and calls


def mismatch(value: Any, expected: type) -> NoReturn:
    """Raise the error of a ref of another type than the program says."""
    raise errors.InvalidArgument(f"ref type mismatch: expected {expected.__name__}, found {_name(value)}")


def fail(code: int, message: str) -> NoReturn:
    """Raise the error that ``vm.fail`` asks for."""
    if not code:
        raise errors.Internal(f"vm.fail with status OK: {message}")
    raise errors.from_code(code & 0x1F, message)


def as_int(value: Any, bits: int) -> int:
    """A native function's integer result, checked."""
    try:
        number = operator.index(value)
    except TypeError:
        raise errors.Internal(
            f"a native function returned {_name(value)} where i{bits} is expected"
        ) from None
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise errors.Internal(f"a native function returned {number}, which does not fit in i{bits}")
    return number


def as_float(value: Any, bits: int) -> float:
    """A native function's float result, checked and rounded."""
    if not isinstance(value, int | float):
        raise errors.Internal(f"a native function returned {_name(value)} where f{bits} is expected")
    return numerics.round_f32(value) if bits == 32 else float(value)


def _name(value: Any) -> str:
    return "null" if value is None else type(value).__name__
