"""Types of IREE's ``vm`` dialect. Facts: compiler/src/iree/compiler/Dialect/VM/IR/{VMTypes.h,VMBase.td}.

Values of the virtual machine are i32, i64, f32, f64 and references. MLIR's text writes a reference to a byte buffer as
``!vm.buffer``, one to another object as ``!vm.ref<!hal.buffer>``.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import Float32Type, Float64Type, IntegerType
from xdsl.ir import Attribute, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import AnyOf, base, irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer


@irdl_attr_definition
class BufferType(ParametrizedAttribute, TypeAttribute):
    """``!vm.buffer``: a reference to a byte buffer."""

    name = "vm.buffer"


@irdl_attr_definition
class RefType(ParametrizedAttribute, TypeAttribute):
    """``!vm.ref<T>``: a reference to an object."""

    name = "vm.ref"
    object_type: Attribute

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            return [parser.parse_type()]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_attribute(self.object_type)


@irdl_attr_definition
class OpaqueType(ParametrizedAttribute, TypeAttribute):
    """``!vm.opaque``: any type, ``?`` as that of a list's elements."""

    name = "vm.opaque"


@irdl_attr_definition
class ListType(ParametrizedAttribute, TypeAttribute):
    """``!vm.list<T>``: a reference to a list."""

    name = "vm.list"
    element_type: Attribute

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        with parser.in_angle_brackets():
            if parser.parse_optional_punctuation("?") is not None:
                return [OpaqueType()]
            return [parser.parse_type()]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            if isinstance(self.element_type, OpaqueType):
                printer.print_string("?")
            else:
                printer.print_attribute(self.element_type)


REF = AnyOf((base(BufferType), base(ListType), base(RefType)))
BY_LETTER: dict[str, Attribute] = {
    "i": IntegerType(32),
    "I": IntegerType(64),
    "f": Float32Type(),
    "F": Float64Type(),
}
"""Types by their letters in calling conventions; ``r`` is any reference."""
LETTERS = {type_: letter for letter, type_ in BY_LETTER.items()}


def is_ref(type_: Attribute) -> bool:
    """Whether values of a type are references."""
    return isinstance(type_, (BufferType, ListType, RefType))


def letter(type_: Attribute) -> str:
    """The letter of a type in calling conventions."""
    return "r" if is_ref(type_) else LETTERS[type_]


def type_name(type_: Attribute) -> str:
    """The name of a type in a module's type table."""
    return str(type_.object_type if isinstance(type_, RefType) else type_)
