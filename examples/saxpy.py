"""Runs a hand-written kernel: y = a * x + y.

python examples/saxpy.py [device]
"""

import sys

import numpy as np

import halgpu

OPENCL = """
__kernel void saxpy(uint n, float a, __global const float* x, __global float* y) {
  size_t i = get_global_id(0);
  if (i < n) y[i] += a * x[i];
}
"""
CUDA = """
extern "C" __global__ void saxpy(unsigned n, float a, const float* x, float* y) {
  size_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}
"""
LAYOUT = halgpu.KernelLayout(
    "saxpy", constants=("u32", "f32"), bindings=("read", "readwrite"), workgroup_size=(64, 1, 1)
)

device = halgpu.open_device(sys.argv[1] if len(sys.argv) > 1 else "opencl")
saxpy = device.load_kernels(halgpu.kernels(opencl=OPENCL, cuda=CUDA), [LAYOUT])["saxpy"]

n = 1000
x = halgpu.BufferView.from_array(np.arange(n, dtype=np.float32), device)
y = halgpu.BufferView.from_array(np.ones(n, np.float32), device)
saxpy.dispatch((n + 63) // 64, constants=(n, 2.0), bindings=(x, y))

print(f"device: {device}")
print(np.asarray(y)[:8])
