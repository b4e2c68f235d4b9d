"""Checked kernels (HALGPU_CHECKED=1): each access to a binding is compared with the binding's length first.

An access becomes a byte offset, counted in 64 bits so that nothing wraps, a test of it that reports what lies
outside (devices/checks.py), and the access at exactly that offset, left out where the test fails: such a read
gives 0. The operations of the ``op_*`` modules call :func:`index` and :func:`guarded`; in kernels that are not
checked these change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from halgpu.devices.checks import Access, Checks

from . import literals
from . import spirv_types as ty
from .expressions import ATOM, MULTIPLY, Expr
from .opcodes import Op, op_name
from .places import BufferPlace
from .source import Source
from .tree import Local

if TYPE_CHECKING:
    from .emitter import Emitter
    from .kernel import Kernel
    from .module import Instruction

_VERBS: Final[dict[int, str]] = {
    Op.Load: "a load of",
    Op.Store: "a store of",
    Op.CooperativeMatrixLoadKHR: "a load of",
    Op.CooperativeMatrixStoreKHR: "a store of",
    Op.CopyMemory: "a copy of",
}
_REPORT: Final = "typedef struct { ulong at; uint seen, count, access, x, y, z; } NAME;"

_INSIDE: Final = """static bool NAME(volatile __global REPORT *report, uint access, ulong at, ulong size, ulong end)
{
    if (at <= end && size <= end - at) {
        return true;
    }
    atomic_inc(&report->count);
    if (atomic_xchg(&report->seen, 1) == 0) {
        report->at = at;
        report->access = access;
        report->x = get_global_id(0);
        report->y = get_global_id(1);
        report->z = get_global_id(2);
    }
    return false;
}"""

_ADVANCED: Final = """static ulong NAME(ulong at, ulong index, ulong stride)
{
    return mul_hi(index, stride) ? ULONG_MAX : add_sat(at, index * stride);
}"""


class CheckedIndex(Expr):
    """An index into a binding whose access was tested, and the name of the variable that says how that went."""

    __slots__ = ("inside",)

    def __init__(self, text: str, level: int, at: Expr, inside: Expr) -> None:
        super().__init__(ty.INTS[64], text, level, at.reads + inside.reads)
        self.inside = inside.text


class Recorder:
    """The accesses of one kernel, numbered as they are emitted."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._accesses: list[Access] = []

    def number(self, instruction: Instruction, place: BufferPlace, type_: ty.Type) -> int:
        """The number of a further access."""
        what = f"{_VERBS.get(instruction.op, 'an atomic on')} {type_}"
        size = _size(type_)
        # Of an array of such elements at the start of the binding the index can be told from the offset.
        plain = not place.offset and all(stride == size for _, stride in place.terms)
        self._accesses.append(
            Access(place.binding.ordinal, what, size if plain else 0, self._source(instruction))
        )
        return len(self._accesses) - 1

    def _source(self, instruction: Instruction) -> str:
        """The line of the instruction if the module says it, else that of the kernel; and the instruction."""
        kernel = self._kernel
        line = kernel.module.lines.get(instruction.at) or kernel.definition.location
        where = f"{op_name(instruction.op)} at word {instruction.at} of its SPIR-V"
        return f"{line}, {where}" if line else where

    def checks(self) -> Checks | None:
        """What the kernel's layout says; None for a kernel without accesses."""
        return Checks(self._kernel.entry.name, tuple(self._accesses)) if self._accesses else None


def report_type(source: Source) -> str:
    """The structure that a checked kernel reports in."""
    return source.helper("access_report", _REPORT)


def index(
    e: Emitter, instruction: Instruction, place: BufferPlace, type_: ty.Type, unit: int
) -> CheckedIndex:
    """Emit the test of an access to a ``type_`` at ``place``; returns its index in units of ``unit`` bytes."""
    recorder, source = e.kernel.recorder, e.source
    assert recorder is not None
    at = _offset(e, place)
    inside = source.helper("is_inside", _INSIDE.replace("REPORT", report_type(source)))
    number = recorder.number(instruction, place, type_)
    end = _end(e.kernel.length(place.binding), type_)
    test = f"{inside}(report, {number}, {at.text}, {_size(type_)}, {end})"
    passed = e.named(Expr(ty.BOOL, test, ATOM, at.reads), "inside")
    return CheckedIndex(f"{at.text} / {unit}" if unit > 1 else at.text, MULTIPLY, at, passed)


def _size(type_: ty.Type) -> int:
    return ty.byte_size(ty.element_of(type_)) * ty.count_of(type_)


def _end(length: str, type_: ty.Type) -> str:
    """Where a binding ends for accesses of a type.

    A word of up to 32 bits that begins inside counts as inside: stock programs for targets without 8-bit storage
    keep smaller elements in such words, and the last one may be partly used. Vulkan's robust accesses go by the
    same rule (robustStorageBufferAccessSizeAlignment, VK_EXT_robustness2).
    """
    word = min(ty.byte_size(ty.element_of(type_)), 4)
    return length if word == 1 else f"({length} + {word - 1}) / {word} * {word}"


def _offset(e: Emitter, place: BufferPlace) -> Expr:
    """The byte offset of a place, as a name or a literal."""
    text, reads = f"{min(place.offset, 2**64 - 1)}ul", tuple[Local, ...]()
    for term, stride in place.terms:
        advanced = e.source.helper("advanced", _ADVANCED)
        text, reads = f"{advanced}({text}, {term.text}, {stride})", (*reads, *term.reads)
    return e.named(Expr(ty.INTS[64], text, ATOM, reads), "at")


def guarded(e: Emitter, at: Expr, type_: ty.Type, text: str) -> str:
    """The text of a read or an atomic, of a ``type_``, at an index: 0 where that lies outside."""
    if not isinstance(at, CheckedIndex):
        return text
    chosen = f"({at.inside} ? {text} : {literals.constant(e.source, ty.Constant(type_, None)).operand})"
    # C computes with nothing narrower than int, not even in a choice.
    narrow = isinstance(type_, (ty.Int, ty.Float)) and type_.width < 32
    return f"(({e.source.type(type_)}){chosen})" if narrow else chosen


def guarded_statement(at: Expr, text: str) -> str:
    """The text of a store at an index: nothing happens where that lies outside."""
    return f"if ({at.inside}) {{ {text} }}" if isinstance(at, CheckedIndex) else text
