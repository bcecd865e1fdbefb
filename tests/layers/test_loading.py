"""Loading weights: what does not fit is refused, all of it is named, and nothing is changed."""

import re

import pytest
import torch
from helpers import LAYERS, owner, randn

every_layer = pytest.mark.parametrize("name", LAYERS)


def attempt(name, change, error=ValueError, **options):
    """The text with which loading a changed state_dict is refused; nothing may have moved."""
    layer = LAYERS[name]()
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    new = {key: value + 1 for key, value in before.items()}
    change(new)
    with pytest.raises(error) as caught:
        layer.load_state_dict(new, **options)
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items()), "something moved"
    return str(caught.value).removeprefix(f"{owner(layer)}: ")


def last(state_dict):
    return list(state_dict)[-1]


@every_layer
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_numbers(name, value):
    def change(new):
        new[last(new)].view(-1)[-1] = value

    text = attempt(name, change)
    assert text == f"{last(LAYERS[name]().state_dict())} must be finite, got NaN or infinity"


@every_layer
def test_a_wrong_shape(name):
    own = LAYERS[name]().state_dict()
    key, shape = last(own), tuple(own[last(own)].shape)

    def change(new):
        new[key] = randn(*shape, 2)

    assert attempt(name, change) == f"cannot load state_dict: {key} must have shape {shape}, got {(*shape, 2)}"
    assert attempt(name, change, strict=False).startswith("cannot load state_dict")


@every_layer
def test_missing_and_unknown_names_are_all_listed(name):
    own = list(LAYERS[name]().state_dict())

    def change(new):
        del new[own[0]], new[own[1]]
        new["colour"] = randn(3)

    wanted = f"{own[0]} is missing; {own[1]} is missing; colour is not a parameter of this layer"
    assert attempt(name, change) == f"cannot load state_dict: {wanted}"


@every_layer
@pytest.mark.parametrize(
    ("value", "got"),
    [([1.0, 2.0], "list"), (None, "NoneType"), (torch.ones(1, dtype=torch.complex64), "torch.complex64")],
)
def test_what_is_no_tensor_of_numbers(name, value, got):
    key = last(LAYERS[name]().state_dict())

    def change(new):
        new[key] = value.expand(new[key].shape) if isinstance(value, torch.Tensor) else value

    assert attempt(name, change) == f"cannot load state_dict: {key} must be a tensor of real numbers, got {got}"


def test_without_strictness_what_fits_is_loaded():
    layer = LAYERS["lstm"]()
    new = {"bias_ih_l0": torch.zeros(16), "colour": randn(3)}
    result = layer.load_state_dict(new, strict=False)
    assert result.unexpected_keys == ["colour"]
    assert not layer.bias_ih_l0.any()


def test_other_float_types_are_converted():
    layer, single = LAYERS["lstm"](), LAYERS["lstm"](dtype=torch.float32)
    layer.load_state_dict(single.state_dict())
    assert layer.bias_ih_l0.dtype == torch.float64
    assert torch.equal(layer.bias_ih_l0, single.bias_ih_l0.double())


def test_assign_keeps_the_tensors_it_is_given():
    layer, single = LAYERS["lstm"](), LAYERS["lstm"](dtype=torch.float32)
    layer.load_state_dict(single.state_dict(), assign=True)
    assert layer.bias_ih_l0.dtype == torch.float32


def test_a_layer_inside_a_model_refuses_too():
    model = torch.nn.Sequential(LAYERS["lstm"](), torch.nn.Linear(4, 2, dtype=torch.float64))
    new = model.state_dict()
    new["0.weight_hh_l0"] = torch.full_like(new["0.weight_hh_l0"], torch.nan)
    with pytest.raises(ValueError, match=f"^{re.escape('LSTM: 0.weight_hh_l0 must be finite, got NaN or infinity')}$"):
        model.load_state_dict(new)
