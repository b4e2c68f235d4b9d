"""The README and docs/ tell the truth: every command and flag has its line, and what they show runs."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from halgpu import cli
from halgpu.cli import flags

REPOSITORY = Path(__file__).resolve().parent.parent
COMMAND_LINE = (REPOSITORY / "docs" / "command-line.md").read_text()
README = (REPOSITORY / "README.md").read_text()


def options() -> Iterator[tuple[str, str]]:
    """Yield (command, flag) of every flag there is."""
    for command in cli.COMMANDS:
        module = importlib.import_module(f"halgpu.cli.{command}")
        parser = flags.Parser(prog=command)
        module.configure(parser)
        for action in parser._actions:
            for flag in action.option_strings:
                if flag not in ("-h", "--help"):
                    yield command, flag


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_every_command_has_a_section(command: str) -> None:
    assert re.search(rf"^## halgpu .*\b{command}\b", COMMAND_LINE, re.MULTILINE)


@pytest.mark.parametrize(("command", "flag"), list(options()))
def test_every_flag_has_a_line(command: str, flag: str) -> None:
    [section] = [part for part in COMMAND_LINE.split("\n## ") if re.match(rf"halgpu .*\b{command}\b", part)]
    assert re.search(rf"`({command} )?{re.escape(flag)}\b", section), (
        f"docs/command-line.md: {command} {flag}"
    )


def test_relative_links_lead_somewhere() -> None:
    for page in (REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")):
        prose = re.sub(r"^    .*$|`[^`]*`", "", page.read_text(), flags=re.MULTILINE)
        for target in re.findall(r"\]\((?!http)([^)#]+)", prose):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def blocks(text: str) -> list[str]:
    """Indented blocks of Markdown, without their indent."""
    found = re.findall(r"(?:^    .*\n(?:\n(?=    ))?)+", text, re.MULTILINE)
    return [re.sub(r"^    ", "", block, flags=re.MULTILINE) for block in found]


def test_what_the_readme_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    code = blocks(README)
    [compile_line] = [block for block in code if block.startswith("halgpu compile")]
    [command] = [block for block in code if block.startswith("halgpu run")]
    [printed] = [block for block in code if block.startswith("EXEC")]
    [python] = [block for block in code if block.startswith("import halgpu")]

    def run(line: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "halgpu.cli", *shlex.split(line)[1:]]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)

    done = run(compile_line)
    assert (done.returncode, done.stderr) == (0, "")
    done = run(command)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", printed)

    *statements, last = python.strip().splitlines()
    scope: dict[str, object] = {}
    exec("\n".join(statements), scope)
    np.testing.assert_array_equal(eval(last, scope), np.array([2, 3], np.float32))


def test_what_the_vm_page_shows_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = blocks((REPOSITORY / "docs" / "vm.md").read_text())
    exec(code, {})
    assert capsys.readouterr().out == printed


def test_what_the_kernels_page_shows_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = blocks((REPOSITORY / "docs" / "kernels.md").read_text())[:2]
    exec(code, {})
    assert capsys.readouterr().out == printed


def test_what_the_compiler_page_shows_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (REPOSITORY / "docs" / "compiler.md").read_text()
    at, code = next((n, block) for n, block in enumerate(blocks(page)) if "import" in block)
    exec(code, {})
    assert capsys.readouterr().out == blocks(page)[at + 1]
    from halgpu.compiler.transforms.pipeline import PASSES

    assert [name for name in PASSES if f"| `{name}` |" not in page] == []


def test_what_the_profiling_page_shows_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    compile_mlir: Callable[..., bytes],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "abs.vmfb").write_bytes(compile_mlir((REPOSITORY / "examples" / "abs.mlir").read_text()))
    [code] = [
        block for block in blocks((REPOSITORY / "docs" / "profiling.md").read_text()) if "import" in block
    ]
    exec(code, {})
    name, count, seconds = capsys.readouterr().out.split()
    assert name.startswith("abs_dispatch_0")
    assert (int(count), float(seconds) > 0) == (3, True)
    assert '"name":"warm"' in (tmp_path / "trace.json").read_text()
