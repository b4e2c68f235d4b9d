"""HALGPU_… variables: a wrong value is one clear error everywhere, a misspelled name is told, the list is complete."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import halgpu
from halgpu import disk_cache, environment, errors
from halgpu.cli import main
from halgpu.devices import open_device
from halgpu.vm import jit

REPOSITORY = Path(__file__).resolve().parent.parent
INTERNAL = "HALGPU_POCL_LINKER"


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_told", set())


def test_the_list_is_that_of_the_sources_and_of_the_documentation() -> None:
    used: set[str] = set()
    for folder in ("halgpu", "vm", "devices"):
        for file in (REPOSITORY / folder).rglob("*.py"):
            used.update(re.findall(r"\"(HALGPU_[A-Z_]+)\"", file.read_text()))
    assert used == set(environment.NAMES)
    documented = set(re.findall(r"`(HALGPU_[A-Z_]+)", (REPOSITORY / "docs" / "python.md").read_text()))
    assert set(environment.NAMES) - documented == {INTERNAL}


@pytest.mark.parametrize(
    ("name", "ask", "allowed"),
    [
        ("HALGPU_CACHE", disk_cache.enabled, "0 or 1"),
        ("HALGPU_JIT", jit.enabled, "0, 1 or check"),
        # URIs of no other test: a device that is open already is not made again, and asks nothing.
        ("HALGPU_POOL", lambda: open_device("opencl?cache=0&debug=0"), "0 or 1"),
        ("HALGPU_DEBUG_ALLOCATOR", lambda: open_device("opencl?cache=0&pool=1"), "0 or 1"),
    ],
)
def test_wrong_values(
    name: str, ask: Callable[[], object], allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "maybe")
    with pytest.raises(
        errors.InvalidArgument, match=f"environment variable {name} must be {allowed}; found 'maybe'"
    ):
        ask()
    for value in ("", "0", "1"):
        monkeypatch.setenv(name, value)
        ask()


def test_a_wrong_value_of_the_debugging_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HALGPU_DEBUG", "yes")
    assert main(["devices"]) == 1
    assert capsys.readouterr().err == (
        "halgpu: error: environment variable HALGPU_DEBUG must be 0 or 1; found 'yes'\n"
    )


def test_a_wrong_option_of_a_device() -> None:
    with pytest.raises(errors.InvalidArgument, match="found 'maybe'"):
        open_device("host?pool=maybe")


def test_checking_without_llvmlite_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit.importlib.util, "find_spec", lambda name: None)
    for value, expected in (("0", False), ("1", False)):
        monkeypatch.setenv("HALGPU_JIT", value)
        assert jit.enabled() is expected
    monkeypatch.setenv("HALGPU_JIT", "check")
    with pytest.raises(
        errors.Unavailable, match=r"HALGPU_JIT=check would check nothing.*pip install 'halgpu\[jit\]'"
    ):
        jit.enabled()


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("HALGPU_CHEKED", "HALGPU_CHECKED"),
        ("HALGPU_CHECK", "HALGPU_CHECKED"),
        ("HALGPU_NATIV", "HALGPU_NATIVE"),
        ("HALGPU_THREAD", "HALGPU_THREADS"),
        ("HALGPU_DEVICES", "HALGPU_DEVICE"),
    ],
)
def test_misspelled_names_are_told_once(name: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert environment.misspelled() == [f"environment variable {name} is not known (did you mean {meant}?)"]
    assert environment.misspelled() == []


def test_names_of_other_programs_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = [file for file in (REPOSITORY / "ci").rglob("*") if file.is_file()]
    scripts += (REPOSITORY / "tests").rglob("conftest.py")
    text = "\n".join(file.read_text(errors="replace") for file in scripts)
    others = set(re.findall(r"\bHALGPU_[A-Z_]+\b", text)) - set(environment.NAMES)
    assert len(others) > 3
    for name in (*others, "HALGPU_TESTS", "MY_HALGPU_CACHED"):
        monkeypatch.setenv(name, "1")
    assert environment.misspelled() == []


def test_loading_and_the_command_line_tell_them(
    compile_mlir: Callable[..., bytes], examples: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("HALGPU_CHEKED", "1")
    program = compile_mlir((examples / "abs.mlir").read_text())
    with pytest.warns(RuntimeWarning, match="HALGPU_CHEKED is not known"):
        halgpu.load(program, "opencl")
    halgpu.load(program, "opencl")
    environment._told.clear()
    assert main(["devices"]) == 0
    assert capsys.readouterr().err == (
        "halgpu: warning: environment variable HALGPU_CHEKED is not known (did you mean HALGPU_CHECKED?)\n"
    )


def test_the_variables_are_not_read_before_they_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALGPU_JIT", "maybe")
    done = subprocess.run(
        [sys.executable, "-c", "import halgpu, halgpu.vm, halgpu.devices"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
