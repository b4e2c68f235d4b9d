"""What a kernel takes: its constants, its bindings, its workgroup. And the source that kernels are built from."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from halgpu.devices.constants import Constant, ConstantType, constant_type, words
from halgpu.errors import InvalidArgument

if TYPE_CHECKING:
    from halgpu.devices.checks import Checks

Access = Literal["read", "write", "readwrite"]


@dataclass(frozen=True, slots=True)
class BindingLayout:
    """One buffer argument of a kernel."""

    access: Access = "readwrite"
    alignment: int = 1
    """Bytes; the binding's offset inside its device allocation must be a multiple of it."""
    minimum_length: int = 0
    """Bytes that the kernel needs at least; 0 where unknown."""


@dataclass(frozen=True, slots=True, init=False)
class KernelLayout:
    """The arguments a kernel takes and the workgroup it was compiled for.

    ``constants`` says how a backend hands the arguments over (``passing``):

    * A sequence of types (``"u32"``, ``"f32x4"``, :class:`~halgpu.devices.constants.Struct`): ``"plain"``, for
      kernels that people write. The parameters are the constants by value, then a pointer a binding, then, where
      ``local_memory`` is not 0, one to that many bytes of local memory (OpenCL C) or nothing more (CUDA: the
      ``extern __shared__`` array has them). ``local_memory`` does not count what the kernel declares itself.
    * An int, the number of 32-bit constants: ``"packed"``, for kernels that halgpu translates. The parameters are
      a pointer a binding to the start of the *device allocation*, then one structure by value with one u64 byte
      offset a binding and then the u32 constants; the structure is left out when it would be empty. With
      ``lengths`` the structure has one u64 byte length a binding too, behind the offsets; with ``checks`` one
      more pointer, to the report of checks.py, comes between bindings and structure. ``local_memory`` is what
      the kernel declares itself.
    * An int and ``addresses``: ``"addresses"``, for the CUDA kernels of iree-compile. The parameters are a pointer a
      binding, then each u32 constant by itself; ``local_memory`` is what the launch adds (``extern __shared__``).

    ``bindings`` are BindingLayouts or their access alone: ``"read"``, ``"write"``, ``"readwrite"``.
    ``workgroup_size`` is one to three sizes. Raises InvalidArgument for what is none of these.
    """

    name: str
    constants: int
    """Number of 32-bit words that a program passes."""
    bindings: tuple[BindingLayout, ...]
    workgroup_size: tuple[int, int, int]
    local_memory: int
    lengths: bool
    checks: Checks | None
    """What the kernel checks of its accesses; such a kernel has ``lengths``."""
    apart: str
    """Name of a kernel of the same program that does the same for bindings that are apart: none that is written
    overlaps another one. Empty where there is none; a backend may do without it."""
    addresses: bool
    types: tuple[ConstantType, ...] | None
    """The constants' types where ``passing`` is ``"plain"``, else None."""

    def __init__(
        self,
        name: str,
        constants: int | Sequence[Constant] = (),
        bindings: Sequence[BindingLayout | str] = (),
        workgroup_size: int | Sequence[int] = (1, 1, 1),
        local_memory: int = 0,
        lengths: bool = False,
        checks: Checks | None = None,
        apart: str = "",
        addresses: bool = False,
        types: Sequence[ConstantType] | None = None,
    ) -> None:
        kinds = tuple(types) if types is not None else None
        if not isinstance(constants, int):
            kinds = tuple(constant_type(kind) for kind in _sequence(name, "constants", constants))
            constants = sum(map(words, kinds))
        for field, value in (
            ("name", name),
            ("constants", constants),
            ("bindings", tuple(_binding(name, item) for item in _sequence(name, "bindings", bindings))),
            ("workgroup_size", _workgroup_size(name, workgroup_size)),
            ("local_memory", _integer(name, "local_memory", local_memory)),
            ("lengths", lengths),
            ("checks", checks),
            ("apart", apart),
            ("addresses", addresses),
            ("types", kinds),
        ):
            object.__setattr__(self, field, value)

    @property
    def passing(self) -> Literal["packed", "plain", "addresses"]:
        """How the arguments are handed over."""
        if self.types is not None:
            return "plain"
        return "addresses" if self.addresses else "packed"

    @property
    def pointers(self) -> int:
        """How many arguments are pointers to buffers."""
        return len(self.bindings) + (self.checks is not None)

    @property
    def parameter_longs(self) -> int:
        """How many u64 the packed structure begins with."""
        return len(self.bindings) * (2 if self.lengths else 1)

    @property
    def parameter_bytes(self) -> int:
        """Size of the packed structure in C: padded to 8 bytes when it holds an offset."""
        size = 8 * self.parameter_longs + 4 * self.constants
        return -(-size // 8) * 8 if self.bindings else size


def _sequence(name: str, what: str, given: Any) -> tuple[Any, ...]:
    # A forgotten comma, constants=("u32"), would be three types of one letter.
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise InvalidArgument(f"kernel {name!r}: {what} must be a sequence, such as a tuple; found {given!r}")
    return tuple(given)


def _binding(name: str, given: Any) -> BindingLayout:
    if isinstance(given, BindingLayout):
        return given
    if given not in ("read", "write", "readwrite"):
        raise InvalidArgument(
            f"kernel {name!r}: a binding is 'read', 'write', 'readwrite' or a BindingLayout; found {given!r}"
        )
    return BindingLayout(cast(Access, given))


def _workgroup_size(name: str, given: Any) -> tuple[int, int, int]:
    sizes = given if isinstance(given, Sequence) else (given,)
    if isinstance(given, str) or not 1 <= len(sizes) <= 3:
        raise InvalidArgument(f"kernel {name!r}: workgroup_size is one to three ints, found {given!r}")
    x, y, z = (*(_integer(name, "workgroup_size", size) for size in sizes), 1, 1)[:3]
    return x, y, z


def _integer(name: str, what: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgument(f"kernel {name!r}: {what} must be an int, found {value!r}") from None


@dataclass(frozen=True, slots=True)
class Program:
    """Source of one or more kernels for :meth:`Device.build`.

    ``language`` is one of the device's :attr:`Capabilities.languages`; ``extensions`` the device extensions
    that the source needs by name (OpenCL: ``cl_khr_fp64``), checked before building. A program in language
    ``"python"`` has ``callables``, one a layout, and its source is for people only (see host.py).

    ``names``, if given, are all identifiers that the source defines at file scope; it can then be compiled as
    a part of a larger source.
    """

    language: str
    source: str
    layouts: tuple[KernelLayout, ...]
    options: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    callables: tuple[Callable[..., None], ...] = ()
    names: frozenset[str] = frozenset()
