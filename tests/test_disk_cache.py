"""The cache of built kernels: whole entries or none, from many processes, and never an error."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from halgpu import disk_cache as cache


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HALGPU_CACHE_DIR", str(tmp_path / "a" / "b"))
    monkeypatch.delenv("HALGPU_CACHE", raising=False)
    return tmp_path / "a" / "b"


@pytest.mark.parametrize("body", [b"", b"x", bytes(range(256)) * 1000])
def test_what_is_stored_is_loaded(folder: Path, body: bytes) -> None:
    assert cache.load("entry") is None
    cache.store("entry", body)
    assert cache.load("entry") == body
    assert [path.name for path in folder.iterdir()] == ["entry"]


def test_keys_depend_on_every_part_and_on_where_parts_end() -> None:
    keys = [cache.key(parts) for parts in ([], [""], ["ab"], ["a", "b"], ["", "ab"], ["b", "a"], ["\ud800"])]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("cut", [0, 1, 31, 32, 40])
def test_a_cut_entry_is_a_miss(folder: Path, cut: int) -> None:
    cache.store("entry", b"0123456789")
    path = folder / "entry"
    path.write_bytes(path.read_bytes()[:cut])
    assert cache.load("entry") is None


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HALGPU_CACHE_DIR", str(tmp_path / "file" / "cache"))
    cache.store("entry", b"x")
    assert cache.load("entry") is None


@pytest.mark.parametrize("kind", ["folder", "pipe", "dangling link"])
def test_what_is_no_file_is_a_miss(folder: Path, kind: str) -> None:
    cache.store("other", b"x")
    path = folder / "entry"
    {
        "folder": path.mkdir,
        "pipe": lambda: os.mkfifo(path),
        "dangling link": lambda: path.symlink_to("nothing"),
    }[kind]()
    assert cache.load("entry") is None
    cache.store("entry", b"new")
    assert cache.load("entry") == (None if kind == "folder" else b"new")
    assert sorted(path.name for path in folder.iterdir()) == ["entry", "other"]


def test_every_flipped_byte_is_a_miss(folder: Path) -> None:
    cache.store("entry", b"0123456789")
    path = folder / "entry"
    data = path.read_bytes()
    for index in range(len(data)):
        path.write_bytes(data[:index] + bytes([data[index] ^ 0x40]) + data[index + 1 :])
        assert cache.load("entry") is None


DENIED = """
import os, sys
from pathlib import Path
from halgpu import disk_cache as cache
place = Path(sys.argv[1])
os.chmod(place, 0o755)
cache.store("entry", b"x")
os.chmod(place / "entry", 0o000)
os.chmod(place, 0o555)
if os.geteuid() == 0:  # nothing is denied to root
    os.seteuid(65534)
for mode in ("entry is unreadable, folder is read-only", "folder is closed"):
    try:
        (place / "entry").read_bytes()
    except PermissionError:
        pass
    else:
        sys.exit(f"{mode}: not so")
    assert cache.load("entry") is None
    cache.store("entry", b"y")
    cache.store("new", b"y")
    assert cache.load("new") is None
    os.seteuid(os.getuid())
    assert sorted(os.listdir(place)) == ["entry"]
    os.chmod(place, 0o000)
    if os.getuid() == 0:
        os.seteuid(65534)
os.seteuid(os.getuid())
os.chmod(place, 0o755)
"""


def test_a_cache_without_permissions() -> None:
    with tempfile.TemporaryDirectory() as place:  # not below tmp_path, which others may not enter
        done = subprocess.run(
            [sys.executable, "-c", DENIED, place], env={**os.environ, "HALGPU_CACHE_DIR": place},
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_failed_write_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: str) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache.store("entry", b"x")
    assert list(folder.iterdir()) == []


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HALGPU_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "halgpu"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/somebody")
    assert cache.folder() == Path("/somebody/.cache/halgpu")


def test_eight_processes_at_once(folder: Path) -> None:
    code = """
from halgpu import disk_cache as cache
body = bytes(100_000)
for turn in range(50):
    cache.store(f"entry{turn % 3}", body)
    assert cache.load(f"entry{turn % 3}") == body
"""
    running = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(8)]
    for process in running:
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (0, b"")
    assert sorted(path.name for path in folder.iterdir()) == ["entry0", "entry1", "entry2"]
