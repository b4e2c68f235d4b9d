"""Constants as C: expressions, and initializers in braces."""

from __future__ import annotations

from collections.abc import Sequence

from . import ctypes
from . import spirv_types as ty
from .expressions import ATOM, UNARY, Expr, combine
from .source import Source


def constant(source: Source, given: ty.Constant) -> Expr:
    """The expression of a constant."""
    type_ = given.type
    if isinstance(type_, (ty.Array, ty.Struct)):
        text = initializer(source, given)
        if isinstance(type_, ty.Array) and given.value is not None:
            text = f"{{{text}}}"
        return Expr(type_, f"({source.type(type_)}){text}", UNARY, constant=given)
    if isinstance(type_, ty.CooperativeMatrix):
        element = constant(source, given.part(0, type_.element))
        text = f"({source.type(type_)})({element.text})"
        return Expr(type_, text, UNARY, constant=given)
    if isinstance(type_, ty.Vector):
        parts = [constant(source, given.part(i, type_.element)) for i in range(type_.count)]
        expr = literal(source, type_, parts)
        expr.constant, expr.parts = given, tuple(parts)
        return expr
    source.check_element(type_)
    text = _scalar(source, type_, given)
    return Expr(type_, text, UNARY if text[0] in "-(" else ATOM, constant=given)


def _scalar(source: Source, type_: ty.Type, given: ty.Constant) -> str:
    value = given.value or 0
    assert not isinstance(value, tuple)
    if isinstance(type_, ty.Bool):
        return "true" if value else "false"
    if isinstance(type_, ty.Int):
        return ctypes.unsigned_literal(int(value), type_.width)
    assert isinstance(type_, ty.Float)
    return ctypes.float_literal(int(value), type_.width, half=source.half)


def initializer(source: Source, given: ty.Constant) -> str:
    """A constant as an initializer of a C variable declared by :meth:`Source.declarator`."""
    source.count(ty.leaves_of(given.type))
    return _braces(source, given)


def _braces(source: Source, given: ty.Constant) -> str:
    if not isinstance(given.type, (ty.Array, ty.Struct)):
        return constant(source, given).text
    if not isinstance(given.value, tuple) or not given.value:
        return "{0}"
    return f"{{{', '.join(_braces(source, part) for part in given.value)}}}"


def is_constant_expression(initializer: str) -> bool:
    """Whether C takes an initializer at program scope: NaNs, and some halves, can only be written with as_float."""
    return "as_" not in initializer


def as_integers(given: ty.Constant) -> ty.Constant | None:
    """An array constant of floats as the integers of the same bits; None if there are structures in it."""
    type_ = _integer_type(given.type)
    return None if type_ is None else _retyped(given, type_)


def _integer_type(type_: ty.Type) -> ty.Array | ty.Vector | ty.Int | None:
    if isinstance(type_, ty.Float):
        return ty.INTS[type_.width]
    if isinstance(type_, ty.Vector) and isinstance(type_.element, ty.Float):
        return ty.VECTORS[ty.INTS[type_.element.width], type_.count]
    element = _integer_type(type_.element) if isinstance(type_, ty.Array) else None
    if element is None or not isinstance(type_, ty.Array):
        return None
    return ty.Array(element, type_.length, type_.stride, type_.leaves, type_.depth)


def _retyped(given: ty.Constant, type_: ty.Array | ty.Vector | ty.Int) -> ty.Constant:
    if isinstance(type_, ty.Int) or not isinstance(given.value, tuple):
        return ty.Constant(type_, given.value)
    element = type_.element
    assert isinstance(element, (ty.Array, ty.Vector, ty.Int))
    return ty.Constant(type_, tuple(_retyped(part, element) for part in given.value))


def literal(source: Source, type_: ty.Type, parts: Sequence[Expr]) -> Expr:
    """A vector, structure or array made of the given parts."""
    name = source.type(type_)
    if isinstance(type_, ty.Vector):
        texts = [mask(part) if isinstance(type_.element, ty.Bool) else part.text for part in parts]
        inner = texts[0] if len(set(texts)) == 1 else ", ".join(texts)
        return combine(type_, f"({name})({inner})", UNARY, parts)
    inner = ", ".join(part.text for part in parts) or "0"
    inner = f"{{{inner}}}" if isinstance(type_, ty.Array) else inner
    return combine(type_, f"({name}){{{inner}}}", UNARY, parts)


def mask(part: Expr) -> str:
    """A boolean as a component of a vector of booleans: -1 or 0."""
    if part.constant is not None:
        return "-1" if part.constant.value else "0"
    return f"-(int){part.operand}"
