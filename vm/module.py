"""Bytecode modules: a .vmfb read, verified, and ready to be run in any number of contexts."""

from __future__ import annotations

import os
from typing import Any

from halgpu import errors
from halgpu.vm import archive, definition, verifier
from halgpu.vm.translator import Translation

LIFECYCLE = ("__init", "__deinit")
"""Exports that contexts call and users do not."""


class BytecodeModule:
    """A program. It has no state of its own: contexts do, and share its translation."""

    def __init__(self, module: definition.ModuleDef) -> None:
        self.definition = module
        self.translation = Translation(module, verifier.verify(module))
        self.ordinals = {export.local_name: export.ordinal for export in module.exports}

    definition: definition.ModuleDef
    """Everything the file says."""
    ordinals: dict[str, int]
    """Function ordinals by export name, ``__init`` and ``__deinit`` included."""

    @classmethod
    def load(cls, source: str | os.PathLike[str] | Any) -> BytecodeModule:
        """Load a .vmfb from a path, which is mapped, or from any contiguous buffer; constants are not copied.

        Raises NotFound for a missing file, else what is wrong with the data; functions are translated when first
        called.
        """
        if isinstance(source, str | os.PathLike):
            source = archive.map_file(source)
        return cls(definition.read(source))

    @property
    def name(self) -> str:
        """The module's name."""
        return self.definition.name

    @property
    def version(self) -> int:
        """The module's version, which modules that import it may ask for."""
        return self.definition.version

    @property
    def exports(self) -> tuple[str, ...]:
        """Names of the functions that can be called."""
        return tuple(name for name in self.ordinals if name not in LIFECYCLE)

    def python_source(self, name: str) -> str:
        """The Python that an exported function is translated to."""
        if name not in self.ordinals:
            raise errors.NotFound(
                f"module {self.name} exports no {name!r}; it has {', '.join(self.ordinals)}"
            )
        return self.translation.source(self.ordinals[name]).text

    def __repr__(self) -> str:
        return f"<vm.BytecodeModule {self.name}: {', '.join(self.exports)}>"
