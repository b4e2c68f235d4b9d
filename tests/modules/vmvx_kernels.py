"""A program with a kernel for every function of vmvx, for halgpu and for stock iree-run-module alike.

A kernel has two bindings: the data, which all refs of its function are, and the numbers to pass as 64-bit integers.
The program's function of the same name takes both as byte arrays and returns the data after the call.
"""

from __future__ import annotations

from collections.abc import Iterator

from halgpu import vm

UNARY, BINARY = "0rIIIrIIIII_v", "0rIIIrIIIrIIIII_v"
# IREE runtime/src/iree/modules/vmvx/exports.inl, written out.
EXPORTS = {
    "abs.2d.f32": UNARY, "add.2d.f32": BINARY, "add.2d.i32": BINARY, "and.2d.i32": BINARY, "ceil.2d.f32": UNARY,
    "copy.2d.x16": UNARY, "copy.2d.x32": UNARY, "copy.2d.x64": UNARY, "copy.2d.x8": UNARY, "ctlz.2d.i32": UNARY,
    "div.2d.f32": BINARY, "divs.2d.i32": BINARY, "divu.2d.i32": BINARY, "exp.2d.f32": UNARY,
    "fill.2d.x32": "0irIIII_v", "floor.2d.f32": UNARY, "log.2d.f32": UNARY, "mmt4d": "0rIIrIIrIIIIIiiii_v",
    "mul.2d.f32": BINARY, "mul.2d.i32": BINARY, "neg.2d.f32": UNARY, "or.2d.i32": BINARY,
    "pack": "0rIIIrIIIIIIIIIIi_v", "query_tile_sizes.2d": "0IIi_II", "rsqrt.2d.f32": UNARY, "shl.2d.i32": BINARY,
    "shrs.2d.i32": BINARY, "shru.2d.i32": BINARY, "sub.2d.f32": BINARY, "sub.2d.i32": BINARY,
    "unpack": "0rIIIrIIIIIIIIIi_v", "xor.2d.i32": BINARY,
}  # fmt: skip
KERNELS = [name for name, cconv in EXPORTS.items() if cconv.endswith("_v")]


def function_of(name: str) -> str:
    """The name of a kernel and of the program's function for it."""
    return name.replace(".", "_")


def executable() -> bytes:
    """The kernels, as a vmvx-bytecode-fb executable."""
    return vm.write(vm.assemble("\n".join(_text())))


def _text() -> Iterator[str]:
    yield "vm.module @kernels version 0"
    yield from (f"vm.type {name}" for name in ("i32", "i64", "!vm.buffer", "!vm.list<!vm.buffer>"))
    yield from (f'vm.import @vmvx.{name} cconv "{EXPORTS[name]}"' for name in KERNELS)
    for name in KERNELS:
        yield from _kernel(name, EXPORTS[name].removeprefix("0").removesuffix("_v"))


def _kernel(name: str, kinds: str) -> Iterator[str]:
    counts = ", ".join(f"%i{number}: i32" for number in range(9))
    refs = ", ".join(f"%r{number}: !vm.ref<?>" for number in range(3))
    yield f"vm.export @{function_of(name)}"
    yield f"vm.func @{function_of(name)}({refs}, {counts}) -> () {{"
    yield '//! attr "binding_count" "2"'
    yield "^bb0:"
    yield "%i9 = vm.const.i32.zero"
    yield "%r3 = vm.list.get.ref %r2, %i9 : !vm.buffer"
    yield "%i9 = vm.const.i32 1"
    yield "%r4 = vm.list.get.ref %r2, %i9 : !vm.buffer"
    passed = []
    for number, kind in enumerate(kind for kind in kinds if kind != "r"):
        register = 20 + 2 * number
        yield f"%i10:11 = vm.const.i64 {number}"
        yield f"%i{register}:{register + 1} = vm.buffer.load.i64 %r4, %i10:11"
        if kind == "i":
            yield f"%i{register} = vm.trunc.i64.i32 %i{register}:{register + 1}"
        passed.append(f"%i{register}:{register + 1}" if kind == "I" else f"%i{register}")
    values = iter(passed)
    operands = ", ".join("%r3" if kind == "r" else next(values) for kind in kinds)
    yield f"vm.call @vmvx.{name}({operands})"
    yield "vm.discard.refs %r0, %r1, %r2, %r3, %r4"
    yield "vm.return"
    yield "}"


_PROGRAM = """
module @program {{
  util.global private @kernels : !hal.executable
  util.initializer {{
    %data = util.buffer.constant : !util.buffer = dense<"0x{data}"> : vector<{size}xi8>
    %loaded = hal_loader.executable.load format("vmvx-bytecode-fb") data(%data) : !hal.executable
    util.global.store %loaded, @kernels : !hal.executable
    util.return
  }}
{functions}
}}
"""
_FUNCTION = """
  util.func public @{name}(%data: !hal.buffer_view, %numbers: !hal.buffer_view) -> !hal.buffer_view {{
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c64 = arith.constant 64 : index
    %i8 = hal.element_type<i8> : i32
    %dense = hal.encoding_type<dense_row_major> : i32
    %length = hal_inline.buffer_view.dim<%data : !hal.buffer_view>[0] : index
    %count = hal_inline.buffer_view.dim<%numbers : !hal.buffer_view>[0] : index
    %data_buffer = hal_inline.buffer_view.buffer<%data : !hal.buffer_view> : !hal.buffer
    %data_storage = hal_inline.buffer.storage<%data_buffer : !hal.buffer> : !util.buffer
    %numbers_buffer = hal_inline.buffer_view.buffer<%numbers : !hal.buffer_view> : !hal.buffer
    %numbers_storage = hal_inline.buffer.storage<%numbers_buffer : !hal.buffer> : !util.buffer
    %out_buffer, %out_storage = hal_inline.buffer.allocate alignment(%c64) : !hal.buffer{{%length}} in !util.buffer
    util.buffer.copy %data_storage[%c0], %out_storage[%c0], %length
      : !util.buffer{{%length}} -> !util.buffer{{%length}}
    %kernels = util.global.load @kernels : !hal.executable
    %kernel = hal_loader.executable.lookup.function target(%kernels : !hal.executable) function(@k::@{name}) : i64
    hal_loader.executable.dispatch executable(%kernels : !hal.executable)[%kernel]
      workgroups([%c1, %c1, %c1])
      bindings([
        (%out_storage : !util.buffer)[%c0, %length],
        (%numbers_storage : !util.buffer)[%c0, %count]
      ])
    %out = hal_inline.buffer_view.create buffer(%out_buffer : !hal.buffer)[%c0, %length]
      shape([%length]) type(%i8) encoding(%dense) : !hal.buffer_view
    util.return %out : !hal.buffer_view
  }}
"""


def program() -> str:
    """The program, as MLIR text."""
    data = executable()
    functions = "".join(_FUNCTION.format(name=function_of(name)) for name in KERNELS)
    return _PROGRAM.format(data=data.hex(), size=len(data), functions=functions)
