// A program that dispatches a hand-written kernel: out = a * x + y.
//
// The kernel is there twice, in OpenCL C and in CUDA C; the program loads what the device runs. Each string is a
// container: a line of JSON with the kernels' layouts, then the source (docs/kernels.md). In MLIR's strings \22 is a
// quotation mark and \0A a line break; halgpu.executables.handwritten.write() makes containers from Python.
//
//   halgpu compile examples/custom_kernel.mlir -o custom_kernel.vmfb --device=opencl
//   halgpu run --module=custom_kernel.vmfb --function=saxpy --input=2 --input="3xf32=1 2 3" --input="3xf32=10 20 30"
module @custom_kernel {
  util.global private @kernels : !hal.executable

  util.initializer {
    %is_opencl = hal_loader.executable.query_support format("opencl-c") : i1
    cf.cond_br %is_opencl, ^opencl, ^cuda
  ^opencl:
    %opencl = util.buffer.constant : !util.buffer = "{\22halgpu-kernels\22: 1, \22language\22: \22opencl-c\22, \22kernels\22: [{\22name\22: \22saxpy\22, \22constants\22: [\22u32\22, \22f32\22], \22bindings\22: [\22read\22, \22read\22, \22write\22], \22workgroup_size\22: [64, 1, 1], \22local_memory\22: 0}]}\0A__kernel void saxpy(uint n, float a, __global const float* x, __global const float* y, __global float* out) {\0A  size_t i = get_global_id(0);\0A  if (i < n) out[i] = a * x[i] + y[i];\0A}\0A"
    %opencl_kernels = hal_loader.executable.load format("opencl-c") data(%opencl) : !hal.executable
    cf.br ^loaded(%opencl_kernels : !hal.executable)
  ^cuda:
    %cuda = util.buffer.constant : !util.buffer = "{\22halgpu-kernels\22: 1, \22language\22: \22cuda-c\22, \22kernels\22: [{\22name\22: \22saxpy\22, \22constants\22: [\22u32\22, \22f32\22], \22bindings\22: [\22read\22, \22read\22, \22write\22], \22workgroup_size\22: [64, 1, 1], \22local_memory\22: 0}]}\0Aextern \22C\22 __global__ void saxpy(unsigned n, float a, const float* x, const float* y, float* out) {\0A  size_t i = blockIdx.x * blockDim.x + threadIdx.x;\0A  if (i < n) out[i] = a * x[i] + y[i];\0A}\0A"
    %cuda_kernels = hal_loader.executable.load format("cuda-c") data(%cuda) : !hal.executable
    cf.br ^loaded(%cuda_kernels : !hal.executable)
  ^loaded(%loaded: !hal.executable):
    util.global.store %loaded, @kernels : !hal.executable
    util.return
  }

  util.func public @saxpy(%a: f32, %x: !hal.buffer_view, %y: !hal.buffer_view) -> !hal.buffer_view {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    %c64 = arith.constant 64 : index

    // Both arguments must be vectors of as many f32.
    %n = hal_inline.buffer_view.dim<%x : !hal.buffer_view>[0] : index
    %f32 = hal.element_type<f32> : i32
    %dense = hal.encoding_type<dense_row_major> : i32
    hal_inline.buffer_view.assert<%x : !hal.buffer_view> message("x") shape([%n]) type(%f32) encoding(%dense)
    hal_inline.buffer_view.assert<%y : !hal.buffer_view> message("y") shape([%n]) type(%f32) encoding(%dense)

    // The VM's buffers over the bytes of x, y and the result; they stay on the device.
    %bytes = arith.muli %n, %c4 : index
    %x_buffer = hal_inline.buffer_view.buffer<%x : !hal.buffer_view> : !hal.buffer
    %y_buffer = hal_inline.buffer_view.buffer<%y : !hal.buffer_view> : !hal.buffer
    %x_storage = hal_inline.buffer.storage<%x_buffer : !hal.buffer> : !util.buffer
    %y_storage = hal_inline.buffer.storage<%y_buffer : !hal.buffer> : !util.buffer
    %out_buffer, %out_storage = hal_inline.buffer.allocate alignment(%c64) : !hal.buffer{%bytes} in !util.buffer

    // Constants are 32-bit words, in the order of the layout: n, then the bits of a.
    %n_word = arith.index_cast %n : index to i32
    %a_word = arith.bitcast %a : f32 to i32
    %groups = arith.ceildivui %n, %c64 : index
    %kernels = util.global.load @kernels : !hal.executable
    %saxpy = hal_loader.executable.lookup.function target(%kernels : !hal.executable) function(@kernels::@saxpy) : i64
    hal_loader.executable.dispatch executable(%kernels : !hal.executable)[%saxpy]
      workgroups([%groups, %c1, %c1])
      constants([%n_word, %a_word])
      bindings([
        (%x_storage : !util.buffer)[%c0, %bytes],
        (%y_storage : !util.buffer)[%c0, %bytes],
        (%out_storage : !util.buffer)[%c0, %bytes]
      ])

    %out = hal_inline.buffer_view.create buffer(%out_buffer : !hal.buffer)[%c0, %bytes]
      shape([%n]) type(%f32) encoding(%dense) : !hal.buffer_view
    util.return %out : !hal.buffer_view
  }
}
