"""Cells of the shelf against their authors' packages: outputs and gradients. Run by ``make peers``."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import longlag as ll
from longlag import cells

T, B, I, H = 12, 3, 4, 6


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def layer_of(cell, dtype, hidden=H, inputs=I, engine="cpu", **options) -> Any:
    torch.manual_seed(1)
    return ll.Recurrent(cell, inputs, hidden, dtype=dtype, engine=engine, **options)


def compare(ours, theirs, pairs, dtype):
    """Outputs and gradients: ``ours`` and ``theirs`` give (T, B, H); pairs: (our parameter, what it is in theirs)."""
    tolerance = 1e-10 if dtype == torch.float64 else 1e-6
    y, wanted = ours(), theirs()
    torch.testing.assert_close(y, wanted, rtol=tolerance, atol=tolerance)
    slopes = randn(*y.shape, seed=5, dtype=dtype)
    d = torch.autograd.grad((y * slopes).sum(), [mine for mine, _ in pairs])
    d_theirs = torch.autograd.grad((wanted * slopes).sum(), [theirs for _, theirs in pairs])
    for found, expected in zip(d, d_theirs):
        scale = float(expected.abs().max())
        assert scale > 0
        torch.testing.assert_close(found.view_as(expected), expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("engine", ["cpu", "reference"])
def test_cfc_without_backbone_is_that_of_ncps(engine):
    from ncps.torch import CfCCell

    dtype = torch.float64
    theirs = CfCCell(I, H, backbone_layers=0).to(dtype)
    layer = ll.layers.from_ncps(theirs)
    layer.engine = engine
    x, dt = randn(T, B, I).requires_grad_(), randn(T, B, seed=3).abs().requires_grad_()

    def loop():
        h, outputs = torch.zeros(B, H, dtype=dtype), []
        for x_t, dt_t in zip(x, dt):
            y, h = theirs(x_t, h, dt_t.unsqueeze(-1))
            outputs.append(y)
        return torch.stack(outputs)

    compare(lambda: layer(x, dt=dt)[0], loop, [(x, x), (dt, dt)], dtype)


def test_a_network_of_ncps_continues_as_a_layer():
    from ncps.torch import CfC

    theirs = CfC(I, H, backbone_layers=0, backbone_units=1)
    ours, x = ll.layers.from_ncps(theirs), randn(B, T, I, dtype=torch.float32).requires_grad_()
    spans = randn(B, T, H, seed=3, dtype=torch.float32).abs()  # per unit: one per sample fails inside ncps 1.0.1
    for given in (None, spans):
        dt: Any = 1.0 if given is None else spans
        compare(lambda dt=dt: ours(x, dt=dt)[0], lambda given=given: theirs(x, timespans=given)[0], [(x, x)], x.dtype)
    none = {"backbone_layers": 0}
    for wrong in ({}, none | {"mode": "no_gate"}, none | {"mode": "pure"}, none | {"proj_size": 2}):
        with pytest.raises(ValueError, match="from_ncps: network has "):
            ll.layers.from_ncps(CfC(I, H, **wrong))


@pytest.mark.parametrize("kind", ["Leaky", "RLeaky", "Synaptic"])
def test_spiking_neurons_are_those_of_snntorch(kind):
    import snntorch

    dtype, hidden = torch.float32, I  # their layers have no input matrix; snnTorch computes in float32
    cell = cells.snn_synaptic if kind == "Synaptic" else cells.snn_leaky
    layer = layer_of(cell, dtype, hidden, hidden)
    V = randn(hidden, hidden, seed=8, dtype=dtype) * 0.5 if kind == "RLeaky" else torch.zeros(hidden, hidden)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.eye(hidden))
        layer.weight_hh_l0.copy_(V)
        for bias in (layer.bias_ih_l0, layer.bias_hh_l0):
            bias.zero_()
        layer.beta_l0.fill_(0.8)
        if kind == "Synaptic":
            layer.alpha_l0.fill_(0.7)
    x = (randn(T, B, hidden, seed=2, dtype=dtype) + 0.7).requires_grad_()
    given = {"beta": 0.8, "reset_mechanism": "subtract"}
    if kind == "Leaky":
        neuron = snntorch.Leaky(**given)
    elif kind == "Synaptic":
        neuron = snntorch.Synaptic(alpha=0.7, **given)
    else:
        neuron = snntorch.RLeaky(all_to_all=True, linear_features=hidden, **given)
        with torch.no_grad():
            neuron.recurrent.weight.copy_(V)
            neuron.recurrent.bias.zero_()

    def loop():
        outputs, state = [], [torch.zeros(B, hidden) for _ in range(1 if kind == "Leaky" else 2)]
        for x_t in x:
            spikes, *state = neuron(x_t, *state)
            outputs.append(spikes)
            if kind == "RLeaky":
                state = [spikes, *state]
        return torch.stack(outputs)

    wanted = loop()
    assert 0.1 < float(wanted.mean()) < 0.9  # neurons that spike, and not always
    compare(lambda: layer(x)[0], loop, [(x, x)], dtype)


def test_lif_is_that_of_spikingjelly():
    from spikingjelly.activation_based import neuron, surrogate

    dtype = torch.float64
    layer = layer_of(cells.lif, dtype, I, I)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.eye(I))
        for other in (
            layer.weight_hh_l0,
            layer.bias_ih_l0,
            layer.bias_hh_l0,
        ):
            other.zero_()
    node = neuron.LIFNode(tau=2.0, v_threshold=1.0, v_reset=0.0, surrogate_function=surrogate.ATan(), step_mode="m")
    x = (1.5 * randn(T, B, I, seed=2) + 1.0).requires_grad_()

    def run():
        node.reset()
        return node(x)

    assert 0.1 < float(run().mean()) < 0.9
    compare(lambda: layer(x)[0], run, [(x, x)], dtype)


def test_slstm_is_that_of_flashrnn():
    from flashrnn.flashrnn.vanilla import flashrnn_forward, flashrnn_pointwise_function_registry

    dtype, heads = torch.float64, 2
    size = H // heads
    layer = layer_of(cells.slstm, dtype, recurrent=f"heads:{heads}")
    x, states = randn(T, B, I).requires_grad_(), torch.zeros(1, B, 4, heads, size, dtype=dtype)
    U = layer.weight_hh_l0.detach().view(4, heads, size, heads, size)
    blocks = torch.stack([U[:, k, :, k] for k in range(heads)], 1)  # (gate, head, to, from)

    def run():
        Wx = x @ layer.weight_ih_l0.t() + layer.bias_ih_l0 + layer.bias_hh_l0
        found = flashrnn_forward(
            Wx.view(T, B, 4, heads, size), states, blocks.permute(1, 3, 0, 2).contiguous(),
            torch.zeros(4, heads, size, dtype=dtype), flashrnn_pointwise_function_registry["slstm"],
        )  # fmt: skip
        return found[0][:, :, 0].reshape(T, B, H)

    pairs = [
        (x, x),
        (layer.weight_ih_l0, layer.weight_ih_l0),
        (layer.bias_ih_l0, layer.bias_ih_l0),
    ]
    compare(lambda: layer(x)[0], run, pairs, dtype)


def test_ctrnn_is_that_of_nn4n():
    from nn4n.model import CTRNN

    dtype = torch.float32  # nn4n converts its inputs to float32
    theirs = CTRNN(dims=[I, H, 2], activation="relu", tau=10, dt=2, preact_noise=0, postact_noise=0)
    part = theirs.recurrent_layer
    layer = layer_of(cells.ctrnn, dtype, tau=10, dt=2)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(part.input_layer.weight)
        layer.weight_hh_l0.copy_(part.hidden_layer.weight)
        layer.bias_ih_l0.copy_(part.hidden_layer.bias)
        layer.bias_hh_l0.copy_(part.input_layer.bias)
    x = randn(T, B, I, dtype=dtype).requires_grad_()
    layer.eval()
    compare(
        lambda: layer(x)[0],
        lambda: part(x),
        [(x, x), (layer.weight_hh_l0, part.hidden_layer.weight)],
        dtype,
    )


@pytest.mark.parametrize("kernel", [4, 0])
def test_an_slstm_layer_of_xlstm_is_replaced(kernel):
    from xlstm.blocks.slstm.layer import sLSTMLayer, sLSTMLayerConfig

    config = sLSTMLayerConfig(
        embedding_dim=H, num_heads=2, conv1d_kernel_size=kernel, backend="vanilla", dtype="float32",
        recurrent_weight_init="standard", enable_automatic_mixed_precision=False,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = sLSTMLayer(config).double()
    with torch.no_grad():
        theirs.group_norm.weight.copy_(0.3 * randn(H))
        theirs.slstm_cell._bias_.add_(0.1 * randn(4 * H))
    ours, x = ll.layers.from_xlstm(theirs), randn(B, T, H, seed=2).requires_grad_()
    pairs: list[Any] = [(x, x), (ours.norm.weight, theirs.group_norm.weight)]
    if ours.convolution is not None:
        pairs.append((ours.convolution.weight, theirs.conv1d.conv.weight))
    compare(lambda: ours(x), lambda: theirs(x), pairs, torch.float64)
    d = torch.autograd.grad(ours(x).square().sum(), ours.recurrent.parametrizations.weight_ih_l0.original)[0]
    gates = [getattr(theirs, f"{gate}gate").weight for gate in "fizo"]
    d_theirs = torch.stack(torch.autograd.grad(theirs(x).square().sum(), gates))
    torch.testing.assert_close(d, d_theirs, rtol=1e-9, atol=1e-11)


def grud_of_pypots():
    """pypots imports some forty packages at once; the folder of GRU-D needs torch only."""
    (folder,) = importlib.util.find_spec("pypots").submodule_search_locations
    file = Path(folder, "nn/modules/grud/__init__.py")
    spec = importlib.util.spec_from_file_location("pypots_grud", file, submodule_search_locations=[str(file.parent)])
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.BackboneGRUD


@pytest.mark.parametrize("engine", ["auto", "reference"])
def test_gru_d_is_that_of_pypots(engine):
    dtype = torch.float64
    torch.set_default_dtype(dtype)  # theirs makes its first state without a dtype
    try:
        torch.manual_seed(2)
        theirs = grud_of_pypots()(T, I, H)
        m = (randn(B, T, I, seed=1) > 0).to(dtype)
        values, mean = randn(B, T, I, seed=2), randn(I, seed=3)
        last, gaps = randn(B, T, I, seed=4), randn(B, T, I, seed=5).abs()
        x = values.requires_grad_()

        layer = layer_of(cells.gru_d, dtype, inputs=2 * I, engine=engine, batch_first=True)
        W, U = theirs.rnn_cell.weight_ih, theirs.rnn_cell.weight_hh
        through_W = W[:, I : I + H].detach()  # theirs reads h through both matrices
        with torch.no_grad():
            layer.weight_ih_l0.copy_(torch.cat([W[:, :I], W[:, I + H :]], 1))
            layer.weight_hh_l0.copy_(torch.cat([through_W, U[2 * H :]]))
            layer.weight_hh_l0[: 2 * H] += U[: 2 * H]
            layer.bias_ih_l0.copy_(theirs.rnn_cell.bias_ih)
            layer.bias_hh_l0.zero_()
            layer.bias_hh_l0[: 2 * H] = theirs.rnn_cell.bias_hh[: 2 * H]
            layer.bias_hh_l0[3 * H :] = theirs.rnn_cell.bias_hh[2 * H :]
            layer.w_l0.fill_(1.0)
            layer.b_l0.copy_(theirs.temp_decay_h.b)

        def run(final):
            decay = torch.exp(-torch.relu(gaps * theirs.temp_decay_x.W.diagonal() + theirs.temp_decay_x.b))
            filled = m * x + (1 - m) * (decay * last + (1 - decay) * mean)
            delta = torch.nn.functional.linear(gaps, theirs.temp_decay_h.W)
            y, state = layer(torch.cat([filled, m], -1), delta=delta)
            if final:
                return state[0]
            before = torch.cat([torch.zeros(B, 1, H), y[:, :-1]], 1)
            return torch.exp(-torch.relu(delta + layer.b_l0)) * before  # theirs collects h, not y

        pairs = [(x, x), (theirs.temp_decay_h.W, theirs.temp_decay_h.W), (layer.b_l0, theirs.temp_decay_h.b)]
        for final in (True, False):
            wanted = lambda final=final: theirs(x, m, gaps, mean, last)[int(final)]  # noqa: E731
            compare(lambda final=final: run(final), wanted, pairs, dtype)
    finally:
        torch.set_default_dtype(torch.float32)
