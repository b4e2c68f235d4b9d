"""What PTX says about itself: version, target, and the parameters of its kernels. Nothing here needs a GPU.

After NVIDIA's "PTX ISA" 9.0: 5.4.1 kernel function parameters, 11.1 module directives, 11.2 kernels, 11.3 limits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from halgpu import errors

_COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_VERSION: Final = re.compile(r"^\s*\.version\s+(\d+)\.(\d+)", re.MULTILINE)
_TARGET: Final = re.compile(r"^\s*\.target\s+(sm_(\d+)([af]?))\b", re.MULTILINE)
_ADDRESS_SIZE: Final = re.compile(r"^\s*\.address_size\s+(\d+)", re.MULTILINE)
_ENTRY: Final = re.compile(r"\.entry\s+([A-Za-z_$%][\w$]*)\s*(?:\(([^)]*)\))?([^{;]*)([{;]?)")
_PARAMETER: Final = re.compile(
    r"\.param\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>[a-z]+)(?P<bits>\d+)\s+"
    r"(?P<pointer>\.ptr\b)?(?:\s*\.(?:global|const|shared|local)\b|\s*\.align\s+\d+)*\s*"
    r"[A-Za-z_$%][\w$]*\s*(?:\[\s*(?P<count>\d+)\s*\])?"
)
_THREADS: Final = re.compile(r"\.(maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a kernel.

    ``size`` is in bytes, ``text`` how PTX declares it, such as ``".u64"`` or ``".b8[24]"``, ``kind`` the letter of
    that: ``"u"``, ``"s"``, ``"f"``, or ``"b"`` for bits of any kind. ``pointer``: it says that it is one (``.ptr``).
    """

    size: int
    text: str
    kind: str
    pointer: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel.

    ``required`` are its exact block dimensions, ``most`` the most threads of a block; None where it says none.
    """

    name: str
    parameters: tuple[Parameter, ...]
    required: tuple[int, int, int] | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Ptx:
    """What a PTX module says about itself. ``architecture`` is 80 for ``sm_80``.

    ``scope`` says which other GPUs run a target's code: ``""`` newer ones, ``"f"`` newer ones of its family, ``"a"``
    none.
    """

    version: str
    target: str
    architecture: int
    scope: str
    entries: dict[str, Entry]

    def __str__(self) -> str:
        return f"PTX {self.version} for {self.target}"

    def runs_on(self, architecture: int) -> bool:
        """Whether a GPU of compute capability ``architecture`` / 10 runs it (PTX ISA 11.1.2)."""
        if self.scope == "a":
            return architecture == self.architecture
        if self.scope == "f":
            return architecture // 10 == self.architecture // 10 and architecture >= self.architecture
        return architecture >= self.architecture


def parse(text: str, what: str = "PTX module") -> Ptx:
    """Read the directives of a module; raises InvalidArgument for what is no PTX or is cut off."""
    text = _COMMENT.sub(" ", text)
    version, target = _VERSION.search(text), _TARGET.search(text)
    if version is None or target is None:
        raise errors.InvalidArgument(
            f"{what}: expected PTX, which begins with .version and .target, found {text.strip()[:40]!r}"
        )
    size = _ADDRESS_SIZE.search(text)
    if size is not None and size[1] != "64":
        raise errors.InvalidArgument(f"{what}: expected PTX with addresses of 64 bits, found {size[1]}")
    if text.count("{") != text.count("}"):
        raise errors.InvalidArgument(
            f"{what}: PTX {version[1]}.{version[2]} for {target[1]} is cut off or damaged: it opens "
            f"{text.count('{')} braces and closes {text.count('}')}"
        )
    entries = {entry.name: entry for entry in map(_entry, _ENTRY.finditer(text))}
    return Ptx(f"{version[1]}.{version[2]}", target[1], int(target[2]), target[3], entries)


def _entry(match: re.Match[str]) -> Entry:
    required, most = None, None
    for kind, *given in _THREADS.findall(match[3]):
        x, y, z = (int(count or 1) for count in given)
        if kind == "reqntid":
            required = (x, y, z)
        else:
            most = x * y * z
    parameters = tuple(map(_parameter, _PARAMETER.finditer(match[2] or "")))
    return Entry(match[1], parameters, required, most)


def _parameter(match: re.Match[str]) -> Parameter:
    count = match["count"]
    size = int(match["bits"]) // 8 * int(count or 1)
    text = f".{match['type']}{match['bits']}" + (f"[{count}]" if count else "")
    return Parameter(size, text, match["type"], match["pointer"] is not None)
