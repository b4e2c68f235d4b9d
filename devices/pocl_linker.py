"""A linker for PoCL's kernels on machines without a C toolchain.

PoCL compiles a kernel to a shared object when it is first launched, through clang's driver, which runs ``ld`` with
``-lgcc -lgcc_s -lc``. Where one of these is missing, as on a fresh Debian or in a slim container, PoCL ends the
process (lib/CL/devices/common.c, "Final linking of kernel … failed"; seen with PoCL 3.0 from PyPI). Clang looks
for ``ld`` in the folders of $COMPILER_PATH first, so :func:`prepare` names a folder there with a script that
needs no libraries and runs the machine's ``ld``, or the lld that comes with iree-base-compiler.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from glob import glob
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).with_name("pocl-linker")
VARIABLE = "HALGPU_POCL_LINKER"

# Where clang finds what it links against: its GCC installation and the C library's development files.
_LIBRARIES = (
    ("/usr/lib*/gcc/*/*/libgcc.a",),
    ("/usr/lib/*-linux-gnu*/libc.so", "/usr/lib64/libc.so", "/usr/lib/libc.so"),
)


def prepare() -> str | None:
    """Make sure that PoCL can link kernels in this process; return what to do where it cannot, else None.

    Sets $COMPILER_PATH where the machine's own toolchain does not suffice.
    """
    # Clang looks in $PATH only; shutil.which would fall back to standard folders where it is unset.
    system = shutil.which("ld", path=os.environ.get("PATH", ""))
    if VARIABLE in os.environ or (system and all(map(_exists, _LIBRARIES))):
        return None
    linker = system or shutil.which("ld", path=os.defpath) or _bundled()
    if linker is None:
        return (
            "PoCL needs a linker and found no ld: install one (Debian: apt-get install binutils) "
            "or pip install 'halgpu[compiler]', which brings one"
        )
    if not os.access(FOLDER / "ld", os.X_OK):
        return f"{FOLDER / 'ld'} must be executable: PoCL runs it to link kernels"
    os.environ[VARIABLE] = linker
    folders = (str(FOLDER), os.environ.get("COMPILER_PATH", ""))
    os.environ["COMPILER_PATH"] = os.pathsep.join(filter(None, folders))
    return None


def _exists(patterns: Iterable[str]) -> bool:
    return any(map(glob, patterns))


def _bundled() -> str | None:
    try:
        spec = find_spec("iree.compiler")
    except ImportError:
        return None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name("_mlir_libs") / "iree-lld"
    return str(path) if os.access(path, os.X_OK) else None
