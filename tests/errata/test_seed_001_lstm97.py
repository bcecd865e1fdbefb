"""Errors in the note on LSTM (Hochreiter and Schmidhuber 1997), part 2: memory cells, truncation, sizes.

x̃ = [x; y_hid; y_ig; y_og; y_cell]; n_b blocks of d_b cells; g = 4σ − 2, h = 2σ − 1.
"""

from typing import Any

import pytest
import torch
from helpers import error as rel

import longlag as ll

EXACT = 1e-9
REFERENCE = {"dtype": torch.float64, "engine": "reference"}
d_in, d_hid, n_b, d_b, d_out, T = 3, 2, 2, 2, 2, 7
n_c = n_b * d_b
SPLIT = (d_hid, n_b, n_b, n_c)


def slope(net):
    return torch.sigmoid(net) * (1 - torch.sigmoid(net))


def network(seed=0, **options) -> Any:
    torch.manual_seed(seed)
    options = {"output_size": d_out, "input_to_output": True, "bias": False, "init_range": 1.0} | options
    return ll.LSTM97(d_in, n_b, d_b, d_hid, **REFERENCE, **options)


def case(seed=0):
    net = network(seed)
    return net, torch.randn(T, d_in).double(), torch.rand(T, d_out).double()


def cut_run(net, x, state=None):
    """Outputs and final (y, s) of the truncated graph: all that is fed back is detached, s is not."""
    y, s = state or tuple(torch.zeros(n).double() for n in net.state_sizes.values())
    outputs = []
    for x_t in x:
        out, (y, s) = net.step(x_t, (y.detach(), s))
        outputs.append(out)
    return torch.stack(outputs), (y, s)


def cut_gradients(net, x, target):
    net.zero_grad()
    (0.5 * (cut_run(net, x)[0] - target) ** 2).sum().backward()
    return {name: p.grad.clone() for name, p in net.named_parameters()}


def trace_gradients(net, x, target, *, carry=1.0, column=d_in, gates_heard=1.0):
    """The paper's forward algorithm, one sequence.

    carry: what multiplies the old traces; column: first column of w_out that belongs to the hidden units;
    gates_heard: 0 leaves y_ig and y_og out of the source vector of the hidden units' weights.
    """
    w = {name.removeprefix("weight_"): p.detach() for name, p in net.named_parameters()}
    grads = {name: torch.zeros_like(value) for name, value in w.items()}
    each = lambda gate: gate.repeat_interleave(d_b)  # noqa: E731
    fed_back, s = torch.zeros(sum(SPLIT)).double(), torch.zeros(n_c).double()
    A = B = torch.zeros(n_c, d_in + sum(SPLIT)).double()
    heard = torch.ones(d_in + sum(SPLIT)).double()
    heard[d_in + d_hid : d_in + d_hid + 2 * n_b] = gates_heard
    for x_t, goal in zip(x, target):
        source = torch.cat([x_t, fed_back])
        hid, ig, og, cell = (w[k] @ source for k in ("hid", "ig", "og", "cell"))
        g, dg, y_ig, y_og = 4 * torch.sigmoid(cell) - 2, 4 * slope(cell), torch.sigmoid(ig), torch.sigmoid(og)
        s = s + each(y_ig) * g
        h, dh = 2 * torch.sigmoid(s) - 1, 2 * slope(s)
        fed_back = torch.cat([torch.sigmoid(hid), y_ig, y_og, each(y_og) * h])
        seen = torch.cat([x_t, fed_back[:d_hid], fed_back[-n_c:]])
        z = w["out"] @ seen
        delta = (torch.sigmoid(z) - goal) * slope(z)
        e = w["out"].t() @ delta
        e_hid, e_cell = e[column : column + d_hid], e[-n_c:]
        A = carry * A + (g * each(slope(ig)))[:, None] * source  # [LSTM-97 3.1 A]
        B = carry * B + (each(y_ig) * dg)[:, None] * source  # [LSTM-97 3.1 B]
        eps = e_cell * each(y_og) * dh
        grads["out"] += torch.outer(delta, seen)
        grads["hid"] += torch.outer(e_hid * slope(hid), source * heard)
        grads["og"] += torch.outer((e_cell * h).view(n_b, d_b).sum(1) * slope(og), source)
        grads["ig"] += (eps[:, None] * A).view(n_b, d_b, -1).sum(1)
        grads["cell"] += eps[:, None] * B
    return {f"weight_{name}": value for name, value in grads.items()}


def test_001_9_a_closed_input_gate_keeps_the_past_and_the_output_reads_it():
    net = network(bias=True, output_size=None, input_gate_bias=-60.0, output_gate_bias=60.0)
    past = torch.randn(n_c, dtype=torch.float64, requires_grad=True)
    x, rest = torch.randn(T, d_in).double(), torch.zeros(net.state_sizes["y"]).double()
    y, (_, s) = net(x, (rest, past))
    read = y[-1, -n_c:]
    assert rel(s, past) < EXACT  # nothing was written
    assert rel(read, 2 * torch.sigmoid(past) - 1) < EXACT  # what was there is read: printed "does not influence"
    (influence,) = torch.autograd.grad(read.sum(), past)
    assert rel(influence, 2 * slope(past)) < EXACT


def test_001_10_w_out_has_a_row_per_output():
    net = ll.LSTM97(d_in, 2, 4, d_hid, output_size=3)
    assert net.weight_out.shape == (3, d_hid + 2 * 4)
    assert net(torch.randn(T, d_in))[0].shape == (T, 3)  # 3 outputs, not d_b = 4


def test_001_11_columns_of_the_hidden_units_come_after_the_inputs():
    net, x, target = case()
    truth = cut_gradients(net, x, target)["weight_hid"]
    assert rel(trace_gradients(net, x, target)["weight_hid"], truth) < EXACT
    assert rel(trace_gradients(net, x, target, column=0)["weight_hid"], truth) > 0.3


def test_001_12_hidden_units_hear_the_gates():
    net, x, target = case(seed=1)
    truth = cut_gradients(net, x, target)["weight_hid"]
    assert rel(trace_gradients(net, x, target)["weight_hid"], truth) < EXACT
    assert rel(trace_gradients(net, x, target, gates_heard=0.0)["weight_hid"], truth) > 0.1
    assert rel(trace_gradients(net, x, target, gates_heard=0.0, column=0)["weight_hid"], truth) > 0.3


def test_001_13_a_gate_depends_on_its_own_weights_only():
    net, x, _ = case(seed=2)
    _, (before, s) = cut_run(net, x[:-1])
    source, y = torch.cat([x[-1], before.detach()]), net.step(x[-1], (before.detach(), s))[1][0].split(SPLIT)
    for own, other, values in (("ig", "og", y[1]), ("og", "ig", y[2])):
        own, other = net.get_parameter(f"weight_{own}"), net.get_parameter(f"weight_{other}")
        slopes = slope(own @ source)
        for k in range(n_b):
            d_own, d_other = torch.autograd.grad(values[k], (own, other), retain_graph=True)
            ours = torch.zeros_like(d_own)
            ours[k] = slopes[k] * source
            assert rel(ours, d_own) < EXACT
            assert not d_other.any()  # printed: the same non-zero expression for both
            assert ours.abs().max() > 0.1


def test_001_14_traces_are_carried_for_input_gates_and_cells():
    """δ_in + δ_cell is 0 or 1; the product of the two that the note prefers is always 0 and drops the carry."""
    net, x, target = case(seed=3)
    truth = cut_gradients(net, x, target)
    ours, printed = trace_gradients(net, x, target), trace_gradients(net, x, target, carry=0.0)
    for name, g in truth.items():
        assert rel(ours[name], g) < EXACT
        assert rel(printed[name], g) > 0.3 if name in ("weight_ig", "weight_cell") else rel(printed[name], g) < EXACT


def test_001_15_the_state_is_free_of_output_gates_if_it_starts_constant():
    net, x, _ = case(seed=4)
    names = ("weight_og", "weight_hid")
    weights = [net.get_parameter(name) for name in names]
    constant = cut_run(net, x)[1][1].sum()
    y, start = torch.zeros(sum(SPLIT)).double(), net.weight_og[:, 0].repeat_interleave(d_b)
    dependent = cut_run(net, x, (y, start))[1][1].sum()
    full = net(x)[1][1].sum()
    for end, zero in ((constant, (True, True)), (dependent, (False, True)), (full, (False, False))):
        grads = torch.autograd.grad(end, weights)
        assert tuple(not g.any() for g in grads) == zero


def test_001_17_a_small_first_state_does_not_bound_the_later_ones():
    net: Any = ll.LSTM97(1, 1, 1, bias=True, recurrent=False, input_gate_bias=-5.0, **REFERENCE)
    with torch.no_grad():
        net.weight_cell.fill_(9.0)
        net.weight_ig.zero_()
    _, states = zip(*(net(torch.ones(steps, 1).double())[1] for steps in (1, 1000)))
    (y_ig,) = torch.sigmoid(net.bias_ig)
    first, last = (float(s.detach()) for s in states)
    assert abs(first) < 0.02
    assert last > 10
    assert last <= 1000 * 2 * float(y_ig.detach())  # |s(t)| ≤ 2 Σ y_ig is all that holds
    assert last > 0.99 * 1000 * 2 * float(y_ig.detach())


def test_001_18_updates_of_the_paper_belong_to_half_the_squared_error():
    net, x, target = case(seed=5)
    y = net(x)[0]
    z = torch.special.logit(y)
    e = slope(z) * (target - y)  # the paper's e_k
    for factor, holds in ((0.5, True), (1.0, False)):
        (error,) = torch.autograd.grad((factor * (y - target) ** 2).sum(), y, retain_graph=True)
        assert (rel(-error * slope(z), e) < EXACT) == holds
        assert rel(-error * slope(z), 2 * factor * e) < EXACT


def test_001_19_outputs_read_the_new_activations():
    net, x, _ = case(seed=6)
    out, (y, _) = net(x)
    _, (before, _) = net(x[:-1])
    for activations, holds in ((y, True), (before, False)):
        seen = torch.cat([x[-1], activations[:d_hid], activations[-n_c:]])
        error = rel(torch.sigmoid(net.weight_out @ seen), out[-1])
        assert error < EXACT if holds else error > 0.01


def count(net):
    return sum(p.numel() for p in net.parameters())


def test_001_20_experiment_2a_has_10504_weights():
    p = 100
    net = ll.LSTM97(p + 1, 1, output_size=p + 1, output_gates=False, recurrent=False, input_to_output=True, bias=False)
    assert count(net) == (p + 1) * (p + 2) + 2 * (p + 1) == 10504  # Table 2
    # printed: as many cells as outputs and no w_out, which makes every cell hear every other
    for gates, weights in ((True, 103 * 204), (False, 102 * 203)):
        assert count(ll.LSTM97(p + 1, 1, p + 1, output_gates=gates, bias=False)) == weights > 10504


@pytest.mark.parametrize("p", [50, 100, 200, 500, 1000])
def test_001_23_experiment_2c_has_p_distractors(p):
    assert count(ll.LSTM97(p + 4, 2, output_size=2, bias=False)) == 6 * p + 64  # Table 3
    assert count(ll.LSTM97(p + 3, 2, output_size=2, bias=False)) == 6 * p + 58  # printed: p − 1 of them


def test_001_35_training_stops_when_few_errors_are_large():
    def stops(errors, n_seq):
        return sum(e > 0.04 for e in errors) < n_seq

    def printed(errors, n_seq):
        return sum(e < 0.04 for e in errors) <= n_seq

    perfect, hopeless = [0.0] * 2000, [0.5] * 2000
    almost = [0.5] * 139 + [0.0] * 1861
    assert [stops(errors, 140) for errors in (perfect, almost, hopeless)] == [True, True, False]
    assert [printed(errors, 140) for errors in (perfect, almost, hopeless)] == [False, False, True]
    assert not stops(almost, 13)
