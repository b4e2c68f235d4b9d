"""Pieces of IREE's assembly formats that xDSL's declarative formats have no word for.

Facts: ``custom<…>`` directives of compiler/src/iree/compiler/Dialect/Util/IR/UtilOps.cpp and
compiler/src/iree/compiler/Modules/HAL/Loader/IR/HALLoaderOps.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import ArrayAttr, IntegerAttr, StringAttr
from xdsl.ir import Attribute, SSAValue, TypeAttribute
from xdsl.irdl import IRDLOperation
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    OperandVariable,
    ParsingState,
    PrintingState,
    TypeDirective,
    VariadicOperandVariable,
    irdl_custom_directive,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer

VISIBILITIES = ("public", "private", "nested")


def parse_visibility(parser: Parser) -> StringAttr | None:
    """``public``, ``private`` or ``nested``, or nothing."""
    for word in VISIBILITIES:
        if parser.parse_optional_keyword(word) is not None:
            return StringAttr(word)
    return None


def print_visibility(printer: Printer, visibility: Attribute | None) -> None:
    """The word; what says nothing is public."""
    printer.print_string(" ")
    printer.print_string(visibility.data if isinstance(visibility, StringAttr) else "public")


def attribute_type(attribute: Attribute) -> Attribute | None:
    """The type that a typed attribute carries with it."""
    for name in ("type", "value_type"):
        found = getattr(attribute, name, None)
        if isinstance(found, TypeAttribute):
            return found
    return None


@irdl_custom_directive
class SymbolVisibility(CustomDirective):
    """``public``, ``private`` or ``nested``."""

    visibility: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        found = parse_visibility(parser)
        if found is not None:
            self.visibility.set(state, found)

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        print_visibility(printer, self.visibility.get(op))
        state.last_was_punctuation = False
        state.should_emit_space = True


@irdl_custom_directive
class TypeOrAttr(CustomDirective):
    """``: type``, ``= attribute`` that carries its type, or ``: type = attribute``."""

    type_attr: AttributeVariable
    value: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        value: Attribute | None = None
        if parser.parse_optional_punctuation("=") is not None:
            value = parser.parse_attribute()
            found = attribute_type(value)
            if found is None:
                parser.raise_error("expected an attribute with a type, such as 4 : i32")
            type_: Attribute = found
        else:
            parser.parse_punctuation(":")
            type_ = parser.parse_type()
            if parser.parse_optional_punctuation("=") is not None:
                value = parser.parse_attribute()
        self.type_attr.set(state, type_)
        if value is not None:
            self.value.set(state, value)

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        type_, value = self.type_attr.get(op), self.value.get(op)
        assert type_ is not None
        if value is None or attribute_type(value) != type_:
            printer.print_string(" : ")
            printer.print_attribute(type_)
        if value is not None:
            printer.print_string(" = ")
            printer.print_attribute(value)
        state.last_was_punctuation = False
        state.should_emit_space = True


class _Own(CustomDirective):
    """An operation's own attributes, ``<name = value, …>``, some or none."""

    INDICES: ClassVar[tuple[str, ...]] = ()
    """Attributes of type index, which the text leaves out."""

    def parse(self, parser: Parser, state: ParsingState) -> None:
        entries = parser.parse_optional_comma_separated_list(
            parser.Delimiter.ANGLE, parser._parse_attribute_entry
        )
        for name, value in entries or ():
            if name not in self.parameters:
                parser.raise_error(f"expected one of {', '.join(self.parameters)}, found {name}")
            if name in self.INDICES and isinstance(value, IntegerAttr):
                value = IntegerAttr.from_index_int_value(value.value.data)
            getattr(self, name).set(state, value)

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        found = [(name, op.properties[name]) for name in self.parameters if name in op.properties]
        if not found:
            return
        printer.print_string(" ")
        with printer.in_angle_brackets():
            printer.print_list(found, lambda entry: self._print_entry(printer, *entry))
        state.last_was_punctuation = False
        state.should_emit_space = True

    def _print_entry(self, printer: Printer, name: str, value: Attribute) -> None:
        printer.print_string(f"{name} = ")
        if name == "alignment" and isinstance(value, IntegerAttr):
            printer.print_int(value.value.data)
        else:
            printer.print_attribute(value)

    def can_parse_empty(self) -> bool:
        return True


@irdl_custom_directive
class Alignment(_Own):
    """``<alignment = 64>``."""

    alignment: AttributeVariable
    INDICES = ("alignment",)


@irdl_custom_directive
class Data(_Own):
    """``<alignment = 64, mime_type = "…">``."""

    alignment: AttributeVariable
    mime_type: AttributeVariable
    INDICES = ("alignment",)


@irdl_custom_directive
class DataI64(_Own):
    """The same, as ``vm.rodata`` has it."""

    alignment: AttributeVariable
    mime_type: AttributeVariable


@irdl_custom_directive
class Binary(_Own):
    """``<data = …, format = "…", mime_type = "…">``."""

    data: AttributeVariable
    format: AttributeVariable
    mime_type: AttributeVariable


@irdl_custom_directive
class Policy(_Own):
    """``<inlining_policy = #util.inline.never>``."""

    inlining_policy: AttributeVariable


@irdl_custom_directive
class SizeAwareType(CustomDirective):
    """``!type{%size}``."""

    type_directive: TypeDirective
    size: OperandVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.type_directive.set(state, (parser.parse_type(),))
        parser.parse_punctuation("{")
        self.size.set(state, parser.parse_unresolved_operand())
        parser.parse_punctuation("}")

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        print_sized(printer, state, self.type_directive.inner.get_types(op)[0], self.size.get(op))


@irdl_custom_directive
class RefSizedType(CustomDirective):
    """``!type{%size}`` where the format has had the size before: it has to be the same value."""

    type_directive: TypeDirective
    size: OperandVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.type_directive.set(state, (parser.parse_type(),))
        parser.parse_punctuation("{")
        found = parser.parse_unresolved_operand()
        parser.parse_punctuation("}")
        sizes = state.operands[self.size.index]
        if sizes and sizes[0].operand_name != found.operand_name:
            parser.raise_error(f"expected the length, %{sizes[0].operand_name}", found.span)

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        print_sized(printer, state, self.type_directive.inner.get_types(op)[0], self.size.get(op))


def print_sized(printer: Printer, state: PrintingState, type_: Attribute, size: Any) -> None:
    """``!type{%size}``."""
    state.print_whitespace(printer)
    printer.print_attribute(type_)
    printer.print_string("{")
    printer.print_operand(size)
    printer.print_string("}")
    state.last_was_punctuation = False
    state.should_emit_space = True


@irdl_custom_directive
class DispatchBindings(CustomDirective):
    """``(%buffer : type)[%offset, %length], …``, a line each."""

    buffers: VariadicOperandVariable
    buffer_types: TypeDirective
    offsets: VariadicOperandVariable
    lengths: VariadicOperandVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        rows = parser.parse_comma_separated_list(parser.Delimiter.NONE, lambda: _parse_binding(parser))
        self.buffers.set(state, [row[0] for row in rows])
        self.buffer_types.set(state, [row[1] for row in rows])
        self.offsets.set(state, [row[2] for row in rows])
        self.lengths.set(state, [row[3] for row in rows])

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        rows = list(zip(self.buffers.get(op), self.offsets.get(op), self.lengths.get(op), strict=True))
        with printer.indented():
            printer.print_list(rows, lambda row: _print_binding(printer, row), ",")
        printer.print_string("\n")
        printer.print_string("")
        state.last_was_punctuation = True
        state.should_emit_space = False


def _parse_binding(
    parser: Parser,
) -> tuple[UnresolvedOperand, Attribute, UnresolvedOperand, UnresolvedOperand]:
    parser.parse_punctuation("(")
    buffer = parser.parse_unresolved_operand()
    parser.parse_punctuation(":")
    type_ = parser.parse_type()
    parser.parse_punctuation(")")
    parser.parse_punctuation("[")
    offset = parser.parse_unresolved_operand()
    parser.parse_punctuation(",")
    length = parser.parse_unresolved_operand()
    parser.parse_punctuation("]")
    return buffer, type_, offset, length


def _print_binding(printer: Printer, row: Sequence[SSAValue]) -> None:
    buffer, offset, length = row
    printer.print_string("\n")
    with printer.in_parens():
        printer.print_operand(buffer)
        printer.print_string(" : ")
        printer.print_attribute(buffer.type)
    with printer.in_square_brackets():
        printer.print_list((offset, length), printer.print_operand)


@irdl_custom_directive
class TypedValues(CustomDirective):
    """``[%a, %b]``, all of the type that another operand has."""

    default_type: TypeDirective
    values: VariadicOperandVariable
    value_types: TypeDirective

    def parse(self, parser: Parser, state: ParsingState) -> None:
        operands = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_unresolved_operand)
        self.values.set(state, operands)
        inner = self.default_type.inner
        assert isinstance(inner, OperandVariable)
        types = state.operand_types[inner.index]
        assert types is not None
        self.value_types.set(state, [types[0]] * len(operands))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        with printer.in_square_brackets():
            printer.print_list(self.values.get(op), printer.print_operand)
        state.last_was_punctuation = True
        state.should_emit_space = True


def parse_results(
    parser: Parser, names: Sequence[str], types: Sequence[Attribute]
) -> tuple[list[Attribute], list[dict[str, Attribute]], ArrayAttr[Attribute] | None]:
    """Results that may be tied to operands: ``i32``, ``(i32, %arg0 as f32, %arg1)``, attributes in parentheses.

    ``names`` and ``types`` are those of the operands. The last item says, a number a result, which operand it is
    tied to (-1: none); None if there are no results.
    """
    in_parens = parser.parse_optional_punctuation("(") is not None
    if in_parens and parser.parse_optional_punctuation(")") is not None:
        return [], [], None
    rows = parser.parse_comma_separated_list(
        parser.Delimiter.NONE, lambda: _parse_result(parser, names, types, in_parens)
    )
    if in_parens:
        parser.parse_punctuation(")")
    tied = ArrayAttr[Attribute]([IntegerAttr.from_index_int_value(row[2]) for row in rows])
    return [row[0] for row in rows], [row[1] for row in rows], tied


def _parse_result(
    parser: Parser, names: Sequence[str], types: Sequence[Attribute], attributes: bool
) -> tuple[Attribute, dict[str, Attribute], int]:
    operand = parser.parse_optional_unresolved_operand()
    tied = -1
    if operand is None:
        type_: Attribute = parser.parse_type()
    else:
        name = operand.operand_name
        if name not in names:
            parser.raise_error(f"%{name} is no operand that a result could be tied to", operand.span)
        tied = names.index(name)
        type_ = types[tied]
        if parser.parse_optional_keyword("as") is not None:
            type_ = parser.parse_type()
    found = parser.parse_optional_attr_dict() if attributes else {}
    return type_, dict(found), tied


def is_tied(tied: Attribute | None) -> bool:
    """Whether any result is tied to an operand."""
    return isinstance(tied, ArrayAttr) and any(
        isinstance(index, IntegerAttr) and index.value.data >= 0 for index in tied
    )


def print_results(
    printer: Printer,
    operands: Sequence[SSAValue],
    types: Sequence[Attribute],
    tied: Attribute | None,
    attributes: Sequence[Any] | None = None,
) -> None:
    """What :func:`parse_results` reads."""
    indices = [int(i.value.data) for i in tied] if isinstance(tied, ArrayAttr) else [-1] * len(types)
    parens = len(types) != 1 or bool(attributes and any(map(_entries, attributes)))
    if parens:
        printer.print_string("(")
    for number, type_ in enumerate(types):
        if number:
            printer.print_string(", ")
        if indices[number] >= 0:
            operand = operands[indices[number]]
            printer.print_operand(operand)
            if operand.type != type_:
                printer.print_string(" as ")
                printer.print_attribute(type_)
        else:
            printer.print_attribute(type_)
        if attributes and _entries(attributes[number]):
            printer.print_op_attributes(_entries(attributes[number]))
    if parens:
        printer.print_string(")")


def _entries(attributes: Any) -> dict[str, Attribute]:
    return dict(attributes.data) if attributes is not None else {}
