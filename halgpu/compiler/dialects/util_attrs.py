"""Types and attributes of ``util``. Facts: compiler/src/iree/compiler/Dialect/Util/IR/{UtilTypes,UtilAttrs}."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, IntAttr, NoneAttr
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer


@irdl_attr_definition
class BufferType(ParametrizedAttribute, TypeAttribute):
    """``!util.buffer``: bytes in host memory, or mapped to it."""

    name = "util.buffer"


@irdl_attr_definition
class VariantType(ParametrizedAttribute, TypeAttribute):
    """``!util.variant``: a number or a reference; ``?`` as the type of a list's elements."""

    name = "util.variant"


@irdl_attr_definition
class ListType(ParametrizedAttribute, TypeAttribute):
    """``!util.list<T>``: a list of values of a type, or of any types (``?``)."""

    name = "util.list"
    element_type: Attribute

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            if parser.parse_optional_punctuation("?") is not None:
                return [VariantType()]
            return [parser.parse_type()]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            if isinstance(self.element_type, VariantType):
                printer.print_string("?")
            else:
                printer.print_attribute(self.element_type)


@irdl_attr_definition
class BytePatternAttr(ParametrizedAttribute):
    """``#util.byte_pattern<N> : type``: storage that is filled with a byte."""

    name = "util.byte_pattern"
    pattern: IntAttr
    type: Attribute

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            pattern = IntAttr(parser.parse_integer())
        return [pattern, _colon_type(parser)]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_int(self.pattern.data)
        _print_colon_type(printer, self.type)


@irdl_attr_definition
class UninitializedAttr(ParametrizedAttribute):
    """``#util.uninitialized : type``: a global's storage that may hold anything."""

    name = "util.uninitialized"
    type: Attribute

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        return [_colon_type(parser)]

    def print_parameters(self, printer: Printer) -> None:
        _print_colon_type(printer, self.type)


@irdl_attr_definition
class InliningNeverAttr(ParametrizedAttribute):
    """``#util.inline.never``: a function that stays a function."""

    name = "util.inline.never"


def _colon_type(parser: AttrParser) -> Attribute:
    if parser.parse_optional_punctuation(":") is None:
        return NoneAttr()
    return parser.parse_type()


def _print_colon_type(printer: Printer, type_: Attribute) -> None:
    if not isinstance(type_, NoneAttr):
        printer.print_string(" : ")
        printer.print_attribute(type_)


@irdl_attr_definition
class CompositeAttr(ParametrizedAttribute):
    """``#util.composite<Nxi8, […]>``: the bytes of several attributes, one after the other."""

    name = "util.composite"
    length: IntAttr
    values: ArrayAttr[Attribute]

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            length = _parse_length(parser)
            parser.parse_punctuation(",")
            parser.parse_punctuation("[")
            values: list[Attribute] = []
            while parser.parse_optional_punctuation("]") is None:
                values.append(parser.parse_attribute())
                if parser.parse_optional_punctuation(",") is None:
                    parser.parse_punctuation("]")
                    break
        return [IntAttr(length), ArrayAttr(values)]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{self.length.data}xi8, [")
            printer.print_list(self.values.data, printer.print_attribute)
            printer.print_string("]")


def _parse_length(parser: AttrParser) -> int:
    """``192xi8``."""
    length = parser.parse_shape_dimension(allow_dynamic=False)
    parser.parse_shape_delimiter()
    parser.parse_characters("i8")
    return length
