"""VM lists: resizable sequences of one primitive type, of refs, or of variants.

Element conversions are those of runtime/src/iree/vm/list.c: integers of different widths wrap or sign-extend
into each other, f32 and f64 round or widen, a read at any other type than the stored one gives zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from halgpu import errors
from halgpu.vm.numerics import round_f32

INTEGER_BITS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}
VALUE_TYPES = frozenset((*INTEGER_BITS, "f32", "f64"))
MAXIMUM_CAPACITY = 1 << 26
"""Elements a list may have room for. Without a bound a program could ask for all of the host's memory."""


class List:
    """A resizable list.

    ``element_type`` is a value type (``"i8"`` … ``"f64"``), a Python class for refs of that type, or None for
    variants, which hold values and refs of any type.
    """

    __slots__ = ("__weakref__", "_capacity", "_items", "element_type")

    def __init__(self, element_type: str | type | None = None, capacity: int = 0) -> None:
        if isinstance(element_type, str) and element_type not in VALUE_TYPES:
            raise errors.InvalidArgument(
                f"expected an element type of {sorted(VALUE_TYPES)}, found {element_type!r}"
            )
        self.element_type = element_type
        self._items: list[Any] = []
        self._capacity = 0
        self.reserve(capacity)

    @classmethod
    def of(cls, element_type: type, items: Iterable[Any]) -> List:
        """Make a list of refs, which are taken to be of that type."""
        made = cls(element_type)
        made._items.extend(items)
        made.reserve(len(made._items))
        return made

    def __len__(self) -> int:
        return len(self._items)

    def __bool__(self) -> bool:
        """A list is an object, not its contents: an empty one is no null ref."""
        return True

    @property
    def capacity(self) -> int:
        """How many elements fit without growing; informative, memory is only taken for what is stored."""
        return self._capacity

    def reserve(self, minimum_capacity: int) -> None:
        """Make room for ``minimum_capacity`` elements; ResourceExhausted beyond MAXIMUM_CAPACITY."""
        if minimum_capacity <= self._capacity:
            return
        if minimum_capacity > MAXIMUM_CAPACITY:
            raise errors.ResourceExhausted(
                f"a list holds at most {MAXIMUM_CAPACITY} elements, found a request for {minimum_capacity}"
            )
        self._capacity = -(-minimum_capacity // 64) * 64

    def resize(self, size: int) -> None:
        """Cut to ``size`` elements, or extend with zeros or nulls."""
        count = len(self._items)
        if size <= count:
            del self._items[size:]
            return
        self.reserve(size)
        self._items.extend([self._empty()] * (size - count))

    def _empty(self) -> Any:
        if self.element_type in ("f32", "f64"):
            return 0.0
        return 0 if isinstance(self.element_type, str) else None

    def _at(self, index: int) -> Any:
        if not 0 <= index < len(self._items):
            raise errors.OutOfRange(f"index {index} out of bounds ({len(self._items)} elements)")
        return self._items[index]

    def get_value(self, index: int, value_type: str) -> Any:
        """Element ``index`` as ``value_type``, converted.

        Raises OutOfRange; FailedPrecondition where the element is no value.
        """
        item = self._at(index)
        stored = self.element_type
        if stored is None:
            if type(item) is not _Value:
                raise errors.FailedPrecondition(f"variant at index {index} is not a value")
            stored, item = item.value_type, item.value
        if not isinstance(stored, str):
            raise errors.FailedPrecondition("list does not store values")
        return item if stored == value_type else convert(item, stored, value_type)

    def set_value(self, index: int, value: Any, value_type: str) -> None:
        """Store a value of ``value_type``, converted to what the list holds; raises as :meth:`get_value`."""
        self._at(index)
        stored = self.element_type
        if stored is None:
            self._items[index] = _Value(value_type, value)
        elif isinstance(stored, str):
            self._items[index] = value if stored == value_type else convert(value, value_type, stored)
        else:
            raise errors.FailedPrecondition("list cannot store values")

    def get_ref(self, index: int, move: bool = False) -> Any:
        """Element ``index`` as a ref; with ``move`` the list keeps null in its place.

        Raises OutOfRange; FailedPrecondition where the element is no ref.
        """
        item = self._at(index)
        if isinstance(self.element_type, str):
            raise errors.FailedPrecondition("list does not store refs")
        if type(item) is _Value:
            raise errors.FailedPrecondition(f"variant at index {index} is not a ref")
        if move:
            self._items[index] = None
        return item

    def set_ref(self, index: int, value: Any) -> None:
        """Store a ref or None. Raises OutOfRange, FailedPrecondition, or InvalidArgument for another type."""
        self._at(index)
        stored = self.element_type
        if isinstance(stored, str):
            raise errors.FailedPrecondition("list cannot store refs")
        if stored is not None and value is not None and not isinstance(value, stored):
            raise errors.InvalidArgument(
                f"ref type mismatch: expected {stored.__name__}, found {type(value).__name__}"
            )
        self._items[index] = value

    def items(self) -> tuple[Any, ...]:
        """The elements, values of variants unwrapped; a copy."""
        return tuple(item.value if type(item) is _Value else item for item in self._items)

    def __repr__(self) -> str:
        kind = self.element_type
        name = "?" if kind is None else kind if isinstance(kind, str) else kind.__name__
        return f"<vm.List<{name}> of {len(self._items)}>"


class _Value:
    """A value in a variant list, with the type it was stored as."""

    __slots__ = ("value", "value_type")

    def __init__(self, value_type: str, value: Any) -> None:
        self.value_type = value_type
        self.value = value


def convert(value: Any, source: str, target: str) -> Any:
    """Convert between value types as lists do: what crosses between integers and floats becomes zero."""
    bits = INTEGER_BITS.get(target)
    if bits is None:
        value = 0.0 if source in INTEGER_BITS else value
        return round_f32(value) if target == "f32" else value
    if source not in INTEGER_BITS:
        return 0
    half = 1 << bits - 1
    return (value + half & (1 << bits) - 1) - half
