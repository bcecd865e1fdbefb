"""Every layer and rule that the compiled engine serves: its gradients are those of the rule in Python and of autograd.

Each network has a kernel of its own, which takes seconds to compile, so only some of the pairs are tested every time:
those whose kernels other tests compile, too. `pytest -m every_pair tests/learn/test_registry.py` tests all pairs.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from helpers import gradients, same
from learn.course import MAKERS, Case, serves
from learn.test_realtime import PAIRS, learners, stream
from learn.test_truncated import DENSE, cut_lstm97, cut_recurrent
from torch import Tensor

from longlag.cells import Cell
from longlag.learn import RTRL, LocalForward, Online, Rule, SnAp, TruncatedRTRL, squared_error

RULES: tuple[Rule, ...] = (RTRL(), TruncatedRTRL(), LocalForward(), SnAp(1))
ALWAYS = {
    (name, str(rule)) for name, rule in [*PAIRS, ("local_network_forget", RTRL()), ("local_network_forget", SnAp(1))]
}
REGISTRY = [
    pytest.param(name, rule, marks=[] if (name, str(rule)) in ALWAYS else pytest.mark.every_pair, id=f"{name} {rule}")
    for name, rule in product(MAKERS, RULES)
]


class Given(NamedTuple):
    """Ragged streams: inputs, targets, and the steps at which each sample advances or begins anew."""

    x: Tensor
    d: Tensor
    active: Tensor
    reset: Tensor


def given() -> Given:
    x, d, _, reset = stream(T=16)
    active = torch.arange(16).unsqueeze(-1) < torch.tensor([16, 5, 11])
    return Given(x, d, active, reset & active)


def compiled_or_not(learner: Any, g: Given) -> dict[str, Tensor]:
    """Gradients of all steps, by the learner's road."""
    learner.run(g.x, g.d, g.active, active=g.active, reset=g.reset)
    assert learner.trace is not None  # gradients go back into torch's tensors
    modules = {"layer": learner.layer, "readout": learner.readout}
    return {f"{kind}.{name}": p.grad for kind, m in modules.items() for name, p in m.named_parameters()}


def reaches_all(cell: Cell) -> bool:
    """Whether every weight acts on all of its unit's state at once: SnAp(1) then keeps all that stays in the unit."""
    return all(pair in cell.jacobian for pair in product(cell.fed_back, (*cell.gates, *cell.params)))


def through_time(learner: Any, rule: Rule, name: str, g: Given) -> dict[str, Tensor] | None:
    """The same by autograd, what the rule cuts detached. None: there is no short way to write the cuts."""
    layer, lengths = learner.layer, g.active.sum(0)
    c = Case(g.x, layer.state_spec.whole(layer.validate_state(None, 3)), g.d, lengths, g.reset)
    if isinstance(rule, RTRL | LocalForward) or name.startswith(("local", "user_oscillator", "lstm97_feedforward")):
        y = layer(g.x, lengths=lengths, reset=g.reset)[0]
    elif name.startswith("lstm97") and layer.output_size == 2 and isinstance(rule, TruncatedRTRL):
        y = cut_lstm97(layer, c)[0]
    elif name in DENSE and (isinstance(rule, TruncatedRTRL) or reaches_all(layer.cell)):
        y = cut_recurrent(layer, c, own=isinstance(rule, SnAp))
    else:
        return None
    loss = torch.stack([squared_error(*each) for each in zip(learner.readout(y), g.d, g.active)]).sum()
    return gradients(loss, torch.nn.ModuleDict({"layer": layer, "readout": learner.readout}))


def claimed(name: str, rule: Rule) -> bool:
    """Whether the compiled engine serves the pair."""
    layer = MAKERS[name]()
    if not serves(rule, layer):
        return False
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    return Online(layer, None, squared_error, rule, optimizer).engine_for()[0] == "cpu"


@pytest.mark.parametrize(("name", "rule"), REGISTRY)
def test_gradients_are_those_of_the_rule_in_python_and_of_autograd(name, rule):
    if not claimed(name, rule):
        pytest.skip("not served by the compiled engine")
    g, roads = given(), learners(name, rule, every=100)
    ours, wanted = (compiled_or_not(learner, g) for learner in roads)
    assert any(bool((value != 0).any()) for key, value in ours.items() if key.startswith("layer"))
    same(ours, wanted, "gradient of", 1e-9)
    exact = through_time(roads[1], rule, name, g)
    if exact is not None:
        same(ours, exact, "gradient of", 1e-9)


def test_the_pairs_that_are_always_tested_are_claimed():
    known = {(name, str(rule)): (name, rule) for name, rule in product(MAKERS, RULES)}
    assert all(claimed(*known[pair]) for pair in ALWAYS)
