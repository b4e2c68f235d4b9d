// RUN: ../../../examples/accumulate_static.mlir --pass-pipeline=convert-scf-to-cf,inline,symbol-dce,combine-initializers,canonicalize,convert-to-vm
// CHECK: vm.global.ref private mutable @total : !vm.buffer
// CHECK-NOT: hal_loader
// CHECK: vm.func private @add(
// CHECK: vm.global.load.ref @total : !vm.buffer
// CHECK: vm.buffer.load.f32
// CHECK: vm.add.f32
// CHECK: vm.func private @__init() {
// CHECK: [[MADE:%.*]], [[BYTES:%.*]] = vm.call @hal_inline.buffer.allocate(
// CHECK: vm.buffer.fill.f32 [[BYTES]],
// CHECK-NEXT: vm.global.store.ref [[BYTES]], @total : !vm.buffer
// CHECK-NEXT: vm.return
