"""Matrix products, convolutions and pooling."""

from __future__ import annotations

from .program import ANY_INTEGER, FLOATS, INTEGERS, Domain, Program, tensor, zero_of
from .reductions import limits

# Element types of the operands and of the sum.
PAIRS = (
    *((kind, kind) for kind in (*INTEGERS, *FLOATS)),
    ("i8", "i32"), ("i16", "i32"), ("i32", "i64"), ("f16", "f32"), ("bf16", "f32"), ("f32", "f64"),
)  # fmt: skip


def _domain(kind: str) -> tuple[Domain, ...]:
    return (ANY_INTEGER if kind in INTEGERS else Domain(-2, 2),)


def product(
    operation: str, a: str, b: str, c: str, kinds: tuple[str, str], sizes: tuple[int, ...] = ()
) -> Program:
    """A named product of two tensors of the given shapes; "?" is taken from the first that has it."""
    given, summed = kinds
    left, right, result = tensor(a, given), tensor(b, given), tensor(c, summed)
    lines, dims = _dimensions(operation, left, right, c)
    return Program(
        f"""
func.func @main(%a: {left}, %b: {right}) -> {result} {{
  {lines}%z = arith.constant {zero_of(summed)} : {summed}
  %e = tensor.empty({dims}) : {result}
  %f = linalg.fill ins(%z : {summed}) outs(%e : {result}) -> {result}
  %r = linalg.{operation} ins(%a, %b : {left}, {right}) outs(%f : {result}) -> {result}
  return %r : {result}
}}
""",
        sizes,
        _domain(given),
    )


def _dimensions(operation: str, left: str, right: str, result: str) -> tuple[str, str]:
    """What reads the sizes of a result's dynamic dimensions: the rows of `a`, the columns of `b`."""
    batch = int(operation.startswith("batch"))
    lines, names = "", []
    for i, size in enumerate(result.split("x")):
        if size == "?":
            name, kind, at = ("%b", right, i) if i == batch + 1 else ("%a", left, i)
            lines += f"%i{i} = arith.constant {at} : index\n  %n{i} = tensor.dim {name}, %i{i} : {kind}\n  "
            names.append(f"%n{i}")
    return lines, ", ".join(names)


_FIXED = "{{strides = dense<{s}> : tensor<{r}xi64>, dilations = dense<{d}> : tensor<{r}xi64>}}"


def windowed(
    operation: str,
    a: tuple[str, str],
    b: tuple[str, str],
    c: tuple[str, str],
    *,
    start: str,
    stride: int = 1,
    dilation: int = 1,
    rank: int = 2,
) -> Program:
    """A convolution or pooling: shapes and element types of the image, the filter or window, and the result."""
    image, window, result = (f"tensor<{shape}x{kind}>" for shape, kind in (a, b, c))
    pooled = operation.startswith("pooling")
    parameters = f"%a: {image}" if pooled else f"%a: {image}, %b: {window}"
    empty_window = f"%b = tensor.empty() : {window}\n  " if pooled else ""
    attributes = _FIXED.format(s=stride, d=dilation, r=rank)
    return Program(
        f"""
func.func @main({parameters}) -> {result} {{
  {empty_window}%z = arith.constant {start} : {c[1]}
  %e = tensor.empty() : {result}
  %f = linalg.fill ins(%z : {c[1]}) outs(%e : {result}) -> {result}
  %r = linalg.{operation} {attributes}
    ins(%a, %b : {image}, {window}) outs(%f : {result}) -> {result}
  return %r : {result}
}}
""",
        (),
        _domain(a[1]),
    )


def _products(kinds: tuple[str, str]) -> dict[str, Program]:
    name = "_".join(dict.fromkeys(kinds))
    return {
        f"matmul_{name}": product("matmul", "5x37", "37x53", "5x53", kinds),
        f"matmul_{name}_64": product("matmul", "64x64", "64x64", "64x64", kinds),
        f"batch_matmul_{name}": product("batch_matmul", "2x32x64", "2x64x32", "2x32x32", kinds),
    }


def _convolutions(kinds: tuple[str, str]) -> dict[str, Program]:
    given, summed = kinds
    name = "_".join(dict.fromkeys(kinds))
    zero = zero_of(summed)

    def convolution(operation: str, a: str, b: str, c: str, **options: int) -> Program:
        return windowed(operation, (a, given), (b, given), (c, summed), start=zero, **options)

    return {
        f"conv2d_nhwc_{name}": convolution("conv_2d_nhwc_hwcf", "1x12x12x3", "3x3x3x8", "1x10x10x8"),
        f"conv2d_nhwc_{name}_16": convolution("conv_2d_nhwc_hwcf", "1x18x18x16", "3x3x16x32", "1x16x16x32"),
        f"conv2d_nchw_{name}": convolution("conv_2d_nchw_fchw", "1x4x13x13", "8x4x3x3", "1x8x6x6", stride=2),
        f"depthwise_{name}": convolution(
            "depthwise_conv_2d_nhwc_hwc", "1x13x13x8", "3x3x8", "1x5x5x8", stride=2, dilation=2
        ),
    }


def _pooling(kind: str) -> dict[str, Program]:
    least, greatest = limits(kind)

    def pooling(operation: str, start: str, layout: str = "nhwc") -> Program:
        a, c = ("1x11x11x4", "1x5x5x4") if layout == "nhwc" else ("1x4x11x11", "1x4x5x5")
        name = f"pooling_{layout}_{operation}"
        return windowed(name, (a, kind), ("3x3", kind), (c, kind), start=start, stride=2)

    found = {
        f"pooling_max_{kind}": pooling("max", least),
        f"pooling_min_{kind}": pooling("min", greatest),
        f"pooling_sum_{kind}": pooling("sum", zero_of(kind)),
    }
    if kind in ("i8", "f16", "f32"):
        found[f"pooling_max_{kind}_nchw"] = pooling("max", least, "nchw")
    if kind in INTEGERS:
        found[f"pooling_max_unsigned_{kind}"] = pooling("max_unsigned", "0")
    return found


def programs() -> dict[str, Program]:
    found: dict[str, Program] = {}
    for kinds in PAIRS:
        found |= _products(kinds)
    for kinds in (
        ("i8", "i32"),
        ("i64", "i64"),
        ("f16", "f16"),
        ("bf16", "bf16"),
        ("f32", "f32"),
        ("f64", "f64"),
    ):
        name = "_".join(dict.fromkeys(kinds))
        found[f"matmul_{name}_dynamic"] = product("matmul", "?x24", "24x16", "?x16", kinds, (7,))
        found[f"batch_matmul_{name}_odd"] = product("batch_matmul", "3x5x16", "3x16x9", "3x5x9", kinds)
    for kind in ("i8", "i32", "f16", "f32", "bf16", "f64"):
        found[f"matvec_{kind}"] = product("matvec", "64x128", "128", "64", (kind, kind))
        found[f"vecmat_{kind}"] = product("vecmat", "128", "128x64", "64", (kind, kind))
        found[f"dot_{kind}"] = product("dot", "1000", "1000", "", (kind, kind))
    found["matmul_f32_128x256x96"] = product("matmul", "128x96", "96x256", "128x256", ("f32", "f32"))
    found["matmul_f32_all_dynamic"] = product("matmul", "?x?", "?x?", "?x?", ("f32", "f32"), (5, 9, 9, 13))
    found["batch_matmul_f32_dynamic"] = product(
        "batch_matmul", "?x?x8", "?x8x?", "?x?x?", ("f32", "f32"), (2, 5, 2, 13)
    )
    for kinds in (
        *((k, k) for k in ("i8", "i32", "i64", *FLOATS)),
        ("i8", "i32"),
        ("f16", "f32"),
        ("bf16", "f32"),
    ):
        found |= _convolutions(kinds)
    for kind in (*INTEGERS, *FLOATS):
        found |= _pooling(kind)
    found["conv1d_f32"] = windowed(
        "conv_1d_nwc_wcf", ("2x14x3", "f32"), ("4x3x5", "f32"), ("2x11x5", "f32"), start="0.0", rank=1
    )
    found["conv3d_f32"] = windowed(
        "conv_3d_ndhwc_dhwcf",
        ("1x5x6x7x2", "f32"),
        ("2x3x2x2x4", "f32"),
        ("1x4x4x6x4", "f32"),
        start="0.0",
        rank=3,
    )
    return found
