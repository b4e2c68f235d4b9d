"""IREE's dialects as far as inline programs use them, as xDSL definitions.

``hal_inline`` and ``hal_loader`` are there in full; of ``util``, ``hal`` and ``vm`` what such programs need. ``arith``,
``math``, ``cf``, ``scf``, ``func`` and ``builtin`` are xDSL's own, with what they lack added in ``extra``.
"""

import halgpu.compiler.needs_xdsl  # noqa: F401
