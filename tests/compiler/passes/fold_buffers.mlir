// RUN: --pass-pipeline=canonicalize
// CHECK-LABEL: util.func public @storage
util.func public @storage(%n: index) -> (!util.buffer, index, index) {
  %c64 = arith.constant 64 : index
  // CHECK: [[BUFFER:%.*]], [[BYTES:%.*]] = hal_inline.buffer.allocate
  %buffer, %bytes = hal_inline.buffer.allocate alignment(%c64) : !hal.buffer{%n} in !util.buffer
  // CHECK-NEXT: util.return [[BYTES]], %n, %n
  %0 = hal_inline.buffer.storage<%buffer : !hal.buffer> : !util.buffer
  %1 = hal_inline.buffer.length<%buffer : !hal.buffer> : index
  %2 = util.buffer.size %0 : !util.buffer
  util.return %0, %1, %2 : !util.buffer, index, index
}
// CHECK-LABEL: util.func public @whole_view
util.func public @whole_view(%n: index, %type: i32) -> !hal.buffer {
  %c0 = arith.constant 0 : index
  // CHECK: [[BUFFER:%.*]], {{%.*}} = hal_inline.buffer.allocate
  %buffer, %bytes = hal_inline.buffer.allocate alignment(%n) : !hal.buffer{%n} in !util.buffer
  // CHECK-NEXT: util.return [[BUFFER]]
  %view = hal_inline.buffer_view.create buffer(%buffer : !hal.buffer)[%c0, %n] shape([%n]) type(%type) encoding(%type) : !hal.buffer_view
  %0 = hal_inline.buffer_view.buffer<%view : !hal.buffer_view> : !hal.buffer
  util.return %0 : !hal.buffer
}
// A view of a part is not the whole buffer.
// CHECK-LABEL: util.func public @part_of_view
util.func public @part_of_view(%buffer: !hal.buffer, %n: index, %type: i32) -> !hal.buffer {
  // CHECK-NEXT: [[PART:%.*]] = hal_inline.buffer.subspan<%buffer : !hal.buffer>[%n, %n] : !hal.buffer
  // CHECK-NEXT: util.return [[PART]]
  %view = hal_inline.buffer_view.create buffer(%buffer : !hal.buffer)[%n, %n] shape([%n]) type(%type) encoding(%type) : !hal.buffer_view
  %0 = hal_inline.buffer_view.buffer<%view : !hal.buffer_view> : !hal.buffer
  util.return %0 : !hal.buffer
}
// CHECK-LABEL: util.func public @view_of_part
util.func public @view_of_part(%buffer: !hal.buffer, %n: index, %m: index, %type: i32) -> !hal.buffer_view {
  // CHECK-NEXT: [[SUM:%.*]] = arith.addi %n, %m : index
  // CHECK-NEXT: hal_inline.buffer_view.create buffer(%buffer : !hal.buffer)[[[SUM]], %m]
  %part = hal_inline.buffer.subspan<%buffer : !hal.buffer>[%n, %m] : !hal.buffer
  %view = hal_inline.buffer_view.create buffer(%part : !hal.buffer)[%m, %m] shape([%n]) type(%type) encoding(%type) : !hal.buffer_view
  util.return %view : !hal.buffer_view
}
// CHECK-LABEL: util.func public @binding_of_part
util.func public @binding_of_part(%exe: !hal.executable, %f: i64, %buffer: !util.buffer, %n: index, %m: index) {
  // CHECK-NEXT: [[SUM:%.*]] = arith.addi %n, %m : index
  // CHECK: (%buffer : !util.buffer)[[[SUM]], %m]
  %part = util.buffer.subspan %buffer[%n] : !util.buffer{%n} -> !util.buffer{%m}
  hal_loader.executable.dispatch executable(%exe : !hal.executable)[%f] workgroups([%n, %n, %n]) bindings([(%part : !util.buffer)[%m, %m]])
  util.return
}
