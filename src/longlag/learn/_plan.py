"""Which learners the compiled real-time engine serves, and the description of their network for the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from longlag import cells
from longlag.cells import Cell
from longlag.engines.cpu.realtime.layout import Layout
from longlag.engines.cpu.realtime.network import Group, Network
from longlag.layers.units import FED_BACK, INPUT, UnitGraph, UnitGroup, linear_unit
from longlag.learn._moments import KINDS
from longlag.learn._rule import Unsupported
from longlag.learn.losses import cross_entropy, squared_error

if TYPE_CHECKING:
    from longlag.learn.online import Online

LOSSES: list[Callable[..., Tensor]] = [squared_error, cross_entropy]
DTYPES = {torch.float32: "float32", torch.float64: "float64"}


class Weight(NamedTuple):
    """A parameter and its places among the packed weights: (n, 2) of (place, element)."""

    parameter: Tensor
    places: Tensor
    bound: nn.Module | None = None  # the equations read bound(parameter)


class Described(NamedTuple):
    """A learner's network for the engine."""

    network: Network
    layout: Layout
    graph: UnitGraph
    rule: str
    weights: list[Weight]
    copies: Tensor  # (n, c): places that hold the same weight


def describe(learner: Online) -> Described:
    """The description of a learner's network; raises `Unsupported` with the reason if the engine cannot run it."""
    layer, readout = learner.layer, learner.readout
    if layer.device.type != "cpu" or layer.dtype not in DTYPES:
        raise Unsupported(f"it serves float32 and float64 on the CPU, got {layer.dtype} on {layer.device}")
    if learner.loss not in LOSSES:
        raise Unsupported(f"loss is {getattr(learner.loss, '__name__', learner.loss)!r}, not one of longlag.learn")
    logistic = False
    if isinstance(readout, nn.Sequential) and [type(m) for m in readout] in ([nn.Linear], [nn.Linear, nn.Sigmoid]):
        readout, logistic = readout[0], len(readout) == 2
    if readout is not None and type(readout) is not nn.Linear:
        raise Unsupported(f"readout is {type(readout).__name__}, not nn.Linear, alone or with nn.Sigmoid after it")
    if readout is not None and (readout.weight.dtype != layer.dtype or parametrize.is_parametrized(readout)):
        raise Unsupported("readout has another dtype, or is parametrised")
    if type(learner.optimizer) not in KINDS:
        raise Unsupported(
            f"optimizer is {type(learner.optimizer).__name__}, not {', '.join(k.__name__ for k in KINDS)}"
        )
    modules = [*layer.modules(), *([] if learner.readout is None else learner.readout.modules())]
    if any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in modules):
        raise Unsupported("layer or readout has hooks")
    graph, rule, trained = learner.rule.start(layer, 1).method.units()
    found = _described(layer, graph, rule, trained, readout, cells.rnn97 if logistic else linear_unit())
    parameters = [w.parameter for w in found.weights]
    own = [p for module in (layer, readout) if module is not None for p in module.parameters()]
    if len({id(p) for p in parameters}) < len(parameters) or {id(p) for p in own} != {id(p) for p in parameters}:
        raise Unsupported("parameters are shared, or some are not weights of its units")
    if any(not p.is_contiguous() for p in parameters):
        raise Unsupported("parameters are not contiguous")
    return found


def optimised(learner: Online, found: Described) -> list[int | None]:
    """For every weight of the description the number of its group in the optimiser, None if it is not trained."""
    groups = learner.optimizer.param_groups
    number = {id(p): k for k, group in enumerate(groups) for p in group["params"]}
    if not number.keys() <= {id(w.parameter) for w in found.weights}:
        raise Unsupported("optimizer holds parameters of other modules")
    for group in groups:
        if group.get("differentiable") or group.get("capturable"):
            raise Unsupported("optimizer is differentiable or capturable")
    return [number.get(id(w.parameter)) if w.parameter.requires_grad else None for w in found.weights]


def _described(
    layer: Any, graph: UnitGraph, rule: str, trained: set[str], readout: nn.Linear | None, unit: Cell
) -> Described:
    number = {group.name: k for k, group in enumerate(graph.groups)}
    sources: dict[str, str | int] = {INPUT: "x", FED_BACK: "y", **number}
    fed_back = tuple((number[name], value, every) for name, value, every in graph.fed_back_pieces)
    groups, paths = [], []
    for k, group in enumerate(graph.groups):
        reads = tuple(sources[piece] for piece in group.reads)
        if INPUT in group.reads[1:]:
            raise Unsupported(f"{layer.class_name}: group {group.name} reads the input after other values")
        if group.cell.per_step or not group.cell.reads_only_y:
            raise Unsupported(f"cell {group.cell.name} reads numbers per step, or more than y through U")
        echoes = tuple(value for j, value, _ in fed_back if j == k and value != "y")
        attributes = [_attribute(layer, path) for path in group.paths]
        paths.append(attributes)
        first = len(group.paths) - len(group.cell.params)  # params come last
        if any(bound for _, bound in attributes[:first]):
            raise Unsupported("a matrix is parametrised")
        bounds = tuple(None if bound is None else bound.cell for _, bound in attributes[first:])
        ones = len(set(_biases(group)))
        own = rule if rule == "traces" or FED_BACK in group.reads else "traces"
        kind = own if group.name in trained else None
        groups.append(Group(group.cell, group.units, reads, ones, echoes, kind, bounds))
    if readout is not None:
        outputs = tuple(number[name] for name in graph.outputs)
        ones, kind = int(readout.bias is not None), "traces"
        groups.append(Group(unit, readout.out_features, outputs, ones, (), kind))
    network = Network(
        layer.input_size, tuple(groups), fed_back, tuple(number[name] for name in graph.outputs), readout is not None,
        DTYPES[layer.dtype],
    )  # fmt: skip
    layout = Layout(network)
    weights = [w for k, group in enumerate(graph.groups) for w in _weights(layout, k, group, paths[k])]
    if readout is not None:
        weights += _readout_weights(layout, readout)
    return Described(network, layout, graph, rule, weights, _copies(weights))


def _biases(group: UnitGroup) -> list[str]:
    """Kinds of biases that are added: one per group, two for dense layers (``bias_ih`` and ``bias_hh``)."""
    found = [path.rpartition(".")[2] for path in group.paths if "bias_" in path]
    return ["bias_ih", "bias_hh"] if any(name.startswith("bias_hh") for name in found) else ["bias"][: len(found)]


def _attribute(layer: nn.Module, path: str) -> tuple[nn.Parameter, Any]:
    """The parameter behind an attribute, and the bound it is read through."""
    prefix, _, name = path.rpartition(".")
    owner: Any = layer.get_submodule(prefix)
    if not parametrize.is_parametrized(owner, name):
        return getattr(owner, name), None
    stages: Any = owner.parametrizations[name]
    if len(stages) != 1 or not hasattr(stages[0], "cell"):
        raise Unsupported(f"{path} is parametrised by {', '.join(type(stage).__name__ for stage in stages)}")
    return stages.original, stages[0]


def _weights(layout: Layout, k: int, group: UnitGroup, attributes: list[tuple[nn.Parameter, Any]]) -> list[Weight]:
    """The places of a group's parameters: `UnitGroup.gradients` maps W, b and params to them, so it maps places, too.

    A row that serves several units (a gate of a block) would be a sum of places: units are taken one of a block at a
    time.
    """
    cell, ones = group.cell, layout.network.groups[k].ones
    places = (layout.weight_places(k) + 1).double()  # 0: not here
    params = (layout.param_places(k) + 1).double()
    pairs: dict[str, list[Tensor]] = {path: [] for path in group.paths}
    biases = [path for path in group.paths if "bias_" in path]
    for turn in range(group.shared):
        mine = (torch.arange(group.units) % group.shared == turn).double()
        rows = places * mine.repeat(len(cell.gates)).unsqueeze(-1)
        for one in range(max(ones, 1)):
            b = rows[:, group.width + one] if ones else None
            found = group.gradients(rows[:, : group.width], b, dict(zip(cell.params, params * mine)))
            for path in group.paths:
                second = ones == 2 and path in biases and "bias_hh" in path
                if path in biases and one != int(second):
                    continue
                if path not in biases and one:
                    continue
                value = found[path].flatten()
                element = value.nonzero().flatten()
                pairs[path].append(torch.stack([value[element].long() - 1, element], 1))
    found = [torch.cat(pairs[path]).contiguous() for path in group.paths]
    return [Weight(p, places, bound) for places, (p, bound) in zip(found, attributes)]


def _readout_weights(layout: Layout, readout: nn.Linear) -> list[Weight]:
    places = layout.weight_places(len(layout.network.groups) - 1)
    named = [(readout.weight, places[:, : readout.in_features])]
    named += [] if readout.bias is None else [(readout.bias, places[:, -1])]
    return [Weight(p, torch.stack([at.flatten(), torch.arange(at.numel())], 1).contiguous()) for p, at in named]


def _copies(weights: list[Weight]) -> Tensor:
    """The places of each weight that is stored more than once, (n, c); all are stored equally often."""
    sets: list[Tensor] = []
    for _, places, _ in weights:
        times = torch.bincount(places[:, 1])
        several = times[places[:, 1]] > 1
        if several.any():
            found = places[several]
            order = found[:, 1].argsort(stable=True)
            sets.append(found[order, 0].view(-1, int(times.max())))
    return torch.cat(sets).contiguous() if sets else torch.zeros(0, 1, dtype=torch.int64)
