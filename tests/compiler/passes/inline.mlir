// RUN: --pass-pipeline=inline
util.func private @straight(%a: i32) -> i32 {
  %b = arith.addi %a, %a : i32
  util.return %b : i32
}
util.func private @branches(%a: i32, %b: i1) -> i32 {
  cf.cond_br %b, ^yes, ^no
^yes:
  %c = util.call @straight(%a) : (i32) -> i32
  util.return %c : i32
^no:
  util.return %a : i32
}
// CHECK-LABEL: util.func public @calls_straight
util.func public @calls_straight(%a: i32) -> i32 {
  // CHECK-NEXT: [[SUM:%.*]] = arith.addi %a, %a : i32
  // CHECK-NEXT: arith.muli [[SUM]], [[SUM]] : i32
  %0 = util.call @straight(%a) : (i32) -> i32
  %1 = arith.muli %0, %0 : i32
  util.return %1 : i32
}
// CHECK-LABEL: util.func public @calls_branches
util.func public @calls_branches(%a: i32, %b: i1) -> i32 {
  // CHECK-NOT: util.call
  // CHECK: cf.cond_br %b, ^[[YES:bb[0-9]+]], ^[[NO:bb[0-9]+]]
  // CHECK: ^[[YES]]:
  // CHECK-NEXT: [[SUM:%.*]] = arith.addi %a, %a : i32
  // CHECK-NEXT: cf.br ^[[REST:bb[0-9]+]]([[SUM]] : i32)
  // CHECK: ^[[NO]]:
  // CHECK-NEXT: cf.br ^[[REST]](%a : i32)
  // CHECK: ^[[REST]]([[RESULT:%.*]]: i32):
  // CHECK-NEXT: util.return [[RESULT]] : i32
  %0 = util.call @branches(%a, %b) : (i32, i1) -> i32
  util.return %0 : i32
}
// CHECK-LABEL: util.func public @recursive
util.func public @recursive(%a: i32) -> i32 {
  // CHECK-NEXT: util.call @recursive(%a)
  %0 = util.call @recursive(%a) : (i32) -> i32
  util.return %0 : i32
}
util.func private @never(%a: i32) -> i32 attributes {inlining_policy = #util.inline.never} {
  util.return %a : i32
}
// CHECK-LABEL: util.func public @calls_never
util.func public @calls_never(%a: i32) -> i32 {
  // CHECK-NEXT: util.call @never(%a)
  %0 = util.call @never(%a) : (i32) -> i32
  util.return %0 : i32
}
