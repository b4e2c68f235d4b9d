"""What a kernel calls for OpenCL C's simplest functions: on CPUs, definitions of its own that get inlined.

PoCL links its library as code for some CPU; LLVM does not inline functions for a CPU whose features (even its
tuning) the one at hand lacks, so that on AMD's each `fma` and `vload4` is a call (LLVM 14,
X86TTIImpl::areInlineCompatible), and no loop with one becomes vector instructions. For PoCL (which defines the
macro POCL_DEVICE_ADDRESS_BITS) the same is said in plain C or with clang's builtins. The results are the same bits.
Not wherever clang compiles: Oclgrind, which reports a CPU too, knows no `__builtin_rintf`.
"""

from __future__ import annotations

from typing import Final

from . import ctypes
from . import spirv_types as ty
from .source import Source

_FUSED: Final = "#if defined(POCL_DEVICE_ADDRESS_BITS) && (defined(__FMA__) || defined(__ARM_FEATURE_FMA))"
_POCL: Final = "#ifdef POCL_DEVICE_ADDRESS_BITS"
_SUFFIX: Final = {32: "f", 64: ""}
_ROUNDING: Final = frozenset({"floor", "ceil", "trunc", "rint", "round", "fabs", "sqrt"})


def function(source: Source, name: str, type_: ty.Type) -> str:
    """The name by which to call a function of floats of ``type_``."""
    element = ty.element_of(type_)
    if not source.cpu or not isinstance(element, ty.Float) or element.width not in _SUFFIX:
        return name
    if name == "fma":
        return _fma(source, type_, element)
    if name in _ROUNDING:
        return _rounding(source, name, type_, element)
    return name


def _choice(condition: str, ours: str, otherwise: str) -> str:
    return f"{condition}\n{ours}\n#else\n    return {otherwise};\n#endif"


def _fma(source: Source, type_: ty.Type, element: ty.Float) -> str:
    t = source.type(type_)
    # Of vectors clang has no such builtin; what it may fuse, a CPU with the instruction does fuse.
    ours = f"    return __builtin_fma{_SUFFIX[element.width]}(a, b, c);"
    if isinstance(type_, ty.Vector):
        ours = "#pragma OPENCL FP_CONTRACT ON\n    return a * b + c;"
    body = _choice(_FUSED, ours, "fma(a, b, c)")
    return source.helper("fma", f"static {t} NAME({t} a, {t} b, {t} c)\n{{\n{body}\n}}", t)


def _rounding(source: Source, name: str, type_: ty.Type, element: ty.Float) -> str:
    t = source.type(type_)
    builtin = f"__builtin_{name}{_SUFFIX[element.width]}"
    text = f"{builtin}(x)"
    if isinstance(type_, ty.Vector):
        parts = ", ".join(f"{builtin}(x.{letter})" for letter in ctypes.COMPONENTS[: type_.count])
        text = f"({t})({parts})"
    body = _choice(_POCL, f"    return {text};", f"{name}(x)")
    return source.helper(name, f"static {t} NAME({t} x)\n{{\n{body}\n}}", t)


def lesser(source: Source, a: str, b: str, *, greater: bool = False) -> str:
    """The C expression of the lesser of two floats, or the number where one is NaN; zeros of two signs are equal."""
    name, sign = ("fmax", ">") if greater else ("fmin", "<")
    return f"((({b} != {b}) | ({a} {sign} {b})) ? {a} : {b})" if source.cpu else f"{name}({a}, {b})"


def integer_choice(source: Source, name: str, c_type: str) -> str:
    """The name by which to call `min` or `max` of integers of a C type."""
    if not source.cpu:
        return name
    sign = "<" if name == "min" else ">"
    text = f"static {c_type} NAME({c_type} a, {c_type} b)\n{{\n    return a {sign} b ? a : b;\n}}"
    return source.helper(name, text, c_type)


def vector_load(source: Source, element: str, count: int, space: str = "__global") -> str:
    """The name by which to call `vload…` of elements in a buffer, or in another address space."""
    if not source.cpu or count == 3:
        return f"vload{count}"
    ours = f"    return *(const {space} {_loose(source, element, count)} *)(p + i * {count});"
    body = _choice(_POCL, ours, f"vload{count}(i, p)")
    vector = f"{element}{count}"
    text = f"static {vector} NAME(ulong i, const {space} {element} *p)\n{{\n{body}\n}}"
    return source.helper("load", text, vector, *_kept(space))


def vector_store(source: Source, element: str, count: int, space: str = "__global") -> str:
    """The name by which to call `vstore…` of elements in a buffer, or in another address space."""
    if not source.cpu or count == 3:
        return f"vstore{count}"
    body = (
        f"{_POCL}\n    *({space} {_loose(source, element, count)} *)(p + i * {count}) = v;\n"
        f"#else\n    vstore{count}(v, i, p);\n#endif"
    )
    vector = f"{element}{count}"
    text = f"static void NAME({vector} v, ulong i, {space} {element} *p)\n{{\n{body}\n}}"
    return source.helper("store", text, vector, *_kept(space))


def _kept(space: str) -> list[str]:
    """What distinguishes the helpers of an address space."""
    return [] if space == "__global" else [space.strip("_")]


def _loose(source: Source, element: str, count: int) -> str:
    """A vector type that asks for no more alignment than its elements have."""
    vector = f"{element}{count}"
    text = f"typedef {vector} NAME __attribute__((aligned(sizeof({element}))));"
    return source.helper("loose", text, vector)
