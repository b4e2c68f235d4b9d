"""What takes long to make, kept on disk: kernels, for drivers that do not keep them themselves; translations of them
(executables/translations.py); and loops of VM code.

An entry is a file: 32 bytes of SHA-256 of what follows, then the entry's bytes. Its name is the SHA-256 of all that
these depend on. It is written under another name and renamed, so that readers see all of it or nothing
and no lock is needed; what cannot be read, is cut or was changed is a miss, never an error.

``HALGPU_CACHE=0`` turns the cache off. It lies in ``$HALGPU_CACHE_DIR``, or in ``halgpu`` under
``$XDG_CACHE_HOME`` or ``~/.cache``.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from halgpu import environment

_DIGEST = 32
_ENTRY = re.compile(r"[0-9a-f]{64}")
_UNFINISHED = ".new-"


def enabled() -> bool:
    """Return whether the environment leaves the cache on. Raises InvalidArgument for what says neither."""
    return environment.switch("HALGPU_CACHE", True)


def folder() -> Path:
    """Return where entries lie, whether it exists or not. Raises RuntimeError where there is no home."""
    explicit = os.environ.get("HALGPU_CACHE_DIR")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "halgpu"


def key(parts: Iterable[str]) -> str:
    """Return the name of the entry that depends on ``parts``, in order."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def load(name: str) -> bytes | None:
    """Return the entry's bytes, or None when there is none that is whole."""
    if not enabled():
        return None
    try:
        path = folder() / name
        if not path.is_file():  # reading another thing, such as a pipe, might never end
            return None
        data = path.read_bytes()
    except (OSError, RuntimeError):
        return None
    digest, body = data[:_DIGEST], data[_DIGEST:]
    return body if hashlib.sha256(body).digest() == digest else None


def store(name: str, body: bytes) -> None:
    """Keep ``body`` under ``name``; where that cannot be done, nothing happens."""
    if not enabled():
        return
    with suppress(OSError, RuntimeError):
        place = folder()
        place.mkdir(parents=True, exist_ok=True)
        _replace(place / name, hashlib.sha256(body).digest() + body)


def entries() -> list[Path]:
    """Return the files of the cache, those that a process that ended left unfinished too; never a foreign file.

    Raises OSError for a folder that cannot be read, but not for one that does not exist.
    """
    try:
        found = sorted(folder().iterdir())
    except FileNotFoundError:
        return []
    return [path for path in found if _is_ours(path.name) and path.is_file() and not path.is_symlink()]


def _is_ours(name: str) -> bool:
    return bool(_ENTRY.fullmatch(name)) or name.startswith(_UNFINISHED)


def clear() -> tuple[int, int]:
    """Remove the files of :func:`entries`; returns how many there were and their bytes. Raises OSError."""
    count = byte_length = 0
    for path in entries():
        with suppress(FileNotFoundError):  # another process was quicker
            size = path.stat().st_size
            path.unlink()
            count, byte_length = count + 1, byte_length + size
    return count, byte_length


def _replace(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
