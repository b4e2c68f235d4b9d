"""Values, hints and statuses of ``util``. Facts: compiler/src/iree/compiler/Dialect/Util/IR/UtilOps.td."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import I1, IndexType, IntegerType, StringAttr, i32
from xdsl.ir import Attribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    AnyAttr,
    AnyOf,
    BaseAttr,
    IRDLOperation,
    SameVariadicOperandSize,
    VarConstraint,
    eq,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import Pure

from halgpu.compiler.dialects import formats

INDEX = eq(IndexType())
INTEGER = AnyOf((BaseAttr(IntegerType), BaseAttr(IndexType)))
ANY = AnyAttr()


@irdl_op_definition
class NullOp(IRDLOperation):
    """A null reference, or a zero."""

    name = "util.null"
    result = result_def()
    assembly_format = "attr-dict `:` type($result)"
    traits = traits_def(Pure())


@irdl_op_definition
class CastOp(IRDLOperation):
    """The same reference as another type."""

    name = "util.cast"
    operand = operand_def()
    result = result_def()
    assembly_format = "$operand attr-dict `:` type($operand) `to` type($result)"
    traits = traits_def(Pure())


@irdl_op_definition
class CmpEQOp(IRDLOperation):
    """Whether two references are the same."""

    T: ClassVar = VarConstraint("T", ANY)
    name = "util.cmp.eq"
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(I1)
    traits = traits_def(Pure())
    assembly_format = "$lhs `,` $rhs attr-dict `:` type($lhs)"


@irdl_op_definition
class CmpNEOp(IRDLOperation):
    """Whether two references differ."""

    T: ClassVar = VarConstraint("T", ANY)
    name = "util.cmp.ne"
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(I1)
    assembly_format = "$lhs `,` $rhs attr-dict `:` type($lhs)"
    traits = traits_def(Pure())


@irdl_op_definition
class RangeMinOp(IRDLOperation):
    """The least of several values, without sign."""

    T: ClassVar = VarConstraint("T", INTEGER)
    name = "util.range.min"
    inputs = var_operand_def(T)
    result = result_def(T)
    assembly_format = "$inputs attr-dict `:` type($result)"
    traits = traits_def(Pure())


@irdl_op_definition
class RangeMaxOp(IRDLOperation):
    """The largest of several values, without sign."""

    T: ClassVar = VarConstraint("T", INTEGER)
    name = "util.range.max"
    inputs = var_operand_def(T)
    result = result_def(T)
    assembly_format = "$inputs attr-dict `:` type($result)"
    traits = traits_def(Pure())


@irdl_op_definition
class RangeExtentsOp(IRDLOperation):
    """The first and the last of what some ranges, offsets with lengths, hold; without sign."""

    T: ClassVar = VarConstraint("T", INTEGER)
    name = "util.range.extents"
    offsets = var_operand_def(T)
    lengths = var_operand_def(T)
    first = result_def(T)
    last = result_def(T)
    irdl_options = (SameVariadicOperandSize(),)
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> RangeExtentsOp:
        rows = parser.parse_comma_separated_list(parser.Delimiter.NONE, lambda: cls._parse_range(parser))
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        type_ = parser.parse_type()
        columns = [[parser.resolve_operand(row[side], type_) for row in rows] for side in (0, 1)]
        return cls.build(operands=columns, result_types=[type_, type_], attributes=attributes)

    @staticmethod
    def _parse_range(parser: Parser) -> tuple[UnresolvedOperand, UnresolvedOperand]:
        with parser.in_square_brackets():
            offset = parser.parse_unresolved_operand()
            parser.parse_keyword("for")
            return offset, parser.parse_unresolved_operand()

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        rows = zip(self.offsets, self.lengths, strict=True)
        printer.print_list(rows, lambda row: self._print_range(printer, *row))
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.first.type)

    @staticmethod
    def _print_range(printer: Printer, offset: SSAValue, length: SSAValue) -> None:
        with printer.in_square_brackets():
            printer.print_operand(offset)
            printer.print_string(" for ")
            printer.print_operand(length)


@irdl_op_definition
class AlignOp(IRDLOperation):
    """A value rounded up to a multiple of a power of two."""

    T: ClassVar = VarConstraint("T", INTEGER)
    name = "util.align"
    value = operand_def(T)
    alignment = operand_def(T)
    result = result_def(T)
    assembly_format = "$value `,` $alignment attr-dict `:` type($result)"
    traits = traits_def(Pure())


@irdl_op_definition
class SizeOfOp(IRDLOperation):
    """The size of a type in bytes."""

    name = "util.sizeof"
    sized_type = prop_def(TypeAttribute, prop_name="sizedType")
    size = result_def(INDEX)
    assembly_format = "$sizedType attr-dict-with-keyword"
    traits = traits_def(Pure())


@irdl_op_definition
class SwitchOp(IRDLOperation):
    """One of several values, by an index; another one if there is none at that index."""

    T: ClassVar = VarConstraint("T", ANY)
    name = "util.switch"
    index = operand_def(INDEX)
    default_value = operand_def(T)
    values = var_operand_def(T)
    result = result_def(T)
    assembly_format = (
        "type($default_value) `from` custom<TypedValues>(ref(type($default_value)), $values, type($values)) "
        "`at` $index `else` $default_value attr-dict `:` type($result)"
    )
    custom_directives = (formats.TypedValues,)
    traits = traits_def(Pure())


@irdl_op_definition
class OptimizationBarrierOp(IRDLOperation):
    """Values that no optimization sees through."""

    name = "util.optimization_barrier"
    inputs = var_operand_def()
    outputs = var_result_def()

    @classmethod
    def parse(cls, parser: Parser) -> OptimizationBarrierOp:
        attributes = parser.parse_optional_attr_dict()
        operands = []
        while (operand := parser.parse_optional_unresolved_operand()) is not None:
            operands.append(operand)
            if parser.parse_optional_punctuation(",") is None:
                break
        types: list[Attribute] = []
        if operands:
            parser.parse_punctuation(":")
            types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        values = parser.resolve_operands(operands, types, parser.pos)
        return cls.build(operands=[values], result_types=[types], attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_op_attributes(self.attributes)
        if not self.inputs:
            return
        printer.print_string(" ")
        printer.print_list(self.inputs, printer.print_operand)
        printer.print_string(" : ")
        printer.print_list(self.inputs.types, printer.print_attribute)


@irdl_op_definition
class UnfoldableConstantOp(IRDLOperation):
    """A constant that no optimization knows."""

    name = "util.unfoldable_constant"
    value = prop_def(Attribute)
    result = result_def()

    @classmethod
    def parse(cls, parser: Parser) -> UnfoldableConstantOp:
        attributes = parser.parse_optional_attr_dict()
        value = parser.parse_attribute()
        type_ = formats.attribute_type(value)
        if type_ is None:
            parser.raise_error("expected a constant with a type, such as 4 : i32")
        return cls.build(result_types=[type_], properties={"value": value}, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_op_attributes(self.attributes)
        printer.print_string(" ")
        printer.print_attribute(self.value)


@irdl_op_definition
class StatusCheckOkOp(IRDLOperation):
    """Ends the program's call with an error if a status is not 0."""

    name = "util.status.check_ok"
    status = operand_def(eq(i32))
    message = opt_prop_def(StringAttr)
    assembly_format = "$status (`,` $message^)? attr-dict"
