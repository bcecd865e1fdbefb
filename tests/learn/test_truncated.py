"""TruncatedRTRL is autograd on the network whose cut connections are detached: spec LSTM-97 3.4, LSTM-FG 1.3."""

from itertools import product

import pytest
import torch
from helpers import DEFAULTS, LAYERS, error, parts, same
from learn.course import autograd, case, forward, make

import longlag as ll
from longlag.learn import RTRL, TruncatedRTRL

TOLERANCE = 1e-10
SQUASH = {
    "4s-2": lambda a: 4 * torch.sigmoid(a) - 2,
    "2s-1": lambda a: 2 * torch.sigmoid(a) - 1,
    "logistic": torch.sigmoid,
    "tanh": torch.tanh,
    "identity": lambda a: a,
}


def cut_lstm97(net, c, hidden="cut"):
    """Spec LSTM-97 2, a unit at a time, with [y_hid, y_ig, y_og, y_cell] detached where x̃ reads them.

    hidden="full": but y_hid is not detached where hidden units read it.
    """
    n, S = net.hidden_units, net.block_size
    (fed_back, s), outputs = c.state, []

    def units(section, source):
        return source @ getattr(net, f"weight_{section}").t() + getattr(net, f"bias_{section}", 0)

    for t, x_t in enumerate(c.x):
        reset = torch.zeros(3, 1, dtype=torch.bool) if c.reset is None else c.reset[t, :, None]
        y_before, s_before = torch.where(reset, 0.0, fed_back), torch.where(reset, 0.0, s)
        source = torch.cat([x_t, y_before.detach()], -1) if net.recurrent else x_t
        heard = torch.cat([y_before[:, :n], y_before[:, n:].detach()], -1) if hidden == "full" else y_before.detach()
        heard = torch.cat([x_t, heard], -1) if net.recurrent else x_t
        y_hid = torch.sigmoid(units("hid", heard)) if n else x_t[:, :0]
        y_ig = torch.sigmoid(units("ig", source))
        y_og = torch.sigmoid(units("og", source)) if net.output_gates else None
        a = units("cell", source)
        new_s, y_cell = [], []
        for k in range(net.blocks):
            for j in range(S):
                new = s_before[:, k * S + j] + y_ig[:, k] * SQUASH[net.g](a[:, k * S + j])
                new_s.append(new)
                y_cell.append(SQUASH[net.h](new) * (1 if y_og is None else y_og[:, k]))
        new_s, y_cell = torch.stack(new_s, -1), torch.stack(y_cell, -1)
        new_y = torch.cat([y_hid, y_ig, *([] if y_og is None else [y_og]), y_cell], -1)
        seen = torch.cat([*([x_t] if net.input_to_output else []), y_hid, y_cell], -1)
        out = seen @ net.weight_out.t() + (net.bias_out if "output" in net.biased else 0)
        out = torch.sigmoid(out) if net.output == "logistic" else out
        active = torch.ones(3, 1, dtype=torch.bool) if c.lengths is None else (t < c.lengths)[:, None]
        outputs.append(torch.where(active, out, 0.0))
        s, fed_back = torch.where(active, new_s, s), torch.where(active, new_y, fed_back)
    return torch.stack(outputs), (fed_back, s)


def by_name(layer, loss):
    names = [name for name, p in layer.named_parameters() if p.requires_grad]
    return dict(zip(names, torch.autograd.grad(loss, [layer.get_parameter(name) for name in names])))


def lstm97(blocks, block_size, hidden_units, **options):
    torch.manual_seed(0)
    return ll.LSTM97(3, blocks, block_size, hidden_units, 2, init_range=0.9, **DEFAULTS, **options)


@pytest.mark.parametrize(("blocks", "block_size", "hidden_units"), list(product((1, 2, 3), (1, 2), (0, 2))))
@pytest.mark.parametrize("output_gates", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_lstm97(blocks, block_size, hidden_units, output_gates, bias):
    net = lstm97(blocks, block_size, hidden_units, output_gates=output_gates, bias=bias)
    c = case(net)._replace(reset=None, lengths=None)
    y, state = cut_lstm97(net, c)
    ours = forward(TruncatedRTRL(), net, c)
    same(ours[2], by_name(net, (y * c.dy).sum()), "gradient of", TOLERANCE)
    same(ours[0], y, "outputs")
    same(parts(ours[1]), state, "state")


@pytest.mark.parametrize(
    "options",
    [
        {"bias": ("gates",)},
        {"bias": ("cells", "output")},
        {"bias": ("hidden",), "output_gates": False},
        {"output": "linear", "g": "logistic", "h": "identity"},
        {"input_to_output": True, "g": "tanh", "h": "tanh"},
        {"recurrent": False},
    ],
    ids=str,
)
def test_lstm97_options_ragged(options):
    net = lstm97(2, 2, 1, **options)
    c = case(net)
    y, state = cut_lstm97(net, c)
    ours = forward(TruncatedRTRL(), net, c)
    same(ours[2], by_name(net, (y * c.dy).sum()), "gradient of", TOLERANCE)
    same(parts(ours[1]), state, "state")


def test_lstm97_without_output_units_returns_hidden_units_and_cells():
    net = make("lstm97_features")
    c = case(net)
    open_net = ll.LSTM97(3, net.blocks, net.block_size, net.hidden_units, 5, output="linear", **DEFAULTS)
    open_net.load_state_dict(dict(net.state_dict()), strict=False)
    wide = torch.linalg.qr(torch.randn(9, 5, dtype=torch.float64))[0]
    with torch.no_grad():
        open_net.get_parameter("weight_out").copy_(wide.t())
        open_net.get_parameter("bias_out").zero_()
    inner = forward(TruncatedRTRL(), net, c)[2]
    outer = forward(TruncatedRTRL(), open_net, c._replace(dy=c.dy @ wide))[2]
    onto = forward(TruncatedRTRL(), net, c._replace(dy=c.dy @ wide @ wide.t()))[2]
    same(onto, {name: outer[name] for name in inner}, "gradient of", TOLERANCE)


def cut_recurrent(layer, c, own=False):
    """The cell's own equations, U reading a detached y(t−1); ``own``: but for a unit's weight from itself."""
    cell, H = layer.cell, layer.hidden_size
    state, outputs = dict(zip(cell.fed_back, (part[0] for part in parts(c.state)))), []
    for t, x_t in enumerate(c.x):
        before = {k: torch.where(c.reset[t, :, None], 0.0, v) for k, v in state.items()}
        net = dict.fromkeys(cell.gates, 0)
        bias = (layer.bias_ih_l0, layer.bias_hh_l0) if layer.bias else (0, 0)
        heard = before["y"].detach() @ layer.weight_hh_l0.t()
        if own:
            through = layer.weight_hh_l0.detach().view(-1, H, H).diagonal(dim1=1, dim2=2).flatten()
            heard = heard + (before["y"] - before["y"].detach()).repeat(1, len(through) // H) * through
        for gates, product_ in (
            (cell.input_gates, x_t @ layer.weight_ih_l0.t() + bias[0]),
            (cell.recurrent_gates, heard + bias[1]),
        ):
            for gate, value in zip(gates, product_.split(H, -1)):
                net[gate] = net[gate] + value
        loop = {k: before[k] for k in cell.inputs if k in before}
        values = cell(**net, **loop, **{p: getattr(layer, f"{p}_l0") for p in cell.params})
        new = dict(zip(cell.outputs, values if isinstance(values, tuple) else (values,)))
        active = (t < c.lengths)[:, None]
        outputs.append(torch.where(active, new["y"], 0.0))
        state = {k: torch.where(active, new[k], state[k]) for k in cell.fed_back}
    return torch.stack(outputs)


DENSE = [
    "lstm",
    "lstm_no_bias",
    "gru",
    "leaky",
    "leaky_learned",
    "elman",
    "user_everything",
    "user_apart",
    "user_delay",
]


@pytest.mark.parametrize("name", DENSE)
def test_dense_layers(name):
    layer = make(name)
    c = case(layer)
    y = cut_recurrent(layer, c)
    ours = forward(TruncatedRTRL(), layer, c)
    same(ours[2], by_name(layer, (y * c.dy).sum()), "gradient of", TOLERANCE)
    same(ours[0], y, "outputs")


@pytest.mark.parametrize("name", ["lstm97", "lstm", "gru"])
def test_truncated_is_not_the_full_gradient(name):
    """What the cuts remove is there: were TruncatedRTRL to leave them out, the tests above would fail."""
    layer = make(name)
    c = case(layer)
    truncated, full = forward(TruncatedRTRL(), layer, c)[2], forward(RTRL(), layer, c)[2]
    differing = [key for key in full if error(truncated[key], full[key]) > 1e-3]
    assert len(differing) >= 3
    same(full, autograd(layer, c)[2], "full", 1e-9)


def test_without_recurrent_connections_nothing_is_cut():
    net = LAYERS["lstm97_feedforward"]()
    c = case(net)
    same(forward(TruncatedRTRL(), net, c)[2], autograd(net, c)[2], "gradient of", TOLERANCE)


def test_f_one_is_the_constant_error_carousel():
    """With the forget gate at 1 an error that entered q steps ago is scaled alike whatever q. [LSTM-97 4 CEC]"""
    layer = ll.LSTM(1, 1, dtype=torch.float64)
    with torch.no_grad():
        for p in layer.parameters():
            p.zero_()
        layer.get_parameter("bias_ih_l0")[1] = 60.0  # σ(60) = 1 in float64
        layer.get_parameter("weight_ih_l0")[2] = 1.0
    found = []
    for q in (0, 5, 50):
        trace, state, rule = TruncatedRTRL().start(layer, 1), None, TruncatedRTRL()
        for t in range(51):
            x_t = torch.tensor([[1.0 if t == 50 - q else 0.0]], dtype=torch.float64)
            _, state, trace = rule.step(layer, x_t, state, trace)
        dy = torch.ones(1, 1, dtype=torch.float64)
        found.append(rule.gradients(layer, trace, dy)["weight_ih_l0"][2, 0])
    assert float(found[0]) > 0.05
    assert error(found[1], found[0]) < 1e-12
    assert error(found[2], found[0]) < 1e-12


@pytest.mark.parametrize("ragged", [False, True], ids=["even", "ragged"])
def test_hidden_units_may_have_the_full_gradient(ragged):
    """What hidden units feed back to each other is not cut; everything else is."""
    torch.manual_seed(1)
    net = ll.LSTM97(3, 2, 2, hidden_units=3, output_size=2, init_range=1.5, **DEFAULTS)
    c = case(net, ragged=ragged)
    y, state = cut_lstm97(net, c, hidden="full")
    wanted = by_name(net, (y * c.dy).sum())
    ours = forward(TruncatedRTRL(hidden="full"), net, c)
    same(ours[2], wanted, "gradient of", TOLERANCE)
    same(ours[0], y, "outputs")
    same(parts(ours[1]), parts(state), "state")
    cut = forward(TruncatedRTRL(), net, c)[2]
    assert error(cut["weight_hid"], wanted["weight_hid"]) > 1e-3
    same(
        {k: v for k, v in cut.items() if "hid" not in k}, {k: v for k, v in wanted.items() if "hid" not in k}, "", 1e-10
    )


def test_the_full_gradient_of_hidden_units_needs_some():
    with pytest.raises(ValueError, match="TruncatedRTRL: LSTM97 has no conventional hidden units for hidden='full'"):
        TruncatedRTRL(hidden="full").start(ll.LSTM97(3, 2), 1)
    with pytest.raises(ValueError, match="TruncatedRTRL: hidden must be one of 'cut', 'full', got 'all'"):
        TruncatedRTRL(hidden="all")
