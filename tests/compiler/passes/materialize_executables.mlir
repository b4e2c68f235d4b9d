// RUN: --pass-pipeline=materialize-executables
hal.executable private @kernels {
  hal.executable.binary public @cl <data = "abc", format = "opencl-c">
  hal.executable.binary public @cu <data = dense<[1, 2]> : vector<2xi8>, format = "cuda-c", mime_type = "text/plain">
}
util.func public @f() -> !hal.executable {
  %0 = hal_loader.executable.lookup executable(@kernels) : !hal.executable
  util.return %0 : !hal.executable
}
// CHECK: util.global private @kernels : !hal.executable
// CHECK-NEXT: util.initializer {
// CHECK-NEXT: [[CL:%.*]] = hal_loader.executable.query_support format("opencl-c") : i1
// CHECK-NEXT: cf.cond_br [[CL]], ^[[LOAD_CL:bb[0-9]+]], ^[[ASK_CU:bb[0-9]+]]
// CHECK: ^[[LOAD_CL]]:
// CHECK-NEXT: [[DATA:%.*]] = util.buffer.constant "cl" <alignment = 64> : !util.buffer = "abc"
// CHECK-NEXT: [[EXE:%.*]] = hal_loader.executable.load format("opencl-c") data([[DATA]]) : !hal.executable
// CHECK-NEXT: cf.br ^[[DONE:bb[0-9]+]]([[EXE]] : !hal.executable)
// CHECK: ^[[ASK_CU]]:
// CHECK-NEXT: hal_loader.executable.query_support format("cuda-c") : i1
// CHECK: util.status.check_ok %{{.*}}, "none of the executable binaries
// CHECK: ^[[DONE]]([[LOADED:%.*]]: !hal.executable):
// CHECK-NEXT: util.global.store [[LOADED]], @kernels : !hal.executable
// CHECK-NOT: hal.executable.binary
// CHECK: util.func public @f()
// CHECK-NEXT: util.global.load @kernels : !hal.executable
