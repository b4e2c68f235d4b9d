// RUN: not --pass-pipeline=combine-initializers
util.global private @a : !util.buffer
util.global private @b : !util.buffer
util.initializer {
  %0 = util.global.load @b : !util.buffer
  util.global.store %0, @a : !util.buffer
  util.return
}
util.initializer {
  %0 = util.global.load @a : !util.buffer
  util.global.store %0, @b : !util.buffer
  util.return
}
// STDERR: combine_initializers_cycle.mlir:5:3: error: 'util.global.load': @b is read before the initializer at
// STDERR-SAME: combine_initializers_cycle.mlir:9:1 sets it
// STDERR-SAME: in turn reads @a: the initializers form a cycle
