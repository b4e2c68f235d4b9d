"""Device URIs: which device a name means, opened once a process and shared while in use.

    uri     = scheme [":" index] ["?" option {"&" option}]        opencl   opencl:1   opencl?unified=0
    option  = name "=" value          pool=0 pool=1 debug=1 everywhere; others are the backend's

A scheme is an entry of ``_BUILT_IN`` or of the entry-point group ``halgpu.devices``; both lead to a
:class:`Backend`, which is imported when the scheme is asked for and not before.
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from halgpu.devices import profile
from halgpu.devices.base import Device, DeviceInfo
from halgpu.errors import Error, InvalidArgument, NotFound, Unavailable, nearest

__all__ = ["Backend", "DeviceInfo", "list_devices", "open_device", "parse_uri", "schemes"]

GROUP = "halgpu.devices"
DEFAULT_SCHEME = "opencl"


class Backend(Protocol):
    """What a scheme stands for: a module, or any object, with these names."""

    OPTIONS: Mapping[str, Collection[str]]
    """Options that a URI may give besides COMMON_OPTIONS, each with its possible values."""

    def open_device(self, uri: str, index: int, options: Mapping[str, str]) -> Device:
        """Open device ``index``; NotFound or Unavailable, with the reason, when it cannot be used."""

    def list_devices(self) -> list[DeviceInfo]:
        """Describe what there is; when nothing can be used, one entry that says why."""


_BUILT_IN = {
    "opencl": "halgpu.devices.opencl",
    "cuda": "halgpu.devices.cuda",
    "host": "halgpu.devices.host",
    "null": "halgpu.devices.null",
}
COMMON_OPTIONS = {"pool": ("0", "1"), "debug": ("0", "1")}
"""Options that every device has: :meth:`Device.configure`."""

_URI = re.compile(r"(?P<scheme>[a-z][a-z0-9_+.-]*)(?::(?P<index>[0-9]{1,6}))?(?:\?(?P<options>.*))?")

_lock = threading.Lock()
_shared: weakref.WeakValueDictionary[str, Device] = weakref.WeakValueDictionary()


def _unlock_in_child() -> None:
    # Another thread of the parent may have been opening a device; it is not there to let go.
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_in_child)


@dataclass(frozen=True, slots=True)
class Uri:
    """A parsed device URI."""

    scheme: str
    index: int
    options: dict[str, str]

    def __str__(self) -> str:
        options = "&".join(f"{name}={value}" for name, value in sorted(self.options.items()))
        return f"{self.scheme}:{self.index}" + (f"?{options}" if options else "")


def parse_uri(text: str) -> Uri:
    """Return the parts of a device URI, in lower case; InvalidArgument says what one looks like."""
    match = _URI.fullmatch(text.strip().lower()) if isinstance(text, str) else None
    if match is None:
        raise InvalidArgument(
            f"{text!r} is no device URI; expected a name, with an index or options if wanted, such as "
            f"'opencl', 'opencl:1' or 'opencl?unified=0'. Names: {', '.join(schemes())}"
        )
    pairs = [part.partition("=") for part in (match["options"] or "").split("&") if part]
    return Uri(match["scheme"], int(match["index"] or 0), {name: value for name, _, value in pairs})


def schemes() -> list[str]:
    """Return the names that a device URI may start with."""
    return [*_BUILT_IN, *sorted(_plugins().keys() - _BUILT_IN.keys())]


def _plugins() -> dict[str, Any]:
    from importlib.metadata import entry_points  # slow to import, and most runs name a built-in device

    return {point.name.lower(): point for point in entry_points(group=GROUP)}


def _backend(scheme: str) -> Backend:
    if scheme in _BUILT_IN:
        return cast(Backend, import_module(_BUILT_IN[scheme]))
    point = _plugins().get(scheme)
    if point is None:
        raise NotFound(f"no device {scheme!r}{nearest(scheme, schemes())}; there are: {', '.join(schemes())}")
    try:
        return cast(Backend, point.load())
    except Exception as error:  # whatever a foreign package raises, the device cannot be used
        raise Unavailable(f"device plugin {scheme!r} ({point.value}) does not load: {error}") from error


def _check_options(uri: Uri, backend: Backend) -> None:
    options = {**backend.OPTIONS, **COMMON_OPTIONS}
    for name, value in uri.options.items():
        if name not in options:
            raise InvalidArgument(
                f"device {uri.scheme!r} has no option {name!r}{nearest(name, list(options))}; "
                f"there are: {', '.join(options)}"
            )
        if value not in options[name]:
            allowed = ", ".join(options[name])
            raise InvalidArgument(f"device option {name!r} must be one of {allowed}; found {value!r}")


def open_device(uri: str | Device = DEFAULT_SCHEME) -> Device:
    """Return the device that a URI means; a Device is returned as it is.

    One Device serves all who ask for the same URI, while any of them (or of its buffers and kernels) lives;
    a closed one is not handed out again. Case does not matter. Raises InvalidArgument for what is no URI,
    NotFound for a name or index that does not exist, with those that do, and Unavailable, with the reason
    and what to do, for a device that cannot be used here.
    """
    if isinstance(uri, Device):
        return uri
    parsed = parse_uri(uri)
    backend = _backend(parsed.scheme)
    _check_options(parsed, backend)
    key = str(parsed)
    with _lock:
        device = _shared.get(key)
        if device is None or device.unusable is not None:
            device = backend.open_device(key, parsed.index, parsed.options)
            device.configure(parsed.options)
            profile.opened(device)
            _shared[key] = device
        return device


def list_devices() -> list[DeviceInfo]:
    """Return every device that can be used, and the reason for each kind that cannot."""
    found: list[DeviceInfo] = []
    for scheme in schemes():
        try:
            found += _backend(scheme).list_devices()
        except Error as error:
            found.append(DeviceInfo(scheme, "", False, error.message))
    return found
