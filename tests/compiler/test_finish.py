"""Programs at HAL level, finished: the examples run, stock tools read them, kernels are chosen, mistakes are told."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import numpy as np
import pytest

import halgpu
from halgpu import errors, vm
from halgpu.cli import main
from halgpu.compiler import mlir
from halgpu.compiler.finish import finish
from halgpu.compiler.transforms import pipeline
from halgpu.vm import definition

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ONE = np.ones(4, np.float32)


def finished(name: str, *kernels: str) -> bytes:
    path = EXAMPLES / f"{name}.mlir"
    return finish(path.read_text(), str(path), [str(EXAMPLES / kernel) for kernel in kernels]).data


# The examples.


def test_a_program_of_several_initializers_has_one(tmp_path: Path) -> None:
    data = finished("loaded_executable")
    module = definition.read(data)
    assert [export.local_name for export in module.exports] == ["scale", "__init"]
    assert len(module.functions) == 2
    with halgpu.load(data, device="opencl") as loaded:
        assert np.asarray(loaded.scale(np.arange(5, dtype=np.float32))).tolist() == [0, 4, 8, 12, 16]


@pytest.mark.parametrize(
    ("name", "kernels"), [("accumulate_static", ()), ("accumulate_dynamic", ("accumulate.cl",))]
)
def test_a_mutable_global_accumulates(name: str, kernels: tuple[str, ...]) -> None:
    data = finished(name, *kernels)
    assert [export.local_name for export in definition.read(data).exports] == ["add", "__init"]
    with halgpu.load(data, device="opencl") as module:
        for call in range(1, 4):
            assert np.asarray(module.add(ONE)).tolist() == [call] * 4
    with halgpu.load(data, device="opencl") as again:
        assert np.asarray(again.add(ONE)).tolist() == [1] * 4


def test_stock_tools_run_and_read_what_has_no_kernels(tmp_path: Path, iree_tool: Callable[..., Any]) -> None:
    path = tmp_path / "accumulate.vmfb"
    path.write_bytes(finished("accumulate_static"))
    said = iree_tool("iree-run-module", f"--module={path}", "--function=add", "--input=4xf32=1 2 3 4").stdout
    assert said.splitlines()[-1] == "4xf32=1 2 3 4"
    assert "@__init" in iree_tool("iree-dump-module", str(path)).stdout


def test_saxpy_by_the_commands_that_it_shows(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program = str(tmp_path / "saxpy.vmfb")
    kernels = [f"--kernels={EXAMPLES / name}" for name in ("saxpy.cl", "saxpy.cu")]
    assert main(["compile", str(EXAMPLES / "saxpy.mlir"), *kernels, "-o", program]) == 0
    inputs = ["--input=2", "--input=3xf32=1 2 3", "--input=3xf32=10 20 30"]
    assert main(["run", f"--module={program}", "--function=saxpy", *inputs, "--device=opencl"]) == 0
    out, err = capfd.readouterr()
    assert (out, err) == ("EXEC @saxpy\nresult[0]: hal.buffer_view\n3xf32=12 24 36\n", "")
    assert main(["verify", program]) == 0


# Which kernels a program loads.


class Kernels:
    """What the loader below loads."""


class Loader(vm.NativeModule):
    """A runtime that supports some formats and notes what is loaded."""

    name = "hal_loader"
    version = 1
    types: ClassVar[dict[str, type]] = {"hal.executable": Kernels}

    def __init__(self, *formats: str) -> None:
        self.formats = formats
        self.loaded: list[str] = []

    @vm.export("executable.query_support", "0r_i")
    def query_support(self, name: vm.Buffer) -> int:
        return int(bytes(name).decode() in self.formats)

    @vm.export("executable.load", "0rrr_r")
    def load(self, name: vm.Buffer, data: vm.Buffer, constants: vm.Buffer) -> Kernels:
        self.loaded.append(bytes(data).decode().partition("\n")[2])
        return Kernels()

    @vm.export("executable.lookup.function", "0rr_I")
    def lookup(self, executable: object, name: vm.Buffer) -> int:
        return 0

    @vm.export("executable.dispatch", "0rIiiiCiDCrIID_v")
    def dispatch(self, *arguments: object) -> None:
        pass


LOADS = """
util.func public @f(%n: index) {
  %kernels = hal_loader.executable.lookup executable(@kernels) : !hal.executable
  util.return
}
util.global private @other : !hal.executable
util.initializer {
  %kernels = hal_loader.executable.lookup executable(@kernels) : !hal.executable
  util.global.store %kernels, @other : !hal.executable
  util.return
}
util.func public @g() -> !hal.executable {
  %0 = util.global.load @other : !hal.executable
  util.return %0 : !hal.executable
}
"""


@pytest.mark.parametrize(
    ("formats", "start"), [(("cuda-c",), 'extern "C"'), (("opencl-c", "cuda-c"), "// halgpu")]
)
def test_query_support_chooses_the_kernels(formats: tuple[str, ...], start: str) -> None:
    data = finish(LOADS, "loads.mlir", [str(EXAMPLES / "saxpy.cl"), str(EXAMPLES / "saxpy.cu")]).data
    loader = Loader(*formats)
    with vm.Context([loader, vm.BytecodeModule.load(data)]):
        assert len(loader.loaded) == 1
        assert loader.loaded[0].startswith(start)
    with pytest.raises(errors.Unavailable, match="none of the executable binaries"):
        vm.Context([Loader("other"), vm.BytecodeModule.load(data)])


# Kernels' descriptions.


def dispatching(bindings: int, constants: int = 0, kernel: str = "copy") -> str:
    words = f"constants([{', '.join(['%c'] * constants)}])" if constants else ""
    rows = ", ".join(["(%b : !util.buffer)[%n, %n]"] * bindings)
    return f"""util.func public @f(%b: !util.buffer, %n: index, %c: i32) {{
  %k = hal_loader.executable.lookup executable(@kernels) : !hal.executable
  %f = hal_loader.executable.lookup.function target(%k : !hal.executable) function(@kernels::@{kernel}) : i64
  hal_loader.executable.dispatch executable(%k : !hal.executable)[%f] workgroups([%n, %n, %n]) {words} bindings([{rows}])
  util.return
}}
"""


COPY = "// halgpu: kernel copy(i32, read, write) workgroup 8x8 local 64\n__kernel void copy() {}\n"


def kernels(folder: Path, **sources: str) -> list[str]:
    paths = []
    for end, source in sources.items():
        path = folder / f"k.{end}"
        path.write_text(source)
        paths.append(str(path))
    return paths


def test_layouts_come_from_comments(tmp_path: Path) -> None:
    from halgpu.executables import handwritten

    files = kernels(tmp_path, cl="// halgpu: options -DA=1 -w\n" + COPY, cu="__global__ void copy() {}\n")
    data = finish(dispatching(2, 1), "p.mlir", files).data
    found = [
        bytes(segment) for segment in definition.read(data).rodata if b"halgpu-kernels" in bytes(segment)
    ]
    opencl, cuda = (handwritten.read(segment, "kernels") for segment in found)
    assert (opencl.language, cuda.language) == ("opencl-c", "cuda-c")
    assert (opencl.options, cuda.options) == (("-DA=1", "-w"), ())
    for container in (opencl, cuda):
        (layout,) = container.layouts
        assert (layout.name, layout.workgroup_size, layout.local_memory) == ("copy", (8, 8, 1), 64)
        assert [str(t) for t in layout.types or ()] == ["i32"]
        assert [binding.access for binding in layout.bindings] == ["read", "write"]


def test_groups_of_kernels_have_names(tmp_path: Path) -> None:
    (file,) = kernels(tmp_path, cl=COPY)
    text = dispatching(2, 1).replace("@kernels", "@mine")
    assert finish(text, "p.mlir", [f"mine={file}"]).data
    with pytest.raises(errors.InvalidArgument, match="there is no executable @mine"):
        finish(text, "p.mlir", [file])


@pytest.mark.parametrize(
    ("program", "sources", "message"),
    [
        (dispatching(1, 1), {"cl": COPY}, r"p.mlir:4:3: error: .*kernel copy takes 2 bindings, found 1"),
        (dispatching(2), {"cl": COPY}, r"p.mlir:4:3: error: .*kernel copy takes 1 32-bit constants, found 0"),
        (
            dispatching(2, 1, "cpoy"),
            {"cl": COPY},
            r"p.mlir:3:3: error: .*no kernel cpoy.*did you mean 'copy'",
        ),
        (dispatching(2, 1), {"cl": "__kernel void copy() {}"}, "expected a comment such as"),
        (dispatching(2, 1), {"cl": "\n // halgpu: kernel copy"}, r"k.cl:2:2: error: expected 'kernel NAME"),
        (dispatching(2, 1), {"cl": "// halgpu: kernel copy(read, i32)"}, "before the buffers' accesses"),
        (
            dispatching(2, 1),
            {"cl": "// halgpu: kernel copy(i31, read) workgroup 1"},
            r"k.cl:1:1: error: .*i31",
        ),
        (dispatching(2, 1), {"cl": "// halgpu: kernel copy() group 8"}, "expected 'workgroup SIZE'"),
        (
            dispatching(2, 1),
            {"cl": COPY.replace("workgroup 8x8 ", "")},
            "kernel copy: expected 'workgroup SIZE' behind",
        ),
        (
            dispatching(2, 1),
            {"cl": f"// halgpu: kernel copy() workgroup {'9' * 5000}"},
            "expected 'workgroup SIZE'",
        ),
        (
            dispatching(2, 1),
            {"cl": f"// halgpu: kernel copy() local {'9' * 5000}"},
            "expected 'workgroup SIZE'",
        ),
        (
            dispatching(2, 1),
            {"cl": COPY.replace("8x8", "8x0")},
            r"k.cl:1:1: error: kernel copy: .*at least 1, found 8x0",
        ),
        (dispatching(2, 1), {"cl": COPY.replace("8x8", "0")}, "of at least 1, found 0"),
        (
            dispatching(2, 1),
            {"cl": COPY.replace("8x8", "99999999")},
            "at most 65536 work-items, found 99999999",
        ),
        (
            dispatching(2, 1),
            {"cl": COPY.replace("8x8", "512x512")},
            "at most 65536 work-items, found 512x512",
        ),
        (dispatching(2, 1), {"cu": COPY.replace("8x8", "32x64")}, "at most 1024 work-items, .* found 32x64"),
        (
            dispatching(2, 1),
            {"cu": COPY.replace("8x8", "1x1x65")},
            "64 in the third dimension, .* found 1x1x65",
        ),
        (dispatching(2, 1), {"cl": COPY + COPY}, "has been described before"),
        (
            dispatching(2, 1),
            {"cl": COPY, "cu": COPY.replace("read, ", "")},
            "takes other constants and buffers",
        ),
        (dispatching(2, 1), {"c": COPY}, r"k.c: expected kernels in OpenCL C \(.cl\) or CUDA C"),
        ("util.global private @kernels : i32", {"cl": COPY}, "@kernels is in the program already"),
    ],
)
def test_mistakes_in_kernels(program: str, sources: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match=message):
        finish(program, "p.mlir", kernels(tmp_path, **sources))


def test_comments_of_blanks_are_read_in_linear_time(tmp_path: Path) -> None:
    blanks = " " * 200_000
    source = f"// {blanks}\n//{blanks}x{blanks}\n// halgpu: kernel copy(u32,{blanks}read, write){blanks}workgroup 64{blanks}\n"
    assert finish(dispatching(2, 1), "p.mlir", kernels(tmp_path, cl=source)).data
    with pytest.raises(errors.InvalidArgument, match="expected 'workgroup SIZE'"):
        finish(dispatching(2, 1), "p.mlir", kernels(tmp_path, cl=source.replace("64", "")))


def test_two_files_of_one_language(tmp_path: Path) -> None:
    (file,) = kernels(tmp_path, cl=COPY)
    other = shutil.copy(file, tmp_path / "other.cl")
    with pytest.raises(errors.InvalidArgument, match="has kernels in opencl-c already"):
        finish(dispatching(2, 1), "p.mlir", [file, str(other)])
    with pytest.raises(errors.NotFound, match="found nothing there"):
        finish(dispatching(2, 1), "p.mlir", [str(tmp_path / "none.cl")])


# Inlining by declaration.


@pytest.mark.parametrize("dialect", ["hal_inline", "hal_loader"])
def test_without_a_declaration_initializers_are_not_combined(dialect: str) -> None:
    text = finish_input(dialect)
    ctx = mlir.context()
    assert pipeline.run(mlir.parse(text, "p.mlir", ctx), ctx, "combine-initializers") == []
    ctx = mlir.context(undeclared=[dialect])
    module = mlir.parse(text, "p.mlir", ctx)
    with pytest.raises(errors.InvalidArgument) as caught:
        pipeline.run(module, ctx, "combine-initializers")
    assert f"dialect '{dialect}' declares nothing about inlining its operations" in caught.value.message
    assert f"it holds '{dialect}." in caught.value.message
    assert caught.value.message.startswith("p.mlir:")


def finish_input(dialect: str) -> str:
    name = {"hal_inline": "accumulate_static", "hal_loader": "loaded_executable"}[dialect]
    return (EXAMPLES / f"{name}.mlir").read_text()


# Forms.


@pytest.mark.parametrize(
    "name", ["custom_kernel", "loaded_executable", "accumulate_static", "accumulate_dynamic"]
)
@pytest.mark.parametrize("generic", [False, True], ids=["own", "generic"])
def test_iree_reads_what_is_printed(
    name: str, generic: bool, tmp_path: Path, iree_tool: Callable[..., Any]
) -> None:
    text = (EXAMPLES / f"{name}.mlir").read_text()
    if "lookup executable" in text:
        # iree-opt looks for the executable that --kernels would add.
        text = text.rstrip().removesuffix("}") + "hal.executable private @kernels { }\n}\n"
    printed = mlir.print_module(mlir.parse(text, name), generic=generic)
    assert mlir.print_module(mlir.parse(printed, name), generic=generic) == printed
    (tmp_path / "source.mlir").write_text(text)
    (tmp_path / "printed.mlir").write_text(printed)
    expected, found = (
        iree_tool("iree-opt", str(tmp_path / f"{n}.mlir")).stdout for n in ("source", "printed")
    )
    assert found == expected


def test_attributes_of_targets_are_kept() -> None:
    text = """module attributes {a = #hal.device.target<"local", [#hal.executable.target<"x", "y", {n = #iree_cpu.z<>}>]> : !hal.device} {
  util.global private @device = #hal.device.target<"local", [#other.thing<{"<>"}>]> : !hal.device
}
"""
    printed = mlir.print_module(mlir.parse(text, "t"))
    assert printed.replace("builtin.module", "module") == text


def test_resources_become_data() -> None:
    text = """util.func public @f() -> !util.buffer {
  %0 = util.buffer.constant : !util.buffer = dense_resource<blob> : tensor<3xi8>
  %1 = util.buffer.constant : !util.buffer = #util.composite<6xi8, [dense<7> : tensor<2xi16>, #util.byte_pattern<9> : tensor<2xi8>,]>
  util.return %0 : !util.buffer
}
{-# dialect_resources: {builtin: {blob: "0x40000000010203"}} #-}
"""
    data = finish(text.replace("return %0 : !util.buffer", "return %0 : !util.buffer"), "r.mlir").data
    assert [bytes(segment) for segment in definition.read(data).rodata] == [b"\1\2\3"]
    both = text.replace("return %0", "return %1")
    assert [bytes(segment) for segment in definition.read(finish(both, "r.mlir").data).rodata] == [
        b"\7\0\7\0\t\t"
    ]


def test_errors_of_a_running_program_name_its_lines() -> None:
    text = """module @m {
  util.func public @f(%status: i32) {
    util.status.check_ok %status, "said"
    util.return
  }
}
"""
    with (
        vm.Context([vm.BytecodeModule.load(finish(text, "m.mlir").data)]) as context,
        pytest.raises(errors.NotFound, match="said") as caught,
    ):
        context.lookup("m.f")(5)
    assert caught.value.frames == ("m.f (m.mlir:3:5)",)


# Numbers.


def test_affine_maps_round_down() -> None:
    text = """util.func public @f(%a: index, %b: index) -> (index, index, index) {
  %0 = affine.apply affine_map<(d0)[s0] -> (d0 floordiv 4 + (d0 mod 4) * 100 + s0 ceildiv 3 + s0 * 2 * d0)>(%a)[%b]
  %1 = affine.min affine_map<(d0, d1) -> (d0, d1 * 2, 7)>(%a, %b)
  %2 = affine.max affine_map<(d0, d1) -> (d0, d1 * 2, 7)>(%a, %b)
  util.return %0, %1, %2 : index, index, index
}
"""
    with vm.Context([vm.BytecodeModule.load(finish(text, "a.mlir").data)]) as context:
        f = context.lookup("module.f")
        for a in range(-9, 10):
            for b in range(-5, 6):
                assert f(a, b) == (
                    a // 4 + a % 4 * 100 + -(-b // 3) + 2 * a * b,
                    min(a, 2 * b, 7),
                    max(a, 2 * b, 7),
                )


def test_extremes_of_floats_are_nan_if_one_is() -> None:
    ops = {"maximumf": np.maximum, "minimumf": np.minimum, "maxnumf": np.fmax, "minnumf": np.fmin}
    body = "".join(f"  %{name} = arith.{name} %a, %b : f32\n" for name in ops)
    results = ", ".join(f"%{name}" for name in ops)
    text = (
        f"util.func public @f(%a: f32, %b: f32) -> (f32, f32, f32, f32) {{\n{body}"
        f"  util.return {results} : f32, f32, f32, f32\n}}\n"
    )
    values = [1.0, -2.0, float("nan"), float("inf"), float("-inf")]
    with vm.Context([vm.BytecodeModule.load(finish(text, "x.mlir").data)]) as context:
        f = context.lookup("module.f")
        for a in values:
            for b in values:
                np.testing.assert_array_equal(
                    f(a, b), [op(np.float32(a), np.float32(b)) for op in ops.values()]
                )


# Mistakes.

MISTAKES = {
    "syntax": ("util.func public @f( {\n}\n", [r"m.mlir:1:\d+: error: "]),
    "end": ("util.func public @f() {\n", [r"m.mlir:2:1: error: .*found 'the end of the text'"]),
    "type": (
        "util.func public @f(%a: i32) -> i64 {\n  %0 = arith.addi %a, %a : i64\n  util.return %0 : i64\n}\n",
        [r"m.mlir:2:19: error: .*i64.*i32"],
    ),
    "results": (
        "util.func public @f(%a: i32) -> i64 {\n  util.return %a : i32\n}\n",
        [r"m.mlir:2:3: error: 'util.return': returns other types"],
    ),
    "symbols": (
        "util.func public @f() {\n  util.call @g() : () -> ()\n  %0 = util.global.load @h : i32\n  util.return\n}\n",
        [
            r"m.mlir:2:3: error: 'util.call': there is no function @g",
            r"m.mlir:3:3: error: 'util.global.load': there is no global @h",
        ],
    ),
    "call": (
        "util.func private @g(%a: i32) { util.return }\n"
        "util.func public @f() {\n  util.call @g() : () -> ()\n  util.return\n}\n",
        [r"m.mlir:3:3: error: 'util.call': @g takes and gives other types"],
    ),
    "twice": (
        "util.global private @a : i32\nutil.global private @a : i32\n",
        [r"m.mlir:2:1: error: 'util.global': @a is there already"],
    ),
    "operation": ("util.func public @f() {\n  mine.op 1\n  util.return\n}\n", [r"m.mlir:2:\d+: error: there is no operation 'mine.op'"]),
    "unsupported": (
        'util.func public @f() {\n  "mine.op"() : () -> ()\n  "mine.other"() : () -> ()\n  util.return\n}\n',
        [r"m.mlir:2:3: error: 'mine.op': there is no conversion", r"m.mlir:3:3: error: 'mine.other': there is no"],
    ),
    "source": (
        'hal.executable private @e {\n  "hal.executable.source"() : () -> ()\n}\n',
        [r"m.mlir:2:3: error: 'hal.executable.source': expected compiled kernels"],
    ),
    "empty": (
        "util.func public @f() {\n}\n",
        [r"m.mlir:1:1: error: 'util.func': expected each block to end in a terminator"],
    ),
    "order": (
        "util.func public @f() -> i32 {\n  %y = arith.addi %y, %y : i32\n  util.return %y : i32\n}\n",
        [r"m.mlir:2:3: error: 'arith.addi': uses a value that is not computed on every way to it"],
    ),
    "ways": (
        "util.func public @f(%c: i1) -> i32 {\n  cf.cond_br %c, ^a, ^b\n^a:\n  %y = arith.constant 1 : i32\n"
        "  cf.br ^b\n^b:\n  util.return %y : i32\n}\n",
        [r"m.mlir:7:3: error: 'util.return': uses a value that is not computed on every way to it"],
    ),
    "resource": (
        'util.func public @f() {\n  util.return\n}\n{-# dialect_resources: { builtin: { a: "0xZZ" } } #-}\n',
        [r"resource a: expected bytes in hexadecimal, found '0xZZ'"],
    ),
    "data": (
        "util.func public @f() -> !util.buffer {\n  %0 = util.buffer.constant : !util.buffer = unit\n"
        "  util.return %0 : !util.buffer\n}\n",
        [r"error: 'vm.rodata': expected bytes"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_and_leave_no_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import re

    text, expected = MISTAKES[name]
    monkeypatch.chdir(tmp_path)
    Path("m.mlir").write_text(text)
    assert main(["compile", "--from=hal", "m.mlir", "-o", "m.vmfb"]) == 1
    out, err = capfd.readouterr()
    assert [path.name for path in tmp_path.iterdir()] == ["m.mlir"]
    assert out == ""
    lines = err.removeprefix("halgpu: error: ").splitlines()
    assert len(lines) == len(expected), err
    for line, pattern in zip(lines, expected, strict=True):
        assert re.search(pattern, line), err


@pytest.mark.parametrize("words", [["--device=opencl"], ["--target=vulkan"], ["--shape=a=1"], ["--", "--x"]])
def test_flags_that_do_not_go_with_it(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", "--from=hal", str(EXAMPLES / "saxpy.mlir"), "-o", "x.vmfb", *words]) == 1
    assert "does not go with a program at HAL level" in capfd.readouterr().err


def test_a_pass_that_does_not_exist(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["opt", str(EXAMPLES / "saxpy.mlir"), "--pass-pipeline=inline,canonicalise"]) == 1
    assert "there is no pass 'canonicalise' (did you mean 'canonicalize'?)" in capfd.readouterr().err
    assert main(["opt", "--list"]) == 0
    assert "combine-initializers" in capfd.readouterr().out


@pytest.mark.parametrize("seed", range(30))
def test_damaged_text_is_refused_with_an_error_of_ours(seed: int) -> None:
    random = Random(seed)
    name = random.choice(("loaded_executable", "accumulate_static", "custom_kernel"))
    text = (EXAMPLES / f"{name}.mlir").read_text()
    for _ in range(random.randint(1, 3)):
        at, length = random.randrange(len(text)), random.choice((1, 1, 3, 10, 200))
        text = text[:at] + random.choice(("", "", "%", "}", "!x", "i32", "\0", '"')) + text[at + length :]
    found: errors.Error | None = None
    try:
        finish(text, "damaged.mlir")
    except errors.Error as problem:
        found = problem
    assert not isinstance(found, errors.Internal)
