// A program around a hand-written kernel, in saxpy.cl and saxpy.cu: out = a * x + y. No IREE compiler is needed:
//
//   halgpu compile examples/saxpy.mlir --kernels examples/saxpy.cl --kernels examples/saxpy.cu -o saxpy.vmfb
//   halgpu run --module=saxpy.vmfb --function=saxpy --input=2 --input="3xf32=1 2 3" --input="3xf32=10 20 30"
module @saxpy {
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
    %kernels = hal_loader.executable.lookup executable(@kernels) : !hal.executable
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
