"""Verifies bytecode, once, before anything runs; what it hands on needs no further checks.

:func:`verify` decodes every function of a module and refuses what IREE's verifier refuses
(runtime/src/iree/vm/bytecode/verifier.c). It also refuses what that one lets through although it cannot be
meant:

* register and type ordinals beyond what the function and the module declare (IREE rounds register counts up
  to a power of two and looks at neither in most instructions),
* a 64-bit global in the last 4 bytes, and offsets whose end wraps around (IREE adds 4 in 32 bits),
* branch operands that copy between banks, a discarded register that is no ref,
* more operands or results than a callee takes or gives, or than the function returns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from halgpu import errors
from halgpu.vm import isa
from halgpu.vm.definition import Feature, FunctionDef, ModuleDef
from halgpu.vm.isa import Instruction, Op, Reg

MAX_BLOCK_OFFSET = 0x00FF_FFFF
"""Blocks start below this (``IREE_VM_ISA_PC_BLOCK_MAX``)."""
MAX_SHARING = 16
"""Functions may share bytecode; all lengths together may be this many times that of the bytecode."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A basic block. ``ops`` leaves out the block marker and ends with the only terminator."""

    offset: int
    """Offset of the block marker in the function, which is how branches name the block."""
    ops: tuple[Op, ...]
    successors: tuple[int, ...]
    """Offsets of the blocks that the terminator names, in its order; each is one of the function's blocks."""


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedFunction:
    """A function whose operands are all in range. ``blocks`` are in order of offsets; the first is at 0."""

    definition: FunctionDef
    cconv: str
    blocks: tuple[Block, ...]


Locate = Callable[[FunctionDef, "int | None"], str]
"""Says where an offset of a function is, or with None where the function is, for error messages."""


def verify(module: ModuleDef, locate: Locate | None = None) -> tuple[VerifiedFunction, ...]:
    """Decode and check all functions of ``module``, in order of their ordinals.

    Raises InvalidArgument or OutOfRange; the message names function, bytecode offset, source location where
    the debug database knows it (or what ``locate`` says), what was expected and what was found. The result is
    decoded: it does not change with the file's buffer.
    """
    _check_sharing(module)
    for imported in module.imports:
        _annotated(f"import {imported.full_name}", _shape, imported.cconv)
    return tuple(
        _FunctionVerifier(module, function, signature.cconv, locate).verify()
        for function, signature in zip(module.functions, module.signatures, strict=True)
    )


def _check_sharing(module: ModuleDef) -> None:
    total = sum(function.length for function in module.functions)
    if total > MAX_SHARING * len(module.bytecode):
        raise errors.InvalidArgument(
            f"the functions of @{module.name} have {total} bytes together, but the module has "
            f"{len(module.bytecode)} bytes of bytecode; functions do not share code to that extent"
        )


# Calling conventions, as far as registers go: the values a call passes, one letter each.


class _Shape(NamedTuple):
    arguments: tuple[str, ...]
    """A letter for a value, several letters or none for a variadic span's tuple after a ``C``."""
    results: str


@functools.lru_cache(maxsize=1024)
def _shape(cconv: str) -> _Shape:
    """Parse a calling convention (runtime/src/iree/vm/module.h) such as ``0rIiiiCiDCrIID_v``."""
    if not cconv:
        return _Shape((), "")
    if cconv[0] != "0":
        raise errors.InvalidArgument(f"calling convention {cconv!r} has an unknown version; expected 0")
    arguments, _, results = cconv[1:].partition("_")
    shape = _Shape(tuple(_split_spans(arguments, cconv)), results.replace("v", ""))
    for letter in "".join(shape.arguments) + shape.results:
        if letter not in "iIfFrC":
            raise errors.InvalidArgument(f"calling convention {cconv!r} has the unknown type {letter!r}")
    if "C" in shape.results:
        raise errors.InvalidArgument(f"calling convention {cconv!r} has variadic results")
    return shape


def check_convention(cconv: str) -> None:
    """Raise InvalidArgument for a calling convention that is none."""
    _shape(cconv)


def _split_spans(arguments: str, cconv: str) -> Iterable[str]:
    outside, *spans = arguments.replace("v", "").split("C")
    yield from outside
    for span in spans:
        types, end, after = span.partition("D")
        if not end or "D" in after:
            raise errors.InvalidArgument(f"calling convention {cconv!r} has a span without its end or start")
        yield f"C{types}"
        yield from after


def register_counts(letters: Iterable[str]) -> tuple[int, int]:
    """How many i32 and ref registers hold values of these types (letters of calling conventions).

    They lie in the first registers, in order, 64-bit ones in even pairs.
    """
    i32 = refs = 0
    for letter in letters:
        if letter == "r":
            refs += 1
        elif letter in "IF":
            i32 += (i32 & 1) + 2
        else:
            i32 += 1
    return i32, refs


# One function.

_FEATURES = {"ext_f32": Feature.EXT_F32, "ext_f64": Feature.EXT_F64}


class _FunctionVerifier:
    """Walks one function. Checks raise; :meth:`_locate` says where it was."""

    def __init__(
        self, module: ModuleDef, function: FunctionDef, cconv: str, locate: Locate | None = None
    ) -> None:
        self.module = module
        self.function = function
        self.cconv = cconv
        self.code = bytes(function.code)
        self.i32_registers = function.i32_registers
        # iree-as-module counts only the lower half of a pair that nothing but a call writes.
        self.paired_registers = (function.i32_registers + 1) & ~1
        self.ref_registers = function.ref_registers
        self.missing = {name for name, bit in _FEATURES.items() if not function.requirements & bit}
        self.results = ""
        self.locate = locate

    def verify(self) -> VerifiedFunction:
        _annotated(self._locate(None), self._check_signature)
        blocks: dict[int, Block] = {}
        at = 0
        # Like in IREE, one odd byte behind the last block is not looked at: nothing starts there.
        while at < len(self.code) - 1:
            block, at = self._read_block(at)
            blocks[block.offset] = block
        _annotated(self._locate(None), self._check_blocks, blocks)
        return VerifiedFunction(self.function, self.cconv, tuple(blocks.values()))

    def _locate(self, offset: int | None) -> str:
        function = self.function
        if self.locate is not None:
            return self.locate(function, offset)
        name = f"@{self.module.name}." + (function.name or f"function {function.ordinal}")
        if offset is None:
            return name
        debug = self.module.debug
        source = debug and debug.location(function.ordinal, offset)
        return f"{name} at bytecode offset {offset:#x}" + (f" ({source})" if source else "")

    def _check_signature(self) -> None:
        shape = _shape(self.cconv)
        if any(argument[0] == "C" for argument in shape.arguments):
            raise errors.InvalidArgument(f"internal functions take no variadic arguments: {self.cconv!r}")
        i32, refs = register_counts(shape.arguments)
        if i32 > self.paired_registers or refs > self.ref_registers:
            raise errors.InvalidArgument(
                f"arguments of {self.cconv!r} need {i32} i32 and {refs} ref registers, "
                f"the function has {self.i32_registers} and {self.ref_registers}"
            )
        self.results = shape.results

    def _read_block(self, at: int) -> tuple[Block, int]:
        offset = at
        ops: list[Op] = []
        try:
            at = self._read_marker(offset)
            while not ops or not ops[-1].instruction.terminator:
                ops.append(self._read_op(at))
                at = ops[-1].end
        except errors.Error as problem:
            raise type(problem)(f"{self._locate(at)}: {problem}") from None
        return Block(offset, tuple(ops), ops[-1].targets()), at

    def _read_marker(self, at: int) -> int:
        if self.code[at] != isa.BLOCK.opcode:
            raise errors.InvalidArgument("expected a block marker, found an instruction outside of a block")
        if at >= MAX_BLOCK_OFFSET:
            raise errors.OutOfRange(f"a block starts at {at:#x}; the limit is {MAX_BLOCK_OFFSET:#x}")
        return at + 1

    def _read_op(self, at: int) -> Op:
        if at >= len(self.code):
            raise errors.InvalidArgument("the function ends inside a block; expected a terminator")
        op = isa.decode(self.code, at)
        instruction = op.instruction
        if instruction is isa.BLOCK:
            raise errors.InvalidArgument("a block starts inside of another one; expected a terminator before")
        if instruction.opcode_set in self.missing:
            name = _FEATURES[instruction.opcode_set].name
            raise errors.InvalidArgument(f"{instruction.mnemonic} needs {name}, not declared by the function")
        for check, value in zip(_CHECKS[instruction], op.operands, strict=True):
            if check is not None:
                check(self, value)
        extra = _EXTRA_CHECKS.get(instruction.symbol)
        if extra is not None:
            extra(self, op)
        return op

    def _check_blocks(self, blocks: dict[int, Block]) -> None:
        if len(blocks) != self.function.block_count:
            raise errors.InvalidArgument(
                f"the function declares {self.function.block_count} blocks and has {len(blocks)}"
            )
        for block in blocks.values():
            for target in block.successors:
                if target not in blocks:
                    raise errors.InvalidArgument(
                        f"the terminator at {block.ops[-1].offset:#x} branches to {target:#x}, "
                        "where no block starts"
                    )

    # Operands.

    def x32(self, register: Reg) -> None:
        if register.bank != "i32":
            raise errors.InvalidArgument(f"expected a 32-bit register, found ref register {register.ordinal}")
        if register.ordinal >= self.i32_registers:
            raise errors.OutOfRange(
                _beyond("register", register.ordinal, self.i32_registers, "i32 registers")
            )

    def x64(self, register: Reg) -> None:
        if register.bank != "i32":
            raise errors.InvalidArgument(f"expected a 64-bit register, found ref register {register.ordinal}")
        if register.ordinal & 1:
            raise errors.InvalidArgument(f"64-bit register {register.ordinal} is not even")
        if register.ordinal >= self.paired_registers:
            raise errors.OutOfRange(
                _beyond("64-bit register", register.ordinal, self.i32_registers, "i32 registers")
            )

    def ref_or_move(self, register: Reg) -> None:
        if register.bank != "ref":
            raise errors.InvalidArgument(f"expected a ref register, found i32 register {register.ordinal}")
        if register.ordinal >= self.ref_registers:
            raise errors.OutOfRange(
                _beyond("register", register.ordinal, self.ref_registers, "ref registers")
            )

    def ref(self, register: Reg) -> None:
        self.ref_or_move(register)
        if register.move:
            raise errors.InvalidArgument(
                f"ref register {register.ordinal} is moved, which is not possible here"
            )

    def any(self, register: Reg) -> None:
        if register.bank == "i32":
            self.x32(register)
        else:
            self.ref_or_move(register)

    def remap(self, pairs: isa.Remap) -> None:
        for source, target in pairs:
            self.any(source)
            self.any(target)
            if source.bank != target.bank:
                raise errors.InvalidArgument(f"a branch operand goes from {source} to {target}")

    def cases(self, cases: Sequence[tuple[int, isa.Remap]]) -> None:
        for _, remap in cases:
            self.remap(remap)

    def global32(self, offset: int) -> None:
        self._global(offset, 4)

    def global64(self, offset: int) -> None:
        self._global(offset, 8)

    def _global(self, offset: int, size: int) -> None:
        if offset + size > self.module.global_bytes:
            raise errors.OutOfRange(
                f"a global of {size} bytes at {offset:#x} is out of range: "
                f"the module has {self.module.global_bytes} bytes of globals"
            )

    def global_ref(self, ordinal: int) -> None:
        _in_range("global ref", ordinal, self.module.global_refs)

    def rodata(self, ordinal: int) -> None:
        _in_range("rodata segment", ordinal, len(self.module.rodata))

    def type(self, ordinal: int) -> None:
        _in_range("type", ordinal, len(self.module.types))

    def callee(self, ordinal: int) -> None:
        if ordinal & isa.IMPORT_BIT:
            _in_range("import", ordinal ^ isa.IMPORT_BIT, len(self.module.imports))
        else:
            _in_range("function", ordinal, len(self.module.functions))

    # What concerns several operands.

    def call(self, op: Op) -> None:
        name, shape = self._callee_shape(op["callee_ordinal"])
        if any(argument[0] == "C" for argument in shape.arguments):
            raise errors.InvalidArgument(f"{name} has variadic arguments and needs a variadic call")
        self._check_values("arguments", name, "".join(shape.arguments), op["operands"])
        self._check_values("results", name, shape.results, op["results"])

    def variadic_call(self, op: Op) -> None:
        ordinal = op["callee_ordinal"]
        if not ordinal & isa.IMPORT_BIT:
            raise errors.InvalidArgument(
                f"a variadic call of internal function {ordinal}; expected an import"
            )
        name, shape = self._callee_shape(ordinal)
        letters = _expand(name, shape.arguments, op["segment_sizes"], len(op["operands"]))
        self._check_values("arguments", name, letters, op["operands"])
        self._check_values("results", name, shape.results, op["results"])

    def returns(self, op: Op) -> None:
        self._check_values("results", "the function itself", self.results, op["operands"])

    def import_resolved(self, op: Op) -> None:
        if not op["import_ordinal"] & isa.IMPORT_BIT:
            raise errors.InvalidArgument(f"ordinal {op['import_ordinal']} is not that of an import")

    def _callee_shape(self, ordinal: int) -> tuple[str, _Shape]:
        if ordinal & isa.IMPORT_BIT:
            imported = self.module.imports[ordinal ^ isa.IMPORT_BIT]
            return f"@{imported.full_name}", _shape(imported.cconv)
        name = self.module.functions[ordinal].name or f"function {ordinal}"
        return f"@{name}", _shape(self.module.signatures[ordinal].cconv)

    def _check_values(self, what: str, name: str, letters: str, registers: Sequence[Reg]) -> None:
        if len(letters) != len(registers):
            raise errors.InvalidArgument(
                f"{name} has {len(letters)} {what} ({letters or 'none'}), found {len(registers)} registers"
            )
        for letter, register in zip(letters, registers, strict=True):
            _BY_LETTER[letter](self, register)


def _expand(name: str, arguments: Sequence[str], sizes: Sequence[int], found: int) -> str:
    """The letters of all values that a variadic call passes, ``found`` of them."""
    if len(sizes) != len(arguments):
        raise errors.InvalidArgument(
            f"{name} has {len(arguments)} arguments, found {len(sizes)} segment sizes"
        )
    # Counted before anything is repeated: sizes are not to be believed yet.
    count = sum(
        size * (len(argument) - 1) if argument[0] == "C" else 1
        for argument, size in zip(arguments, sizes, strict=True)
    )
    if count != found:
        raise errors.InvalidArgument(
            f"{name} is called with segments of {count} values, found {found} registers"
        )
    return "".join(
        argument[1:] * size if argument[0] == "C" else argument
        for argument, size in zip(arguments, sizes, strict=True)
    )


def _beyond(what: str, ordinal: int, count: int, things: str) -> str:
    return f"{what} {ordinal} is out of range: there are {count} {things}"


def _in_range(what: str, ordinal: int, count: int) -> None:
    if ordinal >= count:
        raise errors.OutOfRange(_beyond(what, ordinal, count, f"{what}s"))


def _annotated(where: str, check: Callable[..., object], *arguments: object) -> None:
    """Run a check; say in its error where that was."""
    try:
        check(*arguments)
    except errors.Error as problem:
        raise type(problem)(f"{where}: {problem}") from None


_Check = Callable[[_FunctionVerifier, Any], None]

_BY_LETTER: dict[str, _Check] = {
    "i": _FunctionVerifier.x32, "f": _FunctionVerifier.x32,
    "I": _FunctionVerifier.x64, "F": _FunctionVerifier.x64,
    "r": _FunctionVerifier.ref_or_move,
}  # fmt: skip
_BY_TYPE: dict[str | None, _Check] = {
    "i32": _FunctionVerifier.x32, "f32": _FunctionVerifier.x32,
    "i64": _FunctionVerifier.x64, "f64": _FunctionVerifier.x64,
    "any": _FunctionVerifier.any,
}  # fmt: skip
_BY_KIND: dict[str, _Check] = {
    "global_ref": _FunctionVerifier.global_ref, "rodata": _FunctionVerifier.rodata,
    "type": _FunctionVerifier.type, "function": _FunctionVerifier.callee,
    "remap": _FunctionVerifier.remap, "cases": _FunctionVerifier.cases,
}  # fmt: skip
_EXTRA_CHECKS: dict[str, Callable[[_FunctionVerifier, Op], None]] = {
    "Call": _FunctionVerifier.call,
    "CallYieldable": _FunctionVerifier.call,
    "CallVariadic": _FunctionVerifier.variadic_call,
    "CallVariadicYieldable": _FunctionVerifier.variadic_call,
    "Return": _FunctionVerifier.returns,
    "ImportResolved": _FunctionVerifier.import_resolved,
}


def _register_check(spec: isa.Field) -> _Check:
    if spec.type == "ref":
        return _FunctionVerifier.ref_or_move if spec.move else _FunctionVerifier.ref
    return _BY_TYPE[spec.type]


def _each(check: _Check) -> _Check:
    def run(verifier: _FunctionVerifier, registers: Sequence[Reg]) -> None:
        for register in registers:
            check(verifier, register)

    return run


def _check_for(instruction: Instruction, spec: isa.Field) -> _Check | None:
    if spec.kind == "register":
        return _register_check(spec)
    if spec.kind == "registers":
        return _each(_register_check(spec))
    if spec.kind == "global":
        wide = any(other.type in ("i64", "f64") for other in instruction.fields)
        return _FunctionVerifier.global64 if wide else _FunctionVerifier.global32
    # Targets are checked when all blocks are known; counts with the call; constants and text may be anything.
    return _BY_KIND.get(spec.kind)


_CHECKS: dict[Instruction, tuple[_Check | None, ...]] = {
    instruction: tuple(_check_for(instruction, spec) for spec in instruction.fields)
    for instruction in isa.INSTRUCTIONS
}
