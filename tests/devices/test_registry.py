"""Device URIs: what opens, what is shared, what the refusals say, and what is imported on the way."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import pytest

from halgpu.devices import Device, list_devices, open_device, registry
from halgpu.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable


@pytest.mark.parametrize(
    ("uri", "canonical"),
    [
        ("host", "host:0"),
        ("null", "null:0"),
        ("opencl", "opencl:0"),
        ("OpenCL:0", "opencl:0"),
        (" opencl ", "opencl:0"),
        ("opencl?unified=0", "opencl:0?unified=0"),
        ("opencl:0?unified=1&cache=0", "opencl:0?cache=0&unified=1"),
        ("host?pool=0", "host:0?pool=0"),
        ("null?debug=1", "null:0?debug=1"),
    ],
)
def test_uris(uri: str, canonical: str) -> None:
    device = open_device(uri)
    assert device.uri == canonical
    assert open_device(canonical) is device
    assert open_device(device) is device


def test_the_default_is_opencl() -> None:
    assert open_device().uri == "opencl:0"


def test_a_device_is_shared_only_while_it_lives_and_is_open() -> None:
    first = open_device("null")
    kept = id(first), first.allocator.allocate(4)
    del first
    again = open_device("null")
    assert again is kept[1].device
    again.close()
    again.close()
    assert open_device("null") is not again


def test_a_closed_device_refuses_work_and_keeps_bytes() -> None:
    with open_device("host") as device:
        buffer = device.allocator.allocate(4)
        buffer.update(b"abcd")
    for use in (lambda: device.allocator.allocate(4), lambda: device.build(None), device.__enter__):  # type: ignore[arg-type]
        with pytest.raises(FailedPrecondition, match="closed"):
            use()
    assert bytes(buffer.read()) == b"abcd"


@pytest.mark.parametrize(
    "uri", ["", ":", "opencl:", "opencl:x", "opencl:-1", "open cl", "opencl://0", None, 5]
)
def test_what_is_no_uri(uri: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"no device URI.*'opencl:1'.*opencl, cuda, host, null"):
        open_device(uri)


def test_an_unknown_name_is_answered_with_those_that_exist() -> None:
    with pytest.raises(
        NotFound, match=r"'opncl' \(did you mean 'opencl'\?\); there are: opencl, cuda, host, null"
    ):
        open_device("opncl")
    with pytest.raises(NotFound, match=r"no device 'xyzzy'; there are"):
        open_device("xyzzy")


@pytest.mark.parametrize("uri", ["opencl:99", "host:1", "null:2"])
def test_an_index_that_does_not_exist(uri: str) -> None:
    with pytest.raises(NotFound, match=uri):
        open_device(uri)


def test_opencl_lists_the_indices_that_exist() -> None:
    with pytest.raises(NotFound, match=r"there are: opencl:0 \("):
        open_device("opencl:99")


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        (
            "opencl?unifed=0",
            r"no option 'unifed' \(did you mean 'unified'\?\); there are: unified, cache, maps, pool, debug",
        ),
        ("opencl?unified=2", "must be one of 0, 1; found '2'"),
        ("opencl?unified", "must be one of 0, 1; found ''"),
        ("host?unified=0", "there are: pool, debug"),
        ("opencl?pool=2", "'pool' must be one of 0, 1; found '2'"),
        ("null?debug=yes", "'debug' must be one of 0, 1; found 'yes'"),
    ],
)
def test_options_are_checked(uri: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        open_device(uri)


@pytest.mark.parametrize("uri", ["cuda", "cuda:0", "CUDA:3"])
def test_without_cupy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(Unavailable, match=r"cupy cannot be imported \(.*\): pip install 'halgpu\[cuda12x\]'"):
        open_device(uri)


def test_listing_says_what_works_and_why_the_rest_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    found = {info.uri: info for info in list_devices()}
    for uri in ("opencl:0", "host:0", "null:0"):
        assert found[uri].available
        assert found[uri].name
        assert not found[uri].reason
        assert open_device(uri).uri == uri
    assert not found["cuda"].available
    assert "cupy" in found["cuda"].reason


class Plugin:
    """A backend as another package would register it."""

    OPTIONS: ClassVar[dict[str, tuple[str, ...]]] = {}

    @staticmethod
    def open_device(uri: str, index: int, options: dict[str, str]) -> Device:
        from halgpu.devices.null import NullDevice

        return NullDevice(uri)

    @staticmethod
    def list_devices() -> list[Any]:
        return [registry.DeviceInfo("plugin:0", "a plugin", True)]


def points(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    point = EntryPoint("plugin", value, registry.GROUP)
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: [point] if group == registry.GROUP else []
    )


def test_a_plugin_adds_a_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    points(monkeypatch, "halgpu_test_plugin:Plugin")
    monkeypatch.setitem(sys.modules, "halgpu_test_plugin", sys.modules[__name__])
    assert open_device("plugin:3").uri == "plugin:3"
    assert "plugin:0" in [info.uri for info in list_devices()]
    with pytest.raises(NotFound, match="null, plugin"):
        open_device("nothing")


def test_a_plugin_that_does_not_load_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    points(monkeypatch, "no_such_package_at_all:backend")
    with pytest.raises(Unavailable, match="no_such_package_at_all"):
        open_device("plugin")
    (info,) = [info for info in list_devices() if info.uri == "plugin"]
    assert not info.available
    assert "no_such_package_at_all" in info.reason


# -- machines that lack things, in a process of their own ------------------------------------------------


def python(code: str, **environment: str) -> str:
    """Run code in a new Python; it must say nothing on stderr. Returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True, text=True, timeout=60, env={**os.environ, **environment},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_importing_and_listing_names_loads_nothing_heavy() -> None:
    code = "import sys, halgpu.devices.registry as r; r.schemes(); r.open_device('null'); print(*sys.modules)"
    loaded = set(python(code).split())
    assert not loaded & {"pyopencl", "cupy", "halgpu.devices.opencl", "halgpu.vm", "halgpu.api"}
    only = set(python("import sys, halgpu.devices; print(*sys.modules)").split())
    assert not only & {"numpy", "halgpu.devices.base"}


ASK = """
from halgpu.devices import list_devices, open_device
from halgpu.errors import Unavailable
try:
    open_device("opencl")
except Unavailable as error:
    print(error)
    print(type(error.__cause__).__name__)
print(*(info.reason for info in list_devices() if info.uri == "opencl"))
open_device("host").allocator.allocate(4).write()
"""


def test_without_an_opencl_driver_it_says_how_to_get_one(tmp_path: Path) -> None:
    # The OpenCL loader inside pyopencl's wheel looks for drivers beside itself, unless told to look where nothing
    # is (an empty folder does not count).
    printed = python(ASK, OCL_ICD_VENDORS=str(tmp_path / "absent")).splitlines()
    assert "pip install 'halgpu[pocl]'" in printed[0]
    assert printed[1] == "LogicError"
    assert printed[2] == printed[0]


def test_without_pyopencl_it_says_so() -> None:
    hidden = "import sys; sys.modules['pyopencl'] = None\n" + ASK
    printed = python(hidden).splitlines()
    assert "pip install pyopencl" in printed[0]
    assert printed[1] in ("ImportError", "ModuleNotFoundError")


FORK = """
import os, signal, threading
from halgpu.devices import open_device, registry

device, held, finish = open_device("null"), threading.Event(), threading.Event()

def hold():
    with registry._lock:
        held.set()
        finish.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
process = os.fork()
if not process:
    signal.alarm(20)
    assert open_device("host").allocator.allocate(4).byte_length == 4
    own = open_device("null")
    assert own is not device and own.allocator.allocate(4).byte_length == 4
    os._exit(0)
finish.set()
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
assert open_device("null") is device
"""


def test_a_child_forked_while_another_thread_opens_a_device_can_open_one() -> None:
    # Python 3.12 warns of any fork beside threads, which is what this is about.
    assert python("import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n" + FORK) == ""
