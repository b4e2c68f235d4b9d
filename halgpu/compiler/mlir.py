"""Reads and writes MLIR with the dialects of inline programs, and says where something is wrong.

xDSL reads the text (see ``parser``); every operation keeps its place in it, so that a diagnostic of any later pass
names file, line and column. Diagnostics are collected: one run tells all that is wrong, in the order of the text.
"""

from __future__ import annotations

import halgpu.compiler.needs_xdsl  # noqa: F401 - the first of all imports

# isort: split
import io
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from xdsl.context import Context
from xdsl.dialect_interfaces.op_asm import OpAsmDialectInterface
from xdsl.dialects.affine import Affine
from xdsl.dialects.arith import Arith
from xdsl.dialects.builtin import (
    ArrayAttr,
    Builtin,
    CallSiteLoc,
    FileLineColLoc,
    FusedLoc,
    ModuleOp,
    NameLoc,
    StringAttr,
)
from xdsl.dialects.cf import Cf
from xdsl.dialects.func import Func
from xdsl.dialects.math import Math
from xdsl.dialects.scf import Scf
from xdsl.ir import Attribute, Dialect, Operation
from xdsl.printer import Printer

from halgpu import errors
from halgpu.compiler.dialects import extra
from halgpu.compiler.dialects.hal import HAL
from halgpu.compiler.dialects.hal_inline import HALInline
from halgpu.compiler.dialects.hal_loader import HALLoader
from halgpu.compiler.dialects.util import Util
from halgpu.compiler.dialects.vm import VM
from halgpu.compiler.parser import Incomplete, Parser, first_line

MAX_REPORTED = 20
"""Diagnostics that one error lists."""


def context(undeclared: Collection[str] = ()) -> Context:
    """A context with all dialects of inline programs; attributes of others are kept as text.

    Dialects named in ``undeclared`` declare nothing about inlining (see ``dialects.inlining``).
    """
    made = Context(allow_unregistered=True)
    # Its own copy of builtin: that dialect keeps the blobs of the files that are read.
    builtin = Dialect(
        "builtin", list(Builtin.operations), list(Builtin.attributes), [OpAsmDialectInterface()]
    )
    for dialect in (builtin, Affine, Arith, Math, Cf, Scf, Func, Util, HAL, HALInline, HALLoader, VM):
        bare = Dialect(dialect.name, list(dialect.operations), list(dialect.attributes))
        made.load_dialect(bare if dialect.name in undeclared else dialect)
    for op in extra.OPERATIONS:
        made.load_op(op)
    return made


def resources(ctx: Context) -> dict[str, bytes]:
    """The blobs of the modules that were read with a context, by key (``dense_resource``)."""
    interface = ctx.get_dialect("builtin").get_interface(OpAsmDialectInterface)
    texts = interface._blob_storage if interface is not None else {}
    return {key: _blob(key, text) for key, text in texts.items() if text}


def _blob(key: str, text: str) -> bytes:
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError as problem:
        raise errors.InvalidArgument(
            f"resource {key}: expected bytes in hexadecimal, found {text[:40]!r}"
        ) from problem


@dataclass
class Diagnostics:
    """What is wrong with a program, a line for each thing, and what else is to be told of it."""

    found: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    faulty: set[Operation] = field(default_factory=set)
    """Operations that something is wrong with."""

    def error(self, op: Operation, message: str) -> None:
        """Take note of something wrong with an operation."""
        self.faulty.add(op)
        self.add(f"{place(op)}: error: '{op_name(op)}': {message}")

    def add(self, text: str) -> None:
        """Take note of something wrong, once."""
        if text not in self.found:
            self.found.append(text)

    def remark(self, op: Operation, message: str) -> None:
        """Take note of something that is not wrong."""
        text = f"{place(op)}: remark: '{op_name(op)}': {message}"
        if text not in self.remarks:
            self.remarks.append(text)

    def check(self) -> None:
        """Raise InvalidArgument if there is anything, in the order of the text."""
        if not self.found:
            return
        shown = sorted(self.found, key=_position)
        if len(shown) > MAX_REPORTED:
            shown[MAX_REPORTED:] = [f"… {len(shown) - MAX_REPORTED} more errors"]
        raise errors.InvalidArgument(shown[0], details="\n".join(shown[1:]))


_PLACE: Final = re.compile(r"(.*?):([0-9]+):([0-9]+): ")


def _position(text: str) -> tuple[str, int, int]:
    """File, line and column of a diagnostic."""
    found = _PLACE.match(text)
    return ("", 0, 0) if found is None else (found[1], int(found[2]), int(found[3]))


def op_name(op: Operation) -> str:
    """The name that the text has for an operation, also for one that no dialect here defines."""
    found = op.attributes.get("op_name__")
    return found.data if isinstance(found, StringAttr) else op.name


def place(op: Operation) -> str:
    """``file:line:column`` of an operation, or of the nearest one around it that has a place."""
    at: Operation | None = op
    while at is not None:
        found = file_location(at.location)
        if found is not None:
            return f"{found.filename.data}:{found.line.data}:{found.column.data}"
        at = at.parent_op()
    return "<unknown>"


def file_location(location: Attribute) -> FileLineColLoc | None:
    """The first place in a file that a location speaks of."""
    for found in _parts(location):
        if isinstance(found, FileLineColLoc):
            return found
    return None


def _parts(location: Attribute) -> Iterator[Attribute]:
    if isinstance(location, CallSiteLoc):
        yield from _parts(location.callee)
    elif isinstance(location, NameLoc):
        yield from _parts(location.location)
    elif isinstance(location, FusedLoc) and isinstance(location.locations, ArrayAttr):
        for part in location.locations.data:
            yield from _parts(part)
    else:
        yield location


# Reading.


class Read(NamedTuple):
    """What a text became: its module, None if it could not be read to its end, and what is wrong with it."""

    module: ModuleOp | None
    diagnostics: Diagnostics
    lost: frozenset[str]
    """Symbols that may be defined by operations that could not be read and are not in the module."""
    initializer_lost: bool

    def sound(self) -> ModuleOp:
        """The module. Raises InvalidArgument if anything is wrong."""
        self.diagnostics.check()
        assert self.module is not None
        return self.module


def parse(text: str, name: str, ctx: Context | None = None) -> ModuleOp:
    """Read a module and verify it. ``name`` stands in diagnostics.

    Raises InvalidArgument: a line ``file:line:column: error: …`` for each thing that is wrong.
    """
    return read(text, name, ctx).sound()


def read(text: str, name: str, ctx: Context | None = None) -> Read:
    """Like :func:`parse`, but returns what is wrong, and what could be read. Raises InvalidArgument otherwise."""
    diagnostics = Diagnostics()
    module: ModuleOp | None
    try:
        parser = Parser(ctx or context(), text, name)
        module = parser.parse_module()
    except Incomplete:
        module = None
    except RecursionError as problem:
        raise errors.InvalidArgument(f"{name}: expected MLIR, found nesting too deep to read") from problem
    except Exception as problem:
        raise errors.InvalidArgument(f"{name}: error: {first_line(problem)}") from problem
    for found in parser.problems:
        diagnostics.add(found)
    if module is not None:
        collect(module, diagnostics, parser.symbols)
    return Read(module, diagnostics, frozenset(parser.symbols), parser.initializer_lost)


def verify(module: ModuleOp) -> None:
    """Check every operation, and what symbols stand for. Raises InvalidArgument with all that is wrong."""
    diagnostics = Diagnostics()
    collect(module, diagnostics)
    diagnostics.check()


def collect(module: ModuleOp, diagnostics: Diagnostics, lost: Collection[str] = ()) -> None:
    """Take note of all that is wrong with a module; symbols that are ``lost`` may be missing."""
    from halgpu.compiler.transforms.structure import check_blocks, check_values
    from halgpu.compiler.transforms.symbols import check_symbols

    for op in module.walk():
        try:
            op.verify(verify_nested_ops=False)
        except Exception as problem:  # VerifyException, or what a verifier did not expect
            if not str(problem).startswith("Redefinition of symbol"):  # check_symbols says where
                diagnostics.error(op, first_line(problem))
    check_symbols(module, diagnostics, lost)
    check_blocks(module, diagnostics)
    unsound = outermost(diagnostics.faulty, module)
    for op in module.body.block.ops if module.body.blocks else ():
        if op not in unsound and module not in diagnostics.faulty:
            check_values(op, diagnostics)


def outermost(ops: Collection[Operation], module: ModuleOp) -> set[Operation]:
    """The operations of a module that hold some operations, or are them."""
    found: set[Operation] = set()
    for op in ops:
        at: Operation | None = op
        while at is not None and at.parent_op() is not module:
            at = at.parent_op()
        if at is not None:
            found.add(at)
    return found


# Changing.


def erase(op: Operation, *, used: bool = False) -> None:
    """Remove an operation; with ``used``, also one whose results others still name, which go too."""
    op.detach()
    op.erase(safe_erase=not used)


# Writing.


def print_module(module: ModuleOp, *, generic: bool = False, locations: bool = False) -> str:
    """The module as text."""
    stream = io.StringIO()
    Printer(stream=stream, print_generic_format=generic, print_debuginfo=locations).print_op(module)
    return stream.getvalue().rstrip() + "\n"
