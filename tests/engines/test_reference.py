"""The reference engine: its gradients, and its loop against one written out per sequence, gate and unit."""

import pytest
import torch
from helpers import CELLS, LAYERS, parts, randn, same, some_state, whole
from hypothesis import given, settings
from hypothesis import strategies as st

from longlag import cells, engines
from longlag.engines import Norm, reference

SMOOTH = {name: cell for name, cell in CELLS.items() if not cell.surrogates}
every_cell = pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)


def arguments(cell, T=2, B=2, H=2, seed=0):
    """net, U, state, params, bias for `reference.run`, as leaves."""
    only_y = [gate for gate in cell.recurrent_gates if gate not in cell.input_gates]
    net = randn(T, B, len(cell.input_gates), H, seed=seed)
    U = randn(len(cell.recurrent_gates) * H, H, seed=seed + 1) if cell.dense else None
    state = [randn(B, H, seed=seed + 2 + i) for i in range(len(cell.fed_back))]
    params = [randn(H, seed=seed + 5 + i).abs() + 0.5 for i in range(len(cell.params))]
    bias = randn(len(only_y), H, seed=seed + 8) if only_y else None
    for leaf in (net, U, *state, *params, bias):
        if leaf is not None:
            leaf.requires_grad_()
    return net, U, state, params, bias


def norm_arguments(cell, H, paper):
    gamma, beta = (randn(len(cell.gates), H, seed=seed) + 1 for seed in (11, 12))
    return (Norm.with_sample_variance if paper else Norm)(gamma, beta, 0.1), gamma, beta


# ------------------------------------------------------------------------------------------------ gradients
LENGTHS = torch.tensor([2, 1])
RESET = torch.tensor([[False, True], [True, False]])


@pytest.mark.parametrize(
    "options",
    [{}, {"lengths": LENGTHS, "reverse": True}, {"reset": RESET}],
    ids=["plain", "ragged and reversed", "reset"],
)
@pytest.mark.parametrize("cell", SMOOTH.values(), ids=SMOOTH)
def test_first_and_second_derivatives(cell, options):
    net, U, state, params, bias = arguments(cell, B=len(LENGTHS) if options else 1)
    given_ = [leaf for leaf in (net, U, bias) if leaf is not None]

    def run(net_, *leaves):
        rest = iter(leaves)
        U_, bias_ = (None if leaf is None else next(rest) for leaf in (U, bias))
        state_ = [next(rest) for _ in state]
        outputs, final = reference.run(cell, net_, U_, state_, list(rest), bias=bias_, **options)
        return outputs, *final

    leaves = [*given_, *state, *params]
    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=bool(options))


@pytest.mark.parametrize("paper", [True, False], ids=["divisor H-1", "divisor H"])
@pytest.mark.parametrize("name", ["elman", "gru", "lstm", "net_feedback"])
def test_derivatives_through_the_normalisation(name, paper):
    cell = CELLS[name]
    net, U, state, params, bias = arguments(cell, H=3)
    _, gamma, beta = norm_arguments(cell, 3, paper)
    extra = [leaf for leaf in (U, bias) if leaf is not None]

    def run(net_, gamma_, beta_, *leaves):
        rest = iter(leaves)
        U_, bias_ = (None if leaf is None else next(rest) for leaf in (U, bias))
        state_ = [next(rest) for _ in state]
        norm = (Norm.with_sample_variance if paper else Norm)(gamma_, beta_, 0.1)
        outputs, final = reference.run(cell, net_, U_, state_, list(rest), bias=bias_, norm=norm)
        return outputs, *final

    leaves = [net, gamma.requires_grad_(), beta.requires_grad_(), *extra, *state, *params]
    assert torch.autograd.gradcheck(run, leaves)
    assert torch.autograd.gradgradcheck(run, leaves, fast_mode=True)


# ------------------------------------------------------------------------------------------------ the loop


def naive(cell, net, U, state, params, bias, norm, mask, lengths, reset, reverse):
    """`reference.run`, one sequence, one step and one gate at a time, the normalisation spelled out."""
    T, B, _, H = net.shape
    outputs, finals = torch.zeros(T, B, H, dtype=net.dtype), []
    for b in range(B):
        carried = {name: part[b] for name, part in zip(cell.fed_back, state)}
        steps = range(lengths[b])
        for t in reversed(steps) if reverse else steps:
            begins = t + 1 if reverse else t  # a piece that begins here cuts the link just crossed
            if begins < lengths[b] and reset[begins, b]:
                carried = {name: torch.zeros(H, dtype=net.dtype) for name in carried}
            heard = dict(carried)
            if mask is not None and not cell.dense:
                heard = {name: value * mask[b] for name, value in heard.items()}
            values, only_y = {}, 0
            for k, gate in enumerate(cell.gates):
                a = torch.zeros(H, dtype=net.dtype)
                if gate in cell.input_gates:
                    a = a + net[t, b, cell.input_gates.index(gate)]
                if gate in cell.recurrent_gates:
                    row = cell.recurrent_gates.index(gate)
                    a = a + U[row * H : (row + 1) * H] @ (heard["y"] if mask is None else heard["y"] * mask[b])
                if gate not in cell.input_gates and bias is not None:
                    a, only_y = a + bias[only_y], only_y + 1
                values[gate] = a if norm is None else normalised(a, *(part[k] for part in norm[:2]), *norm[2:])
            reads = {name: heard[name] for name in cell.inputs if name in heard}
            new = cell.equations(**values, **reads, **dict(zip(cell.params, params)))
            new = dict(zip(cell.outputs, new if isinstance(new, tuple) else (new,)))
            outputs[t, b], carried = new["y"], {name: new[name] for name in cell.fed_back}
        finals.append(carried)
    return outputs, tuple(torch.stack([final[name] for final in finals]) for name in cell.fed_back)


def normalised(r, gamma, beta, divisor, eps=0.1):
    mu = sum(r) / len(r)  # [LN-RNN 5]
    v = sum((r - mu) ** 2) / divisor
    return gamma * (r - mu) / (v + eps) ** 0.5 + beta


@every_cell
@settings(max_examples=6)
@given(data=st.data())
def test_the_loop(cell, data):
    T, B = data.draw(st.integers(1, 4), "T"), data.draw(st.integers(1, 3), "B")
    kind = data.draw(st.sampled_from([None, "paper", "torch"]), "norm")
    H = 3 if kind else data.draw(st.integers(1, 3), "H")
    lengths = torch.tensor(data.draw(st.lists(st.integers(1, T), min_size=B, max_size=B), "lengths"))
    flags = st.lists(st.lists(st.booleans(), min_size=B, max_size=B), min_size=T, max_size=T)
    reset = torch.tensor(data.draw(flags, "reset"))
    reverse = data.draw(st.booleans(), "reverse")
    mask = randn(B, H, seed=13) if data.draw(st.booleans(), "mask") else None
    net, U, state, params, bias = arguments(cell, T, B, H)
    norm, gamma, beta = norm_arguments(cell, H, kind == "paper") if kind else (None, None, None)
    spelled = (gamma, beta, H - 1 if kind == "paper" else H) if kind else None
    wanted, final = naive(cell, net, U, state, params, bias, spelled, mask, lengths, reset, reverse)
    ours, our_final = reference.run(
        cell, net, U, state, params, bias=bias, norm=norm, mask=mask, lengths=lengths, reset=reset, reverse=reverse
    )
    same(ours, wanted, "outputs")
    same(our_final, final, "final state")


def test_one_step_is_a_run_of_one_step():
    net, U, state, params, bias = arguments(cells.gru, T=1)
    y, new = reference.step(cells.gru, net[0], U, state, params, bias=bias)
    outputs, final = reference.run(cells.gru, net, U, state, params, bias=bias)
    assert torch.equal(y, outputs[0])
    assert torch.equal(new[0], final[0])


def test_no_lengths_and_no_resets_are_full_lengths_and_none_set():
    net, U, state, params, _ = arguments(cells.lstm, T=3, B=2)
    plain = reference.run(cells.lstm, net, U, state, params)
    full = reference.run(
        cells.lstm, net, U, state, params, lengths=torch.tensor([3, 3]), reset=torch.zeros(3, 2, dtype=torch.bool)
    )
    assert torch.equal(plain[0], full[0])
    assert all(map(torch.equal, plain[1], full[1]))


def test_a_scan_starts_again_from_the_rest_it_is_given():
    rest = (torch.full((2, 1), 7.0),)
    reset = torch.tensor([[False, True], [False, False], [True, False]])
    x, start = torch.zeros(3, 2), torch.zeros(2, 1)
    outputs, _ = reference.scan(lambda x, s: (s[0], (s[0] + 1,)), (x,), (start,), rest=rest, reset=reset)
    assert outputs[..., 0].t().tolist() == [[0, 1, 7], [7, 8, 9]]


# ----------------------------------------------------------------------------------------------------- choice


def test_only_engines_that_exist_are_accepted():
    engines.check("Elman", "auto")
    engines.check("Elman", "reference")
    with pytest.raises(ValueError, match=r"^Elman: engine must be one of 'auto', 'reference'.*, got 'abacus'$"):
        engines.check("Elman", "abacus")


@pytest.mark.parametrize("name", ["lstm", "gru", "local_net", "user_everything"])
def test_a_layer_hands_its_weights_to_the_engine_it_names(name):
    layer, x = LAYERS[name](), randn(3, 2, 3)
    w, state = layer.weights(0), some_state(layer, 2)
    net = torch.nn.functional.linear(x, w.W, w.b).unflatten(-1, (len(layer.cell.input_gates), 4))
    inner = [part[0] for part in state]
    outputs, final = reference.run(layer.cell, net, w.U, inner, w.params, bias=w.b_recurrent, norm=w.norm)
    y, end = layer(x, whole(state))
    same(y, outputs)
    same([part[0] for part in parts(end)], final)
