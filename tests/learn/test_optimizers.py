"""The optimisers of the compiled road are torch's: parameter groups, frozen weights, weight decay."""

import pytest
import torch
from helpers import randn, same
from torch import nn

import longlag as ll
from longlag.learn import LocalForward, Online, squared_error

OPTIMIZERS = {
    "SGD": lambda groups: torch.optim.SGD(groups, momentum=0.9, weight_decay=0.01),
    "Adam": lambda groups: torch.optim.Adam(groups, weight_decay=0.01, amsgrad=True),
    "AdamW": lambda groups: torch.optim.AdamW(groups, weight_decay=0.1),
    "RMSprop": lambda groups: torch.optim.RMSprop(groups, momentum=0.5, weight_decay=0.01),
}


def learner(optimizer, road):
    torch.manual_seed(0)
    layer = ll.LocalFeedback(3, 5, dtype=torch.float64)
    layer.get_parameter("bias_ih_l0").requires_grad_(False)
    readout = nn.Linear(5, 2, dtype=torch.float64)
    groups = [{"params": list(layer.parameters()), "lr": 0.02}, {"params": list(readout.parameters()), "lr": 0.1}]
    online = Online(layer, readout, squared_error, LocalForward(), OPTIMIZERS[optimizer](groups), every=2)
    online.plan(road)
    return online


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_groups_of_parameters_and_a_frozen_one(optimizer):
    x, targets = randn(9, 2, 3), randn(9, 2, 2, seed=1)
    found = []
    for road in ("cpu", "python"):
        online = learner(optimizer, road)
        for x_t, target in zip(x, targets):
            online.step(x_t, target)
        assert online.readout is not None
        parameters = [*online.layer.named_parameters(), *online.readout.named_parameters()]
        found.append({name: p.detach() for name, p in parameters})
    same(found[0], found[1], optimizer, 1e-12)
    assert torch.equal(found[0]["bias_ih_l0"], learner(optimizer, "python").layer.get_parameter("bias_ih_l0"))
