"""Folders that PoCL and PyOpenCL must be able to write to, where the home is read-only.

PoCL writes every program to a folder and loads it from there; where it cannot make the folder it offers no device at
all (pocl_cache_init_topdir, lib/CL/pocl_cache.c). PyOpenCL opens a data base as soon as a kernel is made
(pyopencl/invoker.py), and fails where it cannot. :func:`prepare` gives the one a folder for this process and turns
the other off.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from pathlib import Path


def pocl_folder() -> Path:
    """Return where PoCL keeps its kernels, whether it exists or not."""
    explicit = os.environ.get("POCL_CACHE_DIR")
    if explicit is not None:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    home = os.environ.get("HOME")
    if base:
        return Path(base, "pocl", "kcache")
    return Path("/tmp/pocl/kcache") if home is None else Path(home, ".cache", "pocl", "kcache")


def nvidia_folder() -> Path:
    """Return where NVIDIA's driver keeps its kernels (CUDA C++ Programming Guide, "CUDA Environment Variables")."""
    return Path(os.environ.get("CUDA_CACHE_PATH") or os.path.expanduser("~/.nv/ComputeCache"))


@functools.cache
def prepare() -> None:
    """Help PoCL and PyOpenCL where they cannot write. Called before either is used; works once a process."""
    if not _writable(pocl_folder()):
        _lend_folder()
    # Where pytools/persistent_dict.py goes.
    cache = os.environ.get("XDG_CACHE_HOME", "").strip() or os.path.expanduser("~/.cache")
    if not _writable(Path(cache, "pytools")):
        os.environ.setdefault("PYOPENCL_NO_CACHE", "1")


def _lend_folder() -> None:
    try:
        temporary = tempfile.mkdtemp(prefix="halgpu-pocl-")
    except OSError:  # there is no place at all; what follows from that is PoCL's to say
        return
    os.environ["POCL_CACHE_DIR"] = temporary
    atexit.register(_remove, temporary, os.getpid())


def _writable(path: Path) -> bool:
    """Whether ``path`` is a folder that can be written, or can be made."""
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)


def _remove(temporary: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(temporary, ignore_errors=True)
