"""``python -m halgpu.cli``."""

import sys

from halgpu.cli import main

sys.exit(main())
