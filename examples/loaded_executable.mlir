// A program that loads an executable, with several initializers: one sets a global, one asks which kernels the runtime
// supports, loads them and branches. They lower to one @__init, in the order in which they stand here:
//
//   halgpu opt examples/loaded_executable.mlir --pass-pipeline=combine-initializers
//   halgpu compile --from=hal examples/loaded_executable.mlir -o scale.vmfb
//   halgpu run --module=scale.vmfb --function=scale --input="4xf32=1 2 3 4"
module @loaded_executable {
  util.global private @factor : f32
  util.global private @step = 2.0 : f32
  util.initializer {
    %step = util.global.load @step : f32
    %factor = arith.mulf %step, %step : f32
    util.global.store %factor, @factor : f32
    util.return
  }

  util.global private @kernels : !hal.executable
  util.initializer {
    %unavailable = arith.constant 14 : i32
    %is_opencl = hal_loader.executable.query_support format("opencl-c") : i1
    cf.cond_br %is_opencl, ^load, ^other
  ^load:
    %source = util.buffer.constant : !util.buffer = "{\22halgpu-kernels\22: 1, \22language\22: \22opencl-c\22, \22kernels\22: [{\22name\22: \22scale\22, \22constants\22: [\22f32\22], \22bindings\22: [\22read\22, \22write\22]}]}\0A__kernel void scale(float factor, __global const float* x, __global float* out) {\0A  out[get_global_id(0)] = factor * x[get_global_id(0)];\0A}\0A"
    %loaded = hal_loader.executable.load format("opencl-c") data(%source) : !hal.executable
    util.global.store %loaded, @kernels : !hal.executable
    util.return
  ^other:
    util.status.check_ok %unavailable, "this program needs OpenCL"
    util.return
  }

  util.func public @scale(%x: !hal.buffer_view) -> !hal.buffer_view {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    %c64 = arith.constant 64 : index
    %n = hal_inline.buffer_view.dim<%x : !hal.buffer_view>[0] : index
    %f32 = hal.element_type<f32> : i32
    %dense = hal.encoding_type<dense_row_major> : i32
    hal_inline.buffer_view.assert<%x : !hal.buffer_view> message("x") shape([%n]) type(%f32) encoding(%dense)
    %bytes = arith.muli %n, %c4 : index
    %x_buffer = hal_inline.buffer_view.buffer<%x : !hal.buffer_view> : !hal.buffer
    %x_storage = hal_inline.buffer.storage<%x_buffer : !hal.buffer> : !util.buffer
    %out_buffer, %out_storage = hal_inline.buffer.allocate alignment(%c64) : !hal.buffer{%bytes} in !util.buffer
    %factor = util.global.load @factor : f32
    %word = arith.bitcast %factor : f32 to i32
    %kernels = util.global.load @kernels : !hal.executable
    %scale = hal_loader.executable.lookup.function target(%kernels : !hal.executable) function(@kernels::@scale) : i64
    hal_loader.executable.dispatch executable(%kernels : !hal.executable)[%scale] workgroups([%n, %c1, %c1])
      constants([%word])
      bindings([(%x_storage : !util.buffer)[%c0, %bytes], (%out_storage : !util.buffer)[%c0, %bytes]])
    %out = hal_inline.buffer_view.create buffer(%out_buffer : !hal.buffer)[%c0, %bytes] shape([%n]) type(%f32)
      encoding(%dense) : !hal.buffer_view
    util.return %out : !hal.buffer_view
  }
}
