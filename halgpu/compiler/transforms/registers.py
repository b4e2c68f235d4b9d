"""Gives the values of a ``vm`` function registers.

Values are taken in an order in which each comes after those that are live beside it: then the lowest register that is
free is as good as any choice. A value that dies where another is made may leave it its register. Copies on branches
run one after the other, so they are put in an order in which none destroys what another still reads, with one more
register where they go round in a circle. Facts: runtime/src/iree/vm/bytecode/dispatch.c (branch operands),
compiler/src/iree/compiler/Dialect/VM/Analysis/RegisterAllocation.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, ModuleOp, StringAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass

from halgpu.compiler.dialects import vm_control, vm_structure, vm_types
from halgpu.compiler.mlir import Diagnostics
from halgpu.compiler.transforms.liveness import Liveness, is_ref, moves, ordered
from halgpu.vm import isa
from halgpu.vm.isa import Reg

LIMITS: Final = {"i32": isa.I32_MASK, "ref": isa.REF_MASK}
Remap = list[tuple[Reg, Reg]]


def is_wide(type_: Attribute) -> bool:
    """Whether a value takes two registers."""
    return not vm_types.is_ref(type_) and vm_types.letter(type_) in "IF"


class Registers:
    """The registers of a function's values."""

    def __init__(self, function: vm_structure.FuncOp, diagnostics: Diagnostics) -> None:
        self.blocks = ordered(function)
        self.of: dict[SSAValue, int] = {}
        """The register of each value, the lower one of two."""
        self.ends: dict[Operation, set[SSAValue]] = {}
        """Operands that die with each operation."""
        self._liveness = Liveness(self.blocks)
        self._hints: dict[SSAValue, list[SSAValue]] = {}
        self._counts = {"i32": 0, "ref": 0}
        self._extra = {"i32": 0, "ref": 0}
        for block in self.blocks:
            self.ends |= self._liveness.last_uses(block)
        self._collect_hints()
        self._allocate()
        for bank, count in self._counts.items():
            if count > LIMITS[bank]:
                diagnostics.error(
                    function, f"expected at most {LIMITS[bank]} {bank} registers, found {count}"
                )

    # Giving registers out.

    def _collect_hints(self) -> None:
        """Values that had better share a register: a block's argument and what branches pass for it."""
        for block in self.blocks:
            assert block.last_op is not None
            for after, values in vm_control.successors(block.last_op):
                for argument, value in zip(after.args, values, strict=True):
                    self._hints.setdefault(argument, []).append(value)
                    self._hints.setdefault(value, []).append(argument)

    def _allocate(self) -> None:
        entry = self.blocks[0]
        for block in self.blocks:
            taken: dict[str, set[int]] = {"i32": set(), "ref": set()}
            for value in self._liveness.live_in[block]:
                self._take(taken, value)
            if block is entry:
                self._place_arguments(block.args, taken)
            else:
                for argument in block.args:
                    self._give(argument, taken)
            self._release(taken, [argument for argument in block.args if argument.first_use is None])
            self._in_block(block, taken)

    def _place_arguments(self, arguments: Sequence[SSAValue], taken: dict[str, set[int]]) -> None:
        """A function's arguments lie in the first registers, in order."""
        nexts = {"i32": 0, "ref": 0}
        for argument in arguments:
            bank = _bank(argument)
            width = 1 + is_wide(argument.type)
            at = -(-nexts[bank] // width) * width
            nexts[bank] = at + width
            self._set(argument, at, taken)

    def _in_block(self, block: Block, taken: dict[str, set[int]]) -> None:
        live_out = self._liveness.live_out[block]
        for op in block.ops:
            self._release(taken, self.ends[op])
            for result in op.results:
                self._give(result, taken)
            used = [r for r in op.results if r.first_use is None and r not in live_out]
            self._release(taken, used)

    def _give(self, value: SSAValue, taken: dict[str, set[int]]) -> None:
        bank = taken[_bank(value)]
        width = 1 + is_wide(value.type)
        for hint in self._hints.get(value, ()):
            at = self.of.get(hint)
            if at is not None and hint.type == value.type and not bank.intersection(range(at, at + width)):
                self._set(value, at, taken)
                return
        at = 0
        while bank.intersection(range(at, at + width)):
            at += width
        self._set(value, at, taken)

    def _set(self, value: SSAValue, at: int, taken: dict[str, set[int]]) -> None:
        self.of[value] = at
        self._take(taken, value)

    def _take(self, taken: dict[str, set[int]], value: SSAValue) -> None:
        registers = self._range(value)
        taken[_bank(value)].update(registers)
        self._counts[_bank(value)] = max(self._counts[_bank(value)], registers.stop)

    def _release(self, taken: dict[str, set[int]], values: Iterable[SSAValue]) -> None:
        for value in values:
            taken[_bank(value)].difference_update(self._range(value))

    def _range(self, value: SSAValue) -> range:
        at = self.of[value]
        return range(at, at + 1 + is_wide(value.type))

    # What instructions say.

    def result(self, value: SSAValue) -> Reg:
        """The register that a result goes to."""
        return Reg(_bank(value), self.of[value])

    def operand(self, op: Operation, index: int) -> Reg:
        """The register of an operand; its value moves out of it where that ends its life."""
        value = op.operands[index]
        last = value in self.ends[op] and value not in list(op.operands)[index + 1 :]
        return Reg(_bank(value), self.of[value], is_ref(value) and last and moves(op))

    def remap(self, block: Block, number: int) -> Remap:
        """The copies that a branch makes on one of its ways."""
        assert block.last_op is not None
        after, values = vm_control.successors(block.last_op)[number]
        numbers: list[tuple[int, int]] = []
        references: list[tuple[int, int]] = []
        for argument, value in zip(after.args, values, strict=True):
            if is_ref(value):
                references.append((self.of[value], self.of[argument]))
            else:
                numbers += zip(self._range(value), self._range(argument), strict=True)
        scratch = self._scratch("i32")
        copies = _sequence(numbers, scratch)
        if any(target == scratch for _, target in copies):
            self._extra["i32"] = 1
        remap: Remap = [(Reg("i32", source), Reg("i32", target)) for source, target in copies]
        dying = {self.of[v] for v in values if is_ref(v) and v not in self._liveness.live_in[after]}
        return remap + self._references(references, dying)

    def _references(self, copies: Sequence[tuple[int, int]], dying: set[int]) -> Remap:
        """References whose life ends move with their last copy, unless they stay where they are."""
        scratch = self._scratch("ref")
        leaving = (dying - {source for source, target in copies if source == target}) | {scratch}
        remap: Remap = []
        read_later: set[int] = set()
        for source, target in reversed(_sequence(copies, scratch)):
            move = source in leaving and source not in read_later
            remap.append((Reg("ref", source, move), Reg("ref", target)))
            read_later.add(source)
            if target == scratch:
                self._extra["ref"] = 1
        return remap[::-1]

    def _scratch(self, bank: isa.Bank) -> int:
        """A register that holds nothing else."""
        return self._counts[bank]

    def count(self, bank: isa.Bank) -> int:
        """The number of registers in use; complete once every branch's copies have been asked for."""
        return self._counts[bank] + self._extra[bank]


def _bank(value: SSAValue) -> isa.Bank:
    return "ref" if is_ref(value) else "i32"


def _sequence(copies: Iterable[tuple[int, int]], scratch: int) -> list[tuple[int, int]]:
    """Copies that all happen at once, as copies that happen one after the other."""
    waiting = [(source, target) for source, target in copies if source != target]
    done: list[tuple[int, int]] = []
    while waiting:
        sources = {source for source, _ in waiting}
        free = next((copy for copy in waiting if copy[1] not in sources), None)
        if free is None:
            # All targets are still to be read: they form circles. One value steps aside.
            aside = waiting[0][0]
            done.append((aside, scratch))
            waiting = [(scratch if source == aside else source, target) for source, target in waiting]
            continue
        waiting.remove(free)
        done.append(free)
    return done


@dataclass(frozen=True)
class AnnotateRegistersPass(ModulePass):
    """Write on every operation which registers it reads and writes, for people to read."""

    name = "annotate-registers"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        diagnostics = Diagnostics()
        for function in op.walk():
            if isinstance(function, vm_structure.FuncOp) and function.body.blocks:
                _annotate(Registers(function, diagnostics))
        diagnostics.check()


def _annotate(registers: Registers) -> None:
    for block in registers.blocks:
        for op in block.ops:
            if op.operands:
                read = [_text(registers.operand(op, index)) for index in range(len(op.operands))]
                op.attributes["reads"] = ArrayAttr(map(StringAttr, read))
            if op.results:
                written = [_text(registers.result(result)) for result in op.results]
                op.attributes["writes"] = ArrayAttr(map(StringAttr, written))
        assert block.last_op is not None
        ways = range(len(vm_control.successors(block.last_op)))
        copies = [
            StringAttr(", ".join(f"{_text(s)}->{_text(t)}" for s, t in registers.remap(block, way)))
            for way in ways
        ]
        if copies:
            block.last_op.attributes["copies"] = ArrayAttr(copies)


def _text(reg: Reg) -> str:
    return f"{'R' if reg.move else 'r'}{reg.ordinal}" if reg.bank == "ref" else f"i{reg.ordinal}"
