"""The 64 bytes in front of an executable's FlatBuffer: its identifier, a version (0), and the size of what follows.

IREE's runtime/src/iree/base/internal/flatcc/parsing.h and hal/utils/executable_header.h.
"""

from __future__ import annotations

import struct
from typing import Final

from halgpu import errors

_HEADER: Final = struct.Struct("<4sIQ48x")


def content(data: memoryview, identifier: bytes, what: str) -> memoryview:
    """Check the header and return the FlatBuffer behind it.

    ``data`` is a flat view of bytes; ``what`` names it in errors. Raises InvalidArgument for damaged data,
    Incompatible for another version.
    """
    if len(data) < _HEADER.size:
        raise errors.InvalidArgument(f"{what}: {len(data)} bytes are fewer than its header of {_HEADER.size}")
    magic, version, size = _HEADER.unpack_from(data)
    if magic != identifier:
        raise errors.InvalidArgument(f"{what}: it begins with {magic!r}, expected {identifier!r}")
    if version:
        raise errors.Incompatible(f"{what}: version {version} of the format; this halgpu reads version 0")
    if not 0 < size <= len(data) - _HEADER.size:
        raise errors.InvalidArgument(
            f"{what}: its header says {size} bytes follow, but there are {len(data) - _HEADER.size}"
        )
    return data[_HEADER.size : _HEADER.size + size]
