// RUN: --pass-pipeline=convert-to-vm
// CHECK: vm.module public @m {
module @m {
  // CHECK-NEXT: vm.global.i64 private mutable @count : i64
  // CHECK-NEXT: vm.global.ref private mutable @view : !vm.ref<!hal.buffer_view>
  util.global private mutable @count : index
  util.global private mutable @view : !hal.buffer_view
  // Data is there once.
  // CHECK-NEXT: vm.rodata private @_utf8_x <alignment = 1> "x"
  // CHECK-NEXT: vm.rodata private @data <alignment = 16> "abc"
  // CHECK-NOT: vm.rodata
  // Imports that are used, in the order of the runtime's modules.
  // CHECK-NEXT: vm.import private @hal_inline.buffer_view.assert(%buffer_view : !vm.ref<!hal.buffer_view>, %message : !vm.buffer, %element_type : i32, %encoding_type : i32, %shape : i64 ...)
  // CHECK-NEXT: vm.import private @hal_loader.executable.dispatch({{.*}}, %bindings : tuple<!vm.buffer, i64, i64> ...) attributes {minimum_version = 1 : i32}
  // CHECK-NOT: vm.import
  // CHECK-NEXT: vm.export @check
  // CHECK-NOT: vm.export @hidden
  // CHECK: vm.func private @check(%view: !vm.ref<!hal.buffer_view>, %n: i64)
  util.func public @check(%view: !hal.buffer_view, %n: index) {
    %f32 = hal.element_type<f32> : i32
    %dense = hal.encoding_type<dense_row_major> : i32
    // CHECK-NEXT: [[F32:%.*]] = vm.const.i32 553648160
    // CHECK-NEXT: [[DENSE:%.*]] = vm.const.i32 1
    // CHECK: vm.call.variadic @hal_inline.buffer_view.assert(%view, %{{.*}}, [[F32]], [[DENSE]], [%n, %n]) : (!vm.ref<!hal.buffer_view>, !vm.buffer, i32, i32, i64 ...)
    hal_inline.buffer_view.assert<%view : !hal.buffer_view> message("x") shape([%n, %n]) type(%f32) encoding(%dense)
    hal_inline.buffer_view.assert<%view : !hal.buffer_view> message("x") shape([]) type(%f32) encoding(%dense)
    util.return
  }
  // CHECK: vm.func private @hidden
  util.func private @hidden(%exe: !hal.executable, %f: i64, %n: index) {
    %a = util.buffer.constant "data" : !util.buffer = "abc"
    %b = util.buffer.constant "other" : !util.buffer = "abc"
    %c = arith.constant 5 : i32
    // CHECK: [[N:%.*]] = vm.trunc.i64.i32 %n : i64 -> i32
    // CHECK: vm.call.variadic @hal_loader.executable.dispatch(%exe, %f, [[N]], {{.*}}, [%c], [({{%.*}}, %n, %n), ({{%.*}}, %n, %n)])
    hal_loader.executable.dispatch executable(%exe : !hal.executable)[%f] workgroups([%n, %n, %n]) constants([%c])
      bindings([(%a : !util.buffer)[%n, %n], (%b : !util.buffer)[%n, %n]])
    util.return
  }
  // Narrow integers are kept sign-extended, those of callers made so.
  // CHECK: vm.func private @narrow(%a: i32, %b: i32)
  util.func public @narrow(%a: i8, %b: i8) -> (i8, i1) {
    // CHECK-NEXT: [[A:%.*]] = vm.ext.i8.i32.s %a : i32
    // CHECK-NEXT: [[B:%.*]] = vm.ext.i8.i32.s %b : i32
    // CHECK-NEXT: [[SUM:%.*]] = vm.add.i32 [[A]], [[B]] : i32
    // CHECK-NEXT: [[NARROW:%.*]] = vm.ext.i8.i32.s [[SUM]] : i32
    // CHECK-NEXT: [[ZERO_EXTENDED:%.*]] = vm.ext.i8.i32.u [[NARROW]] : i32
    %0 = arith.addi %a, %b : i8
    %1 = arith.extui %0 : i8 to i32
    // CHECK-NEXT: vm.cmp.lt.i32.u [[NARROW]], [[B]] : i32
    %2 = arith.cmpi ult, %0, %b : i8
    util.return %0, %2 : i8, i1
  }
  // A part of a buffer is the whole, further on; offsets are indices of elements.
  // CHECK: vm.func private @part
  util.func public @part(%buffer: !util.buffer, %offset: index, %size: index) -> f32 {
    %c4 = arith.constant 4 : index
    %part = util.buffer.subspan %buffer[%offset] : !util.buffer{%size} -> !util.buffer{%size}
    // CHECK: [[AT:%.*]] = vm.add.i64 %offset, %offset : i64
    // CHECK-NEXT: [[INDEX:%.*]] = vm.shr.i64.u [[AT]], %{{.*}} : i64
    // CHECK-NEXT: vm.buffer.load.f32 %buffer[[[INDEX]]] : !vm.buffer -> f32
    %0 = util.buffer.load %part[%offset for %c4] : !util.buffer{%size} -> f32
    util.return %0 : f32
  }
  // CHECK: vm.func private @fails
  util.func public @fails(%status: i32) {
    // CHECK-NEXT: vm.cond_br %status, ^[[FAIL:bb[0-9]+]], ^[[GO:bb[0-9]+]]
    // CHECK: ^[[FAIL]]:
    // CHECK-NEXT: vm.fail %status, "no"
    util.status.check_ok %status, "no"
    util.return
  }
}
