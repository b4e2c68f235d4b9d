"""The command line: ``halgpu COMMAND …``. A command is a file of this folder with ``configure`` and ``main``.

Errors are one line on stderr and exit status 1; HALGPU_DEBUG=1 adds the traceback.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

COMMANDS = {
    "compile": "compile a model to a program, with the IREE compiler",
    "opt": "run passes over a program at HAL level and print it",
    "run": "run a function of a compiled program, as iree-run-module does",
    "devices": "list the devices that can be used, and why others cannot",
    "cache": "say where translated and built kernels are kept, or remove them",
    "bench": "measure how long functions take, and what the time is spent on",
    "trace": "write what host and device do as a timeline for Perfetto",
    "dis": "print the code of a program, as iree-dump-module does",
    "asm": "make a program of such text",
    "verify": "check programs without running them",
    "dump": "list what a program has, or what its kernels and functions become",
}

USAGE = "usage: halgpu COMMAND [flags]\n       halgpu COMMAND --help\n\ncommands:\n"

DEBUG = "HALGPU_DEBUG"
INTERRUPTED = 130
BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 0, 1, or 128 + signal."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_closed_streams()
    try:
        status = _run(words)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Nobody reads: say nothing, also not when Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        return _report(error)


def _open_closed_streams() -> None:
    """Put /dev/null where the shell closed a stream (``>&-``) and Python has None.

    Else a file opened later would get the free descriptor, and with it what drivers print.
    """
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 - for the process's life


def _run(words: list[str]) -> int:
    command = words[0] if words else "--help"
    if command in ("--help", "-h", "help"):
        width = max(map(len, COMMANDS))
        print(USAGE + "".join(f"  {name:<{width}}  {text}\n" for name, text in COMMANDS.items()), end="")
        return 0
    if command == "--version":
        from halgpu import __version__

        print(f"halgpu {__version__}")
        return 0
    if command not in COMMANDS:
        raise _unknown(command)
    from halgpu import environment
    from halgpu.cli import flags

    environment.switch(DEBUG, False)
    for line in environment.misspelled():
        print(f"halgpu: warning: {line}", file=sys.stderr)
    module = importlib.import_module(f"halgpu.cli.{command}")
    parser = flags.Parser(prog=f"halgpu {command}", description=module.__doc__)
    module.configure(parser)
    status: int = module.main(parser.parse(words[1:]))
    return status


def _unknown(command: str) -> Exception:
    from halgpu import errors
    from halgpu.errors import nearest

    return errors.InvalidArgument(
        f"there is no command '{command}'{nearest(command, COMMANDS)}; there are: {', '.join(COMMANDS)}"
    )


def _report(error: Exception) -> int:
    from halgpu import errors
    from halgpu.text import located, one_line

    if os.environ.get(DEBUG) == "1":
        import traceback

        traceback.print_exception(error)
    if isinstance(error, errors.Error):
        text = error.message if error.details else located(error)
    elif isinstance(error, OSError):
        text = f"{error.filename or 'input/output'}: {error.strerror or error}"
    elif isinstance(error, MemoryError):
        text = "the host's memory does not suffice"
    else:
        text = f"internal error: {type(error).__name__}: {error} (HALGPU_DEBUG=1 shows where)"
    print(f"halgpu: error: {one_line(text)}", file=sys.stderr)
    if isinstance(error, errors.Error) and error.details:
        # The message says the first line of a compiler's output already.
        first, _, rest = error.details.partition("\n")
        shown = rest if first in error.message else error.details
        if shown:
            print(shown, file=sys.stderr)
    return 1
