"""Declarations as iree-compile 3.13 writes them, and conventions without one."""

from __future__ import annotations

import pytest

from halgpu import errors, signature


def of(cconv: str, declaration: str = "") -> signature.Signature:
    return signature.of_function(cconv, {signature.DECLARATION: declaration} if declaration else {})


def test_tensors_have_shapes_and_element_types():
    found = of(
        "0rr_r",
        "sync func @f(%weights: tensor<2x?xf32>, %input1: tensor<ui8>) -> (%output0: tensor<3x0x4xcomplex<f32>>)",
    )
    assert [(value.name, value.shape, str(value.element)) for value in found.parameters + found.results] == [
        ("weights", (2, -1), "f32"), ("input1", (), "ui8"), ("output0", (3, 0, 4), "cf64"),
    ]  # fmt: skip
    assert all(value.is_tensor for value in found.parameters)


def test_scalars_may_be_narrower_than_their_register():
    text = "sync func @f(%a: i8, %b: i1, %c: f16, %d: index, %e: f64) -> (%o: bf16)"
    found = of("0iiiIF_i", text)
    assert [str(value.element) for value in found.parameters] == ["i8", "i1", "f16", "i64", "f64"]
    assert str(found.results[0].element) == "bf16"
    assert found.declaration == text


def test_attributes_and_encodings_are_passed_over():
    found = of(
        "0rrr_v", "sync func @f(%a: tensor<2xf32> {iree.abi.output = 0 : index}, %b: tensor<f8E4M3FN, #enc<a, b>>, "
        "%c: !hal.buffer) -> ()",
    )  # fmt: skip
    assert [(value.shape, str(value.element)) for value in found.parameters] == [
        ((2,), "f32"), ((), "f8E4M3FN"), (None, "None"),
    ]  # fmt: skip
    assert found.parameters[2].text == "!hal.buffer"


@pytest.mark.parametrize("text", ["", "nonsense", "sync func @f(%a: i32) -> ()", "sync func @f((((%a: i32"])
def test_without_a_fitting_declaration_the_convention_decides(text):
    found = of("0rIf_rF", text)
    assert [str(value) for value in found.parameters] == ["input0: !vm.ref<?>", "input1: i64", "input2: f32"]
    assert [value.text for value in found.results] == ["!vm.ref<?>", "f64"]


@pytest.mark.parametrize("cconv", ["", "0v_v", "0_v", "0_"])
def test_nothing_in_and_nothing_out(cconv):
    assert of(cconv) == signature.Signature((), ())


@pytest.mark.parametrize("cconv", ["1r_r", "0CrD_r", "0x_v", "0r", "r_r"])
def test_conventions_that_python_cannot_call(cconv):
    with pytest.raises(errors.Unimplemented, match="calling convention"):
        of(cconv)


@pytest.mark.parametrize(
    ("shape", "fits"),
    [((2, 3), True), ((2, 0), True), ((3, 3), False), ((2,), False), ((2, 3, 1), False), ((), False)],
)
def test_dynamic_sizes_take_any_size(shape, fits):
    [value] = of("0r_v", "sync func @f(%a: tensor<2x?xf32>) -> ()").parameters
    assert value.accepts_shape(shape) is fits
