"""The experiments as data: the paper's weight counts, every row present, readings that differ as stated."""

from dataclasses import replace

import numpy as np
import pytest

from longlag.lab import hs97
from longlag.lab.architecture import Architecture
from longlag.lab.beyond import lstm
from longlag.lab.learners import LSTM97Learner
from longlag.lab.options import options
from longlag.lab.paper import row, table
from longlag.lab.profiles import PROFILES, paper, quick, select
from longlag.lab.trials import TrialState
from longlag.tasks import Distractors

EVERY = paper()
TEXT = [e for e in EVERY if e.reading == "text"]


def name(experiment):
    return f"{experiment.name}/{experiment.reading}"


@pytest.mark.parametrize("experiment", TEXT, ids=name)
def test_weight_counts_are_the_papers(experiment):
    assert str(experiment.learner.weight_count) == experiment.weights.lstrip("~")


def test_the_fit_of_2c_has_36_weights_fewer_of_1_49_more_and_the_other_fits_as_many():
    for e in EVERY:
        if e.reading == "fit":
            missing = int(e.weights) - e.learner.weight_count
            assert missing == {"2c": 36, "1": -49}.get(e.number, 0), e.name


def test_every_row_of_the_paper_is_there_once_per_reading():
    figures = [(e.table, f.after) for e in TEXT for f in e.paper]
    printed = []
    for number in range(1, 10):
        for line in table(number):
            if line.get("method") in ("RCC", "CH"):
                continue  # no such learner here; the report says so
            count = 3 if line.get("lr") == "1-10" else 1
            for column in ("ST1", "ST2", "after", "stop"):
                if column in line:
                    after = None if line[column].startswith(">") else int(line[column])
                    printed += count * [(number, after)]
    assert sorted(figures, key=repr) == sorted(printed, key=repr)
    names = [name(e) for e in EVERY]
    assert len(set(names)) == len(names)


def test_a_fit_differs_and_says_how_and_a_text_does_not():
    for e in EVERY:
        assert bool(e.departs) == (e.reading == "fit"), e.name
        if e.reading == "fit":
            (text,) = [other for other in EVERY if (other.name, other.reading) == (e.name, "text")]
            assert text.learner != e.learner
            assert (text.paper, text.trials) == (e.paper, e.trials)
            assert text.stop == (replace(e.stop, fresh=False) if e.name == "3b T=1000 N=1" else e.stop)
            assert e.task == (Distractors(p=100, scored="end") if e.number == "2b" else text.task)
            assert text.settings != e.settings


def test_the_settings_of_the_conditions_table():
    """Spot checks against the table of conditions: reach, gate biases, learning rate. [E4] [E6b] [E3c] [E1]"""
    four, six, three = map(lstm, (hs97.experiment_4(100), hs97.experiment_6(3), hs97.experiment_3("c")))
    assert (four.reach, four.lr, four.input_gate_bias, four.output_gate_bias) == (0.1, 0.5, (-3.0, -6.0), ())
    assert (six.reach, six.lr, six.input_gate_bias, six.network.blocks) == (0.1, 0.1, (-2.0, -4.0, -6.0), 3)
    assert (three.lr, three.input_gate_bias, three.output_gate_bias) == (0.1, (-1.0, -3.0, -5.0), (-2.0, -4.0, -6.0))
    one = lstm(hs97.experiment_1(4, 1, 0.1))
    assert (one.reach, one.output_gate_bias, one.input_gate_bias) == (0.2, (-1.0, -2.0, -3.0, -4.0), ())
    assert lstm(hs97.experiment_5()).input_gate_bias == ()


def test_where_thirty_trials_are_asked_for():
    for wanted in ("4 T=100", "6a", "3a T=100 N=3"):
        assert all(e.trials >= 30 for e in EVERY if e.name == wanted)
    assert all(e.trials >= e.paper_trials for e in EVERY if "p=10" not in e.name or e.method == "LSTM")


def test_quick_covers_every_experiment():
    assert {e.number for e in quick()} == {e.number for e in EVERY}
    everything = {name(e): e for e in EVERY}
    for e in quick():
        assert replace(e, trials=everything[name(e)].trials) == everything[name(e)]


def test_the_key_depends_on_settings_only():
    e = hs97.experiment_4(100)
    assert replace(e, trials=3, departs="x", note="y").settings == e.settings
    assert replace(e, cap=e.cap + 1).settings != e.settings
    assert replace(e, learner=replace(e.learner, lr=0.25)).settings != e.settings


def test_selection():
    assert [name(e) for e in select("paper", ["6b", "4 T=500/fit"])] == ["4 T=500/fit", "6b/text", "6b/fit"]
    assert select("paper") == EVERY
    with pytest.raises(ValueError, match=r"experiment must be one of quick's, got '6c'; did you mean .*'6a'"):
        select("quick", ["6c"])
    with pytest.raises(ValueError, match=r"profile must be one of \('quick', .*, 'all'\), got 'fast'"):
        select("fast")
    assert set(PROFILES) == {"quick", "paper", "beyond", "options", "distributions", "modern", "all"}


def test_the_distributions_are_four_rows_of_the_paper_with_a_thousand_trials():
    rows = {e.label: e for e in EVERY}
    found = select("distributions")
    assert [e.number for e in found] == ["2c", "3a", "4", "6a"]
    assert all(e.trials == 1000 and replace(e, trials=rows[e.label].trials) == rows[e.label] for e in found)


def test_an_option_changes_what_its_name_says():
    rows = {e.label: e for e in EVERY}
    changed = {}
    for e in options():
        assert e.claim is not None
        table, plain = rows[e.claim.against], replace(e, cap=1)
        assert (e.learner, e.cap, e.trials) == (table.learner, table.cap, table.trials)
        assert plain.settings != replace(table, cap=1).settings
        changed[e.name.partition(" with the ")[0]] = e
    four, two = changed["4 T=100"], changed["2b p=100 on a fixed training set"]
    drawn = four.task.sample(200, np.random.default_rng(0))
    assert set(drawn.inputs[drawn.offsets[:-1], 1]) == {-1.0, 0.0}
    run = TrialState(replace(two, stop=replace(two.stop, training=3)), 7)
    (batch,) = [next(run.blocks(64))]
    assert len({tuple(batch.take(np.array([k])).inputs) for k in range(64)}) == 3


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"experiment_4: reading must be one of \('text', 'fit'\), got 'best'"):
        hs97.experiment_4(100, "best")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"experiment_6: reading must be one of \('text',\), got 'fit'"):
        hs97.experiment_6(2, "fit")
    with pytest.raises(LookupError, match="table 7: cells must name one row, got 0"):
        hs97.experiment_4(200)
    with pytest.raises(LookupError, match="got 3 for"):
        row(7, weights=93)
    with pytest.raises(
        ValueError, match=r"LSTM97Learner: input_gate_bias must have one value per block \(2\), got \(-1.0,\)"
    ):
        LSTM97Learner(Architecture(2, 2, 2, 1), ("ig",), 0.1, 0.5, (-1.0,))
    with pytest.raises(ValueError, match="LSTM97Learner: lr must be positive, got 0"):
        LSTM97Learner(Architecture(2, 2, 2, 1), (), 0.1, 0)
