"""StableHLO programs: what JAX and others make, operation by operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .program import Domain, Program, tensor

POSITIVE = Domain(0.25, 9.0)
SMALL = Domain(0, 250)
# Whole words of any type: of others, kernels for Vulkan devices without 8-bit storage lose the last elements.
EVEN = "4x9"
_NAMES = "abcdefgh"


def function(parameters: Iterable[str], results: Iterable[str], body: str, **options: Any) -> Program:
    """A program of statements on %a, %b…; the last line lists what is returned."""
    given = ", ".join(f"%{name}: {type_}" for name, type_ in zip(_NAMES, parameters, strict=False))
    kinds = ", ".join(results)
    *lines, returned = body.strip().splitlines()
    text = "\n".join(f"  {line}" for line in [*lines, f"return {returned} : {kinds}"])
    return Program(f"\nfunc.func @main({given}) -> ({kinds}) {{\n{text}\n}}\n", **options)


def each(kind: str, operations: Iterable[str], count: int, *domains: Domain, **options: Any) -> Program:
    """Elementwise operations on the same `count` operands, a result each."""
    names = operations if isinstance(operations, tuple) else tuple(operations)
    t = tensor(EVEN, kind)
    operands = ", ".join(f"%{name}" for name in _NAMES[:count])
    lines = [f"%r{i} = stablehlo.{name} {operands} : {t}" for i, name in enumerate(names)]
    lines.append(", ".join(f"%r{i}" for i in range(len(names))))
    return function(
        [t] * count, [t] * len(names), "\n".join(lines), domains=domains or (Domain(),), **options
    )


def _elementwise() -> dict[str, Program]:
    found: dict[str, Program] = {}
    for kind in ("f32", "f16", "bf16"):
        rough = {"ulps": 64}
        found |= {
            f"hlo_round_{kind}": each(
                kind, ("abs", "ceil", "floor", "sign", "round_nearest_afz", "round_nearest_even"), 1
            ),
            f"hlo_exponential_{kind}": each(
                kind, ("exponential", "exponential_minus_one", "logistic", "sine", "tanh"), 1, **rough
            ),
            f"hlo_roots_{kind}": each(
                kind, ("log", "log_plus_one", "sqrt", "rsqrt", "cbrt"), 1, POSITIVE, **rough
            ),
            f"hlo_divide_{kind}": each(
                kind, ("divide", "remainder", "power"), 2, POSITIVE, POSITIVE, **rough
            ),
        }
    for kind in ("i8", "i16", "i32", "i64", "ui8"):
        width = int(kind.strip("ui"))
        values = SMALL if kind == "ui8" else Domain(-120, 120)
        shifts = ("shift_left", "shift_right_arithmetic", "shift_right_logical")
        found |= {
            f"hlo_divide_{kind}": each(kind, ("divide", "remainder"), 2, values, Domain(1, 9)),
            f"hlo_shift_{kind}": each(kind, shifts, 2, values, Domain(0, width - 1)),
            f"hlo_bits_{kind}": each(kind, ("popcnt", "count_leading_zeros", "not"), 1, values),
        }
    return found


def _converts() -> dict[str, Program]:
    """Every type to every other; what has no CPU code or no kernel is refused alone."""
    kinds = ("i1", "i8", "i32", "i64", "f16", "bf16", "f32")
    found = {}
    for source in kinds:
        others = [kind for kind in kinds if kind != source]
        given = tensor(EVEN, source)
        made = [tensor(EVEN, kind) for kind in others]
        lines = [f"%r{i} = stablehlo.convert %a : ({given}) -> {t}" for i, t in enumerate(made)]
        parts = {
            kind: function([given], [t], f"{line}\n%r{i}", domains=(Domain(0, 100),))
            for i, (kind, t, line) in enumerate(zip(others, made, lines, strict=True))
        }
        listed = ", ".join(f"%r{i}" for i in range(len(made)))
        body = "\n".join([*lines, listed])
        found[f"hlo_convert_{source}"] = function([given], made, body, domains=(Domain(0, 100),), parts=parts)
    return found


_GATHER = "offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1"
_SCATTER = "update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1"


def _region(kind: str, body: str, result: str = "%s") -> str:
    """A region of two scalars x and y."""
    t = tensor("", kind)
    end = f"  stablehlo.return {result} : {tensor('', 'i1') if result == '%p' else t}\n"
    return f"({{\n^bb0(%x: {t}, %y: {t}):\n  {body}\n{end}}})"


def _moves(kind: str) -> dict[str, Program]:
    def t(shape: str) -> str:
        return tensor(shape, kind)

    at = Domain(-5, 9)
    exact: dict[str, Any] = {"ulps": 0}
    found = {
        "broadcast": function(
            [t("3"), t("1x4")],
            [t("2x3x4"), t("3x4")],
            f"""%r = stablehlo.broadcast_in_dim %a, dims = [1] : ({t("3")}) -> {t("2x3x4")}
%s = stablehlo.broadcast_in_dim %b, dims = [0, 1] : ({t("1x4")}) -> {t("3x4")}
%r, %s""",
            **exact,
        ),
        "slice": function(
            [t("9x10")],
            [t("3x3")],
            f"%r = stablehlo.slice %a [1:8:3, 2:9:3] : ({t('9x10')}) -> {t('3x3')}\n%r",
            **exact,
        ),
        "dynamic_slice": function(
            [t("9x10"), "tensor<i32>", "tensor<i32>"],
            [t("4x3")],
            f"%r = stablehlo.dynamic_slice %a, %b, %c, sizes = [4, 3] : "
            f"({t('9x10')}, tensor<i32>, tensor<i32>) -> {t('4x3')}\n%r",
            domains=(Domain(), at),
            **exact,
        ),
        "dynamic_update_slice": function(
            [t("9x10"), t("4x3"), "tensor<i64>", "tensor<i64>"],
            [t("9x10")],
            f"%r = stablehlo.dynamic_update_slice %a, %b, %c, %d : "
            f"({t('9x10')}, {t('4x3')}, tensor<i64>, tensor<i64>) -> {t('9x10')}\n%r",
            domains=(Domain(), Domain(), at),
            **exact,
        ),
        "concatenate": function(
            [t("2x3"), t("2x1"), t("2x4")],
            [t("2x8")],
            f"%r = stablehlo.concatenate %a, %b, %c, dim = 1 : ({t('2x3')}, {t('2x1')}, {t('2x4')}) -> {t('2x8')}\n%r",
            **exact,
        ),
        "reverse": function(
            [t("3x4x5")],
            [t("3x4x5")],
            f"%r = stablehlo.reverse %a, dims = [0, 2] : {t('3x4x5')}\n%r",
            **exact,
        ),
        "pad": function(
            [t("4x5"), t("")],
            [t("6x13"), t("2x4")],
            f"""%r = stablehlo.pad %a, %b, low = [1, 2], high = [1, 2], interior = [0, 1] :\
 ({t("4x5")}, {t("")}) -> {t("6x13")}
%s = stablehlo.pad %a, %b, low = [-1, 0], high = [-1, -1], interior = [0, 0] : ({t("4x5")}, {t("")}) -> {t("2x4")}
%r, %s""",
            **exact,
        ),
        "gather": function(
            [t("9x5"), "tensor<4x1xi32>"],
            [t("4x5")],
            f'%r = "stablehlo.gather"(%a, %b) {{dimension_numbers = #stablehlo.gather<{_GATHER}>, '
            f"slice_sizes = array<i64: 1, 5>}} : ({t('9x5')}, tensor<4x1xi32>) -> {t('4x5')}\n%r",
            domains=(Domain(), Domain(0, 8)),
            **exact,
        ),
    }
    return {f"hlo_{name}_{kind}": program for name, program in found.items()}


def scatter(kind: str, update: str) -> Program:
    """Rows put or combined where several may go to one place."""
    t, body = tensor("8x3", kind), f"%s = stablehlo.{update} %x, %y : {tensor('', kind)}"
    return function(
        [t, "tensor<4x1xi32>", tensor("4x3", kind)],
        [t],
        f'%r = "stablehlo.scatter"(%a, %b, %c) {_region(kind, body)} '
        f"{{scatter_dimension_numbers = #stablehlo.scatter<{_SCATTER}>}} : "
        f"({t}, tensor<4x1xi32>, {tensor('4x3', kind)}) -> {t}\n%r",
        domains=(Domain(), Domain(0, 7), Domain()),
    )


def sort(kind: str, axis: int) -> Program:
    t = tensor("9x8", kind)
    scalar = tensor("", kind)
    body = f"%p = stablehlo.compare LT, %x, %y : ({scalar}, {scalar}) -> tensor<i1>"
    text = f'%r = "stablehlo.sort"(%a) {_region(kind, body, "%p")} {{dimension = {axis} : i64}} : ({t}) -> {t}\n%r'
    return function([t], [t], text, domains=(Domain(-1000, 1000),), ulps=0)


def reduce(kind: str, operation: str, start: str) -> Program:
    t, z = tensor("6x7x3", kind), tensor("", kind)
    rows, columns = tensor("6x3", kind), tensor("7", kind)
    start_of = f"%z = stablehlo.constant dense<{start}> : {z}"
    applied = f"stablehlo.reduce(%a init: %z) applies stablehlo.{operation} across dimensions"
    body = f"{start_of}\n%r = {applied} = [1] : ({t}, {z}) -> {rows}\n%s = {applied} = [0, 2] : ({t}, {z}) -> {columns}"
    return function([t], [rows, columns], f"{body}\n%r, %s")


def window(kind: str, operation: str, start: str, sizes: tuple[str, str], attributes: str) -> Program:
    t, made, z = tensor(sizes[0], kind), tensor(sizes[1], kind), tensor("", kind)
    region = _region(kind, f"%s = stablehlo.{operation} %x, %y : {z}")
    return function(
        [t],
        [made],
        f'%z = stablehlo.constant dense<{start}> : {z}\n%r = "stablehlo.reduce_window"(%a, %z) {region} '
        f"{{{attributes}}} : ({t}, {z}) -> {made}\n%r",
    )


def _windows() -> dict[str, Program]:
    lowest, halves = (
        "0xFF800000",
        "window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>",
    )
    image = "1x8x8x3"
    return {
        "hlo_window_max": window("f32", "maximum", lowest, (image, "1x4x4x3"), halves),
        "hlo_window_min": window(
            "i32",
            "minimum",
            "2147483647",
            ("6x7", "3x7"),
            "window_dimensions = array<i64: 2, 3>, window_strides = array<i64: 2, 1>, "
            "padding = dense<[[0, 0], [1, 1]]> : tensor<2x2xi64>",
        ),
        "hlo_window_running_sum": window(
            "f32",
            "add",
            "0.0",
            ("6x7", "6x7"),
            "window_dimensions = array<i64: 1, 7>, padding = dense<[[0, 0], [6, 0]]> : tensor<2x2xi64>",
        ),
        "hlo_window_dilated": window(
            "f32",
            "add",
            "0.0",
            ("1x9x9x2", "1x5x5x2"),
            "window_dimensions = array<i64: 1, 3, 3, 1>, window_dilations = array<i64: 1, 2, 2, 1>",
        ),
        "hlo_window_spread": window(
            "f32",
            "add",
            "0.0",
            ("6x7", "10x12"),
            "window_dimensions = array<i64: 2, 2>, base_dilations = array<i64: 2, 2>",
        ),
    }


def convolution(
    shapes: tuple[str, str, str], how: str, groups: tuple[int, int] = (1, 1), layout: str = ""
) -> Program:
    a, b, r = (tensor(shape, "f32") for shape in shapes)
    dims = layout or "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"
    counts = f"feature_group_count = {groups[0]} : i64, batch_group_count = {groups[1]} : i64"
    text = f"%r = stablehlo.convolution(%a, %b) dim_numbers = {dims}, window = {{{how}}} {{{counts}}} : ({a}, {b}) -> {r}"
    return function([a, b], [r], f"{text}\n%r")


def _convolutions() -> dict[str, Program]:
    one = "stride = [1, 1], pad = [[0, 0], [0, 0]]"
    channels = "[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]"
    found = {
        "same": convolution(("1x8x8x3", "3x3x3x4", "1x8x8x4"), "stride = [1, 1], pad = [[1, 1], [1, 1]]"),
        "stride": convolution(("2x9x8x3", "3x2x3x4", "2x4x4x4"), "stride = [2, 2], pad = [[0, 0], [0, 0]]"),
        "dilated": convolution(("1x9x9x3", "3x3x3x4", "1x5x5x4"), f"{one}, rhs_dilate = [2, 2]"),
        "transposed": convolution(
            ("1x4x4x3", "3x3x3x4", "1x7x7x4"), "stride = [1, 1], pad = [[1, 1], [1, 1]], lhs_dilate = [2, 2]"
        ),
        "groups": convolution(("1x6x6x4", "3x3x2x6", "1x4x4x6"), one, (2, 1)),
        "depthwise": convolution(("1x6x6x4", "3x3x1x8", "1x4x4x8"), one, (4, 1)),
        "batch_groups": convolution(("4x6x6x3", "3x3x3x4", "2x4x4x4"), one, (1, 2)),
        "nchw": convolution(("1x3x8x8", "4x3x3x3", "1x4x6x6"), one, layout=channels),
        "reversed": convolution(("1x6x6x2", "3x3x2x3", "1x4x4x3"), f"{one}, reverse = [true, true]"),
        "1d": convolution(
            ("2x10x3", "3x3x4", "2x8x4"),
            "stride = [1], pad = [[0, 0]]",
            layout="[b, 0, f]x[0, i, o]->[b, 0, f]",
        ),
        "3d": convolution(
            ("1x5x5x5x2", "2x2x2x2x3", "1x4x4x4x3"),
            "stride = [1, 1, 1], pad = [[0, 0], [0, 0], [0, 0]]",
            layout="[b, 0, 1, 2, f]x[0, 1, 2, i, o]->[b, 0, 1, 2, f]",
        ),
    }
    return {f"hlo_convolution_{name}": program for name, program in found.items()}


def dot(shapes: tuple[str, str, str], how: str, kind: str = "f32", sum_kind: str = "") -> Program:
    a, b, r = tensor(shapes[0], kind), tensor(shapes[1], kind), tensor(shapes[2], sum_kind or kind)
    return function([a, b], [r], f"%r = stablehlo.dot_general %a, %b, {how} : ({a}, {b}) -> {r}\n%r")


def _dots() -> dict[str, Program]:
    kinds = (("f16", "f32"), ("bf16", "f32"), ("i8", "i32"), ("i16", "i32"), ("i64", "i64"))
    found = {
        f"hlo_dot_{kind}_{total}": dot(("5x7", "7x6", "5x6"), "contracting_dims = [1] x [0]", kind, total)
        for kind, total in kinds
    }
    return found | {
        "hlo_dot_batch": dot(
            ("4x5x3", "5x6x3", "3x4x6"), "batching_dims = [2] x [2], contracting_dims = [1] x [0]"
        ),
        "hlo_dot_several": dot(("3x4x5x2", "4x2x6", "3x5x6"), "contracting_dims = [1, 3] x [0, 1]"),
        "hlo_dot_outer": dot(("4", "5", "4x5"), "contracting_dims = [] x []"),
    }


ARGMAX = """%i = stablehlo.iota dim = 1 : tensor<5x9xi32>
%z = stablehlo.constant dense<0xFF800000> : tensor<f32>
%n = stablehlo.constant dense<0> : tensor<i32>
%r:2 = stablehlo.reduce(%a init: %z), (%i init: %n) across dimensions = [1] :\
 (tensor<5x9xf32>, tensor<5x9xi32>, tensor<f32>, tensor<i32>) -> (tensor<5xf32>, tensor<5xi32>)
 reducer(%x: tensor<f32>, %y: tensor<f32>) (%p: tensor<i32>, %q: tensor<i32>) {
  %k = stablehlo.compare GE, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %s = stablehlo.select %k, %x, %y : tensor<i1>, tensor<f32>
  %u = stablehlo.select %k, %p, %q : tensor<i1>, tensor<i32>
  stablehlo.return %s, %u : tensor<f32>, tensor<i32>
}
%r#0, %r#1"""
CASE = """%r = "stablehlo.case"(%a) ({
  %x = stablehlo.exponential %b : tensor<4xf32>
  stablehlo.return %x : tensor<4xf32>
}, {
  %x = stablehlo.negate %b : tensor<4xf32>
  stablehlo.return %x : tensor<4xf32>
}) : (tensor<i32>) -> tensor<4xf32>
%r"""
POWERS = """%z = stablehlo.constant dense<0> : tensor<i32>
%one = stablehlo.constant dense<1> : tensor<i32>
%r:2 = stablehlo.while(%x = %a, %i = %z) : tensor<6x6xf32>, tensor<i32>
 cond {
  %k = stablehlo.compare LT, %i, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.return %k : tensor<i1>
 } do {
  %y = stablehlo.dot %x, %a : (tensor<6x6xf32>, tensor<6x6xf32>) -> tensor<6x6xf32>
  %t = stablehlo.tanh %y : tensor<6x6xf32>
  %j = stablehlo.add %i, %one : tensor<i32>
  stablehlo.return %t, %j : tensor<6x6xf32>, tensor<i32>
 }
%r#0"""
SPECTRUM = """%r = stablehlo.fft %a, type = RFFT, length = [32] : (tensor<8x32xf32>) -> tensor<8x17xcomplex<f32>>
%x = stablehlo.real %r : (tensor<8x17xcomplex<f32>>) -> tensor<8x17xf32>
%y = stablehlo.imag %r : (tensor<8x17xcomplex<f32>>) -> tensor<8x17xf32>
%x, %y"""
COMPLEX = """%k = stablehlo.complex %a, %b : tensor<5x3xcomplex<f32>>
%m = stablehlo.multiply %k, %k : tensor<5x3xcomplex<f32>>
%r = stablehlo.real %m : (tensor<5x3xcomplex<f32>>) -> tensor<5x3xf32>
%i = stablehlo.imag %m : (tensor<5x3xcomplex<f32>>) -> tensor<5x3xf32>
%r, %i"""
SCALED = """%d = stablehlo.get_dimension_size %a, dim = 0 : (tensor<?x4xf32>) -> tensor<i32>
%one = stablehlo.reshape %d : (tensor<i32>) -> tensor<1xi32>
%k = stablehlo.constant dense<4> : tensor<1xi32>
%n = stablehlo.concatenate %one, %k, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
%c = stablehlo.constant dense<2.5> : tensor<f32>
%b = stablehlo.dynamic_broadcast_in_dim %c, %n, dims = [] : (tensor<f32>, tensor<2xi32>) -> tensor<?x4xf32>
%r = stablehlo.multiply %a, %b : tensor<?x4xf32>
%r"""
EMPTY = """%r = stablehlo.exponential %a : tensor<0x4xf32>
%z = stablehlo.constant dense<1.5> : tensor<f32>
%s = stablehlo.reduce(%b init: %z) applies stablehlo.add across dimensions = [1] :\
 (tensor<3x0xf32>, tensor<f32>) -> tensor<3xf32>
%r, %s"""
LARGEST = """%r:2 = chlo.top_k(%a, k = 5) : tensor<4x16xf32> -> (tensor<4x5xf32>, tensor<4x5xi32>)
%r#0, %r#1"""
RANDOM = """%r, %s = stablehlo.rng_bit_generator %a, algorithm = THREE_FRY :\
 (tensor<2xui64>) -> (tensor<2xui64>, tensor<8xui32>)
%s"""


def _special_functions() -> dict[str, Program]:
    t = "tensor<9xf32>"
    names = ("erf_inv", "lgamma", "digamma", "bessel_i1e")
    return {
        f"chlo_{n}": function(
            [t], [t], f"%r = chlo.{n} %a : {t} -> {t}\n%r", domains=(Domain(0.1, 0.9),), ulps=256
        )
        for n in names
    }


def programs() -> dict[str, Program]:
    found = _elementwise() | _converts() | _windows() | _convolutions() | _dots() | _special_functions()
    for kind in ("i8", "f32"):
        found |= _moves(kind)
        found[f"hlo_sort_{kind}"] = sort(kind, 1)
        found[f"hlo_scatter_{kind}_add"] = scatter(kind, "add")
        found[f"hlo_scatter_{kind}_maximum"] = scatter(kind, "maximum")
    for kind, operation, start in (
        ("f32", "multiply", "1.0"), ("f16", "maximum", "-100.0"), ("bf16", "add", "0.0"), ("i1", "or", "false"),
        ("i8", "maximum", "-128"), ("i32", "xor", "0"), ("i64", "add", "0"),
    ):  # fmt: skip
        found[f"hlo_reduce_{operation}_{kind}"] = reduce(kind, operation, start)
    found |= {
        "hlo_argmax": function(["tensor<5x9xf32>"], ["tensor<5xf32>", "tensor<5xi32>"], ARGMAX),
        "hlo_case": function(
            ["tensor<i32>", "tensor<4xf32>"], ["tensor<4xf32>"], CASE, domains=(Domain(0, 1), Domain())
        ),
        "hlo_while": function(
            ["tensor<6x6xf32>", "tensor<i32>"],
            ["tensor<6x6xf32>"],
            POWERS,
            domains=(Domain(-1, 1), Domain(5, 9)),
            ulps=256,
        ),
        "hlo_fft": function(["tensor<8x32xf32>"], ["tensor<8x17xf32>"] * 2, SPECTRUM, ulps=64),
        "hlo_complex": function(["tensor<5x3xf32>"] * 2, ["tensor<5x3xf32>"] * 2, COMPLEX),
        "hlo_dynamic_broadcast": function(["tensor<?x4xf32>"], ["tensor<?x4xf32>"], SCALED, sizes=(5,)),
        "hlo_empty": function(
            ["tensor<0x4xf32>", "tensor<3x0xf32>"], ["tensor<0x4xf32>", "tensor<3xf32>"], EMPTY
        ),
        "hlo_random": function(["tensor<2xui64>"], ["tensor<8xui32>"], RANDOM, domains=(Domain(0, 1000),)),
        "chlo_top_k": function(["tensor<4x16xf32>"], ["tensor<4x5xf32>", "tensor<4x5xi32>"], LARGEST),
    }
    return found
