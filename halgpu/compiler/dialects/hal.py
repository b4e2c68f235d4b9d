"""What inline programs use of IREE's ``hal`` dialect: types, executables' binaries, constants of buffer views.

Attributes that only a compiler's target knows, such as ``#hal.executable.target<…>``, are kept as text. Facts:
compiler/src/iree/compiler/Dialect/HAL/IR/{HALTypes,HALAttrs,HALOps}.td.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import NoneAttr, StringAttr, SymbolNameConstraint, i32
from xdsl.ir import Attribute, Block, Dialect, Operation, ParametrizedAttribute, Region, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    eq,
    irdl_attr_definition,
    irdl_op_definition,
    lazy_traits_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
)
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    ParsingState,
    PrintingState,
    irdl_custom_directive,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import (
    HasParent,
    IsolatedFromAbove,
    IsTerminator,
    Pure,
    SingleBlockImplicitTerminator,
    SymbolOpInterface,
    SymbolTable,
)

from halgpu.compiler.dialects import formats

DENSE_ROW_MAJOR = "dense_row_major"


@irdl_attr_definition
class BufferType(ParametrizedAttribute, TypeAttribute):
    """``!hal.buffer``: device memory."""

    name = "hal.buffer"


@irdl_attr_definition
class BufferViewType(ParametrizedAttribute, TypeAttribute):
    """``!hal.buffer_view``: a buffer with a shape and an element type."""

    name = "hal.buffer_view"


@irdl_attr_definition
class ExecutableType(ParametrizedAttribute, TypeAttribute):
    """``!hal.executable``: loaded kernels."""

    name = "hal.executable"


@irdl_attr_definition
class DeviceType(ParametrizedAttribute, TypeAttribute):
    """``!hal.device``. Inline programs have none at run time; globals that name targets are of this type."""

    name = "hal.device"


class _Typed(ParametrizedAttribute):
    """An attribute kept as text, ``#name<…> : type``; the type may be left out."""

    body: StringAttr
    type: Attribute

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        body = StringAttr("")
        if parser._current_token.text == "<":
            body = StringAttr(parser._parse_dialect_symbol_body())
        type_: Attribute = NoneAttr()
        if parser.parse_optional_punctuation(":") is not None:
            type_ = parser.parse_type()
        return [body, type_]

    def print_parameters(self, printer: Printer) -> None:
        if self.body.data:
            printer.print_string(f"<{self.body.data}>")
        if not isinstance(self.type, NoneAttr):
            printer.print_string(" : ")
            printer.print_attribute(self.type)


@irdl_attr_definition
class DeviceTargetAttr(_Typed):
    """A device to compile for."""

    name = "hal.device.target"


@irdl_attr_definition
class DeviceAliasAttr(_Typed):
    name = "hal.device.alias"


@irdl_attr_definition
class DeviceSelectAttr(_Typed):
    name = "hal.device.select"


@irdl_attr_definition
class DeviceOrdinalAttr(_Typed):
    name = "hal.device.ordinal"


@irdl_attr_definition
class DeviceFallbackAttr(_Typed):
    name = "hal.device.fallback"


@irdl_op_definition
class ElementTypeOp(IRDLOperation):
    """The HAL's number of an element type."""

    name = "hal.element_type"
    type = prop_def(TypeAttribute)
    result = result_def(eq(i32))
    assembly_format = "`<` $type `>` attr-dict `:` type($result)"
    traits = traits_def(Pure())


@irdl_custom_directive
class Encoding(CustomDirective):
    """``dense_row_major``, which is no attribute, or another encoding's attribute."""

    encoding: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        if parser.parse_optional_keyword(DENSE_ROW_MAJOR) is None:
            self.encoding.set(state, parser.parse_attribute())

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        found = self.encoding.get(op)
        if found is None:
            printer.print_string(DENSE_ROW_MAJOR)
        else:
            printer.print_attribute(found)
        state.last_was_punctuation = False


@irdl_op_definition
class EncodingTypeOp(IRDLOperation):
    """The HAL's number of an encoding; without an attribute that is dense row-major, which is 1."""

    name = "hal.encoding_type"
    encoding = opt_prop_def(Attribute)
    result = result_def(eq(i32))
    assembly_format = "`<` custom<Encoding>($encoding) `>` attr-dict `:` type($result)"
    custom_directives = (Encoding,)
    traits = traits_def(Pure())


@irdl_op_definition
class ExecutableEndOp(IRDLOperation):
    """Ends the body of an executable; not written."""

    name = "hal.executable_end"
    assembly_format = "attr-dict"
    traits = traits_def(IsTerminator())


@irdl_op_definition
class ExecutableOp(IRDLOperation):
    """Kernels in one or more formats; programs load the first that the runtime supports."""

    name = "hal.executable"
    sym_name = prop_def(SymbolNameConstraint())
    sym_visibility = opt_prop_def(StringAttr)
    body = region_def("single_block")
    traits = lazy_traits_def(
        lambda: (
            IsolatedFromAbove(),
            SymbolOpInterface(),
            SymbolTable(),
            SingleBlockImplicitTerminator(ExecutableEndOp),
        )
    )

    def __init__(self, name: str, binaries: Sequence[Operation]) -> None:
        super().__init__(
            properties={"sym_name": StringAttr(name), "sym_visibility": StringAttr("private")},
            regions=[Region(Block([*binaries, ExecutableEndOp.build()]))],
        )

    @property
    def binaries(self) -> list[ExecutableBinaryOp]:
        """Its kernels, in the order in which programs try them."""
        return [op for op in self.body.block.ops if isinstance(op, ExecutableBinaryOp)]

    @classmethod
    def parse(cls, parser: Parser) -> ExecutableOp:
        visibility = formats.parse_visibility(parser)
        name = parser.parse_symbol_name()
        extra = parser.parse_optional_attr_dict_with_keyword()
        body = parser.parse_region()
        if not body.blocks:
            body.add_block(Block())
        if not isinstance(body.block.last_op, ExecutableEndOp):
            body.block.add_op(ExecutableEndOp.build())
        return cls.build(
            regions=[body],
            properties={"sym_name": name, **({"sym_visibility": visibility} if visibility else {})},
            attributes=dict(extra.data) if extra else {},
        )

    def print(self, printer: Printer) -> None:
        formats.print_visibility(printer, self.sym_visibility)
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_block_terminators=False)


@irdl_op_definition
class ExecutableBinaryOp(IRDLOperation):
    """Kernels in one format, as bytes."""

    name = "hal.executable.binary"
    sym_visibility = opt_prop_def(StringAttr)
    sym_name = prop_def(SymbolNameConstraint())
    format = prop_def(StringAttr)
    data = prop_def(Attribute)
    mime_type = opt_prop_def(StringAttr)
    assembly_format = (
        "custom<SymbolVisibility>($sym_visibility) $sym_name custom<Binary>($data, $format, $mime_type) "
        "attr-dict-with-keyword"
    )
    custom_directives = (formats.SymbolVisibility, formats.Binary)
    traits = traits_def(HasParent(ExecutableOp), SymbolOpInterface())

    def __init__(self, name: str, format: str, data: Attribute) -> None:
        super().__init__(
            properties={
                "sym_name": StringAttr(name),
                "sym_visibility": StringAttr("public"),
                "format": StringAttr(format),
                "data": data,
            }
        )


HAL = Dialect(
    "hal",
    [
        ElementTypeOp,
        EncodingTypeOp,
        ExecutableOp,
        ExecutableEndOp,
        ExecutableBinaryOp,
    ],
    [
        BufferType,
        BufferViewType,
        ExecutableType,
        DeviceType,
        DeviceTargetAttr,
        DeviceAliasAttr,
        DeviceSelectAttr,
        DeviceOrdinalAttr,
        DeviceFallbackAttr,
    ],
)
