"""The store: nothing lost, nothing overwritten, one writer at a time."""

import os
import sqlite3
import threading
from dataclasses import replace

import pytest

from longlag.lab import hs97
from longlag.lab.database import FORMAT, StoreError
from longlag.lab.store import Store
from longlag.lab.trials import Reached, Record

SIX, FOUR = hs97.experiment_6(2), hs97.experiment_4(100, "fit")


def record(experiment, seed, sequences=100):
    stage = [Reached("", sequences, {"wrong": 1.0})]
    return Record(experiment.name, experiment.reading, seed, True, sequences, stage, [(sequences, 0.5)])


def add(store, experiment, seed, sequences=100):
    store.add(experiment, record(experiment, seed, sequences), 1.5, "here")


def test_what_is_added_comes_back_once_by_seed(tmp_path):
    with Store(tmp_path) as store:
        for seed in (3, 1, 2):
            add(store, SIX, seed)
        add(store, FOUR, 1)
        add(store, SIX, 2, 999)  # again: the first stays
    with Store(tmp_path) as store:
        assert store.records(SIX) == [record(SIX, seed) for seed in (1, 2, 3)]
        assert store.seeds(FOUR) == {1}
        assert (store.seconds(SIX), store.seconds(SIX, seed=3)) == (4.5, 1.5)
        assert (store.count(), store.aside) == (4, None)


def test_other_settings_and_other_code_make_other_trials(tmp_path):
    with Store(tmp_path) as store:
        add(store, SIX, 1)
        assert store.seeds(replace(SIX, cap=SIX.cap + 1)) == set()
        assert store.seeds(replace(SIX, trials=7)) == {1}
    with Store(tmp_path, code="other") as store:
        assert store.seeds(SIX) == set()
        assert store.foreign() == 1
        add(store, SIX, 1, 7)
        add(store, SIX, 2, 7)
        assert store.count() == 3
    with Store(tmp_path) as store:
        assert store.codes(SIX) == {store.code: 1, "other": 2}
        assert list(store.codes(SIX)) == [store.code, "other"], "this code first"
        assert list(store.codes(SIX, seed=2)) == ["other"]
        assert [r.sequences for r in store.records(SIX)] == [100]
        assert [r.sequences for r in store.records(SIX, "other")] == [7, 7]


def contents(path):
    return path.read_bytes()


@pytest.mark.parametrize("kind", ["garbage", "truncated", "other format", "foreign"])
def test_an_unusable_file_is_kept_aside(tmp_path, kind):
    path = tmp_path / "results.sqlite"
    if kind == "garbage":
        path.write_bytes(b"not a database at all" * 100)
    elif kind == "foreign":
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE cats (name TEXT)")
        other.close()
    else:
        with Store(tmp_path) as store:
            for seed in range(40):
                add(store, SIX, seed)
        if kind == "truncated":
            os.truncate(path, path.stat().st_size // 2)
        else:
            other = sqlite3.connect(path)
            other.execute(f"PRAGMA user_version = {FORMAT + 1}")
            other.close()
    before = contents(path)
    with Store(tmp_path) as store:
        assert store.aside is not None
        assert contents(store.aside) == before
        assert store.count() == 0
        add(store, SIX, 1)
        aside = store.aside
    reason = {
        "garbage": "damaged",
        "truncated": "damaged",
        "other format": f"format-{FORMAT + 1}",
        "foreign": "foreign",
    }
    assert aside.name == f"results.sqlite.{reason[kind]}-1"
    path.write_bytes(b"garbage again" * 100)
    with Store(tmp_path) as store:
        assert store.aside not in (None, aside)
    assert contents(aside) == before


def test_a_folder_that_is_none(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"Store: out must be a folder, got the file .*file"):
        Store(tmp_path / "file")
    with pytest.raises(StoreError, match=r"Store: out must be a writable folder, got .*below"):
        Store(tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "x"


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    def refuse(self, *_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.touch", refuse)  # root may write anywhere: a mode would not stop it
    with pytest.raises(StoreError, match=r"Store: out must be a writable folder, got .* \(Permission denied\)"):
        Store(tmp_path)


def test_a_full_disk_loses_nothing(tmp_path):
    with Store(tmp_path) as store:
        add(store, SIX, 1)
        pages = store.database.execute("PRAGMA page_count")[0][0]
        store.database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match=r"cannot be written \(database or disk is full\); every trial announced"):
            [add(store, SIX, seed) for seed in range(2, 300)]
        kept = store.records(SIX)
        assert kept == [record(SIX, seed) for seed in range(1, len(kept) + 1)]
        store.database.execute("PRAGMA max_page_count = 100000")
        add(store, SIX, 500)
    with Store(tmp_path) as store:
        assert store.aside is None
        assert store.records(SIX)[-1] == record(SIX, 500)


def test_a_second_run_may_be_asked_not_to_wait(tmp_path):
    with Store(tmp_path) as first, Store(tmp_path) as second:
        with first.lock(), pytest.raises(StoreError, match="is in use by another run; wait for it or choose another"):
            second.lock(patience=0.3).__enter__()
        with second.lock():
            pass


def test_waiting_is_announced_and_ends(tmp_path):
    announced, entered = threading.Event(), threading.Event()
    with Store(tmp_path) as store:

        def second():
            with Store(tmp_path) as other, other.lock(announced.set):
                entered.set()

        with store.lock():
            thread = threading.Thread(target=second)
            thread.start()
            assert announced.wait(10)
            assert not entered.is_set()
        thread.join(10)
    assert entered.is_set()


def test_runs_are_known_by_the_trials_they_finished(tmp_path):
    with Store(tmp_path) as store:
        store.begin_run({"command": "a"})
        add(store, SIX, 1)
        add(store, SIX, 2)
        store.begin_run({"command": "nothing"})
        store.begin_run({"command": "b"})
        add(store, SIX, 3)
        assert [(run["command"], run["trials"]) for run in store.runs()] == [("a", 2), ("b", 1)]
        assert all(0 <= run["seconds"] < 60 for run in store.runs())


def test_a_store_in_use_is_not_taken_for_a_damaged_one(tmp_path, monkeypatch):
    with Store(tmp_path) as store:
        add(store, SIX, 1)
        store.database.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr("longlag.lab.sqlite.PATIENCE", 0.1)
        with pytest.raises(StoreError, match=r"results.sqlite cannot be opened \(database is locked\)"):
            Store(tmp_path)
        store.database.execute("ROLLBACK")
        assert store.records(SIX) == [record(SIX, 1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.sqlite"]
