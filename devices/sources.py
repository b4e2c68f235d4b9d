"""Hand-written kernels: their source in one or several languages, and the kernels a device makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from halgpu.devices.layout import KernelLayout, Program
from halgpu.errors import Incompatible, InvalidArgument, NotFound, nearest

if TYPE_CHECKING:
    from halgpu.devices.base import Device, Kernel

LANGUAGES: Final = {"opencl": "opencl-c", "cuda": "cuda-c", "ptx": "ptx", "python": "python"}
"""What :func:`kernels` calls a language, and its name in :attr:`Capabilities.languages`; the best first."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The same kernels in several languages, by the languages' names (``"opencl-c"``). Made by :func:`kernels`."""

    by_language: Mapping[str, Any]


def kernels(
    *,
    opencl: str | None = None,
    cuda: str | None = None,
    ptx: str | None = None,
    python: Mapping[str, Callable[..., None]] | None = None,
) -> Sources:
    """Sources of the same kernels, for :meth:`Device.load_kernels`, which takes the one that the device runs.

    ``opencl``: OpenCL C. ``cuda``: CUDA C whose kernels are ``extern "C" __global__``. ``ptx``: PTX. ``python``:
    for the ``host`` device, functions by kernel name, called as ``function(workgroups, constants, bindings)``
    with three counts, the constants' values, and a writable ``B`` memoryview a binding. Raises InvalidArgument
    without any.
    """
    given = {"opencl": opencl, "cuda": cuda, "ptx": ptx, "python": python}
    found = {LANGUAGES[name]: source for name, source in given.items() if source is not None}
    if not found:
        raise InvalidArgument(f"kernels need a source; give one of {', '.join(given)}")
    return Sources(found)


class Kernels(Mapping[str, "Kernel"]):
    """A device's hand-written kernels by name. Obtained from :meth:`Device.load_kernels`."""

    def __init__(self, device: Device, built: Sequence[Kernel]) -> None:
        self.device = device
        self._by_name = {kernel.layout.name: kernel for kernel in built}

    def __getitem__(self, name: str) -> Kernel:
        try:
            return self._by_name[name]
        except KeyError:
            raise NotFound(
                f"no kernel {name!r}{nearest(str(name), self)}; there are: {', '.join(self)}"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __repr__(self) -> str:
        return f"<Kernels on {self.device.uri}: {', '.join(self)}>"


def load(
    device: Device, source: str | Sources, layouts: Sequence[KernelLayout], options: Sequence[str]
) -> Kernels:
    """See :meth:`Device.load_kernels`."""
    return Kernels(device, device.build(program(device, source, layouts, options)))


def program(
    device: Device, source: str | Sources, layouts: Sequence[KernelLayout], options: Sequence[str] = ()
) -> Program:
    """The program that ``device`` has to build."""
    checked = check_layouts(layouts)
    language, text = _chosen(device, source, checked)
    if language == "python":
        return Program(language, "", checked, callables=_functions(text, checked))
    if not isinstance(text, str):
        raise InvalidArgument(f"a source in {language} is a str, found {type(text).__name__}")
    if "\0" in text:
        raise InvalidArgument("a kernel source has no NUL characters; the given one has")
    return Program(language, text, checked, options=tuple(options))


def check_layouts(layouts: Sequence[KernelLayout]) -> tuple[KernelLayout, ...]:
    """Return the layouts of hand-written kernels, or raise InvalidArgument for what is none, or has a name twice."""
    if isinstance(layouts, KernelLayout):
        layouts = (layouts,)
    names: set[str] = set()
    for layout in layouts:
        if not isinstance(layout, KernelLayout):
            raise InvalidArgument(f"layouts are KernelLayouts, found {layout!r}")
        if layout.types is None:
            raise InvalidArgument(
                f"kernel {layout.name!r}: constants must be a sequence of types, such as ('u32',); "
                f"found {layout.constants}"
            )
        if layout.name in names:
            raise InvalidArgument(f"kernel {layout.name!r} has two layouts")
        names.add(layout.name)
    if not names:
        raise InvalidArgument("kernels need layouts, one each; there is none")
    return tuple(layouts)


def _chosen(device: Device, source: str | Sources, layouts: tuple[KernelLayout, ...]) -> tuple[str, Any]:
    takes = device.capabilities.languages
    if not isinstance(source, Sources):
        return next((name for name in LANGUAGES.values() if name in takes), "opencl-c"), source
    for language, text in source.by_language.items():
        if not takes or language in takes:
            return language, text
    names = ", ".join(layout.name for layout in layouts)
    raise Incompatible(
        f"kernels {names} are in {', '.join(source.by_language)}; {device.uri} takes {', '.join(sorted(takes))}"
    )


def _functions(given: Any, layouts: tuple[KernelLayout, ...]) -> tuple[Callable[..., None], ...]:
    if not isinstance(given, Mapping):
        raise InvalidArgument(
            "kernels in Python are functions by kernel name, halgpu.kernels(python={'name': function}); "
            f"found a {type(given).__name__}"
        )
    missing = [layout.name for layout in layouts if layout.name not in given]
    if missing:
        raise InvalidArgument(
            f"kernels {', '.join(missing)} have no Python function; there are: {', '.join(given)}"
        )
    return tuple(given[layout.name] for layout in layouts)
