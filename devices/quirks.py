"""Drivers' oddities, each with its reason. Nothing else in halgpu looks at a vendor's name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quirks:
    """What a driver does differently from what the standard leads one to expect."""

    caches_builds: bool = False
    """Building the same source again is quick without our help, in later processes too."""

    needs_linker: bool = False
    """Kernels are linked with the machine's ``ld``, and the process ends where that fails."""

    build_options: tuple[str, ...] = ()
    """What its compiler has to be told besides the program's options."""


def opencl_quirks(platform: str, vendor: str) -> Quirks:
    """Return the quirks of an OpenCL platform, by its name and its device's vendor."""
    if platform == "Portable Computing Language":
        # PoCL keeps the machine code of each kernel *for each workgroup size it was launched with* in
        # $POCL_CACHE_DIR. Asking it for a program's binary instead makes it compile all kernels once more, for
        # any size, and a program made from that binary runs this slower general code (PoCL 3.0: 10 kernels
        # build in 1.4 s, first launches 3.6 s, binary 5.9 s; later processes build from source in 0.14 s).
        # How it links: pocl_linker.py.
        return Quirks(caches_builds=True, needs_linker=True)
    if platform == "NVIDIA CUDA":
        # The driver keeps compiled programs in ~/.nv/ComputeCache, keyed by source, options and driver.
        return Quirks(caches_builds=True)
    if platform == "Oclgrind":
        # Its interpreter takes integers of 8, 16, 32 and 64 bits. LLVM's optimizer makes others, such as 33 bits
        # for the sum that a loop becomes ("Unsupported constant int size", and no kernel) or a table of bits for
        # a switch (wrong branches taken): Oclgrind 21.10.
        return Quirks(build_options=("-cl-opt-disable",))
    return Quirks()
