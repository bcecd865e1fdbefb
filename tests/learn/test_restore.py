"""A learner made again from its file alone: every layer of the registry, every setting; and what cannot be made."""

import json
import re
import struct
from typing import Any

import pytest
import torch
from helpers import DEFAULTS, LAYERS, ONE_WAY, parts, randn
from learn.test_online import learner, weights
from torch import nn
from torch.nn.utils import parametrizations

import longlag as ll
from longlag import cells
from longlag.learn import BPTT, RTRL, Online, Rule, TruncatedBPTT, cross_entropy, squared_error

OURS = [name for name in ONE_WAY if not name.startswith(("user", "step_function"))]


def saved(online, folder, x=None):
    """The learner's file, after one step."""
    x = randn(2, online.layer.input_size) if x is None else x
    y = online.step(x)
    online.step(x, torch.zeros_like(y) if online.loss is not cross_entropy else torch.zeros(2, dtype=torch.long))
    online.save(folder / "learner.safetensors")
    return folder / "learner.safetensors"


def plain(layer, **options) -> Any:
    rule, loss = options.pop("rule", BPTT()), options.pop("loss", squared_error)
    return Online(layer, None, loss, rule, torch.optim.SGD(layer.parameters(), lr=0.01), **options)


@pytest.mark.parametrize("name", OURS)
def test_every_layer_comes_back_as_it_was_made(name, tmp_path):
    online = plain(LAYERS[name](seed=4))
    twin = Online.restore(saved(online, tmp_path))
    assert repr(twin.layer) == repr(online.layer)
    assert {k: (v.shape, v.dtype) for k, v in twin.layer.state_dict().items()} == {
        k: (v.shape, v.dtype) for k, v in online.layer.state_dict().items()
    }
    for seed in range(3):
        x = randn(2, 3, seed=seed)
        target = torch.ones(twin.trace.shape or (), dtype=torch.float64)
        assert torch.equal(twin.step(x, target), online.step(x, target))
    assert twin.state is not None
    assert online.state is not None
    assert all(torch.equal(a, b) for a, b in zip(parts(twin.state), parts(online.state)))


def test_stacks_within_a_chain(tmp_path):
    chain = ll.Chain(ll.LSTM(3, 4, **DEFAULTS), ll.Recurrent(cells.rnn97, 4, 2, **DEFAULTS))
    online = plain(chain)
    twin = Online.restore(saved(online, tmp_path))
    x = randn(2, 3, seed=1)
    assert torch.equal(twin.step(x), online.step(x))


def test_settings(tmp_path):
    """dtype, frozen weights, training mode, groups of the optimiser, options of rule and learner."""
    layer, head = ll.GRU(3, 4, 2, dropout=0.5).eval(), nn.Linear(4, 3, bias=False)
    layer.get_parameter("weight_hh_l0").requires_grad_(False)
    groups = [{"params": [*layer.parameters()], "lr": 0.125}, {"params": [*head.parameters()], "weight_decay": 0.5}]
    optimizer = torch.optim.AdamW(groups, lr=0.25, betas=(0.8, 0.9), amsgrad=True)
    online = Online(layer, head, cross_entropy, TruncatedBPTT(5), optimizer, every=7, clip=0.5)
    twin = Online.restore(saved(online, tmp_path, torch.randn(2, 3)))
    assert (twin.every, twin.clip, twin.loss, repr(twin.rule)) == (7, 0.5, cross_entropy, "TruncatedBPTT(5)")
    assert isinstance(twin.readout, nn.Linear)
    assert (twin.readout.bias, twin.readout.weight.dtype) == (None, torch.float32)
    assert (twin.layer.training, twin.readout.training) == (False, True)
    frozen = {name: p.requires_grad for name, p in twin.layer.named_parameters()}
    assert frozen == {name: p.requires_grad for name, p in layer.named_parameters()}
    assert type(twin.optimizer) is torch.optim.AdamW
    for ours, theirs in zip(twin.optimizer.param_groups, optimizer.param_groups):
        assert {k: v for k, v in ours.items() if k != "params"} == {k: v for k, v in theirs.items() if k != "params"}
        assert len(ours["params"]) == len(theirs["params"])
    x, classes = torch.randn(9, 2, 3), torch.randint(3, (9, 2))
    for x_t, d_t in zip(x, classes):
        assert torch.equal(twin.step(x_t, d_t), online.step(x_t, d_t))
    assert all(torch.equal(p, weights(twin)[name]) for name, p in weights(online).items())


class OwnRule(RTRL):
    pass


class OwnLayer(ll.GRU):
    pass


@ll.cell(gates="a")
def own_cell(a, y):
    return 0.5 * a + 0.1 * y


FOREIGN = {
    "readout": (lambda: two_layers(), "readout is a Sequential"),
    "loss": (lambda: plain(ll.GRU(3, 4, **DEFAULTS), loss=nn.functional.mse_loss), "loss is mse_loss"),
    "a loss of the same name": (lambda: plain(ll.GRU(3, 4, **DEFAULTS), loss=same_name()), "loss is squared_error"),
    "rule": (lambda: plain(ll.GRU(3, 4, **DEFAULTS), rule=OwnRule()), "rule is a OwnRule"),
    "layer": (lambda: plain(OwnLayer(3, 4, **DEFAULTS)), "layer is a OwnLayer"),
    "cell": (lambda: plain(ll.Recurrent(own_cell, 3, 4, **DEFAULTS)), "layer is a Recurrent of the cell own_cell"),
    "optimizer": (lambda: learner(optimizer=torch.optim.Adagrad), "optimizer is a Adagrad"),
    "parameters": (lambda: one_more(), "optimizer is a SGD that holds parameters of other modules"),
}


def two_layers():
    layer, head = ll.GRU(3, 4, **DEFAULTS), nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double()
    return Online(layer, head, squared_error, RTRL(), torch.optim.SGD(layer.parameters(), lr=0.1))


def same_name():
    def squared_error(output, target):
        return (output - target).abs().sum()

    return squared_error


def one_more():
    layer = ll.GRU(3, 4, **DEFAULTS)
    others = [*layer.parameters(), nn.Parameter(torch.zeros(1))]
    return Online(layer, None, squared_error, RTRL(), torch.optim.SGD(others, lr=0.1))


@pytest.mark.parametrize("which", FOREIGN)
def test_a_part_that_is_not_ours_is_named_and_load_still_works(which, tmp_path):
    make, text = FOREIGN[which]
    online = make()
    file = saved(online, tmp_path)
    part, what = text.split(" is ")
    wanted = (
        f"Online: the {part} in learner.safetensors is {what}, which restore cannot make. Make the learner as before"
    )
    with pytest.raises(ValueError, match=re.escape(wanted)):
        Online.restore(file)
    twin = make()
    twin.load(file)
    x = randn(2, 3, seed=3)
    assert torch.equal(twin.step(x), online.step(x))


def test_a_layer_that_was_changed_after_it_was_made_is_not_restored_as_another(tmp_path):
    layer = ll.GRU(3, 4, **DEFAULTS)
    parametrizations.weight_norm(layer, "weight_hh_l0")
    online = plain(layer)
    text = "changed after they were made, so that layer.parametrizations.weight_hh_l0.original0 is unknown to restore"
    with pytest.raises(ValueError, match=re.escape(text)):
        Online.restore(saved(online, tmp_path))


def test_a_file_without_parts(tmp_path):
    """Files of version 0.1 name no parts."""
    file = saved(plain(ll.GRU(3, 4, **DEFAULTS)), tmp_path)
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    description = json.loads(header["__metadata__"]["longlag"])
    description["content"]["dict"] = [pair for pair in description["content"]["dict"] if pair[0] != "parts"]
    header["__metadata__"]["longlag"] = json.dumps(description)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])
    with pytest.raises(ValueError, match=r"Online: learner\.safetensors was saved by an older version.*use load"):
        Online.restore(file)
    twin = plain(ll.GRU(3, 4, **DEFAULTS))
    twin.load(file)
    assert twin.steps == 2


def test_every_rule_is_restored(tmp_path):
    """A new rule of longlag.learn must be known to restore, or this fails."""
    kinds = [v for v in vars(ll.learn).values() if isinstance(v, type) and issubclass(v, Rule) and v is not Rule]
    assert len(kinds) >= 8
    for kind in kinds:
        rule = kind(3) if kind is TruncatedBPTT else kind()
        layer = ll.LocalFeedback(3, 4, **DEFAULTS) if "Local" in kind.__name__ else ll.LSTM(3, 4, **DEFAULTS)
        assert repr(Online.restore(saved(plain(layer, rule=rule), tmp_path)).rule) == repr(rule)
