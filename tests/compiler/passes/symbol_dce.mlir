// RUN: --pass-pipeline=symbol-dce
// CHECK-NOT: @dead
util.global private @dead_global : i32
// CHECK: @kept_global
util.global private @kept_global : i32
hal.executable private @dead_executable {
  hal.executable.binary public @b <data = "x", format = "f">
}
util.func private @dead_recursive() {
  util.call @dead_recursive() : () -> ()
  util.return
}
// CHECK: @reached
util.func private @reached() {
  %0 = util.global.load @kept_global : i32
  util.return
}
// CHECK: @root
util.func public @root() {
  util.call @reached() : () -> ()
  util.return
}
