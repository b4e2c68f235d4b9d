"""Real executables with damage: each is refused with an error of halgpu's, or is sound as far as anything can tell.

The process must not end, in whatever way, before code of the executable runs. Damage of the code itself cannot be told;
so its query function is called only where code, place and entry are as they were. $HALGPU_ELF_MUTATIONS is the number
of examples; ci/nightly runs 2,000.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlir_corpus
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_samples import MACHINE

from halgpu import errors, vm
from halgpu.executables.native import elf, host
from halgpu.executables.native.image import PAGE, Image
from halgpu.executables.native.library import Library
from halgpu.executables.system_elf import resolve

EXAMPLES = int(os.environ.get("HALGPU_ELF_MUTATIONS", "200"))
INTERESTING = (0, 1, 7, 8, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 8,
               (1 << 64) - 1)  # fmt: skip

Sample = tuple[bytes, elf.Elf]


def executable_of(program: bytes) -> bytes:
    segments = vm.BytecodeModule.load(program).definition.rodata
    [found] = [bytes(segment) for segment in segments if bytes(segment[:4]) == b"\x7fELF"]
    return found


def read(data: bytes) -> elf.Elf:
    machine = host.machine()
    assert machine is not None
    return elf.read(memoryview(data), machine, PAGE, imports=True)


@pytest.fixture(scope="module")
def samples(compile_mlir: Callable[..., bytes], examples: Path) -> list[Sample]:
    """Two embedded files, and a system one, which imports functions."""
    programs = [
        compile_mlir((examples / f"{name}.mlir").read_text(), "llvm-cpu") for name in ("network", "abs")
    ]
    calls = mlir_corpus.joined({"remainder": mlir_corpus.find("remainder_f32")})
    programs.append(compile_mlir(calls, "llvm-cpu", "--iree-llvmcpu-link-embedded=false"))
    return [(data, read(data)) for data in map(executable_of, programs)]


def places(sample: Sample) -> list[tuple[int, int]]:
    """The parts of a file that matter, each a start and an end: headers, tables, data; no code and no sections."""
    data, found = sample
    count = struct.unpack_from("<H", data, 56)[0]
    return [(0, 64), (64, 64 + 56 * count)] + [
        (max(item.offset, 64 + 56 * count), item.offset + item.file_size)
        for item in found.segments
        if not item.executable
    ]


@st.composite
def damaged(draw: st.DrawFn, samples: list[Sample]) -> tuple[Sample, bytes]:
    sample = draw(st.sampled_from(samples))
    data = bytearray(sample[0])
    for _ in range(draw(st.sampled_from([1, 1, 2, 5]))):
        start, end = draw(st.sampled_from(places(sample)))
        kind = draw(st.sampled_from(["bit", "word", "long", "swap"]))
        at = draw(st.integers(start, end - 8))
        if kind == "bit":
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "word":
            value = draw(st.sampled_from(INTERESTING) | st.integers(0, len(data)))
            struct.pack_into("<I", data, at // 4 * 4, value & 0xFFFFFFFF)
        elif kind == "long":
            value = draw(st.sampled_from(INTERESTING) | st.integers(0, 2 * len(data)))
            struct.pack_into("<Q", data, at // 8 * 8, value)
        else:
            other = draw(st.integers(start, end - 8)) // 8 * 8
            at = at // 8 * 8
            data[at : at + 8], data[other : other + 8] = data[other : other + 8], data[at : at + 8]
    if draw(st.integers(0, 7)) == 0:
        del data[draw(st.integers(0, len(data))) :]
    return sample, bytes(data)


def runs_the_same_code(original: Sample, data: bytes, found: elf.Elf) -> bool:
    """Whether the query function, which reads nothing but addresses relative to itself, is as it was."""
    whole, right = original
    same_places = [(item.address, item.executable) for item in found.segments] == [
        (item.address, item.executable) for item in right.segments
    ]
    return (
        same_places
        and found.query == right.query
        and all(
            data[a.offset : a.offset + a.file_size] == whole[b.offset : b.offset + b.file_size]
            for a, b in zip(found.segments, right.segments, strict=True)
            if b.executable
        )
    )


def test_damage_is_refused_or_harmless(samples: list[Sample]) -> None:
    outcomes: Counter[str] = Counter()

    @given(case=damaged(samples))
    @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
    def attempt(case: tuple[Sample, bytes]) -> None:
        original, data = case
        try:
            found = read(data)
            image = Image(found, resolve)
            if not runs_the_same_code(original, data, found):
                outcomes["other code"] += 1
                return
            library = Library(image, image.base + found.query, MACHINE, ())
        except errors.Error as error:
            outcomes["refused" if error.message else "refused without a reason"] += 1
            return
        check(library, image, found)
        outcomes["loaded"] += 1

    attempt()
    # Damage of all kinds is met; without it the test would say nothing.
    assert "refused without a reason" not in outcomes
    assert outcomes["refused"] > EXAMPLES // 5
    assert outcomes["loaded"] > EXAMPLES // 20


def check(library: Library, image: Image, found: elf.Elf) -> None:
    """What a sound library has."""
    for export in library.exports:
        assert export.name
        assert any(item.executable and item.holds(export.address - image.base, 1) for item in found.segments)
        assert export.bindings <= 64
        assert export.constants <= 64


def test_cuts_are_refused(samples: list[Sample]) -> None:
    for data, found in samples:
        end = max(item.offset + item.file_size for item in found.segments)
        for length in (0, 1, 63, 64, 100, end // 4, end // 2, end - 1):
            with pytest.raises(errors.InvalidArgument):
                read(data[:length])
        # Behind it are sections, which nothing needs.
        assert read(data[:end]).relocations == found.relocations


def test_the_undamaged_ones_load(samples: list[Sample]) -> None:
    for _, found in samples:
        image = Image(found, resolve)
        library: Any = Library(image, image.base + found.query, MACHINE, ())
        check(library, image, found)
        assert library.exports
