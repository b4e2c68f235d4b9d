"""Operations of MLIR's own dialects that xDSL lacks. Facts: mlir/include/mlir/Dialect/Arith/IR/ArithOps.td."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.arith import FastMathFlagsAttr
from xdsl.dialects.builtin import AnyFloatConstr, IndexType, IntegerType
from xdsl.irdl import (
    AnyOf,
    BaseAttr,
    IRDLOperation,
    ParsePropInAttrDict,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    result_def,
    traits_def,
)
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


OPERATIONS = (IndexCastUIOp, RemFOp)
