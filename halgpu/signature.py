"""What a program's function takes and returns, in the user's terms.

The compiler writes each function's declaration as text into the attribute ``iree.abi.declaration``:

    sync func @name(%input0: tensor<2x?xf32>, %scale: f32 {attrs}) -> (%output0: tensor<2xf32>)

The calling convention knows only ``i I f F r``; a function without a declaration is described by that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from halgpu import elements, errors
from halgpu.elements import ElementType

DECLARATION = "iree.abi.declaration"

# A calling convention's letter -> the element type of a scalar that it passes.
_PRIMITIVES = {"i": "i32", "I": "i64", "f": "f32", "F": "f64"}


@dataclass(frozen=True, slots=True)
class Value:
    """One parameter or result.

    ``cconv`` is how the VM passes it: ``i I f F`` or ``r`` for a ref. ``element`` is None for what is neither
    tensor nor scalar; ``shape`` is None for anything but tensors, and holds -1 for a dynamic size.
    """

    name: str
    text: str
    """The type as declared, such as ``tensor<2x?xf32>``."""
    cconv: str
    element: ElementType | None = None
    shape: tuple[int, ...] | None = None

    @property
    def is_tensor(self) -> bool:
        return self.shape is not None

    @property
    def is_scalar(self) -> bool:
        return self.cconv != "r"

    def accepts_shape(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of ``shape`` fits: equal but for dynamic sizes."""
        expected = self.shape
        if expected is None or shape == expected:
            return True
        if len(shape) != len(expected):
            return False
        # A plain loop: a generator would take longer than all the rest of passing a view.
        for want, size in zip(expected, shape):  # noqa: B905, SIM110
            if want != size and want != -1:
                return False
        return True

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's parameters and results, in order."""

    parameters: tuple[Value, ...]
    results: tuple[Value, ...]
    declaration: str = ""

    def __str__(self) -> str:
        results = ", ".join(value.text for value in self.results)
        return f"({', '.join(map(str, self.parameters))}) -> ({results})"


def of_function(cconv: str, attrs: Mapping[str, str]) -> Signature:
    """The signature of a function with calling convention ``cconv`` (``0rI_r``) and reflection ``attrs``."""
    arguments, results = _split_cconv(cconv)
    declaration = attrs.get(DECLARATION, "")
    parameters, outputs = _parse_declaration(declaration)
    return Signature(
        _values(parameters, arguments, "input"), _values(outputs, results, "output"), declaration
    )


def _split_cconv(cconv: str) -> tuple[str, str]:
    match = re.fullmatch(r"0(?:v|([iIfFr]*))_(?:v|([iIfFr]*))", cconv or "0v_v")
    if not match:
        raise errors.Unimplemented(f"functions of calling convention '{cconv}' cannot be called from Python")
    return match[1] or "", match[2] or ""


def _values(declared: Sequence[tuple[str, str]], cconv: str, prefix: str) -> tuple[Value, ...]:
    if len(declared) != len(cconv):
        declared = [(f"{prefix}{index}", "") for index in range(len(cconv))]
    return tuple(_value(name, text, letter) for (name, text), letter in zip(declared, cconv, strict=True))


def _value(name: str, text: str, letter: str) -> Value:
    if letter != "r":
        return Value(name, text or _PRIMITIVES[letter], letter, _scalar_element(text, letter))
    tensor = re.fullmatch(r"tensor<((?:(?:[0-9]+|\?)x)*)([^,]*)(?:,.*)?>", text, re.DOTALL)
    element = _known(tensor[2].strip()) if tensor else None
    if tensor is None or element is None:
        return Value(name, text or "!vm.ref<?>", letter)
    sizes = tuple(-1 if size == "?" else int(size) for size in tensor[1].split("x")[:-1])
    return Value(name, text, letter, element, sizes)


def _scalar_element(text: str, letter: str) -> ElementType:
    """The declared type, which may be narrower than its register; the register's where none is known."""
    declared, register = _known(text), elements.of_name(_PRIMITIVES[letter])
    return declared if declared is not None and declared.bits <= register.bits else register


def _known(text: str) -> ElementType | None:
    if text == "index":
        return elements.of_name("i64")
    try:
        return elements.of_name(text)
    except errors.InvalidArgument:
        return None


def _parse_declaration(text: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    match = re.fullmatch(r"(?:\w+ )?func @.*?\((.*)\) -> \((.*)\)", text, re.DOTALL)
    if not match:
        return [], []
    return [_parse_item(item) for item in _split(match[1])], [_parse_item(item) for item in _split(match[2])]


def _parse_item(item: str) -> tuple[str, str]:
    name, _, text = item.strip().partition(": ")
    return name.lstrip("%"), text.partition(" {")[0].strip()


def _split(text: str) -> Iterator[str]:
    """The parts of ``text`` between commas that stand in no bracket."""
    depth = start = 0
    for at, character in enumerate(text):
        depth += (character in "<({[") - (character in ">)}]")
        if character == "," and depth <= 0:
            yield text[start:at]
            start = at + 1
    if text[start:].strip():
        yield text[start:]
