"""`halgpu trace` and `halgpu.trace`: the file keeps the rules that viewers need, and says what happened."""

from __future__ import annotations

import io
import itertools
import json
import threading
from typing import Any

import numpy as np
import pytest

import halgpu
from halgpu import errors, tracing
from halgpu.cli import main
from halgpu.devices import open_device

Event = dict[str, Any]
NUMBER = (int, float)


class TraceFile:
    """A trace file that keeps the rules; `host` and `device` are its slices, by start."""

    def __init__(self, text: str) -> None:
        content = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
        self.events: list[Event] = content["traceEvents"]
        self.other: dict[str, Any] = content["otherData"]
        self.names = self._names()
        slices = sorted(self._phase("X"), key=lambda event: (event["ts"], -event["dur"]))
        self.host = [event for event in slices if self.names[event["pid"], None] == "host"]
        self.device = [event for event in slices if self.names[event["pid"], None] != "host"]
        self._check(slices)

    def _phase(self, phase: str) -> list[Event]:
        return [event for event in self.events if event["ph"] == phase]

    def _names(self) -> dict[tuple[int, int | None], str]:
        names: dict[tuple[int, int | None], str] = {}
        for event in self._phase("M"):
            if event["name"] in ("process_name", "thread_name"):
                key = event["pid"], event["tid"] if event["name"] == "thread_name" else None
                assert key not in names
                names[key] = event["args"]["name"]
                assert isinstance(names[key], str)
        threads = [thread for _, thread in names if thread is not None]
        assert len(set(threads)) == len(threads), "viewers take one thread number for one thread"
        return names

    def _check(self, slices: list[Event]) -> None:
        assert {event["ph"] for event in self.events} <= {"M", "X", "s", "f"}
        for event in self.events:
            assert type(event["pid"]) is type(event["tid"]) is int
            assert isinstance(event["name"], str)
            assert isinstance(event.get("args", {}), dict)
        for event in slices:
            assert isinstance(event["ts"], NUMBER)
            assert isinstance(event["dur"], NUMBER)
            assert event["dur"] >= 0
            assert isinstance(event["cat"], str)
            assert (event["pid"], event["tid"]) in self.names, "a slice's thread has a name"
        for track in {(event["pid"], event["tid"]) for event in slices}:
            _check_nesting([event for event in slices if (event["pid"], event["tid"]) == track])
        for process in {event["pid"] for event in self.device}:
            queue = [event for event in self.device if event["pid"] == process]
            for first, second in itertools.pairwise(queue):
                assert end(first) <= start(second), "commands of an in-order queue do not overlap"
        self._check_arrows()

    def _check_arrows(self) -> None:
        begins = {event["id"]: event for event in self._phase("s")}
        ends = {event["id"]: event for event in self._phase("f")}
        assert begins.keys() == ends.keys()
        assert len(begins) == len(self._phase("s")) == len(self._phase("f"))
        for slices, arrows in ((self.host, begins), (self.device, ends)):
            for arrow in arrows.values():
                assert any(
                    event["tid"] == arrow["tid"] and start(event) <= start(arrow) <= end(event)
                    for event in slices
                ), "an arrow starts and ends in slices"
        assert all(event["bp"] == "e" for event in ends.values())


def start(event: Event) -> int:
    """Nanoseconds, in which the file is exact."""
    return nanoseconds(event["ts"])


def end(event: Event) -> int:
    return start(event) + nanoseconds(event["dur"])


def nanoseconds(microseconds: float) -> int:
    """As Perfetto reads them: what is left of a nanosecond is cut off."""
    cut = int(microseconds * 1000)
    assert cut == round(microseconds * 1000)
    return cut


def _check_nesting(slices: list[Event]) -> None:
    around: list[Event] = []
    for event in slices:
        while around and end(around[-1]) <= start(event):
            around.pop()
        assert not around or end(event) <= end(around[-1]), f"{event} is not inside {around[-1]}"
        around.append(event)


def _no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


PROGRAM = """
module @program {
  func.func @twice(%a: tensor<64xf32>) -> tensor<64xf32> {
    %x = arith.addf %a, %a : tensor<64xf32>
    return %x : tensor<64xf32>
  }
  func.func @divide(%a: i32, %b: i32) -> i32 {
    %x = arith.divsi %a, %b : i32
    return %x : i32
  }
}
"""
URIS = ["opencl", "opencl?unified=0", "null"]
BYTES = 64 * 4


@pytest.fixture(scope="module")
def program(compile_mlir, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("program") / "program.vmfb"
    path.write_bytes(compile_mlir(PROGRAM))
    return str(path)


@pytest.fixture(scope="module", autouse=True)
def devices():
    """Keeps the devices open between runs."""
    return [open_device(uri) for uri in URIS]


def names(slices: list[Event]) -> list[str]:
    return [event["name"] for event in slices]


@pytest.mark.parametrize("uri", URIS)
def test_a_run_as_a_timeline(uri, program, tmp_path, capsys):
    path = tmp_path / "out.json"
    flags = [f"--module={program}", "--function=twice", "--input=64xf32=1", f"--device={uri}", "--calls=3"]
    assert main(["trace", *flags, "-o", str(path)]) == 0
    found = TraceFile(path.read_text())
    kernels = [event for event in found.device if event["cat"] == "kernel"]
    assert len(kernels) == 3
    assert {event["name"] for event in kernels} == {"twice_dispatch_0_elementwise_64_f32"}
    assert {event["args"]["bytes"] for event in kernels} == {2 * BYTES}
    assert all(len(event["args"]["workgroups"]) == 3 for event in kernels)
    host = names(found.host)
    assert [name for name in host if name.startswith("call ")] == ["call 1", "call 2", "call 3"]
    assert host.count("program.twice") == host.count("hal_loader.executable.dispatch") == 3
    assert host.count("launch twice_dispatch_0_elementwise_64_f32") == 3
    assert "load" in host
    assert "hal_loader.executable.load" in host
    assert any(name.startswith("build ") and "twice_dispatch_0" in name for name in host)
    processes = {name for (_, thread), name in found.names.items() if thread is None}
    assert processes == {"host", str(open_device(uri).uri)}
    printed = capsys.readouterr().out
    assert printed.startswith(f"{path}: ")
    assert "3 x kernel twice_dispatch_0_elementwise_64_f32, 512 B each" in printed


def test_uploads_of_a_device_with_memory_of_its_own(program, tmp_path):
    path = tmp_path / "out.json"
    flags = [f"--module={program}", "--function=twice", "--input=64xf32=1", "--device=opencl?unified=0"]
    assert main(["trace", *flags, f"--output={path}"]) == 0
    found = TraceFile(path.read_text())
    [upload] = [event for event in found.device if event["cat"] == "upload"]
    assert upload["args"]["bytes"] == BYTES
    [host] = [event for event in found.host if event["name"] == "upload"]
    assert host["args"]["bytes"] == BYTES


@pytest.mark.parametrize("uri", URIS)
def test_device_times_are_within_the_call(uri, program, tmp_path):
    path = tmp_path / "out.json"
    flags = [f"--module={program}", "--function=twice", "--input=64xf32=1", f"--device={uri}", "--calls=5"]
    assert main(["trace", *flags, "-o", str(path)]) == 0
    found = TraceFile(path.read_text())
    slack = round(max(found.other["clock_error_us"].values(), default=0) * 1000)
    calls = [event for event in found.host if event["name"].startswith("call ")]
    kernels = [event for event in found.device if event["cat"] == "kernel"]
    launches = [event for event in found.host if event["name"].startswith("launch ")]
    for call, launch, kernel in zip(calls, launches, kernels, strict=True):
        assert start(call) <= start(launch) <= end(call)
        assert start(launch) - slack <= start(kernel) <= end(kernel) <= end(call) + slack
    assert sum(event["dur"] for event in kernels) <= sum(event["dur"] for event in calls)


def test_to_stdout(program, capsys):
    flags = [f"--module={program}", "--function=twice", "--input=64xf32=1", "--device=null"]
    assert main(["trace", *flags, "-o", "-"]) == 0
    captured = capsys.readouterr()
    TraceFile(captured.out)
    assert "1 x kernel" in captured.err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--calls=0"], "--calls must be at least 1, found 0"),
        (["--function=twice"], "function 'twice': expected 1 argument"),
        (["--function=divide", "--input=1", "--input=0", "-o", "/nowhere/out.json"], "/nowhere/out.json: No such"),
        (["--module=missing.vmfb"], "missing.vmfb"),
    ],
)  # fmt: skip
def test_mistakes(flags, message, program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["trace", f"--module={program}", "--device=null", *flags]) == 1
    assert message in capsys.readouterr().err
    if (tmp_path / "trace.json").exists():  # it was begun
        TraceFile((tmp_path / "trace.json").read_text())
    with halgpu.trace(io.StringIO()):  # nothing was left behind
        pass


def test_what_a_failing_call_did_is_written(program, tmp_path):
    path = tmp_path / "out.json"
    module = halgpu.load(program, "null")
    with pytest.raises(errors.Error) as plain:
        module.divide(1, 0)
    with pytest.raises(type(plain.value)) as traced, halgpu.trace(path):
        module.divide(1, 0)
    assert plain.value.frames == traced.value.frames
    assert "program.divide" in names(TraceFile(path.read_text()).host)


def test_from_python(program, tmp_path):
    path = tmp_path / "out.json"
    data = np.arange(64, dtype=np.float32)
    before = halgpu.load(program, "opencl")
    with halgpu.trace(path) as recording:
        later = halgpu.load(program, "opencl")
        with recording.span("both", answer=42):
            for module in (before, later):
                np.testing.assert_array_equal(np.asarray(module.twice(data)), 2 * data)
    assert recording.kernels[0].count == 2
    spans = len(recording.spans)
    np.testing.assert_array_equal(np.asarray(before.twice(data)), 2 * data)
    np.testing.assert_array_equal(np.asarray(later.twice(data)), 2 * data)
    assert len(recording.spans) == spans
    found = TraceFile(path.read_text())
    [both] = [event for event in found.host if event["name"] == "both"]
    assert both["args"] == {"answer": 42}
    twice = [event for event in found.host if event["name"] == "program.twice"]
    assert [start(both) <= start(event) <= end(event) <= end(both) for event in twice] == [True, True]


def test_a_device_opened_inside(program):
    file = io.StringIO()
    with halgpu.trace(file):
        module = halgpu.load(program, "opencl?unified=0&cache=0")
        module.twice(np.ones(64, np.float32))
    found = TraceFile(file.getvalue())
    assert not file.closed
    assert [event["cat"] for event in found.device].count("kernel") == 1


def test_threads_have_tracks_of_their_own(program):
    file = io.StringIO()
    data = np.ones(64, np.float32)
    modules = [halgpu.load(program, "opencl") for _ in range(3)]
    with halgpu.trace(file):
        threads = [
            threading.Thread(target=lambda m=module: [m.twice(data) for _ in range(10)], name=f"worker {n}")
            for n, module in enumerate(modules)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = TraceFile(file.getvalue())
    calls = [event for event in found.host if event["name"] == "program.twice"]
    tracks = {found.names[event["pid"], event["tid"]] for event in calls}
    assert tracks == {"worker 0", "worker 1", "worker 2"}
    assert [event["cat"] for event in found.device].count("kernel") == len(calls) == 30


def test_one_trace_at_a_time(program):
    file = io.StringIO()
    device = open_device("null")
    with halgpu.trace(file):
        with pytest.raises(errors.FailedPrecondition, match="already"), halgpu.trace(io.StringIO()):
            pass
        with pytest.raises(errors.FailedPrecondition, match="already"), device.profile():
            pass
    TraceFile(file.getvalue())


def test_a_trace_beside_a_profile_is_refused_and_leaves_nothing(program):
    device = open_device("null")
    with device.profile() as recording:
        with pytest.raises(errors.FailedPrecondition, match="profiled"), halgpu.trace(io.StringIO()):
            pass
        assert device.counters.recorder is not None
        halgpu.load(program, device).divide(4, 2)
    assert not [span for span in recording.spans if span.name == "program.divide"]
    assert open_device("opencl").counters.recorder is None
    with halgpu.trace(io.StringIO()):
        pass


def test_every_nanosecond_is_kept():
    assert [time for time in range(100_000) if nanoseconds(tracing._us(time)) != time] == []
    times = np.random.default_rng(5).integers(0, 10**13, 10_000).tolist()
    assert [time for time in times if nanoseconds(tracing._us(time)) != time] == []


def test_the_reader_is_strict(program):
    file = io.StringIO()
    with halgpu.trace(file):
        halgpu.load(program, "opencl").twice(np.ones(64, np.float32))
    good = json.loads(file.getvalue())
    TraceFile(json.dumps(good))
    [kernel] = [event for event in good["traceEvents"] if event.get("cat") == "kernel"]
    [call] = [event for event in good["traceEvents"] if event["name"] == "program.twice"]
    inner = max(
        (
            e
            for e in good["traceEvents"]
            if e.get("ph") == "X" and e["tid"] == call["tid"] and e["ts"] > call["ts"]
        ),
        key=lambda event: event["dur"],
    )
    for event, changes in (
        (kernel, {"dur": -1}),
        (kernel, {"ts": float("nan")}),
        (kernel, {"ts": kernel["ts"] + kernel["dur"] + 1}),
        (kernel, {"tid": 7}),
        (call, {"dur": inner["ts"] + inner["dur"] / 2 - call["ts"]}),  # ends while what it called goes on
        (call, {"pid": "1"}),
    ):
        kept = dict(event)
        event.update(changes)
        with pytest.raises((AssertionError, KeyError)):
            TraceFile(json.dumps(good))
        event.clear()
        event.update(kept)
    TraceFile(json.dumps(good))
