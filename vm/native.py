"""Native modules: Python classes whose methods programs import.

    class Sample(NativeModule):
        name = "sample"
        types = {"sample.thing": Thing}

        @export("add", "0ii_i")
        def add(self, left: int, right: int) -> int: ...

A method receives i32 and i64 as signed ints, f32 and f64 as floats, refs as objects or None, a variadic span as one
tuple: of plain values when its tuples have one element, of tuples otherwise. It returns None, a value, or a tuple
of values. What it raises ends the program: halgpu errors keep their class, anything else becomes Internal.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from halgpu import errors
from halgpu.vm.abi import CallingConvention

_Method = TypeVar("_Method", bound=Callable[..., Any])
_MARK = "__halgpu_export__"


@dataclass(frozen=True, slots=True)
class Export:
    """A function that a native module offers; ``attribute`` is the method's name."""

    name: str
    cconv: CallingConvention
    attribute: str


def export(name: str, cconv: str) -> Callable[[_Method], _Method]:
    """Mark a method as function ``name`` of its module, such as ``"buffer.allocate"`` with ``"0iI_rr"``."""
    convention = CallingConvention.parse(cconv)

    def mark(method: _Method) -> _Method:
        _check_arity(name, convention, method)
        setattr(method, _MARK, (name, convention))
        return method

    return mark


class NativeModule:
    """Base of native modules. An instance belongs to one context; its attributes are that context's state."""

    name: ClassVar[str] = ""
    version: ClassVar[int] = 0
    types: ClassVar[Mapping[str, type]] = {}
    """Ref types that programs may name, without ``!``, such as ``{"hal.buffer": Buffer}``."""
    exports: ClassVar[Mapping[str, Export]] = {}
    """The exported functions by name; filled by :func:`export`."""

    _taken: bool = False

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        exports = dict(cls.exports)
        for attribute, method in vars(cls).items():
            marked = getattr(method, _MARK, None)
            if marked is None:
                continue
            name, convention = marked
            made = Export(name, convention, attribute)
            if exports.get(name, made).attribute != attribute:
                raise TypeError(f"{cls.__name__} exports {name!r} twice")
            exports[name] = made
        cls.exports = exports

    def attach(self) -> None:
        """Called once, when a context takes the module in and before programs can call it."""

    def detach(self) -> None:
        """Called once, when the context closes, after every program's ``__deinit``; drop state here."""

    def function(self, name: str) -> Callable[..., Any]:
        """The bound method of an exported function."""
        method: Callable[..., Any] = getattr(self, self.exports[name].attribute)
        return method

    def take(self) -> None:
        """Claim the module for a context; FailedPrecondition when one has it already."""
        if not self.name:
            raise errors.InvalidArgument(f"native module {type(self).__name__} has no name")
        if self._taken:
            raise errors.FailedPrecondition(
                f"native module {self.name} already belongs to a context; make one instance a context"
            )
        self._taken = True


def _check_arity(name: str, convention: CallingConvention, method: Callable[..., Any]) -> None:
    count = len(convention.arguments)
    try:
        inspect.signature(method).bind(None, *convention.arguments)
    except TypeError as error:
        raise TypeError(f"export {name!r} {convention} passes {count} arguments: {error}") from None
