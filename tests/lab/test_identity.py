"""The identity of settings and of code: stable against names and prose, sensitive to what changes results."""

import ast
import sqlite3
import sys
from dataclasses import dataclass, make_dataclass, replace

import numpy as np
import pytest

from longlag import tasks
from longlag.lab import fingerprint, hs97, identity
from longlag.lab.architecture import Construction
from longlag.lab.beyond import claims, lstm
from longlag.lab.cell_rows import with_cell
from longlag.lab.criteria import Goal, WindowCriterion
from longlag.lab.database import FORMAT
from longlag.lab.identity import canonical
from longlag.lab.migration import old_key
from longlag.lab.profiles import everything, paper
from longlag.lab.run import reproduce
from longlag.lab.store import Store
from longlag.lab.trials import Record, trial

FOUR = replace(hs97.experiment_4(100, "fit"), stop=WindowCriterion(0.3, (Goal("", 18),), 100, 32), cap=500, trials=2)


def test_settings_are_known_by_declared_names():
    """D6: neither class names nor fields at their defaults are part of the key."""
    wanted = (
        '{"cap":500,"learner":{"biases":["ig","og","cell","out"],"input_gate_bias":[-3,-6],"kind":"lstm97","lr":0.5,'
    )
    wanted += '"network":{"block_size":2,"blocks":2,"input_size":2,"kind":"lstm97 network","output":"linear",'
    wanted += '"output_size":1},"reach":0.8},"stop":{"bound":0.3,"final":32,"goals":[{"fewer_than":18,"kind":"goal"}],'
    wanted += '"kind":"window","size":100},"task":{"T":100,"kind":"adding"}}'
    assert FOUR.settings == wanted


def test_a_renamed_class_with_a_new_option_is_the_same_goal():
    fields = [("name", str, ""), ("fewer_than", int, 1), ("mean", float, np.inf), ("new", int, 7)]
    renamed = make_dataclass("Target", fields, namespace={"kind": "goal"})
    assert canonical(renamed("x", 3)) == canonical(Goal("x", 3))
    assert canonical(renamed("x", 3, new=8)) != canonical(Goal("x", 3))


def test_every_experiment_has_settings_of_its_own():
    settings = [e.settings for e in everything()]
    assert len(set(settings)) == len(settings)
    names = [e.label for e in everything()]
    assert len(set(names)) == len(names)


def test_every_task_has_a_name_in_the_store():
    public = {value for value in vars(tasks).values() if isinstance(value, type) and hasattr(value, "sample")}
    assert public - {tasks.Task} == set(identity.TASKS)
    assert len(set(identity.TASKS.values())) == len(identity.TASKS)


@dataclass(frozen=True)
class MyTask:
    T: int = 3


def test_numbers_and_classes_of_the_user():
    assert (
        canonical({"a": (1.0, np.float64(0.5), np.int64(3), float("inf"), None, True)})
        == '{"a":[1,0.5,3,"inf",null,true]}'
    )
    assert canonical(MyTask()) == f'{{"kind":"{__name__}.MyTask"}}'


# ------------------------------------------------------------------------------------------------ code


def test_the_fingerprint_covers_what_trials_import():
    """D1, D6: kernels, tasks, learners and criteria count; profiles, the store and the report do not."""
    found = fingerprint.sources()
    for name in ("lab.trials", "lab.models", "lab.guessing", "tasks.pairs", "lab.plain_cpu", "learn.truncated",
                 "layers.lstm97", "cells.lstm97", "engines.cpu.realtime.traces"):  # fmt: skip
        assert f"longlag.{name}" in found
    assert not {"longlag.lab.store", "longlag.lab.profiles", "longlag.lab.hs97"} & set(found)


def test_modules_that_do_not_count_do_not_run_in_trials():
    """Trials of four kinds of learner call functions of ours from modules of the fingerprint only."""
    called = set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_name != "<module>":
            called.add(frame.f_code.co_filename)

    learners = (FOUR, with_cell(FOUR, "lstm"), with_cell(FOUR, "lstm", "bptt"), hs97.plain_1("ELM", 15))
    sys.setprofile(note)
    try:
        for experiment in learners:
            trial(replace(experiment, cap=20), 1)
    finally:
        sys.setprofile(None)
    every = {str(file): module for module in fingerprint.reachable() if (file := fingerprint.file_of(module))}
    assert "longlag.lab.models" in {every.get(file) for file in called}
    assert not [every[file] for file in called & set(every) if not fingerprint.runs(every[file])]


def test_prose_does_not_count_and_code_does():
    def code(text):
        return ast.unparse(fingerprint.without_docstrings(ast.parse(text)))

    first = 'def f(x):\n    """Add."""\n    return x + 1  # one\n'
    assert code(first) == code('"""Module."""\ndef f(x):\n    """Another\n    sentence."""\n\n    return (x + 1)\n')
    assert code(first) != code(first.replace("+ 1", "+ 2"))
    assert code('class A:\n    """Only words."""\n') == code("class A:\n    pass\n")


def test_imports_lead_to_modules_not_to_their_packages():
    tree = ast.parse(
        "from longlag.lab import plain_cpu\nfrom longlag.tasks import Ragged\nimport numpy\nimport longlag.cells"
    )
    assert list(fingerprint.imported(tree)) == ["longlag.lab.plain_cpu", "longlag.tasks", "longlag.cells"]


def test_other_code_computes_anew_and_says_so(tmp_path):
    reproduce([FOUR], tmp_path, jobs=1)
    with Store(tmp_path) as store:
        store.database.execute("UPDATE trials SET code = 'before'")
    said = []
    assert reproduce([FOUR], tmp_path, jobs=1, say=said.append).computed == 2
    assert said == ["2 trials in results.sqlite were made by other code: they are kept, not counted."]
    with Store(tmp_path) as store:
        assert store.records(FOUR) == store.records(FOUR, "before")


# ------------------------------------------------------------------------------------------------ format 1


def old_store(folder, rows):
    """A store as longlag 0.1 wrote it."""
    connection = sqlite3.connect(folder / "results.sqlite")
    connection.executescript("""
        CREATE TABLE trials (experiment TEXT NOT NULL, reading TEXT NOT NULL, settings TEXT NOT NULL,
            seed INTEGER NOT NULL, version TEXT NOT NULL, record TEXT NOT NULL, seconds REAL NOT NULL,
            machine TEXT NOT NULL, finished TEXT NOT NULL, PRIMARY KEY (experiment, reading, settings, seed, version));
        CREATE TABLE runs (started TEXT NOT NULL, facts TEXT NOT NULL);
        INSERT INTO runs VALUES ('2026-01-01 10:00:00', '{"command": "old", "trials": 2, "seconds": 5.0}');
        PRAGMA user_version = 1;
    """)
    connection.executemany("INSERT INTO trials VALUES (?, ?, ?, ?, '0.1.0', ?, 1.5, 'there', '2026-01-01')", rows)
    connection.commit()
    connection.close()


def former_fit_of_1():
    """The reading of experiment 1 that 0.1 called its fit."""
    text = hs97.experiment_1(3, 2, 0.5)
    learner = lstm(text)
    network = replace(learner.network, g="2s-1", h="4s-2")
    return replace(text, reading="fit", learner=replace(learner, network=network, update="step"))


def former_fit_of_2a():
    """The reading of experiment 2a that 0.1 called its fit."""
    text = hs97.experiment_2a()
    learner = replace(lstm(text), update="step", construction=Construction(start=0, after=300))
    return replace(text, reading="fit", learner=learner)


@pytest.mark.parametrize(
    ("experiment", "key"),
    [
        (hs97.experiment_6(2), "28eb88e993cb28d9"), (hs97.experiment_2a("text"), "a9fe3f9974891755"),
        (former_fit_of_2a(), "91a18bc6140a4a4b"),
        (former_fit_of_1(), "ece4fc36c2235c1c"), (hs97.plain_1("ELM", 15), "3073d0fb34208387"),
    ],
    ids=lambda value: getattr(value, "label", ""),
)  # fmt: skip
def test_old_keys_are_those_that_0_1_computed(experiment, key):
    """Copied from a store of 0.1."""
    assert old_key(experiment) == key


def test_a_store_of_format_1_is_kept_and_found(tmp_path):
    six, record = hs97.experiment_6(2), '{"curve":[[10,0.5]],"example":null,"experiment":"6a","note":"",'
    record += '"reached":[],"reading":"text","seed":7,"sequences":10,"success":false}'
    old_store(tmp_path, [("6a", "text", old_key(six), 7, record), ("6a", "text", "of a sweep", 7, record)])
    with Store(tmp_path) as store:
        assert (store.aside, store.count(), store.foreign()) == (None, 2, 2)
        assert store.seeds(six) == set()
        assert store.codes(six) == {"longlag 0.1.0": 1}
        assert store.records(six, "longlag 0.1.0") == [Record("6a", "text", 7, False, 10, [], [(10, 0.5)])]
        assert store.runs() == [{"command": "old", "trials": 2, "seconds": 5.0, "ended": "2026-01-01 10:00:00"}]
        assert store.database.execute("PRAGMA user_version")[0][0] == FORMAT
    with Store(tmp_path) as store:
        assert store.count() == 2


def test_the_experiments_of_the_paper_have_old_keys_of_their_own():
    keys = [old_key(e) for e in paper()]
    assert len(set(keys)) == len(keys)
    assert all(e.claim for e in claims())
