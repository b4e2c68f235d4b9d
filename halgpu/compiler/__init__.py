"""The compiler half: drives iree-base-compiler (extra ``compiler``) and repairs what its inline pipelines break.

``driver`` has the entry, :func:`halgpu.compile`. iree.compiler and onnx are imported only in child processes
(``repair_input``, ``repair_stream``, ``import_onnx``): what goes wrong in them never takes the caller's process down.

``finish`` goes from programs at HAL level to a .vmfb without that compiler: ``mlir`` reads and prints the ``dialects``,
``transforms`` has the passes, ``emit`` writes the module, ``kernels`` embeds hand-written ones. Those are written on
xDSL and imported by ``finish`` only.
"""
