"""Calls a stateful program: a module's mutable global lives as long as the loaded module.

python examples/counter.py counter.vmfb [device]
"""

import sys
import time

import numpy as np

import halgpu

path = sys.argv[1]
device = sys.argv[2] if len(sys.argv) > 2 else "opencl"
one = np.ones(4, np.float32)

module = halgpu.load(path, device=device)
print(f"device: {module.device}")
for call in range(1, 4):
    started = time.perf_counter()
    total = np.asarray(module.add(one))
    print(f"call {call}: {total} in {(time.perf_counter() - started) * 1e6:.0f} µs")

again = halgpu.load(path, device=device)
print(f"a new load starts over: {np.asarray(again.add(one))}")
