"""Reads and writes MLIR with the dialects of inline programs, and says where something is wrong.

xDSL reads the text; every operation keeps its place in it, so that a diagnostic of any later pass names file, line and
column. Diagnostics are collected: one run tells all that is wrong, not the first thing.
"""

from __future__ import annotations

import bisect
import io
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

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
    IntAttr,
    ModuleOp,
    NameLoc,
    StringAttr,
    UnknownLoc,
    UnregisteredOp,
)
from xdsl.dialects.cf import Cf
from xdsl.dialects.func import Func
from xdsl.dialects.math import Math
from xdsl.dialects.scf import Scf
from xdsl.ir import Attribute, Dialect, Operation
from xdsl.ir.affine import AffineBinaryOpExpr, AffineBinaryOpKind, AffineExpr, AffineMap
from xdsl.parser import Parser
from xdsl.parser.affine_parser import AffineParser
from xdsl.parser.generic_parser import ParserState
from xdsl.printer import Printer
from xdsl.utils.exceptions import ParseError
from xdsl.utils.lexer import Input, Span, Token
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRTokenKind

from halgpu import errors
from halgpu.compiler.dialects import extra
from halgpu.compiler.dialects.hal import HAL
from halgpu.compiler.dialects.hal_inline import HALInline
from halgpu.compiler.dialects.hal_loader import HALLoader
from halgpu.compiler.dialects.util import Util
from halgpu.compiler.dialects.vm import VM

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
    """What is wrong with a program, in the order found, and what else is to be told of it."""

    found: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def error(self, op: Operation, message: str) -> None:
        """Take note of something wrong with an operation."""
        text = f"{place(op)}: error: '{op_name(op)}': {message}"
        if text not in self.found:
            self.found.append(text)

    def remark(self, op: Operation, message: str) -> None:
        """Take note of something that is not wrong."""
        text = f"{place(op)}: remark: '{op_name(op)}': {message}"
        if text not in self.remarks:
            self.remarks.append(text)

    def check(self) -> None:
        """Raise InvalidArgument if there is anything."""
        if not self.found:
            return
        shown = self.found[:MAX_REPORTED]
        if len(self.found) > MAX_REPORTED:
            shown.append(f"… {len(self.found) - MAX_REPORTED} more errors")
        raise errors.InvalidArgument(shown[0], details="\n".join(shown[1:]))


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


def parse(text: str, name: str, ctx: Context | None = None) -> ModuleOp:
    """Read a module and verify it. ``name`` stands in diagnostics.

    Raises InvalidArgument: a line ``file:line:column: error: …`` for each thing that is wrong.
    """
    try:
        module = _Parser(ctx or context(), text, name).parse_module()
    except _Located as problem:
        raise errors.InvalidArgument(problem.text) from problem.cause
    except ParseError as problem:
        raise errors.InvalidArgument(_located(name, text, problem.span, problem.msg)) from problem
    except RecursionError as problem:
        raise errors.InvalidArgument(f"{name}: expected MLIR, found nesting too deep to read") from problem
    except Exception as problem:
        raise errors.InvalidArgument(f"{name}: error: {_first_line(problem)}") from problem
    verify(module)
    return module


def verify(module: ModuleOp) -> None:
    """Check every operation, and what symbols stand for. Raises InvalidArgument with all that is wrong."""
    from halgpu.compiler.transforms.structure import check_blocks, check_values
    from halgpu.compiler.transforms.symbols import check_symbols

    diagnostics = Diagnostics()
    for op in module.walk():
        try:
            op.verify(verify_nested_ops=False)
        except Exception as problem:  # VerifyException, or what a verifier did not expect
            if not str(problem).startswith("Redefinition of symbol"):  # check_symbols says where
                diagnostics.error(op, _first_line(problem))
    check_symbols(module, diagnostics)
    check_blocks(module, diagnostics)
    diagnostics.check()
    check_values(module, diagnostics)
    diagnostics.check()


class _Located(Exception):
    """A problem of an operation that was being read."""

    def __init__(self, text: str, cause: Exception) -> None:
        super().__init__(text)
        self.text = text
        self.cause = cause


class _Lexer(MLIRLexer):
    """Reads strings in linear time: xDSL's pattern takes forever for one that does not end."""

    _unescaped_characters_regex = re.compile(r'"(?:[^"\\\n\v\f]++|\\(?:["nt\\]|[0-9A-Fa-f]{2}))*+"')


class _AffineParser(AffineParser):
    """Reads products and quotients of symbols too, which xDSL builds no expressions for."""

    def _create_binop_expr(self, lhs: AffineExpr, rhs: AffineExpr, binop: Token[MLIRTokenKind]) -> AffineExpr:
        try:
            return super()._create_binop_expr(lhs, rhs, binop)
        except NotImplementedError:
            return AffineBinaryOpExpr(_AFFINE[binop.text], lhs, rhs)


_AFFINE = {kind.get_token(): kind for kind in AffineBinaryOpKind}


class _Parser(Parser):
    """Gives each operation its place in the text, unless the text itself says a location."""

    def __init__(self, ctx: Context, text: str, name: str) -> None:
        super().__init__(ctx, "", name)
        self._parser_state = ParserState(_Lexer(Input(text, name)))
        self._name = name
        self._breaks = [found.start() for found in re.finditer("\n", text)]

    def parse_operation(self) -> Operation:
        start = self._current_token.span.start
        try:
            op = super().parse_operation()
        except (ParseError, _Located, RecursionError):
            raise
        except Exception as problem:  # xDSL's own, of many classes
            text = f"{self._place(start)}: error: {_first_line(problem)}"
            raise _Located(text, problem) from problem
        if isinstance(op.location, UnknownLoc):
            line, column = self._position(start)
            op.location = FileLineColLoc(StringAttr(self._name), IntAttr(line), IntAttr(column))
        return op

    def parse_affine_map(self) -> AffineMap:
        return _AffineParser(self._parser_state).parse_affine_map()

    def _get_op_by_name(self, name: str) -> type[Operation]:
        found = super()._get_op_by_name(name)
        if issubclass(found, UnregisteredOp) and self._current_token.text != "(":
            self.raise_error(
                f"there is no operation '{name}'; one of another dialect has to be in generic form"
            )
        return found

    def _position(self, at: int) -> tuple[int, int]:
        line = bisect.bisect_left(self._breaks, at)
        return line + 1, at - (self._breaks[line - 1] if line else -1)

    def _place(self, at: int) -> str:
        line, column = self._position(at)
        return f"{self._name}:{line}:{column}"


_ABOVE = ("flow.", "hal.", "iree_", "linalg.", "memref.", "stream.", "tensor.", "torch.", "vector.")
"""Starts of names of operations that inline programs have no more when they are at HAL level."""


def _unknown(name: str) -> str:
    """What to say of an operation that no dialect here defines."""
    if name.startswith(_ABOVE):
        return (
            f"'{name}' is not of inline programs at HAL level, which iree-compile --compile-to=hal prints with "
            "--iree-execution-model=inline-dynamic"
        )
    return f"there is no operation '{name}'; one of another dialect has to be in generic form"


def _located(name: str, text: str, span: Span[str] | Span[bytes], message: str) -> str:
    line = text.count("\n", 0, span.start) + 1
    column = span.start - text.rfind("\n", 0, span.start)
    said = message.strip().splitlines()[0]
    if said.startswith("in "):
        said = f"expected an operation or '}}' {said}"
    found = text[span.start : span.end] or "the end of the text"
    return f"{name}:{line}:{column}: error: {said}, found {found.splitlines()[0][:40]!r}"


def _first_line(problem: Exception) -> str:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    if not lines:
        return type(problem).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


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
