"""Functions -> OpenCL C statements.

:class:`Kernel` is one entry point: its arguments, its variables, its text. :class:`Emitter` walks one function
(calls are emitted in place) and keeps what each id stands for. What an instruction means lies in the tables of
the ``op_*`` modules: opcode -> function of the emitter and the instruction, giving an expression or nothing.

A value that is used once, in the same loop, before memory that it read may change, stays an expression and is
written where it is used; any other becomes a variable.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

from halgpu import errors

from . import ctypes, literals, structure
from . import spirv_types as ty
from .expressions import ATOM, BuiltInVector, Expr, Parts, Pointer, Value
from .kernel import Kernel
from .module import Function, Instruction, Variable
from .opcodes import INSTRUCTIONS, Op, op_name
from .tree import Assign, If, Label, Local, Loop, Scope, Statement, Switch, negate

MAXIMUM_TEXT: Final = 72
"""Characters of an expression that is not given a variable of its own."""
MAXIMUM_CALLS: Final = 16

_COMPARES: Final = frozenset(range(Op.IEqual, Op.SLessThanEqual + 1))

Handler = Callable[["Emitter", Instruction, ty.Type], "Expr | None"]
Thing = Expr | Value | Parts | Pointer


class Emitter:
    """Emits one function, or one call of it, into a scope of a kernel."""

    def __init__(self, kernel: Kernel, function: Function, scope: Scope, depth: int = 0) -> None:
        self.kernel = kernel
        self.source = kernel.source
        self.module = kernel.module
        self.function = function
        self.scope = scope
        self.depth = depth
        self.block = 0
        self.loop: object = None
        self.things: dict[int, Thing] = {}
        self.labels: dict[int, str] = {}
        self.phis: dict[int, Local] = {}
        self.counters = _counters(function)
        self.loop_depth = 0
        self.result: Local | None = None
        self.end: str | None = None
        self.structure = structure.build(kernel.module, function)
        self.barriers = kernel.barriers(self.structure) if depth == 0 else set()
        self.uses = _count_uses(function)

    # --- errors -----------------------------------------------------------------------------------------

    def fail(self, instruction: Instruction, problem: str) -> NoReturn:
        """Refuse a malformed instruction."""
        raise errors.InvalidArgument(f"{self.kernel.what}: malformed SPIR-V: {instruction!r}: {problem}")

    def refuse(self, problem: str) -> NoReturn:
        """Refuse what is not supported."""
        raise errors.Unimplemented(f"{self.kernel.what}: {problem} is not supported")

    def check(self, instruction: Instruction, holds: bool, expected: str) -> None:
        """Refuse ``instruction`` unless its types are what the specification asks for."""
        if not holds:
            found = ", ".join(
                str(thing.type) for thing in map(self.things.get, instruction.operands)
                if thing is not None
            )  # fmt: skip
            self.fail(instruction, f"{expected} expected; its operands are {found or 'other things'}")

    # --- ids to expressions -----------------------------------------------------------------------------

    def thing(self, id_: int) -> Thing:
        """What an id stands for."""
        found = self.things.get(id_)
        if found is None:
            constant = self.module.constants.get(id_)
            if constant is not None:
                found = literals.constant(self.source, constant)
            elif id_ in self.function.variables:
                found = self.variable(self.function.variables[id_])
            elif id_ in self.module.variables:
                found = self.kernel.variable(id_)
            else:
                raise errors.InvalidArgument(
                    f"{self.kernel.what}: malformed SPIR-V: %{id_} is used in function %{self.function.id} "
                    "where it has no value yet"
                )
            self.things[id_] = found
        return found

    def variable(self, variable: Variable) -> Pointer:
        """A variable of the function."""
        if self.depth and variable.initializer is not None and variable.id not in self.kernel.usage.constants:
            self.refuse(f"a variable with an initializer (%{variable.id}) in a function that is called")
        return Pointer(self.kernel.private(variable), variable.type)

    def value(self, id_: int) -> Expr:
        """The expression of an id that is a value, taken for one use."""
        found = self.thing(id_)
        if isinstance(found, Value):
            return self.take(found)
        if isinstance(found, BuiltInVector):
            parts = [self.kernel.builtin(found.builtin, i) for i in range(ty.count_of(found.type))]
            return literals.literal(self.source, found.type, parts)
        if isinstance(found, Expr):
            return found
        if isinstance(found, Parts):
            return literals.literal(self.source, found.type, [self.take(m) for m in found.members])
        raise errors.InvalidArgument(
            f"{self.kernel.what}: malformed SPIR-V: %{id_} is a pointer where a value is needed"
        )

    def name(self, id_: int) -> Expr:
        """Like :meth:`value`, but an expression that is cheap to write more than once: a name or a literal."""
        found = self.thing(id_)
        if isinstance(found, Value):
            self.materialize(found)
            return found.name
        return self.named(self.value(id_), f"v{id_}")

    def named(self, expr: Expr, name: str = "t") -> Expr:
        """A name or a literal for any expression."""
        if expr.constant is not None or expr.is_name:
            return expr
        local = self.kernel.local(name, self.source.type(expr.type))
        self.assign(local, expr)
        return Expr(expr.type, local.name, ATOM, (local,))

    def pointer(self, id_: int) -> Pointer:
        """The pointer that an id stands for."""
        found = self.thing(id_)
        if not isinstance(found, Pointer):
            raise errors.InvalidArgument(
                f"{self.kernel.what}: malformed SPIR-V: %{id_} is a value where a pointer is needed"
            )
        return found

    def take(self, value: Value) -> Expr:
        """The expression of a value for one use: inline if that is right, else its variable's name."""
        if value.assign.live:
            return value.name
        expr = value.expr
        if value.uses == 1 and value.loop is self.loop and len(expr.text) <= MAXIMUM_TEXT:
            epochs = self.kernel.epochs
            if all(epochs[group] == epoch for group, epoch in expr.memory):
                return expr
        value.assign.activate()
        return value.name

    def materialize(self, value: Value) -> None:
        """Make a value a variable."""
        if not value.assign.live:
            value.assign.activate()

    def operands(self, instruction: Instruction) -> list[Expr]:
        """The values of all operands."""
        return [self.value(id_) for id_ in instruction.operands]

    def type(self, instruction: Instruction, id_: int) -> ty.Type:
        """The type that an id names."""
        found = self.module.types.get(id_)
        if found is None:
            self.fail(instruction, f"%{id_} is no type")
        return found

    # --- statements -------------------------------------------------------------------------------------

    def statement(self, text: str, *reads: Expr) -> Statement:
        """Append a statement that names the variables in ``reads``."""
        statement = self.scope.add(Statement(text))
        for expr in reads:
            for local in expr.reads:
                local.touch(statement)
        return statement

    def assign(self, local: Local, expr: Expr) -> Assign:
        """Append an assignment."""
        assign = Assign(local, expr.text, expr.reads)
        self.scope.add(assign)
        assign.activate()
        return assign

    def define(
        self, instruction: Instruction, expr: Expr, *, name: str = "", now: bool = False
    ) -> Value | None:
        """Let an instruction's result be ``expr``. With ``now`` it has effects and becomes a variable here."""
        result = instruction.result
        uses = self.uses[result]
        if not now and (expr.constant is not None or isinstance(expr, BuiltInVector) or is_fixed(expr)):
            self.things[result] = expr
            return None
        value = self.hold(expr, name or f"v{result}", uses)
        if now or uses > 1:
            value.assign.activate()
        self.things[result] = value
        return value

    def hold(self, expr: Expr, name: str, uses: int) -> Value:
        """Keep an expression as a value that becomes a variable if need be."""
        local = self.kernel.local(name, self.source.type(expr.type))
        assign = Assign(local, expr.text, expr.reads)
        self.scope.add(assign)
        return Value(expr, assign, self.loop, uses)

    def define_parts(self, instruction: Instruction, type_: ty.Type, members: Iterable[Expr]) -> None:
        """Let the result be a structure of the given members."""
        assert isinstance(type_, ty.Struct)
        values = tuple(
            self.hold(expr, f"v{instruction.result}_{i}", 2) for i, expr in enumerate(members)
        )  # fmt: skip
        for value in values:
            value.assign.activate()
        self.things[instruction.result] = Parts(type_, values)

    # --- control flow -----------------------------------------------------------------------------------

    def emit(self) -> None:
        """Emit the function's statements."""
        self.nodes(self.structure.nodes)
        if self.end is not None:
            self.scope.add(Label(self.end))

    def nodes(self, nodes: list[structure.Node]) -> None:
        """Emit a sequence of the control flow tree."""
        for node in nodes:
            if id(node) in self.barriers:
                self.barrier()
            _NODES[type(node)](self, node)

    def inside(self, scope: Scope, nodes: list[structure.Node]) -> None:
        """Emit a sequence into another scope."""
        outer, self.scope = self.scope, scope
        self.nodes(nodes)
        self.scope = outer

    def straight(self, node: structure.Straight) -> None:
        self.kernel.spend(len(node.block.body) + 1)
        self.block = node.block.label
        for instruction in node.block.body:
            if id(instruction) in self.barriers:
                self.barrier()
            handler = HANDLERS.get(instruction.op)
            if handler is None:
                self.refuse(f"instruction {op_name(instruction.op)}")
            type_ = self.type(instruction, instruction.type) if instruction.type else ty.VOID
            expr = handler(self, instruction, type_)
            if expr is not None:
                self.define(instruction, expr)

    def barrier(self) -> None:
        """A barrier that the compiler left out (see ``lost_barriers``)."""
        self.statement("barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);")
        self.kernel.touch_memory()

    def edge(self, node: structure.Edge) -> None:
        """The copies of a branch into a block with phis: all values are taken before any is set."""
        block = self.function.blocks.get(node.target)
        if block is None or not block.phis:
            return
        copies = []
        for phi in block.phis:
            local = self.phi(phi)
            expr = self.incoming(phi, node.source)
            if expr.text != local.name:
                copies.append((local, expr))
        self.parallel(copies)

    def incoming(self, phi: Instruction, source: int) -> Expr:
        pairs = phi.operands
        for i in range(0, len(pairs), 2):
            if pairs[i + 1] == source:
                expr = self.value(pairs[i])
                if expr.type is not self.type(phi, phi.type):
                    self.fail(phi, f"it merges a {expr.type}")
                return expr
        self.fail(phi, f"it has no value for the branch from %{source}")

    def phi(self, phi: Instruction) -> Local:
        """The variable of a phi."""
        local = self.phis.get(phi.result)
        if local is None:
            type_ = self.type(phi, phi.type)
            local = self.kernel.local(self.phi_name(phi), self.source.type(type_), track=True)
            self.phis[phi.result] = local
            self.things[phi.result] = Expr(type_, local.name, ATOM, (local,))
        return local

    def phi_name(self, phi: Instruction) -> str:
        """i, j, k, … for the integers that loops count with, by depth; else by id."""
        if phi.result in self.counters:
            return "ijklmn"[min(self.loop_depth, 5)]
        return f"v{phi.result}"

    def parallel(self, copies: list[tuple[Local, Expr]]) -> None:
        """Assign all at once: a variable is set only when nothing still to be copied reads it."""
        waiting = list(copies)
        while waiting:
            for i, (local, _) in enumerate(waiting):
                if not any(local in expr.reads for j, (_, expr) in enumerate(waiting) if j != i):
                    self.copy(*waiting.pop(i))
                    break
            else:
                local, expr = waiting[0]
                kept = self.kernel.local(f"{local.name}_before", local.specifier)
                old = Expr(expr.type, local.name, ATOM, (local,))
                self.assign(kept, old)
                waiting = [(target, _renamed(e, local, kept)) for target, e in waiting]

    def copy(self, local: Local, expr: Expr) -> None:
        assign = Assign(local, expr.text, expr.reads, copy=True)
        self.scope.add(assign)
        assign.activate()

    def branch(self, node: structure.If) -> None:
        condition = self.condition(node.condition)
        statement = If(self.scope)
        self.scope.add(statement)
        statement.text = condition.text
        for local in condition.reads:
            local.touch(statement)
        self.inside(statement.then, node.then)
        self.inside(statement.otherwise, node.otherwise)

    def condition(self, id_: int) -> Expr:
        expr = self.value(id_)
        if not isinstance(expr.type, ty.Bool):
            raise errors.InvalidArgument(
                f"{self.kernel.what}: malformed SPIR-V: a branch on %{id_}, which is no boolean"
            )
        return expr

    def repeat(self, node: structure.Loop) -> None:
        loop = Loop(self.scope)
        self.scope.add(loop)
        outer, self.loop = self.loop, loop
        self.loop_depth += 1
        self.kernel.touch_memory()
        body = self.guard(loop, node)
        self.inside(loop.body, body)
        if node.proceed in self.structure.gotos:
            loop.continues = True
            loop.body.add(Label(self.label(node.proceed)))
        self.inside(loop.body, node.tail)
        self.kernel.touch_memory()
        self.loop = outer
        self.loop_depth -= 1
        self.kernel.loops.append(loop)
        if loop.text != "true":
            self.keep_header(node.header)

    def keep_header(self, header: int) -> None:
        """Make what the header computes available behind the loop.

        Its test became the condition of `while`, so that the loop's body is left before the header's other
        values are computed for the last time. All of them are expressions, of values that are still the same.
        """
        for instruction in self.function.blocks[header].body:
            value = self.things.get(instruction.result)
            if isinstance(value, Value):
                expr = value.expr
                memory = tuple((group, self.kernel.epochs[group]) for group, _ in expr.memory)
                kept = Expr(expr.type, expr.text, expr.level, expr.reads, memory)
                self.things[instruction.result] = self.hold(kept, f"v{instruction.result}", value.uses)

    def guard(self, loop: Loop, node: structure.Loop) -> list[structure.Node]:
        """Move a test at the start of the loop, if all of it is one expression, into `while`."""
        head, *rest = node.body
        self.inside(loop.body, [head])
        test = rest[0] if rest else None
        if not isinstance(test, structure.If) or self.has_statements(loop.body):
            return rest
        for leaving, staying, turned in (
            (test.then, test.otherwise, True),
            (test.otherwise, test.then, False),
        ):
            if self.is_break(leaving):
                condition = self.condition(test.condition)
                if self.has_statements(loop.body):
                    # The condition itself became a variable.
                    self.things[test.condition] = condition
                    return rest
                loop.text = negate(condition.text) if turned else condition.text
                for local in condition.reads:
                    local.touch(loop)
                return [*staying, *rest[1:]]
        return rest

    def has_statements(self, scope: Scope) -> bool:
        return any(not isinstance(item, Assign) or item.live for item in scope.items)

    def is_break(self, nodes: list[structure.Node]) -> bool:
        """Whether nodes are just `break`, into a block without phis."""
        if len(nodes) != 2 or not isinstance(nodes[1], structure.Leave) or nodes[1].kind != "break":
            return False
        block = self.function.blocks.get(nodes[1].target)
        return block is None or not block.phis

    def select(self, node: structure.Switch) -> None:
        selector = self.value(node.selector)
        assert isinstance(selector.type, ty.Int)
        statement = Switch()
        self.scope.add(statement)
        statement.text = selector.text
        for local in selector.reads:
            local.touch(statement)
        for case in node.cases:
            scope = statement.case(self.scope)
            self.inside(scope, case.body)
            width = selector.type.width
            labels = [
                "default:" if literal is None else f"case {_case_literal(literal, width)}:"
                for literal in case.literals
            ]
            statement.cases.append((labels, scope, case.falls))

    def leave(self, node: structure.Leave) -> None:
        if node.kind == "goto":
            self.statement(f"goto {self.label(node.target)};")
            return
        if node.kind == "continue" and isinstance(self.loop, Loop):
            self.loop.continues = True
        self.statement(f"{node.kind};")

    def target(self, node: structure.Target) -> None:
        if node.label in self.structure.gotos:
            self.scope.add(Label(self.label(node.label)))

    def label(self, id_: int) -> str:
        """The C label of a block."""
        if id_ not in self.labels:
            self.labels[id_] = self.kernel.names.unique(f"block_{id_}")
        return self.labels[id_]

    def exit(self, node: structure.Exit) -> None:
        """The end of the function: of a kernel a return, of a call a jump to what follows the call."""
        instruction = node.instruction
        if instruction.op == Op.ReturnValue:
            self.give(instruction)
        if self.structure.nodes[-1] is node or instruction.op == Op.Unreachable:
            return
        if self.depth == 0:
            self.statement("return;")
            return
        self.end = self.end or self.kernel.names.unique("returned")
        self.statement(f"goto {self.end};")

    def give(self, instruction: Instruction) -> None:
        expr = self.value(instruction.operands[0])
        if self.result is None or expr.type is not self.function.type.result:
            self.fail(
                instruction, f"a {expr.type} is returned from a function of {self.function.type.result}"
            )
        self.copy(self.result, expr)

    # --- calls ------------------------------------------------------------------------------------------

    def call(self, instruction: Instruction, type_: ty.Type) -> Expr | None:
        """Emit the called function's statements here."""
        function = self.module.functions.get(instruction.operands[0])
        arguments = instruction.operands[1:]
        if (
            function is None
            or len(arguments) != len(function.parameters)
            or type_ is not function.type.result
        ):
            self.fail(instruction, "there is no such function, or it has other parameters")
        if self.depth >= MAXIMUM_CALLS:
            self.refuse(f"calls nested deeper than {MAXIMUM_CALLS} (or recursion)")
        callee = Emitter(self.kernel, function, self.scope, self.depth + 1)
        callee.loop = self.loop
        for id_, argument, wanted in zip(
            function.parameters, arguments, function.type.parameters, strict=True
        ):
            callee.things[id_] = self.argument(instruction, argument, wanted)
        if not isinstance(type_, ty.Void):
            callee.result = self.kernel.local(f"v{instruction.result}", self.source.type(type_), track=True)
        callee.emit()
        self.kernel.touch_memory()
        return None if callee.result is None else Expr(type_, callee.result.name, ATOM, (callee.result,))

    def argument(self, instruction: Instruction, id_: int, wanted: ty.Type) -> Thing:
        if isinstance(wanted, ty.Pointer):
            pointer = self.pointer(id_)
            if pointer.type is not wanted.pointee:
                self.fail(instruction, f"a pointer to {pointer.type} where one to {wanted.pointee} belongs")
            return pointer
        name = self.name(id_)
        if name.type is not wanted:
            self.fail(instruction, f"an argument of type {name.type} where {wanted} belongs")
        return name


def is_fixed(expr: Expr) -> bool:
    """Whether an expression is a name that never changes: of a built-in, or of a push constant."""
    return (
        expr.level >= ATOM
        and not expr.reads
        and not expr.memory
        and (expr.is_name or expr.text.startswith("p."))
    )


def _count_uses(function: Function) -> Counter[int]:
    uses: Counter[int] = Counter()
    for block in function.blocks.values():
        for phi in block.phis:
            uses.update(phi.operands[::2])
        for instruction in block.body:
            # Literals among the operands may look like ids.
            uses.update(INSTRUCTIONS[instruction.op].ids_of(instruction.operands))
        uses.update(block.terminator.operands[:1])
    return uses


def _counters(function: Function) -> set[int]:
    """The phis of loop headers that the header's own test compares."""
    found = set()
    for block in function.blocks.values():
        if block.merge is not None and block.merge.op == Op.LoopMerge:
            phis = {phi.result for phi in block.phis}
            compared = {
                id_
                for instruction in block.body
                if instruction.op in _COMPARES
                for id_ in instruction.operands
            }
            found |= phis & compared
    return found


def _renamed(expr: Expr, old: Local, new: Local) -> Expr:
    """An expression that reads ``new`` in place of ``old``."""
    if old not in expr.reads:
        return expr
    text = _replace_word(expr.text, old.name, new.name)
    reads = tuple(new if local is old else local for local in expr.reads)
    return Expr(expr.type, text, expr.level, reads, expr.memory)


def _replace_word(text: str, old: str, new: str) -> str:
    return re.sub(rf"(?<![\w.]){re.escape(old)}\b", new, text)


def _case_literal(literal: int, width: int) -> str:
    value = literal & ((1 << width) - 1)
    return ctypes.unsigned_literal(value, width) if width >= 32 else str(value)


HANDLERS: Final[dict[int, Handler]] = {}
"""Opcode -> what it emits; filled from the tables of the op_* modules by translate.py."""

_NODES: Final[dict[type, Callable[[Emitter, Any], None]]] = {
    structure.Straight: Emitter.straight, structure.Edge: Emitter.edge, structure.Leave: Emitter.leave,
    structure.Exit: Emitter.exit, structure.Target: Emitter.target, structure.If: Emitter.branch,
    structure.Loop: Emitter.repeat, structure.Switch: Emitter.select,
}  # fmt: skip
