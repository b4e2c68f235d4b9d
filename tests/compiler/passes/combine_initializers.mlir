// RUN: --pass-pipeline=combine-initializers
// CHECK: util.global private @first : i32
// CHECK-NEXT: util.global private @late : i32
// CHECK-NEXT: util.global private @touched : i32
// CHECK-NEXT: util.initializer {
// CHECK-NEXT: [[SEVEN:%.*]] = arith.constant 7 : i32
// CHECK-NEXT: util.global.store [[SEVEN]], @first : i32
// CHECK-NEXT: [[FIRST:%.*]] = util.global.load @first : i32
// CHECK-NEXT: [[ZERO:%.*]] = arith.constant 0 : i32
// CHECK-NEXT: arith.cmpi eq, [[FIRST]], [[ZERO]] : i32
// CHECK-NEXT: cf.cond_br %{{.*}}, ^a, ^b
// CHECK: ^a:
// CHECK-NEXT: cf.br ^[[REST:bb[0-9]+]]
// CHECK: ^b:
// CHECK-NEXT: [[TWICE:%.*]] = arith.addi [[FIRST]], [[FIRST]] : i32
// CHECK-NEXT: util.global.store [[TWICE]], @touched : i32
// CHECK-NEXT: cf.br ^[[REST]]
// CHECK: ^[[REST]]:
// CHECK-NEXT: [[HALF:%.*]] = arith.constant 9 : i32
// CHECK-NEXT: util.global.store [[HALF]], @late : i32
// CHECK-NEXT: util.return
// CHECK-NEXT: }
// CHECK-NOT: util.initializer
// CHECK: util.func private @set
util.global private @first = 7 : i32
util.initializer {
  %first = util.global.load @first : i32
  %zero = arith.constant 0 : i32
  %is = arith.cmpi eq, %first, %zero : i32
  cf.cond_br %is, ^a, ^b
^a:
  util.return
^b:
  util.call @set(%first) : (i32) -> ()
  util.return
}
util.func private @set(%a: i32) {
  %b = arith.addi %a, %a : i32
  util.global.store %b, @touched : i32
  util.return
}
util.global private @late = 9 : i32
// Touched by an initializer before it, through a call.
util.global private @touched : i32
util.func public @read() -> i32 {
  %0 = util.global.load @touched : i32
  util.return %0 : i32
}
