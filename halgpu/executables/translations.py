"""Translated executables kept on disk, so that a second start neither translates nor loads what does.

An entry of the cache of built kernels (disk_cache.py) whose name is made of all that a translation depends on: the
executable's bytes, its constants, the target, and the translator itself. What cannot be read or does not make sense is
a miss, never an error. Text, not pickles: reading an entry runs nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Sequence
from functools import cache as once
from typing import Any, NamedTuple

from halgpu import disk_cache
from halgpu.devices.base import BindingLayout, KernelLayout, Program
from halgpu.errors import Error


class Translation(NamedTuple):
    """A program, and the names of its kernels in the executable."""

    program: Program
    names: tuple[str, ...]


def key(translator: str, data: memoryview, target: str, constants: tuple[int, ...]) -> str | None:
    """The name of an entry; None where the translator's own state cannot be told.

    ``translator`` is the folder of the code that translates, ``target`` all that it knows of the device.
    """
    code = _state(translator)
    if code is None:
        return None
    return disk_cache.key(["translation", code, target, repr(constants), hashlib.sha256(data).hexdigest()])


@once
def _state(translator: str) -> str | None:
    # The version alone would have who changes the translator run what it made before; reading all of its code would
    # take longer than the rest of this. Files that a reproducible build gave one date differ by version.
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        entries = [*os.scandir(translator), *(entry for entry in os.scandir(here) if entry.is_file())]
        states = [(entry.name, entry.stat()) for entry in entries if entry.name.endswith(".py")]
    except OSError:  # not installed as files
        return None
    files = sorted((name, state.st_size, state.st_mtime_ns) for name, state in states)
    # Of the root package, which is there but exports what imports this.
    return repr((sys.modules["halgpu"].__version__, files))


def load(name: str) -> Translation | None:
    """The translation that is kept under ``name``; None where there is none."""
    body = disk_cache.load(name)
    if body is None:
        return None
    try:
        found = json.loads(body)
        layouts = tuple(map(_layout, found["layouts"]))
        program = Program(
            found["language"], found["source"], layouts, tuple(found["options"]), tuple(found["extensions"]),
            names=frozenset(found["identifiers"]),
        )  # fmt: skip
        return Translation(program, tuple(found["names"]))
    except (ValueError, KeyError, TypeError, RecursionError, Error):
        return None


def store(name: str, program: Program, names: Sequence[str]) -> None:
    """Keep a translation under ``name``. Not for kernels that check their accesses."""
    assert not any(layout.checks for layout in program.layouts)
    found: dict[str, Any] = {
        "language": program.language, "source": program.source, "options": program.options,
        "extensions": program.extensions, "identifiers": sorted(program.names), "names": list(names),
        "layouts": [
            {
                "name": layout.name, "constants": layout.constants, "workgroup_size": layout.workgroup_size,
                "local_memory": layout.local_memory, "lengths": layout.lengths, "apart": layout.apart,
                "bindings": [(each.access, each.alignment, each.minimum_length) for each in layout.bindings],
            }
            for layout in program.layouts
        ],
    }  # fmt: skip
    disk_cache.store(name, json.dumps(found).encode())


def _layout(found: dict[str, Any]) -> KernelLayout:
    bindings = [BindingLayout(*each) for each in found.pop("bindings")]
    return KernelLayout(bindings=bindings, **found)
