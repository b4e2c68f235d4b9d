// RUN: --pass-pipeline=discard-refs,annotate-registers
vm.module public @m {
  vm.import private @other.take(%a : !vm.buffer, %b : !vm.buffer)
  // 64-bit values lie in even pairs; a register is free once its value is not needed.
  // CHECK: vm.func private @numbers
  vm.func private @numbers(%a: i32, %b: i64) -> i64 {
    // CHECK-NEXT: vm.ext.i32.i64.s %a {reads = ["i0"], writes = ["i0"]}
    // CHECK-NEXT: vm.add.i64 {{.*}} {reads = ["i0", "i2"], writes = ["i0"]}
    // CHECK-NEXT: vm.return {reads = ["i0"]}
    %0 = vm.ext.i32.i64.s %a : i32 -> i64
    %1 = vm.add.i64 %0, %b : i64
    vm.return %1 : i64
  }
  // Of two uses in one call the last one moves.
  // CHECK: vm.func private @twice
  vm.func private @twice(%a: !vm.buffer) {
    // CHECK-NEXT: vm.call @other.take(%a, %a) {reads = ["r0", "R0"]}
    vm.call @other.take(%a, %a) : (!vm.buffer, !vm.buffer) -> ()
    vm.return
  }
  // Values that change places need one more register.
  // CHECK: vm.func private @swap
  vm.func private @swap(%c: i32, %a: i32, %b: i32, %p: !vm.buffer, %q: !vm.buffer) {
    vm.br ^loop(%a, %b, %p, %q : i32, i32, !vm.buffer, !vm.buffer)
  ^loop(%x: i32, %y: i32, %r: !vm.buffer, %s: !vm.buffer):
    // CHECK: vm.cond_br {{.*}} copies = ["i2->i3, i1->i2, i3->i1, R1->r2, R0->r1, R2->r0", ""]
    vm.cond_br %c, ^loop(%y, %x, %s, %r : i32, i32, !vm.buffer, !vm.buffer), ^end
  ^end:
    vm.return
  }
}
