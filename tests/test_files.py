"""files.replace: the old file or the new one, never half of one, and nothing left behind."""

import os
import stat
from pathlib import Path

import pytest

from longlag import files


@pytest.mark.parametrize(("data", "wanted"), [(b"\x00\xff", b"\x00\xff"), ("σ\r\n\n", "σ\r\n\n".encode())])
def test_bytes_and_text_are_written_as_they_are(tmp_path, data, wanted):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    assert files.replace(path, data) == path
    assert path.read_bytes() == wanted
    assert files.replace(str(tmp_path / "new"), data).read_bytes() == wanted
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "new"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fail(*_):
        assert any(files.is_temporary(p, "a") for p in tmp_path.iterdir())
        raise OSError("no space left")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="no space left"):
        files.replace(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_new_file_is_complete_when_it_appears(tmp_path, monkeypatch):
    """Data are on disk before the renaming, and the renaming is on disk before the call returns."""
    done, fsync, replace = [], os.fsync, os.replace

    def flushed(handle):
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def renamed(source, target):
        assert Path(source).read_bytes() == b"new"
        done.append("renamed")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    files.replace(tmp_path / "a", b"new")
    assert done == ["file", "renamed", "folder"]


def test_permissions_are_those_of_any_new_file(tmp_path):
    files.replace(tmp_path / "a", b"")
    (tmp_path / "b").write_bytes(b"")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == stat.S_IMODE((tmp_path / "b").stat().st_mode)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        files.replace(tmp_path / "nowhere" / "a", b"")


def test_only_the_litter_of_one_file_is_its_own():
    assert files.is_temporary(Path(".a.json.1f.part"), "a.json")
    assert not files.is_temporary(Path(".b.json.1f.part"), "a.json")
    assert not files.is_temporary(Path("a.json.part"), "a.json")
    assert not files.is_temporary(Path(".a.json"), "a.json")
