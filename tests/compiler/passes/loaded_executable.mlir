// RUN: ../../../examples/loaded_executable.mlir --pass-pipeline=combine-initializers,canonicalize,convert-to-vm
// One @__init holds query_support, load and the store to the executable's global, after what comes before them.
// CHECK: vm.module public @loaded_executable
// CHECK: vm.export @__init
// CHECK: vm.func private @__init() {
// CHECK: vm.global.store.f32 %{{.*}}, @step
// CHECK: [[STEP:%.*]] = vm.global.load.f32 @step : f32
// CHECK-NEXT: [[FACTOR:%.*]] = vm.mul.f32 [[STEP]], [[STEP]] : f32
// CHECK-NEXT: vm.global.store.f32 [[FACTOR]], @factor : f32
// CHECK: [[OK:%.*]] = vm.call @hal_loader.executable.query_support(%{{.*}}) : (!vm.buffer) -> i32
// CHECK-NEXT: vm.cond_br [[OK]], ^[[LOAD:bb[0-9]+]], ^[[OTHER:bb[0-9]+]]
// CHECK: ^[[LOAD]]:
// CHECK: [[EXE:%.*]] = vm.call @hal_loader.executable.load(
// CHECK-NEXT: vm.global.store.ref [[EXE]], @kernels : !vm.ref<!hal.executable>
// CHECK: ^[[OTHER]]:
// CHECK-NEXT: vm.fail %{{.*}}, "this program needs OpenCL"
// CHECK-NOT: vm.func private @__init
// CHECK-NOT: vm.initializer
