"""Reads an ELF shared object and checks all that mapping it depends on.

What is read is what IREE's loader reads (runtime/src/iree/hal/local/elf/elf_module.c, arch/x86_64.c, arch/arm_64.c):
the headers, the program headers, the dynamic segment with its symbols and relocations; sections play no part. IREE
trusts these; here everything that a number in the file points at has to lie where it says, before any of it is used.
pyelftools (extra ``host``) has the layouts and the names of the numbers. Addresses are the file's: relative to where
it will be mapped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Final

from halgpu import errors

QUERY: Final = "iree_hal_executable_library_query"
MAXIMUM_IMAGE: Final = 1 << 30
"""Bytes of memory; a larger image comes from damage."""
MAXIMUM_NAME: Final = 1 << 12

_HEADER_BYTES: Final = 64
_PROGRAM_HEADER_BYTES: Final = 56
_DYNAMIC: Final = struct.Struct("<qQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELOCATION: Final = struct.Struct("<QQq")
_WORDS: Final = struct.Struct("<II")
_POINTER: Final = 8
_GLOBAL_OR_WEAK: Final = (1, 2)


@dataclass(frozen=True, slots=True)
class Machine:
    """An architecture: what ELF calls it, and its relocations that IREE's loader applies, by number."""

    name: str
    """As in format names: ``x86_64``, ``arm_64``."""
    elf_name: str
    none: int
    relative: int
    symbolic: dict[int, bool]
    """Those that store the address of a symbol, and whether they add the addend."""


# Numbers: pyelftools' ENUM_RELOC_TYPE_x64 and _AARCH64; a test compares. COPY and those of less than 64 bits, which
# IREE's x86_64 loader has too, are for executables and for code models that a shared object cannot have.
X86_64: Final = Machine("x86_64", "EM_X86_64", 0, 8, {1: True, 6: False, 7: False})
ARM_64: Final = Machine("arm_64", "EM_AARCH64", 0, 1027, {257: True, 1025: True, 1026: True})


@dataclass(frozen=True, slots=True)
class Segment:
    """``memory_size`` bytes of an image at ``address``, of which the file has ``file_size``, at ``offset``."""

    offset: int
    address: int
    file_size: int
    memory_size: int
    writable: bool
    executable: bool

    @property
    def end(self) -> int:
        """The address behind the last byte."""
        return self.address + self.memory_size

    def holds(self, address: int, size: int) -> bool:
        """Whether ``size`` bytes at ``address`` lie in it."""
        return self.address <= address and address + size <= self.end


@dataclass(frozen=True, slots=True)
class Elf:
    """A checked shared object.

    ``segments`` by address, no two in one page; ``relro`` are ranges (address, size) that are read-only once
    ``relocations`` are applied: (address, value), the 64 bits there become the image's base plus the value. ``imports``
    are (address, name, addend): there it becomes the address of what the host has under that name plus the addend.
    ``query`` is the address of the function that IREE looks up.
    """

    data: memoryview
    machine: Machine
    segments: tuple[Segment, ...]
    relro: tuple[tuple[int, int], ...]
    relocations: tuple[tuple[int, int], ...]
    imports: tuple[tuple[int, str, int], ...]
    query: int


def read(data: memoryview, machine: Machine, page: int, *, imports: bool = False) -> Elf:
    """Read and check a file for ``machine`` and a host whose pages have ``page`` bytes.

    ``imports``: the file may import symbols. Raises InvalidArgument for a damaged file, Incompatible for one of another
    machine, Unimplemented for what IREE's compiler does not make.
    """
    headers = _program_headers(data, machine)
    segments = _segments(data, headers, page)
    tables = _Tables(data, segments, _dynamic(data, segments, headers))
    undefined = [tables.name(symbol) for symbol in tables.symbols if not symbol.defined]
    if undefined and not imports:
        raise errors.Unimplemented(
            f"ELF file: it imports {', '.join(map(repr, undefined[:5]))}; embedded ELF files import nothing"
        )
    relocations = list(_relocations(tables, machine))
    return Elf(
        data, machine, segments, _relro(headers, segments),
        tuple((address, value) for address, value, name in relocations if not name),
        tuple((address, name, value) for address, value, name in relocations if name),
        _query(tables, segments),
    )  # fmt: skip


def bad(message: str) -> errors.InvalidArgument:
    """The error for a damaged file."""
    return errors.InvalidArgument(f"damaged ELF file: {message}")


# Headers ----------------------------------------------------------------------------------------------


@cache
def _structures(elf_name: str) -> Any:
    from elftools.elf.structs import ELFStructs

    structures = ELFStructs(little_endian=True, elfclass=64)
    structures.create_basic_structs()
    structures.create_advanced_structs("ET_DYN", elf_name, "ELFOSABI_SYSV")
    return structures


def _parse(structure: Any, data: memoryview, what: str) -> Any:
    try:
        return structure.parse(bytes(data))
    except Exception as error:  # of many kinds, none of them documented
        raise bad(f"its {what} cannot be read: {error}") from error


def _program_headers(data: memoryview, machine: Machine) -> list[Any]:
    if len(data) < _HEADER_BYTES or bytes(data[:4]) != b"\x7fELF":
        raise bad(f"expected a header of {_HEADER_BYTES} bytes that begins with 7f 45 4c 46")
    structures = _structures(machine.elf_name)
    header = _parse(structures.Elf_Ehdr, data[:_HEADER_BYTES], "header")
    for what, found, expected in (
        ("class", header.e_ident.EI_CLASS, "ELFCLASS64"),
        ("byte order", header.e_ident.EI_DATA, "ELFDATA2LSB"),
        ("version", header.e_version, "EV_CURRENT"),
        ("type", header.e_type, "ET_DYN"),
        ("header size", header.e_ehsize, _HEADER_BYTES),
        ("program header size", header.e_phentsize, _PROGRAM_HEADER_BYTES),
    ):
        if found != expected:
            raise bad(f"expected {what} {expected}, found {found}")
    if header.e_machine != machine.elf_name:
        raise errors.Incompatible(
            f"an ELF file for {header.e_machine}; this machine runs {machine.elf_name} ({machine.name})"
        )
    start, count = header.e_phoff, header.e_phnum
    if not count or start < _HEADER_BYTES or start + count * _PROGRAM_HEADER_BYTES > len(data):
        raise bad(f"{count} program headers at byte {start} do not fit its {len(data)} bytes")
    ends = range(start, start + count * _PROGRAM_HEADER_BYTES, _PROGRAM_HEADER_BYTES)
    parsed = [
        _parse(structures.Elf_Phdr, data[at : at + _PROGRAM_HEADER_BYTES], "program header") for at in ends
    ]
    return [
        header for header in parsed if header.p_type in ("PT_LOAD", "PT_DYNAMIC", "PT_GNU_RELRO", "PT_TLS")
    ]


def _segments(data: memoryview, headers: list[Any], page: int) -> tuple[Segment, ...]:
    if any(header.p_type == "PT_TLS" for header in headers):
        raise errors.Unimplemented("ELF file: it has thread-local storage, which nothing sets up")
    segments = [_segment(data, header) for header in headers if header.p_type == "PT_LOAD"]
    segments = sorted((item for item in segments if item.memory_size), key=lambda item: item.address)
    if not segments:
        raise bad("it has nothing to load")
    if segments[-1].end - segments[0].address > MAXIMUM_IMAGE:
        raise bad(f"it takes more than {MAXIMUM_IMAGE} bytes of memory, up to {segments[-1].end:#x}")
    for first, second in pairwise(segments):
        if -(-first.end // page) > second.address // page:
            raise bad(
                f"its segments at {first.address:#x} and {second.address:#x} share a page of {page} bytes"
            )
    return tuple(segments)


def _segment(data: memoryview, header: Any) -> Segment:
    offset, address, file_size, size = header.p_offset, header.p_vaddr, header.p_filesz, header.p_memsz
    if offset + file_size > len(data):
        raise bad(f"a segment's {file_size} bytes at byte {offset} do not fit its {len(data)} bytes")
    if file_size > size:
        raise bad(f"a segment of {size} bytes has {file_size} bytes in the file")
    align = header.p_align or 1
    if align & (align - 1) or (address - offset) % align:
        raise bad(f"a segment at {address:#x} from byte {offset} cannot be aligned to {align}")
    writable, executable = bool(header.p_flags & 2), bool(header.p_flags & 1)
    if writable and executable:
        raise errors.PermissionDenied(
            "an ELF file with a segment that is writable and executable is not loaded"
        )
    return Segment(offset, address, file_size, size, writable, executable)


def _relro(headers: list[Any], segments: tuple[Segment, ...]) -> tuple[tuple[int, int], ...]:
    ranges = [(h.p_vaddr, h.p_memsz) for h in headers if h.p_type == "PT_GNU_RELRO" and h.p_memsz]
    for address, size in ranges:
        # lld rounds its end up to a page of the largest size that the machine has, also beyond the segment.
        if (
            not any(item.writable and item.address <= address < item.end for item in segments)
            or size > MAXIMUM_IMAGE
        ):
            raise bad(f"its read-only data of {size} bytes at {address:#x} lies in no writable segment")
    return tuple(ranges)


# The dynamic segment ----------------------------------------------------------------------------------


def file_bytes(
    data: memoryview, segments: tuple[Segment, ...], address: int, size: int, what: str
) -> memoryview:
    """The file's bytes that will be at an address; raises unless all of them are in the file."""
    for item in segments:
        if item.address <= address and address + size <= item.address + item.file_size:
            start = item.offset + address - item.address
            return data[start : start + size]
    raise bad(f"{what}: {size} bytes at {address:#x} are not in it")


def _dynamic(data: memoryview, segments: tuple[Segment, ...], headers: list[Any]) -> dict[str, int]:
    """The dynamic segment's entries by name."""
    header = next((header for header in headers if header.p_type == "PT_DYNAMIC"), None)
    if header is None:
        raise bad("it has no dynamic segment")
    size = header.p_filesz // _DYNAMIC.size * _DYNAMIC.size
    table = file_bytes(data, segments, header.p_vaddr, size, "dynamic segment")
    names = _dynamic_names()
    found: dict[str, int] = {}
    for tag, value in _DYNAMIC.iter_unpack(table):
        if tag == 0:
            break
        if tag in names:
            found[names[tag]] = value
    for name in ("DT_REL", "DT_RELR", "DT_INIT", "DT_INIT_ARRAY", "DT_PREINIT_ARRAY"):
        if name in found:
            raise errors.Unimplemented(f"ELF file: it has {name}, which iree-compile does not make")
    return found


@cache
def _dynamic_names() -> dict[int, str]:
    from elftools.elf.enums import ENUM_D_TAG

    wanted = (
        "DT_HASH", "DT_STRTAB", "DT_STRSZ", "DT_SYMTAB", "DT_SYMENT", "DT_RELA", "DT_RELASZ", "DT_RELAENT", "DT_REL",
        "DT_RELR", "DT_PLTREL", "DT_JMPREL", "DT_PLTRELSZ", "DT_INIT", "DT_INIT_ARRAY", "DT_PREINIT_ARRAY",
    )  # fmt: skip
    return {ENUM_D_TAG[name]: name for name in wanted}


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: int
    binding: int
    section: int
    value: int

    @property
    def defined(self) -> bool:
        return self.section != 0


class _Tables:
    """What the dynamic segment points at."""

    def __init__(self, data: memoryview, segments: tuple[Segment, ...], entries: dict[str, int]) -> None:
        self._data, self.segments, self._entries = data, segments, entries
        missing = [name for name in ("DT_HASH", "DT_STRTAB", "DT_STRSZ", "DT_SYMTAB") if name not in entries]
        if missing:
            raise bad(f"its dynamic segment lacks {', '.join(missing)}")
        for name, size in (("DT_SYMENT", _SYMBOL.size), ("DT_RELAENT", _RELOCATION.size), ("DT_PLTREL", 7)):
            if entries.get(name, size) != size:
                raise bad(f"expected {name} {size}, found {entries[name]}")
        self._strings = bytes(self._bytes("DT_STRTAB", entries["DT_STRSZ"]))
        # The only thing that tells how many symbols there are (System V ABI, "Hash Table": nchain).
        _, count = _WORDS.unpack(self._bytes("DT_HASH", _WORDS.size))
        table = self._bytes("DT_SYMTAB", count * _SYMBOL.size)
        parsed = [
            _Symbol(name, info >> 4, section, value)
            for name, info, _, section, value, _ in _SYMBOL.iter_unpack(table)
        ]
        # Number 0 is a placeholder.
        self.symbols = parsed[1:]

    def _bytes(self, name: str, size: int) -> memoryview:
        return file_bytes(self._data, self.segments, self._entries[name], size, name)

    def name(self, symbol: _Symbol) -> str:
        """A symbol's name."""
        end = self._strings.find(b"\0", symbol.name, symbol.name + MAXIMUM_NAME)
        if symbol.name >= len(self._strings) or end < 0:
            raise bad(f"a symbol's name at byte {symbol.name} of the strings does not end")
        return self._strings[symbol.name : end].decode("ascii", "backslashreplace")

    def relocations(self) -> Iterator[tuple[int, int, int, int]]:
        """Each one's address, number, symbol and addend."""
        for table, size in (("DT_RELA", "DT_RELASZ"), ("DT_JMPREL", "DT_PLTRELSZ")):
            if self._entries.get(table) is None or not self._entries.get(size):
                continue
            length = self._entries[size]
            if length % _RELOCATION.size:
                raise bad(f"{size} {length} is no multiple of {_RELOCATION.size}")
            for address, info, addend in _RELOCATION.iter_unpack(self._bytes(table, length)):
                yield address, info & 0xFFFFFFFF, info >> 32, addend


def _relocations(tables: _Tables, machine: Machine) -> Iterator[tuple[int, int, str]]:
    """Each one's address, its value, and the name of the import that the value is added to, empty if to the base."""
    for address, number, symbol, addend in tables.relocations():
        if number == machine.none:
            continue
        if not any(item.writable and item.holds(address, _POINTER) for item in tables.segments):
            raise bad(f"a relocation at {address:#x} lies in no writable segment")
        found = None
        if number == machine.relative:
            value = addend
        elif number not in machine.symbolic:
            raise errors.Unimplemented(f"ELF file: relocation {number} of {machine.name} is not known")
        elif not 0 < symbol <= len(tables.symbols):
            raise bad(f"a relocation at {address:#x} names symbol {symbol} of {len(tables.symbols)}")
        else:
            found = tables.symbols[symbol - 1]
            value = found.value + addend * machine.symbolic[number]
        if found is not None and not found.defined:
            yield address, addend * machine.symbolic[number], tables.name(found)
            continue
        if not any(item.address <= value <= item.end for item in tables.segments):
            raise bad(f"a relocation at {address:#x} gives {value:#x}, which is not in it")
        yield address, value, ""


def _query(tables: _Tables, segments: tuple[Segment, ...]) -> int:
    exported = [item for item in tables.symbols if item.defined and item.binding in _GLOBAL_OR_WEAK]
    for symbol in reversed(exported):
        if tables.name(symbol) == QUERY:
            if not any(item.executable and item.holds(symbol.value, 1) for item in segments):
                raise bad(f"{QUERY} at {symbol.value:#x} is no code")
            return symbol.value
    raise errors.NotFound(f"ELF file: it does not export {QUERY}, as IREE's executables do")
