"""Errors in the note on local-feedback networks (Frasconi, Gori and Soda 1992): corrected and printed formulas.

n inputs, m hidden units in the order static, net, activation; f(a) = tanh(a/2).
"""

from typing import Any

import torch
from helpers import error as rel
from torch.autograd.functional import jacobian

import longlag as ll

EXACT = 1e-9
REFERENCE = {"dtype": torch.float64, "engine": "reference"}
KINDS = ("static", "net", "activation")


def f(a):
    return torch.tanh(a / 2)


def df(a):
    return (1 - f(a) ** 2) / 2


def network(hidden=(2, 3, 3), output=(2, 0, 0), n=3, seed=0) -> Any:
    """A network with normal weights, |u| < 1 and |v| < 2."""
    torch.manual_seed(seed)
    net = ll.LocalFeedbackNetwork(n, hidden, output, constrain=None, **REFERENCE)
    with torch.no_grad():
        for name, p in net.named_parameters():
            bound = {"u_l0": 0.95, "v_l0": 1.9}.get(name.rpartition(".")[2])
            p.copy_(torch.randn_like(p) if bound is None else (2 * torch.rand_like(p) - 1) * bound)
    return net


def part(net, layer, parameter="weight_ih_l0"):
    """One parameter of all groups of a layer that have it, stacked in the groups' order."""
    groups = [group for name, group in net.groups.items() if name.startswith(layer)]
    values = [getattr(group, parameter).detach() for group in groups if hasattr(group, parameter)]
    return torch.cat(values) if values else torch.zeros(0).double()


def hidden_run(net, x):
    """Net inputs a (T, m), outputs h (T, m) and self gains λ (T, m) of the hidden units."""
    w, u, v = part(net, "hidden"), part(net, "hidden", "u_l0"), part(net, "hidden", "v_l0")
    S, N, A = net.hidden_sizes[0]
    a_past, runs = x.new_zeros(S + N + A), []
    for x_t in x:
        loop = torch.cat([x.new_zeros(S), u * a_past[S : S + N], v * f(a_past[S + N :])])
        gain = torch.cat([x.new_zeros(S), u, v * df(a_past[S + N :])])
        a_past = loop + w @ x_t
        runs.append((a_past, f(a_past), gain))
    return tuple(torch.stack(parts) for parts in zip(*runs))


def local_gradients(net, x, d, slope):
    """Gradients of Σ (y−d)² from the units' own traces; ``slope``: the factor f'(w_out·h) inside δ_i."""
    w_out, (S, N, A) = part(net, "output"), net.hidden_sizes[0]
    a, h, gain = hidden_run(net, x)
    E, F = x.new_zeros(S + N + A, x.shape[1]), x.new_zeros(N + A)
    dw, dF, past = torch.zeros_like(E), torch.zeros_like(F), x.new_zeros(N + A)
    for t, x_t in enumerate(x):
        E = gain[t, :, None] * E + x_t
        F = gain[t, S:] * F + past
        past = torch.cat([a[t, S : S + N], h[t, S + N :]])
        z = w_out @ h[t]
        delta_out = 2 * (f(z) - d[t]) * (df(z) if slope else 1)
        delta = df(a[t]) * (w_out.t() @ delta_out)  # [LF-92 2.1]
        dw += delta[:, None] * E
        dF += delta[S:] * F
    return dw, dF[:N], dF[N:]


def gradients(net, x, d):
    """The same by autograd through the layer."""
    net.zero_grad()
    ((net(x)[0] - d) ** 2).sum().backward()
    groups = net.groups
    w = torch.cat([groups[f"hidden_0_{kind}"].weight_ih_l0.grad for kind in KINDS])
    return w, groups["hidden_0_net"].u_l0.grad, groups["hidden_0_activation"].v_l0.grad


def test_000_1_slope_of_the_output_belongs_to_the_error():
    net, x, d = network(), torch.randn(7, 3).double(), torch.rand(7, 2).double()
    truth = gradients(net, x, d)
    for ours, printed, g in zip(
        local_gradients(net, x, d, slope=True), local_gradients(net, x, d, slope=False), truth, strict=True
    ):
        assert rel(ours, g) < EXACT
        assert rel(printed, g) > 0.3


def test_000_2_the_direct_term_carries_the_weight_not_the_input():
    net, x = network(seed=1), torch.randn(6, 3).double()
    w, w_out, S, t = part(net, "hidden"), part(net, "output"), 2, 5
    truth: Any = jacobian(lambda x: net(x)[0][t], x)  # (l, T, n)
    a, h, gain = hidden_run(net, x)
    slope, through = df(w_out @ h[t]), w_out * df(a[t])  # (l,), (l, m)
    for q in range(6):
        reach = gain[t - q + 1 : t + 1].prod(0)  # Λ(t, q), 1 for q = 0
        ours = slope[:, None] * (through * reach @ w)
        assert rel(ours, truth[:, t - q]) < EXACT
        if q == 0:
            static = through[:, :S] @ x[t].expand(S, -1)  # x_k(t) in place of w_jk
            printed = slope[:, None] * (static + through[:, S:] @ w[S:])
            assert rel(printed, truth[:, t]) > 0.3
        else:  # printed right
            assert rel(slope[:, None] * ((through * reach)[:, S:] @ w[S:]), truth[:, t - q]) < EXACT


def bound(net, q, inside):
    """¼ Σ_j |w_out,ij w_jk| |gain_j|^q; ``inside=False`` takes the modulus of the sum instead."""
    w, w_out = part(net, "hidden"), part(net, "output")
    S = net.hidden_sizes[0][0]
    gain = torch.cat([w.new_zeros(S), part(net, "hidden", "u_l0").abs(), part(net, "hidden", "v_l0").abs() / 2])
    products = w_out[:, :, None] * w * (gain**q)[:, None]  # (l, m, n)
    return (products.abs().sum(1) if inside else products.sum(1).abs()) / 4


def test_000_3_the_modulus_stands_inside_the_sum():
    net, q = network(hidden=(0, 2, 0), output=(1, 0, 0), n=1), 3
    values = {"hidden_0_net.weight_ih_l0": [[1.0], [1.0]], "hidden_0_net.u_l0": [0.5, -0.5]}
    values["output_static.weight_ih_l0"] = [[1.0, -1.0]]
    net.groups.load_state_dict({k: torch.tensor(v).double() for k, v in values.items()})
    # nets at 0, where f' is largest: the corrected bound is attained, the printed one is 0
    flows: Any = jacobian(lambda x: net(x)[0][q], torch.zeros(q + 1, 1).double())  # (l, T, n)
    truth = flows[0, 0]
    assert rel(truth, torch.tensor([0.25 / 4])) < EXACT
    assert rel(bound(net, q, inside=True)[0], truth) < EXACT
    assert float(bound(net, q, inside=False)) == 0.0
    for seed in range(20):
        net, x = network(seed=seed), torch.randn(8, 3).double()
        slopes = jacobian(lambda x, net=net: net(x)[0][-1], x).abs()
        for lag in range(1, 8):
            assert (slopes[:, 7 - lag] <= bound(net, lag, inside=True) * (1 + EXACT)).all()


def test_000_4_a_unit_has_the_branch_of_its_kind_only():
    net, x, d = network(output=(0, 2, 2)), torch.randn(7, 3).double(), torch.rand(7, 4).double()
    net.zero_grad()
    ((net(x)[0] - d) ** 2).sum().backward()
    truth = torch.cat([net.groups[f"output_{kind}"].weight_ih_l0.grad for kind in KINDS[1:]])
    w, u, v = part(net, "output"), part(net, "output", "u_l0"), part(net, "output", "v_l0")
    a, E = x.new_zeros(4), x.new_zeros(2, 4, 3)  # traces of both branches, by the unit's own gain
    ours, printed = torch.zeros(4, 3).double(), torch.zeros(4, 3).double()
    for x_t, d_t in zip(x, d):
        gains = torch.stack([torch.cat([u, u]), torch.cat([v, v]) * df(a)])  # net branch, activation branch
        E = gains[:, :, None] * E + x_t
        a = torch.cat([u * a[:2], v * f(a[2:])]) + w @ x_t
        delta = 2 * (f(a) - d_t) * df(a)
        ours += delta[:, None] * torch.cat([E[0, :2], E[1, 2:]])
        printed += delta[:, None] * E.sum(0)
    assert rel(ours, truth) < EXACT
    assert rel(printed, truth) > 0.3


def test_000_5_self_loops_of_the_outputs_must_be_bounded_too():
    net, T = network(hidden=(1, 1, 1), output=(1, 1, 1), n=1), 40
    W = torch.cat([part(net, "output_net"), part(net, "output_activation")]).abs()  # (2, 1)
    for u, v, u_hid, v_hid in ((0.9, 1.8, 0.8, 1.6), (1.1, 2.2, 0.8, 1.6)):
        loops = {"output_net.u": u, "output_activation.v": v, "hidden_0_net.u": u_hid, "hidden_0_activation.v": v_hid}
        with torch.no_grad():
            for name, value in loops.items():
                net.groups.get_parameter(f"{name}_l0").fill_(value)
        slopes = jacobian(lambda x: net(x)[0][-1], torch.zeros(T, 1).double())[..., 0].abs()  # (3, T), nets at 0
        rho = torch.tensor([u, v / 2], dtype=torch.float64)[:, None]
        assert rel(slopes[1:], 0.5 * W * rho ** torch.arange(T - 1, -1, -1)) < EXACT  # the bound, attained at 0
        assert slopes[0, 0] < 1e-3 * slopes[0, -1]  # hidden loops obey (17): a static output forgets,
        growth = slopes[1:, 0] / slopes[1:, -1]  # the outputs with feedback only if theirs do too
        assert (growth < 0.02).all() if u < 1 else (growth > 40).all()


def test_000_8_slope_of_the_activation():
    a = torch.linspace(-9, 9, 401, dtype=torch.float64, requires_grad=True)  # 0 among them
    y = ll.cells.static.step(a)[0]
    (slope,) = torch.autograd.grad(y.sum(), a)
    sigma = torch.sigmoid(a)
    assert rel(2 * sigma * (1 - sigma), slope) < EXACT
    assert rel(df(a), slope) < EXACT
    assert float(slope.max()) == float(slope[200]) == 0.5
    assert bool((y.abs() < 1).all())  # the range is open


def test_000_10_beyond_the_bound_a_unit_latches_or_counts():
    """Vanishing derivatives are not loss of information; "forgets" and "cannot count" need |u| < 1, |v| < 2."""
    T = 60
    pulse = torch.zeros(2, T, 1, dtype=torch.float64)
    pulse[:, 0, 0] = torch.tensor([3.0, -3.0])
    for v, latches in ((4.0, True), (1.8, False)):
        unit = ll.LocalFeedback(1, 1, bias=False, feedback="activation", batch_first=True, constrain=None, **REFERENCE)
        unit.load_state_dict({"weight_ih_l0": torch.ones(1, 1).double(), "v_l0": torch.tensor([v]).double()})
        end = unit(pulse)[0][:, -1, 0].detach()
        slope = jacobian(lambda x, unit=unit: unit(x)[0][:, -1].sum(), pulse)[:, 0]
        assert slope.abs().max() < 1e-2
        if latches:
            h = 0.5 * (end[0] - end[1])
            assert abs(float(h) - 0.9575) < 1e-4
            assert abs(float(v * df(v * h)) - 0.166) < 1e-3
            assert rel(f(v * h), h) < EXACT  # a fixed point
        else:
            assert end.abs().max() < 1e-2
    integrator = ll.LocalFeedback(1, 1, bias=False, feedback="net", constrain=None, **REFERENCE)
    integrator.load_state_dict({"weight_ih_l0": torch.ones(1, 1).double(), "u_l0": torch.ones(1).double()})
    _, count = integrator.requires_grad_(False)(torch.ones(T, 1).double())
    assert count.item() == T


def test_000_10_a_finite_window_is_enough_only_up_to_a_geometric_error():
    net, x = network(hidden=(1, 3, 3), seed=3), torch.randn(60, 3).double()
    w_out, w, (S, N, _) = part(net, "output"), part(net, "hidden"), net.hidden_sizes[0]
    u, v = part(net, "hidden", "u_l0").abs(), part(net, "hidden", "v_l0").abs()
    C = (w[S : S + N] @ x.t()).abs().amax(1)
    whole = net(x)[0][-1]
    for Q in (1, 5, 20):
        error = (net(x[-Q:])[0][-1] - whole).abs()
        lost = torch.cat([0.5 * u**Q * C / (1 - u), (v / 2) ** Q])
        assert (error > 0).all()
        assert (error <= 0.5 * w_out[:, S:].abs() @ lost).all()
