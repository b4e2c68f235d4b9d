// RUN: not --pass-pipeline=convert-to-vm
// All that is wrong is told in one run.
util.global private @half : f16
util.global private @tensor : tensor<4xf32>
util.initializer { util.return }
util.initializer { util.return }
util.func public @f(%a: f16, %b: i32, %c: !util.buffer, %n: index) -> f16 {
  %0 = arith.addf %a, %a : f16
  %1 = "mine.op"(%b) : (i32) -> i32
  %2 = math.ctpop %1 : i32
  %3 = util.buffer.subspan %c[%n] : !util.buffer{%n} -> !util.buffer{%n}
  util.call @g(%3) : (!util.buffer) -> ()
  util.return %0 : f16
}
util.func private @g(%a: !util.buffer) attributes {inlining_policy = #util.inline.never} {
  util.return
}
util.func private @external()
// STDERR-DAG: refused.mlir:4:1: error: 'util.global': the virtual machine has no values of type tensor<4xf32>
// STDERR-DAG: refused.mlir:6:1: error: 'util.initializer': expected one initializer
// STDERR-DAG: refused.mlir:8:3: error: 'arith.addf': the virtual machine does not compute with f16
// STDERR-DAG: refused.mlir:9:3: error: 'mine.op': there is no conversion to the virtual machine
// STDERR-DAG: refused.mlir:10:3: error: 'math.ctpop': there is no conversion to the virtual machine
// STDERR-DAG: refused.mlir:12:3: error: 'util.call': a part of a buffer (util.buffer.subspan) cannot leave the function
// STDERR-DAG: refused.mlir:18:1: error: 'util.func': expected the name of another module's function
