"""A parsed SPIR-V module: types, constants, variables, and functions of basic blocks."""

from __future__ import annotations

from dataclasses import dataclass, field

from . import spirv_types as ty
from .opcodes import op_name


class Instruction:
    """One instruction: type and result (0 where there is none), operand words, and word offset in the module."""

    __slots__ = ("at", "op", "operands", "result", "type")

    def __init__(self, op: int, type_: int, result: int, operands: tuple[int, ...], at: int) -> None:
        self.op = op
        self.type = type_
        self.result = result
        self.operands = operands
        self.at = at

    def __repr__(self) -> str:
        return f"{op_name(self.op)} at word {self.at}"


class Block:
    """A basic block: its phis, what it computes, the merge instruction if any, and how it ends."""

    __slots__ = ("body", "label", "merge", "phis", "terminator")

    def __init__(self, label: int) -> None:
        self.label = label
        self.phis: list[Instruction] = []
        self.body: list[Instruction] = []
        self.merge: Instruction | None = None
        self.terminator: Instruction


@dataclass(slots=True)
class Variable:
    """A variable of module scope, or of a function."""

    id: int
    storage: int
    type: ty.Type
    initializer: ty.Constant | None = None


@dataclass(slots=True)
class Function:
    """A function: parameters by id, and blocks by label in the module's order (entry first)."""

    id: int
    type: ty.FunctionType
    parameters: list[int] = field(default_factory=list)
    blocks: dict[int, Block] = field(default_factory=dict)
    variables: dict[int, Variable] = field(default_factory=dict)


@dataclass(slots=True)
class EntryPoint:
    """A kernel by name, with its execution modes."""

    name: str
    function: int
    modes: dict[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class Module:
    """A parsed SPIR-V module."""

    what: str
    bound: int
    capabilities: set[int] = field(default_factory=set)
    imports: dict[int, str] = field(default_factory=dict)
    entry_points: list[EntryPoint] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    decorations: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=dict)
    members: dict[int, dict[int, dict[int, tuple[int, ...]]]] = field(default_factory=dict)
    types: dict[int, ty.Type] = field(default_factory=dict)
    constants: dict[int, ty.Constant] = field(default_factory=dict)
    variables: dict[int, Variable] = field(default_factory=dict)
    functions: dict[int, Function] = field(default_factory=dict)
    lines: dict[int, str] = field(default_factory=dict)
    """Where instructions came from, such as ``"model.mlir:12:5"``, by word offset, if the module says it (OpLine)."""

    @property
    def cooperates(self) -> bool:
        """Whether there are cooperative matrices."""
        return any(isinstance(type_, ty.CooperativeMatrix) for type_ in self.types.values())

    def decoration(self, id_: int, kind: int) -> tuple[int, ...] | None:
        """The operands of a decoration of ``id_``, or None."""
        return self.decorations.get(id_, {}).get(kind)
