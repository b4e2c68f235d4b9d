"""`halgpu cache`: what is there, and that clearing takes nothing else away."""

from __future__ import annotations

from pathlib import Path

import pytest

from halgpu import disk_cache as cache
from halgpu.cli import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HALGPU_CACHE", "CUDA_CACHE_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HALGPU_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "pocl"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "cache"


def test_an_empty_cache(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "info"]) == 0
    assert capsys.readouterr().out == f"folder: {folder}\nentries: 0\nbytes: 0\n"
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"removed 0 files of 0 bytes from {folder}\n"
    assert not folder.exists()


def test_clearing_takes_entries_and_leaves_the_rest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache.store(cache.key(["a"]), bytes(100))
    cache.store(cache.key(["b"]), bytes(50))
    (folder / ".new-abc").write_bytes(b"unfinished")
    (folder / "notes.txt").write_text("mine")
    (folder / ("a" * 64)).mkdir()
    (folder / ("b" * 64)).symlink_to(folder / "notes.txt")
    (folder.parent / "pocl").mkdir()
    (folder.parent / ".nv" / "ComputeCache").mkdir(parents=True)
    assert main(["cache", "info"]) == 0
    assert capsys.readouterr().out == (
        f"folder: {folder}\nentries: 3\nbytes: 224\n"
        f"PoCL's own: {folder.parent}/pocl\nNVIDIA's own: {folder.parent}/.nv/ComputeCache\n"
    )
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"removed 3 files of 224 bytes from {folder}\n"
    assert sorted(path.name for path in folder.iterdir()) == ["a" * 64, "b" * 64, "notes.txt"]
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_cache_that_is_off(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HALGPU_CACHE", "0")
    assert main(["cache", "info"]) == 0
    assert "(off: HALGPU_CACHE=0)" in capsys.readouterr().out


def test_no_place_for_a_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HALGPU_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert main(["cache", "info"]) == 1
    assert "HALGPU_CACHE_DIR names one" in capsys.readouterr().err


def test_a_folder_that_is_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.write_text("in the way")
    assert main(["cache", "clear"]) == 1
    assert str(folder) in capsys.readouterr().err
    assert folder.read_text() == "in the way"


@pytest.mark.parametrize("words", [[], ["show"], ["info", "more"]])
def test_what_it_takes(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", *words]) == 1
    assert "halgpu: error: " in capsys.readouterr().err
