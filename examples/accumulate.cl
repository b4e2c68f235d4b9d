// halgpu: kernel add(read, readwrite) workgroup 1
__kernel void add(__global const float* x, __global float* total) {
  size_t i = get_global_id(0);
  total[i] += x[i];
}
