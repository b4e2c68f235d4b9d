"""A program of the corpus: MLIR text, the inputs to run it on, and how near two runs of it must come."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import ml_dtypes
import numpy as np

INTEGERS = ("i8", "i16", "i32", "i64")
FLOATS = ("f16", "bf16", "f32", "f64")
# Every type a tensor may have. "i8" operations serve "ui8" too: arith's integers have no sign.
ELEMENTS = ("i1", "ui8", *INTEGERS, *FLOATS)
_DTYPES = {"i1": np.dtype(bool), "bf16": np.dtype(ml_dtypes.bfloat16)}


def dtype_of(element: str) -> np.dtype:
    """Return numpy's dtype of an MLIR element type; signless integers are signed."""
    if element in _DTYPES:
        return _DTYPES[element]
    kind = {"i": "int", "ui": "uint", "f": "float"}[element.rstrip("0123456789")]
    return np.dtype(kind + element.lstrip("uif"))


@dataclass(frozen=True)
class Domain:
    """Where a parameter's values come from: [low, high), and the type's special values if `special`."""

    low: float = -4.0
    high: float = 4.0
    special: bool = False
    without: tuple[int, ...] = ()

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], element: str, number: int) -> np.ndarray:
        """Random values, the first of them special: parameters 0 and 1 together take all pairs of these."""
        dtype = dtype_of(element)
        values = self._random(rng, shape, dtype)
        if self.special:
            flat = values.reshape(-1)
            known = _special_values(dtype, self.without)
            count = min(flat.size, known.size**2)
            flat[:count] = known[np.arange(count) // known.size**number % known.size]
        return values

    def _random(self, rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if dtype == np.bool_:
            return rng.integers(0, 2, shape).astype(bool)
        if dtype.kind not in "iu":
            return rng.uniform(self.low, self.high, shape).astype(dtype)
        info = np.iinfo(dtype)
        low, high = max(info.min, int(self.low)), min(info.max, int(self.high))
        values = rng.integers(low, high, shape, endpoint=True, dtype=dtype)
        values[np.isin(values, _wrapped(self.without, dtype))] = 3
        return values


def _wrapped(values: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return np.array(values, np.int64).astype(dtype)


def _special_values(dtype: np.dtype, without: tuple[int, ...]) -> np.ndarray:
    if dtype == np.bool_:
        return np.array([False, True])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        found = [info.min, info.min + 1, 0, 1, 2, 7, info.max - 1, info.max, *([-1, -7] * (info.min < 0))]
        values = np.array(found, dtype)
        return values[~np.isin(values, _wrapped(without, dtype))]
    info = ml_dtypes.finfo(dtype)
    found = [0.0, -0.0, 1.0, -1.0, 0.5, -1.5, 2.5, np.inf, -np.inf, np.nan]
    return np.array([*found, float(info.tiny), float(info.max), -float(info.max), -3.75], dtype)


# Whole ranges of every type, special values included.
ANY = Domain(-1000, 1000, special=True)
ANY_INTEGER = Domain(-(2.0**62), 2.0**62, special=True)


@dataclass(frozen=True)
class Program:
    """One function `main` of tensors to tensors.

    Dynamic dimensions take the sizes in `sizes`, in order of appearance. `domains` are those of the parameters, the
    last standing for all that follow. Floats may differ by `ulps` units of rounding of the largest of: the value
    wanted, `floor`, and the result's largest value if `relative_to_largest`; zeros only in their signs, where these
    are defined (`signed_zeros`). `parts` are programs of one result
    each, to be run instead of this one where it is refused or differs.
    """

    source: str
    sizes: tuple[int, ...] = ()
    domains: tuple[Domain, ...] = (Domain(),)
    ulps: float = 16
    floor: float = 1.0
    relative_to_largest: bool = True
    signed_zeros: bool = True
    parts: Mapping[str, Program] = field(default_factory=dict)

    @cached_property
    def _signature(self) -> tuple[str, str]:
        found = re.search(r"func\.func @main\((.*?)\)\s*->(.*?)\{", self.source, re.S)
        assert found
        return found[1], found[2]

    @property
    def parameters(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and MLIR element type of each parameter of `main`, dynamic sizes filled in."""
        sizes = iter(self.sizes)
        found = []
        for dimensions, element in _tensors(self._signature[0]):
            found.append((tuple(int(next(sizes)) if d == "?" else int(d) for d in dimensions), element))
        return found

    @property
    def results(self) -> list[tuple[tuple[int | None, ...], str]]:
        """Shape, None where dynamic, and MLIR element type of each result of `main`."""
        found = _tensors(self._signature[1])
        return [(tuple(None if d == "?" else int(d) for d in shape), element) for shape, element in found]

    @property
    def uses_f64(self) -> bool:
        return "f64" in self.source

    def inputs(self, seed: int = 0) -> list[np.ndarray]:
        """Random and special inputs; the same for the same seed."""
        rng = np.random.default_rng(seed)
        domains = [self.domains[min(i, len(self.domains) - 1)] for i in range(len(self.parameters))]
        drawn = zip(domains, self.parameters, strict=True)
        return [d.draw(rng, *parameter, number) for number, (d, parameter) in enumerate(drawn)]

    def named(self, name: str) -> str:
        """The source with the function under another name; dots become underscores."""
        return self.source.replace("@main", f"@{function_name(name)}")

    def of_type(self, old: str, new: str) -> Program:
        """The same program with another element type."""
        return replace(self, source=re.sub(rf"(?<![a-wyz0-9_]){old}\b", new, self.source))


def function_name(name: str) -> str:
    return name.replace(".", "_")


def _tensors(text: str) -> list[tuple[list[str], str]]:
    split = [found.split("x") for found in re.findall(r"tensor<([^>]*)>", text)]
    return [(dimensions, element) for *dimensions, element in split]


def tensor(shape: str, element: str) -> str:
    """A tensor type; the shape of a scalar is empty."""
    return f"tensor<{shape}x{element}>" if shape else f"tensor<{element}>"


def zero_of(element: str) -> str:
    """MLIR's text of zero; i1's is `false`."""
    return "0.0" if "f" in element else "false" if element == "i1" else "0"


def on_unsigned(program: Program) -> Program:
    """The same program, of i8, taking and returning ui8."""
    given, returned = program._signature
    inner = program.source.replace("func.func @main(", "func.func private @main_signless(")
    names = re.findall(r"%\w+", given)
    before = re.findall(r"tensor<[^>]*>", given)
    after = re.findall(r"tensor<[^>]*>", returned)
    casts = [_bitcast(f"{n}_s", n, _ui8(k), k) for n, k in zip(names, before, strict=True)]
    back = [
        _bitcast(f"%o{i}", f"%r#{i}" if len(after) > 1 else "%r", k, _ui8(k)) for i, k in enumerate(after)
    ]
    count = f":{len(after)}" if len(after) > 1 else ""
    parameters = ", ".join(f"{n}: {_ui8(k)}" for n, k in zip(names, before, strict=True))
    results = ", ".join(map(_ui8, after))
    arguments = ", ".join(f"{n}_s" for n in names)
    lines = [
        *casts,
        f"%r{count} = func.call @main_signless({arguments}) : ({', '.join(before)}) -> ({', '.join(after)})",
        *back,
        f"return {', '.join(f'%o{i}' for i in range(len(after)))} : {results}",
    ]
    body = "\n  ".join(lines)
    outer = f"\nfunc.func @main({parameters}) -> ({results}) {{\n  {body}\n}}\n"
    return replace(program, source=inner + outer, parts={})


def _ui8(kind: str) -> str:
    return kind.replace("xi8>", "xui8>")


def _bitcast(result: str, value: str, source: str, target: str) -> str:
    if source == target:
        return f"{result} = tensor.cast {value} : {source} to {target}"
    return f"{result} = tensor.bitcast {value} : {source} to {target}"
