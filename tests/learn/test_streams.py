"""Streams from elsewhere: NumPy arrays, and detectors of drift."""

import numpy as np
import pytest
import torch
from helpers import DEFAULTS, randn, same
from learn.test_online import learner, stream, weights
from river.drift import ADWIN, PageHinkley
from torch import nn

import longlag as ll
from longlag.learn import LocalForward, Online, TruncatedRTRL, cross_entropy, squared_error


def test_numpy_arrays_are_converted_to_the_types_of_the_layer():
    """float32 arrays for a float64 layer, bool masks; single streams too."""
    x, d = stream(6)
    x, d = x.float(), d.float()
    ours, wanted = learner(), learner()
    for t in range(6):
        mask, reset = np.array([True, t % 2 == 0]), np.array([t == 3, False])
        y = wanted.step(x[t].double(), d[t].double(), torch.from_numpy(mask), reset=torch.from_numpy(reset))
        same(ours.step(x[t].numpy(), d[t].numpy(), mask, reset=reset), y, "", 0.0)
    same(weights(ours), weights(wanted), "", 0.0)
    single, batch = learner(), learner()
    for t in range(6):
        y = batch.step(x[t, :1].double(), d[t, :1].double(), torch.tensor([1.0]).double())[0]
        same(single.step(x[t, 0].numpy(), d[t, 0].numpy(), np.float64(1.0)), y, "", 0.0)
    same(weights(single), weights(batch), "", 0.0)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_integer_classes_stay_integers(dtype):
    x, classes = randn(5, 2, 3), np.array([[0, 1], [1, 1], [0, 0], [1, 0], [0, 1]])
    ours, wanted = learner(loss=cross_entropy), learner(loss=cross_entropy)
    for t in range(5):
        ours.step(x[t].numpy(), classes[t].astype(dtype))
        wanted.step(x[t], torch.from_numpy(classes[t]))
    same(weights(ours), weights(wanted), "", 0.0)


def test_arrays_are_copied_and_other_things_refused():
    online, x = learner(), np.ones((2, 3))
    online.step(x, np.zeros((2, 2)))
    x[:] = np.nan
    online.step(np.ones((2, 3)), np.zeros((2, 2)))
    with pytest.raises(TypeError, match="LSTM: an array must hold numbers or bools, got dtype object"):
        online.step(np.array([[None] * 3] * 2))
    with pytest.raises(TypeError, match="LSTM: an array must hold numbers or bools, got dtype complex128"):
        online.step(np.ones((2, 3)) + 1j)
    with pytest.raises(ValueError, match="Online: x_t at step 2 must be finite"):
        online.step(x)


@pytest.mark.parametrize("engine", ["cpu", "python"])
def test_chunks_of_arrays(engine):
    """The same numbers as from tensors; symbols and classes stay integers."""
    made = []
    for _ in range(2):
        online = learner(rule=TruncatedRTRL(), loss=cross_entropy)
        online.plan(engine)
        made.append(online)
    x, classes = np.array([[0, 2], [1, 1], [2, 0], [0, 0]], dtype=np.int32), np.array([[0, 1], [1, 1], [0, 0], [1, 0]])
    ours = made[0].run(x, classes, reset=np.array([[False, t == 2] for t in range(4)]))
    marks = torch.tensor([[False, t == 2] for t in range(4)])
    same(ours, made[1].run(torch.from_numpy(x).long(), torch.from_numpy(classes), reset=marks), engine, 0.0)
    floats = randn(4, 2, 3).float()
    same(made[0].run(floats.numpy()), made[1].run(floats.double()), engine, 0.0)


@pytest.mark.parametrize("engine", ["cpu", "python"])
def test_a_detector_sees_the_losses_of_chunks(engine):
    """Scored steps only, in order, with their numbers."""
    x, d = stream(10, 1)
    d[6] *= 9
    online = learner(rule=TruncatedRTRL(), detector=(detector := Threshold()), lr=0.0)
    online.plan(engine)
    scored = torch.tensor([t != 3 for t in range(10)])
    online.run(x, 0.1 * d[scored], scored=scored)
    assert detector.seen == online.losses[scored].tolist()
    before = [t for t, loss in enumerate(online.losses.tolist()) if loss > 3]
    online.run(x, d[scored], scored=scored)
    expected = [10 + t for t, loss in enumerate(online.losses.tolist()) if loss > 3]
    assert online.drifts == before + expected
    assert 16 in expected
    assert online.drift_detected
    online.run(x)
    assert not online.drift_detected


class Threshold:
    """The hook in its smallest form."""

    def __init__(self):
        self.seen, self.drift_detected = [], False

    def update(self, value):
        self.seen.append(value)
        self.drift_detected = value > 3


def test_a_detector_sees_the_loss_of_every_scored_step():
    x, d = stream(8, 1)
    online = learner(detector=(detector := Threshold()), lr=0.0)
    losses = []
    for t in range(8):
        if t == 2:
            online.step(x[t])  # not scored
            continue
        online.step(x[t], d[t] * (9 if t == 5 else 0.1))
        losses.append(online.loss_now)
        assert online.drift_detected == (t == 5)
    assert (detector.seen, online.drifts) == (losses, [5])
    assert losses[4] > 3 > max(losses[:4])


def test_a_detector_must_be_one():
    with pytest.raises(TypeError, match=r"Online: detector must have update\(value\) and drift_detected, got dict"):
        learner(detector={})
    with pytest.raises(TypeError, match="got int"):
        learner(detector=3)


@pytest.mark.parametrize("detector", [ADWIN(), PageHinkley(threshold=5.0)], ids=["ADWIN", "PH"])
def test_the_detectors_of_river_see_a_rule_change(detector):
    """The next value of a sine, then its opposite: the alarm comes after the change, soon, and not before."""
    torch.manual_seed(0)
    layer, head = ll.LocalFeedback(1, 8, **DEFAULTS), nn.Linear(8, 1, dtype=torch.float64)
    optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=0.003)
    online = Online(layer, head, squared_error, LocalForward(), optimizer, detector=detector)
    x = torch.sin(torch.arange(1601, dtype=torch.float64) / 5).view(-1, 1)
    online.run(x[:-1], torch.cat([x[1:1001], -x[1001:]]))
    assert (online.engine_for()[0], online.steps, online.drift_detected) == ("cpu", 1600, True)
    assert online.drifts
    falls = [step for step in online.drifts if step < 1000]
    assert all(step < 500 for step in falls)  # ADWIN reports improvement, too
    assert min(set(online.drifts) - set(falls)) < 1200


@pytest.mark.parametrize("engine", ["cpu", "python"])
def test_a_peek_changes_nothing(engine):
    """`peek` gives what the next `step` gives, with the weights as they are, and leaves the learner as it was."""
    torch.manual_seed(0)
    layer, readout = ll.LSTM(2, 5, dtype=torch.float64), torch.nn.Linear(5, 1).double()
    optimizer = torch.optim.SGD([*layer.parameters(), *readout.parameters()], lr=0.1)
    learner = ll.learn.Online(layer, readout, ll.learn.squared_error, ll.learn.TruncatedRTRL(), optimizer)
    learner.plan(engine)
    for x in torch.randn(12, 3, 2, dtype=torch.float64):
        seen = [learner.peek(x), learner.peek(x)]
        output = learner.step(x, x[:, :1])
        for each in seen:
            torch.testing.assert_close(each, output, rtol=1e-12, atol=1e-12)
