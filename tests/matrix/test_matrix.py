"""The matrix itself: a run that would test nothing, or something else, fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from halgpu.devices import Device


@pytest.fixture(scope="module")
def conftest(python_file: Callable[[Path], ModuleType]) -> ModuleType:
    return python_file(Path(__file__).with_name("conftest.py"))


def test_an_empty_matrix_fails(conftest: ModuleType, tmp_path: Path) -> None:
    empty = tmp_path / "matrix.toml"
    empty.write_text("")
    with pytest.raises(pytest.UsageError, match="no device to test"):
        conftest.read_matrix(empty)
    with pytest.raises(pytest.UsageError, match="no device to test"):
        conftest.read_matrix(chosen="")


def test_a_name_that_is_not_in_the_matrix_fails(conftest: ModuleType) -> None:
    with pytest.raises(pytest.UsageError, match="opencll"):
        conftest.read_matrix(chosen="host,opencll")


def test_names_choose_devices(conftest: ModuleType) -> None:
    assert [entry["name"] for entry in conftest.read_matrix(chosen="opencl, host")] == ["opencl", "host"]


def test_the_matrix_has_the_reference_and_both_kinds_of_memory(conftest: ModuleType) -> None:
    entries = conftest.read_matrix()
    assert "host" in {entry["kind"] for entry in entries}
    assert {"host", "null", "cpu"} <= {entry["kind"] for entry in entries}
    assert {entry["unified"] for entry in entries} == {True, False}


def test_a_device_says_what_it_is(device: Device) -> None:
    able = device.capabilities
    assert able.name
    assert able.vendor
    assert able.driver
    assert min(able.max_workgroup_size) >= 1
    assert able.max_workgroup_invocations >= 64
    assert able.max_allocation >= 1 << 20
    assert able.max_parameter_bytes >= 256
    assert bool(able.languages) == (able.kind != "null")  # which takes any
    assert able.name in repr(device)


def test_a_test_for_none_of_the_chosen_devices_is_deselected(conftest: ModuleType) -> None:
    class Item:
        def __init__(self, **parameters: object) -> None:
            self.callspec = SimpleNamespace(params=parameters)

    idle, other, plain = Item(matrix_entry=None), Item(matrix_entry={}, size=None), object()
    items, gone = [idle, other, plain], []
    hook = SimpleNamespace(pytest_deselected=lambda items: gone.extend(items))
    conftest.pytest_collection_modifyitems(SimpleNamespace(hook=hook), items)
    assert (items, gone) == ([other, plain], [idle])
