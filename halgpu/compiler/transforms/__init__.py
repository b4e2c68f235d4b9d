"""Passes over programs at HAL level, and from there to the virtual machine."""

import halgpu.compiler.needs_xdsl  # noqa: F401
