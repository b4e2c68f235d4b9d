"""Reads MLIR with xDSL's parser and goes on behind what is wrong, so that one run tells all mistakes of a file.

Behind an operation on a line of its own reading goes on at the next line; behind anything else at the next operation of
the module. What only follows from a mistake is not told: operations that use the results of one that could not be read,
and symbols that one that could not be read may define.
"""

from __future__ import annotations

import halgpu.compiler.needs_xdsl  # noqa: F401 - the first of all imports

# isort: split
import bisect
import re
from collections.abc import Iterator
from typing import Final

from xdsl.context import Context
from xdsl.dialects.builtin import FileLineColLoc, IntAttr, ModuleOp, StringAttr, UnknownLoc, UnregisteredOp
from xdsl.ir import Operation
from xdsl.ir.affine import AffineBinaryOpExpr, AffineBinaryOpKind, AffineExpr, AffineMap
from xdsl.parser import Parser as XdslParser
from xdsl.parser.affine_parser import AffineParser
from xdsl.parser.generic_parser import ParserState
from xdsl.utils.exceptions import ParseError
from xdsl.utils.lexer import Input, Token
from xdsl.utils.mlir_lexer import MLIRLexer, MLIRToken, MLIRTokenKind

Kind = MLIRTokenKind


class Incomplete(Exception):
    """The text could not be read to its end; the last of the parser's problems says why."""


class _Failure(Exception):
    """An operation that cannot be read: where it starts, where it is wrong, and what to say of it."""

    def __init__(self, start: int, at: int, text: str) -> None:
        super().__init__(text)
        self.start = start
        self.at = at
        self.text = text


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

_STARTS: Final = (Kind.PERCENT_IDENT, Kind.BARE_IDENT, Kind.STRING_LIT)
"""What operations start with."""
_OPENING: Final = {Kind.L_BRACE: Kind.R_BRACE, Kind.L_PAREN: Kind.R_PAREN, Kind.L_SQUARE: Kind.R_SQUARE}
_CLOSING: Final = tuple(_OPENING.values())
_OF_MODULES: Final = frozenset(
    (
        "util.func",
        "func.func",
        "util.global",
        "util.initializer",
        "hal.executable",
        "builtin.module",
        "module",
    )
)
"""Operations that stand in modules and in nothing else."""
_NO_OPERATION: Final = "expected an operation"
_MODULE: Final = "builtin.module"
_INITIALIZER: Final = "util.initializer"
_WIDEST: Final = 1000
"""Characters that may stand before the first word of a line."""
_SYMBOL: Final = re.compile(r'@(?:"([^"\n]*)"|([A-Za-z_][\w$.]*))|sym_name\s*=\s*"([^"\n]*)"')
_LOCATION: Final = re.compile(r"^(#[\w$.-]+) = (loc\(.*\))$", re.MULTILINE)
_ALIAS: Final = re.compile(r"#[A-Za-z_][\w$.-]*")
_VALUE: Final = re.compile(r"%(\d+|[A-Za-z$._-][\w$.-]*)")


class Parser(XdslParser):
    """Gives each operation its place in the text, unless the text itself says a location, and collects problems."""

    def __init__(self, ctx: Context, text: str, name: str) -> None:
        super().__init__(ctx, "", name)
        self._parser_state = ParserState(_Lexer(Input(text, name)))
        self._name = name
        self._text = text
        self._breaks = [found.start() for found in re.finditer("\n", text)]
        self._ends: dict[int, int] = {}
        """Where aliases of locations end, which have been read, by where they start."""
        self._around: list[str] = []
        """Names of the operations that are being read, the outermost first."""
        self._start = 0
        """Where the operation starts whose name is being read."""
        self._lost: set[str] = set()
        """Values, by name, of operations that could not be read, in the operation of the module that is being read."""
        self.problems: list[str] = []
        """What is wrong, a line ``file:line:column: error: …`` for each thing."""
        self.symbols: set[str] = set()
        """Symbols that what could not be read may define."""
        self.initializer_lost = False

    def parse_module(self, allow_implicit_module: bool = True) -> ModuleOp:
        """The module of what can be read, always one that may be left out of the text. Raises Incomplete."""
        ops: list[Operation] = []
        try:
            self._parse_locations()
            while self._current_token.kind != Kind.EOF:
                ops += self._parse_outermost()
            if not ops and not self.problems:
                self.raise_error(_NO_OPERATION)
        except ParseError as problem:
            self._note(self._failure(problem, problem.span.start))
            raise Incomplete from problem
        if len(ops) == 1 and isinstance(ops[0], ModuleOp):
            return ops[0]
        return ModuleOp(ops)

    def _parse_locations(self) -> None:
        """Read the aliases of locations first: MLIR prints most of them at the end, behind their uses."""
        found = {alias[1]: alias for alias in _LOCATION.finditer(self._text)}
        if not found:
            return
        start = self._current_token.span.start
        order: dict[str, None] = {}
        waiting = list(reversed(found))
        while waiting:
            name = waiting[-1]
            further = [
                other for other in _ALIAS.findall(found[name][2]) if other in found and other not in order
            ]
            if name in order or not further or len(waiting) > len(found):
                order[waiting.pop()] = None
            else:
                waiting += further
        for name in order:
            self._resume_from(found[name].start())
            super()._parse_alias_def()  # type: ignore[no-untyped-call]
            self._ends[found[name].start()] = found[name].end()
        self._resume_from(start)

    def _parse_outermost(self) -> list[Operation]:
        """What stands in a file: an alias, resources, an operation, or one that is wrong."""
        if self._current_token.kind in (Kind.HASH_IDENT, Kind.EXCLAMATION_IDENT):
            end = self._ends.get(self._current_token.span.start)
            if end is not None:
                self._resume_from(end)
            else:
                self._parse_alias_def()  # type: ignore[no-untyped-call]
        elif self._current_token.kind == Kind.FILE_METADATA_BEGIN:
            self._parse_file_metadata_dictionary()
        elif self._current_token.kind in _STARTS:
            found = self._of_module()
            return [] if found is None else [found]
        else:
            self.raise_error(_NO_OPERATION)
        return []

    # Operations.

    def parse_optional_operation(self) -> Operation | None:
        while self._current_token.kind in _STARTS:
            found = self._of_module() if self._in_module() else self._of_function()
            if found is not None:
                return found
        return None

    def parse_operation(self) -> Operation:
        self._start = start = self._current_token.span.start
        self._around.append("")
        try:
            op = super().parse_operation()
        except (_Failure, RecursionError):
            raise
        except Exception as problem:  # xDSL's own, of many classes
            raise self._failure(problem, start) from problem
        finally:
            self._around.pop()
        if isinstance(op.location, UnknownLoc):
            line, column = self._position(start)
            op.location = FileLineColLoc(StringAttr(self._name), IntAttr(line), IntAttr(column))
        return op

    def _get_op_by_name(self, name: str) -> type[Operation]:
        found = super()._get_op_by_name(name)
        self._around[-1] = found.name
        if issubclass(found, UnregisteredOp) and self._current_token.text != "(":
            raise _Failure(self._start, self._start, _unknown(name))
        return found

    def parse_affine_map(self) -> AffineMap:
        return _AffineParser(self._parser_state).parse_affine_map()

    def _in_module(self) -> bool:
        return all(name == _MODULE for name in self._around)

    def _of_module(self) -> Operation | None:
        """An operation of a module, or None if it is wrong; then what comes next is the one behind it."""
        start, before = self._current_token.span.start, len(self.problems)
        values, blocks, references = dict(self.ssa_values), self.blocks, self.forward_block_references
        stack = list(self._parser_state.dialect_stack)
        self._lost = set()
        self.forward_ssa_references = {}
        try:
            op = self.parse_operation()
        except _Failure as problem:
            self._note(problem)
            self.ssa_values, self.blocks, self.forward_block_references = values, blocks, references
            self._parser_state.dialect_stack[:] = stack
            self._resume_from(self._next_of_module(start, problem.at))
            self._forget(start)
            return None
        if isinstance(op, ModuleOp):
            return op
        self._check_forward(op)
        if len(self.problems) == before:
            return op
        self._forget(start)
        return None

    def _of_function(self) -> Operation | None:
        """An operation in one of a module, or None if it is wrong and alone on its line."""
        start, stack = self._current_token.span.start, list(self._parser_state.dialect_stack)
        try:
            return self.parse_operation()
        except _Failure as problem:
            further = self._next_line(start, problem.at)
            if further is None:
                raise
            self._note(problem)
            end = self._text.find("\n", start)
            results, equals, _ = self._text[start:end].partition("=")
            if equals:
                self._lost.update(_VALUE.findall(results))
            self._parser_state.dialect_stack[:] = stack
            self._resume_from(further)
            return None

    def _check_forward(self, op: Operation) -> None:
        """Tell of values that operations use and none defines."""
        for name, values in self.forward_ssa_references.items():
            user = next((use.operation for value in values.values() for use in value.uses), op)
            if name in self._lost or not isinstance(user.location, FileLineColLoc):
                continue
            line, column = user.location.line.data, user.location.column.data
            self._add(line, column, f"there is no value %{name}")
        self.forward_ssa_references = {}

    def _forget(self, start: int) -> None:
        """Take note of the symbols of what could not be read, which ends at the current token."""
        end = self._current_token.span.start
        self.initializer_lost |= self._text.find(_INITIALIZER, start, end) >= 0
        for found in _SYMBOL.finditer(self._text, start, end):
            self.symbols.update(name for name in found.groups() if name is not None)

    # Where to go on.

    def _tokens(self, start: int) -> Iterator[MLIRToken | None]:
        """The tokens from a place on, None for what is none."""
        lexer = _Lexer(self.lexer.input)
        lexer.pos = start
        while True:
            at = lexer.pos
            try:
                token = lexer.lex()
            except Exception:
                lexer.pos = max(lexer.pos, at) + 1
                yield None
                continue
            if token.kind == Kind.EOF:
                return
            yield token

    def _next_of_module(self, start: int, wrong: int) -> int:
        """Where the operation of a module behind one that is wrong starts, or the module ends."""
        depth, column = 0, self._position(start)[1]
        for token in self._tokens(start):
            if token is None:
                continue
            at = token.span.start
            depth += (token.kind in _OPENING) - (token.kind in _CLOSING)
            if depth < 0:
                return at
            if at <= max(start, wrong - 1) or not self._starts_line(at):
                continue
            of_module = token.kind in _STARTS and token.text.strip('"') in _OF_MODULES
            of_module = of_module or token.kind == Kind.FILE_METADATA_BEGIN
            if of_module and (depth == 0 or self._position(at)[1] == column):
                return at
        return len(self._text)

    def _next_line(self, start: int, wrong: int) -> int | None:
        """Where the operation behind one that is wrong starts, if that is alone on its line, or its block ends."""
        end = self._text.find("\n", start)
        if end < 0 or wrong > end:
            return None
        open_: list[Kind] = []
        tokens = self._tokens(start)
        for token in tokens:
            if token is None:
                return None
            if token.span.start > end:
                return token.span.start if not open_ and self._starts_operation(token, tokens) else None
            if token.kind in _OPENING:
                open_.append(_OPENING[token.kind])
            elif token.kind in _CLOSING and (not open_ or open_.pop() != token.kind):
                return None
        return None

    def _starts_operation(self, token: MLIRToken, further: Iterator[MLIRToken | None]) -> bool:
        """Whether a token, before further ones, starts an operation or a block, or ends one."""
        following = next(further, None)
        if token.kind == Kind.R_BRACE:
            return True
        if token.kind == Kind.BARE_IDENT:
            return "." in token.text
        if following is None:
            return False
        return (token.kind, following.kind) in (
            (Kind.PERCENT_IDENT, Kind.EQUAL), (Kind.PERCENT_IDENT, Kind.COLON),
            (Kind.PERCENT_IDENT, Kind.COMMA), (Kind.STRING_LIT, Kind.L_PAREN),
            (Kind.CARET_IDENT, Kind.L_PAREN), (Kind.CARET_IDENT, Kind.COLON),
        )  # fmt: skip

    def _starts_line(self, at: int) -> bool:
        before = self._position(at)[1] - 1
        return before < _WIDEST and not self._text[at - before : at].strip()

    # What to say.

    def _failure(self, problem: Exception, start: int) -> _Failure:
        """A problem that xDSL raised, of an operation that starts at a place."""
        if not isinstance(problem, ParseError):
            return _Failure(start, start, first_line(problem))
        said = problem.msg.strip().splitlines()[0]
        if said.startswith("in "):
            said = f"expected an operation or '}}' {said}"
        at, end = problem.span.start, problem.span.end
        found = self._text[at:end] or "the end of the text"
        return _Failure(start, at, f"{said}, found {found.splitlines()[0][:40]!r}")

    def _note(self, problem: _Failure) -> None:
        """Take note of a problem, unless it may follow from one before."""
        line_end = self._text.find("\n", problem.at)
        if self._lost.isdisjoint(_VALUE.findall(self._text, problem.start, max(line_end, problem.at))):
            self._add(*self._position(problem.at), problem.text)

    def _add(self, line: int, column: int, said: str) -> None:
        self.problems.append(f"{self._name}:{line}:{column}: error: {said}")

    def _position(self, at: int) -> tuple[int, int]:
        line = bisect.bisect_left(self._breaks, at)
        return line + 1, at - (self._breaks[line - 1] if line else -1)


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


def first_line(problem: Exception) -> str:
    """What an exception says, without what follows."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    if not lines:
        return type(problem).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
