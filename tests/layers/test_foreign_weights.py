"""Weights of ncps and xlstm, against their formulas written here; ``make peers`` compares with the packages."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import randn, same
from torch import nn, sigmoid, tanh
from torch.nn.functional import conv1d, group_norm, logsigmoid, silu

import longlag as ll

B, T, I, H, HEADS = 2, 7, 3, 6, 2


def cfc(**changed: Any) -> Any:
    """A network with the attributes of an ``ncps.torch.CfC``."""
    torch.manual_seed(0)
    network, cell = nn.Module(), nn.Module()
    for name in ("ff1", "ff2", "time_a", "time_b"):
        setattr(cell, name, nn.Linear(I + H, H, dtype=torch.float64))
    cell.__dict__.update(input_size=I, hidden_size=H, mode="default", backbone=None, sparsity_mask=None)
    network.__dict__.update(batch_first=True, use_mixed=False, fc=nn.Identity())
    network.rnn_cell = cell
    for name, value in changed.items():
        setattr(cell if name in cell.__dict__ else network, name, value)
    return network


def test_a_cfc_of_ncps():
    network, x, dt, h = cfc(), randn(B, T, I), randn(B, T, seed=1).abs(), torch.zeros(B, H, dtype=torch.float64)
    cell, wanted = network.rnn_cell, []
    for t in range(T):
        both = torch.cat([x[:, t], h], 1)
        gate = sigmoid(cell.time_a(both) * dt[:, t, None] + cell.time_b(both))
        h = tanh(cell.ff1(both)) * (1 - gate) + gate * tanh(cell.ff2(both))
        wanted.append(h)
    layer = ll.layers.from_ncps(network)
    layer.engine = "reference"
    same(layer(x, dt=dt)[0], torch.stack(wanted, 1))
    same(ll.layers.from_ncps(cell).weight_hh_l0, layer.weight_hh_l0)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"backbone": nn.Identity()}, "a backbone"),
        ({"mode": "no_gate"}, "mode='no_gate'"),
        ({"sparsity_mask": torch.ones(1)}, "a sparsity mask"),
        ({"use_mixed": True}, "mixed_memory=True"),
        ({"fc": nn.Linear(H, 2)}, "a projection"),
    ],
)
def test_networks_of_ncps_that_the_cell_does_not_compute(changed, text):
    with pytest.raises(ValueError, match=f"^from_ncps: network has {text}"):
        ll.layers.from_ncps(cfc(**changed))


def test_what_is_no_network_of_the_package():
    with pytest.raises(TypeError, match=r"^from_ncps: network must be a CfC or CfCCell .*, got Linear"):
        ll.layers.from_ncps(nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"^from_xlstm: layer must be an sLSTMLayer .*, got Linear"):
        ll.layers.from_xlstm(nn.Linear(2, 2))


class Theirs(nn.Module):
    """The parameters of an ``sLSTMLayer`` under their names, and what it computes."""

    def __init__(self, cuda):
        super().__init__()
        size = H // HEADS
        draw = iter(range(99))
        self.cuda = cuda
        self.R = randn(HEADS, 4, size, size, seed=next(draw))  # head, gate, to, from
        self.b = randn(4, HEADS, size, seed=next(draw))
        kernel = self.R.permute(0, 3, 1, 2).reshape(HEADS, size, -1) if cuda else self.R.reshape(HEADS, -1, size)
        bias = self.b.transpose(0, 1) if cuda else self.b
        values = {f"{g}gate.weight": randn(HEADS, size, size, seed=next(draw)) for g in "fizo"}
        values |= {"conv1d.conv.weight": randn(H, 1, 3, seed=30), "conv1d.conv.bias": randn(H, seed=31)}
        values |= {"slstm_cell._recurrent_kernel_": kernel, "slstm_cell._bias_": bias.flatten()}
        self.values = values | {"group_norm.weight": 0.3 * randn(H, seed=32)}
        self.dropout = nn.Dropout(0.0)

    def state_dict(self, *_, **__):
        return self.values

    def forward(self, x):
        v = SimpleNamespace(**{name.replace(".", "_"): value for name, value in self.values.items()})
        padded = nn.functional.pad(x.transpose(1, 2), (2, 0))
        smooth = silu(conv1d(padded, v.conv1d_conv_weight, v.conv1d_conv_bias, groups=H).transpose(1, 2))
        y = c = n = m = torch.zeros(B, HEADS, H // HEADS, dtype=x.dtype)
        outputs = []
        for t in range(T):
            from_x = [smooth[:, t], smooth[:, t], x[:, t], x[:, t]]
            blocks = [v.fgate_weight, v.igate_weight, v.zgate_weight, v.ogate_weight]
            i, f, z, o = (
                torch.einsum("bhd,hod->bho", one.view(B, HEADS, -1), block)
                + torch.einsum("bhd,hod->bho", y, self.R[:, k])
                + self.b[k]
                for k, (one, block) in enumerate(zip(from_x, blocks))
            )
            kept = m + logsigmoid(f)
            m = i if t == 0 else torch.maximum(i, kept)
            c, n = (kept - m).exp() * c + (i - m).exp() * tanh(z), (kept - m).exp() * n + (i - m).exp()
            y = sigmoid(o) * c / n
            outputs.append(group_norm(y.flatten(1), HEADS, 1 + v.group_norm_weight))
        return torch.stack(outputs, 1)


@pytest.mark.parametrize("cuda", [False, True])
def test_an_slstm_layer_of_xlstm(cuda):
    theirs, x = Theirs(cuda), randn(B, T, H)
    ours = ll.layers.from_xlstm(theirs)
    ours.recurrent.engine = "reference"
    same(ours(x), theirs(x), tolerance=1e-11)
    before = ours.recurrent.weight_ih_l0.detach().clone()
    ours(x).square().sum().backward()
    torch.optim.SGD(ours.parameters(), 0.1).step()
    after = ours.recurrent.weight_ih_l0
    assert torch.equal(before == 0, after == 0), "heads read features of others after training"
    assert not torch.equal(before, after)
