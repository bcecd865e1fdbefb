"""Stores of format 1 (longlag 0.1): trials keyed by a digest of Python's repr of the settings, and by the version.

The repr named classes as they were then. It is rebuilt here for the experiments of the paper; their trials get today's
settings as key. Other trials (of sweeps) are kept under their digest, where nobody will find them by settings. The
code of all is "longlag" and the version that made them.
"""

import hashlib
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from longlag.lab.architecture import Architecture, Construction
from longlag.lab.criteria import Goal, GrammarCriterion, TestCriterion, WindowCriterion
from longlag.lab.experiment import Experiment
from longlag.lab.learners import LSTM97Learner, PlainLearner
from longlag.lab.profiles import paper
from longlag.tasks import Distractors, EmbeddedReber

FORMAT_1 = 1
NAMES = {
    Architecture: "Network",
    Goal: "Goal",
    GrammarCriterion: "Legal",
    LSTM97Learner: "Memory",
    PlainLearner: "Plain",
    TestCriterion: "Test",
    WindowCriterion: "Window",
    Distractors: "Distractors",
    EmbeddedReber: "EmbeddedReber",
}
LATER = ("construction", "judged", "training", "targets", "scored")  # fields that 0.1 did not have


def old_growth(construction: Construction | None) -> str:
    """The field `grow` of old: 0, a number of sequences, or "plateau"."""
    if construction is None:
        return "0"
    return repr("plateau" if construction.after is None else construction.after)


def old_repr(value: Any) -> str:
    """What repr gave in 0.1."""
    if isinstance(value, tuple):
        inside = ", ".join(map(old_repr, value))
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    name = NAMES.get(type(value))
    if name is None:
        return repr(value)
    pairs = {f.name: old_repr(getattr(value, f.name)) for f in fields(value) if f.name not in LATER}
    if isinstance(value, Architecture):
        pairs["dtype"] = "'float64'"
    if isinstance(value, LSTM97Learner):
        pairs["grow"] = old_growth(value.construction)
    return f"{name}({', '.join(f'{key}={text}' for key, text in pairs.items())})"


def old_key(experiment: Experiment) -> str:
    """The digest that identified the settings of an experiment in 0.1."""
    settings = (experiment.task, experiment.learner, experiment.stop, experiment.cap)
    return hashlib.sha256(old_repr(settings).encode()).hexdigest()[:16]


def from_format_1(connection: sqlite3.Connection, tables: Sequence[str], known: Callable[[], tuple] = paper) -> None:
    """Rebuild the tables inside the transaction of the caller; every trial and run is kept."""
    settings = {old_key(e): e.settings for e in known()}
    connection.execute("ALTER TABLE trials RENAME TO old_trials")
    connection.execute("ALTER TABLE runs RENAME TO old_runs")
    for statement in tables:
        connection.execute(statement)
    connection.create_function("settings_of", 1, lambda key: settings.get(key, key), deterministic=True)
    connection.execute(
        "INSERT INTO trials SELECT experiment, reading, settings_of(settings), seed, 'longlag ' || version, record, "
        "seconds, machine, finished, NULL FROM old_trials"
    )
    connection.execute("INSERT INTO runs (started, facts) SELECT started, facts FROM old_runs ORDER BY rowid")
    connection.execute("DROP TABLE old_trials")
    connection.execute("DROP TABLE old_runs")
