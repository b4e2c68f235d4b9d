"""What the processor can do, as IREE's executables are told it.

Bits are those of runtime/src/iree/schemas/cpu_feature_bits.inl; Linux says what there is and may be used, in
/proc/cpuinfo. A bit that is not set means "unknown" (cpu_data.h), so that what cannot be found out is left out; so is
AMX, whose registers a process has to ask for first.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

CPUINFO: Final = Path("/proc/cpuinfo")
FIELDS: Final = 8
"""64-bit fields of the data (IREE_HAL_PROCESSOR_DATA_CAPACITY_V0); all bits so far are in the first."""

# Names are Linux's (arch/x86/include/asm/cpufeatures.h, arch/arm64/kernel/cpuinfo.c).
X86_64: Final = {
    "pni": 0, "ssse3": 1, "sse4_1": 2, "sse4_2": 3, "sse4a": 4,
    "avx": 10, "fma": 11, "fma4": 12, "xop": 13, "f16c": 14, "avx2": 15,
    "avx512f": 20, "avx512cd": 21, "avx512vl": 22, "avx512dq": 23, "avx512bw": 24, "avx512ifma": 25, "avx512vbmi": 26,
    "avx512_vpopcntdq": 27, "avx512_vnni": 28, "avx512_vbmi2": 29, "avx512_bitalg": 30, "avx512_bf16": 31,
    "avx512_fp16": 32,
}  # fmt: skip
ARM_64: Final = {
    "fp": 0, "atomics": 1, "asimdhp": 10, "asimdfhm": 11, "asimddp": 12, "i8mm": 13, "bf16": 14,
    "sve": 20, "sve2": 21, "sve2p1": 22, "svebitperm": 23, "svef32mm": 24, "svef64mm": 25,
    "sme": 30, "sme2": 31, "sme2p1": 32, "smef16f16": 33, "smef64f64": 34, "smei16i64": 35,
}  # fmt: skip
_BITS: Final = {"x86_64": ("flags", X86_64), "arm_64": ("Features", ARM_64)}


@cache
def data(machine: str) -> tuple[int, ...]:
    """The fields for this processor."""
    try:
        text = CPUINFO.read_text(errors="replace")
    except OSError:
        text = ""
    return (features(machine, text), *(0,) * (FIELDS - 1))


def features(machine: str, cpuinfo: str) -> int:
    """The first field: the bits of what all of the machine's processors have."""
    line, bits = _BITS[machine]
    listed = [
        set(value.split())
        for name, _, value in (entry.partition(":") for entry in cpuinfo.splitlines())
        if name.strip() == line
    ]
    common = set.intersection(*listed) if listed else set()
    return sum(1 << bit for name, bit in bits.items() if name in common)
