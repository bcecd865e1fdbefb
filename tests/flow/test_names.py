"""Names and arguments that users try first."""

import inspect
import types

import helpers
import pytest
import torch

import longlag as ll
from longlag import flow


def make(name, **options):
    return helpers.LAYERS[name](engine="reference", **options)


X = helpers.randn(9, 2, 3)


def test_every_public_name_can_be_called():
    names = {name: value for name, value in vars(flow).items() if not name.startswith("_")}
    assert len(names) > 20
    assert [name for name, value in names.items() if isinstance(value, types.ModuleType)] == []
    assert [name for name, value in names.items() if not callable(value)] == []
    assert [name for name, value in names.items() if not inspect.getdoc(value)] == []


def test_credit_is_a_function():
    found = flow.credit(make("elman"), X, lambda y: y.square().sum(-1))
    assert isinstance(found, flow.Credit)
    assert flow.credit is flow.gradient_by_lag


def test_layers_can_be_compared():
    layers = {"Elman": make("elman"), "LSTM": make("lstm"), "torch": torch.nn.GRU(3, 4, dtype=torch.float64)}
    found = flow.compare(layers, X, title="three layers")
    assert list(found.flows) == list(layers)
    assert found.plot().axes[0].get_title(loc="left") == "three layers"
    for name, layer in layers.items():
        helpers.same(found.flows[name].log_singular, flow.error_flow(layer, X).log_singular)
    mixed = flow.compare({"a layer": make("elman"), "computed before": flow.error_flow(make("elman"), X)}, X)
    helpers.same(mixed.flows["a layer"].norm, mixed.flows["computed before"].norm)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: flow.compare({"Elman": ll.Elman(3, 4)}),
            TypeError,
            r"compare: x must be given, since flows\['Elman'\] is a layer \(Elman\), got None",
        ),
        (
            lambda: flow.compare({"Elman": ll.Elman(3, 4)}, "Error flow"),  # pyright: ignore[reportArgumentType]
            TypeError,
            "compare: x must be a tensor, got str",
        ),
        (
            lambda: flow.compare({"number": 3.0}, X),  # pyright: ignore[reportArgumentType]
            TypeError,
            r"compare: flows\['number'\] must be a layer, an ErrorFlow or a Carousel, got float",
        ),
        (
            lambda: flow.compare([ll.Elman(3, 4)], X),  # pyright: ignore[reportArgumentType]
            TypeError,
            "compare: flows must be a dictionary of names and layers, ErrorFlows or Carousels, got list",
        ),
        (
            lambda: flow.compare({"ReLU": torch.nn.ReLU()}, X),
            TypeError,
            "layer must be a longlag layer or torch.nn.RNN, LSTM or GRU, got ReLU",
        ),
        (lambda: flow.compare({}), ValueError, "compare: flows must name at least one error flow, got none"),
    ],
)
def test_bad_comparisons_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_results_say_that_derivatives_are_surrogates():
    torch.manual_seed(0)
    layer, x = helpers.LAYERS["user_spikes"](), torch.randn(5, 1, 3, dtype=torch.float64)
    assert flow.error_flow(layer, x).name == "Recurrent (surrogate derivatives)"
    assert flow.spectrum(layer, x).name == "Recurrent (surrogate derivatives)"
    assert flow.spectrum(helpers.LAYERS["lstm"](), x).name == "LSTM"
