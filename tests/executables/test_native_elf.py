"""ELF files: what is read, how it is mapped, and that whatever is wrong is told before anything of it is used."""

from __future__ import annotations

import ctypes
import platform
import struct
from pathlib import Path

import mlir_corpus
import pytest
from elftools.elf import enums
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from native_samples import MACHINE

import halgpu
from halgpu import errors, vm
from halgpu.devices import open_device
from halgpu.executables import registry, system_elf
from halgpu.executables.native import abi, elf, host, processor
from halgpu.executables.native.image import PAGE, Image

THIS = elf.X86_64 if MACHINE == "x86_64" else elf.ARM_64
FORMAT = f"embedded-elf-{MACHINE}"
OTHER = {"x86_64": ("arm_64", "aarch64-linux-gnu"), "arm_64": ("x86_64", "x86_64-linux-gnu")}[MACHINE]


def executable_of(program: bytes) -> bytearray:
    """The ELF file in a program."""
    segments = vm.BytecodeModule.load(program).definition.rodata
    [found] = [bytes(segment) for segment in segments if bytes(segment[:4]) == b"\x7fELF"]
    return bytearray(found)


@pytest.fixture(scope="module")
def network(compile_mlir, examples) -> bytearray:
    return executable_of(compile_mlir((examples / "network.mlir").read_text(), "llvm-cpu"))


@pytest.fixture
def damaged(network) -> bytearray:
    """A copy to damage."""
    return bytearray(network)


def read(data: bytes | bytearray) -> elf.Elf:
    return elf.read(memoryview(bytes(data)), THIS, PAGE)


# What a file has: pyelftools is the oracle -------------------------------------------------------------


def test_segments_symbols_and_relocations_are_pyelftools(network, tmp_path):
    (tmp_path / "a.so").write_bytes(network)
    with open(tmp_path / "a.so", "rb") as file:
        whole = ELFFile(file)
        wanted = [header.header for header in whole.iter_segments("PT_LOAD")]
        [dynamic] = [item for item in whole.iter_segments() if isinstance(item, DynamicSegment)]
        relocations = [
            (entry["r_offset"], entry["r_addend"])
            for table in dynamic.get_relocation_tables().values()
            for entry in table.iter_relocations()
        ]
        [query] = [symbol["st_value"] for symbol in dynamic.iter_symbols() if symbol.name == elf.QUERY]
    found = read(network)
    assert [(s.offset, s.address, s.file_size, s.memory_size) for s in found.segments] == [
        (h.p_offset, h.p_vaddr, h.p_filesz, h.p_memsz) for h in wanted
    ]
    assert [(s.writable, s.executable) for s in found.segments] == [
        (bool(h.p_flags & 2), bool(h.p_flags & 1)) for h in wanted
    ]
    assert list(found.relocations) == relocations
    assert len(relocations) > 10
    assert (found.query, found.imports) == (query, ())


def test_numbers_of_relocations_are_pyelftools():
    x86, arm = enums.ENUM_RELOC_TYPE_x64, enums.ENUM_RELOC_TYPE_AARCH64
    assert elf.X86_64.relative == x86["R_X86_64_RELATIVE"]
    assert {*elf.X86_64.symbolic} == {x86[f"R_X86_64_{name}"] for name in ("64", "GLOB_DAT", "JUMP_SLOT")}
    assert elf.ARM_64.relative == arm["R_AARCH64_RELATIVE"]
    assert {*elf.ARM_64.symbolic} == {arm[f"R_AARCH64_{name}"] for name in ("ABS64", "GLOB_DAT", "JUMP_SLOT")}


def test_files_for_the_other_machine_are_read_and_not_run(compile_mlir, examples):
    name, triple = OTHER
    program = compile_mlir(
        (examples / "abs.mlir").read_text(), "llvm-cpu", f"--iree-llvmcpu-target-triple={triple}"
    )
    data = memoryview(bytes(executable_of(program)))
    machine = elf.ARM_64 if name == "arm_64" else elf.X86_64
    assert elf.read(data, machine, PAGE).relocations
    with pytest.raises(errors.Incompatible, match=f"this machine runs {THIS.elf_name}"):
        elf.read(data, THIS, PAGE)
    device = open_device("host")
    assert not registry.query_support(device, f"embedded-elf-{name}")
    with pytest.raises(
        errors.Unavailable,
        match=f"it offers embedded-elf-{name}; embedded-elf-{name} is for another machine than this one, "
        f"which runs {FORMAT}; host:0 runs",
    ):
        halgpu.load(program, "host")


@pytest.fixture(scope="module")
def calling(compile_mlir) -> bytearray:
    """A system file, which calls the C library."""
    source = mlir_corpus.joined({"remainder": mlir_corpus.find("remainder_f32")})
    return executable_of(compile_mlir(source, "llvm-cpu", "--iree-llvmcpu-link-embedded=false"))


def test_imports_are_looked_up_in_the_c_library(calling):
    read_ = elf.read(memoryview(bytes(calling)), THIS, PAGE, imports=True)
    assert [name for _, name, _ in read_.imports] == ["fmodf"]
    image = Image(read_, system_elf.resolve)
    [(place, _, addend)] = read_.imports
    wanted = ctypes.cast(ctypes.CDLL("libm.so.6").fmodf, ctypes.c_void_p).value
    assert ctypes.c_uint64.from_address(image.base + place).value == wanted + addend
    with pytest.raises(errors.Unimplemented, match="it imports 'fmodf'; embedded ELF files import nothing"):
        read(calling)


@pytest.mark.parametrize("name", [b"fmodg", b"_name", b"a\xff\x80b"])
def test_imports_that_are_not_there(name, calling):
    data = calling.replace(b"\0fmodf\0", b"\0" + name.ljust(5, b"\0") + b"\0")
    with pytest.raises(errors.Unavailable, match=r"calls '.*', which the C library here does not have"):
        registry.load(open_device("host"), f"system-elf-{MACHINE}", memoryview(bytes(data)))


# In memory --------------------------------------------------------------------------------------------


def pages_of(start: int, end: int) -> dict[int, str]:
    """The rights of this process's pages, as the system tells them."""
    found = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, *_ = line.split()
        first, last = (int(part, 16) for part in span.split("-"))
        for page in range(max(first, start), min(last, end), PAGE):
            found[page] = rights[:3]
    return found


def test_no_page_is_writable_and_executable(network):
    read_ = read(network)
    image = Image(read_)
    end = image.base + -(-read_.segments[-1].end // PAGE) * PAGE
    rights = pages_of(image.base, end)
    for item in read_.segments:
        page = image.base + item.address // PAGE * PAGE
        relro = any(start // PAGE * PAGE <= item.address < start + size for start, size in read_.relro)
        expected = "r-x" if item.executable else "rw-" if item.writable and not relro else "r--"
        assert rights[page] == expected
    assert {"r-x", "r--"} <= {*rights.values()} <= {"r-x", "r--", "rw-", "---"}
    del image
    assert not pages_of(end - PAGE, end).get(end - PAGE, "").startswith("r")


def test_bytes_and_relocations_are_in_place(network):
    read_ = read(network)
    image = Image(read_)
    places = {place for place, _ in read_.relocations}
    for item in read_.segments:
        found = ctypes.string_at(image.base + item.address, item.memory_size)
        wanted = bytes(network[item.offset : item.offset + item.file_size]).ljust(item.memory_size, b"\0")
        relocated = {place - item.address + i for place in places for i in range(8)}
        assert all(a == b for i, (a, b) in enumerate(zip(found, wanted, strict=True)) if i not in relocated)
    for place, value in read_.relocations:
        assert ctypes.c_uint64.from_address(image.base + place).value == image.base + value


# What is wrong ----------------------------------------------------------------------------------------

HEADER = {"class": 4, "data": 5, "type": 16, "machine": 18, "version": 20, "phoff": 32, "ehsize": 52,
          "phentsize": 54, "phnum": 56}  # fmt: skip
PROGRAM_HEADER = {"type": (0, "I"), "flags": (4, "I"), "offset": (8, "Q"), "vaddr": (16, "Q"), "filesz": (32, "Q"),
                  "memsz": (40, "Q"), "align": (48, "Q")}  # fmt: skip
LOAD, DYNAMIC, TLS, RELRO = 1, 2, 7, 0x6474E552


def headers(data: bytearray, kind: int) -> list[int]:
    """Where the program headers of a kind are."""
    start, count = struct.unpack_from("<Q", data, 32)[0], struct.unpack_from("<H", data, 56)[0]
    places = [start + 56 * index for index in range(count)]
    return [place for place in places if struct.unpack_from("<I", data, place)[0] == kind]


def put(data: bytearray, header: int, **fields: int) -> None:
    for name, value in fields.items():
        offset, code = PROGRAM_HEADER[name]
        struct.pack_into(f"<{code}", data, header + offset, value)


def entry(data: bytearray, tag: int) -> int:
    """Where the dynamic segment's entry of a tag is."""
    [header] = headers(data, DYNAMIC)
    [start] = struct.unpack_from("<Q", data, header + 8)
    return next(at for at in range(start, len(data), 16) if struct.unpack_from("<q", data, at)[0] == tag)


def table(data: bytearray, tag: int) -> int:
    """Where in the file a table of the dynamic segment is; they all lie in the first segment here, from byte 0 on."""
    return struct.unpack_from("<Q", data, entry(data, tag) + 8)[0]


def test_headers_that_are_not_of_this_machines_shared_objects(network):
    for name, code, value, kind, message in (
        ("class", "B", 1, errors.InvalidArgument, "expected class ELFCLASS64, found ELFCLASS32"),
        ("data", "B", 2, errors.InvalidArgument, "expected byte order ELFDATA2LSB"),
        ("type", "H", 2, errors.InvalidArgument, "expected type ET_DYN, found ET_EXEC"),
        ("machine", "H", 243, errors.Incompatible, "an ELF file for EM_RISCV"),
        ("machine", "H", 40000, errors.Incompatible, "an ELF file for 40000"),
        ("version", "I", 9, errors.InvalidArgument, "expected version EV_CURRENT, found 9"),
        ("phoff", "Q", 1 << 63, errors.InvalidArgument, "program headers at byte .* do not fit"),
        ("phoff", "Q", 0, errors.InvalidArgument, "program headers at byte 0 do not fit"),
        ("phnum", "H", 0xFFFF, errors.InvalidArgument, "65535 program headers"),
        ("phnum", "H", 0, errors.InvalidArgument, "0 program headers"),
        ("phentsize", "H", 32, errors.InvalidArgument, "expected program header size 56, found 32"),
    ):
        data = bytearray(network)
        struct.pack_into(f"<{code}", data, HEADER[name], value)
        with pytest.raises(kind, match=message):
            read(data)
    for short in (b"", b"\x7fELF", bytes(64), network[:63]):
        with pytest.raises(errors.InvalidArgument, match="expected a header of 64 bytes"):
            read(short)


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"offset": 1 << 62}, errors.InvalidArgument, "a segment's .* bytes at byte .* do not fit"),
        ({"filesz": 1 << 62, "memsz": 1 << 62}, errors.InvalidArgument, "do not fit"),
        ({"memsz": 1}, errors.InvalidArgument, "a segment of 1 bytes has"),
        ({"memsz": 1 << 40}, errors.InvalidArgument, "takes more than 1073741824 bytes of memory"),
        ({"vaddr": 1 << 63, "align": 1}, errors.InvalidArgument, "takes more than"),
        ({"align": 3}, errors.InvalidArgument, "cannot be aligned to 3"),
        ({"align": 1 << 63}, errors.InvalidArgument, "cannot be aligned"),
        ({"flags": 7}, errors.PermissionDenied, "writable and executable"),
    ],
)
def test_segments_that_cannot_be_mapped(fields, kind, message, damaged):
    put(damaged, headers(damaged, LOAD)[-1], **fields)
    with pytest.raises(kind, match=message):
        read(damaged)


def test_segments_that_share_a_page(damaged):
    first, second, _ = headers(damaged, LOAD)
    put(damaged, second, vaddr=struct.unpack_from("<Q", damaged, first + 16)[0])
    put(damaged, second, offset=0, align=1)
    with pytest.raises(errors.InvalidArgument, match=f"share a page of {PAGE} bytes"):
        read(damaged)


def test_other_program_headers(network):
    data = bytearray(network)
    put(data, headers(data, RELRO)[0], vaddr=0x40000000)
    with pytest.raises(errors.InvalidArgument, match=r"read-only data of .* lies in no writable segment"):
        read(data)
    data = bytearray(network)
    put(data, headers(data, RELRO)[0], type=TLS)
    with pytest.raises(errors.Unimplemented, match="thread-local storage"):
        read(data)
    data = bytearray(network)
    put(data, headers(data, DYNAMIC)[0], type=4)
    with pytest.raises(errors.InvalidArgument, match="no dynamic segment"):
        read(data)
    data = bytearray(network)
    put(data, headers(data, DYNAMIC)[0], vaddr=1 << 60)
    with pytest.raises(errors.InvalidArgument, match=r"dynamic segment: .* are not in it"):
        read(data)


HASH, STRTAB, SYMTAB, RELA, RELASZ, RELAENT, STRSZ, SYMENT = 4, 5, 6, 7, 8, 9, 10, 11


@pytest.mark.parametrize(
    ("tag", "value", "message"),
    [
        (HASH, 1 << 60, "DT_HASH: 8 bytes at .* are not in it"),
        (STRTAB, 1 << 40, "DT_STRTAB: .* are not in it"),
        (STRSZ, 1 << 60, "DT_STRTAB: .* are not in it"),
        (SYMTAB, 1 << 40, "DT_SYMTAB: .* are not in it"),
        (SYMENT, 16, "expected DT_SYMENT 24, found 16"),
        (RELAENT, 8, "expected DT_RELAENT 24, found 8"),
        (RELA, 1 << 63, "DT_RELA: .* are not in it"),
        (RELASZ, 1 << 60, "is no multiple of 24"),
        (RELASZ, 24 << 50, "DT_RELA: .* are not in it"),
        (STRSZ, 1, "a symbol's name at byte 1 of the strings does not end"),
    ],
)
def test_tables_that_are_not_there(tag, value, message, damaged):
    struct.pack_into("<Q", damaged, entry(damaged, tag) + 8, value)
    with pytest.raises(errors.InvalidArgument, match=f"damaged ELF file: .*{message}"):
        read(damaged)


def test_dynamic_segments_that_lack_something_or_have_too_much(network):
    data = bytearray(network)
    struct.pack_into("<q", data, entry(data, HASH), 0x70000001)
    with pytest.raises(errors.InvalidArgument, match="lacks DT_HASH"):
        read(data)
    for name in ("DT_REL", "DT_INIT", "DT_INIT_ARRAY", "DT_RELR"):
        data = bytearray(network)
        struct.pack_into("<q", data, entry(data, RELAENT), enums.ENUM_D_TAG[name])
        with pytest.raises(errors.Unimplemented, match=f"it has {name}, which iree-compile does not make"):
            read(data)


def test_symbols(network):
    count = table(network, HASH) + 4
    data = bytearray(network)
    struct.pack_into("<I", data, count, 1 << 31)
    with pytest.raises(errors.InvalidArgument, match=r"DT_SYMTAB: .* are not in it"):
        read(data)
    data = bytearray(network)
    struct.pack_into("<I", data, count, 1)
    with pytest.raises(errors.NotFound, match=f"does not export {elf.QUERY}"):
        read(data)
    symbol = table(network, SYMTAB) + 24
    data = bytearray(network)
    struct.pack_into("<H", data, symbol + 6, 0)
    with pytest.raises(errors.Unimplemented, match=f"it imports '{elf.QUERY}'"):
        read(data)
    for value in (0, 1 << 40, 0xFFFFFFFFFFFFFFFF):
        data = bytearray(network)
        struct.pack_into("<Q", data, symbol + 8, value)
        with pytest.raises(errors.InvalidArgument, match=f"{elf.QUERY} at .* is no code"):
            read(data)
    data = bytearray(network)
    struct.pack_into("<I", data, symbol, 0xFFFFFFFF)
    with pytest.raises(errors.InvalidArgument, match="a symbol's name at byte 4294967295"):
        read(data)


def test_relocations(network):
    first = table(network, RELA)
    code = next(item for item in read(network).segments if item.executable)
    for offset, format_, value, kind, message in (
        (0, "<Q", code.address, errors.InvalidArgument, "a relocation at .* lies in no writable segment"),
        (0, "<Q", (1 << 64) - 4, errors.InvalidArgument, "lies in no writable segment"),
        (8, "<Q", 5, errors.Unimplemented, f"relocation 5 of {MACHINE} is not known"),
        (8, "<Q", (2 << 32) + min(THIS.symbolic), errors.InvalidArgument, "names symbol 2 of 1"),
        (8, "<Q", min(THIS.symbolic), errors.InvalidArgument, "names symbol 0 of 1"),
        (16, "<q", -1, errors.InvalidArgument, "gives -0x1, which is not in it"),
        (16, "<q", 1 << 50, errors.InvalidArgument, "which is not in it"),
    ):
        data = bytearray(network)
        struct.pack_into(format_, data, first + offset, value)
        with pytest.raises(kind, match=message):
            read(data)


def test_symbolic_relocations_give_the_symbols_address(network):
    first = table(network, RELA)
    query = read(network).query
    [relative] = struct.unpack_from("<q", network, first + 16)
    for number, adds in THIS.symbolic.items():
        data = bytearray(network)
        struct.pack_into("<Qq", data, first + 8, (1 << 32) + number, 2)
        assert read(data).relocations[0][1] == query + (2 if adds else 0)
    assert read(network).relocations[0][1] == relative


# The ABI and the processor -----------------------------------------------------------------------------


def test_structures_are_laid_out_as_c_does():
    # offsetof and sizeof of executable_library.h, by gcc on x86_64 (LP64, as on arm_64).
    assert {
        kind.__name__: ([getattr(kind, name).offset for name, *_ in kind._fields_], size)
        for kind, size in (
            (abi.Environment, 96), (abi.DispatchState, 48), (abi.WorkgroupState, 32), (abi.Header, 24),
            (abi.DispatchAttributes, 64), (abi.ImportTable, 16), (abi.ExportTable, 80),
        )
    } == {
        "Environment": ([0, 8, 16, 24, 32], 96),
        "DispatchState": ([0, 4, 8, 10, 12, 16, 20, 22, 23, 24, 32, 40], 48),
        "WorkgroupState": ([0, 4, 8, 10, 12, 16, 24], 32),
        "Header": ([0, 8, 16, 20], 24),
        "DispatchAttributes": ([0, 8, 10, 11, 12, 16, 20, 22, 24], 64),
        "ImportTable": ([0, 8], 16),
        "ExportTable": ([0, 8, 16, 24, 32, 40, 48, 56, 64, 72], 80),
    }  # fmt: skip
    assert [getattr(abi.Library, name).offset for name, *_ in abi.Library._fields_] == [0, 8, 24, 104]
    # Of halgpu's own structure: the offsets in the machine code of workgroups.py.
    offsets = [getattr(abi.Job, name).offset for name, *_ in abi.Job._fields_]
    assert offsets == [0, 8, 16, 24, 32, 40, 48, 56, 64]


def test_processor_features():
    text = "processor : 0\nflags\t\t: fpu pni avx2 avx512f amx_tile\nprocessor : 1\nflags : pni avx2 fma\n"
    assert processor.features("x86_64", text) == 1 << 0 | 1 << 15
    assert (
        processor.features("arm_64", "Features\t: fp asimd asimddp sve sve2\n") == 1 << 0 | 1 << 12 | 3 << 20
    )
    assert processor.features("x86_64", "") == 0
    here = processor.data(MACHINE)
    assert len(here) == 8
    assert here[0] != 0


# What runs where ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("uri", ["host", "null", "opencl", "opencl?unified=0"])
def test_the_device_does_not_matter(uri):
    device = open_device(uri)
    assert [registry.query_support(device, f"{kind}-{MACHINE}") for kind in ("embedded-elf", "system-elf")] == [
        True, True,
    ]  # fmt: skip
    assert not registry.query_support(device, FORMAT, native=False)


def test_elsewhere_the_reason_is_given(monkeypatch):
    device = open_device("host")
    monkeypatch.setattr(host, "find_spec", lambda name: None)
    assert not registry.query_support(device, FORMAT)
    with pytest.raises(errors.Incompatible, match=r"it takes pyelftools: pip install 'halgpu\[host\]'"):
        registry.load(device, FORMAT, memoryview(b""))
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    monkeypatch.setattr(host, "machine", host.machine.__wrapped__)
    assert not registry.query_support(device, FORMAT)
    with pytest.raises(
        errors.Incompatible, match="halgpu runs embedded-elf on Linux on x86_64 and arm_64 only"
    ):
        registry.load(device, FORMAT, memoryview(b""))
