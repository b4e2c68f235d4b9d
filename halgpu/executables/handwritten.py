r"""The container of hand-written kernels, for formats ``opencl-c`` and ``cuda-c``: one line of JSON, then the source.

    {"halgpu-kernels": 1, "language": "opencl-c", "kernels": [{"name": "saxpy", "constants": ["u32", "f32"],
     "bindings": ["read", "readwrite"], "workgroup_size": [64, 1, 1], "local_memory": 0}]}\n
    __kernel void saxpy(…) { … }

All is UTF-8; the JSON has no line break. ``halgpu-kernels`` is the version. A constant is a type's name, or an
object from field names to types for a structure, in order; a binding its access, or an object with ``access``,
``alignment`` and ``minimum_length``. ``constants``, ``bindings``, ``workgroup_size`` and ``local_memory`` may be
left out (none, none, 1, 0), and so may ``options`` beside ``kernels``, a list of options for the compiler.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from halgpu import errors
from halgpu.devices.constants import ConstantType, Struct, constant_type
from halgpu.devices.layout import BindingLayout, KernelLayout
from halgpu.devices.sources import Sources, check_layouts, program
from halgpu.executables.base import Builds, Executable

if TYPE_CHECKING:
    from halgpu.devices.base import Device

VERSION: Final = 1
KEY: Final = "halgpu-kernels"
MAXIMUM_HEADER: Final = 1 << 20
MAXIMUM_DEPTH: Final = 16
"""Of structures in structures."""


@dataclass(frozen=True, slots=True)
class Container:
    """Hand-written kernels as a program carries them."""

    language: str
    source: str
    layouts: tuple[KernelLayout, ...]
    options: tuple[str, ...] = ()


# Writing ----------------------------------------------------------------------------------------------


def write(source: str, layouts: Sequence[KernelLayout], language: str, options: Sequence[str] = ()) -> bytes:
    """Return the container of kernels in ``language``, whose name is also that of the format."""
    header: dict[str, Any] = {KEY: VERSION, "language": language}
    if options:
        header["options"] = list(options)
    header["kernels"] = [_layout_out(layout) for layout in check_layouts(layouts)]
    return f"{json.dumps(header, ensure_ascii=False)}\n{source}".encode()


def _layout_out(layout: KernelLayout) -> dict[str, Any]:
    return {
        "name": layout.name,
        "constants": [_type_out(kind) for kind in layout.types or ()],
        "bindings": [_binding_out(binding) for binding in layout.bindings],
        "workgroup_size": list(layout.workgroup_size),
        "local_memory": layout.local_memory,
    }


def _type_out(kind: ConstantType) -> Any:
    if isinstance(kind, Struct):
        return {name: _type_out(field) for name, field in kind.fields}
    return str(kind)


def _binding_out(binding: BindingLayout) -> Any:
    if binding == BindingLayout(binding.access):
        return binding.access
    return {
        "access": binding.access,
        "alignment": binding.alignment,
        "minimum_length": binding.minimum_length,
    }


# Reading ----------------------------------------------------------------------------------------------


def read(data: memoryview | bytes, what: str) -> Container:
    """Read a container; ``what`` names it in errors.

    Raises InvalidArgument for anything that is none, Incompatible for another version.
    """
    view = memoryview(data).cast("B")
    line = bytes(view[: MAXIMUM_HEADER + 1]).partition(b"\n")[0]
    if len(line) > MAXIMUM_HEADER:
        raise errors.InvalidArgument(f"{what}: its first line is longer than {MAXIMUM_HEADER} bytes")
    header = _header(line, what)
    try:
        source = str(view[len(line) + 1 :], "utf-8")
    except UnicodeDecodeError as error:
        raise errors.InvalidArgument(f"{what}: its source is no UTF-8: {error}") from None
    kernels = _list(header, "kernels", what)
    layouts = tuple(_layout_in(item, f"{what}: kernel {number}") for number, item in enumerate(kernels))
    options = tuple(_string(item, f"{what}: an option") for item in _list(header, "options", what))
    language = _string(header.get("language"), f"{what}: its language")
    return Container(language, source, check_layouts(layouts), options)


def _header(line: bytes, what: str) -> dict[str, Any]:
    try:
        header = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise errors.InvalidArgument(f"{what}: its first line is no JSON: {error}") from None
    if not isinstance(header, dict) or KEY not in header:
        raise errors.InvalidArgument(f"{what}: its first line is no JSON object with {KEY!r}")
    version = header[KEY]
    if version != VERSION:
        raise errors.Incompatible(
            f"{what}: version {version!r} of the format; this halgpu reads version {VERSION}"
        )
    _only(header, (KEY, "language", "kernels", "options"), what)
    return header


def _layout_in(given: Any, what: str) -> KernelLayout:
    if not isinstance(given, dict):
        raise errors.InvalidArgument(f"{what} must be a JSON object, found {given!r}")
    _only(given, ("name", "constants", "bindings", "workgroup_size", "local_memory"), what)
    return KernelLayout(
        _string(given.get("name"), f"{what}: its name"),
        [_type_in(item, what, 0) for item in _list(given, "constants", what)],
        [_binding_in(item, what) for item in _list(given, "bindings", what)],
        [_int(item, f"{what}: a workgroup size") for item in _list(given, "workgroup_size", what) or (1,)],
        _int(given.get("local_memory", 0), f"{what}: its local memory"),
    )


def _type_in(given: Any, what: str, depth: int) -> ConstantType:
    if depth > MAXIMUM_DEPTH:
        raise errors.InvalidArgument(f"{what}: structures are nested deeper than {MAXIMUM_DEPTH}")
    if isinstance(given, dict):
        return Struct({name: _type_in(field, what, depth + 1) for name, field in given.items()})
    try:
        return constant_type(given)
    except errors.InvalidArgument as error:
        raise errors.InvalidArgument(f"{what}: {error.message}") from None


def _binding_in(given: Any, what: str) -> BindingLayout:
    if isinstance(given, str):
        given = {"access": given}
    if not isinstance(given, dict):
        raise errors.InvalidArgument(f"{what}: a binding must be its access or an object, found {given!r}")
    _only(given, ("access", "alignment", "minimum_length"), what)
    access = given.get("access", "readwrite")
    if access not in ("read", "write", "readwrite"):
        raise errors.InvalidArgument(f"{what}: a binding is read, write or readwrite; found {access!r}")
    return BindingLayout(
        access,
        _int(given.get("alignment", 1), f"{what}: a binding's alignment"),
        _int(given.get("minimum_length", 0), f"{what}: a binding's minimum length"),
    )


def _only(given: Mapping[str, Any], names: Sequence[str], what: str) -> None:
    for name in given:
        if name not in names:
            raise errors.InvalidArgument(
                f"{what} has {name!r}{errors.nearest(name, names)}; there are: {', '.join(names)}"
            )


def _list(given: Mapping[str, Any], name: str, what: str) -> list[Any]:
    found = given.get(name, [])
    if not isinstance(found, list):
        raise errors.InvalidArgument(f"{what}: {name} must be a list, found {found!r}")
    return found


def _string(found: Any, what: str) -> str:
    if not isinstance(found, str):
        raise errors.InvalidArgument(f"{what} must be a string, found {found!r}")
    return found


def _int(found: Any, what: str) -> int:
    # A kernel's limits are checked by the device; this keeps lengths and products in 64 bits.
    if type(found) is not int or not 0 <= found < 1 << 63:
        raise errors.InvalidArgument(f"{what} must be a whole number, found {found!r}")
    return found


# Loading ----------------------------------------------------------------------------------------------


class HandwrittenLoader:
    """Loads containers on the devices that build their language; see :class:`~halgpu.executables.base.Loader`."""

    def __init__(self, format: str) -> None:
        self.format = format

    def query_support(self, device: Device) -> bool:
        """Whether ``device`` builds the language."""
        languages = device.capabilities.languages
        return not languages or self.format in languages

    def load(
        self, device: Device, data: memoryview, constants: tuple[int, ...], builds: Builds
    ) -> Executable:
        """Check the container and let its kernels be built with the others."""
        what = f"{self.format} executable"
        container = read(data, what)
        if container.language != self.format:
            raise errors.InvalidArgument(f"{what}: its kernels are in {container.language!r}")
        if constants:
            raise errors.InvalidArgument(
                f"{what}: it takes no specialization constants, found {len(constants)}"
            )
        sources = Sources({container.language: container.source})
        built = program(device, sources, container.layouts, container.options)
        executable = Executable(self.format, builds, [layout.name for layout in container.layouts])
        builds.add(executable, built)
        return executable
