// The same as accumulate_static.mlir with the addition as a kernel, in accumulate.cl, as in the model inline-dynamic.
//
//   halgpu compile examples/accumulate_dynamic.mlir --kernels examples/accumulate.cl -o accumulate.vmfb
//   halgpu run --module=accumulate.vmfb --function=add --input="4xf32=1 2 3 4"
module @accumulate {
  util.global private mutable @total : !util.buffer
  util.initializer {
    %zero = arith.constant 0.0 : f32
    %c0 = arith.constant 0 : index
    %c16 = arith.constant 16 : index
    %c64 = arith.constant 64 : index
    %buffer, %storage = hal_inline.buffer.allocate alignment(%c64) : !hal.buffer{%c16} in !util.buffer
    util.buffer.fill %zero, %storage[%c0 for %c16] : f32 -> !util.buffer{%c16}
    util.global.store %storage, @total : !util.buffer
    util.return
  }

  util.func public @add(%x: !hal.buffer_view) -> !hal.buffer_view {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    %c16 = arith.constant 16 : index
    %c64 = arith.constant 64 : index
    %f32 = hal.element_type<f32> : i32
    %dense = hal.encoding_type<dense_row_major> : i32
    hal_inline.buffer_view.assert<%x : !hal.buffer_view> message("x") shape([%c4]) type(%f32) encoding(%dense)
    %x_buffer = hal_inline.buffer_view.buffer<%x : !hal.buffer_view> : !hal.buffer
    %x_storage = hal_inline.buffer.storage<%x_buffer : !hal.buffer> : !util.buffer
    %total = util.global.load @total : !util.buffer
    %kernels = hal_loader.executable.lookup executable(@kernels) : !hal.executable
    %add = hal_loader.executable.lookup.function target(%kernels : !hal.executable) function(@kernels::@add) : i64
    hal_loader.executable.dispatch executable(%kernels : !hal.executable)[%add] workgroups([%c4, %c1, %c1])
      bindings([(%x_storage : !util.buffer)[%c0, %c16], (%total : !util.buffer)[%c0, %c16]])
    %out_buffer, %out_storage = hal_inline.buffer.allocate.initialized source(%total : !util.buffer)[%c0, %c16]
      alignment(%c64) : !hal.buffer{%c16} in !util.buffer
    %out = hal_inline.buffer_view.create buffer(%out_buffer : !hal.buffer)[%c0, %c16] shape([%c4]) type(%f32)
      encoding(%dense) : !hal.buffer_view
    util.return %out : !hal.buffer_view
  }
}
