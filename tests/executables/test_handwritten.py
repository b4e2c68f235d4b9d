"""Containers of hand-written kernels (formats opencl-c, cuda-c): as written down, damaged, and in programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import halgpu
from halgpu import errors
from halgpu.devices import BindingLayout, open_device
from halgpu.executables import handwritten, registry
from halgpu.executables.handwritten import read, write

SOURCE = "__kernel void k(uint n, __global int* out) { if (n) out[0] = n; } // \u00fc\n"
LAYOUTS = [
    halgpu.KernelLayout("k", ("u32",), ("readwrite",), (4, 2, 1)),
    halgpu.KernelLayout(
        "other",
        ("f32x4", halgpu.Struct(a="i8", b=halgpu.Struct(c="f64"))),
        ("read", BindingLayout("write", 16, 64)),
        (8, 1, 1),
        256,
    ),
]
HEADER = {"halgpu-kernels": 1, "language": "opencl-c", "kernels": [{"name": "k"}]}


def test_what_is_written_is_read() -> None:
    found = read(memoryview(write(SOURCE, LAYOUTS, "opencl-c", ["-DA=1"])), "it")
    assert (found.language, found.source, found.options) == ("opencl-c", SOURCE, ("-DA=1",))
    assert found.layouts == tuple(LAYOUTS)


def test_the_format_is_the_documented_one() -> None:
    """Written out by hand: what is read here must be read for ever."""
    text = (
        '{"halgpu-kernels": 1, "language": "cuda-c", "options": ["-G"], "kernels": [{"name": "a", "constants": '
        '["u8", {"x": "i32", "v": "f32x3"}], "bindings": ["read", {"access": "write", "alignment": 8, '
        '"minimum_length": 4}], "workgroup_size": [3, 2], "local_memory": 12}, {"name": "b"}]}\nthe source\n{"x"}'
    )
    found = read(text.encode(), "it")
    assert (found.language, found.source, found.options) == ("cuda-c", 'the source\n{"x"}', ("-G",))
    kind = halgpu.Struct(x="i32", v="f32x3")
    bindings = (BindingLayout("read"), BindingLayout("write", 8, 4))
    assert found.layouts == (
        halgpu.KernelLayout("a", ("u8", kind), bindings, (3, 2, 1), 12),
        halgpu.KernelLayout("b", (), (), (1, 1, 1)),
    )


def changed(**values: Any) -> bytes:
    header = {key: value for key, value in {**HEADER, **values}.items() if value is not ...}
    return json.dumps(header).encode() + b"\nsource"


def kernel(**values: Any) -> bytes:
    return changed(kernels=[{"name": "k", **values}])


@pytest.mark.parametrize(
    ("data", "kind", "said"),
    [
        (b"", errors.InvalidArgument, "its first line is no JSON"),
        (b"\xff\xfe{}", errors.InvalidArgument, "no JSON"),
        (b"[" * 100_000, errors.InvalidArgument, "no JSON"),
        (b"[]\n", errors.InvalidArgument, "no JSON object with 'halgpu-kernels'"),
        (b"{}\n", errors.InvalidArgument, "no JSON object with 'halgpu-kernels'"),
        (b" " * (1 << 20) + b"{}", errors.InvalidArgument, "first line is longer than 1048576 bytes"),
        (changed(**{"halgpu-kernels": 2}), errors.Incompatible, "version 2 of the format; this halgpu reads version 1"),
        (changed(**{"halgpu-kernels": [1]}), errors.Incompatible, "version [1]"),
        (changed(kernel=1), errors.InvalidArgument, "has 'kernel' (did you mean 'kernels'?)"),
        (changed(language=...), errors.InvalidArgument, "its language must be a string, found None"),
        (changed(kernels=...), errors.InvalidArgument, "kernels need layouts"),
        (changed(kernels={}), errors.InvalidArgument, "kernels must be a list, found {}"),
        (changed(kernels=["k"]), errors.InvalidArgument, "kernel 0 must be a JSON object, found 'k'"),
        (changed(kernels=[{}]), errors.InvalidArgument, "kernel 0: its name must be a string"),
        (changed(kernels=[{"name": "k"}] * 2), errors.InvalidArgument, "kernel 'k' has two layouts"),
        (changed(options=[1]), errors.InvalidArgument, "an option must be a string, found 1"),
        (kernel(constants="u32"), errors.InvalidArgument, "constants must be a list, found 'u32'"),
        (kernel(constants=["u33"]), errors.InvalidArgument, "kernel 0: no constant has type 'u33'"),
        (kernel(constants=[None]), errors.InvalidArgument, "kernel 0: a constant's type is a name"),
        (kernel(constants=[{}]), errors.InvalidArgument, "a structure by value needs a field"),
        (kernel(constants=[{"a": [1]}]), errors.InvalidArgument, "kernel 0: a constant's type is a name"),
        (kernel(bindings=[1]), errors.InvalidArgument, "a binding must be its access or an object, found 1"),
        (kernel(bindings=["reed"]), errors.InvalidArgument, "a binding is read, write or readwrite; found 'reed'"),
        (kernel(bindings=[{"access": []}]), errors.InvalidArgument, "found []"),
        (kernel(bindings=[{"alignment": -1}]), errors.InvalidArgument, "alignment must be a whole number, found -1"),
        (kernel(bindings=[{"alignment": 2**70}]), errors.InvalidArgument, "must be a whole number"),
        (kernel(bindings=[{"aligment": 1}]), errors.InvalidArgument, "did you mean 'alignment'"),
        (kernel(workgroup_size=[1, 1, 1, 1]), errors.InvalidArgument, "workgroup_size is one to three ints"),
        (kernel(workgroup_size=[1.0]), errors.InvalidArgument, "a workgroup size must be a whole number, found 1.0"),
        (kernel(local_memory=True), errors.InvalidArgument, "its local memory must be a whole number, found True"),
        (changed() + b"\xff", errors.InvalidArgument, "its source is no UTF-8"),
    ],
)  # fmt: skip
def test_damaged_containers_are_refused(data: bytes, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind) as caught:
        read(memoryview(data), "it")
    assert said in str(caught.value)


def test_structures_nested_without_end_are_refused() -> None:
    deep: Any = "i32"
    for _ in range(40):
        deep = {"a": deep}
    with pytest.raises(errors.InvalidArgument, match="nested deeper than 16"):
        read(kernel(constants=[deep]), "it")


@given(st.data())
def test_any_bytes_give_a_container_or_an_error(data: st.DataObject) -> None:
    good = write(SOURCE, LAYOUTS, "opencl-c")
    at = data.draw(st.integers(0, len(good)))
    junk = data.draw(
        st.one_of(st.binary(max_size=8), st.sampled_from([b'"', b"[", b"}", b"-1", b"null", b"1e999"]))
    )
    damaged = good[:at] + junk + good[at + data.draw(st.integers(0, 12)) :]
    with suppress(errors.InvalidArgument, errors.Incompatible):
        read(memoryview(damaged), "it")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(["kernels", "options", "language", "name", "constants", "bindings", "workgroup_size", "local_memory"]),
    json_values,
)  # fmt: skip
def test_any_json_gives_a_container_or_an_error(key: str, value: Any) -> None:
    data = changed(**{key: value}) if key in ("kernels", "options", "language") else kernel(**{key: value})
    with suppress(errors.InvalidArgument):
        read(memoryview(data), "it")


# -- on devices ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "supported"),
    [("opencl", {"opencl-c"}), ("host", set()), ("null", {"opencl-c", "cuda-c"})],
)
def test_query_support_is_true_of_the_devices_languages(uri: str, supported: set[str]) -> None:
    device = open_device(uri)
    for format in ("opencl-c", "cuda-c"):
        assert registry.query_support(device, format) == (format in supported)


def test_an_executable_is_built_and_run() -> None:
    device = open_device("opencl")
    data = write(SOURCE, LAYOUTS[:1], "opencl-c")
    executable = registry.load(device, "opencl-c", memoryview(data))
    assert executable.names == ("k",)
    out = halgpu.BufferView.from_array(np.zeros(1, np.int32), device)
    executable.kernels[executable.lookup("k")].dispatch_words((1, 1, 1), (7,), [(out.buffer, 0, 4)])
    assert np.asarray(out).tolist() == [7]


def test_executables_that_cannot_be_loaded() -> None:
    device = open_device("opencl")
    data = memoryview(write(SOURCE, LAYOUTS[:1], "opencl-c"))
    with pytest.raises(errors.InvalidArgument, match="takes no specialization constants, found 2"):
        registry.load(device, "opencl-c", data, (1, 2))
    with pytest.raises(errors.InvalidArgument, match="opencl-c executable: its kernels are in 'cuda-c'"):
        registry.load(device, "opencl-c", memoryview(write(SOURCE, LAYOUTS[:1], "cuda-c")))
    with pytest.raises(errors.Incompatible, match="'cuda-c' do not run on opencl:0"):
        registry.load(device, "cuda-c", memoryview(write(SOURCE, LAYOUTS[:1], "cuda-c")))
    wrong = memoryview(write(SOURCE, [halgpu.KernelLayout("k", ("f32",), ("write",))], "opencl-c"))
    with pytest.raises(errors.InvalidArgument, match="argument 0, 'uint n', is a uint"):
        registry.load(device, "opencl-c", wrong)


def test_the_loader_knows_its_name() -> None:
    from halgpu.executables import cuda_c, opencl_c

    for module, format in ((opencl_c, "opencl-c"), (cuda_c, "cuda-c")):
        loader = module.loader()
        assert isinstance(loader, handwritten.HandwrittenLoader)
        assert loader.format == module.FORMAT == format
        assert registry.get(format).format == format


@pytest.mark.parametrize("uri", ["opencl", "opencl?unified=0"])
def test_a_program_dispatches_a_hand_written_kernel(
    uri: str, compile_mlir: Callable[..., bytes], examples: Path
) -> None:
    module = halgpu.load(compile_mlir((examples / "custom_kernel.mlir").read_text()), uri)
    for n in (1, 64, 65, 1000):
        x, y = np.random.default_rng(n).integers(-99, 99, (2, n)).astype(np.float32)
        for a in (2.0, -0.5, 0.0):
            np.testing.assert_array_equal(np.asarray(module.saxpy(a, x, y)), np.float32(a) * x + y)
    with pytest.raises(errors.InvalidArgument, match="shape dimension 0 mismatch"):
        module.saxpy(1.0, np.zeros(3, np.float32), np.zeros(4, np.float32))


def test_a_program_for_other_devices_says_what_it_offers(
    compile_mlir: Callable[..., bytes], examples: Path
) -> None:
    with pytest.raises(errors.Incompatible, match="'cuda-c' do not run on host:0"):
        halgpu.load(compile_mlir((examples / "custom_kernel.mlir").read_text()), "host")
