"""The hint about constants that iree-compile lost: where it belongs and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

import halgpu
from halgpu import errors, lost_constants, vm
from halgpu.lost_constants import HINT
from halgpu.vm import assembler, writer

DENSE = f"dense<[{', '.join(str(number * 7 % 101) for number in range(64))}]> : tensor<64xi32>"
OTHER = f"dense<[{', '.join(str(number * 5 % 103) for number in range(64))}]> : tensor<64xi32>"
LOST = f"""
module @lost {{
  func.func @get() -> tensor<64xi32> {{
    %w = arith.constant {DENSE}
    return %w : tensor<64xi32>
  }}
  func.func @update(%a: tensor<4xi32>, %i: index) -> tensor<64xi32> {{
    %w = arith.constant {OTHER}
    %0 = tensor.insert_slice %a into %w[%i] [4] [1] : tensor<4xi32> into tensor<64xi32>
    return %0 : tensor<64xi32>
  }}
  func.func @element(%i: index) -> i32 {{
    %w = arith.constant {DENSE}
    %0 = tensor.extract %w[%i] : tensor<64xi32>
    return %0 : i32
  }}
  func.func @abs(%a: tensor<2xf32>) -> tensor<2xf32> {{
    %0 = math.absf %a : tensor<2xf32>
    return %0 : tensor<2xf32>
  }}
}}
"""


@pytest.fixture(scope="module")
def lost(compile_mlir):
    return compile_mlir(LOST)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("get", ()), ("update", (np.zeros(4, np.int32), 1)), ("element", (3,))],
)
def test_a_call_that_fails_for_a_lost_constant_has_the_hint(lost, name, arguments):
    with pytest.raises(errors.InvalidArgument) as caught:
        halgpu.load(lost, "opencl")[name](*arguments)
    assert caught.value.message == f"expected a vm.buffer, found null, in {caught.value.frames[0]}; {HINT}"
    assert str(caught.value) == caught.value.message


def test_other_calls_of_the_program_have_not(lost):
    module = halgpu.load(lost, "opencl")
    assert np.asarray(module.abs(np.array([-1, 2], np.float32))).tolist() == [1, 2]
    with pytest.raises(errors.InvalidArgument, match="found null") as caught:
        module.abs(None)
    assert HINT not in str(caught.value)


def test_users_are_the_functions_that_use_one(lost, compile_mlir, examples):
    assert lost_constants.users(vm.BytecodeModule.load(lost)) == ("lost.get", "lost.update", "lost.element")
    for name in ("abs", "counter", "network"):
        program = compile_mlir((examples / f"{name}.mlir").read_text())
        assert lost_constants.users(vm.BytecodeModule.load(program)) == ()


LENGTH = """
vm.module @m
vm.type !vm.buffer
vm.type i64
vm.export @f
vm.func @f() -> (i64) {
^bb0:
  LOAD
  %i0:1 = vm.buffer.length %r0
  vm.return %i0
}
vm.export @set
vm.func @set(%r0: !vm.ref<?>, %i0:1: i64) -> () {
^bb0:
  STORE
  vm.return
}
"""
LOAD_REF = "%r0 = vm.global.load.ref .refs[1] : !vm.buffer"
LOAD_I64 = "%r0 = vm.const.ref.zero\n  %i0:1 = vm.global.load.i64 .rwdata[4]"


@pytest.mark.parametrize(
    ("load", "store", "hinted"),
    [
        (LOAD_REF, "", True),
        (LOAD_REF, "vm.global.store.ref %r0, .refs[0] : !vm.buffer", True),
        (LOAD_REF, "vm.global.store.ref %r0, .refs[1] : !vm.buffer", False),
        (LOAD_REF, "vm.global.store.indirect.ref %r0, .refs[%i0] : !vm.buffer", False),
        (LOAD_I64, "", True),
        (LOAD_I64, "vm.global.store.i32 %i0, .rwdata[0]", True),
        (LOAD_I64, "vm.global.store.i32 %i0, .rwdata[8]", False),
        (LOAD_I64, "vm.global.store.i64 %i0:1, .rwdata[0]", False),
        ("%r0 = vm.const.ref.zero", "", False),
    ],
)
def test_a_global_that_is_stored_somewhere_is_none(load, store, hinted):
    text = LENGTH.replace("LOAD", load).replace("STORE", store)
    module = halgpu.load(writer.write(assembler.assemble(text, "m.vmasm")), "null")
    with pytest.raises(errors.InvalidArgument, match=r"expected a vm\.buffer, found null") as caught:
        module.f()
    assert (HINT in str(caught.value)) == hinted


def test_an_initializer_that_fails_has_the_hint():
    text = LENGTH.replace("LOAD", LOAD_REF).replace("STORE", "").replace("@f() -> (i64)", "@__init() -> ()")
    text = text.replace("vm.export @f", "vm.export @__init").replace("vm.return %i0", "vm.return")
    with pytest.raises(errors.InvalidArgument, match="found null") as caught:
        halgpu.load(writer.write(assembler.assemble(text, "m.vmasm")), "null")
    assert str(caught.value).endswith(HINT)
