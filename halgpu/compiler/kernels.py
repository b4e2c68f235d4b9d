"""Hand-written kernels for programs: source files that say in comments what their kernels take.

    // halgpu: kernel saxpy(u32, f32, read, read, write) workgroup 64
    // halgpu: options -DWIDTH=4

Between the parentheses come the constants' types, then a ``read``, ``write`` or ``readwrite`` for each buffer, in the
order of the kernel's parameters; behind them ``workgroup`` with one to three sizes, such as ``8x8``, and ``local`` with
a number of bytes, where the kernel takes local memory. A file of the same program that says nothing of a kernel takes
the other files' word for it.
"""

from __future__ import annotations

import halgpu.compiler.needs_xdsl  # noqa: F401 - the first of all imports

# isort: split
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from xdsl.dialects.builtin import ModuleOp, StringAttr
from xdsl.ir import Operation

from halgpu import errors
from halgpu.compiler.dialects import hal, hal_loader
from halgpu.compiler.mlir import Diagnostics, erase
from halgpu.compiler.sources import read_file
from halgpu.compiler.transforms.symbols import table
from halgpu.devices.layout import KernelLayout
from halgpu.executables import handwritten

LANGUAGES: Final = {".cl": "opencl-c", ".cu": "cuda-c"}
"""Formats of kernels by the ends of their files' names."""
DEFAULT_SYMBOL: Final = "kernels"
MOST_WORK_ITEMS: Final = 1 << 16
"""More than any OpenCL device takes in a workgroup."""
CUDA_MOST, CUDA_MOST_Z = 1024, 64
"""Threads of a block, and in its third dimension, on all CUDA devices (CUDA C++ Programming Guide, "Technical
Specifications per Compute Capability")."""
ACCESSES: Final = ("read", "write", "readwrite")

_COMMENT: Final = re.compile(r"//[ \t]*+halgpu:(.*)")
_KERNEL: Final = re.compile(r"kernel\s+(\w+)\s*\(([^)]*)\)\s*(.*)")
_EXTRA: Final = re.compile(r"(workgroup)\s+([0-9]{1,9}(?:x[0-9]{1,9}){0,2})\b\s*|(local)\s+([0-9]{1,9})\b\s*")


@dataclass
class SourceFile:
    """A file of kernels in one language."""

    path: str
    language: str
    source: str
    layouts: dict[str, KernelLayout] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)


def read(path: str) -> SourceFile:
    """Read a file of kernels.

    Raises NotFound, or InvalidArgument: ``file:line:column: error: …`` for each comment that is wrong.
    """
    language = LANGUAGES.get(Path(path).suffix)
    if language is None:
        raise errors.InvalidArgument(f"{path}: expected kernels in OpenCL C (.cl) or CUDA C (.cu)")
    try:
        source = read_file(path, "a file of kernels").decode()
    except UnicodeDecodeError as problem:
        raise errors.InvalidArgument(f"{path}: expected UTF-8: {problem}") from None
    found = SourceFile(path, language, source)
    wrong: list[str] = []
    for comment in _COMMENT.finditer(source):
        try:
            _read_comment(found, comment[1].strip())
        except errors.Error as problem:
            line = source.count("\n", 0, comment.start()) + 1
            column = comment.start() - source.rfind("\n", 0, comment.start())
            wrong.append(f"{path}:{line}:{column}: error: {problem.message}")
    if wrong:
        raise errors.InvalidArgument(wrong[0], details="\n".join(wrong[1:]))
    return found


def _read_comment(file: SourceFile, text: str) -> None:
    if text.startswith("options "):
        file.options += text.split()[1:]
        return
    kernel = _KERNEL.fullmatch(text)
    if kernel is None:
        raise errors.InvalidArgument(
            f"expected 'kernel NAME(TYPE, …, ACCESS, …) workgroup SIZE' or 'options …', found {text[:80]!r}"
        )
    name, words, rest = kernel.groups()
    if name in file.layouts:
        raise errors.InvalidArgument(f"kernel {name} has been described before")
    items = [word.strip() for word in words.split(",") if word.strip()]
    accesses = [item for item in items if item in ACCESSES]
    types = items[: len(items) - len(accesses)]
    if types + accesses != items:
        raise errors.InvalidArgument(
            f"kernel {name}: expected the constants' types before the buffers' accesses"
        )
    workgroup, local = _read_extra(name, rest)
    _check_workgroup(name, workgroup, file.language)
    file.layouts[name] = KernelLayout(name, types, accesses, workgroup, local)


def _read_extra(name: str, text: str) -> tuple[list[int], int]:
    workgroup: list[int] = []
    local, at = 0, 0
    while at < len(text):
        found = _EXTRA.match(text, at)
        if found is None:
            raise errors.InvalidArgument(
                f"kernel {name}: expected 'workgroup SIZE', such as 64 or 8x8, or 'local BYTES', found "
                f"{text[at : at + 40]!r}"
            )
        if found[1]:
            workgroup = [int(size) for size in found[2].split("x")]
        else:
            local = int(found[4])
        at = found.end()
    if not workgroup:  # no size is a good guess: another than the program counts on leaves elements out
        raise errors.InvalidArgument(
            f"kernel {name}: expected 'workgroup SIZE' behind its parameters, such as 64 or 8x8: how many work-items "
            "a workgroup has"
        )
    return workgroup, local


def _check_workgroup(name: str, sizes: Sequence[int], language: str) -> None:
    """Refuse a workgroup that no device has; a device's own limit is known when the program is loaded."""
    x, y, z = (*sizes, 1, 1)[:3]
    said = "x".join(map(str, sizes))
    if 0 in sizes:
        raise errors.InvalidArgument(f"kernel {name}: expected 'workgroup SIZE' of at least 1, found {said}")
    if language == "cuda-c" and (max(x, y) > CUDA_MOST or z > CUDA_MOST_Z or x * y * z > CUDA_MOST):
        raise errors.InvalidArgument(
            f"kernel {name}: expected a workgroup of at most {CUDA_MOST} work-items, {CUDA_MOST_Z} in the third "
            f"dimension, as CUDA has them, found {said}"
        )
    if x * y * z > MOST_WORK_ITEMS:
        raise errors.InvalidArgument(
            f"kernel {name}: expected a workgroup of at most {MOST_WORK_ITEMS} work-items, found {said}"
        )


# Embedding.


def embed(module: ModuleOp, files: Sequence[str]) -> None:
    """Add files of kernels, ``FILE`` or ``SYMBOL=FILE``, to a module: one ``hal.executable`` a symbol (``@kernels``).

    Programs look it up by its symbol, and kernels in it by name; what they dispatch is compared with what the files
    say. Raises InvalidArgument.
    """
    groups: dict[str, list[SourceFile]] = {}
    for entry in files:
        name, equals, path = entry.partition("=")
        name, path = (name, path) if equals and re.fullmatch(r"[\w.$]+", name) else (DEFAULT_SYMBOL, entry)
        groups.setdefault(name, []).append(read(path))
    symbols = table(module)
    for name, group in groups.items():
        layouts = _share(name, group)
        _insert(module, symbols.get(name), name, group, layouts)
        _check_uses(module, name, layouts)


def _share(name: str, group: Sequence[SourceFile]) -> dict[str, KernelLayout]:
    """The layouts of all files of an executable, which have to agree."""
    layouts: dict[str, KernelLayout] = {}
    languages: dict[str, str] = {}
    for file in group:
        if file.language in languages:
            raise errors.InvalidArgument(
                f"{file.path}: @{name} has kernels in {file.language} already, in {languages[file.language]}"
            )
        languages[file.language] = file.path
        for kernel, layout in file.layouts.items():
            if _counts(layouts.setdefault(kernel, layout)) != _counts(layout):
                raise errors.InvalidArgument(
                    f"{file.path}: kernel {kernel} takes other constants and buffers than in {group[0].path}"
                )
    if not layouts:
        raise errors.InvalidArgument(
            f"{group[0].path}: expected a comment such as '// halgpu: kernel NAME(u32, read, write) workgroup 64'"
        )
    return layouts


def _counts(layout: KernelLayout) -> tuple[int, int]:
    return layout.constants, len(layout.bindings)


def _insert(
    module: ModuleOp,
    found: Operation | None,
    name: str,
    group: Sequence[SourceFile],
    layouts: dict[str, KernelLayout],
) -> None:
    if found is not None and not (isinstance(found, hal.ExecutableOp) and not found.binaries):
        raise errors.InvalidArgument(
            f"@{name} is in the program already; give --kernels another name, NAME=FILE"
        )
    binaries = []
    for file in group:
        own = [file.layouts.get(kernel, layout) for kernel, layout in layouts.items()]
        data = handwritten.write(file.source, own, file.language, file.options)
        binaries.append(
            hal.ExecutableBinaryOp(
                f"{name}_{file.language.replace('-', '_')}", file.language, StringAttr(data.decode())
            )
        )
    made = hal.ExecutableOp(name, binaries)
    block = module.body.block
    if found is not None:
        made.location = found.location
        erase(found)
    if block.first_op is None:
        block.add_op(made)
    else:
        block.insert_op_before(made, block.first_op)


def _check_uses(module: ModuleOp, name: str, layouts: dict[str, KernelLayout]) -> None:
    """Kernels that the program names have to be there, and to take what it dispatches."""
    diagnostics = Diagnostics()
    for lookup in module.walk():
        if not isinstance(lookup, hal_loader.ExecutableLookupFunctionOp):
            continue
        symbol = lookup.entry_point
        if symbol.root_reference.data != name or not symbol.nested_references.data:
            continue
        kernel = symbol.nested_references.data[-1].data
        layout = layouts.get(kernel)
        if layout is None:
            diagnostics.error(
                lookup, f"there is no kernel {kernel} in @{name}{errors.nearest(kernel, layouts)}"
            )
            continue
        for use in lookup.result.uses:
            _check_dispatch(use.operation, kernel, layout, diagnostics)
    diagnostics.check()


def _check_dispatch(op: Operation, kernel: str, layout: KernelLayout, diagnostics: Diagnostics) -> None:
    if not isinstance(op, hal_loader.ExecutableDispatchOp):
        return
    given = len(op.constants), len(op.binding_buffers)
    for what, found, expected in zip(("32-bit constants", "bindings"), given, _counts(layout), strict=True):
        if found != expected:
            diagnostics.error(op, f"kernel {kernel} takes {expected} {what}, found {found}")
