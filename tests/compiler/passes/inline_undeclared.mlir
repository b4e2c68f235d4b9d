// RUN: --pass-pipeline=inline
// What a dialect says nothing about stays where it is, and a remark on stderr names it.
util.func private @odd(%a: i32) -> i32 {
  %b = "mine.op"(%a) : (i32) -> i32
  util.return %b : i32
}
util.func public @f(%a: i32) -> i32 {
  // CHECK: util.func public @f
  // CHECK-NEXT: util.call @odd(%a)
  %0 = util.call @odd(%a) : (i32) -> i32
  util.return %0 : i32
}
// STDERR: inline_undeclared.mlir:10:3: remark: 'util.call': @odd is not inlined: it holds 'mine.op'
// STDERR-SAME: dialect 'mine' declares nothing about inlining
