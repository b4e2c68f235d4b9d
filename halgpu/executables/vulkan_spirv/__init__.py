"""SPIR-V executables of iree-compile's Vulkan target, translated to readable OpenCL C.

`parser` reads SPIR-V, `structure` finds its control flow, `emitter` and the tables in the `op_*` modules write
the statements of a function, `kernel` what stands around them, `source` what kernels share; `translate` is the
whole and `loader` what the registry knows.
"""
