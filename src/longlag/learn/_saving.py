"""What `Online.save` writes, and how `load` and `restore` read it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from longlag.learn import _file, _parts
from longlag.learn._rule import Trace
from longlag.learn._state import copied

if TYPE_CHECKING:
    from longlag.learn.online import Online

COUNTS = ("steps", "updates", "skipped", "_scored", "loss_now", "running_loss", "gradient_norm")


def save(learner: Online, path: Path) -> None:
    """Write everything that a learner needs to continue."""
    content = {"made_of": _made_of(learner), "parts": _parts.described(learner), **_content(learner)}
    _file.write(path, content)


def load(learner: Online, path: Path) -> None:
    """Give a learner the content of a file; if that fails, the learner is unchanged."""
    content = _file.read(path, learner.layer.device)
    _check(learner, content["made_of"], path)
    before = copied(_content(learner))
    try:
        _restore(learner, content)
    except Exception:
        _restore(learner, before)
        raise


def restored(kind: type[Online], path: Path, device: torch.device) -> Online:
    """A new learner from a file alone."""
    content = _file.read(path, device)
    if "parts" not in content:
        raise ValueError(f"Online: {path.name} was saved by an older version, without its parts; use load")
    weights = {module: content[module] for module in ("layer", "readout")}
    learner = kind(**_parts.made(path.name, content["parts"], weights))
    _check(learner, content["made_of"], path)  # a layer that was changed after it was made
    _restore(learner, content)
    return learner


def _check(learner: Online, theirs: dict[str, Any], path: Path) -> None:
    for part, value in _made_of(learner).items():
        if theirs.get(part) != value:
            raise ValueError(f"Online: {path.name} is from another {part}: {theirs.get(part)!r}, here {value!r}")


def _made_of(learner: Online) -> dict[str, Any]:
    """The properties that a file must share with a learner."""

    def shapes(module: nn.Module | None) -> list[str]:
        values = {} if module is None else module.state_dict()
        return [f"{name} {tuple(v.shape)} {v.dtype}" for name, v in values.items()]

    modules = {"layer": learner.layer, "readout": learner.readout}
    made = {part: f"{module!r} with {', '.join(shapes(module))}" for part, module in modules.items()}
    return made | {"rule": repr(learner.rule), "optimizer": type(learner.optimizer).__name__}


def _content(learner: Online) -> dict[str, Any]:
    trace = learner.trace  # brings the numbers of the compiled engine into the modules
    return {
        "layer": dict(learner.layer.state_dict()),
        "readout": None if learner.readout is None else dict(learner.readout.state_dict()),
        "optimizer": learner.optimizer.state_dict(),
        "grads": [p.grad for p in learner._trained],
        "errors": list(learner._errors),
        "state": learner.state,
        "trace": (trace.batch_size, trace.shape, trace.saved_values()),
        "counts": [getattr(learner, name) for name in COUNTS],
    }


def _restore(learner: Online, content: dict[str, Any]) -> None:
    learner.layer.load_state_dict(content["layer"])
    if learner.readout is not None:
        learner.readout.load_state_dict(content["readout"])
    learner.optimizer.load_state_dict(content["optimizer"])
    for p, gradient in zip(learner._trained, content["grads"]):
        p.grad = gradient
    batch, shape, values = content["trace"]
    fresh = learner.rule.start(learner.layer, batch)
    learner.trace = Trace(fresh.method, batch, values, shape)
    learner.state, learner._errors = content["state"], content["errors"]
    for name, value in zip(COUNTS, content["counts"]):
        setattr(learner, name, value)
