"""Drivers' oddities, each with its reason. Nothing else in halgpu looks at a vendor's name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Quirks:
    """What a driver does differently from what the standard leads one to expect."""

    caches_builds: bool = False
    """Building the same source again is quick without our help, in later processes too."""

    one_program: bool = False
    """A program takes long to build, however few kernels it has: several are built as one."""

    serial_builds: bool = False
    """Building in several threads at once gains nothing, or ends the process."""

    needs_linker: bool = False
    """Kernels are linked with the machine's ``ld``, and the process ends where that fails."""

    maps_nothing: bool = False
    """Kernels work on the very pages of CL_MEM_USE_HOST_PTR: once work on them is done, they need not be mapped."""

    build_options: tuple[str, ...] = ()
    """What its compiler has to be told besides the program's options."""


def opencl_quirks(platform: str, vendor: str, cpu: bool) -> Quirks:
    """Return the quirks of an OpenCL platform, by its name, its device's vendor and whether that is a CPU."""
    if platform == "Portable Computing Language":
        # PoCL keeps programs and the machine code of launched kernels in $POCL_CACHE_DIR. Asking it for a
        # program's binary makes it compile all kernels once more, for any workgroup size
        # (pocl_driver_build_poclbinary, lib/CL/devices/common_driver.c). PoCL 3.0, 45 kernels: build 1.0 s,
        # first launches 8.4 s, binary 11.8 s.
        # To look into its cache, PoCL preprocesses the source behind the headers of all built-in functions
        # (pocl_llvm_build_program, lib/CL/pocl_llvm_build.cc), one program a context at a time: 60 ms; what is
        # not there takes 0.55 s. As one program, 45 kernels take 0.08 s and 1.0 s instead of 2.8 s and 24.6 s;
        # twelve programs in two threads take as long as in one.
        # How it links: pocl_linker.py.
        # On a CPU, memory with CL_MEM_USE_HOST_PTR is the host's (pocl_driver_alloc_mem_obj), a map and an unmap of it
        # are commands for a worker thread that does nothing in them (pocl_driver_map_mem, pocl_driver_unmap_mem, all
        # in common_driver.c): 50 us each, where a call of a small kernel takes 40.
        return Quirks(
            caches_builds=True, one_program=True, serial_builds=True, needs_linker=True, maps_nothing=cpu
        )
    if platform == "NVIDIA CUDA":
        # The driver keeps compiled programs in ~/.nv/ComputeCache, keyed by source, options and driver.
        return Quirks(caches_builds=True)
    if platform == "Oclgrind":
        # 21.10 dies of a segmentation fault when two threads build.
        #
        # Its interpreter takes integers of 8, 16, 32 and 64 bits. LLVM's optimizer makes others, such as 33 bits
        # for the sum that a loop becomes ("Unsupported constant int size", and no kernel) or a table of bits for
        # a switch (wrong branches taken): Oclgrind 21.10.
        return Quirks(serial_builds=True, build_options=("-cl-opt-disable",))
    return Quirks()
