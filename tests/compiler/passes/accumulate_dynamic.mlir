// RUN: ../../../examples/accumulate_dynamic.mlir --kernels=../../../examples/accumulate.cl --pass-pipeline=materialize-executables,combine-initializers,canonicalize,convert-to-vm
// CHECK-DAG: vm.global.ref private mutable @total : !vm.buffer
// CHECK: vm.func private @__init() {
// CHECK: vm.call @hal_loader.executable.query_support
// CHECK: [[MADE:%.*]], [[BYTES:%.*]] = vm.call @hal_inline.buffer.allocate(
// CHECK: vm.buffer.fill.f32 [[BYTES]],
// CHECK-NEXT: vm.global.store.ref [[BYTES]], @total : !vm.buffer
// CHECK-NOT: __init()
