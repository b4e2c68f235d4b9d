"""Lets the tests of this folder import its two helper modules, spirv_assembler and mlir_corpus."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
