"""BPTT and Adam beside the rule of 1997: the same numbers as plain torch, and copies that go their own way."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from longlag.lab import hs97
from longlag.lab.batches import BatchModel
from longlag.lab.cell_rows import cell_learner, with_cell
from longlag.lab.learners import CellLearner, LSTM97Learner
from longlag.lab.nets import initial_weights
from longlag.lab.trials import trial

SIX = hs97.experiment_6(2)


def learner(cell, **changes):
    assert isinstance(SIX.learner, LSTM97Learner)
    found = cell_learner(SIX.learner, cell, "bptt")
    return replace(found, **changes)


def test_a_batch_is_learned_as_torch_learns_it():
    own = learner("lstm", batch=3, gate_bias=(("f", 2.0),))
    model, batch = BatchModel(own, np.random.default_rng(1)), SIX.task.sample(5, np.random.default_rng(2))
    weights = initial_weights(own, np.random.default_rng(1))
    net, out = torch.nn.LSTM(8, own.hidden), torch.nn.Linear(own.hidden, 4)
    for name, p in [*net.named_parameters(), *((f"readout.0.{n}", p) for n, p in out.named_parameters())]:
        p.data = torch.from_numpy(weights[name]).float()
    forget = slice(own.hidden, 2 * own.hidden)
    biases = dict(net.named_parameters())
    assert (biases["bias_ih_l0"][forget] == 2).all()
    assert (biases["bias_hh_l0"][forget] == 0).all()
    adam, errors = torch.optim.Adam([*net.parameters(), *out.parameters()], own.lr), []
    for which in ([0, 1, 2], [3, 4]):
        x, target, lengths = batch.take(np.array(which)).padded()
        y = torch.sigmoid(out(net(x)[0][lengths - 1, torch.arange(len(which))]))
        adam.zero_grad()
        ((y - target) ** 2).sum().div(2 * len(which)).backward()
        torch.nn.utils.clip_grad_norm_([*net.parameters(), *out.parameters()], 1.0)
        adam.step()
        errors += (y - target).abs().mean(1).tolist()
    np.testing.assert_allclose(model.train(batch).mean, errors, rtol=1e-4)
    np.testing.assert_allclose(model.outputs(batch)[batch.offsets[1:] - 1],
                               torch.cat([torch.sigmoid(out(net(p.padded()[0])[0][-1])) for k in range(5)
                                          for p in [batch.take(np.array([k]))]]).detach(), rtol=1e-4)  # fmt: skip


def test_a_copy_learns_on_its_own():
    model, batch = BatchModel(learner("lstm"), np.random.default_rng(1)), SIX.task.sample(32, np.random.default_rng(2))
    copy = model.copy()
    first = model.train(batch).mean
    again, later = copy.train(batch).mean, model.train(batch).mean
    np.testing.assert_array_equal(first, again)  # Adam's moments too
    assert not np.array_equal(first, later)
    np.testing.assert_array_equal(copy.train(batch).mean, later)


def test_a_row_says_how_it_learns():
    row = with_cell(SIX, "gru", "bptt")
    assert (row.name, row.method) == ("6a with gru by BPTT and Adam", "gru by BPTT and Adam")
    assert row.settings != with_cell(SIX, "gru").settings
    assert "BPTT in batches of 16, gradient cut to norm 1, Adam at 0.01. The biases of gate z start at 3." in row.note
    assert trial(replace(row, cap=64), 3) == trial(replace(row, cap=64), 3)


def test_bad_rules():
    with pytest.raises(ValueError, match=r"reproduce: rule must be one of \('1997', 'bptt'\), got 'adam'"):
        with_cell(SIX, "gru", "adam")
    good = learner("lstm")
    assert isinstance(good, CellLearner)
    with pytest.raises(ValueError, match="CellLearner: rule must be '1997' or 'bptt', got 'x'"):
        replace(good, rule="x")
    with pytest.raises(ValueError, match="CellLearner: batch must be 1 with rule '1997', got 16"):
        replace(good, rule="1997")
    with pytest.raises(ValueError, match="rule 'bptt' needs a task scored at the end"):
        trial(with_cell(hs97.experiment_1(3, 2, 0.5), "lstm", "bptt"), 0)
