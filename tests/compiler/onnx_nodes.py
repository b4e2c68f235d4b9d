"""The node tests of the package onnx (onnx.backend.test.case.node): models of one operator or few, with results.

Importing a module of that package makes the cases of its operator, always the same ones.
"""

from __future__ import annotations

import importlib
import io
import pickle
import pkgutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Case:
    """A model as bytes, with inputs and the results they must give, or why they cannot be given."""

    name: str
    operators: tuple[str, ...]
    model: bytes
    inputs: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]
    rtol: float
    atol: float
    unfit: str = ""


def all_cases() -> list[Case]:
    """All cases of the installed onnx, which takes some 15 s."""
    from onnx.backend.test.case import node

    found = pkgutil.walk_packages(node.__path__, f"{node.__name__}.")
    return cases_of([module.name.removeprefix(f"{node.__name__}.") for module in found])


def cases_of(modules: Sequence[str]) -> list[Case]:
    """The cases of some modules of onnx.backend.test.case.node, such as "abs"."""
    from onnx.backend.test.case import node

    for module in modules:
        importlib.import_module(f"{node.__name__}.{module}")
    # Modules that were imported before made cases too.
    return [_case(found) for found in node._NodeTestCases]


def _case(found: Any) -> Case:
    ((inputs, outputs),) = found.data_sets
    unfit = _unfit((*inputs, *outputs))
    return Case(
        found.name,
        tuple(node.op_type for node in found.model.graph.node),
        found.model.SerializeToString(),
        () if unfit else tuple(map(_array, inputs)),
        () if unfit else tuple(map(_array, outputs)),
        found.rtol,
        found.atol,
        unfit,
    )


def _unfit(values: Sequence[Any]) -> str:
    """Why the values cannot be tensors of a program; empty if they can."""
    for value in values:
        if value is None:
            return "an optional value that is empty"
        if isinstance(value, list):
            return "a sequence of tensors"
        if _array(value).dtype.kind in "OUS":
            return "strings"
    return ""


def _array(value: Any) -> np.ndarray:
    if hasattr(value, "SerializeToString"):
        from onnx import numpy_helper

        return np.asarray(numpy_helper.to_array(value))
    return np.asarray(value)


def difference(case: Case, found: Sequence[np.ndarray]) -> str:
    """How results differ from the expected ones, by the rule of onnx.backend.test.runner; empty if they do not.

    Integers and booleans have to be equal, which is more than onnx asks for. MLIR's integers have no sign, so that
    only their bits are compared.
    """
    if len(found) != len(case.expected):
        return f"{len(found)} results instead of {len(case.expected)}"
    for number, (one, wanted) in enumerate(zip(found, case.expected, strict=True)):
        problem = _difference(one, wanted, case)
        if problem:
            return f"result {number}: {problem}"
    return ""


def _difference(found: np.ndarray, wanted: np.ndarray, case: Case) -> str:
    if found.shape != wanted.shape:
        return f"shape {found.shape} instead of {wanted.shape}"
    if found.dtype != wanted.dtype:
        if not _is_integer(found.dtype) or not _is_integer(wanted.dtype) or found.itemsize != wanted.itemsize:
            return f"elements {found.dtype} instead of {wanted.dtype}"
        found = np.ascontiguousarray(found).view(wanted.dtype).reshape(wanted.shape)
    if _is_integer(wanted.dtype):
        wrong = found != wanted
    else:
        # bfloat16 as onnx has it: two units in the last place.
        rtol = max(case.rtol, 2**-6) if wanted.dtype.name == "bfloat16" else case.rtol
        found, wanted = found.astype(np.float64), wanted.astype(np.float64)
        with np.errstate(all="ignore"):
            wrong = ~np.isclose(found, wanted, rtol=rtol, atol=case.atol, equal_nan=True)
    if not wrong.any():
        return ""
    return f"{wrong.sum()} of {wrong.size} elements, such as {found[wrong][0]} instead of {wanted[wrong][0]}"


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iub" or dtype.name in ("int4", "uint4", "int2", "uint2")


def joined(modules: Iterator[bytes] | Sequence[bytes]) -> bytes:
    """One module, as MLIR bytecode, of imported ones: compiled together they take a fraction of the time."""
    from iree.compiler import ir

    written = io.BytesIO()
    with ir.Context(), ir.Location.unknown():
        whole = ir.Module.create()
        for data in modules:
            part = ir.Module.parse(data)
            for operation in list(part.body.operations):
                operation.operation.clone(ir.InsertionPoint(whole.body))
        whole.operation.write_bytecode(written)
    return written.getvalue()


def sample(names: dict[str, list[str]]) -> tuple[dict[str, Case], bytes]:
    """Cases by module of onnx.backend.test.case.node, and a module of MLIR that has them all.

    Made in a process of its own: whatever the compiler's bindings and protobuf leave behind ends with it.
    """
    cases, modules = _made(names, False)
    return cases, modules[""]


def separate(names: dict[str, list[str]]) -> tuple[dict[str, Case], dict[str, bytes]]:
    """The same with a module of MLIR for each case, by its name."""
    return _made(names, True)


def _made(names: dict[str, list[str]], separately: bool) -> tuple[dict[str, Case], dict[str, bytes]]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__],
        input=pickle.dumps((names, separately)),
        capture_output=True,
        timeout=300,
    )
    if done.returncode:
        raise AssertionError(f"the sample cannot be made: {done.stderr.decode(errors='replace')}")
    cases, modules = pickle.loads(done.stdout)
    return cases, modules


def _make() -> None:
    import onnx

    from halgpu.compiler import import_onnx

    sys.modules["onnx_nodes"] = sys.modules[__name__]
    Case.__module__ = "onnx_nodes"
    names, separately = pickle.load(sys.stdin.buffer)
    wanted = {name for found in names.values() for name in found}
    cases = {case.name: case for case in cases_of(list(names)) if case.name in wanted}
    modules = {
        name: import_onnx.imported(import_onnx.modern(onnx.load_model_from_string(case.model)))
        for name, case in cases.items()
    }
    if separately:
        modules = {name: joined([module]) for name, module in modules.items()}
    else:
        modules = {"": joined(list(modules.values()))}
    sys.stdout.buffer.write(pickle.dumps((cases, modules)))


if __name__ == "__main__":
    _make()
