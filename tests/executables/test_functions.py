"""Conversions and the extended instructions of GLSL.std.450, against numpy."""

from __future__ import annotations

import numpy as np
from spirv_assembler import Batch

from halgpu.executables.vulkan_spirv.opcodes import Op

COUNT = 16


def saturated(values: np.ndarray, dtype: str) -> np.ndarray:
    """Towards zero, to the nearest of the type's values; NaN gives 0."""
    info = np.iinfo(dtype)
    exact = [0 if np.isnan(v) else v for v in values.astype("f8")]
    return np.array(
        [info.min if v <= info.min else info.max if v >= info.max else int(v) for v in exact], dtype
    )


def test_conversions() -> None:
    s = Batch(COUNT)
    values = np.array(
        [0, -0.0, 1.5, -1.5, 127.9, -128.9, 255.5, 3e4, -3e4, 7e4, 3e9, -3e9, 1e19, np.inf, -np.inf, np.nan]
    )
    for source in ("f32", "f64", "f16"):
        dtype = f"f{int(source[1:]) // 8}"
        with np.errstate(all="ignore"):
            given = values.astype(dtype)
        x = s.given(source, given)
        for width in (8, 16, 32, 64):
            # Narrow ones are made of 32 bits: an unsigned number may be meant.
            signed = saturated(given, f"i{max(width, 32) // 8}").astype(f"i{width // 8}")
            s.expect(f"FToS {source}", f"i{width}", s.op(Op.ConvertFToS, f"i{width}", x), signed)
            unsigned = saturated(given, f"u{width // 8}").view(f"i{width // 8}")
            s.expect(f"FToU {source}", f"i{width}", s.op(Op.ConvertFToU, f"i{width}", x), unsigned)
        with np.errstate(all="ignore"):
            for target in ("f16", "f32", "f64"):
                if target != source:
                    wanted = given.astype(f"f{int(target[1:]) // 8}")
                    s.expect(f"FConvert {source}", target, s.op(Op.FConvert, target, x), wanted)
    for width in (8, 16, 32, 64):
        info = np.iinfo(f"i{width // 8}")
        ints = np.resize(np.array([info.min, info.max, 0, 1, -1, 77, -77, info.max // 3], info.dtype), COUNT)
        x = s.given(f"i{width}", ints)
        for target in ("f16", "f32", "f64"):
            dtype = f"f{int(target[1:]) // 8}"
            with np.errstate(all="ignore"):
                unsigned = ints.view(f"u{width // 8}").astype(dtype)
                s.expect(f"SToF i{width}", target, s.op(Op.ConvertSToF, target, x), ints.astype(dtype))
                s.expect(f"UToF i{width}", target, s.op(Op.ConvertUToF, target, x), unsigned)
        for other in (8, 16, 32, 64):
            if other != width:
                s.expect(
                    f"SConvert i{width}",
                    f"i{other}",
                    s.op(Op.SConvert, f"i{other}", x),
                    ints.astype(f"i{other // 8}"),
                )
                unsigned = ints.view(f"u{width // 8}").astype(f"u{other // 8}").view(f"i{other // 8}")
                s.expect(f"UConvert i{width}", f"i{other}", s.op(Op.UConvert, f"i{other}", x), unsigned)
    s.check()


def test_conversions_of_vectors_and_bits() -> None:
    s = Batch(4)
    rng = np.random.default_rng(1)
    floats = rng.uniform(-200, 200, (4, 4)).astype("f4")
    ints = rng.integers(-(2**31), 2**31 - 1, (4, 4), "i4")
    x, n = s.given("4xf32", floats), s.given("4xi32", ints)
    s.expect("FToS", "4xi8", s.op(Op.ConvertFToS, "4xi8", x), saturated(floats.ravel(), "i4").astype("i1"))
    s.expect("FToU", "4xi32", s.op(Op.ConvertFToU, "4xi32", x), saturated(floats.ravel(), "u4").view("i4"))
    s.expect("SToF", "4xf32", s.op(Op.ConvertSToF, "4xf32", n), ints)
    s.expect("UToF", "4xf64", s.op(Op.ConvertUToF, "4xf64", n), ints.view("u4"))
    s.expect("SConvert", "4xi64", s.op(Op.SConvert, "4xi64", n), ints)
    s.expect("UConvert", "4xi64", s.op(Op.UConvert, "4xi64", n), ints.view("u4"))
    s.expect("narrow", "4xi16", s.op(Op.SConvert, "4xi16", n), ints.astype("i2"))
    s.expect("FConvert", "4xf16", s.op(Op.FConvert, "4xf16", x), floats)
    s.expect("FConvert", "4xf64", s.op(Op.FConvert, "4xf64", x), floats)
    s.expect("bits", "4xi32", s.op(Op.Bitcast, "4xi32", x), floats.view("i4"))
    s.expect("bits", "2xi64", s.op(Op.Bitcast, "2xi64", x), floats.view("i8"))
    low = s.op(Op.CompositeExtract, "f32", x, 0)
    s.expect("bits", "4xi8", s.op(Op.Bitcast, "4xi8", low), floats[:, 0].copy().view("i1"))
    s.expect("bits", "2xf16", s.op(Op.Bitcast, "2xf16", low), floats[:, 0].copy().view("f2"))
    s.expect("and back", "f32", s.op(Op.Bitcast, "f32", s.op(Op.Bitcast, "2xi16", low)), floats[:, 0])
    quantized = floats.astype("f2").astype("f4")
    s.expect("QuantizeToF16", "4xf32", s.op(Op.QuantizeToF16, "4xf32", x), quantized)
    packed = s.ext("PackHalf2x16", "i32", s.op(Op.VectorShuffle, "2xf32", x, x, 0, 1))
    s.expect("PackHalf2x16", "i32", packed, floats[:, :2].astype("f2").view("i4"))
    s.expect("UnpackHalf2x16", "2xf32", s.ext("UnpackHalf2x16", "2xf32", packed), quantized[:, :2])
    pair = s.op(Op.VectorShuffle, "2xi32", n, n, 0, 1)
    double = s.ext("PackDouble2x32", "f64", pair)
    s.expect("UnpackDouble2x32", "2xi32", s.ext("UnpackDouble2x32", "2xi32", double), ints[:, :2])
    s.check()


def test_integer_functions() -> None:
    s = Batch(COUNT)
    for kind in ("i8", "i16", "i32", "i64", "4xi8", "2xi16", "4xi32", "2xi64"):
        count, element = kind.split("x") if "x" in kind else ("1", kind)
        width = int(element[1:])
        info = np.iinfo(f"i{width // 8}")
        rng = np.random.default_rng(width)
        a, b, c = (
            rng.integers(info.min, info.max, COUNT * int(count), info.dtype, endpoint=True) for _ in range(3)
        )
        a[:6] = [info.min, info.max, 0, -1, 1, 96]
        x, y, z = (s.given(kind, v) for v in (a, b, c))
        u, v, w = (n.view(f"u{width // 8}") for n in (a, b, c))
        low, high = np.minimum(b, c), np.maximum(b, c)
        ulow, uhigh = np.minimum(v, w), np.maximum(v, w)
        s.expect("SMin", kind, s.ext("SMin", kind, x, y), np.minimum(a, b))
        s.expect("SMax", kind, s.ext("SMax", kind, x, y), np.maximum(a, b))
        s.expect("UMin", kind, s.ext("UMin", kind, x, y), np.minimum(u, v).view(info.dtype))
        s.expect("UMax", kind, s.ext("UMax", kind, x, y), np.maximum(u, v).view(info.dtype))
        s.expect("SMax 0", kind, s.ext("SMax", kind, x, s.constant(kind, 0)), np.maximum(a, 0))
        s.expect(
            "UMin 5", kind, s.ext("UMin", kind, x, s.constant(kind, 5)), np.minimum(u, 5).view(info.dtype)
        )
        clamped = s.ext("SClamp", kind, x, s.ext("SMin", kind, y, z), s.ext("SMax", kind, y, z))
        s.expect("SClamp", kind, clamped, np.clip(a, low, high))
        clamped = s.ext("UClamp", kind, x, s.ext("UMin", kind, y, z), s.ext("UMax", kind, y, z))
        s.expect("UClamp", kind, clamped, np.clip(u, ulow, uhigh).view(info.dtype))
        s.expect("SAbs", kind, s.ext("SAbs", kind, x), np.abs(a))
        s.expect("SSign", kind, s.ext("SSign", kind, x), np.sign(a))
        mask = (1 << width) - 1
        lowest = [((int(n) & mask) & -(int(n) & mask)).bit_length() - 1 for n in a]
        s.expect("FindILsb", kind, s.ext("FindILsb", kind, x), lowest)
        s.expect("FindUMsb", kind, s.ext("FindUMsb", kind, x), [(int(n) & mask).bit_length() - 1 for n in a])
        signed = [(int(n) if n >= 0 else ~int(n)).bit_length() - 1 for n in a]
        s.expect("FindSMsb", kind, s.ext("FindSMsb", kind, x), signed)
    s.check()


def test_float_functions_that_round_once() -> None:
    s = Batch(COUNT)
    for kind in ("f32", "f64", "4xf32", "f16"):
        count, element = kind.split("x") if "x" in kind else ("1", kind)
        dtype = np.dtype(f"f{int(element[1:]) // 8}")
        rng = np.random.default_rng(4)
        a, b, c = (rng.uniform(-3, 3, COUNT * int(count)).astype(dtype) for _ in range(3))
        a[:2], b[:2], c[:2] = [-0.0, 0.0], [2, -2], [0.0, 1.0]
        x, y, z = (s.given(kind, v) for v in (a, b, c))
        wide = [v.astype(np.longdouble) for v in (a, b, c)]
        s.expect("Fma", kind, s.ext("Fma", kind, x, y, z), (wide[0] * wide[1] + wide[2]).astype(dtype))
        s.expect("FSign", kind, s.ext("FSign", kind, x), np.where(a == 0, a, np.sign(a)))
        s.expect("Step", kind, s.ext("Step", kind, x, y), np.where(b < a, 0, 1))
        if kind == "f16":
            continue
        one = dtype.type(1)
        s.expect("Fract", kind, s.ext("Fract", kind, y), b - np.floor(b))
        s.expect("FMix", kind, s.ext("FMix", kind, x, y, z), a * (one - c) + b * c)
        low, high = np.minimum(b, c), np.maximum(b, c)
        bounds = s.ext("NMin", kind, y, z), s.ext("NMax", kind, y, z)
        inside = np.where(a < low, low, np.where(a > high, high, a))
        for name in ("FClamp", "NClamp"):
            s.expect(name, kind, s.ext(name, kind, y, *bounds), b)
            if count == "1":
                s.expect(
                    name,
                    kind,
                    s.ext(name, kind, s.op(Op.FAdd, kind, x, s.constant(kind, 0)), *bounds),
                    inside + 0,
                )
        n = f"{count}xi32" if count != "1" else "i32"
        powers = np.resize([3, -3, 0, 1], a.shape).astype("i4")
        s.expect("Ldexp", kind, s.ext("Ldexp", kind, x, s.given(n, powers)), np.ldexp(a, powers))
        s.struct(f"frexp {kind}", kind, n)
        s.struct(f"modf {kind}", kind, kind)
        parts = s.ext("FrexpStruct", f"frexp {kind}", y)
        for part, (k, wanted) in enumerate(zip((kind, n), np.frexp(b), strict=True)):
            s.expect(("frexp", part), k, s.op(Op.CompositeExtract, k, parts, part), wanted)
        parts = s.ext("ModfStruct", f"modf {kind}", y)
        for part, wanted in enumerate(np.modf(b)):
            s.expect(("modf", part), kind, s.op(Op.CompositeExtract, kind, parts, part), wanted)
    s.check()


def test_float_functions_within_some_ulps() -> None:
    """Vulkan and OpenCL allow these functions some error: at most 16 units in the last place here."""
    rng = np.random.default_rng(6)
    ranges = {"Asin": (-1, 1), "Acos": (-1, 1), "Atanh": (-0.9, 0.9), "Acosh": (1, 9), "Log": (0.1, 9), "Log2": (0.1, 9),
              "InverseSqrt": (0.1, 9), "Pow": (0.1, 4)}  # fmt: skip
    functions = {
        "Sin": np.sin, "Cos": np.cos, "Tan": np.tan, "Asin": np.arcsin, "Acos": np.arccos, "Atan": np.arctan,
        "Sinh": np.sinh, "Cosh": np.cosh, "Tanh": np.tanh, "Asinh": np.arcsinh, "Acosh": np.arccosh,
        "Atanh": np.arctanh, "Exp": np.exp, "Log": np.log, "Exp2": np.exp2, "Log2": np.log2,
        "InverseSqrt": lambda x: 1 / np.sqrt(x), "Radians": np.radians, "Degrees": np.degrees,
        "Atan2": np.arctan2, "Pow": np.power,
    }  # fmt: skip
    s = Batch(COUNT)
    wanted = []
    out = s.bind("f32", None)
    for name, function in functions.items():
        low, high = ranges.get(name, (-3, 3))
        inputs = [rng.uniform(low, high, COUNT).astype("f4") for _ in range(1 + (name in ("Atan2", "Pow")))]
        value = s.ext(name, "f32", *(s.given("f32", v) for v in inputs))
        at = s.op(Op.IAdd, "i32", s.index, s.constant("i32", len(wanted) * COUNT))
        s.do(Op.Store, s.element(out, at), value)
        wanted.append(function(*(v.astype("f8") for v in inputs)))
    arrays = [np.zeros((len(wanted), COUNT), "f4") if array is None else array for array in s.arrays]
    found = s.run_all(arrays)[out]
    for name, row, exact in zip(functions, found, wanted, strict=True):
        ulps = np.abs(row - exact) / np.spacing(np.abs(exact).astype("f4"))
        assert ulps.max() <= 16, (name, ulps.max())
