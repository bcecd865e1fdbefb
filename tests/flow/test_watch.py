"""`watch` beside training loops it knows nothing of."""

import csv
import math
import warnings
from typing import Any

import helpers
import pytest
import torch
from torch import nn

import longlag as ll
from longlag import flow


class Model(nn.Module):
    """Anybody's model: a recurrent layer somewhere inside, a read-out on top."""

    def __init__(self, layer, size, reads="last output"):
        super().__init__()
        self.encoder = nn.ModuleDict({"rnn": layer})
        self.head, self.reads = nn.Linear(size, 1, dtype=torch.float64), reads

    def forward(self, x):
        y, state = self.encoder["rnn"](x)
        if self.reads == "final state":
            return self.head(helpers.parts(state)[0][-1])
        y = y.transpose(0, 1) if self.encoder["rnn"].batch_first else y
        return self.head(y if self.reads == "all outputs" else y[-1])


def train(model, x, updates, clip=None, rate=0.1):
    optimizer = torch.optim.SGD(model.parameters(), rate)
    norms = []
    for _ in range(updates):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        norms.append({name: float(p.grad.norm()) for name, p in model.named_parameters() if p.requires_grad})
        optimizer.step()
    return norms


def gradient_at(model, layer, x, lag):
    """Mean norm of ∂L/∂state(T−lag) over the first two sequences, by autograd on a run cut there."""
    y, state = layer(x[: len(x) - lag])
    leaves = [part.detach().requires_grad_() for part in helpers.parts(state)]
    y, _ = layer(x[len(x) - lag :], helpers.whole(leaves))
    grads = torch.autograd.grad(model.head(y[-1]).square().mean(), leaves)
    flat = torch.cat([g.movedim(helpers.batch_axis(layer), 0).flatten(1) for g in grads], 1)
    return float(flat[:2].norm(dim=1).mean())


@pytest.mark.parametrize(
    "make", [nn.RNN, nn.GRU, nn.LSTM, ll.Elman, ll.LSTM, ll.Leaky, ll.Skip, ll.EchoState, ll.LSTM97]
)
def test_gradients_by_parameter_and_by_lag(make):
    torch.manual_seed(0)
    extra = {"output_size": 4, "density": 1.0} if make is ll.EchoState else {}
    extra |= {"engine": "reference"} if make.__module__.startswith("longlag") else {}
    sizes = (2, 2) if make is ll.LSTM97 else (4,)
    layer = make(3, *sizes, dtype=torch.float64, **extra)
    model, x = Model(layer, 4), helpers.randn(10, 5, 3)
    wanted = {q: gradient_at(model, layer, x, q) for q in (1, 2, 4, 8)}
    with flow.watch(model, every=1, budget=1.0) as watched:
        norms = train(model, x, 3)
    assert watched.update == 3
    for name, value in norms[2].items():
        assert watched.history[f"gradient/{name}"][2] == (2, pytest.approx(value, rel=1e-12))
    assert watched.history["gradient"][0][1] == pytest.approx(math.hypot(*norms[0].values()), rel=1e-12)
    for q, value in wanted.items():
        assert watched.history[f"encoder.rnn/lag/{q}"][0] == (0, pytest.approx(value, rel=1e-9))
    assert "encoder.rnn/lag/16" not in watched.history
    assert not watched.skipped


@pytest.mark.parametrize("make", [nn.LSTM, ll.LSTM])
def test_every_way_to_read_the_same_number_gives_the_same_lags(make):
    """Last output, final state, all outputs with only the last scored, batch_first and unbatched."""
    found = []
    for reads, batch_first in (("last output", False), ("final state", False), ("last output", True)):
        torch.manual_seed(0)
        options: dict[str, Any] = {"engine": "reference"} if make is ll.LSTM else {}
        layer = make(3, 4, dtype=torch.float64, batch_first=batch_first, **options)
        model, x = Model(layer, 4, reads), helpers.randn(9, 2, 3)
        with flow.watch(model, every=1, budget=1.0) as watched:
            train(model, x.transpose(0, 1) if batch_first else x, 1)
        found.append({k: v for k, v in watched.history.items() if "/lag/" in k})
    assert len(found[0]) == 4
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        for key, points in other.items():
            assert points[0][1] == pytest.approx(found[0][key][0][1], rel=1e-12)


def test_one_unbatched_sequence_and_an_output_nobody_reads():
    torch.manual_seed(0)
    layer, x = ll.GRU(3, 4, dtype=torch.float64, engine="reference"), helpers.randn(6, 1, 3)
    optimizer = torch.optim.SGD(layer.parameters(), 0.0)
    lags = []
    for given in (x, x[:, 0]):
        with flow.watch(layer, every=1, budget=1.0) as watched:
            layer(given)[0][-1].square().sum().backward()
            optimizer.step()
        lags.append({k: v for k, v in watched.history.items() if "/lag/" in k})
    assert lags[0] == lags[1] != {}
    with flow.watch(layer, every=1, budget=1.0) as watched:
        (0.0 * layer(x)[0]).sum().backward()
        optimizer.step()
    assert "GRU/dead" in watched.history
    assert not [k for k in watched.history if "/lag/" in k]


def test_only_the_last_scored_output_is_followed():
    torch.manual_seed(0)
    layer, x = ll.Elman(3, 4, dtype=torch.float64, engine="reference"), helpers.randn(9, 2, 3)
    leaf = layer(x[:4])[1].detach().requires_grad_()
    last = layer(x[4:6], leaf)[0][-1]
    wanted = torch.autograd.grad(last.square().sum(), leaf)[0][0].norm(dim=-1).mean()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    with flow.watch(layer, every=1, budget=1.0) as watched:
        layer(x)[0][:6].square().sum().backward()  # steps 6..8 are not read
        optimizer.step()
    assert watched.history["Elman/lag/2"][0][1] == pytest.approx(float(wanted), rel=1e-9)
    assert "Elman/lag/8" not in watched.history  # six steps were there to go back


def test_lengths_are_respected():
    torch.manual_seed(0)
    layer, x = ll.GRU(3, 4, dtype=torch.float64, engine="reference"), helpers.randn(9, 2, 3)
    x[5:, 0] = math.nan  # padding
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    alone = ll.GRU(3, 4, dtype=torch.float64, engine="reference")
    alone.load_state_dict(layer.state_dict())
    with flow.watch(layer, every=1, budget=1.0) as watched:
        y, _ = layer(x, lengths=torch.tensor([5, 9]))
        y[8, 1].square().sum().backward()
        optimizer.step()
    leaf = alone(x[:7, 1:])[1].detach().requires_grad_()
    wanted = torch.autograd.grad(alone(x[7:, 1:], leaf)[0][-1].square().sum(), leaf)[0].norm()
    assert watched.history["GRU/lag/2"][0][1] == pytest.approx(float(wanted), rel=1e-9)


def test_clip_events_are_noticed_at_every_update():
    torch.manual_seed(0)
    model, x = Model(nn.LSTM(3, 4, dtype=torch.float64), 4), helpers.randn(6, 2, 3)
    with flow.watch(model, every=1000) as watched:
        free = train(model, x, 2)
        clipped = train(model, x, 3, clip=1e-3)
    total = [math.hypot(*norms.values()) for norms in free]
    assert min(total) > 2e-3
    assert [update for update, _ in watched.history["clip"]] == [2, 3, 4]
    assert all(0 < left < 0.5 for _, left in watched.history["clip"])
    assert math.hypot(*clipped[0].values()) == pytest.approx(1e-3, rel=1e-3)


def test_saturated_gates_dead_and_drifting_units():
    layer = ll.LSTM(1, 4, dtype=torch.float64, engine="reference")
    with torch.no_grad():
        for p in layer.parameters():
            p.zero_()
        i, f, g, o = layer.get_parameter("bias_ih_l0").view(4, 4)
        i[0] = -9  # unit 0 never writes: dead
        f.fill_(9.0)  # nothing is forgotten,
        i[1], g[1] = 9, 9  # so unit 1 counts up: drifting
        layer.get_parameter("weight_ih_l0").view(4, 4)[2, 2:] = 1.0  # units 2 and 3 follow the input
        o[3] = -9
    x = helpers.randn(30, 3, 1).sign()
    optimizer = torch.optim.SGD(layer.parameters(), 1e-9)
    with flow.watch(layer, every=1, budget=1.0, sequences=3) as watched:
        layer(x)[0].sum().backward()
        optimizer.step()
    seen = watched.samples["LSTM"]
    assert seen.dead == [0, 3]
    assert seen.drifting == [4 + 1]  # the state is [y; c], four units each
    numbers = {k.removeprefix("LSTM/"): v[0][1] for k, v in watched.history.items()}
    assert numbers["dead"] == 0.5
    assert numbers["drifting"] == 1 / 8
    assert (numbers["gate/l0.f/low"], numbers["gate/l0.f/high"]) == (0.0, 1.0)
    assert (numbers["gate/l0.i/low"], numbers["gate/l0.i/high"]) == (0.25, 0.25)
    assert (numbers["gate/l0.o/low"], numbers["gate/l0.o/high"]) == (0.25, 0.0)


def test_gates_of_lstm97():
    network = ll.LSTM97(
        1, 2, output_size=1, engine="reference", input_gate_bias=[-9.0, 0.0], output_gate_bias=[9.0, 9.0]
    )
    optimizer = torch.optim.SGD(network.parameters(), 1e-9)
    with flow.watch(network, every=1, budget=1.0) as watched:
        network(torch.randn(5, 2, 1))[0].sum().backward()
        optimizer.step()
    numbers = {k.removeprefix("LSTM97/gate/"): v[0][1] for k, v in watched.history.items()}
    assert (numbers["ig/low"], numbers["ig/high"]) == (0.5, 0.0)
    assert (numbers["og/low"], numbers["og/high"]) == (0.0, 1.0)


def test_sampling_keeps_to_its_rhythm_and_budget():
    model, x = Model(nn.GRU(3, 4, dtype=torch.float64), 4), helpers.randn(5, 2, 3)
    with flow.watch(model, every=4, budget=1.0) as watched:
        train(model, x, 10)
    assert [update for update, _ in watched.history["gradient"]] == [0, 4, 8]
    with flow.watch(model, every=1, budget=1e-9) as watched:
        train(model, x, 10)
    assert [update for update, _ in watched.history["gradient"]] == [0]


def test_hooks_are_gone_afterwards_and_other_models_are_not_watched():
    model, other, x = (*(Model(nn.RNN(3, 4, dtype=torch.float64), 4) for _ in range(2)), helpers.randn(5, 2, 3))
    with flow.watch(model, every=1, budget=1.0) as watched:
        train(other, x, 3)
        assert watched.update == 0
        with torch.no_grad():
            model(x)  # an evaluation in between leaves no trace
        train(model, x, 1)
    train(model, x, 3)
    assert watched.update == 1
    assert not model.encoder["rnn"]._forward_hooks
    assert all(not (p._post_accumulate_grad_hooks or {}) for p in model.parameters())


def test_a_loop_without_an_optimiser_calls_step():
    layer, x = ll.LSTM(3, 4, engine="reference"), torch.randn(5, 2, 3)
    with flow.watch(layer, every=1, budget=1.0) as watched:
        layer(x)[0].sum().backward()
        watched.step()
    assert watched.update == 1
    assert "LSTM/lag/4" in watched.history


class Writer:
    def __init__(self):
        self.rows = []

    def add_scalar(self, tag, scalar_value, global_step):
        self.rows.append((global_step, tag, scalar_value))


def test_csv_and_scalar_writers_hold_the_history(tmp_path):
    x, path, writer = helpers.randn(6, 2, 3), tmp_path / "runs" / "one.csv", Writer()
    rows = []
    for to in (path, str(path), writer):
        torch.manual_seed(0)
        model = Model(nn.LSTM(3, 4, dtype=torch.float64), 4)
        with flow.watch(model, to, every=2, budget=1.0) as watched:
            train(model, x, 4, clip=1e-3)
        rows.append(sorted(zip(*watched.columns().values())))
    with path.open() as file:
        header, *written = csv.reader(file)
    assert header == ["update", "quantity", "value"]
    assert sorted((int(u), q, float(v)) for u, q, v in written) == rows[1]
    assert sorted(writer.rows) == rows[2] == rows[0]


def test_a_layer_that_cannot_be_seen_is_named_and_training_goes_on():
    model, x = nn.LSTM(3, 4, bidirectional=True), torch.randn(5, 2, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watched = flow.watch(model, every=1, budget=1.0)
    with pytest.warns(UserWarning, match="watch: cannot analyse LSTM with bidirectional=True"):
        watched.__enter__()
    with watched:
        model(x)[0].sum().backward()
        optimizer.step()
    assert "bidirectional" in watched.skipped["LSTM"]
    assert "gradient/weight_hh_l0" in watched.history


def test_a_subclass_of_a_torch_layer_is_named_and_training_goes_on():
    class Mine(nn.LSTM):
        pass

    model, x = nn.ModuleDict({"mine": Mine(3, 4), "rnn": nn.RNN(3, 4)}), torch.randn(5, 2, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    watched = flow.watch(model, every=1, budget=1.0)
    with pytest.warns(UserWarning, match="watch: cannot analyse Mine: a subclass of torch.nn.LSTM"):
        watched.__enter__()
    with watched:
        (model["mine"](x)[0].sum() + model["rnn"](x)[0].sum()).backward()
        optimizer.step()
    assert list(watched.skipped) == ["mine"]
    assert "rnn/lag/4" in watched.history


def test_packed_sequences_are_named():
    model = nn.LSTM(3, 4)
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 2, 3), torch.tensor([5, 3]))
    with flow.watch(model, every=1, budget=1.0), pytest.warns(UserWarning, match="PackedSequence"):
        model(packed)


@pytest.mark.parametrize("make", [nn.RNN, ll.Elman])
def test_non_finite_states_are_reported_and_training_goes_on(make):
    layer = make(3, 4, **({"engine": "reference"} if make is ll.Elman else {}))
    x = torch.randn(6, 2, 3)
    x[4] = math.nan
    optimizer = torch.optim.SGD(layer.parameters(), 1e-3)
    name = type(layer).__name__
    with flow.watch(layer, every=1, budget=1.0) as watched:
        layer(x)[0][:3].sum().backward()
        with pytest.warns(UserWarning, match="must be finite, got NaN or infinity first at step 4"):
            optimizer.step()
    assert watched.history[f"{name}/non_finite"] == [(0, 4.0)]


def test_watching_changes_nothing():
    ends = []
    for watching in (False, True):
        torch.manual_seed(0)
        model = Model(nn.LSTM(3, 4, 2, dropout=0.5, dtype=torch.float64), 4)
        x = helpers.randn(6, 2, 3)
        if watching:
            with flow.watch(model, every=1, budget=1.0):
                train(model, x, 5)
        else:
            train(model, x, 5)
        ends.append([p.detach() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: flow.watch(torch.zeros(3)),  # pyright: ignore[reportArgumentType]
            TypeError,
            "watch: model must be a torch.nn.Module, got Tensor",
        ),
        (lambda: flow.watch(nn.ReLU()), ValueError, "watch: model must have trainable parameters, got ReLU without"),
        (
            lambda: flow.watch(nn.RNN(1, 1), 3),  # pyright: ignore[reportArgumentType]
            TypeError,
            "watch: to must be a path or have add_scalar, got int",
        ),
        (lambda: flow.watch(nn.RNN(1, 1), every=0), ValueError, "watch: every must be a positive int, got 0"),
        (lambda: flow.watch(nn.RNN(1, 1), budget=0), ValueError, r"watch: budget must be a number in \(0, 1\], got 0"),
        (lambda: flow.watch(nn.RNN(1, 1), sequences=0), ValueError, "watch: sequences must be a positive int, got 0"),
    ],
)
def test_bad_input_is_named(call, error, text):
    with warnings.catch_warnings(), pytest.raises(error, match=text):
        call()
