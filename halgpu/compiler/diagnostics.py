"""What iree-compile prints, made readable: MLIR's diagnostics without its dumps, and what they mean here.

MLIR prints a diagnostic as ``file:line:column: severity: message``, then the line of source and a caret, then notes
(mlir/lib/IR/Diagnostics.cpp). A note "see current operation" carries the whole operation, up to the whole module.
"""

from __future__ import annotations

import re
import signal
from typing import Final, NamedTuple

from halgpu import errors

LONGEST: Final = 600
"""Characters that are kept of a line."""
MOST: Final = 60
"""Lines that are kept."""

_HEAD: Final = re.compile(
    r"(?P<place>[^\n]*?:\d+:\d+|<unknown>:0|loc\([^\n]*\)|[^\s:]+): (?P<severity>error|warning|note|remark): "
)
_QUOTED: Final = re.compile(r"^[^\n]*\n *\^ *$", re.MULTILINE)
_DUMP: Final = "see current operation"
_NOISE: Final = re.compile(
    r"PLEASE submit a bug report|Stack dump|^\s*#?\d+[. ]\s*(0x|Program arguments)|^Please report issues"
)


class Reason(NamedTuple):
    """A pattern in what the compiler prints, what it means for a user, and the class of error that it makes.

    The sentence may use the pattern's groups as ``{0}``, ``{1}``.
    """

    pattern: re.Pattern[str]
    sentence: str
    error: type[errors.Error] = errors.Unimplemented


def _reason(pattern: str, sentence: str, error: type[errors.Error] = errors.Unimplemented) -> Reason:
    return Reason(re.compile(pattern), sentence, error)


REASONS: Final = (
    _reason(
        r"Unknown Vulkan target",
        "iree-compile does not know this GPU: name its family, such as ampere, ada, rdna3, cdna3, valhall4 or adreno",
        errors.InvalidArgument,
    ),
    _reason(
        r"Unknown command line argument|for the --[^\n]* option|Cannot find option named",
        "'iree-compile --help' lists the compiler's flags",
        errors.InvalidArgument,
    ),
    _reason(
        r"op undefined executable: (\w+)",
        "--kernels {0}=FILE makes an executable of hand-written kernels",
        errors.InvalidArgument,
    ),
    _reason(
        r"stream\.(async|cmd)\.collective|[!\"]stream\.channel|flow\.(channel|collective)",
        "inline programs run on one device and have no collectives, such as all-reduce",
    ),
    _reason(
        r"timepoints are not supported across the ABI|stream\.timepoint\.(import|export|chain_external)"
        r"|hal\.devices\.get|[!\"]hal\.(fence|device\.queue)",
        "inline programs run a call at once: they have no asynchronous functions (fences, the ABI coarse-fences)",
    ),
    _reason(
        r"unsupported HAL inline target materialization|#stream\.parameter|io_parameters",
        "inline programs have no parameter files (.irpa): keep the weights in the program",
    ),
    _reason(
        r"'spirv\.GL\.(\w+)' op operand #0 must be [^\n]* but got '[^']*f64",
        "Vulkan kernels have no {0} of 64-bit floats: --iree-input-demote-f64-to-f32 makes them 32-bit ones",
    ),
    _reason(
        r"SPIR-V type: '[^'\n]*f64|failed to legalize operation 'arith\.[^\n]*f64",
        "the target has no 64-bit floats: --iree-input-demote-f64-to-f32 makes them 32-bit ones",
    ),
    _reason(
        r"torch\.operator[^\n]*name = \"(onnx\.\w+)\"",
        "the compiler has no {0} of this version and these types and shapes; where shapes are dynamic, fixed ones "
        "may help (--shape)",
    ),
    _reason(
        r"failed to legalize operation '(torch\.[\w.]+)'",
        "the compiler has no {0} of these types and shapes; where shapes are dynamic, fixed ones may help (--shape)",
    ),
    _reason(
        r"unsupported const type for dialect",
        "programs of the virtual machine (vmvx) have no floats of 16 bits or fewer",
    ),
    _reason(
        r"failed to legalize operation '((?:hal|stream|util|flow)\.[\w.]+)'",
        "inline programs cannot hold the operation {0}",
    ),
)


def shortened(text: str) -> str:
    """``text`` without dumps of operations, stack traces and repeated diagnostics."""
    kept = [line if len(line) <= LONGEST else f"{line[:LONGEST]} …" for line in _without_dumps(text)]
    if len(kept) > MOST:
        kept[MOST:] = [f"… {len(kept) - MOST} lines more"]
    return "\n".join(kept).strip()


def _without_dumps(text: str) -> list[str]:
    """The lines that are no part of a dump, of a stack trace, or of a diagnostic that was there before."""
    kept: list[str] = []
    seen: set[str] = set()
    dropping = False
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            dropping = _DUMP in line or line in seen
            seen.add(line)
        if not dropping and not _NOISE.search(line):
            kept.append(line)
    return kept


def failure(what: str, status: int, text: str) -> errors.Error:
    """The error that a child's end with ``status`` means, of a program called ``what``; ``details`` has it all."""
    found = shortened(text)
    reason, sentence = _meaning(text)
    if status < 0 and (reason is None or reason.error is not errors.InvalidArgument):
        return errors.Internal(f"{what}: the compiler {_ended(-status)}", details=found)
    lines = [line for line in found.splitlines() if line.strip()]
    first = next(
        (line for line in lines if ": error: " in line), lines[0] if lines else f"exit status {status}"
    )
    place = "" if first.startswith(f"{what}:") else f"{what}: "
    meaning = f" ({sentence})" if reason else ""
    cls = reason.error if reason else errors.InvalidArgument
    return cls(f"{place}{first}{meaning}", details=found)


def _meaning(text: str) -> tuple[Reason | None, str]:
    """The first reason that applies, to the first error that one applies to, else to anything said; and its sentence.

    The program's own lines, which MLIR quotes, say nothing, nor do the operations around the one at fault.
    """
    said = _without_dumps(_QUOTED.sub("", text))
    mistakes = [line for line in said if (head := _HEAD.match(line)) and head["severity"] == "error"]
    for part in (*mistakes, "\n".join(said)):
        for reason in REASONS:
            match = reason.pattern.search(part)
            if match:
                return reason, reason.sentence.format(*match.groups())
    return None, ""


def _ended(number: int) -> str:
    """How a process ended that a signal ended."""
    if number == signal.SIGKILL:
        return "was killed; the machine may have run out of memory"
    try:
        return f"crashed ({signal.Signals(number).name})"
    except ValueError:
        return f"crashed (signal {number})"
