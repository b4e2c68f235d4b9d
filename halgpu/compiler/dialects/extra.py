"""Operations of MLIR's own dialects that xDSL lacks. Facts: mlir/include/mlir/Dialect/Arith/IR/ArithOps.td."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects import affine
from xdsl.dialects.arith import FastMathFlagsAttr
from xdsl.dialects.builtin import AffineMapAttr, AnyFloatConstr, IndexType, IntegerType
from xdsl.irdl import (
    AnyOf,
    BaseAttr,
    IRDLOperation,
    ParsePropInAttrDict,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure

INTEGER = AnyOf((BaseAttr(IntegerType), BaseAttr(IndexType)))


@irdl_op_definition
class IndexCastUIOp(IRDLOperation):
    """An index as an unsigned integer, or the other way round."""

    name = "arith.index_castui"
    input = operand_def(INTEGER)
    result = result_def(INTEGER)
    assembly_format = "$input attr-dict `:` type($input) `to` type($result)"
    traits = traits_def(Pure())


@irdl_op_definition
class RemFOp(IRDLOperation):
    """The remainder of a division, with the dividend's sign."""

    T: ClassVar = VarConstraint("T", AnyFloatConstr)
    name = "arith.remf"
    lhs = operand_def(T)
    rhs = operand_def(T)
    fastmath = opt_prop_def(FastMathFlagsAttr)
    result = result_def(T)
    irdl_options = (ParsePropInAttrDict(),)
    assembly_format = "$lhs `,` $rhs attr-dict `:` type($result)"
    traits = traits_def(Pure())


@irdl_op_definition
class AffineMaxOp(IRDLOperation):
    """The largest result of an affine map."""

    name = "affine.max"
    inputs = var_operand_def(IndexType())
    map = prop_def(AffineMapAttr)
    result = result_def(IndexType())
    traits = traits_def(Pure())

    @classmethod
    def parse(cls, parser: Parser) -> AffineMaxOp:
        # Its form is that of affine.min, which xDSL has.
        least = affine.MinOp.parse(parser)
        made = cls.build(
            operands=[list(least.arguments)], result_types=[IndexType()], properties={"map": least.map}
        )
        least.erase()
        return made

    def print(self, printer: Printer) -> None:
        count = self.map.data.num_dims
        printer.print_string(" ")
        printer.print_attribute(self.map)
        with printer.in_parens():
            printer.print_list(self.inputs[:count], printer.print_operand)
        if len(self.inputs) > count:
            with printer.in_square_brackets():
                printer.print_list(self.inputs[count:], printer.print_operand)


OPERATIONS = (IndexCastUIOp, RemFOp, AffineMaxOp)
