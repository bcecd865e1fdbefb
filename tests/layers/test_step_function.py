"""Layers of any torch code (`Recurrent.from_step`), and layers of any kind in a chain."""

from typing import Any

import pytest
import torch
from helpers import LAYERS, randn, same
from torch import nn

import longlag as ll


class Cell(nn.Module):
    """A module as a step: torch's own cell, whose state is its output."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 5)

    def forward(self, x, h):
        h = self.cell(x, h)
        return h, h


def test_a_module_is_a_step():
    torch.manual_seed(0)
    module = Cell().double()
    layer, theirs = ll.Recurrent.from_step(module, 3, 5), nn.GRU(3, 5).double()
    theirs.load_state_dict({f"{name}_l0": value for name, value in module.cell.state_dict().items()})
    x = randn(7, 2, 3)
    same(layer(x), (theirs(x)[0], theirs(x)[1][0]), "outputs and state")
    assert sorted(dict(layer.named_parameters())) == sorted(f"step_of.cell.{n}" for n in module.cell.state_dict())
    assert layer.engine_for(x) == "reference: the step is torch code, which is not compiled"


def test_a_chain_runs_its_layers_one_after_the_other():
    torch.manual_seed(0)
    below, above = LAYERS["lstm_two_ways"](), LAYERS["gru"](8)
    x, lengths = randn(6, 2, 3), torch.tensor([6, 4])
    chain = ll.Chain(below, above)
    y, state = chain(x, lengths=lengths)
    between, (h, c) = below(x, lengths=lengths)
    wanted, end = above(between, lengths=lengths)
    same(y, wanted, "outputs")
    same(state, [part.movedim(1, 0) for part in (h, c, end)], "state")
    with pytest.raises(ValueError, match=r"^Chain: step needs bidirectional=False"):
        chain.step(x[0])


def test_a_chain_drops_outputs_between_its_layers_only():
    chain = ll.Chain(ll.Elman(3, 4), ll.Elman(4, 4), dropout=0.999)
    x = randn(5, 2, 3).float()
    quiet = ll.Chain(chain.members[0], ll.Elman(4, 4))
    quiet.members[1].load_state_dict(chain.members[1].state_dict())
    same(chain.eval()(x)[0], quiet(x)[0], "without dropout")
    nothing, _ = chain.members[1](torch.zeros(5, 2, 4))
    same(chain.train()(x)[0], nothing, "everything dropped")


W = torch.zeros(2, 2)
of_step: Any = ll.Recurrent.from_step


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: of_step(3, 2, 2, {"W": W}), TypeError, "step must be a function or a module, got int"),
        (lambda: of_step(Cell(), 3, 5, {"W": W}), ValueError, "params must be None where step is a module"),
        (lambda: of_step(max, 2, 2), ValueError, "a layer needs parameters, got none"),
        (lambda: of_step(max, 2, {"h": 0}, {"W": W}), ValueError, "state h must be"),
        (lambda: of_step(max, 2, 2, {"W": W.int()}), TypeError, r"params\['W'\] must be a tensor of real"),
    ],
)  # fmt: skip
def test_constructions_refused(make, error, text):
    with pytest.raises(error, match=f"^from_step: {text}"):
        make()


@pytest.mark.parametrize(
    ("returned", "error", "text"),
    [
        (lambda x, h, p: x @ p["W"], TypeError, r"step must return \(y, state\), got \(4, 2\)"),
        (lambda x, h, p: (x.sum(), h), RuntimeError, r"y must be a tensor \(4, …\), got \(\)"),
        (lambda x, h, p: (x, h[:, :1]), RuntimeError, r"the new state \['h'\] must be \[\(4, 2\)\], got \(4, 1\)"),
        (
            lambda x, h, p: (x, (h, h)),
            RuntimeError,
            r"the new state \['h'\] must be \[\(4, 2\)\], got \(4, 2\), \(4, 2\)",
        ),
    ],
)
def test_a_step_that_returns_something_else_is_named(returned, error, text):
    layer = ll.Recurrent.from_step(returned, 2, 2, {"W": W})
    with pytest.raises(error, match=rf"^from_step\(<lambda>\): {text}$"):
        layer(torch.zeros(3, 4, 2))


def test_chains_refused():
    with pytest.raises(ValueError, match=r"^Chain: layers must be at least one layer, got none$"):
        ll.Chain()
    with pytest.raises(TypeError, match=r"^Chain: layer 1 must be a longlag layer, got LSTM$"):
        ll.Chain(ll.LSTM(3, 4), nn.LSTM(4, 4))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"^Chain: layer 1 must have batch_first=True like layer 0$"):
        ll.Chain(ll.LSTM(3, 4, batch_first=True), ll.LSTM(4, 4))
    with pytest.raises(RuntimeError, match=r"^GRU: input must have 5 features, got shape"):
        ll.Chain(ll.LSTM(3, 4), ll.GRU(5, 4))(torch.zeros(2, 1, 3))
