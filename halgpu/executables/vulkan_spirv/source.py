"""What the kernels of one program share in the C source: extensions, types, tables, helper functions, names."""

from __future__ import annotations

from typing import Final

from halgpu import errors

from . import ctypes
from . import spirv_types as ty
from .names import Names

MAXIMUM_CONSTANTS: Final = 1 << 18
"""Numbers in constant tables of one program; more would make a source of many megabytes."""


class Source:
    """The head of an OpenCL C source, collected while kernels are translated.

    ``half`` says that the device computes with 16-bit floats (cl_khr_fp16); without it they are carried as
    bits and computed with as 32-bit floats. ``checked`` says that kernels check their accesses (checked.py).
    """

    def __init__(
        self, what: str, *, half: bool, double: bool, checked: bool = False, cpu: bool = False
    ) -> None:
        self.what = what
        self.half = half
        self.double = double
        self.checked = checked
        self.cpu = cpu
        self.lanes = 1
        """Invocations of a subgroup in the kernel under translation, which share a cooperative matrix."""
        self.names = Names()
        self.extensions: dict[str, None] = {}
        self._types: dict[ty.Type, str] = {}
        self._arguments: dict[tuple[int, int, bool], str] = {}
        self._helpers: dict[tuple[str, ...], str] = {}
        self._tables: dict[int, tuple[ty.Constant, str]] = {}
        self._lines: list[str] = []
        self._numbers = 0

    def need(self, extension: str) -> None:
        """Ask for a device extension."""
        self.extensions.setdefault(extension)

    def type(self, type_: ty.Type) -> str:
        """The C type of values of ``type_``; structures and arrays are declared when first met."""
        if isinstance(type_, ty.CooperativeMatrix):
            type_ = self.share(type_)
        name = self._types.get(type_)
        if name is None:
            name = self._types[type_] = self._name(type_)
        return name

    def share(self, type_: ty.CooperativeMatrix) -> ty.Scalar | ty.Vector:
        """What an invocation has of a cooperative matrix: a number, or a vector of 2, 4, 8 or 16 elements.

        The vectors of the last invocations may hold more than there is.
        """
        needed = -(-type_.rows * type_.columns // self.lanes)
        count = 1 << (needed - 1).bit_length()
        if count > 16:
            raise errors.Unimplemented(
                f"{self.what}: a cooperative {type_} of which each of {self.lanes} invocations has more than 16 "
                "elements is not supported"
            )
        return ty.VECTORS[type_.element, count] if count > 1 else type_.element

    def _name(self, type_: ty.Type) -> str:
        if isinstance(type_, (ty.Array, ty.Struct)):
            return self._declare(type_)
        if isinstance(type_, (ty.Bool, ty.Int, ty.Float, ty.Vector)):
            self.check_element(ty.element_of(type_))
            return ctypes.value_name(type_, half=self.half)
        if isinstance(type_, ty.Void):
            return "void"
        raise errors.InvalidArgument(f"{self.what}: malformed SPIR-V: a value of type {type_}")

    def check_element(self, element: ty.Type) -> None:
        """Note the extension that a scalar type needs."""
        if isinstance(element, ty.Float) and element.width == 64:
            self.need("cl_khr_fp64")
        if isinstance(element, ty.Float) and element.width == 16 and self.half:
            self.need("cl_khr_fp16")

    def declarator(self, type_: ty.Type, name: str) -> str:
        """Declare a variable: arrays as C arrays, so that code reads as one expects."""
        suffix = ""
        while isinstance(type_, ty.Array):
            suffix += f"[{type_.length}]"
            type_ = type_.element
        return f"{self.type(type_)} {name}{suffix}"

    def _declare(self, type_: ty.Array | ty.Struct) -> str:
        """A structure for a structure, or for an array that is a value; C has no arrays as values."""
        if isinstance(type_, ty.Array):
            members = [self.declarator(type_, "e")]
            name = self.names.unique(f"{self.type(type_.element)}_x{type_.length}")
        else:
            members = [self.declarator(member, f"m{i}") for i, member in enumerate(type_.members)]
            name = self.names.unique(f"struct_{type_.id}")
        body = " ".join(f"{member};" for member in members) or "uchar empty;"
        self._lines.append(f"typedef struct {{ {body} }} {name};")
        return name

    def arguments(self, bindings: int, constants: int, *, lengths: bool = False) -> str | None:
        """The structure that a kernel takes its offsets, lengths and constants in; None if it would be empty."""
        if not bindings and not constants:
            return None
        key = bindings, constants, lengths
        if key not in self._arguments:
            name = self.names.unique(f"arguments_{bindings}_{constants}")
            fields = f"ulong offsets[{bindings}]; " if bindings else ""
            fields += f"ulong lengths[{bindings}]; " if lengths else ""
            fields += f"uint constants[{constants}]; " if constants else ""
            self._lines.append(f"typedef struct {{ {fields}}} {name};")
            self._arguments[key] = name
        return self._arguments[key]

    def helper(self, name: str, text: str, *key: str) -> str:
        """Define a helper function once. ``text`` has ``NAME`` where its name goes; returns the name."""
        known = self._helpers.get((name, *key))
        if known is None:
            known = self.names.unique("_".join((name, *key)), "helper")
            self._helpers[name, *key] = known
            self._lines.append(text.replace("NAME", known))
        return known

    def helpers(self, *names: str) -> frozenset[str]:
        """The names of the functions that were defined for some purposes, of any type."""
        return frozenset(known for key, known in self._helpers.items() if key[0] in names)

    def table(self, constant: ty.Constant, text: str, name: str, declared: ty.Type | None = None) -> str:
        """Put an array constant into program scope once, as of type ``declared`` if given; returns its name."""
        known = self._tables.get(id(constant))
        if known is None:
            self.count(ty.leaves_of(constant.type))
            chosen = self.names.unique(name, "table")
            self._lines.append(f"__constant {self.declarator(declared or constant.type, chosen)} = {text};")
            self._tables[id(constant)] = known = constant, chosen
        return known[1]

    def count(self, numbers: int) -> None:
        """Account for numbers spelled out in the source."""
        self._numbers += numbers
        if self._numbers > MAXIMUM_CONSTANTS:
            raise errors.ResourceExhausted(
                f"{self.what}: constants of more than {MAXIMUM_CONSTANTS} numbers inside of kernels are not supported"
            )

    def text(self, kernels: list[str]) -> str:
        """The whole source."""
        head = ["#pragma OPENCL FP_CONTRACT OFF"]
        head += [f"#pragma OPENCL EXTENSION {name} : enable" for name in self.extensions]
        # Declarations of a line stand together, functions apart.
        declarations = "\n".join(line for line in self._lines if "\n" not in line)
        functions = [line for line in self._lines if "\n" in line]
        parts = ["\n".join(head), declarations, *functions, *kernels]
        return "\n\n".join(part for part in parts if part) + "\n"
