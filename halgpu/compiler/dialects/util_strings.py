"""Strings of ``util``: numbers and texts as bytes.

Facts: compiler/src/iree/compiler/Dialect/Util/IR/UtilOps.{td,cpp}.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from xdsl.dialects.builtin import FunctionType, IndexType, IntegerType, StringAttr
from xdsl.irdl import (
    AnyOf,
    BaseAttr,
    IRDLOperation,
    eq,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import MemoryAllocEffect
from xdsl.utils.exceptions import VerifyException

from halgpu.compiler.dialects.util_attrs import BufferType

INTEGER = AnyOf((BaseAttr(IntegerType), BaseAttr(IndexType)))
_PLACEHOLDER: Final = re.compile(r"\{\{|\}\}|\{([0-9]{0,9})\}|[{}]")


@irdl_op_definition
class StringItoaOp(IRDLOperation):
    """An integer without sign as decimal digits."""

    name = "util.string.itoa"
    value = operand_def(INTEGER)
    result = result_def(eq(BufferType()))
    assembly_format = "$value attr-dict `:` type($value) `->` type($result)"
    traits = traits_def(MemoryAllocEffect())


@irdl_op_definition
class StringFormatOp(IRDLOperation):
    """A text with buffers' bytes and integers' digits in the places of ``{}``, or of ``{0}``, ``{1}`` …"""

    name = "util.string.format"
    format = prop_def(StringAttr)
    arguments = var_operand_def(AnyOf((BaseAttr(IntegerType), BaseAttr(IndexType), BaseAttr(BufferType))))
    result = result_def(eq(BufferType()))
    traits = traits_def(MemoryAllocEffect())

    @classmethod
    def parse(cls, parser: Parser) -> StringFormatOp:
        text = parser.parse_str_literal()
        operands = parser.parse_op_args_list()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        at = parser.pos
        types = parser.parse_function_type()
        values = parser.resolve_operands(operands, types.inputs.data, at)
        return cls.build(
            operands=[values],
            result_types=list(types.outputs.data),
            properties={"format": StringAttr(text)},
            attributes=attributes,
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_attribute(self.format)
        with printer.in_parens():
            printer.print_list(self.arguments, printer.print_operand)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(FunctionType.from_lists(self.arguments.types, self.result_types))

    def verify_(self) -> None:
        numbers = [part for part in self.parts() if isinstance(part, int)]
        if numbers and not set(numbers) <= set(range(len(self.arguments))):
            raise VerifyException(
                f"expected values for {max(numbers) + 1} places, found {len(self.arguments)}"
            )
        if set(range(len(self.arguments))) - set(numbers):
            raise VerifyException("expected a place for each value, such as {}")

    def parts(self) -> list[str | int]:
        """Texts, and the numbers of the values that stand between them. Raises VerifyException."""
        parts = list(_parts(self.format.data))
        kinds = {part >= 0 for part in parts if isinstance(part, int)}
        if len(kinds) > 1:
            raise VerifyException("expected places with numbers or without, found both")
        count = -1
        numbered: list[str | int] = []
        for part in parts:
            if part == _NEXT:
                count += 1
            numbered.append(count if part == _NEXT else part)
        return numbered


_NEXT: Final = -1
"""The number of a place that has none."""


def _parts(text: str) -> Iterator[str | int]:
    at, literal = 0, ""
    for found in _PLACEHOLDER.finditer(text):
        literal += text[at : found.start()]
        at = found.end()
        if found[0] in ("{{", "}}"):
            literal += found[0][0]
            continue
        if found[1] is None:
            raise VerifyException(f"expected a place such as {{}} or {{0}}, or {{{{ for a brace, in {text!r}")
        if literal:
            yield literal
        literal = ""
        yield int(found[1]) if found[1] else _NEXT
    literal += text[at:]
    if literal:
        yield literal
