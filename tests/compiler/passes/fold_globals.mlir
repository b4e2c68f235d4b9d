// RUN: --pass-pipeline=fold-globals
// CHECK-NOT: @unread
util.global private mutable @unread : i32
// CHECK-NOT: @constant
util.global private @constant = 5 : i32
// CHECK-NOT: @zero
util.global private mutable @zero : index
// CHECK-NOT: @set_once
util.global private @set_once : i32
// CHECK: util.global private mutable @changed = 5 : i32
util.global private mutable @changed = 5 : i32
// CHECK-NEXT: util.global public @seen = 5 : i32
util.global public @seen = 5 : i32
// CHECK-NEXT: util.global private @buffer : !util.buffer
util.global private mutable @buffer : !util.buffer
util.initializer {
  %0 = arith.constant 3 : i32
  util.global.store %0, @set_once : i32
  %1 = arith.constant 8 : index
  %2 = util.buffer.alloc uninitialized : !util.buffer{%1}
  util.global.store %2, @buffer : !util.buffer
  util.return
}
// CHECK: util.func public @f
util.func public @f(%a: i32) -> (i32, index, i32, i32, i32, !util.buffer) {
  util.global.store %a, @unread : i32
  // CHECK-NEXT: arith.constant 5 : i32
  // CHECK-NEXT: arith.constant 0 : index
  // CHECK-NEXT: arith.constant 3 : i32
  // CHECK-NEXT: util.global.load @changed : i32
  // CHECK-NEXT: util.global.load @seen : i32
  // CHECK-NEXT: util.global.load immutable @buffer : !util.buffer
  %0 = util.global.load @constant : i32
  %1 = util.global.load @zero : index
  %2 = util.global.load @set_once : i32
  %3 = util.global.load @changed : i32
  %4 = util.global.load @seen : i32
  %5 = util.global.load @buffer : !util.buffer
  util.global.store %a, @changed : i32
  util.return %0, %1, %2, %3, %4, %5 : i32, index, i32, i32, i32, !util.buffer
}
