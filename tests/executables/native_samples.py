"""Machine code and libraries for tests of native kernels: written by hand, so that they do what a test needs."""

from __future__ import annotations

import ctypes
import platform
from typing import Any

from halgpu.executables.native.image import executable_pages
from halgpu.executables.native.library import Export

MACHINE = {"x86_64": "x86_64", "aarch64": "arm_64"}[platform.machine()]

# int kernel(environment, dispatch_state, workgroup_state): adds 1 to the 32-bit int of binding 0 whose index is the
# workgroup's number, and returns -1 where that number is constant 0, else 0.
COUNT = {
    "x86_64": (
        "488b4620"      # mov    binding_ptrs(%rsi), %rax
        "488b00"        # mov    (%rax), %rax
        "0fb74a08"      # movzwl workgroup_id_z(%rdx), %ecx
        "0faf4e10"      # imul   workgroup_count_y(%rsi), %ecx
        "034a04"        # add    workgroup_id_y(%rdx), %ecx
        "0faf4e0c"      # imul   workgroup_count_x(%rsi), %ecx
        "030a"          # add    workgroup_id_x(%rdx), %ecx
        "f0ff0488"      # lock incl (%rax, %rcx, 4)
        "488b4618"      # mov    constants(%rsi), %rax
        "4531c0"        # xor    %r8d, %r8d
        "3908"          # cmp    %ecx, (%rax)
        "410f94c0"      # sete   %r8b
        "41f7d8"        # neg    %r8d
        "4489c0"        # mov    %r8d, %eax
        "c3"            # ret
    ),
    "arm_64": (
        "231040f9"      # ldr    x3, [x1, #binding_ptrs]
        "630040f9"      # ldr    x3, [x3]
        "44104079"      # ldrh   w4, [x2, #workgroup_id_z]
        "25984129"      # ldp    w5, w6, [x1, #workgroup_count_x]
        "47204029"      # ldp    w7, w8, [x2]
        "8420061b"      # madd   w4, w4, w6, w8
        "841c051b"      # madd   w4, w4, w5, w7
        "29008052"      # mov    w9, #1
        "6a48248b"      # add    x10, x3, w4, uxtw #2
        "4bfd5f88"      # 1: ldaxr w11, [x10]
        "6b01090b"      # add    w11, w11, w9
        "4bfd0c88"      # stlxr  w12, w11, [x10]
        "acffff35"      # cbnz   w12, 1b
        "230c40f9"      # ldr    x3, [x1, #constants]
        "630040b9"      # ldr    w3, [x3]
        "7f00046b"      # cmp    w3, w4
        "e0139f5a"      # csetm  w0, eq
        "c0035fd6"      # ret
    ),
}  # fmt: skip

# int kernel(environment, dispatch_state, workgroup_state): stores the workgroup's local memory (its address, then its
# size) and the dispatch's max_concurrency to binding 0, as 64-bit ints.
LOOK = {
    "x86_64": (
        "488b4620"      # mov    binding_ptrs(%rsi), %rax
        "488b00"        # mov    (%rax), %rax
        "488b4a10"      # mov    local_memory(%rdx), %rcx
        "488908"        # mov    %rcx, (%rax)
        "8b4a18"        # mov    local_memory_size(%rdx), %ecx
        "48894808"      # mov    %rcx, 8(%rax)
        "0fb64e16"      # movzbl max_concurrency(%rsi), %ecx
        "48894810"      # mov    %rcx, 16(%rax)
        "31c0"          # xor    %eax, %eax
        "c3"            # ret
    ),
    "arm_64": (
        "231040f9"      # ldr    x3, [x1, #binding_ptrs]
        "630040f9"      # ldr    x3, [x3]
        "440840f9"      # ldr    x4, [x2, #local_memory]
        "640000f9"      # str    x4, [x3]
        "441840b9"      # ldr    w4, [x2, #local_memory_size]
        "640400f9"      # str    x4, [x3, #8]
        "24584039"      # ldrb   w4, [x1, #max_concurrency]
        "640800f9"      # str    x4, [x3, #16]
        "00008052"      # mov    w0, #0
        "c0035fd6"      # ret
    ),
}  # fmt: skip

_kept: list[Any] = []


def code(program: dict[str, str]) -> int:
    """The address of machine code of this machine."""
    memory, address = executable_pages(bytes.fromhex(program[MACHINE]))
    _kept.append(memory)
    return address


class Library:
    """What a kernel needs of its library: an environment of zeros."""

    def __init__(self) -> None:
        self.environment = (ctypes.c_uint8 * 96)()


def export(
    program: dict[str, str],
    *,
    constants: int = 1,
    bindings: int = 1,
    local_memory: int = 0,
    sequential: bool = False,
) -> Export:
    """A kernel ``k`` of machine code."""
    return Export("k", code(program), constants, bindings, (1, 1, 1), local_memory, sequential)
