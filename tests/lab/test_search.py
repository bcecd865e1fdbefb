"""Search among readings: what a space may name, halving, going on after an interruption, the map."""

from dataclasses import replace

import pytest

from longlag import lab
from longlag.lab import hs97, searching
from longlag.lab.architecture import Construction
from longlag.lab.criteria import Goal, WindowCriterion
from longlag.lab.findings import Judged, Search
from longlag.lab.spaces import Range, check_space, neighbours, reading, value_at
from longlag.lab.store import Store
from longlag.lab.trials import Record

FOUR = replace(hs97.experiment_4(100, "fit"), stop=WindowCriterion(0.3, (Goal("", 18),), 100, 32), cap=400)
SPACE = {"learner.lr": [0.0001, 0.5], "learner.reach": [0.1, 0.8]}
SEEDS = range(4), range(100, 102)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({}, "search: space must name at least one field, got none"),
        ({"learner.rate": [1]}, r"search: field must be one of \['network', .*\] in LSTM97Learner, got 'rate'"),
        ({"learner.lr.x": [1]}, "search: field must be one of .* in float, got 'x'"),
        ({"cap, learner.rate": [(1, 2)]}, "got 'rate'"),
        ({"learner.lr": []}, r"search: learner\.lr must have a list of values or a Range, got \[\]"),
        ({"learner.lr": Range(0.5, 0.1)}, r"search: learner\.lr must have a range with low <= high"),
        ({"learner.lr": Range(0.0, 0.1, log=True)}, r"search: learner\.lr must have a range .*positive if log"),
        ({"learner.network.g, learner.network.h": ["4s-2"]}, "must have 2 parts"),
    ],
)
def test_a_space_is_checked_by_name(space, message):
    with pytest.raises(ValueError, match=message):
        check_space(FOUR, space)
    with pytest.raises(ValueError, match=message):
        lab.search(FOUR, space, 1)


def test_seeds_for_confirming_are_others():
    with pytest.raises(ValueError, match="search: seeds must be two ranges with none in common"):
        lab.search(FOUR, SPACE, 1, (range(4), range(3, 5)))


def test_a_reading_sets_fields_that_belong_together():
    pair = "learner.network.g, learner.network.h"
    found = reading(FOUR, {pair: ("2s-1", "4s-2"), "learner.lr": 0.25})
    assert (value_at(found, pair), value_at(found, "learner.lr")) == (("2s-1", "4s-2"), 0.25)
    points = list(neighbours(FOUR, SPACE | {"cap": Range(10, 300)}))
    assert points[0] == {"learner.lr": "0.5", "learner.reach": "0.8", "cap": 300}
    assert len(points) == 1 + 1 + 1 + 1  # its own, and one change of each axis


def test_rungs_grow_threefold_up_to_all_seeds():
    assert [searching.rungs(n) for n in (1, 6, 18, 20)] == [[1], [2, 6], [2, 6, 18], [20]]


def record(success, sequences, errors=(1.0, 0.5)):
    return Record("x", "text", 0, success, sequences, [], [(10, e) for e in errors])


def test_losses_rank_successes_by_speed_and_failures_by_what_they_learned():
    records = record(True, 10), record(True, 90), record(False, 100), record(False, 100, (1.0, 0.9))
    losses = [searching.loss(each, 100) for each in (*records, record(False, 9, (1.0, float("nan"))))]
    assert losses == [0.1, 0.9, 1.5, 1.9, 2.0]


def test_a_search_chooses_confirms_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(searching, "REDUCTION", 2)  # judged on 2 seeds, then on 4
    said = []
    first = lab.search(FOUR, SPACE, 2, SEEDS, out=tmp_path, confirm=0, jobs=1, say=said.append)
    assert len(first.judged) == len(said) == 1
    found = lab.search(FOUR, SPACE, 100, SEEDS, out=tmp_path, confirm=1, jobs=1)
    assert len(found.judged) == 4  # the whole space
    assert found.judged[0] == first.judged[0]
    slow = [judged for judged in found.judged if judged.values["learner.lr"] == 0.0001]
    assert [(judged.successes, len(judged.records)) for judged in slow] == [(0, 2)] * 2  # halved away
    (best,) = found.confirmed
    assert best.values["learner.lr"] == 0.5
    assert [r.seed for r in best.records] == [100, 101]
    lines = {(line.axis, line.value): line for line in found.map()}
    assert lines["learner.lr", "0.0001"].successes == 0 < lines["learner.lr", "0.5"].successes
    assert found.map()[0].axis == "learner.lr"
    with Store(tmp_path) as store:
        assert store.count() == found.trials
    again = lab.search(FOUR, SPACE, 100, SEEDS, out=tmp_path, confirm=1, jobs=1)
    assert again == found
    found.save(tmp_path / "map.csv")
    assert (tmp_path / "map.csv").read_text().count("\n") == 1 + 1 + 4
    found.plot(tmp_path / "map.svg")
    assert "learner.lr" in found.markdown()


def test_a_killed_search_judges_again_what_was_under_way(tmp_path):
    study = searching.study_of(FOUR, SPACE, SEEDS[0], tmp_path)
    study.ask()  # … and killed
    found = lab.search(FOUR, SPACE, 100, SEEDS, out=tmp_path, confirm=0, jobs=1)
    assert {"learner.lr": 0.5, "learner.reach": 0.8} in [judged.values for judged in found.judged]


def test_refused_readings_are_passed_over(tmp_path):
    space = {"learner.construction": [Construction(start=0), Construction(start=3), None]}
    found = lab.search(replace(FOUR, cap=100), space, 100, SEEDS, out=tmp_path, confirm=0, jobs=1)
    assert [judged.values["learner.construction"] for judged in found.judged] == [None]


def test_a_range_has_pieces_in_the_map():
    judged = [Judged(FOUR, {"learner.lr": v}, (record(v > 0.2, 10),)) for v in (0.1, 0.15, 0.5, 0.8)]
    found = Search(FOUR, {"learner.lr": Range(0.1, 0.9)}, tuple(judged), (), {})
    assert [(line.value, line.successes, line.trials) for line in found.map()] == [
        ("0.1 to 0.3", 0, 2), ("0.3 to 0.5", 1, 1), ("0.5 to 0.7", 0, 0), ("0.7 to 0.9", 1, 1),
    ]  # fmt: skip
    assert found.best is None
