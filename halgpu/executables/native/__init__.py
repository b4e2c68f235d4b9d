"""Native code of iree-compile's llvm-cpu target, run in this process: what the formats of ELF files share."""
