"""Cells of the shelf against their authors' packages: outputs and gradients. Run by ``make peers``."""

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
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
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
    layer = layer_of(cells.cfc, dtype, engine=engine)
    linears = (theirs.ff1, theirs.ff2, theirs.time_a, theirs.time_b)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(torch.cat([linear.weight[:, :I] for linear in linears]))
        layer.weight_hh_l0.copy_(torch.cat([linear.weight[:, I:] for linear in linears]))
        layer.bias_ih_l0.copy_(torch.cat([linear.bias for linear in linears]))
        layer.bias_hh_l0.zero_()
    x, dt = randn(T, B, I).requires_grad_(), randn(T, B, seed=3).abs().requires_grad_()

    def loop():
        h, outputs = torch.zeros(B, H, dtype=dtype), []
        for x_t, dt_t in zip(x, dt):
            y, h = theirs(x_t, h, dt_t.unsqueeze(-1))
            outputs.append(y)
        return torch.stack(outputs)

    compare(lambda: layer(x, dt=dt)[0], loop, [(x, x), (dt, dt)], dtype)


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
    layer = layer_of(cells.ctrnn, dtype)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(part.input_layer.weight)
        layer.weight_hh_l0.copy_(part.hidden_layer.weight)
        layer.bias_ih_l0.copy_(part.hidden_layer.bias)
        layer.bias_hh_l0.copy_(part.input_layer.bias)
        layer.alpha_l0.fill_(0.2)
    x = randn(T, B, I, dtype=dtype).requires_grad_()
    layer.eval()
    compare(
        lambda: layer(x)[0],
        lambda: part(x),
        [(x, x), (layer.weight_hh_l0, part.hidden_layer.weight)],
        dtype,
    )
