"""Modules, functions, imports, globals and data of IREE's ``vm`` dialect.

Facts: compiler/src/iree/compiler/Dialect/VM/IR/VMOps.{td,cpp}.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FlatSymbolRefAttrConstr,
    FunctionType,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    UnitAttr,
    i32,
)
from xdsl.dialects.utils import parse_func_op_like, print_func_op_like
from xdsl.ir import Attribute, Block, Region, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    opt_prop_def,
    prop_def,
    region_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import (
    IsolatedFromAbove,
    IsTerminator,
    SingleBlockImplicitTerminator,
    SymbolOpInterface,
    SymbolTable,
)
from xdsl.utils.exceptions import VerifyException

from halgpu.compiler.dialects import formats


@irdl_op_definition
class ModuleTerminatorOp(IRDLOperation):
    """Ends a module; not written."""

    name = "vm.module_terminator"
    assembly_format = "attr-dict"
    traits = traits_def(IsTerminator())


@irdl_op_definition
class ModuleOp(IRDLOperation):
    """A program for the virtual machine."""

    name = "vm.module"
    sym_visibility = opt_prop_def(StringAttr)
    sym_name = prop_def(SymbolNameConstraint())
    body = region_def("single_block")
    traits = traits_def(
        IsolatedFromAbove(),
        SymbolOpInterface(),
        SymbolTable(),
        SingleBlockImplicitTerminator(ModuleTerminatorOp),
    )

    def __init__(self, name: str) -> None:
        super().__init__(
            properties={"sym_name": StringAttr(name), "sym_visibility": StringAttr("public")},
            regions=[Region(Block([ModuleTerminatorOp.build()]))],
        )

    @classmethod
    def parse(cls, parser: Parser) -> ModuleOp:
        visibility = formats.parse_visibility(parser)
        op = cls(parser.parse_symbol_name().data)
        if visibility is not None:
            op.sym_visibility = visibility
        attributes = parser.parse_optional_attr_dict_with_keyword()
        op.attributes = dict(attributes.data) if attributes else {}
        body = parser.parse_region()
        if not body.blocks:
            body.add_block(Block())
        if not isinstance(body.blocks[-1].last_op, ModuleTerminatorOp):
            body.blocks[-1].add_op(ModuleTerminatorOp.build())
        op.detach_region(0)
        op.add_region(body)
        return op

    def print(self, printer: Printer) -> None:
        formats.print_visibility(printer, self.sym_visibility)
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        printer.print_op_attributes(self.attributes, print_keyword=True)
        printer.print_string(" ")
        printer.print_region(self.body, print_block_terminators=False)


@irdl_op_definition
class FuncOp(IRDLOperation):
    """A function of the module."""

    name = "vm.func"
    sym_name = prop_def(SymbolNameConstraint())
    function_type = prop_def(FunctionType)
    sym_visibility = opt_prop_def(StringAttr)
    arg_attrs = opt_prop_def(ArrayAttr[DictionaryAttr])
    res_attrs = opt_prop_def(ArrayAttr[DictionaryAttr])
    body = region_def()
    traits = traits_def(IsolatedFromAbove(), SymbolOpInterface())

    def __init__(
        self, name: str, inputs: Sequence[Attribute], outputs: Sequence[Attribute], body: Region
    ) -> None:
        super().__init__(
            properties={
                "sym_name": StringAttr(name),
                "function_type": FunctionType.from_lists(inputs, outputs),
                "sym_visibility": StringAttr("private"),
            },
            regions=[body],
        )

    @classmethod
    def parse(cls, parser: Parser) -> FuncOp:
        visibility = formats.parse_visibility(parser)
        name, inputs, outputs, region, extra, _, _ = parse_func_op_like(
            parser, reserved_attr_names=("sym_name", "function_type", "sym_visibility")
        )
        op = cls(name, inputs, outputs, region)
        if visibility is not None:
            op.sym_visibility = visibility
        op.attributes = dict(extra.data) if extra else {}
        return op

    def print(self, printer: Printer) -> None:
        if self.sym_visibility is not None:
            formats.print_visibility(printer, self.sym_visibility)
        print_func_op_like(
            printer, self.sym_name, self.function_type, self.body, self.attributes, reserved_attr_names=()
        )

    def verify_(self) -> None:
        if self.body.blocks and tuple(self.body.blocks[0].arg_types) != self.function_type.inputs.data:
            raise VerifyException("the entry block's arguments have to be the function's")


@irdl_op_definition
class ExportOp(IRDLOperation):
    """Makes a function callable from outside."""

    name = "vm.export"
    function_ref = prop_def(FlatSymbolRefAttrConstr)
    export_name = prop_def(StringAttr)

    def __init__(self, function: str, name: str | None = None) -> None:
        super().__init__(
            properties={
                "function_ref": SymbolRefAttr(function),
                "export_name": StringAttr(function if name is None else name),
            }
        )

    @classmethod
    def parse(cls, parser: Parser) -> ExportOp:
        function = parser.parse_symbol_name().data
        name = function
        if parser.parse_optional_keyword("as") is not None:
            with parser.in_parens():
                name = parser.parse_str_literal()
        op = cls(function, name)
        attributes = parser.parse_optional_attr_dict_with_keyword()
        op.attributes = dict(attributes.data) if attributes else {}
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_attribute(self.function_ref)
        if self.export_name.data != self.function_ref.string_value():
            printer.print_string(" as(")
            printer.print_attribute(self.export_name)
            printer.print_string(")")
        printer.print_op_attributes(self.attributes, print_keyword=True)


_NAME, _VARIADIC = "vm.name", "vm.variadic"


@irdl_op_definition
class ImportOp(IRDLOperation):
    """A function of another module."""

    name = "vm.import"
    sym_visibility = opt_prop_def(StringAttr)
    sym_name = prop_def(SymbolNameConstraint())
    function_type = prop_def(FunctionType)
    arg_attrs = opt_prop_def(ArrayAttr[DictionaryAttr])
    is_optional = opt_prop_def(UnitAttr)
    minimum_version = opt_prop_def(IntegerAttr.constr(i32))
    body = region_def()
    traits = traits_def(SymbolOpInterface())

    def is_variadic(self, argument: int) -> bool:
        """Whether an argument is a variadic span."""
        return self.arg_attrs is not None and _VARIADIC in self.arg_attrs.data[argument].data

    @classmethod
    def parse(cls, parser: Parser) -> ImportOp:
        properties: dict[str, Attribute] = {}
        visibility = formats.parse_visibility(parser)
        if visibility is not None:
            properties["sym_visibility"] = visibility
        if parser.parse_optional_keyword("optional") is not None:
            properties["is_optional"] = UnitAttr()
        properties["sym_name"] = parser.parse_symbol_name()
        rows = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: cls._parse_argument(parser))
        outputs: list[Attribute] = []
        if parser.parse_optional_punctuation("->") is not None:
            listed = parser.parse_optional_comma_separated_list(parser.Delimiter.PAREN, parser.parse_type)
            outputs = list(listed) if listed is not None else [parser.parse_type()]
        properties["function_type"] = FunctionType.from_lists([row[0] for row in rows], outputs)
        properties["arg_attrs"] = ArrayAttr([DictionaryAttr(row[1]) for row in rows])
        attributes = parser.parse_optional_attr_dict_with_keyword()
        found = dict(attributes.data) if attributes else {}
        if "minimum_version" in found:
            properties["minimum_version"] = found.pop("minimum_version")
        return cls.build(properties=properties, attributes=found, regions=[Region()])

    @staticmethod
    def _parse_argument(parser: Parser) -> tuple[Attribute, dict[str, Attribute]]:
        found: dict[str, Attribute] = {}
        operand = parser.parse_optional_unresolved_operand()
        if operand is not None:
            parser.parse_punctuation(":")
            found[_NAME] = StringAttr(operand.operand_name)
        type_ = parser.parse_type()
        if parser.parse_optional_punctuation("...") is not None:
            found[_VARIADIC] = UnitAttr()
        return type_, found

    def print(self, printer: Printer) -> None:
        formats.print_visibility(printer, self.sym_visibility)
        if self.is_optional is not None:
            printer.print_string(" optional")
        printer.print_string(" ")
        printer.print_symbol_name(self.sym_name.data)
        with printer.in_parens():
            printer.print_list(
                range(len(self.function_type.inputs.data)), lambda n: self._print_argument(printer, n)
            )
        outputs = self.function_type.outputs.data
        if outputs:
            printer.print_string(" -> ")
            formats.print_results(printer, (), outputs, None)
        found = dict(self.attributes)
        if self.minimum_version is not None:
            found["minimum_version"] = self.minimum_version
        printer.print_op_attributes(found, print_keyword=True)

    def _print_argument(self, printer: Printer, number: int) -> None:
        found = self.arg_attrs.data[number].data if self.arg_attrs is not None else {}
        name = found.get(_NAME)
        if isinstance(name, StringAttr):
            printer.print_string(f"%{name.data} : ")
        printer.print_attribute(self.function_type.inputs.data[number])
        if _VARIADIC in found:
            printer.print_string(" ...")


class _Global(IRDLOperation):
    """A variable of the module."""

    sym_visibility = opt_prop_def(StringAttr)
    sym_name = prop_def(SymbolNameConstraint())
    type = prop_def(TypeAttribute)
    is_mutable = opt_prop_def(UnitAttr)
    initial_value = opt_prop_def(Attribute)
    traits = traits_def(SymbolOpInterface())
    assembly_format = (
        "custom<SymbolVisibility>($sym_visibility) (`mutable` $is_mutable^)? $sym_name attr-dict "
        "custom<TypeOrAttr>($type, $initial_value)"
    )
    custom_directives = (formats.SymbolVisibility, formats.TypeOrAttr)

    def __init__(self, name: str, type_: Attribute, *, mutable: bool) -> None:
        super().__init__(
            properties={
                "sym_visibility": StringAttr("private"),
                "sym_name": StringAttr(name),
                "type": type_,
                "is_mutable": UnitAttr() if mutable else None,
            }
        )


@irdl_op_definition
class GlobalRefOp(_Global):
    """A reference."""

    name = "vm.global.ref"


@irdl_op_definition
class GlobalI32Op(_Global):
    name = "vm.global.i32"


@irdl_op_definition
class GlobalI64Op(_Global):
    name = "vm.global.i64"


@irdl_op_definition
class GlobalF32Op(_Global):
    name = "vm.global.f32"


@irdl_op_definition
class GlobalF64Op(_Global):
    name = "vm.global.f64"


GLOBALS = {"i": GlobalI32Op, "I": GlobalI64Op, "f": GlobalF32Op, "F": GlobalF64Op, "r": GlobalRefOp}
"""Globals by the letter of their type."""
GlobalOp = GlobalRefOp | GlobalI32Op | GlobalI64Op | GlobalF32Op | GlobalF64Op


@irdl_op_definition
class RodataOp(IRDLOperation):
    """Bytes that the module holds."""

    name = "vm.rodata"
    sym_visibility = opt_prop_def(StringAttr)
    sym_name = prop_def(SymbolNameConstraint())
    value = prop_def(Attribute)
    alignment = opt_prop_def(IntegerAttr)
    mime_type = opt_prop_def(StringAttr)
    assembly_format = (
        "custom<SymbolVisibility>($sym_visibility) $sym_name custom<DataI64>($alignment, $mime_type) "
        "attr-dict $value"
    )
    custom_directives = (formats.SymbolVisibility, formats.DataI64)
    traits = traits_def(SymbolOpInterface())

    def __init__(self, name: str, value: Attribute, alignment: int) -> None:
        super().__init__(
            properties={
                "sym_visibility": StringAttr("private"),
                "sym_name": StringAttr(name),
                "value": value,
                "alignment": IntegerAttr(alignment, 64),
            }
        )


OPERATIONS = (
    ModuleOp, ModuleTerminatorOp, FuncOp, ExportOp, ImportOp, GlobalRefOp, GlobalI32Op, GlobalI64Op,
    GlobalF32Op, GlobalF64Op, RodataOp,
)  # fmt: skip
