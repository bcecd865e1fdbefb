"""What the recurrent matrices read, and their structure."""

import copy
import pickle
from typing import Any

import helpers
import pytest
import torch
from helpers import randn, same

import longlag as ll
from longlag import cells
from longlag.cells import sigmoid, tanh


@ll.cell(gates=["z", "r", "n: x + sigmoid(r)*y"])
def gru_2014(z, r, n, y):
    return (1 - sigmoid(z)) * tanh(n) + sigmoid(z) * y


@ll.cell(gates="a b:z", states="z", fixed={"dt": 0.1, "gamma": 1.0, "epsilon": 0.5})
def oscillating(a, b, z, y, dt, gamma, epsilon):
    z = z + dt * (tanh(a + b) - gamma * y - epsilon * z)
    return y + dt * z, z


def make(cell, size=6, **options) -> Any:
    torch.manual_seed(0)
    return ll.Recurrent(cell, 3, size, **{"dtype": torch.float64, **options})


def by_hand(cell, w, x):
    H = w["weight_hh_l0"].shape[1]
    y = z = torch.zeros(x.shape[1], H, dtype=x.dtype)
    W, U, b, c = (list(w[name].split(H)) for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"))
    outputs = []
    for x_t in x:
        if cell is gru_2014:
            update, reset = (torch.sigmoid(x_t @ W[k].t() + b[k] + y @ U[k].t() + c[k]) for k in (0, 1))
            new = torch.tanh(x_t @ W[2].t() + b[2] + (reset * y) @ U[2].t() + c[2])
            y = (1 - update) * new + update * y
        else:
            net = x_t @ W[0].t() + b[0] + y @ U[0].t() + c[0] + z @ U[1].t() + c[1]
            z = z + 0.1 * (torch.tanh(net) - y - 0.5 * z)
            y = y + 0.1 * z
        outputs.append(y)
    return torch.stack(outputs)


@pytest.mark.parametrize("cell", [gru_2014, oscillating])
def test_gates_read_states_and_products_of_the_same_step(cell):
    layer, x = make(cell), randn(7, 4, 3).requires_grad_()
    found, wanted = layer(x)[0], by_hand(cell, dict(layer.named_parameters()), x)
    same(found, wanted)
    leaves = [x, *layer.parameters()]
    ours, theirs = (torch.autograd.grad(helpers.weighted_sum(v), leaves) for v in (found, wanted))
    same(ours, theirs)


@pytest.mark.parametrize("cell", [gru_2014, oscillating])
def test_rules_and_flow_follow(cell):
    layer, x, d = make(cell), randn(6, 2, 3), randn(6, 2, 6, seed=1)
    wanted = dict(zip(dict(layer.named_parameters()), torch.autograd.grad(layer(x)[0], list(layer.parameters()), d)))
    rule, state, total = ll.learn.RTRL(), None, {}
    trace = rule.start(layer, 2)
    for t in range(6):
        _, state, trace = rule.step(layer, x[t], state, trace)
        found = rule.gradients(layer, trace, d[t])
        total = {name: total.get(name, 0) + value for name, value in found.items()}
    same({name: total[name] for name in wanted}, wanted, tolerance=1e-11)
    y, states = layer.trajectory(x)
    same(y, layer(x)[0])
    before = layer.state_spec.whole(layer.state_spec.unflatten(states[2]))
    J = layer.linearise(x[2], before).jacobian()

    def step(rows):
        spec = layer.state_spec
        return spec.flatten(layer.step(x[2, :1], spec.whole(spec.unflatten(rows)))[1])

    same(J[0], torch.autograd.functional.jacobian(step, states[2, :1]).squeeze(0).squeeze(1), tolerance=1e-11)


def test_the_fused_engine_serves_them():
    assert make(gru_2014).engine_for(randn(7, 4, 3)).startswith("cpu: ")


STRUCTURES = {
    "heads": ({"recurrent": "heads:3"}, lambda U: torch.cat([torch.block_diag(*[torch.ones(2, 2)] * 3)] * 3) == 0),
    "sparse": ({"recurrent": "sparse:0.3"}, None),
    "mask": ({"recurrent_mask": torch.eye(6)}, lambda U: torch.eye(6).repeat(3, 1) == 0),
    "whole mask": ({"recurrent_mask": torch.tril(torch.ones(18, 6))}, lambda U: torch.tril(torch.ones(18, 6)) == 0),
}


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_missing_connections_stay_missing(name, engine):
    options, zeros = STRUCTURES[name]
    layer, x = make(cells.gru, engine=engine, **options), randn(7, 4, 3)
    absent: torch.Tensor = layer.weight_hh_l0 == 0 if zeros is None else zeros(layer.weight_hh_l0)
    assert bool(absent.any())
    plain = make(cells.gru, engine=engine)
    plain.load_state_dict({name: getattr(layer, name) for name in plain.state_dict()})
    same(layer(x)[0], plain(x)[0])
    optimizer = torch.optim.Adam(layer.parameters(), 0.1)
    before = layer.weight_hh_l0.detach().clone()
    for _ in range(3):
        optimizer.zero_grad()
        layer(x)[0].square().sum().backward()
        optimizer.step()
    assert not layer.weight_hh_l0[absent].any()
    assert bool((layer.weight_hh_l0 != before)[~absent].all())
    layer.reset_parameters()
    assert not layer.weight_hh_l0[absent].any()
    assert layer.weight_hh_l0[~absent].abs().max() <= 6**-0.5


def test_signs_hold():
    signs = torch.tensor([1, 1, -1, 1, -1, 1])
    layer, x = make(cells.elman, recurrent_signs=signs, recurrent_mask=1 - torch.eye(6)), randn(7, 4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), 1.0)
    layer(x)[0].square().sum().backward()
    optimizer.step()
    off = ~torch.eye(6, dtype=torch.bool)
    assert torch.equal(layer.weight_hh_l0.sign()[off], signs.double().expand(6, 6)[off])
    assert not layer.weight_hh_l0.diagonal().any()


def test_low_rank():
    layer = make(cells.lstm, recurrent="low_rank:2")
    assert int(torch.linalg.matrix_rank(layer.weight_hh_l0)) == 2
    names = [name for name, _ in layer.named_parameters() if "hh" in name and "weight" in name]
    assert [layer.get_parameter(name).shape for name in names] == [(24, 2), (2, 6)]
    layer(randn(5, 2, 3))[0].sum().backward()
    assert all(layer.get_parameter(name).grad is not None for name in names)


@pytest.mark.parametrize("name", ["elman_relu", "lstm", "gru", "user_everything"])
def test_diagonal_is_the_dense_layer_with_a_diagonal_matrix(name):
    cell = helpers.CELLS[name]
    layer, x = make(cell, recurrent="diagonal", engine="reference"), randn(7, 4, 3)
    dense = make(cell, engine="reference")
    weights = dict(layer.named_parameters())
    with torch.no_grad():
        for own in dense.state_dict():
            if own in weights:
                getattr(dense, own).copy_(weights[own])
        loops = [weights[f"u_{gate}_l0"] for gate in cell.recurrent_gates]
        none = torch.zeros(6, dtype=torch.float64)
        dense.weight_hh_l0.copy_(torch.cat(list(map(torch.diag, loops))))
        dense.bias_hh_l0.copy_(torch.cat([weights.get(f"b_{gate}_l0", none) for gate in cell.recurrent_gates]))
    same(layer(x)[0], dense(x)[0])
    assert layer.cell is make(cell, recurrent="diagonal").cell
    assert ll.learn.LocalForward().start(layer, 2)
    assert loops[0].abs().max() <= 6**-0.5


def test_a_diagonal_layer_is_fused_and_survives_pickle():
    layer = make(cells.elman_relu, recurrent="diagonal")
    assert layer.engine_for(randn(2, 2, 3)).startswith("cpu")
    x = randn(5, 2, 3)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x)[0], layer(x)[0])
    assert repr(layer.cell) == "Cell(elman_relu_diagonal: gates a, params u_a, local)"


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_the_initial_state_is_learned(engine):
    layer = make(cells.lstm, num_layers=2, bidirectional=True, learn_initial_state=True, engine=engine)
    learned = {name: p for name, p in layer.named_parameters() if name.startswith("initial_")}
    assert list(learned) == [
        f"initial_{part}_l{k}{end}" for k in range(2) for end in ("", "_reverse") for part in ("y", "c")
    ]
    assert not any(p.any() for p in learned.values())
    with torch.no_grad():
        for k, p in enumerate(learned.values()):
            p.copy_(randn(6, seed=k))
    x, B = randn(5, 4, 3), 4
    state = tuple(
        torch.stack([p for name, p in learned.items() if f"_{part}_" in name]).unsqueeze(1).repeat(1, B, 1)
        for part in ("y", "c")
    )
    y = layer(x)[0]
    same(y, layer(x, state)[0])
    both = (y, layer(x, state)[0])
    ours, theirs = (torch.autograd.grad(helpers.weighted_sum(v), list(learned.values())) for v in both)
    same(ours, theirs)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"recurrent": "blocks"},
            "must be one of 'dense', 'diagonal', 'heads:N', 'low_rank:N', 'sparse:DENSITY', 'antisymmetric'",
        ),
        ({"recurrent": "heads:4"}, "hidden_size must be a multiple of the 4 heads, got 6"),
        ({"recurrent": "heads:0"}, "recurrent must be one of"),
        ({"recurrent": "low_rank:7"}, "recurrent='low_rank:N' needs N of at most hidden_size 6, got 7"),
        ({"recurrent": "sparse:2"}, "recurrent='sparse:DENSITY' needs a number in (0, 1], got 'sparse:2'"),
        ({"recurrent_mask": torch.ones(5, 6)}, "recurrent_mask must have shape (6, 6) or (18, 6), got (5, 6)"),
        ({"recurrent_mask": torch.full((6, 6), 0.5)}, "recurrent_mask must hold zeros and ones, got 0.5"),
        ({"recurrent_signs": torch.zeros(6)}, "recurrent_signs must be (6,) of 1 and −1, got 0"),
        ({"proj_size": 2}, "proj_size needs a cell that reads y through U only, and gru does not"),
        ({"proj_size": 6}, "proj_size must be smaller than hidden_size 6, got 6"),
        ({"recurrent": "diagonal", "norm": "layer"}, "norm must be None for recurrent='diagonal', got 'layer'"),
        ({"recurrent": "diagonal", "recurrent_mask": torch.ones(6, 6)}, "is local and has no recurrent matrix"),
    ],
)
def test_what_is_refused(options, text):
    with pytest.raises(ValueError, match=r"^Recurrent: ") as caught:
        make(cells.gru, **options)
    assert text in str(caught.value)


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_projections_are_those_of_torch(engine):
    torch.manual_seed(0)
    theirs = torch.nn.LSTM(3, 6, 2, bidirectional=True, proj_size=4, dtype=torch.float64)
    ours = ll.LSTM(3, 6, 2, bidirectional=True, proj_size=4, dtype=torch.float64, engine=engine)
    ours.load_state_dict(theirs.state_dict())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x, state = randn(5, 2, 3), (randn(4, 2, 4, seed=1).requires_grad_(), randn(4, 2, 6, seed=2).requires_grad_())
    gathered = []
    for layer in (ours, theirs):
        for given in (None, state):
            y, ends = layer(x, given)
            leaves = [*(given or ()), *layer.parameters()]
            gathered.append([y, *ends, *torch.autograd.grad(helpers.weighted_sum(y, *ends), leaves)])
    for mine, wanted in zip(gathered[:2], gathered[2:]):
        same(mine, wanted, tolerance=1e-11)


def test_rules_follow_a_projection():
    layer, x, d = make(cells.lstm, proj_size=2), randn(4, 2, 3), randn(4, 2, 2, seed=1)
    wanted = dict(zip(dict(layer.named_parameters()), torch.autograd.grad(layer(x)[0], list(layer.parameters()), d)))
    rule, state, total = ll.learn.RTRL(), None, {}
    trace = rule.start(layer, 2)
    for t in range(4):
        _, state, trace = rule.step(layer, x[t], state, trace)
        found = rule.gradients(layer, trace, d[t])
        total = {name: total.get(name, 0) + value for name, value in found.items()}
    same({name: total[name] for name in wanted}, wanted, tolerance=1e-10)


def test_a_reset_needs_zeros():
    layer = make(cells.gru, learn_initial_state=True)
    with pytest.raises(ValueError, match="reset starts from zeros; it needs learn_initial_state=False"):
        layer(randn(5, 2, 3), reset=torch.zeros(5, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="must have learn_initial_state=False: a stream has no beginning"):
        ll.learn.RTRL().start(layer, 2)
