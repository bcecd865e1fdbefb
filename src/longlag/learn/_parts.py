"""The parts of a learner as plain data, and the parts made again from the data; nothing is pickled.

Parts of longlag, ``nn.Linear`` and four optimisers of torch can be made again. Anything else is described by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from longlag import cells, layers
from longlag.cells import Cell
from longlag.layers import Layer
from longlag.learn import losses

if TYPE_CHECKING:
    from longlag.learn.online import Online

OPTIMIZERS = {
    kind.__name__: kind for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)
}
LOSSES = {loss.__name__: loss for loss in (losses.squared_error, losses.cross_entropy)}


class Foreign(ValueError):
    """A part that cannot be made again; the message names it."""


def described(learner: Online) -> dict[str, Any]:
    """Part -> its description; ``{"foreign": name}`` for a part that `made` cannot make."""
    parts = {
        "layer": lambda: _layer(learner.layer),
        "readout": lambda: _readout(learner.readout),
        "loss": lambda: _loss(learner.loss),
        "rule": lambda: _rule(learner.rule),
        "optimizer": lambda: _optimizer(learner),
    }
    found: dict[str, Any] = {"options": {"every": learner.every, "clip": learner.clip}}
    for part, describe in parts.items():
        try:
            found[part] = describe()
        except Foreign as name:
            found[part] = {"foreign": str(name)}
    modules = {"layer": learner.layer, "readout": learner.readout}
    found["training"] = {name: module.training for name, module in modules.items() if module is not None}
    found["frozen"] = [name for name, p in _named(learner.layer, learner.readout).items() if not p.requires_grad]
    return found


def made(file: str, parts: dict[str, Any], weights: dict[str, dict[str, Tensor] | None]) -> dict[str, Any]:
    """The arguments of `Online`, new.

    Args:
        file: a name for messages.
        parts: from `described`.
        weights: by module, for their dtype and device.
    """
    for part in ("layer", "readout", "loss", "rule", "optimizer"):
        if isinstance(parts[part], dict) and "foreign" in parts[part]:
            raise ValueError(
                f"Online: the {part} in {file} is {parts[part]['foreign']}, which restore cannot make. Make the "
                "learner as before, and use its load"
            )
    layer = _like(_layer_of(parts["layer"]), weights["layer"])
    readout = None
    if parts["readout"] is not None:
        readout = _like(nn.Linear(**parts["readout"]), weights["readout"])
    named, (kind, groups) = _named(layer, readout), parts["optimizer"]
    if unknown := {*parts["frozen"], *(name for group in groups for name in group["params"])} - named.keys():
        raise ValueError(
            f"Online: modules in {file} were changed after they were made, so that {min(unknown)} is unknown to "
            "restore. Make the learner as before, and use its load"
        )
    for name in parts["frozen"]:
        named[name].requires_grad_(False)
    for name, module in {"layer": layer, "readout": readout}.items():
        if module is not None:
            module.train(parts["training"][name])
    optimizer = OPTIMIZERS[kind]([{**group, "params": [named[name] for name in group["params"]]} for group in groups])
    return {
        "layer": layer,
        "readout": readout,
        "loss": LOSSES[parts["loss"]],
        "rule": _rule_of(parts["rule"]),
        "optimizer": optimizer,
        **parts["options"],
    }


def _like(module: Any, weights: Mapping[str, Tensor] | None) -> Any:
    floating = [value for value in (weights or {}).values() if value.is_floating_point()]
    return module.to(device=floating[0].device, dtype=floating[0].dtype) if floating else module


def _named(layer: Layer, readout: nn.Module | None) -> dict[str, nn.Parameter]:
    """Every parameter by a name of its own."""
    found = {f"layer.{name}": p for name, p in layer.named_parameters()}
    return found if readout is None else found | {f"readout.{name}": p for name, p in readout.named_parameters()}


# -------------------------------------------------------------------------------------------------------- layers
def _layer(layer: Layer) -> dict[str, Any]:
    if getattr(layers, layer.class_name, None) not in type(layer).__mro__[:2]:  # torch's parametrize makes a subclass
        raise Foreign(f"a {layer.class_name}")
    args, options = layer.made_with
    kept = {name: value for name, value in options.items() if name not in ("device", "dtype")}
    return {"class": layer.class_name, "args": _plain(layer, args), "options": _plain(layer, kept)}


def _layer_of(description: dict[str, Any]) -> Layer:
    args, options = _unplain(description["args"]), _unplain(description["options"])
    return getattr(layers, description["class"])(*args, **options)


def _plain(layer: Layer, value: Any) -> Any:
    """An argument as plain data; layers and cells become pairs of a keyword and a description."""
    if hasattr(value, "made_with"):
        return ("layer", _layer(value))
    if isinstance(value, Cell):
        if getattr(cells, value.name, None) is not value:
            raise Foreign(f"a {layer.class_name} of the cell {value.name}")
        return ("cell", value.name)
    if isinstance(value, dict):
        return {key: _plain(layer, v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return ("list", [_plain(layer, v) for v in value])
    if value is None or isinstance(value, bool | int | float | str | Tensor):
        return value
    raise Foreign(f"a {layer.class_name} made with {value!r}")


def _unplain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unplain(v) for key, v in value.items()}
    if not isinstance(value, tuple):
        return value
    kind, content = value
    if kind == "layer":
        return _layer_of(content)
    return getattr(cells, content) if kind == "cell" else [_unplain(v) for v in content]


# ------------------------------------------------------------------------------------------------- the other parts
def _readout(readout: nn.Module | None) -> dict[str, Any] | None:
    if readout is None:
        return None
    if type(readout) is not nn.Linear:
        raise Foreign(f"a {type(readout).__name__}")
    sizes = {"in_features": readout.in_features, "out_features": readout.out_features}
    return {**sizes, "bias": readout.bias is not None}


def _loss(loss: Any) -> str:
    name = getattr(loss, "__name__", type(loss).__name__)
    if LOSSES.get(name) is not loss:
        raise Foreign(name)
    return name


def _rule(rule: Any) -> tuple[str, dict[str, Any]]:
    name = type(rule).__name__
    if _rules().get(name) is not type(rule):
        raise Foreign(f"a {name}")
    # a trace holds its own seed, so a generator is not needed to go on
    return name, {"k" if key == "window" else key: v for key, v in vars(rule).items() if key != "generator"}


def _rule_of(description: tuple[str, dict[str, Any]]) -> Any:
    name, options = description
    return _rules()[name](**options)


def _rules() -> dict[str, Any]:
    from longlag import learn

    kinds = ("BPTT", "TruncatedBPTT", "RTRL", "TruncatedRTRL", "LocalForward", "SnAp", "UORO", "RFLO")
    return {kind: getattr(learn, kind) for kind in kinds}


def _optimizer(learner: Online) -> tuple[str, list[dict[str, Any]]]:
    kind = type(learner.optimizer).__name__
    if OPTIMIZERS.get(kind) is not type(learner.optimizer):
        raise Foreign(f"a {kind}")
    names = {id(p): name for name, p in _named(learner.layer, learner.readout).items()}
    groups = learner.optimizer.param_groups
    if any(id(p) not in names for group in groups for p in group["params"]):
        raise Foreign(f"a {kind} that holds parameters of other modules")
    return kind, [{**group, "params": [names[id(p)] for p in group["params"]]} for group in groups]
