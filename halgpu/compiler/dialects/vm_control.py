"""Calls and control flow of IREE's ``vm`` dialect. Facts: compiler/src/iree/compiler/Dialect/VM/IR/VMOps.{td,cpp}."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseArrayBase,
    DenseIntElementsAttr,
    FlatSymbolRefAttrConstr,
    StringAttr,
    SymbolRefAttr,
    TupleType,
    VectorType,
    i16,
    i32,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    eq,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    successor_def,
    traits_def,
    var_operand_def,
    var_result_def,
    var_successor_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, Pure, ReturnLike

from halgpu.compiler.dialects import formats
from halgpu.compiler.dialects.vm_types import REF

Target: TypeAlias = tuple[Block, Sequence[SSAValue]]
"""A block that a branch goes to, and the values that its arguments get."""
NOT_VARIADIC = -1
"""Segment size of an argument that is no variadic span."""


@irdl_op_definition
class CallOp(IRDLOperation):
    """Calls a function or an import."""

    name = "vm.call"
    callee = prop_def(FlatSymbolRefAttrConstr)
    arguments = var_operand_def()
    outputs = var_result_def()
    assembly_format = "$callee `(` $arguments `)` attr-dict `:` functional-type($arguments, $outputs)"

    def __init__(self, callee: str, arguments: Sequence[SSAValue], types: Sequence[Attribute]) -> None:
        super().__init__(
            operands=[arguments], result_types=[types], properties={"callee": SymbolRefAttr(callee)}
        )


@irdl_op_definition
class CallVariadicOp(IRDLOperation):
    """Calls an import that takes variadic spans; sizes count each span's tuples, -1 stands for a plain argument."""

    name = "vm.call.variadic"
    callee = prop_def(FlatSymbolRefAttrConstr)
    segment_sizes = prop_def(DenseIntElementsAttr)
    segment_types = prop_def(ArrayAttr[Attribute])
    arguments = var_operand_def()
    outputs = var_result_def()

    def __init__(
        self,
        callee: str,
        sizes: Sequence[int],
        segment_types: Sequence[Attribute],
        arguments: Sequence[SSAValue],
        types: Sequence[Attribute],
    ) -> None:
        super().__init__(
            operands=[arguments],
            result_types=[types],
            properties={
                "callee": SymbolRefAttr(callee),
                "segment_sizes": DenseIntElementsAttr.from_list(VectorType(i16, [len(sizes)]), list(sizes)),
                "segment_types": ArrayAttr(segment_types),
            },
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of tuples of each argument's span, or -1."""
        return tuple(int(size) for size in self.segment_sizes.get_values())

    @classmethod
    def parse(cls, parser: Parser) -> CallVariadicOp:
        callee = parser.parse_symbol_name().data
        segments = parser.parse_comma_separated_list(
            parser.Delimiter.PAREN, lambda: cls._parse_segment(parser)
        )
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        rows = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: cls._parse_type(parser))
        outputs: list[Attribute] = []
        if parser.parse_optional_punctuation("->") is not None:
            listed = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
            outputs = list(listed) if listed is not None else [parser.parse_type()]
        if len(rows) != len(segments):
            parser.raise_error("expected as many types as arguments")
        sizes: list[int] = []
        operands: list[SSAValue] = []
        for (names, span), (type_, _) in zip(segments, rows, strict=True):
            fields = list(type_.types.data) if isinstance(type_, TupleType) else [type_]
            count = len(names) // len(fields)
            sizes.append(count if span else NOT_VARIADIC)
            operands += parser.resolve_operands(names, fields * count, parser.pos)
        op = cls(callee, sizes, [row[0] for row in rows], operands, outputs)
        op.attributes = dict(attributes)
        return op

    @staticmethod
    def _parse_segment(parser: Parser):  # type: ignore[no-untyped-def]
        """Operands of one argument, and whether it is a span."""
        span = parser.parse_optional_comma_separated_list(
            parser.Delimiter.SQUARE,
            lambda: (
                parser.parse_optional_comma_separated_list(
                    parser.Delimiter.PAREN, parser.parse_unresolved_operand
                )
                or [parser.parse_unresolved_operand()]
            ),
        )
        if span is None:
            return [parser.parse_unresolved_operand()], False
        return [operand for group in span for operand in group], True

    @staticmethod
    def _parse_type(parser: Parser) -> tuple[Attribute, bool]:
        type_ = parser.parse_type()
        return type_, parser.parse_optional_punctuation("...") is not None

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_attribute(self.callee)
        remaining = list(self.arguments)
        rows = list(zip(self.sizes, self.segment_types.data, strict=True))
        with printer.in_parens():
            printer.print_list(rows, lambda row: self._print_segment(printer, *row, remaining))
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        with printer.in_parens():
            printer.print_list(rows, lambda row: self._print_type(printer, *row))
        if self.outputs:
            printer.print_string(" -> ")
            formats.print_results(printer, (), self.outputs.types, None)

    @staticmethod
    def _print_segment(printer: Printer, size: int, type_: Attribute, remaining: list[SSAValue]) -> None:
        if size == NOT_VARIADIC:
            printer.print_operand(remaining.pop(0))
            return
        width = len(type_.types.data) if isinstance(type_, TupleType) else 0
        with printer.in_square_brackets():
            for number in range(size):
                if number:
                    printer.print_string(", ")
                if not width:
                    printer.print_operand(remaining.pop(0))
                    continue
                with printer.in_parens():
                    printer.print_list([remaining.pop(0) for _ in range(width)], printer.print_operand)

    @staticmethod
    def _print_type(printer: Printer, size: int, type_: Attribute) -> None:
        printer.print_attribute(type_)
        if size != NOT_VARIADIC:
            printer.print_string(" ...")


@irdl_op_definition
class DiscardRefsOp(IRDLOperation):
    """Releases references."""

    name = "vm.discard.refs"
    refs = var_operand_def(REF)
    assembly_format = "($refs^ `:` type($refs))? attr-dict"

    def __init__(self, refs: Sequence[SSAValue]) -> None:
        super().__init__(operands=[refs])


@irdl_op_definition
class BranchOp(IRDLOperation):
    """Goes to a block."""

    name = "vm.br"
    values = var_operand_def()
    dest = successor_def()
    assembly_format = "$dest (`(` $values^ `:` type($values) `)`)? attr-dict"
    traits = traits_def(IsTerminator())

    def __init__(self, dest: Block, values: Sequence[SSAValue] = ()) -> None:
        super().__init__(operands=[values], successors=[dest])


@irdl_op_definition
class CondBranchOp(IRDLOperation):
    """Goes to the first block if a condition is not 0, else to the second."""

    name = "vm.cond_br"
    condition = operand_def(eq(i32))
    true_values = var_operand_def()
    false_values = var_operand_def()
    true_dest = successor_def()
    false_dest = successor_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$condition `,` $true_dest (`(` $true_values^ `:` type($true_values) `)`)? `,` "
        "$false_dest (`(` $false_values^ `:` type($false_values) `)`)? attr-dict"
    )
    traits = traits_def(IsTerminator())

    def __init__(
        self,
        condition: SSAValue,
        true_dest: Block,
        true_values: Sequence[SSAValue],
        false_dest: Block,
        false_values: Sequence[SSAValue],
    ) -> None:
        super().__init__(operands=[condition, true_values, false_values], successors=[true_dest, false_dest])


@irdl_op_definition
class BranchTableOp(IRDLOperation):
    """Goes to the block of a number, counted from 0; to the default one where the table has none for it."""

    name = "vm.br_table"
    index = operand_def(eq(i32))
    default_values = var_operand_def()
    case_values = var_operand_def()
    case_segments = prop_def(DenseArrayBase.constr(i32), prop_name="case_operand_segments")
    default_dest = successor_def()
    case_dests = var_successor_def()
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(IsTerminator())

    def __init__(self, index: SSAValue, default: Target, cases: Sequence[Target]) -> None:
        super().__init__(
            operands=[index, default[1], [value for _, values in cases for value in values]],
            successors=[default[0], [dest for dest, _ in cases]],
            properties={
                "case_operand_segments": DenseArrayBase.from_list(i32, [len(values) for _, values in cases])
            },
        )

    def cases(self) -> list[Target]:
        """The blocks of the table, with the values that their arguments get."""
        remaining = iter(self.case_values)
        counts = self.case_segments.get_values()
        return [
            (dest, [next(remaining) for _ in range(int(count))])
            for dest, count in zip(self.case_dests, counts, strict=True)
        ]

    @classmethod
    def parse(cls, parser: Parser) -> BranchTableOp:
        index = parser.resolve_operand(parser.parse_unresolved_operand(), i32)
        rows = parser.parse_comma_separated_list(parser.Delimiter.BRACES, lambda: cls._parse_case(parser))
        if not rows or [number for number, _ in rows] != [None, *range(len(rows) - 1)]:
            parser.raise_error("expected a default and cases from 0 on")
        op = cls(index, rows[0][1], [target for _, target in rows[1:]])
        op.attributes = dict(parser.parse_optional_attr_dict())
        return op

    @staticmethod
    def _parse_case(parser: Parser) -> tuple[int | None, Target]:
        number = None
        if parser.parse_optional_keyword("default") is None:
            number = parser.parse_integer()
        parser.parse_punctuation(":")
        dest = parser.parse_successor()
        values: Sequence[SSAValue] = ()
        if parser.parse_optional_punctuation("(") is not None:
            names = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_unresolved_operand)
            parser.parse_punctuation(":")
            types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
            parser.parse_punctuation(")")
            values = parser.resolve_operands(names, types, parser.pos)
        return number, (dest, values)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_operand(self.index)
        rows = [("default", (self.default_dest, self.default_values)), *enumerate(self.cases())]
        printer.print_string(" {")
        printer.print_list(rows, lambda row: self._print_case(printer, str(row[0]), *row[1]))
        printer.print_string("}")
        printer.print_op_attributes(self.attributes)

    @staticmethod
    def _print_case(printer: Printer, number: str, dest: Block, values: Sequence[SSAValue]) -> None:
        printer.print_string(f"{number}: ")
        printer.print_block_name(dest)
        if values:
            printer.print_string("(")
            printer.print_list(values, printer.print_operand)
            printer.print_string(" : ")
            printer.print_list([value.type for value in values], printer.print_attribute)
            printer.print_string(")")


@irdl_op_definition
class ReturnOp(IRDLOperation):
    """Leaves a function."""

    name = "vm.return"
    values = var_operand_def()
    assembly_format = "attr-dict ($values^ `:` type($values))?"
    traits = traits_def(IsTerminator(), ReturnLike(), Pure())

    def __init__(self, values: Sequence[SSAValue] = ()) -> None:
        super().__init__(operands=[values])


@irdl_op_definition
class FailOp(IRDLOperation):
    """Ends the program's call with an error."""

    name = "vm.fail"
    status = operand_def(eq(i32))
    message = opt_prop_def(StringAttr)
    assembly_format = "$status (`,` $message^)? attr-dict"
    traits = traits_def(IsTerminator())

    def __init__(self, status: SSAValue, message: str) -> None:
        super().__init__(operands=[status], properties={"message": StringAttr(message)})


def successors(op: Operation) -> list[Target]:
    """The blocks that a terminator goes to, with the values that their arguments get."""
    if isinstance(op, BranchOp):
        return [(op.dest, op.values)]
    if isinstance(op, CondBranchOp):
        return [(op.true_dest, op.true_values), (op.false_dest, op.false_values)]
    if isinstance(op, BranchTableOp):
        return [(op.default_dest, op.default_values), *op.cases()]
    return []


def with_successors(op: Operation, targets: Sequence[Target]) -> Operation:
    """The same branch, which has several ways, to other blocks, and with other values for their arguments."""
    if isinstance(op, CondBranchOp):
        (true_dest, true_values), (false_dest, false_values) = targets
        return CondBranchOp(op.condition, true_dest, true_values, false_dest, false_values)
    assert isinstance(op, BranchTableOp)
    return BranchTableOp(op.index, targets[0], targets[1:])


OPERATIONS = (
    CallOp, CallVariadicOp, DiscardRefsOp, BranchOp, BranchTableOp, CondBranchOp, ReturnOp, FailOp,
)  # fmt: skip
