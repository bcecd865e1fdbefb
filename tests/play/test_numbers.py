"""The numbers that the playground shows are Python's."""

import math
from functools import cache

import pytest
import torch
from play.visit import LENGTH, SHOWN, SMALL, UNITS, close, layer_of, tensor, visit

import longlag as ll
from longlag import cells, flow


@pytest.fixture(scope="module")
def told(context, server):
    """Asks the page for what it computes for a cell."""
    page = context.new_page()
    page.goto(f"{server.address}#{SMALL}")

    @cache
    def ask(name):
        visit(page, f"{SMALL}&cell={name}&gain=1.3&seed=3")
        return page.evaluate("playground.numbers()")

    yield ask
    page.close()


def carousel_of(layer, x, part):
    """∂v_j(T)/∂v_j(T−q) by autograd through single steps, (T + 1, H)."""
    state, states = layer.initial_state(1), []
    for x_t in [*x, None]:
        parts = [v.requires_grad_() for v in (state if isinstance(state, tuple) else (state,))]
        states.append(parts[part])
        if x_t is not None:
            _, state = layer.step(x_t.unsqueeze(0), state)
    found = [
        torch.autograd.grad(states[-1].flatten()[j], states, retain_graph=True, allow_unused=True) for j in range(UNITS)
    ]
    columns = [[0.0 if g is None else float(g.flatten()[j]) for g in reversed(row)] for j, row in enumerate(found)]
    return tensor(columns).t()


@pytest.mark.parametrize("name", SHOWN)
def test_the_numbers_of_a_cell_are_pythons(name, told):
    made, cell = told(name), SHOWN[name]
    layer, x = layer_of(cell, made)
    y, _ = layer(x)
    close([row["y_new"] for row in made["results"]], y.detach())
    last = flow.error_flow(layer, x)
    close([math.exp(log) for log in made["log_norm"]], last.norm[:, 0])
    if made["bound"] is not None:
        close([math.exp(made["bound"]["log"] * q) for q in range(LENGTH + 1)], last.bound[:, 0])
        assert made["bound"]["is"] == last.bound_is
    radius = flow.spectrum(layer, x).radius[6].item()
    close(max(value["size"] for value in made["eigenvalues"]), radius, 1e-12)
    kept = made["carousel"]
    close(kept["full"], carousel_of(layer, x, cell.fed_back.index(kept["of"])))
    if made["memory"] is not None:  # what the steps wrote, added up, is the state at the end
        v = made["memory"]["of"]
        close(tensor(made["memory"]["rows"]).sum(0).tolist(), made["results"][-1][f"{v}_new"])
    if "y" in cell.fed_back:
        credit = flow.gradient_by_lag(layer, x, lambda y: y.square().sum(-1) / 2).states
        for t, row in enumerate(made["credit"]):
            close(row[1:], credit[t, 1 : t + 1].flatten().flip(0))


def test_the_carousel_and_the_memory_weights_of_lstms(told):
    assert told("lstm97")["carousel"]["cut"] == [[1.0] * UNITS] * (LENGTH + 1)
    recurrent, x = layer_of(cells.lstm, told("lstm"))
    layer = ll.LSTM(3, UNITS, dtype=torch.float64)
    layer.load_state_dict(recurrent.state_dict())
    memory = flow.memory_weights(layer, x)
    close(told("lstm")["memory"]["rows"], memory.contributions.squeeze(1).detach())


@torch.no_grad()
def test_the_learning_network_is_lstm97_and_its_rule(page):
    page.wait_for_function("playground.learning.last")
    asked = page.evaluate("playground.learning.question()")
    net = ll.LSTM97(2, blocks=2, block_size=2, output_size=1, output="linear", dtype=torch.float64)
    names = ("weight_ig", "weight_og", "weight_cell"), ("bias_ig", "bias_og", "bias_cell")

    def split(rows, output):
        """The page's matrices, by the names of LSTM97; the column of biases is last."""
        matrix, out = tensor(rows).view(8, 11), tensor(output)
        weights, biases = matrix[:, :-1].split([2, 2, 4]), matrix[:, -1].split([2, 2, 4])
        return (
            dict(zip(names[0], weights))
            | dict(zip(names[1], biases))
            | {"weight_out": out[:-1].view(1, 4), "bias_out": out[-1:]}
        )

    for name, value in split(asked["W"], asked["V"]).items():
        net.get_parameter(name).copy_(value)
    x, target = tensor(asked["x"]).view(-1, 1, 2), tensor(asked["target"])
    rule, state, y = ll.learn.TruncatedRTRL(), None, target
    trace = rule.start(net, batch_size=1)
    for x_t in x:
        y, state, trace = rule.step(net, x_t, state, trace)
    close(asked["output"], y.flatten())
    gradients = rule.gradients(net, trace, y - target)
    for name, value in split(asked["dW"], asked["dV"]).items():
        close(value.tolist(), gradients[name])
