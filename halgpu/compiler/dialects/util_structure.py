"""Globals, initializers, functions and calls of ``util``.

Facts: compiler/src/iree/compiler/Dialect/Util/IR/UtilOps.{td,cpp}.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FlatSymbolRefAttrConstr,
    FunctionType,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    UnitAttr,
)
from xdsl.ir import Attribute, Operation, Region, SSAValue, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    lazy_traits_def,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import (
    CallableOpInterface,
    HasParent,
    IsolatedFromAbove,
    IsTerminator,
    MemoryReadEffect,
    MemoryWriteEffect,
    ReturnLike,
    SymbolOpInterface,
)
from xdsl.utils.exceptions import VerifyException

from halgpu.compiler.dialects import formats


@irdl_op_definition
class GlobalOp(IRDLOperation):
    """A variable of the program, one in each loaded program."""

    name = "util.global"
    sym_visibility = opt_prop_def(StringAttr)
    sym_name = prop_def(SymbolNameConstraint())
    type = prop_def(TypeAttribute)
    is_mutable = opt_prop_def(UnitAttr)
    initial_value = opt_prop_def(Attribute)
    inlining_policy = opt_prop_def(Attribute)
    assembly_format = (
        "custom<SymbolVisibility>($sym_visibility) (`mutable` $is_mutable^)? $sym_name "
        "custom<Policy>($inlining_policy) attr-dict "
        "custom<TypeOrAttr>($type, $initial_value)"
    )
    custom_directives = (formats.SymbolVisibility, formats.Policy, formats.TypeOrAttr)
    traits = traits_def(SymbolOpInterface())

    def __init__(self, name: str, type_: Attribute, *, mutable: bool = False) -> None:
        super().__init__(
            properties={
                "sym_visibility": StringAttr("private"),
                "sym_name": StringAttr(name),
                "type": type_,
                "is_mutable": UnitAttr() if mutable else None,
            }
        )


@irdl_op_definition
class GlobalLoadOp(IRDLOperation):
    """The value of a global."""

    name = "util.global.load"
    global_ = prop_def(FlatSymbolRefAttrConstr, prop_name="global")
    is_immutable = opt_prop_def(UnitAttr)
    result = result_def()
    assembly_format = "(`immutable` $is_immutable^)? $global attr-dict `:` type($result)"
    traits = traits_def(MemoryReadEffect())

    def __init__(self, name: str, type_: Attribute) -> None:
        super().__init__(result_types=[type_], properties={"global": SymbolRefAttr(name)})

    @property
    def symbol(self) -> str:
        """Name of the global."""
        return self.global_.root_reference.data


@irdl_op_definition
class GlobalStoreOp(IRDLOperation):
    """Sets a global."""

    name = "util.global.store"
    value = operand_def()
    global_ = prop_def(FlatSymbolRefAttrConstr, prop_name="global")
    assembly_format = "$value `,` $global attr-dict `:` type($value)"
    traits = traits_def(MemoryWriteEffect())

    def __init__(self, value: SSAValue, name: str) -> None:
        super().__init__(operands=[value], properties={"global": SymbolRefAttr(name)})

    @property
    def symbol(self) -> str:
        """Name of the global."""
        return self.global_.root_reference.data


class _Callable(CallableOpInterface):
    @classmethod
    def get_callable_region(cls, op: Operation) -> Region:
        return op.regions[0]

    @classmethod
    def get_argument_types(cls, op: Operation) -> tuple[Attribute, ...]:
        return op.function_type.inputs.data if isinstance(op, FuncOp) else ()

    @classmethod
    def get_result_types(cls, op: Operation) -> tuple[Attribute, ...]:
        return op.function_type.outputs.data if isinstance(op, FuncOp) else ()


_NO_TYPE = FunctionType.from_lists([], [])


@irdl_op_definition
class InitializerOp(IRDLOperation):
    """Code that runs when a program is loaded, in the order of the module."""

    name = "util.initializer"
    function_type = prop_def(FunctionType)
    body = region_def()
    traits = traits_def(IsolatedFromAbove(), _Callable())

    def __init__(self, body: Region) -> None:
        super().__init__(properties={"function_type": _NO_TYPE}, regions=[body])

    @classmethod
    def parse(cls, parser: Parser) -> InitializerOp:
        attributes = parser.parse_optional_attr_dict_with_keyword()
        op = cls(parser.parse_region())
        op.attributes = dict(attributes.data) if attributes else {}
        return op

    def print(self, printer: Printer) -> None:
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body)


@irdl_op_definition
class FuncOp(IRDLOperation):
    """A function; one without a body is another module's."""

    name = "util.func"
    sym_name = prop_def(SymbolNameConstraint())
    function_type = prop_def(FunctionType)
    tied_operands = opt_prop_def(ArrayAttr[Attribute])
    sym_visibility = opt_prop_def(StringAttr)
    arg_attrs = opt_prop_def(ArrayAttr[DictionaryAttr])
    res_attrs = opt_prop_def(ArrayAttr[DictionaryAttr])
    inlining_policy = opt_prop_def(Attribute)
    body = region_def()
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface(), _Callable())

    @property
    def is_public(self) -> bool:
        """Whether other modules, and users, may call it."""
        return self.sym_visibility is None or self.sym_visibility.data == "public"

    @classmethod
    def parse(cls, parser: Parser) -> FuncOp:
        properties: dict[str, Attribute] = {}
        visibility = formats.parse_visibility(parser)
        if visibility is not None:
            properties["sym_visibility"] = visibility
        properties["sym_name"] = parser.parse_symbol_name()
        rows = parser.parse_comma_separated_list(
            parser.Delimiter.PAREN, lambda: (parser.parse_argument(), parser.parse_optional_attr_dict())
        )
        arguments = [row[0] for row in rows]
        if any(row[1] for row in rows):
            properties["arg_attrs"] = ArrayAttr([DictionaryAttr(row[1]) for row in rows])
        inputs = [argument.type for argument in arguments]
        outputs = cls._parse_outputs(parser, [a.name.text[1:] for a in arguments], inputs, properties)
        properties["function_type"] = FunctionType.from_lists(inputs, outputs)
        attributes = parser.parse_optional_attr_dict_with_keyword(
            ("sym_name", "function_type", "sym_visibility")
        )
        found = dict(attributes.data) if attributes else {}
        if "inlining_policy" in found:
            properties["inlining_policy"] = found.pop("inlining_policy")
        region = parser.parse_optional_region(arguments) or Region()
        return cls.build(properties=properties, attributes=found, regions=[region])

    @staticmethod
    def _parse_outputs(
        parser: Parser, names: Sequence[str], inputs: Sequence[Attribute], properties: dict[str, Attribute]
    ) -> list[Attribute]:
        if parser.parse_optional_punctuation("->") is None:
            return []
        outputs, attributes, tied = formats.parse_results(parser, names, inputs)
        if formats.is_tied(tied):
            assert tied is not None
            properties["tied_operands"] = tied
        if any(attributes):
            properties["res_attrs"] = ArrayAttr([DictionaryAttr(found) for found in attributes])
        return outputs

    def print(self, printer: Printer) -> None:
        formats.print_visibility(printer, self.sym_visibility)
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        arguments: Sequence[SSAValue] = self.body.blocks[0].args if self.body.blocks else ()
        with printer.in_parens():
            self._print_arguments(printer, arguments)
        outputs = self.function_type.outputs.data
        if outputs:
            printer.print_string(" -> ")
            attributes = None if self.res_attrs is None else self.res_attrs.data
            formats.print_results(printer, arguments, outputs, self.tied_operands, attributes)
        found = dict(self.attributes)
        if self.inlining_policy is not None:
            found["inlining_policy"] = self.inlining_policy
        printer.print_op_attributes(found, print_keyword=True)
        if self.body.blocks:
            printer.print_string(" ")
            printer.print_region(self.body, print_entry_block_args=False, print_empty_block=False)

    def _print_arguments(self, printer: Printer, arguments: Sequence[SSAValue]) -> None:
        for number, type_ in enumerate(self.function_type.inputs.data):
            if number:
                printer.print_string(", ")
            if arguments:
                printer.print_ssa_value(arguments[number])
            else:
                printer.print_string(f"%arg{number}")
            printer.print_string(": ")
            printer.print_attribute(type_)
            if self.arg_attrs is not None and self.arg_attrs.data[number].data:
                printer.print_op_attributes(dict(self.arg_attrs.data[number].data))

    def verify_(self) -> None:
        if self.body.blocks and tuple(self.body.blocks[0].arg_types) != self.function_type.inputs.data:
            raise VerifyException("the entry block's arguments have to be the function's")


@irdl_op_definition
class CallOp(IRDLOperation):
    """Calls a function of this module."""

    name = "util.call"
    callee = prop_def(FlatSymbolRefAttrConstr)
    arguments = var_operand_def()
    tied_operands = opt_prop_def(ArrayAttr[Attribute])
    arg_attrs = opt_prop_def(ArrayAttr[DictionaryAttr])
    res_attrs = opt_prop_def(ArrayAttr[DictionaryAttr])
    outputs = var_result_def()

    def __init__(self, callee: str, arguments: Sequence[SSAValue], result_types: Sequence[Attribute]) -> None:
        super().__init__(
            operands=[arguments], result_types=[result_types], properties={"callee": SymbolRefAttr(callee)}
        )

    @classmethod
    def parse(cls, parser: Parser) -> CallOp:
        callee = parser.parse_symbol_name()
        operands = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_unresolved_operand)
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        types = parser.parse_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
        parser.parse_punctuation("->")
        names = [operand.operand_name for operand in operands]
        outputs, _, tied = formats.parse_results(parser, names, types)
        properties: dict[str, Attribute] = {"callee": SymbolRefAttr(callee)}
        if formats.is_tied(tied):
            assert tied is not None
            properties["tied_operands"] = tied
        values = parser.resolve_operands(operands, types, parser.pos)
        return cls.build(
            operands=[values], result_types=[outputs], properties=properties, attributes=attributes
        )

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_attribute(self.callee)
        with printer.in_parens():
            printer.print_list(self.arguments, printer.print_operand)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        with printer.in_parens():
            printer.print_list(self.arguments.types, printer.print_attribute)
        printer.print_string(" -> ")
        formats.print_results(printer, self.arguments, self.outputs.types, self.tied_operands)


@irdl_op_definition
class ReturnOp(IRDLOperation):
    """Leaves a function or an initializer."""

    name = "util.return"
    values = var_operand_def()
    assembly_format = "attr-dict ($values^ `:` type($values))?"
    traits = lazy_traits_def(lambda: (IsTerminator(), ReturnLike(), HasParent(InitializerOp, FuncOp)))

    def __init__(self, values: Sequence[SSAValue] = ()) -> None:
        super().__init__(operands=[values])

    def verify_(self) -> None:
        parent = self.parent_op()
        expected = parent.function_type.outputs.data if isinstance(parent, FuncOp) else ()
        if tuple(self.values.types) != tuple(expected):
            raise VerifyException("returns other types than the function's results")


@irdl_op_definition
class UnreachableOp(IRDLOperation):
    """A place that no call comes to."""

    name = "util.unreachable"
    message = opt_prop_def(StringAttr)
    assembly_format = "($message^)? attr-dict"
    traits = traits_def(IsTerminator())
