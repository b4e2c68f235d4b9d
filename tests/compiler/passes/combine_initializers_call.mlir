// RUN: not --pass-pipeline=combine-initializers
// A call in an initializer that cannot become code, and an initializer that cannot: both are told in one run.
util.global private @a : i32
util.initializer {
  %0 = util.call @odd() : () -> i32
  util.global.store %0, @a : i32
  util.return
}
util.initializer {
  "mine.effect"() : () -> ()
  util.return
}
util.func private @odd() -> i32 {
  %0 = "mine.op"() : () -> i32
  util.return %0 : i32
}
// STDERR-DAG: combine_initializers_call.mlir:5:3: error: 'util.call': @odd is not inlined: it holds 'mine.op'
// STDERR-DAG: combine_initializers_call.mlir:9:1: error: 'util.initializer': it cannot become part of one initializer: it holds 'mine.effect' (
