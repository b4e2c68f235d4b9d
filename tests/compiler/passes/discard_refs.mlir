// RUN: --pass-pipeline=discard-refs
vm.module public @m {
  vm.import private @other.take(%a : !vm.buffer)
  vm.global.ref private mutable @g : !vm.buffer
  // A call takes its argument over; what is not used goes at once.
  // CHECK: vm.func private @straight
  vm.func private @straight(%a: !vm.buffer, %b: !vm.buffer) {
    // CHECK-NEXT: vm.discard.refs %b : !vm.buffer
    // CHECK-NEXT: vm.buffer.length %a
    // CHECK-NEXT: vm.call @other.take(%a)
    // CHECK-NEXT: vm.const.ref.zero
    // CHECK-NEXT: vm.discard.refs
    // CHECK-NEXT: vm.return
    %0 = vm.buffer.length %a : !vm.buffer -> i64
    vm.call @other.take(%a) : (!vm.buffer) -> ()
    %1 = vm.const.ref.zero : !vm.buffer
    vm.return
  }
  // CHECK: vm.func private @last_read
  vm.func private @last_read(%a: !vm.buffer) -> i64 {
    // CHECK-NEXT: vm.buffer.length %a
    // CHECK-NEXT: vm.discard.refs %a : !vm.buffer
    %0 = vm.buffer.length %a : !vm.buffer -> i64
    vm.return %0 : i64
  }
  // Needed on one way only: released where the other begins.
  // CHECK: vm.func private @one_way
  vm.func private @one_way(%c: i32, %a: !vm.buffer) {
    // CHECK-NEXT: vm.cond_br %c, ^yes, ^no
    vm.cond_br %c, ^yes, ^no
  ^yes:
    vm.global.store.ref %a, @g : !vm.buffer
    vm.br ^end
  ^no:
    // CHECK: ^no:
    // CHECK-NEXT: vm.discard.refs %a : !vm.buffer
    vm.br ^end
  ^end:
    vm.return
  }
  // The other way is one of several into its block: a block for it alone.
  // CHECK: vm.func private @critical
  vm.func private @critical(%c: i32, %a: !vm.buffer) {
    // CHECK-NEXT: vm.cond_br %c, ^yes, ^[[SPLIT:bb[0-9]+]]
    // CHECK-NEXT: ^[[SPLIT]]:
    // CHECK-NEXT: vm.discard.refs %a : !vm.buffer
    // CHECK-NEXT: vm.br ^end
    // CHECK-NEXT: ^yes:
    // CHECK-NEXT: vm.global.store.ref %a, @g
    // CHECK-NEXT: vm.br ^end
    vm.cond_br %c, ^yes, ^end
  ^yes:
    vm.global.store.ref %a, @g : !vm.buffer
    vm.br ^end
  ^end:
    vm.return
  }
}
