"""The command line as a whole: commands, errors, exit statuses, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from halgpu.cli import COMMANDS, main
from halgpu.devices import list_devices


def halgpu(*words: str, **options):
    return subprocess.run(
        [sys.executable, "-m", "halgpu.cli", *words], capture_output=True, text=True, timeout=60, **options
    )


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_command(words, capsys):
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_its_flags(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"usage: halgpu {command}" in capsys.readouterr().out


def test_version(capsys):
    from importlib.metadata import version

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"halgpu {version('halgpu')}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rnu"], "there is no command 'rnu' (did you mean 'run'?); there are: compile, opt, run, devices, "),
        (
            ["run", "--modul=x"],
            "unknown flag '--modul=x' (did you mean '--module'?); 'halgpu run --help' lists them",
        ),
        (["run", "extra"], "unexpected argument 'extra'; 'halgpu run --help' lists what it takes"),
        (
            ["compile", "a.mlir", "-o", "a.vmfb", "--iree-opt-level=O2"],
            "unknown flag '--iree-opt-level=O2'; flags of iree-compile come last, after --",
        ),
        (
            ["run", "abs.vmfb"],
            "unexpected argument 'abs.vmfb' (did you mean --module=abs.vmfb?); 'halgpu run --help' lists what it takes",
        ),
        (["run"], "no program given: use --module=file.vmfb"),
        (["run", "--module=x", "--output_max_element_count=x"], "invalid int value: 'x'"),
        (["run", "--module=x", "--equality_mode=x"], "invalid choice: 'x'"),
        (["run", "--input"], "expected one argument"),
        (["devices", "x"], "unexpected argument 'x'"),
    ],
)
def test_wrong_words_are_one_line_and_status_1(words, message, capsys):
    assert main(words) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("halgpu: error: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_devices_are_listed_with_reasons(capsys):
    assert main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    infos = list_devices()
    assert len(lines) == len(infos)
    for line, info in zip(lines, infos, strict=True):
        assert line.startswith(info.uri)
        assert info.name in line if info.available else f"not available: {info.reason}" in line


def test_debug_shows_the_traceback(monkeypatch, capsys):
    monkeypatch.setenv("HALGPU_DEBUG", "1")
    assert main(["run"]) == 1
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("HALGPU_DEBUG", "0")
    assert main(["run"]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_it_is_a_program_of_its_own():
    done = halgpu("--version")
    assert (done.returncode, done.stderr) == (0, "")
    done = halgpu("nonsense")
    assert (done.returncode, done.stdout) == (1, "")


def test_a_reader_that_goes_away_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen(
        [sys.executable, "-m", "halgpu.cli", "devices"], stdout=writing, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(writing)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (141, "")


@pytest.mark.parametrize(
    ("closing", "status", "output", "error"),
    [
        ("<&-", 0, True, ""),
        (">&-", 0, False, ""),
        ("2>&-", 0, True, ""),
        ("<&- >&- 2>&-", 0, False, ""),
        (
            "<&- x",
            1,
            False,
            "halgpu: error: unexpected argument 'x'; 'halgpu devices --help' lists what it takes\n",
        ),
        ("2>&- x", 1, False, ""),
    ],
)
def test_closed_streams(closing, status, output, error):
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m halgpu.cli devices {closing}"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, bool(done.stdout), done.stderr) == (status, output, error)


def test_a_program_from_a_closed_stdin():
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m halgpu.cli run --module=- --device=null <&-"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("halgpu: error: expected a .vmfb module, found no bytes at all")


@pytest.mark.parametrize(
    "words", [["a\nb"], ["run", "--a\nb"], ["run", "--module=a\nb"], ["devices", "\x1b[2J\x9b"]]
)
def test_what_a_message_quotes_neither_wraps_nor_steers_the_terminal(words, capsys):
    assert main(words) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("halgpu: error: ")
    assert printed.endswith("\n")
    assert printed[:-1].isprintable()


def test_interrupted_programs_end_quietly():
    # Waits for its module on standard input.
    with subprocess.Popen(
        [sys.executable, "-m", "halgpu.cli", "run", "--module=-"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")


def test_starting_imports_nothing_heavy():
    code = "import sys, halgpu.cli; halgpu.cli.main(['--version']); print(sorted({'numpy', 'pyopencl', 'cupy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1] == "[]"
