"""Says what is in the cache of translated and built kernels (info), or empties it (clear).

Drivers that keep built kernels themselves, as PoCL and NVIDIA's do, are left to it: halgpu keeps only translations for
them, and clear does not touch theirs.
"""

from __future__ import annotations

import argparse

from halgpu import errors
from halgpu.cli.flags import Parser
from halgpu.text import counted


def configure(parser: Parser) -> None:
    """Add what to do."""
    parser.add_argument("action", choices=("info", "clear"), help="what to do")


def main(options: argparse.Namespace) -> int:
    """Print where the cache is and what it has, or what was removed; returns 0."""
    from halgpu import disk_cache as cache

    try:
        folder = cache.folder()
    except RuntimeError as error:
        raise errors.FailedPrecondition(
            f"there is no place for a cache: {error}; HALGPU_CACHE_DIR names one"
        ) from error
    if options.action == "clear":
        count, byte_length = cache.clear()
        print(f"removed {counted(count, 'file')} of {byte_length} bytes from {folder}")
        return 0
    return _info()


def _info() -> int:
    from halgpu import disk_cache as cache
    from halgpu.devices import driver_folders

    sizes = [path.stat().st_size for path in cache.entries()]
    print(f"folder: {cache.folder()}{'' if cache.enabled() else ' (off: HALGPU_CACHE=0)'}")
    print(f"entries: {len(sizes)}")
    print(f"bytes: {sum(sizes)}")
    for driver, folder in (
        ("PoCL", driver_folders.pocl_folder()),
        ("NVIDIA", driver_folders.nvidia_folder()),
    ):
        if folder.is_dir():
            print(f"{driver}'s own: {folder}")
    return 0
