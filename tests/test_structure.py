"""The rules of the house: which way imports go, what an import loads, that every status has its exception."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

import halgpu
from halgpu import errors

REPOSITORY = Path(__file__).resolve().parent.parent
HOMES = {"halgpu": "halgpu", "devices": "halgpu.devices", "vm": "halgpu.vm"}
LEAVES = ("halgpu.errors", "halgpu.environment", "halgpu.disk_cache")
HEAVY = ("pyopencl", "cupy", "xdsl", "iree", "ml_dtypes", "llvmlite", "onnx")


def sources() -> Iterator[tuple[str, Path]]:
    """Yield (dotted module name, file) of every Python file that is installed."""
    for folder, package in HOMES.items():
        for file in sorted((REPOSITORY / folder).rglob("*.py")):
            parts = file.relative_to(REPOSITORY / folder).with_suffix("").parts
            yield ".".join([package, *(part for part in parts if part != "__init__")]), file


def imports(name: str, file: Path) -> Iterator[str]:
    """Yield the absolute names that a file imports, wherever in it."""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{prefix}.{alias.name}" for alias in node.names)


ALL_IMPORTS = [(name, target) for name, file in sources() for target in imports(name, file)]


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], capture_output=True, text=True, timeout=120
    )


def test_the_walk_sees_the_whole_house() -> None:
    names = {name for name, _ in sources()}
    assert {"halgpu.api", "halgpu.devices.opencl", "halgpu.vm.isa", "halgpu.cli"} <= names
    assert ("halgpu.devices.opencl", "pyopencl") in {(name, target) for name, target in ALL_IMPORTS}


@pytest.mark.parametrize(
    ("package", "other"), [("halgpu.vm", "halgpu.devices"), ("halgpu.devices", "halgpu.vm")]
)
def test_vm_and_devices_import_nothing_of_halgpu_but_leaves(package: str, other: str) -> None:
    wrong = [
        (name, target)
        for name, target in ALL_IMPORTS
        if within(name, package)
        and within(target, "halgpu")
        and not within(target, package)
        and not any(within(target, leaf) for leaf in LEAVES)
    ]
    assert wrong == [], f"{package} may import itself and {' and '.join(LEAVES)} only (and never {other})"


@pytest.mark.parametrize("leaf", LEAVES)
def test_leaves_import_nothing_of_halgpu_but_leaves_before_them(leaf: str) -> None:
    before = LEAVES[: LEAVES.index(leaf)]
    assert [
        target
        for name, target in ALL_IMPORTS
        if name == leaf and within(target, "halgpu") and not any(within(target, other) for other in before)
    ] == []


@pytest.mark.parametrize("bare", ["devices", "vm", "tests"])
def test_nothing_imports_a_bare_top_level_folder(bare: str) -> None:
    assert [(name, target) for name, target in ALL_IMPORTS if within(target, bare)] == []


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("pyopencl", "halgpu.devices.opencl"),
        ("cupy", "halgpu.devices.cuda"),
        ("llvmlite", "halgpu.vm.jit"),
    ],
)
def test_one_file_imports_a_heavy_library(library: str, home: str) -> None:
    assert {name for name, target in ALL_IMPORTS if within(target, library)} <= {home}


def test_importing_halgpu_loads_nothing_heavy() -> None:
    done = python(
        """
        import sys, json
        before = set(sys.modules)
        import halgpu
        print(json.dumps(sorted(set(sys.modules) - before)))
        """
    )
    loaded = json.loads(done.stdout)
    assert "halgpu" in loaded
    assert [name for name in loaded if name.split(".")[0] in (*HEAVY, "numpy")] == []


def test_importing_halgpu_takes_at_most_twice_as_long_as_numpy() -> None:
    code = "import time; t = time.perf_counter(); import {0}; print(time.perf_counter() - t)"

    def best(module: str) -> float:
        return min(float(python(code.format(module)).stdout) for _ in range(5))

    assert best("halgpu") <= 2 * best("numpy")


def test_python_in_a_checkout_finds_all_of_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import halgpu, halgpu.vm, halgpu.devices; print(halgpu.__file__)"],
        capture_output=True, text=True, cwd=REPOSITORY, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip()) == REPOSITORY / "halgpu" / "__init__.py"


ON_XDSL = tuple(
    f"halgpu.compiler.{name}"
    for name in ("dialects", "transforms", "data", "emit", "kernels", "mlir", "needs_xdsl", "parser")
)
"""Modules that are written on xDSL; ``halgpu.compiler.finish`` imports them when they are needed."""


def on_xdsl(name: str) -> bool:
    return any(within(name, home) for home in ON_XDSL)


def test_xdsl_is_imported_only_where_it_may_be_missing() -> None:
    users = {name for name, target in ALL_IMPORTS if within(target, "xdsl")}
    assert {name for name in users if not on_xdsl(name)} == set()
    assert len(users) > 20


def test_every_module_imports_without_the_optional_libraries() -> None:
    names = [name for name, _ in sources() if not name.endswith("__main__") and not on_xdsl(name)]
    done = python(
        """
        import importlib, sys
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("pyopencl", "cupy", "xdsl", "iree", "llvmlite", "onnx"):
                    raise ModuleNotFoundError(f"{name} is hidden by this test", name=name)
        sys.meta_path.insert(0, Absent())
        try:
            import pyopencl
        except ModuleNotFoundError:
            pass
        else:
            sys.exit("the hook hides nothing")
        for name in sys.argv[1:]:
            importlib.import_module(name)
        from halgpu import cli, errors
        from halgpu.compiler import finish
        try:
            finish.finish("module {}", "m.mlir")
        except errors.Unavailable as problem:
            assert "pip install 'halgpu[compiler]'" in problem.message, problem
        else:
            sys.exit("a program was finished without xDSL")
        for name in %r:
            try:
                importlib.import_module(name)
            except ImportError as problem:
                assert isinstance(problem, errors.Unavailable), (name, problem)
                assert "pip install 'halgpu[compiler]'" in problem.message, (name, problem)
            else:
                sys.exit(f"{name} is there without xDSL")
        """
        % [name for name, _ in sources() if on_xdsl(name)],
        *names,
    )
    assert done.returncode == 0, done.stderr
    assert len(names) > 20


def test_exported_names_exist() -> None:
    for name in halgpu.__all__:
        assert getattr(halgpu, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'lood'"):
        halgpu.lood  # noqa: B018


def test_installed_package_holds_every_source_file() -> None:
    assert [name for name, _ in sources() if importlib.util.find_spec(name) is None] == []


# Numbers and names of iree_status_code_e, as runtime/src/iree/base/status.h documents them.
STATUSES = {
    1: "CANCELLED", 2: "UNKNOWN", 3: "INVALID_ARGUMENT", 4: "DEADLINE_EXCEEDED", 5: "NOT_FOUND",
    6: "ALREADY_EXISTS", 7: "PERMISSION_DENIED", 8: "RESOURCE_EXHAUSTED", 9: "FAILED_PRECONDITION",
    10: "ABORTED", 11: "OUT_OF_RANGE", 12: "UNIMPLEMENTED", 13: "INTERNAL", 14: "UNAVAILABLE",
    15: "DATA_LOSS", 16: "UNAUTHENTICATED", 17: "DEFERRED", 18: "INCOMPATIBLE",
}  # fmt: skip


@pytest.mark.parametrize(("code", "status"), list(STATUSES.items()))
def test_every_status_code_has_an_exception(code: int, status: str) -> None:
    error = errors.from_code(code, "why")
    assert (error.code, error.status, str(error)) == (code, status, "why")
    assert type(error).__name__.upper() == status.replace("_", "")


def test_an_unknown_status_code_is_unknown() -> None:
    assert type(errors.from_code(99, "")) is errors.Unknown


@pytest.mark.parametrize(("name", "file"), list(sources()), ids=lambda value: str(value)[-40:])
def test_files_can_be_read_in_one_sitting(name: str, file: Path) -> None:
    assert len(file.read_text().splitlines()) <= 1000, f"{name} wants another room"
