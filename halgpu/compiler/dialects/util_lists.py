"""Lists of ``util``. Facts: compiler/src/iree/compiler/Dialect/Util/IR/UtilOps.td, OpGroupListOps."""

from __future__ import annotations

from xdsl.dialects.builtin import IndexType
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    BaseAttr,
    IRDLOperation,
    eq,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import MemoryAllocEffect, MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from halgpu.compiler.dialects.util_attrs import ListType, VariantType

INDEX = eq(IndexType())
LIST = BaseAttr(ListType)


def _element(type_: Attribute) -> Attribute:
    return type_.element_type if isinstance(type_, ListType) else type_


def _check_element(type_: Attribute, list_type: Attribute) -> None:
    element = _element(list_type)
    if not isinstance(element, VariantType) and type_ != element:
        raise VerifyException(f"expected an element of type {element}, found {type_}")


@irdl_op_definition
class ListCreateOp(IRDLOperation):
    """A new list without elements, with room for some."""

    name = "util.list.create"
    initial_capacity = opt_operand_def(INDEX)
    result = result_def(LIST)
    assembly_format = "($initial_capacity^)? attr-dict `:` type($result)"
    traits = traits_def(MemoryAllocEffect())


@irdl_op_definition
class ListConstructOp(IRDLOperation):
    """A new list of some values."""

    name = "util.list.construct"
    values = var_operand_def()
    result = result_def(LIST)
    traits = traits_def(MemoryAllocEffect())

    def verify_(self) -> None:
        for value in self.values:
            _check_element(value.type, self.result.type)

    @classmethod
    def parse(cls, parser: Parser) -> ListConstructOp:
        attributes = parser.parse_optional_attr_dict()
        rows = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, lambda: _parse_value(parser))
        parser.parse_punctuation(":")
        values = [parser.resolve_operand(operand, type_) for operand, type_ in rows]
        return cls.build(operands=[values], result_types=[parser.parse_type()], attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_op_attributes(self.attributes)
        printer.print_string(" ")
        with printer.in_square_brackets():
            printer.print_list(self.values, lambda value: _print_value(printer, value))
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)


def _parse_value(parser: Parser) -> tuple[UnresolvedOperand, Attribute]:
    operand = parser.parse_unresolved_operand()
    parser.parse_punctuation(":")
    return operand, parser.parse_type()


def _print_value(printer: Printer, value: SSAValue) -> None:
    printer.print_operand(value)
    printer.print_string(" : ")
    printer.print_attribute(value.type)


@irdl_op_definition
class ListSizeOp(IRDLOperation):
    """The number of elements of a list."""

    name = "util.list.size"
    list = operand_def(LIST)
    result = result_def(INDEX)
    assembly_format = "$list attr-dict `:` type($list)"
    traits = traits_def(MemoryReadEffect())


@irdl_op_definition
class ListResizeOp(IRDLOperation):
    """Gives a list a number of elements; new ones are zeros and null references."""

    name = "util.list.resize"
    list = operand_def(LIST)
    new_size = operand_def(INDEX)
    assembly_format = "$list `,` $new_size attr-dict `:` type($list)"
    traits = traits_def(MemoryWriteEffect())


@irdl_op_definition
class ListGetOp(IRDLOperation):
    """An element of a list; its type stands in the text where the list's is open."""

    name = "util.list.get"
    list = operand_def(LIST)
    index = operand_def(INDEX)
    result = result_def()
    traits = traits_def(MemoryReadEffect())

    def verify_(self) -> None:
        _check_element(self.result.type, self.list.type)

    @classmethod
    def parse(cls, parser: Parser) -> ListGetOp:
        found, index = _parse_place(parser)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        list_type = parser.parse_type()
        type_ = _element(list_type)
        if parser.parse_optional_punctuation("->") is not None:
            type_ = parser.parse_type()
        operands = [parser.resolve_operand(found, list_type), parser.resolve_operand(index, IndexType())]
        return cls.build(operands=operands, result_types=[type_], attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        _print_place(printer, self)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.list.type)
        if self.result.type != _element(self.list.type):
            printer.print_string(" -> ")
            printer.print_attribute(self.result.type)


@irdl_op_definition
class ListSetOp(IRDLOperation):
    """Sets an element of a list; its type stands in the text where the list's is open."""

    name = "util.list.set"
    list = operand_def(LIST)
    index = operand_def(INDEX)
    value = operand_def()
    traits = traits_def(MemoryWriteEffect())

    def verify_(self) -> None:
        _check_element(self.value.type, self.list.type)

    @classmethod
    def parse(cls, parser: Parser) -> ListSetOp:
        found, index = _parse_place(parser)
        parser.parse_punctuation(",")
        value = parser.parse_unresolved_operand()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        list_type = parser.parse_type()
        type_ = _element(list_type)
        if parser.parse_optional_punctuation("->") is not None:
            type_, list_type = list_type, parser.parse_type()
        operands = [
            parser.resolve_operand(found, list_type),
            parser.resolve_operand(index, IndexType()),
            parser.resolve_operand(value, type_),
        ]
        return cls.build(operands=operands, attributes=attributes)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        _print_place(printer, self)
        printer.print_string(", ")
        printer.print_operand(self.value)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        if self.value.type != _element(self.list.type):
            printer.print_attribute(self.value.type)
            printer.print_string(" -> ")
        printer.print_attribute(self.list.type)


def _parse_place(parser: Parser) -> tuple[UnresolvedOperand, UnresolvedOperand]:
    """``%list[%index]``."""
    found = parser.parse_unresolved_operand()
    parser.parse_punctuation("[")
    index = parser.parse_unresolved_operand()
    parser.parse_punctuation("]")
    return found, index


def _print_place(printer: Printer, op: ListGetOp | ListSetOp) -> None:
    printer.print_operand(op.list)
    with printer.in_square_brackets():
        printer.print_operand(op.index)
