"""What kernels report that check their accesses to bindings, and the error that becomes of it.

A kernel with :attr:`KernelLayout.checks` leaves out each access that lies outside of its binding and records the
first one, with a count of all (modulo 2^32), in a structure that its last pointer argument leads to::

    typedef struct { ulong at; uint seen, count, access, x, y, z; } report;

``at`` is the byte offset in the binding (ULONG_MAX where the arithmetic would wrap), ``access`` a number of
:attr:`Checks.accesses`, x, y, z the global id of the work-item.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from halgpu.errors import OutOfRange

REPORT: Final = struct.Struct("=Q6I")
WRAPPED: Final = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Access:
    """A place in a kernel where it touches a binding: what it does there, and where in the source that is.

    ``element`` is the size of the binding's elements, for an index besides the byte offset; 0 where it has none.
    """

    binding: int
    what: str
    element: int
    where: str


@dataclass(frozen=True, slots=True)
class Checks:
    """The name that people know a kernel by, and its accesses in the order of their numbers."""

    kernel: str
    accesses: tuple[Access, ...]


def violation(checks: Checks, report: bytes | memoryview, lengths: list[int]) -> OutOfRange | None:
    """Return the error for a kernel's report, or None when it has nothing to say. ``lengths`` are the bindings'."""
    at, seen, count, number, x, y, z = REPORT.unpack(report)
    if not seen:
        return None
    access = checks.accesses[number]
    where = f"at byte {at}" if at != WRAPPED else "at an offset of more than 64 bits"
    if access.element and not at % access.element:
        where += f" (element {at // access.element})"
    more = f"; {count} such accesses in all" if count > 1 else ""
    return OutOfRange(
        f"kernel {checks.kernel!r}: {access.what} {where} is outside of binding {access.binding}, "
        f"which has {lengths[access.binding]} bytes: {access.where}, in work-item ({x}, {y}, {z}){more}"
    )
