"""What instructions mean in LLVM IR: the counterpart of :mod:`halgpu.vm.semantics` for native loops.

:data:`NATIVE` maps an instruction's symbol to a template in LLVM's textual form. ``{name}`` stands for the operand
of that name, a value of the register's type or a literal; ``{result}`` is the value made and ``{t}`` starts the
name of a temporary. A line ``fault X`` leaves the loop when the bit X is set: the translated Python then runs the
instruction itself and raises what it raises. Each entry gives the value that the entry of ``semantics`` gives, of
NaNs any. No fast-math flag is ever set, and a product and a sum are not contracted.

Instructions with an empty template are written by :class:`halgpu.vm.llvm_writer.Writer`, by their encoding.
"""

from __future__ import annotations

from halgpu.vm import isa, numerics

TYPES = {"i32": "i32", "i64": "i64", "f32": "float", "f64": "double"}
"""LLVM's names of the value types."""

BUFFER_ELEMENTS = {
    "I8U": ("i8", 0), "I8S": ("i8", 0), "I8": ("i8", 0), "I16U": ("i16", 1), "I16S": ("i16", 1),
    "I16": ("i16", 1), "I32": ("i32", 2), "I64": ("i64", 3), "F32": ("float", 2), "F64": ("double", 3),
}  # fmt: skip
"""By the end of a load's, store's or fill's symbol: the type in memory and the logarithm of its size."""


def _integer(bits: int) -> dict[str, str]:
    n, t = f"I{bits}", f"i{bits}"

    def plain(instruction: str) -> str:
        return f"{{result}} = {instruction} {t} {{left}}, {{right}}"

    def divided(instruction: str, signed: bool) -> str:
        by_zero = f"{{t}}z = icmp eq {t} {{right}}, 0\nfault {{t}}z\n"
        if not signed:
            return by_zero + plain(instruction)
        # The quotient of the least integer and -1 wraps; LLVM leaves it undefined.
        undone = f"sub {t} 0, {{left}}" if instruction == "sdiv" else f"add {t} 0, 0"
        return by_zero + (
            f"{{t}}m = icmp eq {t} {{right}}, -1\n{{t}}d = select i1 {{t}}m, {t} 1, {t} {{right}}\n"
            f"{{t}}q = {instruction} {t} {{left}}, {{t}}d\n{{t}}n = {undone}\n"
            f"{{result}} = select i1 {{t}}m, {t} {{t}}n, {t} {{t}}q"
        )

    def chosen(condition: str, first: str, second: str) -> str:
        return (
            f"{{t}}c = icmp {condition} {t} {first}, {second}\n"
            f"{{result}} = select i1 {{t}}c, {t} {{right}}, {t} {{left}}"
        )

    def compared(condition: str) -> str:
        return f"{{t}}c = icmp {condition} {t} {{left}}, {{right}}\n{{result}} = zext i1 {{t}}c to i32"

    def shifted(instruction: str) -> str:
        amount = f"{{t}}a = and i32 {{amount}}, {bits - 1}\n"
        wide = "" if bits == 32 else "{t}w = zext i32 {t}a to i64\n"
        return f"{amount}{wide}{{result}} = {instruction} {t} {{operand}}, {'{t}a' if bits == 32 else '{t}w'}"

    return {
        f"Add{n}": "{result} = add {nsw}" + f"{t} {{left}}, {{right}}",
        f"Sub{n}": "{result} = sub {nsw}" + f"{t} {{left}}, {{right}}",
        f"Mul{n}": "{result} = mul {nsw}" + f"{t} {{left}}, {{right}}",
        f"FMA{n}": f"{{t}}p = mul {{nsw}}{t} {{first}}, {{second}}\n{{result}} = add {{nsw}}{t} {{t}}p, {{third}}",
        f"Div{n}S": divided("sdiv", True),
        f"Div{n}U": divided("udiv", False),
        f"Rem{n}S": divided("srem", True),
        f"Rem{n}U": divided("urem", False),
        f"Abs{n}": f"{{result}} = call {t} @llvm.abs.{t}({t} {{operand}}, i1 false)",
        f"Min{n}S": chosen("slt", "{right}", "{left}"),
        f"Min{n}U": chosen("ult", "{right}", "{left}"),
        f"Max{n}S": chosen("slt", "{left}", "{right}"),
        f"Max{n}U": chosen("ult", "{left}", "{right}"),
        f"Not{n}": f"{{result}} = xor {t} {{operand}}, -1",
        f"And{n}": plain("and"),
        f"Or{n}": plain("or"),
        f"Xor{n}": plain("xor"),
        f"Ctlz{n}": f"{{result}} = call {t} @llvm.ctlz.{t}({t} {{operand}}, i1 false)",
        f"Shl{n}": shifted("shl"),
        f"Shr{n}S": shifted("ashr"),
        f"Shr{n}U": shifted("lshr"),
        f"CmpEQ{n}": compared("eq"),
        f"CmpNE{n}": compared("ne"),
        f"CmpLT{n}S": compared("slt"),
        f"CmpLT{n}U": compared("ult"),
        f"CmpNZ{n}": f"{{t}}c = icmp ne {t} {{operand}}, 0\n{{result}} = zext i1 {{t}}c to i32",
    }


_LIBRARY = "Exp Exp2 ExpM1 Log Log10 Log1p Log2 Sin Cos Atan Tanh Erf".split()


def _float(bits: int) -> dict[str, str]:
    n, t = f"F{bits}", "float" if bits == 32 else "double"
    end = "f" if bits == 32 else ""

    def plain(instruction: str) -> str:
        return f"{{result}} = {instruction} {t} {{left}}, {{right}}"

    def intrinsic(name: str) -> str:
        return f"{{result}} = call {t} @llvm.{name}.f{bits}({t} {{operand}})"

    def compared(condition: str) -> str:
        return f"{{t}}c = fcmp {condition} {t} {{left}}, {{right}}\n{{result}} = zext i1 {{t}}c to i32"

    def chosen(first: str, second: str) -> str:
        return (
            f"{{t}}c = fcmp olt {t} {first}, {second}\n"
            f"{{result}} = select i1 {{t}}c, {t} {{right}}, {t} {{left}}"
        )

    def library(name: str) -> str:
        return f"{{result}} = call {t} @halgpu.{name.lower()}{end}({t} {{operand}})"

    def library_two(name: str) -> str:
        return f"{{result}} = call {t} @halgpu.{name}{end}({t} {{left}}, {t} {{right}})"

    fused = f"{{result}} = call {t} @llvm.fma.f{bits}({t} {{first}}, {t} {{second}}, {t} {{third}})"
    apart = f"{{t}}p = fmul {t} {{first}}, {{second}}\n{{result}} = fadd {t} {{t}}p, {{third}}"
    return {
        **{f"{name}{n}": library(name) for name in _LIBRARY},
        f"Add{n}": plain("fadd"),
        f"Sub{n}": plain("fsub"),
        f"Mul{n}": plain("fmul"),
        f"Div{n}": plain("fdiv"),
        f"Rem{n}": library_two("remainder"),
        f"Pow{n}": library_two("pow"),
        f"Atan2{n}": library_two("atan2"),
        f"FMA{n}": fused if numerics.FUSED_MULTIPLY_ADD else apart,
        f"Abs{n}": intrinsic("fabs"),
        f"Neg{n}": f"{{result}} = fneg {t} {{operand}}",
        f"Ceil{n}": intrinsic("ceil"),
        f"Floor{n}": intrinsic("floor"),
        f"Round{n}": intrinsic("round"),
        f"Round{n}Even": intrinsic("roundeven"),
        f"Sqrt{n}": intrinsic("sqrt"),
        f"Rsqrt{n}": f"{{t}}s = call {t} @llvm.sqrt.f{bits}({t} {{operand}})\n{{result}} = fdiv {t} 1.0, {{t}}s",
        # A NaN on either side gives the left operand.
        f"Min{n}": chosen("{right}", "{left}"),
        f"Max{n}": chosen("{left}", "{right}"),
        f"CmpEQ{n}O": compared("oeq"),
        f"CmpEQ{n}U": compared("ueq"),
        # Ordered "ne" is C's !=, which holds for NaN.
        f"CmpNE{n}O": compared("une"),
        f"CmpNE{n}U": compared("une"),
        f"CmpLT{n}O": compared("olt"),
        f"CmpLT{n}U": compared("ult"),
        f"CmpLTE{n}O": compared("ole"),
        f"CmpLTE{n}U": compared("ule"),
        f"CmpNaN{n}": f"{{t}}c = fcmp uno {t} {{operand}}, {{operand}}\n{{result}} = zext i1 {{t}}c to i32",
    }


def _typed(n: str) -> dict[str, str]:
    """What exists for each of the four primitive types."""
    t = TYPES[n.lower()]
    return {
        f"Const{n}": "",
        f"Const{n}Zero": "",
        f"Select{n}": (
            f"{{t}}c = icmp ne i32 {{condition}}, 0\n"
            f"{{result}} = select i1 {{t}}c, {t} {{true_value}}, {t} {{false_value}}"
        ),
        f"Switch{n}": "",
        f"GlobalLoad{n}": f"{{t}}p = getelementptr i8, ptr %globals, i64 {{byte_offset}}\n"
        f"{{result}} = load {t}, ptr {{t}}p, align 1{{global_memory}}",
        f"GlobalStore{n}": f"{{t}}p = getelementptr i8, ptr %globals, i64 {{byte_offset}}\n"
        f"store {t} {{value}}, ptr {{t}}p, align 1{{global_memory}}",
    }


def _rounded_to_i64(t: str) -> str:
    """``llround``: ties away from zero; NaN and what is out of range give -2^63 (numerics.to_s64)."""
    suffix = "f32" if t == "float" else "f64"
    return (
        f"{{t}}r = call {t} @llvm.round.{suffix}({t} {{operand}})\n"
        f"{{t}}l = fcmp oge {t} {{t}}r, 0xC3E0000000000000\n{{t}}h = fcmp olt {t} {{t}}r, 0x43E0000000000000\n"
        f"{{t}}i = and i1 {{t}}l, {{t}}h\n{{t}}s = select i1 {{t}}i, {t} {{t}}r, {t} 0.0\n"
        f"{{t}}v = fptosi {t} {{t}}s to i64\n"
        "{t}w = select i1 {t}i, i64 {t}v, i64 -9223372036854775808\n"
    )


def _to_integers(source: str) -> dict[str, str]:
    t = TYPES[source.lower()]
    as_i64 = _rounded_to_i64(t)
    # From 2^63 up the float is an integer, and its bits as an unsigned one are the result (numerics.to_u64).
    unsigned = (
        f"{{t}}a = fcmp oge {t} {{operand}}, 0x43E0000000000000\n"
        f"{{t}}b = fcmp olt {t} {{operand}}, 0x43F0000000000000\n{{t}}u = and i1 {{t}}a, {{t}}b\n"
        f"{{t}}x = select i1 {{t}}u, {t} {{operand}}, {t} 0.0\n{{t}}y = fptoui {t} {{t}}x to i64\n"
        "{result} = select i1 {t}u, i64 {t}y, i64 {t}w"
    )
    return {
        f"Cast{source}SI32": as_i64 + "{result} = trunc i64 {t}w to i32",
        f"Cast{source}UI32": as_i64 + "{result} = trunc i64 {t}w to i32",
        f"Cast{source}SI64": as_i64 + "{result} = or i64 {t}w, 0",
        f"Cast{source}UI64": as_i64 + unsigned,
    }


def _converted(instruction: str, source: str, target: str) -> str:
    return f"{{result}} = {instruction} {TYPES[source]} {{operand}} to {TYPES[target]}"


def _narrow(bits: int, instruction: str) -> str:
    return f"{{t}}n = trunc i32 {{operand}} to i{bits}\n{{result}} = {instruction} i{bits} {{t}}n to i32"


_CONVERSIONS = {
    "TruncI32I8": _narrow(8, "zext"),
    "TruncI32I16": _narrow(16, "zext"),
    "ExtI8I32S": _narrow(8, "sext"),
    "ExtI8I32U": _narrow(8, "zext"),
    "ExtI16I32S": _narrow(16, "sext"),
    "ExtI16I32U": _narrow(16, "zext"),
    "TruncI64I32": _converted("trunc", "i64", "i32"),
    "ExtI32I64S": _converted("sext", "i32", "i64"),
    "ExtI32I64U": _converted("zext", "i32", "i64"),
    **{
        f"Cast{sign}{source[1:]}{target}": _converted(instruction, source.lower(), target.lower())
        for source in ("I32", "I64")
        for target in ("F32", "F64")
        for sign, instruction in (("SI", "sitofp"), ("UI", "uitofp"))
    },
    **_to_integers("F32"),
    **_to_integers("F64"),
    "BitcastI32F32": _converted("bitcast", "i32", "f32"),
    "BitcastF32I32": _converted("bitcast", "f32", "i32"),
    "BitcastI64F64": _converted("bitcast", "i64", "f64"),
    "BitcastF64I64": _converted("bitcast", "f64", "i64"),
    "TruncF64F32": _converted("fptrunc", "f64", "f32"),
    "ExtF32F64": _converted("fpext", "f32", "f64"),
}

_WRITTEN = dict.fromkeys(
    (
        *(f"BufferLoad{n}" for n in "I8U I8S I16U I16S I32 I64 F32 F64".split()),
        *(f"BufferStore{n}" for n in "I8 I16 I32 I64 F32 F64".split()),
        *(f"BufferFill{n}" for n in "I8 I16 I32 I64 F32 F64".split()),
        *"BufferLength BufferCopy Branch CondBranch BranchTable Yield Break CondBreak".split(),
    ),
    "",
)

NATIVE: dict[str, str] = {
    **_integer(32),
    **_integer(64),
    **_float(32),
    **_float(64),
    **_typed("I32"),
    **_typed("I64"),
    **_typed("F32"),
    **_typed("F64"),
    **_CONVERSIONS,
    **_WRITTEN,
}
assert NATIVE.keys() <= isa.BY_SYMBOL.keys()

FAULTS = frozenset(
    symbol for symbol, text in NATIVE.items() if "fault" in text or symbol.startswith("Buffer")
)
"""Instructions that can fail."""

LIBRARY: dict[str, int] = {
    **{name.lower(): 1 for name in _LIBRARY},
    **{f"{name.lower()}f": 1 for name in _LIBRARY},
    **dict.fromkeys(("remainder", "pow", "atan2", "remainderf", "powf", "atan2f"), 2),
}
"""Functions of the C library that templates call, ``halgpu.`` in front, with their number of arguments."""
