"""Imported first by all that is written on xDSL: where that is missing, the error says what to install."""

from halgpu.compiler import finish

finish.check()
