// halgpu: kernel saxpy(u32, f32, read, read, write) workgroup 64
__kernel void saxpy(uint n, float a, __global const float* x, __global const float* y, __global float* out) {
  size_t i = get_global_id(0);
  if (i < n) out[i] = a * x[i] + y[i];
}
