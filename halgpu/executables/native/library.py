"""Asks an executable's code what kernels it has, and checks the answer before anything of it is used.

Checks are those of IREE's runtime/src/iree/hal/local/executable_library_util.c and loaders/*.c, and that everything
pointed at lies in the file's own memory.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from halgpu import errors
from halgpu.executables.native import abi, processor

if TYPE_CHECKING:
    from ctypes import Structure

    from halgpu.executables.native.image import Extent

MAXIMUM_ENTRIES: Final = 1 << 16
_POINTER: Final = ctypes.sizeof(ctypes.c_void_p)
S = TypeVar("S", bound="Structure")


@dataclass(frozen=True, slots=True)
class Export:
    """A kernel: where its code is and what it says of itself."""

    name: str
    address: int
    constants: int
    bindings: int
    workgroup_size: tuple[int, int, int]
    local_memory: int
    """Bytes for each workgroup."""
    sequential: bool
    """Contiguous workgroups read and write contiguous bytes: they are best run one after the other."""


class Library:
    """A loaded executable: its kernels and the environment that all of them are called with.

    ``extent`` is the memory it lies in, which this keeps; ``query`` the address of its query function.
    """

    def __init__(self, extent: Extent, query: int, machine: str, constants: tuple[int, ...]) -> None:
        self._extent = extent
        self._constants = (ctypes.c_uint32 * max(len(constants), 1))(*constants)
        self.environment = abi.Environment()
        self.environment.constants = ctypes.addressof(self._constants)
        self.environment.processor_data[:] = processor.data(machine)
        query_function = abi.QUERY_FUNCTION(query)
        address = query_function(abi.VERSION, ctypes.addressof(self.environment))
        if not address:
            raise errors.Incompatible(
                f"the executable library does not support version {abi.VERSION:#x} of the runtime"
            )
        self.name = self._check_header(self._at(abi.Library, address, "the library"))
        found = self._at(abi.Library, address, "the library")
        self._bind_imports(found.imports)
        if found.constant_count != len(constants):
            raise errors.FailedPrecondition(
                f"executable library '{self.name}' takes {found.constant_count} constants, "
                f"the program passes {len(constants)}"
            )
        self.exports = tuple(self._exports(found.exports))

    def _at(self, kind: type[S], address: int | None, what: str) -> S:
        self._extent.require(address or 0, ctypes.sizeof(kind), what)
        return kind.from_address(address or 0)

    def _array(self, kind: Any, count: int, address: int | None, what: str) -> Any:
        if count > MAXIMUM_ENTRIES:
            raise errors.InvalidArgument(f"damaged executable library: it has {count} {what}")
        self._extent.require(address or 0, count * ctypes.sizeof(kind), what)
        return (kind * count).from_address(address or 0)

    def _check_header(self, library: Any) -> str:
        header = self._at(abi.Header, library.header, "the header")
        if header.version > abi.VERSION:
            raise errors.Incompatible(
                f"expected an executable library of version {abi.VERSION:#x} or older, found {header.version:#x}"
            )
        name = self._extent.text(header.name or 0, "the library's name")
        if header.sanitizer:
            raise errors.Unavailable(
                f"executable library '{name}' was compiled for sanitizer {header.sanitizer}, which Python is not"
            )
        return name

    def _bind_imports(self, table: Any) -> None:
        """Leave out the optional imports. Like iree-run-module without plugins, there are none to give."""
        if not table.count:
            return
        symbols = self._array(ctypes.c_void_p, table.count, table.symbols, "imports")
        names = [self._extent.text(symbol or 0, "the name of an import") for symbol in symbols]
        required = [name for name in names if not name.startswith("?")]
        if required:
            raise errors.Unavailable(
                f"executable library '{self.name}' imports {', '.join(map(repr, required[:5]))}, and halgpu provides "
                "no functions to executables"
            )
        self._imports = (ctypes.c_void_p * (2 * table.count))()
        self.environment.import_funcs = ctypes.addressof(self._imports)
        self.environment.import_contexts = ctypes.addressof(self._imports) + table.count * _POINTER

    def _exports(self, table: Any) -> list[Export]:
        if not table.count:
            return []
        pointers = self._array(ctypes.c_void_p, table.count, table.ptrs, "kernels")
        attributes = self._array(abi.DispatchAttributes, table.count, table.attrs, "attributes of kernels")
        names = self._array(ctypes.c_void_p, table.count, table.names, "names of kernels")
        return [self._export(*of) for of in zip(pointers, attributes, names, strict=True)]

    def _export(self, pointer: int | None, attributes: Any, name_pointer: int | None) -> Export:
        name = self._extent.text(name_pointer or 0, "the name of a kernel")
        if not name:
            raise errors.InvalidArgument("damaged executable library: a kernel has no name")
        for what, found, limit in (
            ("constants", attributes.constant_count, abi.MAXIMUM_CONSTANTS),
            ("bindings", attributes.binding_count, abi.MAXIMUM_BINDINGS),
        ):
            if found > limit:
                raise errors.OutOfRange(f"kernel '{name}' takes {found} {what}; at most {limit} are allowed")
        sizes = attributes.workgroup_size_x, attributes.workgroup_size_y, attributes.workgroup_size_z
        return Export(
            name,
            self._extent.require(pointer or 0, 1, f"kernel '{name}'", executable=True),
            attributes.constant_count,
            attributes.binding_count,
            (sizes[0] or 1, sizes[1] or 1, sizes[2] or 1),
            attributes.local_memory_pages * abi.LOCAL_MEMORY_PAGE,
            bool(attributes.flags & abi.SEQUENTIAL),
        )
