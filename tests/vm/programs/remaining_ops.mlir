// The instructions that iree-as-module cannot assemble: global access by a computed offset, switch.ref, and the
// debug instructions. Compile with `iree-compile --compile-mode=vm`.
vm.module @remaining_ops {
  vm.global.i32 private mutable @a_i32 : i32
  vm.global.i64 private mutable @a_i64 : i64
  vm.global.f32 private mutable @a_f32 : f32
  vm.global.f64 private mutable @a_f64 : f64
  vm.global.ref private mutable @a_ref : !vm.ref<!vm.buffer>

  vm.export @indirect_i32
  vm.func @indirect_i32(%offset: i32, %value: i32) -> i32 {
    %old = vm.global.load.indirect.i32 %offset : i32 -> i32
    vm.global.store.indirect.i32 %value, %offset : i32 -> i32
    vm.return %old : i32
  }

  vm.export @indirect_i64
  vm.func @indirect_i64(%offset: i32, %value: i64) -> i64 {
    %old = vm.global.load.indirect.i64 %offset : i32 -> i64
    vm.global.store.indirect.i64 %value, %offset : i64 -> i32
    vm.return %old : i64
  }

  vm.export @indirect_f32
  vm.func @indirect_f32(%offset: i32, %value: f32) -> f32 {
    %old = vm.global.load.indirect.f32 %offset : i32 -> f32
    vm.global.store.indirect.f32 %value, %offset : f32 -> i32
    vm.return %old : f32
  }

  vm.export @indirect_f64
  vm.func @indirect_f64(%offset: i32, %value: f64) -> f64 {
    %old = vm.global.load.indirect.f64 %offset : i32 -> f64
    vm.global.store.indirect.f64 %value, %offset : f64 -> i32
    vm.return %old : f64
  }

  vm.export @indirect_ref
  vm.func @indirect_ref(%offset: i32, %value: !vm.ref<!vm.buffer>) -> !vm.ref<!vm.buffer> {
    %old = vm.global.load.indirect.ref %offset : i32 -> !vm.ref<!vm.buffer>
    vm.global.store.indirect.ref %value, %offset : !vm.ref<!vm.buffer> -> i32
    vm.return %old : !vm.ref<!vm.buffer>
  }

  vm.export @switch_ref
  vm.func @switch_ref(
      %index: i32, %a: !vm.ref<!vm.buffer>, %b: !vm.ref<!vm.buffer>
  ) -> !vm.ref<!vm.buffer> {
    vm.trace "an event"(%index, %a) : i32, !vm.ref<!vm.buffer>
    vm.print "hello, world"(%index) : i32
    %0 = vm.switch.ref %index[%a, %b] else %a : !vm.ref<!vm.buffer>
    vm.return %0 : !vm.ref<!vm.buffer>
  }
}
