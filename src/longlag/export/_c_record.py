"""One step of a layer, and of a learner, as recorded operations. [one stream: batch 1]"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from longlag.engines.recording import Operation, record
from longlag.export._c_program import tensors_in
from longlag.export._c_tables import known
from longlag.export._check import ExportError, check_dtype
from longlag.export._portable import portable
from longlag.export._subject import OneStep
from longlag.layers import Layer
from longlag.learn import UORO, Online, SnAp


@dataclass
class Recording:
    """What the C file is printed from.

    Attributes:
        sections: ``core`` (one step), and of a learner ``predict`` (read-out), ``score`` (read-out, loss, gradients)
            and ``update`` (of the weights).
        inputs: ``x``, and of a learner ``target``.
        lasting: what a device keeps: name -> array.
        rest: the content of those that `reset` sets.
        weights: names of the others, which start as they are.
        after: pairs of a lasting array and its value after the step.
        start: the content of the weights.
        output, scored, loss, norm: results; ``scored`` is the output of ``score``.
        state: names of the layer's state, checked to be finite.
    """

    dtype: torch.dtype
    sections: dict[str, list[Operation]]
    inputs: dict[str, Tensor]
    lasting: dict[str, Tensor]
    rest: dict[str, Tensor]
    output: Tensor
    after: list[tuple[Tensor, Tensor]]
    state: list[str]
    weights: list[str] = field(default_factory=list)
    start: dict[str, Tensor] = field(default_factory=dict)
    scored: Tensor | None = None
    loss: Tensor | None = None
    norm: Tensor | None = None

    @property
    def wanted(self) -> list[Tensor]:
        found = [self.output, *(new for _, new in self.after)]
        return found + [t for t in (self.scored, self.loss, self.norm) if t is not None]


def check_streams(layer: Layer) -> None:
    """Refuse what has no step or is no float."""
    check_dtype(layer.class_name, layer.dtype)
    OneStep(layer, None)


def _example(layer: Layer, seed: int = 0) -> Tensor:
    return torch.randn(1, layer.input_size, generator=torch.Generator().manual_seed(seed), dtype=layer.dtype)


def _state(layer: Layer) -> tuple[Any, dict[str, Tensor], dict[str, Tensor]]:
    """A state, its parts by name in C, and the parts of the initial state."""
    spec = layer.state_spec
    rest = {f"state_{name}": part.clone() for name, part in zip(spec.names, spec.parts(layer.initial_state(1)))}
    lasting = {name: torch.randn_like(part) for name, part in rest.items()}
    return (spec.whole(tuple(lasting.values())) if lasting else None), lasting, rest


@torch.no_grad()
def record_step(model: Layer, readout: nn.Module | None) -> Recording:
    """The step of a layer, weights constant."""
    check_streams(model)
    layer: Any = portable(model)
    head = None if readout is None else portable(readout)
    state, lasting, rest = _state(layer)
    x = _example(layer)

    def step() -> tuple[Tensor, Any]:
        y, new = layer.step(x, state)
        return (y if head is None else head(y)), new

    (output, new), operations = record(step, known)
    _check_python(layer, operations)
    news: tuple[Tensor, ...] = layer.state_spec.parts(new) if lasting else ()
    after = list(zip(lasting.values(), news))
    return Recording(layer.dtype, {"core": operations}, {"x": x}, lasting, rest, output, after, list(lasting))


def _check_python(layer: Layer, operations: list[Operation]) -> None:
    """Refuse a step that makes a Python number of a tensor: C code would not follow a decision about it."""
    for op in operations:
        read = op.arguments["self"] if op.name == "_local_scalar_dense" else None
        if read is not None and (read.is_floating_point() or read.dtype is torch.bool):
            raise ExportError(
                f"export: {layer.class_name} reads a tensor as a Python number in its step, which C code cannot "
                "follow; use torch.where instead of if"
            )


def twin(learner: Online) -> Online:
    """A learner with the same weights and settings at the start of a stream, on the reference engine."""
    groups = learner.optimizer.param_groups
    layer: Any = portable(learner.layer)
    readout = None if learner.readout is None else copy.deepcopy(learner.readout)
    pairs = [*zip(learner.layer.parameters(), layer.parameters())]
    if learner.readout is not None and readout is not None:
        pairs += zip(learner.readout.parameters(), readout.parameters())
    new = {id(old): parameter for old, parameter in pairs}
    own = [{"params": [new[id(p)] for p in g["params"] if id(p) in new], "lr": g["lr"]} for g in groups]
    optimizer = torch.optim.SGD([group for group in own if group["params"]])
    found = Online(layer, readout, learner.loss, learner.rule, optimizer, clip=learner.clip)
    found.plan("python")
    return found


def check_learner(learner: Any) -> None:
    """Refuse what C code does not do."""
    if not isinstance(learner, Online):
        raise ExportError(f"export: --learn needs a learn.Online, got {type(learner).__name__}")
    if learner.rule.deferred:
        raise ExportError(
            f"export: C code learns in real time, not by {learner.rule!r}, which stores the past; LocalForward, "
            "TruncatedRTRL and RTRL do"
        )
    if isinstance(learner.rule, SnAp | UORO):
        raise ExportError(f"export: C code does not learn by {learner.rule!r}; LocalForward, TruncatedRTRL and RTRL do")
    if type(learner.optimizer) is not torch.optim.SGD:
        raise ExportError(f"export: optimizer must be torch.optim.SGD, got {type(learner.optimizer).__name__}")
    for group in learner.optimizer.param_groups:
        for option in ("momentum", "weight_decay", "maximize"):
            if group[option]:
                raise ExportError(f"export: SGD must have {option}=0, got {group[option]!r}")
    if learner.every != 1:
        raise ExportError(f"export: Online must have every=1, got {learner.every}")


def record_learning(learner: Online) -> Recording:
    """A step of the layer and of its rule's traces; loss and gradients; the update of the weights."""
    check_learner(learner)
    check_streams(learner.layer)
    new = twin(learner)
    layer, readout, rule = new.layer, new.readout, new.rule
    first = rule.start(layer, 1)
    _, _, trace = rule.step(layer, _example(layer, 1), None, first)
    state, lasting, rest = _state(layer)
    trace.values.update(_rebuilt(trace.values))  # every array by itself
    before = {f"trace_{path}": leaf for path, leaf in _leaves(trace.values)}
    x = _example(layer)
    (y, after, trace), core = record(lambda: rule.step(layer, x, state, trace), known)
    _check_python(layer, core)
    changed = {t.untyped_storage().data_ptr() for op in core for t in tensors_in([op.arguments[n] for n in op.written])}
    same = {
        name for path, leaf in _leaves(trace.values) if (name := f"trace_{path}") in before and leaf is before[name]
    }
    before = {n: leaf for n, leaf in before.items() if n not in same or leaf.untyped_storage().data_ptr() in changed}
    lasting = lasting | before
    pairs = list(zip((lasting[name] for name in rest), layer.state_spec.parts(after) if rest else ()))
    pairs += [(before[name], leaf) for path, leaf in _leaves(trace.values) if (name := f"trace_{path}") in before]
    with torch.no_grad():
        predicted, predict = record(lambda: y if readout is None else readout(y), known)
    y = y.detach().requires_grad_()
    head = [] if readout is None else [p for p in readout.parameters() if p.requires_grad]
    target = torch.zeros_like(y if readout is None else readout(y)).detach()
    weights = {f"weight_{name}": p for name, p in _named(layer, readout).items()}
    start = {name: value.clone() for name, value in weights.items()}
    results, score = record(lambda: _score(new, trace, y, target, head), known)
    output, loss, norm, steps = results
    _, update = record(lambda: _update(steps), known)
    reset = rest | {name: torch.zeros_like(leaf) for name, leaf in before.items()}
    sections = {"core": core, "predict": predict, "score": score, "update": update}
    inputs = {"x": x, "target": target}
    names = [name for name in lasting if name.startswith("state_")]
    return Recording(
        layer.dtype, sections, inputs, lasting | weights, reset, predicted, pairs, names, list(weights), start,
        output, loss, norm,
    )  # fmt: skip


def _named(layer: Layer, readout: nn.Module | None) -> dict[str, Tensor]:
    found = {name: p.detach() for name, p in layer.named_parameters()}
    return found | ({} if readout is None else {f"readout.{n}": p.detach() for n, p in readout.named_parameters()})


def _score(new: Online, trace: Any, y: Tensor, target: Tensor, head: Sequence[Tensor]) -> Any:
    """Output, loss, norm of the gradients, and (parameter, change) pairs, as `Online` computes them."""
    with torch.enable_grad():
        output = y if new.readout is None else new.readout(y)
        loss = new.loss(output, target)
    dy, *read = torch.autograd.grad(loss, [y, *head], materialize_grads=True)
    found = new.rule.gradients(new.layer, trace, dy)
    gradients = [*zip((new.layer.get_parameter(name) for name in found), found.values()), *zip(head, read)]
    with torch.no_grad():
        norm = torch.stack([(g * g).sum() for _, g in gradients]).sum().sqrt()
        if new.clip is not None:
            scale = torch.where(norm > new.clip, new.clip / norm, torch.ones_like(norm))
            gradients = [(p, g * scale) for p, g in gradients]
    rates = {id(p): group["lr"] for group in new.optimizer.param_groups for p in group["params"]}
    return output.detach(), loss.detach(), norm, [(p, g, rates[id(p)]) for p, g in gradients if id(p) in rates]


@torch.no_grad()
def _update(steps: list[tuple[Tensor, Tensor, float]]) -> None:
    for parameter, gradient, rate in steps:
        parameter.add_(gradient, alpha=-rate)


def _leaves(values: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of nested dicts and sequences, by path."""
    if isinstance(values, Tensor):
        if values.numel():
            yield path, values
    elif isinstance(values, dict):
        for key, value in values.items():
            yield from _leaves(value, f"{path}_{'_'.join(map(str, key)) if isinstance(key, tuple) else key}")
    elif isinstance(values, list | tuple):
        for k, value in enumerate(values):
            yield from _leaves(value, f"{path}_{k}")


def _rebuilt(values: Any) -> Any:
    """The same with every tensor cloned."""
    if isinstance(values, Tensor):
        return values.clone()
    if isinstance(values, dict):
        return {key: _rebuilt(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return type(values)(_rebuilt(value) for value in values)
    return values
