"""Which value a register holds where: the analysis that lets registers become typed Python locals.

The i32 bank is memory: ``%i4`` may be an i32, an f32, or half of an i64 or f64 in ``%i4:5``, one after the other.
The translator gives each (type, ordinal) a local of its own, which is right as long as every register is read at
the type it was last written. :func:`analyze` proves that for a function by following types through its blocks; a
function for which it cannot is translated with registers as raw words (:class:`RawRegisters`), slower but
always right.

A register that was never written is zero at any type (frames are zeroed, vm/bytecode/dispatch.c).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from halgpu.vm import abi
from halgpu.vm.isa import Instruction, Op, Reg, Remap
from halgpu.vm.verifier import Block, VerifiedFunction

WIDE = frozenset({"i64", "f64"})
LETTERS = {"i32": "i", "i64": "l", "f32": "f", "f64": "d", "ref": "r"}
KINDS = {"i": "i32", "I": "i64", "f": "f32", "F": "f64", "r": "ref"}

Local = tuple[str, int]
"""A typed local: value type and register ordinal."""
Slots = list[Local | None]
"""For each i32 register the local that holds it; None while it is zero. A wide local is in two slots."""

_CONFLICT: Local = ("conflict", -1)


class TypeConflict(Exception):
    """A register is read at another type than it was written, or may be. Stays between here and the translator."""


@dataclass(slots=True)
class TypedFunction:
    """The result: locals that may be read while they are zero, and per branch the copies it makes."""

    zeroed: set[Local] = field(default_factory=set)
    copies: dict[tuple[int, int], list[tuple[Local | None, Local]]] = field(default_factory=dict)
    """By (offset of the terminator, index of its successor): (source, target) locals in order; None is zero."""


def arguments(cconv: abi.CallingConvention) -> Iterator[Local]:
    """The locals that a function's arguments arrive in (iree_vm_bytecode_external_enter)."""
    word = ref = 0
    for kind in cconv.arguments:
        assert isinstance(kind, str), "functions of a module take no spans"
        value_type = KINDS[kind]
        if value_type == "ref":
            yield value_type, ref
            ref += 1
            continue
        if value_type in WIDE:
            word += word & 1
        yield value_type, word
        word += 2 if value_type in WIDE else 1


def branches(op: Op) -> Iterator[tuple[int, Remap]]:
    """The (target, remap) pairs of a terminator, in encoding order."""
    target: int | None = None
    for spec, value in zip(op.instruction.fields, op.operands, strict=True):
        if spec.kind == "target":
            if target is not None:
                yield target, ()
            target = value
        elif spec.kind == "remap":
            assert target is not None
            yield target, value
            target = None
        elif spec.kind == "cases":
            yield from value
    if target is not None:
        yield target, ()


class CallTypes:
    """Types of the registers that calls and returns read and write; ``module`` knows the conventions."""

    def __init__(self, callee: dict[int, abi.CallingConvention], own: abi.CallingConvention) -> None:
        self.callee = callee
        self.own = own

    def operands(self, op: Op) -> list[tuple[Reg, str]]:
        """Each register that the call, or return, reads, with its type."""
        if op.instruction.symbol == "Return":
            return list(zip(op["operands"], _types(self.own.results), strict=True))
        types: list[str] = []
        sizes = op["segment_sizes"] if "segment_sizes" in op.instruction.index else ()
        for position, item in enumerate(self.callee[op["callee_ordinal"]].arguments):
            if isinstance(item, str):
                types.append(KINDS[item])
            else:
                types += [KINDS[kind] for kind in item.kinds] * sizes[position]
        return list(zip(op["operands"], types, strict=True))

    def results(self, op: Op) -> list[tuple[Reg, str]]:
        """Each register that the call writes, with its type."""
        return list(zip(op["results"], _types(self.callee[op["callee_ordinal"]].results), strict=True))


def _types(items: tuple[abi.Item, ...]) -> list[str]:
    return [KINDS[item] for item in items if isinstance(item, str)]


CALLS = frozenset({"Call", "CallVariadic", "CallYieldable", "CallVariadicYieldable"})


def reads(op: Op, calls: CallTypes) -> Iterator[Local]:
    """The i32-bank locals that an instruction reads, remaps left out."""
    if op.instruction.symbol in CALLS or op.instruction.symbol == "Return":
        found = calls.operands(op)
    else:
        found = list(_accesses(op, "read"))
    for reg, value_type in found:
        if value_type not in ("ref", "any"):
            yield value_type, reg.ordinal


def writes(op: Op, calls: CallTypes) -> Iterator[Local]:
    """The i32-bank locals that an instruction writes, remaps left out."""
    found = calls.results(op) if op.instruction.symbol in CALLS else list(_accesses(op, "write"))
    for reg, value_type in found:
        if value_type not in ("ref", "any"):
            yield value_type, reg.ordinal


def _accesses(op: Op, access: str) -> Iterator[tuple[Reg, str]]:
    instruction: Instruction = op.instruction
    for spec, value in zip(instruction.fields, op.operands, strict=True):
        if spec.access != access or spec.type is None:
            continue
        if spec.kind == "register":
            yield value, spec.type
        elif spec.kind == "registers":
            for reg in value:
                yield reg, spec.type


def analyze(function: VerifiedFunction, calls: CallTypes) -> TypedFunction:
    """Follow types through the blocks until nothing changes.

    Raises TypeConflict where a read does not surely find the type it wants.
    """
    blocks = {block.offset: block for block in function.blocks}
    entry: Slots = [None] * (function.definition.i32_registers + 1)
    for local in arguments(calls.own):
        _write(entry, local)
    states: dict[int, Slots] = {function.blocks[0].offset: entry}
    typed = TypedFunction()
    pending = [function.blocks[0].offset]
    while pending:
        offset = pending.pop()
        for target, state in _run(blocks[offset], list(states[offset]), calls, typed):
            if _merge(states, target, state, typed):
                pending.append(target)
    for offset, state in states.items():
        _check(blocks[offset], list(state), calls, typed)
    return typed


def _write(slots: Slots, local: Local) -> None:
    if local[0] == "ref":
        return
    slots[local[1]] = local
    if local[0] in WIDE:
        slots[local[1] + 1] = local


def _run(block: Block, slots: Slots, calls: CallTypes, typed: TypedFunction) -> Iterator[tuple[int, Slots]]:
    """The state at the start of each successor."""
    for op in block.ops:
        for local in writes(op, calls):
            _write(slots, local)
    for number, (target, remap) in enumerate(branches(block.ops[-1])):
        after = list(slots)
        typed.copies[block.ops[-1].offset, number] = _copy(after, remap)
        yield target, after


def _copy(slots: Slots, remap: Remap) -> list[tuple[Local | None, Local]]:
    """Apply a branch's copies to ``slots``; words come one by one, a wide value's two in a row."""
    pairs = [(source.ordinal, target.ordinal) for source, target in remap if source.bank == "i32"]
    copies: list[tuple[Local | None, Local]] = []
    at = 0
    while at < len(pairs):
        source, target = pairs[at]
        held = slots[source]
        made: Local
        if held is None:
            made = ("i32", target)
        elif held[0] in WIDE and held[1] == source and pairs[at + 1 : at + 2] == [(source + 1, target + 1)]:
            if slots[source + 1] != held or target & 1:
                held = _CONFLICT
            made = (held[0], target)
            at += 1
        elif held[0] in WIDE:
            held = made = _CONFLICT
        else:
            made = (held[0], target)
        if held == _CONFLICT:
            slots[target] = _CONFLICT
            made = ("conflict", target)
        else:
            _write(slots, made)
        copies.append((held, made))
        at += 1
    return copies


def _merge(states: dict[int, Slots], target: int, state: Slots, typed: TypedFunction) -> bool:
    known = states.get(target)
    if known is None:
        states[target] = state
        return True
    changed = False
    for slot, (old, new) in enumerate(zip(known, state, strict=True)):
        if old == new:
            continue
        if old is None or new is None:
            # Zero on one path: the local itself is set to zero where the function starts.
            merged = old or new
            assert merged is not None
            typed.zeroed.add(merged)
        else:
            merged = _CONFLICT
        if merged != old:
            known[slot] = merged
            changed = True
    return changed


def _check(block: Block, slots: Slots, calls: CallTypes, typed: TypedFunction) -> None:
    """Go through a block with its final state; every read must find its type."""
    for op in block.ops:
        for local in reads(op, calls):
            _check_read(slots, local, typed)
        for local in writes(op, calls):
            _write(slots, local)
    for number, _ in enumerate(branches(block.ops[-1])):
        copies = typed.copies[block.ops[-1].offset, number]
        if any(source == _CONFLICT for source, _ in copies):
            raise TypeConflict(f"branch at {block.ops[-1].offset:#x}")


def _check_read(slots: Slots, local: Local, typed: TypedFunction) -> None:
    held = slots[local[1]]
    other = slots[local[1] + 1] if local[0] in WIDE else held
    if held == local and other == local:
        return
    if held is None and other is None:
        typed.zeroed.add(local)
        return
    raise TypeConflict(f"register {local[1]} read as {local[0]}, written as {held and held[0]}")


class Registers:
    """How translated code reads and writes registers: typed locals."""

    raw = False

    def read(self, value_type: str, ordinal: int) -> str:
        """An expression for the register's value."""
        return f"{LETTERS[value_type]}{ordinal}"

    def target(self, value_type: str, ordinal: int) -> str:
        """The local to assign a result to."""
        return f"{LETTERS[value_type]}{ordinal}"

    def settle(self, value_type: str, ordinal: int) -> str | None:
        """A statement to run behind an assignment to :meth:`target`, if one is needed."""
        return None


class RawRegisters(Registers):
    """Registers of the i32 bank as unsigned 32-bit words ``w0``, ``w1``, …; refs stay as they are."""

    raw = True

    def read(self, value_type: str, ordinal: int) -> str:
        low = f"w{ordinal}"
        both = f"({low} | w{ordinal + 1} << 32)"
        return {
            "i32": f"wrap32({low})",
            "f32": f"from_bits32({low})",
            "i64": f"wrap64{both}",
            "f64": f"from_bits64{both}",
            "ref": f"r{ordinal}",
        }[value_type]

    def target(self, value_type: str, ordinal: int) -> str:
        return f"r{ordinal}" if value_type == "ref" else f"v{ordinal}"

    def settle(self, value_type: str, ordinal: int) -> str | None:
        value = f"v{ordinal}"
        if value_type == "ref":
            return None
        bits = {"f32": f"bits_f32({value})", "f64": f"bits_f64({value})"}.get(value_type, value)
        if value_type in WIDE:
            return f"{value} = {bits}; w{ordinal} = {value} & MASK32; w{ordinal + 1} = {value} >> 32 & MASK32"
        return f"w{ordinal} = {bits} & MASK32"
