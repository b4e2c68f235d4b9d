extern "C" __global__ void saxpy(unsigned n, float a, const float* x, const float* y, float* out) {
  size_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * x[i] + y[i];
}
