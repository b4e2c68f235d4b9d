// RUN: --pass-pipeline=common-values
util.func public @f(%a: i32, %c: i1, %n: index) -> i32 {
  // CHECK: [[SUM:%.*]] = arith.addi %a, %a : i32
  // CHECK-NEXT: cf.cond_br
  %0 = arith.addi %a, %a : i32
  cf.cond_br %c, ^yes, ^no
^yes:
  // CHECK: util.return [[SUM]] : i32
  %1 = arith.addi %a, %a : i32
  util.return %1 : i32
^no:
  // Neither of two blocks dominates the other, and two buffers are two.
  // CHECK: arith.muli %a, %a : i32
  // CHECK-NEXT: hal_inline.buffer.allocate
  // CHECK-NEXT: hal_inline.buffer.allocate
  %2 = arith.muli %a, %a : i32
  %b0, %s0 = hal_inline.buffer.allocate alignment(%n) : !hal.buffer{%n} in !util.buffer
  %b1, %s1 = hal_inline.buffer.allocate alignment(%n) : !hal.buffer{%n} in !util.buffer
  cf.br ^end
^end:
  util.return %2 : i32
}
