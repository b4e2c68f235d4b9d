"""Modules, functions, globals, data and control flow of IREE's ``vm`` dialect.

Facts: compiler/src/iree/compiler/Dialect/VM/IR/VMOps.{td,cpp}.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseIntElementsAttr,
    DictionaryAttr,
    FlatSymbolRefAttrConstr,
    FunctionType,
    IntegerAttr,
    StringAttr,
    SymbolNameConstraint,
    SymbolRefAttr,
    TupleType,
    UnitAttr,
    VectorType,
    i16,
    i32,
)
from xdsl.dialects.utils import parse_func_op_like, print_func_op_like
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue, TypeAttribute
from xdsl.irdl import (
    AttrSizedOperandSegments,
    IRDLOperation,
    eq,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    region_def,
    successor_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import (
    IsolatedFromAbove,
    IsTerminator,
    Pure,
    ReturnLike,
    SingleBlockImplicitTerminator,
    SymbolOpInterface,
    SymbolTable,
)
from xdsl.utils.exceptions import VerifyException

from halgpu.compiler.dialects import formats
from halgpu.compiler.dialects.vm_types import REF

NOT_VARIADIC = -1
"""Segment size of an argument that is no variadic span."""


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


# Control flow.


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


def successors(op: Operation) -> list[tuple[Block, Sequence[SSAValue]]]:
    """The blocks that a terminator goes to, with the values that their arguments get."""
    if isinstance(op, BranchOp):
        return [(op.dest, op.values)]
    if isinstance(op, CondBranchOp):
        return [(op.true_dest, op.true_values), (op.false_dest, op.false_values)]
    return []


OPERATIONS = (
    ModuleOp, ModuleTerminatorOp, FuncOp, ExportOp, ImportOp, GlobalRefOp, GlobalI32Op, GlobalI64Op,
    GlobalF32Op, GlobalF64Op,
    RodataOp, CallOp, CallVariadicOp, DiscardRefsOp, BranchOp, CondBranchOp, ReturnOp, FailOp,
)  # fmt: skip
